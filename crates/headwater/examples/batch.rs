//! Batches: a handler that takes many messages at once, settled as a whole or one by one.
//!
//! `cargo run -p headwater --example batch [postgres://…]`

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use headwater::{Bury, Context, Handling, Headwater, Json, Messages, NewMessage, Verdicts};
use tokio::sync::mpsc;

#[path = "support/place.rs"]
mod place;

const GOOD: u64 = 998;

#[tokio::main]
async fn main() -> Result<()> {
    place::Place::embedded_by_default()?.visit(batch).await
}

async fn batch(url: &str) -> Result<()> {
    let headwater = Headwater::open(url).await?;
    headwater.topic("lines").create_if_missing().await?;

    // A thousand lines, two of which cannot be decoded.
    let mut lines: Vec<_> = (0..GOOD).map(|n| NewMessage::json(&n)).collect::<headwater::Result<_>>()?;
    lines.insert(300, NewMessage::new("not a number"));
    lines.insert(700, NewMessage::new("{"));
    headwater.producer("lines").send_batch(&lines).await?;

    let (indexed, mut indexed_batches) = mpsc::channel(100);
    let indexer = Handling::batch(move |messages: Messages, _: Context| {
        let indexed = indexed.clone();
        async move {
            let (mut numbers, mut verdicts) = (Vec::new(), Verdicts::new());
            for message in &messages {
                match message.decode::<Json<u64>>() {
                    Ok(Json(n)) => numbers.push(n),
                    // A retry would not help: the message becomes a dead letter with the reason, and the rest of the
                    // batch continues.
                    Err(error) => {
                        println!("burying: {error}");
                        verdicts.failed(message.offset, Bury(error.to_string()));
                    }
                }
            }
            // Here all of them would go to a bulk insert or an index. An error returned now would fail the whole
            // batch.
            indexed.send(numbers).await?;
            // `Ok(())` would ack all; this acks all but those named.
            Ok(verdicts)
        }
    });
    let running = headwater
        .consumer("lines", "index")
        .handling("indexer", indexer)
        .batch(100)
        .concurrency(4)
        .run()
        .await?;

    let (mut numbers, mut batches) = (Vec::new(), 0);
    while numbers.len() < usize::try_from(GOOD)? {
        let batch = indexed_batches.recv().await.context("the consumer stopped")?;
        ensure!(batch.len() <= 100, "a batch of {}", batch.len());
        numbers.extend(batch);
        batches += 1;
    }
    // Counted when its batch ends, which is a moment after the last numbers were sent.
    while running.health().totals.buried < 2 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    running.shutdown(Duration::from_secs(10)).await?;

    numbers.sort_unstable();
    ensure!(numbers.iter().copied().eq(0..GOOD), "each number once");
    println!("{GOOD} lines indexed in {batches} batches");
    headwater.close().await?;
    println!("2 lines buried, with the reason");
    Ok(())
}
