//! Topics deleted and purged by operators, beside publishers, consumers and maintenance.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::case::{Case, Scene, bury, failed, group, owner, retry, topic};
use super::life::{HOUR, MODES, lively};
use super::wake::arm;
use crate::error::ErrorKind;
use crate::limits::SAFETY_POLL;
use crate::message::NewMessage;
use crate::settle::{Outcome, Settlement};
use crate::store::{Signal, Store};
use crate::subscription::Start;
use crate::topic::{Removal, TopicContents, TopicSettings, Tracking};

/// Everything that names a topic or one of its subscriptions, in all tables: rows of topics that do not exist.
const ORPHANS: (&str, &str) = (
    "SELECT (SELECT count(*) FROM headwater_message WHERE row_key >> 43 NOT IN (SELECT topic_id FROM headwater_topic))
        + (SELECT count(*) FROM headwater_completion_record WHERE row_key >> 43 NOT IN (SELECT topic_id FROM headwater_topic))
        + (SELECT count(*) FROM headwater_schedule WHERE topic_id NOT IN (SELECT topic_id FROM headwater_topic))
        + (SELECT count(*) FROM headwater_dedup WHERE topic_id NOT IN (SELECT topic_id FROM headwater_topic))
        + (SELECT count(*) FROM headwater_ack_log WHERE topic_id NOT IN (SELECT topic_id FROM headwater_topic))
        + (SELECT count(*) FROM headwater_age WHERE topic_id NOT IN (SELECT topic_id FROM headwater_topic))
        + (SELECT count(*) FROM headwater_watermark_history WHERE topic_id NOT IN (SELECT topic_id FROM headwater_topic))
        + (SELECT count(*) FROM headwater_subscription WHERE topic_id NOT IN (SELECT topic_id FROM headwater_topic))
        + (SELECT count(*) FROM headwater_dead_letter
           WHERE subscription_id NOT IN (SELECT subscription_id FROM headwater_subscription))
        + (SELECT count(*) FROM headwater_outstanding
           WHERE subscription_id NOT IN (SELECT subscription_id FROM headwater_subscription))
        + (SELECT count(*) FROM headwater_applied
           WHERE subscription_id NOT IN (SELECT subscription_id FROM headwater_subscription))
        + (SELECT count(*) FROM headwater_touched
           WHERE subscription_id NOT IN (SELECT subscription_id FROM headwater_subscription))
        + (SELECT count(*) FROM headwater_deleted_topic)",
    "SELECT (SELECT count(*) FROM {schema}.message WHERE topic_id NOT IN (SELECT topic_id FROM {schema}.topic))
        + (SELECT count(*) FROM {schema}.completion_record WHERE topic_id NOT IN (SELECT topic_id FROM {schema}.topic))
        + (SELECT count(*) FROM {schema}.schedule WHERE topic_id NOT IN (SELECT topic_id FROM {schema}.topic))
        + (SELECT count(*) FROM {schema}.dedup WHERE topic_id NOT IN (SELECT topic_id FROM {schema}.topic))
        + (SELECT count(*) FROM {schema}.ack_log WHERE topic_id NOT IN (SELECT topic_id FROM {schema}.topic))
        + (SELECT count(*) FROM {schema}.gap WHERE topic_id NOT IN (SELECT topic_id FROM {schema}.topic))
        + (SELECT count(*) FROM {schema}.hole WHERE topic_id NOT IN (SELECT topic_id FROM {schema}.topic))
        + (SELECT count(*) FROM {schema}.dead_letter
           WHERE subscription_id NOT IN (SELECT subscription_id FROM {schema}.subscription))
        + (SELECT count(*) FROM {schema}.outstanding
           WHERE subscription_id NOT IN (SELECT subscription_id FROM {schema}.subscription))
        + (SELECT count(*) FROM {schema}.deleted_topic)
        + (SELECT count(*) FROM pg_class c WHERE c.relnamespace = '{schema}'::regnamespace AND c.relkind = 'S'
           AND c.relname ~ '^topic_[0-9]+_offset$' AND c.oid NOT IN (SELECT offsets FROM {schema}.topic))
        + (SELECT count(*) FROM pg_class c WHERE c.relnamespace = '{schema}'::regnamespace AND c.relname ~ '^message_t[0-9]+'
           AND c.relkind IN ('r', 'p')
           AND substring(c.relname from '^message_t([0-9]+)')::integer NOT IN (SELECT topic_id FROM {schema}.topic))",
);

async fn orphans(case: &Case) -> i64 {
    case.harness().number(ORPHANS.0, ORPHANS.1).await
}

/// A topic of this mode with something of everything: ten messages, of which one is leased, one waits, one is buried and
/// the rest is done; a scheduled one; a dedup key; the log of acks; two groups, one of them cancelled.
async fn furnished(case: &Case, tracking: Tracking) -> Scene {
    let settings = TopicSettings { tracking, ack_log: true, message_retention: None, ..lively() };
    let scene = case.scene(settings).await;
    let mut messages: Vec<_> = (1..=9).map(|n| NewMessage::new(n.to_string())).collect();
    messages.push(NewMessage::new("10").dedup_key("once"));
    scene.publish_all(&messages).await;
    let later = NewMessage::new("later").deliver_at(case.now() + HOUR);
    scene.store.publish(&scene.topic, &[later]).await.unwrap();
    scene.subscribe("left", Start::Beginning).await.cancel().await;
    let lease = scene.claim_one("a", 9).await;
    let parts = vec![((1, 7), Outcome::Ack), ((8, 8), retry(60_000, "again")), ((9, 9), bury("no"))];
    scene.settle_each(&lease, parts).await.unwrap();
    scene.track_all().await;
    scene
}

/// What [`furnished`] made, with its last message leased.
fn contents() -> TopicContents {
    TopicContents { messages: 10, scheduled: 1, groups: 1, leases: 1, dead_letters: 1, served: vec![] }
}

/// A dry run shows what a deletion removes and changes nothing. After the deletion nothing of the topic is left in any
/// table, its leases are lost, its consumers are informed, and the name is free: a new topic of the name starts anew.
pub async fn a_deleted_topic_is_gone_with_everything(case: &Case) {
    for tracking in MODES {
        let scene = furnished(case, tracking).await;
        let held = scene.claim_one("a", 1).await;
        let dry = scene.store.delete_topic(&scene.topic, Removal::DryRun).await.unwrap();
        assert_eq!(dry, contents(), "{tracking:?}");
        assert_eq!(scene.outstanding().await.len(), 2, "a dry run changes nothing");

        let done = scene.store.delete_topic(&scene.topic, Removal::Unserved).await.unwrap();
        assert_eq!(done, contents(), "{tracking:?}");
        assert_eq!(orphans(case).await, 0, "{tracking:?}");
        assert_eq!(scene.store.topics().await.unwrap(), []);
        failed(scene.store.topic(&scene.topic).await, ErrorKind::NoSuchTopic);
        failed(scene.store.delete_topic(&scene.topic, Removal::Forced).await, ErrorKind::NoSuchTopic);
        failed(scene.settle(Settlement::ack_all(&held)).await, ErrorKind::LeaseLost);
        failed(scene.extend(&held, HOUR).await, ErrorKind::LeaseLost);
        assert_eq!(scene.heartbeat("a").await, Signal::Gone);
        let entry = scene.store.audit(1).await.unwrap().remove(0);
        assert_eq!((entry.act.as_str(), entry.topic.as_deref()), ("delete_topic", Some("orders")));
        let detail: serde_json::Value = serde_json::from_str(&entry.detail).unwrap();
        let expected = serde_json::json!({
            "messages": 10, "scheduled": 1, "groups": 1, "dead_letters": 1, "leases_lost": 1
        });
        assert_eq!(detail, expected);

        let again = case.scene(TopicSettings { tracking, ..lively() }).await;
        assert_ne!(again.subscription.topic.topic_id, scene.subscription.topic.topic_id, "{tracking:?}");
        let once =
            again.store.publish(&again.topic, &[NewMessage::new("10").dedup_key("once")]).await.unwrap();
        assert!(!once[0].duplicate, "the keys of the deleted topic are gone");
        assert_eq!(once[0].offset.map(|offset| offset.0), Some(1));
        case.advance(2 * HOUR);
        assert_eq!(again.drain("a").await.len(), 1, "its scheduled message is gone too");
        again.store.delete_topic(&again.topic, Removal::Unserved).await.unwrap();
    }
}

/// Without auto_create a publish to a deleted topic is refused; with it, it is in a new topic of the name.
pub async fn a_publish_to_a_deleted_topic_is_refused_or_in_a_new_one(case: &Case) {
    let scene = case.queue().await;
    scene.publish(3).await;
    let strict = case.open_with(case.options().auto_create(false)).await.unwrap();
    scene.store.delete_topic(&scene.topic, Removal::Unserved).await.unwrap();
    let refused = strict.publish(&scene.topic, &[NewMessage::new("x")]).await;
    failed(refused, ErrorKind::NoSuchTopic);
    let published = scene.store.publish(&scene.topic, &[NewMessage::new("x")]).await.unwrap();
    assert_eq!(published[0].offset.map(|offset| offset.0), Some(1));
    assert_eq!(orphans(case).await, 0);
}

/// A topic whose group a process serves is neither deleted nor purged unless that is forced; the refusal names the group
/// and changes nothing. A process that departed does not count.
pub async fn a_served_topic_is_removed_only_by_force(case: &Case) {
    let scene = case.queue().await;
    scene.publish(2).await;
    assert_eq!(scene.heartbeat("a").await, Signal::Active);
    let contents = scene.store.delete_topic(&scene.topic, Removal::DryRun).await.unwrap();
    assert_eq!(contents.served, [(group("workers"), 1)]);
    let before = scene.status().await;
    for refused in [
        scene.store.delete_topic(&scene.topic, Removal::Unserved).await,
        scene.store.purge_topic(&scene.topic, Removal::Unserved).await,
    ] {
        let error = failed(refused, ErrorKind::InvalidTransition).to_string();
        assert!(error.contains("topic orders is served: group workers by 1 process"), "{error}");
    }
    assert_eq!(scene.status().await, before);
    scene.store.purge_topic(&scene.topic, Removal::Forced).await.unwrap();
    assert_eq!(scene.status().await.lag, 0);
    scene.store.depart(&owner("a")).await.unwrap();
    scene.store.delete_topic(&scene.topic, Removal::Unserved).await.unwrap();
    assert_eq!(orphans(case).await, 0);

    let scene = case.queue().await;
    assert_eq!(scene.heartbeat("a").await, Signal::Active);
    scene.store.delete_topic(&scene.topic, Removal::Forced).await.unwrap();
    assert_eq!(scene.heartbeat("a").await, Signal::Gone);
}

/// A purge removes every message and moves every group past them: leases are lost, retries are dropped, and nothing
/// counts as missed. Dead letters and scheduled messages stay, offsets continue, and no start reaches what was removed.
pub async fn a_purged_topic_keeps_its_groups(case: &Case) {
    for tracking in MODES {
        let scene = furnished(case, tracking).await;
        let held = scene.claim_one("a", 1).await;
        let dry = scene.store.purge_topic(&scene.topic, Removal::DryRun).await.unwrap();
        assert_eq!(dry, contents(), "{tracking:?}");
        assert_eq!(scene.fetch_range(1, 10).await.len(), 10, "a dry run changes nothing");

        assert_eq!(scene.store.purge_topic(&scene.topic, Removal::Unserved).await.unwrap(), contents());
        assert_eq!(scene.fetch_range(1, 10).await, [], "{tracking:?}");
        failed(scene.settle(Settlement::ack_all(&held)).await, ErrorKind::LeaseLost);
        let status = scene.status().await;
        assert_eq!((status.next.0, status.lag, status.missed.count), (11, 0, 0), "{tracking:?}");
        assert_eq!((scene.outstanding().await.len(), scene.dead_letters().await.len()), (0, 1));
        assert_eq!(scene.topic_status().await.first.0, 11, "{tracking:?}");
        let entry = scene.store.audit(1).await.unwrap().remove(0);
        let detail: serde_json::Value = serde_json::from_str(&entry.detail).unwrap();
        assert_eq!(entry.act, "purge_topic");
        assert_eq!(detail, serde_json::json!({ "until": 10, "messages": 10, "groups": 1, "leases_lost": 1 }));

        let late = scene.subscribe("late", Start::Beginning).await;
        assert_eq!(scene.publish(2).await, [11, 12]);
        scene.store.seek(&scene.topic, &group("workers"), Start::Beginning, false).await.unwrap();
        for reader in [&scene, &late] {
            assert_eq!(reader.drain("a").await.len(), 2, "{tracking:?}");
        }
        case.advance(2 * HOUR);
        assert_eq!(scene.drain("a").await.len(), 1, "the scheduled message is delivered");
        assert_eq!(late.drain("a").await.len(), 1);
        scene.clean_all().await;
        // Purging again, and an empty topic, is no error.
        scene.store.purge_topic(&scene.topic, Removal::Unserved).await.unwrap();
        scene.store.purge_topic(&scene.topic, Removal::Unserved).await.unwrap();
        scene.store.delete_topic(&scene.topic, Removal::Unserved).await.unwrap();
    }
}

/// A topic of several thousand messages is purged in steps: messages published meanwhile are delivered, each once, and
/// none of the purged.
pub async fn a_purge_leaves_what_is_published_during_it(case: &Case) {
    let scene = case.queue().await;
    for _ in 0..5 {
        scene.publish(1_000).await;
    }
    let (publisher, stop) = (scene.clone(), Arc::new(AtomicBool::new(false)));
    let stopped = Arc::clone(&stop);
    let publishing = tokio::spawn(async move {
        let mut published = Vec::new();
        while !stopped.load(Ordering::Acquire) {
            published.extend(publisher.publish(3).await);
        }
        published
    });
    scene.store.purge_topic(&scene.topic, Removal::Unserved).await.unwrap();
    stop.store(true, Ordering::Release);
    let published = publishing.await.unwrap();
    let until = scene.store.audit(1).await.unwrap().remove(0);
    let until: serde_json::Value = serde_json::from_str(&until.detail).unwrap();
    let until = until["until"].as_i64().unwrap();
    let left: Vec<i64> = published.into_iter().filter(|offset| *offset > until).collect();
    let got = scene.drain_until("a", left.len()).await;
    assert_eq!(super::case::offsets_of(&got), left);
    assert_eq!(scene.fetch_range(1, until).await, []);
}

/// A deletion wakes consumers that wait for the topic, in this process and in others.
pub async fn a_deletion_wakes_a_waiter(case: &Case) {
    let scene = case.queue().await;
    let other = case.open().await;
    let waits = [arm(&scene).await, arm(&scene.through(&other)).await];
    scene.store.delete_topic(&scene.topic, Removal::Unserved).await.unwrap();
    for wake in waits {
        assert!(wake.wait(SAFETY_POLL).await, "a waiter is woken");
    }
}

/// Publishers that create the topic again race with deletions. No message is left in a topic that does not exist, and
/// everything that was published after the last deletion is delivered.
pub async fn publishers_racing_deletions_leave_no_message_behind(case: &Case) {
    let store = case.open().await;
    let stop = Arc::new(AtomicBool::new(false));
    let mut publishers = Vec::new();
    for publisher in 0..4 {
        let (store, stop) = (Arc::clone(&store), Arc::clone(&stop));
        publishers.push(tokio::spawn(publish_until(store, stop, publisher)));
    }
    let mut deleted = 0;
    while deleted < 20 {
        tokio::time::sleep(Duration::from_millis(3)).await;
        match store.delete_topic(&topic("orders"), Removal::Unserved).await {
            Ok(_) => deleted += 1,
            Err(error) => assert!(
                matches!(error.kind(), ErrorKind::NoSuchTopic | ErrorKind::Busy),
                "a deletion failed: {error:?}"
            ),
        }
    }
    stop.store(true, Ordering::Release);
    for publisher in publishers {
        publisher.await.expect("a publisher ends");
    }
    assert_eq!(orphans(case).await, 0);
    let last = store.publish(&topic("orders"), &[NewMessage::new("last")]).await.unwrap();
    let group = store.subscribe(&topic("orders"), &group("workers"), Start::Beginning).await.unwrap();
    let scene = Scene { store, topic: topic("orders"), subscription: group };
    let got = scene.drain_until("a", 1).await;
    assert_eq!(got.last().map(|message| message.message_id), Some(last[0].message_id));
}

/// Publishes plain messages, and messages with dedup keys and delays, until it is stopped. A refusal must be one that
/// leaves nothing behind.
async fn publish_until(store: Arc<dyn Store>, stop: Arc<AtomicBool>, publisher: usize) {
    let mut count = 0;
    while !stop.load(Ordering::Acquire) {
        count += 1;
        let message = NewMessage::new(count.to_string());
        let message = match publisher {
            0 => message.dedup_key(format!("{count}")),
            1 => message.deliver_at(jiff::Timestamp::now() + HOUR),
            _ => message,
        };
        if let Err(error) = store.publish(&topic("orders"), &[message]).await {
            let expected = [ErrorKind::NoSuchTopic, ErrorKind::Busy];
            assert!(expected.contains(&error.kind()), "a publish failed: {error:?}");
        }
    }
}

/// A crash between two steps of a deletion leaves rows that name no topic: maintenance removes them.
pub async fn rows_left_by_a_crash_are_removed_by_maintenance(case: &Case) {
    let scene = furnished(case, Tracking::ReferenceCounting).await;
    let id = scene.subscription.topic.topic_id.0;
    let subscription = scene.subscription.subscription_id.0;
    // The transaction of a deletion, without the steps after it: a copy of the rows stays under the same number.
    let kept = [
        ("headwater_message", "message"),
        ("headwater_completion_record", "completion_record"),
        ("headwater_schedule", "schedule"),
        ("headwater_dedup", "dedup"),
        ("headwater_dead_letter", "dead_letter"),
    ];
    for (sqlite, postgres) in kept {
        let sqlite = format!("CREATE TABLE copy_of_{sqlite} AS SELECT * FROM {sqlite}");
        let postgres =
            format!("CREATE TABLE {{schema}}.copy_of_{postgres} AS SELECT * FROM {{schema}}.{postgres}");
        case.harness().sql(&sqlite, &postgres).await.unwrap();
    }
    scene.store.delete_topic(&scene.topic, Removal::Unserved).await.unwrap();
    for (sqlite, postgres) in kept {
        let restore = format!("INSERT INTO {sqlite} SELECT * FROM copy_of_{sqlite}");
        let overriding = if postgres == "schedule" { "OVERRIDING SYSTEM VALUE" } else { "" };
        let postgres_restore = format!(
            "INSERT INTO {{schema}}.{postgres} {overriding} SELECT * FROM {{schema}}.copy_of_{postgres}"
        );
        case.harness().sql(&restore, &postgres_restore).await.unwrap();
        let (sqlite, postgres) =
            (format!("DROP TABLE copy_of_{sqlite}"), format!("DROP TABLE {{schema}}.copy_of_{postgres}"));
        case.harness().sql(&sqlite, &postgres).await.unwrap();
    }
    let sqlite = format!(
        "INSERT INTO headwater_deleted_topic (topic_id, subscription_ids) VALUES ({id}, '[{subscription}]')"
    );
    let postgres = format!(
        "INSERT INTO {{schema}}.deleted_topic (topic_id, subscription_ids, offsets, deleted_at)
         VALUES ({id}, '{{{subscription}}}', '{{schema}}.left_over'::regclass, now())"
    );
    let unused = "DELETE FROM headwater_deleted_topic";
    case.harness().sql(unused, "CREATE SEQUENCE {schema}.left_over").await.unwrap();
    case.harness().sql(&sqlite, &postgres).await.unwrap();
    assert_eq!(scene.store.doctor().await.unwrap(), [], "rows that are being removed are no problem");
    scene.store.clean_subscriptions(HOUR).await.unwrap();
    assert_eq!(orphans(case).await, 0);
}
