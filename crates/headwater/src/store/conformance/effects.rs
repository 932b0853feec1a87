//! Effects: a table of the program beside the store's, and handlers that write to it in the store's transaction.
//!
//! The engines expose their transaction in different forms: to async code on PostgreSQL, and to closures on the
//! writer thread on SQLite. Cases are about what both promise, so they use this module, as a consumer's runtime does.

use std::sync::Arc;

use super::case::{Case, Scene};
use crate::error::{Error, ErrorKind, Result};
#[cfg(feature = "sqlite")]
use crate::handler::{HandlerGuard, HandlerRun, Said};
use crate::lease::{Lease, OffsetRange};
use crate::message::{Message, Offset};
use crate::settle::{Outcome, Settlement, Verdict};
use crate::store::Store;

/// The verdict of a case's handler on a message, after it wrote its effect.
pub(super) type Say = Arc<dyn Fn(&Message) -> Verdict + Send + Sync>;

/// The program's table: one row per effect.
pub(super) struct Effects {
    url: String,
    store: Arc<dyn Store>,
}

impl Effects {
    /// Creates the table.
    pub(super) async fn new(case: &Case, store: &Arc<dyn Store>) -> Self {
        let effects = Effects { url: case.harness().url(), store: Arc::clone(store) };
        effects.execute("CREATE TABLE {effect} (payload text NOT NULL)").await;
        effects
    }

    /// The effects so far, sorted.
    pub(super) async fn seen(&self) -> Vec<String> {
        let sql = "SELECT payload FROM {effect} ORDER BY payload";
        #[cfg(feature = "postgres")]
        if let Some(postgres) = self.store.as_postgres() {
            let transaction = postgres.begin().await.expect("begun");
            let rows = transaction.query(&postgres_sql(postgres, sql), &[]).await.expect("read");
            transaction.rollback().await.expect("ended");
            return rows.iter().map(|row| row.get(0)).collect();
        }
        #[cfg(feature = "sqlite")]
        if self.store.as_sqlite().is_some() {
            let connection = self.connect();
            let mut statement = connection.prepare(&sqlite_sql(sql)).expect("prepared");
            let rows = statement.query_map([], |row| row.get(0)).expect("read");
            return rows.collect::<rusqlite::Result<_>>().expect("read");
        }
        unreachable!("{} hands out no transaction", self.store.engine())
    }

    /// Inserts the effect `$1`, in the SQL of the engine.
    pub(super) fn insert_sql(&self) -> String {
        let sql = "INSERT INTO {effect} (payload) VALUES ($1)";
        #[cfg(feature = "postgres")]
        if let Some(postgres) = self.store.as_postgres() {
            return postgres_sql(postgres, sql);
        }
        #[cfg(feature = "sqlite")]
        if self.store.as_sqlite().is_some() {
            return sqlite_sql(sql);
        }
        unreachable!("{} hands out no transaction", self.store.engine())
    }

    async fn execute(&self, sql: &str) {
        #[cfg(feature = "postgres")]
        if let Some(postgres) = self.store.as_postgres() {
            let transaction = postgres.begin().await.expect("begun");
            transaction.batch_execute(&postgres_sql(postgres, sql)).await.expect("executed");
            transaction.commit().await.expect("committed");
        }
        #[cfg(feature = "sqlite")]
        if self.store.as_sqlite().is_some() {
            self.connect().execute_batch(&sqlite_sql(sql)).expect("executed");
        }
    }

    /// A separate connection of the program to the embedded file.
    #[cfg(feature = "sqlite")]
    fn connect(&self) -> rusqlite::Connection {
        let path = self.url.strip_prefix("sqlite:").expect("a file");
        let connection = rusqlite::Connection::open(path).expect("the file opens");
        connection.busy_timeout(super::case::DEADLINE).expect("a time-out is set");
        connection
    }
}

/// Handles a lease in the store's own transaction: every message writes its payload as its effect, then gets the
/// verdict of `say`. Returns each verdict; `LeaseLost` if the lease was lost, and then nothing of it happened.
pub(super) async fn handle(
    scene: &Scene,
    lease: &Lease,
    handler: &str,
    say: Say,
) -> Result<Vec<(Offset, Verdict)>> {
    let messages = scene.fetch(lease).await;
    #[cfg(feature = "postgres")]
    if let Some(postgres) = scene.store.as_postgres() {
        return handle_on_postgres(postgres, lease, &messages, handler, &say).await;
    }
    #[cfg(feature = "sqlite")]
    if let Some(sqlite) = scene.store.as_sqlite() {
        let work = sqlite_work(scene, lease, messages.clone(), handler, say);
        return Ok(of_each(&messages, &sqlite.handle_in_transaction(work).await?));
    }
    unreachable!("{} hands out no transaction", scene.store.engine())
}

#[cfg(feature = "postgres")]
async fn handle_on_postgres(
    postgres: &crate::store::postgres::PostgresStore,
    lease: &Lease,
    messages: &[Message],
    handler: &str,
    say: &Say,
) -> Result<Vec<(Offset, Verdict)>> {
    let transaction = postgres.begin().await?;
    let insert = postgres_sql(postgres, "INSERT INTO {effect} (payload) VALUES ($1)");
    let mut verdicts = Vec::new();
    for message in messages {
        if !transaction.savepoint_and_enter(handler, message.message_id).await? {
            transaction.release_savepoint().await?;
            verdicts.push((message.offset, Verdict::Done));
            continue;
        }
        transaction.execute(&insert, &[&text(message)]).await.expect("the effect is written");
        let verdict = say(message);
        match verdict {
            Verdict::Done | Verdict::Skip => transaction.release_savepoint().await?,
            _ => transaction.rollback_to_savepoint().await?,
        }
        verdicts.push((message.offset, verdict));
    }
    if !transaction.settle(&settlement(lease, verdicts.clone())).await? {
        transaction.rollback().await?;
        return Err(Error::lease_lost(lease.token.0));
    }
    transaction.commit().await?;
    Ok(verdicts)
}

#[cfg(feature = "sqlite")]
fn sqlite_work(
    scene: &Scene,
    lease: &Lease,
    messages: Vec<Message>,
    handler: &str,
    say: Say,
) -> crate::store::sqlite::TransactionWork {
    let (lease, policy) =
        (lease.clone(), crate::settle::RetryPolicy::from(&scene.subscription.topic.settings));
    let guard = HandlerGuard::apart(&scene.subscription);
    crate::store::sqlite::TransactionWork {
        handler_name: handler.to_owned(),
        member: "one".into(),
        lease: lease.id(),
        run: HandlerRun::new(&guard, messages.clone().into(), &lease, &policy),
        handlers: crate::store::sqlite::Handlers::Each(Box::new(move |open, message| {
            let insert = sqlite_sql("INSERT INTO {effect} (payload) VALUES (?1)");
            open.connection().execute(&insert, [text(&message[0])]).expect("the effect is written");
            Ok(say(&message[0]))
        })),
        decide: Box::new(move |said| settlement(&lease, of_each(&messages, said))),
    }
}

/// The verdict on each message.
#[cfg(feature = "sqlite")]
fn of_each(messages: &[Message], said: &Said) -> Vec<(Offset, Verdict)> {
    let of = |message: &Message| said.verdicts.iter().find(|(offset, _)| *offset == message.offset).cloned();
    messages.iter().map(|message| of(message).unwrap_or((message.offset, Verdict::Done))).collect()
}

/// Everything in the lease is done, except what failed: that is retried at once.
fn settlement(lease: &Lease, verdicts: Vec<(Offset, Verdict)>) -> Settlement {
    let mut parts: Vec<(OffsetRange, Outcome)> = Vec::new();
    for (offset, verdict) in verdicts {
        let outcome = match verdict {
            Verdict::Done | Verdict::Skip => Outcome::Ack,
            Verdict::Failed(error) | Verdict::RetryAfter(_, error) => {
                Outcome::Retry { after: std::time::Duration::ZERO, error, key: None }
            }
            Verdict::Bury(error) => Outcome::Bury { error },
            Verdict::Release => Outcome::Release,
        };
        parts.push((OffsetRange::one(offset), outcome));
    }
    if parts.iter().all(|(_, outcome)| *outcome == Outcome::Ack) {
        return Settlement::ack_all(lease);
    }
    Settlement::each(lease, parts)
}

/// Begins to handle a lease and is cancelled half way.
pub(super) async fn give_up_half_way(scene: &Scene, lease: &Lease, handler: &str) {
    let messages = scene.fetch(lease).await;
    #[cfg(feature = "postgres")]
    if let Some(postgres) = scene.store.as_postgres() {
        let transaction = postgres.begin().await.expect("begun");
        assert!(transaction.savepoint_and_enter(handler, messages[0].message_id).await.expect("entered"));
        let insert = postgres_sql(postgres, "INSERT INTO {effect} (payload) VALUES ($1)");
        transaction.clone().execute(&insert, &[&text(&messages[0])]).await.expect("the effect is written");
        assert_eq!(postgres.transactions_state().active, 1);
        drop(transaction);
        assert_eq!(postgres.transactions_state().active, 0, "its connection is closed with it");
        return;
    }
    #[cfg(feature = "sqlite")]
    if scene.store.as_sqlite().is_some() {
        let (entered, mut runs) = tokio::sync::mpsc::channel(1);
        let (go, gate) = std::sync::mpsc::channel::<()>();
        let gate = std::sync::Mutex::new(gate);
        let say: Say = Arc::new(move |_| {
            let _ = entered.blocking_send(());
            let _ = gate.lock().expect("no panic while held").recv();
            Verdict::Done
        });
        let work = sqlite_work(scene, lease, messages, handler, say);
        let store = Arc::clone(&scene.store);
        let caller = tokio::spawn(async move {
            let sqlite = store.as_sqlite().expect("the same store");
            sqlite.handle_in_transaction(work).await
        });
        runs.recv().await.expect("the handler runs");
        caller.abort();
        let gone = caller.await.expect_err("the caller was aborted");
        assert!(gone.is_cancelled());
        go.send(()).expect("the handler waits");
        return;
    }
    unreachable!("{} hands out no transaction", scene.store.engine())
}

fn text(message: &Message) -> String {
    String::from_utf8_lossy(&message.payload).into_owned()
}

#[cfg(feature = "postgres")]
fn postgres_sql(postgres: &crate::store::postgres::PostgresStore, sql: &str) -> String {
    sql.replace("{effect}", &format!("{}.effect", postgres.namespace().quoted()))
}

#[cfg(feature = "sqlite")]
fn sqlite_sql(sql: &str) -> String {
    sql.replace("{effect}", "effect")
}

/// A handler that succeeds on every message.
pub(super) fn done() -> Say {
    Arc::new(|_| Verdict::Done)
}

/// Asserts that a call failed because the lease was lost.
#[track_caller]
pub(super) fn assert_lost<T: std::fmt::Debug>(result: Result<T>) {
    super::case::failed(result, ErrorKind::LeaseLost);
}
