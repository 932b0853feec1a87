//! A hundred groups in one process keep up with a publisher, in bounded memory, reading each message once.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Context, Result};

use super::Setting;
use crate::check::{Floor, Job, Judged, Pace, Place, Process, Progress, Unit, eventually, progress, thirds};

const GROUPS: usize = 100;
const PER_SECOND: u64 = 30_000;
/// Samples taken before this do not count: pages are cached up to a limit, figures for a while, and filling those is not
/// growth.
const WARM_UP_SECONDS: u64 = 10;
const TOPIC: &str = "groups";

/// The samples taken once a second while the publisher runs.
#[derive(Debug, Default)]
struct Seen {
    lag: Vec<f64>,
    resident_bytes: Vec<f64>,
    last: Progress,
}

pub(super) async fn run(place: &Place<'_>, setting: &Setting) -> Result<Vec<Judged>> {
    let seconds = WARM_UP_SECONDS + if setting.quick { 10 } else { 60 };
    let messages = PER_SECOND * seconds;
    let headwater = place.open().await?;
    headwater.topic(TOPIC).pub_sub().create().await?;
    headwater.close().await?;
    let published = Arc::new(AtomicU64::new(0));
    let seen = Arc::new(Mutex::new(Seen::default()));
    let (out, see) = (Arc::clone(&published), Arc::clone(&seen));
    let job = Job::Groups { topic: TOPIC.into(), groups: GROUPS };
    let mut consumers = Process::start(&place.url, &job, move |line| {
        let (published, warm) = (out.load(Ordering::Relaxed), WARM_UP_SECONDS * PER_SECOND);
        see.lock().expect("no panic while held").note(line, published, warm..messages);
    })?;
    consumers.ready().await?;
    progress(&format!("{GROUPS} groups serve {PER_SECOND} messages a second for {seconds} s"));
    let start = tokio::time::Instant::now();
    let pace = Pace { topic: TOPIC.into(), per_second: PER_SECOND, batch: 500, tasks: 4, messages };
    let count = Arc::clone(&published);
    let publisher = Process::start(&place.url, &Job::Publish(pace), move |line| {
        count.fetch_max(line.parse().unwrap_or_default(), Ordering::Relaxed);
    })?;
    let status = publisher.ended(Duration::from_secs(seconds * 4 + 30)).await?;
    anyhow::ensure!(status.success(), "the publisher failed: {status}");
    let rate = messages as f64 / start.elapsed().as_secs_f64();
    let last = || seen.lock().expect("no panic while held").last;
    let caught_up = eventually("all groups have all messages", Duration::from_secs(60), async || {
        consumers.ensure_alive()?;
        Ok(last().handled_least >= messages)
    });
    let caught_up = caught_up.await;
    // One more sample, so that its counts are from after the last message.
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    let in_order = consumers.stop().await;
    let seen = seen.lock().expect("no panic while held");
    let mut judged = seen.judge(rate, messages)?;
    judged
        .push(Judged::none_of("groups that did not catch up within a minute", u64::from(caught_up.is_err())));
    let note = in_order.as_ref().err().map(|error| format!("{error:#}")).unwrap_or_default();
    judged.push(
        Judged::none_of("processes that did not shut down gracefully", u64::from(in_order.is_err()))
            .note(note),
    );
    Ok(judged)
}

impl Seen {
    /// Records a line of the consuming process; samples count only while the publisher runs and is warmed up.
    fn note(&mut self, line: &str, published: u64, counts: Range<u64>) {
        let Ok(progress) = serde_json::from_str::<Progress>(line) else { return };
        self.last = progress;
        if counts.contains(&published) {
            self.lag.push(published.saturating_sub(progress.handled_least) as f64);
            self.resident_bytes.push(progress.resident_bytes as f64);
        }
    }

    fn judge(&self, rate: f64, messages: u64) -> Result<Vec<Judged>> {
        let few = || format!("too few samples: {}", self.lag.len());
        let (lag_first, lag_last) = thirds(&self.lag).with_context(few)?;
        let (memory_first, memory_last) = thirds(&self.resident_bytes).with_context(few)?;
        let pace = PER_SECOND as f64;
        let list = |samples: &[f64], unit: f64| {
            samples.iter().map(|one| format!("{:.0}", one / unit)).collect::<Vec<_>>().join(" ")
        };
        let mib = 1024.0 * 1024.0;
        let groups = GROUPS as u64;
        Ok(vec![
            Judged::new("published", rate, Unit::MessagesPerSecond, Floor::AtLeast(0.95 * pace)),
            Judged::new(
                "lag of the slowest group, last third",
                lag_last,
                Unit::Count,
                Floor::AtMost(2.0 * lag_first + pace),
            )
            .note(format!("first third {lag_first:.0}; each second: {}", list(&self.lag, 1.0))),
            Judged::new(
                "memory, last third of first",
                memory_last / memory_first * 100.0,
                Unit::Percent,
                Floor::AtMost(120.0),
            )
            .note(format!("MiB each second: {}", list(&self.resident_bytes, mib))),
            Judged::all_of("messages read", self.last.read, messages),
            Judged::all_of("messages handed to groups", self.last.handed, groups * messages),
        ])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(lag: &[f64], memory: &[f64], read: u64, handed: u64) -> Seen {
        let last = Progress { read, handed, ..Progress::default() };
        Seen { lag: lag.to_vec(), resident_bytes: memory.to_vec(), last }
    }

    fn violated(seen: &Seen, rate: f64) -> Vec<String> {
        let judged = seen.judge(rate, 1_000).unwrap();
        judged.into_iter().filter(|one| !one.is_met()).map(|one| one.what).collect()
    }

    #[test]
    fn growth_repeated_reads_and_a_slow_publisher_are_violations() {
        let flat = [1_000.0, 900.0, 1_100.0];
        assert_eq!(violated(&seen(&flat, &flat, 1_000, 100_000), 29_900.0), [""; 0]);
        assert_eq!(violated(&seen(&flat, &flat, 1_000, 100_000), 20_000.0), ["published"]);
        let growing = [1_000.0, 20_000.0, 33_000.0];
        assert_eq!(
            violated(&seen(&growing, &flat, 1_000, 100_000), 30_000.0),
            ["lag of the slowest group, last third"]
        );
        let swelling = [100.0, 110.0, 121.0];
        assert_eq!(
            violated(&seen(&flat, &swelling, 1_000, 100_000), 30_000.0),
            ["memory, last third of first"]
        );
        assert_eq!(
            violated(&seen(&flat, &flat, 1_001, 100_100), 30_000.0),
            ["messages read", "messages handed to groups"]
        );
    }

    #[test]
    fn only_what_was_seen_while_publishing_counts() {
        let mut seen = Seen::default();
        let line = serde_json::to_string(&Progress { handled_least: 40, ..Progress::default() }).unwrap();
        for published in [0, 49, 50, 90, 100] {
            seen.note(&line, published, 50..100);
        }
        seen.note("noise", 60, 50..100);
        assert_eq!(seen.lag, [10.0, 50.0]);
    }
}
