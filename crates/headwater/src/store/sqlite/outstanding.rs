//! Outstanding: the ranges that a subscription has handed out and not done, listed for operators.

use rusqlite::{Connection, params};

use super::decode;
use super::fault::Attempt;
use super::range::{DUE_NOW, Part};
use crate::error::Result;
use crate::lease::LeaseToken;
use crate::name::Owner;
use crate::subscription::{Outstanding, OutstandingState, SubscriptionId};

/// The outstanding ranges of a subscription, oldest due first.
pub(super) fn list(
    connection: &Connection,
    subscription: SubscriptionId,
    limit: u32,
    now_ms: i64,
) -> Attempt<Vec<Outstanding>> {
    let mut statement = connection.prepare_cached(super::sql!(outstanding))?;
    let parts = decode::all(&mut statement, params![subscription.0, limit], Part::read)?;
    Ok(parts.into_iter().map(|part| outstanding_of(part, now_ms)).collect::<Result<_>>()?)
}

pub(super) fn outstanding_of(part: Part, now_ms: i64) -> Result<Outstanding> {
    let held = part.owner.is_some();
    let state = OutstandingState::of(held, part.has_expired(now_ms), part.parked);
    Ok(Outstanding {
        range: part.range(),
        lane: part.lane,
        state,
        token: (state == OutstandingState::Leased).then_some(LeaseToken(part.token)),
        attempts: part.attempts + u32::from(held),
        due_at: if part.due_at_ms == DUE_NOW { None } else { super::deadline(part.due_at_ms) },
        last_error: part.last_error,
        key: part.key,
        suspect: part.suspect,
        owner: part.owner.map(Owner::new).transpose()?,
    })
}
