//! Subscribing: where a group starts, and that it keeps its cursor.

use std::collections::HashSet;
use std::time::Duration;

use super::case::{Case, Scene, failed, group, offsets_of, payloads_of, topic};
use crate::error::ErrorKind;
use crate::message::{NewMessage, Offset};
use crate::subscription::{DeliveryPolicy, GroupOrder, NewSubscription, Start, SubscriptionStatus};
use crate::topic::{Ordering, TopicSettings};

/// What a group with this start gets of five messages, one a second.
async fn reads(scene: &Scene, name: &str, start: Start) -> Vec<i64> {
    let reader = scene.subscribe(name, start).await;
    let early = offsets_of(&reader.drain("a").await);
    let again = offsets_of(&reader.subscribe(name, Start::Beginning).await.drain("a").await);
    assert_eq!(again, Vec::<i64>::new(), "an existing group keeps its cursor");
    early
}

async fn five_messages(case: &Case) -> Scene {
    let scene = case.pub_sub().await;
    for n in 1..=5 {
        scene.publish_all(&[NewMessage::new(n.to_string())]).await;
        case.advance_ms(1_000);
    }
    scene
}

/// The group reads from the oldest message on.
pub async fn beginning_reads_everything(case: &Case) {
    let scene = five_messages(case).await;
    assert_eq!(reads(&scene, "g", Start::Beginning).await, [1, 2, 3, 4, 5]);
}

/// The group gets nothing published before, and everything published after.
pub async fn now_is_exact(case: &Case) {
    let scene = five_messages(case).await;
    assert_eq!(reads(&scene, "g", Start::Now).await, Vec::<i64>::new());
    let reader = scene.subscribe("late", Start::Now).await;
    scene.publish_all(&[NewMessage::new("after")]).await;
    assert_eq!(payloads_of(&reader.drain("a").await), ["after"]);
    let second = scene.subscribe("g", Start::Beginning).await;
    assert_eq!(payloads_of(&second.drain("a").await), ["after"]);
}

/// On an empty topic, now is the beginning.
pub async fn now_on_an_empty_topic_reads_everything(case: &Case) {
    let scene = case.pub_sub().await;
    let reader = scene.subscribe("g", Start::Now).await;
    scene.publish(3).await;
    assert_eq!(offsets_of(&reader.drain("a").await), [1, 2, 3]);
}

/// Among concurrent publishers, now still splits exactly: what was acknowledged before the call is out, what started
/// after it is in, and of each publisher's batches a last part is in.
pub async fn now_is_exact_among_publishers(case: &Case) {
    let scene = case.pub_sub().await;
    let before = scene.publish(10).await;
    let publishers: Vec<_> = (0..4)
        .map(|_| {
            let scene = scene.clone();
            tokio::spawn(async move {
                let mut batches = Vec::new();
                for _ in 0..20 {
                    batches.push(scene.publish(2).await);
                }
                batches
            })
        })
        .collect();
    let reader = scene.subscribe("now", Start::Now).await;
    let after = scene.publish(10).await;
    let mut batches = Vec::new();
    for publisher in publishers {
        batches.push(publisher.await.unwrap());
    }
    assert_eq!(scene.drain_until("a", 180).await.len(), 180);
    let got: HashSet<_> = offsets_of(&reader.drain("a").await).into_iter().collect();
    assert!(before.iter().all(|offset| !got.contains(offset)), "earlier messages are not delivered");
    assert!(after.iter().all(|offset| got.contains(offset)), "later messages are delivered");
    for batches in batches {
        // A batch may commit after the group subscribed although later offsets were committed before: only each
        // publisher's own order is certain, and that a batch is delivered whole.
        let first_in = batches.iter().position(|batch| got.contains(&batch[0])).unwrap_or(batches.len());
        for (index, batch) in batches.iter().enumerate() {
            let delivered: Vec<_> = batch.iter().map(|offset| got.contains(offset)).collect();
            assert_eq!(delivered, vec![index >= first_in; 2], "batch {index} of {batches:?}");
        }
    }
}

/// The group starts at the given offset, which is at most the next one; anything below the first means the first.
pub async fn offset_starts_there(case: &Case) {
    let scene = five_messages(case).await;
    assert_eq!(reads(&scene, "three", Start::Offset(Offset(3))).await, [3, 4, 5]);
    assert_eq!(reads(&scene, "zero", Start::Offset(Offset(0))).await, [1, 2, 3, 4, 5]);
    assert_eq!(reads(&scene, "minus", Start::Offset(Offset(-7))).await, [1, 2, 3, 4, 5]);
    let next = scene.subscribe("next", Start::Offset(Offset(6))).await;
    next.claim_nothing("a", 10).await;
    scene.publish(2).await;
    assert_eq!(offsets_of(&next.drain("a").await), [6, 7]);
}

/// A start beyond the end would silently skip what is published next: it is refused, for a new group and for a seek,
/// and nothing is changed.
pub async fn a_start_beyond_the_end_is_refused(case: &Case) {
    let scene = five_messages(case).await;
    let before = scene.status().await;
    for beyond in [7, 99_999, i64::MAX] {
        let start = Start::Offset(Offset(beyond));
        let workers = &scene.subscription.group;
        let answers = [
            scene.store.subscribe(&scene.topic, &group("late"), start).await.map(drop),
            scene.store.seek(&scene.topic, workers, start, true).await.map(drop),
            scene.store.seek(&scene.topic, workers, start, false).await.map(drop),
        ];
        for answer in answers {
            let error = answer.expect_err("the start is beyond the end");
            assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error:?}");
            let text = error.to_string();
            assert!(text.contains("start offset") && text.contains(&beyond.to_string()), "{text}");
        }
    }
    assert_eq!(scene.status().await, before);
    assert_eq!(scene.store.subscriptions(&scene.topic).await.unwrap().len(), 1);
    scene.publish(1).await;
    assert_eq!(offsets_of(&scene.drain("a").await), [1, 2, 3, 4, 5, 6]);
}

/// The group starts at the first message at or after a time.
pub async fn timestamp_starts_at_the_first_at_or_after(case: &Case) {
    let start = case.now();
    let scene = five_messages(case).await;
    let at = |ms| Start::Timestamp(start + Duration::from_millis(ms));
    assert_eq!(reads(&scene, "exact", at(2_000)).await, [3, 4, 5]);
    assert_eq!(reads(&scene, "between", at(2_001)).await, [4, 5]);
    assert_eq!(reads(&scene, "first", at(0)).await, [1, 2, 3, 4, 5]);
    assert_eq!(reads(&scene, "future", at(60_000)).await, Vec::<i64>::new());
    let long_ago = Start::Timestamp(start - Duration::from_secs(1_000_000));
    assert_eq!(reads(&scene, "long ago", long_ago).await, [1, 2, 3, 4, 5]);
    scene.publish(1).await;
    let future = scene.subscribe("future", Start::Now).await;
    assert_eq!(offsets_of(&future.drain("a").await), [6]);
}

/// The group starts at most this many messages back.
pub async fn beginning_bounded_limits_how_far_back(case: &Case) {
    let scene = five_messages(case).await;
    assert_eq!(reads(&scene, "two", Start::BeginningBounded(2)).await, [4, 5]);
    assert_eq!(reads(&scene, "none", Start::BeginningBounded(0)).await, Vec::<i64>::new());
    assert_eq!(reads(&scene, "five", Start::BeginningBounded(5)).await, [1, 2, 3, 4, 5]);
    assert_eq!(reads(&scene, "many", Start::BeginningBounded(u64::MAX)).await, [1, 2, 3, 4, 5]);
}

/// The extreme offsets and times are handled: used as they are, or refused by name.
pub async fn the_widest_starts_are_harmless(case: &Case) {
    let scene = five_messages(case).await;
    for (name, start, before, after) in [
        ("last offset", Start::Offset(Offset(i64::MAX)), 0, 0),
        ("first offset", Start::Offset(Offset(i64::MIN)), 5, 1),
        ("last time", Start::Timestamp(jiff::Timestamp::MAX), 0, 1),
        ("first time", Start::Timestamp(jiff::Timestamp::MIN), 5, 1),
    ] {
        let subscription = match scene.store.subscribe(&scene.topic, &group(name), start).await {
            Ok(subscription) => subscription,
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::InvalidInput, "{name}: {error:?}");
                assert!(error.to_string().contains("start"), "{name}: {error}");
                continue;
            }
        };
        let reader = Scene { subscription, ..scene.clone() };
        let status = reader.status().await;
        assert_eq!(status.floor.0, status.next.0 - 1, "{name}");
        let early = reader.drain("a").await.into_iter().filter(|message| message.payload != "after");
        assert_eq!(early.count(), before, "{name}");
        scene.publish_all(&[NewMessage::new("after")]).await;
        assert_eq!(reader.drain("a").await.len(), after, "{name}");
    }
}

/// Subscribing again changes neither the cursor nor the leases.
pub async fn subscribing_again_keeps_the_cursor(case: &Case) {
    let scene = case.pub_sub().await;
    scene.publish(6).await;
    let done = scene.claim_one("a", 2).await;
    scene.ack(&done).await;
    let held = scene.claim_one("a", 2).await;
    let before = scene.status().await;
    for start in [Start::Beginning, Start::Now, Start::Offset(Offset(1)), Start::BeginningBounded(1)] {
        let again = scene.store.subscribe(&scene.topic, &group("workers"), start).await.unwrap();
        assert_eq!(again, scene.subscription);
        // Registering again is counted, and is all that changes.
        let after = scene.status().await;
        assert_eq!(SubscriptionStatus { restarts: before.restarts, ..after }, before);
    }
    scene.ack(&held).await;
    assert_eq!(offsets_of(&scene.drain("a").await), [5, 6]);
}

/// Concurrent subscribers get the same subscription, and no message is lost to a second one.
pub async fn concurrent_subscribers_get_one_subscription(case: &Case) {
    let scene = case.pub_sub().await;
    let other = scene.through(&case.open().await);
    let tasks: Vec<_> = (0..12)
        .map(|n| {
            let scene = if n % 2 == 0 { scene.clone() } else { other.clone() };
            tokio::spawn(async move { scene.subscribe("same", Start::Beginning).await.subscription })
        })
        .collect();
    let mut ids = HashSet::new();
    for task in tasks {
        ids.insert(task.await.unwrap().subscription_id);
    }
    assert_eq!(ids.len(), 1);
    assert_eq!(scene.store.subscriptions(&scene.topic).await.unwrap().len(), 2);
}

/// A queue has one group: a second would compete for its messages, and the error states what to do instead.
pub async fn a_queue_refuses_a_second_group(case: &Case) {
    let scene = case.queue().await;
    scene.publish(1).await;
    let second = scene.store.subscribe(&scene.topic, &group("others"), Start::Beginning).await;
    let error = failed(second, ErrorKind::InvalidInput).to_string();
    for part in ["orders", "queue", "workers", "pub_sub"] {
        assert!(error.contains(part), "{part} is missing in: {error}");
    }
    assert_eq!(scene.store.subscriptions(&scene.topic).await.unwrap().len(), 1);
    let same = scene.store.subscribe(&scene.topic, &group("workers"), Start::Now).await.unwrap();
    assert_eq!(same, scene.subscription);
    assert_eq!(scene.drain("a").await.len(), 1);
}

/// Two groups race for a queue: exactly one becomes its group.
pub async fn two_groups_racing_for_a_queue_leave_one(case: &Case) {
    let store = case.open().await;
    for round in 0..5 {
        let name = topic(&format!("race-{round}"));
        store.create_topic(&name, &TopicSettings::default()).await.unwrap();
        let (a, b) = (group("a"), group("b"));
        let (first, second) = tokio::join!(
            store.subscribe(&name, &a, Start::Beginning),
            store.subscribe(&name, &b, Start::Beginning)
        );
        assert!(first.is_ok() != second.is_ok(), "{first:?} and {second:?}");
        assert_eq!(store.subscriptions(&name).await.unwrap().len(), 1);
    }
}

/// Subscriptions are listed by group, each with its own cursor.
pub async fn subscriptions_are_listed_by_group(case: &Case) {
    let scene = case.pub_sub().await;
    scene.publish(4).await;
    for (name, start) in
        [("zebra", Start::Now), ("apple", Start::Beginning), ("mango", Start::Offset(Offset(3)))]
    {
        scene.subscribe(name, start).await;
    }
    let listed = scene.store.subscriptions(&scene.topic).await.unwrap();
    let cursors: Vec<_> = listed.iter().map(|one| (one.group.as_str(), one.next.0, one.floor.0)).collect();
    assert_eq!(cursors, [("apple", 1, 0), ("mango", 3, 2), ("workers", 1, 0), ("zebra", 5, 4)]);
    assert_eq!(scene.topic_status().await.subscriptions, 4);
}

/// A subscription carries its topic's lanes, or none where messages are not ordered.
pub async fn a_subscription_carries_its_topic(case: &Case) {
    let store = case.open().await;
    let settings = TopicSettings { ordering: Ordering::Key, lanes: 7, ..TopicSettings::pub_sub() };
    let ordered = Scene::new(store.clone(), "ordered", settings.clone()).await;
    assert_eq!((ordered.subscription.lanes, &ordered.subscription.topic.settings), (7, &settings));
    let plain = Scene::new(store, "plain", TopicSettings::pub_sub()).await;
    assert_eq!(plain.subscription.lanes, 0);
    assert_eq!(plain.subscription.topic.name, plain.topic);
}

/// A topic that does not exist cannot be subscribed to.
pub async fn an_unknown_topic_cannot_be_subscribed_to(case: &Case) {
    let store = case.open_with(case.options().auto_create(false)).await.unwrap();
    let nowhere = topic("nowhere");
    let error =
        failed(store.subscribe(&nowhere, &group("g"), Start::Beginning).await, ErrorKind::NoSuchTopic);
    assert!(error.to_string().contains("nowhere"), "{error}");
    failed(store.subscriptions(&nowhere).await, ErrorKind::NoSuchTopic);
    failed(store.topic(&nowhere).await, ErrorKind::NoSuchTopic);
    assert_eq!(store.topics().await.unwrap(), []);
}

/// Each group has the order it first subscribed with, whatever its topic's is; an existing one keeps it.
pub async fn a_group_has_its_own_order(case: &Case) {
    let ordered = TopicSettings { ordering: Ordering::Key, lanes: 8, ..TopicSettings::pub_sub() };
    for (name, settings, as_topic) in [("free", TopicSettings::pub_sub(), 0), ("ordered", ordered, 8)] {
        let scene = Scene::new(case.open().await, name, settings.clone()).await;
        let subscribe = async |name: &str, order: GroupOrder| {
            let new = NewSubscription { order, ..NewSubscription::default() };
            let subscription = scene.store.subscribe_with(&scene.topic, &group(name), &new).await.unwrap();
            Scene { subscription, ..scene.clone() }
        };
        let four = GroupOrder::ByKey { lanes: Some(4) };
        for (name, order, lanes) in [
            ("as-topic", GroupOrder::AsTopic, as_topic),
            ("none", GroupOrder::Unordered, 0),
            ("by-key", GroupOrder::ByKey { lanes: None }, settings.lanes),
            ("four", four, 4),
        ] {
            let new = subscribe(name, order).await;
            assert_eq!(new.subscription.lanes, lanes, "{name}");
            assert_eq!(new.subscription.topic.settings, settings, "{name}: nothing else differs");
            let other = if order == four { GroupOrder::Unordered } else { four };
            assert_eq!(subscribe(name, other).await.subscription, new.subscription, "{name} keeps its order");
        }
        scene.publish_all(&[NewMessage::new("1").key("a")]).await;
        for (name, ordered) in [("none", false), ("four", true)] {
            let lease = subscribe(name, GroupOrder::AsTopic).await.claim("a", 1).await.remove(0);
            assert_eq!(lease.lane.is_some(), ordered, "{name}: {lease:?}");
        }
    }
}

/// A group's delivery policy is stored when it first subscribes, and read by the claim; an existing one keeps its own.
pub async fn a_new_group_brings_its_policy(case: &Case) {
    let scene = case.pub_sub().await;
    let seconds = |seconds| Some(Duration::from_secs(seconds));
    let policy = DeliveryPolicy {
        lease: seconds(9),
        max_attempts: Some(2),
        backoff_initial: seconds(3),
        backoff_max: seconds(5),
        heartbeat_interval: seconds(2),
        heartbeat_timeout: seconds(7),
    };
    let new = NewSubscription { policy, ..NewSubscription::default() };
    let subscription = scene.store.subscribe_with(&scene.topic, &group("own"), &new).await.unwrap();
    let settings = policy.apply_to(&scene.subscription.topic.settings);
    assert_eq!(subscription.topic.settings, settings);
    let own = Scene { subscription, ..scene.clone() };
    assert_eq!(own.subscribe("own", Start::Now).await.subscription, own.subscription, "as it is read back");
    let other = NewSubscription { policy: DeliveryPolicy { max_attempts: Some(7), ..policy }, ..new };
    let again = scene.store.subscribe_with(&scene.topic, &group("own"), &other).await.unwrap();
    assert_eq!(again, own.subscription, "an existing group keeps its policy");
    assert_eq!(scene.store.policy(&scene.topic, &group("own")).await.unwrap(), policy);
    scene.publish(1).await;
    for attempt in 1..=2 {
        let lease = own.claim_one(&format!("dies-{attempt}"), 1).await;
        assert_eq!((lease.attempt, lease.deadline), (attempt, Some(case.now() + Duration::from_secs(9))));
        case.advance(Duration::from_secs(9) + Duration::from_millis(1));
    }
    own.claim_nothing("next", 1).await;
    assert_eq!(own.dead_letters().await.len(), 1, "buried after two attempts");
}
