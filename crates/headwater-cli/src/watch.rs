//! `--watch`: a list again and again, until stopped.

use std::io::IsTerminal;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;

use crate::args::{Args, Output};
use crate::output;
use crate::stop::Stop;

/// Runs a listing command every so often. It opens the store each time, so a list also outlives a failover.
pub(crate) async fn repeat(args: &Args, every: Duration) -> Result<ExitCode> {
    let mut stop = Stop::on_signals("")?;
    let on_screen = args.global.output == Output::Table && std::io::stdout().is_terminal();
    loop {
        if on_screen {
            output::clear_before_next();
        }
        tokio::select! {
            shown = crate::act(args) => shown?,
            () = stop.asked() => return Ok(ExitCode::SUCCESS),
        };
        tokio::select! {
            () = tokio::time::sleep(every) => {}
            () = stop.asked() => return Ok(ExitCode::SUCCESS),
        }
    }
}
