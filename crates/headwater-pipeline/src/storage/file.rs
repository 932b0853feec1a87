//! The content of files: from ticks to bytes, and back with every check.

use std::fmt;

use bytes::Bytes;
use prost::Message;
use xxhash_rust::xxh3::xxh3_64;

use super::keys;
use crate::cells::{Compression, decompressed};
use crate::contracts::{
    BatchInfo, FORMAT_VERSION, MetadataInfo, SimulationMetadata, TickData, TickDataBatch,
};
use crate::error::{Error, ErrorCode, Result};

/// A batch as it is stored.
pub(super) struct PackedBatch {
    pub(super) run_id: String,
    pub(super) first_tick: i64,
    pub(super) last_tick: i64,
    pub(super) tick_count: u64,
    pub(super) bytes: Bytes,
    pub(super) xxh3_64: u64,
    pub(super) is_compressed: bool,
}

impl PackedBatch {
    /// Sorts the ticks, keeps the first of equal ones, and encodes them.
    pub(super) fn new(mut ticks: Vec<TickData>, compression: Compression) -> Result<Self> {
        let refused = |text: String| Error::permanent(ErrorCode::WriteFailed, text);
        // Stable: the first of equal ones stays in front.
        ticks.sort_by_key(|tick| tick.tick_number);
        let (Some(first), Some(last)) = (ticks.first(), ticks.last()) else {
            return Err(refused("a batch without ticks is not written".into()));
        };
        let (run_id, first_tick, last_tick) = (first.run_id.clone(), first.tick_number, last.tick_number);
        if first_tick < 0 {
            return Err(refused(format!("tick {first_tick} of run {run_id}: ticks are numbered from 0")));
        }
        keys::check_run(&run_id)?;
        if let Some(other) = ticks.iter().find(|tick| tick.run_id != run_id) {
            let TickData { run_id: other_run, tick_number, .. } = other;
            let text = format!(
                "a batch of two runs is not written: tick {first_tick} is of {run_id}, tick {tick_number} of {other_run}"
            );
            return Err(refused(text));
        }
        ticks.dedup_by_key(|tick| tick.tick_number);
        let batch = TickDataBatch { format_version: FORMAT_VERSION, run_id, ticks };
        let bytes = Bytes::from(compression.compress(batch.encode_to_vec()));
        Ok(PackedBatch {
            first_tick,
            last_tick,
            tick_count: batch.ticks.len() as u64,
            xxh3_64: xxh3_64(&bytes),
            bytes,
            run_id: batch.run_id,
            is_compressed: compression != Compression::NONE,
        })
    }
}

/// Metadata with the version of this program's format.
pub(super) fn pack_metadata(metadata: &SimulationMetadata) -> Vec<u8> {
    SimulationMetadata { format_version: FORMAT_VERSION, ..metadata.clone() }.encode_to_vec()
}

/// What a message says about a file.
#[derive(Clone, Copy)]
pub(super) struct Announced<'i> {
    pub(super) run_id: &'i str,
    pub(super) key: &'i str,
    stored_bytes: u64,
    xxh3_64: u64,
}

impl<'i> Announced<'i> {
    pub(super) fn batch(info: &'i BatchInfo) -> Self {
        let BatchInfo { run_id, storage_key: key, stored_bytes, xxh3_64, .. } = info;
        Announced { run_id, key, stored_bytes: *stored_bytes, xxh3_64: *xxh3_64 }
    }

    pub(super) fn metadata(info: &'i MetadataInfo) -> Self {
        let MetadataInfo { run_id, storage_key: key, stored_bytes, xxh3_64, .. } = info;
        Announced { run_id, key, stored_bytes: *stored_bytes, xxh3_64: *xxh3_64 }
    }

    /// A file that is not what was announced.
    pub(super) fn differs(&self, how: impl fmt::Display) -> Error {
        damaged(self.key, how)
    }

    pub(super) fn check_length(&self, stored_bytes: u64) -> Result<()> {
        if stored_bytes == self.stored_bytes {
            return Ok(());
        }
        let announced = self.stored_bytes;
        Err(self.differs(format_args!("length {stored_bytes}, {announced} bytes were announced")))
    }

    fn check_hash(&self, bytes: &[u8]) -> Result<()> {
        let (came, announced) = (xxh3_64(bytes), self.xxh3_64);
        if came == announced {
            return Ok(());
        }
        Err(self.differs(format_args!("checksum {came:016x}, {announced:016x} was announced")))
    }

    fn check_format(&self, name: &str, version: u32) -> Result<()> {
        if (1..=FORMAT_VERSION).contains(&version) {
            return Ok(());
        }
        let known = format!("this program reads versions 1 to {FORMAT_VERSION}");
        Err(self.differs(format_args!("format {name} version {version}, {known}")))
    }

    fn check_run(&self, run_id: &str) -> Result<()> {
        if run_id == self.run_id {
            return Ok(());
        }
        Err(self.differs(format_args!("run {run_id:?}, {:?} was announced", self.run_id)))
    }
}

fn damaged(key: &str, how: impl fmt::Display) -> Error {
    Error::permanent(ErrorCode::DamagedFile, format!("damaged file {key}: {how}"))
}

/// The batch in the bytes of a file, if it is the one that was announced. Cells are slices of the bytes.
pub(super) fn unpack_batch(bytes: Bytes, info: &BatchInfo, file_bytes_max: u64) -> Result<TickDataBatch> {
    let announced = Announced::batch(info);
    announced.check_length(bytes.len() as u64)?;
    announced.check_hash(&bytes)?;
    let batch = parse_batch(bytes, &info.storage_key, file_bytes_max)?;
    announced.check_format("TickDataBatch", batch.format_version)?;
    announced.check_run(&batch.run_id)?;
    check_ticks(&batch, info)?;
    Ok(batch)
}

/// Decompresses and parses a file without comparing it with anything.
pub(super) fn parse_batch(bytes: Bytes, key: &str, file_bytes_max: u64) -> Result<TickDataBatch> {
    let raw = if keys::is_compressed(key) { decompress(&bytes, key, file_bytes_max)? } else { bytes };
    TickDataBatch::decode(raw).map_err(|error| damaged(key, error))
}

fn decompress(bytes: &[u8], key: &str, file_bytes_max: u64) -> Result<Bytes> {
    let raw_bytes =
        zstd::decompressed_size(bytes).ok_or_else(|| damaged(key, "no frame of zstd with its length"))?;
    if raw_bytes > file_bytes_max {
        return Err(damaged(key, format_args!("{raw_bytes} bytes, at most {file_bytes_max} are read")));
    }
    let length = usize::try_from(raw_bytes).map_err(|error| damaged(key, error))?;
    let raw = decompressed(bytes, length).map_err(|error| damaged(key, format_args!("zstd: {error}")))?;
    Ok(raw.into())
}

/// The ticks are those of the announcement: rising, of its run, from its first to its last.
fn check_ticks(batch: &TickDataBatch, info: &BatchInfo) -> Result<()> {
    let announced = Announced::batch(info);
    let ticks = &batch.ticks;
    if ticks.len() as u64 != info.tick_count {
        let (came, count) = (ticks.len(), info.tick_count);
        return Err(announced.differs(format_args!("{came} ticks, {count} were announced")));
    }
    if let Some(other) = ticks.iter().find(|tick| tick.run_id != batch.run_id) {
        let (tick, run) = (other.tick_number, &other.run_id);
        return Err(announced.differs(format_args!("tick {tick} is of run {run:?}")));
    }
    if !ticks.is_sorted_by(|a, b| a.tick_number < b.tick_number) {
        return Err(announced.differs("tick numbers do not rise"));
    }
    let ends = ticks.first().zip(ticks.last()).map(|(first, last)| (first.tick_number, last.tick_number));
    if ends.is_some_and(|ends| ends != (info.first_tick, info.last_tick)) {
        let (first, last) = ends.unwrap_or_default();
        let (from, to) = (info.first_tick, info.last_tick);
        return Err(announced.differs(format_args!("ticks {first} to {last}, {from} to {to} were announced")));
    }
    Ok(())
}

pub(super) fn unpack_metadata(bytes: Bytes, info: &MetadataInfo) -> Result<SimulationMetadata> {
    let announced = Announced::metadata(info);
    announced.check_length(bytes.len() as u64)?;
    announced.check_hash(&bytes)?;
    let metadata = SimulationMetadata::decode(bytes).map_err(|error| announced.differs(error))?;
    announced.check_format("SimulationMetadata", metadata.format_version)?;
    announced.check_run(&metadata.run_id)?;
    Ok(metadata)
}
