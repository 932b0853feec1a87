//! The options of an indexer, and which components it uses.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::buffer::Limits;
use super::metadata::Patience;
use crate::error::{Error, Result};

/// Flushes whose ticks are in memory at most, the one under way included: a file is read long before its turn, and memory stays small.
const FLUSHES_AHEAD: u64 = 6;

/// The options of an indexer, by the names of its configuration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct IndexerOptions {
    /// The only run to index; without it the newest one is followed.
    pub run_id: Option<String>,
    /// How often the metadata is read while it is missing.
    pub metadata_poll_interval_ms: u64,
    /// After how long without metadata the indexer gives up, from the discovery of the run.
    pub metadata_max_poll_duration_ms: u64,
    /// Ticks in one flush at most.
    pub insert_batch_size: usize,
    /// After how long a buffered tick is flushed.
    pub flush_timeout_ms: u64,
    /// Whether batches known to be done are skipped.
    pub enable_idempotency: bool,
    /// How often a batch that is broken is tried before it becomes a dead letter.
    pub batch_attempts: u32,
    /// Batch files in the buffer at most.
    pub buffer_files_max: usize,
    /// Bytes of batches that are read or buffered at most.
    pub buffer_bytes_max: u64,
}

impl Default for IndexerOptions {
    fn default() -> Self {
        IndexerOptions {
            run_id: None,
            metadata_poll_interval_ms: 1_000,
            metadata_max_poll_duration_ms: 300_000,
            insert_batch_size: 1_000,
            flush_timeout_ms: 5_000,
            enable_idempotency: false,
            batch_attempts: 3,
            buffer_files_max: 16,
            buffer_bytes_max: 256 * 1024 * 1024,
        }
    }
}

/// The components of an indexer; idempotency is an option ([`IndexerOptions::enable_idempotency`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Components {
    /// Waits for the metadata of the run before the schema is prepared.
    pub metadata: bool,
    /// Collects ticks across batch files. Without it each tick is flushed alone.
    pub buffering: bool,
}

impl Components {
    /// Metadata and buffering: what most indexers use.
    pub const ALL: Components = Components { metadata: true, buffering: true };
    /// Metadata only.
    pub const METADATA: Components = Components { metadata: true, buffering: false };
    /// None.
    pub const NONE: Components = Components { metadata: false, buffering: false };
}

impl IndexerOptions {
    /// Refuses what cannot work, with the option's name.
    pub fn validate(&self) -> Result<()> {
        if self.run_id.as_deref().is_some_and(|run_id| run_id.trim().is_empty()) {
            return Err(Error::invalid("run_id is blank"));
        }
        for (name, value) in [
            ("metadata_poll_interval_ms", self.metadata_poll_interval_ms),
            ("metadata_max_poll_duration_ms", self.metadata_max_poll_duration_ms),
            ("insert_batch_size", self.insert_batch_size as u64),
            ("flush_timeout_ms", self.flush_timeout_ms),
            ("batch_attempts", u64::from(self.batch_attempts)),
            ("buffer_files_max", self.buffer_files_max as u64),
            ("buffer_bytes_max", self.buffer_bytes_max),
        ] {
            if value == 0 {
                return Err(Error::invalid(format!("{name} is 0, expected at least 1")));
            }
        }
        Ok(())
    }

    pub(super) fn patience(&self) -> Patience {
        Patience {
            poll_interval: Duration::from_millis(self.metadata_poll_interval_ms),
            poll_duration_max: Duration::from_millis(self.metadata_max_poll_duration_ms),
        }
    }

    /// Without buffering a flush is due as soon as there is a tick, and has one.
    pub(super) fn limits(&self, buffering: bool) -> Limits {
        let (insert_batch_size, flush_timeout) = match buffering {
            true => (self.insert_batch_size, Duration::from_millis(self.flush_timeout_ms)),
            false => (1, Duration::ZERO),
        };
        let (files_max, bytes_max) = (self.buffer_files_max, self.buffer_bytes_max);
        let ticks_ahead = FLUSHES_AHEAD.saturating_mul(self.insert_batch_size as u64);
        Limits { insert_batch_size, flush_timeout, files_max, bytes_max, ticks_ahead }
    }
}
