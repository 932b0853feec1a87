//! How long doctor takes for a group with very many outstanding ranges.

use std::time::{Duration, Instant};

use anyhow::Result;
use headwater::TopicSettings;
use headwater::store::Finding;

use super::waiting::{fill, retried};
use super::{Place, Setting};
use crate::check::{Floor, Judged, Unit, progress};

const DOCTOR_MAX_MS: f64 = 10_000.0;

pub(super) async fn run(place: &Place<'_>, setting: &Setting) -> Result<Vec<Judged>> {
    let ranges = setting.count(1_000_000, 100_000);
    fill(place, ("waiting", "workers"), TopicSettings::pub_sub(), ranges, &retried()).await?;
    let headwater = place.open().await?;
    let groups = headwater.store().subscriptions(&headwater::TopicName::new("waiting")?).await?;
    let waiting = groups.iter().map(|group| group.waiting).sum();
    progress("doctor");
    let begin = Instant::now();
    let findings = headwater.store().doctor().await;
    let took = begin.elapsed();
    headwater.close().await?;
    Ok(judge(took, &findings, waiting, ranges))
}

fn judge(
    took: Duration,
    findings: &headwater::Result<Vec<Finding>>,
    waiting: u64,
    ranges: u64,
) -> Vec<Judged> {
    let (failed, found) = match findings {
        Ok(found) => (None, &found[..]),
        Err(error) => (Some(error.to_string()), &[][..]),
    };
    let words: Vec<String> =
        found.iter().map(|finding| format!("{}: {}", finding.check, finding.problem)).collect();
    let took_ms = took.as_secs_f64() * 1_000.0;
    vec![
        Judged::new("doctor", took_ms, Unit::Milliseconds, Floor::AtMost(DOCTOR_MAX_MS)),
        Judged::none_of("runs of doctor that failed", u64::from(failed.is_some()))
            .note(failed.unwrap_or_default()),
        Judged::none_of("problems found in the store", words.len() as u64).note(words.join("; ")),
        Judged::new("messages waiting", waiting as f64, Unit::Count, Floor::AtLeast(ranges as f64)),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slow_a_failed_and_an_easy_doctor_are_missed() {
        let is_met = |seconds, findings: &headwater::Result<Vec<Finding>>, waiting| {
            judge(Duration::from_secs(seconds), findings, waiting, 100).iter().all(Judged::is_met)
        };
        let failed = headwater::TopicName::new("").map(|_| vec![]);
        assert!(is_met(10, &Ok(vec![]), 100));
        assert!(!is_met(11, &Ok(vec![]), 100));
        assert!(!is_met(1, &failed, 100), "a doctor that gives up is fast");
        assert!(!is_met(1, &Ok(vec![]), 99), "fewer ranges than promised");
    }
}
