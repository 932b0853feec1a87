//! Checkpoints: copying the write-ahead log into the file, outside the writer thread.
//!
//! A background thread does it whenever the log has grown by some megabytes, without blocking any other thread. Under
//! continuous load it cannot finish, because the writer is always ahead: then the writer itself copies the short
//! rest, so that the log restarts. At a hard size limit the writer waits until no other checkpoint runs and copies
//! whatever is left before it commits again: so the size of the log does not depend on how the threads are scheduled,
//! only on readers that keep the old log in use.
//!
//! An attempt to restart the log holds the write lock while it waits for readers. A long-running reader makes every
//! attempt fail, so an attempt waits for [`READERS_WAIT`] only, and the distance to the next one doubles with each
//! failure.

use std::cell::Cell;
use std::path::Path;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags};

use super::fault::is_unknown_commit;
use super::trust::Trust;
use super::{holder, patience};

/// The background thread starts at this size of the log, and again whenever the log has grown by as much.
const BACKGROUND_BYTES: i64 = 8 * 1024 * 1024;
/// From this size on the writer finishes a checkpoint that the background thread has nearly completed.
const FINISH_BYTES: i64 = 64 * 1024 * 1024;
/// How much may be left for "nearly completed".
const FINISH_REST_BYTES: i64 = 8 * 1024 * 1024;
/// From this size on the writer copies whatever is left, however long that takes.
pub(super) const FORCE_BYTES: i64 = 256 * 1024 * 1024;
/// How long the writer waits for checkpoints of other processes before it continues and tries again later.
const OTHERS_TIMEOUT: Duration = Duration::from_millis(250);
/// How long an attempt waits for readers of the old log while it holds the write lock. Reads of the engine itself
/// take less.
const READERS_WAIT: Duration = Duration::from_millis(20);
/// A log of this size is logged once: readers have kept it for long.
pub(super) const LARGE_BYTES: u64 = 512 * 1024 * 1024;
/// The interval of the checks whether another process's checkpoint has ended.
const CHECK_AGAIN: Duration = Duration::from_millis(5);

thread_local! {
    /// Frames in the log after the last commit of this thread's write connection.
    static FRAMES: Cell<i64> = const { Cell::new(0) };
}

/// Makes SQLite report the size of the log at each commit, instead of checkpointing there.
pub(super) fn count_frames(connection: &Connection) {
    connection.wal_hook(Some(|_, frames| {
        FRAMES.set(i64::from(frames));
        Ok(())
    }));
}

/// The writer's side: when to request a checkpoint, and when to run it itself.
#[derive(Debug)]
pub(super) struct Checkpoints {
    /// Requests a checkpoint from the background thread; `None` in memory.
    ask: Option<SyncSender<()>>,
    thread: Option<JoinHandle<()>>,
    /// Held by the thread that runs a checkpoint; contains the number of frames that the background thread last left
    /// uncopied. SQLite refuses a second checkpoint at once instead of waiting for the first, so the two threads wait
    /// for each other here.
    turn: Arc<Mutex<i64>>,
    page_bytes: i64,
    asked_at_bytes: i64,
    tries: Tries,
    name: String,
}

/// When the writer tries to restart the log.
#[derive(Clone, Copy, Debug, Default)]
struct Tries {
    /// The size at the last attempt.
    at_bytes: i64,
    /// How many attempts failed in a row because of readers.
    failed: u32,
    /// The size was logged.
    logged: bool,
}

impl Tries {
    /// Whether the log is large enough for another attempt.
    fn is_due(self, bytes: i64) -> bool {
        let distance = BACKGROUND_BYTES << self.failed.min(16);
        let forced_first = bytes >= FORCE_BYTES && self.at_bytes < FORCE_BYTES && self.failed == 0;
        bytes >= FINISH_BYTES && (bytes >= self.at_bytes + distance || forced_first)
    }
}

/// The result of an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Restart {
    Done,
    /// Readers keep the old log in use.
    Read,
    /// Another process's checkpoint was running, or the log must not be touched now.
    Refused,
}

impl Checkpoints {
    /// Without a background thread: a store in memory has no log.
    pub(super) fn none() -> Self {
        Checkpoints {
            ask: None,
            thread: None,
            turn: Arc::default(),
            page_bytes: 4096,
            asked_at_bytes: 0,
            tries: Tries::default(),
            name: String::new(),
        }
    }

    /// With a background thread on its own connection. The thread ends when this is dropped.
    pub(super) fn start(connection: Connection, page_bytes: i64, trust: Arc<Trust>) -> std::io::Result<Self> {
        let (ask, asked) = sync_channel(1);
        let turn = Arc::default();
        let name = connection.path().unwrap_or_default().to_owned();
        let thread = std::thread::Builder::new().name("headwater-checkpoint".into());
        let own = Arc::clone(&turn);
        let thread = thread.spawn(move || {
            background(&connection, &asked, &own, &trust);
            trust.close(connection);
        })?;
        Ok(Checkpoints {
            ask: Some(ask),
            thread: Some(thread),
            turn,
            page_bytes,
            asked_at_bytes: 0,
            tries: Tries::default(),
            name,
        })
    }

    /// Keeps the background thread from running a checkpoint while the guard is held.
    pub(super) fn turn(&self) -> MutexGuard<'_, i64> {
        self.turn.lock().expect("no panic while held")
    }

    /// Called between transactions.
    pub(super) fn after_commit(&mut self, connection: &Connection, trust: &Trust) {
        let Some(ask) = self.ask.clone() else { return };
        let bytes = FRAMES.get() * self.page_bytes;
        if bytes < self.asked_at_bytes.max(self.tries.at_bytes) {
            // The log has restarted.
            (self.asked_at_bytes, self.tries) = (0, Tries::default());
        }
        self.log_if_large(bytes);
        // One or the other: a request to the background thread and a restart at the same moment would block each
        // other.
        match self.try_restart(bytes, connection, trust) {
            Some(restart) => {
                self.tries.at_bytes = bytes;
                self.tries.failed = if restart == Restart::Read { self.tries.failed + 1 } else { 0 };
            }
            None if bytes >= self.asked_at_bytes + BACKGROUND_BYTES && ask.try_send(()).is_ok() => {
                self.asked_at_bytes = bytes;
            }
            None => {}
        }
    }

    /// Logs once that readers keep a log that has become large.
    fn log_if_large(&mut self, bytes: i64) {
        if self.tries.logged || bytes.cast_unsigned() < LARGE_BYTES {
            return;
        }
        self.tries.logged = true;
        let readers = readers(Path::new(&self.name));
        tracing::warn!(
            location = self.name,
            bytes,
            readers,
            "write-ahead log kept from being cut by a long read transaction"
        );
    }

    /// Restarts the log if an attempt is due and the background thread has left little to copy, or at the hard size
    /// limit; `None` if it was not tried.
    fn try_restart(&self, bytes: i64, connection: &Connection, trust: &Trust) -> Option<Restart> {
        if !self.tries.is_due(bytes) {
            return None;
        }
        if bytes >= FORCE_BYTES {
            // Waits for a running checkpoint of the background thread: without waiting the log would grow without
            // bound.
            let _turn = self.turn();
            return Some(restart(connection, trust));
        }
        match self.turn.try_lock() {
            Ok(rest_frames) if *rest_frames * self.page_bytes <= FINISH_REST_BYTES => {
                Some(restart(connection, trust))
            }
            _ => None,
        }
    }

    /// The last checkpoint, when the store closes: leaves an empty log if no other process has the file open.
    pub(super) fn finish(&mut self, connection: &Connection, trust: &Trust) {
        let Some(ask) = self.ask.take() else { return };
        drop(ask);
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("checkpoint thread panicked");
        }
        if !trust.may_checkpoint() {
            return;
        }
        let done = patience::at_most(OTHERS_TIMEOUT, || checkpoint(connection, "TRUNCATE"));
        if let Err(error) = done {
            // SQLite's own checkpoint on close must not retry what has just failed on the disk.
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

/// A checkpoint syncs the log before it copies it, and the file once everything is copied: a disk error may have been
/// in either sync.
fn failed(error: &rusqlite::Error, trust: &Trust) {
    tracing::warn!(%error, "checkpoint failed, write-ahead log kept until the next one");
    trust.note(error);
    if is_unknown_commit(error) {
        trust.checkpoint_failed(error);
    }
}

/// The processes that read from the log, as far as that can be found out.
pub(super) fn readers(database: &Path) -> String {
    let readers = holder::of_read_locks(database);
    let named: Vec<String> = readers.iter().map(ToString::to_string).collect();
    if named.is_empty() { "not known".into() } else { named.join(", ") }
}

/// Copies the rest and makes the next transaction restart the log.
fn restart(connection: &Connection, trust: &Trust) -> Restart {
    if !trust.may_checkpoint() {
        return Restart::Refused;
    }
    let done = patience::at_most(READERS_WAIT, || restart_in_time(connection));
    match done {
        Ok(Restart::Done) => Restart::Done,
        Ok(kept) => {
            tracing::debug!(?kept, "old write-ahead log still in use");
            kept
        }
        Err(error) => {
            failed(&error, trust);
            Restart::Refused
        }
    }
}

/// How many frames the log has up to its last commit by any process, and how many of them count as copied. The caller
/// holds the write lock, so neither grows meanwhile except by another process's checkpoint. Uses a connection of its
/// own: SQLite refuses this inside the transaction that holds the lock.
pub(super) fn frames(path: &Path) -> rusqlite::Result<(u64, u64)> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags)?;
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
    patience::install(&connection)?;
    // A connection that has read nothing yet has not opened the log.
    connection.query_row("PRAGMA schema_version", [], |_| Ok(()))?;
    let (_, frames, copied) = checkpoint(&connection, "NOOP")?;
    // -1: SQLite has not opened the log.
    let known = |count: i64| u64::try_from(count).map_err(|_| rusqlite::Error::InvalidQuery);
    Ok((known(frames)?, known(copied)?))
}

/// Whether the log restarts. SQLite itself waits for readers, but not for another process's checkpoint: then it
/// returns -1 for the number of frames. Between these attempts no lock is held.
fn restart_in_time(connection: &Connection) -> rusqlite::Result<Restart> {
    let until = Instant::now() + OTHERS_TIMEOUT;
    loop {
        match checkpoint(connection, "RESTART")? {
            (false, ..) => return Ok(Restart::Done),
            (true, -1, _) if Instant::now() < until => std::thread::sleep(CHECK_AGAIN),
            (true, -1, _) => return Ok(Restart::Refused),
            (true, ..) => return Ok(Restart::Read),
        }
    }
}

/// Runs a checkpoint. Returns whether it was kept from finishing, the frames in the log, and the frames copied.
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

    /// Without waiting, the log of a writer that is faster than the background thread would grow without bound.
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
        assert!(
            is_done.recv_timeout(Duration::from_millis(20)).is_err(),
            "the writer continued without waiting"
        );
        drop(under_way);
        is_done.recv().unwrap();
        assert_eq!(writer.join().unwrap(), 1, "the log restarted");
    }

    #[test]
    fn tries_that_readers_make_fail_come_ever_more_rarely() {
        let mut tries = Tries::default();
        let mut tried_at = Vec::new();
        for bytes in (0..4 << 30).step_by(1 << 20) {
            if tries.is_due(bytes) {
                tried_at.push(bytes >> 20);
                tries = Tries { at_bytes: bytes, failed: tries.failed + 1, logged: false };
            }
        }
        assert_eq!(tried_at, [64, 80, 112, 176, 304, 560, 1072, 2096], "in MB");
        tries = Tries { at_bytes: 64 << 20, failed: 0, logged: false };
        assert!(tries.is_due(72 << 20), "an attempt that another checkpoint refused is repeated soon");
    }

    /// A long-running reader costs each attempt the wait for readers, and no more.
    #[test]
    fn a_try_beside_a_reader_that_stays_ends_soon_and_says_why() {
        let folder = tempfile::tempdir().unwrap();
        let location = Location::new(&SqlitePath::File(folder.path().join("log.db"))).unwrap();
        let connection = open(&location, Role::Writer).unwrap();
        connection.execute_batch("CREATE TABLE t (n); INSERT INTO t VALUES (1)").unwrap();
        let reader = open(&location, Role::Reader).unwrap();
        reader.execute_batch("BEGIN; SELECT count(*) FROM t").unwrap();
        connection.execute_batch("INSERT INTO t VALUES (2)").unwrap();
        let trust = Trust::of(&connection, &location).unwrap();
        let lasted = || {
            let began = Instant::now();
            assert_eq!(restart(&connection, &trust), Restart::Read);
            began.elapsed()
        };
        // The shortest of several: a loaded machine prolongs single ones.
        let shortest = (0..5).map(|_| lasted()).min().unwrap();
        assert!(shortest < OTHERS_TIMEOUT, "{shortest:?}");
        #[cfg(target_os = "linux")]
        assert_eq!(readers(location.path.as_ref().unwrap()), "another connection of this process");
        reader.execute_batch("COMMIT").unwrap();
        assert_eq!(restart(&connection, &trust), Restart::Done);
        assert_eq!(readers(location.path.as_ref().unwrap()), "not known");
    }

    /// Collects the log output of one thread.
    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl std::io::Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().extend(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    /// Only the numbers grow here: the log itself stays small.
    #[test]
    fn a_log_that_a_reader_keeps_is_tried_ever_more_rarely_and_logged_once() {
        let folder = tempfile::tempdir().unwrap();
        let location = Location::new(&SqlitePath::File(folder.path().join("log.db"))).unwrap();
        let connection = open(&location, Role::Writer).unwrap();
        connection.execute_batch("CREATE TABLE t (n); INSERT INTO t VALUES (1)").unwrap();
        let reader = open(&location, Role::Reader).unwrap();
        reader.execute_batch("BEGIN; SELECT count(*) FROM t").unwrap();
        connection.execute_batch("INSERT INTO t VALUES (2)").unwrap();
        let trust = Trust::of(&connection, &location).unwrap();
        let own = open(&location, Role::Checkpointer).unwrap();
        let mut checkpoints = Checkpoints::start(own, 4096, Arc::clone(&trust)).unwrap();
        let lines = Lines::default();
        let writer = lines.clone();
        let subscriber =
            tracing_subscriber::fmt().with_ansi(false).with_writer(move || writer.clone()).finish();
        let mut tried_at = Vec::new();
        tracing::subscriber::with_default(subscriber, || {
            for megabytes in (64..=600).step_by(8) {
                // A running checkpoint of the background thread would delay an attempt.
                drop(checkpoints.turn());
                FRAMES.set((megabytes << 20) / 4096);
                checkpoints.after_commit(&connection, &trust);
                if checkpoints.tries.at_bytes == megabytes << 20 {
                    tried_at.push(megabytes);
                }
            }
        });
        assert!(tried_at.len() <= 7, "in MB: {tried_at:?}");
        assert!(tried_at.len() >= 3, "in MB: {tried_at:?}");
        let logged = String::from_utf8(lines.0.lock().unwrap().clone()).unwrap();
        assert_eq!(logged.matches("write-ahead log kept from being cut").count(), 1, "{logged}");
    }

    #[test]
    fn damage_that_a_checkpoint_meets_fails_the_store() {
        let folder = tempfile::tempdir().unwrap();
        let location = Location::new(&SqlitePath::File(folder.path().join("log.db"))).unwrap();
        let connection = open(&location, Role::Writer).unwrap();
        connection.execute_batch("CREATE TABLE t (n)").unwrap();
        let trust = Trust::of(&connection, &location).unwrap();
        let failure = |code| rusqlite::Error::SqliteFailure(rusqlite::ffi::Error::new(code), None);
        failed(&failure(rusqlite::ffi::SQLITE_BUSY), &trust);
        trust.check().unwrap();
        failed(&failure(rusqlite::ffi::SQLITE_CORRUPT), &trust);
        assert!(trust.check().unwrap_err().to_string().contains("damaged"));
    }
}
