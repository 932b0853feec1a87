//! Services: their types, what each uses, and its options.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use super::document::{Located, Place, Table};
use super::resources::{ResourceConfig, beside};
use super::uri::{Binding, Usage};
use crate::cells::Compression;
use crate::error::Result;
use crate::index::{STRATEGY_DEFAULT, TILE_SIZE_DEFAULT};
use crate::indexer::IndexerOptions;
use crate::metadata::MetadataOptions;
use crate::persistence::PersistenceOptions;
use crate::source::SourceOptions;

/// What a service is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ServiceType {
    /// Makes ticks.
    Tidepool,
    /// Writes ticks to files and announces them.
    Persistence,
    /// Writes a run's metadata to a file and announces it.
    MetadataPersistence,
    /// Indexes metadata.
    MetadataIndexer,
    /// Indexes cells.
    EnvironmentIndexer,
    /// Indexes organisms.
    OrganismIndexer,
    /// Reads and counts.
    DummyIndexer,
    /// An indexer of the program's own.
    Indexer,
    /// Answers queries and serves the page.
    Query,
}

/// A name under which a service binds a resource.
#[derive(Clone, Copy, Debug)]
struct Port {
    name: &'static str,
    usage: Usage,
    is_required: bool,
}

const fn port(name: &'static str, usage: Usage) -> Port {
    Port { name, usage, is_required: true }
}

const fn optional(name: &'static str, usage: Usage) -> Port {
    Port { name, usage, is_required: false }
}

impl ServiceType {
    /// All of them.
    pub const ALL: [ServiceType; 9] = [
        ServiceType::Tidepool,
        ServiceType::Persistence,
        ServiceType::MetadataPersistence,
        ServiceType::MetadataIndexer,
        ServiceType::EnvironmentIndexer,
        ServiceType::OrganismIndexer,
        ServiceType::DummyIndexer,
        ServiceType::Indexer,
        ServiceType::Query,
    ];

    /// Its name in a configuration.
    pub fn as_str(self) -> &'static str {
        match self {
            ServiceType::Tidepool => "tidepool",
            ServiceType::Persistence => "persistence",
            ServiceType::MetadataPersistence => "metadata-persistence",
            ServiceType::MetadataIndexer => "metadata-indexer",
            ServiceType::EnvironmentIndexer => "environment-indexer",
            ServiceType::OrganismIndexer => "organism-indexer",
            ServiceType::DummyIndexer => "dummy-indexer",
            ServiceType::Indexer => "indexer",
            ServiceType::Query => "query",
        }
    }

    fn ports(self) -> &'static [Port] {
        const BATCHES: Port = port("batches", Usage::TopicRead);
        const FILES: Port = port("storage", Usage::StorageRead);
        const METADATA: Port = port("metadata", Usage::DbMetaRead);
        const DONE: Port = optional("idempotency", Usage::DbIdempotency);
        match self {
            ServiceType::Tidepool => {
                &[const { port("ticks", Usage::QueueOut) }, const { port("metadata", Usage::QueueOut) }]
            }
            ServiceType::Persistence => &[
                const { port("ticks", Usage::QueueIn) },
                const { port("storage", Usage::StorageWrite) },
                const { port("batches", Usage::TopicWrite) },
            ],
            ServiceType::MetadataPersistence => &[
                const { port("metadata", Usage::QueueIn) },
                const { port("storage", Usage::StorageWrite) },
                const { port("announcements", Usage::TopicWrite) },
            ],
            ServiceType::MetadataIndexer => &[
                const { port("announcements", Usage::TopicRead) },
                FILES,
                const { port("index", Usage::DbMetaWrite) },
            ],
            ServiceType::EnvironmentIndexer => {
                &[BATCHES, FILES, METADATA, const { port("index", Usage::DbEnvWrite) }, DONE]
            }
            ServiceType::OrganismIndexer => {
                &[BATCHES, FILES, METADATA, const { port("index", Usage::DbOrgWrite) }, DONE]
            }
            ServiceType::DummyIndexer | ServiceType::Indexer => &[BATCHES, FILES, METADATA, DONE],
            ServiceType::Query => &[const { port("index", Usage::DbRead) }],
        }
    }
}

/// A service as configured.
#[derive(Clone, Debug, PartialEq)]
pub struct ServiceConfig {
    /// Its name, by which it is started alone and controlled.
    pub name: String,
    /// What it is, and its options.
    pub options: ServiceOptions,
    /// What it uses, by the names of its ports.
    pub bindings: BTreeMap<&'static str, Binding>,
    /// The run that it serves; without one it follows the newest.
    pub run_id: Option<String>,
    /// Where it is configured.
    pub place: Place,
}

/// Options of a service.
#[derive(Clone, Debug, PartialEq)]
pub enum ServiceOptions {
    /// Of a source.
    Tidepool(SourceOptions),
    /// Of the persistence of ticks.
    Persistence(PersistenceOptions),
    /// Of the persistence of metadata.
    MetadataPersistence(MetadataOptions),
    /// Of the indexer of metadata.
    MetadataIndexer(MetadataOptions),
    /// Of the indexer of cells.
    Environment(IndexerOptions, EnvironmentOptions),
    /// Of the indexer of organisms.
    Organism(IndexerOptions),
    /// Of the indexer that counts.
    Dummy(IndexerOptions),
    /// Of an indexer of the program's own.
    Own(IndexerOptions, OwnIndexer),
    /// Of the query API.
    Query(QueryOptions),
}

impl ServiceOptions {
    /// The type of service that they are for.
    pub fn service_type(&self) -> ServiceType {
        match self {
            ServiceOptions::Tidepool(_) => ServiceType::Tidepool,
            ServiceOptions::Persistence(_) => ServiceType::Persistence,
            ServiceOptions::MetadataPersistence(_) => ServiceType::MetadataPersistence,
            ServiceOptions::MetadataIndexer(_) => ServiceType::MetadataIndexer,
            ServiceOptions::Environment(..) => ServiceType::EnvironmentIndexer,
            ServiceOptions::Organism(_) => ServiceType::OrganismIndexer,
            ServiceOptions::Dummy(_) => ServiceType::DummyIndexer,
            ServiceOptions::Own(..) => ServiceType::Indexer,
            ServiceOptions::Query(_) => ServiceType::Query,
        }
    }
}

/// Options of the indexer of cells.
#[derive(Clone, Debug, PartialEq)]
pub struct EnvironmentOptions {
    /// How cells are stored, by the name under which the strategy is registered.
    pub strategy: String,
    /// Where the strategy is named.
    pub strategy_place: Place,
    /// The width of a tile of `regions` along each axis.
    pub tile_size: u64,
    /// Whether and how blobs are compressed again; as the source did unless configured.
    pub compression: Option<Compression>,
    /// The ticks of a partition on PostgreSQL; `None` without partitions.
    pub partition_ticks: Option<u64>,
}

/// Which indexer of the program's own is meant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnIndexer {
    /// The name under which it is registered.
    pub name: String,
    /// Where it is named.
    pub place: Place,
}

/// Options of the query API.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueryOptions {
    /// Where it listens.
    pub listen: SocketAddr,
    /// Bytes that are decoded at once at most.
    pub query_bytes_max: u64,
}

/// Reads a service.
pub(super) fn read(
    name: &str,
    mut table: Table<'_>,
    store: &str,
    run_id: Option<&String>,
    resources: &[ResourceConfig],
) -> Result<ServiceConfig> {
    let types = ServiceType::ALL.map(|service_type| (service_type.as_str(), service_type));
    let Some(service_type) = table.one_of("type", &types)? else {
        let names: Vec<&str> = types.iter().map(|(name, _)| *name).collect();
        return Err(table.refuse(format_args!("type is missing; expected one of {}", names.join(", "))));
    };
    let own = table.string("run_id")?;
    if let Some(blank) = own.as_ref().filter(|run| run.value.trim().is_empty()) {
        return Err(blank.refuse("blank; expected a run id, or leave it out to follow the newest run"));
    }
    let run_id = own.map(|run| run.value).or_else(|| run_id.cloned());
    let bindings = bindings(service_type, &mut table, resources)?;
    let options = options(service_type, &mut table, run_id.clone(), store)?;
    check_idempotency(&table, &options, &bindings)?;
    let place = table.place();
    table.finish()?;
    Ok(ServiceConfig { name: name.to_owned(), options, bindings, run_id, place })
}

fn bindings(
    service_type: ServiceType,
    table: &mut Table<'_>,
    resources: &[ResourceConfig],
) -> Result<BTreeMap<&'static str, Binding>> {
    let (ports, name) = (service_type.ports(), service_type.as_str());
    let mut bindings = BTreeMap::new();
    let inner = table.inner("resources")?;
    let found = inner.as_ref().map(Table::strings).transpose()?.unwrap_or_default();
    for (port_name, uri) in found {
        let Some(port) = ports.iter().find(|port| port.name == port_name) else {
            let names: Vec<&str> = ports.iter().map(|port| port.name).collect();
            let names = names.join(", ");
            return Err(uri.refuse(format_args!("unknown resource of a {name}; expected one of {names}")));
        };
        let binding = Binding::parse(&uri, resources)?;
        if binding.usage != port.usage {
            return Err(uri.refuse(format_args!(
                "{:?} does not fit; expected {}",
                uri.value,
                port.usage.form()
            )));
        }
        bindings.insert(port.name, binding);
    }
    let is_missing = |port: &&Port| port.is_required && !bindings.contains_key(port.name);
    if let Some(port) = ports.iter().find(is_missing) {
        let (missing, form) = (port.name, port.usage.form());
        return Err(table.refuse(format_args!(
            "resources.{missing} of a {name} is missing; expected {missing} = \"{form}\""
        )));
    }
    Ok(bindings)
}

/// Remembering what is done needs a place for it.
fn check_idempotency(
    table: &Table<'_>,
    options: &ServiceOptions,
    bindings: &BTreeMap<&'static str, Binding>,
) -> Result<()> {
    let is_enabled = match options {
        ServiceOptions::Environment(options, _)
        | ServiceOptions::Organism(options)
        | ServiceOptions::Dummy(options)
        | ServiceOptions::Own(options, _) => options.enable_idempotency,
        _ => false,
    };
    if is_enabled && !bindings.contains_key("idempotency") {
        let form = Usage::DbIdempotency.form();
        return Err(table.refuse(format_args!("enable_idempotency needs resources.idempotency = \"{form}\"")));
    }
    Ok(())
}

fn options(
    service_type: ServiceType,
    table: &mut Table<'_>,
    run_id: Option<String>,
    store: &str,
) -> Result<ServiceOptions> {
    Ok(match service_type {
        ServiceType::Tidepool => ServiceOptions::Tidepool(source(table, store)?),
        ServiceType::Persistence => {
            let default = PersistenceOptions::default();
            ServiceOptions::Persistence(PersistenceOptions {
                run_id,
                batch_size: table
                    .number("batch_size", 1..=100_000)?
                    .map_or(default.batch_size, |n| n as usize),
                batch_timeout_ms: milliseconds(table, "batch_timeout_ms", default.batch_timeout_ms)?,
                batch_attempts: attempts(table)?,
            })
        }
        ServiceType::MetadataPersistence => {
            ServiceOptions::MetadataPersistence(MetadataOptions { run_id, batch_attempts: attempts(table)? })
        }
        ServiceType::MetadataIndexer => {
            ServiceOptions::MetadataIndexer(MetadataOptions { run_id, batch_attempts: attempts(table)? })
        }
        ServiceType::EnvironmentIndexer => {
            ServiceOptions::Environment(indexer(table, run_id)?, environment(table)?)
        }
        ServiceType::OrganismIndexer => ServiceOptions::Organism(indexer(table, run_id)?),
        ServiceType::DummyIndexer => ServiceOptions::Dummy(indexer(table, run_id)?),
        ServiceType::Indexer => {
            let Some(Located { value: name, place, .. }) = table.string("indexer")? else {
                return Err(table.refuse(
                    "indexer is missing; expected the name of an indexer that the program registers",
                ));
            };
            ServiceOptions::Own(indexer(table, run_id)?, OwnIndexer { name, place })
        }
        ServiceType::Query => ServiceOptions::Query(QueryOptions {
            listen: address(table, "listen")?.map_or_else(|| ([127, 0, 0, 1], 7412).into(), |at| at.value),
            query_bytes_max: table.number("query_bytes_max", 1..=1 << 40)?.unwrap_or(256 * 1024 * 1024),
        }),
    })
}

fn milliseconds(table: &mut Table<'_>, name: &'static str, default: u64) -> Result<u64> {
    Ok(table.number(name, 1..=86_400_000)?.unwrap_or(default))
}

/// How often a broken message is tried: below what its topic allows at most.
fn attempts(table: &mut Table<'_>) -> Result<u32> {
    Ok(table.number("batch_attempts", 1..=999)?.map_or(3, |n| n as u32))
}

/// An address with its port.
pub(super) fn address(table: &mut Table<'_>, name: &'static str) -> Result<Option<Located<SocketAddr>>> {
    let Some(text) = table.string(name)? else { return Ok(None) };
    match text.value.parse() {
        Ok(value) => Ok(Some(Located { value, place: text.place, path: text.path })),
        Err(_) => {
            Err(text.refuse(format_args!("{:?} is no address; expected one like 127.0.0.1:7411", text.value)))
        }
    }
}

fn source(table: &mut Table<'_>, store: &str) -> Result<SourceOptions> {
    let default = SourceOptions::default();
    let checkpoint_directory = match table.path("checkpoint_directory")? {
        Some(path) => path.value.into(),
        None => beside(store).ok_or_else(|| {
            table.refuse("checkpoint_directory is missing; expected a directory for what survives a restart of the source")
        })?,
    };
    let number = |found: Option<u64>, default: usize| found.map_or(default, |n| n as usize);
    let options = SourceOptions {
        ticks: table.number("ticks", 1..=i64::MAX as u64)?,
        ticks_per_second: table.fraction("ticks_per_second", 0.001..=1e9)?,
        checkpoint_directory,
        checkpoint_every: table
            .number("checkpoint_every", 1..=i64::MAX as u64)?
            .unwrap_or(default.checkpoint_every),
        publish_ticks_max: number(table.number("publish_ticks_max", 1..=10_000)?, default.publish_ticks_max),
        publish_bytes_max: number(table.number("publish_bytes_max", 1..=1 << 28)?, default.publish_bytes_max),
        tidepool: default.tidepool,
    };
    let Some(inner) = table.inner("tidepool")? else { return Ok(options) };
    let options = SourceOptions { tidepool: inner.deserialize()?, ..options };
    options.validate().map_err(|error| inner.refuse(error))?;
    Ok(options)
}

fn indexer(table: &mut Table<'_>, run_id: Option<String>) -> Result<IndexerOptions> {
    let default = IndexerOptions::default();
    let poll_max = default.metadata_max_poll_duration_ms;
    let number = |found: Option<u64>, default: usize| found.map_or(default, |n| n as usize);
    Ok(IndexerOptions {
        run_id,
        metadata_poll_interval_ms: milliseconds(
            table,
            "metadata_poll_interval_ms",
            default.metadata_poll_interval_ms,
        )?,
        metadata_max_poll_duration_ms: milliseconds(table, "metadata_max_poll_duration_ms", poll_max)?,
        insert_batch_size: number(table.number("insert_batch_size", 1..=100_000)?, default.insert_batch_size),
        flush_timeout_ms: milliseconds(table, "flush_timeout_ms", default.flush_timeout_ms)?,
        enable_idempotency: table.boolean("enable_idempotency")?.unwrap_or(default.enable_idempotency),
        batch_attempts: attempts(table)?,
        buffer_files_max: number(table.number("buffer_files_max", 1..=1_000)?, default.buffer_files_max),
        buffer_bytes_max: table.number("buffer_bytes_max", 1..=1 << 40)?.unwrap_or(default.buffer_bytes_max),
    })
}

fn environment(table: &mut Table<'_>) -> Result<EnvironmentOptions> {
    let (strategy, strategy_place) = match table.string("strategy")? {
        Some(named) => (named.value, named.place),
        None => (STRATEGY_DEFAULT.to_owned(), table.place()),
    };
    let compression = table.inner("compression")?.map(|inner| inner.deserialize()).transpose()?;
    Ok(EnvironmentOptions {
        strategy,
        strategy_place,
        tile_size: table.number("tile_size", 1..=1 << 20)?.unwrap_or(TILE_SIZE_DEFAULT),
        compression,
        partition_ticks: table.number("partition_ticks", 1_000..=1 << 40)?,
    })
}
