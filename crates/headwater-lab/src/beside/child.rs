//! Jobs of processes that only these scenarios have.

use std::time::Duration;

use anyhow::{Context, Result};
use headwater::rusqlite::{Connection, TransactionBehavior};
use headwater::store::{SqlitePath, StoreUrl};
use headwater::{Handling, Headwater, Message, Start};
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use crate::check::{GRACE, READY};

/// The job of a process of a scenario.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "beside", rename_all = "snake_case")]
pub(crate) enum BesideJob {
    /// Writes to the file by plain SQL, this many messages in a transaction, one transaction right after the other.
    Greedy { topic: String, rows: u64 },
    /// Handles messages with a bounded buffer; prints the size of each.
    Large { topic: String, group: String, buffer_bytes_max: usize },
}

/// Runs the job until the process is asked to end.
pub(crate) async fn run_job(
    headwater: &Headwater,
    url: &str,
    job: BesideJob,
    mut ending: watch::Receiver<bool>,
) -> Result<()> {
    match job {
        BesideJob::Greedy { topic, rows } => {
            let StoreUrl::Sqlite(SqlitePath::File(file)) = StoreUrl::parse(url, None)? else {
                anyhow::bail!("plain SQL in a loop is for files");
            };
            let connection = Connection::open(file)?;
            // As most programs do: SQLite's own busy handler, for five seconds.
            connection.busy_timeout(Duration::from_secs(5))?;
            println!("{READY}");
            tokio::task::spawn_blocking(move || write(connection, &topic, rows, &ending)).await?
        }
        BesideJob::Large { topic, group, buffer_bytes_max } => {
            let handling = Handling::one(|message: Message, _| async move {
                println!("{}", message.payload.len());
                Ok(())
            });
            let consumer = headwater.consumer(&topic, &group).start_from(Start::Beginning);
            let consumer = consumer.handling("only", handling).concurrency(1);
            let running = consumer.buffer_bytes_max(buffer_bytes_max).run().await?;
            println!("{READY}");
            ending.wait_for(|ending| *ending).await?;
            running.shutdown(GRACE).await?;
            Ok(())
        }
    }
}

fn write(mut connection: Connection, topic: &str, rows: u64, ending: &watch::Receiver<bool>) -> Result<()> {
    while !*ending.borrow() {
        // A writer that did not get the lock tries again at once.
        let Ok(transaction) = connection.transaction_with_behavior(TransactionBehavior::Immediate) else {
            continue;
        };
        for _ in 0..rows {
            let insert = "INSERT INTO headwater_publish (topic, payload) VALUES (?1, 'greedy')";
            transaction.execute(insert, [topic]).context("publishing by plain SQL")?;
        }
        transaction.commit()?;
    }
    Ok(())
}
