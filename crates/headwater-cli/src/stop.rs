//! Graceful shutdown on signals.

use std::io::Write;

use anyhow::Result;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

/// Whether a shutdown was requested.
pub(crate) struct Stop(watch::Receiver<bool>);

impl Stop {
    /// The first SIGTERM or SIGINT requests a graceful shutdown and prints the notice. That takes as long as the current
    /// work, so a second signal exits at once with 1.
    pub(crate) fn on_signals(notice: &'static str) -> Result<Self> {
        let (mut terminate, mut interrupt) =
            (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
        let (request, requested) = watch::channel(false);
        // Ends with the process. Its own task: the task that prints may block on its output.
        tokio::spawn(async move {
            loop {
                tokio::select! {
                    _ = terminate.recv() => {}
                    _ = interrupt.recv() => {}
                }
                if request.send_replace(true) {
                    std::process::exit(1);
                }
                // Not `eprintln!`: it panics when the other end of stderr is closed.
                let _ = writeln!(std::io::stderr(), "{notice}");
            }
        });
        Ok(Stop(requested))
    }

    pub(crate) fn is_asked(&self) -> bool {
        *self.0.borrow()
    }

    pub(crate) async fn asked(&mut self) {
        // The sender lives as long as the process.
        let _ = self.0.wait_for(|asked| *asked).await;
    }
}
