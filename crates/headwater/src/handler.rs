//! Handlers: how a member handles messages, and the results it returns.
//!
//! A handler is a plain async closure. `Ok` acks; any error is a failed attempt and is retried by the topic's policy;
//! [`Retry`], [`Bury`] and [`Skip`] choose another outcome. A panic is a failed attempt too.

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

mod context;
mod messages;
mod run;

pub use context::Context;
pub(crate) use context::Identity;
pub use messages::Messages;
pub(crate) use run::{HandlerGuard, HandlerRun, Said};

/// Decides whether a message is wanted, from its headers, key, type and payload.
pub(crate) type Filter = Arc<dyn Fn(&Message) -> bool + Send + Sync>;

/// How a member handles messages, and which ones.
///
/// ```
/// use headwater::{Handling, Json};
/// let large = Handling::one(|order: Json<u64>, _context| async move { println!("{}", order.0); Ok(()) })
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

impl Handling {
    fn new(handler: Handler) -> Self {
        Handling { handler, filter: None }
    }

    /// One message at a time, decoded; several at once as the consumer's concurrency allows.
    pub fn one<T, H, F>(handler: H) -> Self
    where
        T: Decode + Send + 'static,
        H: Fn(T, Context) -> F + Send + Sync + 'static,
        F: Future<Output = HandlerResult> + Send + 'static,
    {
        Handling::new(Handler::One(Arc::new(move |message: &Message, context| {
            let handling = handler(T::decode(message)?, context);
            Ok(async move { verdict_of(handling.await) }.boxed())
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

    /// One message at a time inside an open PostgreSQL transaction of the store: what the handler writes through it,
    /// the inbox entry and the ack commit together. Exactly once, wherever the process crashes.
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

    /// The same inside the embedded store's own transaction, on its writer thread: nothing else is written meanwhile,
    /// so the closure is synchronous and should be short.
    #[cfg(feature = "sqlite")]
    pub fn in_sqlite<T, H>(handler: H) -> Self
    where
        T: Decode + 'static,
        H: Fn(&rusqlite::Connection, T, &Context) -> HandlerResult + Send + Sync + 'static,
    {
        Handling::new(Handler::Sqlite(Arc::new(
            move |connection: &rusqlite::Connection, message: &Message, context: &Context| {
                Ok(verdict_of(handler(connection, T::decode(message)?, context)))
            },
        )))
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
        Failure(Verdict::Failed(with_causes(&*error.into())))
    }
}

/// An error with all its causes: the text is stored with the dead letter, and read long after the logs are deleted.
fn with_causes(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        let said = inner.to_string();
        if !text.contains(&said) {
            text.push_str(": ");
            text.push_str(&said);
        }
        cause = inner.source();
    }
    text
}

/// Retry after a delay that the handler chooses; counts as an attempt.
#[derive(Clone, Debug)]
pub struct Retry {
    after: Duration,
    reason: String,
}

impl Retry {
    /// Not before this delay has passed.
    pub fn after(delay: Duration) -> Self {
        Retry { after: delay, reason: "the handler requested a retry".into() }
    }

    /// Sets the reason; it is shown with the message while it waits.
    #[must_use]
    pub fn because(mut self, reason: impl Into<String>) -> Self {
        self.reason = reason.into();
        self
    }
}

impl From<Retry> for Failure {
    fn from(retry: Retry) -> Self {
        Failure(Verdict::RetryAfter(retry.after, retry.reason))
    }
}

/// The message cannot be handled: it becomes a dead letter at once, with this reason.
#[derive(Clone, Debug)]
pub struct Bury<R>(pub R);

impl<R: Into<String>> From<Bury<R>> for Failure {
    fn from(Bury(reason): Bury<R>) -> Self {
        Failure(Verdict::Bury(reason.into()))
    }
}

/// The message is not wanted: done without being handled, and counted separately.
#[derive(Clone, Copy, Debug)]
pub struct Skip;

impl From<Skip> for Failure {
    fn from(Skip: Skip) -> Self {
        Failure(Verdict::Skip)
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

    /// Marks this message as failed, with any error, [`Retry`], [`Bury`] or [`Skip`].
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
    /// In a transaction of the PostgreSQL store.
    #[cfg(feature = "postgres")]
    Postgres(Arc<HandlePostgres>),
    /// In a transaction of the SQLite store, on its writer thread.
    #[cfg(feature = "sqlite")]
    Sqlite(Arc<HandleSqlite>),
}

impl fmt::Debug for Handler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Handler::One(_) => "one",
            Handler::Batch(_) => "batch",
            #[cfg(feature = "postgres")]
            Handler::Postgres(_) => "in a PostgreSQL transaction",
            #[cfg(feature = "sqlite")]
            Handler::Sqlite(_) => "in a SQLite transaction",
        })
    }
}

/// Starts the handling of one message; fails at once if its payload cannot be decoded.
pub(crate) type HandleOne =
    dyn Fn(&Message, Context) -> Result<BoxFuture<'static, Verdict>, DecodeError> + Send + Sync;

/// Starts the handling of a batch.
pub(crate) type HandleBatch =
    dyn Fn(Messages, Context) -> BoxFuture<'static, Result<Verdicts, Verdict>> + Send + Sync;

/// Starts the handling of one message inside an open transaction.
#[cfg(feature = "postgres")]
pub(crate) type HandlePostgres = dyn Fn(PostgresTransaction, &Message, Context) -> Result<BoxFuture<'static, Verdict>, DecodeError>
    + Send
    + Sync;

/// Handles one message inside an open transaction, synchronously.
#[cfg(feature = "sqlite")]
pub(crate) type HandleSqlite =
    dyn Fn(&rusqlite::Connection, &Message, &Context) -> Result<Verdict, DecodeError> + Send + Sync;

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
        assert_eq!(Failure::from(Skip).into_verdict(), Verdict::Skip);
        let retry = Retry::after(Duration::from_secs(3)).because("later");
        assert_eq!(
            Failure::from(retry).into_verdict(),
            Verdict::RetryAfter(Duration::from_secs(3), "later".into())
        );
    }
}
