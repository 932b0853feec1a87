//! The processes of the demo: each serves one group. They end when the demo closes their standard input, so none is left
//! behind even if the demo itself is killed.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result};
use tokio::process::{Child, ChildStdin, Command};

/// How long a process may take to shut down gracefully before it is killed.
const END_WITHIN: Duration = Duration::from_secs(10);
/// How many of the last lines of a process's log are printed after a failure.
const LOG_LINES_MAX: usize = 5;

/// The processes, and the store they share.
pub(super) struct Cast {
    folder: PathBuf,
    program: PathBuf,
    workers: Vec<Worker>,
}

struct Worker {
    group: String,
    /// Killed when dropped.
    child: Child,
    /// Closing it shuts the process down gracefully.
    stdin: ChildStdin,
}

impl Cast {
    pub(super) fn new(folder: &Path) -> Result<Self> {
        let program = std::env::current_exe().context("finding the demo's own program")?;
        Ok(Cast { folder: folder.to_owned(), program, workers: Vec::new() })
    }

    pub(super) fn file(&self) -> PathBuf {
        self.folder.join("demo.db")
    }

    pub(super) fn url(&self) -> String {
        format!("sqlite:{}", self.file().display())
    }

    /// Starts a process that serves a group; returns its id.
    pub(super) fn start(&mut self, group: &str, mended: bool) -> Result<u32> {
        let log = File::options().create(true).append(true).open(self.log_of(group))?;
        let mut command = Command::new(&self.program);
        command.arg("demo-worker").arg(self.file()).arg(group);
        if mended {
            command.arg("--mended");
        }
        // In a process group of its own: Ctrl-C reaches only the demo, which then shuts its processes down.
        command.process_group(0).kill_on_drop(true);
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(log);
        let mut child = command.spawn().context("starting a process of the demo")?;
        let stdin = child.stdin.take().expect("it was set to piped");
        let id = child.id().expect("it was not waited for");
        self.workers.push(Worker { group: group.to_owned(), child, stdin });
        Ok(id)
    }

    /// Ends the process of a group with SIGKILL: no shutdown, no ack, no last heartbeat.
    pub(super) async fn kill(&mut self, group: &str) -> Result<()> {
        let mut worker = self.take(group);
        worker.child.kill().await.with_context(|| format!("killing the process of {group}"))
    }

    /// Shuts the process of a group down gracefully.
    pub(super) async fn retire(&mut self, group: &str) {
        let worker = self.take(group);
        end(worker).await;
    }

    pub(super) async fn end_all(&mut self) {
        for worker in std::mem::take(&mut self.workers) {
            end(worker).await;
        }
    }

    /// Prints the last log lines of each process, to show why the demo failed.
    pub(super) fn tell_troubles(&self) {
        for worker in &self.workers {
            let log = std::fs::read_to_string(self.log_of(&worker.group)).unwrap_or_default();
            let lines: Vec<&str> = log.lines().collect();
            for line in &lines[lines.len().saturating_sub(LOG_LINES_MAX)..] {
                eprintln!("{}: {line}", worker.group);
            }
        }
    }

    fn log_of(&self, group: &str) -> PathBuf {
        self.folder.join(format!("{group}.log"))
    }

    fn take(&mut self, group: &str) -> Worker {
        let at = self.workers.iter().position(|worker| worker.group == group);
        self.workers.remove(at.expect("the demo names only groups that have a process"))
    }
}

async fn end(Worker { group, mut child, stdin }: Worker) {
    drop(stdin);
    if tokio::time::timeout(END_WITHIN, child.wait()).await.is_err() {
        eprintln!("the process of {group} does not end and is killed");
        // It fails only if the process has ended already.
        let _ = child.kill().await;
    }
}
