//! Heartbeat: an owner reports that it is alive and which subscriptions it serves; the leases of owners whose
//! heartbeats stopped end.
//!
//! A heartbeat writes the owner's row, and a row of `headwater_activity` only where something changed. The time of a
//! subscription's last heartbeat is read from both (the view `headwater_heard`): the subscription's own row is not
//! written.

use std::collections::BTreeSet;
use std::time::Duration;

use rusqlite::{OptionalExtension, params};

use super::fault::Attempt;
use super::work::{Kind, Work, wake};
use super::{SqliteStore, decode, group, millis, resurrect};
use crate::error::Result;
use crate::name::{GroupName, Owner};
use crate::store::{Heartbeat, Served, Signal};
use crate::subscription::SubscriptionState;
use crate::topic::TopicId;

pub(super) async fn heartbeat(
    store: &SqliteStore,
    owner: &Owner,
    silent_for: Option<Duration>,
    served: &[Served],
) -> Result<Heartbeat> {
    let (owner, served) = (owner.clone(), served.to_vec());
    // Losing a heartbeat in a power cut costs nothing: the next one carries the same.
    store.write(Kind::Consume, move |work| note(work, &owner, silent_for, &served)).await
}

/// Stores the owner and what it serves, and ends the leases of dead owners. These are then leases past their
/// deadline, which the next claim handles.
fn note(
    work: &mut Work<'_>,
    owner: &Owner,
    silent_for: Option<Duration>,
    served: &[Served],
) -> Attempt<Heartbeat> {
    let (connection, now_ms) = (work.connection, work.now_ms());
    let ids: Vec<i32> = served.iter().map(|one| one.subscription_id.0).collect();
    // Before the owner's row is written: for subscriptions that it no longer serves, its previous heartbeat is kept.
    serve_no_more(work, owner.as_str(), &ids)?;
    connection.prepare_cached(super::sql!(heartbeat.seen))?.execute(params![
        owner.as_str(),
        now_ms,
        silent_for.is_some()
    ])?;
    connection.prepare_cached(super::sql!(heartbeat.ahead))?.execute([now_ms])?;
    let signals =
        served.iter().map(|one| serve(work, owner, one, now_ms)).collect::<Attempt<Vec<Signal>>>()?;
    let ended = silent_for.map_or(Ok(0), |silent_for| end_silent(work, now_ms, silent_for))?;
    Ok(Heartbeat { ended, signals })
}

/// Stores that the owner serves a subscription, brings the subscription back if it is dead, and returns its state.
fn serve(work: &mut Work<'_>, owner: &Owner, served: &Served, now_ms: i64) -> Attempt<Signal> {
    let subscription_id = served.subscription_id.0;
    let found = {
        let mut statement = work.connection.prepare_cached(super::sql!(heartbeat.state))?;
        let read = |row: &rusqlite::Row<'_>| {
            let state = decode::parsed(row, 0, SubscriptionState::parse)?;
            Ok((state, TopicId(row.get(1)?), decode::parsed(row, 2, |name| GroupName::new(name))?))
        };
        statement.query_row([subscription_id], read).optional()?
    };
    let Some((state, topic_id, group)) = found else { return Ok(Signal::Gone) };
    let mut signal = Signal::of(state);
    if state == SubscriptionState::Cancelled {
        return Ok(signal);
    }
    if state == SubscriptionState::Dead {
        resurrect::revive(work, topic_id, subscription_id, None)?;
        let found = group::find(work.connection, topic_id, &group)?;
        signal = Signal::Resurrected(found.map(|found| found.missed).unwrap_or_default());
    }
    store_activity(work, owner, served, now_ms)?;
    Ok(signal)
}

/// Stores that the owner serves a subscription and its activity for it, if that has changed.
fn store_activity(work: &Work<'_>, owner: &Owner, served: &Served, now_ms: i64) -> Attempt<()> {
    let whole = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
    let micros = |time: Duration| i64::try_from(time.as_micros()).unwrap_or(i64::MAX);
    let activity = &served.activity;
    work.connection.prepare_cached(super::sql!(heartbeat.activity))?.execute(params![
        served.subscription_id.0,
        owner.as_str(),
        whole(activity.processed),
        whole(activity.failed),
        whole(activity.filtered),
        if activity.rate.is_finite() { activity.rate } else { 0.0 },
        micros(activity.handling_mean),
        micros(activity.handling_p95),
        now_ms,
    ])?;
    Ok(())
}

/// Records that the owner serves no subscriptions but these.
fn serve_no_more(work: &Work<'_>, owner: &str, but: &[i32]) -> Attempt<()> {
    let but = serde_json::to_string(but).expect("numbers are JSON");
    work.connection.prepare_cached(super::sql!(heartbeat.serve_no_more))?.execute([owner, &but])?;
    Ok(())
}

fn end_silent(work: &mut Work<'_>, now_ms: i64, silent_for: Duration) -> Attempt<u64> {
    let dead: Vec<String> = {
        let mut statement = work.connection.prepare_cached(super::sql!(heartbeat.silent))?;
        decode::all(&mut statement, [now_ms.saturating_sub(millis(silent_for))], |row| row.get(0))?
    };
    let mut ended = 0;
    for owner in dead {
        let leases = end_leases(work, &owner)?;
        if leases > 0 {
            tracing::warn!(owner, leases, "owner fell silent, its leases end");
        }
        ended += leases;
    }
    Ok(ended)
}

/// Ends the leases of a dead owner and removes the owner.
pub(super) fn end_leases(work: &mut Work<'_>, owner: &str) -> Attempt<u64> {
    let now_ms = work.now_ms();
    let ended: Vec<(i64, Option<i32>)> = {
        let mut statement = work.connection.prepare_cached(super::sql!(heartbeat.end_leases))?;
        decode::all(&mut statement, params![owner, now_ms], |row| Ok((row.get(0)?, row.get(1)?)))?
    };
    forget(work, owner)?;
    let tokens: BTreeSet<i64> = ended.iter().map(|(token, _)| *token).collect();
    let topics: BTreeSet<i32> = ended.iter().filter_map(|(_, topic)| *topic).collect();
    for topic in topics {
        wake(work, TopicId(topic))?;
    }
    Ok(tokens.len() as u64)
}

/// Departs and removes the owner's proof: nothing is left for others to clean up.
pub(super) async fn leave(store: &SqliteStore, owner: &Owner) -> Result<()> {
    let leaving = owner.clone();
    store.write(Kind::Consume, move |work| depart(work, &leaving)).await?;
    store.proofs.forget(owner);
    Ok(())
}

/// Removes an owner that leaves on purpose. Its activity for its groups is kept, added to that of others that left.
fn depart(work: &mut Work<'_>, owner: &Owner) -> Attempt<()> {
    forget(work, owner.as_str())?;
    for sql in [super::sql!(heartbeat.fold_activity), super::sql!(heartbeat.forget_activity)] {
        work.connection.prepare_cached(sql)?.execute([owner.as_str()])?;
    }
    Ok(())
}

/// Removes an owner. Until its last heartbeat it counts as serving its subscriptions.
pub(super) fn forget(work: &Work<'_>, owner: &str) -> Attempt<()> {
    serve_no_more(work, owner, &[])?;
    work.connection.prepare_cached(super::sql!(heartbeat.depart))?.execute([owner])?;
    Ok(())
}
