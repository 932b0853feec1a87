//! Settle: end leases, whole or in parts; and give live ones more time.
//!
//! Each settlement is checked against what its token holds before anything is written, so the settlement of a lost
//! lease changes nothing; and all settlements of a call are one transaction, so a buried message is never removed
//! without being stored as a dead letter.

use std::time::Duration;

use rusqlite::{Connection, params};

use super::fault::Attempt;
use super::log::{self, Burial};
use super::range::{DUE_NEVER, DUE_NOW, Part, next_token};
use super::work::{Work, wake};
use super::{acks, audit, decode, millis};
use crate::error::{Error, Result};
use crate::lease::{LeaseId, LeaseToken, OffsetRange};
use crate::message::Offset;
use crate::settle::{Outcome, Parts, Settlement};
use crate::topic::TopicId;

/// Settles leases, each independently.
pub(super) fn settle(work: &mut Work<'_>, settlements: &[Settlement]) -> Attempt<Vec<Result<()>>> {
    let now_ms = work.now_ms();
    let logged = acks::any(work)?;
    settlements
        .iter()
        .map(|settlement| match &settlement.parts {
            Parts::AckAll => ack_all(work, &settlement.lease, logged, now_ms),
            Parts::Each(parts) => settle_parts(work, &settlement.lease, parts, logged, now_ms),
        })
        .collect()
}

/// Moves the deadlines to `lease` from now; zero means no deadline.
pub(super) fn extend(work: &mut Work<'_>, leases: &[LeaseId], lease: Duration) -> Attempt<Vec<Result<()>>> {
    let now_ms = work.now_ms();
    let due_at_ms = if lease.is_zero() { DUE_NEVER } else { now_ms.saturating_add(millis(lease)) };
    let mut statement = work.connection.prepare_cached(super::sql!(settle.extend))?;
    let mut results = Vec::with_capacity(leases.len());
    for id in leases {
        let parameters = params![id.token.0, now_ms, id.subscription_id.0, id.owner.as_str(), due_at_ms];
        let extended = statement.execute(parameters)?;
        results.push(if extended > 0 { Ok(()) } else { Err(Error::lease_lost(id.token.0)) });
    }
    Ok(results)
}

/// Ends a lease at an operator's request, whatever its owner: its messages are redelivered at once, as if never handed
/// out. One past its deadline is lost already, and counts as an attempt.
pub(super) fn release(work: &mut Work<'_>, token: LeaseToken, actor: &str) -> Attempt<()> {
    let held = end_lease(work, token)?;
    let model = &held[0];
    let (topic_id, topic, group) = work
        .connection
        .prepare_cached(super::sql!(dead_letter.of))?
        .query_row([model.subscription_id], |row| {
            Ok((TopicId(row.get(0)?), decode::name(row, 3)?, row.get::<_, String>(4)?))
        })?;
    let first = held.iter().map(|part| part.range().first.0).min();
    let last = held.iter().map(|part| part.range().last.0).max();
    let detail = serde_json::json!({ "token": token.0, "owner": model.owner, "first": first, "last": last });
    audit::note(work, actor, "release_lease", Some(&topic), Some(&group), &detail)?;
    wake(work, topic_id)
}

/// Releases a lease that has not expired; returns the ranges it had, at least one.
pub(super) fn end_lease(work: &Work<'_>, token: LeaseToken) -> Attempt<Vec<Part>> {
    let held = {
        let mut statement = work.connection.prepare_cached(super::sql!(settle.release))?;
        decode::all(&mut statement, params![token.0, work.now_ms()], Part::read)?
    };
    if held.is_empty() {
        return Err(Error::lease_lost(token.0).into());
    }
    work.connection.prepare_cached(super::sql!(settle.remove))?.execute([token.0])?;
    for part in &held {
        wait(work, part, part.range(), &Outcome::Release, work.now_ms())?;
    }
    Ok(held)
}

/// The ranges held under a lease, before its deadline.
pub(super) fn held(connection: &Connection, id: &LeaseId, now_ms: i64) -> Attempt<Vec<Part>> {
    let mut statement = connection.prepare_cached(super::sql!(settle.held))?;
    let parameters = params![id.token.0, now_ms, id.subscription_id.0, id.owner.as_str()];
    Ok(decode::all(&mut statement, parameters, Part::read)?)
}

/// Offsets and keys of the messages with a key that a lease holds, from an offset on, whatever its deadline.
pub(super) fn held_keys(
    connection: &Connection,
    topic: TopicId,
    id: &LeaseId,
    from: Offset,
) -> Attempt<Vec<(Offset, String)>> {
    let mut found = Vec::new();
    for part in held(connection, id, i64::MIN)?.iter().filter(|part| part.last >= from.0) {
        let keys = log::keys(connection, topic, part.first.max(from.0), part.last)?;
        found.extend(keys.into_iter().filter_map(|(offset, _, key)| Some((Offset(offset), key?))));
    }
    Ok(found)
}

fn lost(id: &LeaseId) -> Result<()> {
    Err(Error::lease_lost(id.token.0))
}

fn ack_all(work: &mut Work<'_>, id: &LeaseId, logged: bool, now_ms: i64) -> Attempt<Result<()>> {
    if logged {
        for part in held(work.connection, id, now_ms)? {
            acks::note(work, &part, part.range(), now_ms)?;
        }
    }
    let ended = {
        let mut statement = work.connection.prepare_cached(super::sql!(settle.ack_all))?;
        decode::all(
            &mut statement,
            params![id.token.0, now_ms, id.subscription_id.0, id.owner.as_str()],
            |row| Ok((row.get::<_, i32>(0)?, row.get::<_, Option<u16>>(1)?)),
        )?
    };
    match ended.first() {
        None => Ok(lost(id)),
        Some((_, None)) => Ok(Ok(())),
        Some((subscription_id, Some(_))) => {
            // The lane is free for another owner.
            let (topic, _) = topic_of(work, *subscription_id)?;
            wake(work, topic)?;
            Ok(Ok(()))
        }
    }
}

fn settle_parts(
    work: &mut Work<'_>,
    id: &LeaseId,
    parts: &[(OffsetRange, Outcome)],
    logged: bool,
    now_ms: i64,
) -> Attempt<Result<()>> {
    let held = held(work.connection, id, now_ms)?;
    let ranges: Vec<(i64, i64)> = held.iter().map(|part| (part.first, part.last)).collect();
    let settled: Vec<(i64, i64)> = parts.iter().map(|(range, _)| (range.first.0, range.last.0)).collect();
    let Some(left) = without(&ranges, &settled) else {
        return Ok(lost(id));
    };
    let model = &held[0];
    work.connection.prepare_cached(super::sql!(settle.remove))?.execute([id.token.0])?;
    for (first, last) in left {
        Part { first, last, ..model.clone() }.insert(work.connection)?;
    }
    let (topic, lanes) = topic_of(work, model.subscription_id)?;
    let mut claimable = model.lane.is_some();
    for (range, outcome) in parts {
        claimable |= outcome.comes_again();
        match outcome {
            Outcome::Ack if logged => acks::note(work, model, *range, now_ms)?,
            Outcome::Ack => {}
            Outcome::Bury { error } => {
                let burial = Burial {
                    subscription_id: model.subscription_id,
                    lane: model.lane.map(|lane| (lane, lanes)),
                    error,
                    attempts: model.attempts + 1,
                    owner: model.owner.as_deref(),
                    now_ms,
                };
                log::bury(work.connection, topic, *range, &burial)?;
            }
            waiting => wait(work, model, *range, waiting, now_ms)?,
        }
    }
    if claimable {
        wake(work, topic)?;
    }
    Ok(Ok(()))
}

/// Stores a range that is redelivered, under a new token: the old token must never match it.
fn wait(work: &Work<'_>, model: &Part, range: OffsetRange, outcome: &Outcome, now_ms: i64) -> Attempt<()> {
    debug_assert!(outcome.comes_again(), "a range that is done is not stored");
    let part = Part {
        token: next_token(work.connection)?,
        first: range.first.0,
        last: range.last.0,
        owner: None,
        due_at_ms: outcome.delay().map_or(DUE_NOW, |delay| now_ms.saturating_add(millis(delay))),
        attempts: model.attempts + u32::from(outcome.counts_attempt()),
        // Only a message that was not handled stays suspect.
        suspect: model.suspect && *outcome == Outcome::Release,
        parked: matches!(outcome, Outcome::Park { .. }),
        key: outcome.key().map(str::to_owned).or_else(|| model.key.clone()),
        last_error: outcome.error().map(str::to_owned).or_else(|| model.last_error.clone()),
        ..model.clone()
    };
    part.insert(work.connection)
}

pub(super) fn topic_of(work: &Work<'_>, subscription_id: i32) -> Attempt<(TopicId, u16)> {
    let mut statement = work.connection.prepare_cached(super::sql!(settle.topic))?;
    Ok(statement.query_row([subscription_id], |row| Ok((TopicId(row.get(0)?), row.get(1)?)))?)
}

/// What is left of sorted ranges without sorted parts; `None` if a part is not wholly within them.
fn without(ranges: &[(i64, i64)], parts: &[(i64, i64)]) -> Option<Vec<(i64, i64)>> {
    let mut merged: Vec<(i64, i64)> = Vec::with_capacity(ranges.len());
    for (first, last) in ranges {
        match merged.last_mut() {
            Some(before) if before.1 + 1 == *first => before.1 = *last,
            _ => merged.push((*first, *last)),
        }
    }
    let mut left = Vec::new();
    let mut parts = parts.iter().peekable();
    for (first, last) in merged {
        let mut from = first;
        while let Some((part_first, part_last)) = parts.next_if(|part| part.0 <= last) {
            if *part_first < from || *part_last > last {
                return None;
            }
            if *part_first > from {
                left.push((from, part_first - 1));
            }
            from = part_last + 1;
        }
        if from <= last {
            left.push((from, last));
        }
    }
    parts.peek().is_none().then_some(left)
}

#[cfg(test)]
mod tests {
    use super::without;

    #[test]
    fn parts_must_lie_within_what_is_held() {
        let held = [(1, 5), (6, 10), (20, 30)];
        assert_eq!(without(&held, &[(1, 10), (20, 30)]), Some(vec![]));
        assert_eq!(without(&held, &[(4, 7), (25, 25)]), Some(vec![(1, 3), (8, 10), (20, 24), (26, 30)]));
        for outside in [(0, 1), (10, 11), (5, 25), (31, 31), (12, 13)] {
            assert_eq!(without(&held, &[outside]), None, "{outside:?}");
        }
        assert_eq!(without(&[], &[(1, 1)]), None);
    }
}
