//! The topics of a namespace, for operators: list, progress, settings, removal.

use std::sync::Arc;

use crate::error::{Error, Result};
use crate::name::{TopicName, check_name};
use crate::store::Store;
use crate::topic::{Removal, Topic, TopicContents, TopicSettings, TopicStatus};

/// The topics of a namespace; from [`crate::Headwater::topics`]. Cheap to clone. Every change makes an audit entry.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> headwater::Result<()> {
/// # use std::time::Duration;
/// # let headwater = headwater::Headwater::in_memory().await?;
/// use headwater::TopicSettings;
///
/// headwater.topic("orders").create_if_missing().await?;
/// headwater.producer("orders").send(&1).await?;
///
/// let topics = headwater.topics();
/// let settings = topics.get("orders").await?.settings;
/// let longer = TopicSettings { message_retention: Some(Duration::from_secs(7 * 86_400)), ..settings };
/// assert_eq!(topics.alter("orders", &longer).await?.settings, longer);
///
/// topics.advance_heads().await?; // exact figures even without consumers
/// assert_eq!(topics.status("orders").await?.head.0, 1);
///
/// // A dry run shows what would be removed.
/// use headwater::topic::Removal;
/// assert_eq!(topics.purge("orders", Removal::DryRun).await?.messages, 1);
/// topics.purge("orders", Removal::Unserved).await?;
/// topics.delete("orders", Removal::Unserved).await?;
/// assert!(topics.list().await?.is_empty());
/// # headwater.close().await }
/// ```
#[derive(Clone, Debug)]
pub struct Topics {
    store: Arc<dyn Store>,
}

impl Topics {
    pub(crate) fn new(store: Arc<dyn Store>) -> Self {
        Topics { store }
    }

    /// All topics by name, with their progress.
    pub async fn list(&self) -> Result<Vec<TopicStatus>> {
        self.store.topics().await
    }

    /// The topics of a selection by name, with their progress, at most `limit`.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> headwater::Result<()> {
    /// # let headwater = headwater::Headwater::in_memory().await?;
    /// for name in ["orders", "orders.eu", "payments"] {
    ///     headwater.topic(name).create().await?;
    /// }
    /// let found = headwater.topics().find(10, |all| all.contains("ORDER").after("orders")).await?;
    /// assert_eq!(found[0].topic.name.as_str(), "orders.eu");
    /// # headwater.close().await }
    /// ```
    pub async fn find(
        &self,
        limit: u32,
        choose: impl FnOnce(TopicSelection) -> TopicSelection,
    ) -> Result<Vec<TopicStatus>> {
        self.store.find_topics(&choose(TopicSelection::default()), limit).await
    }

    /// A topic with its settings. `NoSuchTopic` if it does not exist: this creates none.
    pub async fn get(&self, topic: &str) -> Result<Topic> {
        self.store.topic(&TopicName::new(topic)?).await
    }

    /// The progress of a topic. `NoSuchTopic` if it does not exist.
    pub async fn status(&self, topic: &str) -> Result<TopicStatus> {
        let name = TopicName::new(topic)?;
        let found = self.find(1, |all| all.name(topic)).await?.pop();
        found.ok_or_else(|| Error::no_such_topic(name.as_str()))
    }

    /// Changes a topic's settings while it is in use. `NoSuchTopic` if it does not exist, `InvalidInput` for a setting
    /// that cannot be changed: see [`Admin::alter_topic`](crate::store::Admin::alter_topic).
    pub async fn alter(&self, topic: &str, settings: &TopicSettings) -> Result<Topic> {
        self.store.alter_topic(&TopicName::new(topic)?, settings).await
    }

    /// Deletes a topic with its messages, groups and dead letters, or shows what that would remove. The name is free
    /// at once. `InvalidTransition` while a process serves one of its groups, unless it is forced; `Busy` while a
    /// transaction that published to it stays open. See [`Admin::delete_topic`](crate::store::Admin::delete_topic).
    pub async fn delete(&self, topic: &str, removal: Removal) -> Result<TopicContents> {
        self.store.delete_topic(&TopicName::new(topic)?, removal).await
    }

    /// Removes all messages of a topic, or shows what that would remove. Its groups stay and continue with what is
    /// published next; scheduled messages and dead letters stay. `InvalidTransition` while a process serves one of its
    /// groups, unless it is forced. See [`Admin::purge_topic`](crate::store::Admin::purge_topic).
    pub async fn purge(&self, topic: &str, removal: Removal) -> Result<TopicContents> {
        self.store.purge_topic(&TopicName::new(topic)?, removal).await
    }

    /// Whether publishes in plain SQL, and programs that do not set `auto_create`, create topics from now on; running
    /// programs keep the value they read when they opened the store. Only SQLite stores it: on PostgreSQL it is
    /// `InvalidInput`.
    pub async fn set_auto_create(&self, auto_create: bool) -> Result<()> {
        self.store.set_auto_create(auto_create).await
    }

    /// Advances the heads of all topics to what is committed. Consumers do that on demand; without any, heads and lags
    /// on PostgreSQL are as old as the last maintenance. Needs write permission.
    pub async fn advance_heads(&self) -> Result<()> {
        self.store.advance_heads().await.map(drop)
    }
}

/// A selection of topics: all, or those that match every field that is set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TopicSelection {
    pub(crate) name: Option<String>,
    pub(crate) contains: Option<String>,
    pub(crate) after: Option<String>,
}

impl TopicSelection {
    /// Only the one of this name.
    #[must_use]
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Only those whose name contains this text; upper and lower case are the same in ASCII.
    #[must_use]
    pub fn contains(mut self, text: impl Into<String>) -> Self {
        self.contains = Some(text.into());
        self
    }

    /// Only those after this name: the next page.
    #[must_use]
    pub fn after(mut self, name: impl Into<String>) -> Self {
        self.after = Some(name.into());
        self
    }

    pub(crate) fn validate(&self) -> Result<()> {
        for (field, value) in [("topic", &self.name), ("search", &self.contains), ("after", &self.after)] {
            value.as_deref().map_or(Ok(()), |value| check_name(field, value))?;
        }
        Ok(())
    }
}
