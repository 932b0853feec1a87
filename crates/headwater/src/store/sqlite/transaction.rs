//! Handling in the store's own transaction: the inbox entry, the handler's writes and the ack commit together.
//!
//! Why an effect exists exactly once, wherever the process is killed. The transaction runs on the writer thread, and
//! so do the handlers. It inserts the inbox entry `(handler, message_id)`, runs the handler and settles the lease.
//! Before COMMIT nothing of it exists: the lease ends at its deadline, the message is redelivered, and there is no
//! inbox entry, so the handler runs. After COMMIT all of it exists: the message is done, and a second delivery of the
//! same id (another publish, a redrive) finds the entry and does not run the handler. One transaction writes at a
//! time, so two deliveries never overlap. If the lease was lost meanwhile, the settlement fails and everything is
//! rolled back. The commit waits for the disk as a publish does.
//!
//! Handlers are code of the application. Each lease is handled in a transaction of its own that it shares with no
//! other command, so whatever a handler does to its transaction affects its own batch only.

use std::fmt;
use std::sync::{Arc, Mutex};

use futures_util::FutureExt;
use rusqlite::{Connection, params};
use uuid::Uuid;

use super::driven::{Open, Requests};
use super::fault::{Attempt, Fault};
use super::work::{Kind, Work};
use super::{SqliteStore, settle};
use crate::codec::DecodeError;
use crate::error::{Error, ErrorKind, Result};
use crate::handler::{Call, HandlerRun, Messages, Said};
use crate::lease::LeaseId;
use crate::repository::check_id;
use crate::settle::{Settlement, Verdict};
use crate::transaction::Transaction;

const SAVEPOINT: &str = "SAVEPOINT headwater_handler";
const RELEASE: &str = "RELEASE headwater_handler";
const ROLLBACK_TO: &str = "ROLLBACK TO headwater_handler";

/// Handles one message inside the store's open transaction.
///
/// It runs on the writer thread, so nothing else is written meanwhile: keep it short, and do not wait for anything in
/// it. Its statements see and change the store's own file. Leave BEGIN, COMMIT and ROLLBACK to the store: a handler
/// that ends the transaction gets an error, and its batch is not settled.
pub(crate) type Handle = Box<dyn Fn(&mut Open<'_, '_>, Messages) -> Result<Verdict, DecodeError> + Send>;

/// Handles the messages with these indexes together inside the store's open transaction. If it fails, all of it is rolled
/// back.
pub(crate) type HandleAll = Box<dyn FnOnce(&mut Open<'_, '_>, Vec<usize>) -> Result<()> + Send>;

/// How the messages of a lease are handled.
pub(crate) enum Handlers {
    /// One at a time, each with a savepoint.
    Each(Handle),
    /// Together, without savepoints: all of them are done, or nothing has happened.
    Together(HandleAll),
}

/// Turns the handlers' verdicts into the settlement of their lease.
pub(crate) type Decide = Box<dyn FnOnce(&Said) -> Settlement + Send>;

/// A lease's messages to be handled in one transaction.
pub(crate) struct TransactionWork {
    /// The name under which inbox entries are stored.
    pub(crate) handler_name: String,
    /// The member whose handler runs.
    pub(crate) member: String,
    /// The lease.
    pub(crate) lease: LeaseId,
    /// Its messages, and the rules by which they are handled.
    pub(crate) run: HandlerRun<Messages>,
    /// Handles the messages.
    pub(crate) handlers: Handlers,
    /// Decides the settlement of the lease.
    pub(crate) decide: Decide,
}

impl fmt::Debug for TransactionWork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TransactionWork")
            .field("handler_name", &self.handler_name)
            .field("token", &self.lease.token)
            .field("messages", &self.run.messages.len())
            .finish_non_exhaustive()
    }
}

impl SqliteStore {
    /// Handles a lease's messages and settles it, in one durable transaction. `LeaseLost` if the lease is lost before
    /// it commits: then nothing of it took effect. A message whose handler fails or panics leaves no effect, and the
    /// others keep theirs.
    pub(crate) async fn handle_in_transaction(&self, work: TransactionWork) -> Result<Said> {
        check_id("handler", &work.handler_name)?;
        let (mut todo, holes) = (Some(work), Arc::clone(&self.holes));
        self.write(Kind::Handle, move |open| match todo.take() {
            Some(todo) => {
                // No verdict names a hole, so it is acked with the rest.
                let passed: Vec<_> = holes.under(open, 0, &todo.lease, None)?.into_iter().collect();
                let said = run(open, todo)?;
                super::holes::miss(open, &passed, |_| true)?;
                Ok(said)
            }
            // Only a group that failed is run again, and this kind shares no group.
            None => Err(Error::new(ErrorKind::Database, "a transaction was run twice").into()),
        })
        .await
    }
}

impl SqliteStore {
    /// Runs a program's closure in a durable transaction, which is committed if the closure returns `Ok`.
    pub(crate) async fn transaction<T, E, F>(
        &self,
        work: impl FnOnce(Transaction) -> F + Send + 'static,
    ) -> Result<T, E>
    where
        T: Send + 'static,
        E: From<Error> + Send + 'static,
        F: Future<Output = Result<T, E>> + Send + 'static,
    {
        let (mut todo, runtime) = (Some(work), tokio::runtime::Handle::current());
        // The closure's own error: the writer's is ours.
        let failed = Arc::new(Mutex::new(None));
        let fails = Arc::clone(&failed);
        let ran = self.write(Kind::Handle, move |open| {
            let _entered = runtime.enter();
            let Some(work) = todo.take() else {
                return Err(Error::new(ErrorKind::Database, "a transaction was run twice").into());
            };
            let (requests, mut open) = (Requests::default(), Open::new(open));
            let done = open.drive(&requests, work(requests.clone().into()).boxed(), None)?;
            if open.connection().is_autocommit() {
                let rule = "it ended its transaction; leave BEGIN, COMMIT and ROLLBACK to the store";
                return Err(Error::invalid("transaction", rule).into());
            }
            match done {
                Ok(done) => open.check().map(|()| done).map_err(Fault::Refused),
                Err(error) => {
                    *fails.lock().expect("no panic while held") = Some(error);
                    Err(Error::new(ErrorKind::Database, "rolled back by the program").into())
                }
            }
        });
        let ran = ran.await;
        let failed = failed.lock().expect("no panic while held").take();
        failed.map_or_else(|| Ok(ran?), Err)
    }
}

/// What is handled, for inbox entries and errors.
struct Name {
    handler: String,
    member: String,
    lease: LeaseId,
}

fn run(open: &mut Work<'_>, todo: TransactionWork) -> Attempt<Said> {
    let TransactionWork { handler_name, member, lease, run, handlers, decide } = todo;
    if settle::held(open.connection, &lease, open.now_ms())?.is_empty() {
        // Nothing was started, so no handler runs in vain for messages that another owner holds.
        return Err(Error::lease_lost(lease.token.0).into());
    }
    let name = Name { handler: handler_name, member, lease };
    let said = match handlers {
        Handlers::Each(handle) => handle_each(open, &name, run, &handle)?,
        Handlers::Together(handle) => handle_together(open, &name, run, handle)?,
    };
    let settlement = decide(&said).normalized()?;
    // If it is refused, everything in this transaction is rolled back.
    settle::settle(open, &[settlement])?.remove(0)?;
    Ok(said)
}

fn handle_each(
    open: &mut Work<'_>,
    name: &Name,
    mut run: HandlerRun<Messages>,
    handle: &Handle,
) -> Attempt<Said> {
    while let Some(at) = run.next_one() {
        if let Some(verdict) = handle_one(open, name, &run, at, handle)? {
            run.said(at, verdict);
        }
    }
    Ok(run.finish())
}

/// Inserts all inbox entries, and handles the messages that had none.
fn handle_together(
    open: &mut Work<'_>,
    name: &Name,
    mut run: HandlerRun<Messages>,
    handle: HandleAll,
) -> Attempt<Said> {
    if !run.next_all() {
        return Err(Error::new(ErrorKind::Conflict, "a message of the slice is not to be handled now").into());
    }
    let (connection, mut fresh) = (open.connection, Vec::with_capacity(run.messages.len()));
    for (at, message) in run.messages.iter().enumerate() {
        if enter(open, name, message.message_id)? {
            fresh.push(at);
        }
    }
    handle(&mut Open::new(open), fresh)?;
    if connection.is_autocommit() {
        return Err(ended(name).into());
    }
    Ok(run.all_done())
}

/// Inserts the inbox entry of a message; false if it existed.
fn enter(open: &Work<'_>, name: &Name, message_id: Uuid) -> Attempt<bool> {
    let mut statement = open.connection.prepare_cached(super::sql!(transaction.enter))?;
    Ok(statement.execute(params![name.handler, message_id.to_string(), open.now_ms()])? == 1)
}

/// Inserts the inbox entry and handles one message; `None` if the entry existed: then the message is done.
fn handle_one(
    open: &mut Work<'_>,
    name: &Name,
    run: &HandlerRun<Messages>,
    at: usize,
    handle: &Handle,
) -> Attempt<Option<Verdict>> {
    let (connection, message) = (open.connection, run.messages.part(at..at + 1));
    execute(connection, SAVEPOINT)?;
    if !enter(open, name, message[0].message_id)? {
        execute(connection, RELEASE)?;
        return Ok(None);
    }
    let handle = || handle(&mut Open::new(open), message.clone());
    let call = Call { messages: &message, attempt: run.attempt, member: Some(&name.member) };
    let verdict = run.guard.call_now(call, handle);
    if connection.is_autocommit() {
        return Err(ended(name).into());
    }
    // A message that is not done must leave no effect: the entry is rolled back with the handler's writes.
    let end: &[&'static str] = if verdict.is_done() { &[RELEASE] } else { &[ROLLBACK_TO, RELEASE] };
    for sql in end {
        execute(connection, sql).map_err(|error| not_ours(name, error))?;
    }
    Ok(Some(verdict))
}

/// A missing savepoint belonged to a transaction that has ended.
fn not_ours(name: &Name, error: rusqlite::Error) -> Fault {
    if error.to_string().contains("no such savepoint") { ended(name).into() } else { error.into() }
}

fn ended(name: &Name) -> Error {
    let (handler, token) = (&name.handler, name.lease.token);
    Error::invalid(
        "handler",
        format!(
            "{handler} ended the transaction it was given, or SQLite did because the disk is full; leave BEGIN, COMMIT \
             and ROLLBACK to the consumer: lease {token} was not settled"
        ),
    )
}

fn execute(connection: &Connection, sql: &'static str) -> rusqlite::Result<()> {
    connection.prepare_cached(sql)?.execute([]).map(drop)
}
