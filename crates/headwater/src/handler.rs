//! Handlers: what a member does with messages, and the words by which it says how it went.
//!
//! A handler is a plain async closure. `Ok` acks; any error is a failed attempt and is tried again as the topic's policy
//! says; [`Retry`], [`Bury`] and [`Skip`] say something else. A panic is a failed attempt too.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;

use crate::codec::{Decode, DecodeError};
use crate::message::{Message, Offset};
use crate::settle::Verdict;

mod context;
mod messages;

pub use context::Context;
pub(crate) use context::Identity;
pub use messages::Messages;

/// What a handler of single messages returns.
pub type HandlerResult = Result<(), Failure>;

/// Why a message was not handled, and what should become of it. Made from any error by `?`.
///
/// ```
/// use std::time::Duration;
/// use headwater::{Bury, Failure, HandlerResult, Retry, Skip};
///
/// fn charge(amount: &str) -> HandlerResult {
///     let amount: i64 = amount.parse()?;                      // an error: tried again by policy
///     match amount {
///         0 => Err(Skip.into()),                              // done without handling
///         i64::MIN..0 => Err(Bury("a negative amount").into()), // to the dead letters, now
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

/// An error with everything that caused it: people read it in the dead letters, long after the log is gone.
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

/// Try again after a delay of the handler's choosing; counts as an attempt.
#[derive(Clone, Debug)]
pub struct Retry {
    after: Duration,
    reason: String,
}

impl Retry {
    /// Not before this much time has passed.
    pub fn after(delay: Duration) -> Self {
        Retry { after: delay, reason: "the handler asked for a retry".into() }
    }

    /// Says why; shown beside the message while it waits.
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

/// Hopeless: to the dead letters now, with this reason.
#[derive(Clone, Debug)]
pub struct Bury<R>(pub R);

impl<R: Into<String>> From<Bury<R>> for Failure {
    fn from(Bury(reason): Bury<R>) -> Self {
        Failure(Verdict::Bury(reason.into()))
    }
}

/// Not wanted: done without handling, and counted apart.
#[derive(Clone, Copy, Debug)]
pub struct Skip;

impl From<Skip> for Failure {
    fn from(Skip: Skip) -> Self {
        Failure(Verdict::Skip)
    }
}

/// What a batch handler says of single messages; those not named are done.
#[derive(Debug, Default)]
pub struct Verdicts(Vec<(Offset, Verdict)>);

impl Verdicts {
    /// Everything is done so far.
    pub fn new() -> Self {
        Verdicts::default()
    }

    /// Says that this message failed, with any error, [`Retry`], [`Bury`] or [`Skip`].
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

/// A handler as the runtime holds it.
#[derive(Clone)]
pub(crate) enum Handler {
    /// One message at a time.
    One(Arc<dyn HandleOne>),
    /// Up to a batch at a time.
    Batch(Arc<dyn HandleBatch>),
    /// In the store's own transaction.
    #[cfg(feature = "postgres")]
    Postgres(Arc<dyn HandlePostgres>),
    /// In the embedded store's own transaction, on its writer's thread.
    #[cfg(feature = "sqlite")]
    Sqlite(Arc<SqliteHandler>),
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
pub(crate) trait HandleOne: Send + Sync {
    fn start(&self, message: &Message, context: Context) -> Result<BoxFuture<'static, Verdict>, DecodeError>;
}

/// Handles a batch.
pub(crate) trait HandleBatch: Send + Sync {
    fn start(&self, messages: Messages, context: Context) -> BoxFuture<'static, Result<Verdicts, Verdict>>;
}

/// Handles one message inside an open transaction.
#[cfg(feature = "postgres")]
pub(crate) trait HandlePostgres: Send + Sync {
    fn start(
        &self,
        transaction: crate::store::postgres::PostgresTransaction,
        message: &Message,
        context: Context,
    ) -> Result<BoxFuture<'static, Verdict>, DecodeError>;
}

/// Handles one message inside an open transaction, synchronously.
#[cfg(feature = "sqlite")]
pub(crate) type SqliteHandler = dyn Fn(&rusqlite::Connection, &Message, &Context) -> Verdict + Send + Sync;

fn verdict_of(result: HandlerResult) -> Verdict {
    match result {
        Ok(()) => Verdict::Done,
        Err(failure) => failure.into_verdict(),
    }
}

/// A handler of single messages from a closure.
pub(crate) fn one<T, H, F>(handler: H) -> Handler
where
    T: Decode + Send + 'static,
    H: Fn(T, Context) -> F + Send + Sync + 'static,
    F: Future<Output = HandlerResult> + Send + 'static,
{
    struct One<H, T>(H, std::marker::PhantomData<fn(T)>);
    impl<T, H, F> HandleOne for One<H, T>
    where
        T: Decode + Send + 'static,
        H: Fn(T, Context) -> F + Send + Sync + 'static,
        F: Future<Output = HandlerResult> + Send + 'static,
    {
        fn start(
            &self,
            message: &Message,
            context: Context,
        ) -> Result<BoxFuture<'static, Verdict>, DecodeError> {
            let handling = (self.0)(T::decode(message)?, context);
            Ok(Box::pin(async move { verdict_of(handling.await) }))
        }
    }
    Handler::One(Arc::new(One(handler, std::marker::PhantomData)))
}

/// A handler of batches from a closure.
pub(crate) fn batch<V, H, F>(handler: H) -> Handler
where
    V: Into<Verdicts>,
    H: Fn(Messages, Context) -> F + Send + Sync + 'static,
    F: Future<Output = Result<V, Failure>> + Send + 'static,
{
    struct Many<H>(H);
    impl<V, H, F> HandleBatch for Many<H>
    where
        V: Into<Verdicts>,
        H: Fn(Messages, Context) -> F + Send + Sync + 'static,
        F: Future<Output = Result<V, Failure>> + Send + 'static,
    {
        fn start(
            &self,
            messages: Messages,
            context: Context,
        ) -> BoxFuture<'static, Result<Verdicts, Verdict>> {
            let handling = (self.0)(messages, context);
            Box::pin(async move { handling.await.map(Into::into).map_err(Failure::into_verdict) })
        }
    }
    Handler::Batch(Arc::new(Many(handler)))
}

/// A handler inside PostgreSQL transactions from a closure.
#[cfg(feature = "postgres")]
pub(crate) fn in_postgres<T, H, F>(handler: H) -> Handler
where
    T: Decode + Send + 'static,
    H: Fn(crate::store::postgres::PostgresTransaction, T, Context) -> F + Send + Sync + 'static,
    F: Future<Output = HandlerResult> + Send + 'static,
{
    struct InPostgres<H, T>(H, std::marker::PhantomData<fn(T)>);
    impl<T, H, F> HandlePostgres for InPostgres<H, T>
    where
        T: Decode + Send + 'static,
        H: Fn(crate::store::postgres::PostgresTransaction, T, Context) -> F + Send + Sync + 'static,
        F: Future<Output = HandlerResult> + Send + 'static,
    {
        fn start(
            &self,
            transaction: crate::store::postgres::PostgresTransaction,
            message: &Message,
            context: Context,
        ) -> Result<BoxFuture<'static, Verdict>, DecodeError> {
            let handling = (self.0)(transaction, T::decode(message)?, context);
            Ok(Box::pin(async move { verdict_of(handling.await) }))
        }
    }
    Handler::Postgres(Arc::new(InPostgres(handler, std::marker::PhantomData)))
}

/// A handler inside the embedded store's transactions from a closure.
#[cfg(feature = "sqlite")]
pub(crate) fn in_sqlite<T, H>(handler: H) -> Handler
where
    T: Decode + 'static,
    H: Fn(&rusqlite::Connection, T, &Context) -> HandlerResult + Send + Sync + 'static,
{
    Handler::Sqlite(Arc::new(
        move |connection: &rusqlite::Connection, message: &Message, context: &Context| match T::decode(
            message,
        ) {
            Ok(value) => verdict_of(handler(connection, value, context)),
            Err(error) => Verdict::Bury(error.to_string()),
        },
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("the order is broken")]
    struct Outer(#[source] std::num::ParseIntError);

    #[test]
    fn a_failure_tells_the_whole_chain_of_causes() {
        let cause = "x".parse::<i32>().unwrap_err();
        let Verdict::Failed(text) = Failure::from(Outer(cause)).into_verdict() else { panic!("not failed") };
        assert_eq!(text, "the order is broken: invalid digit found in string");
    }

    #[test]
    fn plain_text_is_a_failure_and_the_special_words_keep_their_meaning() {
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
