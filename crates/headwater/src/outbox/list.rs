//! A selection of entries, for operators.

use super::{Category, OutboxStatus};
use crate::error::Result;
use crate::name::check_name;
use crate::transaction::Value;

/// A selection of entries: all that are not published, or those that match every field that is set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OutboxSelection {
    status: Option<OutboxStatus>,
    category: Option<Category>,
    topic: Option<String>,
    key: Option<String>,
    after: i64,
    without_payloads: bool,
}

impl OutboxSelection {
    /// Only those of this status.
    #[must_use]
    pub fn status(mut self, status: OutboxStatus) -> Self {
        self.status = Some(status);
        self
    }

    /// Only those of this category.
    #[must_use]
    pub fn category(mut self, category: Category) -> Self {
        self.category = Some(category);
        self
    }

    /// Only those of this topic.
    #[must_use]
    pub fn topic(mut self, topic: impl Into<String>) -> Self {
        self.topic = Some(topic.into());
        self
    }

    /// Only those of this key.
    #[must_use]
    pub fn key(mut self, key: impl Into<String>) -> Self {
        self.key = Some(key.into());
        self
    }

    /// Only those with a higher id: the next page.
    #[must_use]
    pub fn after(mut self, id: i64) -> Self {
        self.after = id;
        self
    }

    /// Without their payloads: they may be large.
    #[must_use]
    pub fn without_payloads(mut self) -> Self {
        self.without_payloads = true;
        self
    }

    pub(super) fn params(self, limit: u32) -> Result<Vec<Value>> {
        self.topic.as_deref().map_or(Ok(()), |topic| check_name("topic", topic))?;
        self.key.as_deref().map_or(Ok(()), |key| check_name("key", key))?;
        Ok(vec![
            self.status.map(OutboxStatus::as_str).into(),
            self.category.map(Category::as_str).into(),
            self.topic.into(),
            self.key.into(),
            self.after.into(),
            limit.into(),
            (!self.without_payloads).into(),
        ])
    }
}
