//! States of subscriptions as operators change them: pause, resume, cancel, and the removal of a cancelled
//! subscription.

use rusqlite::{Connection, OptionalExtension, params};

use super::fault::Attempt;
use super::step_bytes::Page;
use super::work::{Work, wake};
use super::{audit, decode, group, topic, tracking};
use crate::name::{GroupName, TopicName};
use crate::subscription::{SubscriptionState, Transition, refused_removal};

/// Pauses, resumes or cancels, with the reason of a pause. The topic's waiters are woken, so that they see the new state
/// at once.
pub(super) fn set(
    work: &mut Work<'_>,
    name: &TopicName,
    group: &GroupName,
    transition: Transition,
    reason: Option<&str>,
    actor: &str,
) -> Attempt<()> {
    let (topic, found) = group::get(work.connection, name, group)?;
    let from = found.state;
    if !transition.from().contains(&from) {
        return Err(transition.refused(name.as_str(), group.as_str(), from).into());
    }
    let to = transition.to();
    let mut leases_lost = 0;
    let parameters = params![found.subscription_id, from.as_str(), to.as_str(), work.now_ms(), reason];
    work.connection.prepare_cached(super::sql!(state.set))?.execute(parameters)?;
    if to == SubscriptionState::Cancelled {
        // Its tokens become invalid at once. Waiting ranges are never handed out again and are removed in steps: see
        // `forget_waiting`.
        leases_lost = group::leases(work.connection, found.subscription_id, work.now_ms())?;
        let mut forget = work.connection.prepare_cached(super::sql!(state.forget_leases))?;
        forget.execute([found.subscription_id])?;
        tracking::stop_counting(work, found.subscription_id)?;
    }
    let mut detail =
        serde_json::json!({ "from": from.as_str(), "to": to.as_str(), "leases_lost": leases_lost });
    if let Some(reason) = reason {
        detail["reason"] = reason.into();
    }
    audit::note(work, actor, transition.as_str(), Some(name.as_str()), Some(group.as_str()), &detail)?;
    wake(work, topic.topic_id)
}

/// Rows that one step deletes at most, and fewer if their payloads are large: the writer is shared.
const ROWS_PER_STEP: u32 = 1_000;

/// Removes the waiting ranges of cancelled subscriptions, one step of them; true if more are left.
pub(super) fn forget_waiting(work: &mut Work<'_>) -> Attempt<bool> {
    let mut statement = work.connection.prepare_cached(super::sql!(state.cancelled_waiting))?;
    let Some(subscription_id) = statement.query_row([], |row| row.get::<_, i32>(0)).optional()? else {
        return Ok(false);
    };
    let mut forget = work.connection.prepare_cached(super::sql!(state.forget_waiting))?;
    Ok(forget.execute(params![subscription_id, ROWS_PER_STEP])? > 0)
}

/// One stage of a removal.
#[derive(Clone, Copy, Debug)]
pub(super) enum Removal<'a> {
    /// Deletes some of the rows that may be many.
    Empty,
    /// Deletes the rest, and audits the actor and the number of dead letters.
    Delete { actor: &'a str, dead_letters: u64 },
}

/// Empties the cancelled subscriptions of a group, one step, or deletes them; true if there is more to empty.
///
/// Cancelled is final: nothing claims for such a subscription, redrives to it or brings it back. So its remaining
/// rows are deleted first, in steps, and its own row last, together with the audit entry. A crash between steps
/// leaves a cancelled subscription with fewer rows; the next removal continues from there.
pub(super) fn remove(
    work: &mut Work<'_>,
    name: &TopicName,
    group: &GroupName,
    step: Removal<'_>,
) -> Attempt<bool> {
    let topic = topic::get(work.connection, name)?;
    let cancelled: Vec<(i32, bool)> = {
        let mut statement = work.connection.prepare_cached(super::sql!(state.cancelled))?;
        let parameters = params![topic.topic_id.0, group.as_str()];
        decode::all(&mut statement, parameters, |row| Ok((row.get(0)?, row.get(1)?)))?
    };
    if cancelled.is_empty() || cancelled.iter().any(|(_, unreleased)| *unreleased) {
        let state = match cancelled.first() {
            Some(_) => SubscriptionState::Cancelled,
            None => group::get(work.connection, name, group)?.1.state,
        };
        return Err(refused_removal(name.as_str(), group.as_str(), state).into());
    }
    let Removal::Delete { actor, dead_letters } = step else {
        for (subscription_id, _) in &cancelled {
            if !empty(work, *subscription_id)? {
                return Ok(true);
            }
        }
        return Ok(false);
    };
    for (subscription_id, _) in &cancelled {
        work.connection.prepare_cached(super::sql!(state.forget_ranges))?.execute([subscription_id])?;
        delete(work, *subscription_id)?;
    }
    let detail = serde_json::json!({ "subscriptions": cancelled.len(), "dead_letters": dead_letters });
    audit::note(work, actor, "remove", Some(name.as_str()), Some(group.as_str()), &detail)?;
    Ok(false)
}

/// How many dead letters the removal of a group deletes.
pub(super) fn dead_letters(connection: &Connection, name: &TopicName, group: &GroupName) -> Attempt<u64> {
    let topic = topic::get(connection, name)?;
    let mut statement = connection.prepare_cached(super::sql!(state.dead_letter_count))?;
    let parameters = params![topic.topic_id.0, group.as_str()];
    Ok(statement.query_row(parameters, |row| decode::count(row, 0))?)
}

/// Deletes rows of a cancelled subscription that may be many, up to the limit of a step; true if none is left.
fn empty(work: &Work<'_>, subscription_id: i32) -> Attempt<bool> {
    if remove_some_dead_letters(work.connection, subscription_id)? {
        return Ok(false);
    }
    let mut forget = work.connection.prepare_cached(super::sql!(state.forget_waiting))?;
    if forget.execute(params![subscription_id, ROWS_PER_STEP])? > 0 {
        return Ok(false);
    }
    tracking::forget_some(work.connection, subscription_id, ROWS_PER_STEP)
}

/// Deletes some dead letters of a subscription that is removed; true if there were any.
pub(super) fn remove_some_dead_letters(connection: &Connection, subscription_id: i32) -> Attempt<bool> {
    let some = connection.prepare_cached(super::sql!(state.some_dead_letters))?;
    let page = Page::load(some, params![subscription_id, ROWS_PER_STEP])?;
    Ok(page.remove(connection.prepare_cached(super::sql!(dead_letter.purge))?)? > 0)
}

/// Deletes a subscription that has nothing outstanding, and all its rows.
pub(super) fn delete(work: &Work<'_>, subscription_id: i32) -> Attempt<()> {
    tracking::forget_subscription(work.connection, subscription_id)?;
    work.connection.prepare_cached(super::sql!(state.remove_dead_letters))?.execute([subscription_id])?;
    delete_row(work.connection, subscription_id)
}

/// Deletes a subscription with its cursors, activities and rate: rows that are few.
pub(super) fn delete_row(connection: &Connection, subscription_id: i32) -> Attempt<()> {
    for sql in [
        super::sql!(state.remove_cursor),
        super::sql!(state.remove_activity),
        super::sql!(state.remove_group_rate),
        super::sql!(state.remove),
    ] {
        connection.prepare_cached(sql)?.execute([subscription_id])?;
    }
    Ok(())
}
