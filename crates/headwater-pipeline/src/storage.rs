//! Batch files and metadata in a local directory or an object store.
//!
//! ```text
//! {run}/metadata.pb
//! {run}/raw/batch_{first:019}_{last:019}.pb      .zst behind it if the file as a whole is compressed
//! {run}/claims/{message id}                      payloads that were too large for a message: claim_check.rs
//! ```
//! A file is there as a whole or not at all: it is written under a temporary name and renamed, or put in one piece. When a write
//! returns, file and directory are on stable storage.

use std::collections::BTreeMap;
use std::fmt;

use async_trait::async_trait;
use bytes::Bytes;
use jiff::Timestamp;
use prost::Message;
use xxhash_rust::xxh3::xxh3_64;

use crate::cells::Compression;
use crate::contracts::{BatchInfo, MetadataInfo, SimulationMetadata, TickData, TickDataBatch};
use crate::error::{Error, ErrorCode, Result};
use crate::resource::{BatchStorageRead, BatchStorageWrite};

mod check;
mod file;
pub(crate) mod keys;
pub(crate) mod objects;
mod place;
mod runs;

pub use check::{Finding, Problem};
use file::{Announced, PackedBatch};
use objects::{Objects, Put};
pub use runs::{RunSizes, Size, StoredBatch};

/// Largest file after decompression, unless configured otherwise.
pub const FILE_BYTES_MAX: u64 = 1024 * 1024 * 1024;

/// How files are stored.
#[derive(Clone, PartialEq, Eq)]
pub struct StorageSettings {
    /// How a batch file is compressed as a whole. None by default: the cells in it are compressed already.
    pub compression: Compression,
    /// Largest file after decompression; a larger one is refused.
    pub file_bytes_max: u64,
    /// Options of an object store by their usual names: `region`, `endpoint`, `access_key_id` and so on. They take precedence over
    /// environment variables; a local directory has none.
    pub options: BTreeMap<String, String>,
}

impl Default for StorageSettings {
    fn default() -> Self {
        let options = BTreeMap::new();
        StorageSettings { compression: Compression::NONE, file_bytes_max: FILE_BYTES_MAX, options }
    }
}

impl fmt::Debug for StorageSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Values may be secrets.
        let options: Vec<&String> = self.options.keys().collect();
        f.debug_struct("StorageSettings")
            .field("compression", &self.compression)
            .field("file_bytes_max", &self.file_bytes_max)
            .field("options", &options)
            .finish()
    }
}

/// Files of runs. Cheap to clone.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> headwater_pipeline::Result<()> {
/// use headwater_pipeline::contracts::TickData;
/// use headwater_pipeline::resource::{BatchStorageRead, BatchStorageWrite};
/// use headwater_pipeline::storage::{FileStorage, StorageSettings};
///
/// # let directory = tempfile::tempdir().expect("a directory");
/// # let path = directory.path().to_str().expect("text");
/// let storage = FileStorage::open(path, StorageSettings::default()).await?; // or file:///…, s3://…, gs://…, az://…
/// let tick = |tick_number| TickData { run_id: "run_1".into(), tick_number, ..TickData::default() };
/// let info = storage.write_batch(vec![tick(8), tick(7)]).await?;
/// assert_eq!(info.storage_key, "run_1/raw/batch_0000000000000000007_0000000000000000008.pb");
/// assert_eq!(storage.read_batch(&info).await?.ticks.len(), 2);
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct FileStorage {
    objects: Objects,
    settings: StorageSettings,
}

impl FileStorage {
    /// Opens a local directory, which is created if it is missing, or an object store by its URL: `s3://bucket/folder`, `gs://…`, `az://…`, if
    /// this program was built with the feature `aws`, `gcp` or `azure`; `memory:` is for tests.
    pub async fn open(location: &str, settings: StorageSettings) -> Result<Self> {
        let objects = place::open(location, &settings.options).await?;
        Ok(FileStorage { objects, settings })
    }

    /// Files in memory, dropped with the last clone: for tests.
    pub fn in_memory() -> Self {
        FileStorage { objects: Objects::in_memory(), settings: StorageSettings::default() }
    }

    /// Where it is: the directory or the URL.
    pub fn location(&self) -> &str {
        self.objects.location()
    }

    pub(crate) fn objects(&self) -> &Objects {
        &self.objects
    }

    /// Writes a batch under its key, or under one with its hash if another batch of the same range is there.
    ///
    /// A file is never replaced by one with other content. After a crash the ticks of a range are gathered anew, perhaps together with
    /// others in between, so two different batches may have the same first and last tick. If the second replaced the first, the first
    /// one's announcement would name a checksum that no file has, and the second one's would be dropped as a repeat of the same key:
    /// its ticks would be lost.
    async fn put_batch(&self, batch: &PackedBatch) -> Result<String> {
        let key = keys::batch(&batch.run_id, batch.first_tick, batch.last_tick, None, batch.is_compressed);
        match self.objects.create(&key, batch.bytes.clone()).await? {
            Put::Created => return Ok(key),
            Put::Exists(there) if there == batch.bytes => return Ok(key),
            Put::Exists(_) => {}
        }
        let copy = Some(batch.xxh3_64);
        let key = keys::batch(&batch.run_id, batch.first_tick, batch.last_tick, copy, batch.is_compressed);
        // Whatever has this key has this content.
        self.objects.replace(&key, batch.bytes.clone()).await?;
        Ok(key)
    }

    async fn put_metadata(&self, run_id: &str, key: &str, bytes: &Bytes) -> Result<()> {
        match self.objects.create(key, bytes.clone()).await? {
            Put::Created => Ok(()),
            Put::Exists(there) if there == bytes => Ok(()),
            Put::Exists(there)
                if SimulationMetadata::decode(there.clone()).is_ok_and(|found| found.run_id == run_id) =>
            {
                let rule = "metadata are written once, and other content is refused";
                Err(Error::permanent(
                    ErrorCode::WriteFailed,
                    format!("metadata of run {run_id} are in {key} already: {rule}"),
                ))
            }
            Put::Exists(_) => {
                tracing::warn!(key, "damaged metadata file replaced");
                self.objects.replace(key, bytes.clone()).await
            }
        }
    }

    /// The bytes of an announced file, if they are those that were announced.
    async fn read(&self, announced: Announced<'_>) -> Result<Bytes> {
        keys::check_run(announced.run_id).map_err(|error| announced.differs(error))?;
        if !announced.key.starts_with(&format!("{}/", announced.run_id)) {
            return Err(
                announced.differs(format_args!("it is not in the folder of run {}", announced.run_id))
            );
        }
        let Some(object) = self.objects.get(announced.key).await? else {
            return Err(self.missing(announced).await);
        };
        announced.check_length(object.stored_bytes())?;
        object.bytes().await
    }

    /// A file that was announced and is not there. If nothing of its run is there, the directory is probably not mounted, which
    /// waiting may end; a file that is missing among others is lost.
    async fn missing(&self, announced: Announced<'_>) -> Error {
        let (key, place) = (announced.key, self.location());
        match self.objects.has_any(&format!("{}/", announced.run_id)).await {
            Ok(true) => Error::permanent(
                ErrorCode::ReadFailed,
                format!("file {key} was announced and is not in {place}"),
            ),
            Ok(false) => {
                let text =
                    format!("file {key} was announced, and {place} has no file of its run: is it mounted?");
                Error::transient(ErrorCode::ReadFailed, text)
            }
            Err(error) => error,
        }
    }
}

#[async_trait]
impl BatchStorageWrite for FileStorage {
    async fn write_batch(&self, ticks: Vec<TickData>) -> Result<BatchInfo> {
        let compression = self.settings.compression;
        let batch = blocking(ErrorCode::WriteFailed, move || PackedBatch::new(ticks, compression)).await?;
        let storage_key = self.put_batch(&batch).await?;
        Ok(BatchInfo {
            run_id: batch.run_id,
            storage_key,
            first_tick: batch.first_tick,
            last_tick: batch.last_tick,
            tick_count: batch.tick_count,
            written_at_ms: Timestamp::now().as_millisecond(),
            stored_bytes: batch.bytes.len() as u64,
            xxh3_64: batch.xxh3_64,
        })
    }

    async fn write_metadata(&self, metadata: &SimulationMetadata) -> Result<MetadataInfo> {
        keys::check_run(&metadata.run_id)?;
        let storage_key = keys::metadata(&metadata.run_id);
        let bytes = Bytes::from(file::pack_metadata(metadata));
        self.put_metadata(&metadata.run_id, &storage_key, &bytes).await?;
        Ok(MetadataInfo {
            run_id: metadata.run_id.clone(),
            storage_key,
            written_at_ms: Timestamp::now().as_millisecond(),
            stored_bytes: bytes.len() as u64,
            xxh3_64: xxh3_64(&bytes),
        })
    }
}

#[async_trait]
impl BatchStorageRead for FileStorage {
    /// Cells of the result are slices of the file's bytes, which stay in memory as long as one of them does.
    async fn read_batch(&self, info: &BatchInfo) -> Result<TickDataBatch> {
        let bytes = self.read(Announced::batch(info)).await?;
        let (info, file_bytes_max) = (info.clone(), self.settings.file_bytes_max);
        blocking(ErrorCode::ReadFailed, move || file::unpack_batch(bytes, &info, file_bytes_max)).await
    }

    async fn read_metadata(&self, info: &MetadataInfo) -> Result<SimulationMetadata> {
        let bytes = self.read(Announced::metadata(info)).await?;
        file::unpack_metadata(bytes, info)
    }
}

/// Packing and checking a file take milliseconds of computing: not on a thread that serves other tasks.
async fn blocking<T: Send + 'static>(
    code: ErrorCode,
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            Err(error) => Err(Error::transient(code, format!("runtime is shutting down: {error}"))),
        },
    }
}

#[cfg(test)]
mod tests;
