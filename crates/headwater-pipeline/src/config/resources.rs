//! Resources: what services share, each declared once.

use std::path::PathBuf;
use std::time::Duration;

use headwater::TopicSettings;
use headwater::limits::PAYLOAD_BYTES_MAX;
use headwater::store::{SqlitePath, StoreUrl};
use headwater::topic::Semantics;

use super::document::{Place, Table};
use crate::error::Result;
use crate::storage::StorageSettings;

/// A century: longer than any run is kept.
const FOREVER: Duration = Duration::from_secs(100 * 365 * 24 * 3_600);
/// Most attempts that a topic allows: outages use up none, and what is broken is buried by its service.
const ATTEMPTS_MAX: u64 = 1_000;
/// Largest payload of announcements.
const ANNOUNCEMENT_BYTES_MAX: u64 = 1024 * 1024;
/// How a resource is configured by default.
const METRICS_WINDOW_S: u64 = 60;

/// A resource and its name.
#[derive(Clone, Debug, PartialEq)]
pub struct ResourceConfig {
    /// The name that URIs use.
    pub name: String,
    /// What it is.
    pub resource: Resource,
    /// The width of the windows of rates and percentiles, unless a URI has another.
    pub metrics_window_s: u64,
    /// Where it is declared.
    pub place: Place,
}

/// What a resource is.
#[derive(Clone, Debug, PartialEq)]
pub enum Resource {
    /// A topic that is kept for good, read by any number of groups.
    Topic(TopicConfig),
    /// A queue whose messages are removed once they are done.
    Queue(QueueConfig),
    /// Files.
    Storage(StorageConfig),
    /// A database for the index.
    Index(IndexConfig),
}

impl Resource {
    /// Its name in a configuration.
    pub fn type_name(&self) -> &'static str {
        match self {
            Resource::Topic(_) => "topic",
            Resource::Queue(_) => "queue",
            Resource::Storage(_) => "storage",
            Resource::Index(_) => "index",
        }
    }
}

/// How messages of a topic or queue are delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TopicConfig {
    /// How long a message is held before it may be reassigned, in seconds; 0 for ever.
    pub lease_s: u64,
    /// How often a message is delivered before it becomes a dead letter.
    pub max_attempts: u64,
    /// The longest pause before a retry, in seconds.
    pub backoff_max_s: u64,
    /// How long a dedup key is known, in seconds.
    pub dedup_window_s: u64,
    /// The largest message.
    pub payload_bytes_max: u64,
}

impl TopicConfig {
    fn with(payload_bytes_max: u64) -> Self {
        TopicConfig {
            lease_s: 300,
            max_attempts: ATTEMPTS_MAX,
            backoff_max_s: 30,
            dedup_window_s: 600,
            payload_bytes_max,
        }
    }

    /// The defaults of a topic.
    pub fn topic() -> Self {
        TopicConfig::with(ANNOUNCEMENT_BYTES_MAX)
    }

    /// The defaults of a queue: ticks are large.
    pub fn queue() -> Self {
        TopicConfig::with(PAYLOAD_BYTES_MAX as u64)
    }

    fn read(table: &mut Table<'_>, default: TopicConfig) -> Result<Self> {
        Ok(TopicConfig {
            lease_s: table.number("lease_s", 0..=366 * 86_400)?.unwrap_or(default.lease_s),
            max_attempts: table.number("max_attempts", 1..=ATTEMPTS_MAX)?.unwrap_or(default.max_attempts),
            backoff_max_s: table.number("backoff_max_s", 1..=366 * 86_400)?.unwrap_or(default.backoff_max_s),
            dedup_window_s: table
                .number("dedup_window_s", 1..=366 * 86_400)?
                .unwrap_or(default.dedup_window_s),
            payload_bytes_max: table
                .number("payload_bytes_max", 1..=PAYLOAD_BYTES_MAX as u64)?
                .unwrap_or(default.payload_bytes_max),
        })
    }

    fn settings(&self) -> TopicSettings {
        let backoff_max = Duration::from_secs(self.backoff_max_s);
        TopicSettings {
            lease: Duration::from_secs(self.lease_s),
            max_attempts: u32::try_from(self.max_attempts).unwrap_or(u32::MAX),
            backoff_initial: Duration::from_secs(1).min(backoff_max),
            backoff_max,
            dedup_window: Duration::from_secs(self.dedup_window_s),
            payload_bytes_max: usize::try_from(self.payload_bytes_max).unwrap_or(usize::MAX),
            max_retention: None,
            zombie_subscription_ttl: FOREVER,
            ..TopicSettings::default()
        }
    }

    /// The settings of a topic: every group gets every message, and messages are kept for groups that are made later.
    pub fn topic_settings(&self) -> TopicSettings {
        TopicSettings { semantics: Semantics::PubSub, message_retention: None, ..self.settings() }
    }

    /// The settings of a queue: what is done goes with the next cleanup, and what is not done stays for any time.
    pub fn queue_settings(&self) -> TopicSettings {
        TopicSettings {
            semantics: Semantics::Queue,
            message_retention: Some(Duration::ZERO),
            zero_subscription_retention: FOREVER,
            ..self.settings()
        }
    }
}

/// Values that a URI may replace. Each usage has its part of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Values {
    /// Connections to a database at most.
    pub connections_max: usize,
    /// Connections that are kept open.
    pub connections_idle_min: usize,
    /// Ticks in a queue at which its writer waits.
    pub pending_max: u64,
    /// Bytes in a queue at which its writer waits.
    pub pending_bytes_max: u64,
    /// Bytes that a reader of a queue holds at most.
    pub buffer_bytes_max: u64,
}

impl Default for Values {
    fn default() -> Self {
        Values {
            connections_max: 10,
            connections_idle_min: 2,
            pending_max: 2_000,
            pending_bytes_max: 512 * 1024 * 1024,
            buffer_bytes_max: 256 * 1024 * 1024,
        }
    }
}

/// A queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueConfig {
    /// How its messages are delivered.
    pub delivery: TopicConfig,
    /// What a URI may replace.
    pub values: Values,
    /// The payload from which on a message holds only the key of a stored object; 0 for never.
    pub claim_check_bytes: u64,
}

/// Files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StorageConfig {
    /// A directory, or the URL of an object store.
    pub url: String,
    /// How files are stored.
    pub settings: StorageSettings,
}

/// A database for the index.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IndexConfig {
    /// Its URL: `sqlite:DIRECTORY` or `postgres://…`.
    pub url: String,
    /// What a URI may replace.
    pub values: Values,
}

/// Reads a resource.
pub(super) fn read(name: &str, mut table: Table<'_>, store: &str) -> Result<ResourceConfig> {
    let types = [("topic", 0), ("queue", 1), ("storage", 2), ("index", 3)];
    let Some(kind) = table.one_of("type", &types)? else {
        return Err(table.refuse("type is missing; expected one of topic, queue, storage, index"));
    };
    let resource = match kind {
        0 => Resource::Topic(TopicConfig::read(&mut table, TopicConfig::topic())?),
        1 => Resource::Queue(queue(&mut table)?),
        2 => Resource::Storage(storage(&mut table)?),
        _ => Resource::Index(index(&mut table, store)?),
    };
    let metrics_window_s = table.number("metrics_window_s", 1..=3_600)?.unwrap_or(METRICS_WINDOW_S);
    let place = table.place();
    table.finish()?;
    Ok(ResourceConfig { name: name.to_owned(), resource, metrics_window_s, place })
}

fn queue(table: &mut Table<'_>) -> Result<QueueConfig> {
    let delivery = TopicConfig::read(table, TopicConfig::queue())?;
    let default = Values::default();
    let values = Values {
        pending_max: table.number("pending_max", 1..=1_000_000)?.unwrap_or(default.pending_max),
        pending_bytes_max: table
            .number("pending_bytes_max", 1..=1 << 40)?
            .unwrap_or(default.pending_bytes_max),
        buffer_bytes_max: table.number("buffer_bytes_max", 1..=1 << 40)?.unwrap_or(default.buffer_bytes_max),
        ..default
    };
    let claim_check_bytes = table
        .number("claim_check_bytes", 0..=PAYLOAD_BYTES_MAX as u64)?
        .unwrap_or(delivery.payload_bytes_max);
    Ok(QueueConfig { delivery, values, claim_check_bytes })
}

fn storage(table: &mut Table<'_>) -> Result<StorageConfig> {
    let Some(url) = table.path("url")? else {
        return Err(table.refuse("url is missing; expected a directory, or the URL of an object store"));
    };
    if url.value.trim().is_empty() {
        return Err(url.refuse("blank; expected a directory, or the URL of an object store"));
    }
    let default = StorageSettings::default();
    let compression = table.inner("compression")?.map(|inner| inner.deserialize()).transpose()?;
    let options = table.inner("options")?.map(|inner| inner.strings()).transpose()?.unwrap_or_default();
    let settings = StorageSettings {
        compression: compression.unwrap_or(default.compression),
        file_bytes_max: table.number("file_bytes_max", 1..=1 << 40)?.unwrap_or(default.file_bytes_max),
        options: options.into_iter().map(|(name, value)| (name, value.value)).collect(),
    };
    Ok(StorageConfig { url: url.value, settings })
}

fn index(table: &mut Table<'_>, store: &str) -> Result<IndexConfig> {
    let url = match table.path("url")? {
        Some(url) => {
            StoreUrl::parse(&url.value, None).map_err(|error| url.refuse(error))?;
            url.value
        }
        None => beside(store)
            .map_or_else(|| store.to_owned(), |directory| format!("sqlite:{}", directory.display())),
    };
    let default = Values::default();
    let connections_max =
        table.number("connections_max", 1..=1_000)?.map_or(default.connections_max, |n| n as usize);
    let connections_idle_min =
        table.number("connections_idle_min", 0..=1_000)?.map_or(default.connections_idle_min, |n| n as usize);
    Ok(IndexConfig { url, values: Values { connections_max, connections_idle_min, ..default } })
}

/// The directory of an embedded store.
pub(super) fn beside(store: &str) -> Option<PathBuf> {
    match StoreUrl::parse(store, None) {
        Ok(StoreUrl::Sqlite(SqlitePath::File(file))) => {
            let parent = file.parent().filter(|parent| !parent.as_os_str().is_empty());
            Some(parent.map_or_else(|| PathBuf::from("."), PathBuf::from))
        }
        _ => None,
    }
}
