//! Very many waiting retries: how tracking and cleanup then slow down publishers of another process.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::Result;
use headwater::TopicSettings;
use headwater::topic::Tracking;

use super::probe::{compare, failures, longest_ms};
use super::publisher::Publisher;
use super::waiting::{fill, retried};
use super::{Place, Setting};
use crate::check::{Floor, Job, Judged, Process, Unit, progress, soundness};

const PAUSE_MS: u64 = 2;

pub(super) async fn run(place: &Place<'_>, setting: &Setting) -> Result<Vec<Judged>> {
    let retries = setting.count(1_000_000, 100_000);
    let during = Duration::from_secs(setting.count(40, 15));
    let settings = TopicSettings { tracking: Tracking::ReferenceCounting, ..TopicSettings::pub_sub() };
    fill(place, ("waiting", "workers"), settings, retries, &retried()).await?;
    let headwater = place.open().await?;
    headwater.topic("published").pub_sub().create().await?;
    let publisher = Publisher::start(place, "published", PAUSE_MS).await?;
    let rest = async || {
        tokio::time::sleep(during).await;
        Ok(())
    };
    progress("publishing on the quiet store");
    let (quiet, ()) = publisher.during(rest()).await?;
    progress("publishing beside tracking and cleanup");
    let jobs = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&jobs);
    let mut maintenance = Process::start(&place.url, &Job::Maintenance { every_ms: 100 }, move |_| {
        count.fetch_add(1, Ordering::Relaxed);
    })?;
    maintenance.ready().await?;
    let (beside, ()) = publisher.during(rest()).await?;
    maintenance.ensure_alive()?;
    maintenance.kill().await?;
    publisher.stop().await?;
    let sound = soundness(&headwater).await?;
    headwater.close().await?;
    let longest = longest_ms(&beside.times);
    Ok(vec![
        compare("publish, p99", &quiet.times, &beside.times, 0.99, Floor::AtMost(super::probe::TIMES_MAX))
            .note(format!("{} publishes, {} runs of jobs", beside.times.len(), jobs.load(Ordering::Relaxed))),
        compare("publish, median", &quiet.times, &beside.times, 0.5, Floor::None),
        Judged::new("publish, longest", longest, Unit::Milliseconds, Floor::None),
        failures(&[quiet.errors, beside.errors].concat()),
        sound,
    ])
}
