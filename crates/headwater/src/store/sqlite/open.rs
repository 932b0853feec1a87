//! The threads that opening a store starts beside the writer, and the settings it reads first.

use std::sync::Arc;
use std::thread::JoinHandle;

use rusqlite::Connection;

use super::checkpoint::Checkpoints;
use super::connection::{self, Location, Role};
use super::reader::{self, Readers};
use super::trust::{self, Trust};
use super::{fault, take_over};
use crate::error::{Error, ErrorKind, Result};

pub(super) fn start_readers(
    location: &Location,
    wanted: usize,
    trust: &Arc<Trust>,
) -> Result<(Option<Readers>, Vec<JoinHandle<()>>)> {
    if location.path.is_none() {
        return Ok((None, Vec::new()));
    }
    let count = wanted.clamp(1, reader::READERS_MAX);
    let connections =
        (0..count).map(|_| connection::open(location, Role::Reader)).collect::<Result<Vec<Connection>>>()?;
    let (readers, threads) =
        Readers::start(connections, trust).map_err(|error| no_thread(location, error))?;
    Ok((Some(readers), threads))
}

pub(super) fn start_checkpoints(
    connection: &Connection,
    location: &Location,
    trust: &Arc<Trust>,
) -> Result<Checkpoints> {
    if location.path.is_none() {
        return Ok(Checkpoints::none());
    }
    let page_bytes = connection
        .query_row("PRAGMA page_size", [], |row| row.get(0))
        .map_err(|error| fault::sqlite_error(&location.name, error))?;
    let own = connection::open(location, Role::Checkpointer)?;
    Checkpoints::start(own, page_bytes, Arc::clone(trust)).map_err(|error| no_thread(location, error))
}

pub(super) fn no_thread(location: &Location, error: std::io::Error) -> Error {
    Error::with_source(
        ErrorKind::Unavailable,
        format!("cannot start a thread: {}: {error}", location.name),
        error,
    )
}

/// Removes a store's files once nothing has them open: the file that the path leads to, and the files beside it. A
/// symbolic link stays.
pub(super) fn remove_files(location: &Location, trust: &Trust) -> Result<()> {
    let Some(path) = trust.resolved() else { return Ok(()) };
    for suffix in ["", "-wal", "-shm", trust::MARKER] {
        let file = trust::beside(path, suffix);
        match std::fs::remove_file(&file) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                let text = format!("cannot remove {}: {error}", file.display());
                return Err(Error::with_source(ErrorKind::Unavailable, text, error));
            }
            _ => {}
        }
    }
    take_over::remove_left(path, |_| Ok(false)).map_err(|fault| fault.into_error(&location.name))
}

/// Whether publishing creates topics through a handle whose options do not set it. The option of one handle changes
/// nothing for others.
pub(super) fn stored_auto_create(connection: &Connection, location: &Location) -> Result<bool> {
    connection
        .query_row("SELECT value = '1' FROM headwater_meta WHERE key = 'auto_create'", [], |row| row.get(0))
        .map_err(|error| fault::sqlite_error(&location.name, error))
}
