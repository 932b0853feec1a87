//! LT-1 to LT-7: a number of groups and of messages per second, in one of the two tracking modes.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use headwater::store::{ClaimRequest, Owner, Settlement, Want};
use headwater::topic::{Partition, Storage, Tracking};
use headwater::{GroupName, Headwater, Start, TopicName, TopicSettings};

use super::Setting;
use super::sample::{Sample, Sampler, worst_table};
use crate::check::{
    Floor, Job, Judged, Maintained, Pace, Place, Process, Progress, Unit, eventually, percentile_ms,
    progress, soundness, thirds,
};
use crate::machine::disk_bytes_per_second;

const TOPIC: &str = "load";
/// How long messages are kept once they are done: short, so that cleanup has its full load within a minute.
const RETENTION: Duration = Duration::from_secs(5);
/// Samples taken before this do not count.
const WARM_UP: Duration = Duration::from_secs(10);

/// One line of the matrix.
#[derive(Clone, Copy, Debug)]
pub(super) struct Load {
    pub(super) tracking: Tracking,
    pub(super) groups: usize,
    pub(super) per_second: u64,
    pub(super) is_judged: bool,
}

/// The samples taken under load.
#[derive(Debug, Default)]
struct Seen {
    lag: Vec<f64>,
    samples: Vec<(Instant, Sample)>,
    claim_fetch: Vec<Duration>,
    /// Messages removed, and how long cleanup and partitions took for it.
    removed: u64,
    cleaning_us: u64,
    errors: Vec<String>,
}

pub(super) async fn run(place: &Place<'_>, setting: &Setting, load: Load) -> Result<Vec<Judged>> {
    let disk = disk_bytes_per_second(&setting.work)?;
    let headwater = place.open().await?;
    let settings = TopicSettings {
        tracking: load.tracking,
        message_retention: Some(RETENTION),
        storage: Storage::Dedicated(Partition::Rows(load.per_second * 10)),
        ..TopicSettings::pub_sub()
    };
    headwater.topic(TOPIC).settings(settings).create().await?;
    let seen: Arc<Mutex<Seen>> = Arc::default();
    let (published, handled) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let count = Arc::clone(&handled);
    let job = Job::Groups { topic: TOPIC.into(), groups: load.groups };
    let mut consumers = Process::start(&place.url, &job, move |line| {
        if let Ok(progress) = serde_json::from_str::<Progress>(line) {
            count.store(progress.handled_least, Ordering::Relaxed);
        }
    })?;
    consumers.ready().await?;
    let note = Arc::clone(&seen);
    let maintenance = Process::start(&place.url, &Job::Maintenance { every_ms: 1_000 }, move |line| {
        note.lock().expect("no panic while held").note_run(line);
    })?;
    let seconds = (WARM_UP + setting.hold()).as_secs();
    let messages = load.per_second * seconds;
    progress(&format!(
        "{} groups in {}, {} messages a second for {seconds} s",
        load.groups,
        load.tracking.as_str(),
        load.per_second
    ));
    let pace = Pace { topic: TOPIC.into(), per_second: load.per_second, batch: 500, tasks: 4, messages };
    let count = Arc::clone(&published);
    let start = Instant::now();
    let publisher = Process::start(&place.url, &Job::Publish(pace), move |line| {
        count.fetch_max(line.parse().unwrap_or_default(), Ordering::Relaxed);
    })?;
    let sampling = sample(place, &headwater, Arc::clone(&seen), Arc::clone(&published), Arc::clone(&handled));
    let probing = probe(&headwater, Arc::clone(&seen));
    let status = tokio::select! {
        status = publisher.ended(Duration::from_secs(seconds * 4 + 60)) => status?,
        error = sampling => anyhow::bail!("sampling failed: {:#}", error.err().context("it never ends")?),
        error = probing => anyhow::bail!("the probe failed: {:#}", error.err().context("it never ends")?),
    };
    ensure!(status.success(), "the publisher failed: {status}");
    let rate = messages as f64 / start.elapsed().as_secs_f64();
    let caught_up = eventually("all groups have all messages", Duration::from_secs(60), async || {
        consumers.ensure_alive()?;
        Ok(handled.load(Ordering::Relaxed) >= messages)
    });
    let caught_up = caught_up.await;
    maintenance.stop().await?;
    consumers.stop().await?;
    let sound = soundness(&headwater).await?;
    let mut judged = seen.lock().expect("no panic while held").judge(load, rate, disk)?;
    judged
        .push(Judged::none_of("groups that did not catch up within a minute", u64::from(caught_up.is_err())));
    judged.push(sound);
    if !load.is_judged {
        judged.iter_mut().for_each(|one| one.floor = Floor::None);
    }
    Ok(judged)
}

/// Takes a sample once a second, until dropped.
async fn sample(
    place: &Place<'_>,
    headwater: &Headwater,
    seen: Arc<Mutex<Seen>>,
    published: Arc<AtomicU64>,
    handled: Arc<AtomicU64>,
) -> Result<()> {
    let sampler = Sampler::new(place, headwater, TOPIC).await?;
    tokio::time::sleep(WARM_UP).await;
    let mut interval = tokio::time::interval(Duration::from_secs(1));
    loop {
        interval.tick().await;
        let sample = sampler.sample().await?;
        let lag = published.load(Ordering::Relaxed).saturating_sub(handled.load(Ordering::Relaxed));
        let mut seen = seen.lock().expect("no panic while held");
        seen.samples.push((Instant::now(), sample));
        seen.lag.push(lag as f64);
    }
}

/// One more group that claims and fetches directly, to measure how long that takes under the load.
async fn probe(headwater: &Headwater, seen: Arc<Mutex<Seen>>) -> Result<()> {
    let store = headwater.store();
    let topic = TopicName::new(TOPIC)?;
    let subscription = store.subscribe(&topic, &GroupName::new("probe")?, Start::Now).await?;
    let want = Want::new(subscription.subscription_id, 500);
    let request = ClaimRequest { owner: Owner::new("the probe")?, wants: vec![want] };
    let begun = Instant::now();
    loop {
        let start = Instant::now();
        let claimed = store.claim(&request).await?;
        for lease in &claimed.leases {
            store.fetch(lease.topic_id, lease.range).await?;
        }
        let took = start.elapsed();
        if claimed.leases.is_empty() {
            tokio::time::sleep(Duration::from_millis(10)).await;
            continue;
        }
        if begun.elapsed() > WARM_UP {
            let mut seen = seen.lock().expect("no panic while held");
            seen.claim_fetch.push(took);
        }
        let settlements: Vec<Settlement> = claimed.leases.iter().map(Settlement::ack_all).collect();
        for settled in store.settle(&settlements).await? {
            settled?;
        }
    }
}

impl Seen {
    fn note_run(&mut self, line: &str) {
        let Ok(run) = serde_json::from_str::<Maintained>(line) else { return };
        if matches!(run.job.as_str(), "message_cleanup" | "partitions") {
            self.removed += run.rows;
            self.cleaning_us += run.duration_us;
        }
        self.errors.extend(run.error.map(|error| format!("{}: {error}", run.job)));
    }

    fn judge(&self, load: Load, rate: f64, disk: f64) -> Result<Vec<Judged>> {
        let few = || format!("too few samples: {}", self.lag.len());
        let (lag_first, lag_last) = thirds(&self.lag).with_context(few)?;
        let stored: Vec<f64> = self.samples.iter().map(|(_, sample)| sample.stored as f64).collect();
        let (stored_first, stored_last) = thirds(&stored).with_context(few)?;
        let samples: Vec<Sample> = self.samples.iter().map(|(_, sample)| sample.clone()).collect();
        let (dead, table, bytes) = worst_table(&samples[samples.len() / 3..], false).unwrap_or_default();
        let small = worst_table(&samples[samples.len() / 3..], true).unwrap_or_default();
        let ((first_at, first), (last_at, last)) = (&self.samples[0], &self.samples[self.samples.len() - 1]);
        let wal = (last.wal_bytes - first.wal_bytes) / (*last_at - *first_at).as_secs_f64();
        ensure!(!self.claim_fetch.is_empty(), "the probe got no messages");
        let p95 = percentile_ms(&self.claim_fetch, 0.95);
        let pace = load.per_second as f64;
        let mib = 1024.0 * 1024.0;
        // Messages removed per second of its work: the rate it could keep up with.
        let cleaning = self.removed as f64 / (self.cleaning_us.max(1) as f64 / 1e6);
        Ok(vec![
            Judged::new("published", rate, Unit::MessagesPerSecond, Floor::AtLeast(0.95 * pace)),
            Judged::new("dead rows in the worst table", dead, Unit::Percent, Floor::AtMost(20.0)).note(
                format!(
                    "{table}, {:.0} MiB; of tables under 4 MiB: {} with {:.0} %",
                    bytes as f64 / mib,
                    small.1,
                    small.0
                ),
            ),
            Judged::new(
                "write-ahead log, of the disk's capacity",
                wal / disk * 100.0,
                Unit::Percent,
                Floor::AtMost(50.0),
            )
            .note(format!("{:.1} MiB/s of {:.0} MiB/s", wal / mib, disk / mib)),
            Judged::new("cleanup while it runs", cleaning, Unit::MessagesPerSecond, Floor::AtLeast(pace))
                .note(format!("{} removed in {:.1} s of work", self.removed, self.cleaning_us as f64 / 1e6)),
            Judged::new(
                "stored, last third of first",
                stored_last / stored_first.max(1.0) * 100.0,
                Unit::Percent,
                Floor::AtMost(150.0),
            )
            .note(format!("{stored_first:.0}, then {stored_last:.0} messages")),
            Judged::new("claim and fetch of 500, p95", p95, Unit::Milliseconds, Floor::AtMost(10.0))
                .note(format!("{} samples", self.claim_fetch.len())),
            Judged::new(
                "lag of the slowest group, last third",
                lag_last,
                Unit::Count,
                Floor::AtMost((lag_first * 1.5).max(pace)),
            )
            .note(format!("{lag_first:.0} in the first third")),
            Judged::none_of("errors of maintenance", self.errors.len() as u64)
                .note(self.errors.first().cloned().unwrap_or_default()),
        ])
    }
}
