//! What the writer runs: a command, and the transaction it works in.

use std::time::Instant;

use rusqlite::Connection;
use tokio::sync::oneshot;

use super::fault::{Attempt, Fault};
use super::publish::Logs;
use super::step_bytes::StepBytes;
use crate::clock::Clock;
use crate::error::Error;
use crate::topic::TopicId;

/// The transaction in which a command runs.
#[derive(Debug)]
pub(super) struct Work<'c> {
    /// The write connection, inside a transaction.
    pub(super) connection: &'c Connection,
    /// Whether COMMIT waits for the disk.
    pub(super) synced: bool,
    /// The heads of the topics published to, not yet written back.
    pub(super) logs: Logs,
    /// Topics whose waiters are woken after COMMIT.
    pub(super) woken: Vec<TopicId>,
    /// The scheduled messages that its commands have promoted.
    pub(super) promoted: StepBytes,
    clock: &'c Clock,
}

impl<'c> Work<'c> {
    pub(super) fn new(connection: &'c Connection, clock: &'c Clock, synced: bool) -> Self {
        let (logs, promoted) = (Logs::default(), StepBytes::default());
        Work { connection, synced, logs, woken: Vec::new(), promoted, clock }
    }

    /// The time in milliseconds. Read while the write lock is held, so that it is not from before a long wait for the
    /// lock.
    pub(super) fn now_ms(&self) -> i64 {
        now_ms(self.clock)
    }

    /// Wakes the waiters of a topic once this transaction is committed.
    pub(super) fn wake(&mut self, topic: TopicId) {
        if !self.woken.contains(&topic) {
            self.woken.push(topic);
        }
    }
}

/// Wakes the waiters of a topic: those of this process after COMMIT, those of others by the changed row of the topic.
pub(super) fn wake(work: &mut Work<'_>, topic: TopicId) -> Attempt<()> {
    work.connection.prepare_cached(super::sql!(settle.wake))?.execute([topic.0])?;
    work.wake(topic);
    Ok(())
}

/// The time of a clock, in milliseconds since 1970.
pub(super) fn now_ms(clock: &Clock) -> i64 {
    clock.injected().unwrap_or_else(jiff::Timestamp::now).as_millisecond()
}

/// How a command is committed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Appends to logs. Waits for the disk. It checks everything before it writes anything, so it needs no savepoint:
    /// if it is refused nothing was written, and if SQLite fails during it the whole transaction is rolled back.
    Publish,
    /// Writes something else that must survive a power cut.
    Define,
    /// Claims and settlements: losing one in a power cut only means that messages are redelivered. Tokens of a lost
    /// claim are not issued again ([`next_token`](super::range::next_token)).
    Consume,
    /// Runs the program's own handlers, whose effects must survive a power cut. Always in a transaction of its own,
    /// so that a handler can affect no other command.
    Handle,
    /// Reads only (a store in memory has no other connection for reads).
    Read,
}

/// A command for the writer. It may run more than once; only the last run counts.
pub(super) trait Command: Send {
    /// How it is committed.
    fn kind(&self) -> Kind;
    /// When it was created.
    fn since(&self) -> Instant;
    /// Whether no caller waits for the answer any more.
    fn is_abandoned(&self) -> bool;
    /// Runs the command and keeps its answer.
    fn run(&mut self, work: &mut Work<'_>) -> Attempt<()>;
    /// Sends the answer after COMMIT, or the failure. If no caller receives the answer, returns the command that
    /// undoes it.
    fn answer(self: Box<Self>, failure: Option<Error>) -> Option<BoxCommand>;
}

/// A command, owned.
pub(super) type BoxCommand = Box<dyn Command>;

/// A command made of a closure and the channel to the caller that waits for its answer.
pub(super) struct Job<T, F> {
    kind: Kind,
    since: Instant,
    run: F,
    outcome: Option<T>,
    reply: oneshot::Sender<Result<T, Error>>,
    /// Makes the command that undoes an answer that was not received.
    undo: Option<fn(&T) -> Option<BoxCommand>>,
    /// Runs even if no caller waits for it.
    unattended: bool,
}

impl<T, F> Job<T, F>
where
    T: Send + 'static,
    F: FnMut(&mut Work<'_>) -> Attempt<T> + Send + 'static,
{
    /// A job and the channel that receives its answer.
    pub(super) fn new(kind: Kind, run: F) -> (Self, oneshot::Receiver<Result<T, Error>>) {
        let (reply, answer) = oneshot::channel();
        (
            Job { kind, since: Instant::now(), run, outcome: None, reply, undo: None, unattended: false },
            answer,
        )
    }

    /// Sets how an answer that no caller receives is undone.
    pub(super) fn undo(mut self, undo: fn(&T) -> Option<BoxCommand>) -> Self {
        self.undo = Some(undo);
        self
    }

    /// Runs the job even if no caller waits for the answer.
    pub(super) fn unattended(mut self) -> Self {
        self.unattended = true;
        self
    }
}

impl<T, F> Command for Job<T, F>
where
    T: Send + 'static,
    F: FnMut(&mut Work<'_>) -> Attempt<T> + Send + 'static,
{
    fn kind(&self) -> Kind {
        self.kind
    }

    fn since(&self) -> Instant {
        self.since
    }

    fn is_abandoned(&self) -> bool {
        !self.unattended && self.reply.is_closed()
    }

    fn run(&mut self, work: &mut Work<'_>) -> Result<(), Fault> {
        self.outcome = None;
        self.outcome = Some((self.run)(work)?);
        Ok(())
    }

    fn answer(self: Box<Self>, failure: Option<Error>) -> Option<BoxCommand> {
        let answer = match failure {
            Some(error) => Err(error),
            None => Ok(self.outcome.expect("a command that succeeded has an answer")),
        };
        match self.reply.send(answer) {
            Err(Ok(unwanted)) => self.undo.and_then(|undo| undo(&unwanted)),
            Ok(()) | Err(Err(_)) => None,
        }
    }
}
