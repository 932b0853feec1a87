//! Irreversible actions need a confirmation, and show a dry run first.

use std::io::{BufRead, IsTerminal, Write};

use anyhow::{Result, bail};

use crate::args::Confirmation;
use crate::output::Usage;

/// Refuses if the command is neither confirmed nor on a terminal where it could ask.
pub(crate) fn require(command: &str, confirmation: Confirmation) -> Result<()> {
    if confirmation.dry_run || confirmation.yes || is_interactive() {
        return Ok(());
    }
    let refused = format!(
        "no terminal to confirm on: run `headwater {command} ... --dry-run` to see what would happen, \
         then with --yes to do it; nothing was changed"
    );
    Err(Usage(refused).into())
}

/// Asks for confirmation, after the dry run was shown.
pub(crate) fn ask(question: &str) -> Result<()> {
    eprint!("{question} [y/N] ");
    std::io::stderr().flush()?;
    let mut answer = String::new();
    std::io::stdin().lock().read_line(&mut answer)?;
    if !matches!(answer.trim(), "y" | "Y" | "yes") {
        bail!("nothing was changed");
    }
    Ok(())
}

pub(crate) fn is_interactive() -> bool {
    std::io::stdin().is_terminal() && std::io::stderr().is_terminal()
}
