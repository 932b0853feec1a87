//! Handling in the store's own transaction: the inbox entry, the handler's writes and the ack commit together.
//!
//! Why an effect exists exactly once, whenever the process is killed. One transaction inserts `(handler, message_id)` into
//! the inbox, runs the handler's statements and settles the lease. Before COMMIT nothing of it exists: the lease expires, the
//! message is redelivered, and the inbox has no entry, so the handler runs. After COMMIT all of it exists: the message is done,
//! and a second delivery of the same id (another publish, a redrive) finds the entry and does not run the handler. Two
//! concurrent deliveries conflict at the unique key of the entry: the second waits until the first has ended, and then sees
//! whether it committed. If the lease was lost meanwhile, the settlement fails and the transaction is rolled back: the new
//! owner of the lease handles the message. The commit waits for the disk, unlike that of settlements alone: a lost ack means a
//! redelivery, but an effect that was acknowledged must not be lost.

use std::collections::HashSet;
use std::fmt;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use deadpool_postgres::Object;
use jiff::Timestamp;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Row};
use uuid::Uuid;

use super::hosts::Hosts;
use super::publish::Columns;
use super::repository::neutral;
use super::settle::{PartColumns, reaches_the_end};
use super::statements::Statements;
use super::time::stored;
use super::value::references;
use super::{PostgresStore, fault};
use crate::clock::Clock;
use crate::error::{Error, ErrorKind, Result};
use crate::message::{NewMessage, Published};
use crate::name::TopicName;
use crate::observe::trace;
use crate::repository::check_id;
use crate::settle::{Parts, Settlement};
use crate::store::repository::{OUTBOX, Verb};
use crate::store::wake::Hub;
use crate::topic::TopicId;
use crate::transaction::{self, Value};

const BEGIN: &str = "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE";
const SAVEPOINT: &str = "SAVEPOINT headwater_handler";
const RELEASE: &str = "RELEASE SAVEPOINT headwater_handler";
const ROLLBACK_TO: &str = "ROLLBACK TO SAVEPOINT headwater_handler; RELEASE SAVEPOINT headwater_handler";
/// COMMIT of a failed transaction rolls back without an error; the SELECT before it makes that an error.
const COMMIT: &str = "SELECT 1; COMMIT";

/// An open transaction of the store's own, for a handler to write in. Clones share it.
///
/// It derefs to [`tokio_postgres::Client`]: run statements on it as on any connection, but leave BEGIN, COMMIT and
/// ROLLBACK to the code that began it. If a handler ends the transaction itself, settling its message fails.
#[derive(Clone)]
pub struct PostgresTransaction {
    shared: Arc<Shared>,
}

struct Shared {
    /// Taken only by `drop`.
    connection: Option<Object>,
    /// Whether the connection may return to the pool: the transaction has ended and no clone of the handle is left.
    clean: AtomicBool,
    /// A setting local to the transaction: shows whether it is still the transaction that was begun.
    mark: String,
    /// Topics whose waiters are woken after COMMIT.
    woken: Mutex<Vec<TopicId>>,
    statements: Arc<Statements>,
    clock: Clock,
    hub: Arc<Hub>,
    hosts: Hosts,
    answer_timeout: Duration,
}

impl PostgresStore {
    /// Begins a transaction, READ COMMITTED and durable whatever the server's default is.
    pub async fn begin(&self) -> Result<PostgresTransaction> {
        let shared = Shared {
            connection: Some(self.connections.get_for_transaction().await?),
            clean: AtomicBool::new(false),
            mark: Uuid::now_v7().simple().to_string(),
            woken: Mutex::default(),
            statements: Arc::clone(&self.statements),
            clock: self.clock.clone(),
            hub: Arc::clone(&self.hub),
            hosts: self.connections.hosts().clone(),
            answer_timeout: self.connections.answer_timeout(),
        };
        let transaction = PostgresTransaction { shared: Arc::new(shared) };
        transaction
            .start(BEGIN, &transaction.shared.statements.transaction_begin, &[&transaction.shared.mark])
            .await?;
        Ok(transaction)
    }
}

impl Deref for PostgresTransaction {
    type Target = Client;

    fn deref(&self) -> &Client {
        self.shared.connection()
    }
}

impl fmt::Debug for PostgresTransaction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresTransaction").field("mark", &self.shared.mark).finish_non_exhaustive()
    }
}

impl PostgresTransaction {
    /// Publishes inside this transaction: the messages become visible when it commits. The topic must exist. A producer's
    /// [`Sends::within`](crate::publish::Sends::within) does the same, and counts.
    pub async fn publish(&self, topic: &str, messages: &[NewMessage]) -> Result<Vec<Published>> {
        self.publish_now(&TopicName::new(topic)?, &trace::injected(messages)).await
    }

    /// Publishes for a producer, whose store must be the one that began this transaction.
    pub(crate) async fn publish_of(
        &self,
        store: &PostgresStore,
        topic: &TopicName,
        messages: &[NewMessage],
    ) -> Result<Vec<Published>> {
        self.check_namespace_of(store, "the producer's")?;
        self.publish_now(topic, messages).await
    }

    fn check_namespace_of(&self, store: &PostgresStore, whose: &str) -> Result<()> {
        // The text names the schema.
        if self.shared.statements.publish == store.statements.publish {
            return Ok(());
        }
        let rule = format!("begun in another namespace than {}, {whose}", store.namespace);
        Err(Error::invalid("transaction", rule))
    }

    /// Runs a statement of a repository, whose store must be the one that began this transaction.
    pub(crate) async fn run_verb(
        &self,
        store: &PostgresStore,
        verb: Verb,
        params: Vec<Value>,
    ) -> Result<Vec<transaction::Row>> {
        self.check_namespace_of(store, "the repository's")?;
        let Some(sql) = self.text_of(verb) else { return Ok(Vec::new()) };
        let params = store.completed(verb, params);
        let rows = self.query(verb.doing(), sql, &references(&params)).await?;
        if verb.wakes_outbox() {
            self.wake_after_commit(OUTBOX);
        }
        neutral(verb.doing(), &rows)
    }

    pub(crate) async fn publish_now(
        &self,
        topic: &TopicName,
        messages: &[NewMessage],
    ) -> Result<Vec<Published>> {
        let now = self.shared.clock.injected();
        let Some(columns) = Columns::in_transaction(messages, now, true)? else { return Ok(Vec::new()) };
        let doing = format!("publishing to topic {topic}");
        let rows =
            self.query(&doing, &self.shared.statements.publish, &columns.params(&topic.as_str())).await?;
        self.wake_after_commit(TopicId(stored(&rows[0], "topic_id")?));
        Ok(columns.published(&rows[0]))
    }
}

impl PostgresTransaction {
    /// Keeps what came after the savepoint. Fails if one of those statements failed: then roll back to the savepoint.
    pub(crate) async fn release_savepoint(&self) -> Result<()> {
        self.execute("releasing a savepoint", RELEASE).await
    }

    /// Undoes what came after the savepoint, also if a statement failed.
    pub(crate) async fn rollback_to_savepoint(&self) -> Result<()> {
        self.execute("rolling back to a savepoint", ROLLBACK_TO).await
    }

    /// Sets a savepoint and inserts the inbox entry of the handler and message, in one round trip; false if the entry exists:
    /// the effect has happened. The savepoint is set in either case.
    ///
    /// Waits while another transaction that inserted the same entry is open.
    pub(crate) async fn savepoint_and_enter(&self, handler: &str, message_id: Uuid) -> Result<bool> {
        check_id("handler", handler)?;
        let now = self.shared.clock.injected();
        let sql = &self.shared.statements.transaction_enter;
        let rows = self.start(SAVEPOINT, sql, &[&handler, &message_id.to_string(), &now]).await?;
        stored(&rows[0], "entered")
    }

    /// Inserts the inbox entries of the handler and messages, in this order and in one statement. Returns the ids that had
    /// none: their effects have not happened.
    ///
    /// Waits while another transaction that inserted one of them is open.
    pub(crate) async fn enter_all(&self, handler: &str, message_ids: &[String]) -> Result<HashSet<String>> {
        check_id("handler", handler)?;
        let (sql, now) = (&self.shared.statements.transaction_enter_all, self.shared.clock.injected());
        let rows = self.query("entering messages", sql, &[&handler, &message_ids, &now]).await?;
        rows.iter().map(|row| stored(row, "message_id")).collect()
    }

    /// Settles a lease inside this transaction; false if it is lost: then the transaction must not be committed.
    pub(crate) async fn settle(&self, settlement: &Settlement) -> Result<bool> {
        let settlement = settlement.clone().normalized()?;
        let columns = match &settlement.parts {
            Parts::AckAll => None,
            Parts::Each(parts) if reaches_the_end(parts) => return Ok(false),
            Parts::Each(parts) => Some(PartColumns::of(parts)),
        };
        let part = columns.as_ref();
        let shared = &self.shared;
        let rows = self
            .query(
                &format!("settling lease {}", settlement.lease.token),
                &shared.statements.transaction_settle,
                &[
                    &shared.mark,
                    &settlement.lease.token.0,
                    &settlement.lease.subscription_id.0,
                    &settlement.lease.owner.as_str(),
                    &part.map(|part| &part.firsts),
                    &part.map(|part| &part.lasts),
                    &part.map(|part| &part.outcomes),
                    &part.map(|part| &part.delays_ms),
                    &part.map(|part| &part.errors),
                    &part.map(|part| &part.keys),
                    &shared.clock.injected(),
                ],
            )
            .await?;
        let topic: Option<i32> = stored(&rows[0], "topic_id")?;
        if let Some(topic) = topic {
            // Also when all is acked: that may have freed a lane, and an empty claim is cheap.
            self.wake_after_commit(TopicId(topic));
        }
        Ok(topic.is_some())
    }

    /// Commits, and wakes this process's waiters. `CommitUnknown` if the connection breaks meanwhile: if it did commit, the
    /// inbox entry prevents a second run when the message is redelivered.
    pub(crate) async fn commit(self) -> Result<()> {
        let doing = "committing handled messages";
        let run = self.shared.connection().batch_execute(COMMIT);
        match tokio::time::timeout(self.shared.answer_timeout, run).await {
            Ok(result) => result.map_err(|error| fault::translate_commit(doing, error))?,
            Err(_) => return Err(fault::unknown(doing, "no answer in time")),
        }
        let woken = std::mem::take(&mut *self.shared.woken.lock().expect("no panic while held"));
        woken.iter().for_each(|topic| self.shared.hub.wake(*topic));
        self.give_back();
        Ok(())
    }

    /// Rolls back.
    pub(crate) async fn rollback(self) -> Result<()> {
        self.execute("rolling back", "ROLLBACK").await?;
        self.give_back();
        Ok(())
    }

    /// Returns the connection to the pool, unless a clone of the handle exists, which could still run statements on it.
    fn give_back(self) {
        let alone = Arc::strong_count(&self.shared) == 1;
        self.shared.clean.store(alone, Ordering::SeqCst);
    }
}

impl PostgresTransaction {
    pub(super) fn connection(&self) -> &Object {
        self.shared.connection()
    }

    /// The text of a statement of a repository, in the namespace of this transaction.
    pub(crate) fn text_of(&self, verb: Verb) -> Option<&str> {
        self.shared.statements.of_verb(verb)
    }

    /// The injected time as a parameter; NULL for the clock of the server. Refuses a transaction that another store than
    /// this one began.
    pub(crate) fn time_of(&self, store: Option<&PostgresStore>) -> Result<Value> {
        store.map_or(Ok(()), |store| self.check_namespace_of(store, "the repository's"))?;
        Ok(self.shared.clock.injected().map(Timestamp::as_millisecond).into())
    }

    /// The answer to a statement of a handler.
    pub(super) async fn answered<T>(
        &self,
        run: impl Future<Output = std::result::Result<T, tokio_postgres::Error>>,
    ) -> Result<T> {
        let doing = "running a statement of a handler";
        let error = match tokio::time::timeout(self.shared.answer_timeout, run).await {
            Ok(Ok(answer)) => return Ok(answer),
            Ok(Err(error)) => error,
            Err(_) => return Err(no_answer(doing)),
        };
        // A value that does not fit its type: the driver's own text does not say which and why.
        let unfit = std::error::Error::source(&error).filter(|_| error.as_db_error().is_none());
        let unfit = unfit.map(ToString::to_string);
        // A missing table is the program's: the schema is not outdated.
        let missing = error.as_db_error().filter(|error| fault::is_missing(error.code().code()));
        let missing = missing.map(|missing| format!("{} ({})", missing.message(), missing.code().code()));
        let error = self.shared.failed(doing, error);
        if let Some(missing) = missing {
            return Err(Error::new(ErrorKind::Database, format!("database error while {doing}: {missing}")));
        }
        Err(match unfit.filter(|_| error.kind() == ErrorKind::Database) {
            Some(why) => Error::new(ErrorKind::InvalidInput, format!("{error}: {why}")),
            None => error,
        })
    }

    fn wake_after_commit(&self, topic: TopicId) {
        let mut woken = self.shared.woken.lock().expect("no panic while held");
        if !woken.contains(&topic) {
            woken.push(topic);
        }
    }

    async fn execute(&self, doing: &str, sql: &str) -> Result<()> {
        let run = self.shared.connection().batch_execute(sql);
        match tokio::time::timeout(self.shared.answer_timeout, run).await {
            Ok(result) => result.map_err(|error| self.shared.failed(doing, error)),
            Err(_) => Err(no_answer(doing)),
        }
    }

    async fn query(&self, doing: &str, sql: &str, params: &[&(dyn ToSql + Sync)]) -> Result<Vec<Row>> {
        let connection = self.shared.connection();
        let run = async {
            let statement = connection.prepare_cached(sql).await?;
            connection.query(&statement, params).await
        };
        match tokio::time::timeout(self.shared.answer_timeout, run).await {
            Ok(result) => result.map_err(|error| self.shared.failed(doing, error)),
            Err(_) => Err(no_answer(doing)),
        }
    }

    /// A plain command and then a statement, sent together: the second does not wait for the first one's answer.
    async fn start(&self, command: &str, sql: &str, params: &[&(dyn ToSql + Sync)]) -> Result<Vec<Row>> {
        let doing = "beginning a handler's transaction";
        let connection = self.shared.connection();
        let run = async {
            // Prepared first: preparing takes a round trip the first time, and does not work inside a failed transaction.
            let statement = connection.prepare_cached(sql).await?;
            // Requests are sent when first polled, in this order.
            let (begun, rows) = futures_util::future::join(
                connection.batch_execute(command),
                connection.query(&statement, params),
            )
            .await;
            begun?;
            rows
        };
        match tokio::time::timeout(self.shared.answer_timeout, run).await {
            Ok(result) => result.map_err(|error| self.shared.failed(doing, error)),
            Err(_) => Err(no_answer(doing)),
        }
    }
}

impl Shared {
    fn connection(&self) -> &Object {
        self.connection.as_ref().expect("only drop takes it")
    }

    fn failed(&self, doing: &str, error: tokio_postgres::Error) -> Error {
        let error = fault::translate(doing, error);
        self.hosts.heed(&error, Object::metrics(self.connection()).created);
        error
    }
}

impl Drop for Shared {
    /// A connection whose transaction may be open is closed: the server rolls back, and the pool makes a new one.
    fn drop(&mut self) {
        if let Some(connection) = self.connection.take()
            && !self.clean.load(Ordering::SeqCst)
        {
            drop(Object::take(connection));
        }
    }
}

fn no_answer(doing: &str) -> Error {
    Error::new(ErrorKind::Unavailable, format!("no answer in time while {doing}"))
}
