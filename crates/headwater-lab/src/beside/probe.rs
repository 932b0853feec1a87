//! The probe measured beside a neighbour: one group of a topic that gets a message at intervals.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Result;
use headwater::store::{ClaimRequest, Owner, Settlement, Store, Want};
use headwater::{GroupName, Headwater, NewMessage, Start, TopicName, TopicSettings};

use crate::check::{Floor, Judged, percentile_ms};

/// Claims beside a neighbour take at most this many times as long as on the quiet store.
pub(super) const TIMES_MAX: f64 = 2.0;
/// Fewer samples are not judged.
const SAMPLES_MIN: usize = 20;
/// The pause between two messages. For 20 ms after a search of unfinished offsets a claim does not even ask whether one is needed: at
/// this pace every claim asks.
const PACE: Duration = Duration::from_millis(25);
/// The rounds of one measurement, and those of its warm-up.
const ROUNDS: usize = 100;
const WARM_UP: usize = 20;
/// They end after this time, however many rounds there were.
const MEASURE_MAX: Duration = Duration::from_secs(60);
const WARM_UP_MAX: Duration = Duration::from_secs(5);
const ERRORS_MAX: usize = 3;
/// A message that takes longer than this counts as not delivered.
const DELIVERED_MAX: Duration = Duration::from_secs(2);

/// Publishes and claims as programs do.
pub(super) struct Probe {
    store: Arc<dyn Store>,
    pub(super) topic: TopicName,
    request: ClaimRequest,
}

impl Probe {
    /// A topic with one group.
    pub(super) async fn new(headwater: &Headwater, topic: &str) -> Result<Self> {
        let store = Arc::clone(headwater.store());
        let name = TopicName::new(topic)?;
        store.create_topic(&name, &TopicSettings::pub_sub()).await?;
        let subscription = store.subscribe(&name, &GroupName::new("probe")?, Start::Beginning).await?;
        let wants = vec![Want::new(subscription.subscription_id, 100)];
        let request = ClaimRequest { owner: Owner::new(format!("probe of {topic}"))?, wants };
        Ok(Probe { store, topic: name, request })
    }

    /// Measures at a slow pace.
    pub(super) async fn measure(&self) -> Times {
        self.rounds(WARM_UP, WARM_UP_MAX).await;
        self.rounds(ROUNDS, MEASURE_MAX).await
    }

    /// Ends after this many rounds, after this time, or after too many failures.
    async fn rounds(&self, rounds: usize, at_most: Duration) -> Times {
        let (mut times, begin) = (Times::default(), Instant::now());
        while times.rounds < rounds && begin.elapsed() < at_most && times.errors.len() < ERRORS_MAX {
            self.round(&mut times).await;
            tokio::time::sleep(PACE).await;
        }
        times
    }

    /// One message is published, claimed and acked. Failures are recorded.
    pub(super) async fn round(&self, times: &mut Times) {
        times.rounds += 1;
        if let Err(error) = self.try_round(times).await {
            times.errors.push(format!("{error:#}"));
        }
    }

    /// Publishes one message.
    pub(super) async fn publish(&self, times: &mut Times) -> Result<()> {
        let begin = Instant::now();
        let published = self.store.publish(&self.topic, &[NewMessage::new("x")]).await;
        // A call that fails has made its caller wait too.
        times.publish.push(begin.elapsed());
        Ok(published.map(drop)?)
    }

    async fn try_round(&self, times: &mut Times) -> Result<()> {
        let begin = Instant::now();
        self.publish(times).await?;
        while begin.elapsed() < DELIVERED_MAX {
            let start = Instant::now();
            let claimed = self.store.claim(&self.request).await;
            times.claim.push(start.elapsed());
            let claimed = claimed?;
            if claimed.leases.is_empty() {
                let pause = claimed.recheck_after.unwrap_or(PACE);
                tokio::time::sleep(pause.clamp(Duration::from_millis(1), PACE)).await;
                continue;
            }
            times.delivered.push(begin.elapsed());
            let acks: Vec<Settlement> = claimed.leases.iter().map(Settlement::ack_all).collect();
            for settled in self.store.settle(&acks).await? {
                settled?;
            }
            return Ok(());
        }
        times.undelivered += 1;
        Ok(())
    }
}

/// The measurements of a probe.
#[derive(Debug, Default)]
pub(super) struct Times {
    pub(super) rounds: usize,
    pub(super) publish: Vec<Duration>,
    pub(super) claim: Vec<Duration>,
    /// From the publish call to the claim that returned the message.
    pub(super) delivered: Vec<Duration>,
    pub(super) undelivered: u64,
    pub(super) errors: Vec<String>,
}

impl Times {
    pub(super) fn extend(&mut self, other: Times) {
        self.rounds += other.rounds;
        self.publish.extend(other.publish);
        self.claim.extend(other.claim);
        self.delivered.extend(other.delivered);
        self.undelivered += other.undelivered;
        self.errors.extend(other.errors);
    }

    /// Judges the measurements beside a neighbour by those without it.
    pub(super) fn judge(&self, quiet: &Times) -> Vec<Judged> {
        let worst = longest_ms(&self.claim);
        vec![
            compare("claim, median", &quiet.claim, &self.claim, 0.5, Floor::AtMost(TIMES_MAX))
                .note(format!("{} claims, longest {worst:.1} ms", self.claim.len())),
            compare("publish to claimed, median", &quiet.delivered, &self.delivered, 0.5, Floor::None),
            compare("publish, median", &quiet.publish, &self.publish, 0.5, Floor::None),
            Judged::none_of("messages not delivered within 2 s", quiet.undelivered + self.undelivered),
            failures(&[&quiet.errors[..], &self.errors].concat()),
        ]
    }
}

/// Calls that failed: there must be none.
pub(super) fn failures(errors: &[String]) -> Judged {
    Judged::none_of("calls that failed", errors.len() as u64)
        .note(errors.first().cloned().unwrap_or_default())
}

/// The same share of the samples on both sides.
pub(super) fn compare(
    what: &str,
    quiet: &[Duration],
    beside: &[Duration],
    share: f64,
    floor: Floor,
) -> Judged {
    let judged = Judged::beside(what, milliseconds(quiet, share), milliseconds(beside, share), TIMES_MAX);
    Judged { floor, ..judged }
}

/// The value below which this share of the samples lies; no number where there are too few.
pub(super) fn milliseconds(samples: &[Duration], share: f64) -> f64 {
    if samples.len() < SAMPLES_MIN {
        return f64::NAN;
    }
    percentile_ms(samples, share)
}

/// The longest of the samples, however few; no number where there are none.
pub(super) fn longest_ms(samples: &[Duration]) -> f64 {
    samples.iter().max().map_or(f64::NAN, |longest| longest.as_secs_f64() * 1_000.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times(claim_ms: &[u64]) -> Times {
        let claim: Vec<Duration> = claim_ms.iter().map(|ms| Duration::from_millis(*ms)).collect();
        Times { publish: claim.clone(), delivered: claim.clone(), claim, ..Times::default() }
    }

    fn is_met(judged: &[Judged]) -> bool {
        judged.iter().all(Judged::is_met)
    }

    #[test]
    fn slow_claims_are_missed_and_fast_ones_met() {
        let quiet = times(&[1; 50]);
        assert!(is_met(&times(&[2; 50]).judge(&quiet)));
        assert!(!is_met(&times(&[3; 50]).judge(&quiet)));
    }

    #[test]
    fn a_measurement_that_saw_too_little_is_missed() {
        let (few, enough) = (times(&[1; 5]), times(&[1; 50]));
        assert!(!is_met(&few.judge(&enough)), "the neighbour stopped the claims");
        assert!(!is_met(&enough.judge(&few)), "no baseline to compare with");
        assert!(!is_met(&times(&[]).judge(&times(&[]))));
        assert!(longest_ms(&[]).is_nan() && longest_ms(&times(&[3, 9]).claim) > 8.9);
    }

    #[test]
    fn fast_claims_that_bring_nothing_or_fail_are_missed() {
        let quiet = times(&[1; 50]);
        let failed = Times { errors: vec!["busy".into()], ..times(&[1; 50]) };
        let undelivered = Times { undelivered: 1, ..times(&[1; 50]) };
        assert!(!is_met(&failed.judge(&quiet)) && !is_met(&undelivered.judge(&quiet)));
    }
}
