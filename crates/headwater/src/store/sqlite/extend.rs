//! Extend: moves the deadlines of live leases.

use rusqlite::params;

use super::fault::Attempt;
use super::millis;
use super::range::DUE_NEVER;
use super::work::Work;
use crate::error::{Error, Result};
use crate::lease::LeaseId;

/// Moves the deadlines to `lease` from now; zero means no deadline.
pub(super) fn extend(
    work: &mut Work<'_>,
    leases: &[LeaseId],
    lease: std::time::Duration,
) -> Attempt<Vec<Result<()>>> {
    let now_ms = work.now_ms();
    let due_at_ms = if lease.is_zero() { DUE_NEVER } else { now_ms.saturating_add(millis(lease)) };
    let mut statement = work.connection.prepare_cached(super::sql!(extend))?;
    let mut results = Vec::with_capacity(leases.len());
    for id in leases {
        let parameters = params![id.token.0, now_ms, id.subscription_id.0, id.owner.as_str(), due_at_ms];
        let extended = statement.execute(parameters)?;
        results.push(if extended > 0 { Ok(()) } else { Err(Error::lease_lost(id.token.0)) });
    }
    Ok(results)
}
