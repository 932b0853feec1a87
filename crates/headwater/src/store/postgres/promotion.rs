//! How many due messages one statement promotes: fewer after a statement that timed out.

use std::sync::atomic::{AtomicI32, Ordering};

use crate::error::{ErrorKind, Result};
use crate::limits::PROMOTE_MESSAGES_MAX;

/// The budget of a promotion, in messages; the schema derives the bytes from it. A statement that takes too long is rolled
/// back with all it promoted, and with the same budget this would repeat for ever: so the budget is halved, down to one
/// message. It is doubled after a round of maintenance that succeeds, because that promotes for all topics; a claim may
/// have promoted nothing.
pub(super) struct Promotion(AtomicI32);

impl Default for Promotion {
    fn default() -> Self {
        Promotion(AtomicI32::new(PROMOTE_MESSAGES_MAX))
    }
}

impl Promotion {
    pub(super) fn messages_max(&self) -> i32 {
        self.0.load(Ordering::Relaxed)
    }

    /// Records the result of a statement that may promote. Two calls at once may lose one update: the next call corrects that.
    pub(super) fn note<T>(&self, outcome: &Result<T>) {
        if let Err(error) = outcome
            && matches!(error.kind(), ErrorKind::Busy | ErrorKind::Unavailable)
        {
            self.0.store((self.messages_max() / 2).max(1), Ordering::Relaxed);
        }
    }

    /// Records that a round of maintenance succeeded with this budget.
    pub(super) fn ended(&self) {
        let before = self.messages_max();
        if before < PROMOTE_MESSAGES_MAX {
            self.0.store(before.saturating_mul(2).min(PROMOTE_MESSAGES_MAX), Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Error;

    #[test]
    fn a_failure_halves_the_budget_and_maintenance_restores_it() {
        let promotion = Promotion::default();
        let busy = || Err::<(), _>(Error::new(ErrorKind::Busy, "statement timeout"));
        promotion.note(&busy());
        assert_eq!(promotion.messages_max(), PROMOTE_MESSAGES_MAX / 2);
        for _ in 0..40 {
            promotion.note(&busy());
        }
        assert_eq!(promotion.messages_max(), 1, "never below one");
        promotion.note(&Err::<(), _>(Error::new(ErrorKind::PermissionDenied, "no")));
        assert_eq!(promotion.messages_max(), 1, "the failure has nothing to do with the size");
        promotion.note(&Ok(()));
        assert_eq!(promotion.messages_max(), 1, "a claim may have promoted nothing");
        for _ in 0..40 {
            promotion.ended();
        }
        assert_eq!(promotion.messages_max(), PROMOTE_MESSAGES_MAX);
    }
}
