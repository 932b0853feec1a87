//! The configuration of a whole pipeline, for one process or for one per service.

use std::path::Path;

use anyhow::Result;
use headwater_pipeline::Config;

use crate::check::STORE_VARIABLE;

/// The environment variable with the directory of files and checkpoints.
pub(super) const DIRECTORY_VARIABLE: &str = "HEADWATER_LAB_DIRECTORY";

/// Services that are there once; the others have two instances, which compete.
pub(super) const SINGLE: [&str; 7] = [
    "source",
    "metadata-persistence",
    "metadata-indexer",
    "persistence-1",
    "environment-1",
    "organism",
    "query",
];

/// What differs from check to check.
#[derive(Clone)]
pub(super) struct Pipeline {
    pub(super) run_id: String,
    pub(super) ticks: u64,
    pub(super) seed: u64,
    /// Cells along each of two axes.
    pub(super) side: u64,
    pub(super) organisms_max: u64,
    /// Ticks of a file, and of a flush.
    pub(super) batch: u64,
    /// After how long an incomplete one is written.
    pub(super) timeout_ms: u64,
    /// Ticks in the queue at which the source waits.
    pub(super) pending_max: u64,
    /// The pace of the source; as fast as the queue takes ticks without one.
    pub(super) ticks_per_second: Option<u64>,
}

impl Pipeline {
    /// The file. Its store and directory are in the environment: a URL may hold a password.
    pub(super) fn text(&self) -> String {
        let Pipeline { run_id, ticks, seed, side, organisms_max, batch, timeout_ms, pending_max, .. } = self;
        let mut text = format!(
            r#"
[pipeline]
store = "${{{STORE_VARIABLE}}}"
run_id = "{run_id}"
[control]
listen = "127.0.0.1:0"
[resources]
tick-queue = {{ type = "queue", pending_max = {pending_max} }}
metadata-queue = {{ type = "queue" }}
batch-topic = {{ type = "topic" }}
metadata-topic = {{ type = "topic" }}
files = {{ type = "storage", url = "${{{DIRECTORY_VARIABLE}}}/files" }}
index = {{ type = "index" }}

[services.query]
type = "query"
listen = "127.0.0.1:0"
resources = {{ index = "db-read:index" }}
[services.metadata-indexer]
type = "metadata-indexer"
resources = {{ announcements = "topic-read:metadata-topic?group=metadata", storage = "storage-read:files", index = "db-meta-write:index" }}
[services.metadata-persistence]
type = "metadata-persistence"
resources = {{ metadata = "queue-in:metadata-queue", storage = "storage-write:files", announcements = "topic-write:metadata-topic" }}
[services.organism]
type = "organism-indexer"
insert_batch_size = {batch}
flush_timeout_ms = {timeout_ms}
resources = {{ batches = "topic-read:batch-topic?group=organisms", storage = "storage-read:files", metadata = "db-meta-read:index", index = "db-org-write:index" }}
"#
        );
        for instance in 1..=2 {
            text += &format!(
                r#"
[services.environment-{instance}]
type = "environment-indexer"
insert_batch_size = {batch}
flush_timeout_ms = {timeout_ms}
resources = {{ batches = "topic-read:batch-topic?group=environment", storage = "storage-read:files", metadata = "db-meta-read:index", index = "db-env-write:index" }}
[services.persistence-{instance}]
type = "persistence"
batch_size = {batch}
batch_timeout_ms = {timeout_ms}
resources = {{ ticks = "queue-in:tick-queue", storage = "storage-write:files", batches = "topic-write:batch-topic" }}
"#
            );
        }
        let pace =
            self.ticks_per_second.map_or_else(String::new, |pace| format!("ticks_per_second = {pace}.0"));
        text += &format!(
            r#"
[services.source]
type = "tidepool"
ticks = {ticks}
{pace}
checkpoint_directory = "${{{DIRECTORY_VARIABLE}}}"
checkpoint_every = {batch}
tidepool = {{ seed = {seed}, dimensions = [{side}, {side}], organisms = {organisms}, organisms_max = {organisms_max} }}
resources = {{ ticks = "queue-out:tick-queue", metadata = "queue-out:metadata-queue" }}
"#,
            organisms = (*organisms_max).min(4),
        );
        text
    }

    /// The same for services of this process.
    pub(super) fn config(&self, store: &str, directory: &Path, services: &[&str]) -> Result<Config> {
        let lookup = |name: &str| match name {
            STORE_VARIABLE => Some(store.to_owned()),
            DIRECTORY_VARIABLE => Some(directory.display().to_string()),
            _ => None,
        };
        let names: Vec<String> = services.iter().map(|&name| name.to_owned()).collect();
        Ok(Config::parse(Path::new("the lab"), &self.text(), &lookup)?.only(&names)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_services_are_configured() {
        let pipeline = Pipeline {
            run_id: "run_20251014_143025_550e8400e29b".into(),
            ticks: 10,
            seed: 7,
            side: 30,
            organisms_max: 8,
            batch: 100,
            timeout_ms: 200,
            pending_max: 500,
            ticks_per_second: Some(400),
        };
        let config = pipeline.config("sqlite:a.db", Path::new("d"), &SINGLE).unwrap();
        assert_eq!(config.services.len(), SINGLE.len());
        assert!(pipeline.config("sqlite:a.db", Path::new("d"), &["environment-2", "persistence-2"]).is_ok());
    }
}
