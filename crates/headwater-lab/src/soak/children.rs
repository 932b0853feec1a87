//! The consumer processes of a soak: started from this same program, killed and restarted, and asked to end.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use rustix::process::Signal;

use super::check::MemberHistory;
use super::history::{now_us, read_member};
use super::member::MemberJob;
use crate::check::{Job, Process};

/// A running incarnation of a member.
#[derive(Debug)]
struct Running {
    member: usize,
    job: MemberJob,
    process: Process,
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

    /// Starts a member of the job's group; the topic is the soak's own unless the job has one.
    pub(crate) fn start(&mut self, member: usize, mut job: MemberJob) -> Result<()> {
        self.started += 1;
        job.owner = format!("{}-m{member}-i{}", job.group, self.started);
        job.history = self.directory.join(format!("{}@{}", job.group, job.owner));
        job.seed = self.seed ^ self.started;
        if job.topic.is_empty() {
            job.topic.clone_from(&self.topic);
        }
        let process = Process::start(&self.store, &Job::Member(job.clone()), |_| {})?;
        self.running.push(Running { member, job, process });
        Ok(())
    }

    /// The process of a member.
    pub(crate) fn process(&mut self, at: usize) -> &mut Process {
        &mut self.running[at].process
    }

    /// How many members run.
    pub(crate) fn count(&self) -> usize {
        self.running.len()
    }

    /// Kills a member and starts it again under a new name.
    pub(crate) async fn kill_and_restart(&mut self, at: usize) -> Result<()> {
        let gone = self.running.swap_remove(at);
        gone.process.kill().await?;
        self.killed.insert(gone.job.owner.clone(), now_us());
        self.start(gone.member, gone.job)
    }

    /// Restarts members that aborted and returns how many there were; fails if one ended in any other way.
    pub(crate) fn restart_aborted(&mut self) -> Result<usize> {
        let mut restarts = 0;
        for at in (0..self.running.len()).rev() {
            let Some(status) = self.running[at].process.status()? else { continue };
            let gone = self.running.swap_remove(at);
            ensure!(was_aborted(status), "member {} ended by itself: {status}", gone.job.owner);
            self.killed.insert(gone.job.owner.clone(), now_us());
            self.start(gone.member, gone.job)?;
            restarts += 1;
        }
        Ok(restarts)
    }

    /// Fails if a member ended without being asked to.
    pub(crate) fn ensure_alive(&mut self) -> Result<()> {
        self.running.iter_mut().try_for_each(|running| {
            running.process.ensure_alive().with_context(|| format!("member {}", running.job.owner))
        })
    }

    /// Asks all to end and waits for each.
    pub(crate) async fn stop(&mut self) -> Result<()> {
        self.running.iter_mut().for_each(|running| running.process.close_input());
        for running in self.running.drain(..) {
            running.process.stop().await.with_context(|| format!("member {}", running.job.owner))?;
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
