//! All figures at one time, as pages show them.

use std::ops::Range;
use std::time::Duration;

use headwater::jiff::Timestamp;
use headwater::store::{
    Backfill, Figures, Finding, HealthIssue, JobStatus, SubscriptionStatus, Survey, TopicStatus,
};
use headwater::{SubscriptionState, TopicName};

/// Figures of everything, read together.
#[derive(Clone, Debug)]
pub(crate) struct Snapshot {
    /// When, by the database's clock.
    pub(crate) at: Timestamp,
    /// The topics by name.
    pub(crate) topics: Vec<TopicFigures>,
    /// The groups that are not cancelled, by topic and name.
    pub(crate) groups: Vec<GroupFigures>,
    /// The history of each maintenance job.
    pub(crate) jobs: Vec<JobStatus>,
    /// The backfills, newest first.
    pub(crate) backfills: Vec<Backfill>,
    /// What needs attention, most urgent first.
    pub(crate) findings: Vec<Finding>,
    /// Sums over everything.
    pub(crate) totals: Totals,
}

/// Figures of a topic.
#[derive(Clone, Debug)]
pub(crate) struct TopicFigures {
    /// Its settings and progress.
    pub(crate) status: TopicStatus,
    /// Messages published per second since the reading before.
    pub(crate) published_per_s: f64,
    /// Its groups among [`Snapshot::groups`].
    pub(crate) groups: Range<usize>,
}

/// Figures of a group.
#[derive(Clone, Debug)]
pub(crate) struct GroupFigures {
    /// Its topic.
    pub(crate) topic: TopicName,
    /// Its progress and activity.
    pub(crate) status: SubscriptionStatus,
    /// What is wrong with it.
    pub(crate) issues: Vec<HealthIssue>,
    /// Messages done per second since the reading before.
    pub(crate) handled_per_s: f64,
    /// How long ago the oldest message that is not done was published.
    pub(crate) behind: Option<Duration>,
}

/// Sums over everything.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Totals {
    pub(crate) published_per_s: f64,
    pub(crate) handled_per_s: f64,
    pub(crate) lag: u64,
    pub(crate) in_flight: u64,
    pub(crate) retrying: u64,
    pub(crate) dead_letters: u64,
    pub(crate) scheduled: u64,
    /// Groups with a health issue.
    pub(crate) unhealthy: usize,
}

impl Snapshot {
    /// The figures without rates: those need the reading before.
    pub(super) fn from_figures(figures: Figures, findings: Vec<Finding>) -> Self {
        let Figures { survey, topics, jobs, backfills } = figures;
        let at = survey.now;
        let groups = groups_of(survey);
        let mut snapshot = Snapshot {
            at,
            topics: topics_of(topics, &groups),
            groups,
            jobs,
            backfills,
            findings,
            totals: Totals::default(),
        };
        snapshot.sum_up();
        snapshot
    }

    /// The sums, once the rates are known.
    pub(super) fn sum_up(&mut self) {
        let mut totals = Totals::default();
        for topic in &self.topics {
            totals.published_per_s += topic.published_per_s;
            totals.scheduled += topic.status.scheduled;
        }
        for group in &self.groups {
            totals.handled_per_s += group.handled_per_s;
            totals.lag += group.status.lag;
            totals.in_flight += group.status.in_flight;
            totals.retrying += group.status.retrying;
            totals.dead_letters += group.status.dead_letters;
            totals.unhealthy += usize::from(!group.issues.is_empty());
        }
        self.totals = totals;
    }

    /// A topic by name.
    pub(crate) fn topic(&self, name: &str) -> Option<&TopicFigures> {
        self.topics.iter().find(|topic| topic.status.topic.name.as_str() == name)
    }

    /// The groups of a topic.
    pub(crate) fn groups_of(&self, topic: &TopicFigures) -> &[GroupFigures] {
        &self.groups[topic.groups.clone()]
    }

    /// A group by name.
    pub(crate) fn group(&self, topic: &str, group: &str) -> Option<&GroupFigures> {
        self.groups_of(self.topic(topic)?).iter().find(|one| one.status.group.as_str() == group)
    }
}

fn groups_of(survey: Survey) -> Vec<GroupFigures> {
    let now = survey.now;
    let figures = |topic: TopicName, status: SubscriptionStatus| GroupFigures {
        issues: status.health_issues(now),
        behind: status
            .oldest_pending
            .map(|oldest| Duration::try_from(now.duration_since(oldest)).unwrap_or_default()),
        handled_per_s: 0.0,
        topic,
        status,
    };
    let mut groups: Vec<_> = survey
        .groups
        .into_iter()
        .filter(|group| group.status.state != SubscriptionState::Cancelled)
        .map(|group| figures(group.topic, group.status))
        .collect();
    // By bytes: a database may sort names in another way, and topics are found in this order.
    groups.sort_by(|a, b| (&a.topic, &a.status.group).cmp(&(&b.topic, &b.status.group)));
    groups
}

fn topics_of(mut topics: Vec<TopicStatus>, groups: &[GroupFigures]) -> Vec<TopicFigures> {
    topics.sort_by(|a, b| a.topic.name.cmp(&b.topic.name));
    let mut next = 0;
    let figures = |status: TopicStatus| {
        let name = &status.topic.name;
        while groups.get(next).is_some_and(|group| group.topic < *name) {
            next += 1;
        }
        let first = next;
        while groups.get(next).is_some_and(|group| group.topic == *name) {
            next += 1;
        }
        TopicFigures { status, published_per_s: 0.0, groups: first..next }
    };
    topics.into_iter().map(figures).collect()
}
