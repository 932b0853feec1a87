//! Messages that are old and not done: listed for groups that count, given up for dead ones.

use std::time::Duration;

use jiff::Timestamp;
use rusqlite::Connection;

use super::fault::Attempt;
use super::log::Stored;
use super::progress::{SubscriptionProgress, TopicRange};
use super::work::{Work, wake};
use super::{audit, clean, log, millis, resurrect, subscribe, topic};
use crate::message::Offset;
use crate::name::{GroupName, TopicName};
use crate::store::sqlite::ranges::Ranges;
use crate::store::{ForceCompleted, Stuck};
use crate::subscription::SubscriptionState;
use crate::topic::TopicId;

/// The messages older than this that each counting group has not done.
pub(super) fn stuck(
    connection: &Connection,
    name: &TopicName,
    older_than: Duration,
    now_ms: i64,
) -> Attempt<Vec<Stuck>> {
    let topic = topic::get(connection, name)?.topic_id;
    let until = last_older(connection, topic, older_than, now_ms)?;
    let mut all = Vec::new();
    for progress in SubscriptionProgress::all(connection, topic)?.iter().filter(|progress| progress.counts) {
        let found = log::count(connection, topic, &progress.pending(connection, 1, until)?)?;
        let Some((first, _)) = found.range else { continue };
        let published = log::first_in(connection, topic, first, first)?;
        if let Some(oldest) = published.and_then(|(_, at_ms)| Timestamp::from_millisecond(at_ms).ok()) {
            let group = GroupName::new(progress.group.clone())?;
            all.push(Stuck { group, messages: found.messages, oldest });
        }
    }
    Ok(all)
}

/// The last offset published longer ago than that; 0 or less if there is none.
pub(super) fn last_older(
    connection: &Connection,
    topic: TopicId,
    older_than: Duration,
    now_ms: i64,
) -> Attempt<i64> {
    let before = Timestamp::from_millisecond(now_ms.saturating_sub(millis(older_than)));
    let first_younger = subscribe::start_at(connection, topic, before.unwrap_or(Timestamp::MIN))?;
    Ok(first_younger - 1)
}

/// Messages that only dead subscriptions have not done: at or below the watermark, and old enough.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    topic: TopicId,
    until: i64,
    /// Messages removed from the topic when the plan was made.
    removed: i64,
    given_up: Vec<GivenUp>,
}

/// What would be given up for one dead subscription.
#[derive(Clone, Debug)]
struct GivenUp {
    subscription_id: i32,
    group: GroupName,
    pending: Ranges,
    stored: Stored,
}

impl Plan {
    /// The plan as it is returned to the operator.
    pub(super) fn shown(&self) -> Vec<ForceCompleted> {
        let completed = |given_up: &GivenUp| ForceCompleted {
            group: given_up.group.clone(),
            messages: given_up.stored.messages,
            until: Offset(self.until),
        };
        self.given_up.iter().map(completed).collect()
    }

    /// The earlier count for the same messages: nothing was removed since, and the group's pending messages are the
    /// same.
    fn counted(
        &self,
        topic_range: &TopicRange,
        progress: &SubscriptionProgress,
        pending: &Ranges,
    ) -> Option<Stored> {
        let same = |given_up: &&GivenUp| {
            given_up.subscription_id == progress.subscription_id && given_up.pending == *pending
        };
        self.given_up
            .iter()
            .filter(|_| self.removed == topic_range.removed)
            .find(same)
            .map(|found| found.stored)
    }
}

/// Computes what would be given up. Counts messages, so it runs on a reader.
pub(super) fn read_plan(
    connection: &Connection,
    name: &TopicName,
    older_than: Duration,
    now_ms: i64,
) -> Attempt<Plan> {
    let topic = topic::get(connection, name)?.topic_id;
    let until = last_older(connection, topic, older_than, now_ms)?;
    plan(connection, topic, until, None)
}

/// The same up to an offset. What was counted before is not counted again; a change in between is rare.
fn plan(connection: &Connection, topic: TopicId, until: i64, before: Option<&Plan>) -> Attempt<Plan> {
    let topic_range = TopicRange::load(connection, topic)?;
    let all_progress = SubscriptionProgress::all(connection, topic)?;
    // An operator requests it: dead groups do not retain what they would give up, not even in a queue.
    let living = all_progress.iter().filter(|progress| progress.state != SubscriptionState::Dead);
    let until = living.map(|progress| progress.floor).fold(until.min(topic_range.head), i64::min);
    let mut given_up = Vec::new();
    for progress in all_progress.iter().filter(|progress| progress.state == SubscriptionState::Dead) {
        let pending = progress.pending(connection, topic_range.first, until)?;
        let stored = match before.and_then(|before| before.counted(&topic_range, progress, &pending)) {
            Some(counted) => counted,
            None => log::count(connection, topic, &pending)?,
        };
        if stored.messages > 0 {
            let (subscription_id, group) =
                (progress.subscription_id, GroupName::new(progress.group.clone())?);
            given_up.push(GivenUp { subscription_id, group, pending, stored });
        }
    }
    Ok(Plan { topic, until, removed: topic_range.removed, given_up })
}

/// Gives the messages up: the cursors move past them, and they are counted as missed.
pub(super) fn force_complete(
    work: &mut Work<'_>,
    name: &TopicName,
    older_than: Duration,
    planned: &Plan,
    actor: &str,
) -> Attempt<Vec<ForceCompleted>> {
    let plan = plan(work.connection, planned.topic, planned.until, Some(planned))?;
    let mut groups = serde_json::Map::new();
    for GivenUp { subscription_id, group, stored, .. } in &plan.given_up {
        resurrect::cut_off(work, *subscription_id, plan.until + 1)?;
        clean::note_missed(work.connection, *subscription_id, stored.messages, stored.range)?;
        groups.insert(group.as_str().to_owned(), stored.messages.into());
    }
    let until = (!groups.is_empty()).then_some(plan.until);
    let detail = serde_json::json!({ "older_than_ms": millis(older_than), "until": until, "groups": groups });
    audit::note(work, actor, "force_complete", Some(name.as_str()), None, &detail)?;
    wake(work, plan.topic)?;
    Ok(plan.shown())
}
