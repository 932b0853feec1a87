//! Redriving at a rate.

use std::time::Duration;

use tokio::time::Instant;

use super::{DeadLetterSelection, Redriven};
use crate::error::{Error, Result};
use crate::store::Store;

/// How many dead letters are redriven at a time, and how often.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Pace {
    batch: u32,
    every: Duration,
}

impl Pace {
    /// About once a second, so that an operator's redrive makes few audit entries; less often for less than one a
    /// second.
    pub(super) fn new(rate: f64) -> Result<Self> {
        if !rate.is_finite() || rate <= 0.0 || rate > f64::from(u32::MAX) {
            return Err(Error::invalid("rate", "must be above zero, in dead letters a second"));
        }
        let batch = rate.ceil().max(1.0);
        // Checked above: it fits.
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        let count = batch as u32;
        Ok(Pace { batch: count, every: Duration::from_secs_f64((batch / rate).min(MONTH_S)) })
    }

    /// Redrives a selection, oldest first. A message that is buried again meanwhile is newer than all that were there at
    /// the beginning, and those were counted: so it is not redriven twice.
    pub(super) async fn redrive(
        &self,
        store: &dyn Store,
        selection: DeadLetterSelection,
    ) -> Result<Redriven> {
        let mut left = store.count_dead_letters(&selection).await?.redriven;
        let mut done = Redriven::default();
        let mut next = Instant::now();
        loop {
            let batch = u32::try_from(left).unwrap_or(u32::MAX).min(self.batch);
            let step = store.redrive(&selection.clone().at_most(batch)).await?;
            done = Redriven { redriven: done.redriven + step.redriven, gone: step.gone };
            left = left.saturating_sub(step.redriven);
            if left == 0 || step.redriven == 0 {
                return Ok(done);
            }
            next += self.every;
            tokio::time::sleep_until(next).await;
        }
    }
}

/// The longest pause.
const MONTH_S: f64 = 30.0 * 86_400.0;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_and_its_pause_are_the_rate() {
        let pace = |rate| Pace::new(rate).map(|pace| (pace.batch, pace.every)).unwrap();
        assert_eq!(pace(100.0), (100, Duration::from_secs(1)));
        assert_eq!(pace(0.1), (1, Duration::from_secs(10)));
        assert_eq!(pace(1.5), (2, Duration::from_secs_f64(2.0 / 1.5)));
        for wrong in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            assert_eq!(Pace::new(wrong).unwrap_err().kind(), crate::ErrorKind::InvalidInput, "{wrong}");
        }
    }
}
