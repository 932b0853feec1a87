//! Layers around handlers: what a program does before and after each call, and with its errors.

use std::future::Future;
use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;

#[cfg(feature = "postgres")]
use super::HandlePostgres;
use super::{Context, Failure, HandleBatch, HandleOne, HandleTransactional, Handler, Verdicts};
use crate::message::Offset;
use crate::settle::Verdict;

/// What a call of a handler returned: for one message `Ok` without verdicts or the failure, for a batch the verdicts on
/// single messages or the failure of all of it.
pub type Handled = Result<Verdicts, Failure>;

/// Runs around each call of a handler: before, after, and with its error in hand.
///
/// The first layer of a consumer is the outermost. A layer may change the result, and need not call `next`: a message
/// whose handler was not called gets the outcome that the layer returns. A call that panics or exceeds its timeout is
/// dropped with its layers. A payload that cannot be decoded reaches no layer: there is nothing to call.
///
/// Around a member in the store's own transaction the layer runs inside that transaction, before it commits. On SQLite
/// that is on the writer thread: the layer may await `next` and what is ready at once, and nothing else, because
/// nothing is written to the file meanwhile; a message whose layer waits for something fails with an error that says so.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> headwater::Result<()> {
/// use std::sync::Arc;
/// use std::sync::atomic::{AtomicU64, Ordering};
/// use headwater::handler::{Handled, Layer, Next};
/// use headwater::{Context, Headwater, Json};
///
/// #[derive(Clone, Default)]
/// struct Failures(Arc<AtomicU64>);
///
/// impl Layer for Failures {
///     async fn handle(&self, context: &Context, next: Next<'_>) -> Handled {
///         let handled = next.run().await;
///         if let Err(failure) = &handled {
///             self.0.fetch_add(1, Ordering::Relaxed);
///             eprintln!("{} of {}: {failure}", context.message().offset, context.member());
///         }
///         handled
///     }
/// }
///
/// let headwater = Headwater::in_memory().await?;
/// headwater.producer("orders").send(&7).await?;
/// let failures = Failures::default();
/// let mut consumer = headwater
///     .consumer("orders", "email")
///     .layer(failures.clone())
///     .member("mailer", |Json(_): Json<u64>| async { Err("the mail server is down".into()) })
///     .stepwise()
///     .await?;
/// consumer.step().await?;
/// assert_eq!(failures.0.load(Ordering::Relaxed), 1);
/// # headwater.close().await }
/// ```
pub trait Layer: Send + Sync + 'static {
    /// Handles a call: `next.run().await` calls the layers inside this one, and then the handler.
    fn handle(&self, context: &Context, next: Next<'_>) -> impl Future<Output = Handled> + Send;
}

/// A layer as it is stored.
trait AnyLayer: Send + Sync {
    fn handle_boxed<'a>(&'a self, context: &'a Context, next: Next<'a>) -> BoxFuture<'a, Handled>;
}

impl<L: Layer> AnyLayer for L {
    fn handle_boxed<'a>(&'a self, context: &'a Context, next: Next<'a>) -> BoxFuture<'a, Handled> {
        self.handle(context, next).boxed()
    }
}

/// The rest of a call: the layers inside the present one, and the handler.
#[must_use = "the handler is not called before `run`"]
pub struct Next<'a> {
    inside: &'a [Arc<dyn AnyLayer>],
    context: &'a Context,
    handling: BoxFuture<'a, Handled>,
}

impl std::fmt::Debug for Next<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Next({} layers)", self.inside.len())
    }
}

impl<'a> Next<'a> {
    /// Runs it.
    pub fn run(self) -> BoxFuture<'a, Handled> {
        match self.inside.split_first() {
            Some((layer, inside)) => layer.handle_boxed(self.context, Next { inside, ..self }),
            None => self.handling,
        }
    }
}

/// The layers of a consumer, outermost first.
#[derive(Clone, Default)]
pub(crate) struct Layers(Arc<Vec<Arc<dyn AnyLayer>>>);

impl std::fmt::Debug for Layers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Layers({})", self.0.len())
    }
}

impl Layers {
    pub(crate) fn add(&mut self, layer: impl Layer) {
        Arc::make_mut(&mut self.0).push(Arc::new(layer));
    }

    /// The handler inside these layers. Without layers it is the handler itself, at no cost per call.
    pub(crate) fn around(&self, handler: Handler) -> Handler {
        if self.0.is_empty() {
            return handler;
        }
        match handler {
            Handler::One(handler) => Handler::One(self.around_one(handler)),
            Handler::Batch(handler) => Handler::Batch(self.around_batch(handler)),
            // A layer runs around each message, and so none of them is handled as a part of a slice.
            Handler::Transactional(handler, _) => {
                Handler::Transactional(self.around_transactional(handler), None)
            }
            #[cfg(feature = "postgres")]
            Handler::Postgres(handler) => Handler::Postgres(self.around_postgres(handler)),
            #[cfg(feature = "sqlite")]
            Handler::Sqlite(handler, _) => Handler::Sqlite(handler, self.clone()),
        }
    }

    fn around_one(&self, handler: Arc<HandleOne>) -> Arc<HandleOne> {
        let layers = self.clone();
        Arc::new(move |message, context| {
            let handling = handler(message, context.clone())?;
            Ok(layers.clone().run_one(context, handling).boxed())
        })
    }

    fn around_transactional(&self, handler: Arc<HandleTransactional>) -> Arc<HandleTransactional> {
        let layers = self.clone();
        Arc::new(move |transaction, message, context| {
            let handling = handler(transaction, message, context.clone())?;
            Ok(layers.clone().run_one(context, handling).boxed())
        })
    }

    #[cfg(feature = "postgres")]
    fn around_postgres(&self, handler: Arc<HandlePostgres>) -> Arc<HandlePostgres> {
        let layers = self.clone();
        Arc::new(move |transaction, message, context| {
            let handling = handler(transaction, message, context.clone())?;
            Ok(layers.clone().run_one(context, handling).boxed())
        })
    }

    fn around_batch(&self, handler: Arc<HandleBatch>) -> Arc<HandleBatch> {
        let layers = self.clone();
        Arc::new(move |messages, context| {
            let handling = handler(messages, context.clone());
            let layers = layers.clone();
            async move {
                let handling = handling.map(|said| said.map_err(Failure));
                layers.run(&context, handling.boxed()).await.map_err(Failure::into_verdict)
            }
            .boxed()
        })
    }

    /// Whether there is none.
    #[cfg(feature = "sqlite")]
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Handles one message inside the layers.
    pub(crate) async fn run_one(self, context: Context, handling: BoxFuture<'static, Verdict>) -> Verdict {
        let offset = context.message().offset;
        let handling = handling.map(|verdict| match verdict {
            Verdict::Done => Ok(Verdicts::new()),
            verdict => Err(Failure(verdict)),
        });
        match self.run(&context, handling.boxed()).await {
            Ok(verdicts) => verdict_on(offset, verdicts),
            Err(failure) => failure.into_verdict(),
        }
    }

    async fn run(&self, context: &Context, handling: BoxFuture<'_, Handled>) -> Handled {
        Next { inside: &self.0, context, handling }.run().await
    }
}

/// What verdicts say of one message: done unless it is named.
fn verdict_on(offset: Offset, verdicts: Verdicts) -> Verdict {
    let named = verdicts.into_inner().into_iter().find(|(named, _)| *named == offset);
    named.map_or(Verdict::Done, |(_, verdict)| verdict)
}
