//! A relay process is killed again and again while messages are published: nothing is lost, and keys stay in order.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::Result;
use headwater::Headwater;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::brokers::{Kind, Live};
use super::load::{Load, judge_arrivals};
use super::{RelayJob, Setting};
use crate::check::{Job, Judged, Place, Process, eventually, progress, settled, soundness};

const GROUP: &str = "relay";
const PER_SECOND: u64 = 3_000;
/// Bounds the load, whatever the kills take.
const MESSAGES_MAX: u64 = 500_000;
/// Longer than another process needs to take over what a killed one had.
const LIFE_MAX: Duration = Duration::from_secs(60);
/// The time from the first confirmed record to the kill.
const ALIVE_MS: std::ops::Range<u64> = 0..400;

pub(super) async fn run(place: &Place<'_>, setting: &Setting) -> Result<Vec<Judged>> {
    let headwater = place.open().await?;
    let mut judged = Vec::new();
    for kind in Kind::ALL {
        judged.extend(broker(place, setting, &headwater, kind).await?);
    }
    judged.push(soundness(&headwater).await?);
    headwater.close().await?;
    Ok(judged)
}

async fn broker(
    place: &Place<'_>,
    setting: &Setting,
    headwater: &Headwater,
    kind: Kind,
) -> Result<Vec<Judged>> {
    let (topic, kills) = (format!("kill-{}", kind.name()), setting.count(50, 10));
    let mut random = StdRng::seed_from_u64(setting.seed);
    let live = Live::start(kind, &setting.work).await?;
    live.create(&topic).await?;
    headwater.topic(&topic).create().await?;
    let target = live.target(&topic);
    let job = Job::Relay(RelayJob::Deliver { topic: topic.clone(), group: GROUP.into(), target });
    let load = Load::start(headwater, &topic, PER_SECOND, MESSAGES_MAX);
    let mut done = 0;
    for kill in 1..=kills {
        progress(&format!("{}, SIGKILL {kill} of {kills}", kind.name()));
        let delivered = Arc::new(AtomicU64::new(0));
        let mut process = Process::start(&place.url, &job, note(&delivered))?;
        process.ready().await?;
        eventually("a relay delivers", LIFE_MAX, async || {
            process.ensure_alive()?;
            Ok(delivered.load(Ordering::Relaxed) > 0)
        })
        .await?;
        tokio::time::sleep(Duration::from_millis(random.random_range(ALIVE_MS))).await;
        process.kill().await?;
        done += 1;
    }
    let published = load.stop().await?;
    let mut process = Process::start(&place.url, &job, |_| {})?;
    process.ready().await?;
    let left = settled(headwater, &topic, GROUP, LIFE_MAX * 2).await;
    process.stop().await?;
    let found = live.read(&topic).await?;
    let mut judged = judge_arrivals(kind.name(), &published, &found);
    judged.push(Judged::all_of(&format!("{}, kills", kind.name()), done, kills));
    judged.push(
        Judged::none_of(&format!("{}, groups that are not done", kind.name()), u64::from(left.is_err()))
            .note(left.err().map(|error| format!("{error:#}")).unwrap_or_default()),
    );
    Ok(judged)
}

fn note(delivered: &Arc<AtomicU64>) -> impl FnMut(&str) + Send + 'static {
    let delivered = Arc::clone(delivered);
    move |line| delivered.store(line.parse().unwrap_or_default(), Ordering::Relaxed)
}
