//! Which subscriptions a check of idle subscriptions returns, and which it does not.

use super::*;
use crate::Offset;
use crate::clock::{Clock, ManualClock};
use crate::settle::Outcome;
use crate::store::OffsetRange;
use crate::subscription::SubscriptionId;
use crate::topic::Ordering;

#[tokio::test]
async fn a_check_names_what_claims_may_find_and_nothing_that_is_quiet() {
    let Some(scene) = Scene::new() else { return };
    let clock = ManualClock::at(jiff::Timestamp::now());
    let options = OpenOptions::default().clock(Clock::Manual(clock.clone()));
    let store = PostgresStore::open(&scene.url, scene.namespace.clone(), options).await.unwrap();
    let group = |name: &str| GroupName::new(name).unwrap();
    let first = subscribed(&store).await;
    let second = store.subscribe(&orders(), &group("b"), Start::Beginning).await.unwrap();
    let (a, b) = (first.subscription_id, second.subscription_id);
    let check = async || {
        let mut named = store.claimable(&[a, b, SubscriptionId(-1)]).await.unwrap();
        named.sort();
        named
    };
    let none = SubscriptionId(-1);
    assert_eq!(check().await, [none], "a claim reports that a subscription does not exist");
    store.publish(&orders(), &[NewMessage::new("x")]).await.unwrap();
    assert_eq!(check().await, [none, a, b]);
    let mut leases = Vec::new();
    for subscription in [&first, &second] {
        leases.push(store.claim(&request(subscription)).await.unwrap().leases.remove(0));
    }
    assert_eq!(check().await, [none, a, b], "their leases may expire");
    store.settle(&[Settlement::ack_all(&leases[0])]).await.unwrap().remove(0).unwrap();
    assert_eq!(check().await, [none, b]);
    let retry = Outcome::Retry { after: Duration::from_secs(60), error: "later".into(), key: None };
    let parts = vec![(leases[1].range, retry)];
    store.settle(&[Settlement::each(&leases[1], parts)]).await.unwrap().remove(0).unwrap();
    assert_eq!(check().await, [none, b], "a retry is due later");
    clock.advance(Duration::from_secs(61));
    let lease = store.claim(&request(&second)).await.unwrap().leases.remove(0);
    store.settle(&[Settlement::ack_all(&lease)]).await.unwrap().remove(0).unwrap();
    assert_eq!(check().await, [none]);
    // A transaction that has taken an offset and not committed.
    let mut client = scene.client().await;
    let open = client.transaction().await.unwrap();
    let published =
        super::super::publish(&open, &scene.namespace, "orders", &[NewMessage::new("open")]).await;
    published.unwrap();
    assert_eq!(check().await, [none, a, b]);
    open.commit().await.unwrap();
    for subscription in [&first, &second] {
        let lease = store.claim(&request(subscription)).await.unwrap().leases.remove(0);
        store.settle(&[Settlement::ack_all(&lease)]).await.unwrap().remove(0).unwrap();
    }
    assert_eq!(check().await, [none]);
    let delayed = NewMessage::new("delayed").deliver_at(clock.now() + Duration::from_secs(60));
    store.publish(&orders(), &[delayed]).await.unwrap();
    assert_eq!(check().await, [none, a, b], "the scheduled message will be due");
    store.pause(&orders(), &group("a"), None).await.unwrap();
    assert!(check().await.contains(&a), "a claim reports that it is paused");
    scene.drop().await;
}

/// A parked range has no due time of its own. An ack frees it, and the process that acked may end before it wakes the others.
#[tokio::test]
async fn a_check_names_a_group_with_nothing_but_a_parked_range() {
    let Some(scene) = Scene::new() else { return };
    let clock = ManualClock::at(jiff::Timestamp::now());
    let store = scene.open_at(&clock).await;
    let settings = TopicSettings { ordering: Ordering::Key, lanes: 1, ..TopicSettings::pub_sub() };
    store.create_topic(&orders(), &settings).await.unwrap();
    let group = GroupName::new("a").unwrap();
    let subscription = store.subscribe(&orders(), &group, Start::Beginning).await.unwrap();
    let id = subscription.subscription_id;
    let claim = async || store.claim(&request(&subscription)).await.unwrap().leases.remove(0);
    store.publish(&orders(), &["1", "2"].map(|text| NewMessage::new(text).key("k"))).await.unwrap();
    let both = claim().await;
    let retry =
        Outcome::Retry { after: Duration::from_secs(60), error: "later".into(), key: Some("k".into()) };
    let parts = [(1, retry), (2, Outcome::Park { key: "k".into() })];
    let parts = parts.map(|(offset, outcome)| (OffsetRange::one(Offset(offset)), outcome));
    store.settle(&[Settlement::each(&both, parts.into())]).await.unwrap().remove(0).unwrap();
    clock.advance(Duration::from_secs(61));
    let first = claim().await;
    assert_eq!(first.range, OffsetRange::one(Offset(1)));
    // The ack is committed, and its process ends.
    let acked = scene.sql("DELETE FROM {schema}.outstanding WHERE NOT parked");
    assert_eq!(scene.client().await.execute(&acked, &[]).await.unwrap(), 1);
    assert_eq!(store.claimable(&[id]).await.unwrap(), [id], "the parked range is free");
    let second = claim().await;
    assert_eq!(second.range, OffsetRange::one(Offset(2)));
    store.settle(&[Settlement::ack_all(&second)]).await.unwrap().remove(0).unwrap();
    assert_eq!(store.claimable(&[id]).await.unwrap(), []);
    scene.drop().await;
}
