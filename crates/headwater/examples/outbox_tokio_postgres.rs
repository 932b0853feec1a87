//! The outbox with tokio-postgres: a row of yours and its message in one transaction, so that there is never one without
//! the other. `cargo run -p headwater --example outbox_tokio_postgres postgres://user@localhost/database`

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use headwater::publish::Producer;
use headwater::{Context, Headwater, Json, OpenOptions};
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;
use tokio_postgres::{Client, NoTls};

#[path = "support/place.rs"]
mod place;

#[derive(Debug, Serialize, Deserialize)]
struct OrderPlaced {
    id: i64,
}

#[tokio::main]
async fn main() -> Result<()> {
    place::Place::postgres()?.visit_server(outbox).await
}

async fn outbox(server: &str, namespace: &str) -> Result<()> {
    let headwater = Headwater::open_with(server, OpenOptions::default().namespace(namespace)).await?;
    headwater.topic("orders").create_if_missing().await?;
    let (handled, mut orders) = mpsc::channel(16);
    let running = headwater
        .consumer("orders", "email")
        .member("mailer", move |Json(order): Json<OrderPlaced>, _: Context| {
            let handled = handled.clone();
            async move {
                handled.send(order.id).await?;
                Ok(())
            }
        })
        .run()
        .await?;

    // The application's own connection: Headwater does not need to manage it.
    let (mut client, connection) = tokio_postgres::connect(server, NoTls).await?;
    tokio::spawn(connection);
    // Temporary, so that the example leaves nothing behind; your table is an ordinary one.
    client.batch_execute("CREATE TEMPORARY TABLE shop_order (id bigint PRIMARY KEY)").await?;

    let events = headwater.producer("orders");
    // The order is placed, and then the transaction fails.
    place_order(&mut client, &events, 1, Ending::Rollback).await?;
    println!("order 1 rolled back");
    place_order(&mut client, &events, 2, Ending::Commit).await?;
    println!("order 2 committed");

    let first = orders.recv().await.context("the consumer stopped")?;
    println!("handled: order {first}");
    running.shutdown(Duration::from_secs(10)).await?;

    let rows: i64 = client.query_one("SELECT count(*) FROM shop_order", &[]).await?.get(0);
    let messages = headwater.published("orders").await?.len();
    ensure!((first, rows, messages) == (2, 1, 1), "order {first}, {rows} rows, {messages} messages");
    ensure!(orders.try_recv().is_err(), "more than the committed order was handled");
    headwater.close().await?;
    println!("1 row, 1 message: never one without the other");
    Ok(())
}

enum Ending {
    Commit,
    Rollback,
}

/// The business logic: a row and its message.
async fn place_order(client: &mut Client, events: &Producer, id: i64, ending: Ending) -> Result<()> {
    let transaction = client.transaction().await?;
    transaction.execute("INSERT INTO shop_order (id) VALUES ($1)", &[&id]).await?;
    events.send(&OrderPlaced { id }).key(format!("order-{id}")).within(&transaction).await?;
    match ending {
        Ending::Commit => transaction.commit().await?,
        Ending::Rollback => transaction.rollback().await?,
    }
    Ok(())
}
