//! The stores of runs: one handle per run and process, shared by its services, open while one of them uses it.
//!
//! A process that uses a run serves the group `services` of its topic `presence`: Headwater's heartbeats then show, to every process, whether
//! the run is in use. It also makes each of these processes a candidate for the run's maintenance.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use headwater::maintenance::{Job, MaintenancePreset, MaintenanceSettings};
use headwater::topic::Removal;
use headwater::{Clock, ErrorKind, Headwater, Message, OpenOptions, Running};

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

    /// Ends a use; the last one closes the store.
    pub(crate) async fn release(&self, used: InUse) -> Result<()> {
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

    /// The store of a run, if a service of this process has it open.
    pub(crate) async fn peek(&self, run_id: &str) -> Option<Arc<RunStore>> {
        self.open.lock().await.get(run_id).map(|(store, _)| Arc::clone(store))
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
        let ended = self.headwater.shutdown(CLOSE_GRACE).await;
        ended.map(drop).map_err(|error| Error::from_store(ErrorCode::CloseFailed, &error))
    }
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
