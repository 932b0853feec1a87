//! How a process ends: after SIGTERM others get its messages at once and none twice; after SIGKILL they get them within
//! three seconds although its leases last for minutes.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use headwater::{Headwater, NewMessage};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::Setting;
use crate::check::{
    Floor, GRACE, Job, Judged, Kill, Place, Process, Record, Unit, progress, settled, soundness,
};
use crate::soak::history::now_us;

pub(crate) const TOPIC: &str = "endings";
pub(crate) const GROUP: &str = "workers";
/// Messages published shortly before a process is signalled, in several portions, so that both processes get a share of
/// them; the rest takes the remaining process some tenths of a second.
const BURST: u64 = 2_500;
const PORTION: u64 = 500;
const HANDLERS: usize = 32;
const HANDLE_MS: u64 = 5;
/// The longest time the rest may take once a process has ended on SIGTERM.
const REST_MAX_MS: f64 = 1_000.0;
/// The longest time until all messages of a killed process are handled.
const NOTICED_MAX_MS: f64 = 3_000.0;
/// A process acks what is done of a lease after a second at the latest; this leaves enough time for the ack to reach
/// the store.
pub(crate) const UNSETTLED_US: u64 = 3_000_000;

pub(super) async fn run(place: &Place<'_>, setting: &Setting) -> Result<Vec<Judged>> {
    let headwater = place.open().await?;
    headwater.topic(TOPIC).create().await?;
    let mut stage = Stage::new(place, headwater, setting.seed);
    let mut judged = terminate(&mut stage, if setting.quick { 2 } else { 6 }).await?;
    // The moments differ in how long ago the processes last checked each other.
    let moments: Vec<u64> = (0..if setting.quick { 4 } else { 20 }).map(|round| 600 + 137 * round).collect();
    judged.extend(kill(&mut stage, &moments).await?);
    settled(&stage.headwater, TOPIC, GROUP, Duration::from_secs(30)).await?;
    judged.push(soundness(&stage.headwater).await?);
    stage.headwater.close().await?;
    Ok(judged)
}

/// Processes of one group that record what they handle, and bursts of messages for them.
pub(crate) struct Stage {
    url: String,
    pub(crate) headwater: Headwater,
    record: Arc<Mutex<Record>>,
    started: usize,
    pub(crate) published: u64,
    pub(crate) random: StdRng,
}

impl Stage {
    /// No process yet.
    pub(crate) fn new(place: &Place<'_>, headwater: Headwater, seed: u64) -> Self {
        let (url, random) = (place.url.clone(), StdRng::seed_from_u64(seed));
        Stage { url, headwater, record: Arc::default(), started: 0, published: 0, random }
    }

    /// Starts a process that records what it handles; returns its number.
    pub(crate) async fn start(&mut self) -> Result<(usize, Process)> {
        let (number, record) = (self.started, Arc::clone(&self.record));
        self.started += 1;
        let job = Job::Record {
            topic: TOPIC.into(),
            group: GROUP.into(),
            handlers: HANDLERS,
            handle_ms: HANDLE_MS,
        };
        let mut process = Process::start(&self.url, &job, move |line| {
            record.lock().expect("no panic while held").note(number, line);
        })?;
        process.ready().await?;
        Ok((number, process))
    }

    /// Publishes a burst, and returns while processes are in the middle of it.
    pub(crate) async fn burst(&mut self) -> Result<()> {
        for _ in 0..BURST / PORTION {
            let numbers = self.published..self.published + PORTION;
            let batch: Vec<NewMessage> =
                numbers.map(|n| NewMessage::json(&n)).collect::<headwater::Result<_>>()?;
            self.headwater.producer(TOPIC).send_batch(&batch).await?;
            self.published += PORTION;
            tokio::time::sleep(Duration::from_millis(self.random.random_range(10..50))).await;
        }
        Ok(())
    }

    pub(crate) fn read<T>(&self, read: impl FnOnce(&Record) -> T) -> T {
        read(&self.record.lock().expect("no panic while held"))
    }

    /// Waits until the last message is handled and returns when; fails if that takes too long.
    pub(crate) async fn handled_at_us(&self, at_most: Duration) -> Result<u64> {
        let deadline = Instant::now() + at_most;
        while self.read(Record::finished) < self.published {
            let finished = self.read(Record::finished);
            ensure!(
                Instant::now() < deadline,
                "{finished} of {} messages are handled after {at_most:?}",
                self.published
            );
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        Ok(self.read(|record| record.finished_at_us().unwrap_or_default()))
    }
}

/// SIGTERM in the middle of a burst, repeatedly, beside a process that stays.
async fn terminate(stage: &mut Stage, rounds: u64) -> Result<Vec<Judged>> {
    let (_, other) = stage.start().await?;
    let (mut ending, mut rest, mut failed) = (vec![], vec![], 0);
    for round in 0..rounds {
        progress(&format!("SIGTERM {} of {rounds}", round + 1));
        let (_, process) = stage.start().await?;
        stage.burst().await?;
        let signalled = Instant::now();
        process.terminate()?;
        let status = process.ended(GRACE * 3).await?;
        ending.push(signalled.elapsed().as_secs_f64() * 1_000.0);
        failed += u64::from(!status.success());
        let ended_us = now_us();
        let handled_us = stage.handled_at_us(Duration::from_secs(60)).await?;
        rest.push(handled_us.saturating_sub(ended_us) as f64 / 1_000.0);
    }
    other.stop().await?;
    let grace_ms = GRACE.as_secs_f64() * 1_000.0;
    let shares = stage.read(Record::shares);
    let by_others = shares.iter().filter(|(process, _)| **process != 0).map(|(_, share)| share).sum::<u64>();
    Ok(vec![
        Judged::new(
            "SIGTERM to exit, longest",
            largest(&ending),
            Unit::Milliseconds,
            Floor::AtMost(grace_ms),
        ),
        Judged::none_of("processes that did not shut down gracefully", failed),
        Judged::new(
            "exit to all handled, longest",
            largest(&rest),
            Unit::Milliseconds,
            Floor::AtMost(REST_MAX_MS),
        )
        .note(format!("rounds: {}", list(&rest))),
        Judged::none_of("messages started twice", stage.read(Record::doubled)).note(format!(
            "{} messages, {by_others} of them first started by a process that ended",
            stage.published
        )),
        Judged::none_of("lines that make no sense", stage.read(|record| record.garbled)),
    ])
}

/// SIGKILL in the middle of a burst, beside a process that stays, at these times after its start in milliseconds.
async fn kill(stage: &mut Stage, moments: &[u64]) -> Result<Vec<Judged>> {
    let doubled_before = stage.read(Record::doubled);
    let (mut noticed, mut kills) = (vec![], vec![]);
    for moment in moments {
        progress(&format!("SIGKILL {moment} ms after the start"));
        let (_, other) = stage.start().await?;
        tokio::time::sleep(Duration::from_millis(200)).await;
        let (victim, process) = stage.start().await?;
        tokio::time::sleep(Duration::from_millis(*moment)).await;
        stage.burst().await?;
        let at_us = now_us();
        process.kill().await?;
        kills.push(Kill { process: victim, at_us });
        let handled_us = stage.handled_at_us(Duration::from_secs(330)).await?;
        noticed.push(handled_us.saturating_sub(at_us) as f64 / 1_000.0);
        other.stop().await?;
    }
    let doubled = stage.read(Record::doubled) - doubled_before;
    let worst = Judged::new(
        "SIGKILL to all handled, longest",
        largest(&noticed),
        Unit::Milliseconds,
        Floor::AtMost(NOTICED_MAX_MS),
    );
    Ok(vec![
        worst.note(format!("rounds: {}", list(&noticed))),
        Judged::none_of(
            "messages repeated that were not in flight",
            stage.read(|record| record.doubled_without_excuse(&kills, UNSETTLED_US)),
        )
        .note(format!("{doubled} were in flight and repeated")),
    ])
}

pub(crate) fn largest(figures: &[f64]) -> f64 {
    figures.iter().copied().fold(f64::NAN, f64::max)
}

pub(crate) fn list(figures: &[f64]) -> String {
    figures.iter().map(|figure| format!("{figure:.0} ms")).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_of_nothing_meets_no_floor() {
        assert_eq!(largest(&[1.0, 3.0, 2.0]), 3.0);
        assert!(largest(&[]).is_nan());
    }
}
