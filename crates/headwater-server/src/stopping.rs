//! The end of a server: requests that wait or stream learn of it, and its end waits for connections that were upgraded.

use std::sync::Arc;

use tokio::sync::watch;

/// Whether the server stops, and how many tasks outlive their requests.
#[derive(Clone)]
pub(crate) struct Stopping {
    stopped: Arc<watch::Sender<bool>>,
    guests: Arc<watch::Sender<usize>>,
}

impl Default for Stopping {
    fn default() -> Self {
        Stopping { stopped: Arc::new(watch::Sender::new(false)), guests: Arc::new(watch::Sender::new(0)) }
    }
}

impl Stopping {
    /// Ends what waits.
    pub(crate) fn stop(&self) {
        self.stopped.send_replace(true);
    }

    pub(crate) fn is_stopping(&self) -> bool {
        *self.stopped.borrow()
    }

    /// Completes when the server stops.
    pub(crate) async fn stopped(&self) {
        // The sender is in `self`: it cannot be gone.
        let _ = self.stopped.subscribe().wait_for(|stopped| *stopped).await;
    }

    /// Counts a task that is not part of a connection any more, until the result is dropped.
    pub(crate) fn guest(&self) -> Guest {
        self.guests.send_modify(|guests| *guests += 1);
        Guest(Arc::clone(&self.guests))
    }

    /// Completes when no such task is left.
    pub(crate) async fn guests_gone(&self) {
        let _ = self.guests.subscribe().wait_for(|guests| *guests == 0).await;
    }
}

/// A task that the end of the server waits for.
pub(crate) struct Guest(Arc<watch::Sender<usize>>);

impl Drop for Guest {
    fn drop(&mut self) {
        self.0.send_modify(|guests| *guests -= 1);
    }
}
