//! Interleavings specific to PostgreSQL, each forced by a lock that the test holds or a snapshot it took before.

use std::future::Future;

use tokio_postgres::AsyncMessage;

use super::*;
use crate::Clock;
use crate::clock::ManualClock;
use crate::lease::GroupLimits;
use crate::topic::Ordering;

pub(super) const SOON: Duration = Duration::from_secs(20);

impl Scene {
    pub(super) async fn open_at(&self, clock: &ManualClock) -> PostgresStore {
        let options = OpenOptions::default().clock(Clock::Manual(clock.clone()));
        PostgresStore::open(&self.url, self.namespace.clone(), options).await.expect("the store opens")
    }
}

/// Waits until the condition is true, or panics.
pub(super) async fn until_true(what: &str, mut condition: impl AsyncFnMut() -> bool) {
    let until = Instant::now() + SOON;
    while !condition().await {
        assert!(Instant::now() < until, "never: {what}");
        tokio::task::yield_now().await;
    }
}

pub(super) async fn in_time<T>(what: &str, run: impl Future<Output = T>) -> T {
    tokio::time::timeout(SOON, run).await.unwrap_or_else(|_| panic!("timed out: {what}"))
}

pub(super) fn claim_of(subscription: &Subscription, owner: &str) -> ClaimRequest {
    ClaimRequest { owner: Owner::new(owner).unwrap(), ..request(subscription) }
}

/// A reader without a group reads what was published before it, though another process is advancing the head since before
/// that: it waits for it, and not for long.
#[tokio::test]
async fn a_message_published_before_is_read_though_the_head_is_being_advanced() {
    let Some(scene) = Scene::new() else { return };
    let store = scene.open().await;
    let topic = subscribed(&store).await.topic.topic_id;
    let advancing = scene.client().await;
    let begun = scene.sql("BEGIN; SELECT FROM {schema}.head FOR UPDATE");
    advancing.batch_execute(&begun).await.unwrap();
    store.publish(&orders(), &[NewMessage::new("a")]).await.unwrap();
    let held = in_time("the head of a locked row", store.head(topic)).await.unwrap().unwrap();
    assert_eq!((held.offset.0, held.pending), (0, true));

    let mut reading = std::pin::pin!(store.head(topic));
    // Until its first query is answered at the earliest: it waits for the lock from then on.
    let first = tokio::time::timeout(Duration::from_millis(20), &mut reading).await;
    assert!(first.is_err(), "nothing has moved the head: {first:?}");
    advancing.batch_execute("COMMIT").await.unwrap();
    let head = in_time("the head of a row that was freed", reading).await.unwrap().unwrap();
    assert_eq!((head.offset.0, head.pending), (1, false));
    scene.drop().await;
}

/// A heartbeat does not wait for settlements: it leaves a lease that is being settled, and a later heartbeat ends it.
#[tokio::test]
async fn a_lease_being_settled_is_left_to_its_settler() {
    let Some(scene) = Scene::new() else { return };
    let clock = ManualClock::at(jiff::Timestamp::now());
    let store = scene.open_at(&clock).await;
    let subscription = subscribed(&store).await;
    store.publish(&orders(), &["a", "b", "c", "d"].map(NewMessage::new)).await.unwrap();
    let (dies, lives) = (Owner::new("dies").unwrap(), Owner::new("lives").unwrap());
    let silent_for = Duration::from_secs(15);
    store.heartbeat(&dies, Some(silent_for), &[]).await.unwrap();
    let lease = store.claim(&claim_of(&subscription, "dies")).await.unwrap().leases.remove(0);
    // Two rows of one lease, of which the settlement has locked only the second.
    let middle = crate::store::OffsetRange::one(crate::Offset(2));
    let part = Settlement::each(&lease, vec![(middle, crate::store::Outcome::Ack)]);
    store.settle(&[part]).await.unwrap().remove(0).unwrap();
    let settler = scene.client().await;
    let begun = "BEGIN; SELECT FROM {schema}.outstanding WHERE first_offset = 3 FOR UPDATE";
    settler.batch_execute(&scene.sql(begun)).await.unwrap();
    clock.advance(silent_for + Duration::from_millis(1));
    for _ in 0..2 {
        let ended =
            in_time("a heartbeat beside a settlement", store.heartbeat(&lives, Some(silent_for), &[]))
                .await
                .unwrap()
                .ended;
        assert_eq!(ended, 0, "the lease is left whole");
    }
    let rest = scene.sql("DELETE FROM {schema}.outstanding WHERE first_offset = 3");
    settler.batch_execute(&rest).await.unwrap();
    settler.batch_execute("COMMIT").await.unwrap();
    assert_eq!(
        store.heartbeat(&lives, Some(silent_for), &[]).await.unwrap().ended,
        1,
        "the next heartbeat ends the rest of the lease"
    );
    let left = scene.sql("SELECT owner FROM {schema}.owner");
    let owners: Vec<String> = settler.query(&left, &[]).await.unwrap().iter().map(|row| row.get(0)).collect();
    assert_eq!(owners, ["lives"]);
    scene.drop().await;
}

/// No cursor passes a head that another session is moving: the gaps which that session finds are not visible yet.
#[tokio::test]
async fn a_claim_beside_a_held_head_hands_out_nothing_above_it_and_does_not_wait() {
    let Some(scene) = Scene::new() else { return };
    let store = scene.open().await;
    let subscription = subscribed(&store).await;
    let mover = scene.client().await;
    for message in ["a", "b"] {
        store.publish(&orders(), &[NewMessage::new(message)]).await.unwrap();
        mover.batch_execute(&scene.sql("BEGIN; SELECT FROM {schema}.head FOR UPDATE")).await.unwrap();
        let beside = in_time("a claim beside it", store.claim(&request(&subscription))).await.unwrap();
        assert_eq!(beside.leases, []);
        assert!(
            beside.recheck_after.is_some_and(|after| after < Duration::from_millis(10)),
            "it is repeated soon"
        );
        mover.batch_execute("COMMIT").await.unwrap();
        assert_eq!(store.claim(&request(&subscription)).await.unwrap().leases.len(), 1);
    }
    assert_eq!(store.doctor().await.unwrap(), []);
    scene.drop().await;
}

/// A claim of a group that starts above the head moves the head too: otherwise the head stays, and the group polls in vain.
#[tokio::test]
async fn a_claim_from_above_the_head_moves_it() {
    let Some(scene) = Scene::new() else { return };
    let store = scene.open().await;
    subscribed(&store).await;
    store.publish(&orders(), &vec![NewMessage::new("x"); 3]).await.unwrap();
    let start = crate::Start::Offset(crate::Offset(4));
    let above = store.subscribe(&orders(), &GroupName::new("above").unwrap(), start).await.unwrap();
    let client = scene.client().await;
    let head = "SELECT head FROM {schema}.head";
    assert_eq!(scene.number(&client, head).await, 0, "no claim has moved it");
    assert_eq!(store.claim(&request(&above)).await.unwrap().leases, []);
    assert_eq!(scene.number(&client, head).await, 3);
    assert_eq!(
        store.claim(&request(&above)).await.unwrap().recheck_after,
        None,
        "only a publish can bring a message"
    );
    scene.drop().await;
}

/// Two heartbeats at once, one of them of an owner that the other is about to remove: neither waits for ever.
#[tokio::test]
async fn a_heartbeat_of_an_owner_being_swept_waits_and_continues() {
    let Some(scene) = Scene::new() else { return };
    let clock = ManualClock::at(jiff::Timestamp::now());
    let store = Arc::new(scene.open_at(&clock).await);
    let (paused, lives) = (Owner::new("paused").unwrap(), Owner::new("lives").unwrap());
    let silent_for = Duration::from_secs(15);
    store.heartbeat(&paused, Some(silent_for), &[]).await.unwrap();
    clock.advance(silent_for * 2);
    let sweeper = scene.client().await;
    let swept = "BEGIN; DELETE FROM {schema}.owner WHERE owner = 'paused'";
    sweeper.batch_execute(&scene.sql(swept)).await.unwrap();
    let heartbeat = tokio::spawn({
        let store = Arc::clone(&store);
        async move { store.heartbeat(&paused, Some(silent_for), &[]).await }
    });
    // Others skip an owner that is being removed.
    assert_eq!(
        in_time("a heartbeat beside a removal", store.heartbeat(&lives, Some(silent_for), &[]))
            .await
            .unwrap()
            .ended,
        0
    );
    sweeper.batch_execute("COMMIT").await.unwrap();
    assert_eq!(in_time("the heartbeat of the removed owner", heartbeat).await.unwrap().unwrap().ended, 0);
    let count = scene.sql("SELECT count(*) FROM {schema}.owner");
    assert_eq!(sweeper.query_one(&count, &[]).await.unwrap().get::<_, i64>(0), 2);
    scene.drop().await;
}

/// A range that a claim of a lane found due may be settled or extended before the claim locks it: then it must not be
/// handed out.
#[tokio::test]
async fn what_is_settled_or_extended_between_read_and_lock_is_not_handed_out() {
    let Some(scene) = Scene::new() else { return };
    let clock = ManualClock::at(jiff::Timestamp::now());
    let holder = scene.open_at(&clock).await;
    let settings = TopicSettings {
        ordering: Ordering::Key,
        lanes: 1,
        lease: Duration::from_secs(10),
        ..TopicSettings::default()
    };
    holder.create_topic(&orders(), &settings).await.unwrap();
    let group = GroupName::new("a").unwrap();
    let subscription = holder.subscribe(&orders(), &group, Start::Beginning).await.unwrap();
    // Between finding due ranges and locking them, a claim waits while the test holds a lock.
    let pausing = "ALTER FUNCTION {schema}.lane_due RENAME TO lane_due_now;
        CREATE FUNCTION {schema}.lane_due(a integer, b integer, c timestamptz) RETURNS SETOF {schema}.outstanding
        LANGUAGE plpgsql AS $$
        BEGIN
            RETURN QUERY SELECT * FROM {schema}.lane_due_now(a, b, c);
            PERFORM pg_advisory_xact_lock_shared(hashtext('{name}'));
        END $$";
    let test = scene.client().await;
    test.batch_execute(&scene.sql(pausing)).await.unwrap();
    // By the claimer's clock the lease has expired; the holder's clock is a little behind.
    let later = ManualClock::at(clock.now() + Duration::from_secs(10));
    let claimer = Arc::new(scene.open_at(&later).await);
    for extends in [false, true] {
        holder.publish(&orders(), &[NewMessage::new("x").key("k")]).await.unwrap();
        let lease = holder.claim(&claim_of(&subscription, "holder")).await.unwrap().leases.remove(0);
        test.batch_execute(&scene.sql("SELECT pg_advisory_lock(hashtext('{name}'))")).await.unwrap();
        let claiming = tokio::spawn({
            let (claimer, request) = (Arc::clone(&claimer), claim_of(&subscription, "claimer"));
            async move { claimer.claim(&request).await }
        });
        let waits = scene.sql(
            "SELECT FROM pg_locks WHERE locktype = 'advisory' AND NOT granted
             AND objid::bigint = hashtext('{name}')::bigint & 4294967295",
        );
        until_true("the claim waits", async || !test.query(&waits, &[]).await.unwrap().is_empty()).await;
        if extends {
            holder.extend(&[lease.id()], Duration::from_secs(60)).await.unwrap().remove(0).unwrap();
        } else {
            holder.settle(&[Settlement::ack_all(&lease)]).await.unwrap().remove(0).unwrap();
        }
        test.batch_execute(&scene.sql("SELECT pg_advisory_unlock(hashtext('{name}'))")).await.unwrap();
        let claimed = claiming.await.unwrap().unwrap();
        assert_eq!(claimed.leases, [], "extended: {extends}");
        if extends {
            holder.settle(&[Settlement::ack_all(&lease)]).await.unwrap().remove(0).unwrap();
        }
    }
    let status = holder.subscriptions(&orders()).await.unwrap().remove(0);
    assert_eq!((status.reassigned, status.floor.0), (0, 2), "nothing expired, everything is done");
    scene.drop().await;
}

/// In a transaction with one snapshot, locks read later do not match the visible rows: a gap must not be closed because of
/// them.
#[tokio::test]
async fn maintenance_under_repeatable_read_closes_no_gap_too_early() {
    let Some(scene) = Scene::new() else { return };
    let store = scene.open().await;
    let settings = TopicSettings { gap_patience: Duration::ZERO, ..TopicSettings::pub_sub() };
    store.create_topic(&orders(), &settings).await.unwrap();
    let group = GroupName::new("a").unwrap();
    let subscription = store.subscribe(&orders(), &group, Start::Beginning).await.unwrap();
    let (open, maintenance) = (scene.client().await, scene.client().await);
    open.batch_execute(&scene.sql("BEGIN; SELECT {schema}.publish('orders', '1')")).await.unwrap();
    store.publish(&orders(), &[NewMessage::new("2")]).await.unwrap();
    let mut offsets = Vec::new();
    let mut claim_until = async |count: usize| {
        until_true("the messages come", async || {
            let leases = store.claim(&request(&subscription)).await.unwrap().leases;
            for lease in leases {
                let messages = store.fetch(lease.topic_id, lease.range).await.unwrap();
                offsets.extend(messages.iter().map(|message| message.offset.0));
            }
            offsets.len() >= count
        })
        .await;
        offsets.clone()
    };
    assert_eq!(claim_until(1).await, [2], "the first offset is a gap, and the cursor is past it");
    // Old enough that maintenance checks which transactions may still fill it.
    let aged = "UPDATE {schema}.gap SET noted_at = noted_at - interval '1 hour';
        UPDATE {schema}.head SET horizon_at = NULL, gaps_checked_at = NULL";
    maintenance.batch_execute(&scene.sql(aged)).await.unwrap();
    let begin = "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM {schema}.message";
    maintenance.batch_execute(&scene.sql(begin)).await.unwrap();
    open.batch_execute("COMMIT").await.unwrap();
    // No transaction publishes now, and this snapshot does not see what was committed a moment ago.
    let advance = "SELECT {schema}.advance(ARRAY(SELECT topic_id FROM {schema}.topic), 1000, 1000); COMMIT";
    maintenance.batch_execute(&scene.sql(advance)).await.unwrap();
    assert_eq!(claim_until(2).await, [2, 1], "the late message is delivered");
    scene.drop().await;
}

/// A publisher whose snapshot is older than the flag cannot see it, and notifies anyway.
#[tokio::test]
async fn a_publisher_under_repeatable_read_wakes_who_waits() {
    let Some(scene) = Scene::new() else { return };
    let store = scene.open().await;
    let topic_id = subscribed(&store).await.topic.topic_id;
    let (listener, mut connection) = tokio_postgres::connect(&scene.url, NoTls).await.unwrap();
    let (sender, mut notices) = tokio::sync::mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Some(Ok(message)) = std::future::poll_fn(|context| connection.poll_message(context)).await {
            if let AsyncMessage::Notification(notice) = message {
                sender.send(notice.payload().to_owned()).unwrap();
            }
        }
    });
    listener.batch_execute(&scene.sql("LISTEN \"headwater:{name}\"")).await.unwrap();
    let publisher = scene.client().await;
    let begin = "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM {schema}.waiter";
    publisher.batch_execute(&scene.sql(begin)).await.unwrap();
    let flag = format!("SELECT {{schema}}.raise_flag(ARRAY[{}], gen_random_uuid(), 60000)", topic_id.0);
    listener.batch_execute(&scene.sql(&flag)).await.unwrap();
    // In publish's own transaction: on a server that allows prepared transactions, one of the caller's would not notify.
    let publish =
        "SELECT {schema}.publish_batch('orders', ARRAY[gen_random_uuid()], ARRAY['x'::bytea], NULL, NULL,
        NULL, NULL, NULL, NULL, NULL, NULL, true); COMMIT";
    publisher.batch_execute(&scene.sql(publish)).await.unwrap();
    let heard = in_time("listening", notices.recv()).await.expect("the listener listens");
    assert_eq!(heard, topic_id.0.to_string());
    scene.drop().await;
}

/// Members of one group with limits and without, while leases expire and messages are buried: no deadlock.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn limited_and_unlimited_claims_never_deadlock() {
    let Some(scene) = Scene::new() else { return };
    let clock = ManualClock::at(jiff::Timestamp::now());
    let store = Arc::new(scene.open_at(&clock).await);
    let settings =
        TopicSettings { max_attempts: 1, lease: Duration::from_secs(1), ..TopicSettings::default() };
    store.create_topic(&orders(), &settings).await.unwrap();
    let group = GroupName::new("a").unwrap();
    let subscription = store.subscribe(&orders(), &group, Start::Beginning).await.unwrap();
    let want = |messages_max| Want::new(subscription.subscription_id, messages_max);
    for _ in 0..15 {
        store.publish(&orders(), &vec![NewMessage::new("x"); 40]).await.unwrap();
        let one = ClaimRequest { wants: vec![want(1)], ..claim_of(&subscription, "dies") };
        for _ in 0..30 {
            store.claim(&one).await.unwrap();
        }
        clock.advance(Duration::from_secs(1));
        let members = (0..8).map(|n| {
            let limits = GroupLimits { in_flight_max: (n % 2 == 0).then_some(1_000), rate: None };
            let wants = vec![Want { limits, ..want(3) }];
            let request = ClaimRequest { wants, ..claim_of(&subscription, &format!("member-{n}")) };
            let store = Arc::clone(&store);
            tokio::spawn(async move {
                for _ in 0..10 {
                    for lease in store.claim(&request).await.expect("no deadlock").leases {
                        store.settle(&[Settlement::ack_all(&lease)]).await.unwrap().remove(0).unwrap();
                    }
                }
            })
        });
        for member in members.collect::<Vec<_>>() {
            member.await.expect("the member claims");
        }
    }
    assert_eq!(store.doctor().await.unwrap(), []);
    scene.drop().await;
}

#[tokio::test]
async fn a_flag_that_is_lost_with_its_server_is_raised_again() {
    let Some(scene) = Scene::new() else { return };
    let store = scene.open().await;
    let topics = [subscribed(&store).await.topic.topic_id];
    let client = scene.client().await;
    let count = scene.sql("SELECT count(*) FROM {schema}.waiter WHERE until > clock_timestamp()");
    let raised = async || client.query_one(&count, &[]).await.unwrap().get::<_, i64>(0);
    store.arm(&topics).await.unwrap();
    assert_eq!(raised().await, 1);
    // Another server takes over: its unlogged tables are empty, and earlier connections are left.
    client.batch_execute(&scene.sql("DELETE FROM {schema}.waiter")).await.unwrap();
    store.connections.hosts().leave(Instant::now());
    let until = Instant::now() + SOON;
    while raised().await == 0 {
        assert!(Instant::now() < until, "the flag is not raised again");
        if let Ok(wake) = store.arm(&topics).await {
            wake.wait(Duration::from_secs(5)).await;
        }
    }
    scene.drop().await;
}
