//! Handlers: how a member handles messages, and the results it returns.
//!
//! A handler is a plain async closure or function, see [`HandlerFn`]. `Ok` acks; any error is a failed attempt and is
//! retried by the group's policy, unless it chooses another outcome, see [`Failure`]. A panic is a failed attempt too.
//! [`Layer`]s run around each call.

use std::fmt;
use std::future::Future;
use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;

use crate::codec::{Decode, DecodeError};
use crate::message::{Message, Offset};
use crate::settle::Verdict;
#[cfg(feature = "postgres")]
use crate::store::postgres::PostgresTransaction;
#[cfg(feature = "sqlite")]
use crate::store::sqlite::HandleNow;
use crate::transaction::Transaction;

mod burials;
mod context;
mod failure;
mod function;
mod layer;
mod messages;
mod report;
mod run;
mod slice;

pub(crate) use burials::Burials;
pub use burials::Undecodable;
pub use context::Context;
pub(crate) use context::Identity;
// `Failure`, and the errors that choose an outcome.
pub use failure::*;
pub(crate) use function::States;
pub use function::{HandlerFn, TransactionalFn};
pub(crate) use layer::Layers;
pub use layer::{Handled, Layer, Next};
pub use messages::Messages;
pub(crate) use report::Call;
pub(crate) use run::{HandlerGuard, HandlerRun, Said};
pub(crate) use slice::{HandleSlice, OpenSlice};

/// Decides whether a message is wanted, from its headers, key, type and payload.
pub(crate) type Filter = Arc<dyn Fn(&Message) -> bool + Send + Sync>;

/// How a member handles messages, and which ones.
///
/// ```
/// use headwater::{Handling, Json};
/// let large = Handling::one(|order: Json<u64>| async move { println!("{}", order.0); Ok(()) })
///     .when(|message| message.headers.get("size").is_some_and(|size| size == "large"));
/// # let _ = large;
/// ```
#[derive(Clone)]
pub struct Handling {
    pub(crate) handler: Handler,
    pub(crate) filter: Option<Filter>,
}

impl fmt::Debug for Handling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Handling({:?})", self.handler)
    }
}

impl Handler {
    /// Whether it runs in a transaction of the store.
    pub(crate) fn is_transactional(&self) -> bool {
        !matches!(self, Handler::One(_) | Handler::Batch(_))
    }
}

impl Handling {
    fn new(handler: Handler) -> Self {
        Handling { handler, filter: None }
    }

    /// One message at a time, decoded; several at once as the consumer's concurrency allows. [`HandlerFn`] lists the
    /// forms of a handler.
    pub fn one<Arguments, H>(handler: H) -> Self
    where
        H: HandlerFn<Arguments, HandlerResult>,
    {
        Handling::function(handler)
    }

    /// The same for a handler whose error type is its own: a function that returns `anyhow::Result<()>`, or a closure
    /// that ends with `Ok::<_, MyError>(())`. In [`Handling::one`] the error type is known, so that `Ok(())` is enough.
    ///
    /// ```
    /// use anyhow::Context as _;
    /// use headwater::{Bury, Handling, Json};
    ///
    /// async fn ship(Json(parcels): Json<String>) -> anyhow::Result<()> {
    ///     let parcels: i64 = parcels.parse().context("how many parcels?")?; // retried by policy
    ///     if parcels < 0 {
    ///         Err(Bury("a negative number of parcels")).context("while shipping")?; // a dead letter at once
    ///     }
    ///     Ok(())
    /// }
    /// let handling = Handling::function(ship);
    /// let closure = Handling::function(|_: Json<String>| async { Ok::<_, std::io::Error>(()) });
    /// # let _ = (handling, closure);
    /// ```
    pub fn function<Arguments, E, H>(handler: H) -> Self
    where
        H: HandlerFn<Arguments, Result<(), E>>,
        E: Into<Failure>,
    {
        Handling::new(Handler::One(Arc::new(move |message: &Message, context| {
            let handling = handler.start(H::Payload::decode(message)?, context);
            Ok(async move { verdict_of(handling.await.map_err(Into::into)) }.boxed())
        })))
    }

    /// A batch at a time. `Ok(())` acks all of it, `Ok(verdicts)` all but those named, an error fails all of it.
    pub fn batch<V, H, F>(handler: H) -> Self
    where
        V: Into<Verdicts>,
        H: Fn(Messages, Context) -> F + Send + Sync + 'static,
        F: Future<Output = Result<V, Failure>> + Send + 'static,
    {
        Handling::new(Handler::Batch(Arc::new(move |messages, context| {
            let handling = handler(messages, context);
            async move { handling.await.map(Into::into).map_err(Failure::into_verdict) }.boxed()
        })))
    }

    /// One message at a time inside an open transaction of the store: what the handler writes through it, what it
    /// publishes, the inbox entry and the ack commit together. Exactly once, wherever the process crashes, and the same
    /// on both databases. [`Transaction`] has the rules; `$1` is the first parameter.
    ///
    /// ```
    /// use headwater::transaction::Transaction;
    /// use headwater::{Context, Handling, Json};
    ///
    /// let ledger = Handling::transactional(|tx: Transaction, Json(cents): Json<i64>, context: Context| async move {
    ///     let id = context.message().message_id;
    ///     tx.execute("INSERT INTO ledger (id, cents) VALUES ($1, $2)", (id.to_string(), cents)).await?;
    ///     tx.publish("payments.booked", &cents).await?;
    ///     Ok(())
    /// });
    /// # let _ = ledger;
    /// ```
    pub fn transactional<Arguments, H>(handler: H) -> Self
    where
        H: TransactionalFn<Arguments, HandlerResult>,
    {
        let start: Arc<HandleTransactional> = Arc::new(move |transaction, message: &Message, context| {
            let handling = handler.start(transaction, H::Payload::decode(message)?, context);
            Ok(async move { verdict_of(handling.await) }.boxed())
        });
        Handling::new(Handler::Transactional(start, None))
    }

    /// The second form of a transactional handler, for whole slices. It is not used inside layers, which run around each
    /// message.
    pub(crate) fn slices(mut self, whole: Arc<dyn HandleSlice>) -> Self {
        if let Handler::Transactional(_, slices) = &mut self.handler {
            *slices = Some(whole);
        }
        self
    }

    /// The same with the client of tokio-postgres, on PostgreSQL only.
    #[cfg(feature = "postgres")]
    pub fn in_postgres<T, H, F>(handler: H) -> Self
    where
        T: Decode + Send + 'static,
        H: Fn(PostgresTransaction, T, Context) -> F + Send + Sync + 'static,
        F: Future<Output = HandlerResult> + Send + 'static,
    {
        Handling::new(Handler::Postgres(Arc::new(move |transaction, message: &Message, context| {
            let handling = handler(transaction, T::decode(message)?, context);
            Ok(async move { verdict_of(handling.await) }.boxed())
        })))
    }

    /// The same with the connection of rusqlite, on SQLite only: on its writer thread, where nothing else is written
    /// meanwhile, so the closure is synchronous and should be short.
    #[cfg(feature = "sqlite")]
    pub fn in_sqlite<T, H>(handler: H) -> Self
    where
        T: Decode + 'static,
        H: Fn(&rusqlite::Connection, T, &Context) -> HandlerResult + Send + Sync + 'static,
    {
        let handler = Arc::new(handler);
        let start: Arc<HandleSqlite> = Arc::new(move |message: &Message, context: Context| {
            let (payload, handler) = (T::decode(message)?, Arc::clone(&handler));
            let handle: HandleNow<'static> =
                Box::new(move |connection| verdict_of(handler(connection, payload, &context)));
            Ok(handle)
        });
        Handling::new(Handler::Sqlite(start, Layers::default()))
    }

    /// Only messages for which `filter` returns true.
    #[must_use]
    pub fn when(mut self, filter: impl Fn(&Message) -> bool + Send + Sync + 'static) -> Self {
        self.filter = Some(Arc::new(filter));
        self
    }
}

/// The result of a handler of single messages.
pub type HandlerResult = Result<(), Failure>;

/// A batch handler's verdicts on single messages; messages not named are done.
#[derive(Debug, Default)]
pub struct Verdicts(Vec<(Offset, Verdict)>);

impl Verdicts {
    /// No verdicts yet: all messages are done.
    pub fn new() -> Self {
        Verdicts::default()
    }

    /// Marks this message as failed, with any error; [`Failure`] shows which outcome it gets.
    pub fn failed(&mut self, offset: Offset, failure: impl Into<Failure>) {
        self.0.push((offset, failure.into().into_verdict()));
    }

    pub(crate) fn into_inner(self) -> Vec<(Offset, Verdict)> {
        self.0
    }
}

impl From<()> for Verdicts {
    fn from((): ()) -> Self {
        Verdicts::default()
    }
}

/// A handler as the runtime stores it.
#[derive(Clone)]
pub(crate) enum Handler {
    /// One message at a time.
    One(Arc<HandleOne>),
    /// Up to a batch at a time.
    Batch(Arc<HandleBatch>),
    /// In a transaction of the store, message by message; and a whole slice at once, if it can.
    Transactional(Arc<HandleTransactional>, Option<Arc<dyn HandleSlice>>),
    /// In a transaction of the PostgreSQL store.
    #[cfg(feature = "postgres")]
    Postgres(Arc<HandlePostgres>),
    /// In a transaction of the SQLite store, on its writer thread; and the layers around it, which run there too.
    #[cfg(feature = "sqlite")]
    Sqlite(Arc<HandleSqlite>, Layers),
}

impl fmt::Debug for Handler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Handler::One(_) => "one",
            Handler::Batch(_) => "batch",
            Handler::Transactional(..) => "in a transaction",
            #[cfg(feature = "postgres")]
            Handler::Postgres(_) => "in a PostgreSQL transaction",
            #[cfg(feature = "sqlite")]
            Handler::Sqlite(..) => "in a SQLite transaction",
        })
    }
}

/// Starts the handling of one message; fails at once if its payload cannot be decoded.
pub(crate) type HandleOne =
    dyn Fn(&Message, Context) -> Result<BoxFuture<'static, Verdict>, DecodeError> + Send + Sync;

/// Starts the handling of a batch.
pub(crate) type HandleBatch =
    dyn Fn(Messages, Context) -> BoxFuture<'static, Result<Verdicts, Verdict>> + Send + Sync;

/// Starts the handling of one message inside an open transaction of either database.
pub(crate) type HandleTransactional =
    dyn Fn(Transaction, &Message, Context) -> Result<BoxFuture<'static, Verdict>, DecodeError> + Send + Sync;

/// Starts the handling of one message inside an open transaction.
#[cfg(feature = "postgres")]
pub(crate) type HandlePostgres = dyn Fn(PostgresTransaction, &Message, Context) -> Result<BoxFuture<'static, Verdict>, DecodeError>
    + Send
    + Sync;

/// Decodes one message, and returns what handles it inside an open transaction, synchronously.
#[cfg(feature = "sqlite")]
pub(crate) type HandleSqlite =
    dyn Fn(&Message, Context) -> Result<HandleNow<'static>, DecodeError> + Send + Sync;

fn verdict_of(result: HandlerResult) -> Verdict {
    match result {
        Ok(()) => Verdict::Done,
        Err(failure) => failure.into_verdict(),
    }
}
