//! The stores of checks: a fresh database or file for each, removed with it.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use headwater::store::Store;
use headwater::{Headwater, TopicName};

use super::Judged;
use crate::server::Server;

/// The name for a PostgreSQL server of the lab's own, started for the run.
pub(crate) const OWN_POSTGRES: &str = "own-postgres";

/// The kind of store that checks run on.
#[derive(Debug)]
pub(crate) enum Ground {
    Postgres(Server),
    /// Files are named after this path.
    Sqlite(PathBuf),
}

impl Ground {
    /// Prepares the store of `--store`: `own-postgres`, `postgres://…` or `sqlite:path`.
    pub(crate) async fn prepare(named: &str, work: &Path) -> Result<Self> {
        if named == OWN_POSTGRES {
            return Ok(Ground::Postgres(Server::start(work, &[]).await?));
        }
        if named.starts_with("postgres://") || named.starts_with("postgresql://") {
            return Ok(Ground::Postgres(Server::external(named)));
        }
        let path = named.strip_prefix("sqlite:").with_context(|| {
            format!("--store {named}: use {OWN_POSTGRES}, postgres://user@host/database or sqlite:path")
        })?;
        ensure!(
            !path.starts_with(':'),
            "--store {named}: several processes share the store, so it must be a file"
        );
        Ok(Ground::Sqlite(PathBuf::from(path)))
    }

    pub(crate) fn engine(&self) -> &'static str {
        match self {
            Ground::Postgres(_) => "postgres",
            Ground::Sqlite(_) => "sqlite",
        }
    }

    /// An empty store for one check.
    pub(crate) async fn place(&self, check: &str) -> Result<Place<'_>> {
        // With the process id, so that two runs on one server do not remove each other's database.
        let name = format!("headwater_lab_{}_{}", check.replace('-', "_"), std::process::id());
        match self {
            Ground::Postgres(server) => {
                let url = server.create_database(&name).await?;
                Ok(Place { url, kind: Kind::Database { server, name } })
            }
            Ground::Sqlite(path) => {
                let file = path.with_file_name(format!(
                    "{}-{name}.db",
                    path.file_stem().unwrap_or_default().to_string_lossy()
                ));
                ensure!(!file.exists(), "{} exists already; use another path", file.display());
                Ok(Place { url: format!("sqlite:{}", file.display()), kind: Kind::File(RemovedFile(file)) })
            }
        }
    }
}

/// An empty store.
#[derive(Debug)]
pub(crate) struct Place<'g> {
    pub(crate) url: String,
    kind: Kind<'g>,
}

#[derive(Debug)]
enum Kind<'g> {
    Database { server: &'g Server, name: String },
    File(RemovedFile),
}

impl Place<'_> {
    pub(crate) fn is_postgres(&self) -> bool {
        matches!(self.kind, Kind::Database { .. })
    }

    /// The file of an embedded store.
    pub(crate) fn file(&self) -> Option<&Path> {
        match &self.kind {
            Kind::File(file) => Some(&file.0),
            Kind::Database { .. } => None,
        }
    }

    /// A handle of this process.
    pub(crate) async fn open(&self) -> Result<Headwater> {
        Ok(Headwater::open(&self.url).await?)
    }

    /// The server processes of the store, where they are visible.
    pub(crate) async fn backends(&self) -> Result<Vec<u32>> {
        match &self.kind {
            Kind::Database { server, name } => server.backends(name).await,
            Kind::File(_) => Ok(vec![]),
        }
    }

    /// The server, if the store is on one.
    pub(crate) fn server(&self) -> Option<&Server> {
        match &self.kind {
            Kind::Database { server, .. } => Some(server),
            Kind::File(_) => None,
        }
    }

    /// Removes a database; a file is removed on drop.
    pub(crate) async fn clear(self) -> Result<()> {
        match &self.kind {
            Kind::Database { server, name } => server.drop_database(name).await,
            Kind::File(_) => Ok(()),
        }
    }
}

/// A file that is removed on drop, with those that SQLite and its owners put beside it.
#[derive(Debug)]
struct RemovedFile(PathBuf);

impl Drop for RemovedFile {
    fn drop(&mut self) {
        let name = self.0.file_name().unwrap_or_default().as_encoded_bytes();
        let parent = self.0.parent().filter(|parent| !parent.as_os_str().is_empty());
        for entry in std::fs::read_dir(parent.unwrap_or(Path::new("."))).into_iter().flatten().flatten() {
            if entry.file_name().as_encoded_bytes().starts_with(name) {
                let _ = std::fs::remove_file(entry.path());
            }
        }
    }
}

/// A description of what a group has not done yet; `None` if nothing.
pub(crate) async fn unsettled(headwater: &Headwater, topic: &str, group: &str) -> Result<Option<String>> {
    let (store, topic) = (headwater.store(), TopicName::new(topic)?);
    // Advances the head over everything committed, so that it is known what "everything" is.
    store.advance_heads().await?;
    let topics = store.topics().await?;
    let head = topics.iter().find(|status| status.topic.name == topic).context("the topic is gone")?.head;
    let groups = store.subscriptions(&topic).await?;
    let status = groups.iter().find(|status| status.group.as_str() == group).context("the group is gone")?;
    let done = status.leased == 0 && status.waiting == 0 && status.dead_letters == 0 && status.floor >= head;
    Ok((!done).then(|| format!("head {head}, {status:?}")))
}

/// Waits until a group has done everything; fails with what is left if that takes longer.
pub(crate) async fn settled(
    headwater: &Headwater,
    topic: &str,
    group: &str,
    at_most: Duration,
) -> Result<()> {
    let deadline = Instant::now() + at_most;
    while let Some(left) = unsettled(headwater, topic, group).await? {
        ensure!(Instant::now() < deadline, "group {group} is not done after {at_most:?}: {left}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    Ok(())
}

/// The problems that doctor finds in the store.
pub(crate) async fn problems(store: &dyn Store) -> Result<Vec<String>> {
    let findings = store.doctor().await?;
    Ok(findings.iter().map(|finding| format!("{}: {}", finding.check, finding.problem)).collect())
}

/// The same as a figure: there must be none.
pub(crate) async fn soundness(headwater: &Headwater) -> Result<Judged> {
    let problems = problems(&**headwater.store()).await?;
    Ok(Judged::none_of("problems found in the store", problems.len() as u64).note(problems.join("; ")))
}

/// Waits until something holds; fails with its name if it does not in time.
pub(crate) async fn eventually(
    what: &str,
    at_most: Duration,
    mut holds: impl AsyncFnMut() -> Result<bool>,
) -> Result<()> {
    let deadline = Instant::now() + at_most;
    while !holds().await? {
        ensure!(Instant::now() < deadline, "timed out after {at_most:?} waiting until {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_takes_along_what_killed_processes_left_beside_it() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        for name in ["a.db", "a.db-wal", "a.db-owner-1", "b.db"] {
            std::fs::write(at(name), "").unwrap();
        }
        drop(RemovedFile(at("a.db")));
        let left: Vec<_> =
            std::fs::read_dir(directory.path()).unwrap().flatten().map(|one| one.path()).collect();
        assert_eq!(left, [at("b.db")]);
    }
}
