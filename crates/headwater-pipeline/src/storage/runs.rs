//! The files of a run: listed, counted, and removed with it.

use jiff::Timestamp;

use super::{FileStorage, keys};
use crate::error::Result;

/// A batch file, by its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredBatch {
    /// Its storage key.
    pub key: String,
    /// The first tick in its name.
    pub first_tick: i64,
    /// The last tick in its name.
    pub last_tick: i64,
    /// Its length.
    pub stored_bytes: u64,
    /// When it was written, by the clock of the storage.
    pub modified_at: Timestamp,
}

/// A number of files and their length.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Size {
    /// How many files.
    pub files: u64,
    /// Their bytes together.
    pub bytes: u64,
}

/// What a run has in storage, by kind: for the dry run of dropping it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RunSizes {
    /// The metadata file.
    pub metadata: Size,
    /// Batch files.
    pub batches: Size,
    /// Payloads that were too large for a message.
    pub claims: Size,
    /// Files that the pipeline did not write.
    pub others: Size,
}

impl Size {
    fn add(&mut self, bytes: u64) {
        self.files += 1;
        self.bytes += bytes;
    }
}

impl RunSizes {
    /// All of it.
    pub fn total(&self) -> Size {
        let RunSizes { metadata, batches, claims, others } = self;
        let kinds = [metadata, batches, claims, others];
        Size {
            files: kinds.iter().map(|size| size.files).sum(),
            bytes: kinds.iter().map(|size| size.bytes).sum(),
        }
    }
}

impl FileStorage {
    /// The batch files of a run, by their first tick. Other files are left out.
    pub async fn list_batches(&self, run_id: &str) -> Result<Vec<StoredBatch>> {
        keys::check_run(run_id)?;
        let mut batches: Vec<StoredBatch> = Vec::new();
        for file in self.objects.list(&keys::batches(run_id)).await? {
            if let Some((first_tick, last_tick)) = keys::ticks_of(run_id, &file.key) {
                let (key, stored_bytes, modified_at) = (file.key, file.stored_bytes, file.modified_at);
                batches.push(StoredBatch { key, first_tick, last_tick, stored_bytes, modified_at });
            }
        }
        Ok(batches)
    }

    /// How many files a run has, and of which length.
    pub async fn sizes(&self, run_id: &str) -> Result<RunSizes> {
        keys::check_run(run_id)?;
        let mut sizes = RunSizes::default();
        for file in self.objects.list(&format!("{run_id}/")).await? {
            let size = if file.key == keys::metadata(run_id) {
                &mut sizes.metadata
            } else if keys::ticks_of(run_id, &file.key).is_some() {
                &mut sizes.batches
            } else if file.key.starts_with(&keys::claims(run_id)) {
                &mut sizes.claims
            } else {
                &mut sizes.others
            };
            size.add(file.stored_bytes);
        }
        Ok(sizes)
    }

    /// Removes all files of a run and returns what they were. Repeated after a crash it removes the rest.
    pub async fn delete_run(&self, run_id: &str) -> Result<RunSizes> {
        let sizes = self.sizes(run_id).await?;
        let files = self.objects.list(&format!("{run_id}/")).await?;
        self.objects.delete(files.into_iter().map(|file| file.key).collect()).await?;
        self.objects.remove_folder(run_id).await?;
        Ok(sizes)
    }
}
