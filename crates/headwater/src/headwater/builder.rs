//! A topic to be created. Common settings have a method; all of them are in [`TopicSettings`].

use std::sync::Arc;
use std::time::Duration;

use crate::error::{ErrorKind, Result};
use crate::name::TopicName;
use crate::store::Store;
use crate::topic::{Ordering, Partition, Preset, Semantics, Storage, Topic, TopicSettings, Tracking};

/// A topic to be created.
///
/// | to end with | if the topic exists with other settings |
/// |---|---|
/// | [`create_if_missing`](TopicBuilder::create_if_missing) | it keeps them, and a warning names each difference: for the start of a program |
/// | [`ensure`](TopicBuilder::ensure) | it is altered to the program's |
/// | [`create`](TopicBuilder::create) | it is a `Conflict` |
#[derive(Debug)]
pub struct TopicBuilder {
    store: Arc<dyn Store>,
    name: String,
    settings: TopicSettings,
}

impl TopicBuilder {
    pub(crate) fn new(store: Arc<dyn Store>, name: &str) -> Self {
        TopicBuilder { store, name: name.to_owned(), settings: TopicSettings::default() }
    }

    /// The settings of a preset; replaces everything set before.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> headwater::Result<()> {
    /// # use std::time::Duration;
    /// # let headwater = headwater::Headwater::in_memory().await?;
    /// use headwater::Preset;
    /// let topic = headwater.topic("payments").preset(Preset::Critical).create().await?;
    /// assert_eq!(topic.settings.message_retention, Some(Duration::from_secs(7 * 86_400)));
    /// assert!(topic.settings.block_writes_on_zero_subscriptions);
    /// # headwater.close().await }
    /// ```
    #[must_use]
    pub fn preset(mut self, preset: Preset) -> Self {
        self.settings = TopicSettings::preset(preset);
        self
    }

    /// Every subscription gets every message, for 30 days at most; call [`TopicBuilder::max_retention`] after it for
    /// longer.
    #[must_use]
    pub fn pub_sub(mut self) -> Self {
        self.settings.semantics = Semantics::PubSub;
        self.settings.max_retention =
            self.settings.max_retention.or_else(|| TopicSettings::pub_sub().max_retention);
        self
    }

    /// Strict order among messages of one key.
    #[must_use]
    pub fn ordered_by_key(mut self) -> Self {
        self.settings.ordering = Ordering::Key;
        self
    }

    /// Into how many lanes an ordered subscription is split: how many keys may be handled concurrently.
    #[must_use]
    pub fn lanes(mut self, lanes: u16) -> Self {
        self.settings.lanes = lanes;
        self
    }

    /// How completion is recorded.
    #[must_use]
    pub fn tracking(mut self, tracking: Tracking) -> Self {
        self.settings.tracking = tracking;
        self
    }

    /// How long a message is kept after every counting subscription is done with it; `None` keeps it for replay, until
    /// [`TopicBuilder::max_retention`].
    #[must_use]
    pub fn message_retention(mut self, retention: impl Into<Option<Duration>>) -> Self {
        self.settings.message_retention = retention.into();
        self
    }

    /// The age at which a message is removed even if subscriptions are not done with it; `None` for never, the default
    /// of a queue.
    #[must_use]
    pub fn max_retention(mut self, retention: Option<Duration>) -> Self {
        self.settings.max_retention = retention;
        self
    }

    /// How long a message published while no subscription counted is kept at least.
    #[must_use]
    pub fn zero_subscription_retention(mut self, retention: Duration) -> Self {
        self.settings.zero_subscription_retention = retention;
        self
    }

    /// Whether publishing fails while no subscription counts; only for pub/sub topics.
    #[must_use]
    pub fn block_writes_on_zero_subscriptions(mut self, block: bool) -> Self {
        self.settings.block_writes_on_zero_subscriptions = block;
        self
    }

    /// Only for pub/sub topics: a subscription that has been dead for longer gives up its outstanding ranges of
    /// messages that are removed.
    #[must_use]
    pub fn zombie_subscription_ttl(mut self, ttl: Duration) -> Self {
        self.settings.zombie_subscription_ttl = ttl;
        self
    }

    /// Stores the topic in tables of its own, partitioned like this (PostgreSQL).
    #[must_use]
    pub fn dedicated(mut self, partition: Partition) -> Self {
        self.settings.storage = Storage::Dedicated(partition);
        self
    }

    /// The largest payload.
    #[must_use]
    pub fn payload_bytes_max(mut self, bytes: usize) -> Self {
        self.settings.payload_bytes_max = bytes;
        self
    }

    /// How long a dedup key is remembered.
    #[must_use]
    pub fn dedup_window(mut self, window: Duration) -> Self {
        self.settings.dedup_window = window;
        self
    }

    /// How often the processes of a group send a heartbeat, and after how long without one the group is dead.
    #[must_use]
    pub fn heartbeats(mut self, interval: Duration, timeout: Duration) -> Self {
        self.settings.heartbeat_interval = interval;
        self.settings.heartbeat_timeout = timeout;
        self
    }

    /// Whether each ack is logged: which owner acked which offsets, and when.
    #[must_use]
    pub fn ack_log(mut self, ack_log: bool) -> Self {
        self.settings.ack_log = ack_log;
        self
    }

    /// How long the head waits at a missing offset before it steps over it and records the gap (PostgreSQL).
    #[must_use]
    pub fn gap_patience(mut self, patience: Duration) -> Self {
        self.settings.gap_patience = patience;
        self
    }

    /// How long a lease lasts; zero means it never expires.
    #[must_use]
    pub fn lease(mut self, lease: Duration) -> Self {
        self.settings.lease = lease;
        self
    }

    /// How often a message is handed out before it becomes a dead letter.
    #[must_use]
    pub fn max_attempts(mut self, attempts: u32) -> Self {
        self.settings.max_attempts = attempts;
        self
    }

    /// How long a failed message waits before its first retry, and at most; the wait doubles with each attempt.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> headwater::Result<()> {
    /// # use std::time::Duration;
    /// # let headwater = headwater::Headwater::in_memory().await?;
    /// let (initial, longest) = (Duration::from_millis(100), Duration::from_secs(30));
    /// let topic = headwater.topic("orders").backoff(initial, longest).create().await?;
    /// assert_eq!((topic.settings.backoff_initial, topic.settings.backoff_max), (initial, longest));
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn backoff(mut self, initial: Duration, longest: Duration) -> Self {
        self.settings.backoff_initial = initial;
        self.settings.backoff_max = longest;
        self
    }

    /// All settings at once.
    #[must_use]
    pub fn settings(mut self, settings: TopicSettings) -> Self {
        self.settings = settings;
        self
    }

    /// Creates the topic if it does not exist. The settings matter only then: a topic that exists keeps its own, which
    /// an operator may have tuned, and one warning names each setting that differs, with both values.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> headwater::Result<()> {
    /// # let headwater = headwater::Headwater::in_memory().await?;
    /// headwater.topic("orders").max_attempts(5).create_if_missing().await?;
    /// let topic = headwater.topic("orders").max_attempts(8).create_if_missing().await?; // logs "max_attempts 5, not 8"
    /// assert_eq!(topic.settings.max_attempts, 5);
    /// # Ok(()) }
    /// ```
    pub async fn create_if_missing(self) -> Result<Topic> {
        let topic = self.find_or_create().await?;
        let differ = topic.settings.differences(&self.settings.as_stored());
        if !differ.is_empty() {
            tracing::warn!(
                topic = topic.name.as_str(),
                settings = differ.join("; "),
                "topic has other settings than the program and keeps them"
            );
        }
        Ok(topic)
    }

    /// Creates the topic, or alters it to exactly these settings, with an audit entry: the program and not the operator
    /// decides. A setting that cannot be changed is `InvalidInput`, as in [`Topics::alter`](crate::Topics::alter).
    ///
    /// Safe in every process at every start. Of processes with the same settings one alters the topic, and for the others
    /// there is nothing to alter. Of two versions of the program the one that started last decides, and neither fails.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> headwater::Result<()> {
    /// # let headwater = headwater::Headwater::in_memory().await?;
    /// headwater.topic("orders").max_attempts(5).ensure().await?;
    /// let topic = headwater.topic("orders").max_attempts(8).ensure().await?;
    /// assert_eq!(topic.settings.max_attempts, 8);
    /// # Ok(()) }
    /// ```
    pub async fn ensure(self) -> Result<Topic> {
        loop {
            let topic = self.find_or_create().await?;
            let differ = topic.settings.differences(&self.settings.as_stored());
            if differ.is_empty() {
                return Ok(topic);
            }
            match self.store.alter_topic(&topic.name, &self.settings).await {
                // Deleted since it was found.
                Err(error) if error.kind() == ErrorKind::NoSuchTopic => {}
                altered => {
                    if altered.is_ok() {
                        tracing::info!(
                            topic = topic.name.as_str(),
                            settings = differ.join("; "),
                            "topic altered by the program"
                        );
                    }
                    return altered;
                }
            }
        }
    }

    /// Creates the topic, or returns the existing one if its settings are the same. Other settings are a `Conflict`, and
    /// nothing is changed.
    pub async fn create(self) -> Result<Topic> {
        self.store.create_topic(&TopicName::new(&self.name)?, &self.settings).await
    }

    /// The topic as it is, created if there is none. Each further round means that another process created or deleted the
    /// topic in between.
    pub(crate) async fn find_or_create(&self) -> Result<Topic> {
        let name = TopicName::new(&self.name)?;
        // A program with settings that contradict each other fails everywhere, not only where the topic is missing.
        self.settings.validate()?;
        loop {
            match self.store.topic(&name).await {
                Err(error) if error.kind() == ErrorKind::NoSuchTopic => {}
                found => return found,
            }
            match self.store.create_topic(&name, &self.settings).await {
                Err(error) if error.kind() == ErrorKind::Conflict => {}
                created => return created,
            }
        }
    }
}
