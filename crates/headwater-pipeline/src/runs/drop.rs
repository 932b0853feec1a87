//! Dropping a run: its topics, its index and its files, after a dry run that shows each with its size.
//!
//! A run that a process uses is refused. The run is first registered as dropped, so that no service takes it up, and then its users are
//! counted again: of a service and a drop that begin at the same time, one gives way. A drop that was interrupted is repeated, and removes the rest.

use headwater::store::{SqlitePath, StoreUrl};
use headwater::topic::Removal;
use headwater::{ErrorKind, Headwater};

use super::store::{PRESENCE_TOPIC, users};
use super::{DROPPED, Runs};
use crate::contracts::RunInfo;
use crate::error::{Error, ErrorCode, Result};
use crate::index::Index;
use crate::index::database::Query;
use crate::storage::{FileStorage, RunSizes};

/// What a run has, and how many processes use it.
#[derive(Clone, Debug, PartialEq)]
pub struct RunContents {
    /// The run.
    pub run: RunInfo,
    /// Its topics and queues.
    pub topics: Vec<TopicContents>,
    /// The bytes of its topics; `None` where they are not known.
    pub topics_bytes: Option<u64>,
    /// The bytes of its index.
    pub index_bytes: u64,
    /// Its files.
    pub files: RunSizes,
    /// The processes that use it.
    pub processes: u32,
}

/// What a topic of a run has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopicContents {
    /// Its name.
    pub topic: String,
    /// Messages in it.
    pub messages: u64,
    /// Dead letters of all its groups.
    pub dead_letters: u64,
}

impl Runs {
    /// What a run has. Changes nothing.
    pub async fn contents(&self, run_id: &str, files: &FileStorage, index: &Index) -> Result<RunContents> {
        let found = self.directory().await?.even_dropped(run_id).await?;
        let run = found.ok_or_else(|| {
            Error::invalid(format_args!("no run {run_id:?}; see `headwater pipeline runs`"))
        })?;
        let mut contents = RunContents {
            topics: Vec::new(),
            topics_bytes: None,
            index_bytes: index.bytes_stored().await?,
            files: files.sizes(run_id).await?,
            processes: 0,
            run,
        };
        let Some(store) = self.stores().inspect(&contents.run).await? else { return Ok(contents) };
        let read = self.read_topics(&store, index, &mut contents).await;
        let _ = store.close().await;
        read.map(|()| contents)
    }

    async fn read_topics(&self, store: &Headwater, index: &Index, contents: &mut RunContents) -> Result<()> {
        let failed = |error: headwater::Error| Error::from_store(ErrorCode::ReadFailed, &error);
        contents.processes = users(store).await?;
        for status in store.topics().list().await.map_err(failed)? {
            let topic = status.topic.name.as_str().to_owned();
            if topic == PRESENCE_TOPIC {
                continue;
            }
            let held = store.topics().delete(&topic, Removal::DryRun).await.map_err(failed)?;
            contents.topics.push(TopicContents {
                topic,
                messages: held.messages,
                dead_letters: held.dead_letters,
            });
        }
        contents.topics_bytes = self.topics_bytes(&contents.run, index).await?;
        Ok(())
    }

    /// The size of a run's file, or of its schema where the index is in the same database.
    async fn topics_bytes(&self, run: &RunInfo, index: &Index) -> Result<Option<u64>> {
        let url = StoreUrl::parse(self.stores().url(), Some(&run.namespace));
        match url.map_err(|error| Error::from_store(ErrorCode::ReadFailed, &error))? {
            StoreUrl::Sqlite(SqlitePath::File(path)) => {
                let length = |end: &str| {
                    let mut path = path.clone().into_os_string();
                    path.push(end);
                    std::fs::metadata(path).map_or(0, |file| file.len())
                };
                Ok(Some(length("") + length("-wal")))
            }
            StoreUrl::Sqlite(SqlitePath::Memory) => Ok(None),
            StoreUrl::Postgres { namespace, .. } => {
                let size = Query::new(
                    "SELECT coalesce(sum(pg_total_relation_size(c.oid)), 0)::bigint FROM pg_class c \
                     JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = $1::text AND c.relkind IN ('r', 'm')",
                );
                let rows = index.database().query(size.bind(namespace.as_str())).await;
                // An index in another kind of database does not know these tables.
                Ok(rows.ok().and_then(|rows| rows.first()?.integer(0).ok()).map(i64::unsigned_abs))
            }
        }
    }

    /// Removes a run with all that it has, and returns what that was. Refused while a process uses it.
    pub async fn drop_run(&self, run_id: &str, files: &FileStorage, index: Index) -> Result<RunContents> {
        let contents = self.contents(run_id, files, &index).await?;
        refuse_used(&contents)?;
        let registered = contents.run.clone();
        self.register(&RunInfo { state: DROPPED.to_owned(), ..registered.clone() }).await?;
        if let Some(store) = self.stores().inspect(&registered).await? {
            let processes = users(&store).await?;
            if processes > 0 {
                let _ = store.close().await;
                self.register(&registered).await?;
                refuse_used(&RunContents { processes, ..contents.clone() })?;
            }
            match store.drop_namespace().await {
                Ok(()) => {}
                Err(error) if error.kind() == ErrorKind::NoSuchStore => {}
                Err(error) => return Err(Error::from_store(ErrorCode::WriteFailed, &error)),
            }
        }
        index.remove().await?;
        files.delete_run(run_id).await?;
        Ok(contents)
    }
}

fn refuse_used(contents: &RunContents) -> Result<()> {
    let (run_id, processes) = (&contents.run.run_id, contents.processes);
    if processes == 0 {
        return Ok(());
    }
    let count = if processes == 1 { "1 process".to_owned() } else { format!("{processes} processes") };
    Err(Error::invalid(format_args!(
        "run {run_id} is used by {count}; stop its services first (one that was killed counts for 20 s)"
    )))
}
