//! The file of a run's checkpoint: replaced in one piece, so that a crash leaves the old one or the new one.
//!
//! It begins with the xxh3-64 of the rest, eight bytes, lowest first.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Write as _};
use std::path::{Path, PathBuf};

use prost::Message as _;
use xxhash_rust::xxh3::xxh3_64;

use crate::contracts::TidepoolCheckpoint;
use crate::error::{Error, ErrorCode, Result};

const CHECKSUM_BYTES: usize = 8;

/// Where the checkpoint of one run is.
#[derive(Clone, Debug)]
pub(super) struct CheckpointFile {
    directory: PathBuf,
    run_id: String,
}

impl CheckpointFile {
    pub(super) fn new(directory: &Path, run_id: &str) -> Self {
        CheckpointFile { directory: directory.to_owned(), run_id: run_id.to_owned() }
    }

    fn path(&self) -> PathBuf {
        self.directory.join(format!("{}.checkpoint", self.run_id))
    }

    /// The last one that was written; none at the start of a run.
    pub(super) fn read(&self) -> Result<Option<TidepoolCheckpoint>> {
        let path = self.path();
        let bytes = match fs::read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(failed(ErrorCode::ReadFailed, &path, &error)),
        };
        let damaged = |what: &str| {
            Error::permanent(ErrorCode::DamagedFile, format!("checkpoint {} {what}", path.display()))
        };
        let (checksum, content) =
            bytes.split_first_chunk::<CHECKSUM_BYTES>().ok_or_else(|| damaged("is too short"))?;
        if u64::from_le_bytes(*checksum) != xxh3_64(content) {
            return Err(damaged("has another checksum than content"));
        }
        let checkpoint = TidepoolCheckpoint::decode(content).map_err(|error| damaged(&error.to_string()))?;
        if checkpoint.run_id != self.run_id {
            return Err(damaged(&format!("is of run {}", checkpoint.run_id)));
        }
        Ok(Some(checkpoint))
    }

    /// Durable when this returns.
    pub(super) fn write(&self, checkpoint: &TidepoolCheckpoint) -> Result<()> {
        let mut bytes = vec![0; CHECKSUM_BYTES];
        // A vector takes any length.
        checkpoint.encode(&mut bytes).expect("a growing buffer has room");
        let checksum = xxh3_64(&bytes[CHECKSUM_BYTES..]).to_le_bytes();
        bytes[..CHECKSUM_BYTES].copy_from_slice(&checksum);
        let path = self.path();
        self.replace(&path, &bytes).map_err(|error| failed(ErrorCode::WriteFailed, &path, &error))
    }

    fn replace(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        fs::create_dir_all(&self.directory)?;
        // A name of its own: a source that was dropped may still be writing while its successor begins.
        let unique = uuid::Uuid::now_v7().simple();
        let temporary = self.directory.join(format!("{}.checkpoint.{unique}.tmp", self.run_id));
        let written = write_synced(&temporary, bytes).and_then(|()| fs::rename(&temporary, path));
        if let Err(error) = written {
            // The error of the write says more than one of this.
            let _ = fs::remove_file(&temporary);
            return Err(error);
        }
        // Without it the new name may be gone after a power cut.
        File::open(&self.directory)?.sync_all()
    }

    /// Removes files of writes that a crash interrupted.
    pub(super) fn remove_interrupted(&self) -> Result<()> {
        let failed = |error: io::Error| failed(ErrorCode::WriteFailed, &self.directory, &error);
        let entries = match fs::read_dir(&self.directory) {
            Ok(entries) => entries,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(failed(error)),
        };
        let prefix = format!("{}.checkpoint.", self.run_id);
        for entry in entries {
            let entry = entry.map_err(failed)?;
            let name = entry.file_name();
            let is_temporary =
                name.to_str().is_some_and(|name| name.starts_with(&prefix) && name.ends_with(".tmp"));
            if !is_temporary {
                continue;
            }
            match fs::remove_file(entry.path()) {
                Err(error) if error.kind() != ErrorKind::NotFound => return Err(failed(error)),
                _ => {}
            }
        }
        Ok(())
    }
}

fn write_synced(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = File::create_new(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

/// A place that may not be written or is no directory stays so; a full disk does not.
fn failed(code: ErrorCode, path: &Path, error: &io::Error) -> Error {
    let message = format!("checkpoint {}: {error}", path.display());
    match error.kind() {
        ErrorKind::PermissionDenied
        | ErrorKind::NotADirectory
        | ErrorKind::AlreadyExists
        | ErrorKind::IsADirectory
        | ErrorKind::ReadOnlyFilesystem => Error::permanent(code, message),
        _ => Error::transient(code, message),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checkpoint(run_id: &str, tick: u64) -> TidepoolCheckpoint {
        TidepoolCheckpoint { run_id: run_id.to_owned(), tick, ..TidepoolCheckpoint::default() }
    }

    #[test]
    fn checkpoints_are_replaced_and_kept_apart_by_run() {
        let directory = tempfile::tempdir().expect("a directory");
        let below = directory.path().join("not/there/yet");
        let [one, two] = ["run_1", "run_2"].map(|run_id| CheckpointFile::new(&below, run_id));
        assert_eq!(one.read(), Ok(None));
        one.remove_interrupted().expect("nothing there");
        for tick in [5, 9] {
            one.write(&checkpoint("run_1", tick)).expect("written");
            assert_eq!(one.read(), Ok(Some(checkpoint("run_1", tick))));
        }
        assert_eq!(two.read(), Ok(None));
        assert_eq!(fs::read_dir(&below).expect("a directory").count(), 1);
    }

    #[test]
    fn interrupted_writes_are_removed_and_nothing_else() {
        let directory = tempfile::tempdir().expect("a directory");
        let file = CheckpointFile::new(directory.path(), "run_1");
        file.write(&checkpoint("run_1", 5)).expect("written");
        for name in ["run_1.checkpoint.0.tmp", "run_2.checkpoint.0.tmp", "notes"] {
            fs::write(directory.path().join(name), "half").expect("written");
        }
        file.remove_interrupted().expect("removed");
        let mut left: Vec<_> = fs::read_dir(directory.path())
            .expect("a directory")
            .map(|entry| entry.expect("an entry").file_name().into_string().expect("a name"))
            .collect();
        left.sort_unstable();
        assert_eq!(left, ["notes", "run_1.checkpoint", "run_2.checkpoint.0.tmp"]);
    }

    #[test]
    fn damaged_checkpoints_are_refused_by_name() {
        let directory = tempfile::tempdir().expect("a directory");
        let file = CheckpointFile::new(directory.path(), "run_1");
        file.write(&checkpoint("run_1", 5)).expect("written");
        let whole = fs::read(file.path()).expect("bytes");
        let mut flipped = whole.clone();
        *flipped.last_mut().expect("a byte") ^= 1;
        for bytes in [&whole[..5], &whole[..whole.len() - 1], &flipped] {
            fs::write(file.path(), bytes).expect("written");
            let error = file.read().expect_err("damaged");
            assert_eq!(error.code(), ErrorCode::DamagedFile);
            assert!(error.to_string().contains("run_1.checkpoint"), "{error}");
        }
        CheckpointFile::new(directory.path(), "run_1").write(&checkpoint("run_2", 5)).expect("written");
        assert_eq!(file.read().expect_err("of another run").code(), ErrorCode::DamagedFile);
    }

    #[test]
    fn a_file_in_the_place_of_the_directory_is_not_waited_out() {
        let directory = tempfile::tempdir().expect("a directory");
        let taken = directory.path().join("taken");
        fs::write(&taken, "a file").expect("written");
        let error = CheckpointFile::new(&taken, "run_1").write(&checkpoint("run_1", 5)).expect_err("refused");
        assert!(!error.is_transient() && error.code() == ErrorCode::WriteFailed, "{error:?}");
    }
}
