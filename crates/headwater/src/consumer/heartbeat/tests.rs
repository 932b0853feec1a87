//! How groups of a process learn the state of their subscriptions: the effect of a signal, and of silence.

use super::*;
use crate::Headwater;
use crate::consumer::member::Members;
use crate::consumer::runtime::SILENT_FOR;
use crate::consumer::tests::still::Still;
use crate::consumer::tests::{Scene, plain};
use crate::lease_thread::LeaseThread;
use crate::message::{Message, NewMessage, Offset};
use crate::observe::metrics::Registry;
use crate::settle::RetryPolicy;
use crate::store::Store;
use crate::subscription::MissedMessages;

fn heard(scene: &Scene, heartbeats: &mut Heartbeats, signal: Signal) {
    let groups = [Arc::clone(&scene.group)];
    let served = scene.runtime().served(&groups);
    let signals = served.iter().map(|one| (one.subscription_id, signal)).collect();
    assert!(heartbeats.apply(Ok(signals), &groups));
}

fn failed(scene: &Scene, heartbeats: &mut Heartbeats) {
    let groups = [Arc::clone(&scene.group)];
    heartbeats.apply(Err(Error::new(ErrorKind::Unavailable, "cut off")), &groups);
}

/// Whether the lease was released: another owner can claim all of it.
async fn is_back(scene: &Scene) -> bool {
    scene.settle().await;
    scene.claim("another").await.is_some_and(|lease| lease.range == scene.lease.range)
}

#[tokio::test]
async fn ten_failures_hold_everything_back_until_one_succeeds() {
    let scene = Scene::new(3).await;
    scene.fill();
    let mut heartbeats = Heartbeats::new(None);
    for _ in 1..HEARTBEAT_FAILURES_MAX {
        failed(&scene, &mut heartbeats);
    }
    assert!(!scene.group.serve_state.is_held_back(), "nine failures are tolerated");
    assert_eq!(scene.group.leases.held(), 1);
    failed(&scene, &mut heartbeats);
    assert!(scene.group.serve_state.is_held_back());
    assert!(scene.group.want().is_none(), "nothing more is claimed");
    assert!(is_back(&scene).await, "unstarted messages are released");
    heard(&scene, &mut heartbeats, Signal::Active);
    assert!(!scene.group.serve_state.is_held_back());
    assert!(scene.group.want().is_some());
    assert!(scene.group.leases.take_wake(), "the feed is woken");
    failed(&scene, &mut heartbeats);
    assert!(!scene.group.serve_state.is_held_back(), "counted from the last success");
}

#[tokio::test]
async fn a_pause_gives_back_what_was_not_begun_and_goes_on_asking() {
    let scene = Scene::new(3).await;
    scene.fill();
    let mut heartbeats = Heartbeats::new(None);
    heard(&scene, &mut heartbeats, Signal::Paused);
    assert!(scene.group.serve_state.is_held_back());
    assert!(is_back(&scene).await);
    assert!(scene.group.want().is_some(), "that is how it learns that it was resumed");
    assert!(scene.group.leases.take_wake(), "a claim returns whether it is still paused");
    heard(&scene, &mut heartbeats, Signal::Paused);
    assert!(!scene.group.leases.take_wake(), "only once");
    heard(&scene, &mut heartbeats, Signal::Active);
    assert!(scene.group.serve_state.is_held_back(), "an answer may be older than a pause");
    assert!(scene.group.leases.take_wake());
    scene.group.note_state(SubscriptionState::Active, Instant::now());
    assert!(!scene.group.serve_state.is_held_back(), "a claim is not");
}

#[tokio::test]
async fn what_is_handed_over_while_held_back_is_given_back() {
    let scene = Scene::new(3).await;
    scene.group.note_state(SubscriptionState::Paused, Instant::now());
    scene.fill();
    assert!(is_back(&scene).await);
}

#[tokio::test]
async fn a_cancelled_group_ends_with_its_reason_and_without_leases() {
    let scene = Scene::new(3).await;
    scene.fill();
    let work = scene.group.settler.in_hand().remove(0);
    let mut heartbeats = Heartbeats::new(None);
    heard(&scene, &mut heartbeats, Signal::Cancelled);
    assert_eq!(scene.group.serve_state.ended(), Some(EndReason::Cancelled));
    assert!(work.is_lost(Instant::now()), "handlers can check it");
    assert!(scene.group.serve_state.is_stopping() && scene.group.want().is_none());
    assert_eq!(scene.group.leases.held(), 0, "nothing is left to be settled");
    heard(&scene, &mut heartbeats, Signal::Gone);
    assert_eq!(scene.group.serve_state.ended(), Some(EndReason::Cancelled), "the first reason stays");
    assert_eq!(scene.runtime().served(&[Arc::clone(&scene.group)]), [], "no heartbeat names it");
}

#[tokio::test]
async fn a_group_that_lives_again_claims_at_once() {
    let scene = Scene::new(3).await;
    scene.group.note_state(SubscriptionState::Dead, Instant::now());
    assert!(scene.group.serve_state.is_dead());
    let missed = MissedMessages { count: 2, range: Some((Offset(1), Offset(2))) };
    heard(&scene, &mut Heartbeats::new(None), Signal::Resurrected(missed));
    assert!(!scene.group.serve_state.is_dead() && scene.group.leases.take_wake());
}

#[tokio::test]
async fn a_group_that_runs_twice_counts_once_and_the_shortest_interval_holds() {
    let scene = Scene::new(1).await;
    let twice = [Arc::clone(&scene.group), Arc::clone(&scene.group)];
    assert_eq!(scene.runtime().served(&twice).len(), 1);
    assert_eq!(interval_of(&twice), Duration::from_secs(20), "a third of a minute");
    assert_eq!(interval_of(&[]), INTERVAL_MAX / 3);
    // Its topic was altered.
    scene.group.serve_state.set_heartbeat_interval(Duration::from_secs(3));
    assert_eq!(interval_of(&twice), Duration::from_secs(1));
}

#[tokio::test]
async fn requests_out_of_turn_are_bounded_and_skipped_after_a_claim() {
    let scene = Scene::busy(3).await;
    let groups = [Arc::clone(&scene.group)];
    scene.fill();
    // Only from here on: a store in memory does not work with a paused clock.
    tokio::time::pause();
    let mut heartbeats = Heartbeats::new(None);
    heartbeats.sent_at = Some(Instant::now());
    heartbeats.due_at = Instant::now() + Duration::from_secs(20);
    tokio::time::advance(Duration::from_millis(10)).await;
    heartbeats.asked(false);
    assert!(!heartbeats.is_due(&groups), "one was a moment ago");
    tokio::time::advance(REQUEST_AGAIN).await;
    assert!(heartbeats.is_due(&groups), "it holds messages and has no state since");
    heartbeats.asked(false);
    tokio::time::advance(Duration::from_millis(10)).await;
    scene.group.note_state(SubscriptionState::Active, Instant::now());
    assert!(!heartbeats.is_due(&groups), "a claim came before");
    heartbeats.asked(true);
    assert!(heartbeats.is_due(&groups), "in any case");
    assert!(!heartbeats.is_due(&groups), "once");
    tokio::time::advance(Duration::from_secs(20)).await;
    assert!(heartbeats.is_due(&groups), "in its turn");
}

/// A process that serves a group of a store, with paused time.
fn process(store: &Arc<Still>) -> (Arc<Runtime>, Arc<Group>) {
    let runtime = runtime(store);
    let group = group_of(store, &runtime, &Registry::default());
    runtime.serve(Arc::clone(&group));
    (runtime, group)
}

fn runtime(store: &Arc<Still>) -> Arc<Runtime> {
    let owner = Runtime::new_owner().unwrap();
    let store = Arc::clone(store) as Arc<dyn Store>;
    Runtime::start(LeaseThread::here(), store, owner, Some(SILENT_FOR), None)
}

fn group_of(store: &Still, runtime: &Runtime, registry: &Registry) -> Arc<Group> {
    let subscription = store.subscription();
    let metrics = registry.group(&subscription.topic.name, &subscription.group);
    let (members, settler) = (Members::default(), runtime.settler.clone());
    Arc::new(Group::new(subscription, plain(), members, settler, Arc::default(), metrics))
}

#[tokio::test(start_paused = true)]
async fn a_read_that_hangs_does_not_silence_the_process() {
    let store = Arc::new(Still::default());
    store.mute.lock().unwrap().extend(["topics", "settings_of"]);
    *store.revives.lock().unwrap() = true;
    let (_runtime, group) = process(&store);
    for _ in 0..600 {
        group.metrics.lag.set(1);
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    assert!(store.count("topics") > 10 && store.count("settings_of") > 10, "both were tried, and hang");
    let longest = store.longest_without("heartbeat");
    assert!(longest < SILENT_FOR / 3, "{longest:?}");
}

#[tokio::test(start_paused = true)]
async fn ended_processes_are_found_twice_a_second_and_nothing_waits_for_it() {
    let store = Arc::new(Still::default());
    let (_runtime, _group) = process(&store);
    tokio::time::sleep(Duration::from_secs(60)).await;
    let calls = store.count("take_over");
    assert!((115..=120).contains(&calls), "{calls}");
    store.mute.lock().unwrap().insert("take_over");
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert!(store.count("take_over") > calls + 5, "a call that hangs is abandoned");
    assert!(store.longest_without("heartbeat") < Duration::from_secs(4));
}

/// Runs a consumer over the store; returns the calls until it runs, and how many claims follow in a second.
async fn started(store: &Arc<Still>) -> (Vec<&'static str>, usize) {
    let headwater = Headwater::in_memory().await.unwrap();
    headwater.producer("orders").send(NewMessage::new("x")).await.unwrap();
    headwater.set_runtime(runtime(store));
    let handler = |_: Message, _| async { Ok(()) };
    let running = headwater.consumer("orders", "email").member("one", handler).run().await.unwrap();
    let before = store.asked.lock().unwrap().iter().map(|(_, verb)| *verb).collect();
    tokio::time::sleep(Duration::from_secs(1)).await;
    running.shutdown(Duration::ZERO).await.unwrap();
    (before, store.count("claim"))
}

#[tokio::test(start_paused = true)]
async fn nothing_is_claimed_before_the_process_has_tried_to_prove_that_it_lives() {
    let store = Arc::new(Still::default());
    store.slow.lock().unwrap().insert("take_over", Duration::from_secs(1));
    let (before, claims) = started(&store).await;
    assert!(before.contains(&"take_over") && !before.contains(&"claim"), "{before:?}");
    assert!(claims > 0);
    for hanging in ["heartbeat", "take_over"] {
        let store = Arc::new(Still::default());
        store.mute.lock().unwrap().insert(hanging);
        let (before, claims) = started(&store).await;
        assert!(before.contains(&hanging) && !before.contains(&"claim"), "{before:?}");
        assert!(claims > 0, "{hanging} is abandoned");
    }
}

#[tokio::test(start_paused = true)]
async fn a_start_does_not_wait_for_heartbeats_that_end_before_they_begin() {
    let store = Arc::new(Still::default());
    let (runtime, group) = process(&store);
    runtime.dismiss(&group, false).await;
    assert_eq!(store.count("heartbeat"), 0, "the task did not run");
    tokio::time::timeout(Duration::from_secs(60), runtime.introduced()).await.expect("nothing to wait for");
}

#[tokio::test(start_paused = true)]
async fn a_departure_removes_no_owner_that_serves_again() {
    for cancelled in [false, true] {
        let store = Arc::new(Still::default());
        let (runtime, first) = process(&store);
        runtime.introduced().await;
        store.slow.lock().unwrap().insert("depart", Duration::from_secs(4));
        let departure = tokio::spawn({
            let (runtime, first) = (Arc::clone(&runtime), Arc::clone(&first));
            async move { runtime.dismiss(&first, true).await }
        });
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(store.count("depart"), 1, "it is under way");
        if cancelled {
            departure.abort();
        }
        let sent = || (store.count("heartbeat"), store.count("take_over"));
        let before = sent();
        runtime.serve(group_of(&store, &runtime, &Registry::default()));
        tokio::time::sleep(Duration::from_secs(2)).await;
        assert_eq!(sent(), before, "the departure would remove what they store");
        runtime.introduced().await;
        assert!(store.count("heartbeat") > before.0 && store.count("take_over") > before.1);
    }
}

#[tokio::test(start_paused = true)]
async fn activity_is_reported_to_the_end_and_once() {
    let (store, registry) = (Arc::new(Still::default()), Registry::default());
    let runtime = runtime(&store);
    let processed = || store.reported.lock().unwrap().last().unwrap().1.activity.processed;
    for (run, done) in [5, 2, 0].into_iter().enumerate() {
        let group = group_of(&store, &runtime, &registry);
        runtime.serve(Arc::clone(&group));
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(processed(), 0, "what was reported before the departure is kept without it");
        group.metrics.acked.add(done);
        runtime.dismiss(&group, true).await;
        assert_eq!(processed(), done, "though no heartbeat was due");
        assert_eq!(store.count("depart"), run + 1);
    }
    // While another group is served the owner does not depart, and nothing is reported twice or taken back.
    let (first, second) = (group_of(&store, &runtime, &registry), group_of(&store, &runtime, &registry));
    runtime.serve(Arc::clone(&first));
    first.metrics.acked.add(3);
    runtime.serve(Arc::clone(&second));
    runtime.dismiss(&first, true).await;
    assert_eq!((processed(), store.count("depart")), (3, 3));
    second.metrics.acked.add(4);
    runtime.dismiss(&second, true).await;
    assert_eq!((processed(), store.count("depart")), (7, 4));
}

#[tokio::test(start_paused = true)]
async fn what_operators_alter_applies_within_a_heartbeat_interval() {
    let store = Arc::new(Still::default());
    let (_runtime, group) = process(&store);
    tokio::time::sleep(Duration::from_secs(1)).await;
    let before = group.policy();
    let seconds = Duration::from_secs;
    {
        let mut settings = store.settings.lock().unwrap();
        (settings.lease, settings.max_attempts) = (seconds(30), 3);
        (settings.backoff_initial, settings.heartbeat_interval) = (seconds(7), seconds(6));
    }
    tokio::time::sleep(seconds(40)).await;
    let altered = RetryPolicy { max_attempts: 3, backoff_initial: seconds(7), ..before };
    assert_eq!((group.lease_for(), group.policy()), (seconds(30), altered));
    assert_eq!(group.want().unwrap().lease, Some(seconds(30)));
    assert_eq!(interval_of(&[group]), seconds(2));
}
