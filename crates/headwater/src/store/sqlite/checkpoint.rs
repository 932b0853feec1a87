//! Checkpoints: copying the write-ahead log into the file, off the writer's thread.
//!
//! A thread of its own does it whenever the log has grown by some megabytes, without blocking anybody. Under load that
//! never stops it cannot finish, because the writer is always ahead: then the writer itself copies the short rest, so
//! that the log starts anew. At a hard size the writer waits for its turn and copies whatever is left before it commits
//! again: how large the log gets does not depend on which thread the machine runs, only on readers that keep the old
//! log in use.

use std::cell::Cell;
use std::path::Path;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags};

use super::connection::BUSY_TIMEOUT;
use super::fault::is_unknown_commit;
use super::trust::Trust;

/// The background thread starts at this size of the log, and again whenever it grew by as much.
const BACKGROUND_BYTES: i64 = 8 * 1024 * 1024;
/// From this size on the writer finishes what the background thread has nearly done.
const FINISH_BYTES: i64 = 64 * 1024 * 1024;
/// What "nearly" is.
const FINISH_REST_BYTES: i64 = 8 * 1024 * 1024;
/// From this size on the writer copies whatever is left, however long that takes.
pub(super) const FORCE_BYTES: i64 = 256 * 1024 * 1024;
/// How long the writer waits for readers of the old log and for checkpoints of other processes, before it goes on and tries
/// again later.
const OTHERS_TIMEOUT: Duration = Duration::from_millis(250);
/// How often it looks whether another process's checkpoint has ended.
const LOOK_AGAIN: Duration = Duration::from_millis(5);

thread_local! {
    /// Frames in the log after the last commit of this thread's write connection.
    static FRAMES: Cell<i64> = const { Cell::new(0) };
}

/// Makes SQLite tell the size of the log at each commit, instead of checkpointing there.
pub(super) fn count_frames(connection: &Connection) {
    connection.wal_hook(Some(|_, frames| {
        FRAMES.set(i64::from(frames));
        Ok(())
    }));
}

/// The writer's side: when to ask for a checkpoint, and when to do it itself.
#[derive(Debug)]
pub(super) struct Checkpoints {
    /// Asks the background thread; `None` in memory.
    ask: Option<SyncSender<()>>,
    thread: Option<JoinHandle<()>>,
    /// Held by whoever runs a checkpoint; in it the frames that the background thread last left uncopied. SQLite refuses a
    /// second checkpoint at once instead of waiting for the first, so these two wait for each other here.
    turn: Arc<Mutex<i64>>,
    page_bytes: i64,
    asked_at_bytes: i64,
    tried_at_bytes: i64,
}

impl Checkpoints {
    /// Without a background thread: the store in memory has no log.
    pub(super) fn none() -> Self {
        Checkpoints {
            ask: None,
            thread: None,
            turn: Arc::default(),
            page_bytes: 4096,
            asked_at_bytes: 0,
            tried_at_bytes: 0,
        }
    }

    /// With a background thread on its own connection. It ends when this is dropped.
    pub(super) fn start(connection: Connection, page_bytes: i64, trust: Arc<Trust>) -> std::io::Result<Self> {
        let (ask, asked) = sync_channel(1);
        let turn = Arc::default();
        let thread = std::thread::Builder::new().name("headwater-checkpoint".into());
        let own = Arc::clone(&turn);
        let thread = thread.spawn(move || {
            background(&connection, &asked, &own, &trust);
            trust.before_close(&connection);
        })?;
        Ok(Checkpoints {
            ask: Some(ask),
            thread: Some(thread),
            turn,
            page_bytes,
            asked_at_bytes: 0,
            tried_at_bytes: 0,
        })
    }

    /// Keeps the background thread from a checkpoint while it is held.
    pub(super) fn turn(&self) -> MutexGuard<'_, i64> {
        self.turn.lock().expect("no panic while held")
    }

    /// Called between transactions.
    pub(super) fn after_commit(&mut self, connection: &Connection, trust: &Trust) {
        let Some(ask) = &self.ask else { return };
        let bytes = FRAMES.get() * self.page_bytes;
        if bytes < self.asked_at_bytes.max(self.tried_at_bytes) {
            // The log has started anew.
            (self.asked_at_bytes, self.tried_at_bytes) = (0, 0);
        }
        // One or the other: asking the background thread and restarting at the same moment, each would keep the other out.
        if self.try_restart(bytes, connection, trust) {
            self.tried_at_bytes = bytes;
        } else if bytes >= self.asked_at_bytes + BACKGROUND_BYTES && ask.try_send(()).is_ok() {
            self.asked_at_bytes = bytes;
        }
    }

    /// Restarts the log if it is large enough and this is the moment; whether it was tried.
    fn try_restart(&self, bytes: i64, connection: &Connection, trust: &Trust) -> bool {
        let forced_first = bytes >= FORCE_BYTES && self.tried_at_bytes < FORCE_BYTES;
        if bytes < FINISH_BYTES || (bytes < self.tried_at_bytes + BACKGROUND_BYTES && !forced_first) {
            return false;
        }
        if bytes >= FORCE_BYTES {
            // Waits for a pass of the background thread under way: giving up here is how a log grows without bound.
            let _turn = self.turn();
            restart(connection, trust);
            return true;
        }
        match self.turn.try_lock() {
            Ok(rest_frames) if *rest_frames * self.page_bytes <= FINISH_REST_BYTES => {
                restart(connection, trust);
            }
            _ => return false,
        }
        true
    }

    /// The last one, when the store closes: leaves an empty log if nobody else has the file open.
    pub(super) fn finish(&mut self, connection: &Connection, trust: &Trust) {
        let Some(ask) = self.ask.take() else { return };
        drop(ask);
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the checkpoint thread panicked");
        }
        if !trust.may_checkpoint() {
            return;
        }
        let done = connection.busy_timeout(OTHERS_TIMEOUT).and_then(|()| checkpoint(connection, "TRUNCATE"));
        if let Err(error) = done {
            // SQLite's own checkpoint at the close must not try again what the disk has just failed.
            failed(&error, trust);
        }
    }
}

fn background(connection: &Connection, asked: &Receiver<()>, turn: &Mutex<i64>, trust: &Trust) {
    while asked.recv().is_ok() {
        let mut rest_frames = turn.lock().expect("no panic while held");
        if !trust.may_checkpoint() {
            continue;
        }
        match checkpoint(connection, "PASSIVE") {
            Ok((_, log, copied)) => *rest_frames = log - copied,
            Err(error) => failed(&error, trust),
        }
    }
}

/// A checkpoint syncs the log before it copies it, and the file once everything is copied: a failure of the disk may
/// have been either.
fn failed(error: &rusqlite::Error, trust: &Trust) {
    tracing::warn!(%error, "checkpoint failed, the log stays until a later one");
    trust.note(error);
    if is_unknown_commit(error) {
        trust.checkpoint_failed(error);
    }
}

/// Copies the rest and makes the next transaction start the log anew.
fn restart(connection: &Connection, trust: &Trust) {
    if !trust.may_checkpoint() {
        return;
    }
    let done = connection.busy_timeout(OTHERS_TIMEOUT).and_then(|()| restart_in_time(connection));
    if let Err(error) = connection.busy_timeout(BUSY_TIMEOUT) {
        tracing::warn!(%error, "setting the busy timeout back failed");
    }
    match done {
        Ok(true) => {}
        Ok(false) => tracing::debug!("another process or a reader keeps the old write-ahead log in use"),
        Err(error) => failed(&error, trust),
    }
}

/// How many frames the log has up to its last commit by any process, and how many of them count as copied. The caller
/// holds the write lock, so neither grows meanwhile but by another process's checkpoint. On a connection of its own: SQLite
/// refuses this inside the transaction that holds the lock.
pub(super) fn frames(path: &Path) -> rusqlite::Result<(u64, u64)> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags)?;
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
    connection.busy_timeout(OTHERS_TIMEOUT)?;
    // A connection that has read nothing yet does not know of the log.
    connection.query_row("PRAGMA schema_version", [], |_| Ok(()))?;
    let (_, frames, copied) = checkpoint(&connection, "NOOP")?;
    // -1: SQLite knows nothing of the log.
    let known = |count: i64| u64::try_from(count).map_err(|_| rusqlite::Error::InvalidQuery);
    Ok((known(frames)?, known(copied)?))
}

/// Whether the log starts anew. For readers SQLite waits by itself, for another process's checkpoint it does not: then it
/// answers that it knows nothing of the log.
fn restart_in_time(connection: &Connection) -> rusqlite::Result<bool> {
    let until = Instant::now() + OTHERS_TIMEOUT;
    loop {
        match checkpoint(connection, "RESTART")? {
            (true, -1, _) if Instant::now() < until => std::thread::sleep(LOOK_AGAIN),
            (kept, ..) => return Ok(!kept),
        }
    }
}

/// Runs a checkpoint: (whether it was kept from finishing, frames in the log, frames copied).
fn checkpoint(connection: &Connection, mode: &'static str) -> rusqlite::Result<(bool, i64, i64)> {
    connection.query_row(&format!("PRAGMA wal_checkpoint({mode})"), [], |row| {
        Ok((row.get(0)?, row.get(1)?, row.get(2)?))
    })
}

#[cfg(test)]
mod tests {
    use super::super::connection::{Location, Role, open};
    use super::*;
    use crate::namespace::SqlitePath;

    /// Without waiting, the log of a writer that is faster than the background thread would grow on and on.
    #[test]
    fn at_its_hard_size_the_log_waits_for_the_checkpoint_under_way() {
        let folder = tempfile::tempdir().unwrap();
        let location = Location::new(&SqlitePath::File(folder.path().join("log.db"))).unwrap();
        let connection = open(&location, Role::Writer).unwrap();
        count_frames(&connection);
        connection
            .execute_batch("CREATE TABLE t (n); INSERT INTO t VALUES (1); INSERT INTO t VALUES (2)")
            .unwrap();
        assert!(FRAMES.get() > 2, "{} frames", FRAMES.get());

        let trust = Trust::of(&connection, &location).unwrap();
        let own = open(&location, Role::Checkpointer).unwrap();
        let mut checkpoints = Checkpoints::start(own, 4096, Arc::clone(&trust)).unwrap();
        let turn = Arc::clone(&checkpoints.turn);
        let under_way = turn.lock().unwrap();
        let (done, is_done) = sync_channel(1);
        let writer = std::thread::spawn(move || {
            count_frames(&connection);
            FRAMES.set(FORCE_BYTES / 4096);
            checkpoints.after_commit(&connection, &trust);
            done.send(()).unwrap();
            connection.execute_batch("INSERT INTO t VALUES (3)").unwrap();
            FRAMES.get()
        });
        assert!(is_done.recv_timeout(Duration::from_millis(20)).is_err(), "it went on without its turn");
        drop(under_way);
        is_done.recv().unwrap();
        assert_eq!(writer.join().unwrap(), 1, "the log started anew");
    }
}
