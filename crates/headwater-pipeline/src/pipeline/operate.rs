//! What operators do with runs, beside the services: list, drop, check files, sweep claim checks, read cells.

use std::sync::Arc;

use headwater::Headwater;

use super::sweep::sweep_run;
use super::{Shared, open_storages};
use crate::bindings::type_is;
use crate::cells::Cell;
use crate::claim_check::Swept;
use crate::config::{Config, Resource, ServiceOptions};
use crate::contracts::{BatchInfo, RunInfo};
use crate::error::{Error, ErrorCode, Result};
use crate::index::select::Selection;
use crate::index::{Index, IndexOptions, Strategies};
use crate::runs::{RunContents, Runs};
use crate::storage::{FileStorage, Finding};
use crate::world::World;

/// Operates the runs of a configuration. Starts no service.
pub struct Operator {
    pub(super) shared: Arc<Shared>,
}

impl Operator {
    /// Opens the base namespace, which must exist.
    pub async fn open(config: Config) -> Result<Self> {
        let storages = open_storages(&config).await?;
        let runs = Runs::open_existing(&config.store).await?;
        let (bindings, strategies) = (Arc::default(), Strategies::default());
        Ok(Operator { shared: Arc::new(Shared { config, runs, bindings, storages, strategies }) })
    }

    /// All runs, newest first.
    pub async fn runs(&self) -> Result<Vec<RunInfo>> {
        self.shared.runs.list().await
    }

    /// The ticks of a run whose cells are indexed: the first and the last.
    pub async fn indexed_ticks(&self, run_id: &str) -> Result<Option<(i64, i64)>> {
        let index = self.index(run_id)?;
        let range = index.tick_range().await;
        index.close().await;
        range
    }

    /// What a run has: the dry run of dropping it.
    pub async fn contents(&self, run_id: &str) -> Result<RunContents> {
        let index = self.index(run_id)?;
        let contents = self.shared.runs.contents(run_id, self.storage()?, &index).await;
        index.close().await;
        contents
    }

    /// Removes a run with its topics, its index, its files and the checkpoint of its source. Refused while a process uses it.
    pub async fn drop_run(&self, run_id: &str) -> Result<RunContents> {
        let dropped = self.shared.runs.drop_run(run_id, self.storage()?, self.index(run_id)?).await?;
        for service in &self.shared.config.services {
            if let ServiceOptions::Tidepool(options) = &service.options {
                let checkpoint = options.checkpoint_directory.join(format!("{run_id}.checkpoint"));
                match std::fs::remove_file(&checkpoint) {
                    Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                        tracing::warn!(file = %checkpoint.display(), %error, "checkpoint not removed");
                    }
                    _ => {}
                }
            }
        }
        Ok(dropped)
    }

    /// Compares the files of a run with what was announced.
    pub async fn check_storage(&self, run_id: &str) -> Result<Vec<Finding>> {
        let run = self.shared.runs.get(run_id).await?;
        let announced = match self.shared.runs.stores().inspect(&run).await? {
            Some(store) => {
                let announced = self.announced(&store).await;
                let _ = store.close().await;
                announced?
            }
            None => Vec::new(),
        };
        self.storage()?.check(run_id, &announced).await
    }

    /// The announcements of all topics of a run.
    async fn announced(&self, store: &Headwater) -> Result<Vec<BatchInfo>> {
        let failed = |error: headwater::Error| Error::from_store(ErrorCode::ReadFailed, &error);
        let mut announced = Vec::new();
        for status in store.topics().list().await.map_err(failed)? {
            let topic = status.topic.name.as_str();
            let is_topic = |config: &Resource| matches!(config, Resource::Topic(_));
            if !self.shared.config.resource(topic).is_some_and(|config| is_topic(&config.resource)) {
                continue;
            }
            for message in store.published(topic).await.map_err(failed)? {
                if type_is::<BatchInfo>(&message) {
                    announced.push(crate::bindings::decode(&message)?);
                }
            }
        }
        Ok(announced)
    }

    /// Removes the files of payloads whose message is gone, of one run or of all: what was found of each.
    pub async fn sweep_claims(&self, run_id: Option<&str>) -> Result<Vec<(String, Swept)>> {
        let runs = match run_id {
            Some(run_id) => vec![self.shared.runs.get(run_id).await?],
            None => self.runs().await?,
        };
        let mut swept = Vec::new();
        for run in runs {
            let found = sweep_run(&self.shared, &run).await?;
            swept.push((run.run_id, found.unwrap_or_default()));
        }
        Ok(swept)
    }

    /// The cells of a tick and the world that they are in; `None` if the tick is not indexed. `selection` makes conditions for that world.
    pub async fn cells(
        &self,
        run_id: &str,
        tick: i64,
        selection: impl FnOnce(&World) -> Result<Selection>,
    ) -> Result<Option<(World, Vec<Cell>)>> {
        self.shared.runs.get(run_id).await?;
        let index = self.index(run_id)?;
        let read = async {
            let Some(world) = index.world().await? else { return Ok(None) };
            let cells = index.cells(tick, &selection(&world)?).await?;
            Ok(cells.map(|cells| (world, cells)))
        };
        let cells = read.await;
        index.close().await;
        cells
    }

    fn storage(&self) -> Result<&FileStorage> {
        self.shared.config.storage()?;
        let first =
            self.shared.config.resources.iter().find_map(|config| self.shared.storages.get(&config.name));
        first.ok_or_else(|| Error::invalid("no resource of type storage is declared"))
    }

    fn index(&self, run_id: &str) -> Result<Index> {
        let index = self.shared.config.index()?;
        let options = IndexOptions { connections_max: 2, connections_idle_min: 0, ..IndexOptions::default() };
        Index::open(&index.url, run_id, &options)
    }

    /// Closes the base namespace.
    pub async fn close(self) -> Result<()> {
        self.shared.runs.close().await
    }
}
