//! Settling: ack, retry, release and fencing. Burying has a file of its own.

use std::time::Duration;

use super::case::{Case, bury, failed, offsets_of, owner, range, retry, spanned};
use crate::error::ErrorKind;
use crate::lease::{LeaseId, LeaseToken};
use crate::message::{NewMessage, Offset};
use crate::settle::{Outcome, Settlement};
use crate::subscription::{Start, SubscriptionId};
use crate::topic::TopicSettings;

fn leased_for(seconds: u64) -> TopicSettings {
    TopicSettings { lease: Duration::from_secs(seconds), ..TopicSettings::default() }
}

/// An acked lease is done permanently.
pub async fn ack_all_finishes_a_lease(case: &Case) {
    let scene = case.scene(leased_for(10)).await;
    scene.publish(5).await;
    let lease = scene.claim_one("a", 5).await;
    scene.ack(&lease).await;
    let status = scene.status().await;
    assert_eq!((status.next.0, status.floor.0, status.leased), (6, 5, 0));
    case.advance_ms(60_000);
    scene.claim_nothing("a", 5).await;
    assert_eq!(scene.status().await.reassigned, 0);
}

/// A settled token is spent.
pub async fn a_token_settles_once(case: &Case) {
    let scene = case.queue().await;
    scene.publish(2).await;
    let lease = scene.claim_one("a", 2).await;
    scene.ack(&lease).await;
    let again = scene.settle(Settlement::ack_all(&lease)).await;
    let error = failed(again, ErrorKind::LeaseLost);
    assert!(error.to_string().contains(&lease.token.to_string()), "the error names the token: {error}");
    let again = scene.settle_each(&lease, vec![((1, 1), bury("late"))]).await;
    failed(again, ErrorKind::LeaseLost);
    assert_eq!(scene.dead_letters().await, []);
}

/// A slow worker settles after its lease was reassigned: it is refused, and the new owner is not affected.
pub async fn stale_token_cannot_settle(case: &Case) {
    let scene = case.scene(leased_for(10)).await;
    scene.publish(1).await;
    let old = scene.claim_one("slow", 1).await;
    case.advance_ms(10_000);
    let new = scene.claim_one("quick", 1).await;
    assert!(new.token > old.token, "tokens rise: {} then {}", old.token, new.token);
    for parts in [Outcome::Ack, Outcome::Release, retry(0, "old"), bury("old")] {
        let answer = scene.settle_each(&old, vec![((1, 1), parts)]).await;
        failed(answer, ErrorKind::LeaseLost);
    }
    failed(scene.settle(Settlement::ack_all(&old)).await, ErrorKind::LeaseLost);
    let status = scene.status().await;
    assert_eq!((status.leased, status.waiting, status.dead_letters), (1, 0, 0));
    scene.ack(&new).await;
    scene.claim_nothing("quick", 1).await;
}

/// The deadline holds to the millisecond, even when no other owner has claimed the range.
pub async fn a_lease_past_its_deadline_cannot_be_settled(case: &Case) {
    let scene = case.scene(leased_for(10)).await;
    scene.publish(4).await;
    let in_time = scene.claim_one("a", 2).await;
    let late = scene.claim_one("a", 2).await;
    case.advance_ms(9_999);
    scene.ack(&in_time).await;
    case.advance_ms(1);
    failed(scene.settle(Settlement::ack_all(&late)).await, ErrorKind::LeaseLost);
    let part = scene.settle_each(&late, vec![((3, 3), bury("late"))]).await;
    failed(part, ErrorKind::LeaseLost);
    assert_eq!(scene.dead_letters().await, []);
    let again = scene.claim("b", 2).await;
    assert_eq!(again[0].range.first.0, 3, "the first half is redelivered: {again:?}");
    assert_eq!(again[0].attempt, 2);
}

/// A token is compared together with its owner and its subscription: after lost history it may be another's.
pub async fn a_token_ends_no_lease_of_another_owner_or_subscription(case: &Case) {
    let scene = case.pub_sub().await;
    let other = scene.subscribe("other", Start::Beginning).await;
    scene.publish(3).await;
    let lease = scene.claim_one("a", 3).await;
    let elsewhere = other.claim_one("a", 3).await;
    let foreign = [
        LeaseId { owner: owner("b"), ..lease.id() },
        LeaseId { subscription_id: elsewhere.subscription_id, ..lease.id() },
        LeaseId { token: elsewhere.token, ..lease.id() },
    ];
    let before = scene.status().await;
    for id in &foreign {
        failed(scene.settle(Settlement::ack_all(id)).await, ErrorKind::LeaseLost);
        failed(scene.settle_each(id, vec![((1, 3), Outcome::Ack)]).await, ErrorKind::LeaseLost);
        failed(scene.extend(id, Duration::from_secs(1)).await, ErrorKind::LeaseLost);
    }
    assert_eq!(scene.status().await, before);
    scene.ack(&lease).await;
    other.ack(&elsewhere).await;
}

/// A token that was never issued changes nothing.
pub async fn an_unknown_token_changes_nothing(case: &Case) {
    let scene = case.queue().await;
    scene.publish(3).await;
    let lease = scene.claim_one("a", 3).await;
    let before = scene.status().await;
    for unknown in [0, -1, lease.token.0 + 1, lease.token.0 + 1_000_000, i64::MAX, i64::MIN] {
        let id = LeaseId { token: LeaseToken(unknown), ..lease.id() };
        failed(scene.settle(Settlement::ack_all(&id)).await, ErrorKind::LeaseLost);
        failed(scene.settle_each(&id, vec![((1, 3), Outcome::Ack)]).await, ErrorKind::LeaseLost);
    }
    assert_eq!(scene.status().await, before);
    scene.ack(&lease).await;
}

/// A partial settlement splits the range; the rest stays leased under the same token.
pub async fn partial_settle_keeps_the_rest_under_its_token(case: &Case) {
    let scene = case.queue().await;
    scene.publish(10).await;
    let lease = scene.claim_one("a", 10).await;
    scene.settle_each(&lease, vec![((3, 5), Outcome::Ack)]).await.unwrap();
    scene.claim_nothing("b", 10).await;
    assert_eq!(scene.status().await.floor.0, 0);
    let twice = scene.settle_each(&lease, vec![((5, 5), Outcome::Ack)]).await;
    failed(twice, ErrorKind::LeaseLost);
    let across = scene.settle_each(&lease, vec![((2, 6), Outcome::Ack)]).await;
    failed(across, ErrorKind::LeaseLost);
    scene.settle_each(&lease, vec![((1, 2), Outcome::Ack)]).await.unwrap();
    assert_eq!(scene.status().await.floor.0, 5);
    scene.settle_each(&lease, vec![((10, 10), Outcome::Ack), ((6, 8), Outcome::Ack)]).await.unwrap();
    assert_eq!(scene.status().await.floor.0, 8);
    scene.ack(&lease).await;
    let status = scene.status().await;
    assert_eq!((status.floor.0, status.leased, status.waiting), (10, 0, 0));
    failed(scene.settle(Settlement::ack_all(&lease)).await, ErrorKind::LeaseLost);
}

/// What was settled stays settled when the owner then disappears; only the rest is redelivered.
pub async fn only_the_unsettled_rest_of_a_lease_expires(case: &Case) {
    let scene = case.scene(leased_for(10)).await;
    scene.publish(10).await;
    let lease = scene.claim_one("a", 10).await;
    let parts = vec![((1, 3), Outcome::Ack), ((5, 9), Outcome::Ack)];
    scene.settle_each(&lease, parts).await.unwrap();
    case.advance_ms(10_000);
    let mut again = offsets_of(&scene.drain("b").await);
    again.sort_unstable();
    assert_eq!(again, [4, 10]);
    assert_eq!(scene.status().await.floor.0, 10);
}

/// The settlements of one call succeed or fail independently.
pub async fn offsets_not_held_are_lost_and_other_settlements_go_through(case: &Case) {
    let scene = case.queue().await;
    scene.publish(12).await;
    let wrong = scene.claim_one("a", 4).await;
    let right = scene.claim_one("a", 4).await;
    let part = scene.claim_one("a", 4).await;
    let settlements = [
        Settlement::each(&wrong, vec![(range(1, 2), Outcome::Ack), (range(4, 5), Outcome::Ack)]),
        Settlement::ack_all(&right),
        Settlement::ack_all(LeaseId { token: LeaseToken(987_654_321), ..right.id() }),
        Settlement::each(&part, vec![(range(9, 9), bury("bad")), (range(12, 12), Outcome::Ack)]),
    ];
    let answers = scene.store.settle(&settlements).await.unwrap();
    let kinds: Vec<_> = answers.iter().map(|answer| answer.as_ref().err().map(crate::Error::kind)).collect();
    let lost = Some(ErrorKind::LeaseLost);
    assert_eq!(kinds, [lost, None, lost, None]);
    let status = scene.status().await;
    assert_eq!((status.floor.0, status.dead_letters), (0, 1));
    // Nothing of the refused settlement happened, so all of the lease can still be settled.
    scene.settle_each(&wrong, vec![((1, 4), Outcome::Ack)]).await.unwrap();
    scene.settle_each(&part, vec![((10, 11), Outcome::Ack)]).await.unwrap();
    assert_eq!(scene.status().await.floor.0, 12);
}

/// One lease is settled by several settlements of one call: each applies to what those before it left.
pub async fn a_lease_may_be_settled_in_pieces_in_one_call(case: &Case) {
    let scene = case.queue().await;
    scene.publish(6).await;
    let (lease, other) = (scene.claim_one("a", 4).await, scene.claim_one("a", 2).await);
    let each = |first, last| Settlement::each(&lease, vec![(range(first, last), Outcome::Ack)]);
    let settlements = [
        each(1, 2),
        each(3, 3),
        each(2, 2),
        Settlement::ack_all(&lease),
        Settlement::ack_all(&lease),
        Settlement::ack_all(&other),
    ];
    let answers = scene.store.settle(&settlements).await.unwrap();
    let accepted: Vec<_> = answers.iter().map(Result::is_ok).collect();
    assert_eq!(accepted, [true, true, false, true, false, true], "{answers:?}");
    assert_eq!(scene.status().await.floor.0, 6);
}

/// A settlement that contradicts itself, or is empty, is refused by name, without affecting others.
pub async fn malformed_settlements_are_refused(case: &Case) {
    let scene = case.queue().await;
    scene.publish(10).await;
    let lease = scene.claim_one("a", 5).await;
    let other = scene.claim_one("a", 5).await;
    let overlapping = vec![(range(1, 3), Outcome::Ack), (range(3, 4), bury("x"))];
    let too_long =
        Outcome::Retry { after: Duration::from_secs(367 * 24 * 3600), error: String::new(), key: None };
    for (parts, text) in [
        (overlapping, "overlap"),
        (vec![], "no offsets"),
        (vec![(range(1, 1), too_long)], "retry delay"),
        (vec![(range(1, 1), Outcome::Park { key: "a\0b".into() })], "key"),
    ] {
        let settlements = [Settlement::each(&lease, parts)];
        let mut answers = scene.store.settle(&settlements).await.unwrap();
        let error = failed(answers.remove(0), ErrorKind::InvalidInput);
        assert!(error.to_string().contains(text), "{error}");
    }
    let bad = Settlement::each(&lease, vec![]);
    let answers = scene.store.settle(&[bad, Settlement::ack_all(&other)]).await.unwrap();
    assert!(answers[0].is_err() && answers[1].is_ok(), "{answers:?}");
    assert_eq!(scene.dead_letters().await, []);
    scene.ack(&lease).await;
    assert_eq!(scene.status().await.floor.0, 10);
}

/// An empty call returns no answers.
pub async fn no_settlements_are_no_answers(case: &Case) {
    let scene = case.queue().await;
    assert!(scene.store.settle(&[]).await.unwrap().is_empty());
    assert!(scene.store.extend(&[], Duration::from_secs(1)).await.unwrap().is_empty());
}

/// Every outcome in one settlement, and one offset left out.
pub async fn every_outcome_fits_in_one_settlement(case: &Case) {
    let scene = case.queue().await;
    scene.publish(6).await;
    let lease = scene.claim_one("a", 6).await;
    let parts = vec![
        ((4, 4), Outcome::Release),
        ((1, 1), Outcome::Ack),
        ((3, 3), bury("hopeless")),
        ((2, 2), retry(5_000, "busy")),
        ((6, 6), Outcome::Ack),
    ];
    scene.settle_each(&lease, parts).await.unwrap();
    let status = scene.status().await;
    assert_eq!((status.leased, status.waiting, status.dead_letters, status.floor.0), (1, 2, 1, 1));
    let released = scene.claim_one("b", 10).await;
    assert_eq!((released.range, released.attempt), (range(4, 4), 1));
    case.advance_ms(5_000);
    let retried = scene.claim_one("b", 10).await;
    assert_eq!((retried.range, retried.attempt), (range(2, 2), 2));
    scene.ack(&lease).await;
    scene.ack(&released).await;
    scene.ack(&retried).await;
    assert_eq!(scene.status().await.floor.0, 6);
    assert_eq!(scene.dead_letters().await[0].offset.0, 3);
}

/// A retry is due to the millisecond, and an earlier claim returns when.
pub async fn a_retry_is_due_to_the_millisecond(case: &Case) {
    let scene = case.queue().await;
    scene.publish(3).await;
    let lease = scene.claim_one("a", 3).await;
    let parts = vec![((1, 1), Outcome::Ack), ((2, 2), retry(1_500, "busy")), ((3, 3), Outcome::Ack)];
    scene.settle_each(&lease, parts).await.unwrap();
    case.advance_ms(1_499);
    let early = scene.claimed("a", 3).await;
    assert_eq!((early.leases, early.recheck_after), (vec![], Some(Duration::from_millis(1))));
    case.advance_ms(1);
    let again = scene.claim_one("a", 3).await;
    assert_eq!((again.range, again.attempt, again.suspect), (range(2, 2), 2, false));
    scene.claim_nothing("b", 3).await;
}

/// Every failed hand-out counts one attempt.
pub async fn retries_count_attempts(case: &Case) {
    let scene = case.queue().await;
    scene.publish(1).await;
    for attempt in 1..=5 {
        let lease = scene.claim_one("a", 1).await;
        assert_eq!(lease.attempt, attempt);
        scene.settle_each(&lease, vec![((1, 1), retry(100, "again"))]).await.unwrap();
        case.advance_ms(100);
    }
    let last = scene.claim_one("a", 1).await;
    scene.settle_each(&last, vec![((1, 1), bury("enough"))]).await.unwrap();
    let dead = scene.dead_letters().await;
    assert_eq!((dead[0].attempts, dead[0].error.as_str()), (6, "enough"));
}

/// Retries of a batch become due together and are handed out together, before new messages.
pub async fn several_due_retries_are_handed_out_in_one_claim(case: &Case) {
    let scene = case.queue().await;
    scene.publish(7).await;
    let lease = scene.claim_one("a", 7).await;
    let retried = [2, 4, 6].map(|offset| ((offset, offset), retry(1_000, "busy")));
    let done = [1, 3, 5, 7].map(|offset| ((offset, offset), Outcome::Ack));
    scene.settle_each(&lease, retried.into_iter().chain(done).collect()).await.unwrap();
    scene.publish(3).await;
    case.advance_ms(1_000);
    let leases = scene.claim("a", 5).await;
    let mut offsets = spanned(&leases);
    offsets.sort_unstable();
    assert_eq!(offsets, [2, 4, 6, 8, 9]);
    for lease in &leases {
        assert_eq!(lease.attempt, if lease.range.first.0 < 8 { 2 } else { 1 });
    }
    let first_offsets: Vec<_> = leases.iter().map(|lease| lease.range.first).collect();
    assert!(first_offsets.is_sorted(), "offsets rise: {first_offsets:?}");
}

/// A due range larger than what is wanted is split; the rest stays due.
pub async fn a_due_range_is_split_to_what_is_wanted(case: &Case) {
    let scene = case.queue().await;
    scene.publish(10).await;
    let lease = scene.claim_one("a", 10).await;
    scene.settle_each(&lease, vec![((1, 10), retry(1_000, "busy"))]).await.unwrap();
    case.advance_ms(1_000);
    for expected in [range(1, 4), range(5, 8), range(9, 10)] {
        let part = scene.claim_one("a", 4).await;
        assert_eq!((part.range, part.attempt), (expected, 2));
        scene.ack(&part).await;
    }
    assert_eq!(scene.status().await.floor.0, 10);
}

/// A released range goes to the next claim, as if it had never been handed out.
pub async fn a_release_is_immediate_and_counts_no_attempt(case: &Case) {
    let scene = case.queue().await;
    scene.publish(4).await;
    let lease = scene.claim_one("a", 4).await;
    scene.settle_each(&lease, vec![((2, 4), Outcome::Release), ((1, 1), Outcome::Ack)]).await.unwrap();
    let again = scene.claim_one("b", 4).await;
    assert_eq!((again.range, again.attempt, again.suspect), (range(2, 4), 1, false));
    failed(scene.settle(Settlement::ack_all(&lease)).await, ErrorKind::LeaseLost);
    scene.ack(&again).await;
    assert_eq!(scene.status().await.reassigned, 0);
}

/// The keys of what a lease holds are read, and nothing of what it does not.
pub async fn keys_are_read_of_what_a_lease_holds(case: &Case) {
    let scene = case.scene(leased_for(10)).await;
    let keyed = |n: usize| NewMessage::new(n.to_string()).key(format!("k{n}"));
    let messages: Vec<_> = (1..=8).map(|n| if n == 3 { NewMessage::new("3") } else { keyed(n) }).collect();
    scene.publish_all(&messages).await;
    let lease = scene.claim_one("a", 6).await;
    let rest = scene.claim_one("a", 6).await;
    let held = async |lease: LeaseId, from: i64| -> Vec<(i64, String)> {
        let found = scene.store.held_keys(scene.subscription.topic.topic_id, &lease, Offset(from)).await;
        found.expect("the store reads").into_iter().map(|(offset, key)| (offset.0, key)).collect()
    };
    let keys = |offsets: &[i64]| -> Vec<(i64, String)> {
        offsets.iter().map(|offset| (*offset, format!("k{offset}"))).collect()
    };
    assert_eq!(held(lease.id(), 0).await, keys(&[1, 2, 4, 5, 6]), "a message without a key is left out");
    assert_eq!(held(lease.id(), 5).await, keys(&[5, 6]));
    assert_eq!(held(rest.id(), 1).await, keys(&[7, 8]));
    for from in [7, i64::MAX] {
        assert_eq!(held(lease.id(), from).await, []);
    }
    scene.settle_each(&lease, vec![((2, 2), Outcome::Ack), ((5, 5), retry(0, "no"))]).await.unwrap();
    assert_eq!(held(lease.id(), 1).await, keys(&[1, 4, 6]), "settled");
    let other = SubscriptionId(lease.subscription_id.0 + 1);
    for unknown in [
        LeaseId { token: LeaseToken(lease.token.0 ^ 1), ..lease.id() },
        LeaseId { owner: owner("b"), ..lease.id() },
        LeaseId { subscription_id: other, ..lease.id() },
    ] {
        assert_eq!(held(unknown.clone(), 1).await, [], "{unknown:?}");
    }
    case.advance_ms(10_000);
    scene.drain("b").await;
    assert_eq!((held(lease.id(), 1).await, held(rest.id(), 1).await), (vec![], vec![]), "reassigned");
}
