//! A foreign transaction holds a snapshot all the time, so that no dead row can be vacuumed: the rate stays.
//!
//! The machine's speed varies by more than the 5 % that are allowed. So the check does the same work in a twin, another
//! database of the same server, batch by batch in turn: a snapshot holds back vacuum only in its own database. Whatever
//! slows down both is the machine.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use headwater::store::{ClaimRequest, Owner, Settlement, Want};
use headwater::{GroupName, Headwater, NewMessage, Start, TopicName, TopicSettings};

use super::Setting;
use crate::check::{Floor, Judged, Place, Unit, progress, thirds};
use crate::server::connect;

const BATCH: u32 = 500;

pub(super) async fn run(place: &Place<'_>, setting: &Setting) -> Result<Vec<Judged>> {
    let server = place.server().context("the check needs a server")?;
    let twin_name = format!("headwater_lab_pinned_twin_{}", std::process::id());
    let twin_url = server.create_database(&twin_name).await?;
    let (ours, twin) = (Work::prepare(&place.url).await?, Work::prepare(&twin_url).await?);
    let client = connect(&place.url).await?;
    client.batch_execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT pg_current_xact_id(); SELECT count(*) FROM headwater.cursor").await?;
    // So that WAL written by earlier checks does not start a checkpoint in only one third of the run.
    connect(&place.url).await?.batch_execute("CHECKPOINT").await?;
    progress("a foreign transaction holds its snapshot");
    let begin = Instant::now();
    let (mut rates, mut shares) = (Vec::new(), Vec::new());
    while begin.elapsed() < setting.hold() {
        let (mut batches, mut pinned, mut free) = (0u32, Duration::ZERO, Duration::ZERO);
        while pinned + free < Duration::from_secs(1) {
            pinned += ours.batch().await?;
            free += twin.batch().await?;
            batches += 1;
        }
        rates.push(f64::from(batches * BATCH) / pinned.as_secs_f64());
        shares.push(free.as_secs_f64() / pinned.as_secs_f64());
    }
    client.batch_execute("ROLLBACK").await?;
    drop(twin);
    server.drop_database(&twin_name).await?;
    // The first seconds fill caches.
    let thirds = |samples: &[f64]| {
        thirds(&samples[samples.len().min(3)..]).context("too few samples; give it more minutes")
    };
    let ((first, last), (first_share, last_share)) = (thirds(&rates)?, thirds(&shares)?);
    Ok(vec![
        Judged::new(
            "rate of an unpinned twin's, last third",
            last_share * 100.0,
            Unit::Percent,
            Floor::AtLeast(95.0),
        )
        .note(format!(
            "{first:.0}, then {last:.0} messages a second, published and consumed in turn by one; \
             {:.0} % of the twin's in the first third",
            first_share * 100.0
        )),
    ])
}

/// A topic with one group, and the batches for it.
struct Work {
    headwater: Headwater,
    topic: TopicName,
    request: ClaimRequest,
    messages: Vec<NewMessage>,
}

impl Work {
    async fn prepare(url: &str) -> Result<Self> {
        let headwater = Headwater::open(url).await?;
        headwater.topic("pinned").settings(TopicSettings::pub_sub()).create().await?;
        let topic = TopicName::new("pinned")?;
        let group = GroupName::new("workers")?;
        let subscription = headwater.store().subscribe(&topic, &group, Start::Now).await?;
        let want = Want::new(subscription.subscription_id, BATCH);
        let request = ClaimRequest { owner: Owner::new("the worker")?, wants: vec![want] };
        let messages = vec![NewMessage::new(vec![b'x'; 256]); BATCH as usize];
        Ok(Work { headwater, topic, request, messages })
    }

    /// Publishes a batch and consumes it; returns how long that took.
    async fn batch(&self) -> Result<Duration> {
        let store = self.headwater.store();
        let start = Instant::now();
        store.publish(&self.topic, &self.messages).await?;
        for lease in store.claim(&self.request).await?.leases {
            store.fetch(lease.topic_id, lease.range).await?;
            store.settle(&[Settlement::ack_all(&lease)]).await?.remove(0)?;
        }
        Ok(start.elapsed())
    }
}
