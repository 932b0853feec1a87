//! Strict order per key: later messages of a key wait for a failed one, other keys do not (until a thousand of its
//! lane wait).
//!
//! `cargo run -p headwater --example ordered [postgres://…]`

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use headwater::{Context, Headwater, Json, NewMessage};
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;

#[path = "support/place.rs"]
mod place;

const ACCOUNTS: u64 = 8;
const STEPS: u64 = 25;

#[derive(Debug, Serialize, Deserialize)]
struct Booking {
    account: u64,
    step: u64,
}

#[tokio::main]
async fn main() -> Result<()> {
    place::Place::embedded_by_default()?.visit(ordered).await
}

async fn ordered(url: &str) -> Result<()> {
    let headwater = Headwater::open(url).await?;
    headwater
        .topic("bookings")
        .ordered_by_key()
        // The first retry is soon, so that this ends soon; the default is a second, doubling to five minutes.
        .backoff(Duration::from_millis(50), Duration::from_millis(200))
        .create_if_missing()
        .await?;

    // The accounts' bookings, interleaved as they would arrive.
    let bookings: Vec<NewMessage> = (0..ACCOUNTS * STEPS)
        .map(|n| Booking { account: n % ACCOUNTS, step: n / ACCOUNTS })
        .map(|booking| Ok(NewMessage::json(&booking)?.key(format!("account-{}", booking.account))))
        .collect::<headwater::Result<_>>()?;
    headwater.producer("bookings").send_batch(&bookings).await?;

    let (booked, mut bookings) = mpsc::channel(1_000);
    let running = headwater
        .consumer("bookings", "ledger")
        .member("clerk", move |Json(booking): Json<Booking>, context: Context| {
            let booked = booked.clone();
            async move {
                // Each account's tenth booking fails at first. Its account waits for it; the others continue.
                if booking.step == 10 && context.attempt() < 3 {
                    return Err("the ledger is locked".into());
                }
                booked.send(booking).await?;
                Ok(())
            }
        })
        // Eight at once: order is kept within a key, not by handling one message at a time.
        .concurrency(8)
        .run()
        .await?;

    let mut by_account: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
    for _ in 0..ACCOUNTS * STEPS {
        let booking = bookings.recv().await.context("the consumer stopped")?;
        by_account.entry(booking.account).or_default().push(booking.step);
    }
    for (account, steps) in &by_account {
        ensure!(steps.iter().copied().eq(0..STEPS), "account {account} was booked in the order {steps:?}");
    }
    let retried = running.health().totals.retried;
    println!("{ACCOUNTS} accounts, {STEPS} bookings each, {retried} retries on the way");

    running.shutdown(Duration::from_secs(10)).await?;
    ensure!(retried >= 2 * ACCOUNTS, "each account's tenth booking was to fail twice");
    headwater.close().await?;
    println!("every account in order");
    Ok(())
}
