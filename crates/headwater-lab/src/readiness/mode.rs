//! A topic changes its tracking mode, there and back, while three groups consume and a publisher publishes.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use headwater::maintenance::Job as MaintenanceJob;
use headwater::topic::Tracking;
use headwater::{GroupName, Headwater, Start, TopicName, TopicSettings};

use super::Setting;
use super::backfill::fill;
use crate::check::{
    Floor, Job, Judged, Pace, Place, Process, Progress, Unit, eventually, progress, soundness,
};

const TOPIC: &str = "mode";
const GROUPS: usize = 3;
const PER_SECOND: u64 = 5_000;

pub(super) async fn run(place: &Place<'_>, setting: &Setting) -> Result<Vec<Judged>> {
    let stored = setting.scaled(1_000_000, 5_000_000);
    let headwater = place.open().await?;
    headwater.topic(TOPIC).settings(TopicSettings::pub_sub()).create().await?;
    let topic = TopicName::new(TOPIC)?;
    // A group far behind, so that all messages stay and their completion records have open bits.
    headwater.store().subscribe(&topic, &GroupName::new("sleeper")?, Start::Now).await?;
    for group in 0..GROUPS {
        let group = GroupName::new(format!("group-{group}"))?;
        headwater.store().subscribe(&topic, &group, Start::Now).await?;
    }
    progress(&format!("publishing {stored} messages"));
    fill(&headwater, TOPIC, stored).await?;
    // The head has not been advanced yet, and a mode change covers only messages below the head.
    while headwater.store().topics().await?.iter().any(|status| status.head.0.unsigned_abs() < stored) {
        headwater.store().advance_heads().await?;
    }
    let more = PER_SECOND * 20;
    let seen: Arc<Mutex<Progress>> = Arc::default();
    let note = Arc::clone(&seen);
    let mut consumers =
        Process::start(&place.url, &Job::Groups { topic: TOPIC.into(), groups: GROUPS }, move |line| {
            if let Ok(progress) = serde_json::from_str::<Progress>(line) {
                *note.lock().expect("no panic while held") = progress;
            }
        })?;
    consumers.ready().await?;
    let pace = Pace { topic: TOPIC.into(), per_second: PER_SECOND, batch: 100, tasks: 2, messages: more };
    let publisher = Process::start(&place.url, &Job::Publish(pace), |_| {})?;
    let there = change(&headwater, &topic, Tracking::ReferenceCounting).await?;
    let back = change(&headwater, &topic, Tracking::OffsetWatermark).await?;
    let again = change(&headwater, &topic, Tracking::ReferenceCounting).await?;
    let status = publisher.ended(Duration::from_secs(120)).await?;
    ensure!(status.success(), "the publisher failed: {status}");
    let all = stored + more;
    let last = || *seen.lock().expect("no panic while held");
    let caught_up = eventually("all groups have all messages", Duration::from_secs(120), async || {
        consumers.ensure_alive()?;
        Ok(last().handled_least >= all)
    });
    let caught_up = caught_up.await;
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    consumers.stop().await?;
    let handed = last().handed;
    let sound = soundness(&headwater).await?;
    let took = |what: &str, took: Duration| {
        Judged::new(what, took.as_secs_f64() * 1_000.0, Unit::Milliseconds, Floor::None)
    };
    Ok(vec![
        Judged::none_of("groups that miss messages", u64::from(caught_up.is_err())),
        Judged::all_of("messages handed out, all groups", handed, all * GROUPS as u64),
        took("to reference counting", there),
        took("back to offset watermark", back),
        took("and to reference counting again", again),
        sound,
    ])
}

/// Changes the mode, runs the change to its end, and prints its progress.
async fn change(headwater: &Headwater, topic: &TopicName, tracking: Tracking) -> Result<Duration> {
    let start = Instant::now();
    let store = headwater.store();
    let settings = TopicSettings { tracking, ..store.topic(topic).await?.settings };
    let id = store.alter_topic(topic, &settings).await?.topic_id;
    let mut printed = Instant::now();
    loop {
        let runs = headwater.maintenance().run_once(&[MaintenanceJob::Heads]).await?;
        ensure!(runs.iter().all(|run| run.error.is_none()), "maintenance failed: {runs:?}");
        store.track(id, 10_000).await?;
        let topics = store.topics().await?;
        let status = topics.iter().find(|status| status.topic.topic_id == id).context("the topic is gone")?;
        let Some(change) = status.tracking_change else { return Ok(start.elapsed()) };
        if printed.elapsed() > Duration::from_secs(1) {
            printed = Instant::now();
            progress(&format!("to {}: {} of {}", tracking.as_str(), change.done, change.total));
        }
        ensure!(start.elapsed() < Duration::from_secs(600), "the change of mode does not end: {change:?}");
    }
}
