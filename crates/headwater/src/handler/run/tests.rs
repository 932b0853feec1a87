//! Which messages of a lease are handled, and in which batches.

use super::*;
use crate::codec::tests::stored;
use crate::consumer::tests::still::Still;
use crate::message::NewMessage;

/// A run over messages of a lane with these keys, offsets from 1, at the second of three attempts.
fn run_over(keys: &[&str]) -> (HandlerRun<Vec<Message>>, Arc<ServeState>) {
    let store = Still::default();
    store.hand_out(1);
    let mut lease = store.leases.lock().unwrap().remove(0).unwrap();
    (lease.lane, lease.attempt) = (Some(0), 2);
    let message = |(at, key): (usize, &&str)| Message {
        offset: Offset(i64::try_from(at).unwrap() + 1),
        ..stored(NewMessage::new("x").key(*key))
    };
    let messages: Vec<Message> = keys.iter().enumerate().map(message).collect();
    let policy = RetryPolicy { max_attempts: 3, ..RetryPolicy::from(&*store.settings.lock().unwrap()) };
    let guard = HandlerGuard::apart(&store.subscription());
    (HandlerRun::new(&guard, messages, &lease, &policy), Arc::clone(&guard.serve_state))
}

fn failed(offset: i64) -> (Offset, Verdict) {
    (Offset(offset), Verdict::Failed("no".into()))
}

#[test]
fn batches_leave_out_messages_of_keys_that_wait() {
    let (mut run, _) = run_over(&["a", "b", "c", "a", "b", "b", "c"]);
    assert_eq!(run.next(2), Some(0..2));
    run.said_of(0..2, vec![failed(1)]);
    assert_eq!(run.next(4), Some(2..3), "ends before the next message of key a");
    run.said_of(2..3, vec![(Offset(3), Verdict::Skip)]);
    assert_eq!(run.next(2), Some(4..6));
    run.said_of(4..6, vec![failed(5)]);
    assert_eq!(run.next(2), Some(6..7));
    assert_eq!(run.next(2), None);
    let released = |offset| (Offset(offset), Verdict::Release);
    let verdicts = vec![failed(1), released(4), failed(5), released(6)];
    assert_eq!(run.finish(), Said { verdicts, skipped: 1 });
}

#[test]
fn what_is_buried_holds_back_nothing() {
    let (mut run, _) = run_over(&["a", "a", "a"]);
    assert_eq!(run.next_one(), Some(0));
    run.said(0, Verdict::Bury("never".into()));
    assert_eq!(run.next(1), Some(1..2));
    run.said(1, Verdict::Done);
    assert_eq!(run.next_one(), Some(2));
}

#[test]
fn what_was_not_begun_is_given_back_once_the_group_is_held_back() {
    let (mut run, serve_state) = run_over(&["a", "b", "c"]);
    assert_eq!(run.next_one(), Some(0));
    run.said(0, Verdict::Done);
    serve_state.set_stopping();
    assert_eq!(run.next(10), None);
    let released = vec![(Offset(2), Verdict::Release), (Offset(3), Verdict::Release)];
    assert_eq!(run.finish(), Said { verdicts: released, skipped: 0 });
}
