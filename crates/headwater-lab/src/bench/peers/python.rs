//! The peers from PyPI, each in a Python process that reads commands line by line.
//!
//! They run in a virtual environment created at run time; a process keeps running between rounds so that its import and its
//! file's warm-up are not measured.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;

use super::super::measure::Rate;

/// A driver script and the package it drives.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Package {
    pub(crate) name: &'static str,
    requirement: &'static str,
    script: &'static str,
}

/// A queue on SQLite in pure Python.
pub(crate) const LITEQUEUE: Package =
    Package { name: "litequeue", requirement: "litequeue==0.9", script: include_str!("litequeue.py") };
/// Queues on SQLite with a core in Rust.
pub(crate) const HONKER: Package =
    Package { name: "honker", requirement: "honker==0.2.4", script: include_str!("honker.py") };

/// Workflows of durable steps, on SQLite or PostgreSQL.
pub(crate) const DBOS: Package =
    Package { name: "dbos", requirement: "dbos==3.3.0", script: include_str!("dbos.py") };

/// A running driver.
#[derive(Debug)]
pub(crate) struct PythonPeer {
    child: Child,
    commands: ChildStdin,
    answers: BufReader<ChildStdout>,
    /// The package's and its SQLite's version.
    pub(crate) version: String,
}

#[derive(Deserialize)]
struct Answer {
    #[serde(default)]
    messages: u64,
    #[serde(default)]
    seconds: f64,
    #[serde(default)]
    version: String,
    error: Option<String>,
}

impl PythonPeer {
    /// Installs the package if it is missing and starts its driver on a fresh file in `directory`.
    pub(crate) fn start(package: Package, work: &Path, directory: &Path) -> Result<Self> {
        std::fs::create_dir_all(directory)?;
        Self::start_on(package, work, directory.as_os_str())
    }

    /// The same on a place that the driver understands.
    pub(crate) fn start_on(package: Package, work: &Path, place: &OsStr) -> Result<Self> {
        let python = environment(package, work)?;
        let mut child = Command::new(python)
            .args(["-c", package.script])
            .arg(place)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("starting the driver")?;
        let commands = child.stdin.take().context("the driver has no input")?;
        let answers = BufReader::new(child.stdout.take().context("the driver has no output")?);
        let mut peer = PythonPeer { child, commands, answers, version: String::new() };
        peer.version = peer.ask("version")?.version;
        Ok(peer)
    }

    /// Fills the peer's queue.
    pub(crate) fn fill(&mut self, messages: usize) -> Result<()> {
        self.ask(&format!("fill {messages}")).map(drop)
    }

    /// Runs one kind of work for about this long.
    pub(crate) fn run(&mut self, work: &str, during: Duration) -> Result<Rate> {
        let answer = self.ask(&format!("{work} {}", during.as_secs_f64()))?;
        ensure!(answer.messages > 0, "{work} did nothing");
        Ok(Rate { messages: answer.messages, elapsed: Duration::from_secs_f64(answer.seconds) })
    }

    fn ask(&mut self, command: &str) -> Result<Answer> {
        writeln!(self.commands, "{command}").context("the driver has ended")?;
        self.commands.flush()?;
        let mut line = String::new();
        self.answers.read_line(&mut line)?;
        let answer: Answer = serde_json::from_str(&line)
            .with_context(|| format!("unexpected line of the driver: {line:?}"))?;
        match answer.error {
            Some(error) => bail!("{command}: {error}"),
            None => Ok(answer),
        }
    }
}

impl Drop for PythonPeer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The interpreter of a virtual environment that has the package.
fn environment(package: Package, work: &Path) -> Result<PathBuf> {
    let home = work.join("python").join(package.name);
    let python = home.join("bin/python");
    let installed = home.join("installed");
    if std::fs::read_to_string(&installed).is_ok_and(|requirement| requirement == package.requirement) {
        return Ok(python);
    }
    eprintln!("  installing {}", package.requirement);
    run(Command::new("python3").args(["-m", "venv"]).arg(&home)).context("python3 -m venv")?;
    run(Command::new(&python).args(["-m", "pip", "install", "--quiet", package.requirement]))
        .context("pip install")?;
    std::fs::write(&installed, package.requirement)?;
    Ok(python)
}

fn run(command: &mut Command) -> Result<()> {
    let output = command.stdin(Stdio::null()).output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{}", said.lines().last().unwrap_or("no reason given"));
    Ok(())
}
