//! Vacuuming what upkeep and deliveries leave, without waiting for the server's own round.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use deadpool_postgres::Object;
use tokio::task::JoinHandle;
use tokio_postgres::CancelToken;

use super::PostgresStore;
use super::fault::translate;
use crate::error::Result;

/// How soon a large table is vacuumed again: upkeep comes by for each topic that has rows in it.
const APART: Duration = Duration::from_secs(60);
/// How long the server is asked to end a vacuum when the store closes.
const CANCEL_TIMEOUT: Duration = Duration::from_secs(2);

/// Vacuums those of these tables that have more than so many dead rows. The server does it too, but looks only once a minute,
/// and by then a busy topic has left more dead rows than living ones. Whoever may not vacuum, or finds the table
/// in use, leaves it to the server. The names are the schema's own, never a caller's.
///
/// For small tables: it is waited for, and ends with the statement's time.
pub(super) async fn freshen(store: &PostgresStore, tables: &[&str], dead_rows: i64) {
    let vacuum = async {
        for table in worn(store, tables, dead_rows).await? {
            let client = store.connections.get().await?;
            let run = client.batch_execute(&statement(store, &table)).await;
            run.map_err(|error| translate("vacuuming", error))?;
        }
        Ok(())
    };
    left_to_the_server(vacuum.await);
}

/// The same for tables that may take longer than a statement has, or a round of upkeep: by a task of its own, one at a time,
/// each table at most once a minute.
pub(super) async fn freshen_aside(store: &PostgresStore, tables: &[&str], dead_rows: i64) {
    match worn(store, tables, dead_rows).await {
        Ok(worn) => store.vacuums.begin(store, worn),
        Err(error) => left_to_the_server(Err(error)),
    }
}

fn left_to_the_server(outcome: Result<()>) {
    if let Err(error) = outcome {
        tracing::debug!(%error, "vacuuming is left to the server");
    }
}

async fn worn(store: &PostgresStore, tables: &[&str], dead_rows: i64) -> Result<Vec<String>> {
    let rows = store
        .connections
        .query("looking for worn tables", &store.statements.clean_worn, &[&tables, &dead_rows])
        .await?;
    Ok(rows.iter().map(|row| row.get("table_name")).collect())
}

fn statement(store: &PostgresStore, table: &str) -> String {
    format!("VACUUM (SKIP_LOCKED, TRUNCATE false) {}.{table}", store.namespace.quoted())
}

/// The vacuum that runs beside upkeep, and when each table was last vacuumed so. Ends with the store.
#[derive(Default)]
pub(super) struct Vacuums {
    tried: Mutex<Tried>,
    task: Mutex<Option<JoinHandle<()>>>,
    /// Ends the statement that runs, on the server too.
    cancel: Arc<Mutex<Option<CancelToken>>>,
}

impl Vacuums {
    fn begin(&self, store: &PostgresStore, worn: Vec<String>) {
        let mut task = self.task.lock().unwrap_or_else(PoisonError::into_inner);
        if task.as_ref().is_some_and(|task| !task.is_finished()) {
            return;
        }
        let due = self.tried.lock().unwrap_or_else(PoisonError::into_inner).due(worn, Instant::now());
        if due.is_empty() {
            return;
        }
        let statements: Vec<String> = due.iter().map(|table| statement(store, table)).collect();
        let (connections, cancel) = (store.connections.clone(), Arc::clone(&self.cancel));
        *task = Some(tokio::spawn(async move {
            let vacuum = async {
                // Taken out of the pool and not given back: it has no deadline, and the pool has its place again.
                let client = Object::take(connections.get().await?);
                *cancel.lock().unwrap_or_else(PoisonError::into_inner) = Some(client.cancel_token());
                for statement in ["SET statement_timeout = 0".to_owned()].iter().chain(&statements) {
                    client.batch_execute(statement).await.map_err(|error| translate("vacuuming", error))?;
                }
                Ok(())
            };
            left_to_the_server(vacuum.await);
            *cancel.lock().unwrap_or_else(PoisonError::into_inner) = None;
        }));
    }

    /// Ends what runs, here and on the server, where it would hold up whoever drops the tables.
    pub(super) async fn stop(&self, store: &PostgresStore) {
        let task = self.task.lock().unwrap_or_else(PoisonError::into_inner).take();
        let cancel = self.cancel.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(cancel) = cancel {
            let asked = cancel.cancel_query(store.connections.connector());
            if !matches!(tokio::time::timeout(CANCEL_TIMEOUT, asked).await, Ok(Ok(()))) {
                tracing::debug!("a vacuum goes on without the store");
            }
        }
        if let Some(task) = task {
            task.abort();
        }
    }
}

impl Drop for Vacuums {
    fn drop(&mut self) {
        if let Some(task) = self.task.get_mut().unwrap_or_else(PoisonError::into_inner) {
            task.abort();
        }
    }
}

/// When each table was last begun with.
#[derive(Default)]
struct Tried(HashMap<String, Instant>);

impl Tried {
    /// Those that were not begun with lately; they are now.
    fn due(&mut self, tables: Vec<String>, now: Instant) -> Vec<String> {
        self.0.retain(|_, at| now.duration_since(*at) < APART);
        let due: Vec<String> = tables.into_iter().filter(|table| !self.0.contains_key(table)).collect();
        self.0.extend(due.iter().map(|table| (table.clone(), now)));
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_due_once_a_minute() {
        let mut tried = Tried::default();
        let start = Instant::now();
        let mut due = |names: &[&str], after: Duration| {
            tried.due(names.iter().map(|name| (*name).to_owned()).collect(), start + after).join(" ")
        };
        assert_eq!(due(&["record", "message_shared"], Duration::ZERO), "record message_shared");
        assert_eq!(due(&["message_shared", "message_t7"], Duration::from_secs(1)), "message_t7");
        assert_eq!(due(&["record", "message_t7"], APART), "record");
        assert_eq!(due(&["record", "message_t7"], APART + Duration::from_secs(1)), "message_t7");
    }
}
