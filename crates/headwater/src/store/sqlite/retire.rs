//! Subscriptions past their time: zombies are moved up, the long dead and cancelled are deleted, and small things forgotten.
//!
//! Each part is a write command of its own, and bounded: the writer is shared.

use std::time::Duration;

use rusqlite::params;

use super::fault::Attempt;
use super::standing::{Extent, Standing, watermark};
use super::work::{Kind, Work};
use super::{SqliteStore, clean, decode, lanes, millis, offset_of, resurrect, row_key, shift};
use crate::error::Result;
use crate::lease::ranges::Ranges;
use crate::limits::{INBOX_RETENTION, UPKEEP_MESSAGES_MAX};
use crate::name::{GroupName, TopicName};
use crate::store::SubscriptionStep;
use crate::topic::TopicId;

/// What a process told of itself is kept for so long after it fell silent.
const ACTIVITY_RETENTION: Duration = Duration::from_secs(24 * 3600);

/// Runs all of it: see [`crate::store::Upkeep::clean_subscriptions`].
pub(super) async fn clean_subscriptions(
    store: &SqliteStore,
    older_than: Duration,
) -> Result<SubscriptionStep> {
    let mut step = SubscriptionStep::default();
    for zombie in store.write(Kind::Consume, zombies).await? {
        let mut moved = false;
        loop {
            let subscription_id = zombie.subscription_id;
            match store.write(Kind::Consume, move |work| advance(work, subscription_id)).await? {
                Advance::There => break,
                Advance::Moved => moved = true,
            }
        }
        if moved {
            let Named { topic, group, .. } = zombie;
            step.zombies.push((topic, group));
        }
    }
    for old in store.write(Kind::Consume, move |work| past(work, older_than)).await? {
        let subscription_id = old.subscription_id;
        if store.write(Kind::Define, move |work| delete_if_idle(work, subscription_id, older_than)).await? {
            step.deleted.push((old.topic, old.group));
        }
    }
    step.forgotten = store.write(Kind::Consume, clean::forget_marks).await?;
    step.forgotten += store.write(Kind::Consume, forget_activities).await?;
    for forget in [forget_dedup, forget_inbox] {
        loop {
            let forgotten = store.write(Kind::Consume, forget).await?;
            step.forgotten += forgotten;
            if forgotten < u64::from(UPKEEP_MESSAGES_MAX) {
                break;
            }
        }
    }
    Ok(step)
}

/// A subscription with its names.
struct Named {
    subscription_id: i32,
    topic: TopicName,
    group: GroupName,
}

fn named(work: &Work<'_>, sql: &str, parameters: impl rusqlite::Params) -> Attempt<Vec<Named>> {
    let mut statement = work.connection.prepare_cached(sql)?;
    let rows: Vec<(i32, String, String)> =
        decode::all(&mut statement, parameters, |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?;
    let named = rows.into_iter().map(|(subscription_id, topic, group)| {
        Ok(Named { subscription_id, topic: TopicName::new(topic)?, group: GroupName::new(group)? })
    });
    Ok(named.collect::<Result<_>>()?)
}

fn zombies(work: &mut Work<'_>) -> Attempt<Vec<Named>> {
    named(work, super::sql!("clean/zombies.sql"), [work.now_ms()])
}

/// How far a zombie got.
enum Advance {
    /// A step further; there may be more.
    Moved,
    /// It is at the watermark, or does not concern us any more.
    There,
}

/// Moves a dead subscription past the lowest messages it has not done, up to the watermark. It has missed them.
fn advance(work: &mut Work<'_>, subscription_id: i32) -> Attempt<Advance> {
    if !zombies(work)?.iter().any(|zombie| zombie.subscription_id == subscription_id) {
        return Ok(Advance::There);
    }
    let connection = work.connection;
    let (topic, standing) = Standing::one(connection, subscription_id)?;
    let extent = Extent::load(connection, topic)?;
    let goal = watermark(&extent, &Standing::all(connection, topic)?);
    if standing.floor() >= goal {
        return Ok(Advance::There);
    }
    let (lost, until) = lowest_pending(work, &extent, &standing, goal)?;
    clean::note_missed(connection, subscription_id, lost.count(), lost.first().zip(lost.last()))?;
    resurrect::cut_off(work, subscription_id, until + 1)?;
    Ok(Advance::Moved)
}

/// The lowest stored messages a subscription has not done, and the offset up to which that is all of them.
fn lowest_pending(
    work: &Work<'_>,
    extent: &Extent,
    standing: &Standing,
    goal: i64,
) -> Attempt<(Ranges, i64)> {
    let mut lost = Vec::new();
    let mut statement = work.connection.prepare_cached(super::sql!("track/stored.sql"))?;
    for (first, last) in standing.pending().within(extent.first, goal).iter() {
        let left = UPKEEP_MESSAGES_MAX.saturating_sub(u32::try_from(lost.len()).unwrap_or(u32::MAX));
        let bounds = params![row_key(extent.topic, first), row_key(extent.topic, last), left];
        lost.extend(decode::all(&mut statement, bounds, |row| Ok(offset_of(row.get(0)?)))?);
        if lost.len() == UPKEEP_MESSAGES_MAX as usize {
            break;
        }
    }
    let until = match lost.last() {
        Some(last) if lost.len() == UPKEEP_MESSAGES_MAX as usize => *last,
        _ => goal,
    };
    let lost = Ranges::covering(lost.into_iter().map(|offset| (offset, offset)));
    Ok((lanes::owed(work.connection, extent.topic, standing, &lost)?, until))
}

fn past(work: &mut Work<'_>, older_than: Duration) -> Attempt<Vec<Named>> {
    let before_ms = work.now_ms().saturating_sub(millis(older_than));
    named(work, super::sql!("clean/past.sql"), [before_ms])
}

/// Deletes a subscription that is still dead or cancelled for so long and has nothing pending: nothing outstanding, nothing
/// at or below the watermark undone, no dead letter, and no record that waits for it.
fn delete_if_idle(work: &mut Work<'_>, subscription_id: i32, older_than: Duration) -> Attempt<bool> {
    if !past(work, older_than)?.iter().any(|old| old.subscription_id == subscription_id) {
        return Ok(false);
    }
    let (topic, standing) = Standing::one(work.connection, subscription_id)?;
    if standing.state == crate::subscription::SubscriptionState::Dead && is_behind(work, topic, &standing)? {
        return Ok(false);
    }
    shift::delete(work, subscription_id)?;
    Ok(true)
}

fn is_behind(work: &Work<'_>, topic: TopicId, standing: &Standing) -> Attempt<bool> {
    let extent = Extent::load(work.connection, topic)?;
    let goal = watermark(&extent, &Standing::all(work.connection, topic)?);
    // What was removed is not pending.
    Ok(!standing.pending().within(extent.first, goal).is_empty())
}

/// Forgets processes that vanished; what they did for their groups is kept, added up.
fn forget_activities(work: &mut Work<'_>) -> Attempt<u64> {
    let before_ms = work.now_ms().saturating_sub(millis(ACTIVITY_RETENTION));
    work.connection.prepare_cached(super::sql!("clean/fold_activities.sql"))?.execute([before_ms])?;
    Ok(work.connection.prepare_cached(super::sql!("clean/forget_activities.sql"))?.execute([before_ms])?
        as u64)
}

fn forget_dedup(work: &mut Work<'_>) -> Attempt<u64> {
    let mut forget = work.connection.prepare_cached(super::sql!("maintain/forget_dedup.sql"))?;
    Ok(forget.execute(params![work.now_ms(), UPKEEP_MESSAGES_MAX])? as u64)
}

fn forget_inbox(work: &mut Work<'_>) -> Attempt<u64> {
    let before_ms = work.now_ms().saturating_sub(millis(INBOX_RETENTION));
    let mut forget = work.connection.prepare_cached(super::sql!("maintain/forget_inbox.sql"))?;
    Ok(forget.execute(params![before_ms, UPKEEP_MESSAGES_MAX])? as u64)
}
