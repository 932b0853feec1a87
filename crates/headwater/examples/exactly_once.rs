//! Exactly-once effects: the handler's own writes, the inbox entry and the ack commit in one transaction of the store.
//!
//! Whether the process is killed before or after that commit, and whether a message is published once or three times
//! with one id: its effect is written once. `cargo run -p headwater --example exactly_once [postgres://…]`

use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use headwater::store::postgres::PostgresTransaction;
use headwater::store::{SqlitePath, StoreUrl};
use headwater::{Context, HandlerResult, Handling, Headwater, Json, NewMessage};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

#[path = "support/place.rs"]
mod place;

#[derive(Serialize, Deserialize)]
struct Payment {
    cents: i64,
}

#[tokio::main]
async fn main() -> Result<()> {
    place::Place::embedded_unless_told()?.visit(exactly_once).await
}

async fn exactly_once(url: &str) -> Result<()> {
    let headwater = Headwater::open(url).await?;
    headwater.topic("payments").backoff(Duration::from_millis(50), Duration::from_secs(1)).create().await?;
    let account = Account::open(url).await?;

    let running =
        headwater.consumer("payments", "ledger").handling("clerk", account.handling()).run().await?;

    // The same message three times: an impatient client, a proxy that retries, a replayed file.
    let payments = headwater.producer("payments");
    let id = Uuid::now_v7();
    for _ in 0..3 {
        payments.send(NewMessage::json(&Payment { cents: 500 })?.message_id(id)).await?;
    }
    // And another message.
    payments.send(&Payment { cents: 42 }).await?;

    while running.health().totals.acked < 4 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let totals = running.health().totals;
    running.shutdown(Duration::from_secs(10)).await?;

    let balance = account.balance().await?;
    println!("4 messages acked, {} retried, balance {balance} cents", totals.retried);
    ensure!(totals.retried >= 2, "each of the two payments was to fail once");
    ensure!(balance == 542, "500 and 42 booked once each make 542, not {balance}");
    headwater.close().await?;
    println!("every payment booked once");
    Ok(())
}

/// The application's own table, in the database that holds the messages: that is what makes one transaction possible.
enum Account {
    Sqlite(std::path::PathBuf),
    /// The client reads the balance; bookings go through the store's transactions.
    Postgres {
        client: tokio_postgres::Client,
        table: String,
    },
}

impl Account {
    async fn open(url: &str) -> Result<Self> {
        match StoreUrl::parse(url, None)? {
            StoreUrl::Sqlite(SqlitePath::File(path)) => {
                rusqlite::Connection::open(&path)?.execute_batch("CREATE TABLE booking (cents INTEGER)")?;
                Ok(Account::Sqlite(path))
            }
            StoreUrl::Sqlite(SqlitePath::Memory) => bail!("a store in memory has no file to share"),
            StoreUrl::Postgres { url, namespace } => {
                let (client, connection) = tokio_postgres::connect(&url, tokio_postgres::NoTls).await?;
                tokio::spawn(connection);
                // Your tables may be anywhere; this one is removed with the example's schema.
                let table = format!("{}.booking", namespace.quoted());
                client.batch_execute(&format!("CREATE TABLE {table} (cents bigint)")).await?;
                Ok(Account::Postgres { client, table })
            }
        }
    }

    /// Books a payment, and fails the first time, after having written: that write must be rolled back.
    fn handling(&self) -> Handling {
        match self {
            // On the embedded store the handler runs on the writer thread: it must be short, and cannot await.
            Account::Sqlite(_) => {
                Handling::in_sqlite(|connection, Json(payment): Json<Payment>, context: &Context| {
                    connection.execute("INSERT INTO booking VALUES (?1)", [payment.cents])?;
                    fail_at_first(context)
                })
            }
            Account::Postgres { table, .. } => {
                let insert = format!("INSERT INTO {table} VALUES ($1)");
                Handling::in_postgres(
                    move |transaction: PostgresTransaction,
                          Json(payment): Json<Payment>,
                          context: Context| {
                        let insert = insert.clone();
                        async move {
                            transaction.execute(&insert, &[&payment.cents]).await?;
                            fail_at_first(&context)
                        }
                    },
                )
            }
        }
    }

    async fn balance(&self) -> Result<i64> {
        match self {
            Account::Sqlite(path) => {
                let connection = rusqlite::Connection::open(path)?;
                Ok(connection.query_row("SELECT total(cents) FROM booking", [], |row| row.get::<_, f64>(0))?
                    as i64)
            }
            Account::Postgres { client, table } => {
                let sum = format!("SELECT coalesce(sum(cents), 0)::bigint FROM {table}");
                client.query_one(&sum, &[]).await?.try_get(0).context("no balance")
            }
        }
    }
}

fn fail_at_first(context: &Context) -> HandlerResult {
    if context.attempt() == 1 { Err("the connection to the bank broke".into()) } else { Ok(()) }
}
