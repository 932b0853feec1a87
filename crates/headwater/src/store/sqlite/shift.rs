//! Shift: a subscription's state moves as an operator says, and a cancelled one is removed.

use rusqlite::params;

use super::fault::Attempt;
use super::work::Work;
use super::{audit, decode, group, settle, topic, tracking};
use crate::error::{Error, ErrorKind, Result};
use crate::name::{GroupName, TopicName};
use crate::subscription::{SubscriptionState, Transition};

/// Refuses what an operator may not do, or has a verb of its own.
pub(super) fn check(topic: &TopicName, group: &GroupName, transition: Transition) -> Result<()> {
    let instead = match transition {
        Transition::Pause | Transition::Resume | Transition::Cancel => return Ok(()),
        Transition::Die => "only the detector declares a group dead; cancel it to be rid of it",
        Transition::Resurrect => "resurrect has a verb of its own, or let a process subscribe",
    };
    let text = format!("invalid transition: topic {topic}, group {group}: {instead}; nothing was changed");
    Err(Error::new(ErrorKind::InvalidTransition, text))
}

/// Pauses, resumes or cancels. Those who wait for the topic are woken: they notice at once.
pub(super) fn shift(
    work: &mut Work<'_>,
    name: &TopicName,
    group: &GroupName,
    transition: Transition,
    actor: &str,
) -> Attempt<()> {
    let (topic, found) = group::get(work.connection, name, group)?;
    let from = found.state;
    if !transition.from().contains(&from) {
        return Err(transition.refused(name.as_str(), group.as_str(), from).into());
    }
    let to = transition.to();
    let parameters = params![found.subscription_id, from.as_str(), to.as_str(), work.now_ms()];
    work.connection.prepare_cached(super::sql!("shift/state.sql"))?.execute(parameters)?;
    if to == SubscriptionState::Cancelled {
        let mut forget = work.connection.prepare_cached(super::sql!("shift/forget_ranges.sql"))?;
        forget.execute([found.subscription_id])?;
        tracking::end_accounting(work, found.subscription_id)?;
    }
    let detail = serde_json::json!({ "from": from.as_str(), "to": to.as_str() });
    audit::note(work, actor, transition.as_str(), Some(name.as_str()), Some(group.as_str()), &detail)?;
    settle::stir(work, topic.topic_id)
}

/// Deletes the cancelled subscriptions of a group, with everything of their own.
pub(super) fn remove(work: &mut Work<'_>, name: &TopicName, group: &GroupName, actor: &str) -> Attempt<()> {
    let topic = topic::get(work.connection, name)?;
    let cancelled: Vec<(i32, bool)> = {
        let mut statement = work.connection.prepare_cached(super::sql!("remove/cancelled.sql"))?;
        let parameters = params![topic.topic_id.0, group.as_str()];
        decode::all(&mut statement, parameters, |row| Ok((row.get(0)?, row.get(1)?)))?
    };
    let refused = |why: &str| {
        let text = format!("invalid transition: topic {name}, group {group} {why}; nothing was changed");
        Error::new(ErrorKind::InvalidTransition, text)
    };
    if cancelled.is_empty() {
        let (_, found) = group::get(work.connection, name, group)?;
        return Err(refused(&format!("is {}; remove needs cancelled", found.state)).into());
    }
    if cancelled.iter().any(|(_, unreleased)| *unreleased) {
        return Err(refused("is still in the records of pending messages; upkeep takes it out").into());
    }
    for (subscription_id, _) in &cancelled {
        work.connection.prepare_cached(super::sql!("shift/forget_ranges.sql"))?.execute([subscription_id])?;
        delete(work, *subscription_id)?;
    }
    let numbers: Vec<i32> = cancelled.into_iter().map(|(subscription_id, _)| subscription_id).collect();
    let detail = serde_json::json!({ "subscriptions": numbers });
    audit::note(work, actor, "remove", Some(name.as_str()), Some(group.as_str()), &detail)
}

/// Deletes a subscription that has nothing outstanding, and everything of its own.
pub(super) fn delete(work: &Work<'_>, subscription_id: i32) -> Attempt<()> {
    for sql in [
        super::sql!("remove/cursor.sql"),
        super::sql!("remove/dead_letter.sql"),
        super::sql!("remove/applied.sql"),
        super::sql!("remove/touched.sql"),
        super::sql!("remove/backfill.sql"),
        super::sql!("remove/activity.sql"),
        super::sql!("remove/group_rate.sql"),
        super::sql!("remove/subscription.sql"),
    ] {
        work.connection.prepare_cached(sql)?.execute([subscription_id])?;
    }
    Ok(())
}
