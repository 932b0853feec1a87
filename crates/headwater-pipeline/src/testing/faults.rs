//! Errors on demand.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::lock;
use crate::error::{Error, Result};

/// What a call does before it does its work: fail, or take time. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Faults(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    calls: u64,
    times: u64,
    error: Option<Error>,
    takes: Duration,
}

impl Faults {
    /// The next calls fail, so many of them.
    pub fn fail(&self, times: u64, error: Error) {
        let mut state = lock(&self.0);
        (state.times, state.error) = (times, Some(error));
    }

    /// All calls fail until [`Faults::clear`].
    pub fn fail_always(&self, error: Error) {
        self.fail(u64::MAX, error);
    }

    /// Calls fail no more.
    pub fn clear(&self) {
        lock(&self.0).times = 0;
    }

    /// Calls take so long from now on.
    pub fn take(&self, duration: Duration) {
        lock(&self.0).takes = duration;
    }

    /// Calls so far, failed ones too.
    pub fn calls(&self) -> u64 {
        lock(&self.0).calls
    }

    /// For a fake: called at the start of each call.
    pub async fn meet(&self) -> Result<()> {
        let (takes, error) = {
            let mut state = lock(&self.0);
            state.calls += 1;
            let fails = state.times > 0;
            state.times = state.times.saturating_sub(1);
            (state.takes, state.error.clone().filter(|_| fails))
        };
        if !takes.is_zero() {
            tokio::time::sleep(takes).await;
        }
        error.map_or(Ok(()), Err)
    }
}
