//! Programs and libraries a check needs: found, or reported as missing.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

/// Runs SQLite's own shell on a file: a foreign process, as an operator would start it.
pub(super) fn sqlite3(file: &Path, command: &str) -> Result<()> {
    let output = Command::new("sqlite3").arg("-cmd").arg(".timeout 5000").arg(file).arg(command).output();
    let output = output.context("sqlite3 is not installed (Debian: apt-get install sqlite3)")?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success() && said.is_empty(), "sqlite3 {command}: {}", said.trim());
    Ok(())
}

/// The library that fakes the clock of a process.
pub(super) fn libfaketime() -> Result<PathBuf> {
    const NAME: &str = "libfaketimeMT.so.1";
    let triple = format!("{}-linux-gnu", std::env::consts::ARCH);
    let directories = ["/usr/lib", "/usr/lib64", "/usr/local/lib"].map(PathBuf::from);
    let places = directories.iter().flat_map(|at| [at.join("faketime"), at.join(&triple).join("faketime")]);
    places
        .map(|directory| directory.join(NAME))
        .find(|library| library.exists())
        .with_context(|| format!("{NAME} is not installed (Debian: apt-get install faketime)"))
}

/// Compiles a C source into a library to be preloaded.
pub(super) fn shared_library(source: &str, directory: &Path, name: &str) -> Result<PathBuf> {
    let (from, to) = (directory.join(format!("{name}.c")), directory.join(format!("{name}.so")));
    std::fs::write(&from, source)?;
    let output =
        Command::new("cc").args(["-shared", "-fPIC", "-O1", "-o"]).arg(&to).arg(&from).arg("-ldl").output();
    let output = output.context("cc is not installed (Debian: apt-get install gcc)")?;
    ensure!(output.status.success(), "cc: {}", String::from_utf8_lossy(&output.stderr));
    Ok(to)
}
