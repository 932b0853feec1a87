//! Operators' changes of topics and groups, and which roles may make them.

use super::*;
use crate::Offset;
use crate::settle::Outcome;
use crate::store::OffsetRange;
use crate::store::{MessageAct, Moved, Served, Signal};
use crate::subscription::{Activity, DeliveryPolicy, SubscriptionState};
use crate::topic::{Ordering, Partition, Removal, Storage};

fn group() -> GroupName {
    GroupName::new("a").expect("a valid name")
}

async fn acts(store: &PostgresStore) -> Vec<String> {
    store.audit(100).await.unwrap().into_iter().rev().map(|line| line.act).collect()
}

/// Claims and acks until `count` messages are done.
async fn done(store: &PostgresStore, subscription: &Subscription, count: u64) {
    let until = Instant::now() + Duration::from_secs(20);
    let mut left = count;
    while left > 0 {
        assert!(Instant::now() < until, "{left} were never delivered");
        let wants = vec![Want::new(subscription.subscription_id, u32::try_from(left).unwrap())];
        for lease in store.claim(&ClaimRequest { wants, ..request(subscription) }).await.unwrap().leases {
            left -= lease.range.span();
            store.settle(&[Settlement::ack_all(&lease)]).await.unwrap().remove(0).unwrap();
        }
    }
}

#[tokio::test]
async fn consumers_send_heartbeats_and_only_the_owner_operates() {
    let Some(scene) = Scene::new() else { return };
    let store = scene.open().await;
    let subscription = subscribed(&store).await;
    let consumer = scene.open_as(Some("consumer")).await.unwrap();
    let served = [Served::new(subscription.subscription_id)];
    let tester = Owner::new("tester").unwrap();
    assert_eq!(consumer.heartbeat(&tester, None, &served).await.unwrap().signals, [Signal::Active]);
    assert_eq!(consumer.topics().await.unwrap()[0].watermark, Offset(0));
    assert_eq!(consumer.subscriptions(&orders()).await.unwrap()[0].processes, 1);
    assert_eq!(consumer.policy(&orders(), &group()).await.unwrap(), DeliveryPolicy::default());
    assert!(consumer.stuck(&orders(), Duration::ZERO).await.unwrap().is_empty());
    assert!(consumer.acks(&orders(), Offset(1)).await.unwrap().is_empty());
    let refused = [
        consumer.resume(&orders(), &group()).await,
        consumer.cancel(&orders(), &group()).await,
        consumer.remove(&orders(), &group()).await,
        consumer.resurrect(&orders(), &group(), None).await.map(drop),
        consumer.seek(&orders(), &group(), Start::Now, false).await.map(drop),
        consumer.set_policy(&orders(), &group(), &DeliveryPolicy::default()).await,
        consumer.release_lease(crate::store::LeaseToken(1)).await,
        consumer.force_complete(&orders(), Duration::ZERO, false).await.map(drop),
        consumer.alter_topic(&orders(), &TopicSettings::pub_sub()).await.map(drop),
        consumer.audit(1).await.map(drop),
    ];
    for result in refused {
        assert_eq!(result.unwrap_err().kind(), ErrorKind::PermissionDenied);
    }
    let reader = scene.open_as(Some("reader")).await.unwrap();
    assert!(reader.audit(1).await.unwrap().is_empty());
    assert_eq!(acts(&store).await, Vec::<String>::new());
    // Except a pause: a group pauses itself when all it handles fails.
    consumer.pause(&orders(), &group(), Some("everything fails")).await.unwrap();
    let paused = consumer.subscriptions(&orders()).await.unwrap().remove(0);
    assert_eq!(paused.state_reason.as_deref(), Some("everything fails"));
    assert_eq!(acts(&store).await, ["pause"]);
    scene.drop().await;
}

#[tokio::test]
async fn an_operator_operates_without_being_the_owner() {
    let Some(scene) = Scene::new() else { return };
    let store = scene.open().await;
    subscribed(&store).await;
    store.publish(&orders(), &[NewMessage::new("x")]).await.unwrap();
    let operator = scene.open_as(Some("operator")).await.unwrap();
    operator.pause(&orders(), &group(), None).await.unwrap();
    operator.resume(&orders(), &group()).await.unwrap();
    operator.set_policy(&orders(), &group(), &DeliveryPolicy::default()).await.unwrap();
    assert_eq!(operator.seek(&orders(), &group(), Start::Now, false).await.unwrap().skipped, 1);
    operator.alter_topic(&orders(), &TopicSettings::pub_sub()).await.unwrap();
    operator.create_topic(&TopicName::new("more").unwrap(), &TopicSettings::default()).await.unwrap();
    operator.subscribe(&orders(), &GroupName::new("b").unwrap(), Start::Beginning).await.unwrap();
    assert_eq!(
        operator.release_lease(crate::store::LeaseToken(1)).await.unwrap_err().kind(),
        ErrorKind::LeaseLost
    );
    operator.force_complete(&orders(), Duration::ZERO, false).await.unwrap();
    let scheduled = uuid::Uuid::now_v7();
    let later = NewMessage::new("z").message_id(scheduled).delay(Duration::from_secs(3600));
    store.publish(&orders(), &[NewMessage::new("y"), later]).await.unwrap();
    store.advance_heads().await.unwrap();
    let bury = MessageAct::Bury { reason: "wrong".into() };
    operator.act_on_message(&orders(), &group(), Offset(2), &bury, false).await.unwrap();
    assert_eq!(operator.message_states(&orders(), Offset(2)).await.unwrap().len(), 2);
    assert!(operator.cancel_scheduled(&orders(), scheduled).await.unwrap());
    assert!(operator.cron_jobs().await.unwrap().is_empty());
    operator.cancel(&orders(), &group()).await.unwrap();
    operator.remove(&orders(), &group()).await.unwrap();
    assert_eq!(operator.topics().await.unwrap().len(), 2);
    assert_eq!(operator.purge_topic(&orders(), Removal::Forced).await.unwrap().messages, 2);
    operator.delete_topic(&TopicName::new("more").unwrap(), Removal::Forced).await.unwrap();
    assert_eq!(operator.doctor().await.unwrap(), []);
    assert!(operator.audit(100).await.unwrap().len() >= 6);
    // Neither its messages nor the work of consumers are an operator's.
    let refused = [
        operator.publish(&orders(), &[NewMessage::new("y")]).await.map(drop),
        operator
            .claim(&request(
                &store.subscribe(&orders(), &GroupName::new("b").unwrap(), Start::Now).await.unwrap(),
            ))
            .await
            .map(drop),
        operator.clean_subscriptions(Duration::ZERO).await.map(drop),
    ];
    for result in refused {
        assert_eq!(result.unwrap_err().kind(), ErrorKind::PermissionDenied);
    }
    scene.drop().await;
}

#[tokio::test]
async fn the_audit_is_append_only_for_every_role() {
    let Some(scene) = Scene::new() else { return };
    let store = scene.open().await;
    subscribed(&store).await;
    store.pause(&orders(), &group(), None).await.unwrap();
    let client = scene.client().await;
    for change in
        ["UPDATE {schema}.audit SET actor = 'x'", "DELETE FROM {schema}.audit", "TRUNCATE {schema}.audit"]
    {
        let refused = client.batch_execute(&scene.sql(change)).await.unwrap_err();
        assert_eq!(refused.code().map(tokio_postgres::error::SqlState::code), Some("HW003"), "{refused}");
    }
    assert_eq!(acts(&store).await, ["pause"]);
    scene.drop().await;
}

/// The change waits for publishers that have not committed: a message must not be dropped with the table it is in.
#[tokio::test]
async fn storage_changes_only_once_open_publishes_ended() {
    let Some(scene) = Scene::new() else { return };
    let store = scene.open().await;
    subscribed(&store).await;
    let publisher = scene.client().await;
    publisher.batch_execute(&scene.sql("BEGIN; SELECT {schema}.publish('orders', '1')")).await.unwrap();
    let dedicated =
        TopicSettings { storage: Storage::Dedicated(Partition::None), ..TopicSettings::pub_sub() };
    let busy = store.alter_topic(&orders(), &dedicated).await.unwrap_err();
    assert!(busy.is_retryable(), "{busy}");
    publisher.batch_execute("COMMIT").await.unwrap();
    let refused = store.alter_topic(&orders(), &dedicated).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidInput, "{refused}");
    assert_eq!(store.topic(&orders()).await.unwrap().settings, TopicSettings::pub_sub());
    assert_eq!(acts(&store).await, Vec::<String>::new());
    scene.drop().await;
}

/// The ranges of lanes overlap; a message is acked only by its own lane.
#[tokio::test]
async fn the_ack_log_shows_the_lane_that_acked_and_no_other() {
    let Some(scene) = Scene::new() else { return };
    let store = scene.open().await;
    let settings =
        TopicSettings { ordering: Ordering::Key, lanes: 4, ack_log: true, ..TopicSettings::pub_sub() };
    store.create_topic(&orders(), &settings).await.unwrap();
    let subscription = store.subscribe(&orders(), &group(), Start::Beginning).await.unwrap();
    store.publish(&orders(), &["k", "l", "m"].map(|key| NewMessage::new("x").key(key))).await.unwrap();
    let mut holders = Vec::new();
    for n in 0..4 {
        let owner = Owner::new(format!("lane-holder-{n}")).unwrap();
        let claim = ClaimRequest { owner: owner.clone(), ..request(&subscription) };
        let lease = store.claim(&claim).await.unwrap().leases.remove(0);
        // One lease is settled by parts, one in the transaction of its handlers.
        let all = Settlement::each(&lease, vec![(lease.range, Outcome::Ack)]);
        let settlement = if n == 0 { all } else { Settlement::ack_all(&lease) };
        if n == 1 {
            let transaction = store.begin().await.unwrap();
            assert!(transaction.settle(&settlement).await.unwrap());
            transaction.commit().await.unwrap();
        } else {
            store.settle(&[settlement]).await.unwrap().remove(0).unwrap();
        }
        holders.push((lease.lane.unwrap(), owner));
    }
    for message in
        store.fetch(subscription.topic.topic_id, OffsetRange::new(Offset(1), Offset(3))).await.unwrap()
    {
        let acks = store.acks(&orders(), message.offset).await.unwrap();
        let lane = message.lane(4);
        let holder = holders.iter().find(|(of, _)| *of == lane).unwrap().1.clone();
        let acked_by: Vec<_> = acks.iter().map(|ack| (ack.group.clone(), ack.owner.clone())).collect();
        assert_eq!(acked_by, [(group(), holder)]);
    }
    scene.drop().await;
}

#[tokio::test]
async fn a_dry_run_reports_what_a_seek_does_and_changes_nothing() {
    let Some(scene) = Scene::new() else { return };
    let store = scene.open().await;
    let subscription = subscribed(&store).await;
    store.publish(&orders(), &vec![NewMessage::new("x"); 10]).await.unwrap();
    done(&store, &subscription, 4).await;
    let wants = vec![Want::new(subscription.subscription_id, 2)];
    let held = store.claim(&ClaimRequest { wants, ..request(&subscription) }).await.unwrap().leases.remove(0);
    let moved =
        |to, replayed, skipped| Moved { from: Offset(7), to: Offset(to), replayed, skipped, leases_lost: 1 };
    let cases = [
        (Start::Beginning, moved(1, 4, 0)),
        (Start::Offset(Offset(4)), moved(4, 1, 0)),
        (Start::Now, moved(11, 0, 6)),
        (Start::BeginningBounded(2), moved(9, 0, 4)),
        (Start::Offset(Offset(6)), moved(6, 0, 1)),
    ];
    for (start, expected) in cases {
        assert_eq!(store.seek(&orders(), &group(), start, true).await.unwrap(), expected, "{start:?}");
    }
    store.extend(&[held.id()], Duration::from_secs(60)).await.unwrap().remove(0).unwrap();
    assert_eq!(acts(&store).await, Vec::<String>::new());
    // A row that is not committed yet becomes a late message, also after a seek to now.
    let publisher = scene.client().await;
    publisher.batch_execute(&scene.sql("BEGIN; SELECT {schema}.publish('orders', '11')")).await.unwrap();
    store.publish(&orders(), &[NewMessage::new("12")]).await.unwrap();
    let to_now = store.seek(&orders(), &group(), Start::Now, false).await.unwrap();
    assert_eq!((to_now.to, to_now.skipped), (Offset(13), 7));
    publisher.batch_execute("COMMIT").await.unwrap();
    done(&store, &subscription, 1).await;
    let status = store.subscriptions(&orders()).await.unwrap().remove(0);
    assert_eq!((status.floor, status.lag, status.oldest_pending), (Offset(12), 0, None));
    assert_eq!(acts(&store).await, ["seek"]);
    assert_eq!(store.doctor().await.unwrap(), []);
    scene.drop().await;
}

#[tokio::test]
async fn messages_only_dead_groups_wait_for_are_given_up_and_counted() {
    let Some(scene) = Scene::new() else { return };
    let store = scene.open().await;
    let subscription = subscribed(&store).await;
    let other = store.subscribe(&orders(), &GroupName::new("b").unwrap(), Start::Beginning).await.unwrap();
    store.publish(&orders(), &vec![NewMessage::new("x"); 10]).await.unwrap();
    done(&store, &subscription, 2).await;
    let held = store.claim(&request(&subscription)).await.unwrap().leases.remove(0);
    let part = Settlement::each(&held, vec![(OffsetRange::one(Offset(4)), Outcome::Ack)]);
    store.settle(&[part]).await.unwrap().remove(0).unwrap();
    done(&store, &other, 7).await;
    let killed =
        "UPDATE {schema}.subscription SET state = 'dead', heartbeat_at = now() WHERE group_name = 'a'";
    scene.client().await.batch_execute(&scene.sql(killed)).await.unwrap();
    assert_eq!(store.topics().await.unwrap()[0].watermark, Offset(7), "dead groups do not count");
    assert_eq!(store.force_complete(&orders(), Duration::from_secs(60), true).await.unwrap(), []);
    for dry_run in [true, false] {
        let completed = store.force_complete(&orders(), Duration::ZERO, dry_run).await.unwrap();
        assert_eq!(completed.len(), 1);
        assert_eq!((completed[0].group.as_str(), completed[0].messages, completed[0].until.0), ("a", 4, 7));
    }
    let back = store.resurrect(&orders(), &group(), Some(2)).await.unwrap();
    assert_eq!((back.resurrected, back.missed.count, back.next), (true, 4, Offset(11)));
    assert_eq!(back.missed.range, Some((Offset(3), Offset(7))));
    let left: Vec<_> = store.outstanding(subscription.subscription_id, 10).await.unwrap();
    assert_eq!(left.iter().map(|row| row.range.to_string()).collect::<Vec<_>>(), ["9..=10"], "two behind");
    assert!(!store.resurrect(&orders(), &group(), None).await.unwrap().resurrected);
    assert_eq!(acts(&store).await, ["force_complete", "resurrect"]);
    assert_eq!(store.doctor().await.unwrap(), []);
    scene.drop().await;
}

#[tokio::test]
async fn a_group_is_cancelled_removed_and_made_anew() {
    let Some(scene) = Scene::new() else { return };
    let store = scene.open().await;
    let settings = TopicSettings { block_writes_on_zero_subscriptions: true, ..TopicSettings::pub_sub() };
    store.create_topic(&orders(), &settings).await.unwrap();
    let blocked = store.publish(&orders(), &[NewMessage::new("x")]).await.unwrap_err();
    assert_eq!(blocked.kind(), ErrorKind::NoSubscriptions, "{blocked}");
    let subscription = store.subscribe(&orders(), &group(), Start::Beginning).await.unwrap();
    store.publish(&orders(), &[NewMessage::new("x")]).await.unwrap();
    let policy = DeliveryPolicy {
        lease: Some(Duration::from_secs(7)),
        max_attempts: Some(3),
        ..DeliveryPolicy::default()
    };
    store.set_policy(&orders(), &group(), &policy).await.unwrap();
    let again = store.subscribe(&orders(), &group(), Start::Now).await.unwrap();
    assert_eq!((again.topic.settings.lease, again.topic.settings.max_attempts), (Duration::from_secs(7), 3));
    let wants = vec![Want::new(subscription.subscription_id, 1)];
    store.advance_heads().await.unwrap();
    let lease =
        store.claim(&ClaimRequest { wants, ..request(&subscription) }).await.unwrap().leases.remove(0);
    let left = lease.deadline.unwrap().duration_since(jiff::Timestamp::now());
    assert!(left <= jiff::SignedDuration::from_secs(7), "the fast path applies the policy too: {left}");
    let early = store.remove(&orders(), &group()).await.unwrap_err();
    assert_eq!(early.kind(), ErrorKind::InvalidTransition, "{early}");
    store.cancel(&orders(), &group()).await.unwrap();
    let twice = store.cancel(&orders(), &group()).await.unwrap_err();
    assert_eq!(twice.kind(), ErrorKind::InvalidTransition, "{twice}");
    assert_eq!(
        store.publish(&orders(), &[NewMessage::new("x")]).await.unwrap_err().kind(),
        ErrorKind::NoSubscriptions
    );
    let anew = store.subscribe(&orders(), &group(), Start::Beginning).await.unwrap();
    assert_ne!(anew.subscription_id, subscription.subscription_id);
    assert_eq!(anew.topic.settings, settings, "a policy is removed with its group");
    let states: Vec<_> =
        store.subscriptions(&orders()).await.unwrap().iter().map(|status| status.state).collect();
    assert_eq!(states, [SubscriptionState::Active, SubscriptionState::Cancelled]);
    store.remove(&orders(), &group()).await.unwrap();
    assert_eq!(store.subscriptions(&orders()).await.unwrap().len(), 1);
    let gone = store.claim(&request(&subscription)).await.unwrap_err();
    assert_eq!(gone.kind(), ErrorKind::NoSuchSubscription);
    assert_eq!(acts(&store).await, ["set_policy", "cancel", "remove"]);
    scene.drop().await;
}

#[tokio::test]
async fn what_a_process_did_stays_when_it_leaves() {
    let Some(scene) = Scene::new() else { return };
    let store = scene.open().await;
    let subscription = subscribed(&store).await;
    let activity = |processed: u64, rate: f64, mean_ms: u64| Activity {
        processed,
        failed: 1,
        filtered: 2,
        rate,
        handling_mean: Duration::from_millis(mean_ms),
        handling_p95: Duration::from_millis(mean_ms * 2),
    };
    let owners = ["one", "two"].map(|name| Owner::new(name).unwrap());
    for (owner, activity) in owners.iter().zip([activity(10, 1.0, 10), activity(30, 3.0, 50)]) {
        let served = Served { subscription_id: subscription.subscription_id, activity };
        let answer = store.heartbeat(owner, None, &[served, served]).await.unwrap();
        assert_eq!(answer.signals, [Signal::Active, Signal::Active]);
    }
    let both = store.subscriptions(&orders()).await.unwrap().remove(0);
    let sums = Activity {
        failed: 2,
        filtered: 4,
        handling_p95: Duration::from_millis(100),
        ..activity(40, 4.0, 40)
    };
    assert_eq!((both.activity, both.processes), (sums, 2));
    for owner in &owners {
        store.depart(owner).await.unwrap();
    }
    let none = store.subscriptions(&orders()).await.unwrap().remove(0);
    let totals = Activity { processed: 40, failed: 2, filtered: 4, ..Activity::default() };
    assert_eq!((none.activity, none.processes), (totals, 0));
    scene.drop().await;
}

/// Settings that only a later version has are ignored, and kept when this version alters the topic; settings that an earlier
/// version did not store get their defaults.
#[tokio::test]
async fn settings_of_another_version_are_kept() {
    let Some(scene) = Scene::new() else { return };
    let store = scene.open().await;
    let settings = TopicSettings { backoff_initial: Duration::from_secs(3), ..TopicSettings::default() };
    store.create_topic(&orders(), &settings).await.unwrap();
    let client = scene.client().await;
    let other =
        "UPDATE {schema}.topic SET settings = (settings || '{\"later\": [1]}') - 'backoff_initial_ms'";
    client.batch_execute(&scene.sql(other)).await.unwrap();
    assert_eq!(store.topic(&orders()).await.unwrap().settings, TopicSettings::default());
    let settings = TopicSettings { message_retention: None, ..TopicSettings::default() };
    assert_eq!(store.alter_topic(&orders(), &settings).await.unwrap().settings, settings);
    let kept = "SELECT format('%s %s %s', settings -> 'later', settings -> 'backoff_initial_ms', settings -> 'message_retention_ms')
                FROM {schema}.topic";
    let kept: String = client.query_one(&scene.sql(kept), &[]).await.unwrap().get(0);
    assert_eq!(kept, "[1] 1000 null");
    // Settings that SQL reads cannot be missing.
    let missing = "UPDATE {schema}.topic SET settings = settings - 'lease_ms'";
    let refused = client.batch_execute(&scene.sql(missing)).await.unwrap_err();
    assert_eq!(refused.code().unwrap().code(), "23502", "{refused}");
    scene.drop().await;
}
