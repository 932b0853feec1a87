//! Expiry: the range of an owner that disappeared is reassigned, counted and logged, and a poison message is
//! isolated.

use std::collections::HashSet;
use std::time::Duration;

use uuid::Uuid;

use super::case::{Case, Scene, offsets_of, range, spanned};
use super::log_capture;
use crate::settle::Outcome;
use crate::topic::{Ordering, TopicSettings};

fn ten_seconds() -> TopicSettings {
    TopicSettings { lease: Duration::from_secs(10), ..TopicSettings::default() }
}

/// A lease expires not a millisecond early. The message then goes to another owner, as a counted second attempt.
pub async fn an_expired_lease_goes_to_another_owner(case: &Case) {
    let scene = case.scene(ten_seconds()).await;
    scene.publish(1).await;
    let lost = scene.claim_one("vanishes", 1).await;
    case.advance_ms(9_999);
    let early = scene.claimed("next", 1).await;
    assert_eq!((early.leases, early.recheck_after), (vec![], Some(Duration::from_millis(1))));
    assert_eq!(scene.status().await.reassigned, 0);
    case.advance_ms(1);
    let moved = scene.claim_one("next", 1).await;
    assert_eq!((moved.range, moved.attempt, moved.suspect), (range(1, 1), 2, true));
    assert!(moved.token > lost.token);
    assert_eq!(moved.deadline, Some(case.now() + Duration::from_secs(10)));
    let status = scene.status().await;
    assert_eq!((status.reassigned, status.leased, status.waiting), (1, 1, 0));
    scene.ack(&moved).await;
}

/// The log shows the owner and the lease that expired.
pub async fn an_expired_lease_is_logged(case: &Case) {
    let name = format!("expiry-logged-{}", Uuid::now_v7());
    let scene = Scene::new(case.open().await, &name, ten_seconds()).await;
    scene.publish(1).await;
    let lost = scene.claim_one("vanishing-owner", 1).await;
    assert_eq!(log_capture::lines_with(&name), Vec::<String>::new());
    case.advance_ms(10_000);
    scene.claim_one("next", 1).await;
    let lines = log_capture::lines_with(&name);
    assert_eq!(lines.len(), 1, "one line per expired hand-out: {lines:?}");
    for part in ["WARN", "workers", "vanishing-owner", &lost.token.to_string(), "expired"] {
        assert!(lines[0].contains(part), "{part} is missing in: {}", lines[0]);
    }
}

/// A lease of zero has no deadline, whether the topic or the want sets it.
pub async fn a_lease_of_zero_is_never_reassigned(case: &Case) {
    let for_ever = TopicSettings { lease: Duration::ZERO, ..TopicSettings::default() };
    let scene = case.scene(for_ever).await;
    scene.publish(2).await;
    let by_topic = scene.claim_one("a", 1).await;
    let by_want = scene.claimed_for("a", 1, Some(Duration::ZERO)).await.leases.remove(0);
    assert_eq!((by_topic.deadline, by_want.deadline), (None, None));
    case.advance(Duration::from_secs(10_000 * 24 * 3600));
    let claimed = scene.claimed("b", 10).await;
    assert_eq!((claimed.leases, claimed.recheck_after), (vec![], None));
    assert_eq!(scene.status().await.reassigned, 0);
    scene.ack(&by_topic).await;
    scene.ack(&by_want).await;
}

/// The halves are handed out separately, each to another owner; the second half need not wait for the first.
pub async fn an_expired_range_is_redelivered_in_halves(case: &Case) {
    let scene = case.scene(ten_seconds()).await;
    scene.publish(8).await;
    scene.claim_one("vanishes", 8).await;
    case.advance_ms(10_000);
    let first = scene.claim_one("b", 8).await;
    assert_eq!((first.range, first.attempt, first.suspect), (range(1, 4), 2, true));
    let second = scene.claim_one("c", 8).await;
    assert_eq!((second.range.first.0, second.attempt, second.suspect), (5, 2, true));
    scene.ack(&first).await;
    scene.ack(&second).await;
    let rest = scene.drain("b").await;
    assert_eq!(offsets_of(&rest).len() as u64, 4 - second.range.span());
    assert_eq!(scene.status().await.floor.0, 8);
    assert_eq!(scene.status().await.reassigned, 1);
}

/// A suspect is handed only to an owner that holds nothing, and that owner gets nothing else until it is settled.
pub async fn a_suspect_is_handed_out_alone(case: &Case) {
    let scene = case.scene(ten_seconds()).await;
    scene.publish(2).await;
    scene.claim_one("vanishes", 2).await;
    case.advance_ms(5_000);
    scene.publish(6).await;
    let busy = scene.claim_one("busy", 1).await;
    assert_eq!(busy.range, range(3, 3));
    case.advance_ms(5_000);
    scene.claim_nothing("busy", 10).await;
    let suspect = scene.claim_one("idle", 10).await;
    assert_eq!((suspect.range, suspect.suspect), (range(1, 1), true));
    scene.claim_nothing("idle", 10).await;
    // The busy owner drains and then gets the other half, alone too.
    scene.ack(&busy).await;
    let other_half = scene.claim_one("busy", 10).await;
    assert_eq!((other_half.range, other_half.suspect), (range(2, 2), true));
    scene.ack(&other_half).await;
    scene.ack(&suspect).await;
    let after = scene.claim("idle", 10).await;
    assert_eq!(spanned(&after), [4, 5, 6, 7, 8]);
    assert!(after.iter().all(|lease| !lease.suspect && lease.attempt == 1));
}

/// Holding a lease of one subscription does not keep an owner from a suspect of another.
pub async fn a_suspect_affects_only_its_own_subscription(case: &Case) {
    let scene =
        case.scene(TopicSettings { lease: Duration::from_secs(10), ..TopicSettings::pub_sub() }).await;
    let other = scene.subscribe("other", crate::Start::Beginning).await;
    scene.publish(2).await;
    scene.claim_one("vanishes", 2).await;
    case.advance_ms(10_000);
    assert_eq!(other.claim_one("b", 1).await.range, range(1, 1));
    assert!(scene.claim_one("b", 10).await.suspect);
    assert_eq!(other.claim_one("b", 1).await.range, range(2, 2));
}

/// A released suspect stays suspect, and its attempts stay.
pub async fn a_released_suspect_stays_suspect(case: &Case) {
    let scene = case.scene(ten_seconds()).await;
    scene.publish(1).await;
    scene.claim_one("vanishes", 1).await;
    case.advance_ms(10_000);
    let suspect = scene.claim_one("b", 1).await;
    scene.settle_each(&suspect, vec![((1, 1), Outcome::Release)]).await.unwrap();
    let again = scene.claim_one("c", 1).await;
    assert_eq!((again.attempt, again.suspect), (2, true));
}

/// A clock that jumps back loses no message.
pub async fn a_clock_that_jumps_back_loses_nothing(case: &Case) {
    let scene = case.scene(ten_seconds()).await;
    scene.publish(2).await;
    let held = scene.claim_one("a", 1).await;
    case.turn_back(Duration::from_secs(3_600));
    scene.publish(1).await;
    assert_eq!(scene.claim_one("b", 10).await.range, range(2, 3));
    scene.settle_each(&held, vec![((1, 1), super::case::retry(1_000, "again"))]).await.unwrap();
    case.advance_ms(1_000);
    let again = scene.claim_one("a", 1).await;
    assert_eq!((again.range, again.attempt), (range(1, 1), 2));
    scene.ack(&again).await;
    case.advance_ms(9_000);
    let mut moved = offsets_of(&scene.drain("c").await);
    moved.sort_unstable();
    assert_eq!(moved, [2, 3]);
}

/// A message whose every owner disappears is buried when its attempts are used up, with that reason.
pub async fn a_message_that_kills_its_worker_is_buried(case: &Case) {
    for (name, ordering) in [("any-order", Ordering::None), ("by-key", Ordering::Key)] {
        let settings = TopicSettings { ordering, lanes: 1, max_attempts: 3, ..ten_seconds() };
        let scene = Scene::new(case.open().await, name, settings).await;
        scene.publish(1).await;
        for attempt in 1..=3 {
            let lease = scene.claim_one(&format!("victim-{attempt}"), 1).await;
            assert_eq!(lease.attempt, attempt);
            case.advance_ms(10_000);
        }
        scene.claim_nothing("survivor", 1).await;
        let dead = scene.dead_letters().await;
        assert_eq!((dead.len(), dead[0].offset.0, dead[0].attempts), (1, 1, 3), "{name}");
        assert_eq!(dead[0].error, "lease expired 3 times; last held by victim-3", "{name}");
        let status = scene.status().await;
        assert_eq!((status.floor.0, status.reassigned, status.dead_letters), (1, 3, 1), "{name}");
    }
}

/// Five hundred messages with the poison first, in the middle and last, and ten attempts.
pub async fn bisect_finds_the_poison_in_five_hundred(case: &Case) {
    for poison in [1, 250, 251, 500] {
        bisect(case, 500, poison, 10).await;
    }
}

/// Three attempts are too few to halve to the end: the last attempt is always alone.
pub async fn bisect_works_with_three_attempts(case: &Case) {
    bisect(case, 100, 77, 3).await;
}

/// With one attempt only, still no neighbour is buried.
pub async fn bisect_works_with_one_attempt(case: &Case) {
    bisect(case, 60, 31, 1).await;
}

/// Every owner of the poison disappears; exactly the poison is buried, at exactly `max_attempts`.
async fn bisect(case: &Case, count: usize, poison: i64, max_attempts: u32) {
    let settings = TopicSettings { max_attempts, ..ten_seconds() };
    let name = format!("poison-{poison}-of-{count}");
    let scene = Scene::new(case.open().await, &name, settings).await;
    scene.publish(count).await;
    let (mut acked, mut hand_outs, mut worker) = (HashSet::new(), 0, 0);
    loop {
        worker += 1;
        assert!(worker < 4 * count, "it never ends");
        let leases = scene.claim(&format!("worker-{worker}"), 1_000).await;
        assert!(leases.len() <= 1, "a suspect is handed out alone: {leases:?}");
        let Some(lease) = leases.first() else { break };
        let offsets = spanned(&leases);
        if offsets.contains(&poison) {
            hand_outs += 1;
            case.advance_ms(10_000);
        } else {
            assert!(offsets.iter().all(|offset| acked.insert(*offset)), "{offsets:?} were handed out twice");
            scene.ack(lease).await;
        }
    }
    assert_eq!(acked.len(), count - 1, "every neighbour is done");
    let dead = scene.dead_letters().await;
    let buried: Vec<_> = dead.iter().map(|one| (one.offset.0, one.attempts)).collect();
    assert_eq!(buried, [(poison, max_attempts)], "only the poison is buried");
    // With a single allowed attempt a second hand-out is needed to find the poison alone.
    assert_eq!(hand_outs, if max_attempts == 1 { 2 } else { max_attempts });
    let status = scene.status().await;
    assert_eq!((status.floor.0, status.leased, status.waiting), (i64::try_from(count).unwrap(), 0, 0));
    scene.store.close().await.unwrap();
}

/// Two poison messages in one range are both isolated, and nothing else is buried.
pub async fn bisect_finds_several_poisons(case: &Case) {
    let scene = case.scene(TopicSettings { max_attempts: 7, ..ten_seconds() }).await;
    scene.publish(64).await;
    let poisons = [5, 40];
    let mut acked = HashSet::new();
    for worker in 0..400 {
        let Some(lease) = scene.claim(&format!("worker-{worker}"), 64).await.pop() else { break };
        if poisons.iter().any(|poison| lease.range.contains(crate::Offset(*poison))) {
            case.advance_ms(10_000);
        } else {
            assert!(spanned(std::slice::from_ref(&lease)).into_iter().all(|offset| acked.insert(offset)));
            scene.ack(&lease).await;
        }
    }
    assert_eq!(acked.len(), 62);
    let mut buried: Vec<_> = scene.dead_letters().await.iter().map(|one| one.offset.0).collect();
    buried.sort_unstable();
    assert_eq!(buried, poisons);
}
