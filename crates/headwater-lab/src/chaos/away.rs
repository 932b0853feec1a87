//! A queue without workers for longer than any default retention. The time is simulated; the maintenance jobs run twice
//! per simulated day.

use std::time::Duration;

use anyhow::Result;
use headwater::maintenance::Job;
use headwater::testing::ManualClock;
use headwater::{Clock, Headwater, NewMessage, OpenOptions};

use super::Place;
use crate::check::Judged;

const TOPIC: &str = "away";
const GROUP: &str = "workers";
const MESSAGES: u64 = 20;
const DAYS: u32 = 40;

pub(super) async fn run(place: &Place<'_>) -> Result<Vec<Judged>> {
    let clock = ManualClock::at(jiff::Timestamp::now());
    let options = OpenOptions::default().clock(Clock::Manual(clock.clone())).actor("the lab");
    let headwater = Headwater::open_with(&place.url, options).await?;
    headwater.topic(TOPIC).create().await?;
    let mut consumer = headwater.consumer(TOPIC, GROUP).open().await?;
    consumer.next(Duration::ZERO).await?;
    consumer.close().await?;
    let messages: Vec<NewMessage> =
        (0..MESSAGES).map(|n| NewMessage::json(&n)).collect::<headwater::Result<_>>()?;
    headwater.producer(TOPIC).send_batch(&messages).await?;
    let mut failed = vec![];
    for _ in 0..2 * DAYS {
        clock.advance(Duration::from_secs(12 * 3_600));
        let runs = headwater.maintenance().run_once(&Job::ALL).await?;
        failed.extend(runs.into_iter().filter_map(|run| run.error));
    }
    let mut consumer = headwater.consumer(TOPIC, GROUP).open().await?;
    let mut handled = 0;
    while let Some(batch) = consumer.next(Duration::from_millis(100)).await? {
        handled += batch.messages().len() as u64;
        batch.ack().await?;
    }
    consumer.close().await?;
    headwater.close().await?;
    Ok(vec![
        Judged::all_of("messages that waited", handled, MESSAGES)
            .note(format!("{DAYS} simulated days without a worker, default settings")),
        Judged::none_of("jobs that failed", failed.len() as u64)
            .note(failed.first().cloned().unwrap_or_default()),
    ])
}
