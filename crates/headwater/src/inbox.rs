//! The inbox: a handler processes a message once, however often it is delivered.

use std::sync::Arc;

use crate::error::Result;
use crate::repository::{Repository, check_id};
use crate::store::Store;
use crate::store::repository::Verb;
use crate::transaction::Transaction;

/// The inbox of a store; from [`Headwater::inbox`](crate::Headwater::inbox).
///
/// For messages that come from elsewhere: a broker, a webhook. Handlers of topics need none of it:
/// [`Handling::transactional`](crate::Handling::transactional) uses the same entries by itself.
///
/// Insert the entry in the transaction of the effect: if that is rolled back, so is the entry, and the next delivery is processed.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> headwater::Result<()> {
/// use headwater::Headwater;
/// use headwater::transaction::Transaction;
///
/// let headwater = Headwater::in_memory().await?;
/// for delivery in 1..=2 {
///     let inbox = headwater.inbox();
///     let processed = headwater.transaction(move |tx: Transaction| async move {
///         let is_new = inbox.within(&tx).insert_if_absent("payment-9", "ledger").await?;
///         if is_new {
///             tx.execute("CREATE TABLE ledger (id text)", ()).await?; // the effect
///         }
///         Ok::<bool, headwater::Error>(is_new)
///     });
///     assert_eq!(processed.await?, delivery == 1);
/// }
/// # headwater.close().await }
/// ```
#[derive(Clone, Debug)]
pub struct Inbox {
    repository: Repository,
}

impl Inbox {
    pub(crate) fn new(store: &Arc<dyn Store>) -> Self {
        Inbox { repository: Repository::new(store) }
    }

    /// The same inbox in a transaction: an entry is committed or rolled back with it.
    #[must_use]
    pub fn within(&self, transaction: &Transaction) -> Self {
        Inbox { repository: self.repository.within(transaction) }
    }

    /// Inserts the entry of a message and a handler; false if it exists: this handler has processed the message.
    ///
    /// Concurrent callers included: of two that insert the same pair, the second waits for the end of the first one's
    /// transaction, and then knows. Handlers are independent of each other. Both are 1 to 255 bytes of any characters but NUL. Entries are
    /// kept for [`inbox_retention`](crate::maintenance::MaintenanceSettings::inbox_retention), 30 days by default.
    pub async fn insert_if_absent(&self, message_id: &str, handler: &str) -> Result<bool> {
        check_id("message_id", message_id)?;
        check_id("handler", handler)?;
        let rows = self.repository.run(Verb::InboxInsert, vec![message_id.into(), handler.into()]).await?;
        let inserted: Result<u64> = rows.iter().map(|row| row.get::<u64>("inserted")).sum();
        Ok(inserted? == 1)
    }
}
