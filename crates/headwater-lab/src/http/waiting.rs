//! How soon a claim that waits returns after a publish.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::load::request;
use super::serve::Served;
use super::stream::acks_of;
use crate::check::{Floor, Judged, Unit, percentile_ms};

/// Time for a claim to begin to wait.
const REST: Duration = Duration::from_millis(20);
const WAIT_MS: u64 = 30_000;
const RETURNED_MS_MAX: f64 = 20.0;
const GROUP: &str = "waiting";

/// Times of claims.
#[derive(Debug, Default)]
pub(super) struct Waited {
    /// From the request that publishes to the answer of the claim: the commit is part of it.
    from_request: Vec<Duration>,
    /// From the answer of the publish. A claim that returned before it counts as zero.
    from_answer: Vec<Duration>,
}

impl Waited {
    /// Publishes to a topic of its own as often as this, each time while a claim waits. The message is then acked.
    pub(super) async fn measure(served: &Served, topic: &str, publishes: usize) -> Result<Self> {
        served.topic(topic, &[GROUP.to_owned()]).await?;
        let (mut publisher, mut claimer) = (served.client().await?, served.client().await?);
        let (publish, message) = request(topic, 1);
        let path = |verb: &str| format!("/v1/topics/{topic}/groups/{GROUP}/{verb}");
        let (claim, settle) = (path("claim"), path("settle"));
        let mut waited = Waited::default();
        for _ in 0..publishes {
            let claim = claim.clone();
            let claiming = tokio::spawn(async move {
                let answer = claimer.post(&claim, json!({ "wait_ms": WAIT_MS }).to_string()).await;
                (Instant::now(), answer, claimer)
            });
            tokio::time::sleep(REST).await;
            let requested = Instant::now();
            publisher.post(&publish, message.clone()).await?;
            let answered = Instant::now();
            let (returned, answer, client) = claiming.await?;
            claimer = client;
            waited.from_request.push(returned - requested);
            waited.from_answer.push(returned.saturating_duration_since(answered));
            let answer: Value = serde_json::from_slice(&answer?)?;
            let messages = answer["messages"].as_array().context("a claim without messages")?;
            ensure!(messages.len() == 1, "a claim returned {} messages", messages.len());
            let receipt = messages[0]["receipt"].as_str().context("a message without its receipt")?;
            publisher.post(&settle, acks_of(&[receipt.to_owned()])).await?;
        }
        Ok(waited)
    }

    /// `what` says beside what it was measured; the limit is for the quiet server.
    pub(super) fn judge(&self, what: &str, is_judged: bool) -> Vec<Judged> {
        let p99 = if is_judged { Floor::AtMost(RETURNED_MS_MAX) } else { Floor::None };
        let row = |name: &str, share, floor| {
            let time = percentile_ms(&self.from_request, share);
            let note = format!(
                "{} publishes; {:.2} ms after the answer of the publish",
                self.from_request.len(),
                percentile_ms(&self.from_answer, share)
            );
            let what = format!("publish to the return of a waiting claim{what}, {name}");
            Judged::new(&what, time, Unit::Milliseconds, floor).note(note)
        };
        vec![row("p50", 0.5, Floor::None), row("p99", 0.99, p99)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_late_claim_is_missed_if_there_are_enough_of_them() {
        let is_met = |late: usize, is_judged| {
            let time = |at| if at < late { Duration::from_millis(21) } else { Duration::from_millis(20) };
            let times: Vec<Duration> = (0..200).map(time).collect();
            let waited = Waited { from_request: times.clone(), from_answer: times };
            waited.judge("", is_judged).iter().all(Judged::is_met)
        };
        assert!(is_met(0, true) && is_met(1, true), "one of 200 is above the 99th percentile");
        assert!(!is_met(4, true) && is_met(4, false));
    }
}
