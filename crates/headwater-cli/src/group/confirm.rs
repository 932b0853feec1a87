//! Nothing that cannot be taken back happens by a slip: a dry run first, and a yes.

use std::io::{BufRead, IsTerminal, Write};

use anyhow::{Result, bail};

use crate::args::Meant;
use crate::output::Usage;

/// Refuses where nobody can be asked and nobody said that it is meant.
pub(super) fn needs_a_word(command: &str, meant: Meant) -> Result<()> {
    if meant.dry_run || meant.yes || is_interactive() {
        return Ok(());
    }
    let said = format!(
        "nobody is here to be asked: run `headwater {command} ... --dry-run` to see what would happen, \
         then with --yes to do it; nothing was changed"
    );
    Err(Usage(said).into())
}

/// Asks whoever has seen the dry run.
pub(super) fn ask(question: &str) -> Result<()> {
    eprint!("{question} [y/N] ");
    std::io::stderr().flush()?;
    let mut answer = String::new();
    std::io::stdin().lock().read_line(&mut answer)?;
    if !matches!(answer.trim(), "y" | "Y" | "yes") {
        bail!("nothing was changed");
    }
    Ok(())
}

fn is_interactive() -> bool {
    std::io::stdin().is_terminal() && std::io::stderr().is_terminal()
}
