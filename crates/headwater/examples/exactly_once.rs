//! Exactly-once effects: the handler's own writes, the inbox entry and the ack commit in one transaction of the store.
//!
//! Whether the process is killed before or after that commit, and whether a message is published once or three times
//! with one id: its effect is written once. The same program on both databases.
//! `cargo run -p headwater --example exactly_once [postgres://…]`

use std::time::Duration;

use anyhow::{Result, ensure};
use headwater::transaction::Transaction;
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
    place::Place::embedded_by_default()?.visit(exactly_once).await
}

async fn exactly_once(url: &str) -> Result<()> {
    let headwater = Headwater::open(url).await?;
    headwater
        .topic("payments")
        .backoff(Duration::from_millis(50), Duration::from_secs(1))
        .create_if_missing()
        .await?;
    // The application's own table, in the database that holds the messages: that is what makes one transaction possible.
    let table = format!("booking_{}", Uuid::now_v7().simple());
    execute(&headwater, format!("CREATE TABLE {table} (cents bigint)")).await?;

    let running = headwater.consumer("payments", "ledger").handling("clerk", clerk(&table)).run().await?;

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

    let balance = balance(&headwater, &table).await?;
    execute(&headwater, format!("DROP TABLE {table}")).await?;
    println!("4 messages acked, {} retried, balance {balance} cents", totals.retried);
    ensure!(totals.retried >= 2, "each of the two payments was to fail once");
    ensure!(balance == 542, "500 and 42 booked once each make 542, not {balance}");
    headwater.close().await?;
    println!("every payment booked once");
    Ok(())
}

/// Books a payment, and fails the first time, after having written: that write must be rolled back.
fn clerk(table: &str) -> Handling {
    let insert = format!("INSERT INTO {table} (cents) VALUES ($1)");
    Handling::transactional(move |tx: Transaction, Json(payment): Json<Payment>, context: Context| {
        let booked = tx.execute(&insert, (payment.cents,));
        async move {
            booked.await?;
            fail_at_first(&context)
        }
    })
}

async fn execute(headwater: &Headwater, sql: String) -> headwater::Result<u64> {
    headwater.transaction(move |tx: Transaction| async move { tx.execute(&sql, ()).await }).await
}

async fn balance(headwater: &Headwater, table: &str) -> headwater::Result<i64> {
    let sum = format!("SELECT CAST(sum(cents) AS bigint) AS balance FROM {table}");
    headwater
        .transaction(move |tx: Transaction| async move { tx.query(&sum, ()).await?[0].get("balance") })
        .await
}

fn fail_at_first(context: &Context) -> HandlerResult {
    if context.attempt() == 1 { Err("the connection to the bank broke".into()) } else { Ok(()) }
}
