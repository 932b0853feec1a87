//! Vacuuming what upkeep and deliveries leave, without waiting for the server's own round.

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

/// How soon a large table is vacuumed again at the earliest: upkeep comes by for each topic that has rows in it.
const REST_MIN: Duration = Duration::from_secs(1);
/// How long a table rests, as a multiple of what vacuuming it took: that is a tenth of the time then at most.
const REST: u32 = 9;
/// How long one rests that could not be vacuumed.
const REST_FAILED: Duration = Duration::from_secs(60);
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
/// each table for at most a tenth of the time.
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
    rows.iter().map(|row| stored(row, "table_name")).collect()
}

fn statement(store: &PostgresStore, table: &str) -> String {
    format!("VACUUM (SKIP_LOCKED, TRUNCATE false) {}.{table}", store.namespace.quoted())
}

/// The vacuum that runs beside upkeep, and the tables that rest from it. Ends with the store.
#[derive(Default)]
pub(super) struct Vacuums {
    resting: Arc<Mutex<Resting>>,
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
        let due = self.resting.lock().unwrap_or_else(PoisonError::into_inner).due(worn, Instant::now());
        if due.is_empty() {
            return;
        }
        let due: Vec<_> = due.into_iter().map(|table| (statement(store, &table), table)).collect();
        let (connections, cancel) = (store.connections.clone(), Arc::clone(&self.cancel));
        let resting = Arc::clone(&self.resting);
        *task = Some(tokio::spawn(async move {
            let vacuum = async {
                // Taken out of the pool and not given back: it has no deadline, and the pool has its place again.
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

fn rest_after(took: Duration, done: bool) -> Duration {
    if done { (took * REST).max(REST_MIN) } else { REST_FAILED }
}

/// Until when each table rests.
#[derive(Default)]
struct Resting(HashMap<String, Instant>);

impl Resting {
    /// Those that do not rest any more.
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
        resting.0.insert("record".into(), now + ms(18_000));
        let both = || vec!["record".to_owned(), "outstanding".to_owned()];
        assert_eq!(resting.due(both(), now + ms(17_999)), ["outstanding"]);
        assert_eq!(resting.due(both(), now + ms(18_000)), both());
    }
}
