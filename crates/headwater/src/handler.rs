//! Handlers: how a member handles messages, and the results it returns.
//!
//! A handler is a plain async closure or function, see [`HandlerFn`]. `Ok` acks; any error is a failed attempt and is
//! retried by the group's policy; [`Retry`], [`Bury`], [`Skip`] and [`Release`] choose another outcome. A panic is a failed attempt
//! too. [`Layer`]s run around each call.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

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
use failure::Mark;
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

/// Why a message was not handled, and which outcome it gets. Made from any error by `?`.
///
/// ```
/// use std::time::Duration;
/// use headwater::{Bury, Failure, HandlerResult, Retry, Skip};
///
/// fn charge(amount: &str) -> HandlerResult {
///     let amount: i64 = amount.parse()?;                      // an error: retried by policy
///     match amount {
///         0 => Err(Skip.into()),                              // done without handling
///         i64::MIN..0 => Err(Bury("a negative amount").into()), // a dead letter at once
///         1..100 => Ok(()),
///         _ => Err(Retry::after(Duration::from_secs(60)).because("the limit is reached").into()),
///     }
/// }
/// assert!(charge("12").is_ok());
/// # let _: Failure = charge("x").unwrap_err();
/// ```
pub struct Failure(Verdict);

impl Failure {
    /// The verdict it stands for: a layer may decide by it.
    pub fn verdict(&self) -> &Verdict {
        &self.0
    }

    pub(crate) fn into_verdict(self) -> Verdict {
        self.0
    }
}

impl fmt::Debug for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl<E: Into<Box<dyn std::error::Error + Send + Sync>>> From<E> for Failure {
    fn from(error: E) -> Self {
        Failure(failure::verdict_of(&*error.into()))
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Verdict::Failed(reason) => f.write_str(reason),
            Verdict::RetryAfter(delay, reason) => write!(f, "retry after {delay:?}: {reason}"),
            Verdict::Bury(reason) => write!(f, "buried: {reason}"),
            Verdict::Skip => f.write_str("skipped"),
            Verdict::Done => f.write_str("done"),
            Verdict::Release => f.write_str("released"),
        }
    }
}

/// Retry after a delay that the handler chooses; counts as an attempt.
#[derive(Clone, Debug)]
pub struct Retry {
    mark: Mark,
    reason: String,
}

impl Retry {
    /// Not before this delay has passed.
    pub fn after(delay: Duration) -> Self {
        Retry { mark: Mark::RetryAfter(delay), reason: "the handler requested a retry".into() }
    }

    /// Sets the reason; it is shown with the message while it waits.
    #[must_use]
    pub fn because(mut self, reason: impl Into<String>) -> Self {
        self.reason = reason.into();
        self
    }
}

impl fmt::Display for Retry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.reason)
    }
}

impl std::error::Error for Retry {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.mark)
    }
}

/// The message cannot be handled: it becomes a dead letter at once, with this reason.
#[derive(Clone, Debug)]
pub struct Bury<R>(pub R);

impl<R: fmt::Display> fmt::Display for Bury<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl<R: fmt::Display + fmt::Debug> std::error::Error for Bury<R> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&Mark::Bury)
    }
}

/// The message is not wanted: done without being handled, and counted separately.
#[derive(Clone, Copy, Debug)]
pub struct Skip;

impl fmt::Display for Skip {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("skipped")
    }
}

impl std::error::Error for Skip {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&Mark::Skip)
    }
}

/// The message was not handled, for a reason outside of it: it is due again at once, and no attempt is counted. For a handler that
/// has to stop, or whose work was undone with that of others.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> headwater::Result<()> {
/// # let headwater = headwater::Headwater::in_memory().await?;
/// use headwater::{Context, Json, Release};
///
/// let release = |_: Json<u64>, context: Context| async move {
///     assert_eq!(context.attempt(), 1, "no attempt is counted");
///     Err(Release.into())
/// };
/// let mut consumer = headwater.consumer("orders", "email").member("mailer", release).stepwise().await?;
/// headwater.producer("orders").send(&7).await?;
/// assert_eq!((consumer.step().await?, consumer.step().await?), (1, 1));
/// # assert_eq!(consumer.running().health().totals.retried, 0);
/// # headwater.close().await }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Release;

impl fmt::Display for Release {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("released")
    }
}

impl std::error::Error for Release {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&Mark::Release)
    }
}

/// A batch handler's verdicts on single messages; messages not named are done.
#[derive(Debug, Default)]
pub struct Verdicts(Vec<(Offset, Verdict)>);

impl Verdicts {
    /// No verdicts yet: all messages are done.
    pub fn new() -> Self {
        Verdicts::default()
    }

    /// Marks this message as failed, with any error, [`Retry`], [`Bury`], [`Skip`] or [`Release`].
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

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("the order is broken")]
    struct Outer(#[source] std::num::ParseIntError);

    #[test]
    fn a_failure_shows_the_whole_chain_of_causes() {
        let cause = "x".parse::<i32>().unwrap_err();
        let Verdict::Failed(text) = Failure::from(Outer(cause)).into_verdict() else { panic!("not failed") };
        assert_eq!(text, "the order is broken: invalid digit found in string");
    }

    #[test]
    fn plain_text_is_a_failure_and_the_special_outcomes_keep_their_meaning() {
        assert_eq!(Failure::from("no stock").into_verdict(), Verdict::Failed("no stock".into()));
        assert_eq!(Failure::from(Bury("broken")).into_verdict(), Verdict::Bury("broken".into()));
        assert_eq!(Failure::from(Bury(String::from("torn"))).into_verdict(), Verdict::Bury("torn".into()));
        assert_eq!(Failure::from(Skip).into_verdict(), Verdict::Skip);
        assert_eq!(Failure::from(Release).into_verdict(), Verdict::Release);
        let retry = Retry::after(Duration::from_secs(3)).because("later");
        assert_eq!(
            Failure::from(retry).into_verdict(),
            Verdict::RetryAfter(Duration::from_secs(3), "later".into())
        );
    }

    #[test]
    fn an_outcome_chosen_deep_inside_other_errors_is_found() {
        use anyhow::Context as _;
        let verdict = |error: anyhow::Error| Failure::from(error).into_verdict();
        assert_eq!(verdict(Bury("broken").into()), Verdict::Bury("broken".into()));
        let deep = Err::<(), _>(Bury("broken")).context("item 3").context("order 7").unwrap_err();
        assert_eq!(verdict(deep), Verdict::Bury("order 7: item 3: broken".into()));
        assert_eq!(verdict(anyhow::Error::from(Skip).context("not ours")), Verdict::Skip);
        let retry = anyhow::Error::from(Retry::after(Duration::from_secs(3)).because("later"));
        assert_eq!(verdict(retry), Verdict::RetryAfter(Duration::from_secs(3), "later".into()));
        let boxed: Box<dyn std::error::Error + Send + Sync> = Box::new(Bury("boxed"));
        assert_eq!(Failure::from(boxed).into_verdict(), Verdict::Bury("boxed".into()));
        assert_eq!(verdict(anyhow::anyhow!("plain")), Verdict::Failed("plain".into()));
    }
}
