//! The thread that writes. SQLite has one writer at a time, so a process has one per file: its handles queue here instead of waiting for
//! each other's locks.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;

use rusqlite::types::{ToSqlOutput, ValueRef};
use rusqlite::{Connection, ToSql, TransactionBehavior};
use tokio::sync::{mpsc, oneshot};

use super::connection::{self, FileId};
use super::fault::{Attempt, Fault};
use super::statement;
use crate::error::{Error, ErrorCode, Result};
use crate::index::database::{Durability, Table, Upsert, Value};

/// Commands that wait, beyond the one that runs. Each may have a flush of 60 MB.
const QUEUE: usize = 4;

/// What the thread is asked to do.
pub(super) enum Command {
    /// Creates missing tables.
    Create(Vec<&'static Table>),
    /// Writes rows in one transaction.
    Upsert(Vec<Upsert>, Durability),
}

struct Asked {
    command: Command,
    answer: oneshot::Sender<Result<()>>,
}

/// The thread of one file. It ends when this is dropped, after what was asked before.
pub(super) struct Writer {
    commands: mpsc::Sender<Asked>,
    figures: Arc<Figures>,
    thread: JoinHandle<()>,
}

/// What the thread is doing.
#[derive(Debug, Default)]
pub(super) struct Figures {
    pub(super) is_open: AtomicBool,
    pub(super) is_busy: AtomicBool,
    pub(super) waiting: AtomicUsize,
}

impl Writer {
    pub(super) fn start(path: &Path) -> Result<Self> {
        let (commands, asked) = mpsc::channel(QUEUE);
        let figures = Arc::new(Figures::default());
        let thread = std::thread::Builder::new()
            .name("index-writer".into())
            .spawn({
                let (path, figures) = (path.to_owned(), Arc::clone(&figures));
                move || Thread { path, figures, open: None }.run(asked)
            })
            .map_err(|error| {
                Error::transient(
                    ErrorCode::WriteFailed,
                    format!("index {}: no thread: {error}", path.display()),
                )
            })?;
        Ok(Writer { commands, figures, thread })
    }

    pub(super) fn figures(&self) -> &Figures {
        &self.figures
    }

    /// Runs a command. If the caller stops waiting, the command runs all the same.
    pub(super) async fn run(&self, command: Command) -> Result<()> {
        let ended = || Error::transient(ErrorCode::WriteFailed, "index: the writer has ended");
        let (answer, answered) = oneshot::channel();
        {
            let _waiting = Waiting::new(&self.figures.waiting);
            self.commands.send(Asked { command, answer }).await.map_err(|_| ended())?;
        }
        answered.await.map_err(|_| ended())?
    }

    /// Ends the thread and waits for it. Blocks.
    pub(super) fn join(self) {
        drop(self.commands);
        if self.thread.join().is_err() {
            tracing::error!("index writer panicked");
        }
    }
}

/// Counts a caller that waits, also if it is cancelled.
pub(super) struct Waiting<'a>(&'a AtomicUsize);

impl<'a> Waiting<'a> {
    pub(super) fn new(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Waiting(count)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

struct Thread {
    path: PathBuf,
    figures: Arc<Figures>,
    open: Option<Open>,
}

struct Open {
    connection: Connection,
    file: Option<FileId>,
    durability: Durability,
}

impl Thread {
    fn run(mut self, mut asked: mpsc::Receiver<Asked>) {
        while let Some(Asked { command, answer }) = asked.blocking_recv() {
            self.figures.is_busy.store(true, Ordering::Relaxed);
            let code = match command {
                Command::Create(_) => ErrorCode::SchemaSetupFailed,
                Command::Upsert(..) => ErrorCode::WriteFailed,
            };
            let done = self.execute(&command).map_err(|fault| fault.into_error(code, &self.path));
            self.figures.is_open.store(self.open.is_some(), Ordering::Relaxed);
            self.figures.is_busy.store(false, Ordering::Relaxed);
            // Freed before the caller continues: the next flush may be as large.
            drop(command);
            // The caller may have stopped waiting.
            let _ = answer.send(done);
        }
    }

    fn execute(&mut self, command: &Command) -> Attempt<()> {
        let mut open = match self.open.take() {
            Some(open) => open,
            None => Open::new(&self.path, matches!(command, Command::Create(_)))?,
        };
        let done = open.execute(command);
        // A file that was deleted or replaced: what was committed here is found by no reader. The path is compared after the commit and
        // before the answer, so an acked tick is in the file that the path leads to.
        if connection::file_at(&self.path) != open.file {
            connection::abandon(open.connection);
            return Err(Fault::Replaced);
        }
        // The connection is kept only if it is clean: a transaction that could not be rolled back ends with it.
        if open.connection.is_autocommit() {
            self.open = Some(open);
        }
        done
    }
}

impl Open {
    fn new(path: &Path, create: bool) -> Attempt<Self> {
        let connection = connection::open_writer(path, create)?;
        Ok(Open { connection, file: connection::file_at(path), durability: Durability::Synced })
    }

    fn execute(&mut self, command: &Command) -> Attempt<()> {
        match command {
            Command::Create(tables) => {
                self.set(Durability::Synced)?;
                let transaction =
                    self.connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
                connection::mark(&transaction)?;
                for table in tables {
                    transaction.execute_batch(&statement::create(table))?;
                }
                transaction.commit()?;
            }
            Command::Upsert(writes, durability) => {
                self.set(*durability)?;
                // Immediate: a transaction that becomes a writer later cannot wait for the lock. Dropped before its commit, it rolls back.
                let transaction =
                    self.connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
                for write in writes.iter().filter(|write| !write.is_empty()) {
                    let mut upsert = transaction.prepare_cached(&statement::upsert(write.table()))?;
                    for row in write.rows() {
                        for (at, value) in row.iter().enumerate() {
                            upsert.raw_bind_parameter(at + 1, value)?;
                        }
                        upsert.raw_execute()?;
                    }
                }
                transaction.commit()?;
            }
        }
        Ok(())
    }

    /// A commit without a sync is synced by the next one with it: the log is one file.
    fn set(&mut self, durability: Durability) -> rusqlite::Result<()> {
        if self.durability != durability {
            self.connection.execute_batch(match durability {
                Durability::Synced => "PRAGMA synchronous = FULL",
                Durability::Lazy => "PRAGMA synchronous = NORMAL",
            })?;
            self.durability = durability;
        }
        Ok(())
    }
}

impl ToSql for Value {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(ToSqlOutput::Borrowed(match self {
            Value::Integer(value) => ValueRef::Integer(*value),
            Value::Text(value) => ValueRef::Text(value.as_bytes()),
            Value::Blob(value) => ValueRef::Blob(value),
        }))
    }
}
