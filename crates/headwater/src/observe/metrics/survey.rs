//! Metrics of the whole store: of every group and topic, whether or not this process serves it. Exported by the process
//! that runs maintenance.
//!
//! A series that no longer applies becomes NaN, which no alert matches: its group was removed, or another process was
//! elected and exports it now.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use std::time::Duration;

use jiff::Timestamp;
use metrics::{Counter, Gauge, Label, Unit};

use crate::backfill::{Backfill, BackfillState};
use crate::name::TopicName;
use crate::store::{Survey, SurveyedGroup};
use crate::subscription::{SubscriptionState, SubscriptionStatus};
use crate::topic::{TopicIssue, TopicStatus};

const RELEASED: &str = "headwater_records_released_total";
const LEFT_OUT: &str = "headwater_survey_groups_left_out";

/// A gauge of a kind of subject: name, description, further labels, and its value for one of them.
struct Figure<T> {
    name: &'static str,
    text: &'static str,
    labels: &'static [(&'static str, &'static str)],
    value: fn(&T) -> f64,
}

const fn figure<T>(name: &'static str, text: &'static str, value: fn(&T) -> f64) -> Figure<T> {
    Figure { name, text, labels: &[], value }
}

/// A group at a time.
pub(crate) struct GroupAt {
    status: SubscriptionStatus,
    now: Timestamp,
}

/// A topic with its figures.
pub(crate) struct TopicAt {
    status: TopicStatus,
    cleanable: u64,
    inconsistent: u64,
    completion_lag: Duration,
}

const STATE: &str = "headwater_group_state";
const STATE_TEXT: &str = "1 for the state a group is in, 0 for the others";

const fn state(
    labels: &'static [(&'static str, &'static str)],
    value: fn(&GroupAt) -> f64,
) -> Figure<GroupAt> {
    Figure { name: STATE, text: STATE_TEXT, labels, value }
}

const GROUP: &[Figure<GroupAt>] = &[
    state(&[("state", "active")], |group| is(group.status.state == SubscriptionState::Active)),
    state(&[("state", "paused")], |group| is(group.status.state == SubscriptionState::Paused)),
    state(&[("state", "dead")], |group| is(group.status.state == SubscriptionState::Dead)),
    figure(
        "headwater_group_heartbeat_age_seconds",
        "Age of the last heartbeat of a group; NaN if it never had one",
        |group| group.status.heartbeat_age.map_or(f64::NAN, |age| age.as_secs_f64()),
    ),
    figure(
        "headwater_group_near_timeout",
        "1 while four fifths of a group's timeout have passed without a heartbeat",
        |group| is(group.is_active() && group.status.is_near_timeout()),
    ),
    figure("headwater_group_silent", "1 while a group is past its timeout and not declared dead", |group| {
        is(group.is_active() && group.status.is_silent())
    }),
    figure(
        "headwater_group_flapping",
        "1 while processes of a group restart repeatedly without progress",
        |group| is(group.is_active() && group.status.is_flapping()),
    ),
    figure(
        "headwater_group_unserved",
        "1 while a group has messages to handle and no process serves it",
        |group| is(group.is_active() && group.status.is_unserved()),
    ),
    figure(
        "headwater_group_never_served",
        "1 while a group never had a heartbeat for longer than its timeout",
        |group| is(group.is_active() && group.status.is_never_served(group.now)),
    ),
    figure(
        "headwater_group_processes",
        "Processes that sent a heartbeat for a group within its timeout",
        |group| f64::from(group.status.processes),
    ),
    figure(
        "headwater_group_lag",
        "Messages up to the head that a group has not done, by the store",
        |group| count(group.status.lag),
    ),
    figure(
        "headwater_group_oldest_pending_seconds",
        "Age of the oldest message that a group has not done",
        |group| group.status.oldest_pending.map_or(0.0, |at| age(at, group.now).as_secs_f64()),
    ),
    figure(
        "headwater_group_stuck",
        "Messages published over an hour ago that a group has not done",
        |group| count(group.status.stuck),
    ),
    figure(
        "headwater_group_missed",
        "Messages that retention removed before a group had done them",
        |group| count(group.status.missed.count),
    ),
    figure("headwater_group_dead_letters", "Dead letters of a group, counted up to 100,000", |group| {
        count(group.status.dead_letters)
    }),
];

const TOPIC: &[Figure<TopicAt>] = &[
    figure("headwater_topic_counting_groups", "Groups of a topic that retention waits for", |topic| {
        count(topic.status.counting)
    }),
    figure(
        "headwater_topic_zero_subscriptions",
        "1 while a pub_sub topic that is used has no group that counts",
        |topic| is(topic.status.health_issues().contains(&TopicIssue::ZeroSubscriptions)),
    ),
    figure(
        "headwater_topic_completion_lag_seconds",
        "Age of the oldest message that a group of a topic has not done",
        |topic| topic.completion_lag.as_secs_f64(),
    ),
    figure(
        "headwater_topic_cleanable",
        "Messages of a topic that cleanup may remove and has not removed",
        |topic| count(topic.cleanable),
    ),
    figure(
        "headwater_topic_inconsistent_records",
        "Completion records of a topic that contradict themselves, of those examined",
        |topic| count(topic.inconsistent),
    ),
];

const BACKFILL: &[Figure<Backfill>] = &[
    figure("headwater_backfill_processed", "Messages that a backfill has processed", |backfill| {
        count(backfill.processed)
    }),
    figure("headwater_backfill_total", "Messages that a backfill has to process in total", |backfill| {
        count(backfill.total)
    }),
    figure("headwater_backfill_failed", "1 while a backfill is stopped by an error", |backfill| {
        is(backfill.state == BackfillState::Failed)
    }),
    figure("headwater_backfill_left_out", "Messages that the limit of a backfill left out", |backfill| {
        count(backfill.left_out)
    }),
];

impl GroupAt {
    fn is_active(&self) -> bool {
        self.status.state == SubscriptionState::Active
    }
}

fn is(so: bool) -> f64 {
    f64::from(u8::from(so))
}

#[expect(clippy::cast_precision_loss, reason = "exact up to 2^53")]
fn count(number: u64) -> f64 {
    number as f64
}

fn age(at: Timestamp, now: Timestamp) -> Duration {
    Duration::try_from(now.duration_since(at)).unwrap_or_default()
}

/// Which subject a series is of.
type Labels = Vec<(&'static str, String)>;

/// The gauges of all subjects of a kind.
struct Family<T: 'static> {
    figures: &'static [Figure<T>],
    gauges: Mutex<BTreeMap<Labels, Vec<Gauge>>>,
}

impl<T> Family<T> {
    fn new(figures: &'static [Figure<T>]) -> Self {
        for figure in figures {
            metrics::describe_gauge!(figure.name, Unit::Count, figure.text);
        }
        Family { figures, gauges: Mutex::default() }
    }

    /// Shows these subjects and no others.
    fn show(&self, subjects: impl IntoIterator<Item = (Labels, T)>) {
        let mut gauges = self.gauges.lock().expect("no panic while held");
        let mut gone: BTreeSet<Labels> = gauges.keys().cloned().collect();
        for (labels, subject) in subjects {
            gone.remove(&labels);
            let of_subject = gauges.entry(labels).or_insert_with_key(|labels| self.register(labels));
            for (figure, gauge) in self.figures.iter().zip(of_subject) {
                gauge.set((figure.value)(&subject));
            }
        }
        for gauge in gone.iter().filter_map(|labels| gauges.remove(labels)).flatten() {
            gauge.set(f64::NAN);
        }
    }

    fn register(&self, labels: &Labels) -> Vec<Gauge> {
        let of_subject = labels.iter().map(|(name, value)| Label::new(*name, value.clone()));
        let gauge = |figure: &Figure<T>| {
            let own = figure.labels.iter().map(|(name, value)| Label::from_static_parts(name, value));
            metrics::gauge!(figure.name, of_subject.clone().chain(own).collect::<Vec<Label>>())
        };
        self.figures.iter().map(gauge).collect()
    }
}

/// The series of the whole store.
pub(crate) struct SurveyMetrics {
    groups: Family<GroupAt>,
    topics: Family<TopicAt>,
    backfills: Family<Backfill>,
    left_out: Gauge,
    released: Mutex<BTreeMap<TopicName, Counter>>,
}

impl std::fmt::Debug for SurveyMetrics {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SurveyMetrics").finish_non_exhaustive()
    }
}

impl Default for SurveyMetrics {
    fn default() -> Self {
        metrics::describe_counter!(
            RELEASED,
            Unit::Count,
            "Completion records released from groups that died or were cancelled"
        );
        metrics::describe_gauge!(
            LEFT_OUT,
            Unit::Count,
            "Groups that the survey left out because there are too many"
        );
        SurveyMetrics {
            groups: Family::new(GROUP),
            topics: Family::new(TOPIC),
            backfills: Family::new(BACKFILL),
            left_out: metrics::gauge!(LEFT_OUT),
            released: Mutex::default(),
        }
    }
}

impl SurveyMetrics {
    /// Shows the figures of a survey.
    pub(crate) fn show(&self, topics: &[TopicStatus], survey: Survey, backfills: Vec<Backfill>) {
        let now = survey.now;
        self.topics.show(topics.iter().map(|status| {
            let of_topic =
                survey.groups.iter().filter(|group| group.status.topic_id == status.topic.topic_id);
            let counting =
                of_topic.filter(|group| group.status.state.counts(status.topic.settings.semantics));
            let pending = counting.filter_map(|group| group.status.oldest_pending).min();
            let figures = survey.topics.iter().find(|one| one.topic == status.topic.name);
            let subject = TopicAt {
                status: status.clone(),
                cleanable: figures.map_or(0, |one| one.cleanable),
                inconsistent: figures.map_or(0, |one| one.inconsistent),
                completion_lag: pending.map_or(Duration::ZERO, |at| age(at, now)),
            };
            (vec![("topic", status.topic.name.to_string())], subject)
        }));
        self.left_out.set(count(survey.left_out));
        self.groups.show(survey.groups.into_iter().map(|SurveyedGroup { topic, status }| {
            (labels(topic.as_str(), status.group.as_str()), GroupAt { status, now })
        }));
        // Newest first: an older one of a group of the same name that was cancelled is not shown.
        let mut shown = BTreeSet::new();
        self.backfills.show(backfills.into_iter().filter_map(|backfill| {
            let labels = labels(backfill.topic.as_str(), backfill.group.as_str());
            shown.insert(labels.clone()).then_some((labels, backfill))
        }));
    }

    /// Shows nothing any more: another process is elected.
    pub(crate) fn clear(&self) {
        self.groups.show([]);
        self.topics.show([]);
        self.backfills.show([]);
        self.left_out.set(f64::NAN);
    }

    /// Counts completion records that groups were released from.
    pub(crate) fn released(&self, topic: &TopicName, records: u64) {
        if records > 0 {
            let mut released = self.released.lock().expect("no panic while held");
            let register = || metrics::counter!(RELEASED, "topic" => topic.to_string());
            released.entry(topic.clone()).or_insert_with(register).increment(records);
        }
    }
}

fn labels(topic: &str, group: &str) -> Labels {
    vec![("topic", topic.to_owned()), ("group", group.to_owned())]
}
