//! Handling a whole slice in one transaction: inside the crate only, for handlers whose statements can be made for many
//! messages at once.
//!
//! Such a handler is the second form of one that handles message by message. There are no savepoints: if one message of
//! the slice is not done, everything is rolled back and the first form handles the slice. So both forms must mean the
//! same, and this one may refuse whatever it does not handle.

use std::sync::Arc;

use futures_util::future::BoxFuture;

use super::{Context, Messages};
use crate::error::Result;
use crate::settle::Verdict;
use crate::transaction::Transaction;

/// Handles slices, each in one transaction.
pub(crate) trait HandleSlice: Send + Sync {
    /// Begins a slice. `fresh` are the indexes of the messages that are to be handled, rising: no inbox entry had them
    /// before this transaction, and all of them have one now. An error refuses the slice.
    fn begin(
        self: Arc<Self>,
        transaction: Transaction,
        messages: Messages,
        fresh: Vec<usize>,
    ) -> BoxFuture<'static, Result<Arc<dyn OpenSlice>>>;
}

/// A slice that is being handled.
pub(crate) trait OpenSlice: Send + Sync {
    /// Handles one message, the only one of its context. Called for each that is fresh, one after the other, in order;
    /// any verdict but [`Verdict::Done`] refuses the slice.
    fn handle(self: Arc<Self>, transaction: Transaction, context: Context) -> BoxFuture<'static, Verdict>;

    /// Writes what has not been written yet, once all of them are handled. An error refuses the slice.
    fn finish(self: Arc<Self>, transaction: Transaction) -> BoxFuture<'static, Result<()>>;
}
