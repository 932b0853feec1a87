//! Figures with their units, and what is computed from samples: the best, the middle, a percentile, both ends of a run.

use std::time::Duration;

use serde::Serialize;

/// A figure with its unit.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Figure {
    pub(crate) amount: f64,
    pub(crate) unit: Unit,
}

/// What a figure counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Unit {
    MessagesPerSecond,
    PerSecond,
    Milliseconds,
    Percent,
    Bytes,
    Count,
    /// How many times another figure.
    Times,
}

impl Figure {
    pub(crate) fn new(amount: f64, unit: Unit) -> Self {
        Figure { amount, unit }
    }

    /// The figure for people: short, with its unit.
    pub(crate) fn show(self) -> String {
        let Figure { amount, unit } = self;
        match unit {
            Unit::MessagesPerSecond => format!("{} msg/s", thousands(amount)),
            Unit::PerSecond => format!("{} /s", thousands(amount)),
            Unit::Milliseconds => format!("{amount:.2} ms"),
            Unit::Percent => format!("{amount:.2} %"),
            Unit::Bytes => format!("{amount:.0} B"),
            Unit::Count => format!("{amount:.0}"),
            Unit::Times => format!("{amount:.2} x"),
        }
    }
}

fn thousands(amount: f64) -> String {
    if amount >= 999_500.0 {
        format!("{:.2}M", amount / 1e6)
    } else if amount >= 10_000.0 {
        format!("{:.0}k", amount / 1e3)
    } else if amount >= 1_000.0 {
        format!("{:.1}k", amount / 1e3)
    } else {
        format!("{amount:.0}")
    }
}

/// The best figure of several rounds: on a noisy machine it is the one least disturbed.
pub(crate) fn best(rounds: &[f64]) -> f64 {
    rounds.iter().copied().fold(0.0, f64::max)
}

/// The middle of several rounds, for figures where neither end is the undisturbed one.
pub(crate) fn median(rounds: &[f64]) -> f64 {
    let mut sorted = rounds.to_vec();
    sorted.sort_by(f64::total_cmp);
    let (low, high) = (sorted[(sorted.len() - 1) / 2], sorted[sorted.len() / 2]);
    (low + high) / 2.0
}

/// A time in milliseconds.
pub(crate) fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1_000.0
}

/// The value below which this share of the samples lies, in milliseconds.
pub(crate) fn percentile_ms(samples: &[Duration], share: f64) -> f64 {
    assert!(!samples.is_empty(), "a percentile needs samples");
    let mut sorted = samples.to_vec();
    sorted.sort_unstable();
    let at = ((sorted.len() - 1) as f64 * share).round() as usize;
    ms(sorted[at])
}

/// The mean of the first and of the last third of samples taken at even intervals.
pub(crate) fn thirds(samples: &[f64]) -> Option<(f64, f64)> {
    let third = samples.len() / 3;
    if third == 0 {
        return None;
    }
    let mean = |part: &[f64]| part.iter().sum::<f64>() / part.len() as f64;
    Some((mean(&samples[..third]), mean(&samples[samples.len() - third..])))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_taken_from_the_sorted_samples() {
        let samples: Vec<_> = (1..=101).rev().map(Duration::from_millis).collect();
        assert_eq!(percentile_ms(&samples, 0.5), 51.0);
        assert_eq!(percentile_ms(&samples, 0.99), 100.0);
    }

    #[test]
    fn the_median_of_an_even_count_lies_between_the_middle_two() {
        assert_eq!(median(&[9.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 9.0]), 3.0);
    }

    #[test]
    fn thirds_are_the_ends_of_the_run() {
        assert_eq!(thirds(&[1.0, 3.0, 100.0, 100.0, 5.0, 7.0]), Some((2.0, 6.0)));
        assert_eq!(thirds(&[1.0, 50.0, 50.0, 9.0, 2.0]), Some((1.0, 2.0)));
        assert_eq!(thirds(&[1.0, 2.0]), None, "too few samples");
    }
}
