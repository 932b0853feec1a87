//! Which ticks a flush takes, whose batch it completes, and what is left after a failure.

use tokio::sync::oneshot::error::TryRecvError;

use super::*;
use crate::error::ErrorCode;
use crate::testing::tick;

const LIMITS: Limits = Limits {
    insert_batch_size: 250,
    flush_timeout: Duration::from_secs(5),
    files_max: 4,
    bytes_max: 1024 * 1024,
    ticks_ahead: 1_000,
};

struct Filled {
    state: State,
    ids: Vec<u64>,
    fates: Vec<oneshot::Receiver<Fate>>,
}

/// Batches of so many ticks each, numbered through.
fn filled(counts: &[usize], alone: &[usize]) -> Filled {
    let (mut state, mut next, mut ids, mut fates) = (State::default(), 0, Vec::new(), Vec::new());
    for (nth, count) in counts.iter().enumerate() {
        let id = state.enter(i64::try_from(nth).unwrap());
        let ticks = (0..*count).map(|_| {
            next += 1;
            tick("run", next - 1)
        });
        let (report, fate) = oneshot::channel();
        state.add(Entry::new(id, ticks.collect(), 100, Instant::now(), report), alone.contains(&nth));
        ids.push(id);
        fates.push(fate);
    }
    Filled { state, ids, fates }
}

fn numbers(taken: &Taken) -> Vec<i64> {
    taken.ticks.iter().map(|tick| tick.tick_number).collect()
}

fn lost() -> Result<()> {
    Err(Error::transient(ErrorCode::WriteFailed, "connection lost"))
}

#[test]
fn a_flush_takes_the_first_ticks_and_completes_whole_batches() {
    let Filled { mut state, mut fates, .. } = filled(&[100, 100, 100], &[]);
    let taken = state.take(250);
    assert_eq!((numbers(&taken), taken.batches()), ((0..250).collect(), 3));
    state.settle(taken, &Ok(()));
    assert_eq!(fates[0].try_recv(), Ok(Fate::Committed));
    assert_eq!(fates[1].try_recv(), Ok(Fate::Committed));
    assert_eq!(fates[2].try_recv(), Err(TryRecvError::Empty), "50 of its ticks are not flushed");
    assert_eq!(state.ticks(), 50);

    let taken = state.take(250);
    assert_eq!(numbers(&taken), (250..300).collect::<Vec<_>>());
    state.settle(taken, &Ok(()));
    assert_eq!(fates[2].try_recv(), Ok(Fate::Committed));
    assert!(state.is_empty());
}

#[test]
fn a_flush_that_ends_between_two_batches_touches_only_the_first() {
    let Filled { mut state, mut fates, .. } = filled(&[100, 100], &[]);
    let taken = state.take(100);
    assert_eq!(taken.batches(), 1);
    state.settle(taken, &lost());
    assert!(matches!(fates[0].try_recv(), Ok(Fate::Failed { was_shared: false, .. })));
    assert_eq!(fates[1].try_recv(), Err(TryRecvError::Empty));
    assert_eq!(state.ticks(), 100);
}

#[test]
fn a_failed_flush_leaves_no_tick_of_a_batch_it_touched() {
    let Filled { mut state, mut fates, .. } = filled(&[100, 100, 100, 100], &[]);
    let taken = state.take(250);
    state.settle(taken, &lost());
    for fate in &mut fates[..3] {
        assert!(matches!(fate.try_recv(), Ok(Fate::Failed { was_shared: true, .. })));
    }
    assert_eq!(fates[3].try_recv(), Err(TryRecvError::Empty));
    assert_eq!(numbers(&state.take(250)), (300..400).collect::<Vec<_>>(), "250 to 299 are gone too");
}

#[test]
fn a_batch_that_failed_halfway_is_not_completed_by_its_rest() {
    let Filled { mut state, mut fates, .. } = filled(&[300], &[]);
    let first = state.take(250);
    state.settle(first, &Ok(()));
    let second = state.take(250);
    state.settle(second, &lost());
    assert!(matches!(fates[0].try_recv(), Ok(Fate::Failed { .. })));
    assert!(state.is_empty());
}

#[test]
fn a_batch_that_comes_alone_shares_no_flush() {
    let Filled { mut state, .. } = filled(&[10, 10, 10], &[1]);
    assert_eq!(state.due(&LIMITS, false, false), Due::Now);
    assert_eq!(numbers(&state.take(250)), (10..20).collect::<Vec<_>>());
    assert_eq!(numbers(&state.take(250)), (0..10).chain(20..30).collect::<Vec<_>>());
}

#[test]
fn a_later_call_for_the_same_message_takes_over() {
    let Filled { mut state, ids, mut fates } = filled(&[10, 10], &[]);
    let taken = state.take(5);
    let again = state.enter(0);
    assert_eq!(fates[0].try_recv(), Err(TryRecvError::Closed), "the former call is given back");
    assert!(!state.is_current(0, ids[0]) && state.is_current(0, again));
    // The flush under way changes nothing about that.
    state.settle(taken, &Ok(()));
    assert_eq!(numbers(&state.take(250)), (10..20).collect::<Vec<_>>());
    state.leave(0, ids[0]);
    assert!(state.is_current(0, again), "the former call ends without the later one");
}

#[test]
fn a_dropped_call_leaves_nothing() {
    let Filled { mut state, ids, .. } = filled(&[10, 10], &[0]);
    state.leave(0, ids[0]);
    state.leave(1, ids[1]);
    assert!(state.is_empty());
    assert_eq!(state.due(&LIMITS, true, true), Due::Never);
}

#[tokio::test(start_paused = true)]
async fn flush_is_due_by_size_time_slots_room_or_shutdown() {
    let due = |counts: &[usize], room, closing| filled(counts, &[]).state.due(&LIMITS, room, closing);
    let later = Due::At(Instant::now() + LIMITS.flush_timeout);
    assert_eq!(due(&[], true, true), Due::Never);
    assert_eq!(due(&[249], false, false), later);
    assert_eq!(due(&[100, 150], false, false), Due::Now, "size");
    assert_eq!(due(&[1, 1, 1], false, false), later);
    assert_eq!(due(&[1, 1, 1, 1], false, false), Due::Now, "slots");
    assert_eq!(due(&[1], true, false), Due::Now, "room");
    assert_eq!(due(&[1], false, true), Due::Now, "shutdown");
    let mut reading = filled(&[1, 1, 1, 1], &[]).state;
    reading.reading = 1;
    assert_eq!(reading.due(&LIMITS, false, false), later, "one of the slots is still being filled");
    assert_eq!(reading.due(&Limits { bytes_max: 400, ..LIMITS }, false, false), Due::Now, "bytes");
}

#[test]
fn time_counts_from_the_first_tick_that_is_left() {
    let Filled { mut state, .. } = filled(&[250, 10], &[]);
    let second = state.shared_since(1);
    state.take(250);
    assert_eq!(state.due(&LIMITS, false, false), Due::At(second + LIMITS.flush_timeout));
}
