//! The configuration of a pipeline: a TOML file with resources, each declared once, and services that bind them by URIs.
//!
//! Everything is checked before anything starts. A refusal names the file, the line, what was expected and the values that are allowed.
//!
//! ```
//! let text = r#"
//! [pipeline]
//! store = "sqlite:tides.db"
//!
//! [resources.batch-topic]
//! type = "topic"
//!
//! [services.counter]
//! type = "dummy-indexer"
//! resources = { batches = "topic-read:batch-topic" }
//! "#;
//! let refused = headwater_pipeline::Config::parse("tides.toml".as_ref(), text, &|_| None).unwrap_err();
//! assert_eq!(
//!     refused.to_string(),
//!     "tides.toml:10: services.counter.resources.batches: \"topic-read:batch-topic\" has no group; \
//!      expected topic-read:NAME?group=GROUP"
//! );
//! ```

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;

use document::{Document, Located, Table};
use headwater::store::{SqlitePath, StoreUrl};

use crate::error::{Error, Result};

mod document;
mod embedded;
mod expand;
mod resources;
mod services;
mod uri;

pub use document::Place;
pub use resources::{IndexConfig, QueueConfig, Resource, ResourceConfig, StorageConfig, TopicConfig, Values};
pub use services::{
    EnvironmentOptions, OwnIndexer, QueryOptions, ServiceConfig, ServiceOptions, ServiceType,
};
pub use uri::{Binding, ReadFrom, Usage};

/// Where the control API listens unless configured.
pub const CONTROL_LISTEN: SocketAddr =
    SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 7_413);

/// A configuration that was checked.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// The store of the base namespace, in which runs are registered; the topics of a run are in a namespace of their own beside it.
    pub store: String,
    /// Where the control API listens: on this machine only. With port 0 the system chooses one.
    pub control: SocketAddr,
    /// Resources in the order of the file.
    pub resources: Vec<ResourceConfig>,
    /// Services in the order in which they are started.
    pub services: Vec<ServiceConfig>,
    /// Of each topic the queue whose messages it announces, as some persistence service of the file has it.
    upstreams: BTreeMap<String, String>,
}

impl Config {
    /// Reads and checks a file. Variables are those of the process.
    pub fn from_file(file: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(file)
            .map_err(|error| Error::invalid(format_args!("{}: {error}", file.display())))?;
        Config::parse(file, &text, &|name| std::env::var(name).ok())
    }

    /// Checks the text of a file; `lookup` finds variables.
    pub fn parse(file: &Path, text: &str, lookup: &dyn Fn(&str) -> Option<String>) -> Result<Self> {
        let document = Document::parse(file, text, lookup)?;
        let mut root = document.table();
        let (store, run_id) = pipeline(&mut root, file)?;
        let control = control(&mut root)?;
        let (declared, configured) = (root.inner("resources")?, root.inner("services")?);
        root.finish()?;
        let mut resources = Vec::new();
        for (name, table) in declared.as_ref().map(Table::all).transpose()?.unwrap_or_default() {
            resources.push(resources::read(&name, table, &store)?);
        }
        let mut services = Vec::new();
        for (name, table) in configured.as_ref().map(Table::all).transpose()?.unwrap_or_default() {
            services.push(services::read(&name, table, &store, run_id.as_ref(), &resources)?);
        }
        let upstreams = services.iter().filter_map(upstream).collect();
        Ok(Config { store, control, resources, services, upstreams })
    }

    /// The queue in front of a topic. A run that has ended is finished for a reader of the topic only once this queue is empty. Known
    /// also where the service between them runs in another process.
    pub fn upstream_of(&self, topic: &str) -> Option<&str> {
        self.upstreams.get(topic).map(String::as_str)
    }

    /// Keeps only these services. One that does not exist is refused with the names of those that do.
    pub fn only(mut self, names: &[String]) -> Result<Self> {
        for name in names {
            if !self.services.iter().any(|service| service.name == *name) {
                let all: Vec<&str> = self.services.iter().map(|service| service.name.as_str()).collect();
                return Err(Error::invalid(format_args!(
                    "no service {name:?}; configured are {}",
                    all.join(", ")
                )));
            }
        }
        self.services.retain(|service| names.contains(&service.name));
        Ok(self)
    }

    /// The binding of a URI, for programs that bind resources themselves.
    pub fn binding(&self, uri: &str) -> Result<Binding> {
        let place = Place { file: "URI".to_owned(), line: 1 };
        Binding::parse(&Located { value: uri.to_owned(), place, path: "binding".to_owned() }, &self.resources)
    }

    /// A resource by its name: every binding's exists.
    pub fn resource(&self, name: &str) -> Option<&ResourceConfig> {
        self.resources.iter().find(|resource| resource.name == name)
    }

    /// The storage of files, for commands that have no service: the first that is declared.
    pub fn storage(&self) -> Result<&StorageConfig> {
        let storage = self.resources.iter().find_map(|resource| match &resource.resource {
            Resource::Storage(storage) => Some(storage),
            _ => None,
        });
        storage.ok_or_else(|| Error::invalid("no resource of type storage is declared"))
    }

    /// The index, for commands that have no service: the first that is declared.
    pub fn index(&self) -> Result<&IndexConfig> {
        let index = self.resources.iter().find_map(|resource| match &resource.resource {
            Resource::Index(index) => Some(index),
            _ => None,
        });
        index.ok_or_else(|| Error::invalid("no resource of type index is declared"))
    }
}

/// The topic that a persistence service announces to, and the queue that it takes from.
fn upstream(service: &ServiceConfig) -> Option<(String, String)> {
    let (queue, topic) = match service.options.service_type() {
        ServiceType::Persistence => ("ticks", "batches"),
        ServiceType::MetadataPersistence => ("metadata", "announcements"),
        _ => return None,
    };
    let named = |port: &str| service.bindings.get(port).map(|binding| binding.resource.clone());
    Some((named(topic)?, named(queue)?))
}

/// The section `[pipeline]`: the store and the run.
fn pipeline(root: &mut Table<'_>, file: &Path) -> Result<(String, Option<String>)> {
    let missing = "store is missing; expected store = \"sqlite:PATH\" or \"postgres://USER@HOST/DATABASE\"";
    let Some(mut table) = root.inner("pipeline")? else {
        return Err(
            Place { file: file.display().to_string(), line: 1 }.refuse(format_args!("pipeline: {missing}"))
        );
    };
    let Some(store) = table.path("store")? else { return Err(table.refuse(missing)) };
    if let StoreUrl::Sqlite(SqlitePath::Memory) =
        StoreUrl::parse(&store.value, None).map_err(|error| store.refuse(error))?
    {
        return Err(store.refuse(
            "each run has a file of its own; expected sqlite:PATH or postgres://USER@HOST/DATABASE",
        ));
    }
    let run_id = table.string("run_id")?;
    if let Some(blank) = run_id.as_ref().filter(|run| run.value.trim().is_empty()) {
        return Err(blank.refuse("blank; expected a run id, or leave it out to follow the newest run"));
    }
    table.finish()?;
    Ok((store.value, run_id.map(|run| run.value)))
}

/// The section `[control]`: it has no access control, so it listens on this machine only.
fn control(root: &mut Table<'_>) -> Result<SocketAddr> {
    let Some(mut table) = root.inner("control")? else { return Ok(CONTROL_LISTEN) };
    let listen = services::address(&mut table, "listen")?;
    if let Some(open) = listen.as_ref().filter(|address| !address.value.ip().is_loopback()) {
        return Err(open.refuse(format_args!(
            "{} is not this machine; expected 127.0.0.1:PORT or [::1]:PORT",
            open.value
        )));
    }
    table.finish()?;
    Ok(listen.map_or(CONTROL_LISTEN, |address| address.value))
}
