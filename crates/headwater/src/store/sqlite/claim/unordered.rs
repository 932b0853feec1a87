//! Claims of a subscription whose leases are independent of each other.

use rusqlite::{OptionalExtension, params};

use super::{BURIED_PER_CLAIM_MAX, Claim, DRAIN_RECHECK_MS, Suspect};
use crate::store::sqlite::decode;
use crate::store::sqlite::fault::Attempt;
use crate::store::sqlite::range::{DUE_NOW, Part};

/// Serves one want.
pub(super) fn claim(claim: &mut Claim<'_, '_>) -> Attempt<()> {
    if claim.state.suspect_until_ms.is_some() {
        // A suspect range may crash its owner: the owner gets nothing else that would be affected.
        claim.recheck_at(claim.state.suspect_until_ms);
        return Ok(());
    }
    let due = [claim.state.leased_due_ms, claim.state.waiting_due_ms].into_iter().flatten().min();
    if due.is_none_or(|due_ms| due_ms > claim.now_ms) {
        // The common case: nothing is due again, and the state already has the next due time.
        claim.recheck_at(due);
        return take_new(claim);
    }
    if hand_out_suspect(claim)? {
        return claim.recheck_at_next_due();
    }
    hand_out_waiting(claim)?;
    take_new(claim)?;
    claim.recheck_at_next_due()
}

/// Takes the next offsets, as many as the want still allows.
fn take_new(claim: &mut Claim<'_, '_>) -> Attempt<()> {
    let budget = i64::try_from(claim.budget()).unwrap_or(i64::MAX);
    let first = claim.state.next;
    let last = claim.state.head.min(first.saturating_add(budget).saturating_sub(1));
    if first > last {
        return Ok(());
    }
    claim.hand_out_new(None, first, last)?;
    let deadline_ms = claim.deadline_ms();
    claim.recheck_at(Some(deadline_ms));
    Ok(())
}

/// Handles ranges whose lease expired; true if that serves the want.
fn hand_out_suspect(claim: &mut Claim<'_, '_>) -> Attempt<bool> {
    for _ in 0..BURIED_PER_CLAIM_MAX {
        let Some(part) = first_suspect(claim)? else { return Ok(false) };
        match claim.deal_with_suspect(part)? {
            Suspect::Buried => {}
            Suspect::HandedOut => return Ok(true),
            Suspect::MustDrain => {
                claim.recheck_at(Some(claim.now_ms + DRAIN_RECHECK_MS));
                return Ok(true);
            }
        }
    }
    claim.recheck_at(Some(DUE_NOW));
    Ok(true)
}

fn first_suspect(claim: &Claim<'_, '_>) -> Attempt<Option<Part>> {
    let connection = claim.work.connection;
    let subscription_id = claim.want.subscription_id.0;
    let waiting = connection
        .prepare_cached(crate::store::sqlite::sql!(claim.suspect))?
        .query_row([subscription_id], Part::read)
        .optional()?;
    if waiting.is_some() {
        return Ok(waiting);
    }
    let expired = connection
        .prepare_cached(crate::store::sqlite::sql!(claim.expired))?
        .query_row(params![subscription_id, claim.now_ms], Part::read)
        .optional()?;
    Ok(expired)
}

/// Hands out ranges that were released or whose retry is due, each under its own token.
fn hand_out_waiting(claim: &mut Claim<'_, '_>) -> Attempt<()> {
    let parts = {
        let mut statement =
            claim.work.connection.prepare_cached(crate::store::sqlite::sql!(claim.waiting))?;
        // Each has at least one offset, so more ranges than wanted offsets are never needed.
        let parameters = params![claim.want.subscription_id.0, claim.now_ms, claim.want.messages_max];
        decode::all(&mut statement, parameters, Part::read)?
    };
    for part in parts {
        let budget = claim.budget();
        if budget == 0 {
            break;
        }
        let count = part.span().min(budget);
        if count < part.span() {
            claim.recheck_at(Some(DUE_NOW));
        }
        claim.hand_out_part(part, count)?;
    }
    Ok(())
}
