//! Altering a topic: every setting while messages flow, and the few rules about what is not allowed.

use std::time::Duration;

use super::case::{Case, Scene, failed, group, topic};
use super::life::{HOUR, lively};
use crate::error::ErrorKind;
use crate::message::NewMessage;
use crate::subscription::Start;
use crate::topic::{Ordering, Partition, Preset, Semantics, Storage, TopicSettings, Tracking};

const CENTURY: Duration = Duration::from_secs(101 * 366 * 24 * 3_600);

/// Every setting at a value other than its default.
pub(super) fn unusual() -> TopicSettings {
    TopicSettings {
        semantics: Semantics::PubSub,
        lease: Duration::from_millis(12_345),
        max_attempts: 3,
        backoff_initial: Duration::from_millis(7),
        backoff_max: Duration::from_secs(366 * 24 * 3600),
        ordering: Ordering::Key,
        lanes: 256,
        payload_bytes_max: 64 * 1024 * 1024,
        dedup_window: Duration::ZERO,
        gap_patience: Duration::from_millis(1),
        tracking: Tracking::ReferenceCounting,
        message_retention: None,
        max_retention: Some(Duration::from_secs(91)),
        zero_subscription_retention: Duration::from_secs(92),
        block_writes_on_zero_subscriptions: true,
        zombie_subscription_ttl: Duration::from_secs(93),
        storage: Storage::Dedicated(Partition::Rows(5_000)),
        heartbeat_interval: Duration::from_secs(7),
        heartbeat_timeout: Duration::from_secs(70),
        ack_log: true,
    }
}

/// One change of each setting, on top of the defaults of a fan-out topic.
fn changes() -> Vec<(&'static str, TopicSettings)> {
    let base = TopicSettings::pub_sub;
    let secs = Duration::from_secs;
    vec![
        ("semantics", TopicSettings::default()),
        ("tracking", TopicSettings { tracking: Tracking::ReferenceCounting, ..base() }),
        ("message_retention", TopicSettings { message_retention: Some(secs(7)), ..base() }),
        ("message_retention for ever", TopicSettings { message_retention: None, ..base() }),
        ("message_retention of zero", TopicSettings { message_retention: Some(Duration::ZERO), ..base() }),
        ("max_retention", TopicSettings { max_retention: Some(secs(100_000)), ..base() }),
        ("max_retention none", TopicSettings { max_retention: None, ..base() }),
        ("zero_subscription_retention", TopicSettings { zero_subscription_retention: secs(8), ..base() }),
        ("block_writes", TopicSettings { block_writes_on_zero_subscriptions: true, ..base() }),
        ("zombie_subscription_ttl", TopicSettings { zombie_subscription_ttl: secs(9), ..base() }),
        ("lease", TopicSettings { lease: Duration::ZERO, ..base() }),
        ("max_attempts", TopicSettings { max_attempts: 1_000, ..base() }),
        ("backoff_initial", TopicSettings { backoff_initial: secs(11), ..base() }),
        ("backoff_max", TopicSettings { backoff_max: secs(12), ..base() }),
        ("ordering", TopicSettings { ordering: Ordering::Key, ..base() }),
        ("lanes", TopicSettings { lanes: 256, ..base() }),
        ("storage", TopicSettings { storage: Storage::Dedicated(Partition::None), ..base() }),
        ("rows", TopicSettings { storage: Storage::Dedicated(Partition::Rows(1_000)), ..base() }),
        ("hour", TopicSettings { storage: Storage::Dedicated(Partition::Hour), ..base() }),
        ("day", TopicSettings { storage: Storage::Dedicated(Partition::Day), ..base() }),
        ("month", TopicSettings { storage: Storage::Dedicated(Partition::Month), ..base() }),
        ("payload_bytes_max", TopicSettings { payload_bytes_max: 17, ..base() }),
        ("dedup_window", TopicSettings { dedup_window: Duration::ZERO, ..base() }),
        ("heartbeat_interval", TopicSettings { heartbeat_interval: Duration::from_millis(100), ..base() }),
        ("heartbeat_timeout", TopicSettings { heartbeat_timeout: secs(120), ..base() }),
        ("ack_log", TopicSettings { ack_log: true, ..base() }),
        ("gap_patience", TopicSettings { gap_patience: secs(2), ..base() }),
    ]
}

/// Each setting is altered alone and reads back as given, also from another store and after a restart, and can be
/// altered back.
pub async fn every_setting_can_be_altered(case: &Case) {
    let store = case.open().await;
    for (index, (what, settings)) in changes().into_iter().enumerate() {
        let name = topic(&format!("topic-{index}"));
        let created = store.create_topic(&name, &TopicSettings::pub_sub()).await.unwrap();
        let altered = store.alter_topic(&name, &settings).await.unwrap_or_else(|e| panic!("{what}: {e:?}"));
        assert_eq!(altered.settings, settings, "{what}");
        assert_eq!(altered.topic_id, created.topic_id, "{what}");
        assert_eq!(store.topic(&name).await.unwrap(), altered, "{what}");
    }
    store.close().await.unwrap();
    let store = case.open().await;
    for (index, (what, settings)) in changes().into_iter().enumerate() {
        let name = topic(&format!("topic-{index}"));
        assert_eq!(store.topic(&name).await.unwrap().settings, settings, "{what} after a restart");
        if settings.tracking == Tracking::OffsetWatermark {
            store.alter_topic(&name, &TopicSettings::pub_sub()).await.unwrap();
            assert_eq!(store.topic(&name).await.unwrap().settings, TopicSettings::pub_sub(), "{what} back");
        }
    }
}

/// Durations are kept in whole milliseconds, rounded up, and compare equal afterwards.
pub async fn settings_are_kept_in_whole_milliseconds(case: &Case) {
    let store = case.open().await;
    let (lease, kept) = (Duration::from_nanos(1_000_001), Some(Duration::from_nanos(1)));
    let odd = TopicSettings { lease, message_retention: kept, ..TopicSettings::default() };
    let (lease, kept) = (Duration::from_millis(2), Some(Duration::from_millis(1)));
    let whole = TopicSettings { lease, message_retention: kept, ..TopicSettings::default() };
    let created = store.create_topic(&topic("odd"), &odd).await.unwrap();
    assert_eq!(created.settings, whole);
    assert_eq!(store.create_topic(&topic("odd"), &odd).await.unwrap(), created);
    assert_eq!(store.alter_topic(&topic("odd"), &odd).await.unwrap(), created);
}

/// The audit entry lists what changed, from which value to which, as it is stored: the same on both engines. An alteration
/// that changes nothing has none.
pub async fn an_alteration_is_audited_as_what_changed(case: &Case) {
    let store = case.open().await;
    let detail = async || -> serde_json::Value {
        let entry = store.audit(1).await.unwrap().remove(0);
        assert_eq!(entry.act, "alter_topic");
        serde_json::from_str(&entry.detail).unwrap()
    };
    let base = TopicSettings::pub_sub().described();
    for (index, (what, settings)) in changes().into_iter().enumerate() {
        let name = topic(&format!("topic-{index}"));
        store.create_topic(&name, &TopicSettings::pub_sub()).await.unwrap();
        store.alter_topic(&name, &settings).await.unwrap();
        let both = base.iter().zip(settings.described());
        let changed = both.filter(|(from, to)| from.1 != to.1);
        let expected: serde_json::Value =
            changed.map(|(from, to)| (to.0, serde_json::json!({ "from": from.1, "to": to.1 }))).collect();
        assert_eq!(detail().await, expected, "{what}");
        store.alter_topic(&name, &settings).await.unwrap();
        assert_eq!(store.audit(100).await.unwrap().len(), index + 1, "{what}, the second time");
    }
    let name = topic("in full");
    store.create_topic(&name, &TopicSettings::pub_sub()).await.unwrap();
    let settings = TopicSettings {
        lease: Duration::from_micros(1_500),
        message_retention: None,
        block_writes_on_zero_subscriptions: true,
        storage: Storage::Dedicated(Partition::Rows(1_000)),
        tracking: Tracking::ReferenceCounting,
        ..TopicSettings::pub_sub()
    };
    store.alter_topic(&name, &settings).await.unwrap();
    let expected = serde_json::json!({
        "lease_ms": { "from": 300_000, "to": 2 },
        "message_retention_ms": { "from": 86_400_000, "to": null },
        "block_writes_on_zero_subscriptions": { "from": false, "to": true },
        "storage": { "from": "shared", "to": "dedicated by rows:1000" },
        "tracking": { "from": "offset_watermark", "to": "reference_counting" },
    });
    assert_eq!(detail().await, expected);
}

/// An altered setting applies to the next message and the next hand-out, without a new subscription.
pub async fn an_altered_setting_applies_at_once(case: &Case) {
    let scene = case.pub_sub().await;
    scene.publish(2).await;
    let lease = scene.claim_one("a", 1).await;
    assert_eq!(lease.deadline, Some(case.now() + Duration::from_secs(300)));
    let settings =
        TopicSettings { lease: Duration::from_secs(7), payload_bytes_max: 3, ..TopicSettings::pub_sub() };
    let other = case.open().await;
    other.alter_topic(&scene.topic, &settings).await.unwrap();
    let lease = scene.claim_one("a", 1).await;
    assert_eq!(lease.deadline, Some(case.now() + Duration::from_secs(7)));
    let long = [NewMessage::new("four")];
    failed(scene.store.publish(&scene.topic, &long).await, ErrorKind::PayloadTooLarge);
    scene.publish_all(&[NewMessage::new("3 b")]).await;
}

/// Two groups of a fan-out topic would compete for a queue's messages: refused until one of them is removed.
pub async fn pub_sub_becomes_a_queue_only_with_one_group(case: &Case) {
    let scene = case.scene(lively()).await;
    let second = scene.subscribe("second", Start::Beginning).await;
    let queue = TopicSettings { semantics: Semantics::Queue, ..lively() };
    let error = failed(scene.store.alter_topic(&scene.topic, &queue).await, ErrorKind::InvalidInput);
    assert!(error.to_string().contains("orders"), "{error}");
    assert_eq!(scene.store.topic(&scene.topic).await.unwrap().settings, lively(), "nothing was changed");
    second.cancel().await;
    scene.track_all().await;
    scene.store.remove(&scene.topic, &group("second")).await.unwrap();
    scene.store.alter_topic(&scene.topic, &queue).await.unwrap();
    let third = scene.store.subscribe(&scene.topic, &group("third"), Start::Beginning).await;
    failed(third, ErrorKind::InvalidInput);
}

/// A queue that becomes a fan-out topic accepts a second group, and the first continues.
pub async fn a_queue_becomes_pub_sub(case: &Case) {
    let scene = case.queue().await;
    scene.publish(3).await;
    scene.ack_next(1).await;
    scene.store.alter_topic(&scene.topic, &TopicSettings::pub_sub()).await.unwrap();
    let second = scene.subscribe("second", Start::Beginning).await;
    assert_eq!(second.reads().await, [1, 2, 3]);
    assert_eq!(scene.reads().await, [2, 3]);
}

/// The storage of a topic cannot change while it has messages; before the first and after the last it can.
pub async fn storage_changes_only_while_nothing_is_stored(case: &Case) {
    let scene = case.scene(lively()).await;
    let dedicated = TopicSettings { storage: Storage::Dedicated(Partition::None), ..lively() };
    scene.store.alter_topic(&scene.topic, &dedicated).await.unwrap();
    scene.publish(2).await;
    let error = failed(scene.store.alter_topic(&scene.topic, &lively()).await, ErrorKind::InvalidInput);
    assert!(error.to_string().contains("storage"), "{error}");
    let rows = TopicSettings { storage: Storage::Dedicated(Partition::Rows(1_000)), ..lively() };
    failed(scene.store.alter_topic(&scene.topic, &rows).await, ErrorKind::InvalidInput);
    assert_eq!(scene.store.topic(&scene.topic).await.unwrap().settings, dedicated, "nothing was changed");
    // Other settings can be changed meanwhile.
    let other = TopicSettings { max_attempts: 3, ..dedicated };
    scene.store.alter_topic(&scene.topic, &other).await.unwrap();
    assert_eq!(scene.reads().await, [1, 2]);
    assert_eq!(scene.clean_all().await.removed, 2);
    scene.store.alter_topic(&scene.topic, &lively()).await.unwrap();
    assert_eq!(scene.publish(1).await, [3], "the offsets continue");
    assert_eq!(scene.reads().await, [3]);
}

/// A group keeps the lanes and the order it was created with.
pub async fn groups_that_exist_keep_their_lanes(case: &Case) {
    let ordered = |lanes| TopicSettings { ordering: Ordering::Key, lanes, ..TopicSettings::pub_sub() };
    let scene = case.scene(ordered(4)).await;
    scene.store.alter_topic(&scene.topic, &ordered(8)).await.unwrap();
    let again = scene.subscribe("workers", Start::Beginning).await;
    assert_eq!((again.subscription.lanes, again.subscription.topic.settings.lanes), (4, 8));
    assert_eq!(scene.subscribe("new", Start::Beginning).await.subscription.lanes, 8);
    scene.store.alter_topic(&scene.topic, &TopicSettings::pub_sub()).await.unwrap();
    assert_eq!(scene.subscribe("plain", Start::Beginning).await.subscription.lanes, 0);
    let keyed = NewMessage::new("1").key("k");
    scene.publish_all(&[keyed]).await;
    let leases = again.claim("a", 10).await;
    assert!(leases.iter().all(|lease| lease.lane.is_some_and(|lane| lane < 4)), "{leases:?}");
}

/// Each preset has the retention and blocking that suit its name.
pub async fn presets_have_their_retention_and_blocking(case: &Case) {
    let store = case.open().await;
    let day = HOUR * 24;
    for (preset, retention, blocks) in [
        (Preset::Critical, day * 7, true),
        (Preset::Audit, day * 90, true),
        (Preset::Standard, day, false),
        (Preset::Ephemeral, HOUR, false),
        (Preset::Queue, day, false),
    ] {
        let name = topic(preset.as_str());
        let settings = TopicSettings::preset(preset);
        let created = store.create_topic(&name, &settings).await.unwrap();
        assert_eq!(created.settings, settings, "{preset:?}");
        assert_eq!(settings.message_retention, Some(retention), "{preset:?}");
        assert_eq!(settings.semantics == Semantics::Queue, preset == Preset::Queue);
        let published = store.publish(&name, &[NewMessage::new("1")]).await;
        assert_eq!(published.is_err(), blocks, "{preset:?}: {published:?}");
        if blocks {
            failed(published, ErrorKind::NoSubscriptions);
        }
    }
}

/// Bad settings are refused with field and rule, at creation and at alteration, and nothing is changed.
pub async fn bad_settings_are_refused_by_name(case: &Case) {
    let scene = case.pub_sub().await;
    let good = TopicSettings::pub_sub;
    let secs = Duration::from_secs;
    for (field, bad) in [
        (
            "message_retention: longer than 100 years",
            TopicSettings { message_retention: Some(CENTURY), ..good() },
        ),
        ("max_retention: longer than 100 years", TopicSettings { max_retention: Some(CENTURY), ..good() }),
        (
            "max_retention: must be longer than zero",
            TopicSettings { max_retention: Some(Duration::ZERO), ..good() },
        ),
        (
            "message_retention: 1d is longer than max_retention, 1ms",
            TopicSettings { max_retention: Some(Duration::from_millis(1)), ..good() },
        ),
        (
            "backoff_initial: 5m1s is longer than backoff_max, 5m",
            TopicSettings { backoff_initial: secs(301), ..good() },
        ),
        (
            "zero_subscription_retention: longer than 100 years",
            TopicSettings { zero_subscription_retention: CENTURY, ..good() },
        ),
        (
            "zombie_subscription_ttl: longer than 100 years",
            TopicSettings { zombie_subscription_ttl: CENTURY, ..good() },
        ),
        (
            "block_writes_on_zero_subscriptions: a queue never blocks",
            TopicSettings { block_writes_on_zero_subscriptions: true, ..TopicSettings::default() },
        ),
        (
            "heartbeat_interval: must be at least 100 ms",
            TopicSettings { heartbeat_interval: Duration::from_millis(99), ..good() },
        ),
        (
            "heartbeat_timeout: must be at least twice heartbeat_interval",
            TopicSettings { heartbeat_timeout: secs(119), ..good() },
        ),
        ("heartbeat_timeout: longer than 366 days", TopicSettings { heartbeat_timeout: CENTURY, ..good() }),
        (
            "partition rows: must be from 1000 to",
            TopicSettings { storage: Storage::Dedicated(Partition::Rows(999)), ..good() },
        ),
        ("max_attempts: must be from 1 to 1000", TopicSettings { max_attempts: 0, ..good() }),
        ("lanes: must be from 1 to 256", TopicSettings { lanes: 257, ..good() }),
    ] {
        for answer in [
            scene.store.create_topic(&topic("bad"), &bad).await,
            scene.store.alter_topic(&scene.topic, &bad).await,
        ] {
            let error = failed(answer, ErrorKind::InvalidInput);
            assert!(error.to_string().contains(field), "{field} is missing in: {error}");
        }
    }
    assert_eq!(scene.store.topics().await.unwrap().len(), 1);
    assert_eq!(scene.store.topic(&scene.topic).await.unwrap().settings, good());
}

/// A topic that does not exist cannot be altered.
pub async fn an_unknown_topic_cannot_be_altered(case: &Case) {
    let store = case.open().await;
    let answer = store.alter_topic(&topic("nowhere"), &TopicSettings::default()).await;
    let error = failed(answer, ErrorKind::NoSuchTopic);
    assert!(error.to_string().contains("nowhere"), "{error}");
    assert_eq!(store.topics().await.unwrap(), []);
}

/// A topic is altered while others publish and consume: nothing is lost or delivered twice.
pub async fn a_topic_is_altered_while_messages_flow(case: &Case) {
    let scene = case.pub_sub().await;
    let publisher = {
        let scene: Scene = scene.through(&case.open().await);
        tokio::spawn(async move {
            for _ in 0..30 {
                scene.publish(3).await;
            }
        })
    };
    let mut got = Vec::new();
    for round in 0..30_u32 {
        let settings = TopicSettings { max_attempts: round + 1, ..TopicSettings::pub_sub() };
        scene.store.alter_topic(&scene.topic, &settings).await.unwrap();
        got.extend(scene.reads().await);
    }
    publisher.await.unwrap();
    while got.len() < 90 {
        got.extend(super::case::offsets_of(&scene.drain_until("reader", 1).await));
    }
    got.sort_unstable();
    assert!(got.iter().copied().eq(1..=90), "{got:?}");
}
