//! An async handler on the writer thread: its future is polled there, and what it asks of its transaction is done between
//! two polls.
//!
//! The handler's [`Transaction`](crate::transaction::Transaction) queues a request and waits for the answer. When the
//! future waits, all queued requests are served on the connection, and it is polled again. A future that waits although
//! it has asked for nothing waits for something else: that could take any time, and could need this very thread, so the
//! handler is not waited for. It fails at once, its writes are rolled back, and the next command runs. So no handler can
//! hold up the writer by waiting, and none can deadlock with it.

use std::collections::VecDeque;
use std::fmt;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{self, Poll, Wake, Waker};

use futures_util::future::BoxFuture;
use rusqlite::types::{ToSqlOutput, ValueRef};
use rusqlite::{CachedStatement, Connection, ToSql};
use tokio::sync::oneshot;

use super::fault::Attempt;
use super::work::Work;
use super::{decode, publish};
use crate::error::{Error, ErrorKind, Result};
use crate::message::{NewMessage, Published, validate_batch};
use crate::name::TopicName;
use crate::settle::Verdict;
use crate::store::Store;
use crate::transaction::{Row, Value};

/// How often in a row a future may ask to be polled again without asking for anything of its transaction.
const YIELDS_MAX: u32 = 1_000;

/// What a handler asks of its transaction. Clones share it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Requests(Arc<Mutex<Queue>>);

#[derive(Debug, Default)]
struct Queue {
    waiting: VecDeque<Request>,
    /// The handler has ended: nothing is served any more.
    ended: bool,
}

#[derive(Debug)]
enum Request {
    Execute(String, Vec<Value>, oneshot::Sender<Result<u64>>),
    Query(String, Vec<Value>, oneshot::Sender<Result<Vec<Row>>>),
    Publish(ToPublish, oneshot::Sender<Result<Vec<Published>>>),
    /// Reads the clock, for a repository of this store.
    Now(Option<Arc<dyn Store>>, oneshot::Sender<Result<i64>>),
    /// Calls the program's synchronous handler.
    HandleNow(oneshot::Sender<Result<Verdict>>),
    /// Runs an operation of the store, which sends its answer itself.
    Run(Operation),
}

/// An operation of the store inside the transaction.
struct Operation(Box<dyn FnOnce(&mut Open<'_, '_>) + Send>);

impl fmt::Debug for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Operation")
    }
}

/// Messages for one topic, and the store of the producer that publishes them, if one does.
#[derive(Debug)]
pub(crate) struct ToPublish {
    pub(crate) topic: TopicName,
    pub(crate) messages: Vec<NewMessage>,
    pub(crate) of: Option<Arc<dyn Store>>,
}

impl Requests {
    pub(crate) async fn execute(&self, sql: String, params: Vec<Value>) -> Result<u64> {
        self.ask(|answer| Request::Execute(sql, params, answer)).await
    }

    pub(crate) async fn query(&self, sql: String, params: Vec<Value>) -> Result<Vec<Row>> {
        self.ask(|answer| Request::Query(sql, params, answer)).await
    }

    pub(crate) async fn publish(&self, publishing: ToPublish) -> Result<Vec<Published>> {
        validate_batch(&publishing.messages)?;
        self.ask(|answer| Request::Publish(publishing, answer)).await
    }

    /// Runs an operation of the store in the transaction.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        operation: impl FnOnce(&mut Work<'_>) -> Attempt<T> + Send + 'static,
    ) -> Result<T> {
        let run = |answer: oneshot::Sender<Result<T>>| {
            Request::Run(Operation(Box::new(move |open: &mut Open<'_, '_>| {
                let done = operation(open.work);
                let _ = answer.send(open.noted(done));
            })))
        };
        self.ask(run).await
    }

    /// The time in milliseconds. Refuses a transaction in another file than the store's.
    pub(crate) async fn now(&self, of: Option<Arc<dyn Store>>) -> Result<i64> {
        self.ask(|answer| Request::Now(of, answer)).await
    }

    pub(crate) async fn handle_now(&self) -> Verdict {
        let handled = self.ask(Request::HandleNow).await;
        handled.unwrap_or_else(|error| Verdict::Failed(error.to_string()))
    }

    async fn ask<T>(&self, request: impl FnOnce(oneshot::Sender<Result<T>>) -> Request) -> Result<T> {
        let (answer, answered) = oneshot::channel();
        {
            let mut queue = self.0.lock().expect("no panic while held");
            if queue.ended {
                return Err(ended());
            }
            queue.waiting.push_back(request(answer));
        }
        answered.await.map_err(|_| ended())?
    }

    fn next(&self) -> Option<Request> {
        self.0.lock().expect("no panic while held").waiting.pop_front()
    }
}

fn ended() -> Error {
    Error::new(ErrorKind::Closed, "the transaction of this handler has ended; use it inside the handler only")
}

/// Refuses further requests once the handler has ended, also by a panic.
struct End<'r>(&'r Requests);

impl Drop for End<'_> {
    fn drop(&mut self) {
        let mut queue = self.0.0.lock().expect("no panic while held");
        queue.ended = true;
        queue.waiting.clear();
    }
}

/// The program's synchronous handler of one message.
pub(crate) type HandleNow<'h> = Box<dyn FnOnce(&Connection) -> Verdict + 'h>;

/// The transaction that a handler runs in, on the writer thread.
pub(crate) struct Open<'w, 'c> {
    work: &'w mut Work<'c>,
    /// The first request that failed: on PostgreSQL it would have aborted the transaction.
    failed: Option<String>,
}

impl<'w, 'c> Open<'w, 'c> {
    pub(super) fn new(work: &'w mut Work<'c>) -> Self {
        Open { work, failed: None }
    }

    /// The connection, for a synchronous handler.
    pub(crate) fn connection(&self) -> &'c Connection {
        self.work.connection
    }

    /// Handles a message by a future that awaits these requests. A handler that ignores the error of a statement fails,
    /// as it does on PostgreSQL.
    pub(crate) fn handle(
        &mut self,
        requests: &Requests,
        handling: BoxFuture<'_, Verdict>,
        now: Option<HandleNow<'_>>,
    ) -> Verdict {
        match self.drive(requests, handling, now).and_then(|verdict| self.sound(verdict)) {
            Ok(verdict) => verdict,
            Err(error) => Verdict::Failed(error.to_string()),
        }
    }

    /// Handles a whole slice by a future that awaits these requests. As above, no statement may have failed.
    pub(crate) fn handle_all(
        &mut self,
        requests: &Requests,
        handling: BoxFuture<'_, Result<()>>,
    ) -> Result<()> {
        self.drive(requests, handling, None)??;
        self.check()
    }

    /// A verdict, unless it claims success although a statement failed.
    fn sound(&self, verdict: Verdict) -> Result<Verdict> {
        if verdict.is_done() { self.check().map(|()| verdict) } else { Ok(verdict) }
    }

    /// Whether every statement succeeded.
    pub(super) fn check(&self) -> Result<()> {
        match &self.failed {
            None => Ok(()),
            Some(error) => {
                Err(Error::new(ErrorKind::Database, format!("a statement of the handler failed: {error}")))
            }
        }
    }

    /// Runs a future that may await these requests, and nothing that is not ready at once.
    pub(super) fn drive<T>(
        &mut self,
        requests: &Requests,
        mut handling: BoxFuture<'_, T>,
        mut now: Option<HandleNow<'_>>,
    ) -> Result<T> {
        let _end = End(requests);
        let yielded = Arc::new(Yielded::default());
        let waker = Waker::from(Arc::clone(&yielded));
        let mut polled = task::Context::from_waker(&waker);
        let mut yields = 0;
        loop {
            if let Poll::Ready(done) = Pin::new(&mut handling).poll(&mut polled) {
                return Ok(done);
            }
            let mut asked = false;
            while let Some(request) = requests.next() {
                self.serve(request, &mut now);
                asked = true;
            }
            let again = yielded.0.swap(false, Ordering::Relaxed);
            yields = if asked { 0 } else { yields + 1 };
            if !asked && (!again || yields > YIELDS_MAX) {
                return Err(Error::invalid("handler", WAITS));
            }
        }
    }

    fn serve(&mut self, request: Request, now: &mut Option<HandleNow<'_>>) {
        // A receiver that is gone was dropped by the handler: it does not wait for the answer any more.
        match request {
            Request::Execute(sql, params, answer) => {
                let changed = execute(self.work.connection, &sql, &params);
                let _ = answer.send(self.noted(changed));
            }
            Request::Query(sql, params, answer) => {
                let rows = query(self.work.connection, &sql, &params);
                let _ = answer.send(self.noted(rows));
            }
            Request::Publish(publishing, answer) => {
                let published = self.publish(&publishing);
                let _ = answer.send(self.noted(published));
            }
            Request::Now(of, answer) => {
                let now = self.now_of(of.as_ref());
                let _ = answer.send(self.noted(now));
            }
            Request::HandleNow(answer) => {
                let handle = now.take().expect("a handler is called once");
                let _ = answer.send(Ok(handle(self.work.connection)));
            }
            Request::Run(Operation(run)) => run(self),
        }
    }

    fn now_of(&self, store: Option<&Arc<dyn Store>>) -> Attempt<i64> {
        if let Some(store) = store.and_then(|store| store.as_sqlite()) {
            store.check_file_of(self.work.connection, "the store")?;
        }
        Ok(self.work.now_ms())
    }

    fn publish(&mut self, ToPublish { topic, messages, of }: &ToPublish) -> Attempt<Vec<Published>> {
        if let Some(store) = of.as_ref().and_then(|store| store.as_sqlite()) {
            store.check_file_of(self.work.connection, format_args!("topic {topic}"))?;
        }
        publish::inside(self.work, topic, messages)
    }

    fn noted<T>(&mut self, result: Attempt<T>) -> Result<T> {
        let path = self.work.connection.path().unwrap_or("in memory");
        result.map_err(|fault| {
            let error = fault.into_error(path);
            self.failed.get_or_insert_with(|| error.to_string());
            error
        })
    }
}

const WAITS: &str = "it waits for something other than its transaction, which is not possible on SQLite: it \
                     runs on the thread that writes, and nothing else is written meanwhile; do it before or after, or \
                     in a handler that is not transactional";

/// Whether a future asked to be polled again.
#[derive(Debug, Default)]
struct Yielded(AtomicBool);

impl Wake for Yielded {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn execute(connection: &Connection, sql: &str, params: &[Value]) -> Attempt<u64> {
    let mut statement = bound(connection, sql, params)?;
    Ok(statement.raw_execute()? as u64)
}

fn query(connection: &Connection, sql: &str, params: &[Value]) -> Attempt<Vec<Row>> {
    rows(connection, sql, params, value_of)
}

/// Rows of a statement of the store's own. Text that is not UTF-8 is read as everywhere in the store (`decode.rs`): one damaged row must
/// not make a list of all rows unreadable.
pub(super) fn query_own(connection: &Connection, sql: &str, params: &[Value]) -> Attempt<Vec<Row>> {
    rows(connection, sql, params, |value| match value {
        ValueRef::Text(bytes) => Ok(Value::Text(decode::readable(bytes).into_owned())),
        value => value_of(value),
    })
}

fn rows(
    connection: &Connection,
    sql: &str,
    params: &[Value],
    read: impl Fn(ValueRef<'_>) -> Attempt<Value>,
) -> Attempt<Vec<Row>> {
    let mut statement = bound(connection, sql, params)?;
    let columns: Arc<[String]> = statement.column_names().into_iter().map(str::to_owned).collect();
    let mut found = Vec::new();
    let mut stored = statement.raw_query();
    while let Some(row) = stored.next()? {
        let values = (0..columns.len()).map(|at| read(row.get_ref(at)?));
        found.push(Row::new(&columns, values.collect::<Attempt<_>>()?));
    }
    Ok(found)
}

/// A statement with its parameters. SQLite takes `$1` for a name: each is bound to the value that its number says.
fn bound<'c>(connection: &'c Connection, sql: &str, params: &[Value]) -> Attempt<CachedStatement<'c>> {
    let mut statement = connection.prepare_cached(sql)?;
    let mut highest = 0;
    for index in 1..=statement.parameter_count() {
        let name = statement.parameter_name(index).unwrap_or("?");
        let number = name.strip_prefix('$').and_then(|number| number.parse::<usize>().ok());
        let Some(number) = number.filter(|number| *number > 0) else {
            let rule = format!("{name} is not possible; write parameters as $1, $2 and so on");
            return Err(Error::invalid("statement", rule).into());
        };
        highest = highest.max(number);
        if let Some(value) = params.get(number - 1) {
            statement.raw_bind_parameter(index, value)?;
        }
    }
    if highest != params.len() {
        let rule = format!("it has parameters up to ${highest}, and {} values were given", params.len());
        return Err(Error::invalid("statement", rule).into());
    }
    Ok(statement)
}

impl ToSql for Value {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(ToSqlOutput::Borrowed(match self {
            Value::Null => ValueRef::Null,
            Value::Bool(value) => ValueRef::Integer(i64::from(*value)),
            Value::Integer(value) => ValueRef::Integer(*value),
            Value::Real(value) => ValueRef::Real(*value),
            Value::Text(text) => ValueRef::Text(text.as_bytes()),
            Value::Bytes(bytes) => ValueRef::Blob(bytes),
        }))
    }
}

fn value_of(value: ValueRef<'_>) -> Attempt<Value> {
    Ok(match value {
        ValueRef::Null => Value::Null,
        ValueRef::Integer(value) => Value::Integer(value),
        ValueRef::Real(value) => Value::Real(value),
        ValueRef::Text(text) => match std::str::from_utf8(text) {
            Ok(text) => Value::Text(text.to_owned()),
            Err(_) => return Err(Error::invalid("column", "text that is not UTF-8; cast it to blob").into()),
        },
        ValueRef::Blob(bytes) => Value::Bytes(bytes.to_vec()),
    })
}
