//! Which dead letters of every source are meant: by source, ids or parts of their texts, page by page.

use uuid::Uuid;

use super::DeadLetterSelection;
use super::any::DeadLetterPlace;
use crate::error::Result;
use crate::name::check_name;
use crate::subscription::SubscriptionId;
use crate::transaction::Value;

/// A selection of dead letters of any source: all, or those that match every field that is set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AnyDeadLetterSelection {
    source: Option<&'static str>,
    ids: Option<Vec<Uuid>>,
    business_key: Option<String>,
    name: Option<String>,
    error_contains: Option<String>,
    topic: Option<String>,
    group: Option<String>,
    contains: Option<String>,
    after: Option<DeadLetterPlace>,
    without_payloads: bool,
}

impl AnyDeadLetterSelection {
    /// Only those of groups.
    #[must_use]
    pub fn of_subscriptions(mut self) -> Self {
        self.source = Some("subscription");
        self
    }

    /// Only those of the outbox.
    #[must_use]
    pub fn of_outbox(mut self) -> Self {
        self.source = Some("outbox");
        self
    }

    /// Only commands that were parked by hand.
    #[must_use]
    pub fn of_commands(mut self) -> Self {
        self.source = Some("command");
        self
    }

    /// Only those with one of these ids.
    #[must_use]
    pub fn ids(mut self, ids: impl IntoIterator<Item = Uuid>) -> Self {
        self.ids = Some(ids.into_iter().collect());
        self
    }

    /// Only those of this business key.
    #[must_use]
    pub fn business_key(mut self, key: impl Into<String>) -> Self {
        self.business_key = Some(key.into());
        self
    }

    /// Only those of this name, or type.
    #[must_use]
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Only those whose error contains this text literally.
    #[must_use]
    pub fn error_contains(mut self, text: impl Into<String>) -> Self {
        self.error_contains = Some(text.into());
        self
    }

    /// Only those of this topic: of its groups, of the outbox for a topic of this name, and commands for it.
    #[must_use]
    pub fn topic(mut self, topic: impl Into<String>) -> Self {
        self.topic = Some(topic.into());
        self
    }

    /// Only those of groups of this name.
    #[must_use]
    pub fn group(mut self, group: impl Into<String>) -> Self {
        self.group = Some(group.into());
        self
    }

    /// Only those whose error, name, key or command id contains this text; upper and lower case are the same in ASCII.
    #[must_use]
    pub fn contains(mut self, text: impl Into<String>) -> Self {
        self.contains = Some(text.into());
        self
    }

    /// Only those after this place: the next page.
    #[must_use]
    pub fn after(mut self, place: DeadLetterPlace) -> Self {
        self.after = Some(place);
        self
    }

    /// Without their payloads: they may be large.
    #[must_use]
    pub fn without_payloads(mut self) -> Self {
        self.without_payloads = true;
        self
    }

    pub(super) fn params(self, limit: u32) -> Result<Vec<Value>> {
        let AnyDeadLetterSelection { source, ids, business_key, name, error_contains, .. } = self;
        for (field, value) in [("topic", &self.topic), ("group", &self.group), ("search", &self.contains)] {
            value.as_deref().map_or(Ok(()), |value| check_name(field, value))?;
        }
        // The rules of a group's selection.
        let all = DeadLetterSelection::all(SubscriptionId(0));
        let checked =
            DeadLetterSelection { ids, key: business_key, message_type: name, error_contains, ..all };
        checked.validate()?;
        Ok(vec![
            source.into(),
            checked.ids.as_deref().map(ids_json).into(),
            checked.key.into(),
            checked.message_type.into(),
            checked.error_contains.into(),
            self.topic.into(),
            self.group.into(),
            self.contains.into(),
            self.after.map(|place| place.number).into(),
            self.after.map(|place| place.dead_letter_id.to_string()).into(),
            (!self.without_payloads).into(),
            limit.into(),
        ])
    }
}

pub(super) fn ids_json(ids: &[Uuid]) -> String {
    serde_json::to_string(ids).expect("ids are always JSON")
}
