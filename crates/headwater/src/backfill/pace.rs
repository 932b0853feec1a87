//! How fast a backfill runs: a pure controller that measures the load of the database and yields to applications.
//!
//! Its input is how long each batch took, and how long probes took. A probe is a small piece of work like that of an
//! application, done in the pause before a batch (quiet) and beside it. Two things slow the backfill down:
//!
//! - The database is busy: the 95th percentile of batches or probes is over a fixed target, whatever causes the load.
//!   Batches are halved and the pause between them doubles, limited only by the longest pause.
//! - Batches slow applications down: probes beside them take longer than quiet ones by more than a factor. The pause
//!   after each batch grows, up to nineteen times the batch's time, and batches shrink where such a pause would exceed
//!   the longest pause. More is never needed: what happens in one twentieth of the time does not affect the 95th
//!   percentile.
//!
//! While both are well below their limits it speeds up again, never beyond the allowed rate of the backfill.

use std::collections::VecDeque;
use std::time::Duration;

use crate::limits::MAINTENANCE_MESSAGES_MAX;

/// How much of the database's capacity backfills may use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum BackfillPace {
    /// Yields early: small batches, pauses as long as the batches, almost no effect on applications.
    Conservative,
    /// A small piece of work of an application may take 10 ms, and less than twice as long as without the backfill.
    #[default]
    Standard,
    /// Yields late.
    Aggressive,
}

/// The first batch, before anything is measured.
const BATCH_FIRST: u32 = 100;
/// The smallest batch: for smaller ones the transactions cost more than their rows.
const BATCH_MIN: u32 = 50;
/// How many samples percentiles are computed from.
const SAMPLES: usize = 40;
/// Fewer samples are not enough to speed up.
const SAMPLES_TO_GROW: usize = 3;
/// The first pause under load; it doubles up to the longest.
const PAUSE_FIRST: Duration = Duration::from_millis(10);
/// The longest pause under load. Far below the time after which a silent process loses its backfill.
const PAUSE_MAX: Duration = Duration::from_secs(3);
/// The first pause for the sake of applications, as a multiple of the batch's time.
const REST_FIRST: f64 = 0.5;
/// The longest such pause: the batch is then one twentieth of the time.
const REST_MAX: f64 = 19.0;
/// Faster probes always count as fast, whatever the quiet ones take: the difference is not noticeable.
const PROBE_LEAST: Duration = Duration::from_micros(500);

/// The targets of a pace.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Aims {
    /// The 95th percentile of probes beside batches.
    probe: Duration,
    /// The same as a multiple of quiet probes.
    slower: f64,
    /// The 95th percentile of the batches.
    batch: Duration,
    messages_max: u32,
    /// The shortest pause after a batch, as a fraction of the batch's time.
    rest: f64,
}

impl BackfillPace {
    fn aims(self) -> Aims {
        let ms = Duration::from_millis;
        match self {
            BackfillPace::Conservative => Aims {
                probe: ms(5),
                slower: 1.3,
                batch: ms(100),
                messages_max: MAINTENANCE_MESSAGES_MAX / 4,
                rest: 1.0,
            },
            BackfillPace::Standard => Aims {
                probe: ms(10),
                slower: 1.7,
                batch: ms(500),
                messages_max: MAINTENANCE_MESSAGES_MAX,
                rest: 0.1,
            },
            BackfillPace::Aggressive => Aims {
                probe: ms(50),
                slower: 4.0,
                batch: ms(2_000),
                messages_max: MAINTENANCE_MESSAGES_MAX,
                rest: 0.0,
            },
        }
    }
}

/// How long to pause after a batch so that at most `rate_max` messages per second are processed.
pub(crate) fn pause_by_rate(processed: u64, took: Duration, rate_max: u32) -> Duration {
    let by_rate = Duration::from_secs_f64(processed as f64 / f64::from(rate_max.max(1)));
    by_rate.saturating_sub(took)
}

/// The measurements of one batch.
#[derive(Clone, Debug)]
pub(crate) struct Observed {
    pub(crate) processed: u64,
    pub(crate) took: Duration,
    /// A quiet probe before it, if there was one.
    pub(crate) quiet: Option<Duration>,
    /// The probes beside it.
    pub(crate) beside: Vec<Duration>,
}

/// The limits of the work itself, beside those of the pace.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OwnLimits {
    /// Messages per second.
    pub(crate) rate_max: u32,
    /// Messages of a batch, if limited.
    pub(crate) batch_max: Option<u32>,
    /// The 95th percentile of probes beside batches, if it is not the pace's.
    pub(crate) target_latency: Option<Duration>,
}

impl OwnLimits {
    /// Only this rate.
    pub(crate) fn rate(rate_max: u32) -> Self {
        OwnLimits { rate_max, batch_max: None, target_latency: None }
    }
}

/// The controller.
#[derive(Clone, Debug)]
pub(crate) struct Controller {
    aims: Aims,
    batch: u32,
    /// The pause required by load.
    pause: Duration,
    /// The pause required by applications beside batches, as a multiple of a batch's time.
    rest: f64,
    batches: Samples,
    quiet: Samples,
    beside: Samples,
}

impl Controller {
    pub(crate) fn new(pace: BackfillPace) -> Self {
        let aims = pace.aims();
        Controller {
            aims,
            batch: BATCH_FIRST,
            pause: Duration::ZERO,
            rest: aims.rest,
            batches: Samples::default(),
            quiet: Samples::default(),
            beside: Samples::default(),
        }
    }

    /// How many messages the next batch may process.
    pub(crate) fn batch(&self) -> u32 {
        self.batch
    }

    /// Records a batch. Returns how long to pause: with that pause, at most the allowed rate of messages per second is
    /// processed over any time that ends with a pause.
    pub(crate) fn observe(&mut self, observed: &Observed, own: OwnLimits) -> Duration {
        let Observed { processed, took, .. } = *observed;
        self.batches.add(took);
        observed.quiet.iter().for_each(|probe| self.quiet.add(*probe));
        observed.beside.iter().for_each(|probe| self.beside.add(*probe));
        let (batch, probe) = (self.batches.p95(), self.beside.p95());
        let target = own.target_latency.unwrap_or(self.aims.probe);
        let limit = match self.quiet.len() {
            0 => target,
            _ => self.quiet.p95().mul_f64(self.aims.slower).max(PROBE_LEAST),
        };
        if batch > self.aims.batch || probe > target {
            self.slow_down();
        } else if probe > limit {
            self.rest_more(batch);
        } else if self.batches.len() >= SAMPLES_TO_GROW
            && batch <= self.aims.batch.mul_f64(0.7)
            && probe <= target.min(limit).mul_f64(0.8)
        {
            self.speed_up();
        }
        // At most what the rate allows in a second, so that pauses stay short at any rate.
        self.batch = self.batch.min(own.rate_max.max(1)).min(own.batch_max.unwrap_or(u32::MAX));
        let by_rest = took.mul_f64(self.rest).min(PAUSE_MAX.max(took.mul_f64(self.aims.rest)));
        pause_by_rate(processed, took, own.rate_max).max(by_rest).max(self.pause)
    }

    fn slow_down(&mut self) {
        self.batch = (self.batch / 2).max(BATCH_MIN);
        self.pause = (self.pause * 2).clamp(PAUSE_FIRST, PAUSE_MAX);
        // The next decision uses only measurements from after the change.
        self.batches.clear();
        self.beside.clear();
    }

    fn rest_more(&mut self, took: Duration) {
        self.rest = (self.rest * 2.0).clamp(REST_FIRST, REST_MAX);
        // No pause is longer than the longest pause: where that limit applies, batches shrink instead.
        if took.mul_f64(self.rest) > PAUSE_MAX {
            self.batch = (self.batch / 2).max(BATCH_MIN);
        }
        self.batches.clear();
        self.beside.clear();
    }

    fn speed_up(&mut self) {
        let step = (self.batch / 2).max(BATCH_MIN);
        self.batch = self.batch.saturating_add(step).min(self.aims.messages_max);
        self.pause = if self.pause <= PAUSE_FIRST { Duration::ZERO } else { self.pause / 2 };
        self.rest =
            if self.rest <= REST_FIRST { self.aims.rest } else { self.rest / 2.0 }.max(self.aims.rest);
        // The times of smaller batches do not predict those of larger ones.
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

    /// The 95th percentile; zero without samples.
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

    /// A batch with one probe beside it, where the quiet probe is as slow.
    fn seen(processed: u64, took: Duration, probe: Duration) -> Observed {
        Observed { processed, took, quiet: Some(probe), beside: vec![probe] }
    }

    /// A database in which a batch takes time by its size, and probes take as long as given.
    fn play(controller: &mut Controller, rounds: usize, each: Duration, probe: Duration) {
        for _ in 0..rounds {
            let batch = controller.batch();
            controller.observe(&seen(u64::from(batch), each * batch, probe), OwnLimits::rate(50_000));
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
                let pause = controller.observe(&seen(processed, took, probe), OwnLimits::rate(rate_max));
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
            prop_assert!((BATCH_MIN..=MAINTENANCE_MESSAGES_MAX).contains(&before));
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
        controller.observe(&seen(100, QUICK, Duration::from_secs(1)), OwnLimits::rate(50_000));
        assert_eq!(controller.batch(), before);
    }

    /// The fraction of time a backfill uses once it has settled, in a database where each message takes `each`, and
    /// batches make probes `slower` times slower.
    fn share_of_time(pace: BackfillPace, each: Duration, slower: u32) -> f64 {
        let mut controller = Controller::new(pace);
        let quiet = Duration::from_millis(1);
        let (mut busy, mut rested) = (Duration::ZERO, Duration::ZERO);
        for round in 0..400 {
            let took = each * controller.batch();
            let processed = u64::from(controller.batch());
            // No application runs at first, and batches grow to their maximum.
            let slower = if round < 100 { 1 } else { slower };
            let observed = Observed { processed, took, quiet: Some(quiet), beside: vec![quiet * slower; 4] };
            let pause = controller.observe(&observed, OwnLimits::rate(u32::MAX));
            assert!(pause <= PAUSE_MAX, "its process would lose the backfill: {pause:?}");
            if round >= 200 {
                (busy, rested) = (busy + took, rested + pause);
            }
        }
        busy.div_duration_f64(busy + rested)
    }

    #[test]
    fn it_yields_to_applications_it_slows_down_and_continues() {
        for each in [5, 30, 500].map(Duration::from_micros) {
            let share = share_of_time(BackfillPace::Standard, each, 3);
            assert!((0.01..=0.0501).contains(&share), "one part in twenty, {each:?}: {share}");
        }
        let each = Duration::from_micros(5);
        assert!(share_of_time(BackfillPace::Standard, each, 1) > 0.9);
        assert!(share_of_time(BackfillPace::Aggressive, each, 3) > 0.9);
        assert!(share_of_time(BackfillPace::Conservative, each, 1) > 0.4);
    }

    #[test]
    fn an_unnoticeable_slowdown_is_no_reason_to_rest() {
        let mut controller = Controller::new(BackfillPace::Standard);
        for _ in 0..60 {
            let processed = u64::from(controller.batch());
            let (quiet, beside) = (Some(QUICK / 10), vec![QUICK; 3]);
            controller.observe(&Observed { processed, took: QUICK, quiet, beside }, OwnLimits::rate(50_000));
        }
        assert_eq!((controller.batch(), controller.rest), (MAINTENANCE_MESSAGES_MAX, 0.1));
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
        assert_eq!(
            controller.observe(&seen(100, Duration::ZERO, QUICK), OwnLimits::rate(1)),
            Duration::from_secs(100)
        );
        assert_eq!(controller.batch(), 1);
        assert_eq!(
            controller.observe(&seen(1, Duration::ZERO, QUICK), OwnLimits::rate(1)),
            Duration::from_secs(1)
        );
    }

    #[test]
    fn a_backfill_with_a_target_and_a_batch_of_its_own_keeps_them() {
        let own =
            OwnLimits { target_latency: Some(QUICK / 2), batch_max: Some(70), ..OwnLimits::rate(50_000) };
        let mut controller = Controller::new(BackfillPace::Aggressive);
        let pause = controller.observe(&seen(70, QUICK, QUICK / 4), own);
        assert_eq!((controller.batch(), pause), (70, Duration::from_secs_f64(70.0 / 50_000.0) - QUICK));
        controller.observe(&seen(70, QUICK, QUICK), own);
        assert_eq!(
            (controller.batch(), controller.pause),
            (BATCH_MIN, PAUSE_FIRST),
            "slower than its target"
        );
        // The pace alone would not have slowed down.
        let mut controller = Controller::new(BackfillPace::Aggressive);
        controller.observe(&seen(70, QUICK, QUICK), OwnLimits::rate(50_000));
        assert_eq!((controller.batch(), controller.pause), (BATCH_FIRST, Duration::ZERO));
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
        assert_eq!(batch_of(BackfillPace::Standard), MAINTENANCE_MESSAGES_MAX);
    }
}
