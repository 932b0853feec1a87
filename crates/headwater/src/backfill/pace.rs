//! How fast a backfill goes: a pure controller that watches the database and gives way to applications.
//!
//! It is told how long each batch took, and how long probes took, each a small piece of work as applications do them: in
//! the quiet before a batch, and beside it. Two things slow it down:
//!
//! - The database is busy: the 95th percentile of batches or probes is over a fixed target, whoever's load it is. Batches
//!   are halved and the pause between them doubles, without a limit but the longest pause.
//! - Batches make applications slower: probes beside them take longer than in the quiet by more than a factor. It rests
//!   longer after each batch, up to nineteen times as long as the batch took, and makes batches smaller where such a rest
//!   would be longer than the longest pause. No more is ever needed: what happens in one part in twenty of the time is not
//!   in the 95th percentile.
//!
//! While both are well below their limits it grows again, never beyond the rate the backfill was allowed.

use std::collections::VecDeque;
use std::time::Duration;

use crate::limits::UPKEEP_MESSAGES_MAX;

/// How much of the database backfills may take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum BackfillPace {
    /// Gives way early: small batches, pauses as long as they took, and applications hardly notice.
    Conservative,
    /// A small piece of work of an application may take 10 ms, and less than twice as long as without the backfill.
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
const SAMPLES: usize = 40;
/// Fewer say too little to speed up.
const SAMPLES_TO_GROW: usize = 3;
/// The first pause under load; it doubles up to the longest.
const PAUSE_FIRST: Duration = Duration::from_millis(10);
/// The longest pause under load. Far below the time after which a silent worker loses its backfill.
const PAUSE_MAX: Duration = Duration::from_secs(3);
/// The first rest for the sake of applications, as a part of what the batch took.
const REST_FIRST: f64 = 0.5;
/// The longest: a batch is then one part in twenty.
const REST_MAX: f64 = 19.0;
/// Nobody notices less: probes this quick are quick, whatever they are in the quiet.
const PROBE_LEAST: Duration = Duration::from_micros(500);

/// What a pace aims at.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Aims {
    /// The 95th percentile of probes beside batches.
    probe: Duration,
    /// The same as a multiple of the quiet's.
    slower: f64,
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
            BackfillPace::Conservative => Aims {
                probe: ms(5),
                slower: 1.3,
                batch: ms(100),
                messages_max: UPKEEP_MESSAGES_MAX / 4,
                rest: 1.0,
            },
            BackfillPace::Standard => Aims {
                probe: ms(10),
                slower: 1.7,
                batch: ms(500),
                messages_max: UPKEEP_MESSAGES_MAX,
                rest: 0.1,
            },
            BackfillPace::Aggressive => Aims {
                probe: ms(50),
                slower: 4.0,
                batch: ms(2_000),
                messages_max: UPKEEP_MESSAGES_MAX,
                rest: 0.0,
            },
        }
    }
}

/// How long to pause after a batch so that no more than `rate_max` messages a second are touched.
pub(crate) fn pause_by_rate(processed: u64, took: Duration, rate_max: u32) -> Duration {
    let by_rate = Duration::from_secs_f64(processed as f64 / f64::from(rate_max.max(1)));
    by_rate.saturating_sub(took)
}

/// What was seen of one batch.
#[derive(Clone, Debug)]
pub(crate) struct Observed {
    pub(crate) processed: u64,
    pub(crate) took: Duration,
    /// A probe in the quiet before it, if there was any.
    pub(crate) quiet: Option<Duration>,
    /// The probes beside it.
    pub(crate) beside: Vec<Duration>,
}

/// The controller.
#[derive(Clone, Debug)]
pub(crate) struct Controller {
    aims: Aims,
    batch: u32,
    /// The pause that load asks for.
    pause: Duration,
    /// The pause that applications beside batches ask for, as a part of what a batch took.
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

    /// How many messages the next batch may touch.
    pub(crate) fn batch(&self) -> u32 {
        self.batch
    }

    /// Takes note of a batch. Answers how long to pause: with that, no more than `rate_max` messages a second are touched
    /// over any time that ends with a pause.
    pub(crate) fn observe(&mut self, observed: &Observed, rate_max: u32) -> Duration {
        let Observed { processed, took, .. } = *observed;
        self.batches.add(took);
        observed.quiet.iter().for_each(|probe| self.quiet.add(*probe));
        observed.beside.iter().for_each(|probe| self.beside.add(*probe));
        let (batch, probe) = (self.batches.p95(), self.beside.p95());
        let limit = match self.quiet.len() {
            0 => self.aims.probe,
            _ => self.quiet.p95().mul_f64(self.aims.slower).max(PROBE_LEAST),
        };
        if batch > self.aims.batch || probe > self.aims.probe {
            self.slow_down();
        } else if probe > limit {
            self.rest_more(batch);
        } else if self.batches.len() >= SAMPLES_TO_GROW
            && batch <= self.aims.batch.mul_f64(0.7)
            && probe <= self.aims.probe.min(limit).mul_f64(0.8)
        {
            self.speed_up();
        }
        // A second's worth at most, so that pauses stay short whatever the rate.
        self.batch = self.batch.min(rate_max.max(1));
        let by_rest = took.mul_f64(self.rest).min(PAUSE_MAX.max(took.mul_f64(self.aims.rest)));
        pause_by_rate(processed, took, rate_max).max(by_rest).max(self.pause)
    }

    fn slow_down(&mut self) {
        self.batch = (self.batch / 2).max(BATCH_MIN);
        self.pause = (self.pause * 2).clamp(PAUSE_FIRST, PAUSE_MAX);
        // Judged by what comes after the change.
        self.batches.clear();
        self.beside.clear();
    }

    fn rest_more(&mut self, took: Duration) {
        self.rest = (self.rest * 2.0).clamp(REST_FIRST, REST_MAX);
        // No rest is longer than the longest pause: where that cuts it short, it is the batches that have to shrink.
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

    /// A batch with one probe beside it, in a database that is as slow without it.
    fn seen(processed: u64, took: Duration, probe: Duration) -> Observed {
        Observed { processed, took, quiet: Some(probe), beside: vec![probe] }
    }

    /// A database in which a batch takes time by its size and the probe suffers from load.
    fn play(controller: &mut Controller, rounds: usize, each: Duration, probe: Duration) {
        for _ in 0..rounds {
            let batch = controller.batch();
            controller.observe(&seen(u64::from(batch), each * batch, probe), 50_000);
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
                let pause = controller.observe(&seen(processed, took, probe), rate_max);
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
        controller.observe(&seen(100, QUICK, Duration::from_secs(1)), 50_000);
        assert_eq!(controller.batch(), before);
    }

    /// What part of the time a backfill takes, once it has found its pace in a database where a message takes so long, and
    /// batches make a small piece of work so many times slower.
    fn share_of_time(pace: BackfillPace, each: Duration, slower: u32) -> f64 {
        let mut controller = Controller::new(pace);
        let quiet = Duration::from_millis(1);
        let (mut busy, mut rested) = (Duration::ZERO, Duration::ZERO);
        for round in 0..400 {
            let took = each * controller.batch();
            let processed = u64::from(controller.batch());
            // Nobody is there at first, and batches grow as large as they may.
            let slower = if round < 100 { 1 } else { slower };
            let observed = Observed { processed, took, quiet: Some(quiet), beside: vec![quiet * slower; 4] };
            let pause = controller.observe(&observed, u32::MAX);
            assert!(pause <= PAUSE_MAX, "its worker would be taken for dead: {pause:?}");
            if round >= 200 {
                (busy, rested) = (busy + took, rested + pause);
            }
        }
        busy.div_duration_f64(busy + rested)
    }

    #[test]
    fn applications_it_slows_down_get_the_time_and_it_goes_on() {
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
    fn what_nobody_notices_is_no_reason_to_rest() {
        let mut controller = Controller::new(BackfillPace::Standard);
        for _ in 0..60 {
            let processed = u64::from(controller.batch());
            let (quiet, beside) = (Some(QUICK / 10), vec![QUICK; 3]);
            controller.observe(&Observed { processed, took: QUICK, quiet, beside }, 50_000);
        }
        assert_eq!((controller.batch(), controller.rest), (UPKEEP_MESSAGES_MAX, 0.1));
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
        assert_eq!(controller.observe(&seen(100, Duration::ZERO, QUICK), 1), Duration::from_secs(100));
        assert_eq!(controller.batch(), 1);
        assert_eq!(controller.observe(&seen(1, Duration::ZERO, QUICK), 1), Duration::from_secs(1));
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
