//! A large topic with ten groups and a small one with two: the small one is hardly affected.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use headwater::store::{ClaimRequest, Owner, Settlement, Want};
use headwater::{GroupName, Start, TopicName, TopicSettings};

use super::Setting;
use crate::check::{Floor, Job, Judged, Pace, Place, Process, Unit, ms, percentile_ms, progress, publish};
use crate::soak::history::now_us;

/// Groups of the large topic.
const LARGE_GROUPS: usize = 10;
/// Groups of the small topic.
const SMALL_GROUPS: [&str; 2] = ["small-a", "small-b"];

pub(super) async fn run(place: &Place<'_>, setting: &Setting) -> Result<Vec<Judged>> {
    let headwater = place.open().await?;
    headwater.topic("large").settings(TopicSettings::pub_sub()).create().await?;
    headwater.topic("small").settings(TopicSettings::pub_sub()).create().await?;
    let mut large =
        Process::start(&place.url, &Job::Groups { topic: "large".into(), groups: LARGE_GROUPS }, |_| {})?;
    large.ready().await?;
    let store = headwater.store();
    let topic = TopicName::new("small")?;
    let mut wants = Vec::new();
    for group in SMALL_GROUPS {
        let subscription = store.subscribe(&topic, &GroupName::new(group)?, Start::Now).await?;
        wants.push(Want::new(subscription.subscription_id, 100));
    }
    let seconds = setting.hold().as_secs().max(5);
    let pace = |topic: &str, per_second: u64, batch: u64| Pace {
        topic: topic.into(),
        per_second,
        batch,
        tasks: 4,
        messages: per_second * seconds,
    };
    progress("10,000 messages a second on one topic with ten groups, 10 on the other with two");
    let publishers = [pace("large", 10_000, 500), pace("small", 10, 1)]
        .map(|pace| Process::start(&place.url, &Job::Publish(pace), |_| {}));
    let request = ClaimRequest { owner: Owner::new("the small one")?, wants };
    let (mut fetched, mut behind) = (Vec::new(), Vec::new());
    let end = Instant::now() + Duration::from_secs(seconds + 5);
    while Instant::now() < end {
        let start = Instant::now();
        let claimed = store.claim(&request).await?;
        for lease in &claimed.leases {
            for message in store.fetch(lease.topic_id, lease.range).await? {
                let (_, at_us) = publish::parse(&message.payload)?;
                behind.push(Duration::from_micros(now_us().saturating_sub(at_us)));
            }
            fetched.push(start.elapsed());
            store.settle(&[Settlement::ack_all(lease)]).await?.remove(0)?;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    for publisher in publishers {
        let status = publisher?.ended(Duration::from_secs(60)).await?;
        ensure!(status.success(), "a publisher failed: {status}");
    }
    large.stop().await?;
    let longest = behind.iter().max().copied().context("the small topic got no messages")?;
    Ok(vec![
        Judged::new(
            "claim and fetch of the small topic, p95",
            percentile_ms(&fetched, 0.95),
            Unit::Milliseconds,
            Floor::AtMost(50.0),
        )
        .note(format!("{} samples", fetched.len())),
        Judged::new("its longest lag", ms(longest), Unit::Milliseconds, Floor::AtMost(10_000.0)),
        Judged::all_of(
            "its messages, both groups",
            behind.len() as u64,
            10 * seconds * SMALL_GROUPS.len() as u64,
        ),
    ])
}
