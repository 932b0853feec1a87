//! What `top` shows: figures of topics and groups, and rates from one reading to the next.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use headwater::store::{FoundGroup, GroupHealth, GroupSelection, SubscriptionId, TopicId, TopicStatus};
use headwater::{Headwater, SubscriptionState};

/// Groups that are read at once.
const PAGE: u32 = 1_000;
/// Readings over which rates are averaged: figures that jump cannot be read.
const READINGS_MAX: usize = 6;

/// All that was read at one moment.
pub(super) struct Reading {
    at: Instant,
    topics: Vec<TopicStatus>,
    /// With the name of their topic.
    groups: Vec<(String, GroupHealth)>,
}

/// Reads the status of all topics and groups.
pub(super) async fn read(headwater: &Headwater) -> headwater::Result<Reading> {
    // On PostgreSQL the head of a topic without consumers may be old. A store that cannot be written is read as it is.
    let _ = headwater.topics().advance_heads().await;
    let topics = headwater.topics().list().await?;
    let (all, mut groups, mut after) = (headwater.all_groups(), Vec::new(), None);
    loop {
        let choose = |all: GroupSelection| match after.take() {
            Some(place) => all.after(place),
            None => all,
        };
        let page = all.list(PAGE, choose).await?;
        after = page.last().map(FoundGroup::place);
        let is_last = page.len() < PAGE as usize;
        groups.extend(page.into_iter().map(|found| (found.topic.as_str().to_owned(), found.health)));
        if is_last {
            return Ok(Reading { at: Instant::now(), topics, groups });
        }
    }
}

/// The last readings.
#[derive(Default)]
pub(super) struct History(VecDeque<Reading>);

/// A topic, as shown.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct TopicFigures {
    pub(super) topic: String,
    pub(super) published_per_second: f64,
    pub(super) head: i64,
    pub(super) retained: u64,
    pub(super) scheduled: u64,
    pub(super) groups: u64,
    pub(super) issues: String,
}

/// A group, as shown.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct GroupFigures {
    pub(super) topic: String,
    pub(super) group: String,
    /// Its state and health in words.
    pub(super) status: String,
    pub(super) condition: Condition,
    pub(super) lag: u64,
    pub(super) behind: Option<Duration>,
    pub(super) handled_per_second: f64,
    pub(super) retrying: u64,
    pub(super) dead_letters: u64,
}

/// How a group is, from the best to the worst.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Condition {
    #[default]
    Healthy,
    /// Paused or cancelled: meant to be so.
    Resting,
    /// It has a health issue.
    Ill,
}

/// Everything that is shown.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Figures {
    pub(super) topics: Vec<TopicFigures>,
    pub(super) groups: Vec<GroupFigures>,
}

impl Figures {
    pub(super) fn published_per_second(&self) -> f64 {
        self.topics.iter().map(|topic| topic.published_per_second).sum()
    }

    pub(super) fn handled_per_second(&self) -> f64 {
        self.groups.iter().map(|group| group.handled_per_second).sum()
    }

    pub(super) fn lag(&self) -> u64 {
        self.groups.iter().map(|group| group.lag).sum()
    }

    pub(super) fn retrying(&self) -> u64 {
        self.groups.iter().map(|group| group.retrying).sum()
    }

    pub(super) fn dead_letters(&self) -> u64 {
        self.groups.iter().map(|group| group.dead_letters).sum()
    }

    pub(super) fn ill(&self) -> usize {
        let groups = self.groups.iter().filter(|group| group.condition == Condition::Ill).count();
        groups + self.topics.iter().filter(|topic| !topic.issues.is_empty()).count()
    }
}

impl History {
    pub(super) fn add(&mut self, reading: Reading) {
        if self.0.len() == READINGS_MAX {
            self.0.pop_front();
        }
        self.0.push_back(reading);
    }

    /// The last reading, with rates since the first one that is kept; `None` before there is one.
    pub(super) fn figures(&self) -> Option<Figures> {
        let (first, last) = (self.0.front()?, self.0.back()?);
        let elapsed = last.at.duration_since(first.at).as_secs_f64();
        let rate = |before: Option<&i64>, now: i64| match before {
            Some(before) if elapsed > 0.0 => (now - before).max(0) as f64 / elapsed,
            _ => 0.0,
        };
        let heads: HashMap<TopicId, i64> =
            first.topics.iter().map(|topic| (topic.topic.topic_id, topic.head.0)).collect();
        let done_before: HashMap<SubscriptionId, i64> = first
            .groups
            .iter()
            .filter_map(|(_, group)| Some((group.status.subscription_id, done(group, &heads)?)))
            .collect();
        let heads_now: HashMap<TopicId, i64> =
            last.topics.iter().map(|topic| (topic.topic.topic_id, topic.head.0)).collect();
        let topics = last.topics.iter().map(|topic| TopicFigures {
            published_per_second: rate(heads.get(&topic.topic.topic_id), topic.head.0),
            ..topic_figures(topic)
        });
        let groups = last.groups.iter().map(|(topic, group)| {
            let now = done(group, &heads_now);
            let before = done_before.get(&group.status.subscription_id);
            let handled_per_second = now.map_or(0.0, |now| rate(before, now));
            GroupFigures { handled_per_second, ..group_figures(topic, group) }
        });
        Some(Figures { topics: topics.collect(), groups: groups.collect() })
    }
}

/// How many offsets a group has done: those up to the head that are not behind.
fn done(group: &GroupHealth, heads: &HashMap<TopicId, i64>) -> Option<i64> {
    let head = heads.get(&group.status.topic_id)?;
    Some(head - i64::try_from(group.status.lag).unwrap_or(i64::MAX))
}

fn topic_figures(status: &TopicStatus) -> TopicFigures {
    let issues: Vec<&str> = status.health_issues().iter().map(|issue| issue.as_str()).collect();
    TopicFigures {
        topic: status.topic.name.as_str().to_owned(),
        published_per_second: 0.0,
        head: status.head.0,
        retained: u64::try_from(status.head.0 - status.first.0 + 1).unwrap_or_default(),
        scheduled: status.scheduled,
        groups: status.subscriptions,
        issues: issues.join(", "),
    }
}

fn group_figures(topic: &str, health: &GroupHealth) -> GroupFigures {
    let status = &health.status;
    let is_active = status.state == SubscriptionState::Active;
    let condition = match (health.health_issues.is_empty(), is_active) {
        (false, _) => Condition::Ill,
        (true, false) => Condition::Resting,
        (true, true) => Condition::Healthy,
    };
    GroupFigures {
        topic: topic.to_owned(),
        group: status.group.as_str().to_owned(),
        status: crate::group::status(health),
        condition,
        lag: status.lag,
        behind: health.behind,
        handled_per_second: 0.0,
        retrying: status.retrying,
        dead_letters: status.dead_letters,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn reading(headwater: &Headwater, at: Instant) -> Reading {
        Reading { at, ..read(headwater).await.unwrap() }
    }

    #[tokio::test]
    async fn rates_are_what_happened_between_two_readings() {
        let headwater = Headwater::in_memory().await.unwrap();
        let orders = headwater.producer("orders");
        orders.send(&0).await.unwrap();
        let mut consumer = headwater.consumer("orders", "email").open().await.unwrap();
        let (mut history, start) = (History::default(), Instant::now());
        assert_eq!(history.figures(), None);
        history.add(reading(&headwater, start).await);
        assert_eq!(history.figures().unwrap().published_per_second(), 0.0, "one reading has no rate");

        for number in 0..10 {
            orders.send(&number).await.unwrap();
        }
        consumer.next(Duration::ZERO).await.unwrap().unwrap().ack().await.unwrap();
        history.add(reading(&headwater, start + Duration::from_secs(2)).await);
        let figures = history.figures().unwrap();
        assert_eq!((figures.published_per_second(), figures.lag()), (5.0, 0));
        assert_eq!(figures.handled_per_second(), 5.5, "the first one too");
        let group = &figures.groups[0];
        assert_eq!((group.topic.as_str(), group.group.as_str()), ("orders", "email"));
        consumer.close().await.unwrap();
        headwater.close().await.unwrap();
    }

    #[tokio::test]
    async fn a_paused_group_rests_and_one_paused_for_a_reason_is_ill() {
        let headwater = Headwater::in_memory().await.unwrap();
        headwater.producer("orders").send(&0).await.unwrap();
        headwater.groups("orders").subscribe("email", headwater::Start::Beginning).await.unwrap();
        headwater.groups("orders").pause("email").await.unwrap();
        let mut history = History::default();
        history.add(read(&headwater).await.unwrap());
        let group = history.figures().unwrap().groups.remove(0);
        assert_eq!((group.condition, group.status.as_str(), group.lag), (Condition::Resting, "paused", 1));
        headwater.groups("orders").resume("email").await.unwrap();
        headwater.groups("orders").pause_because("email", "mail server moves").await.unwrap();
        history.add(read(&headwater).await.unwrap());
        let figures = history.figures().unwrap();
        assert_eq!((figures.groups[0].condition, figures.ill()), (Condition::Ill, 1));
        headwater.close().await.unwrap();
    }
}
