//! Ending in order when somebody wants it.

use std::io::Write;

use anyhow::Result;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

/// Whether somebody wants this to end.
pub(crate) struct Stop(watch::Receiver<bool>);

impl Stop {
    /// The first SIGTERM or SIGINT asks for an end in order, and says so. That takes as long as what is under way, so a
    /// second one ends at once with 1.
    pub(crate) fn on_signals(said: &'static str) -> Result<Self> {
        let (mut terminate, mut interrupt) =
            (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
        let (tell, told) = watch::channel(false);
        // Ends with the process; printing blocks, so it must not be the one that listens.
        tokio::spawn(async move {
            loop {
                tokio::select! {
                    _ = terminate.recv() => {}
                    _ = interrupt.recv() => {}
                }
                if tell.send_replace(true) {
                    std::process::exit(1);
                }
                // Not `eprintln!`: it panics when the other end of stderr is closed.
                let _ = writeln!(std::io::stderr(), "{said}");
            }
        });
        Ok(Stop(told))
    }

    pub(crate) fn is_asked(&self) -> bool {
        *self.0.borrow()
    }

    pub(crate) async fn asked(&mut self) {
        // The sender lives as long as the process.
        let _ = self.0.wait_for(|asked| *asked).await;
    }
}
