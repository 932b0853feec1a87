//! Whether to go on: whoever works in steps asks between them.

use std::time::Duration;

use tokio::sync::watch;

/// The word to go on, or to stop at the next step.
#[derive(Clone, Debug)]
pub(crate) struct Going(Option<watch::Receiver<bool>>);

impl Going {
    /// Nobody will say stop.
    pub(crate) fn always() -> Self {
        Going(None)
    }

    /// While this says true and its sender is there.
    pub(crate) fn while_true(receiver: watch::Receiver<bool>) -> Self {
        Going(Some(receiver))
    }

    pub(crate) fn is_on(&self) -> bool {
        self.0.as_ref().is_none_or(|receiver| *receiver.borrow() && receiver.has_changed().is_ok())
    }

    /// Returns once it is time to stop.
    pub(crate) async fn over(&self) {
        match &self.0 {
            None => std::future::pending().await,
            Some(receiver) => {
                // An error means that the sender is gone, which means the same.
                let _ = receiver.clone().wait_for(|on| !on).await;
            }
        }
    }

    /// Rests; false if it is time to stop.
    pub(crate) async fn rest(&self, duration: Duration) -> bool {
        if !duration.is_zero() {
            tokio::select! {
                () = self.over() => {}
                () = tokio::time::sleep(duration) => {}
            }
        }
        self.is_on()
    }
}
