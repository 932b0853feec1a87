//! The first program: one process publishes orders and handles them, each once.
//!
//! `cargo run -p headwater --example hello` uses an embedded file; add a `postgres://…` URL to run it there.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use headwater::{Context, Headwater, Json};
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;

#[path = "support/place.rs"]
mod place;

#[derive(Debug, Serialize, Deserialize)]
struct Order {
    id: u64,
    item: String,
}

#[tokio::main]
async fn main() -> Result<()> {
    place::Place::embedded_by_default()?.visit(hello).await
}

async fn hello(url: &str) -> Result<()> {
    // In your program: "sqlite:shop.db", or "postgres://user@host/database".
    let headwater = Headwater::open(url).await?;
    headwater.topic("orders").create_if_missing().await?;

    // The consumer does the claims, heartbeats, retries and acks. An error returned here, or a panic, is a failed
    // attempt: the message is redelivered after the topic's back-off.
    let (handled, mut orders) = mpsc::channel(16);
    let running = headwater
        .consumer("orders", "email")
        .member("mailer", move |Json(order): Json<Order>, context: Context| {
            let handled = handled.clone();
            async move {
                println!("order {}: one {}, at offset {}", order.id, order.item, context.message().offset);
                handled.send(order.id).await?;
                Ok(())
            }
        })
        .run()
        .await?;

    // The producer: `send` returns once the message is on disk.
    let producer = headwater.producer("orders");
    for (id, item) in [(1, "kettle"), (2, "teapot"), (3, "cup")] {
        producer.send(&Order { id, item: item.to_owned() }).key(id).await?;
    }

    let mut seen = Vec::new();
    while seen.len() < 3 {
        seen.push(orders.recv().await.context("the consumer stopped")?);
    }
    // Handlers run concurrently; where order matters, see the example `ordered`.
    seen.sort_unstable();
    ensure!(seen == [1, 2, 3], "handled {seen:?}");

    // An orderly shutdown: nothing more is claimed, handlers finish, their acks reach the database.
    let stopped = running.shutdown(Duration::from_secs(10)).await?;
    ensure!(stopped.in_time, "a handler did not finish");
    headwater.close().await?;
    println!("3 orders handled, each once");
    Ok(())
}
