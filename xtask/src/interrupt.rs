//! Ctrl-C and similar signals set a flag that every wait checks, so that servers are stopped before the process ends.

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context, Result, bail};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

/// The first signal that asked this process to end, if any did.
#[derive(Clone)]
pub(crate) struct Interrupt(Arc<AtomicUsize>);

impl Interrupt {
    /// Takes over SIGINT, SIGTERM and SIGHUP, whose default is to end the process without running destructors.
    pub(crate) fn install() -> Result<Self> {
        let flag = Arc::new(AtomicUsize::new(0));
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            let value = usize::try_from(signal).context("signal numbers are positive")?;
            signal_hook::flag::register_usize(signal, Arc::clone(&flag), value)
                .with_context(|| format!("cannot watch for signal {signal}"))?;
        }
        Ok(Self(flag))
    }

    /// The signal's number.
    pub(crate) fn signal(&self) -> Option<usize> {
        match self.0.load(Ordering::SeqCst) {
            0 => None,
            signal => Some(signal),
        }
    }

    /// An error once a signal has arrived: for use between two steps.
    pub(crate) fn check(&self) -> Result<()> {
        match self.signal() {
            Some(signal) => bail!("interrupted by signal {signal}"),
            None => Ok(()),
        }
    }

    /// The exit code of a process that a signal ended, as shells expect it.
    pub(crate) fn exit_code(&self) -> Option<ExitCode> {
        let signal = u8::try_from(self.signal()?).ok()?;
        Some(ExitCode::from(128 + signal))
    }

    #[cfg(test)]
    pub(crate) fn never() -> Self {
        Self(Arc::default())
    }
}
