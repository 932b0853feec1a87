//! The statements of the repositories: outbox, inbox, positions of bridges, dead letters, registered relays, API tokens
//! and processes. Each engine has its own text for each, with the same parameters and columns.
//!
//! Times are milliseconds in parameters and microseconds in columns. A statement that writes takes the time as its last
//! parameter, which the engine adds; one of an operator takes the actor before it. The time on SQLite is read while the write
//! lock is held; on PostgreSQL it is the injected time of tests, or null for the server's clock. Lists are one parameter of JSON.
//!
//! Changes of processes are several statements of one transaction, so their caller reads the time once and passes it.

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
    /// Status, category, topic, key (each null for any), after this id, at most, whether with payloads. Returns entries.
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
    /// Source, ids, key, name, part of the error, topic, group, part of any text (each null for any), after this place and id, whether with
    /// payloads, at most. Returns dead letters.
    DeadLetterAll,
    /// Ids. Returns `dead_letter_id`, `subscription_id`, `topic` (null for a subscription's) and `payload_bytes` of those that exist,
    /// oldest first.
    DeadLetterKnown,
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
    /// Id, name, scopes, topics, hash, time to live (null for ever). Returns `created`. By an operator.
    TokenCreate,
    /// Returns tokens.
    TokenList,
    /// Returns `tokens`: 1 if there is one.
    TokenAny,
    /// Id. Returns the token or session, with its hashes.
    TokenFind,
    /// Id, hash, for how long the one before is accepted. Returns `rotated`. By an operator.
    TokenRotate,
    /// Id. Returns `revoked`. By an operator.
    TokenRevoke,
    /// Id, id of its token, hash, time to live. Returns `started`. By an operator.
    SessionStart,
    /// Id. Returns `ended`.
    SessionEnd,
    /// Inserts a process. No row if the id is known.
    ProcessInsert,
    /// Inserts the first entry of its log, with the same parameters.
    ProcessInsertEvent,
    /// Changes a process of this version. No row if it has another.
    ProcessChange,
    /// Appends to its log.
    ProcessChangeEvents,
    /// Changes several processes and appends to their logs. How many it changed.
    ProcessChangeAll,
    /// A process with the events of its log, locked until the transaction ends.
    ProcessLoad,
    /// Several of them. No row if their data are larger than a limit.
    ProcessLoadAll,
    /// Status, type, part of a text, before this time and id, whether with data, at most. Returns processes, newest first.
    ProcessFind,
    /// Id. Returns the process.
    ProcessFindById,
    /// Status, at most. Returns processes, newest first.
    ProcessFindByStatus,
    /// Type, status, at most. Returns as above.
    ProcessFindByTypeAndStatus,
    /// Type, business key. Returns the newest.
    ProcessFindByBusinessKey,
    /// At most. Returns those whose newest event is that a compensation failed.
    ProcessFindParked,
    /// Id, at most. Returns the newest entries of its log.
    ProcessLog,
    /// Publishes to the manager of a process, for a role that may publish nothing else.
    ProcessSignal,
    /// Removes a time-out that is not due yet.
    ProcessCancelTimer,
    /// Several of them.
    ProcessCancelTimers,
    /// Message id, handler, time: adds an inbox entry. No row if it exists.
    ProcessEnter,
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
            Verb::DeadLetterAll | Verb::DeadLetterKnown => "listing dead letters",
            Verb::DeadLetterRedrive => "redriving dead letters",
            Verb::DeadLetterDelete => "deleting dead letters",
            Verb::RelayAdd => "adding a relay",
            Verb::RelayList => "reading the relays",
            Verb::RelayRemove => "removing a relay",
            Verb::TokenCreate => "creating a token",
            Verb::TokenList | Verb::TokenAny | Verb::TokenFind => "reading tokens",
            Verb::TokenRotate => "rotating a token",
            Verb::TokenRevoke => "revoking a token",
            Verb::SessionStart => "starting a session",
            Verb::SessionEnd => "ending a session",
            verb if verb.is_read() => "reading processes",
            _ => "changing processes",
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
                | Verb::DeadLetterKnown
                | Verb::RelayList
                | Verb::TokenList
                | Verb::TokenAny
                | Verb::TokenFind
                | Verb::ProcessFind
                | Verb::ProcessFindById
                | Verb::ProcessFindByStatus
                | Verb::ProcessFindByTypeAndStatus
                | Verb::ProcessFindByBusinessKey
                | Verb::ProcessFindParked
                | Verb::ProcessLog
        )
    }

    /// Whether it is a change by an operator, who is its actor in the audit.
    pub(crate) fn is_audited(self) -> bool {
        let about_entries =
            matches!(self, Verb::OutboxRequeue | Verb::DeadLetterRedrive | Verb::DeadLetterDelete);
        let about_tokens =
            matches!(self, Verb::TokenCreate | Verb::TokenRotate | Verb::TokenRevoke | Verb::SessionStart);
        about_entries || about_tokens || matches!(self, Verb::RelayAdd | Verb::RelayRemove)
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
