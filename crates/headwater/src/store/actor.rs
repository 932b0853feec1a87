//! The actor of a change, as audit entries name it: the store's own, or the one that a handle acts for.
//!
//! An engine is shared by handles of many actors. [`Checked`](super::Checked) has the actor of its handle and sets it for the task while the engine
//! is called.

use std::sync::Arc;

tokio::task_local! {
    /// The actor of the call under way, if it is not the store's own.
    static CALLER: Arc<str>;
}

/// The actor of an engine.
#[derive(Clone, Debug)]
pub(crate) struct Actor(Arc<str>);

impl Actor {
    pub(crate) fn new(own: &str) -> Self {
        Actor(own.into())
    }

    /// Who acts now. To be read in the task of the call: a command for another thread takes it along.
    pub(crate) fn now(&self) -> Arc<str> {
        CALLER.try_with(Arc::clone).unwrap_or_else(|_| Arc::clone(&self.0))
    }
}

/// Calls an engine as this actor; as its own without one.
pub(crate) async fn acting<F: Future>(caller: Option<&Arc<str>>, call: F) -> F::Output {
    match caller {
        Some(caller) => CALLER.scope(Arc::clone(caller), call).await,
        None => call.await,
    }
}
