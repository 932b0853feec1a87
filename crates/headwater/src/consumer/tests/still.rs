//! A store that records heartbeats and hands out given leases, for tests with paused time.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;
use tokio::time::Instant;
use uuid::Uuid;

use crate::backfill::{Backfill, BackfillLimits, BackfillStep};
use crate::dead_letter::{DeadLetter, DeadLetterSelection, Redriven};
use crate::error::{Error, ErrorKind, Result};
use crate::groups::GroupSelection;
use crate::lease::{ClaimRequest, Claimed, Lease, LeaseId, LeaseToken, OffsetRange};
use crate::maintenance::{JobRun, JobStatus};
use crate::message::{Message, NewMessage, Offset, Published};
use crate::name::{GroupName, Owner, TopicName};
use crate::scheduled::{Reschedule, Scheduled, ScheduledPlace};
use crate::settle::Settlement;
use crate::store::wake::Hub;
use crate::store::{
    Ack, Admin, AuditEntry, CleanStep, CronDescription, CronStatus, Delivery, Detected, EntryRetention,
    EntryStep, FetchBound, Fetched, Finding, ForceCompleted, Head, Heartbeat, Maintained, Maintenance,
    MessageAct, MessageState, Moved, PartitionStep, Record, Resurrected, Served, Signal, Stuck,
    SubscriptionStep, Survey, SurveyedGroup, TrackStep, Tracking, Wake, Weighing,
};
use crate::subscription::{
    DeliveryPolicy, MissedMessages, NewSubscription, Outstanding, Start, Subscription, SubscriptionId,
    SubscriptionStatus,
};
use crate::topic::{Removal, Topic, TopicContents, TopicId, TopicSettings, TopicStatus};
use crate::topics::TopicSelection;

/// The recorded calls, and how it answers.
#[derive(Debug, Default)]
pub(crate) struct Still {
    pub(crate) asked: Mutex<Vec<(Instant, &'static str)>>,
    /// Verbs that never answer.
    pub(crate) mute: Mutex<HashSet<&'static str>>,
    /// Verbs that answer after this time.
    pub(crate) slow: Mutex<HashMap<&'static str, Duration>>,
    /// How the next calls of a verb fail, one after the other.
    pub(crate) fail: Mutex<HashMap<&'static str, VecDeque<Failing>>>,
    /// What was reported, heartbeat by heartbeat.
    pub(crate) reported: Mutex<Vec<(Owner, Served)>>,
    /// Whether every heartbeat resurrects its subscription.
    pub(crate) revives: Mutex<bool>,
    /// What the next claims hand out.
    pub(crate) leases: Mutex<VecDeque<Lease>>,
    /// The payload size of an offset in bytes, where it is not 1.
    pub(crate) sizes: Mutex<HashMap<i64, usize>>,
    /// Whether leases have no messages.
    pub(crate) empty: Mutex<bool>,
    /// How many settlements find the database locked.
    pub(crate) locked: Mutex<u32>,
    /// Whether claims would find nothing.
    pub(crate) quiet: Mutex<bool>,
    pub(crate) settings: Mutex<TopicSettings>,
    hub: Arc<Hub>,
}

/// How a call fails.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Failing {
    With(ErrorKind),
    /// Each lease of the call is lost.
    Lost,
    Panicking,
}

impl Still {
    /// The next calls of a verb fail like this.
    pub(crate) fn fails(&self, verb: &'static str, how: impl IntoIterator<Item = Failing>) {
        self.fail.lock().unwrap().entry(verb).or_default().extend(how);
    }

    fn failing(&self, verb: &'static str, leases: usize) -> Option<Result<Vec<Result<()>>>> {
        let how = self.fail.lock().unwrap().get_mut(verb).and_then(VecDeque::pop_front)?;
        Some(match how {
            Failing::With(kind) => Err(Error::new(kind, "on purpose")),
            Failing::Lost => Ok((0..leases).map(|_| Err(Error::lease_lost(1))).collect()),
            Failing::Panicking => panic!("on purpose"),
        })
    }

    async fn note(&self, verb: &'static str) {
        self.asked.lock().unwrap().push((Instant::now(), verb));
        if self.mute.lock().unwrap().contains(verb) {
            std::future::pending::<()>().await;
        }
        let slow = self.slow.lock().unwrap().get(verb).copied();
        if let Some(slow) = slow {
            tokio::time::sleep(slow).await;
        }
    }

    pub(crate) fn count(&self, verb: &str) -> usize {
        self.asked.lock().unwrap().iter().filter(|(_, asked)| *asked == verb).count()
    }

    /// The longest time without this call, until now.
    pub(crate) fn longest_without(&self, verb: &str) -> Duration {
        let asked = self.asked.lock().unwrap();
        let mut times: Vec<_> = asked.iter().filter(|(_, asked)| *asked == verb).map(|(at, _)| *at).collect();
        times.push(Instant::now());
        times.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap_or(Duration::MAX)
    }

    /// The group of all tests here.
    pub(crate) fn subscription(&self) -> Subscription {
        let settings = self.settings.lock().unwrap().clone();
        let topic = Topic { topic_id: TopicId(1), name: TopicName::new("orders").unwrap(), settings };
        let group = GroupName::new("email").unwrap();
        Subscription { subscription_id: SubscriptionId(1), group, topic, lanes: 0, resurrected: None }
    }

    /// One message, to be handed out by a later claim.
    pub(crate) fn hand_out(&self, offset: i64) {
        self.leases.lock().unwrap().push_back(Lease {
            subscription_id: SubscriptionId(1),
            owner: Owner::new("still").unwrap(),
            topic_id: TopicId(1),
            token: LeaseToken(offset),
            range: OffsetRange::one(Offset(offset)),
            attempt: 1,
            deadline: None,
            suspect: false,
            lane: None,
            blocked_keys: vec![],
        });
    }
}

/// The rest of a trait: not called here.
macro_rules! with_the_rest {
    ($trait:ident { $($own:tt)* } $(fn $verb:ident($($name:ident: $of:ty),*) -> $answer:ty;)*) => {
        #[async_trait]
        impl $trait for Still {
            $($own)*
            $(
                async fn $verb(&self, $($name: $of),*) -> Result<$answer> {
                    $(let _ = $name;)*
                    unreachable!("{} is not called here", stringify!($verb))
                }
            )*
        }
    };
}

with_the_rest! {
    Delivery {
        async fn claim(&self, _: &ClaimRequest) -> Result<Claimed> {
            self.note("claim").await;
            if let Some(failing) = self.failing("claim", 0) {
                failing?;
            }
            let leases = self.leases.lock().unwrap().drain(..).collect();
            Ok(Claimed { leases, ..Claimed::default() })
        }

        async fn claimable(&self, subscriptions: &[SubscriptionId]) -> Result<Vec<SubscriptionId>> {
            self.note("claimable").await;
            if let Some(failing) = self.failing("claimable", 0) {
                failing?;
            }
            let quiet = *self.quiet.lock().unwrap();
            Ok(if quiet { vec![] } else { subscriptions.to_vec() })
        }

        async fn held_keys(&self, _: TopicId, _: &LeaseId, _: Offset) -> Result<Vec<(Offset, String)>> {
            self.note("held_keys").await;
            Ok(vec![])
        }

        async fn fetch_within(&self, _: TopicId, range: OffsetRange, bound: FetchBound) -> Result<Fetched> {
            self.note("fetch_within").await;
            let sizes = self.sizes.lock().unwrap().clone();
            let message = |offset: i64| Message {
                offset: Offset(offset),
                message_id: Uuid::nil(),
                key: None,
                message_type: None,
                payload: vec![b'x'; sizes.get(&offset).copied().unwrap_or(1)].into(),
                content_type: None,
                headers: crate::Headers::default(),
                correlation_id: None,
                created_at: Timestamp::UNIX_EPOCH,
            };
            let last = if *self.empty.lock().unwrap() { 0 } else { range.last.0 };
            let mut messages: Vec<Message> = (range.first.0..=last).map(message).collect();
            let mut weighing = Weighing::new(bound);
            let read = messages.iter().take_while(|message| weighing.fits(message.weight())).count();
            let left = messages.get(read).map(|message| OffsetRange::new(message.offset, range.last));
            messages.truncate(read);
            Ok(Fetched { messages, left })
        }

        async fn settle(&self, settlements: &[Settlement]) -> Result<Vec<Result<()>>> {
            self.note("settle").await;
            if let Some(failing) = self.failing("settle", settlements.len()) {
                return failing;
            }
            let locked = self.locked.lock().unwrap().checked_sub(1);
            if let Some(left) = locked {
                *self.locked.lock().unwrap() = left;
                return Err(crate::Error::new(crate::ErrorKind::Busy, "locked"));
            }
            Ok(settlements.iter().map(|_| Ok(())).collect())
        }

        async fn extend(&self, leases: &[LeaseId], _: Duration) -> Result<Vec<Result<()>>> {
            self.note("extend").await;
            if let Some(failing) = self.failing("extend", leases.len()) {
                return failing;
            }
            Ok(leases.iter().map(|_| Ok(())).collect())
        }

        async fn heartbeat(
            &self,
            owner: &Owner,
            silent_for: Option<Duration>,
            served: &[Served],
        ) -> Result<Heartbeat> {
            self.note(if silent_for.is_some() { "heartbeat" } else { "unjudged heartbeat" }).await;
            self.reported.lock().unwrap().extend(served.iter().map(|one| (owner.clone(), *one)));
            let revives = *self.revives.lock().unwrap();
            let signal = if revives { Signal::Resurrected(MissedMessages::default()) } else { Signal::Active };
            Ok(Heartbeat { ended: 0, signals: vec![signal; served.len()] })
        }

        async fn depart(&self, _: &Owner) -> Result<()> {
            self.note("depart").await;
            Ok(())
        }

        async fn take_over(&self, _: &Owner) -> Result<u64> {
            self.note("take_over").await;
            Ok(0)
        }

        async fn arm(&self, topics: &[TopicId]) -> Result<Wake> {
            Ok(self.hub.arm(topics))
        }

        async fn settings_of(
            &self,
            subscriptions: &[SubscriptionId],
        ) -> Result<Vec<(SubscriptionId, TopicSettings)>> {
            self.note("settings_of").await;
            let settings = self.subscription().topic.settings;
            Ok(subscriptions.iter().map(|subscription| (*subscription, settings.clone())).collect())
        }
    }
    fn subscribe_with(topic: &TopicName, group: &GroupName, new: &NewSubscription) -> Subscription;
    fn subscription(topic: &TopicName, group: &GroupName) -> Subscription;
    fn head(topic: TopicId) -> Option<Head>;
    fn publish(topic: &TopicName, messages: &[NewMessage]) -> Vec<Published>;
    fn cron_last(job: &str, first: Timestamp) -> Timestamp;
    fn cron_describe(job: &CronDescription) -> ();
    fn cron_fire(job: &str, tick: Timestamp, topic: &TopicName, message: &NewMessage) -> Option<Published>;
}

with_the_rest! {
    Admin {
        fn engine(&self) -> &'static str {
            "still"
        }

        async fn topic(&self, _: &TopicName) -> Result<Topic> {
            self.note("topic").await;
            Ok(self.subscription().topic)
        }

        async fn subscriptions(&self, _: &TopicName) -> Result<Vec<SubscriptionStatus>> {
            self.note("subscriptions").await;
            Ok(vec![])
        }
    }
    fn create_topic(name: &TopicName, settings: &TopicSettings) -> Topic;
    fn alter_topic(name: &TopicName, settings: &TopicSettings) -> Topic;
    fn delete_topic(topic: &TopicName, removal: Removal) -> TopicContents;
    fn purge_topic(topic: &TopicName, removal: Removal) -> TopicContents;
    fn outstanding(subscription: SubscriptionId, limit: u32) -> Vec<Outstanding>;
    fn pause(topic: &TopicName, group: &GroupName, reason: Option<&str>) -> ();
    fn resume(topic: &TopicName, group: &GroupName) -> ();
    fn cancel(topic: &TopicName, group: &GroupName) -> ();
    fn remove(topic: &TopicName, group: &GroupName) -> ();
    fn resurrect(topic: &TopicName, group: &GroupName, behind_max: Option<u64>) -> Resurrected;
    fn seek(topic: &TopicName, group: &GroupName, to: Start, dry_run: bool) -> Moved;
    fn set_policy(topic: &TopicName, group: &GroupName, policy: &DeliveryPolicy) -> ();
    fn policy(topic: &TopicName, group: &GroupName) -> DeliveryPolicy;
    fn release_lease(token: LeaseToken) -> ();
    fn force_complete(topic: &TopicName, older_than: Duration, dry_run: bool) -> Vec<ForceCompleted>;
    fn stuck(topic: &TopicName, older_than: Duration) -> Vec<Stuck>;
    fn dead_letters(selection: &DeadLetterSelection, limit: u32) -> Vec<DeadLetter>;
    fn message_states(topic: &TopicName, offset: Offset) -> Vec<(GroupName, MessageState)>;
    fn act_on_message(topic: &TopicName, group: &GroupName, offset: Offset, act: &MessageAct, force: bool) -> ();
    fn count_dead_letters(selection: &DeadLetterSelection) -> Redriven;
    fn replace_dead_letter(
        subscription: SubscriptionId,
        id: uuid::Uuid,
        message: &NewMessage,
        all_groups: bool
    ) -> Published;
    fn redrive(selection: &DeadLetterSelection) -> Redriven;
    fn cron_jobs() -> Vec<CronStatus>;
    fn purge(selection: &DeadLetterSelection) -> u64;
    fn scheduled_after(topic: &TopicName, after: Option<ScheduledPlace>, limit: u32) -> Vec<Scheduled>;
    fn cancel_scheduled(topic: &TopicName, message_id: Uuid) -> bool;
    fn reschedule(topic: &TopicName, message_id: Uuid, to: Reschedule) -> bool;
    fn audit_before(audit_id: i64, limit: u32) -> Vec<AuditEntry>;
    fn note(act: &str, topic: Option<&str>, group: Option<&str>, detail: &serde_json::Value) -> ();
    fn find_topics(selection: &TopicSelection, limit: u32) -> Vec<TopicStatus>;
    fn find_subscriptions(selection: &GroupSelection, limit: u32) -> (Timestamp, Vec<SurveyedGroup>);
    fn acks(topic: &TopicName, offset: Offset) -> Vec<Ack>;
    fn doctor() -> Vec<Finding>;
    fn drop_namespace() -> ();
    fn close() -> ();
}

with_the_rest! {
    Maintenance {
        async fn topics(&self) -> Result<Vec<TopicStatus>> {
            self.note("topics").await;
            Ok(vec![TopicStatus { topic: self.subscription().topic, ..crate::maintenance::tests::topic(1) }])
        }
    }
    fn elect(worker: &Owner, term: Duration) -> bool;
    fn resign(worker: &Owner) -> ();
    fn advance_heads() -> Maintained;
    fn detect_dead() -> Detected;
    fn clean(topic: TopicId, messages_max: u32) -> CleanStep;
    fn keep_partitions(topic: TopicId) -> PartitionStep;
    fn clean_subscriptions(older_than: Duration) -> SubscriptionStep;
    fn clean_entries(retention: &EntryRetention) -> EntryStep;
    fn clean_processes(older_than: Duration) -> u64;
    fn probe() -> ();
    fn survey(groups_max: u32) -> Survey;
    fn jobs() -> Vec<JobStatus>;
    fn jobs_ran(runs: &[JobRun]) -> ();
}

with_the_rest! {
    Tracking {}
    fn track(topic: TopicId, messages_max: u32) -> TrackStep;
    fn records(topic: &TopicName, range: OffsetRange) -> Vec<Record>;
    fn backfill(topic: &TopicName, group: &GroupName, limits: &BackfillLimits) -> Backfill;
    fn cancel_backfill(topic: &TopicName, group: &GroupName) -> Backfill;
    fn resume_backfill(topic: &TopicName, group: &GroupName) -> Backfill;
    fn backfills() -> Vec<Backfill>;
    fn step_backfill(worker: &Owner, messages_max: u32) -> Option<BackfillStep>;
}
