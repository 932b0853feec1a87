//! Files in memory.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use prost::Message;

use super::{Faults, lock, tick};
use crate::contracts::{
    BatchInfo, FORMAT_VERSION, MetadataInfo, SimulationMetadata, TickData, TickDataBatch,
};
use crate::error::{Error, ErrorCode, Result};
use crate::resource::{BatchStorageRead, BatchStorageWrite};

/// Files in memory. Cheap to clone.
#[derive(Clone, Default)]
pub struct MemoryStorage {
    batches: Arc<Mutex<BTreeMap<String, TickDataBatch>>>,
    metadata: Arc<Mutex<BTreeMap<String, SimulationMetadata>>>,
    /// Of reads.
    pub reads: Faults,
    /// Of writes.
    pub writes: Faults,
}

impl MemoryStorage {
    /// Stores ticks of these numbers; an empty range makes a file without ticks.
    pub fn put(&self, run_id: &str, numbers: Range<i64>) -> BatchInfo {
        let (first, last) = (numbers.start, (numbers.end - 1).max(numbers.start));
        self.store(run_id, first, last, numbers.map(|number| tick(run_id, number)).collect())
    }

    /// The files, by key, with their tick numbers.
    pub fn files(&self) -> BTreeMap<String, Vec<i64>> {
        let numbers = |batch: &TickDataBatch| batch.ticks.iter().map(|tick| tick.tick_number).collect();
        lock(&self.batches).iter().map(|(key, batch)| (key.clone(), numbers(batch))).collect()
    }

    /// Whether the metadata of a run was written.
    pub fn has_metadata(&self, run_id: &str) -> bool {
        lock(&self.metadata).contains_key(&format!("{run_id}/metadata.pb"))
    }

    fn store(&self, run_id: &str, first_tick: i64, last_tick: i64, ticks: Vec<TickData>) -> BatchInfo {
        let storage_key = format!("{run_id}/raw/batch_{first_tick:019}_{last_tick:019}.pb");
        let tick_count = ticks.len() as u64;
        let batch = TickDataBatch { format_version: FORMAT_VERSION, run_id: run_id.to_owned(), ticks };
        let stored_bytes = batch.encoded_len() as u64;
        lock(&self.batches).insert(storage_key.clone(), batch);
        let run_id = run_id.to_owned();
        BatchInfo {
            run_id,
            storage_key,
            first_tick,
            last_tick,
            tick_count,
            stored_bytes,
            ..BatchInfo::default()
        }
    }
}

fn missing(key: &str) -> Error {
    Error::permanent(ErrorCode::ReadFailed, format!("no file {key}"))
}

#[async_trait]
impl BatchStorageRead for MemoryStorage {
    async fn read_batch(&self, info: &BatchInfo) -> Result<TickDataBatch> {
        self.reads.meet().await?;
        lock(&self.batches).get(&info.storage_key).cloned().ok_or_else(|| missing(&info.storage_key))
    }

    async fn read_metadata(&self, info: &MetadataInfo) -> Result<SimulationMetadata> {
        self.reads.meet().await?;
        lock(&self.metadata).get(&info.storage_key).cloned().ok_or_else(|| missing(&info.storage_key))
    }
}

#[async_trait]
impl BatchStorageWrite for MemoryStorage {
    async fn write_batch(&self, mut ticks: Vec<TickData>) -> Result<BatchInfo> {
        self.writes.meet().await?;
        ticks.sort_by_key(|tick| tick.tick_number);
        ticks.dedup_by_key(|tick| tick.tick_number);
        if let Some(TickData { tick_number: negative @ ..0, .. }) = ticks.first() {
            let text = format!("tick {negative} is refused");
            return Err(Error::permanent(ErrorCode::WriteFailed, text));
        }
        let [first, .., last] = &ticks[..] else {
            let [only] = &ticks[..] else { return Err(Error::invalid("a batch without ticks")) };
            let (run_id, number) = (only.run_id.clone(), only.tick_number);
            return Ok(self.store(&run_id, number, number, ticks));
        };
        if ticks.iter().any(|tick| tick.run_id != first.run_id) {
            return Err(Error::invalid("ticks of two runs"));
        }
        let (run_id, first, last) = (first.run_id.clone(), first.tick_number, last.tick_number);
        Ok(self.store(&run_id, first, last, ticks))
    }

    async fn write_metadata(&self, metadata: &SimulationMetadata) -> Result<MetadataInfo> {
        self.writes.meet().await?;
        let storage_key = format!("{}/metadata.pb", metadata.run_id);
        let mut files = lock(&self.metadata);
        if files.get(&storage_key).is_some_and(|there| there != metadata) {
            return Err(Error::permanent(ErrorCode::WriteFailed, format!("{storage_key} has other content")));
        }
        files.insert(storage_key.clone(), metadata.clone());
        drop(files);
        let stored_bytes = metadata.encoded_len() as u64;
        Ok(MetadataInfo {
            run_id: metadata.run_id.clone(),
            storage_key,
            stored_bytes,
            ..MetadataInfo::default()
        })
    }
}
