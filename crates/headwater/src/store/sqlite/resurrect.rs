//! Resurrect: a dead subscription becomes active again, at its cursor or at most a given number of messages behind
//! the head.

use rusqlite::params;

use super::fault::Attempt;
use super::progress::{SubscriptionProgress, TopicRange};
use super::range::DUE_NEVER;
use super::work::{Work, wake};
use super::{audit, group, tracking};
use crate::backfill::BackfillLimits;
use crate::message::Offset;
use crate::name::{GroupName, TopicName};
use crate::store::Resurrected;
use crate::subscription::{SubscriptionState, Transition};
use crate::topic::TopicId;

/// Brings a group back at the request of an operator.
pub(super) fn resurrect(
    work: &mut Work<'_>,
    name: &TopicName,
    group: &GroupName,
    behind_max: Option<u64>,
    actor: &str,
) -> Attempt<Resurrected> {
    let (topic, found) = group::get(work.connection, name, group)?;
    let resurrected = match found.state {
        SubscriptionState::Active => false,
        SubscriptionState::Dead => true,
        other => return Err(Transition::Resurrect.refused(name.as_str(), group.as_str(), other).into()),
    };
    if resurrected {
        revive(work, topic.topic_id, found.subscription_id, behind_max)?;
    }
    let next = group::position(work.connection, found.subscription_id, work.now_ms())?.next;
    if resurrected {
        let detail =
            serde_json::json!({ "behind_max": behind_max, "next": next, "missed": found.missed.count });
        audit::note(work, actor, "resurrect", Some(name.as_str()), Some(group.as_str()), &detail)?;
    }
    Ok(Resurrected { resurrected, next: Offset(next), missed: found.missed })
}

/// Makes a dead subscription active. Messages that retention removed are behind its cursor; messages that it gives up
/// to be no further behind than `behind_max` do not count as missed, but as skipped on purpose.
pub(super) fn revive(
    work: &mut Work<'_>,
    topic: TopicId,
    subscription_id: i32,
    behind_max: Option<u64>,
) -> Attempt<()> {
    let now_ms = work.now_ms();
    let counted = SubscriptionProgress::one(work.connection, subscription_id)?.1.counts;
    let TopicRange { first, head, .. } = TopicRange::load(work.connection, topic)?;
    leave_behind(work, subscription_id, first, now_ms)?;
    if let Some(behind_max) = behind_max {
        let behind_max = i64::try_from(behind_max).unwrap_or(i64::MAX);
        let from = head.saturating_sub(behind_max).saturating_add(1);
        cut_off(work, subscription_id, from)?;
    }
    let mut revive = work.connection.prepare_cached(super::sql!(resurrect.revive))?;
    revive.execute(params![subscription_id, now_ms])?;
    if !counted {
        tracking::start_counting(work, subscription_id, &BackfillLimits::default())?;
    }
    wake(work, topic)
}

/// Moves a subscription's cursors up to an offset and removes everything it has outstanding below.
pub(super) fn cut_off(work: &Work<'_>, subscription_id: i32, offset: i64) -> Attempt<()> {
    leave_behind(work, subscription_id, offset, DUE_NEVER)?;
    let mut cut = work.connection.prepare_cached(super::sql!(resurrect.cut_below))?;
    cut.execute(params![subscription_id, offset])?;
    Ok(())
}

/// Moves a subscription's cursors up to an offset and removes its outstanding ranges wholly below: waiting ones, and
/// leases with a deadline up to `due_until_ms`.
fn leave_behind(work: &Work<'_>, subscription_id: i32, offset: i64, due_until_ms: i64) -> Attempt<()> {
    let connection = work.connection;
    connection.prepare_cached(super::sql!(resurrect.advance))?.execute(params![subscription_id, offset])?;
    connection.prepare_cached(super::sql!(resurrect.forget_below))?.execute(params![
        subscription_id,
        offset,
        due_until_ms
    ])?;
    Ok(())
}
