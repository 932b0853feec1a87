//! What a program declares of its group: order, attempts, back-off, heartbeats, backfill.
//!
//! The declaration is applied when the group first subscribes, and is stored with the subscription. From then on the
//! stored settings hold, so that a deploy undoes nothing that an operator changed: a difference is one WARN per start
//! of the consumer. [`ConsumerBuilder::ensure_policy`] chooses otherwise.

use std::time::Duration;

use super::ConsumerBuilder;
use crate::backfill::{BackfillLimits, drive};
use crate::error::Result;
use crate::name::{GroupName, TopicName};
use crate::store::Store;
use crate::subscription::{DeliveryPolicy, GroupOrder, NewSubscription, Subscription};
use crate::topic::Tracking;

/// Settings of the group, which are stored with its subscription when the group first subscribes. An existing group
/// keeps its own: a difference is logged as a WARN, and changed by an operator (`headwater group policy`) or by
/// [`ensure_policy`](Self::ensure_policy).
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> headwater::Result<()> {
/// # use std::time::Duration;
/// # use headwater::Headwater;
/// let headwater = Headwater::in_memory().await?;
/// headwater.topic("orders").pub_sub().create().await?;
/// // One group in order, with few attempts; others of the topic are free.
/// let shipping = headwater
///     .consumer("orders", "shipping")
///     .ordered_by_key()
///     .max_attempts(4)
///     .backoff(Duration::from_millis(200), Duration::from_secs(30))
///     .open()
///     .await?;
/// let email = headwater.consumer("orders", "email").open().await?;
/// assert_eq!((shipping.subscription().lanes, email.subscription().lanes), (16, 0));
/// assert_eq!(headwater.groups("orders").policy("shipping").await?.max_attempts, Some(4));
/// # headwater.close().await }
/// ```
impl ConsumerBuilder {
    /// Handles messages of one key strictly in order, whatever the topic's default is; different keys concurrently, in
    /// as many lanes as the topic's settings say. Cannot be changed later: subscribe another group for that.
    #[must_use]
    pub fn ordered_by_key(self) -> Self {
        self.order(GroupOrder::ByKey { lanes: None })
    }

    /// Sets the order of the group: by key in a number of lanes, or none where the topic's default is by key.
    #[must_use]
    pub fn order(mut self, order: GroupOrder) -> Self {
        self.new.order = order;
        self
    }

    /// How often a message is handed out before it becomes a dead letter.
    #[must_use]
    pub fn max_attempts(mut self, attempts: u32) -> Self {
        self.new.policy.max_attempts = Some(attempts);
        self
    }

    /// How long a failed message waits before its first retry, and at most; the wait doubles with each attempt.
    #[must_use]
    pub fn backoff(mut self, initial: Duration, longest: Duration) -> Self {
        self.new.policy.backoff_initial = Some(initial);
        self.new.policy.backoff_max = Some(longest);
        self
    }

    /// How often the processes of the group send a heartbeat, and after how long without one the group is dead.
    #[must_use]
    pub fn heartbeats(mut self, interval: Duration, timeout: Duration) -> Self {
        self.new.policy.heartbeat_interval = Some(interval);
        self.new.policy.heartbeat_timeout = Some(timeout);
        self
    }

    /// How much is added of a new group to existing completion records, and how fast; the last 1,000,000 messages by
    /// default. Only topics with reference counting have such records.
    #[must_use]
    pub fn backfill(mut self, limits: BackfillLimits) -> Self {
        self.new.backfill = limits;
        self
    }

    /// Makes the code the authority for the group's attempts, back-off and heartbeats: those set here are stored at each
    /// start, over what an operator set meanwhile. Settings not named here stay as they are; so does the order.
    #[must_use]
    pub fn ensure_policy(mut self) -> Self {
        self.ensure_policy = true;
        self
    }

    pub(super) async fn subscribe(&self) -> Result<Subscription> {
        let (topic, group) = (TopicName::new(&self.topic)?, GroupName::new(&self.group)?);
        let store = &**self.headwater.store();
        let mut subscription = store.subscribe_with(&topic, &group, &self.new).await?;
        if self.ensure_policy && !self.new.policy_differences(&subscription.topic.settings).is_empty() {
            subscription.topic.settings = ensured(store, &subscription, self.new.policy).await?;
        }
        warn_of_differences(&self.new, &subscription);
        if subscription.topic.settings.tracking == Tracking::ReferenceCounting
            && let Err(error) = drive::at_once(store, &topic, &group).await
        {
            // Maintenance does it: delivery does not depend on it.
            tracing::warn!(%topic, %group, %error, "backfill postponed, left to maintenance");
        }
        Ok(subscription)
    }
}

/// Stores the declared policy over the one of an existing group, and returns the settings that hold now. Of two programs
/// that declare different policies the last one to start wins; each change has its audit entry.
async fn ensured(
    store: &dyn Store,
    subscription: &Subscription,
    declared: DeliveryPolicy,
) -> Result<crate::topic::TopicSettings> {
    let (topic, group) = (&subscription.topic.name, &subscription.group);
    let before = store.policy(topic, group).await?;
    store.set_policy(topic, group, &declared.or(before)).await?;
    tracing::info!(%topic, %group, "delivery policy set as declared in code");
    Ok(declared.apply_to(&subscription.topic.settings).as_stored())
}

fn warn_of_differences(declared: &NewSubscription, stored: &Subscription) {
    let differences = declared.differences(stored);
    if differences.is_empty() {
        return;
    }
    let (topic, group) = (&stored.topic.name, &stored.group);
    tracing::warn!(
        %topic, %group, differences = differences.join("; "),
        "the group exists with other settings than the code declares, and keeps its own: change the code, or the policy \
         with `headwater group policy {topic} {group}` or `.ensure_policy()`; the order is fixed for the life of a group"
    );
}
