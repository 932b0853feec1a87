//! A dedicated topic is created while a transaction that published stays open: tables of the log are attached under locks.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::Result;
use headwater::topic::Partition;
use headwater::{Headwater, TopicName, TopicSettings};

use super::Place;
use super::open_transaction::OpenTransaction;
use super::probe::{Probe, Times, failures, longest_ms};
use crate::check::{Floor, Judged, Unit, progress};

const ATTEMPTS: usize = 3;
const WAIT_MAX_MS: f64 = 250.0;
/// How long the other topics are measured at least.
const WATCHED_MIN: Duration = Duration::from_secs(3);

pub(super) async fn run(place: &Place<'_>) -> Result<Vec<Judged>> {
    let headwater = place.open().await?;
    let probe = Probe::new(&headwater, "other").await?;
    let published = Probe::new(&headwater, "published").await?;
    // Warm-up: planning of the first calls is not caused by the neighbour.
    let quiet = probe.measure().await;
    let third = TopicName::new("third")?;
    headwater.store().create_topic(&third, &TopicSettings::pub_sub()).await?;
    let open = OpenTransaction::begin(place, &headwater, "READ COMMITTED").await?;
    open.publish(&third, 1).await?;
    progress("creating a dedicated topic beside an open transaction");
    let creator = place.open().await?;
    let is_over = AtomicBool::new(false);
    let (attempts, mut beside, publishes) = tokio::join!(
        async {
            let attempts = create(&creator).await;
            is_over.store(true, Ordering::Relaxed);
            attempts
        },
        watch(&is_over, async |times| probe.round(times).await),
        // In a loop of its own: a publish must not wait for a claim to end.
        watch(&is_over, async |times| {
            if let Err(error) = published.publish(times).await {
                times.errors.push(format!("{error:#}"));
            }
        }),
    );
    beside.extend(publishes);
    open.roll_back().await?;
    let created = creator.topic("dedicated").pub_sub().dedicated(Partition::Day).create().await;
    creator.close().await?;
    headwater.close().await?;
    let mut judged = judge(&beside, &attempts);
    judged.push(
        Judged::none_of("creations that failed with nothing open", u64::from(created.is_err()))
            .note(created.err().map(|error| error.to_string()).unwrap_or_default()),
    );
    judged.push(failures(&[quiet.errors, beside.errors].concat()));
    Ok(judged)
}

fn judge(beside: &Times, attempts: &[(Duration, Option<String>)]) -> Vec<Judged> {
    let wait = |what: &str, samples: &[Duration]| {
        Judged::new(what, longest_ms(samples), Unit::Milliseconds, Floor::AtMost(WAIT_MAX_MS))
            .note(format!("{} calls", samples.len()))
    };
    let took: Vec<String> = attempts
        .iter()
        .map(|(took, error)| {
            let error = error.as_deref().unwrap_or("created");
            format!("{:.1} s: {error}", took.as_secs_f64())
        })
        .collect();
    let failed = attempts.iter().filter(|(_, error)| error.is_some()).count();
    vec![
        wait("longest publish of another topic", &beside.publish),
        wait("longest claim of another topic", &beside.claim),
        Judged::new("creations refused meanwhile", failed as f64, Unit::Count, Floor::None)
            .note(took.join("; ")),
    ]
}

/// Tries to create it; returns how long each attempt took, and the error if it failed.
async fn create(headwater: &Headwater) -> Vec<(Duration, Option<String>)> {
    let mut attempts = vec![];
    for number in 0..ATTEMPTS {
        let begin = Instant::now();
        let topic = headwater.topic(&format!("dedicated-{number}")).pub_sub();
        let created = topic.dedicated(Partition::Day).create().await;
        attempts.push((begin.elapsed(), created.err().map(|error| error.to_string())));
    }
    attempts
}

/// Calls without a pause until the attempts are over.
async fn watch(is_over: &AtomicBool, call: impl AsyncFn(&mut Times)) -> Times {
    let (mut times, begin) = (Times::default(), Instant::now());
    while !is_over.load(Ordering::Relaxed) || begin.elapsed() < WATCHED_MIN {
        call(&mut times).await;
    }
    times
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_long_wait_is_missed_and_so_is_nothing_watched() {
        let times = |longest_ms| {
            let mut samples = vec![Duration::from_millis(1); 100];
            samples.push(Duration::from_millis(longest_ms));
            Times { publish: samples.clone(), claim: samples, ..Times::default() }
        };
        let is_met = |times: &Times| judge(times, &[]).iter().all(Judged::is_met);
        assert!(is_met(&times(250)) && !is_met(&times(251)));
        assert!(!is_met(&Times::default()));
    }
}
