//! The stores of runs: one handle per run and process, shared by its services, open while one of them uses it.
//!
//! A process that uses a run serves the group `services` of its topic `presence`: Headwater's heartbeats then show, to every process, whether
//! the run is in use. It also makes each of these processes a candidate for the run's maintenance.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use headwater::maintenance::{Job, MaintenancePreset, MaintenanceSettings};
use headwater::store::{SqlitePath, StoreUrl};
use headwater::topic::Removal;
use headwater::{Clock, ErrorKind, Headwater, Message, OpenOptions, Running};
use rusqlite::{Connection, OpenFlags};

use crate::contracts::RunInfo;
use crate::error::{Error, ErrorCode, Result};

/// The topic that shows which processes use a run.
pub(super) const PRESENCE_TOPIC: &str = "presence";
const PRESENCE_GROUP: &str = "services";
/// A process that ended without a word counts as using the run for this long at most.
const PRESENCE_TIMEOUT: Duration = Duration::from_secs(20);
/// Done ticks are removed within a minute: with this interval, and some time for the work itself.
const CLEANUP_EVERY: Duration = Duration::from_secs(30);
/// Each tick has a dedup key: kept for its window and not for a day.
const KEYS_CLEANUP_EVERY: Duration = Duration::from_secs(600);
/// Connections of a process to a run's namespace.
const CONNECTIONS_MAX: usize = 10;
/// How long the end of a handle waits for what still runs on it.
const CLOSE_GRACE: Duration = Duration::from_secs(5);
/// How long a process that leaves a run removes done ticks. What it leaves is removed by the next one.
const LEAVE_CLEANUP_MAX: Duration = Duration::from_secs(5);
/// A file is compacted from so many free bytes on, if that is more than half of it.
const COMPACT_BYTES_MIN: u64 = 4 * 1024 * 1024;

/// The stores that this process has open.
pub(crate) struct RunStores {
    url: String,
    clock: Clock,
    open: tokio::sync::Mutex<HashMap<String, (Arc<RunStore>, usize)>>,
}

/// The store of one run.
pub(crate) struct RunStore {
    pub(crate) run_id: String,
    pub(crate) headwater: Headwater,
    /// The file of its topics, if they are in one.
    file: Option<PathBuf>,
    presence: Mutex<Option<Running>>,
    /// What was accounted of each group's totals, which all its bindings in this process share.
    pub(crate) accounted: Mutex<HashMap<(String, String), Accounted>>,
}

/// Totals of a group that a binding has counted as its own.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Accounted {
    pub(crate) lease_lost: u64,
    pub(crate) reassigned: u64,
}

/// The use of a store by one service. To be ended by [`RunStores::release`].
#[must_use]
pub(crate) struct InUse(pub(crate) Arc<RunStore>);

impl RunStores {
    pub(crate) fn new(url: &str, clock: Clock) -> Self {
        RunStores { url: url.to_owned(), clock, open: tokio::sync::Mutex::default() }
    }

    /// The store of a run; opened, and created if it is missing, for the first that uses it.
    pub(crate) async fn acquire(&self, run: &RunInfo) -> Result<InUse> {
        if run.run_id.trim().is_empty() || run.namespace.trim().is_empty() {
            return Err(Error::invalid("a run id is blank"));
        }
        // Held while the store is opened: a second user waits for the same one.
        let mut open = self.open.lock().await;
        if let Some((store, users)) = open.get_mut(&run.run_id) {
            *users += 1;
            return Ok(InUse(Arc::clone(store)));
        }
        let store = Arc::new(RunStore::open(self, run).await?);
        open.insert(run.run_id.clone(), (Arc::clone(&store), 1));
        Ok(InUse(store))
    }

    /// The store of a run, if a service of this process has it open.
    pub(crate) async fn hold(&self, run_id: &str) -> Option<InUse> {
        let mut open = self.open.lock().await;
        let (store, users) = open.get_mut(run_id)?;
        *users += 1;
        Some(InUse(Arc::clone(store)))
    }

    /// Ends a use; the last one closes the store.
    pub(crate) async fn release(&self, used: InUse) -> Result<()> {
        let is_last = matches!(self.open.lock().await.get(&used.0.run_id), Some((_, 1)));
        if is_last {
            // Without the lock: it takes a while, and a service that binds the run meanwhile uses this store.
            used.0.clean().await;
        }
        let mut open = self.open.lock().await;
        let Some((_, users)) = open.get_mut(&used.0.run_id) else { return Ok(()) };
        *users -= 1;
        if *users > 0 {
            return Ok(());
        }
        open.remove(&used.0.run_id);
        // Held while it closes: a service that binds the run again opens it after that.
        used.0.close().await
    }

    /// Closes what is still open: a use that was given up without its release.
    pub(crate) async fn close_all(&self) {
        for (run_id, (store, _)) in self.open.lock().await.drain() {
            if let Err(error) = store.close().await {
                tracing::warn!(run = run_id, %error, "close failed");
            }
        }
    }

    pub(super) fn url(&self) -> &str {
        &self.url
    }

    /// The store of a run, if a service of this process has it open and none is being opened or closed. Does not wait: what only shows
    /// figures must not stand in line with services.
    pub(crate) fn peek(&self, run_id: &str) -> Option<Arc<RunStore>> {
        self.open.try_lock().ok()?.get(run_id).map(|(store, _)| Arc::clone(store))
    }

    /// The namespace of a run without being a user of it: `None` if there is none.
    pub(crate) async fn inspect(&self, run: &RunInfo) -> Result<Option<Headwater>> {
        let options = options(run).create(false).maintenance(false);
        match Headwater::open_with(&self.url, options).await {
            Ok(headwater) => Ok(Some(headwater)),
            Err(error) if error.kind() == ErrorKind::NoSuchStore => Ok(None),
            Err(error) => Err(Error::from_store(ErrorCode::ReadFailed, &error)),
        }
    }
}

fn options(run: &RunInfo) -> OpenOptions {
    OpenOptions::default().namespace(&run.namespace).auto_create(false).connections_max(CONNECTIONS_MAX)
}

fn maintenance() -> headwater::Result<MaintenanceSettings> {
    MaintenanceSettings::preset(MaintenancePreset::HighThroughput)
        .every(Job::MessageCleanup, CLEANUP_EVERY)?
        .every(Job::SubscriptionCleanup, KEYS_CLEANUP_EVERY)
}

impl RunStore {
    async fn open(stores: &RunStores, run: &RunInfo) -> Result<Self> {
        let failed = |error: headwater::Error| Error::from_store(ErrorCode::ReadFailed, &error);
        let options =
            options(run).maintenance_settings(maintenance().map_err(failed)?).clock(stores.clock.clone());
        let file = match StoreUrl::parse(&stores.url, Some(&run.namespace)).map_err(failed)? {
            StoreUrl::Sqlite(SqlitePath::File(path)) => Some(path),
            _ => None,
        };
        let headwater = Headwater::open_with(&stores.url, options).await.map_err(failed)?;
        let presence = match serve_presence(&headwater).await {
            Ok(presence) => presence,
            Err(error) => {
                let _ = headwater.close().await;
                return Err(failed(error));
            }
        };
        Ok(RunStore {
            run_id: run.run_id.clone(),
            headwater,
            file,
            presence: Mutex::new(Some(presence)),
            accounted: Mutex::default(),
        })
    }

    async fn close(&self) -> Result<()> {
        let presence = self.presence.lock().expect("no panic while held").take();
        if let Some(presence) = presence {
            // The departure is reported with it; without that the run counts as used for a while.
            if let Err(error) = presence.shutdown(Duration::ZERO).await {
                tracing::debug!(run = self.run_id, %error, "departure not reported");
            }
        }
        let is_last = matches!(users(&self.headwater).await, Ok(0));
        let ended = self.headwater.shutdown(CLOSE_GRACE).await;
        if let Some(file) = self.file.clone().filter(|_| is_last && ended.is_ok()) {
            compact(&self.run_id, file).await;
        }
        ended.map(drop).map_err(|error| Error::from_store(ErrorCode::CloseFailed, &error))
    }

    /// Removes done ticks: without a process that uses the run there is no maintenance that would.
    async fn clean(&self) {
        let Ok(settings) = maintenance() else { return };
        let cleaning = self.headwater.maintenance().settings(settings);
        let jobs = [Job::Heads, Job::MessageCleanup];
        let run = &self.run_id;
        match tokio::time::timeout(LEAVE_CLEANUP_MAX, cleaning.run_once(&jobs)).await {
            Ok(Ok(runs)) => {
                let removed: u64 = runs.iter().map(|run| run.rows).sum();
                let error = runs.iter().find_map(|run| run.error.as_deref());
                tracing::debug!(run, removed, error, "done messages removed before leaving");
            }
            Ok(Err(error)) => tracing::debug!(run, %error, "done messages not removed before leaving"),
            Err(_) => tracing::debug!(run, "done messages are left: removing them takes too long"),
        }
    }
}

/// Gives the space of removed ticks back to the disk, which SQLite does on request only. A file in use is left as it is.
async fn compact(run_id: &str, file: PathBuf) {
    let compacted = tokio::task::spawn_blocking(move || compact_file(&file)).await;
    match compacted {
        Ok(Ok(freed)) => tracing::debug!(run = run_id, freed, "file of the run compacted"),
        Ok(Err(error)) => tracing::debug!(run = run_id, %error, "file of the run not compacted"),
        Err(error) => tracing::debug!(run = run_id, %error, "file of the run not compacted"),
    }
}

/// The bytes that were given back.
fn compact_file(file: &Path) -> rusqlite::Result<u64> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(file, flags)?;
    connection.busy_timeout(Duration::ZERO)?;
    let number = |name: &str| {
        let value = connection.pragma_query_value(None, name, |row| row.get::<_, i64>(0));
        value.map(i64::unsigned_abs)
    };
    let (free, all, page_bytes) = (number("freelist_count")?, number("page_count")?, number("page_size")?);
    if free * page_bytes < COMPACT_BYTES_MIN || free * 2 < all {
        return Ok(0);
    }
    connection.execute_batch("VACUUM")?;
    Ok(free * page_bytes)
}

/// Serves a group that never gets a message: only its heartbeats matter.
async fn serve_presence(headwater: &Headwater) -> headwater::Result<Running> {
    let presence = headwater.topic(PRESENCE_TOPIC).heartbeats(PRESENCE_TIMEOUT / 4, PRESENCE_TIMEOUT);
    presence.create_if_missing().await?;
    let nothing = |_: Message| async { Ok(()) };
    headwater.consumer(PRESENCE_TOPIC, PRESENCE_GROUP).concurrency(1).member("process", nothing).run().await
}

/// How many processes use a run.
pub(super) async fn users(headwater: &Headwater) -> Result<u32> {
    match headwater.topics().delete(PRESENCE_TOPIC, Removal::DryRun).await {
        Ok(contents) => Ok(contents.served.iter().map(|(_, processes)| processes).sum()),
        Err(error) if error.kind() == ErrorKind::NoSuchTopic => Ok(0),
        Err(error) => Err(Error::from_store(ErrorCode::ReadFailed, &error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_glance_does_not_wait_for_a_store_that_is_being_opened_or_closed() {
        let directory = tempfile::tempdir().unwrap();
        let url = format!("sqlite:{}/base.db", directory.path().display());
        let stores = RunStores::new(&url, Clock::default());
        let run = RunInfo { run_id: "run_1".into(), namespace: "run_1".into(), ..RunInfo::default() };
        let used = stores.acquire(&run).await.unwrap();
        assert!(stores.peek("run_1").is_some());
        let busy = stores.open.lock().await;
        assert!(stores.peek("run_1").is_none());
        drop(busy);
        stores.release(used).await.unwrap();
        assert!(stores.peek("run_1").is_none());
    }

    #[test]
    fn file_is_compacted_once_most_of_it_is_free() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("run.db");
        let connection = Connection::open(&file).unwrap();
        connection.execute_batch("PRAGMA journal_mode = WAL; CREATE TABLE t (x)").unwrap();
        let insert = "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 8192)
                      INSERT INTO t SELECT zeroblob(1000) FROM n";
        connection.execute_batch(insert).unwrap();
        drop(connection);
        assert_eq!(compact_file(&file).unwrap(), 0, "it is full");
        let full = std::fs::metadata(&file).unwrap().len();
        let connection = Connection::open(&file).unwrap();
        connection.execute_batch("DELETE FROM t WHERE rowid > 10").unwrap();
        drop(connection);
        assert!(compact_file(&file).unwrap() > COMPACT_BYTES_MIN);
        assert!(std::fs::metadata(&file).unwrap().len() < full / 10);
        let left = Connection::open(&file).unwrap();
        assert_eq!(left.query_row("SELECT count(*) FROM t", [], |row| row.get::<_, i64>(0)).unwrap(), 10);
    }
}
