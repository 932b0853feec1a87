//! Whether to continue: work in steps checks it between them.

use std::time::Duration;

use tokio::sync::watch;

/// A signal to stop at the next step.
#[derive(Clone, Debug)]
pub(crate) struct StopSignal(Option<watch::Receiver<bool>>);

impl StopSignal {
    /// Never stops.
    pub(crate) fn never() -> Self {
        StopSignal(None)
    }

    /// Continues while the value is true and its sender exists.
    pub(crate) fn while_true(receiver: watch::Receiver<bool>) -> Self {
        StopSignal(Some(receiver))
    }

    pub(crate) fn may_continue(&self) -> bool {
        self.0.as_ref().is_none_or(|receiver| *receiver.borrow() && receiver.has_changed().is_ok())
    }

    /// Returns once it is time to stop.
    pub(crate) async fn stopped(&self) {
        match &self.0 {
            None => std::future::pending().await,
            Some(receiver) => {
                // An error means that the sender was dropped, which also means stop.
                let _ = receiver.clone().wait_for(|on| !on).await;
            }
        }
    }

    /// Pauses; false if it is time to stop.
    pub(crate) async fn rest(&self, duration: Duration) -> bool {
        if !duration.is_zero() {
            tokio::select! {
                () = self.stopped() => {}
                () = tokio::time::sleep(duration) => {}
            }
        }
        self.may_continue()
    }
}
