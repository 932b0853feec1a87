//! Fan-out: every group gets every message from the one log, at its own pace and with its own members and filters.
//!
//! `cargo run -p headwater --example fan_out [postgres://…]`

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use headwater::{Context, Handling, Headwater, Json, NewMessage, Start};
use tokio::sync::mpsc;

#[path = "support/place.rs"]
mod place;

/// What a member handled: its group, its name, the key and the number.
type Sight = (String, String, String, u64);

#[tokio::main]
async fn main() -> Result<()> {
    place::Place::embedded_by_default()?.visit(fan_out).await
}

/// A member that reports what it handles.
fn reporting(sights: &mpsc::Sender<Sight>) -> Handling {
    let sights = sights.clone();
    Handling::one(move |Json(n): Json<u64>, context: Context| {
        let sights = sights.clone();
        async move {
            let key = context.message().key.clone().unwrap_or_default();
            sights.send((context.group().to_owned(), context.member().to_owned(), key, n)).await?;
            Ok(())
        }
    })
}

async fn fan_out(url: &str) -> Result<()> {
    let headwater = Headwater::open(url).await?;
    // A queue, the default, has one group; a topic for many groups is created as such.
    headwater.topic("readings").pub_sub().create_if_missing().await?;

    let (send, mut reports) = mpsc::channel(1_000);
    // One member for everything.
    let archive =
        headwater.consumer("readings", "archive").handling("writer", reporting(&send)).run().await?;
    // Two members share the work: the key's hash decides which one gets a message, so a sensor stays with its member.
    let _averages = headwater
        .consumer("readings", "averages")
        .handling("left", reporting(&send))
        .handling("right", reporting(&send))
        .run()
        .await?;
    // Only some messages are wanted; the others are done for this group without being handled.
    let _alarms = headwater
        .consumer("readings", "alarms")
        .handling("pager", reporting(&send))
        .filter(|message| message.headers.get("alarm").is_some_and(|alarm| alarm == "yes"))
        .run()
        .await?;

    publish(&headwater, 0..60).await?;
    // A late group that wants no history; without `start_from` it would begin at the beginning.
    let _late = headwater
        .consumer("readings", "late")
        .handling("newcomer", reporting(&send))
        .start_from(Start::Now)
        .run()
        .await?;
    publish(&headwater, 60..100).await?;

    let mut by_group: BTreeMap<String, Vec<Sight>> = BTreeMap::new();
    for _ in 0..100 + 100 + 10 + 40 {
        let sight = reports.recv().await.context("the consumers stopped")?;
        by_group.entry(sight.0.clone()).or_default().push(sight);
    }
    for (group, sights) in &by_group {
        println!("{group} got {} of 100", sights.len());
    }
    let count = |group: &str| by_group.get(group).map_or(0, Vec::len);
    ensure!((count("archive"), count("averages"), count("alarms"), count("late")) == (100, 100, 10, 40));
    let member_of: BTreeMap<_, _> =
        by_group["averages"].iter().map(|(_, member, key, _)| (key, member)).collect();
    ensure!(by_group["averages"].iter().all(|(_, member, key, _)| member_of[key] == member));

    // Groups of one process share what is read: each message was read from the database once.
    let (read, handed) = archive.read_and_handed();
    println!("{read} messages read from the store, {handed} handed to groups");

    // Ends all consumers at once, and closes the handle.
    let left = headwater.shutdown(Duration::from_secs(10)).await?;
    ensure!(left.is_clean(), "unfinished: {left:?}");
    ensure!(reports.try_recv().is_err(), "a message was handled twice");
    println!("every group got every message it wanted, once");
    Ok(())
}

/// Ten sensors in turn; one reading in ten is an alarm.
async fn publish(headwater: &Headwater, numbers: std::ops::Range<u64>) -> Result<()> {
    let message = |n: u64| {
        let message = NewMessage::json(&n)?.key(format!("sensor-{}", n % 10));
        Ok(if n.is_multiple_of(10) { message.header("alarm", "yes") } else { message })
    };
    let messages: Vec<_> = numbers.map(message).collect::<headwater::Result<_>>()?;
    // All of them or none, in one statement.
    headwater.producer("readings").send_batch(&messages).await?;
    Ok(())
}
