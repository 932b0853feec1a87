//! Claims of a subscription ordered by key: one holder per lane at a time, one lane per claim.
//!
//! A message is never handed out while an older one of its key is outstanding elsewhere: the lane has one holder, rows
//! are taken in the order of offsets, and the keys of rows that stay behind are `blocked_keys`, which the holder parks.

use std::collections::BTreeSet;

use rusqlite::params;

use super::{BURIED_PER_CLAIM_MAX, Claim, DRAIN_RECHECK_MS, Suspect};
use crate::limits::PARKED_PER_LANE_MAX;
use crate::store::sqlite::decode;
use crate::store::sqlite::fault::Attempt;
use crate::store::sqlite::range::{DUE_NOW, Part};

/// Serves one want from the first lane that has something to give, the least recently claimed first.
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
    let mut statement =
        claim.work.connection.prepare_cached(crate::store::sqlite::sql!("claim/lanes.sql"))?;
    let subscription_id = claim.want.subscription_id.0;
    Ok(decode::all(&mut statement, [subscription_id], |row| Ok((row.get(0)?, row.get(1)?)))?)
}

fn held_lanes(claim: &Claim<'_, '_>) -> Attempt<BTreeSet<u16>> {
    let mut statement =
        claim.work.connection.prepare_cached(crate::store::sqlite::sql!("claim/lanes_held.sql"))?;
    let parameters = params![claim.want.subscription_id.0, claim.now_ms];
    Ok(decode::all(&mut statement, parameters, |row| row.get(0))?.into_iter().collect())
}

fn lane_parts(claim: &Claim<'_, '_>, lane: u16) -> Attempt<Vec<Part>> {
    let mut statement =
        claim.work.connection.prepare_cached(crate::store::sqlite::sql!("claim/lane_ranges.sql"))?;
    Ok(decode::all(&mut statement, params![claim.want.subscription_id.0, lane], Part::read)?)
}

/// Hands out what a lane has to give; true if the want is served with that.
fn serve_lane(claim: &mut Claim<'_, '_>, lane: u16, next: i64) -> Attempt<bool> {
    for _ in 0..BURIED_PER_CLAIM_MAX {
        let parts = lane_parts(claim, lane)?;
        let plan = plan(&parts, claim.now_ms);
        let Some(first) = plan.suspect else {
            return hand_out(claim, lane, next, parts, &plan);
        };
        match claim.deal_with_suspect(parts[first].clone())? {
            Suspect::Buried => {}
            Suspect::HandedOut => {
                finish(claim, lane)?;
                return Ok(true);
            }
            Suspect::MustDrain => {
                claim.recheck_at(Some(claim.now_ms + DRAIN_RECHECK_MS));
                return Ok(true);
            }
        }
    }
    claim.recheck_at(Some(DUE_NOW));
    Ok(true)
}

fn hand_out(claim: &mut Claim<'_, '_>, lane: u16, next: i64, parts: Vec<Part>, plan: &Plan) -> Attempt<bool> {
    for (at, part) in parts.into_iter().enumerate() {
        let budget = claim.budget();
        if budget == 0 {
            break;
        }
        if plan.eligible.contains(&at) {
            let count = part.span().min(budget);
            claim.hand_out_part(part, count)?;
        }
    }
    let budget = i64::try_from(claim.budget()).unwrap_or(i64::MAX);
    let last = claim.state.head.min(next.saturating_add(budget).saturating_sub(1));
    if plan.may_take_new && next <= last {
        claim.hand_out_new(Some(lane), next, last)?;
    }
    if claim.leases.is_empty() {
        return Ok(false);
    }
    finish(claim, lane)?;
    Ok(true)
}

/// Tells every lease which keys of the lane must wait, and puts the lane at the end of the line.
fn finish(claim: &mut Claim<'_, '_>, lane: u16) -> Attempt<()> {
    let mine: BTreeSet<i64> = claim.leases.iter().map(|lease| lease.token.0).collect();
    let newest = mine.last().copied().unwrap_or_default();
    let others = lane_parts(claim, lane)?.into_iter().filter(|part| !mine.contains(&part.token));
    let blocked: BTreeSet<String> = others.filter_map(|part| part.key).collect();
    for lease in &mut claim.leases {
        lease.blocked_keys = blocked.iter().cloned().collect();
    }
    claim.work.connection.prepare_cached(crate::store::sqlite::sql!("claim/touch.sql"))?.execute(params![
        claim.want.subscription_id.0,
        lane,
        newest
    ])?;
    Ok(())
}

/// What a lane without a holder has to give.
#[derive(Debug, Default, PartialEq, Eq)]
struct Plan {
    /// The range to deal with first and alone: its holder vanished.
    suspect: Option<usize>,
    /// The ranges that may be handed out together.
    eligible: BTreeSet<usize>,
    /// Whether offsets never handed out may follow.
    may_take_new: bool,
}

/// Decides over the outstanding ranges of a lane, offsets rising.
fn plan(parts: &[Part], now_ms: i64) -> Plan {
    let mut plan = Plan::default();
    let mut behind: BTreeSet<&str> = BTreeSet::new();
    let mut keyed: i64 = 0;
    for (at, part) in parts.iter().enumerate() {
        let due = part.due_at_ms <= now_ms;
        if let Some(key) = part.key.as_deref() {
            keyed += 1;
            // An older message of the key stays behind: so does this one.
            if behind.contains(key) || !due {
                behind.insert(key);
                continue;
            }
        } else if !due {
            // It may hold any key, so nothing above it may go first.
            return plan;
        }
        if part.suspect || part.has_expired(now_ms) {
            if plan.eligible.is_empty() {
                plan.suspect = Some(at);
            }
            return plan;
        }
        plan.eligible.insert(at);
    }
    let all_keyed = i64::try_from(parts.len()).is_ok_and(|count| count == keyed);
    plan.may_take_new = all_keyed && keyed < PARKED_PER_LANE_MAX;
    plan
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

    fn indexes(plan: &Plan) -> Vec<usize> {
        plan.eligible.iter().copied().collect()
    }

    #[test]
    fn followers_of_a_waiting_key_stay_and_other_keys_go() {
        let parts = [
            part(1, 1, Some("a"), 100),
            part(2, 2, Some("a"), 0),
            part(3, 3, Some("b"), 0),
            part(4, 4, Some("a"), 0),
        ];
        let before = plan(&parts, 50);
        assert_eq!((indexes(&before), before.may_take_new), (vec![2], true));
        assert_eq!(indexes(&plan(&parts, 100)), [0, 1, 2, 3]);
    }

    #[test]
    fn a_range_of_unknown_keys_that_waits_blocks_everything_above_it() {
        let parts = [part(1, 1, Some("a"), 0), part(2, 9, None, 100), part(12, 12, Some("b"), 0)];
        let plan = plan(&parts, 50);
        assert_eq!((indexes(&plan), plan.may_take_new), (vec![0], false));
    }

    #[test]
    fn a_suspect_range_goes_alone_and_nothing_passes_it() {
        let suspect = |first, last| Part { suspect: true, ..part(first, last, None, 0) };
        let plan_first = plan(&[suspect(1, 5), part(6, 9, None, 0)], 50);
        assert_eq!((plan_first.suspect, indexes(&plan_first)), (Some(0), vec![]));
        let plan_second = plan(&[part(1, 5, None, 0), suspect(6, 9)], 50);
        assert_eq!((plan_second.suspect, indexes(&plan_second)), (None, vec![0]));
    }
}
