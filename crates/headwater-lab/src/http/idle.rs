//! Clients that wait: what they cost the server, whether its memory stays flat, and whether each is answered in the end.

use std::time::{Duration, Instant};

use anyhow::Result;

use super::Setting;
use super::load::request;
use super::polls::{Idle, timed_out};
use super::serve::Served;
use super::waiting::Waited;
use crate::check::{Floor, Judged, Place, Unit, progress};
use crate::machine::{cpu_time_of, raise_open_files, resident_bytes_of};

const POLLS: usize = 1_000;
const STREAMS: usize = 200;
/// Groups of the polls, and of the streams.
const GROUPS: usize = 10;
/// Polls whose time ends without a message.
const TIMED: usize = 100;
const TIMED_WAIT: Duration = Duration::from_secs(3);
const TIMED_LATE_MAX: Duration = Duration::from_secs(1);
/// How long after a publish all clients must have their message.
const ANSWERED_MAX: Duration = Duration::from_secs(20);
/// Claims that are measured.
const PUBLISHES: usize = 200;
/// Time for the work of the last connections to end.
const SETTLE: Duration = Duration::from_secs(3);
const SAMPLE_EVERY: Duration = Duration::from_secs(1);
/// Memory may grow by a tenth, or by this much.
const GROWTH_MIB_MAX: f64 = 4.0;

pub(super) async fn run(place: &Place<'_>, setting: &Setting) -> Result<Vec<Judged>> {
    let hold = Duration::from_secs(setting.count(60, 15));
    raise_open_files()?;
    let served = Served::start(place).await?;
    let groups: Vec<String> = (0..GROUPS).map(|group| format!("group-{group}")).collect();
    for topic in ["polls", "streams", "quiet"] {
        served.topic(topic, &groups).await?;
    }
    progress(&format!("{PUBLISHES} publishes while a claim waits"));
    let waited = Waited::measure(&served, "waiting", PUBLISHES).await?;

    progress(&format!("{POLLS} long polls and {STREAMS} streams"));
    let before_bytes = resident_bytes_of(served.pid())?;
    // Longer than all that follows: a poll that ends by its time would count as not answered.
    let wait = hold + Duration::from_secs(300);
    let polls = Idle::polls(&served, "polls", &groups, POLLS / GROUPS, wait).await?;
    let streams = Idle::streams(&served, "streams", &groups, STREAMS / GROUPS).await?;
    polls.opened(&served, "claim").await?;
    streams.opened(&served, "stream").await?;
    tokio::time::sleep(SETTLE).await;
    progress(&format!("all of them wait for {} s", hold.as_secs()));
    let held = Held::measure(place, &served, before_bytes, hold).await?;

    let timed = timed_out(&served, "quiet", &groups[0], TIMED, TIMED_WAIT, TIMED_LATE_MAX).await?;
    let beside = Waited::measure(&served, "waiting-beside", PUBLISHES).await?;
    progress("a message for each of them");
    let answers = Answers::measure(&served, polls, streams).await?;
    served.stop().await?;

    let mut judged = waited.judge("", true);
    judged.extend(beside.judge(&format!(" beside {} idle clients", POLLS + STREAMS), false));
    judged.extend(held.judge());
    judged.extend(answers.judge());
    judged.push(Judged::all_of("polls without a message that end empty and in time", timed, TIMED as u64));
    Ok(judged)
}

/// What the server used while all clients waited.
#[derive(Debug)]
struct Held {
    /// Memory before the first of them connected.
    before_bytes: u64,
    /// Memory since all of them are connected, at even intervals.
    bytes: Vec<u64>,
    /// Of a core, in percent.
    server_percent: f64,
    backends_percent: f64,
}

impl Held {
    async fn measure(place: &Place<'_>, served: &Served, before_bytes: u64, hold: Duration) -> Result<Self> {
        let (server, backends) = ([served.pid()], place.backends().await?);
        let (server_before, backends_before) = (cpu_time_of(&server), cpu_time_of(&backends));
        let start = Instant::now();
        let mut bytes = vec![resident_bytes_of(served.pid())?];
        while start.elapsed() < hold {
            tokio::time::sleep(SAMPLE_EVERY).await;
            bytes.push(resident_bytes_of(served.pid())?);
        }
        let (server_after, backends_after) = (cpu_time_of(&server), cpu_time_of(&backends));
        let elapsed_s = start.elapsed().as_secs_f64();
        let percent = |before: Duration, after: Duration| {
            after.saturating_sub(before).as_secs_f64() / elapsed_s * 100.0
        };
        let server_percent = percent(server_before, server_after);
        let backends_percent = percent(backends_before, backends_after);
        Ok(Held { before_bytes, bytes, server_percent, backends_percent })
    }

    fn judge(&self) -> Vec<Judged> {
        let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        let samples = &self.bytes;
        let connected = samples.first().map_or(f64::NAN, |bytes| mib(*bytes));
        // One sample alone does not show that memory is flat.
        let most = samples.iter().skip(1).max().map_or(f64::NAN, |bytes| mib(*bytes));
        let allowed = GROWTH_MIB_MAX.max(connected / 10.0);
        let clients = (POLLS + STREAMS) as f64;
        let each_kib = (connected - mib(self.before_bytes)) * 1_024.0 / clients;
        let note = format!("{connected:.1} MiB at first, {most:.1} MiB at most, {} samples", samples.len());
        let backends = format!("its backends {:.2} %", self.backends_percent);
        vec![
            Judged::new(
                "memory growth in MiB while all wait",
                most - connected,
                Unit::Count,
                Floor::AtMost(allowed),
            )
            .note(note),
            Judged::new("memory of an idle client in KiB", each_kib, Unit::Count, Floor::None)
                .note(format!("{:.1} MiB before the first one", mib(self.before_bytes))),
            Judged::new("of a core while all wait", self.server_percent, Unit::Percent, Floor::None)
                .note(backends),
        ]
    }
}

/// What the clients got.
#[derive(Debug)]
struct Answers {
    polls: u64,
    streams: u64,
    /// Until the last one had its message.
    polls_ms: f64,
    streams_ms: f64,
}

impl Answers {
    /// Publishes a message for each client, first to the polls.
    async fn measure(served: &Served, polls: Idle, streams: Idle) -> Result<Self> {
        let mut client = served.client().await?;
        let (mut counts, mut times) = (Vec::new(), Vec::new());
        for (topic, idle) in [("polls", polls), ("streams", streams)] {
            let (path, body) = request(topic, (idle.count() / GROUPS) as u64);
            let start = Instant::now();
            client.post(&path, body).await?;
            counts.push(idle.answered(ANSWERED_MAX).await?);
            times.push(start.elapsed().as_secs_f64() * 1_000.0);
        }
        Ok(Answers { polls: counts[0], streams: counts[1], polls_ms: times[0], streams_ms: times[1] })
    }

    fn judge(&self) -> Vec<Judged> {
        let last = |time_ms: f64| format!("the last one after {time_ms:.0} ms");
        vec![
            Judged::all_of("long polls that get a message of their own", self.polls, POLLS as u64)
                .note(last(self.polls_ms)),
            Judged::all_of("streams that get a message of their own", self.streams, STREAMS as u64)
                .note(last(self.streams_ms)),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_flat(mib: &[u64]) -> bool {
        let bytes = mib.iter().map(|mib| mib << 20).collect();
        let held = Held { before_bytes: 20 << 20, bytes, server_percent: 1.0, backends_percent: 0.0 };
        held.judge().iter().all(Judged::is_met)
    }

    #[test]
    fn memory_that_grows_and_memory_that_was_not_seen_are_missed() {
        assert!(is_flat(&[30, 34, 33]) && is_flat(&[30, 29]), "a few MiB are allowed");
        assert!(is_flat(&[100, 110]) && !is_flat(&[100, 111, 100]), "a tenth is allowed");
        assert!(!is_flat(&[30, 35]) && !is_flat(&[30]) && !is_flat(&[]));
    }

    #[test]
    fn a_client_without_an_answer_is_missed() {
        let is_met = |polls, streams| {
            let answers = Answers { polls, streams, polls_ms: 1.0, streams_ms: 1.0 };
            answers.judge().iter().all(Judged::is_met)
        };
        assert!(is_met(1_000, 200));
        assert!(!is_met(999, 200) && !is_met(1_000, 199));
    }
}
