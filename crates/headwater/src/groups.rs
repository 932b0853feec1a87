//! The groups of a topic, for operators: status and administration.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use tokio::time::Instant;

use crate::backfill::{Backfill, BackfillLimits, drive};
use crate::clock::Clock;
use crate::error::{Error, ErrorKind, Result};
use crate::lease::OffsetRange;
use crate::limits::{DELAY_MAX, MAINTENANCE_MESSAGES_MAX};
use crate::message::Offset;
use crate::name::{GroupName, TopicName};
use crate::store::{Ack, ForceCompleted, Moved, Record, Resurrected, Store, Stuck};
use crate::subscription::{
    DeliveryPolicy, HealthIssue, NewSubscription, Outstanding, Start, SubscriptionState, SubscriptionStatus,
};
use crate::topic::{TopicId, Tracking};

mod all;
mod message;

pub use all::{AllGroups, FoundGroup, GroupPlace, GroupSelection};
pub use message::MessageStatus;

/// The first pause between two polls for what is in flight; it doubles up to the longest.
const POLL_FIRST: Duration = Duration::from_millis(10);
const POLL_LONGEST: Duration = Duration::from_millis(500);
/// How long removing waits for a cancelled group to be released from the completion records.
const RELEASE_WITHIN: Duration = Duration::from_secs(60);

/// The groups of one topic; from [`crate::Headwater::groups`]. Cheap to clone. Every change makes an audit entry.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> headwater::Result<()> {
/// # use std::time::Duration;
/// use headwater::{Headwater, Start, SubscriptionState};
///
/// let headwater = Headwater::in_memory().await?;
/// let orders = headwater.producer("orders");
/// orders.send(&1).await?;
/// orders.send(&2).await?;
/// let mut consumer = headwater.consumer("orders", "email").open().await?;
/// let groups = headwater.groups("orders");
///
/// // A pause stops delivery in every process, and loses nothing.
/// groups.pause("email").await?;
/// assert!(consumer.next(Duration::ZERO).await?.is_none());
/// assert_eq!(groups.list().await?[0].status.state, SubscriptionState::Paused);
/// groups.resume("email").await?;
///
/// let batch = consumer.next(Duration::from_secs(5)).await?.expect("two wait");
/// batch.ack().await?;
/// // Back to the beginning: a dry run shows the effect first.
/// assert_eq!(groups.seek("email", Start::Beginning, true).await?.replayed, 2);
/// groups.seek("email", Start::Beginning, false).await?;
/// assert_eq!(consumer.next(Duration::from_secs(5)).await?.expect("again").messages().len(), 2);
///
/// // Removed, with the messages it had leased.
/// let removed = groups.remove("email", Duration::ZERO).await?;
/// assert_eq!(removed.in_flight, 2);
/// assert!(groups.list().await?.is_empty());
/// # headwater.close().await }
/// ```
#[derive(Clone, Debug)]
pub struct Groups {
    store: Arc<dyn Store>,
    clock: Clock,
    topic: String,
}

/// The status of a group and its health issues.
#[derive(Clone, Debug, PartialEq)]
pub struct GroupHealth {
    /// Its progress and activity.
    pub status: SubscriptionStatus,
    /// Its health issues; empty if it is healthy.
    pub health_issues: Vec<HealthIssue>,
    /// How far behind in time: how long ago the oldest message that is not done was published. `None` without lag.
    pub behind: Option<Duration>,
}

impl GroupHealth {
    /// Judged by the database's time where a heartbeat carries it, and else by this time.
    fn new(status: SubscriptionStatus, otherwise: Timestamp) -> Self {
        let now = status.database_time().unwrap_or(otherwise);
        let age = |oldest| Duration::try_from(now.duration_since(oldest)).unwrap_or_default();
        GroupHealth {
            health_issues: status.health_issues(now),
            behind: status.oldest_pending.map(age),
            status,
        }
    }
}

/// The result of removing a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Removed {
    /// Messages still leased when the wait ended: their owners cannot settle them any more.
    pub in_flight: u64,
}

impl Groups {
    pub(crate) fn new(store: Arc<dyn Store>, clock: Clock, topic: &str) -> Self {
        Groups { store, clock, topic: topic.to_owned() }
    }

    /// All groups by name with their health issues, cancelled ones too until they are removed. `NoSuchTopic` if the
    /// topic does not exist.
    pub async fn list(&self) -> Result<Vec<GroupHealth>> {
        let statuses = self.store.subscriptions(&self.topic()?).await?;
        // Judged by the database's time where a heartbeat carries it: this machine's clock may be wrong.
        let database_time = statuses.iter().find_map(SubscriptionStatus::database_time);
        let of_others = database_time.or_else(|| self.clock.injected()).unwrap_or_else(Timestamp::now);
        Ok(statuses.into_iter().map(|status| GroupHealth::new(status, of_others)).collect())
    }

    /// One group; `NoSuchSubscription` if it does not exist. If the name was cancelled and subscribed again, the group
    /// that is not cancelled, or else the last one that was cancelled.
    pub async fn get(&self, group: &str) -> Result<GroupHealth> {
        let (topic, group) = self.names(group)?;
        let of_name = |all: GroupSelection| all.topic(topic.as_str()).group(group.as_str());
        match AllGroups::new(Arc::clone(&self.store)).list(1, of_name).await?.pop() {
            Some(found) => Ok(found.health),
            // Returns the error if the topic is missing.
            None => {
                self.store.topic(&topic).await?;
                Err(Error::no_such_subscription(topic.as_str(), group.as_str()))
            }
        }
    }

    /// The outstanding ranges of a group, oldest due first, at most `limit`. `NoSuchSubscription` if the group does not
    /// exist.
    pub async fn outstanding(&self, group: &str, limit: u32) -> Result<Vec<Outstanding>> {
        let subscription = self.get(group).await?.status.subscription_id;
        self.store.outstanding(subscription, limit).await
    }

    /// Subscribes a group before its first process runs; true if that created a subscription. An existing one keeps its
    /// position: a dead one is resurrected, a paused one stays paused. A small backfill is done at once, a large one by
    /// maintenance. `NoSuchTopic` if the topic does not exist: this creates none. A second group of a queue is
    /// `InvalidInput`.
    pub async fn subscribe(&self, group: &str, start: Start) -> Result<bool> {
        self.subscribe_with(group, &NewSubscription::from(start)).await
    }

    /// The same, with the order, the delivery policy and the backfill of a new group. An existing one keeps its own.
    pub async fn subscribe_with(&self, group: &str, new: &NewSubscription) -> Result<bool> {
        let (topic, name) = self.names(group)?;
        self.store.topic(&topic).await?;
        let before = self.store.subscriptions(&topic).await?;
        let now = self.store.subscribe_with(&topic, &name, new).await?.subscription_id;
        drive::at_once(&*self.store, &topic, &name).await?;
        Ok(before.iter().all(|status| status.subscription_id != now))
    }

    /// Stops delivery in every process; loses nothing, and retention still waits for the group. `InvalidTransition`
    /// unless it is active.
    pub async fn pause(&self, group: &str) -> Result<()> {
        let (topic, name) = self.names(group)?;
        self.store.pause(&topic, &name, None).await
    }

    /// The same, with a reason: it is shown with the group until it is resumed, and stays in the audit.
    pub async fn pause_because(&self, group: &str, reason: &str) -> Result<()> {
        let (topic, name) = self.names(group)?;
        self.store.pause(&topic, &name, Some(reason)).await
    }

    /// Starts delivery to a paused group again. `InvalidTransition` unless it is paused.
    pub async fn resume(&self, group: &str) -> Result<()> {
        let (topic, name) = self.names(group)?;
        self.store.resume(&topic, &name).await
    }

    /// Cancels a group: retention no longer waits for it, its leases are lost at once, and its consumers end. It stays
    /// visible until it is removed, by [`Groups::remove`] or by maintenance after some time. Subscribing again creates
    /// a new subscription. `InvalidTransition` if it is cancelled already.
    pub async fn cancel(&self, group: &str) -> Result<()> {
        let (topic, name) = self.names(group)?;
        self.store.cancel(&topic, &name).await
    }

    /// Removes a group in steps: pauses it, waits at most this long for its leased messages, cancels it, releases it
    /// from the completion records, and deletes it with its dead letters.
    pub async fn remove(&self, group: &str, wait: Duration) -> Result<Removed> {
        let (topic, name) = self.names(group)?;
        let mut status = self.get(group).await?.status;
        if status.state == SubscriptionState::Active {
            match self.store.pause(&topic, &name, None).await {
                Ok(()) => {}
                // Another operator changed its state meanwhile; the cancel below fails if that matters.
                Err(error) if error.kind() == ErrorKind::InvalidTransition => {}
                Err(error) => return Err(error),
            }
        }
        if matches!(status.state, SubscriptionState::Active | SubscriptionState::Paused) {
            status = self.wait_for_in_flight(group, status, wait).await?;
        }
        let in_flight = if status.state == SubscriptionState::Cancelled { 0 } else { status.in_flight };
        if status.state != SubscriptionState::Cancelled {
            self.store.cancel(&topic, &name).await?;
        }
        self.delete(&topic, &name, status.topic_id).await?;
        Ok(Removed { in_flight })
    }

    /// Polls until nothing is in flight or the time is over: soon after a wake-up of the topic, otherwise ever less
    /// often.
    async fn wait_for_in_flight(
        &self,
        group: &str,
        mut status: SubscriptionStatus,
        wait: Duration,
    ) -> Result<SubscriptionStatus> {
        let deadline = Instant::now() + wait.min(DELAY_MAX);
        let mut pause = POLL_FIRST;
        loop {
            let wake = self.store.arm(&[status.topic_id]).await?;
            status = self.get(group).await?.status;
            let left = deadline.saturating_duration_since(Instant::now());
            if status.in_flight == 0 || status.state == SubscriptionState::Cancelled || left.is_zero() {
                return Ok(status);
            }
            if wake.wait(pause.min(left)).await {
                // Publishers wake too: a busy topic is not polled more often than this.
                tokio::time::sleep(POLL_FIRST.min(left)).await;
            }
            pause = (pause * 2).min(POLL_LONGEST);
        }
    }

    /// Deletes a cancelled group, after it is released from the completion records.
    async fn delete(&self, topic: &TopicName, group: &GroupName, topic_id: TopicId) -> Result<()> {
        let tracking = self.store.topic(topic).await?.settings.tracking;
        let deadline = Instant::now() + RELEASE_WITHIN;
        let mut pause = POLL_FIRST;
        loop {
            if tracking == Tracking::ReferenceCounting {
                while self.store.track(topic_id, MAINTENANCE_MESSAGES_MAX).await?.more
                    && Instant::now() < deadline
                {}
            }
            match self.store.remove(topic, group).await {
                // Another process may be updating the completion records at this moment.
                Err(error) if error.kind() == ErrorKind::InvalidTransition && Instant::now() < deadline => {
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(POLL_LONGEST);
                }
                done => return done,
            }
        }
    }

    /// Makes a dead group active again: at its position, or at most `behind_max` messages behind the head. Returns what
    /// it missed. A small backfill is done at once. An active group is not changed; paused and cancelled are
    /// `InvalidTransition`.
    pub async fn resurrect(&self, group: &str, behind_max: Option<u64>) -> Result<Resurrected> {
        let (topic, name) = self.names(group)?;
        let back = self.store.resurrect(&topic, &name, behind_max).await?;
        // A group that was active is not changed, nor is its backfill.
        if back.resurrected {
            drive::at_once(&*self.store, &topic, &name).await?;
        }
        Ok(back)
    }

    /// Moves a group's position. Its outstanding ranges are dropped. With `dry_run` nothing is changed: the result
    /// shows what would be.
    pub async fn seek(&self, group: &str, to: Start, dry_run: bool) -> Result<Moved> {
        let (topic, name) = self.names(group)?;
        self.store.seek(&topic, &name, to, dry_run).await
    }

    /// Sets a delivery policy for a group. Running consumers apply it with one of their next heartbeats, to messages
    /// they claim from then on.
    pub async fn set_policy(&self, group: &str, policy: &DeliveryPolicy) -> Result<()> {
        let (topic, name) = self.names(group)?;
        self.store.set_policy(&topic, &name, policy).await
    }

    /// The delivery policy of a group.
    pub async fn policy(&self, group: &str) -> Result<DeliveryPolicy> {
        let (topic, name) = self.names(group)?;
        self.store.policy(&topic, &name).await
    }

    /// How many messages published longer ago than this each counting group has not done; only groups with at least
    /// one.
    pub async fn stuck(&self, older_than: Duration) -> Result<Vec<Stuck>> {
        self.store.stuck(&self.topic()?, older_than).await
    }

    /// Marks as done what only dead groups have not done and what is older than this. With `dry_run` nothing is
    /// changed.
    pub async fn force_complete(&self, older_than: Duration, dry_run: bool) -> Result<Vec<ForceCompleted>> {
        self.store.force_complete(&self.topic()?, older_than, dry_run).await
    }

    /// Which owners acked the message at an offset, oldest first. Empty where the topic keeps no `ack_log`.
    pub async fn acks(&self, offset: Offset) -> Result<Vec<Ack>> {
        self.store.acks(&self.topic()?, offset).await
    }

    /// The completion records of messages: which groups they were meant for and which of these are done, offsets
    /// rising, at most 10,000 messages. Empty with the offset watermark.
    pub async fn records(&self, range: OffsetRange) -> Result<Vec<Record>> {
        self.store.records(&self.topic()?, range).await
    }

    /// Starts a backfill of a group, which maintenance runs. `Conflict` while one is under way.
    pub async fn start_backfill(&self, group: &str, limits: &BackfillLimits) -> Result<Backfill> {
        let (topic, name) = self.names(group)?;
        self.store.backfill(&topic, &name, limits).await
    }

    /// Starts a backfill of a group; a small one is done at once, a large one by maintenance. Returns its progress.
    pub async fn backfill(&self, group: &str, limits: &BackfillLimits) -> Result<Backfill> {
        let started = self.start_backfill(group, limits).await?;
        let (topic, name) = self.names(group)?;
        drive::at_once(&*self.store, &topic, &name).await?;
        let now = self.backfills().await?.into_iter().find(|backfill| backfill.group == name);
        Ok(now.unwrap_or(started))
    }

    /// Cancels a group's backfill at once; what it has done stays.
    pub async fn cancel_backfill(&self, group: &str) -> Result<Backfill> {
        let (topic, name) = self.names(group)?;
        self.store.cancel_backfill(&topic, &name).await
    }

    /// Resumes a cancelled or failed backfill from its checkpoint; maintenance runs it.
    pub async fn resume_backfill(&self, group: &str) -> Result<Backfill> {
        let (topic, name) = self.names(group)?;
        self.store.resume_backfill(&topic, &name).await
    }

    /// The backfills of the topic, newest first.
    pub async fn backfills(&self) -> Result<Vec<Backfill>> {
        let topic = self.topic()?;
        let mut backfills = self.store.backfills().await?;
        backfills.retain(|backfill| backfill.topic == topic);
        Ok(backfills)
    }

    fn topic(&self) -> Result<TopicName> {
        TopicName::new(&self.topic)
    }

    fn names(&self, group: &str) -> Result<(TopicName, GroupName)> {
        Ok((self.topic()?, GroupName::new(group)?))
    }
}

#[cfg(all(test, feature = "sqlite"))]
mod tests {
    use super::*;
    use crate::Headwater;
    use crate::backfill::BackfillState;
    use crate::maintenance::Job;
    use crate::settle::Verdict;

    #[tokio::test]
    async fn a_backfill_with_nothing_to_do_leaves_others_alone() {
        let headwater = Headwater::in_memory().await.unwrap();
        let counted = headwater.topic("counted").pub_sub().tracking(Tracking::ReferenceCounting);
        counted.create().await.unwrap();
        headwater.topic("plain").pub_sub().create().await.unwrap();
        let late = GroupName::new("late").unwrap();
        for name in ["plain", "counted"] {
            let (topic, early) = (TopicName::new(name).unwrap(), GroupName::new("early").unwrap());
            headwater.store().subscribe(&topic, &early, Start::Beginning).await.unwrap();
            headwater.producer(name).send(&1).await.unwrap();
            headwater.maintenance().run_once(&[Job::Heads, Job::Tracking]).await.unwrap();
            headwater.store().subscribe(&topic, &late, Start::Beginning).await.unwrap();
        }
        let plain = TopicName::new("plain").unwrap();
        drive::at_once(&**headwater.store(), &plain, &late).await.unwrap();
        let backfill = headwater.groups("counted").backfills().await.unwrap().remove(0);
        assert_eq!((backfill.state, backfill.processed), (BackfillState::NotStarted, 0));
        // Where there is something to do it is done.
        drive::at_once(&**headwater.store(), &backfill.topic, &late).await.unwrap();
        let backfill = headwater.groups("counted").backfills().await.unwrap().remove(0);
        assert_eq!(backfill.state, BackfillState::Completed);
    }

    #[tokio::test]
    async fn a_name_that_was_cancelled_and_taken_again_is_the_living_group() {
        let headwater = Headwater::in_memory().await.unwrap();
        let groups = headwater.groups("orders");
        let missing = groups.subscribe("email", Start::Beginning).await.unwrap_err();
        assert_eq!(missing.kind(), ErrorKind::NoSuchTopic, "an operator's typo creates no topic");
        headwater.producer("orders").send(&1).await.unwrap();
        assert!(groups.subscribe("email", Start::Beginning).await.unwrap(), "it is new");
        assert!(!groups.subscribe("email", Start::Now).await.unwrap(), "it existed");
        groups.cancel("email").await.unwrap();
        assert!(groups.subscribe("email", Start::Beginning).await.unwrap(), "a new one of the same name");
        assert_eq!(groups.list().await.unwrap().len(), 2, "the cancelled one is not removed yet");
        assert_eq!(groups.get("email").await.unwrap().status.state, SubscriptionState::Active);

        let mut consumer = headwater.consumer("orders", "email").open().await.unwrap();
        let batch = consumer.next(Duration::from_secs(5)).await.unwrap().expect("one message waits");
        assert_eq!(groups.outstanding("email", 10).await.unwrap().len(), 1);
        batch.handle(|_, _| async { Verdict::Bury("no".into()) }).await.unwrap();
        assert_eq!(headwater.dead_letters().of("orders", "email").count().await.unwrap(), 1);
        // Without one that is not cancelled: the last one that was cancelled.
        groups.cancel("email").await.unwrap();
        assert_eq!(groups.get("email").await.unwrap().status.dead_letters, 1);
    }

    #[tokio::test]
    async fn resurrecting_an_active_group_leaves_its_backfill_alone() {
        let headwater = Headwater::in_memory().await.unwrap();
        let counted = headwater.topic("counted").pub_sub().tracking(Tracking::ReferenceCounting);
        counted.create().await.unwrap();
        let groups = headwater.groups("counted");
        groups.subscribe("early", Start::Beginning).await.unwrap();
        headwater.producer("counted").send(&1).await.unwrap();
        headwater.maintenance().run_once(&[Job::Heads, Job::Tracking]).await.unwrap();
        groups.subscribe("late", Start::Now).await.unwrap();
        groups.seek("late", Start::Beginning, false).await.unwrap();
        groups.start_backfill("late", &BackfillLimits::default()).await.unwrap();
        assert!(!groups.resurrect("late", None).await.unwrap().resurrected);
        assert_eq!(groups.backfills().await.unwrap()[0].state, BackfillState::NotStarted);
    }
}
