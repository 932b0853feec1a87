//! Files by key, whatever stores them: durable when written, and errors that say whether waiting helps.

use std::collections::HashSet;
use std::path::{Path as FilePath, PathBuf};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt, stream};
use jiff::Timestamp;
use object_store::local::LocalFileSystem;
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{
    Error as StoreError, GetOptions, GetResult, ObjectMeta, ObjectStore, PutMode, PutOptions,
};

use super::blocking;
use crate::error::{Error, ErrorCode, Result};

/// Files by key.
#[derive(Clone, Debug)]
pub(crate) struct Objects {
    store: Arc<dyn ObjectStore>,
    location: Arc<str>,
    local: Option<Arc<Local>>,
}

/// A directory of this machine.
#[derive(Debug)]
struct Local {
    root: PathBuf,
    /// Directories whose own entries in their parents are known to be durable.
    synced: Mutex<HashSet<PathBuf>>,
}

/// The result of [`Objects::create`].
pub(crate) enum Put {
    /// Written.
    Created,
    /// A file of that key is there, with this content.
    Exists(Bytes),
}

/// A file that was opened.
pub(crate) struct Object {
    key: String,
    result: GetResult,
}

/// A file in a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Listed {
    pub(crate) key: String,
    pub(crate) stored_bytes: u64,
    pub(crate) modified_at: Timestamp,
}

impl Objects {
    pub(super) fn new(store: Arc<dyn ObjectStore>, location: &str) -> Self {
        Objects { store, location: location.into(), local: None }
    }

    pub(super) fn in_memory() -> Self {
        Objects::new(Arc::new(InMemory::new()), "memory:")
    }

    /// A directory that exists.
    pub(super) fn in_directory(root: PathBuf) -> Result<Self> {
        // Without it a write returns while the file is in memory only.
        let store = LocalFileSystem::new_with_prefix(&root).map(|store| store.with_fsync(true));
        let store = store.map_err(|error| {
            Error::transient(ErrorCode::WriteFailed, format!("directory {}: {error}", root.display()))
        })?;
        let location = root.display().to_string();
        let local = Some(Arc::new(Local { root, synced: Mutex::default() }));
        Ok(Objects { store: Arc::new(store), location: location.into(), local })
    }

    pub(super) fn location(&self) -> &str {
        &self.location
    }

    /// Writes a file unless one of that key is there, durable when this returns: also one that was there, which a process may have written
    /// that was killed before it was durable.
    pub(crate) async fn create(&self, key: &str, bytes: Bytes) -> Result<Put> {
        match self.put(key, bytes, PutMode::Create).await {
            Ok(()) => Ok(Put::Created),
            Err(StoreError::AlreadyExists { .. }) => {
                let there = match self.get(key).await? {
                    Some(object) => object.bytes().await?,
                    None => {
                        let text = format!("file {key} was there and is not any more");
                        return Err(Error::transient(ErrorCode::WriteFailed, text));
                    }
                };
                self.sync_existing(key).await?;
                Ok(Put::Exists(there))
            }
            Err(error) => Err(failed(ErrorCode::WriteFailed, key, &error)),
        }
    }

    /// Writes a file, or replaces it as a whole, durable when this returns.
    pub(crate) async fn replace(&self, key: &str, bytes: Bytes) -> Result<()> {
        let put = self.put(key, bytes, PutMode::Overwrite).await;
        put.map_err(|error| failed(ErrorCode::WriteFailed, key, &error))
    }

    async fn put(&self, key: &str, bytes: Bytes, mode: PutMode) -> Result<(), StoreError> {
        let path = Path::parse(key)?;
        self.store.put_opts(&path, bytes.into(), PutOptions::from(mode)).await?;
        let Some(local) = &self.local else { return Ok(()) };
        let (local, key) = (Arc::clone(local), key.to_owned());
        let synced = tokio::task::spawn_blocking(move || local.sync_directories(&key)).await?;
        synced.map_err(|error| StoreError::Generic { store: "directory", source: Box::new(error) })
    }

    async fn sync_existing(&self, key: &str) -> Result<()> {
        let Some(local) = &self.local else { return Ok(()) };
        let (local, key) = (Arc::clone(local), key.to_owned());
        blocking(ErrorCode::WriteFailed, move || {
            local.sync_existing(&key).map_err(|error| {
                Error::transient(ErrorCode::WriteFailed, format!("file {key} could not be synced: {error}"))
            })
        })
        .await
    }

    /// Opens a file; `None` if there is none.
    pub(crate) async fn get(&self, key: &str) -> Result<Option<Object>> {
        let path = Path::parse(key).map_err(|error| failed(ErrorCode::ReadFailed, key, &error.into()))?;
        match self.store.get_opts(&path, GetOptions::default()).await {
            Ok(result) => Ok(Some(Object { key: key.to_owned(), result })),
            Err(StoreError::NotFound { .. }) => Ok(None),
            Err(error) => Err(failed(ErrorCode::ReadFailed, key, &error)),
        }
    }

    /// The files of a folder, by key; temporary files are not among them.
    pub(crate) async fn list(&self, folder: &str) -> Result<Vec<Listed>> {
        let read_failed = |error: StoreError| failed(ErrorCode::ReadFailed, folder, &error);
        let prefix = Path::parse(folder).map_err(|error| read_failed(error.into()))?;
        let found = self.store.list(Some(&prefix)).map_ok(Listed::from).try_collect::<Vec<_>>().await;
        let mut found = found.map_err(read_failed)?;
        found.sort_by(|a, b| a.key.cmp(&b.key));
        Ok(found)
    }

    /// Whether a folder has any file.
    pub(crate) async fn has_any(&self, folder: &str) -> Result<bool> {
        let read_failed = |error: StoreError| failed(ErrorCode::ReadFailed, folder, &error);
        let prefix = Path::parse(folder).map_err(|error| read_failed(error.into()))?;
        Ok(self.store.list(Some(&prefix)).next().await.transpose().map_err(read_failed)?.is_some())
    }

    /// Deletes files; those that are gone already do not matter.
    pub(crate) async fn delete(&self, keys: Vec<String>) -> Result<()> {
        let paths = stream::iter(keys).map(|key| Ok(Path::parse(key)?)).boxed();
        let mut deleted = self.store.delete_stream(paths);
        while let Some(result) = deleted.next().await {
            match result {
                Ok(_) | Err(StoreError::NotFound { .. }) => {}
                Err(error) => return Err(failed(ErrorCode::WriteFailed, "to be deleted", &error)),
            }
        }
        Ok(())
    }

    /// Removes what a local directory has beside files: temporary files of killed processes, and the folders themselves.
    pub(super) async fn remove_folder(&self, folder: &str) -> Result<()> {
        let Some(local) = &self.local else { return Ok(()) };
        let (local, folder) = (Arc::clone(local), folder.to_owned());
        blocking(ErrorCode::WriteFailed, move || {
            local.remove_folder(&folder).map_err(|error| {
                Error::transient(
                    ErrorCode::WriteFailed,
                    format!("folder {folder} could not be removed: {error}"),
                )
            })
        })
        .await
    }

    /// Temporary files in a folder that a killed process may have left. An object store has none.
    pub(super) async fn temporary(&self, folder: &str) -> Result<Vec<String>> {
        let Some(local) = &self.local else { return Ok(Vec::new()) };
        let (local, folder) = (Arc::clone(local), folder.to_owned());
        blocking(ErrorCode::ReadFailed, move || {
            local.temporary(&folder).map_err(|error| {
                Error::transient(ErrorCode::ReadFailed, format!("folder {folder} could not be read: {error}"))
            })
        })
        .await
    }
}

impl Object {
    pub(crate) fn stored_bytes(&self) -> u64 {
        self.result.meta.size
    }

    /// The content, in one piece.
    pub(crate) async fn bytes(self) -> Result<Bytes> {
        let Object { key, result } = self;
        result.bytes().await.map_err(|error| failed(ErrorCode::ReadFailed, &key, &error))
    }
}

impl From<ObjectMeta> for Listed {
    fn from(meta: ObjectMeta) -> Self {
        // Every time of a file system or a server is within jiff's range.
        let modified_at = Timestamp::from_millisecond(meta.last_modified.timestamp_millis());
        Listed {
            key: meta.location.to_string(),
            stored_bytes: meta.size,
            modified_at: modified_at.unwrap_or(Timestamp::MAX),
        }
    }
}

impl Local {
    fn path(&self, key: &str) -> PathBuf {
        key.split('/').filter(|part| !part.is_empty()).fold(self.root.clone(), |path, part| path.join(part))
    }

    /// Makes the entries of a file's directories durable in their parents, once per directory. The store does so for directories that it
    /// creates itself; one that another process has just created would be skipped, and so might be lost with the file in it.
    fn sync_directories(&self, key: &str) -> std::io::Result<()> {
        let path = self.path(key);
        let directory = path.parent().unwrap_or(&self.root);
        if self.synced.lock().expect("no panic while held").contains(directory) {
            return Ok(());
        }
        for directory in directory.ancestors().take_while(|ancestor| ancestor.starts_with(&self.root)) {
            sync_directory(directory)?;
        }
        self.synced.lock().expect("no panic while held").insert(directory.to_owned());
        Ok(())
    }

    fn sync_existing(&self, key: &str) -> std::io::Result<()> {
        let path = self.path(key);
        std::fs::File::open(&path)?.sync_all()?;
        sync_directory(path.parent().unwrap_or(&self.root))?;
        self.sync_directories(key)
    }

    fn remove_folder(&self, folder: &str) -> std::io::Result<()> {
        let path = self.path(folder);
        self.synced.lock().expect("no panic while held").retain(|synced| !synced.starts_with(&path));
        match std::fs::remove_dir_all(&path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
            _ => sync_directory(&self.root),
        }
    }

    /// The store names them by the file, `#` and a number.
    fn temporary(&self, folder: &str) -> std::io::Result<Vec<String>> {
        let entries = match std::fs::read_dir(self.path(folder)) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries?,
        };
        let mut found = Vec::new();
        for entry in entries {
            let name = entry?.file_name();
            let name = name.to_string_lossy();
            let number = name.rsplit_once('#').map_or("", |(_, number)| number);
            if !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit()) {
                found.push(format!("{}/{name}", folder.trim_end_matches('/')));
            }
        }
        found.sort();
        Ok(found)
    }
}

/// Makes the entries of a directory durable. Only Unix can.
pub(super) fn sync_directory(directory: &FilePath) -> std::io::Result<()> {
    if cfg!(unix) { std::fs::File::open(directory)?.sync_all() } else { Ok(()) }
}

/// An error of the store. Waiting helps against all but requests that can never succeed: a full disk, a server that is away, missing
/// rights are ended from outside.
fn failed(code: ErrorCode, key: &str, error: &StoreError) -> Error {
    let text = format!("file {key}: {error}");
    match error {
        StoreError::InvalidPath { .. } => Error::permanent(code, text),
        // Also of a store that is set up wrong: no message is at fault, so none may be buried for it.
        _ => Error::transient(code, text),
    }
}
