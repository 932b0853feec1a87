//! Each broker in turn is down for a while under a load: everything arrives in order, only what was under way is sent again, and the relays
//! to the other brokers are not delayed.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::Result;
use headwater::Headwater;
use headwater_relay::testing::checker::Found;
use headwater_relay::{Delivery, Record, Relay, RelaySettings, RunningRelay, Source};
use headwater_servers::Stop;

use super::Setting;
use super::brokers::{Kind, Live};
use super::load::{Load, judge_arrivals, occurrences};
use super::observed::{Observed, Observer};
use crate::check::publish::parse;
use crate::check::{
    Floor, GRACE, Judged, Place, Unit, eventually, ms, percentile_ms, progress, settled, soundness,
};
use crate::soak::history::now_us;

const TOPIC: &str = "outage";
const PER_SECOND: u64 = 400;
/// Bounds the load, whatever the outages take.
const MESSAGES_MAX: u64 = 300_000;
const DELAY_MAX_MS: f64 = 1_000.0;
/// Time of load before each outage.
const BEFORE: Duration = Duration::from_secs(3);
/// A relay asks a broker that is down at least every 30 s whether it is back.
const BACK_MAX: Duration = Duration::from_secs(120);

/// What a relay sent, and when it was confirmed.
#[derive(Debug, Default)]
struct Sent {
    calls: Mutex<Calls>,
}

#[derive(Debug, Default)]
struct Calls {
    /// How often each id was given to the sink.
    sent: HashMap<String, u64>,
    confirmed: HashSet<String>,
    /// Records that were given to the sink although it had confirmed them.
    again: u64,
    confirmations: Vec<Confirmation>,
}

/// A record that the sink confirmed: its number, when it was published, and how long that took.
#[derive(Clone, Copy, Debug)]
struct Confirmation {
    number: u64,
    published_us: u64,
    delay: Duration,
}

impl Observer for Sent {
    fn begins(&self, records: &[Record]) {
        let mut calls = self.calls.lock().expect("no panic while held");
        for record in records {
            *calls.sent.entry(record.message_id.clone()).or_default() += 1;
            calls.again += u64::from(calls.confirmed.contains(&record.message_id));
        }
    }

    fn ends(&self, records: &[Record], deliveries: &[Delivery]) {
        let mut calls = self.calls.lock().expect("no panic while held");
        let at_us = now_us();
        for (record, delivery) in records.iter().zip(deliveries) {
            if *delivery == Delivery::Delivered {
                calls.confirmed.insert(record.message_id.clone());
                // A payload without a number counts as not delivered.
                if let Ok((number, published_us)) = parse(&record.payload) {
                    let delay = Duration::from_micros(at_us.saturating_sub(published_us));
                    calls.confirmations.push(Confirmation { number, published_us, delay });
                }
            }
        }
    }
}

/// A broker, and the relay to it.
struct Line {
    live: Live,
    sink: Arc<Observed<Sent>>,
    relay: RunningRelay,
}

impl Line {
    async fn start(headwater: &Headwater, kind: Kind, setting: &Setting) -> Result<Self> {
        let live = Live::start(kind, &setting.work).await?;
        live.create(TOPIC).await?;
        let sink = Arc::new(Observed::new(&live.target(TOPIC), Sent::default())?);
        let settings = RelaySettings { max_attempts: Some(1_000), ..RelaySettings::default() };
        let relay = Relay::new(headwater, Source::Topic(TOPIC.into()), sink.clone()).settings(settings);
        Ok(Line { live, sink, relay: relay.run().await? })
    }

    /// Whether the first so many messages are confirmed.
    fn has_delivered(&self, messages: u64) -> bool {
        let calls = self.sink.observer.calls.lock().expect("no panic while held");
        calls.confirmations.iter().filter(|one| one.number < messages).count() as u64 >= messages
    }

    /// The delays of what was published in this time.
    fn delays(&self, outage: &Outage) -> Vec<Duration> {
        let calls = self.sink.observer.calls.lock().expect("no panic while held");
        let during = |one: &&Confirmation| outage.during_us.contains(&one.published_us);
        calls.confirmations.iter().filter(during).map(|one| one.delay).collect()
    }
}

/// When a broker was down, by the clock of the publisher, and how long its relay took to catch up.
struct Outage {
    kind: Kind,
    during_us: std::ops::Range<u64>,
    caught_up: Duration,
}

pub(super) async fn run(place: &Place<'_>, setting: &Setting) -> Result<Vec<Judged>> {
    let down = Duration::from_secs(setting.count(30, 8));
    let headwater = place.open().await?;
    headwater.topic(TOPIC).pub_sub().create().await?;
    let mut lines = Vec::new();
    for kind in Kind::ALL {
        lines.push(Line::start(&headwater, kind, setting).await?);
    }
    let load = Load::start(&headwater, TOPIC, PER_SECOND, MESSAGES_MAX);
    let mut outages = Vec::new();
    for line in &mut lines {
        tokio::time::sleep(BEFORE).await;
        outages.push(break_one(line, &load, down).await?);
    }
    let published = load.stop().await?;
    let mut left = Vec::new();
    for line in &lines {
        let group = format!("relay-{}", line.live.kind().name());
        left.push(settled(&headwater, TOPIC, &group, BACK_MAX).await);
    }
    // Only now every delay is known.
    let mut judged: Vec<Judged> = outages.iter().flat_map(|outage| judge_outage(outage, &lines)).collect();
    for (line, left) in lines.into_iter().zip(left) {
        let kind = line.live.kind();
        line.relay.shutdown(GRACE).await?;
        let found = line.live.read(TOPIC).await?;
        judged.extend(judge_arrivals(kind.name(), &published, &found));
        judged.extend(judge_repeats(kind.name(), &line.sink.observer, &found));
        judged.push(
            Judged::none_of(&format!("{}, groups that are not done", kind.name()), u64::from(left.is_err()))
                .note(left.err().map(|error| format!("{error:#}")).unwrap_or_default()),
        );
    }
    judged.push(soundness(&headwater).await?);
    headwater.close().await?;
    Ok(judged)
}

/// Stops a broker for a while, and waits until its relay has delivered what was published before it was back.
async fn break_one(line: &mut Line, load: &Load, down: Duration) -> Result<Outage> {
    let kind = line.live.kind();
    progress(&format!("{} is down for {down:?}", kind.name()));
    let from_us = now_us();
    line.live.stop(Stop::Fast)?;
    tokio::time::sleep(down).await;
    line.live.recover().await?;
    let (during_us, back, backlog) = (from_us..now_us(), Instant::now(), load.published());
    eventually("a relay has caught up", BACK_MAX, async || Ok(line.has_delivered(backlog))).await?;
    Ok(Outage { kind, during_us, caught_up: back.elapsed() })
}

fn judge_outage(outage: &Outage, lines: &[Line]) -> Vec<Judged> {
    let name = outage.kind.name();
    let mut judged = vec![Judged::new(
        &format!("{name} is back: until everything is delivered"),
        ms(outage.caught_up),
        Unit::Milliseconds,
        Floor::None,
    )];
    for other in lines.iter().filter(|other| other.live.kind() != outage.kind) {
        let what = format!("{name} down, p99 delay to {}", other.live.kind().name());
        judged.push(judge_delays(&what, &other.delays(outage)));
    }
    judged
}

fn judge_delays(what: &str, delays: &[Duration]) -> Judged {
    let of = |share| if delays.is_empty() { f64::NAN } else { percentile_ms(delays, share) };
    Judged::new(what, of(0.99), Unit::Milliseconds, Floor::AtMost(DELAY_MAX_MS)).note(format!(
        "of {}; median {:.1} ms, longest {:.0} ms",
        delays.len(),
        of(0.5),
        of(1.0)
    ))
}

/// Only what was not confirmed is sent again, and each arrives at most as often as it was sent.
fn judge_repeats(what: &str, sent: &Sent, found: &[Found]) -> Vec<Judged> {
    let calls = sent.calls.lock().expect("no panic while held");
    let more = occurrences(found)
        .into_iter()
        .filter(|(id, count)| *count > calls.sent.get(*id).copied().unwrap_or_default())
        .count();
    let repeated = calls.sent.values().filter(|count| **count > 1).count();
    vec![
        Judged::none_of(&format!("{what}, confirmed and sent again"), calls.again)
            .note(format!("{repeated} were under way and sent again")),
        Judged::none_of(&format!("{what}, arrived more often than sent"), more as u64),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use headwater_relay::testing::record;

    #[test]
    fn a_record_that_is_sent_again_after_its_confirmation_is_violated() {
        let (sent, records) = (Sent::default(), [record(1, Some("a")), record(2, Some("a"))]);
        let found = |ids: &[&str]| -> Vec<Found> {
            ids.iter().map(|id| Found { id: (*id).into(), key: "a".into(), partition: 0 }).collect()
        };
        let is_met = |ids: &[&str]| judge_repeats("x", &sent, &found(ids)).iter().all(Judged::is_met);
        sent.begins(&records);
        assert!(is_met(&["id-1", "id-2"]) && !is_met(&["id-1", "id-1"]));
        // The first call was not confirmed.
        sent.begins(&records);
        sent.ends(&records, &[Delivery::Delivered, Delivery::Delivered]);
        assert!(is_met(&["id-1", "id-1", "id-2"]));
        sent.begins(&records[..1]);
        assert!(!is_met(&["id-1", "id-2"]));
    }

    #[test]
    fn late_deliveries_and_none_at_all_are_violated() {
        let delays = |ms: &[u64]| ms.iter().copied().map(Duration::from_millis).collect::<Vec<_>>();
        assert!(judge_delays("x", &delays(&[10, 900])).is_met());
        assert!(!judge_delays("x", &delays(&[10, 1_100])).is_met() && !judge_delays("x", &[]).is_met());
    }
}
