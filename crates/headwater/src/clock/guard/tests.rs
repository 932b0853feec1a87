//! The guard against a model: processes with clocks, crashes and steps, where every step is known.

use std::time::Duration;

use proptest::prelude::*;

use super::*;

const HOUR_MS: i64 = 3_600_000;

fn reading(now_ms: i64, at_ms: u64) -> Reading {
    let at = Duration::from_millis(at_ms);
    Reading { now_ms, asked: at, answered: at }
}

fn stored(latest_ms: i64, moved_ms: i64) -> Stored {
    Stored { latest_ms: Some(latest_ms), steady_ms: None, moved_ms }
}

#[test]
fn time_that_passes_is_no_step() {
    let memory = Memory::after(None, reading(1_000_000, 0), 0);
    for passed in [0, 3_000, 3_600_000] {
        let now_ms = 1_000_000 + i64::try_from(passed).unwrap();
        assert_eq!(step_ms(Some(&memory), &reading(now_ms, passed), &stored(1_000_000, 0)), 0);
        assert_eq!(step_ms(None, &reading(now_ms, passed), &stored(1_000_000, 0)), 0, "no process ran");
    }
}

#[test]
fn a_step_is_dealt_with_once() {
    let memory = Memory::after(None, reading(10 * HOUR_MS, 0), 0);
    for step in [HOUR_MS, -HOUR_MS] {
        let now = reading(10 * HOUR_MS + 1_000 + step, 1_000);
        assert_eq!(step_ms(Some(&memory), &now, &stored(10 * HOUR_MS, 0)), step);
        assert_eq!(step_ms(Some(&memory), &now, &stored(now.now_ms, step)), 0, "deadlines already moved");
    }
    assert_eq!(
        step_ms(None, &reading(9 * HOUR_MS, 0), &stored(10 * HOUR_MS, 0)),
        -HOUR_MS,
        "also by a process that just started"
    );
}

#[test]
fn a_slow_answer_is_no_step() {
    let memory = Memory::after(None, reading(1_000_000, 0), 0);
    let slow = Reading { now_ms: 1_030_000, asked: Duration::ZERO, answered: Duration::from_secs(30) };
    assert_eq!(step_ms(Some(&memory), &slow, &stored(1_000_000, 0)), 0);
}

#[test]
fn a_process_that_was_suspended_is_contradicted_by_a_steady_one() {
    let memory = Memory::after(None, reading(0, 0), 0);
    let awake = reading(HOUR_MS, 1_000);
    let mut known = stored(HOUR_MS - 4_000, 0);
    assert_eq!(step_ms(Some(&memory), &awake, &known), HOUR_MS - 1_000, "no steady process contradicts it");
    known.steady_ms = Some(HOUR_MS - 4_000);
    assert_eq!(step_ms(Some(&memory), &awake, &known), 0);
}

proptest! {
    /// For any sequence of waits, steps and restarts: time without steps, as deadlines measure it, is within the
    /// tolerance of real time for as long as one process lives, and every process agrees.
    #[test]
    fn deadlines_follow_real_time(
        acts in prop::collection::vec((0..3usize, 0..20_000u64, prop_oneof![3 => Just(0i64), 1 => -40 * HOUR_MS..40 * HOUR_MS], any::<bool>()), 1..60)
    ) {
        let (mut now_ms, mut real_ms, mut stepped_ms) = (1_000 * HOUR_MS, 0u64, 0i64);
        let mut row = Stored::default();
        let mut memories: [Option<Memory>; 3] = [None; 3];
        // Process 0 lives from the beginning to the end.
        let first = reading(now_ms, 0);
        memories[0] = Some(Memory::after(None, first, 0));
        row.latest_ms = Some(now_ms);
        for (process, passed_ms, step, dies) in acts {
            real_ms += passed_ms;
            now_ms += i64::try_from(passed_ms).unwrap() + step;
            stepped_ms += step;
            // Process 0 is the first to read the clock, as its heartbeat would.
            for process in [0, process] {
                if dies && process != 0 {
                    memories[process] = None;
                }
                let sample = reading(now_ms, real_ms);
                let by = step_ms(memories[process].as_ref(), &sample, &row);
                row.moved_ms += by;
                row.latest_ms = Some(now_ms);
                memories[process] = Some(Memory::after(memories[process], sample, row.moved_ms));
            }
            let off = row.moved_ms - stepped_ms;
            prop_assert!(off.abs() <= STEP_MIN_MS, "off by {off} ms");
        }
    }
}
