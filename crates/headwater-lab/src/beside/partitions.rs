//! Hundreds of dedicated topics, each with tables of its own, beside workers that use shared topics only.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Result;
use headwater::topic::Partition;
use headwater::{Headwater, OpenOptions};

use super::probe::{Probe, Times};
use super::{Place, Setting};
use crate::check::{Judged, progress, soundness};

const DEDICATED: usize = 300;
const WORKERS: usize = 16;
/// PostgreSQL's error when its lock table is full.
const LOCKS_FULL: &str = "out of shared memory";

pub(super) async fn run(place: &Place<'_>, setting: &Setting) -> Result<Vec<Judged>> {
    let during = Duration::from_secs(setting.count(60, 15));
    progress(&format!("{WORKERS} workers on shared topics"));
    let quiet = work(place, during).await?;
    progress(&format!("creating {DEDICATED} dedicated topics"));
    let headwater = place.open().await?;
    for number in 0..DEDICATED {
        let topic = headwater.topic(&format!("dedicated-{number}")).pub_sub();
        topic.dedicated(Partition::Rows(10_000)).create().await?;
    }
    progress(&format!("{WORKERS} workers on shared topics beside them"));
    let beside = work(place, during).await?;
    let sound = soundness(&headwater).await?;
    headwater.close().await?;
    let mut judged = judge(&quiet, &beside);
    judged.push(sound);
    Ok(judged)
}

fn judge(quiet: &Times, beside: &Times) -> Vec<Judged> {
    let full = quiet.errors.iter().chain(&beside.errors).filter(|error| error.contains(LOCKS_FULL)).count();
    let mut judged = beside.judge(quiet);
    judged.push(Judged::none_of(&format!("errors '{LOCKS_FULL}'"), full as u64));
    judged
}

/// Workers with connections of their own, so that all statements are planned again; each has a shared topic.
async fn work(place: &Place<'_>, during: Duration) -> Result<Times> {
    let options = OpenOptions::default().connections_max(WORKERS);
    let headwater = Headwater::open_with(&place.url, options).await?;
    let mut probes = vec![];
    for number in 0..WORKERS {
        probes.push(Arc::new(Probe::new(&headwater, &format!("shared-{number}")).await?));
    }
    let working = probes.into_iter().map(|probe| {
        tokio::spawn(async move {
            let (mut times, begin) = (Times::default(), Instant::now());
            while begin.elapsed() < during {
                probe.round(&mut times).await;
            }
            times
        })
    });
    let mut times = Times::default();
    for worker in futures_util::future::join_all(working).await {
        times.extend(worker?);
    }
    headwater.close().await?;
    Ok(times)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_table_of_locks_is_missed() {
        let samples = vec![Duration::from_millis(1); 50];
        let times = |errors: &[&str]| Times {
            publish: samples.clone(),
            claim: samples.clone(),
            delivered: samples.clone(),
            errors: errors.iter().map(|error| (*error).to_owned()).collect(),
            ..Times::default()
        };
        let is_met = |errors: &[&str]| judge(&times(&[]), &times(errors)).iter().all(Judged::is_met);
        assert!(is_met(&[]));
        assert!(!is_met(&["claiming: out of shared memory"]) && !is_met(&["something else"]));
        let judged = judge(&times(&[]), &times(&["claiming: out of shared memory", "something else"]));
        assert_eq!(judged.last().map(|one| one.figure.amount), Some(1.0));
    }
}
