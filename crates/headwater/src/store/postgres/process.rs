//! Processes: the statements of their repository, and the removal of those that ended long ago.

use std::sync::Arc;
use std::time::Duration;

use super::statements::Statements;
use super::time::{count, millis};
use super::value::{references, row_of};
use super::{PostgresStore, PostgresTransaction, fault};
use crate::error::Result;
use crate::limits::PROCESSES_FORGET_MAX;
use crate::process::rows::Verb;
use crate::transaction::{Row, Value};

/// The text of a statement. A function of the schema that inserts or changes a process appends to its log, too.
fn text(statements: &Statements, verb: Verb) -> Option<&str> {
    Some(match verb {
        Verb::Insert => &statements.process_insert,
        Verb::Change => &statements.process_change,
        Verb::InsertEvent | Verb::ChangeEvents => return None,
        Verb::ChangeAll => &statements.process_change_all,
        Verb::Load => &statements.process_load,
        Verb::LoadAll => &statements.process_load_all,
        Verb::FindById => &statements.process_find_by_id,
        Verb::FindByStatus => &statements.process_find_by_status,
        Verb::FindByTypeAndStatus => &statements.process_find_by_type_and_status,
        Verb::FindByBusinessKey => &statements.process_find_by_business_key,
        Verb::FindParked => &statements.process_find_parked,
        Verb::Log => &statements.process_log,
        Verb::Signal => &statements.process_signal,
        Verb::CancelTimer => &statements.process_cancel_timer,
        Verb::CancelTimers => &statements.process_cancel_timers,
        Verb::Enter => &statements.process_enter,
    })
}

impl PostgresTransaction {
    /// The text of a statement, in the namespace of this transaction.
    pub(crate) fn process_sql(&self, verb: Verb) -> Option<&str> {
        text(self.statements(), verb)
    }
}

impl PostgresStore {
    /// Runs a statement that only reads.
    pub(crate) async fn process_rows(&self, verb: Verb, params: Vec<Value>) -> Result<Vec<Row>> {
        let (doing, sql) = ("reading processes", text(&self.statements, verb).unwrap_or_default());
        let rows = self.connections.query(doing, sql, &references(&params)).await?;
        let Some(first) = rows.first() else { return Ok(Vec::new()) };
        let columns: Arc<[String]> = first.columns().iter().map(|column| column.name().to_owned()).collect();
        let neutral = |row| row_of(&columns, row).map_err(|error| fault::translate(doing, error));
        rows.iter().map(neutral).collect()
    }
}

/// Removes processes that ended longer ago than this, with their logs, each step in a transaction of its own. Returns how
/// many.
pub(super) async fn clean(store: &PostgresStore, older_than: Duration) -> Result<u64> {
    let most = i32::try_from(PROCESSES_FORGET_MAX).unwrap_or(i32::MAX);
    let mut removed = 0;
    loop {
        let now = store.clock.injected();
        let rows = store
            .connections
            .query(
                "removing processes",
                &store.statements.process_forget,
                &[&millis(older_than), &most, &now],
            )
            .await?;
        let step = count(&rows[0], "forgotten")?;
        removed += step;
        if step < u64::from(PROCESSES_FORGET_MAX) {
            return Ok(removed);
        }
    }
}
