//! Claims of a subscription ordered by key: one owner per lane at a time, one lane per claim.
//!
//! A message is never handed out while an older one of its key is outstanding: a lane has one owner; a claim returns
//! either the oldest row of each of several keys, or one range of any keys; and the keys of older rows that stay
//! behind are that range's `blocked_keys`, which the owner parks. So no two leases of a claim can have the same key,
//! and whatever the outcome of one of them, no later message of its key has overtaken it.

use std::collections::BTreeSet;

use rusqlite::params;

use super::{BURIED_PER_CLAIM_MAX, Claim, DRAIN_RECHECK_MS, Suspect};
use crate::limits::PARKED_PER_LANE_MAX;
use crate::store::sqlite::decode;
use crate::store::sqlite::fault::Attempt;
use crate::store::sqlite::range::{DUE_NOW, Part};

/// Serves one want from the first lane that has something to hand out, the least recently claimed first.
pub(super) fn claim(claim: &mut Claim<'_, '_>) -> Attempt<()> {
    if claim.state.suspect_until_ms.is_some() {
        claim.recheck_at(claim.state.suspect_until_ms);
        return Ok(());
    }
    let held = held_lanes(claim)?;
    let free = lanes(claim)?.into_iter().filter(|(lane, _)| !held.contains(lane));
    for (lane, next) in free {
        if serve_lane(claim, lane, next)? {
            break;
        }
    }
    claim.recheck_at_next_due()
}

fn lanes(claim: &Claim<'_, '_>) -> Attempt<Vec<(u16, i64)>> {
    let mut statement = claim.work.connection.prepare_cached(crate::store::sqlite::sql!(claim.lanes))?;
    let subscription_id = claim.want.subscription_id.0;
    Ok(decode::all(&mut statement, [subscription_id], |row| Ok((row.get(0)?, row.get(1)?)))?)
}

fn held_lanes(claim: &Claim<'_, '_>) -> Attempt<BTreeSet<u16>> {
    let mut statement = claim.work.connection.prepare_cached(crate::store::sqlite::sql!(claim.lanes_held))?;
    let parameters = params![claim.want.subscription_id.0, claim.now_ms];
    Ok(decode::all(&mut statement, parameters, |row| row.get(0))?.into_iter().collect())
}

fn lane_parts(claim: &Claim<'_, '_>, lane: u16) -> Attempt<Vec<Part>> {
    let mut statement =
        claim.work.connection.prepare_cached(crate::store::sqlite::sql!(claim.lane_ranges))?;
    Ok(decode::all(&mut statement, params![claim.want.subscription_id.0, lane], Part::read)?)
}

/// Hands out what a lane has; true if that serves the want.
fn serve_lane(claim: &mut Claim<'_, '_>, lane: u16, next: i64) -> Attempt<bool> {
    for _ in 0..BURIED_PER_CLAIM_MAX {
        let parts = lane_parts(claim, lane)?;
        match plan(&parts, claim.now_ms) {
            Plan::Suspect(at) => match claim.deal_with_suspect(parts[at].clone())? {
                Suspect::Buried => continue,
                Suspect::HandedOut => finish(claim, lane, &parts)?,
                Suspect::MustDrain => claim.recheck_at(Some(claim.now_ms + DRAIN_RECHECK_MS)),
            },
            Plan::Keys(which) => {
                for at in which {
                    let count = parts[at].span().min(claim.budget());
                    if count == 0 {
                        break;
                    }
                    claim.hand_out_part(parts[at].clone(), count)?;
                }
                touch(claim, lane)?;
            }
            Plan::Range(at) => {
                let count = parts[at].span().min(claim.budget());
                claim.hand_out_part(parts[at].clone(), count)?;
                finish(claim, lane, &parts)?;
            }
            Plan::New => {
                let budget = i64::try_from(claim.budget()).unwrap_or(i64::MAX);
                let last = claim.state.head.min(next.saturating_add(budget).saturating_sub(1));
                if next > last {
                    return Ok(false);
                }
                claim.hand_out_new(Some(lane), next, last)?;
                finish(claim, lane, &parts)?;
            }
            Plan::Nothing => return Ok(false),
        }
        return Ok(true);
    }
    claim.recheck_at(Some(DUE_NOW));
    Ok(true)
}

/// Adds to the lease of a claim the keys that must wait for an older message, and moves the lane to the end of the
/// order.
fn finish(claim: &mut Claim<'_, '_>, lane: u16, parts: &[Part]) -> Attempt<()> {
    for lease in &mut claim.leases {
        let first = lease.range.first.0;
        let older = parts.iter().filter(|part| part.first < first).filter_map(|part| part.key.as_ref());
        let blocked: BTreeSet<&String> = older.collect();
        lease.blocked_keys = blocked.into_iter().cloned().collect();
    }
    touch(claim, lane)
}

fn touch(claim: &Claim<'_, '_>, lane: u16) -> Attempt<()> {
    claim
        .work
        .connection
        .prepare_cached(crate::store::sqlite::sql!(claim.touch))?
        .execute(params![claim.want.subscription_id.0, lane])?;
    Ok(())
}

/// What a lane without an owner hands out next.
#[derive(Debug, PartialEq, Eq)]
enum Plan {
    /// This range alone: its lease expired.
    Suspect(usize),
    /// The oldest row of each of these keys.
    Keys(Vec<usize>),
    /// This range of any keys, alone.
    Range(usize),
    /// Offsets never handed out.
    New,
    /// Nothing now.
    Nothing,
}

/// Decides from the outstanding ranges of a lane, in the order of offsets.
fn plan(parts: &[Part], now_ms: i64) -> Plan {
    let mut seen: BTreeSet<&str> = BTreeSet::new();
    let mut keys = Vec::new();
    for (at, part) in parts.iter().enumerate() {
        // Behind an older message of its key, whether that one is handed out now or not.
        if part.key.as_deref().is_some_and(|key| !seen.insert(key)) {
            continue;
        }
        let due = part.due_at_ms <= now_ms;
        let suspect = part.suspect || part.has_expired(now_ms);
        match (&part.key, due) {
            (Some(_), false) => {}
            (Some(_), true) if !suspect => keys.push(at),
            // It may contain any key, so nothing above it may be handed out first.
            (None, false) => return if keys.is_empty() { Plan::Nothing } else { Plan::Keys(keys) },
            _ if !keys.is_empty() => return Plan::Keys(keys),
            _ if suspect => return Plan::Suspect(at),
            _ => return Plan::Range(at),
        }
    }
    if !keys.is_empty() {
        return Plan::Keys(keys);
    }
    let full = i64::try_from(parts.len()).is_ok_and(|count| count >= PARKED_PER_LANE_MAX);
    if full { Plan::Nothing } else { Plan::New }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(first: i64, last: i64, key: Option<&str>, due_at_ms: i64) -> Part {
        Part {
            token: first,
            first,
            last,
            subscription_id: 1,
            lane: Some(0),
            owner: None,
            due_at_ms,
            attempts: 0,
            suspect: false,
            parked: false,
            key: key.map(str::to_owned),
            last_error: None,
        }
    }

    #[test]
    fn the_oldest_of_each_key_goes_and_its_followers_stay() {
        let parts = [
            part(1, 1, Some("a"), 100),
            part(2, 2, Some("a"), 0),
            part(3, 3, Some("b"), 0),
            part(4, 4, Some("b"), 0),
            part(5, 5, Some("c"), 0),
        ];
        assert_eq!(plan(&parts, 50), Plan::Keys(vec![2, 4]));
        assert_eq!(plan(&parts, 100), Plan::Keys(vec![0, 2, 4]));
        assert_eq!(plan(&parts[..2], 50), Plan::New, "other keys continue while one key waits");
    }

    #[test]
    fn a_range_of_unknown_keys_blocks_everything_above_it() {
        let waiting = [part(1, 1, Some("a"), 0), part(2, 9, None, 100), part(12, 12, Some("b"), 0)];
        assert_eq!(plan(&waiting, 50), Plan::Keys(vec![0]));
        assert_eq!(plan(&waiting[1..], 50), Plan::Nothing);
        assert_eq!(plan(&waiting[1..], 100), Plan::Range(0));
    }

    #[test]
    fn a_suspect_range_goes_alone_and_nothing_passes_it() {
        let suspect = |first, last| Part { suspect: true, ..part(first, last, None, 0) };
        assert_eq!(plan(&[suspect(1, 5), part(6, 9, None, 0)], 50), Plan::Suspect(0));
        assert_eq!(plan(&[part(1, 5, None, 0), suspect(6, 9)], 50), Plan::Range(0));
        let expired = Part { owner: Some("gone".into()), ..part(1, 5, None, 20) };
        assert_eq!(plan(&[expired], 50), Plan::Suspect(0));
    }

    #[test]
    fn a_full_lane_takes_nothing_new() {
        let parked: Vec<Part> =
            (1..=PARKED_PER_LANE_MAX).map(|n| part(n, n, Some("a"), i64::from(n == 1) * 99)).collect();
        assert_eq!(plan(&parked, 50), Plan::Nothing);
        assert_eq!(plan(&parked[1..], 50), Plan::Keys(vec![0]));
    }
}
