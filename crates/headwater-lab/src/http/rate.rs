//! Rates of the server over HTTP, and beside them those of NATS and RabbitMQ with the same work, in turns.
//!
//! A publish that is answered is committed with `synchronous = FULL`. What is published in batches is then received, by streams of one group, and acked.

use std::time::Instant;

use anyhow::Result;

use super::load::{self, Work, publish_rate, receive_rate};
use super::serve::Served;
use super::stream::{CREDIT_MAX, Received};
use super::{Setting, peers};
use crate::check::{Floor, Judged, Place, Unit, best, progress};
use crate::relay::{Kind, Live};

const BATCH: u64 = 100;
const BATCH_CONNECTIONS: usize = 8;
const SINGLE_CONNECTIONS: usize = 64;
/// Streams of a group, and consumers of a queue.
const STREAMS: usize = 4;
/// The group whose streams ack, and that whose streams do not.
const ACKED: &str = "acked";
const UNACKED: &str = "unacked";
const OWN: &str = "headwater";
const DURABILITY: &str = "SQLite, committed with synchronous = FULL before the answer";

/// Messages of a round.
#[derive(Clone, Copy, Debug)]
struct Counts {
    batched: u64,
    singles: u64,
}

pub(super) async fn run(place: &Place<'_>, setting: &Setting) -> Result<Vec<Judged>> {
    let counts = Counts { batched: setting.count(200_000, 50_000), singles: setting.count(60_000, 20_000) };
    let mut sides = vec![Side::Headwater(Served::start(place).await?)];
    let mut missing = Vec::new();
    for kind in [Kind::Nats, Kind::RabbitMq] {
        match Live::start(kind, &setting.work).await {
            Ok(live) => sides.push(Side::Broker(live)),
            Err(error) => missing.push((kind.name(), format!("{error:#}"))),
        }
    }
    let mut all: Vec<Rounds> = sides.iter().map(Side::rounds).collect();
    for side in &sides {
        progress(&format!("{}, warm-up", side.name()));
        side.round("warm-up", Counts { batched: 5_000, singles: 5_000 }).await?;
    }
    let rounds = usize::try_from(setting.count(3, 2))?;
    for round in 1..=rounds {
        for turn in 0..sides.len() {
            // No side is always the first one.
            let at = (round + turn) % sides.len();
            progress(&format!("{}, round {round} of {rounds}", sides[at].name()));
            all[at].add(sides[at].round(&format!("round-{round}"), counts).await?);
        }
    }
    for side in sides {
        if let Side::Headwater(served) = side {
            served.stop().await?;
        }
    }
    let mut judged = judge(&all[0], &all[1..]);
    for (name, error) in missing {
        let row = Judged::new(&format!("{name}, not measured"), f64::NAN, Unit::Count, Floor::None);
        judged.push(row.note(error));
    }
    Ok(judged)
}

/// What is measured.
enum Side {
    Headwater(Served),
    Broker(Live),
}

impl Side {
    fn name(&self) -> &'static str {
        match self {
            Side::Headwater(_) => OWN,
            Side::Broker(live) => live.kind().name(),
        }
    }

    /// Its rates, of which there is none yet.
    fn rounds(&self) -> Rounds {
        let durability = match self {
            Side::Headwater(_) => DURABILITY,
            Side::Broker(live) => peers::durability(live.kind()),
        };
        Rounds { name: self.name(), durability, ..Rounds::default() }
    }

    /// Publishes in batches, receives that, and publishes singly.
    async fn round(&self, name: &str, counts: Counts) -> Result<Measured> {
        let (batches, singles) = (format!("{name}-batches"), format!("{name}-singles"));
        let batched = Work { messages: counts.batched, batch: BATCH, connections: BATCH_CONNECTIONS };
        let single = Work { messages: counts.singles, batch: 1, connections: SINGLE_CONNECTIONS };
        match self {
            Side::Headwater(served) => {
                served.topic(&batches, &[ACKED.to_owned(), UNACKED.to_owned()]).await?;
                served.topic(&singles, &[ACKED.to_owned()]).await?;
                let publishers = load::publishers(served, &batches, batched).await?;
                let batch_rate = publish_rate(publishers, batched).await?;
                let (streamed, wrong) = stream_rate(served, &batches, ACKED, counts.batched).await?;
                let within_credit = counts.batched.min(CREDIT_MAX * STREAMS as u64);
                let (unacked, wrong_too) = stream_rate(served, &batches, UNACKED, within_credit).await?;
                let publishers = load::publishers(served, &singles, single).await?;
                let single_rate = publish_rate(publishers, single).await?;
                let wrong = wrong + wrong_too;
                Ok(Measured { batches: batch_rate, singles: single_rate, streamed, unacked, wrong })
            }
            Side::Broker(live) => {
                live.create(&batches).await?;
                live.create(&singles).await?;
                let publishers = peers::publishers(live, &batches, batched).await?;
                let batch_rate = publish_rate(publishers, batched).await?;
                let start = Instant::now();
                let receivers = peers::receivers(live, &batches, STREAMS).await?;
                let (streamed, _) = receive_rate(receivers, counts.batched, start).await?;
                let publishers = peers::publishers(live, &singles, single).await?;
                let single_rate = publish_rate(publishers, single).await?;
                let unacked = f64::NAN;
                Ok(Measured { batches: batch_rate, singles: single_rate, streamed, unacked, wrong: 0 })
            }
        }
    }
}

/// Messages per second through the streams of a group, and how many are missing or came twice.
async fn stream_rate(served: &Served, topic: &str, group: &str, messages: u64) -> Result<(f64, u64)> {
    // Streams bring messages as soon as they are open.
    let start = Instant::now();
    let mut receivers = Vec::with_capacity(STREAMS);
    for _ in 0..STREAMS {
        receivers.push(Received::open(served, topic, group, group == ACKED).await?);
    }
    let (rate, receivers) = receive_rate(receivers, messages, start).await?;
    let offsets = receivers.into_iter().flat_map(|receiver| receiver.offsets).collect();
    Ok((rate, wrong(offsets, messages)))
}

/// How many messages are missing, or are there more than once.
fn wrong(mut offsets: Vec<i64>, messages: u64) -> u64 {
    let received = offsets.len() as u64;
    offsets.sort_unstable();
    offsets.dedup();
    let distinct = offsets.len() as u64;
    (received - distinct) + messages.saturating_sub(distinct)
}

/// Rates of one round, in messages per second.
#[derive(Clone, Copy, Debug)]
struct Measured {
    batches: f64,
    singles: f64,
    streamed: f64,
    unacked: f64,
    wrong: u64,
}

/// Each round's rates of one side.
#[derive(Clone, Debug, Default)]
struct Rounds {
    name: &'static str,
    durability: &'static str,
    batches: Vec<f64>,
    singles: Vec<f64>,
    streamed: Vec<f64>,
    unacked: Vec<f64>,
    wrong: u64,
}

impl Rounds {
    fn add(&mut self, measured: Measured) {
        self.batches.push(measured.batches);
        self.singles.push(measured.singles);
        self.streamed.push(measured.streamed);
        self.unacked.push(measured.unacked);
        self.wrong += measured.wrong;
    }

    /// Each kind of work: its name, its floor for the server, and its rates.
    fn works(&self) -> [(String, f64, &[f64]); 3] {
        [
            (format!("publish x {BATCH}, {BATCH_CONNECTIONS} at a time"), 30_000.0, &self.batches),
            (format!("publish singly, {SINGLE_CONNECTIONS} at a time"), 10_000.0, &self.singles),
            (format!("deliver and ack, {STREAMS} readers of one group"), 100_000.0, &self.streamed),
        ]
    }
}

/// The best rounds: those of the server with their floors, then each peer's with the server's share of it.
fn judge(own: &Rounds, peers: &[Rounds]) -> Vec<Judged> {
    let list = |rates: &[f64]| rates.iter().map(|rate| format!("{rate:.0}")).collect::<Vec<_>>().join(" ");
    let rate = |side: &Rounds, what: &str, rates: &[f64], floor| {
        let what = format!("{}, {what}", side.name);
        let note = format!("rounds {}; {}", list(rates), side.durability);
        Judged::new(&what, best(rates), Unit::MessagesPerSecond, floor).note(note)
    };
    let mut judged = Vec::new();
    for (what, floor, rates) in own.works() {
        judged.push(rate(own, &what, rates, Floor::AtLeast(floor)));
    }
    let what = format!("deliver without acks, up to the credit of {STREAMS} readers");
    judged.push(rate(own, &what, &own.unacked, Floor::None));
    judged.push(Judged::none_of("streamed messages missing or twice", own.wrong));
    for peer in peers {
        for ((what, _, theirs), (_, _, ours)) in peer.works().into_iter().zip(own.works()) {
            judged.push(rate(peer, &what, theirs, Floor::None));
            let ratio = best(ours) / best(theirs);
            let what = format!("{OWN} to {}, {what}", peer.name);
            judged.push(Judged::new(&what, ratio, Unit::Times, Floor::None));
        }
    }
    judged
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rounds(batches: f64, singles: f64, streamed: f64, wrong: u64) -> Rounds {
        let mut rounds = Rounds { name: OWN, ..Rounds::default() };
        rounds.add(Measured { batches: 1.0, singles: 1.0, streamed: 1.0, unacked: 1.0, wrong: 0 });
        rounds.add(Measured { batches, singles, streamed, unacked: 1.0, wrong });
        rounds
    }

    #[test]
    fn a_slow_best_round_and_a_wrong_message_are_missed() {
        let is_met = |batches, singles, streamed, wrong| {
            judge(&rounds(batches, singles, streamed, wrong), &[]).iter().all(Judged::is_met)
        };
        assert!(is_met(30_000.0, 10_000.0, 100_000.0, 0));
        assert!(!is_met(29_999.0, 10_000.0, 100_000.0, 0));
        assert!(!is_met(30_000.0, 9_999.0, 100_000.0, 0));
        assert!(!is_met(30_000.0, 10_000.0, 99_999.0, 0));
        assert!(!is_met(30_000.0, 10_000.0, 100_000.0, 1));
        assert!(!judge(&Rounds::default(), &[]).iter().all(Judged::is_met), "no round is no rate");
    }

    #[test]
    fn peers_are_shown_with_a_ratio_and_not_judged() {
        let own = rounds(30_000.0, 10_000.0, 100_000.0, 0);
        let peer = Rounds { name: "nats", ..rounds(60_000.0, 5_000.0, 1e6, 0) };
        let judged = judge(&own, &[peer]);
        assert!(judged.iter().all(Judged::is_met));
        let ratios = judged.iter().filter(|one| one.figure.unit == Unit::Times);
        assert_eq!(ratios.map(|one| one.figure.amount).collect::<Vec<_>>(), [0.5, 2.0, 0.1]);
    }

    #[test]
    fn messages_that_are_missing_or_come_twice_are_counted() {
        assert_eq!(wrong(vec![3, 1, 2], 3), 0);
        assert_eq!(wrong(vec![1, 2], 3), 1);
        assert_eq!(wrong(vec![1, 2, 2, 3], 3), 1);
        assert_eq!(wrong(vec![1, 1, 2], 3), 2);
    }
}
