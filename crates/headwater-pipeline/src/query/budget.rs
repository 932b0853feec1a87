//! The memory that requests use together.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::problem::{Answer, Problem};
use crate::cells::Cell;
use crate::index::StoredTick;

/// `query_bytes_max` without configuration.
pub const QUERY_BYTES_MAX_DEFAULT: u64 = 256 * 1024 * 1024;
/// The semaphore counts in these, because it takes 32-bit numbers only.
const UNIT_BYTES: u64 = 1024;
/// Decoding makes about so many bytes of one: a cell has 40, and 5 or more in packed columns.
const DECODED_FACTOR: u64 = 8;

/// So many bytes at once. A request that does not fit is refused at once and not queued: the client decides when to ask again.
#[derive(Debug)]
pub(super) struct Budget {
    units: Arc<Semaphore>,
    bytes_max: u64,
}

/// A part of the budget, given back when it is dropped.
#[derive(Debug)]
pub(super) struct Share(Vec<OwnedSemaphorePermit>);

impl Budget {
    pub(super) fn new(bytes_max: u64) -> Self {
        let units = usize::try_from(bytes_max / UNIT_BYTES).unwrap_or(usize::MAX).min(Semaphore::MAX_PERMITS);
        Budget { units: Arc::new(Semaphore::new(units)), bytes_max }
    }

    /// The most bytes that one blob may decompress to.
    pub(super) fn bytes_max(&self) -> u64 {
        self.bytes_max
    }

    /// Room for decoding ticks.
    pub(super) fn for_decoding(&self, ticks: &[&StoredTick]) -> Answer<Share> {
        let mut bytes: u64 = 0;
        for tick in ticks {
            bytes = bytes.saturating_add(tick.raw_bytes()?.saturating_mul(DECODED_FACTOR));
        }
        self.take(bytes).map(|permit| Share(vec![permit]))
    }

    /// Room for an answer with cells, beside what the share has already.
    pub(super) fn for_answer(&self, share: &mut Share, cells: &[Cell], bytes_per_cell: u64) -> Answer<()> {
        share.0.push(self.take((cells.len() as u64).saturating_mul(bytes_per_cell))?);
        Ok(())
    }

    fn take(&self, bytes: u64) -> Answer<OwnedSemaphorePermit> {
        let refused = |why: &str| {
            let max = self.bytes_max;
            Problem::unavailable(format!("{bytes} bytes are needed, query_bytes_max is {max}: {why}"))
        };
        if bytes > self.bytes_max {
            return Err(refused("ask for less, or raise it"));
        }
        let units = u32::try_from(bytes.div_ceil(UNIT_BYTES)).map_err(|_| refused("ask for less"))?;
        let free = Arc::clone(&self.units).try_acquire_many_owned(units);
        free.map_err(|_| refused("other requests use it at the moment"))
    }
}

#[cfg(test)]
mod tests {
    use axum::response::IntoResponse;

    use super::*;

    #[test]
    fn a_request_beyond_the_budget_is_refused_until_others_are_done() {
        let budget = Budget::new(10 * UNIT_BYTES);
        let first = budget.take(8 * UNIT_BYTES).unwrap();
        let second = budget.take(3 * UNIT_BYTES).unwrap_err().into_response();
        assert_eq!(second.status(), 503);
        assert_eq!(second.headers()["retry-after"], "1");
        drop(first);
        drop(budget.take(3 * UNIT_BYTES).unwrap());
        assert_eq!(budget.take(11 * UNIT_BYTES).unwrap_err().into_response().status(), 503);
    }
}
