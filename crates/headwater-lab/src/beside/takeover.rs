//! One of two consumer processes is killed under load, repeatedly: the other one handles its messages soon, and once.

use std::time::Duration;

use anyhow::Result;
use rand::RngExt;

use super::{Place, Setting};
use crate::check::{Floor, Judged, Kill, Record, Unit, progress, settled, soundness};
use crate::runtime::ending::{GROUP, Stage, TOPIC, UNSETTLED_US, largest, list};
use crate::soak::history::now_us;

const TAKEN_OVER_MAX_MS: f64 = 3_000.0;
/// Bursts of messages before the burst during which a process is killed.
const LOADED: usize = 5;
/// A round ends after this time at the latest.
const ROUND_MAX: Duration = Duration::from_secs(45);

pub(super) async fn run(place: &Place<'_>, setting: &Setting) -> Result<Vec<Judged>> {
    let rounds = setting.count(20, 3);
    let headwater = place.open().await?;
    headwater.topic(TOPIC).create().await?;
    let mut stage = Stage::new(place, headwater, setting.seed);
    let mut living = stage.start().await?;
    let (mut taken, mut kills) = (vec![], vec![]);
    for round in 1..=rounds {
        progress(&format!("SIGKILL {round} of {rounds}"));
        let joined = stage.start().await?;
        // Long enough that most handled messages are settled, and at a random moment between two heartbeats.
        for _ in 0..LOADED {
            stage.burst().await?;
            let pause = stage.random.random_range(500..1_500);
            tokio::time::sleep(Duration::from_millis(pause)).await;
        }
        stage.burst().await?;
        let (process, victim) = std::mem::replace(&mut living, joined);
        let at_us = now_us();
        victim.kill().await?;
        kills.push(Kill { process, at_us });
        let handled_us = stage.handled_at_us(ROUND_MAX).await?;
        taken.push(handled_us.saturating_sub(at_us) as f64 / 1_000.0);
    }
    living.1.stop().await?;
    let done = settled(&stage.headwater, TOPIC, GROUP, Duration::from_secs(30)).await;
    let sound = soundness(&stage.headwater).await?;
    stage.headwater.close().await?;
    let mut judged = stage.read(|record| judge(record, &taken, &kills, rounds));
    judged.push(
        Judged::none_of("groups that are not done", u64::from(done.is_err()))
            .note(done.err().map(|error| format!("{error:#}")).unwrap_or_default()),
    );
    judged.push(sound);
    Ok(judged)
}

fn judge(record: &Record, taken: &[f64], kills: &[Kill], rounds: u64) -> Vec<Judged> {
    let in_time = Floor::AtMost(TAKEN_OVER_MAX_MS);
    vec![
        Judged::new("SIGKILL to all handled, longest", largest(taken), Unit::Milliseconds, in_time)
            .note(list(taken)),
        Judged::all_of("rounds", taken.len() as u64, rounds),
        Judged::none_of(
            "messages repeated that were not in flight",
            record.doubled_without_excuse(kills, UNSETTLED_US),
        )
        .note(format!("{} were in flight and repeated", record.doubled())),
        Judged::none_of("lines that make no sense", record.garbled),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_late_round_a_missing_round_and_a_repeat_are_missed() {
        let kills = [Kill { process: 0, at_us: 10_000_000 }];
        let record = |lines: &[(usize, &str)]| {
            let mut record = Record::default();
            lines.iter().for_each(|(process, line)| record.note(*process, line));
            record
        };
        let is_met = |lines: &[(usize, &str)], taken: &[f64]| {
            judge(&record(lines), taken, &kills, 2).iter().all(Judged::is_met)
        };
        let in_flight = [(0, "+ 1 9999000"), (1, "+ 1 11000000"), (1, "- 1 11000001")];
        assert!(is_met(&in_flight, &[100.0, 3_000.0]));
        assert!(!is_met(&in_flight, &[100.0, 3_001.0]) && !is_met(&in_flight, &[100.0]));
        assert!(!is_met(&in_flight, &[]));
        let done_long_before = [(0, "+ 1 1000"), (0, "- 1 2000"), (1, "+ 1 11000000"), (1, "- 1 11000001")];
        assert!(!is_met(&done_long_before, &[100.0, 100.0]));
    }
}
