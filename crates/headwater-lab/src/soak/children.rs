//! The consumer processes of a soak: started from this very program, killed and restarted, and asked to end.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, Command};

use super::check::MemberHistory;
use super::history::{now_us, read_member};
use super::member::STORE_VARIABLE;

/// How one member is started.
#[derive(Clone, Debug)]
pub(crate) struct MemberSpec {
    pub(crate) group: String,
    pub(crate) member: usize,
    /// The topic, if not the soak's own.
    pub(crate) topic: Option<String>,
    /// Further arguments of `soak-member`.
    pub(crate) extra: Vec<String>,
}

/// A running incarnation of a member.
#[derive(Debug)]
struct Running {
    spec: MemberSpec,
    owner: String,
    child: Child,
}

/// All members of a soak.
#[derive(Debug)]
pub(crate) struct Children {
    store: String,
    topic: String,
    directory: PathBuf,
    seed: u64,
    running: Vec<Running>,
    started: u64,
    /// Owners that ended by a signal, and when.
    killed: HashMap<String, u64>,
}

impl Children {
    /// No members yet; histories go to `directory`.
    pub(crate) fn new(store: &str, topic: &str, directory: &Path, seed: u64) -> Self {
        Children {
            store: store.to_owned(),
            topic: topic.to_owned(),
            directory: directory.to_owned(),
            seed,
            running: vec![],
            started: 0,
            killed: HashMap::new(),
        }
    }

    /// Starts a member. It ends when its standard input does, so it never outlives this process.
    pub(crate) fn start(&mut self, spec: MemberSpec) -> Result<()> {
        self.started += 1;
        let owner = format!("{}-m{}-i{}", spec.group, spec.member, self.started);
        let child = Command::new(std::env::current_exe()?)
            .arg("soak-member")
            .args(["--topic", spec.topic.as_ref().unwrap_or(&self.topic)])
            .args(["--group", &spec.group, "--owner", &owner])
            .arg("--history")
            .arg(self.directory.join(format!("{}@{owner}", spec.group)))
            .args(["--seed", &(self.seed ^ self.started).to_string()])
            .args(&spec.extra)
            .env(STORE_VARIABLE, &self.store)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .context("starting a member")?;
        self.running.push(Running { spec, owner, child });
        Ok(())
    }

    /// How many members run.
    pub(crate) fn count(&self) -> usize {
        self.running.len()
    }

    /// Sends a signal to a member.
    pub(crate) fn signal(&self, at: usize, signal: Signal) -> Result<()> {
        let pid = self.running[at].child.id().context("the member has ended")?;
        let pid = Pid::from_raw(i32::try_from(pid)?).context("no process has id 0")?;
        Ok(kill_process(pid, signal)?)
    }

    /// Kills a member for good and starts it again under a new name.
    pub(crate) async fn kill_and_restart(&mut self, at: usize) -> Result<()> {
        let mut gone = self.running.swap_remove(at);
        gone.child.kill().await?;
        self.killed.insert(gone.owner, now_us());
        self.start(gone.spec)
    }

    /// Restarts members that aborted; fails if one ended in any other way. How many there were.
    pub(crate) fn restart_aborted(&mut self) -> Result<usize> {
        let mut restarts = 0;
        for at in (0..self.running.len()).rev() {
            let Some(status) = self.running[at].child.try_wait()? else { continue };
            let gone = self.running.swap_remove(at);
            ensure!(was_aborted(status), "member {} ended by itself: {status}", gone.owner);
            self.killed.insert(gone.owner, now_us());
            self.start(gone.spec)?;
            restarts += 1;
        }
        Ok(restarts)
    }

    /// Fails if a member ended although nobody asked it to.
    pub(crate) fn ensure_alive(&mut self) -> Result<()> {
        for running in &mut self.running {
            if let Some(status) = running.child.try_wait()? {
                anyhow::bail!("member {} ended by itself: {status}", running.owner);
            }
        }
        Ok(())
    }

    /// Waits until a member says a line.
    pub(crate) async fn wait_for_line(&mut self, at: usize, wanted: &str) -> Result<()> {
        let output = self.running[at].child.stdout.take().context("the member's output was taken")?;
        let mut lines = BufReader::new(output).lines();
        while let Some(line) = lines.next_line().await? {
            if line == wanted {
                return Ok(());
            }
        }
        anyhow::bail!("member {} ended without saying {wanted:?}", self.running[at].owner)
    }

    /// Sends a member a line.
    pub(crate) async fn tell(&mut self, at: usize, line: &str) -> Result<()> {
        let input = self.running[at].child.stdin.as_mut().context("the member's input is closed")?;
        input.write_all(format!("{line}\n").as_bytes()).await?;
        Ok(input.flush().await?)
    }

    /// Asks all to end and waits for each.
    pub(crate) async fn stop(&mut self) -> Result<()> {
        for running in &mut self.running {
            drop(running.child.stdin.take());
        }
        for mut running in self.running.drain(..) {
            let ended = tokio::time::timeout(Duration::from_secs(20), running.child.wait()).await;
            let status =
                ended.with_context(|| format!("member {} did not end when asked", running.owner))??;
            ensure!(status.success(), "member {} failed: {status}", running.owner);
        }
        Ok(())
    }

    /// Reads the histories of a group's members, of all their incarnations.
    pub(crate) fn histories(&self, group: &str) -> Result<Vec<MemberHistory>> {
        let mut histories = vec![];
        for entry in std::fs::read_dir(&self.directory)? {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            let Some((of, owner)) = name.split_once('@') else { continue };
            if of == group {
                histories.push(MemberHistory {
                    killed_us: self.killed.get(owner).copied(),
                    events: read_member(&entry.path())?,
                    member: owner.to_owned(),
                });
            }
        }
        Ok(histories)
    }
}

fn was_aborted(status: std::process::ExitStatus) -> bool {
    use std::os::unix::process::ExitStatusExt;
    status.signal() == Some(Signal::ABORT.as_raw())
}
