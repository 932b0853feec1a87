//! Graceful shutdown on signals.

use std::sync::Arc;

use anyhow::Result;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

use crate::output::note;

/// Whether a shutdown was requested, and how often. Its clones share the requests.
#[derive(Clone)]
pub(crate) struct Stop {
    requests: Arc<watch::Sender<usize>>,
    requested: watch::Receiver<usize>,
}

impl Stop {
    /// The first SIGTERM or SIGINT requests a graceful shutdown and prints the notice, if there is one. That takes as long as
    /// the current work, so a second signal exits at once with 1.
    pub(crate) fn on_signals(notice: &'static str) -> Result<Self> {
        Stop::in_steps([notice])
    }

    /// Each SIGTERM or SIGINT is a further request and prints its notice; one more exits at once with 1.
    pub(crate) fn in_steps<const N: usize>(notices: [&'static str; N]) -> Result<Self> {
        let (mut terminate, mut interrupt) =
            (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
        let (requests, requested) = watch::channel(0);
        let stop = Stop { requests: Arc::new(requests), requested };
        let requests = Arc::clone(&stop.requests);
        // Ends with the process. Its own task: the task that prints may block on its output.
        tokio::spawn(async move {
            loop {
                tokio::select! {
                    _ = terminate.recv() => {}
                    _ = interrupt.recv() => {}
                }
                let Some(notice) = notices.get(*requests.borrow()) else { std::process::exit(1) };
                requests.send_modify(|count| *count += 1);
                if !notice.is_empty() {
                    note(notice);
                }
            }
        });
        Ok(stop)
    }

    /// Requests a graceful shutdown, as the first signal does.
    pub(crate) fn ask(&self) {
        self.requests.send_if_modified(|count| {
            let is_first = *count == 0;
            *count = (*count).max(1);
            is_first
        });
    }

    pub(crate) fn is_asked(&self) -> bool {
        *self.requested.borrow() > 0
    }

    pub(crate) async fn asked(&mut self) {
        self.asked_times(1).await;
    }

    /// Completes once this many requests were made.
    pub(crate) async fn asked_times(&mut self, times: usize) {
        // The sender lives as long as this does.
        let _ = self.requested.wait_for(|count| *count >= times).await;
    }
}
