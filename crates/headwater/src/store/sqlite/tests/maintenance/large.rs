//! Large payloads: a step promotes or removes a bounded number of bytes and at least one row, and the steps together do
//! everything.

use super::super::super::advance_heads::advance_heads;
use super::super::super::work::Work;
use super::many::commits;
use super::*;
use crate::clock::Clock;
use crate::limits::STEP_BYTES_MAX;
use crate::store::{DeadLetterSelection, EntryRetention};
use crate::topic::{Removal, TopicContents};

const MIB: u64 = 1024 * 1024;

/// The rows of the tests: one that exceeds the limit alone, and 39 with 1 MiB each.
const ROWS: &str = "WITH RECURSIVE n (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < 40),
    large (n, payload) AS (SELECT n, zeroblob(iif(n = 1, 20, 1) << 20) FROM n)";

/// How many of these rows each step takes.
const STEPS: [i64; 4] = [1, 16, 16, 7];

/// How many rows of a table are removed by each step, until none is left.
async fn removed_by(scene: &Scene, table: &str, mut step: impl AsyncFnMut()) -> Vec<i64> {
    let count = || scene.number(&format!("SELECT count(*) FROM headwater_{table}")).unwrap();
    let (mut steps, mut before) = (Vec::new(), count());
    while before > 0 {
        step().await;
        let left = count();
        assert!(left < before, "a step removed nothing: {steps:?}");
        steps.push(before - left);
        before = left;
    }
    steps
}

/// Adds the rows to the log, all of them done by the group.
fn published(scene: &Scene, group: &Subscription) {
    let (id, now_ms) = (group.subscription_id.0, scene.clock.now().as_millisecond());
    scene.sql(&format!(
        "INSERT INTO headwater_message (row_key, message_id, payload, created_at_ms)
         {ROWS} SELECT (1 << 43) | n, randomblob(16), payload, {now_ms} FROM large;
         UPDATE headwater_topic SET last_offset = 40;
         UPDATE headwater_cursor SET next_offset = 41 WHERE subscription_id = {id};"
    ));
}

/// Adds the rows to the dead letters of a group.
fn buried(scene: &Scene, group: &Subscription) {
    scene.sql(&format!(
        "INSERT INTO headwater_dead_letter (dead_letter_id, subscription_id, message_offset, message_id, created_at_ms,
             error, attempts, buried_at_ms, payload)
         {ROWS} SELECT randomblob(16), {}, n, randomblob(16), 0, 'no', 1, 0, payload FROM large",
        group.subscription_id.0
    ));
}

/// Schedules the rows in a topic, one after the other.
fn scheduled(scene: &Scene, topic: TopicId, from_ms: i64) {
    scene.sql(&format!(
        "INSERT INTO headwater_schedule (topic_id, deliver_at_ms, message_id, payload)
         {ROWS} SELECT {}, {from_ms} + n, randomblob(16), payload FROM large",
        topic.0
    ));
}

#[test]
fn the_steps_of_these_tests_follow_from_the_limit() {
    assert_eq!(STEP_BYTES_MAX, 16 * MIB);
    assert_eq!(STEPS.iter().sum::<i64>(), 40);
}

#[tokio::test]
async fn maintenance_promotes_by_bytes_and_the_most_overdue_topic_first() {
    let scene = Scene::new("").await;
    let other = scene.store.create_topic(&topic("other"), &TopicSettings::pub_sub()).await.unwrap().topic_id;
    let now_ms = scene.clock.now().as_millisecond();
    scheduled(&scene, scene.topic, now_ms + 1_000);
    scheduled(&scene, other, now_ms);
    scene.clock.advance(HOUR);
    let left = |topic: TopicId| {
        scene.number(&format!("SELECT count(*) FROM headwater_schedule WHERE topic_id = {}", topic.0))
    };
    let (mut rounds, mut more) = (Vec::new(), Vec::new());
    while left(other) > Some(0) {
        assert_eq!(left(scene.topic), Some(40), "its messages are due later");
        let done = scene.store.advance_heads().await.unwrap();
        rounds.push(done.promoted);
        more.push(done.more);
    }
    // The last of one topic leave room for none of the other: the first of it is too large.
    assert_eq!(rounds, STEPS.map(i64::unsigned_abs));
    let rounds = removed_by(&scene, "schedule", async || {
        more.push(scene.store.advance_heads().await.unwrap().more);
    });
    assert_eq!(rounds.await, STEPS);
    assert_eq!(more, [true, true, true, true, true, true, true, false]);
    scene.assert_sound().await;
}

/// Other commands of the same transaction may have used its budget.
#[tokio::test]
async fn a_round_without_room_says_that_more_is_due() {
    let scene = Scene::new("").await;
    scheduled(&scene, scene.topic, scene.clock.now().as_millisecond());
    scene.clock.advance(HOUR);
    let (connection, clock) = (scene.place.connect(), Clock::Manual(scene.clock.clone()));
    let mut work = Work::new(&connection, &clock, true);
    assert!(work.promoted.take(STEP_BYTES_MAX));
    let done = advance_heads(&mut work).unwrap();
    assert_eq!((done.promoted, done.more), (0, true));
    connection.execute_batch("DELETE FROM headwater_schedule").unwrap();
    assert!(!advance_heads(&mut work).unwrap().more);
}

#[tokio::test]
async fn a_claim_promotes_by_bytes_and_is_repeated_at_once() {
    let scene = Scene::new("").await;
    let workers = scene.group("workers", Start::Beginning).await;
    scheduled(&scene, scene.topic, scene.clock.now().as_millisecond());
    scene.clock.advance(HOUR);
    let (mut offsets, mut claims) = (Vec::new(), Vec::new());
    while offsets.len() < 40 {
        let claimed = scene.store.claim(&request(&workers, 100)).await.unwrap();
        let before = offsets.len();
        for lease in claimed.leases {
            offsets.extend(lease.range.first.0..=lease.range.last.0);
        }
        claims.push((offsets.len() - before) as i64);
        let is_last = offsets.len() == 40;
        assert_eq!(claimed.recheck_after == Some(Duration::ZERO), !is_last, "{claims:?}");
    }
    assert_eq!((claims, offsets), (STEPS.to_vec(), (1..=40).collect::<Vec<i64>>()));
    let whole = "SELECT count(*) FROM headwater_message WHERE length(payload) = iif(row_key & 8796093022207 = 1, 20, 1) << 20";
    assert_eq!(scene.number(whole), Some(40), "in order, and whole");
}

#[tokio::test]
async fn cleanup_removes_by_bytes() {
    let scene = Scene::new("message_retention_ms = 0, zero_subscription_retention_ms = 0").await;
    let workers = scene.group("workers", Start::Beginning).await;
    published(&scene, &workers);
    let mut more = Vec::new();
    let steps = removed_by(&scene, "message", async || {
        more.push(scene.store.clean(scene.topic, 10_000).await.unwrap().more);
    });
    assert_eq!(steps.await, STEPS);
    assert_eq!(more, [true, true, true, false]);
    assert_eq!(scene.number("SELECT first_offset FROM headwater_topic"), Some(41));
    scene.assert_sound().await;
}

#[tokio::test]
async fn a_group_is_removed_by_bytes() {
    let scene = Scene::new("").await;
    let workers = scene.group("workers", Start::Beginning).await;
    buried(&scene, &workers);
    let (name, workers) = (topic("orders"), group("workers"));
    scene.store.cancel(&name, &workers).await.unwrap();
    let steps = removed_by(&scene, "dead_letter", async || {
        let (name, workers) = (name.clone(), workers.clone());
        let step = move |work: &mut Work<'_>| state::remove(work, &name, &workers, state::Removal::Empty);
        scene.store.write(Kind::Consume, step).await.unwrap();
    });
    assert_eq!(steps.await, STEPS);
    scene.store.remove(&name, &workers).await.unwrap();
    assert_eq!(scene.number("SELECT count(*) FROM headwater_subscription"), Some(0));
}

#[tokio::test]
async fn dead_letters_are_purged_by_bytes() {
    let scene = Scene::new("").await;
    let workers = scene.group("workers", Start::Beginning).await;
    buried(&scene, &workers);
    let selection = DeadLetterSelection::all(workers.subscription_id);
    let (steps, purged) = commits(&scene, scene.store.purge(&selection)).await;
    assert_eq!((steps, purged.unwrap()), (4, 40));
    assert_eq!(scene.number("SELECT count(*) FROM headwater_dead_letter"), Some(0));
}

#[tokio::test]
async fn what_a_deleted_topic_left_is_removed_by_bytes() {
    let scene = Scene::new("").await;
    let workers = scene.group("workers", Start::Beginning).await;
    published(&scene, &workers);
    buried(&scene, &workers);
    scheduled(&scene, scene.topic, scene.clock.now().as_millisecond() + 1_000);
    let name = topic("orders");
    let delete = move |work: &mut Work<'_>| {
        topic::delete::delete(work, &name, Removal::Unserved, &TopicContents::default(), "me")
    };
    scene.store.write(Kind::Define, delete).await.unwrap();
    for table in ["dead_letter", "message", "schedule"] {
        let steps = removed_by(&scene, table, async || {
            assert!(scene.store.write(Kind::Consume, topic::delete::remove_some).await.unwrap());
        });
        assert_eq!(steps.await, STEPS, "{table}");
    }
    scene.store.clean_subscriptions(HOUR).await.unwrap();
    assert_eq!(scene.number("SELECT count(*) FROM headwater_deleted_topic"), Some(0));
}

#[tokio::test]
async fn a_topic_is_purged_by_bytes() {
    let scene = Scene::new("").await;
    let workers = scene.group("workers", Start::Beginning).await;
    published(&scene, &workers);
    let name = topic("orders");
    let begin = move |work: &mut Work<'_>| {
        topic::purge::begin(work, &name, Removal::Unserved, &TopicContents::default(), "me")
    };
    let mut left = Some(scene.store.write(Kind::Define, begin).await.unwrap());
    let steps = removed_by(&scene, "message", async || {
        let purge = left.take().expect("there is more");
        let step = move |work: &mut Work<'_>| topic::purge::remove_some(work, purge);
        left = scene.store.write(Kind::Consume, step).await.unwrap();
    });
    assert_eq!(steps.await, STEPS);
    scene.assert_sound().await;
}

#[tokio::test]
async fn published_entries_of_the_outbox_are_removed_by_bytes() {
    let scene = Scene::new("").await;
    scene.sql(&format!(
        "INSERT INTO headwater_outbox_entry (category, topic, type, status, claimed_by, claimed_at_ms, created_at_ms,
             published_at_ms, payload)
         {ROWS} SELECT 'event', 'billing', 'paid', 'PUBLISHED', 'relay', 0, 0, n, payload FROM large"
    ));
    let retention = EntryRetention { inbox: HOUR, outbox: HOUR };
    let mut more = Vec::new();
    let steps = removed_by(&scene, "outbox_entry", async || {
        let step = scene.store.clean_entries(&retention).await.unwrap();
        more.push(step.more);
    });
    assert_eq!(steps.await, STEPS);
    assert_eq!(more, [true, true, true, false]);
}
