//! Shared steps of cases about the life of topics and groups: pause, cancel, heartbeat, die, clean, track.

use std::time::Duration;

use super::case::{Case, Scene, group, owner, range, topic};
use crate::message::Offset;
use crate::name::GroupName;
use crate::store::{CleanStep, Detected, Record, Served, Signal, TrackStep};
use crate::subscription::{Activity, Start, SubscriptionState};
use crate::topic::{Semantics, TopicSettings, Tracking};

/// How often the groups of [`lively`] topics send heartbeats.
pub(super) const INTERVAL: Duration = Duration::from_secs(10);
/// How long they may be silent.
pub(super) const TIMEOUT: Duration = Duration::from_secs(30);
/// The smallest step of the clock.
pub(super) const MOMENT: Duration = Duration::from_millis(1);
/// An hour, the unit of most retentions here.
pub(super) const HOUR: Duration = Duration::from_secs(3_600);
/// Both modes, for cases whose promise is the same in both.
pub(super) const MODES: [Tracking; 2] = [Tracking::OffsetWatermark, Tracking::ReferenceCounting];
/// Far more steps than any case needs: work that never ends fails the case instead of hanging it.
const STEPS_MAX: usize = 20_000;

/// A fan-out topic whose groups die soon, and which keeps nothing longer than it must.
pub(super) fn lively() -> TopicSettings {
    TopicSettings {
        semantics: Semantics::PubSub,
        message_retention: Some(Duration::ZERO),
        max_retention: None,
        zero_subscription_retention: Duration::ZERO,
        heartbeat_interval: INTERVAL,
        heartbeat_timeout: TIMEOUT,
        ..TopicSettings::default()
    }
}

/// The same in reference counting, with an hour to read completion records before they are removed.
pub(super) fn counted() -> TopicSettings {
    TopicSettings { tracking: Tracking::ReferenceCounting, message_retention: Some(HOUR), ..lively() }
}

/// The content of a completion record, with its groups sorted: required, completed, and whether it is done.
pub(super) fn groups_of(record: &Record) -> (Vec<&str>, Vec<&str>, bool) {
    let mut required: Vec<_> = record.required.iter().map(GroupName::as_str).collect();
    let mut completed: Vec<_> = record.completed.iter().map(GroupName::as_str).collect();
    required.sort_unstable();
    completed.sort_unstable();
    (required, completed, record.completed_at.is_some())
}

impl Scene {
    /// A topic of this name in the same store, with the group `workers`.
    pub(super) async fn beside(&self, name: &str, settings: TopicSettings) -> Self {
        Scene::new(self.store.clone(), name, settings).await
    }

    /// Pauses the group, which must be possible.
    pub(super) async fn pause(&self) {
        self.store.pause(&self.topic, &self.subscription.group, None).await.expect("the group is paused");
    }

    /// Resumes the group, which must be possible.
    pub(super) async fn resume(&self) {
        self.store.resume(&self.topic, &self.subscription.group).await.expect("the group is resumed");
    }

    /// Cancels the group, which must be possible.
    pub(super) async fn cancel(&self) {
        self.store.cancel(&self.topic, &self.subscription.group).await.expect("the group is cancelled");
    }

    /// The group's state.
    pub(super) async fn state(&self) -> SubscriptionState {
        self.status().await.state
    }

    /// Sends a heartbeat of a process of the group.
    pub(super) async fn heartbeat(&self, owner_name: &str) -> Signal {
        self.heartbeat_with(owner_name, Activity::default()).await
    }

    /// Sends a heartbeat of a process of the group, with its activity.
    pub(super) async fn heartbeat_with(&self, owner_name: &str, activity: Activity) -> Signal {
        let served = [Served { subscription_id: self.subscription.subscription_id, activity }];
        let answer = self.store.heartbeat(&owner(owner_name), None, &served).await;
        let mut signals = answer.expect("the heartbeat is answered").signals;
        assert_eq!(signals.len(), 1, "one answer per subscription");
        signals.remove(0)
    }

    /// One run of the detection of dead groups.
    pub(super) async fn detect(&self) -> Detected {
        self.store.detect_dead().await.expect("the detection runs")
    }

    /// Lets the group die: it sends a heartbeat, the detection runs, and then it is silent for a moment too long.
    /// Groups that never sent a heartbeat stay alive.
    pub(super) async fn let_die(&self, case: &Case) {
        assert_eq!(self.heartbeat("dying").await, Signal::Active, "only an active group dies");
        self.detect().await;
        case.advance(self.subscription.topic.settings.heartbeat_timeout + MOMENT);
        let died = self.detect().await.died;
        let name = (self.topic.clone(), self.subscription.group.clone());
        assert!(died.contains(&name), "{name:?} is not among the dead groups: {died:?}");
        assert_eq!(self.state().await, SubscriptionState::Dead);
    }

    /// Brings the group into a state, from active.
    pub(super) async fn bring_to(&self, case: &Case, state: SubscriptionState) {
        match state {
            SubscriptionState::Active => {}
            SubscriptionState::Paused => self.pause().await,
            SubscriptionState::Dead => self.let_die(case).await,
            SubscriptionState::Cancelled => self.cancel().await,
        }
        assert_eq!(self.state().await, state);
    }

    /// One step of cleanup, after maintenance advanced the heads: an engine may do so only then.
    pub(super) async fn clean(&self, messages_max: u32) -> CleanStep {
        self.store.advance_heads().await.expect("maintenance runs");
        let step = self.store.clean(self.subscription.topic.topic_id, messages_max).await;
        let step = step.expect("cleanup runs");
        assert!(step.removed <= u64::from(messages_max), "{step:?} is more than {messages_max}");
        step
    }

    /// Tracks and cleans until nothing is left to do, in steps of this size; returns the total.
    pub(super) async fn clean_in_steps_of(&self, messages_max: u32) -> CleanStep {
        self.track_all().await;
        let mut all = CleanStep::default();
        for _ in 0..STEPS_MAX {
            let step = self.clean(messages_max).await;
            all.removed += step.removed;
            for (name, missed) in step.missed {
                match all.missed.iter_mut().find(|(known, _)| *known == name) {
                    Some((_, so_far)) => add_missed(so_far, missed),
                    None => all.missed.push((name, missed)),
                }
            }
            if !step.more {
                return all;
            }
        }
        panic!("cleanup of {} never ends", self.topic)
    }

    /// Tracks and cleans until nothing is left to do.
    pub(super) async fn clean_all(&self) -> CleanStep {
        self.clean_in_steps_of(1_000).await
    }

    /// One step of tracking.
    pub(super) async fn track(&self, messages_max: u32) -> TrackStep {
        self.store.advance_heads().await.expect("maintenance runs");
        let step = self.store.track(self.subscription.topic.topic_id, messages_max).await;
        step.expect("tracking runs")
    }

    /// Tracks until nothing is left to do; returns the total.
    pub(super) async fn track_all(&self) -> TrackStep {
        let mut all = TrackStep::default();
        for _ in 0..STEPS_MAX {
            let step = self.track(1_000).await;
            all.recorded += step.recorded;
            all.changed += step.changed;
            all.completed += step.completed;
            all.removed += step.removed;
            if !step.more {
                return all;
            }
        }
        panic!("tracking of {} never ends", self.topic)
    }

    /// Runs backfills until there is none; returns offsets processed and records changed.
    pub(super) async fn backfill_all(&self) -> (u64, u64) {
        let mut all = (0, 0);
        for _ in 0..STEPS_MAX {
            let step = self.store.step_backfill(&owner("backfiller"), 1_000).await;
            let Some(step) = step.expect("the backfill continues") else { return all };
            all = (all.0 + step.processed, all.1 + step.changed);
        }
        panic!("the backfills never end")
    }

    /// The offsets that are stored.
    pub(super) async fn stored(&self) -> Vec<i64> {
        super::case::offsets_of(&self.fetch_range(1, 100_000).await)
    }

    /// The offsets that the group receives and acks until nothing is left.
    pub(super) async fn reads(&self) -> Vec<i64> {
        super::case::offsets_of(&self.drain("reader").await)
    }

    /// The completion records of the topic.
    pub(super) async fn records(&self) -> Vec<Record> {
        self.store.records(&self.topic, range(1, 100_000)).await.expect("the records are listed")
    }

    /// The completion record of one message.
    pub(super) async fn record(&self, offset: i64) -> Record {
        let mut records =
            self.store.records(&self.topic, range(offset, offset)).await.expect("the records are listed");
        assert_eq!(records.len(), 1, "one record of {offset}: {records:?}");
        records.remove(0)
    }

    /// Claims and acks exactly this many messages, which must be available.
    pub(super) async fn ack_next(&self, count: u32) {
        let lease = self.claim_one("reader", count).await;
        assert_eq!(lease.range.span(), u64::from(count), "{lease:?}");
        self.ack(&lease).await;
    }
}

/// A topic without any group, in a new store of the case.
pub(super) async fn without_groups(case: &Case, settings: &TopicSettings) -> Unread {
    let store = case.open().await;
    let name = topic("orders");
    store.create_topic(&name, settings).await.expect("the topic is created");
    Unread { store, name }
}

/// A topic without subscriptions yet.
pub(super) struct Unread {
    /// The store.
    pub(super) store: std::sync::Arc<dyn crate::store::Store>,
    /// The topic.
    pub(super) name: crate::name::TopicName,
}

impl Unread {
    /// The scene of a first group.
    pub(super) async fn subscribe(&self, start: Start) -> Scene {
        let subscription =
            self.store.subscribe(&self.name, &group("workers"), start).await.expect("the group subscribes");
        Scene { store: self.store.clone(), topic: self.name.clone(), subscription }
    }

    /// Cleans until nothing is left to do; returns how many messages were removed.
    pub(super) async fn clean_all(&self) -> u64 {
        let topic_id = self.store.topic(&self.name).await.expect("the topic exists").topic_id;
        self.store.advance_heads().await.expect("maintenance runs");
        let mut removed = 0;
        for _ in 0..STEPS_MAX {
            let tracked = self.store.track(topic_id, 1_000).await.expect("tracking runs");
            let step = self.store.clean(topic_id, 1_000).await.expect("cleanup runs");
            removed += step.removed;
            if !step.more && !tracked.more {
                return removed;
            }
        }
        panic!("cleanup never ends")
    }

    /// The offsets that are stored.
    pub(super) async fn stored(&self) -> Vec<i64> {
        let topic_id = self.store.topic(&self.name).await.expect("the topic exists").topic_id;
        super::case::offsets_of(&self.store.fetch(topic_id, range(1, 100_000)).await.expect("fetched"))
    }
}

/// Adds messages that were missed later.
fn add_missed(so_far: &mut crate::subscription::MissedMessages, more: crate::subscription::MissedMessages) {
    so_far.count += more.count;
    so_far.range = match (so_far.range, more.range) {
        (Some((first, last)), Some(other)) => Some((first.min(other.0), last.max(other.1))),
        (one, other) => one.or(other),
    };
}

/// A count and a range of missed messages.
pub(super) fn missed(count: u64, first: i64, last: i64) -> crate::subscription::MissedMessages {
    crate::subscription::MissedMessages { count, range: Some((Offset(first), Offset(last))) }
}
