//! Statements of the repositories: calls of functions, which are also the surface for plain SQL. See `schema/functions/outbox.sql`.

use std::sync::Arc;

use super::statements::Statements;
use super::value::{references, row_of};
use super::{PostgresStore, fault};
use crate::error::Result;
use crate::store::repository::{OUTBOX, Verb};
use crate::transaction::{Row, Value};

impl Statements {
    /// The text of a statement of a repository.
    pub(super) fn of_verb(&self, verb: Verb) -> &str {
        match verb {
            Verb::OutboxInsert => &self.outbox_insert,
            Verb::OutboxClaim => &self.outbox_claim,
            Verb::OutboxSweep => &self.outbox_sweep,
            Verb::OutboxPublished => &self.outbox_published,
            Verb::OutboxFailed => &self.outbox_failed,
            Verb::OutboxReschedule => &self.outbox_reschedule,
            Verb::OutboxRecover => &self.outbox_recover,
            Verb::OutboxRequeue => &self.outbox_requeue,
            Verb::OutboxKnown => &self.outbox_known,
            Verb::OutboxShow => &self.outbox_show,
            Verb::OutboxList => &self.outbox_list,
            Verb::InboxInsert => &self.inbox_insert,
            Verb::BridgeAdvance => &self.bridge_advance,
            Verb::BridgeList => &self.bridge_list,
            Verb::DeadLetterPark => &self.dead_letter_park,
            Verb::DeadLetterAll => &self.dead_letter_all,
            Verb::DeadLetterRedrive => &self.dead_letter_redrive_parked,
            Verb::DeadLetterDelete => &self.dead_letter_delete,
            Verb::RelayAdd => &self.relay_add,
            Verb::RelayList => &self.relay_list,
            Verb::RelayRemove => &self.relay_remove,
        }
    }
}

impl PostgresStore {
    /// Runs a statement of a repository by itself.
    pub(crate) async fn run_verb(&self, verb: Verb, params: Vec<Value>) -> Result<Vec<Row>> {
        let params = self.completed(verb, params);
        let (doing, sql, params) = (verb.doing(), self.statements.of_verb(verb), references(&params));
        let rows = if verb.is_read() {
            self.connections.query(doing, sql, &params).await?
        } else {
            self.connections.commit(doing, sql, &params).await?
        };
        if verb.wakes_outbox() {
            self.hub.wake(OUTBOX);
        }
        neutral(doing, &rows)
    }

    /// The parameters of a statement with actor and time.
    pub(super) fn completed(&self, verb: Verb, mut params: Vec<Value>) -> Vec<Value> {
        if verb.is_audited() {
            params.push(self.actor.as_str().into());
        }
        if !verb.is_read() {
            params.push(self.clock.injected().map(|now| now.to_string()).into());
        }
        params
    }
}

/// Rows as programs read them on both engines.
pub(super) fn neutral(doing: &str, rows: &[tokio_postgres::Row]) -> Result<Vec<Row>> {
    let Some(first) = rows.first() else { return Ok(Vec::new()) };
    let columns: Arc<[String]> = first.columns().iter().map(|column| column.name().to_owned()).collect();
    let read = |row| row_of(&columns, row).map_err(|error| fault::translate(doing, error));
    rows.iter().map(read).collect()
}
