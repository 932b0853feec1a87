//! The result of a settlement that had to be repeated, and what happens to a group whose leases are not settled.

use super::*;
use crate::consumer::group::Group;
use crate::consumer::leases::HELD_MAX;
use crate::consumer::member::Members;
use crate::consumer::runtime::Runtime;
use crate::consumer::tests::plain;
use crate::consumer::tests::still::{Failing, Still};
use crate::lease::LeaseId;
use crate::lease_thread::LeaseThread;
use crate::name::Owner;
use crate::observe::metrics::Registry;
use crate::subscription::SubscriptionId;

async fn asked(how: &[Failing]) -> (Result<()>, usize) {
    let store = Still::default();
    store.fails("settle", how.iter().copied());
    let deadline = Instant::now() + Duration::from_secs(60);
    let owner = Owner::new("still").unwrap();
    let lease = LeaseId { token: LeaseToken(1), subscription_id: SubscriptionId(1), owner };
    let mut results = ask(&store, &[Settlement::ack_all(lease)], deadline).await;
    assert_eq!(results.len(), 1);
    (results.remove(0), store.count("settle"))
}

#[tokio::test(start_paused = true)]
async fn a_lease_lost_while_nothing_happened_is_lost() {
    for kind in [ErrorKind::Busy, ErrorKind::Unavailable] {
        let (result, calls) = asked(&[Failing::With(kind), Failing::Lost]).await;
        assert_eq!(result.unwrap_err().kind(), ErrorKind::LeaseLost, "after {kind:?}");
        assert_eq!(calls, 2);
    }
}

#[tokio::test(start_paused = true)]
async fn a_lease_gone_after_a_lost_answer_was_settled() {
    let unknown = Failing::With(ErrorKind::CommitUnknown);
    let (result, calls) = asked(&[unknown, Failing::With(ErrorKind::Busy), Failing::Lost]).await;
    assert!(result.is_ok(), "{result:?}");
    assert_eq!(calls, 3);
}

#[tokio::test(start_paused = true)]
async fn a_panic_of_the_store_is_an_answer_and_no_end() {
    let (result, calls) = asked(&[Failing::Panicking]).await;
    assert_eq!((result.unwrap_err().kind(), calls), (ErrorKind::Database, 1));
}

/// The database hands out leases, and accepts no settlements.
#[tokio::test(start_paused = true)]
async fn a_group_claims_nothing_while_too_many_of_its_leases_are_not_settled() {
    let store = Arc::new(Still::default());
    let of_store = Arc::clone(&store) as Arc<dyn Store>;
    let runtime = Runtime::start(LeaseThread::here(), of_store, Runtime::new_owner().unwrap(), None, None);
    let subscription = store.subscription();
    let metrics = Registry::default().group(&subscription.topic.name, &subscription.group);
    let (members, settler) = (Members::default(), runtime.settler.clone());
    let group = Arc::new(Group::new(subscription, plain(), members, settler, Arc::default(), metrics));
    *store.locked.lock().unwrap() = u32::MAX;
    assert!(group.want().is_some());
    for offset in 1..=i64::try_from(HELD_MAX).unwrap() {
        store.hand_out(offset);
        let lease = store.leases.lock().unwrap().pop_front().unwrap();
        let (of, policy, lease_for) = (Arc::clone(&group.leases), group.policy(), group.lease_for());
        // It has no messages, so it is settled at once.
        group.take_over(LeaseWork::new(lease, of, policy, lease_for, vec![], vec![], Instant::now()));
    }
    assert!(group.want().is_none() && !group.leases.take_wake());
    *store.locked.lock().unwrap() = 0;
    runtime.settler.flush().await;
    assert!(group.want().is_some() && group.leases.take_wake(), "the feed is woken");
    assert_eq!((group.leases.held(), group.in_hand().len()), (0, 0));
}
