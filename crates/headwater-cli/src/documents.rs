//! `headwater completions` and `headwater man`: what shells and `man` know of the command line.

use std::process::ExitCode;

use anyhow::{Context, Result};

use crate::args::{self, CompletionsArgs, ManArgs};
use crate::output::note;

pub(crate) fn completions(asked: &CompletionsArgs) -> Result<ExitCode> {
    let mut script = Vec::new();
    clap_complete::generate(asked.shell, &mut args::command(), "headwater", &mut script);
    std::io::Write::write_all(&mut std::io::stdout(), &script)?;
    Ok(ExitCode::SUCCESS)
}

/// One page for the command and one for each of its commands.
pub(crate) fn man(asked: &ManArgs) -> Result<ExitCode> {
    let folder = asked.dir.display();
    std::fs::create_dir_all(&asked.dir).with_context(|| format!("creating {folder}"))?;
    clap_mangen::generate_to(args::command(), &asked.dir).with_context(|| format!("writing to {folder}"))?;
    note(format_args!("man pages written to {folder}; read one with `man {folder}/headwater.1`"));
    Ok(ExitCode::SUCCESS)
}
