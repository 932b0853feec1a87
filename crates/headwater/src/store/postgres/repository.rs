//! Statements of the repositories: calls of functions, which are also the surface for plain SQL. See `schema/functions/outbox.sql`.

use std::sync::Arc;

use super::statements::Statements;
use super::value::{references, row_of};
use super::{PostgresStore, fault};
use crate::error::Result;
use crate::store::repository::{OUTBOX, Verb};
use crate::transaction::{Row, Value};

impl Statements {
    /// The text of a statement of a repository; `None` where another statement does its work: a function that inserts or changes
    /// a process appends to its log, too.
    pub(super) fn of_verb(&self, verb: Verb) -> Option<&str> {
        Some(match verb {
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
            Verb::DeadLetterKnown => &self.dead_letter_known,
            Verb::DeadLetterRedrive => &self.dead_letter_redrive_parked,
            Verb::DeadLetterDelete => &self.dead_letter_delete,
            Verb::RelayAdd => &self.relay_add,
            Verb::RelayList => &self.relay_list,
            Verb::RelayRemove => &self.relay_remove,
            Verb::ProcessInsert => &self.process_insert,
            Verb::ProcessChange => &self.process_change,
            Verb::ProcessInsertEvent | Verb::ProcessChangeEvents => return None,
            Verb::ProcessChangeAll => &self.process_change_all,
            Verb::ProcessLoad => &self.process_load,
            Verb::ProcessLoadAll => &self.process_load_all,
            Verb::ProcessFind => &self.process_find,
            Verb::ProcessFindById => &self.process_find_by_id,
            Verb::ProcessFindByStatus => &self.process_find_by_status,
            Verb::ProcessFindByTypeAndStatus => &self.process_find_by_type_and_status,
            Verb::ProcessFindByBusinessKey => &self.process_find_by_business_key,
            Verb::ProcessFindParked => &self.process_find_parked,
            Verb::ProcessLog => &self.process_log,
            Verb::ProcessSignal => &self.process_signal,
            Verb::ProcessCancelTimer => &self.process_cancel_timer,
            Verb::ProcessCancelTimers => &self.process_cancel_timers,
            Verb::ProcessEnter => &self.process_enter,
            Verb::TokenCreate => &self.token_create,
            Verb::TokenList => &self.token_list,
            Verb::TokenAny => &self.token_any,
            Verb::TokenFind => &self.token_find,
            Verb::TokenRotate => &self.token_rotate,
            Verb::TokenRevoke => &self.token_revoke,
            Verb::SessionStart => &self.token_session_start,
            Verb::SessionEnd => &self.token_session_end,
        })
    }
}

impl PostgresStore {
    /// Runs a statement of a repository by itself.
    pub(crate) async fn run_verb(&self, verb: Verb, params: Vec<Value>) -> Result<Vec<Row>> {
        let Some(sql) = self.statements.of_verb(verb) else { return Ok(Vec::new()) };
        let params = self.completed(verb, params);
        let (doing, params) = (verb.doing(), references(&params));
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
            params.push((&*self.actor.now()).into());
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
