//! Timestamps of a server whose clock was set back, and processes that were suspended.

use jiff::{SignedDuration, Timestamp};

use super::races::in_time;
use super::*;
use crate::clock::{Clock, ManualClock};
use crate::store::postgres::clock;

const WAIT_MAX: Duration = Duration::from_secs(20);

/// A scene in which offset 1 belongs to an open transaction and offset 2 is published.
async fn one_open(scene: &Scene) -> (PostgresStore, Subscription, Client) {
    let store = scene.open().await;
    let subscription = subscribed(&store).await;
    let open = scene.client().await;
    open.batch_execute(&scene.sql("BEGIN; SELECT {schema}.publish('orders', '1')")).await.unwrap();
    store.publish(&orders(), &[NewMessage::new("2")]).await.unwrap();
    (store, subscription, open)
}

/// Claims until a message is delivered, and returns its offset.
async fn next_offset(store: &PostgresStore, subscription: &Subscription) -> i64 {
    let until = Instant::now() + WAIT_MAX;
    loop {
        if let Some(lease) = store.claim(&request(subscription)).await.unwrap().leases.first() {
            return lease.range.first.0;
        }
        assert!(Instant::now() < until, "no message was delivered");
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_head_that_waits_since_the_future_steps_on() {
    let Some(scene) = Scene::new() else { return };
    let (store, subscription, open) = one_open(&scene).await;
    let stuck = "SELECT {schema}.advance(ARRAY(SELECT topic_id FROM {schema}.topic), 1000, 1000);
        UPDATE {schema}.head SET stuck_since = clock_timestamp() + interval '1 hour' WHERE stuck_at IS NOT NULL";
    scene.client().await.batch_execute(&scene.sql(stuck)).await.unwrap();
    assert_eq!(
        next_offset(&store, &subscription).await,
        2,
        "the head does not wait longer than gap_patience"
    );
    drop(open);
    scene.drop().await;
}

/// Hundreds of processes find at the same moment that the stored time is old. None waits for the one that stores it: a
/// heartbeat reads the clock first.
#[tokio::test]
async fn storing_the_time_waits_for_no_session() {
    let Some(scene) = Scene::new() else { return };
    let store = scene.open().await;
    let (other, client) = (scene.client().await, scene.client().await);
    let run = async |client: &Client, text: &str| client.batch_execute(&scene.sql(text)).await.unwrap();
    run(&client, "UPDATE {schema}.clock SET latest_at = NULL").await;
    run(&other, "BEGIN; SELECT FROM {schema}.clock FOR UPDATE").await;
    in_time("the check beside a lock", clock::check(&store, clock::On::Leases)).await.unwrap();
    let is_stored = "SELECT (latest_at IS NOT NULL)::int::int8 FROM {schema}.clock";
    assert_eq!(scene.number(&client, is_stored).await, 0);
    run(&other, "COMMIT").await;
    clock::check(&store, clock::On::Leases).await.unwrap();
    assert_eq!(scene.number(&client, is_stored).await, 1, "the next reading is stored");
    scene.drop().await;
}

#[tokio::test]
async fn a_gap_that_was_checked_in_the_future_is_watched() {
    let Some(scene) = Scene::new() else { return };
    let (store, subscription, open) = one_open(&scene).await;
    assert_eq!(next_offset(&store, &subscription).await, 2);
    let ahead = "UPDATE {schema}.gap SET noted_at = clock_timestamp() + interval '1 hour';
        UPDATE {schema}.head SET gaps_checked_at = clock_timestamp() + interval '1 hour',
                                 horizon_at = clock_timestamp() + interval '1 hour'";
    scene.client().await.batch_execute(&scene.sql(ahead)).await.unwrap();
    open.batch_execute("COMMIT").await.unwrap();
    assert_eq!(next_offset(&store, &subscription).await, 1, "the late message is delivered");
    scene.drop().await;
}

/// The server's clock continues while one process is suspended. The readings of other processes confirm it: nothing is moved.
#[tokio::test]
async fn a_process_that_was_suspended_moves_nothing() {
    let Some(scene) = Scene::new() else { return };
    let begun = Timestamp::now();
    let (sleeper, steady) = (ManualClock::at(begun), ManualClock::at(begun));
    let open = async |clock: &ManualClock| {
        let options = OpenOptions::default().clock(Clock::Manual(clock.clone()));
        PostgresStore::open(&scene.url, scene.namespace.clone(), options).await.unwrap()
    };
    let (asleep, awake) = (open(&sleeper).await, open(&steady).await);
    let heartbeat = async |store: &PostgresStore, owner: &str| {
        store.heartbeat(&Owner::new(owner).unwrap(), Some(Duration::from_secs(15)), &[]).await.unwrap().ended
    };
    let client = scene.client().await;
    let moved = async || -> i64 {
        client.query_one(&scene.sql("SELECT moved_ms FROM {schema}.clock"), &[]).await.unwrap().get(0)
    };
    heartbeat(&asleep, "asleep").await;
    for _ in 0..20 {
        heartbeat(&awake, "awake").await;
        steady.advance(Duration::from_secs(4));
    }
    // It wakes, and its own monotonic clock has not advanced.
    sleeper.set(steady.now());
    heartbeat(&asleep, "asleep").await;
    assert_eq!(moved().await, 0);
    // A step that all of them observe is real, and deadlines move once.
    for clock in [&sleeper, &steady] {
        clock.advance(Duration::from_secs(4));
        clock.set(clock.now() + SignedDuration::from_hours(1));
    }
    heartbeat(&awake, "awake").await;
    heartbeat(&asleep, "asleep").await;
    assert_eq!(moved().await, 3_600_000);
    scene.drop().await;
}
