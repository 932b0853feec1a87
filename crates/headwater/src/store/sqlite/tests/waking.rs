//! Wake-up across two stores on one file, and by other connections.

use std::time::Instant;

use super::*;
use crate::clock::ManualClock;
use crate::limits::SAFETY_POLL;

/// Waits for a wake-up with a deadline far below the safety poll.
async fn woken_by(store: &SqliteStore, topic_id: TopicId, act: impl AsyncFnOnce()) -> bool {
    let wake = store.arm(&[topic_id]).await.unwrap();
    // Lets the first check run, which finds everything that was committed before the wait.
    tokio::time::sleep(Duration::from_millis(20)).await;
    act().await;
    wake.wait(SAFETY_POLL / 2).await
}

#[tokio::test]
async fn a_publish_of_another_process_wakes_without_polling() {
    let place = Place::new();
    let (here, there) = (place.open().await, place.open().await);
    let subscription = subscribed(&here, "orders").await;
    let topic_id = subscription.topic.topic_id;
    let mut shortest = Duration::MAX;
    for _ in 0..5 {
        let begun = Instant::now();
        assert!(
            woken_by(&here, topic_id, async || drop(there.publish(&topic("orders"), &messages(1)).await))
                .await
        );
        shortest = shortest.min(begun.elapsed());
        assert_eq!(drain(&here, &subscription).await.len(), 1);
    }
    assert!(shortest < Duration::from_millis(500), "{shortest:?}");
    let own = place.connect();
    let sql = "INSERT INTO headwater_publish (topic, payload) VALUES ('orders', 'x')";
    assert!(woken_by(&here, topic_id, async || drop(own.execute(sql, []))).await, "by plain SQL");
}

#[tokio::test]
async fn work_given_back_by_another_process_wakes() {
    let place = Place::new();
    let (here, there) = (place.open().await, place.open().await);
    let subscription = subscribed(&here, "orders").await;
    there.publish(&topic("orders"), &messages(1)).await.unwrap();
    let lease = there.claim(&request(&subscription, 1)).await.unwrap().leases.remove(0);
    let back = Settlement::each(&lease, vec![(lease.range, Outcome::Release)]);
    let woken =
        woken_by(&here, subscription.topic.topic_id, async || drop(there.settle(&[back]).await)).await;
    assert!(woken);
}

#[tokio::test]
async fn claims_and_acks_wake_no_waiter() {
    let place = Place::new();
    let (here, there) = (place.open().await, place.open().await);
    let subscription = subscribed(&here, "orders").await;
    there.publish(&topic("orders"), &messages(50)).await.unwrap();
    let topic_id = subscription.topic.topic_id;
    // The first check after arming finds the publishes above; only the second waiter counts.
    woken_by(&here, topic_id, async || {}).await;
    let wake = here.arm(&[topic_id]).await.unwrap();
    for store in [&here, &there] {
        for _ in 0..10 {
            let lease = store.claim(&request(&subscription, 1)).await.unwrap().leases.remove(0);
            store.settle(&[Settlement::ack_all(&lease)]).await.unwrap().remove(0).unwrap();
        }
    }
    assert!(!wake.wait(Duration::from_millis(100)).await);
}

#[tokio::test]
async fn a_local_publish_wakes_at_once() {
    let place = Place::new();
    let store = place.open().await;
    let subscription = subscribed(&store, "orders").await;
    let wake = store.arm(&[subscription.topic.topic_id]).await.unwrap();
    store.publish(&topic("orders"), &messages(1)).await.unwrap();
    assert!(wake.wait(Duration::ZERO).await, "woken before the publish returned");
}

/// Notices of writes to the log, which only Linux provides.
#[cfg(target_os = "linux")]
mod notices {
    use super::*;
    use crate::store::sqlite::queue::{Queue, Taken};

    const PUBLISH: &str = "INSERT INTO headwater_publish (topic, payload) VALUES ('orders', 'x')";
    /// Well before the safety poll, and long enough for a stalling machine.
    const SOON: Duration = Duration::from_secs(SAFETY_POLL.as_secs() / 2);

    async fn open(place: &Place, watch: fn(&Connection, Arc<Watched>) -> Watch) -> SqliteStore {
        let path = SqlitePath::File(place.path());
        SqliteStore::open_watching(path, OpenOptions::default(), watch).await.unwrap()
    }

    /// Publishes on a connection of its own while a consumer waits. Returns how long it takes until the message is
    /// delivered.
    async fn waited(place: &Place, store: &SqliteStore, subscription: &Subscription) -> Duration {
        let own = place.connect();
        let topics = [subscription.topic.topic_id];
        let mut wake = store.arm(&topics).await.unwrap();
        assert!(drain(store, subscription).await.is_empty());
        let started = Instant::now();
        own.execute(PUBLISH, []).unwrap();
        // A wait may end early without a message: then it is repeated.
        loop {
            assert!(wake.wait(SOON).await, "the waiter was not woken in {SOON:?}");
            wake = store.arm(&topics).await.unwrap();
            if !drain(store, subscription).await.is_empty() {
                return started.elapsed();
            }
        }
    }

    #[tokio::test]
    async fn a_notice_alone_wakes() {
        let place = Place::new();
        let subscription = subscribed(&place.open().await, "orders").await;
        for _ in 0..5 {
            let store = open(&place, Watch::by_notice_only).await;
            let elapsed = waited(&place, &store, &subscription).await;
            assert!(elapsed < SOON, "{elapsed:?}");
            store.close().await.unwrap();
        }
    }

    #[tokio::test]
    async fn a_waiter_wakes_where_notices_do_not_come() {
        let place = Place::new();
        let store = open(&place, Watch::deaf).await;
        let subscription = subscribed(&store, "orders").await;
        for _ in 0..5 {
            let elapsed = waited(&place, &store, &subscription).await;
            assert!(elapsed < SOON, "{elapsed:?}");
        }
    }

    /// Does what the writer does until the condition holds; false if it never does.
    fn watch_until(
        watch: &mut Watch,
        connection: &Connection,
        hub: &Hub,
        so: impl Fn(&mut Watch) -> bool,
    ) -> bool {
        let commands = Queue::<()>::new(1);
        let until = Instant::now() + SOON;
        while Instant::now() < until {
            assert!(matches!(commands.take(1, watch.pause(hub)), Taken::Nothing));
            watch.check(connection, hub);
            if so(watch) {
                return true;
            }
        }
        false
    }

    #[tokio::test]
    async fn a_commit_without_a_notice_ends_the_trust_in_notices() {
        let place = Place::new();
        let topic_id = subscribed(&place.open().await, "orders").await.topic.topic_id;
        let (connection, other) = (place.connect(), place.connect());
        let (hub, watched) = (Arc::new(Hub::default()), Arc::new(Watched::default()));
        watched.add(&[topic_id]);
        let first = hub.arm(&[topic_id]);
        let mut watch = Watch::deaf(&connection, watched);
        assert!(watch_until(&mut watch, &connection, &hub, Watch::has_looked));
        assert!(watch.trusts_notices(), "nothing was committed since the first check");
        assert!(first.wait(Duration::ZERO).await, "the first check cannot know what is new");
        let second = hub.arm(&[topic_id]);
        other.execute(PUBLISH, []).unwrap();
        assert!(watch_until(&mut watch, &connection, &hub, |watch| !watch.trusts_notices()));
        assert!(second.wait(Duration::ZERO).await, "the commit that ended the trust has woken as well");
    }

    #[tokio::test]
    async fn a_commit_with_a_notice_keeps_the_trust() {
        let place = Place::new();
        let topic_id = subscribed(&place.open().await, "orders").await.topic.topic_id;
        // The log is beside the file, and not beside a link to it.
        let link = place.path().with_file_name("link.db");
        std::os::unix::fs::symlink(place.path(), &link).unwrap();
        let (connection, other) = (Connection::open(&link).unwrap(), place.connect());
        let version: i64 = connection.query_row("PRAGMA user_version", [], |row| row.get(0)).unwrap();
        assert!(version >= 0, "read once, so that the log exists");
        let (hub, watched) = (Arc::new(Hub::default()), Arc::new(Watched::default()));
        watched.add(&[topic_id]);
        let mut watch = Watch::by_notice_only(&connection, watched);
        for round in 0..3 {
            let wake = hub.arm(&[topic_id]);
            other.execute(PUBLISH, []).unwrap();
            assert!(watch.is_noticed(), "round {round}");
            assert!(watch_until(&mut watch, &connection, &hub, |watch| !watch.is_noticed()), "round {round}");
            assert!(wake.wait(Duration::ZERO).await, "round {round}");
            assert!(watch.trusts_notices(), "round {round}");
        }
    }

    #[tokio::test]
    async fn few_checks_follow_a_commit_of_this_process() {
        let place = Place::new();
        let topic_id = subscribed(&place.open().await, "orders").await.topic.topic_id;
        let (own, other) = (place.connect(), place.connect());
        let version: i64 = own.query_row("PRAGMA user_version", [], |row| row.get(0)).unwrap();
        assert!(version >= 0, "read once, so that the log exists");
        let (hub, watched) = (Arc::new(Hub::default()), Arc::new(Watched::default()));
        watched.add(&[topic_id]);
        let mut watch = Watch::by_notice_only(&own, watched);
        let _waiter = hub.arm(&[topic_id]);
        let since = Duration::from_millis(80);
        for _ in 0..2 {
            other.execute(PUBLISH, []).unwrap();
            assert!(watch.is_noticed());
            assert_eq!(watch.interval_after(since), since / 8);
            watch.committed(&hub);
            assert_eq!(watch.interval_after(since), since / 8, "this process wrote nothing");
            own.execute(PUBLISH, []).unwrap();
            watch.committed(&hub);
            assert_eq!(watch.interval_after(since), since);
        }
    }
}

/// Publishes a message and claims it for the group, in one commit of another process.
fn publish_and_take(other: &Connection, subscription: &Subscription) {
    other
        .execute_batch(&format!(
            "BEGIN IMMEDIATE;
             INSERT INTO headwater_publish (topic, payload) VALUES ('orders', 'taken');
             UPDATE headwater_cursor SET next_offset = next_offset + 1 WHERE subscription_id = {};
             COMMIT",
            subscription.subscription_id.0
        ))
        .unwrap();
}

#[tokio::test]
async fn one_that_lost_to_another_process_is_woken_only_by_what_is_left() {
    let place = Place::new();
    let store = place.open().await;
    let subscription = subscribed(&store, "orders").await;
    let other = place.connect();
    let probe = store.create_topic(&topic("probe"), &TopicSettings::pub_sub()).await.unwrap();
    let armed = async || {
        let _known = store.arm(&[subscription.topic.topic_id]).await.unwrap();
        // A check of the watcher that sees a change of one topic sees everything that was committed before. Its first
        // check of a topic wakes in any case.
        for _ in 0..2 {
            let checked = store.arm(&[probe.topic_id]).await.unwrap();
            other
                .execute_batch("INSERT INTO headwater_publish (topic, payload) VALUES ('probe', 'x')")
                .unwrap();
            assert!(checked.wait(SAFETY_POLL / 2).await);
        }
        let wake = store.arm(&[subscription.topic.topic_id]).await.unwrap();
        assert!(store.claim(&request(&subscription, 1)).await.unwrap().leases.is_empty());
        wake
    };
    let wake = armed().await;
    publish_and_take(&other, &subscription);
    assert!(wake.wait(SAFETY_POLL / 2).await, "it has no known rival");
    let wake = armed().await;
    let missed = tokio::spawn(wake.wait(Duration::from_millis(300)));
    publish_and_take(&other, &subscription);
    assert!(!missed.await.unwrap(), "nothing is left, and it does not claim");
    let wake = armed().await;
    other.execute_batch("INSERT INTO headwater_publish (topic, payload) VALUES ('orders', 'left')").unwrap();
    assert!(wake.wait(SAFETY_POLL / 2).await, "something is left");
    assert_eq!(drain(&store, &subscription).await, ["left"]);
    // It lost again, to an owner whose lease ends before the waiter would claim by itself: it must get that time.
    let wake = armed().await;
    publish_and_take(&other, &subscription);
    assert!(wake.wait(SAFETY_POLL / 2).await, "it won the last time");
    let wake = armed().await;
    let ends_at_ms = Timestamp::now().as_millisecond() + 1_000;
    let lease = format!(
        "INSERT INTO headwater_outstanding VALUES (900, 1, 1, {}, NULL, 'other', {ends_at_ms}, 1, 0, 0, NULL, NULL)",
        subscription.subscription_id.0
    );
    other.execute_batch(&lease).unwrap();
    publish_and_take(&other, &subscription);
    assert!(wake.wait(SAFETY_POLL / 2).await, "a lease of another owner ends soon");
}

/// The lease of the process that won may end before the waiter's next safety poll. Only a claim made now returns that
/// time.
#[tokio::test]
async fn one_that_lost_is_woken_if_the_lease_of_the_other_ends_before_the_safety_poll() {
    let place = Place::new();
    let clock = ManualClock::at(Timestamp::now());
    let there =
        open_at(&place.path(), OpenOptions::default().clock(Clock::Manual(clock.clone()))).await.unwrap();
    let subscription = subscribed(&there, "orders").await;
    there.publish(&topic("orders"), &messages(1)).await.unwrap();
    let mut wanted = request(&subscription, 1);
    wanted.wants[0].lease = Some(SAFETY_POLL);
    let lease = there.claim(&wanted).await.unwrap().leases.remove(0);
    let (rivals, topic_id) = (rivals::Rivals::default(), subscription.topic.topic_id);
    rivals.note(subscription.subscription_id, topic_id, 1, 1, false);
    let (connection, now_ms) = (place.connect(), clock.now().as_millisecond());
    let has_more = |now_ms| rivals.has_more(&connection, topic_id, 1, now_ms).unwrap();
    assert!(!has_more(now_ms - 1), "the waiter's own poll comes before the end of the lease");
    assert!(has_more(now_ms), "the lease ends with the safety poll");
    there.settle(&[Settlement::ack_all(&lease)]).await.unwrap().remove(0).unwrap();
    assert!(!has_more(now_ms), "nothing is left");
}
