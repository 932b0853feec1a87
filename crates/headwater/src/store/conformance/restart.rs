//! Restarts and several stores on one database: all state is in the database, none in a process.

use std::time::Duration;

use super::case::{Case, bury, failed, group, offsets_of, owner, payloads_of, range, retry, topic};
use crate::error::ErrorKind;
use crate::lease::{ClaimRequest, LeaseId, LeaseToken};
use crate::message::NewMessage;
use crate::settle::{Outcome, Settlement};
use crate::subscription::Start;
use crate::topic::TopicSettings;

/// Leases, waiting messages, dead letters and cursors are all kept.
pub async fn a_restart_keeps_everything(case: &Case) {
    let scene = case.pub_sub().await;
    let idle = scene.subscribe("idle", Start::Now).await;
    scene.publish(10).await;
    let held = scene.claim_one("a", 4).await;
    let partly = scene.claim_one("a", 4).await;
    let parts = vec![((5, 5), Outcome::Ack), ((6, 6), retry(60_000, "busy")), ((7, 7), bury("no"))];
    scene.settle_each(&partly, parts).await.unwrap();
    let (status, topics) = (scene.status().await, scene.store.topics().await.unwrap());
    let (dead, idle_status) = (scene.dead_letters().await, idle.status().await);
    scene.store.close().await.unwrap();

    let reopened = case.open().await;
    let (scene, idle) = (scene.through(&reopened), idle.through(&reopened));
    assert_eq!(scene.status().await, status);
    assert_eq!(idle.status().await, idle_status);
    assert_eq!(reopened.topics().await.unwrap(), topics);
    assert_eq!(scene.dead_letters().await, dead);
    let fresh = scene.claim_one("b", 100).await;
    assert_eq!(fresh.range, range(9, 10));
    assert!(fresh.token > partly.token, "tokens rise across restarts");
    scene.ack(&held).await;
    scene.settle_each(&partly, vec![((8, 8), Outcome::Ack)]).await.unwrap();
    case.advance_ms(60_000);
    let retried = scene.claim_one("b", 100).await;
    assert_eq!((retried.range, retried.attempt), (range(6, 6), 2));
    scene.ack(&retried).await;
    scene.ack(&fresh).await;
    assert_eq!(scene.status().await.floor.0, 10);
    assert_eq!(idle.drain("c").await.len(), 10);
}

/// A late reader gets what is stored without a further publish.
pub async fn a_reader_started_after_the_writes_gets_them_at_once(case: &Case) {
    let writer = case.open().await;
    let name = topic("orders");
    writer.publish(&name, &[NewMessage::new("a"), NewMessage::new("b")]).await.unwrap();
    writer.close().await.unwrap();
    let reader = case.open().await;
    let subscription = reader.subscribe(&name, &group("g"), Start::Beginning).await.unwrap();
    let scene = super::case::Scene { store: reader, topic: name, subscription };
    let lease = scene.claim_one("first claim", 10).await;
    assert_eq!(payloads_of(&scene.fetch(&lease).await), ["a", "b"]);
}

/// A lease from one store may be settled through another: the lease id is all it takes.
pub async fn a_lease_may_be_settled_through_another_store(case: &Case) {
    let one = case.queue().await;
    let two = one.through(&case.open().await);
    one.publish(3).await;
    let lease = one.claim_one("a", 3).await;
    two.claim_nothing("b", 3).await;
    two.extend(&lease, Duration::from_secs(600)).await.unwrap();
    case.advance_ms(599_999);
    two.settle_each(&lease, vec![((1, 2), Outcome::Ack)]).await.unwrap();
    one.ack(&lease).await;
    assert_eq!(two.status().await.floor.0, 3);
}

/// Each store sees what the other commits.
pub async fn two_stores_see_each_others_work(case: &Case) {
    let one = case.queue().await;
    let two = one.through(&case.open().await);
    assert_eq!(one.publish(2).await, [1, 2]);
    assert_eq!(two.publish(2).await, [3, 4]);
    assert_eq!(one.publish(1).await, [5]);
    let first = two.claim_one("b", 3).await;
    assert_eq!(first.range, range(1, 3));
    let second = one.claim_one("a", 3).await;
    assert_eq!(second.range, range(4, 5));
    two.settle_each(&first, vec![((1, 3), Outcome::Release)]).await.unwrap();
    assert_eq!(one.claim_one("a", 10).await.range, range(1, 3));
}

/// Offsets and tokens continue where they were, even when nothing is outstanding any more.
pub async fn counters_continue_after_restarts(case: &Case) {
    let (mut offset_before, mut token_before) = (0, LeaseToken(0));
    let scene = case.queue().await;
    scene.store.close().await.unwrap();
    for _ in 0..3 {
        let scene = scene.through(&case.open().await);
        let offset = scene.publish(1).await[0];
        let lease = scene.claim_one("a", 1).await;
        assert!(offset > offset_before && lease.token > token_before);
        assert_eq!(lease.range.first.0, offset);
        scene.ack(&lease).await;
        (offset_before, token_before) = (offset, lease.token);
        scene.store.close().await.unwrap();
    }
}

/// A topic that is settled to the last message accepts new ones after a restart as before.
pub async fn a_drained_topic_continues_after_a_restart(case: &Case) {
    let settings = TopicSettings { lease: Duration::from_secs(10), ..TopicSettings::default() };
    let scene = case.scene(settings).await;
    scene.publish(3).await;
    let lost = scene.claim_one("dies with its process", 3).await;
    scene.store.close().await.unwrap();
    let scene = scene.through(&case.open().await);
    scene.claim_nothing("b", 3).await;
    case.advance_ms(10_000);
    let mut got = offsets_of(&scene.drain("b").await);
    got.sort_unstable();
    assert_eq!(got, [1, 2, 3]);
    failed(scene.settle(Settlement::ack_all(&lost)).await, ErrorKind::LeaseLost);
    assert_eq!(scene.publish(1).await, [4]);
    assert_eq!(offsets_of(&scene.drain("b").await), [4]);
}

/// Every call on a closed store fails with that reason; closing it again is fine.
pub async fn a_closed_store_refuses_every_call(case: &Case) {
    let scene = case.queue().await;
    let lease_of = scene.clone();
    scene.publish(1).await;
    scene.store.close().await.unwrap();
    let store = &lease_of.store;
    let closed = ErrorKind::Closed;
    failed(store.publish(&scene.topic, &[NewMessage::new("x")]).await, closed);
    failed(store.topics().await, closed);
    failed(store.topic(&scene.topic).await, closed);
    failed(store.fetch(scene.subscription.topic.topic_id, range(1, 1)).await, closed);
    failed(store.subscriptions(&scene.topic).await, closed);
    failed(store.subscribe(&scene.topic, &group("g"), Start::Now).await, closed);
    let lease = LeaseId {
        token: LeaseToken(1),
        subscription_id: scene.subscription.subscription_id,
        owner: owner("a"),
    };
    failed(store.settle(&[Settlement::ack_all(&lease)]).await, closed);
    failed(store.extend(&[lease], Duration::from_secs(1)).await, closed);
    failed(store.heartbeat(&owner("a"), Some(Duration::from_secs(1)), &[]).await, closed);
    failed(store.depart(&owner("a")).await, closed);
    let wants = vec![crate::store::Want::new(scene.subscription.subscription_id, 1)];
    failed(store.claim(&ClaimRequest { owner: owner("a"), wants }).await, closed);
    failed(store.advance_heads().await, closed);
    failed(store.arm(&[scene.subscription.topic.topic_id]).await, closed);
    failed(store.publish(&scene.topic, &[]).await, closed);
    failed(store.pause(&scene.topic, &group("workers"), None).await, closed);
    failed(store.keep_partitions(scene.subscription.topic.topic_id).await, closed);
    let error = failed(store.doctor().await, closed);
    assert!(error.to_string().starts_with("store closed: "), "{error}");
    store.close().await.unwrap();
    assert_eq!(scene.through(&case.open().await).drain("a").await.len(), 1);
}
