//! A foreign transaction holds a snapshot all the time, so that nothing dead can be vacuumed: the rate stays.
//!
//! The machine's own speed moves by more than the 5 % that are allowed, so the rate is judged beside a yardstick that knows nothing of
//! Headwater: the same number of rows of the same size goes into a plain table in turn with each batch. What slows down both is the
//! machine's; what slows down Headwater alone is dead rows.

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
    let yardstick = connect(&place.url).await?;
    yardstick
        .batch_execute(
            "CREATE TABLE yardstick (row_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, payload bytea)",
        )
        .await?;
    let rows = "INSERT INTO yardstick (payload) SELECT $1 FROM generate_series(1, $2::integer)";
    let rows = yardstick.prepare(rows).await?;
    let want = Want::new(subscription.subscription_id, BATCH);
    let request = ClaimRequest { owner: Owner::new("the worker")?, wants: vec![want] };
    let payload = vec![b'x'; 256];
    let batch = vec![NewMessage::new(payload.clone()); BATCH as usize];
    let begin = Instant::now();
    let (mut rates, mut shares) = (Vec::new(), Vec::new());
    while begin.elapsed() < setting.hold() {
        let (mut count, mut ours, mut plain) = (0u64, Duration::ZERO, Duration::ZERO);
        while ours + plain < Duration::from_secs(1) {
            let start = Instant::now();
            store.publish(&topic, &batch).await?;
            for lease in store.claim(&request).await?.leases {
                count += store.fetch(lease.topic_id, lease.range).await?.len() as u64;
                store.settle(&[Settlement::ack_all(&lease)]).await?.remove(0)?;
            }
            ours += start.elapsed();
            let start = Instant::now();
            yardstick.execute(&rows, &[&payload, &i32::try_from(BATCH)?]).await?;
            plain += start.elapsed();
        }
        rates.push(count as f64 / ours.as_secs_f64());
        shares.push(plain.as_secs_f64() / ours.as_secs_f64());
    }
    client.batch_execute("ROLLBACK").await?;
    // The first seconds fill caches.
    let thirds = |samples: &[f64]| {
        thirds(&samples[samples.len().min(3)..]).context("too few samples; give it more minutes")
    };
    let ((first, last), (first_share, last_share)) = (thirds(&rates)?, thirds(&shares)?);
    Ok(vec![
        Judged::new(
            "rate beside a plain table's, last third of first",
            last_share / first_share * 100.0,
            Unit::Percent,
            Floor::AtLeast(95.0),
        )
        .note(format!(
            "{first:.0}, then {last:.0} messages a second, published and consumed in turn by one; \
             {:.0} %, then {:.0} % of the rate of plain inserts",
            first_share * 100.0,
            last_share * 100.0
        )),
    ])
}
