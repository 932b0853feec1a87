//! Listing outstanding ranges: which owner holds one, what it waits for, and why.

use std::time::Duration;

use super::case::{Case, owner, range, retry};
use crate::message::NewMessage;
use crate::settle::Outcome;
use crate::subscription::{Outstanding, OutstandingState, Start, SubscriptionId};
use crate::topic::{Ordering, TopicSettings};

/// Outstanding ranges as first offset, state and owner.
fn shown(ranges: &[Outstanding]) -> Vec<(i64, OutstandingState, Option<&str>)> {
    ranges
        .iter()
        .map(|one| (one.range.first.0, one.state, one.owner.as_ref().map(crate::name::Owner::as_str)))
        .collect()
}

/// A lease shows its owner and its deadline, also where it has none; other groups and unknown ones list nothing.
pub async fn a_lease_shows_its_owner_and_deadline(case: &Case) {
    let scene = case.pub_sub().await;
    let other = scene.subscribe("others", Start::Beginning).await;
    scene.publish(5).await;
    assert_eq!(scene.outstanding().await, []);
    let lease = scene.claim_one("a", 3).await;
    let for_ever = scene.claimed_for("b", 2, Some(Duration::ZERO)).await.leases.remove(0);
    let held = Outstanding {
        range: range(1, 3),
        lane: None,
        state: OutstandingState::Leased,
        token: Some(lease.token),
        owner: Some(owner("a")),
        attempts: 1,
        due_at: lease.deadline,
        last_error: None,
        key: None,
        suspect: false,
    };
    assert!(held.due_at.is_some_and(|at| at > case.now()), "{held:?}");
    let last = Outstanding {
        range: range(4, 5),
        token: Some(for_ever.token),
        owner: Some(owner("b")),
        due_at: None,
        ..held.clone()
    };
    assert_eq!(scene.outstanding().await, [held, last]);
    assert_eq!(other.outstanding().await, []);
    assert_eq!(scene.store.outstanding(SubscriptionId(999_999), 10).await.unwrap(), []);
    scene.ack(&lease).await;
    scene.ack(&for_ever).await;
    assert_eq!(scene.outstanding().await, []);
}

/// A retry shows its attempts, its last error and when it is due.
pub async fn a_retry_shows_attempts_error_and_time(case: &Case) {
    let scene = case.queue().await;
    scene.publish(2).await;
    let mut due_at = None;
    for (attempt, error) in [(1, "timed out"), (2, "refused: 'x'")] {
        let lease = scene.claim_one("a", 2).await;
        assert_eq!(lease.attempt, attempt);
        assert_eq!(scene.outstanding().await[0].attempts, attempt, "the current attempt counts");
        let rest = (attempt == 1).then_some(((1, 1), Outcome::Ack));
        let parts = rest.into_iter().chain([((2, 2), retry(1_500, error))]).collect();
        scene.settle_each(&lease, parts).await.unwrap();
        due_at = Some(case.now() + Duration::from_millis(1_500));
        case.advance_ms(1_500);
    }
    let waiting = Outstanding {
        range: range(2, 2),
        lane: None,
        state: OutstandingState::Waiting,
        token: None,
        owner: None,
        attempts: 2,
        due_at,
        last_error: Some("refused: 'x'".into()),
        key: None,
        suspect: false,
    };
    assert_eq!(scene.outstanding().await, [waiting]);
}

/// A parked message names the key it waits behind, and is listed after that key's failed message.
pub async fn a_parked_message_shows_its_key(case: &Case) {
    let settings = TopicSettings { ordering: Ordering::Key, lanes: 1, ..TopicSettings::default() };
    let scene = case.scene(settings).await;
    let messages: Vec<_> = ["a1", "a2"].map(|text| NewMessage::new(text).key("a")).into();
    scene.publish_all(&messages).await;
    let lease = scene.claim_one("w", 2).await;
    let failed = Outcome::Retry { after: Duration::from_secs(9), error: "no".into(), key: Some("a".into()) };
    let parts = vec![((1, 1), failed), ((2, 2), Outcome::Park { key: "a".into() })];
    scene.settle_each(&lease, parts).await.unwrap();
    let listed = scene.outstanding().await;
    assert_eq!(
        shown(&listed),
        [(1, OutstandingState::Waiting, None), (2, OutstandingState::Parked, None)],
        "parked last, although it has no time to wait for"
    );
    let (failed, parked) = (&listed[0], &listed[1]);
    assert_eq!((failed.key.as_deref(), failed.lane, failed.attempts), (Some("a"), Some(0), 1));
    assert_eq!((parked.key.as_deref(), parked.lane, parked.attempts), (Some("a"), Some(0), 0));
    assert_eq!((failed.due_at, parked.due_at), (Some(case.now() + Duration::from_secs(9)), None));
    assert_eq!((failed.last_error.as_deref(), parked.last_error.as_deref()), (Some("no"), None));
}

/// A lease past its deadline is listed as waiting; the counts of the subscription agree. Once claimed, it is suspect.
pub async fn an_expired_lease_waits_and_shows_its_owner(case: &Case) {
    let scene = case.queue().await;
    scene.publish(1).await;
    let lease = scene.claim_one("gone", 1).await;
    case.advance(Duration::from_secs(400));
    let listed = scene.outstanding().await;
    assert_eq!(shown(&listed), [(1, OutstandingState::Waiting, Some("gone"))]);
    assert_eq!((listed[0].due_at, listed[0].attempts, listed[0].suspect), (lease.deadline, 1, false));
    let status = scene.status().await;
    assert_eq!((status.leased, status.waiting), (0, 1));
    scene.claim_one("next", 1).await;
    let listed = scene.outstanding().await;
    assert_eq!(shown(&listed), [(1, OutstandingState::Leased, Some("next"))]);
    assert_eq!((listed[0].attempts, listed[0].suspect), (2, true));
    let status = scene.status().await;
    assert_eq!((status.leased, status.waiting), (1, 0));
}

/// A released range has no owner, is due at once, and counts no attempt.
pub async fn a_released_range_has_no_owner(case: &Case) {
    let scene = case.queue().await;
    scene.publish(2).await;
    let lease = scene.claim_one("a", 2).await;
    scene.settle_each(&lease, vec![((1, 2), Outcome::Release)]).await.unwrap();
    let listed = scene.outstanding().await;
    assert_eq!(shown(&listed), [(1, OutstandingState::Waiting, None)]);
    assert_eq!((listed[0].due_at, listed[0].attempts, listed[0].range.span()), (None, 0, 2));
}

/// Ranges are listed by the time they are due, leases and retries alike, and no more than the limit.
pub async fn the_oldest_due_is_listed_first(case: &Case) {
    let scene = case.queue().await;
    scene.publish(6).await;
    let lease = scene.claimed_for("a", 4, Some(Duration::from_secs(20))).await.leases.remove(0);
    let parts = vec![((1, 1), retry(30_000, "x")), ((2, 2), retry(10_000, "x")), ((3, 3), Outcome::Release)];
    scene.settle_each(&lease, parts).await.unwrap();
    assert_eq!(scene.claimed_for("b", 1, Some(Duration::ZERO)).await.leases[0].range, range(3, 3));
    let held = scene.claimed_for("c", 2, Some(Duration::from_secs(5))).await.leases.remove(0);
    assert_eq!(held.range, range(5, 6));
    let listed = async |limit| {
        let id = scene.subscription.subscription_id;
        let found = scene.store.outstanding(id, limit).await.unwrap();
        found.iter().map(|one| one.range.first.0).collect::<Vec<_>>()
    };
    assert_eq!(listed(100).await, [5, 2, 4, 1, 3]);
    assert_eq!(listed(2).await, [5, 2]);
    assert_eq!(listed(0).await, Vec::<i64>::new());
}
