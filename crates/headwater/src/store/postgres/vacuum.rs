//! Vacuums tables after maintenance and deliveries, without waiting for autovacuum.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use deadpool_postgres::Object;
use tokio::task::JoinHandle;
use tokio_postgres::CancelToken;

use super::PostgresStore;
use super::fault::translate;
use super::time::stored;
use crate::error::Result;

/// The shortest pause between two vacuums of a large table: maintenance calls this once for each topic with rows in it.
const REST_MIN: Duration = Duration::from_secs(1);
/// The pause of a table, as a multiple of the duration of its vacuum, which then takes a tenth of the time at most.
const REST: u32 = 9;
/// The pause after a vacuum that failed.
const REST_FAILED: Duration = Duration::from_secs(60);
/// How long a request to cancel a vacuum may take when the store closes.
const CANCEL_TIMEOUT: Duration = Duration::from_secs(2);

/// Vacuums those of these tables that have more than `dead_rows` dead rows. Autovacuum does it too, but checks only once a
/// minute, and by then a busy topic has left more dead rows than live ones. A role that may not vacuum, or a table that is
/// in use, leaves it to autovacuum. The names are the schema's own, never a caller's.
///
/// For small tables: the caller waits, and the statement timeout applies.
pub(super) async fn vacuum(store: &PostgresStore, tables: &[&str], dead_rows: i64) {
    let vacuum = async {
        for table in needing_vacuum(store, tables, dead_rows).await? {
            let client = store.connections.get().await?;
            let run = client.batch_execute(&statement(store, &table)).await;
            run.map_err(|error| translate("vacuuming", error))?;
        }
        Ok(())
    };
    left_to_the_server(vacuum.await);
}

/// The same for tables whose vacuum may exceed the statement timeout or a round of maintenance: in a task of its own, one
/// table at a time, each for at most a tenth of the time.
pub(super) async fn vacuum_aside(store: &PostgresStore, tables: &[&str], dead_rows: i64) {
    match needing_vacuum(store, tables, dead_rows).await {
        Ok(tables) => store.vacuums.begin(store, tables),
        Err(error) => left_to_the_server(Err(error)),
    }
}

fn left_to_the_server(outcome: Result<()>) {
    if let Err(error) = outcome {
        tracing::debug!(%error, "vacuum left to autovacuum");
    }
}

async fn needing_vacuum(store: &PostgresStore, tables: &[&str], dead_rows: i64) -> Result<Vec<String>> {
    let rows = store
        .connections
        .query(
            "reading which tables need vacuum",
            &store.statements.clean_needs_vacuum,
            &[&tables, &dead_rows],
        )
        .await?;
    rows.iter().map(|row| stored(row, "table_name")).collect()
}

fn statement(store: &PostgresStore, table: &str) -> String {
    format!("VACUUM (SKIP_LOCKED, TRUNCATE false) {}.{table}", store.namespace.quoted())
}

/// The vacuum that runs beside maintenance, and until when tables are not vacuumed again. Ends with the store.
#[derive(Default)]
pub(super) struct Vacuums {
    resting: Arc<Mutex<Resting>>,
    task: Mutex<Option<JoinHandle<()>>>,
    /// Cancels the running statement on the server.
    cancel: Arc<Mutex<Option<CancelToken>>>,
}

impl Vacuums {
    fn begin(&self, store: &PostgresStore, tables: Vec<String>) {
        let mut task = self.task.lock().unwrap_or_else(PoisonError::into_inner);
        if task.as_ref().is_some_and(|task| !task.is_finished()) {
            return;
        }
        let due = self.resting.lock().unwrap_or_else(PoisonError::into_inner).due(tables, Instant::now());
        if due.is_empty() {
            return;
        }
        let due: Vec<_> = due.into_iter().map(|table| (statement(store, &table), table)).collect();
        let (connections, cancel) = (store.connections.clone(), Arc::clone(&self.cancel));
        let resting = Arc::clone(&self.resting);
        *task = Some(tokio::spawn(async move {
            let vacuum = async {
                // Taken out of the pool and not returned: its statement timeout is off, and the pool may open another.
                let client = Object::take(connections.get().await?);
                *cancel.lock().unwrap_or_else(PoisonError::into_inner) = Some(client.cancel_token());
                let run = async |sql: &str| {
                    client.batch_execute(sql).await.map_err(|error| translate("vacuuming", error))
                };
                run("SET statement_timeout = 0").await?;
                for (sql, table) in due {
                    let began = Instant::now();
                    let outcome = run(&sql).await;
                    let rest = rest_after(began.elapsed(), outcome.is_ok());
                    let mut resting = resting.lock().unwrap_or_else(PoisonError::into_inner);
                    resting.0.insert(table, Instant::now() + rest);
                    drop(resting);
                    outcome?;
                }
                Ok(())
            };
            left_to_the_server(vacuum.await);
            *cancel.lock().unwrap_or_else(PoisonError::into_inner) = None;
        }));
    }

    /// Ends the running vacuum, here and on the server, where its lock would block a drop of the tables.
    pub(super) async fn stop(&self, store: &PostgresStore) {
        let task = self.task.lock().unwrap_or_else(PoisonError::into_inner).take();
        let cancel = self.cancel.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(cancel) = cancel {
            let asked = cancel.cancel_query(store.connections.connector());
            if !matches!(tokio::time::timeout(CANCEL_TIMEOUT, asked).await, Ok(Ok(()))) {
                tracing::debug!("vacuum not cancelled, it continues after the store closed");
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

fn rest_after(took: Duration, done: bool) -> Duration {
    if done { (took * REST).max(REST_MIN) } else { REST_FAILED }
}

/// Until when each table is not vacuumed again.
#[derive(Default)]
struct Resting(HashMap<String, Instant>);

impl Resting {
    /// The tables whose pause is over.
    fn due(&mut self, tables: Vec<String>, now: Instant) -> Vec<String> {
        self.0.retain(|_, until| now < *until);
        tables.into_iter().filter(|table| !self.0.contains_key(table)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_rests_nine_times_as_long_as_it_took() {
        let ms = Duration::from_millis;
        assert_eq!(rest_after(ms(3), true), REST_MIN);
        assert_eq!(rest_after(ms(2_000), true), ms(18_000));
        assert_eq!(rest_after(ms(3), false), REST_FAILED);
        let (mut resting, now) = (Resting::default(), Instant::now());
        resting.0.insert("completion_record".into(), now + ms(18_000));
        let both = || vec!["completion_record".to_owned(), "outstanding".to_owned()];
        assert_eq!(resting.due(both(), now + ms(17_999)), ["outstanding"]);
        assert_eq!(resting.due(both(), now + ms(18_000)), both());
    }
}
