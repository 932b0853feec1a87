//! How calls reach the threads of a store, apart from single writes: reads, and work in steps.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rusqlite::Connection;
use tokio::sync::oneshot;

use super::SqliteStore;
use super::fault::Attempt;
use super::work::{Kind, Work};
use crate::error::{Error, ErrorKind, Result};

/// The pause after a step: longer than the pause between two tries for the lock.
const REST_MIN: Duration = Duration::from_millis(3);
const REST_MAX: Duration = Duration::from_millis(100);

impl SqliteStore {
    /// Runs a step until it returns that no more is left.
    pub(super) async fn in_steps(
        &self,
        kind: Kind,
        step: impl FnMut(&mut Work<'_>) -> Attempt<bool> + Clone + Send + 'static,
    ) -> Result<()> {
        loop {
            let began = Instant::now();
            if !self.write(kind, step.clone()).await? {
                return Ok(());
            }
            Self::rest(began).await;
        }
    }

    /// Pauses after a step for as long as the step took. Otherwise the next step takes the lock at once, and other
    /// processes, which try for it every 1 to 2 ms, rarely hit the gap.
    pub(super) async fn rest(began: Instant) {
        tokio::time::sleep(began.elapsed().clamp(REST_MIN, REST_MAX)).await;
    }

    /// Runs a read on a reader.
    pub(super) async fn read<T: Send + 'static>(
        &self,
        mut run: impl FnMut(&Connection) -> Attempt<T> + Send + 'static,
    ) -> Result<T> {
        let Some(readers) = &self.readers else {
            return self.write(Kind::Read, move |work| run(work.connection)).await;
        };
        self.trust.check_for_read()?;
        let (reply, answer) = oneshot::channel();
        let (name, trust) = (self.location.name.clone(), Arc::clone(&self.trust));
        let queued = readers
            .push(move |connection| {
                if !reply.is_closed() {
                    let read = run(connection).inspect_err(|fault| fault.inspect(|error| trust.note(error)));
                    // A caller that has stopped waiting is not an error of the reader.
                    let _ = reply.send(read.map_err(|fault| fault.into_error(&name)));
                }
            })
            .await;
        if !queued {
            return Err(self.closed());
        }
        let read = answer.await.unwrap_or_else(|_| {
            Err(Error::new(ErrorKind::Database, format!("a read panicked: {}", self.location.name)))
        });
        match &self.read_only {
            Some(Some(still)) => still.check().and(read),
            _ => read,
        }
    }
}
