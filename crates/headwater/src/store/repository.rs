//! The statements of the repositories: outbox, inbox, positions of bridges, dead letters and registered relays. Each engine has its own text for each, with the same
//! parameters and columns.
//!
//! Times are milliseconds in parameters and microseconds in columns. A statement that writes takes the time as its last
//! parameter, which the engine adds; one of an operator takes the actor before it. The time on SQLite is read while the write lock is held; on PostgreSQL it is the injected time
//! of tests, or null for the server's clock. Lists are one parameter of JSON.

use crate::topic::TopicId;

/// What waits for new entries of the outbox: topics are numbered from 1.
pub(crate) const OUTBOX: TopicId = TopicId(0);

/// A statement of a repository.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verb {
    /// Category, topic, key, type, payload, headers, most bytes. Returns `id`.
    OutboxInsert,
    /// Id, claimer. Returns the entry, if it was NEW.
    OutboxClaim,
    /// Most entries, claimer, claim timeout, most attempts, whether in the order of keys. Returns entries; PARKED ones are not
    /// the claimer's.
    OutboxSweep,
    /// Ids, claimer. Returns `id` and `outcome`, of those that are missing maybe not.
    OutboxPublished,
    /// Failures (`id`, `error`, `delay_ms` or `next_at_ms`), claimer, most attempts. Returns as above.
    OutboxFailed,
    /// Ids, claimer, back-off, error. Returns as above.
    OutboxReschedule,
    /// Age. Returns `recovered`.
    OutboxRecover,
    /// Ids. Returns `id` of those that were changed. By an operator.
    OutboxRequeue,
    /// Ids. Returns those of them that exist.
    OutboxKnown,
    /// Id. Returns the entry.
    OutboxShow,
    /// Status, category, topic, key (each null for any), after this id, at most. Returns entries.
    OutboxList,
    /// Message id, handler. Returns `inserted`.
    InboxInsert,
    /// Bridge, source, known position (null for the first one), new position. Returns `advanced`.
    BridgeAdvance,
    /// Bridge, or null for all. Returns positions.
    BridgeList,
    /// Command id, name, business key, payload, failed status, error class, error, attempts, parked by, topic, headers. Returns
    /// `dead_letter_id`.
    DeadLetterPark,
    /// Source, ids, key, name, part of the error (each null for any), at most. Returns dead letters.
    DeadLetterAll,
    /// Ids. Returns `dead_letter_id` of those that were redriven, none of a subscription. By an operator.
    DeadLetterRedrive,
    /// Ids. Returns `dead_letter_id` of those that were deleted. By an operator.
    DeadLetterDelete,
    /// Name, source, target, settings. Returns `added`. By an operator.
    RelayAdd,
    /// Returns relays.
    RelayList,
    /// Name. Returns `removed`. By an operator.
    RelayRemove,
}

impl Verb {
    /// What it does, for error texts.
    #[cfg(feature = "postgres")]
    pub(crate) fn doing(self) -> &'static str {
        match self {
            Verb::OutboxInsert => "inserting an outbox entry",
            Verb::OutboxClaim => "claiming an outbox entry",
            Verb::OutboxSweep => "sweeping the outbox",
            Verb::OutboxPublished => "marking outbox entries as published",
            Verb::OutboxFailed => "marking outbox entries as failed",
            Verb::OutboxReschedule => "rescheduling outbox entries",
            Verb::OutboxRecover => "recovering outbox entries",
            Verb::OutboxKnown | Verb::OutboxShow | Verb::OutboxList => "reading the outbox",
            Verb::InboxInsert => "inserting an inbox entry",
            Verb::BridgeAdvance => "advancing a bridge",
            Verb::BridgeList => "reading the positions of bridges",
            Verb::OutboxRequeue => "requeuing outbox entries",
            Verb::DeadLetterPark => "parking a dead letter",
            Verb::DeadLetterAll => "listing dead letters",
            Verb::DeadLetterRedrive => "redriving dead letters",
            Verb::DeadLetterDelete => "deleting dead letters",
            Verb::RelayAdd => "adding a relay",
            Verb::RelayList => "reading the relays",
            Verb::RelayRemove => "removing a relay",
        }
    }

    /// Whether it only reads, and takes no time.
    pub(crate) fn is_read(self) -> bool {
        matches!(
            self,
            Verb::OutboxKnown
                | Verb::OutboxShow
                | Verb::OutboxList
                | Verb::BridgeList
                | Verb::DeadLetterAll
                | Verb::RelayList
        )
    }

    /// Whether it is a change by an operator, who is its actor in the audit.
    pub(crate) fn is_audited(self) -> bool {
        let about_entries =
            matches!(self, Verb::OutboxRequeue | Verb::DeadLetterRedrive | Verb::DeadLetterDelete);
        about_entries || matches!(self, Verb::RelayAdd | Verb::RelayRemove)
    }

    /// Whether it must survive a power cut. Losing a claim or a mark of an entry means that it is sent again.
    #[cfg(feature = "sqlite")]
    pub(crate) fn is_durable(self) -> bool {
        let is_kept = matches!(
            self,
            Verb::OutboxInsert | Verb::InboxInsert | Verb::BridgeAdvance | Verb::DeadLetterPark
        );
        is_kept || self.is_audited()
    }

    /// Whether it makes entries of the outbox due that waiters may sweep.
    pub(crate) fn wakes_outbox(self) -> bool {
        matches!(
            self,
            Verb::OutboxInsert | Verb::OutboxRequeue | Verb::DeadLetterRedrive | Verb::OutboxRecover
        )
    }
}
