//! A service that runs in a test.

use std::sync::Arc;

use headwater_pipeline::Result;
use headwater_pipeline::health::HealthSnapshot;
use headwater_pipeline::service::{Service, Stop, Stopper};
use tokio::task::JoinHandle;

pub(crate) struct Running {
    service: Arc<dyn Service>,
    stopper: Stopper,
    task: JoinHandle<Result<()>>,
}

/// Starts a service in a task.
pub(crate) fn start(service: impl Service + 'static) -> Running {
    let service: Arc<dyn Service> = Arc::new(service);
    let (stopper, stop) = Stop::new();
    let task = tokio::spawn({
        let service = Arc::clone(&service);
        async move { service.run(stop).await }
    });
    Running { service, stopper, task }
}

impl Running {
    /// Stops it in an orderly way.
    pub(crate) async fn stop(self) -> Result<()> {
        self.stopper.stop();
        self.ended().await
    }

    /// Waits until it ends by itself.
    pub(crate) async fn ended(self) -> Result<()> {
        self.task.await.expect("no panic")
    }

    /// Ends it in the middle of whatever it does.
    pub(crate) async fn kill(self) {
        self.task.abort();
        assert!(self.task.await.expect_err("aborted").is_cancelled());
    }

    pub(crate) fn health(&self) -> HealthSnapshot {
        self.service.health().snapshot()
    }
}
