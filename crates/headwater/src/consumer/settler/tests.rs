//! What a settlement that had to be repeated is read as.

use super::*;
use crate::consumer::tests::still::{Failing, Still};
use crate::lease::LeaseId;
use crate::name::Owner;
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
