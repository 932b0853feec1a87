//! Services: what a pipeline process runs, and how it is stopped.

use std::sync::Arc;

use async_trait::async_trait;
use tokio::sync::watch;

use crate::error::Result;
use crate::health::Health;

/// Something that runs until it is asked to stop: a source, a persistence service, an indexer.
///
/// The manager starts, pauses and restarts it by calling [`Service::run`] again: a pause is an orderly stop, so a service has one way to end.
#[async_trait]
pub trait Service: Send + Sync {
    /// Runs until `stop` is requested, or until there is nothing more to do. What is in hand is finished first: flushed and acked, or
    /// left unacked. An error puts the service into the state ERROR.
    async fn run(&self, stop: Stop) -> Result<()>;

    /// What it has done, and its last errors.
    fn health(&self) -> Arc<Health>;
}

/// The request to stop, held by a service.
#[derive(Clone, Debug)]
pub struct Stop(watch::Receiver<bool>);

/// Requests a stop. Dropping it requests one too.
#[derive(Debug)]
pub struct Stopper(watch::Sender<bool>);

impl Stop {
    /// A request that is not made yet, and the handle that makes it.
    pub fn new() -> (Stopper, Stop) {
        let (sender, receiver) = watch::channel(false);
        (Stopper(sender), Stop(receiver))
    }

    /// Whether a stop was requested.
    pub fn is_requested(&self) -> bool {
        *self.0.borrow() || self.0.has_changed().is_err()
    }

    /// Waits until a stop is requested.
    pub async fn requested(&mut self) {
        // An error means that the handle is gone.
        let _ = self.0.wait_for(|stop| *stop).await;
    }
}

impl Stopper {
    /// Requests the stop.
    pub fn stop(&self) {
        self.0.send_replace(true);
    }
}
