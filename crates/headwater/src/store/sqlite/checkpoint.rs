//! Checkpoints: copying the write-ahead log into the file, off the writer's thread.
//!
//! A thread of its own does it whenever the log has grown by some megabytes, without blocking anybody. Under load that
//! never stops it cannot finish, because the writer is always ahead: then the writer itself copies the short rest, so
//! that the log starts anew and cannot grow without bound.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use rusqlite::Connection;

use super::connection::BUSY_TIMEOUT;

/// The background thread starts at this size of the log, and again whenever it grew by as much.
const BACKGROUND_BYTES: i64 = 8 * 1024 * 1024;
/// From this size on the writer finishes what the background thread has nearly done.
const FINISH_BYTES: i64 = 64 * 1024 * 1024;
/// What "nearly" is.
const FINISH_REST_BYTES: i64 = 8 * 1024 * 1024;
/// From this size on the writer copies whatever is left.
const FORCE_BYTES: i64 = 256 * 1024 * 1024;
/// How long the writer waits for readers of the old log and for the background thread, before it goes on and tries again later.
const READERS_TIMEOUT: Duration = Duration::from_millis(250);

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
    /// Frames not yet copied, as the background thread last found.
    rest_frames: Arc<AtomicI64>,
    page_bytes: i64,
    asked_at_bytes: i64,
    tried_at_bytes: i64,
}

impl Checkpoints {
    /// Without a background thread: the store in memory has no log.
    pub(super) fn none() -> Self {
        let rest_frames = Arc::default();
        Checkpoints {
            ask: None,
            thread: None,
            rest_frames,
            page_bytes: 4096,
            asked_at_bytes: 0,
            tried_at_bytes: 0,
        }
    }

    /// With a background thread on its own connection. It ends when this is dropped.
    pub(super) fn start(connection: Connection, page_bytes: i64) -> std::io::Result<Self> {
        let (ask, asked) = sync_channel(1);
        let rest_frames = Arc::new(AtomicI64::new(0));
        let thread = std::thread::Builder::new().name("headwater-checkpoint".into());
        let rest = Arc::clone(&rest_frames);
        let thread = thread.spawn(move || background(&connection, &asked, &rest))?;
        Ok(Checkpoints {
            ask: Some(ask),
            thread: Some(thread),
            rest_frames,
            page_bytes,
            asked_at_bytes: 0,
            tried_at_bytes: 0,
        })
    }

    /// Called between transactions.
    pub(super) fn after_commit(&mut self, connection: &Connection) {
        let Some(ask) = &self.ask else { return };
        let bytes = FRAMES.get() * self.page_bytes;
        if bytes < self.asked_at_bytes {
            // The log has started anew.
            (self.asked_at_bytes, self.tried_at_bytes) = (0, 0);
        }
        // Not when the writer is about to do it: two checkpoints keep each other out.
        let background = bytes < FORCE_BYTES && bytes >= self.asked_at_bytes + BACKGROUND_BYTES;
        if background && ask.try_send(()).is_ok() {
            self.asked_at_bytes = bytes;
        }
        if bytes < FINISH_BYTES || bytes < self.tried_at_bytes + BACKGROUND_BYTES {
            return;
        }
        let rest_bytes = self.rest_frames.load(Ordering::Relaxed) * self.page_bytes;
        if rest_bytes <= FINISH_REST_BYTES || bytes >= FORCE_BYTES {
            self.tried_at_bytes = bytes;
            self.restart(connection);
        }
    }

    /// Copies the rest and makes the next transaction start the log anew.
    fn restart(&mut self, connection: &Connection) {
        let done = connection.busy_timeout(READERS_TIMEOUT).and_then(|()| checkpoint(connection, "RESTART"));
        if let Err(error) = connection.busy_timeout(BUSY_TIMEOUT) {
            tracing::warn!(%error, "setting the busy timeout back failed");
        }
        match done {
            Ok((false, ..)) => {}
            Ok((true, ..)) => tracing::debug!("a reader keeps the old write-ahead log in use"),
            Err(error) => tracing::warn!(%error, "checkpoint failed, it is tried again"),
        }
    }

    /// The last one, when the store closes: leaves an empty log if nobody else has the file open.
    pub(super) fn finish(&mut self, connection: &Connection) {
        let Some(ask) = self.ask.take() else { return };
        drop(ask);
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the checkpoint thread panicked");
        }
        let done = connection.busy_timeout(READERS_TIMEOUT).and_then(|()| checkpoint(connection, "TRUNCATE"));
        if let Err(error) = done {
            tracing::debug!(%error, "the last checkpoint failed, the next opening goes on with the log");
        }
    }
}

fn background(connection: &Connection, asked: &Receiver<()>, rest_frames: &AtomicI64) {
    while asked.recv().is_ok() {
        match checkpoint(connection, "PASSIVE") {
            Ok((_, log, copied)) => rest_frames.store(log - copied, Ordering::Relaxed),
            Err(error) => tracing::warn!(%error, "checkpoint failed, it is tried again"),
        }
    }
}

/// Runs a checkpoint: (whether it was kept from finishing, frames in the log, frames copied).
fn checkpoint(connection: &Connection, mode: &'static str) -> rusqlite::Result<(bool, i64, i64)> {
    connection.query_row(&format!("PRAGMA wal_checkpoint({mode})"), [], |row| {
        Ok((row.get(0)?, row.get(1)?, row.get(2)?))
    })
}
