//! How fast a backfill goes: a pure controller that watches the database and gives way to applications.
//!
//! It is told how long each batch took and how long a probe, a small read as applications do them. While the 95th
//! percentile of either is over its target, batches are halved and the pause between them grows; while both are well
//! below, they grow again, never beyond the rate the backfill was allowed.

use std::collections::VecDeque;
use std::time::Duration;

use crate::limits::UPKEEP_MESSAGES_MAX;

/// How much of the database backfills may take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum BackfillPace {
    /// Gives way early: small batches, and pauses as long as they took.
    Conservative,
    /// A small read of an application may take 10 ms.
    #[default]
    Standard,
    /// Gives way late.
    Aggressive,
}

/// The first batch, before anything is known.
const BATCH_FIRST: u32 = 100;
/// The smallest batch: below, the transactions cost more than their rows.
const BATCH_MIN: u32 = 50;
/// How many samples percentiles are taken of.
const SAMPLES: usize = 20;
/// Fewer say too little to speed up.
const SAMPLES_TO_GROW: usize = 3;
/// The first pause under load; it doubles up to the longest.
const PAUSE_FIRST: Duration = Duration::from_millis(10);
/// The longest pause under load. Far below the time after which a silent worker loses its backfill.
const PAUSE_MAX: Duration = Duration::from_secs(3);

/// What a pace aims at.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Aims {
    /// The 95th percentile of the probe.
    probe: Duration,
    /// The 95th percentile of the batches.
    batch: Duration,
    messages_max: u32,
    /// The least pause after a batch, as a part of what it took.
    rest: f64,
}

impl BackfillPace {
    fn aims(self) -> Aims {
        let ms = Duration::from_millis;
        match self {
            BackfillPace::Conservative => {
                Aims { probe: ms(5), batch: ms(100), messages_max: UPKEEP_MESSAGES_MAX / 4, rest: 1.0 }
            }
            BackfillPace::Standard => {
                Aims { probe: ms(10), batch: ms(500), messages_max: UPKEEP_MESSAGES_MAX, rest: 0.1 }
            }
            BackfillPace::Aggressive => {
                Aims { probe: ms(50), batch: ms(2_000), messages_max: UPKEEP_MESSAGES_MAX, rest: 0.0 }
            }
        }
    }
}

/// The controller.
#[derive(Clone, Debug)]
pub(crate) struct Controller {
    aims: Aims,
    batch: u32,
    /// The pause that load asks for.
    pause: Duration,
    batches: Samples,
    probes: Samples,
}

impl Controller {
    pub(crate) fn new(pace: BackfillPace) -> Self {
        Controller {
            aims: pace.aims(),
            batch: BATCH_FIRST,
            pause: Duration::ZERO,
            batches: Samples::default(),
            probes: Samples::default(),
        }
    }

    /// How many messages the next batch may touch.
    pub(crate) fn batch(&self) -> u32 {
        self.batch
    }

    /// Takes note of a batch and of the probe after it. Answers how long to pause: with that, no more than `rate_max`
    /// messages a second are touched over any time that ends with a pause.
    pub(crate) fn observe(
        &mut self,
        processed: u64,
        took: Duration,
        probe: Duration,
        rate_max: u32,
    ) -> Duration {
        self.batches.add(took);
        self.probes.add(probe);
        let (batch, probe) = (self.batches.p95(), self.probes.p95());
        if batch > self.aims.batch || probe > self.aims.probe {
            self.slow_down();
        } else if self.batches.len() >= SAMPLES_TO_GROW
            && batch <= self.aims.batch.mul_f64(0.7)
            && probe <= self.aims.probe.mul_f64(0.8)
        {
            self.speed_up();
        }
        // A second's worth at most, so that pauses stay short whatever the rate.
        self.batch = self.batch.min(rate_max.max(1));
        let by_rate = Duration::from_secs_f64(processed as f64 / f64::from(rate_max.max(1)));
        let by_rest = took.mul_f64(self.aims.rest);
        by_rate.saturating_sub(took).max(by_rest).max(self.pause)
    }

    fn slow_down(&mut self) {
        self.batch = (self.batch / 2).max(BATCH_MIN);
        self.pause = (self.pause * 2).clamp(PAUSE_FIRST, PAUSE_MAX);
        // Judged by what comes after the change.
        self.batches.clear();
        self.probes.clear();
    }

    fn speed_up(&mut self) {
        let step = (self.batch / 2).max(BATCH_MIN);
        self.batch = self.batch.saturating_add(step).min(self.aims.messages_max);
        self.pause = if self.pause <= PAUSE_FIRST { Duration::ZERO } else { self.pause / 2 };
        // Smaller batches say nothing of how long larger ones take.
        self.batches.clear();
    }
}

/// The last few durations.
#[derive(Clone, Debug, Default)]
struct Samples(VecDeque<Duration>);

impl Samples {
    fn add(&mut self, sample: Duration) {
        if self.0.len() == SAMPLES {
            self.0.pop_front();
        }
        self.0.push_back(sample);
    }

    fn len(&self) -> usize {
        self.0.len()
    }

    fn clear(&mut self) {
        self.0.clear();
    }

    /// Nineteen in twenty are at most this; zero without any.
    fn p95(&self) -> Duration {
        let mut sorted: Vec<Duration> = self.0.iter().copied().collect();
        sorted.sort_unstable();
        let at = (sorted.len() * 95).div_ceil(100).saturating_sub(1);
        sorted.get(at).copied().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const QUICK: Duration = Duration::from_micros(200);

    fn pace() -> impl Strategy<Value = BackfillPace> {
        prop::sample::select(vec![
            BackfillPace::Conservative,
            BackfillPace::Standard,
            BackfillPace::Aggressive,
        ])
    }

    /// A database in which a batch takes time by its size and the probe suffers from load.
    fn play(controller: &mut Controller, rounds: usize, each: Duration, probe: Duration) {
        for _ in 0..rounds {
            let batch = controller.batch();
            controller.observe(u64::from(batch), each * batch, probe, 50_000);
        }
    }

    proptest! {
        #[test]
        fn the_rate_is_never_exceeded(
            pace in pace(),
            rate_max in 1u32..100_000,
            rounds in prop::collection::vec((0u64..3_000_000, 0u64..100_000), 1..200),
        ) {
            let mut controller = Controller::new(pace);
            let (mut messages, mut elapsed) = (0u64, Duration::ZERO);
            for (took_us, probe_us) in rounds {
                let processed = u64::from(controller.batch());
                let (took, probe) = (Duration::from_micros(took_us), Duration::from_micros(probe_us));
                let pause = controller.observe(processed, took, probe, rate_max);
                messages += processed;
                elapsed += took + pause;
                let allowed = f64::from(rate_max) * elapsed.as_secs_f64();
                prop_assert!(messages as f64 <= allowed + 1e-3, "{messages} in {elapsed:?}");
            }
        }

        #[test]
        fn batches_stay_within_bounds_and_shrink_under_load(
            pace in pace(),
            quick in 0usize..60,
            slow in 1usize..60,
        ) {
            let mut controller = Controller::new(pace);
            play(&mut controller, quick, Duration::from_nanos(100), QUICK);
            let before = controller.batch();
            prop_assert!((BATCH_MIN..=UPKEEP_MESSAGES_MAX).contains(&before));
            play(&mut controller, slow + 20, Duration::from_nanos(100), Duration::from_millis(200));
            prop_assert!(controller.batch() < before || before == BATCH_MIN);
            prop_assert!(controller.batch() >= BATCH_MIN);
            prop_assert!(controller.pause >= PAUSE_FIRST && controller.pause <= PAUSE_MAX);
        }

        #[test]
        fn it_recovers_when_the_load_is_gone(pace in pace(), slow in 1usize..100) {
            let mut controller = Controller::new(pace);
            play(&mut controller, slow, Duration::from_nanos(100), Duration::from_millis(500));
            play(&mut controller, 100, Duration::from_nanos(100), QUICK);
            prop_assert_eq!(controller.batch(), pace.aims().messages_max);
            prop_assert_eq!(controller.pause, Duration::ZERO);
        }
    }

    #[test]
    fn one_slow_probe_among_many_is_no_load() {
        let mut controller = Controller::new(BackfillPace::Standard);
        play(&mut controller, 60, Duration::from_nanos(100), QUICK);
        let before = controller.batch();
        controller.observe(100, QUICK, Duration::from_secs(1), 50_000);
        assert_eq!(controller.batch(), before);
    }

    #[test]
    fn its_own_batches_are_kept_short() {
        let mut controller = Controller::new(BackfillPace::Standard);
        play(&mut controller, 300, Duration::from_micros(500), QUICK);
        let each = Duration::from_micros(500) * controller.batch();
        assert!(each <= BackfillPace::Standard.aims().batch * 2, "{each:?}");
    }

    #[test]
    fn a_rate_of_one_is_possible() {
        let mut controller = Controller::new(BackfillPace::Standard);
        assert_eq!(controller.observe(100, Duration::ZERO, QUICK, 1), Duration::from_secs(100));
        assert_eq!(controller.batch(), 1);
        assert_eq!(controller.observe(1, Duration::ZERO, QUICK, 1), Duration::from_secs(1));
    }

    #[test]
    fn the_conservative_one_gives_way_first() {
        let load = Duration::from_millis(7);
        let batch_of = |pace| {
            let mut controller = Controller::new(pace);
            play(&mut controller, 40, Duration::from_nanos(100), load);
            controller.batch()
        };
        assert_eq!(batch_of(BackfillPace::Conservative), BATCH_MIN);
        assert_eq!(batch_of(BackfillPace::Standard), UPKEEP_MESSAGES_MAX);
    }
}
