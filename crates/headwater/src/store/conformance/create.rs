//! Creating topics and namespaces: concurrently, and independent of each other.

use std::sync::Arc;
use std::time::Duration;

use super::case::{Case, Scene, failed, group, payloads_of, topic};
use super::settings::unusual;
use crate::error::ErrorKind;
use crate::message::NewMessage;
use crate::subscription::Start;
use crate::topic::{Ordering, Partition, Storage, TopicSettings, Tracking};

/// Every setting is returned as it was given, also after a restart.
pub async fn topic_settings_round_trip(case: &Case) {
    let store = case.open().await;
    for (unusual, usual) in unusual().described().into_iter().zip(TopicSettings::default().described()) {
        assert!(unusual.0 == usual.0 && unusual.1 != usual.1, "{} is not changed", unusual.0);
    }
    let (name, plain) = (topic("unusual"), topic("plain"));
    let created = store.create_topic(&name, &unusual()).await.unwrap();
    assert_eq!((&created.name, &created.settings), (&name, &unusual()));
    store.create_topic(&plain, &TopicSettings::default()).await.unwrap();
    assert_eq!(store.topic(&name).await.unwrap(), created);
    store.close().await.unwrap();
    let store = case.open().await;
    assert_eq!(store.topic(&name).await.unwrap(), created);
    assert_eq!(store.topic(&plain).await.unwrap().settings, TopicSettings::default());
    assert_eq!(store.create_topic(&name, &unusual()).await.unwrap(), created);
}

/// Creating a topic again with other settings is a conflict, and the topic stays as it is.
pub async fn other_settings_are_a_conflict(case: &Case) {
    let store = case.open().await;
    let name = topic("orders");
    let created = store.create_topic(&name, &TopicSettings::default()).await.unwrap();
    let others = [
        TopicSettings::pub_sub(),
        TopicSettings { lease: Duration::from_secs(1), ..TopicSettings::default() },
        TopicSettings { max_attempts: 2, ..TopicSettings::default() },
        TopicSettings { ordering: Ordering::Key, ..TopicSettings::default() },
        TopicSettings { payload_bytes_max: 1, ..TopicSettings::default() },
        TopicSettings { dedup_window: Duration::from_secs(1), ..TopicSettings::default() },
        TopicSettings { tracking: Tracking::ReferenceCounting, ..TopicSettings::default() },
        TopicSettings { message_retention: None, ..TopicSettings::default() },
        TopicSettings { max_retention: Some(Duration::from_secs(99_999)), ..TopicSettings::default() },
        TopicSettings { zero_subscription_retention: Duration::ZERO, ..TopicSettings::default() },
        TopicSettings { zombie_subscription_ttl: Duration::ZERO, ..TopicSettings::default() },
        TopicSettings { storage: Storage::Dedicated(Partition::None), ..TopicSettings::default() },
        TopicSettings { heartbeat_timeout: Duration::from_secs(301), ..TopicSettings::default() },
        TopicSettings { ack_log: true, ..TopicSettings::default() },
    ];
    for other in others {
        let error = failed(store.create_topic(&name, &other).await, ErrorKind::Conflict);
        assert!(error.to_string().contains("orders"), "{error}");
    }
    assert_eq!(store.topic(&name).await.unwrap(), created);
    assert_eq!(store.topics().await.unwrap().len(), 1);
}

/// Settings outside their limits are refused with field and rule, and no topic is created.
pub async fn bad_settings_are_refused(case: &Case) {
    let store = case.open().await;
    let year = Duration::from_secs(367 * 24 * 3600);
    let good = TopicSettings::default;
    for (field, bad) in [
        ("lease: longer than 366 days", TopicSettings { lease: year, ..good() }),
        ("backoff_initial: longer than 366 days", TopicSettings { backoff_initial: year, ..good() }),
        ("backoff_max: longer than 366 days", TopicSettings { backoff_max: year, ..good() }),
        ("dedup_window: longer than 366 days", TopicSettings { dedup_window: year, ..good() }),
        ("gap_patience: longer than 366 days", TopicSettings { gap_patience: year, ..good() }),
        ("max_attempts: must be from 1 to 1000", TopicSettings { max_attempts: 0, ..good() }),
        ("max_attempts: must be from 1 to 1000", TopicSettings { max_attempts: 1_001, ..good() }),
        ("lanes: must be from 1 to 256", TopicSettings { lanes: 0, ..good() }),
        ("lanes: must be from 1 to 256", TopicSettings { lanes: 257, ..good() }),
        ("payload_bytes_max: must be from 1 to 67108864", TopicSettings { payload_bytes_max: 0, ..good() }),
        (
            "payload_bytes_max: must be from 1 to 67108864",
            TopicSettings { payload_bytes_max: 64 * 1024 * 1024 + 1, ..good() },
        ),
    ] {
        let error = failed(store.create_topic(&topic("bad"), &bad).await, ErrorKind::InvalidInput);
        assert!(error.to_string().contains(field), "{field} is missing in: {error}");
    }
    assert_eq!(store.topics().await.unwrap(), []);
}

/// Topics are listed by name.
pub async fn topics_are_listed_by_name(case: &Case) {
    let store = case.open().await;
    for name in ["zebra", "apple", "mango"] {
        store.create_topic(&topic(name), &TopicSettings::pub_sub()).await.unwrap();
    }
    let listed = store.topics().await.unwrap();
    let names: Vec<_> = listed.iter().map(|status| status.topic.name.as_str()).collect();
    assert_eq!(names, ["apple", "mango", "zebra"]);
    let ids: std::collections::HashSet<_> = listed.iter().map(|status| status.topic.topic_id).collect();
    assert_eq!(ids.len(), 3);
}

/// Many create one topic at once, through two stores: all get the same.
pub async fn concurrent_creators_get_one_topic(case: &Case) {
    let stores = [case.open().await, case.open().await];
    let tasks: Vec<_> = (0..16)
        .map(|n| {
            let store = Arc::clone(&stores[n % 2]);
            tokio::spawn(async move { store.create_topic(&topic("same"), &unusual()).await })
        })
        .collect();
    let mut ids = std::collections::HashSet::new();
    for task in tasks {
        ids.insert(task.await.unwrap().expect("every creator succeeds").topic_id);
    }
    assert_eq!(ids.len(), 1);
    assert_eq!(stores[0].topics().await.unwrap().len(), 1);
}

/// Many publish to a topic that does not exist yet: it is created once, and nothing is lost.
pub async fn concurrent_publishers_create_one_topic(case: &Case) {
    let stores = [case.open().await, case.open().await];
    let tasks: Vec<_> = (0..16)
        .map(|n| {
            let store = Arc::clone(&stores[n % 2]);
            tokio::spawn(
                async move { store.publish(&topic("made"), &[NewMessage::new(n.to_string())]).await },
            )
        })
        .collect();
    for task in tasks {
        task.await.unwrap().expect("every publisher succeeds");
    }
    let store = &stores[0];
    let subscription = store.subscribe(&topic("made"), &group("g"), Start::Beginning).await.unwrap();
    let scene = Scene { store: Arc::clone(store), topic: topic("made"), subscription };
    let mut got: Vec<u32> =
        payloads_of(&scene.drain_until("a", 16).await).iter().map(|n| n.parse().unwrap()).collect();
    got.sort_unstable();
    assert!(got.into_iter().eq(0..16), "each message once");
}

/// Many open a store that does not exist yet: all succeed, and it is the same store.
pub async fn concurrent_openers_create_one_namespace(case: &Case) {
    let url = case.harness().url_beside("fresh");
    let opens = (0..6).map(|_| case.open_at(&url, case.options()));
    let stores = futures_util::future::join_all(opens).await;
    for (n, store) in stores.iter().enumerate() {
        let store = store.as_ref().expect("every opener succeeds");
        store.publish(&topic("orders"), &[NewMessage::new(n.to_string())]).await.unwrap();
    }
    let store = stores[0].as_ref().unwrap();
    let topics = store.topics().await.unwrap();
    assert_eq!(topics.len(), 1);
    let messages = store.fetch(topics[0].topic.topic_id, super::case::range(1, 100)).await.unwrap();
    assert_eq!(messages.len(), 6);
    assert_eq!(store.doctor().await.unwrap(), []);
}

/// Namespaces share nothing; dropping one removes all of it and nothing else.
pub async fn namespaces_are_apart(case: &Case) {
    let url = case.harness().url_beside("other");
    let here = case.queue().await;
    let there =
        Scene::new(case.open_at(&url, case.options()).await.unwrap(), "orders", TopicSettings::default());
    let there = there.await;
    here.publish_all(&[NewMessage::new("here").dedup_key("k")]).await;
    there.publish_all(&[NewMessage::new("there").dedup_key("k")]).await;
    let only_there = topic("only there");
    there.store.create_topic(&only_there, &TopicSettings::default()).await.unwrap();
    failed(here.store.topic(&only_there).await, ErrorKind::NoSuchTopic);
    assert_eq!(payloads_of(&there.drain("a").await), ["there"]);

    there.store.drop_namespace().await.unwrap();
    failed(there.store.topics().await, ErrorKind::Closed);
    let again = case.open_at(&url, case.options()).await.unwrap();
    assert_eq!(again.topics().await.unwrap(), []);
    assert_eq!(again.doctor().await.unwrap(), []);
    assert_eq!(payloads_of(&here.drain("a").await), ["here"]);
    assert_eq!(here.store.topics().await.unwrap().len(), 1);
    again.drop_namespace().await.unwrap();
}
