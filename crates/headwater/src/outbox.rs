//! The outbox: entries for external brokers, inserted in the transaction of the change that they are about, each with a status.
//!
//! A relay sweeps entries, sends them and marks them. A plain publish to a topic is an outbox, too, and the faster one; this is
//! for programs that need a status per entry, or the three categories.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use crate::error::{Error, Result};
use crate::limits::{
    OUTBOX_ATTEMPTS_MAX, OUTBOX_CLAIM_TIMEOUT, OUTBOX_ENTRIES_MAX, PAYLOAD_BYTES_DEFAULT, RETENTION_MAX,
};
use crate::name::check_name;
use crate::repository::Repository;
use crate::store::repository::{OUTBOX, Verb};
use crate::store::{Store, Wake};
use crate::transaction::{Row, Transaction, Value};

mod entry;
mod list;
mod mark;

pub use entry::{
    COMMAND_REQUESTED, COMMAND_TOPIC_PREFIX, Category, HEADER_BUSINESS_KEY, HEADER_COMMAND_ID,
    HEADER_COMMAND_NAME, HEADER_CORRELATION_ID, HEADER_REPLY_TO, NewEntry, OutboxEntry, OutboxStatus,
    REPLY_QUEUE, Request,
};
pub(crate) use entry::{headers_of, json_of, time_of, unreadable};
pub use list::OutboxSelection;
pub use mark::{EntryIds, FailedEntry, Marked, NextAttempt};

/// The outbox of a store; from [`Headwater::outbox`](crate::Headwater::outbox).
///
/// Each operation runs in a transaction of its own, or with [`within`](Outbox::within) in the caller's. A claimer is a name that
/// no other process has, and no later life of the same process: it is what tells a claim from the next.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> headwater::Result<()> {
/// use std::time::Duration;
/// use headwater::Headwater;
/// use headwater::outbox::NewEntry;
/// use headwater::transaction::Transaction;
///
/// let headwater = Headwater::in_memory().await?;
/// // The change and the entry about it, together or not at all.
/// let inside = headwater.outbox();
/// let id = headwater
///     .transaction(move |tx: Transaction| async move {
///         tx.execute("CREATE TABLE shop_order (id bigint)", ()).await?;
///         tx.execute("INSERT INTO shop_order (id) VALUES ($1)", (17,)).await?;
///         let event = NewEntry::kafka_event("orders", "customer-3", "OrderCreated", r#"{"id":17}"#);
///         inside.within(&tx).insert_returning_id(&event).await
///     })
///     .await?;
///
/// // What a relay does.
/// let outbox = headwater.outbox();
/// let entries = outbox.sweep_batch(100, "relay-1").await?;
/// assert_eq!((entries[0].id, entries[0].topic.as_str()), (id, "orders"));
/// outbox.mark_failed(id, "relay-1", "broker away", Duration::ZERO).await?;
/// let entries = outbox.sweep_batch(100, "relay-1").await?;
/// assert_eq!(entries[0].attempts, 1);
/// outbox.mark_published(&entries, "relay-1").await?;
/// assert!(outbox.sweep_batch(100, "relay-1").await?.is_empty());
/// # headwater.close().await }
/// ```
#[derive(Clone, Debug)]
pub struct Outbox {
    repository: Repository,
    claim_timeout: Duration,
    max_attempts: u32,
    payload_bytes_max: usize,
}

impl Outbox {
    pub(crate) fn new(store: &Arc<dyn Store>) -> Self {
        Outbox {
            repository: Repository::new(store),
            claim_timeout: OUTBOX_CLAIM_TIMEOUT,
            max_attempts: OUTBOX_ATTEMPTS_MAX,
            payload_bytes_max: PAYLOAD_BYTES_DEFAULT,
        }
    }

    /// The same outbox in a transaction: what is done here is committed or rolled back with it.
    #[must_use]
    pub fn within(&self, transaction: &Transaction) -> Self {
        Outbox { repository: self.repository.within(transaction), ..self.clone() }
    }

    /// How long a claim lasts before a sweep takes the entry again; five minutes by default.
    #[must_use]
    pub fn claim_timeout(mut self, timeout: Duration) -> Self {
        self.claim_timeout = timeout;
        self
    }

    /// How often sending an entry may fail before it is parked in the dead letters; 10 by default. A claim that timed out counts,
    /// so that an entry that kills its relay ends.
    #[must_use]
    pub fn max_attempts(mut self, attempts: u32) -> Self {
        self.max_attempts = attempts;
        self
    }

    /// The largest payload of an entry; 1 MiB by default, 64 MiB at most.
    #[must_use]
    pub fn payload_bytes_max(mut self, bytes: usize) -> Self {
        self.payload_bytes_max = bytes;
        self
    }

    /// Inserts an entry, which is NEW, and returns its id.
    pub async fn insert_returning_id(&self, entry: &NewEntry) -> Result<i64> {
        entry.validate(self.payload_bytes_max)?;
        let row = self.repository.one(Verb::OutboxInsert, entry.params(self.payload_bytes_max)).await?;
        row.get("id")
    }

    /// Claims an entry if it is NEW; `None` if it is claimed already, or absent.
    pub async fn claim_if_new(&self, id: i64, claimer: &str) -> Result<Option<OutboxEntry>> {
        check_name("claimer", claimer)?;
        let rows = self.repository.run(Verb::OutboxClaim, vec![id.into(), claimer.into()]).await?;
        rows.first().map(OutboxEntry::from_row).transpose()
    }

    /// Claims up to `max` entries that are due, oldest first: NEW ones, failed ones and those given back whose time has come, and
    /// those whose claim timed out. Concurrent sweeps never share an entry and never wait for each other.
    ///
    /// A claim that timed out counts as an attempt. An entry that has none left is parked instead of returned.
    pub async fn sweep_batch(&self, max: u32, claimer: &str) -> Result<Vec<OutboxEntry>> {
        self.sweep(max, claimer, false).await
    }

    /// The same in the order of keys: no entry while an older one of its topic and key is unfinished, so of each key at most one
    /// is claimed at a time, and a failed one holds back those behind it. Entries without a key are not held back. Older is what
    /// was inserted first; between transactions that overlap there is no order.
    pub async fn sweep_in_key_order(&self, max: u32, claimer: &str) -> Result<Vec<OutboxEntry>> {
        self.sweep(max, claimer, true).await
    }

    async fn sweep(&self, max: u32, claimer: &str, by_key: bool) -> Result<Vec<OutboxEntry>> {
        check_name("claimer", claimer)?;
        if max == 0 || max > OUTBOX_ENTRIES_MAX {
            return Err(Error::invalid("max", format!("{max} is not from 1 to {OUTBOX_ENTRIES_MAX}")));
        }
        if self.claim_timeout.is_zero() {
            return Err(Error::invalid("claim_timeout", "must be above zero: a claim must last"));
        }
        let timeout_ms = mark::delay_ms("claim_timeout", self.claim_timeout)?;
        let attempts = self.attempts()?;
        let params: Vec<Value> = vec![max.into(), claimer.into(), timeout_ms.into(), attempts, by_key.into()];
        loop {
            let rows = self.repository.run(Verb::OutboxSweep, params.clone()).await?;
            let entries: Result<Vec<OutboxEntry>> = rows.iter().map(OutboxEntry::from_row).collect();
            let (mut claimed, parked): (Vec<_>, Vec<_>) =
                entries?.into_iter().partition(|entry| entry.status == OutboxStatus::Claimed);
            let parked: Vec<i64> = parked.iter().map(|entry| entry.id).collect();
            // A caller takes an empty answer for an empty outbox: there may be more behind entries that only were parked.
            let only_parked = claimed.is_empty() && !parked.is_empty();
            Marked { parked, ..Marked::default() }.log(claimer);
            if !only_parked {
                // SQLite returns changed rows in any order.
                claimed.sort_unstable_by_key(|entry| (entry.created_at, entry.id));
                return Ok(claimed);
            }
        }
    }

    /// Marks entries of this claimer as published: one, or up to 10,000 in one statement. Those that another claimer has since,
    /// and unknown ones, are left alone, logged and returned.
    pub async fn mark_published(&self, ids: impl EntryIds, claimer: &str) -> Result<Marked> {
        check_name("claimer", claimer)?;
        let ids = mark::distinct(ids.into_ids())?;
        let params = vec![mark::json_of(&ids).into(), claimer.into()];
        self.marked(Verb::OutboxPublished, ids, claimer, params).await
    }

    /// Marks entries of this claimer as failed, with an error and when they are due again. Each counts as an attempt; one that
    /// has none left is parked: a dead letter has it, in the same transaction, and no sweep takes it.
    pub async fn mark_failed(
        &self,
        ids: impl EntryIds,
        claimer: &str,
        error: &str,
        next: impl Into<NextAttempt>,
    ) -> Result<Marked> {
        let next = next.into();
        let ids = ids.into_ids().into_iter();
        let failures: Vec<_> = ids.map(|id| FailedEntry { id, error: error.to_owned(), next }).collect();
        self.mark_failed_each(&failures, claimer).await
    }

    /// The same with an error and a time for each entry.
    pub async fn mark_failed_each(&self, failures: &[FailedEntry], claimer: &str) -> Result<Marked> {
        check_name("claimer", claimer)?;
        let (ids, json) = mark::failures_json(failures)?;
        let params = vec![json.into(), claimer.into(), self.attempts()?];
        self.marked(Verb::OutboxFailed, ids, claimer, params).await
    }

    /// Gives entries of this claimer back: they are due again after the back-off, and their status stays. No attempt is counted.
    /// Without an error the last one stays.
    pub async fn reschedule(
        &self,
        ids: impl EntryIds,
        claimer: &str,
        backoff: Duration,
        error: Option<&str>,
    ) -> Result<Marked> {
        check_name("claimer", claimer)?;
        let ids = mark::distinct(ids.into_ids())?;
        let backoff_ms = mark::delay_ms("backoff", backoff)?;
        let error = error.map(mark::bounded);
        let params = vec![mark::json_of(&ids).into(), claimer.into(), backoff_ms.into(), error.into()];
        self.marked(Verb::OutboxReschedule, ids, claimer, params).await
    }

    /// Makes entries NEW again whose claim is at least this old, of any claimer, and returns how many. Attempts are kept.
    pub async fn recover_stuck(&self, older_than: Duration) -> Result<u64> {
        if older_than > RETENTION_MAX {
            return Err(Error::invalid("older_than", "longer than 100 years"));
        }
        let age_ms = i64::try_from(older_than.as_millis()).expect("at most 100 years");
        let rows = self.repository.run(Verb::OutboxRecover, vec![age_ms.into()]).await?;
        rows.iter().map(|row| row.get::<u64>("recovered")).sum()
    }

    /// By an operator: makes entries that failed or are parked NEW again, with no attempts, and deletes their dead letters.
    /// Returns those that were changed.
    pub async fn requeue(&self, ids: impl EntryIds) -> Result<Vec<i64>> {
        let ids = mark::distinct(ids.into_ids())?;
        let rows = self.repository.run(Verb::OutboxRequeue, vec![mark::json_of(&ids).into()]).await?;
        rows.iter().map(|row| row.get("id")).collect()
    }

    /// An entry; `None` if there is none with this id.
    pub async fn show(&self, id: i64) -> Result<Option<OutboxEntry>> {
        let rows = self.repository.run(Verb::OutboxShow, vec![id.into()]).await?;
        rows.first().map(OutboxEntry::from_row).transpose()
    }

    /// The oldest entries of a selection, at most `limit`; without those that are published, unless these are selected.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> headwater::Result<()> {
    /// # let headwater = headwater::Headwater::in_memory().await?;
    /// use headwater::outbox::OutboxStatus;
    ///
    /// let parked = headwater.outbox().list(10, |all| all.status(OutboxStatus::Parked).topic("orders")).await?;
    /// assert!(parked.is_empty());
    /// # headwater.close().await }
    /// ```
    pub async fn list(
        &self,
        limit: u32,
        choose: impl FnOnce(OutboxSelection) -> OutboxSelection,
    ) -> Result<Vec<OutboxEntry>> {
        let params = choose(OutboxSelection::default()).params(limit)?;
        let rows = self.repository.run(Verb::OutboxList, params).await?;
        rows.iter().map(OutboxEntry::from_row).collect()
    }

    /// Registers a waiter for new entries: sweep once more after this, and then wait. Entries that are due at a later time wake
    /// no waiter, and where notifications are not possible none is sent: sweep every second or so as well.
    pub async fn arm(&self) -> Result<Wake> {
        self.repository.store.arm(&[OUTBOX]).await
    }

    fn attempts(&self) -> Result<Value> {
        let attempts = i32::try_from(self.max_attempts).ok().filter(|attempts| *attempts > 0);
        let rule = || format!("{} is not from 1 to {}", self.max_attempts, i32::MAX);
        attempts.map(Value::from).ok_or_else(|| Error::invalid("max_attempts", rule()))
    }

    /// Runs a statement about entries, and finds out about those that it did not change.
    async fn marked(
        &self,
        verb: Verb,
        mut left: BTreeSet<i64>,
        claimer: &str,
        params: Vec<Value>,
    ) -> Result<Marked> {
        let mut marked = Marked::default();
        if left.is_empty() {
            return Ok(marked);
        }
        for row in self.repository.run(verb, params).await? {
            let id = row.get("id")?;
            left.remove(&id);
            marked.add(id, &row.get::<String>("outcome")?);
        }
        if !left.is_empty() {
            // On SQLite: a statement that changes rows returns nothing about others.
            let rows = self.repository.run(Verb::OutboxKnown, vec![mark::json_of(&left).into()]).await?;
            let id_of = |row: &Row| row.get::<i64>("id");
            let known: BTreeSet<i64> = rows.iter().map(id_of).collect::<Result<_>>()?;
            for id in left {
                marked.add(id, if known.contains(&id) { "lost" } else { "unknown" });
            }
        }
        marked.log(claimer);
        Ok(marked)
    }
}
