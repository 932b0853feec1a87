//! Which heartbeats an opened consumer sends, and when.

use super::*;
use crate::consumer::tests::plain;
use crate::consumer::tests::still::{Failing, Still};
use crate::message::Offset;
use crate::observe::metrics::Registry;
use crate::settle::Verdict;

const MINUTE: Duration = Duration::from_secs(60);
/// Without judgement by silence: its leases last until their deadlines.
const HEARTBEAT: &str = "unjudged heartbeat";

fn consumer(store: &Arc<Still>) -> Consumer {
    let subscription = store.subscription();
    let metrics = Registry::default().group_apart(&subscription.topic.name, &subscription.group);
    let settings = GroupSettings { pulled: true, ..plain() };
    let owner = Owner::new("puller").unwrap();
    let store = Arc::clone(store) as Arc<dyn Store>;
    Consumer::new(LeaseThread::here(), store, owner, subscription, 10, settings, metrics)
}

async fn moment() {
    tokio::time::sleep(Duration::from_secs(2)).await;
}

#[tokio::test(start_paused = true)]
async fn its_group_lives_while_it_is_used_and_not_for_being_kept() {
    let store = Arc::new(Still::default());
    let mut consumer = consumer(&store);
    moment().await;
    assert_eq!(store.count(HEARTBEAT), 1, "when it is opened");
    for _ in 0..20 {
        assert!(consumer.next(MINUTE / 2).await.unwrap().is_none());
        // The program does something else now and then.
        tokio::time::sleep(MINUTE / 2).await;
    }
    let longest = store.longest_without(HEARTBEAT);
    assert!(longest < MINUTE, "{longest:?}");
    assert!(store.count(HEARTBEAT) < 100, "a third of an interval apart: {}", store.count(HEARTBEAT));

    tokio::time::sleep(MINUTE * 2).await;
    let before = store.count(HEARTBEAT);
    tokio::time::sleep(MINUTE * 20).await;
    assert_eq!(store.count(HEARTBEAT), before, "no call waits for a batch");

    store.hand_out(1);
    let batch = consumer.next(MINUTE).await.unwrap().expect("one waits");
    moment().await;
    assert_eq!(store.count(HEARTBEAT), before + 1, "a call waits for a batch");
    store.asked.lock().unwrap().clear();
    tokio::time::sleep(MINUTE * 20).await;
    let longest = store.longest_without(HEARTBEAT);
    assert!(longest < MINUTE, "slow work is no death: {longest:?}");
    batch.ack().await.unwrap();
    assert_eq!(store.count("heartbeat"), 0, "its leases last until their deadlines");
}

#[tokio::test(start_paused = true)]
async fn it_reports_its_activity_and_departs() {
    let store = Arc::new(Still::default());
    let mut consumer = consumer(&store);
    for offset in 1..=4 {
        store.hand_out(offset);
        let batch = consumer.next(MINUTE).await.unwrap().expect("one waits");
        match offset {
            1 | 2 => batch.ack().await.unwrap(),
            3 => batch.settle_each(vec![(Offset(3), Verdict::Failed("no".into()))]).await.unwrap(),
            _ => batch.release().await.unwrap(),
        }
    }
    consumer.close().await.unwrap();
    assert_eq!(store.count("depart"), 1);
    let reported = store.reported.lock().unwrap().clone();
    let (owner, served) = reported.last().unwrap();
    assert_eq!((owner.as_str(), served.activity.processed, served.activity.failed), ("puller", 2, 1));
}

#[tokio::test(start_paused = true)]
async fn who_still_has_a_batch_does_not_take_its_leave() {
    let store = Arc::new(Still::default());
    let mut consumer = consumer(&store);
    store.hand_out(1);
    let batch = consumer.next(MINUTE).await.unwrap().expect("one waits");
    consumer.close().await.unwrap();
    assert_eq!(store.count("depart"), 0);
    store.asked.lock().unwrap().clear();
    tokio::time::sleep(MINUTE * 5).await;
    assert!(store.longest_without(HEARTBEAT) < MINUTE);
    batch.ack().await.unwrap();
    let before = store.count(HEARTBEAT);
    tokio::time::sleep(MINUTE * 5).await;
    assert_eq!(store.count(HEARTBEAT), before, "it has departed");
}

#[tokio::test(start_paused = true)]
async fn an_ack_that_meets_a_lock_is_repeated_for_as_long_as_the_lease_may_last() {
    let store = Arc::new(Still::default());
    let mut consumer = consumer(&store);
    store.hand_out(1);
    let batch = consumer.next(MINUTE).await.unwrap().expect("one waits");
    *store.locked.lock().unwrap() = 3;
    batch.ack().await.unwrap();
    assert_eq!(store.count("settle"), 4);

    store.hand_out(2);
    let batch = consumer.next(MINUTE).await.unwrap().expect("one waits");
    *store.locked.lock().unwrap() = u32::MAX;
    let started = tokio::time::Instant::now();
    let error = batch.ack().await.unwrap_err();
    assert_eq!(error.kind(), crate::ErrorKind::Busy, "{error:?}");
    let lease = consumer.group.lease_for();
    assert!(started.elapsed() > lease / 2 && started.elapsed() <= lease, "{:?}", started.elapsed());
}

#[tokio::test(start_paused = true)]
async fn no_message_is_started_past_the_deadline_when_extensions_fail() {
    let store = Arc::new(Still::default());
    let lease_for = store.settings.lock().unwrap().lease;
    let mut consumer = consumer(&store);
    store.hand_out(1);
    store.leases.lock().unwrap()[0].range.last = Offset(9);
    let batch = consumer.next(MINUTE).await.unwrap().expect("one waits");
    let began = Instant::now();
    // One succeeds: the deadline counts from it.
    store.fails("extend", [Failing::With(ErrorKind::Unavailable)]);
    let (mut started, of) = (Vec::new(), Arc::clone(&store));
    let handled = batch.handle(|_, _| {
        started.push(began.elapsed());
        if started.len() == 2 {
            of.fails("extend", [Failing::With(ErrorKind::Unavailable); 10_000]);
        }
        async move {
            tokio::time::sleep(lease_for / 2).await;
            Verdict::Done
        }
    });
    assert_eq!(handled.await.unwrap_err().kind(), ErrorKind::LeaseLost);
    let last = *started.last().unwrap();
    assert!(started.len() >= 3 && last < lease_for * 3 / 2, "{started:?} of {lease_for:?}");
    assert_eq!(store.count("settle"), 0);
}

#[tokio::test(start_paused = true)]
async fn an_extension_that_hangs_starts_nothing_past_the_deadline() {
    let store = Arc::new(Still::default());
    store.settings.lock().unwrap().lease = Duration::from_secs(2);
    let mut consumer = consumer(&store);
    store.hand_out(1);
    store.leases.lock().unwrap()[0].range.last = Offset(9);
    let batch = consumer.next(MINUTE).await.unwrap().expect("one waits");
    let began = Instant::now();
    store.mute.lock().unwrap().insert("extend");
    let handled = batch.handle(|_, _| async move {
        tokio::time::sleep(Duration::from_secs(1)).await;
        Verdict::Done
    });
    assert_eq!(handled.await.unwrap_err().kind(), ErrorKind::LeaseLost);
    assert!(began.elapsed() <= Duration::from_millis(2_010), "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn an_empty_lease_that_is_lost_is_dropped() {
    let store = Arc::new(Still::default());
    let mut consumer = consumer(&store);
    store.hand_out(1);
    *store.empty.lock().unwrap() = true;
    store.fails("settle", [Failing::Lost; 3]);
    assert!(consumer.next(MINUTE).await.unwrap().is_none());
    assert_eq!(store.count("settle"), 1);
    consumer.close().await.unwrap();
    assert_eq!(store.count("settle"), 1, "nothing is left to release");
}
