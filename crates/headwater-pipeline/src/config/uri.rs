//! How a service names what it uses: `usage:resource?param=value`.

use std::fmt;
use std::time::Duration;

use super::document::{Located, Place};
use super::resources::{Resource, ResourceConfig, Values};
use crate::error::Result;

/// What a service does with a resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Usage {
    /// Publishes to a topic.
    TopicWrite,
    /// Reads a topic as a member of a group.
    TopicRead,
    /// Reads files.
    StorageRead,
    /// Writes files.
    StorageWrite,
    /// Reads metadata of the index.
    DbMetaRead,
    /// Writes metadata of the index.
    DbMetaWrite,
    /// Writes cells.
    DbEnvWrite,
    /// Writes organisms.
    DbOrgWrite,
    /// Knows batches that are done.
    DbIdempotency,
    /// Answers queries.
    DbRead,
    /// Takes from a queue.
    QueueIn,
    /// Adds to a queue.
    QueueOut,
}

impl Usage {
    /// All of them.
    pub const ALL: [Usage; 12] = [
        Usage::TopicWrite,
        Usage::TopicRead,
        Usage::StorageRead,
        Usage::StorageWrite,
        Usage::DbMetaRead,
        Usage::DbMetaWrite,
        Usage::DbEnvWrite,
        Usage::DbOrgWrite,
        Usage::DbIdempotency,
        Usage::DbRead,
        Usage::QueueIn,
        Usage::QueueOut,
    ];

    /// Its name in a URI.
    pub fn as_str(self) -> &'static str {
        match self {
            Usage::TopicWrite => "topic-write",
            Usage::TopicRead => "topic-read",
            Usage::StorageRead => "storage-read",
            Usage::StorageWrite => "storage-write",
            Usage::DbMetaRead => "db-meta-read",
            Usage::DbMetaWrite => "db-meta-write",
            Usage::DbEnvWrite => "db-env-write",
            Usage::DbOrgWrite => "db-org-write",
            Usage::DbIdempotency => "db-idempotency",
            Usage::DbRead => "db-read",
            Usage::QueueIn => "queue-in",
            Usage::QueueOut => "queue-out",
        }
    }

    /// The URI with its parameters that cannot be left out.
    pub(super) fn form(self) -> String {
        let required = if self == Usage::TopicRead { "?group=GROUP" } else { "" };
        format!("{}:NAME{required}", self.as_str())
    }

    /// The type of resource that it is for.
    pub(super) fn resource_type(self) -> &'static str {
        match self {
            Usage::TopicWrite | Usage::TopicRead => "topic",
            Usage::StorageRead | Usage::StorageWrite => "storage",
            Usage::QueueIn | Usage::QueueOut => "queue",
            _ => "index",
        }
    }

    /// Its parameters.
    fn parameters(self) -> &'static [&'static str] {
        match self {
            Usage::TopicRead => &["group", "metrics_window_s", "start"],
            Usage::TopicWrite | Usage::StorageRead | Usage::StorageWrite => &["metrics_window_s"],
            Usage::QueueIn => &["buffer_bytes_max", "metrics_window_s"],
            Usage::QueueOut => &["metrics_window_s", "pending_bytes_max", "pending_max"],
            _ => &["connections_idle_min", "connections_max", "metrics_window_s"],
        }
    }
}

impl fmt::Display for Usage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Where a new group of a topic starts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReadFrom {
    /// At the first message: a group made after the run's end reads all of it.
    #[default]
    Beginning,
    /// After everything published before.
    Now,
}

/// A resource as one service uses it. A value is the URI's, else the resource's, else the default.
#[derive(Clone, Debug, PartialEq)]
pub struct Binding {
    /// What the service does with it.
    pub usage: Usage,
    /// The name of the resource.
    pub resource: String,
    /// The URI as configured.
    pub uri: String,
    /// The group of a reader.
    pub group: Option<String>,
    /// Where a new group starts.
    pub start: ReadFrom,
    /// The width of the windows of rates and percentiles.
    pub metrics_window: Duration,
    /// The values that a resource has too.
    pub values: Values,
    /// Where it is configured.
    pub place: Place,
}

impl Binding {
    /// Parses a URI and finds its resource.
    pub(super) fn parse(uri: &Located<String>, resources: &[ResourceConfig]) -> Result<Self> {
        let (usage, rest) = usage_of(uri)?;
        let (resource, query) = rest.split_once('?').unwrap_or((rest, ""));
        if resource.trim().is_empty() {
            return Err(uri.refuse(format_args!(
                "{:?} names no resource; expected {}",
                uri.value,
                usage.form()
            )));
        }
        let Some(config) = resources.iter().find(|config| config.name == resource) else {
            let names: Vec<&str> = resources.iter().map(|config| config.name.as_str()).collect();
            return Err(
                uri.refuse(format_args!("no resource {resource:?}; declared are {}", names.join(", ")))
            );
        };
        if config.resource.type_name() != usage.resource_type() {
            let (found, wanted) = (config.resource.type_name(), usage.resource_type());
            return Err(
                uri.refuse(format_args!("resource {resource} is a {found}, and {usage} expects a {wanted}"))
            );
        }
        let mut binding = Binding {
            usage,
            resource: resource.to_owned(),
            uri: uri.value.clone(),
            group: None,
            start: ReadFrom::default(),
            metrics_window: Duration::from_secs(config.metrics_window_s),
            values: config.resource.values(),
            place: uri.place.clone(),
        };
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            binding.set(uri, pair)?;
        }
        if usage == Usage::TopicRead && binding.group.is_none() {
            return Err(uri.refuse(format_args!("{:?} has no group; expected {}", uri.value, usage.form())));
        }
        Ok(binding)
    }

    fn set(&mut self, uri: &Located<String>, pair: &str) -> Result<()> {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        let (usage, parameters) = (self.usage, self.usage.parameters());
        if !parameters.contains(&name) {
            let allowed = parameters.join(", ");
            return Err(
                uri.refuse(format_args!("unknown parameter {name:?} of {usage}; expected one of {allowed}"))
            );
        }
        let number = |low: u64, high: u64| {
            value.parse::<u64>().ok().filter(|number| (low..=high).contains(number)).ok_or_else(|| {
                uri.refuse(format_args!("{name}={value}: expected a whole number from {low} to {high}"))
            })
        };
        match name {
            "group" if value.trim().is_empty() => {
                return Err(uri.refuse(format_args!("blank group; expected {}", usage.form())));
            }
            "group" => self.group = Some(value.to_owned()),
            "start" => {
                self.start = match value {
                    "beginning" => ReadFrom::Beginning,
                    "now" => ReadFrom::Now,
                    _ => return Err(uri.refuse(format_args!("start={value}: expected beginning or now"))),
                }
            }
            "metrics_window_s" => self.metrics_window = Duration::from_secs(number(1, 3_600)?),
            "connections_max" => self.values.connections_max = number(1, 1_000)? as usize,
            "connections_idle_min" => self.values.connections_idle_min = number(0, 1_000)? as usize,
            "pending_max" => self.values.pending_max = number(1, 1_000_000)?,
            "pending_bytes_max" => self.values.pending_bytes_max = number(1, 1 << 40)?,
            "buffer_bytes_max" => self.values.buffer_bytes_max = number(1, 1 << 40)?,
            _ => unreachable!("a parameter that is listed is handled"),
        }
        Ok(())
    }
}

fn usage_of(uri: &Located<String>) -> Result<(Usage, &str)> {
    let all: Vec<&str> = Usage::ALL.iter().map(|usage| usage.as_str()).collect();
    let all = all.join(", ");
    let Some((word, rest)) = uri.value.split_once(':') else {
        let text = &uri.value;
        return Err(
            uri.refuse(format_args!("{text:?} has no usage type; expected USAGE:NAME with one of {all}"))
        );
    };
    match Usage::ALL.into_iter().find(|usage| usage.as_str() == word) {
        Some(usage) => Ok((usage, rest)),
        None => Err(uri.refuse(format_args!("unknown usage type {word:?}; expected one of {all}"))),
    }
}

impl Resource {
    /// The values that a URI may replace.
    fn values(&self) -> Values {
        match self {
            Resource::Topic(_) | Resource::Storage(_) => Values::default(),
            Resource::Queue(queue) => queue.values,
            Resource::Index(index) => index.values,
        }
    }
}
