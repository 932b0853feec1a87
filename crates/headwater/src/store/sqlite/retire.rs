//! Subscriptions past their time: zombies give up removed messages, subscriptions dead or cancelled for long are
//! deleted, and expired small rows are removed.
//!
//! Each step is a write command of its own, and bounded: the writer is shared.

use std::time::{Duration, Instant};

use rusqlite::params;

use super::fault::Attempt;
use super::progress::{SubscriptionProgress, TopicRange};
use super::step_bytes::Page;
use super::work::{Kind, Work};
use super::{SqliteStore, clean, decode, heartbeat, log, millis, resurrect, state, topic};
use crate::error::Result;
use crate::name::{GroupName, TopicName};
use crate::store::{EntryRetention, EntryStep, SubscriptionStep};
use crate::subscription::SubscriptionState;
use crate::topic::TopicId;

/// How long the activity that a process reported is kept after its last heartbeat.
const ACTIVITY_RETENTION: Duration = Duration::from_secs(24 * 3600);

/// Rows that one step removes at most, and fewer if their payloads are large.
const ROWS_PER_STEP: u32 = 1_000;

/// Runs all steps: see [`crate::store::Maintenance::clean_subscriptions`].
pub(super) async fn clean_subscriptions(
    store: &SqliteStore,
    older_than: Duration,
) -> Result<SubscriptionStep> {
    let mut step = SubscriptionStep::default();
    // A crash between two steps of a cancel leaves such ranges.
    store.in_steps(Kind::Consume, state::forget_waiting).await?;
    // And one between two steps of the deletion of a topic.
    store.in_steps(Kind::Consume, topic::delete::remove_some).await?;
    for zombie in store.write(Kind::Consume, |work| zombies(work)).await? {
        let subscription_id = zombie.subscription_id;
        if store.write(Kind::Consume, move |work| advance(work, subscription_id)).await? {
            step.zombies.push((zombie.topic, zombie.group));
        }
    }
    for old in store.write(Kind::Consume, move |work| past(work, older_than)).await? {
        let subscription_id = old.subscription_id;
        if store.write(Kind::Define, move |work| delete_if_idle(work, subscription_id, older_than)).await? {
            step.deleted.push((old.topic, old.group));
        }
    }
    step.forgotten = store.write(Kind::Consume, clean::forget_watermarks).await?;
    step.forgotten += store.write(Kind::Consume, forget_activities).await?;
    loop {
        let began = Instant::now();
        let forgotten = store.write(Kind::Consume, forget_dedup).await?;
        step.forgotten += forgotten;
        if forgotten < u64::from(ROWS_PER_STEP) {
            return Ok(step);
        }
        SqliteStore::rest(began).await;
    }
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
        decode::all(&mut statement, parameters, |row| Ok((row.get(0)?, decode::name(row, 1)?, row.get(2)?)))?;
    let named = rows.into_iter().map(|(subscription_id, topic, group)| {
        Ok(Named { subscription_id, topic: TopicName::new(topic)?, group: GroupName::new(group)? })
    });
    Ok(named.collect::<Result<_>>()?)
}

fn zombies(work: &Work<'_>) -> Attempt<Vec<Named>> {
    named(work, super::sql!(clean.zombies), [clean::elapse(work)?])
}

/// Makes a dead subscription give up its claim to messages that are removed; true if there were any. Stored messages
/// stay pending for it: only retention removes them, and counts them.
fn advance(work: &mut Work<'_>, subscription_id: i32) -> Attempt<bool> {
    if !zombies(work)?.iter().any(|zombie| zombie.subscription_id == subscription_id) {
        return Ok(false);
    }
    let (topic, progress) = SubscriptionProgress::one(work.connection, subscription_id)?;
    let first = TopicRange::load(work.connection, topic)?.first;
    if progress.floor >= first - 1 {
        return Ok(false);
    }
    resurrect::cut_off(work, subscription_id, first)?;
    Ok(true)
}

fn past(work: &mut Work<'_>, older_than: Duration) -> Attempt<Vec<Named>> {
    let before_ms = work.now_ms().saturating_sub(millis(older_than));
    let elapsed_ms = clean::elapse(work)?.saturating_sub(millis(older_than));
    named(work, super::sql!(clean.past), [before_ms, elapsed_ms])
}

/// Deletes a subscription that is still dead or cancelled for this long and has nothing pending: no outstanding
/// range, no stored message that it has not done, no dead letter, and no completion record that waits for it.
fn delete_if_idle(work: &mut Work<'_>, subscription_id: i32, older_than: Duration) -> Attempt<bool> {
    if !past(work, older_than)?.iter().any(|old| old.subscription_id == subscription_id) {
        return Ok(false);
    }
    let (topic, progress) = SubscriptionProgress::one(work.connection, subscription_id)?;
    if progress.state == SubscriptionState::Dead && has_unread(work, topic, &progress)? {
        return Ok(false);
    }
    state::delete(work, subscription_id)?;
    Ok(true)
}

/// Whether a message is stored that the subscription has not done.
fn has_unread(work: &Work<'_>, topic: TopicId, progress: &SubscriptionProgress) -> Attempt<bool> {
    let topic_range = TopicRange::load(work.connection, topic)?;
    for (first, last) in progress.pending(work.connection, topic_range.first, topic_range.head)?.iter() {
        if log::first_in(work.connection, topic, first, last)?.is_some() {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Removes processes that vanished; their activity for their groups is kept, added up.
fn forget_activities(work: &mut Work<'_>) -> Attempt<u64> {
    let before_ms = work.now_ms().saturating_sub(millis(ACTIVITY_RETENTION));
    // An owner whose leases end by missing heartbeats is kept until they have ended.
    let owners: Vec<String> = {
        let mut statement = work.connection.prepare_cached(super::sql!(clean.vanished))?;
        decode::all(&mut statement, [before_ms], |row| row.get(0))?
    };
    for owner in owners {
        heartbeat::forget(work, &owner)?;
    }
    work.connection.prepare_cached(super::sql!(clean.fold_activities))?.execute([before_ms])?;
    Ok(work.connection.prepare_cached(super::sql!(clean.forget_activities))?.execute([before_ms])? as u64)
}

fn forget_dedup(work: &mut Work<'_>) -> Attempt<u64> {
    let mut forget = work.connection.prepare_cached(super::sql!(maintenance.forget_dedup))?;
    Ok(forget.execute(params![work.now_ms(), ROWS_PER_STEP])? as u64)
}

/// One step: see [`crate::store::Maintenance::clean_entries`].
pub(super) fn clean_entries(work: &mut Work<'_>, retention: &EntryRetention) -> Attempt<EntryStep> {
    let before_ms = |retention| work.now_ms().saturating_sub(millis(retention));
    let mut forget = work.connection.prepare_cached(super::sql!(inbox.forget))?;
    let inbox = forget.execute(params![before_ms(retention.inbox), ROWS_PER_STEP])? as u64;
    let published = work.connection.prepare_cached(super::sql!(outbox.some_published))?;
    let page = Page::load(published, params![before_ms(retention.outbox), ROWS_PER_STEP])?;
    let outbox = page.remove(work.connection.prepare_cached(super::sql!(outbox.forget))?)?;
    let more = page.is_cut || inbox.max(outbox) >= u64::from(ROWS_PER_STEP);
    Ok(EntryStep { inbox, outbox, more })
}
