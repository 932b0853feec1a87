//! Two groups that consume a thousand messages a second beside a backfill, and how long after their publish they get them.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use headwater::store::{ClaimRequest, Owner, Settlement, Want};
use headwater::{GroupName, Headwater, Start, TopicName};
use tokio::task::JoinHandle;

use super::TOPIC;
use crate::check::{Job, Pace, Place, Process, percentile_ms, publish};
use crate::soak::history::now_us;

const PER_SECOND: u64 = 1_000;
const GROUPS: [&str; 2] = ["busy-a", "busy-b"];
/// Longer than any check may take: it is ended with it.
const HOURS: u64 = 6;

/// A publisher and two groups at work; ends when dropped.
pub(super) struct Groups {
    delays: Arc<Mutex<Vec<(Instant, Duration)>>>,
    _publisher: Process,
    consuming: JoinHandle<Result<()>>,
}

impl Groups {
    pub(super) async fn start(place: &Place<'_>, headwater: &Headwater) -> Result<Self> {
        let topic = TopicName::new(TOPIC)?;
        let mut wants = Vec::new();
        for group in GROUPS {
            let subscription =
                headwater.store().subscribe(&topic, &GroupName::new(group)?, Start::Now).await?;
            wants.push(Want::new(subscription.subscription_id, 1_000));
        }
        let messages = PER_SECOND * 3_600 * HOURS;
        let pace = Pace { topic: TOPIC.into(), per_second: PER_SECOND, batch: 10, tasks: 2, messages };
        let publisher = Process::start(&place.url, &Job::Publish(pace), |_| {})?;
        let delays: Arc<Mutex<Vec<(Instant, Duration)>>> = Arc::default();
        let request = ClaimRequest { owner: Owner::new("the busy groups")?, wants };
        let consuming = tokio::spawn(consume(headwater.clone(), request, Arc::clone(&delays)));
        Ok(Groups { delays, _publisher: publisher, consuming })
    }

    /// The 95th percentile of the delays since a time, in milliseconds, and how many messages a second both groups got.
    pub(super) fn p95_since(&self, since: Instant) -> Result<(f64, f64)> {
        ensure!(!self.consuming.is_finished(), "the busy groups stopped");
        let delays = self.delays.lock().expect("no panic while held");
        let since_then = delays.iter().filter(|(at, _)| *at >= since);
        let delays: Vec<Duration> = since_then.map(|(_, delay)| *delay).collect();
        ensure!(!delays.is_empty(), "the busy groups got nothing");
        Ok((percentile_ms(&delays, 0.95), delays.len() as f64 / since.elapsed().as_secs_f64()))
    }
}

impl Drop for Groups {
    fn drop(&mut self) {
        self.consuming.abort();
    }
}

async fn consume(
    headwater: Headwater,
    request: ClaimRequest,
    delays: Arc<Mutex<Vec<(Instant, Duration)>>>,
) -> Result<()> {
    let store = headwater.store();
    loop {
        let claimed = store.claim(&request).await?;
        for lease in &claimed.leases {
            for message in store.fetch(lease.topic_id, lease.range).await? {
                let (_, at_us) = publish::parse(&message.payload).context("a message of the publisher")?;
                let delay = Duration::from_micros(now_us().saturating_sub(at_us));
                delays.lock().expect("no panic while held").push((Instant::now(), delay));
            }
            store.settle(&[Settlement::ack_all(lease)]).await?.remove(0)?;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
