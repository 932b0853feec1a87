//! The services of a drill: started from this same program, killed, started again, until each has ended by itself.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::super::PipelineJob;
use super::super::services::{DIRECTORY_VARIABLE, Pipeline};
use crate::check::{Job, Process};

const SOURCE: &str = "source";
const SERVICES: [&str; 9] = [
    SOURCE,
    "persistence-1",
    "persistence-2",
    "environment-1",
    "environment-2",
    "organism",
    "metadata-persistence",
    "metadata-indexer",
    "query",
];
/// It never ends by itself.
const ENDLESS: &str = "query";
/// A service that fails more often than this does not work at all.
const FAILURES_MAX: usize = 20;

/// All services.
pub(super) struct Crew {
    store: String,
    directory: String,
    config: PathBuf,
    members: Vec<Member>,
    failures: Vec<String>,
}

struct Member {
    service: &'static str,
    /// `None` once it has ended by itself, or after a kill.
    process: Option<Process>,
    is_done: bool,
    kills: u64,
}

impl Crew {
    pub(super) fn start(pipeline: &Pipeline, store: &str, directory: &Path) -> Result<Self> {
        let config = directory.join("pipeline.toml");
        std::fs::write(&config, pipeline.text())?;
        let member = |service| Member { service, process: None, is_done: false, kills: 0 };
        let mut crew = Crew {
            store: store.to_owned(),
            directory: directory.to_str().context("the directory is not text")?.to_owned(),
            config,
            members: SERVICES.into_iter().map(member).collect(),
            failures: Vec::new(),
        };
        crew.tend(false)?;
        Ok(crew)
    }

    /// Starts what does not run and is not done. Once the run has ended its source has nothing to do.
    pub(super) fn tend(&mut self, has_ended: bool) -> Result<()> {
        for member in &mut self.members {
            if let Some(process) = &mut member.process
                && let Some(status) = process.status()?
            {
                member.process = None;
                member.is_done = status.success();
                if !status.success() {
                    self.failures.push(format!("{}: {status}", member.service));
                }
            }
            member.is_done |= has_ended && member.service == SOURCE && member.process.is_none();
            if member.process.is_none() && !member.is_done {
                let (config, service) = (self.config.clone(), member.service.to_owned());
                let job = Job::Pipeline(PipelineJob::Serve { config, service });
                let env = [(DIRECTORY_VARIABLE.to_owned(), self.directory.clone())];
                member.process = Some(Process::start_with(&self.store, &job, &env, |_| {})?);
            }
        }
        anyhow::ensure!(self.failures.len() <= FAILURES_MAX, "services fail: {}", self.failures.join("; "));
        Ok(())
    }

    /// Services whose process runs and has started.
    pub(super) fn ready(&self) -> Vec<usize> {
        let is_ready = |at: &usize| self.members[*at].process.as_ref().is_some_and(Process::is_ready);
        (0..self.members.len()).filter(is_ready).collect()
    }

    /// Kills the process of a service.
    pub(super) async fn kill(&mut self, at: usize) -> Result<()> {
        let member = &mut self.members[at];
        let process = member.process.take().context("only what runs is killed")?;
        process.kill().await?;
        member.kills += 1;
        Ok(())
    }

    /// Whether all services have ended that end by themselves.
    pub(super) fn is_done(&self) -> bool {
        self.working().next().is_none()
    }

    /// Services that have not ended.
    pub(super) fn left(&self) -> String {
        self.working().map(|member| member.service).collect::<Vec<_>>().join(", ")
    }

    fn working(&self) -> impl Iterator<Item = &Member> {
        self.members.iter().filter(|member| !member.is_done && member.service != ENDLESS)
    }

    /// How often a service was killed.
    pub(super) fn kills_of(&self, at: usize) -> u64 {
        self.members[at].kills
    }

    pub(super) fn kills(&self) -> u64 {
        self.members.iter().map(|member| member.kills).sum()
    }

    pub(super) fn kills_by_service(&self) -> String {
        let list = self.members.iter().map(|member| format!("{} {}", member.service, member.kills));
        list.collect::<Vec<_>>().join(", ")
    }

    pub(super) fn failures(&self) -> &[String] {
        &self.failures
    }
}
