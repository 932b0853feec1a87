//! Extending: an owner at work keeps its lease; an owner that lost it gets an error.

use std::time::Duration;

use super::case::{Case, failed, offsets_of, range};
use crate::error::ErrorKind;
use crate::lease::{LeaseId, LeaseToken};
use crate::settle::Outcome;
use crate::topic::TopicSettings;

const TEN: Duration = Duration::from_secs(10);

fn ten_seconds() -> TopicSettings {
    TopicSettings { lease: TEN, ..TopicSettings::default() }
}

/// The new deadline counts from now, to the millisecond.
pub async fn extend_moves_the_deadline(case: &Case) {
    let scene = case.scene(ten_seconds()).await;
    scene.publish(2).await;
    let lease = scene.claim_one("a", 2).await;
    case.advance_ms(9_999);
    scene.extend(&lease, TEN).await.unwrap();
    case.advance_ms(9_999);
    scene.claim_nothing("b", 2).await;
    scene.extend(&lease, TEN).await.unwrap();
    case.advance_ms(9_999);
    scene.settle_each(&lease, vec![((1, 1), Outcome::Ack)]).await.unwrap();
    case.advance_ms(1);
    let again = scene.claim_one("b", 2).await;
    assert_eq!((again.range, again.attempt), (range(2, 2), 2));
}

/// An extension counts from now, so it may also shorten.
pub async fn extend_may_shorten(case: &Case) {
    let scene = case.queue().await;
    scene.publish(1).await;
    let lease = scene.claim_one("a", 1).await;
    scene.extend(&lease, Duration::from_secs(1)).await.unwrap();
    case.advance_ms(999);
    scene.claim_nothing("b", 1).await;
    case.advance_ms(1);
    assert_eq!(scene.claim_one("b", 1).await.attempt, 2);
}

/// A stale token extends nothing, and the new owner's deadline stays.
pub async fn stale_token_cannot_extend(case: &Case) {
    let scene = case.scene(ten_seconds()).await;
    scene.publish(1).await;
    let old = scene.claim_one("slow", 1).await;
    case.advance_ms(10_000);
    let new = scene.claim_one("quick", 1).await;
    failed(scene.extend(&old, Duration::from_secs(1_000)).await, ErrorKind::LeaseLost);
    case.advance_ms(9_999);
    scene.claim_nothing("third", 1).await;
    case.advance_ms(1);
    let third = scene.claim_one("third", 1).await;
    assert!(third.token > new.token);
    assert_eq!(third.attempt, 3);
}

/// An expired lease cannot be extended, even when no other owner has claimed it.
pub async fn a_lease_past_its_deadline_cannot_be_extended(case: &Case) {
    let scene = case.scene(ten_seconds()).await;
    scene.publish(1).await;
    let lease = scene.claim_one("a", 1).await;
    case.advance_ms(10_000);
    failed(scene.extend(&lease, TEN).await, ErrorKind::LeaseLost);
    assert_eq!(scene.claim_one("b", 1).await.attempt, 2);
}

/// Each token is extended independently and answered in order.
pub async fn tokens_are_extended_each_for_itself(case: &Case) {
    let scene = case.scene(ten_seconds()).await;
    scene.publish(3).await;
    let first = scene.claim_one("a", 1).await;
    let settled = scene.claim_one("a", 1).await;
    let last = scene.claim_one("a", 1).await;
    scene.ack(&settled).await;
    case.advance_ms(5_000);
    let unknown = LeaseId { token: LeaseToken(-5), ..first.id() };
    let leases = [last.id(), unknown, settled.id(), first.id()];
    let answers = scene.store.extend(&leases, TEN).await.unwrap();
    let kinds: Vec<_> = answers.iter().map(|answer| answer.as_ref().err().map(crate::Error::kind)).collect();
    let lost = Some(ErrorKind::LeaseLost);
    assert_eq!(kinds, [None, lost, lost, None]);
    case.advance_ms(9_999);
    scene.ack(&first).await;
    scene.ack(&last).await;
}

/// Extending by zero removes the deadline.
pub async fn extending_by_zero_is_for_ever(case: &Case) {
    let scene = case.scene(ten_seconds()).await;
    scene.publish(1).await;
    let lease = scene.claim_one("a", 1).await;
    scene.extend(&lease, Duration::ZERO).await.unwrap();
    case.advance(Duration::from_secs(1_000 * 24 * 3600));
    scene.claim_nothing("b", 1).await;
    scene.ack(&lease).await;
}

/// After a partial settlement everything that is left of the lease is extended.
pub async fn extend_reaches_every_range_of_a_split_lease(case: &Case) {
    let scene = case.scene(ten_seconds()).await;
    scene.publish(5).await;
    let lease = scene.claim_one("a", 5).await;
    scene.settle_each(&lease, vec![((2, 2), Outcome::Ack), ((4, 4), Outcome::Ack)]).await.unwrap();
    case.advance_ms(5_000);
    scene.extend(&lease, TEN).await.unwrap();
    case.advance_ms(9_999);
    scene.claim_nothing("b", 5).await;
    scene.settle_each(&lease, vec![((1, 1), Outcome::Ack), ((5, 5), Outcome::Ack)]).await.unwrap();
    case.advance_ms(1);
    assert_eq!(offsets_of(&scene.drain("b").await), [3]);
}
