//! Heartbeats: the leases of a dead owner end long before their deadline, and a live owner keeps its leases.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use uuid::Uuid;

use super::case::{Case, DEADLINE, Scene, failed, offsets_of, owner, range, spanned};
use super::log_capture;
use super::wake::{arm, woken};
use crate::error::ErrorKind;
use crate::message::NewMessage;
use crate::settle::{Outcome, Settlement};
use crate::topic::{Ordering, TopicSettings};

/// How long an owner may be silent, unless a case sets another time.
const SILENT_MS: u64 = 15_000;
/// A wait of this length that ends without a wake-up shows that the store is at rest.
const REST: Duration = Duration::from_millis(120);

/// The leases end not a millisecond early. Other owners can then claim the messages at once, as a counted second
/// attempt, each alone.
pub async fn a_silent_owners_leases_are_reassigned(case: &Case) {
    let scene = case.queue().await;
    scene.publish(4).await;
    assert_eq!(scene.heartbeat_judging("dies", SILENT_MS).await, 0);
    let lost = scene.claim_one("dies", 2).await;
    case.advance_ms(SILENT_MS);
    assert_eq!(
        scene.heartbeat_judging("lives", SILENT_MS).await,
        0,
        "silent for so long, but not for longer"
    );
    scene.publish(1).await;
    assert_eq!(scene.claim_one("other", 10).await.range, range(3, 5), "what was leased stays leased");
    case.advance_ms(1);
    assert_eq!(scene.heartbeat_judging("lives", SILENT_MS).await, 1);
    assert_eq!(scene.heartbeat_judging("lives", SILENT_MS).await, 0, "a dead owner is swept once");
    assert_eq!(scene.status().await.reassigned, 0, "the range is not claimed yet");
    let again = scene.claim_one("lives", 10).await;
    assert_eq!((again.range, again.attempt, again.suspect), (range(1, 1), 2, true), "in halves, as expired");
    assert!(again.token > lost.token);
    assert_eq!(again.deadline, Some(case.now() + Duration::from_secs(300)));
    assert_eq!(scene.status().await.reassigned, 1);
}

/// An owner that sends heartbeats in time keeps its leases, however long it works on them.
pub async fn an_owner_with_heartbeats_keeps_its_leases(case: &Case) {
    let scene = case.queue().await;
    scene.publish(2).await;
    scene.heartbeat_judging("works", SILENT_MS).await;
    let lease = scene.claim_one("works", 2).await;
    for _ in 0..15 {
        case.advance_ms(SILENT_MS);
        assert_eq!(scene.heartbeat_judging("works", SILENT_MS).await, 0);
        assert_eq!(scene.heartbeat_judging("other", SILENT_MS).await, 0);
        scene.claim_nothing("other", 2).await;
    }
    scene.ack(&lease).await;
}

/// An owner that sends no heartbeats has plain leases: only their deadline ends them.
pub async fn an_owner_without_heartbeats_is_never_swept(case: &Case) {
    let scene = case.queue().await;
    scene.publish(1).await;
    let lease = scene.claim_one("no heartbeat", 1).await;
    scene.heartbeat_judging("lives", SILENT_MS).await;
    case.advance_ms(299_999);
    assert_eq!(scene.heartbeat_judging("lives", SILENT_MS).await, 0);
    scene.claim_nothing("lives", 1).await;
    scene.ack(&lease).await;
}

/// A swept token is refused like an expired one: before another owner claims the range, and whatever the clock does
/// afterwards.
pub async fn a_swept_token_can_neither_settle_nor_extend(case: &Case) {
    let scene = case.queue().await;
    scene.publish(1).await;
    scene.heartbeat_judging("dies", SILENT_MS).await;
    let lost = scene.claim_one("dies", 1).await;
    case.advance_ms(SILENT_MS + 1);
    assert_eq!(scene.heartbeat_judging("lives", SILENT_MS).await, 1);
    for _ in 0..2 {
        failed(scene.settle(Settlement::ack_all(&lost)).await, ErrorKind::LeaseLost);
        failed(scene.settle_each(&lost, vec![((1, 1), Outcome::Ack)]).await, ErrorKind::LeaseLost);
        failed(scene.extend(&lost, Duration::from_secs(60)).await, ErrorKind::LeaseLost);
        case.turn_back(Duration::from_secs(3_600));
    }
    let again = scene.claim_one("lives", 1).await;
    failed(scene.settle(Settlement::ack_all(&lost)).await, ErrorKind::LeaseLost);
    assert_eq!((again.range, again.attempt), (range(1, 1), 2));
    scene.ack(&again).await;
    assert_eq!(scene.status().await.floor.0, 1);
}

/// A lease of zero has no deadline, but a dead owner still loses it.
pub async fn a_lease_without_a_deadline_ends_with_a_dead_owner(case: &Case) {
    let scene = case.scene(TopicSettings { lease: Duration::ZERO, ..TopicSettings::default() }).await;
    scene.publish(2).await;
    scene.heartbeat_judging("dies", SILENT_MS).await;
    scene.claim_one("dies", 1).await;
    let kept = scene.claim_one("no heartbeat", 1).await;
    case.advance_ms(SILENT_MS + 1);
    assert_eq!(scene.heartbeat_judging("lives", SILENT_MS).await, 1);
    let again = scene.claim_one("lives", 2).await;
    assert_eq!((again.range, again.attempt, again.deadline), (range(1, 1), 2, None));
    scene.ack(&kept).await;
}

/// The sweep covers every topic and group, including those that the owner claimed from and named in no heartbeat.
pub async fn a_dead_owner_loses_every_subscription(case: &Case) {
    let first = case.pub_sub().await;
    let second = first.subscribe("second", crate::Start::Beginning).await;
    let elsewhere = Scene::new(Arc::clone(&first.store), "elsewhere", TopicSettings::default()).await;
    first.publish(6).await;
    elsewhere.publish(6).await;
    first.heartbeat_judging("dies", SILENT_MS).await;
    case.advance_ms(1_000);
    let mut kept = Vec::new();
    for scene in [&first, &second, &elsewhere] {
        scene.claim_one("dies", 2).await;
        kept.push(scene.claim_one("lives", 2).await);
        scene.claim_one("dies", 2).await;
    }
    case.advance_ms(SILENT_MS - 999);
    assert_eq!(first.heartbeat_judging("lives", SILENT_MS).await, 6);
    for (scene, kept) in [&first, &second, &elsewhere].into_iter().zip(&kept) {
        scene.ack(kept).await;
        let mut back = Vec::new();
        while let Some(lease) = scene.claim("lives", 10).await.pop() {
            assert!(lease.suspect && lease.attempt == 2, "{lease:?}");
            back.extend(spanned(std::slice::from_ref(&lease)));
            scene.ack(&lease).await;
        }
        back.sort_unstable();
        assert_eq!(back, [1, 2, 5, 6], "{}", scene.subscription.group);
    }
}

/// What is left of a lease ends as one, however many outstanding ranges it consists of.
pub async fn a_partly_settled_lease_ends_whole(case: &Case) {
    let scene = case.queue().await;
    scene.publish(5).await;
    scene.heartbeat_judging("dies", SILENT_MS).await;
    let lease = scene.claim_one("dies", 5).await;
    scene.settle_each(&lease, vec![((2, 2), Outcome::Ack), ((4, 4), Outcome::Ack)]).await.unwrap();
    case.advance_ms(SILENT_MS + 1);
    assert_eq!(scene.heartbeat_judging("lives", SILENT_MS).await, 1);
    failed(scene.settle_each(&lease, vec![((5, 5), Outcome::Ack)]).await, ErrorKind::LeaseLost);
    let mut back = offsets_of(&scene.drain("lives").await);
    back.sort_unstable();
    assert_eq!(back, [1, 3, 5]);
}

/// An ordered subscription continues where the dead owner stopped; no message overtakes another of its key.
pub async fn a_dead_owners_lane_is_free(case: &Case) {
    let settings = TopicSettings { ordering: Ordering::Key, lanes: 1, ..TopicSettings::default() };
    let scene = case.scene(settings).await;
    let messages: Vec<_> = (1..=4).map(|n| NewMessage::new(n.to_string()).key("k")).collect();
    scene.publish_all(&messages).await;
    scene.heartbeat_judging("dies", SILENT_MS).await;
    scene.claim_one("dies", 2).await;
    scene.claim_nothing("lives", 4).await;
    case.advance_ms(SILENT_MS + 1);
    assert_eq!(scene.heartbeat_judging("lives", SILENT_MS).await, 1);
    assert_eq!(offsets_of(&scene.drain("lives").await), [1, 2, 3, 4]);
}

/// A sweep wakes a waiter of the same process at once.
pub async fn a_sweep_wakes_a_waiter(case: &Case) {
    let scene = case.queue().await;
    let sweeper = scene.clone();
    is_woken(case, &scene, &sweeper).await;
}

/// A sweep also wakes a waiter of another process.
pub async fn a_sweep_of_another_store_wakes_a_waiter(case: &Case) {
    let scene = case.queue().await;
    let sweeper = scene.through(&case.open().await);
    is_woken(case, &scene, &sweeper).await;
}

async fn is_woken(case: &Case, scene: &Scene, sweeper: &Scene) {
    for round in ["first", "second"] {
        scene.publish_all(&[NewMessage::new(round)]).await;
        scene.heartbeat_judging("dies", SILENT_MS).await;
        scene.claim_one("dies", 1).await;
        case.advance_ms(SILENT_MS);
        assert_eq!(sweeper.heartbeat_judging("lives", SILENT_MS).await, 0);
        at_rest(scene).await;
        case.advance_ms(1);
        let wake = arm(scene).await;
        assert_eq!(sweeper.heartbeat_judging("lives", SILENT_MS).await, 1);
        woken(scene, wake, round).await;
    }
}

/// Waits until earlier events no longer wake a waiter, so that only the next event can.
pub(super) async fn at_rest(scene: &Scene) {
    let until = Instant::now() + DEADLINE;
    loop {
        let started = Instant::now();
        let woken = arm(scene).await.wait(REST).await;
        if !woken && started.elapsed() >= REST {
            return;
        }
        assert!(started < until, "waiters keep being woken for no reason");
    }
}

/// The leases of an owner that departs stay as they are: the owner may settle them, and their deadline ends them.
pub async fn an_owner_that_departs_is_forgotten(case: &Case) {
    let scene = case.queue().await;
    scene.publish(2).await;
    scene.heartbeat_judging("leaves", SILENT_MS).await;
    let first = scene.claim_one("leaves", 1).await;
    scene.claim_one("leaves", 1).await;
    for _ in 0..2 {
        scene.store.depart(&owner("leaves")).await.expect("departing twice is allowed");
    }
    case.advance_ms(SILENT_MS + 1);
    assert_eq!(scene.heartbeat_judging("lives", SILENT_MS).await, 0);
    scene.claim_nothing("lives", 2).await;
    scene.ack(&first).await;
    case.advance_ms(300_000);
    assert_eq!(scene.claim_one("lives", 2).await.range, range(2, 2));
}

/// An owner that was only paused finds its leases lost, continues to work, and is watched again.
pub async fn a_paused_owner_loses_its_leases_and_continues(case: &Case) {
    let scene = case.queue().await;
    scene.publish(3).await;
    for round in 1..=3 {
        assert_eq!(
            scene.heartbeat_judging("paused", SILENT_MS).await,
            0,
            "no other owner is dead in round {round}"
        );
        let lost = scene.claim_one("paused", 1).await;
        case.advance_ms(SILENT_MS + 1);
        assert_eq!(scene.heartbeat_judging("lives", SILENT_MS).await, 1, "round {round}");
        failed(scene.settle(Settlement::ack_all(&lost)).await, ErrorKind::LeaseLost);
        scene.ack(&scene.claim_one("lives", 1).await).await;
    }
    assert_eq!(scene.status().await.floor.0, 3);
    // The heartbeat is late but precedes the sweep: the owner still holds its lease.
    scene.publish(1).await;
    scene.heartbeat_judging("paused", SILENT_MS).await;
    let kept = scene.claim_one("paused", 1).await;
    case.advance_ms(SILENT_MS + 1);
    assert_eq!(scene.heartbeat_judging("paused", SILENT_MS).await, 0);
    assert_eq!(scene.heartbeat_judging("lives", SILENT_MS).await, 0);
    scene.ack(&kept).await;
}

/// Heartbeats run while dead owners are swept: each lease of a dead owner ends once, no lease of a live owner ends, and
/// no message is lost.
pub async fn many_owners_send_heartbeats_at_once(case: &Case) {
    const EACH: usize = 12;
    let scene = case.queue().await;
    let stores = [scene.clone(), scene.through(&case.open().await)];
    scene.publish(EACH * 2 * 3).await;
    let mut kept = Vec::new();
    for n in 0..EACH {
        let (dead, alive) = (format!("dead-{n}"), format!("alive-{n}"));
        scene.heartbeat_judging(&dead, SILENT_MS).await;
        scene.heartbeat_judging(&alive, SILENT_MS).await;
        scene.claim_one(&dead, 3).await;
        kept.push(scene.claim_one(&alive, 3).await);
    }
    // The live owners send heartbeats in time; then all at once, and settle in between.
    case.advance_ms(SILENT_MS);
    for n in 0..EACH {
        assert_eq!(scene.heartbeat_judging(&format!("alive-{n}"), SILENT_MS).await, 0);
    }
    case.advance_ms(1);
    let heartbeats = kept.into_iter().enumerate().map(|(n, lease)| {
        let scene = stores[n % 2].clone();
        tokio::spawn(async move {
            let name = format!("alive-{n}");
            let mut ended = scene.heartbeat_judging(&name, SILENT_MS).await;
            scene.ack(&lease).await;
            ended += scene.heartbeat_judging(&name, SILENT_MS).await;
            ended
        })
    });
    let mut ended = 0;
    for heartbeat in heartbeats.collect::<Vec<_>>() {
        ended += heartbeat.await.expect("the heartbeat is answered");
    }
    assert_eq!(ended, EACH as u64, "each lease of a dead owner ended once");
    let mut back = BTreeSet::new();
    while let Some(lease) = scene.claim("alive-0", 100).await.pop() {
        assert!(lease.suspect, "{lease:?}");
        assert!(spanned(std::slice::from_ref(&lease)).into_iter().all(|offset| back.insert(offset)));
        scene.ack(&lease).await;
    }
    assert_eq!(back.len(), EACH * 3, "every message was redelivered: {back:?}");
    assert_eq!(scene.status().await.floor.0, (EACH * 6) as i64);
}

/// The log names the owner that died and how many leases it held.
pub async fn a_dead_owner_is_logged(case: &Case) {
    let name = format!("dead-owner-{}", Uuid::now_v7());
    let scene = case.queue().await;
    scene.publish(2).await;
    scene.heartbeat_judging(&name, SILENT_MS).await;
    scene.claim_one(&name, 1).await;
    scene.claim_one(&name, 1).await;
    case.advance_ms(SILENT_MS + 1);
    scene.heartbeat_judging("lives", SILENT_MS).await;
    let lines = log_capture::lines_with(&name);
    assert_eq!(lines.len(), 1, "one line per dead owner: {lines:?}");
    for part in ["WARN", "silent", "leases=2"] {
        assert!(lines[0].contains(part), "{part} is missing in: {}", lines[0]);
    }
}

/// With a silence of zero every other owner would be dead at once.
pub async fn bad_silences_are_refused(case: &Case) {
    let scene = case.queue().await;
    for silent_for in [Duration::ZERO, Duration::from_secs(366 * 24 * 3600 + 1)] {
        let answer = scene.store.heartbeat(&owner("a"), Some(silent_for), &[]).await;
        let error = failed(answer, ErrorKind::InvalidInput);
        assert!(error.to_string().contains("silent_for"), "{error}");
    }
    assert_eq!(scene.heartbeat_judging("a", 1).await, 0);
}
