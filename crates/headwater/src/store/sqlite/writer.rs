//! The writer: one thread owns the write connection and commits commands in groups.
//!
//! Callers queue commands. The writer runs all that are waiting in one transaction and answers them after COMMIT, so
//! that one wait for the disk serves all of them. No command is answered with `Ok` before COMMIT returned `Ok` and
//! the files were found to be those that the path leads to.

use std::io::ErrorKind::{InvalidData, UnexpectedEof};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use rusqlite::Connection;

use super::checkpoint::{self, Checkpoints};
use super::clock;
use super::connection::Location;
use super::fault::{
    Attempt, Fault, commit_error, is_busy, is_damage, is_unknown_commit, shared_error, sqlite_error,
};
use super::queue::{Queue, Taken};
use super::take_over::Proofs;
use super::trust::Trust;
use super::watch::Watch;
use super::work::{BoxCommand, Kind, Work};
use super::{migrate, patience};
use crate::clock::Clock;
use crate::clock::guard::Memory;
use crate::error::{Error, ErrorKind, panic_text};
use crate::store::wake::Hub;

/// Commands waiting at most; further callers wait for a slot.
pub(super) const QUEUE_PLACES: usize = 1024;
/// Commands in one transaction at most: this bounds how long the first of them waits.
pub(super) const GROUP_COMMANDS_MAX: usize = 256;

/// A transaction waits for a lock for this fraction of the time that a publish may wait: by default 5 of 30 seconds.
const TRIES_PER_PATIENCE: u32 = 6;

/// Why the log is not rewritten after a failed checkpoint. A page that an earlier checkpoint copied may be missing in
/// the file, and SQLite copies it again only after it has rebuilt its index of the log.
const COPIED: &str = "pages were copied into the file before a sync failed; stop all processes that use this file and \
                      start them again: the log is then copied again";

/// The queue to the writer.
pub(super) type Commands = Queue<BoxCommand>;

/// The state of the writer thread.
pub(super) struct Writer {
    pub(super) connection: Connection,
    pub(super) location: Location,
    pub(super) commands: Arc<Commands>,
    pub(super) hub: Arc<Hub>,
    pub(super) clock: Clock,
    /// The last clock reading that was committed.
    pub(super) memory: Option<Memory>,
    pub(super) policy: SyncPolicy,
    pub(super) watch: Watch,
    pub(super) checkpoints: Checkpoints,
    pub(super) trust: Arc<Trust>,
    /// How long a command that no lease depends on waits for a lock of another process.
    pub(super) patience: Duration,
    /// How many commands were put back at the front of the queue.
    pub(super) put_back: usize,
    /// Proves to other processes that this one is alive, until the queued commands are committed.
    pub(super) _proofs: Arc<Proofs>,
    /// The connection's current `synchronous` setting: true for FULL.
    pub(super) full: bool,
}

/// Which transactions wait for the disk at COMMIT.
#[derive(Clone, Copy, Debug)]
pub(super) struct SyncPolicy {
    /// Publishes do.
    pub(super) publishes: bool,
    /// Claims and settlements do.
    pub(super) settlements: bool,
}

impl SyncPolicy {
    fn wants_sync(self, kind: Kind) -> bool {
        match kind {
            Kind::Publish | Kind::Define | Kind::Handle => self.publishes,
            Kind::Consume => self.settlements,
            Kind::Read => false,
        }
    }
}

/// A command and its result in this group.
struct Slot {
    command: BoxCommand,
    outcome: SlotOutcome,
}

enum SlotOutcome {
    Pending,
    Done,
    NeedsSync,
    Failed(Error),
    /// Another process held the lock, so the command did not run; with the error to return once it may wait no
    /// longer.
    Locked(Error),
}

/// At which step a transaction failed.
enum Failure {
    /// BEGIN failed: nothing ran.
    Begin(rusqlite::Error),
    /// A command failed the transaction; all of it was rolled back.
    Inside(Fault),
    /// COMMIT failed.
    Commit(rusqlite::Error),
    /// Nothing may be written at present: nothing ran.
    Refused(Error),
    /// COMMIT succeeded, but perhaps not into the file that the path leads to, or not onto the disk.
    Doubtful(Error),
}

impl Writer {
    /// Starts the thread.
    pub(super) fn start(self) -> std::io::Result<JoinHandle<()>> {
        std::thread::Builder::new().name("headwater-writer".into()).spawn(move || self.run())
    }

    fn run(mut self) {
        // If this thread ends in any other way than by closing, waiting callers get an error instead of waiting
        // forever.
        let guard = AbandonOnDrop(Arc::clone(&self.commands));
        checkpoint::count_frames(&self.connection);
        loop {
            match self.commands.take(GROUP_COMMANDS_MAX + self.put_back, self.watch.pause(&self.hub)) {
                Taken::Items(commands) => self.serve(commands),
                Taken::Nothing => {}
                Taken::Closed => break,
            }
            self.watch.check(&self.connection, &self.hub);
            if self.hub.waiting() > 0 && self.trust.check_lately().is_err() {
                // The waiters claim and get the error; nothing else would ever wake them.
                self.hub.wake_all();
            }
        }
        if self.trust.is_unsynced()
            && let Err(error) = self.make_whole()
        {
            tracing::error!(location = self.location.name, %error, "write-ahead log not repaired before close");
        }
        self.checkpoints.finish(&self.connection, &self.trust);
        drop(guard);
        self.trust.close(self.connection);
    }

    /// Runs a group of commands and answers all of its callers.
    fn serve(&mut self, commands: Vec<BoxCommand>) {
        let slots = commands.into_iter().filter(|command| !command.is_abandoned());
        let mut slots: Vec<Slot> =
            slots.map(|command| Slot { command, outcome: SlotOutcome::Pending }).collect();
        let policy = self.policy;
        let alone = |slot: &Slot| slot.command.kind() == Kind::Handle;
        for group in slots.chunk_by_mut(|one, next| !alone(one) && !alone(next)) {
            let synced = group.iter().any(|slot| policy.wants_sync(slot.command.kind()));
            self.serve_group(group, synced);
            if alone(&group[0]) {
                // Handlers may publish in any way, including plain SQL: the topics they wrote to are read from the
                // file.
                self.watch.look_at_own(&self.connection, &self.hub);
            }
        }
        for slot in &mut slots {
            if matches!(slot.outcome, SlotOutcome::NeedsSync) {
                self.serve_group(std::slice::from_mut(slot), true);
            }
        }
        let slots = self.put_locked_back(slots);
        for slot in slots {
            let failure = match slot.outcome {
                SlotOutcome::Done => None,
                SlotOutcome::Failed(error) | SlotOutcome::Locked(error) => Some(error),
                SlotOutcome::NeedsSync => Some(Fault::NeedsSync.into_error(&self.location.name)),
                SlotOutcome::Pending => unreachable!("a group gives every slot an outcome"),
            };
            if let Some(undo) = slot.command.answer(failure) {
                // Refused only while closing: the lease then ends at its deadline.
                let _ = self.commands.push_now(undo);
            }
        }
        self.checkpoints.after_commit(&self.connection, &self.trust);
    }

    /// Puts publishes and definitions that found the file locked back at the front of the queue while they may still
    /// wait. Commands that depend on a lease are answered instead: their callers must know in time. A command that is
    /// put back did not run; the next transaction runs it together with those that arrived meanwhile.
    fn put_locked_back(&mut self, slots: Vec<Slot>) -> Vec<Slot> {
        let may_wait = |slot: &Slot| {
            matches!(slot.outcome, SlotOutcome::Locked(_))
                && matches!(slot.command.kind(), Kind::Publish | Kind::Define)
                && slot.command.since().elapsed() < self.patience
        };
        let (locked, mut answered): (Vec<Slot>, Vec<Slot>) = slots.into_iter().partition(may_wait);
        self.put_back = locked.len();
        let Some(error) = locked.iter().find_map(|slot| match &slot.outcome {
            SlotOutcome::Locked(error) => Some(error.copy()),
            _ => None,
        }) else {
            return answered;
        };
        let commands = locked.into_iter().map(|slot| slot.command).collect();
        if let Err(closed) = self.commands.put_back(commands) {
            let failed = |command| Slot { command, outcome: SlotOutcome::Failed(error.copy()) };
            answered.extend(closed.into_iter().map(failed));
        }
        answered
    }

    /// Runs one transaction for all commands. If one of several fails it, runs one transaction for each, so that no
    /// command fails because of another.
    fn serve_group(&mut self, slots: &mut [Slot], synced: bool) {
        if slots.is_empty() {
            return;
        }
        let Err(failure) = self.transact(slots, synced) else { return };
        if !self.connection.is_autocommit()
            && let Err(error) = self.connection.execute_batch("ROLLBACK")
        {
            tracing::error!(location = self.location.name, %error, "rollback failed");
        }
        self.learn_from(&failure);
        let alone = slots.len() == 1;
        match failure {
            Failure::Refused(error) | Failure::Doubtful(error) => {
                for slot in slots {
                    slot.outcome = SlotOutcome::Failed(error.copy());
                }
            }
            Failure::Inside(Fault::NeedsSync) if alone => slots[0].outcome = SlotOutcome::NeedsSync,
            Failure::Inside(fault) if alone => {
                slots[0].outcome = SlotOutcome::Failed(fault.into_error(&self.location.name));
            }
            Failure::Begin(error) if is_busy(&error) => {
                let error = sqlite_error(&self.location.name, error);
                slots.iter_mut().for_each(|slot| slot.outcome = SlotOutcome::Locked(error.copy()));
            }
            Failure::Begin(error) => self.fail_all(slots, error, shared_error),
            Failure::Commit(error) if alone || is_unknown_commit(&error) => {
                self.fail_all(slots, error, commit_error);
            }
            Failure::Inside(_) | Failure::Commit(_) => {
                for slot in slots {
                    let synced = synced && self.policy.wants_sync(slot.command.kind());
                    self.serve_group(std::slice::from_mut(slot), synced);
                }
            }
        }
    }

    fn learn_from(&self, failure: &Failure) {
        match failure {
            Failure::Begin(error) | Failure::Inside(Fault::Sqlite(error)) => self.trust.note(error),
            Failure::Commit(error) => {
                self.trust.note(error);
                if is_unknown_commit(error) {
                    self.trust.sync_failed(error);
                }
            }
            Failure::Inside(_) | Failure::Refused(_) | Failure::Doubtful(_) => {}
        }
    }

    /// Whether a transaction may begin. After a failed sync only once the log is repaired.
    fn may_write(&self) -> crate::error::Result<()> {
        self.trust.check_lately()?;
        if self.trust.is_unsynced() { self.make_whole() } else { Ok(()) }
    }

    /// Repairs the log on the disk: see [`super::wal`].
    fn make_whole(&self) -> crate::error::Result<()> {
        let refused = |why: &dyn std::fmt::Display| {
            let text = format!(
                "a sync of the write-ahead log failed and the log is not whole again yet, nothing was written: {}: {why}",
                self.location.name
            );
            Error::new(ErrorKind::Unavailable, text)
        };
        let (Some(log), Some(path)) = (self.trust.log(), &self.location.path) else { return Ok(()) };
        self.trust.check()?;
        let _turn = self.checkpoints.turn();
        execute(&self.connection, "BEGIN IMMEDIATE").map_err(|error| refused(&error))?;
        // Under the lock: no process appends to the log or restarts it between counting and rewriting.
        let outcome = match checkpoint::frames(path) {
            Ok((_, copied)) if copied > 0 && self.trust.is_file_unsynced() => Err(refused(&COPIED)),
            Ok((frames, _)) => match super::wal::rewrite(log, frames) {
                Ok(()) => {
                    self.trust.synced();
                    Ok(())
                }
                Err(error) if matches!(error.kind(), InvalidData | UnexpectedEof) => self.damaged(error),
                Err(error) => Err(refused(&error)),
            },
            // A page that every connection reads differs from what was written.
            Err(error) if is_damage(&error) => self.damaged(error),
            Err(error) => Err(refused(&error)),
        };
        execute(&self.connection, "ROLLBACK").map_err(|error| refused(&error))?;
        if let Err(error) = &outcome
            && self.trust.check().is_ok()
        {
            self.trust.sync_failed(error);
        }
        outcome
    }

    /// Fails the store permanently, unless the path leads to another file by now: then its log is another one too.
    fn damaged(&self, error: impl std::error::Error + Send + Sync + 'static) -> crate::error::Result<()> {
        self.trust.check()?;
        let text = format!("the write-ahead log is damaged: {}: {error}", self.location.name);
        self.trust.fail(Error::with_source(ErrorKind::NotAStore, text, error), false);
        self.trust.check_lately()
    }

    /// Runs after COMMIT and before the acknowledgement.
    fn confirm(&self, synced: bool) -> crate::error::Result<()> {
        let checked = if synced { self.trust.check() } else { self.trust.check_lately() };
        let doubt = match checked {
            Err(error) => error.to_string(),
            // The checkpoint thread's sync failed while this transaction committed.
            Ok(()) if synced && self.trust.is_unsynced() => {
                format!("a sync of the write-ahead log failed during the commit: {}", self.location.name)
            }
            Ok(()) => return Ok(()),
        };
        Err(Error::new(ErrorKind::CommitUnknown, format!("it may or may not be stored: {doubt}")))
    }

    fn fail_all(
        &self,
        slots: &mut [Slot],
        error: rusqlite::Error,
        make: fn(&str, &Arc<rusqlite::Error>) -> Error,
    ) {
        let error = Arc::new(error);
        for slot in slots {
            slot.outcome = SlotOutcome::Failed(make(&self.location.name, &error));
        }
    }

    fn transact(&mut self, slots: &mut [Slot], synced: bool) -> Result<(), Failure> {
        self.may_write().map_err(Failure::Refused)?;
        self.set_synchronous(synced).map_err(Failure::Begin)?;
        let connection = &self.connection;
        patience::at_most(self.patience / TRIES_PER_PATIENCE, || execute(connection, "BEGIN IMMEDIATE"))
            .map_err(Failure::Begin)?;
        let writes = slots.iter().any(|slot| slot.command.kind() != Kind::Read);
        let memory = if writes { self.before_writing() } else { Ok(None) }?;
        let mut work = Work::new(connection, &self.clock, synced);
        let alone = slots.len() == 1;
        for slot in &mut *slots {
            slot.outcome = run_one(&mut work, slot, alone, &self.location.name).map_err(Failure::Inside)?;
        }
        work.logs.flush(connection).map_err(Failure::Inside)?;
        let woken = std::mem::take(&mut work.woken);
        execute(connection, "COMMIT").map_err(Failure::Commit)?;
        self.watch.committed(&self.hub);
        self.memory = memory.or(self.memory);
        self.confirm(synced).map_err(Failure::Doubtful)?;
        for topic in woken {
            self.hub.wake(topic);
        }
        Ok(())
    }

    /// The checks before every transaction that writes: the tables have the version that this program supports, and
    /// the clock did not step.
    fn before_writing(&self) -> Result<Option<Memory>, Failure> {
        migrate::check_written(&self.connection, &self.location.name).map_err(|fault| match fault {
            Fault::Sqlite(error) => Failure::Begin(error),
            fault => Failure::Refused(fault.into_error(&self.location.name)),
        })?;
        clock::check(&self.connection, &self.clock, self.memory).map_err(Failure::Begin)
    }

    /// Sets `synchronous`, which can only change between transactions. In WAL mode one fsync makes everything before
    /// it durable too, so a publish never becomes durable before the claims that were committed before it.
    fn set_synchronous(&mut self, full: bool) -> rusqlite::Result<()> {
        if self.full != full {
            let sql = if full { "PRAGMA synchronous = FULL" } else { "PRAGMA synchronous = NORMAL" };
            self.connection.execute_batch(sql)?;
            self.full = full;
        }
        Ok(())
    }
}

/// Runs one command of a group in its own savepoint. An `Err` rolls back the whole transaction.
fn run_one(work: &mut Work<'_>, slot: &mut Slot, alone: bool, location: &str) -> Attempt<SlotOutcome> {
    let connection = work.connection;
    let kind = slot.command.kind();
    if kind != Kind::Publish {
        // Other commands read the heads from their rows.
        work.logs.flush(connection)?;
    }
    let savepoint = !alone && kind != Kind::Publish;
    if savepoint {
        execute(connection, "SAVEPOINT command")?;
    }
    let ran = catch_unwind(AssertUnwindSafe(|| slot.command.run(work)));
    let fault = match ran {
        Ok(Ok(())) => {
            if savepoint {
                execute(connection, "RELEASE command")?;
            }
            work.logs.confirm();
            return Ok(SlotOutcome::Done);
        }
        Ok(Err(fault)) => fault,
        Err(panic) => {
            let error = panicked(panic.as_ref(), location);
            if !savepoint && !alone {
                // The command may have made only some of its writes: only a rollback of the transaction undoes them.
                return Err(Fault::Sqlite(rusqlite::Error::InvalidQuery));
            }
            Fault::Refused(error)
        }
    };
    work.logs.forget_unconfirmed();
    // Damage affects every command: nothing of this transaction may be acknowledged.
    let broken = matches!(&fault, Fault::Sqlite(error) if !savepoint || is_damage(error));
    if alone || broken || connection.is_autocommit() {
        return Err(fault);
    }
    if savepoint {
        execute(connection, "ROLLBACK TO command")?;
        execute(connection, "RELEASE command")?;
    }
    Ok(match fault {
        Fault::NeedsSync => SlotOutcome::NeedsSync,
        fault => SlotOutcome::Failed(fault.into_error(location)),
    })
}

fn panicked(panic: &(dyn std::any::Any + Send), location: &str) -> Error {
    let text = panic_text(panic);
    tracing::error!(location, panic = text, "a command panicked and was rolled back");
    Error::new(ErrorKind::Database, format!("a command panicked and was rolled back: {location}: {text}"))
}

fn execute(connection: &Connection, sql: &'static str) -> rusqlite::Result<()> {
    connection.prepare_cached(sql)?.execute([]).map(drop)
}

struct AbandonOnDrop(Arc<Commands>);

impl Drop for AbandonOnDrop {
    fn drop(&mut self) {
        self.0.abandon();
    }
}
