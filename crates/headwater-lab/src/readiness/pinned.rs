//! A foreign transaction holds a snapshot all the time, so that nothing dead can be vacuumed: the rate stays.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use headwater::{
    ClaimRequest, GroupName, NewMessage, Owner, Settlement, Start, TopicName, TopicSettings, Want,
};

use super::Setting;
use crate::bench::report::Unit;
use crate::runtime::judge::thirds;
use crate::runtime::place::Place;
use crate::runtime::progress;
use crate::runtime::report::{Floor, Judged};
use crate::server::connect;

const BATCH: u32 = 500;

pub(super) async fn run(place: &Place<'_>, setting: &Setting) -> Result<Vec<Judged>> {
    let headwater = place.open().await?;
    headwater.topic("pinned").settings(TopicSettings::pub_sub()).create().await?;
    let topic = TopicName::new("pinned")?;
    let store = headwater.store();
    let subscription = store.subscribe(&topic, &GroupName::new("workers")?, Start::Now).await?;
    let client = connect(&place.url).await?;
    client.batch_execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT pg_current_xact_id(); SELECT count(*) FROM headwater.cursor").await?;
    // So that the log written by the checks before does not make the server begin a checkpoint in one third alone.
    connect(&place.url).await?.batch_execute("CHECKPOINT").await?;
    progress("a foreign transaction holds its snapshot");
    let want = Want::new(subscription.subscription_id, BATCH);
    let request = ClaimRequest { owner: Owner::new("the worker")?, wants: vec![want] };
    let batch = vec![NewMessage::new(vec![b'x'; 256]); BATCH as usize];
    let (begin, mut second, mut count) = (Instant::now(), Instant::now(), 0u64);
    let mut rates = Vec::new();
    while begin.elapsed() < setting.hold() {
        store.publish(&topic, &batch).await?;
        for lease in store.claim(&request).await?.leases {
            count += store.fetch(lease.topic_id, lease.range).await?.len() as u64;
            store.settle(&[Settlement::ack_all(&lease)]).await?.remove(0)?;
        }
        if second.elapsed() >= Duration::from_secs(1) {
            rates.push(count as f64 / second.elapsed().as_secs_f64());
            (second, count) = (Instant::now(), 0);
        }
    }
    client.batch_execute("ROLLBACK").await?;
    // The first seconds fill caches.
    let (first, last) =
        thirds(&rates[rates.len().min(3)..]).context("too few samples; give it more minutes")?;
    Ok(vec![
        Judged::new("rate, last third of first", last / first * 100.0, Unit::Percent, Floor::AtLeast(95.0))
            .note(format!(
                "{first:.0}, then {last:.0} messages a second, published and consumed in turn by one"
            )),
    ])
}
