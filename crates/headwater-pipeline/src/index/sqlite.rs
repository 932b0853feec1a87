//! The index of a run in a SQLite file of its own: flushes of 60 MB must not hold up the writer of the messages' file.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

use async_trait::async_trait;

use self::readers::Readers;
use self::writer::{Command, Writer};
use super::database::{Database, Durability, PoolFigures, Query, Row, Table, Upsert};
use crate::error::{Error, ErrorCode, Result};

mod connection;
mod fault;
mod readers;
mod statement;
mod writer;

/// Files that this process has open, so that all its handles of a file share one writer.
static FILES: Mutex<BTreeMap<PathBuf, Weak<File>>> = Mutex::new(BTreeMap::new());

/// A handle of the index in a file. The file is created by the first write, not by a read.
pub(super) struct Sqlite {
    path: PathBuf,
    /// `None` after it was closed.
    file: Mutex<Option<Arc<File>>>,
    readers: Arc<Readers>,
}

struct File {
    path: PathBuf,
    writer: OnceLock<Writer>,
    /// Held while the thread is started.
    starting: Mutex<()>,
}

impl Sqlite {
    /// The path is absolute: a change of the working directory does not move the index.
    pub(super) fn new(path: &Path, connections_max: usize, connections_idle_min: usize) -> Self {
        let readers = Arc::new(Readers::new(path, connections_max, connections_idle_min));
        Sqlite { path: path.to_owned(), file: Mutex::new(Some(File::shared(path))), readers }
    }

    fn file(&self, code: ErrorCode) -> Result<Arc<File>> {
        let file = self.file.lock().unwrap_or_else(PoisonError::into_inner).clone();
        // Not permanent: a batch is not given up because its service ends.
        file.ok_or_else(|| Error::transient(code, format!("index {}: closed", self.path.display())))
    }
}

impl File {
    fn shared(path: &Path) -> Arc<Self> {
        let mut files = FILES.lock().unwrap_or_else(PoisonError::into_inner);
        files.retain(|_, file| file.strong_count() > 0);
        if let Some(file) = files.get(path).and_then(Weak::upgrade) {
            return file;
        }
        let file =
            Arc::new(File { path: path.to_owned(), writer: OnceLock::new(), starting: Mutex::default() });
        files.insert(path.to_owned(), Arc::downgrade(&file));
        file
    }

    /// Starts the thread with the first write: most handles of a query server never write.
    fn writer(&self) -> Result<&Writer> {
        let _starting = self.starting.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(writer) = self.writer.get() {
            return Ok(writer);
        }
        if let Some(directory) = self.path.parent() {
            std::fs::create_dir_all(directory).map_err(|error| {
                Error::transient(
                    ErrorCode::SchemaSetupFailed,
                    format!("directory {}: {error}", directory.display()),
                )
            })?;
        }
        let writer = Writer::start(&self.path)?;
        Ok(self.writer.get_or_init(|| writer))
    }
}

#[async_trait]
impl Database for Sqlite {
    async fn create_tables(&self, tables: &[&'static Table]) -> Result<()> {
        let file = self.file(ErrorCode::SchemaSetupFailed)?;
        file.writer()?.run(Command::Create(tables.to_vec())).await
    }

    async fn upsert(&self, writes: Vec<Upsert>, durability: Durability) -> Result<()> {
        let file = self.file(ErrorCode::WriteFailed)?;
        file.writer()?.run(Command::Upsert(writes, durability)).await
    }

    async fn query(&self, query: Query) -> Result<Vec<Row>> {
        self.file(ErrorCode::ReadFailed)?;
        self.readers.query(query).await
    }

    /// The writer, which handles of one process share, counts as a connection of each.
    fn pool(&self) -> PoolFigures {
        let (active, idle, waiting) = self.readers.figures();
        let mut figures = PoolFigures { active, idle, total: 0, waiting };
        let file = self.file.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(writer) = file.as_ref().and_then(|file| file.writer.get()).map(Writer::figures) {
            let is_busy = writer.is_busy.load(Ordering::Relaxed);
            figures.active += usize::from(is_busy);
            figures.idle += usize::from(!is_busy && writer.is_open.load(Ordering::Relaxed));
            figures.waiting += writer.waiting.load(Ordering::Relaxed);
        }
        figures.total = figures.active + figures.idle;
        figures
    }

    async fn bytes_stored(&self) -> Result<u64> {
        let mut bytes = 0;
        for path in files_of(&self.path) {
            bytes += match std::fs::metadata(&path) {
                Ok(metadata) => metadata.len(),
                Err(error) if error.kind() == ErrorKind::NotFound => 0,
                Err(error) => return Err(unreadable(ErrorCode::ReadFailed, &path, &error)),
            };
        }
        Ok(bytes)
    }

    async fn remove(&self) -> Result<()> {
        let is_shared = {
            let file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
            file.as_ref().is_some_and(|file| Arc::strong_count(file) > 1)
        };
        if is_shared {
            let text = format!("index {}: another handle of this process uses it", self.path.display());
            return Err(Error::transient(ErrorCode::WriteFailed, text));
        }
        self.close().await;
        // The log last: a file without its log would lack the last commits, a log without its file is nothing.
        for path in files_of(&self.path) {
            match std::fs::remove_file(&path) {
                Err(error) if error.kind() != ErrorKind::NotFound => {
                    return Err(unreadable(ErrorCode::WriteFailed, &path, &error));
                }
                _ => {}
            }
        }
        Ok(())
    }

    async fn close(&self) {
        let file = self.file.lock().unwrap_or_else(PoisonError::into_inner).take();
        let readers = Arc::clone(&self.readers);
        // The last handle waits for the writer, whose close copies the log into the file; the others leave it to those that remain.
        let ended = tokio::task::spawn_blocking(move || {
            readers.clear();
            if let Some(writer) = file.and_then(Arc::into_inner).and_then(|file| file.writer.into_inner()) {
                writer.join();
            }
        });
        if let Err(error) = ended.await {
            tracing::warn!(%error, path = %self.path.display(), "index not closed");
        }
    }
}

/// The file, its log and the log's index.
fn files_of(path: &Path) -> [PathBuf; 3] {
    ["", "-wal", "-shm"].map(|suffix| {
        let mut name = path.as_os_str().to_owned();
        name.push(suffix);
        name.into()
    })
}

fn unreadable(code: ErrorCode, path: &Path, error: &std::io::Error) -> Error {
    Error::transient(code, format!("index {}: {error}", path.display()))
}
