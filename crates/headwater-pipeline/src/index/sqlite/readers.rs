//! Connections that read. They see the last commit and never wait for the writer.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use rusqlite::Connection;
use rusqlite::types::ValueRef;
use tokio::sync::Semaphore;

use super::connection;
use super::fault::{Attempt, Fault};
use super::statement;
use super::writer::Waiting;
use crate::error::{Error, ErrorCode, Result};
use crate::index::database::{Query, Row, Value};

/// How long to wait for a connection to become free.
const FREE_TIMEOUT: Duration = Duration::from_secs(10);
/// Unused connections beyond the minimum are closed after this.
const IDLE_FOR: Duration = Duration::from_secs(60);

/// The readers of one file.
pub(super) struct Readers {
    path: PathBuf,
    slots: Arc<Semaphore>,
    idle_min: usize,
    /// With the time since when they are unused, latest last.
    idle: Mutex<Vec<(Connection, Instant)>>,
    active: AtomicUsize,
    waiting: AtomicUsize,
}

impl Readers {
    pub(super) fn new(path: &Path, max: usize, idle_min: usize) -> Self {
        Readers {
            path: path.to_owned(),
            slots: Arc::new(Semaphore::new(max)),
            idle_min,
            idle: Mutex::default(),
            active: AtomicUsize::new(0),
            waiting: AtomicUsize::new(0),
        }
    }

    /// In use, unused, and callers that wait for one.
    pub(super) fn figures(&self) -> (usize, usize, usize) {
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).len();
        (self.active.load(Ordering::Relaxed), idle, self.waiting.load(Ordering::Relaxed))
    }

    pub(super) async fn query(self: &Arc<Self>, query: Query) -> Result<Vec<Row>> {
        let slot = {
            let _waiting = Waiting::new(&self.waiting);
            let free = tokio::time::timeout(FREE_TIMEOUT, Arc::clone(&self.slots).acquire_owned()).await;
            free.map_err(|_| {
                let path = self.path.display();
                let text = format!(
                    "index {path}: no connection became free in time; raise connections_max or try again"
                );
                Error::transient(ErrorCode::ReadFailed, text)
            })?
        };
        let readers = Arc::clone(self);
        let read = tokio::task::spawn_blocking(move || {
            // Held here and not by the caller: it may stop waiting, but the connection is in use until the end.
            let _slot = slot;
            readers.read(&query).map_err(|fault| fault.into_error(ErrorCode::ReadFailed, &readers.path))
        });
        read.await.unwrap_or_else(|error| {
            Err(Error::transient(ErrorCode::ReadFailed, format!("index {}: {error}", self.path.display())))
        })
    }

    fn read(&self, query: &Query) -> Attempt<Vec<Row>> {
        let _active = Waiting::new(&self.active);
        let Some(connection) = self.take()? else { return Ok(Vec::new()) };
        let rows = match rows_of(&connection, query) {
            Err(fault) if fault.is_missing_table() => Ok(Vec::new()),
            // Not kept: what failed once may be the connection.
            Err(fault) => return Err(fault),
            read => read,
        };
        self.give_back(connection);
        rows
    }

    /// `None` if there is no file yet.
    fn take(&self) -> Attempt<Option<Connection>> {
        if let Some((connection, _)) = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop() {
            return Ok(Some(connection));
        }
        match connection::open_reader(&self.path) {
            Err(_) if !self.path.exists() => Ok(None),
            opened => opened.map(Some),
        }
    }

    fn give_back(&self, connection: Connection) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        let old = idle.iter().take_while(|(_, since)| since.elapsed() > IDLE_FOR).count();
        let closed = old.min((idle.len() + 1).saturating_sub(self.idle_min));
        let closed: Vec<_> = idle.drain(..closed).collect();
        idle.push((connection, Instant::now()));
        drop(idle);
        drop(closed);
    }

    /// Closes the unused ones.
    pub(super) fn clear(&self) {
        let idle = std::mem::take(&mut *self.idle.lock().unwrap_or_else(PoisonError::into_inner));
        drop(idle);
    }
}

fn rows_of(connection: &Connection, query: &Query) -> Attempt<Vec<Row>> {
    let mut statement = connection.prepare_cached(&statement::query(query.sql))?;
    let columns = statement.column_count();
    for (at, value) in query.params.iter().enumerate() {
        statement.raw_bind_parameter(at + 1, value)?;
    }
    let mut found = statement.raw_query();
    let mut rows = Vec::new();
    while let Some(row) = found.next()? {
        let values = (0..columns).map(|at| value_of(row.get_ref(at)?)).collect::<Attempt<_>>()?;
        rows.push(Row(values));
    }
    Ok(rows)
}

fn value_of(value: ValueRef<'_>) -> Attempt<Value> {
    match value {
        ValueRef::Integer(value) => Ok(Value::Integer(value)),
        ValueRef::Text(text) => Ok(Value::Text(String::from_utf8_lossy(text).into_owned())),
        ValueRef::Blob(bytes) => Ok(Value::Blob(Bytes::copy_from_slice(bytes))),
        other => Err(Fault::Refused(format!("a row has a value of type {}", other.data_type()))),
    }
}
