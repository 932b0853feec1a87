//! What settling reads for tickets that nothing is held under.

use std::sync::Arc;

use super::*;
use crate::consumer::claims::{Holder, Shared};
use crate::consumer::group::Group;
use crate::consumer::member::Members;
use crate::consumer::runtime::Runtime;
use crate::consumer::settings::GroupSettings;
use crate::consumer::tests::plain;
use crate::consumer::tests::still::{Failing, Still};
use crate::lease::LeaseToken;
use crate::lease_thread::LeaseThread;
use crate::observe::metrics::Registry;
use crate::store::Store;
use crate::subscription::SubscriptionId;

/// Claims of a group with this many lanes.
fn claims(store: &Arc<Still>, lanes: u16) -> Claims {
    let subscription = Subscription { lanes, ..store.subscription() };
    let of_store = Arc::clone(store) as Arc<dyn Store>;
    let runtime = Runtime::start(LeaseThread::here(), of_store, Runtime::new_owner().unwrap(), None, None);
    let settings = GroupSettings { pulled: true, ..plain() };
    let metrics = Registry::default().group(&subscription.topic.name, &subscription.group);
    let settler = runtime.settler.clone();
    let group = Group::new(subscription, settings, Members::default(), settler, Arc::default(), metrics);
    let group = Arc::new(group);
    Claims(Arc::new(Shared { runtime, group, gate: Arc::default(), turn: tokio::sync::Mutex::default() }))
}

/// A ticket of the group, made up.
fn forged(token: i64, offset: i64, lane_last: i64) -> Ticket {
    Ticket {
        subscription_id: SubscriptionId(1),
        holder: Holder::new(),
        token: LeaseToken(token),
        offset: Offset(offset),
        range: OffsetRange::one(Offset(offset)),
        attempt: 1,
        lane_last: Some(Offset(lane_last)),
    }
}

#[tokio::test]
async fn a_forged_ticket_reads_no_message_and_is_lost() {
    let store = Arc::new(Still::default());
    let claims = claims(&store, 16);
    let last = i64::MAX - 1;
    for (offset, lane_last) in [(1, last), (last - 1, last), (last, last), (0, 0)] {
        let before = store.count("held_keys");
        let verdicts: Vec<_> =
            (0..100).map(|token| (forged(token, offset, lane_last), Verdict::Release)).collect();
        store.fails("settle", [Failing::Lost]);
        assert_eq!(claims.settle(&verdicts).await.unwrap(), [Settled::Lost; 100], "{offset}..={lane_last}");
        assert_eq!(store.count("held_keys") - before, 100, "a lookup for each lease");
        assert_eq!(store.count("fetch_within"), 0);
    }
}

#[tokio::test]
async fn without_lanes_nothing_is_read_whatever_a_ticket_says() {
    let store = Arc::new(Still::default());
    let claims = claims(&store, 0);
    let verdicts = [(forged(1, 1, 1_000_000), Verdict::Failed("no".into()))];
    assert_eq!(claims.settle(&verdicts).await.unwrap(), [Settled::Settled], "the store's word counts");
    assert_eq!((store.count("held_keys"), store.count("fetch_within")), (0, 0));
}
