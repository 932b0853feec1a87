//! The forms of a handler: a closure or function of the payload, with or without its context; and the state that the
//! handlers of a consumer share.

use std::any::{Any, TypeId};
use std::collections::HashMap;
use std::future::Future;
use std::sync::Arc;

use super::Context;
use crate::codec::Decode;
use crate::transaction::Transaction;

/// A closure or function that handles one message: it takes the payload, and after it a [`Context`] or nothing. Its
/// arguments need their types: `|Json(order): Json<Order>, context: Context|`.
///
/// ```
/// use headwater::{Context, HandlerResult, Handling, Json};
///
/// let plain = Handling::one(|Json(n): Json<u64>| async move { println!("{n}"); Ok(()) });
/// let with_context = Handling::one(|Json(n): Json<u64>, context: Context| async move {
///     println!("{n}, attempt {}", context.attempt());
///     Ok(())
/// });
///
/// async fn ship(Json(n): Json<u64>) -> HandlerResult {
///     println!("{n}");
///     Ok(())
/// }
/// let function = Handling::one(ship);
/// # let _ = (plain, with_context, function);
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a handler of messages",
    label = "expected `Fn(payload)` or `Fn(payload, Context)`",
    note = "the payload is `Json<T>`, `Protobuf<T>`, `Bytes`, `String` or `Message`; write the type of each argument",
    note = "the future returns `HandlerResult` and is `Send`; for another error type, such as anyhow's, use `Handling::function`"
)]
pub trait HandlerFn<Arguments, Output>: Send + Sync + 'static {
    /// How the payload is decoded.
    type Payload: Decode + Send + 'static;

    /// Starts to handle a message.
    fn start(
        &self,
        payload: Self::Payload,
        context: Context,
    ) -> impl Future<Output = Output> + Send + 'static;
}

impl<T, H, F> HandlerFn<(T,), F::Output> for H
where
    T: Decode + Send + 'static,
    H: Fn(T) -> F + Send + Sync + 'static,
    F: Future + Send + 'static,
{
    type Payload = T;

    fn start(&self, payload: T, _: Context) -> impl Future<Output = F::Output> + Send + 'static {
        self(payload)
    }
}

impl<T, H, F> HandlerFn<(T, Context), F::Output> for H
where
    T: Decode + Send + 'static,
    H: Fn(T, Context) -> F + Send + Sync + 'static,
    F: Future + Send + 'static,
{
    type Payload = T;

    fn start(&self, payload: T, context: Context) -> impl Future<Output = F::Output> + Send + 'static {
        self(payload, context)
    }
}

/// A closure or function that handles one message in a transaction of the store: it takes the
/// [`Transaction`](crate::transaction::Transaction), the payload, and after it a [`Context`] or nothing.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a handler inside transactions",
    label = "expected `Fn(Transaction, payload)` or `Fn(Transaction, payload, Context)`",
    note = "the payload is `Json<T>`, `Protobuf<T>`, `Bytes`, `String` or `Message`; write the type of each argument",
    note = "the future returns `HandlerResult` and is `Send`"
)]
pub trait TransactionalFn<Arguments, Output>: Send + Sync + 'static {
    /// How the payload is decoded.
    type Payload: Decode + Send + 'static;

    /// Starts to handle a message.
    fn start(
        &self,
        transaction: Transaction,
        payload: Self::Payload,
        context: Context,
    ) -> impl Future<Output = Output> + Send + 'static;
}

impl<T, H, F> TransactionalFn<(T,), F::Output> for H
where
    T: Decode + Send + 'static,
    H: Fn(Transaction, T) -> F + Send + Sync + 'static,
    F: Future + Send + 'static,
{
    type Payload = T;

    fn start(
        &self,
        transaction: Transaction,
        payload: T,
        _: Context,
    ) -> impl Future<Output = F::Output> + Send + 'static {
        self(transaction, payload)
    }
}

impl<T, H, F> TransactionalFn<(T, Context), F::Output> for H
where
    T: Decode + Send + 'static,
    H: Fn(Transaction, T, Context) -> F + Send + Sync + 'static,
    F: Future + Send + 'static,
{
    type Payload = T;

    fn start(
        &self,
        transaction: Transaction,
        payload: T,
        context: Context,
    ) -> impl Future<Output = F::Output> + Send + 'static {
        self(transaction, payload, context)
    }
}

/// The state of a consumer, one value per type.
#[derive(Clone, Default)]
pub(crate) struct States(HashMap<TypeId, Arc<dyn Any + Send + Sync>>);

impl std::fmt::Debug for States {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "States({})", self.0.len())
    }
}

impl States {
    pub(crate) fn add<S: Send + Sync + 'static>(&mut self, state: S) {
        self.0.insert(TypeId::of::<S>(), Arc::new(state));
    }

    pub(crate) fn get<S: Send + Sync + 'static>(&self) -> Option<&S> {
        self.0.get(&TypeId::of::<S>()).and_then(|state| state.downcast_ref())
    }
}
