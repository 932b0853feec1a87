//! What open publishers, rollbacks and many tables cost claims: the work is counted, not timed.

use std::collections::BTreeSet;

use super::races::until_true;
use super::*;

/// Messages the open transaction publishes.
const OPEN: i64 = 5_000;
const PUBLISH_MANY: &str = "SELECT {schema}.publish_batch('orders', ARRAY(SELECT gen_random_uuid() FROM generate_series(1, 5000)),
    ARRAY(SELECT ''::bytea FROM generate_series(1, 5000)), NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, false)";

/// A store with the topic `orders`, a group that has read nothing, and a `gap_patience` of zero.
async fn impatient(scene: &Scene) -> (PostgresStore, Subscription) {
    let store = scene.open().await;
    let settings = TopicSettings { gap_patience: Duration::ZERO, ..TopicSettings::pub_sub() };
    store.create_topic(&orders(), &settings).await.unwrap();
    let group = GroupName::new("a").unwrap();
    let subscription = store.subscribe(&orders(), &group, Start::Beginning).await.unwrap();
    (store, subscription)
}

impl Scene {
    /// Runs one statement of plain SQL.
    pub(super) async fn run(&self, client: &Client, statement: &str) {
        client.batch_execute(&self.sql(statement)).await.unwrap();
    }

    pub(super) async fn number(&self, client: &Client, query: &str) -> i64 {
        client.query_one(&self.sql(query), &[]).await.unwrap().get(0)
    }

    /// Entries of the log's index that one advance of all heads reads. Another transaction runs beside it, and ends after it.
    async fn visits(&self, client: &Client, beside: &Client) -> i64 {
        self.run(beside, "BEGIN; SELECT pg_current_xact_id()").await;
        let advance = "SELECT {schema}.advance(ARRAY(SELECT topic_id FROM {schema}.topic), 20000, 10000)";
        let visits = self.visits_of(client, advance).await;
        self.run(beside, "COMMIT").await;
        visits
    }

    /// Entries of the log's index that a statement reads.
    async fn visits_of(&self, client: &Client, statement: &str) -> i64 {
        self.run(client, "BEGIN").await;
        // The counter is not reset between transactions.
        let read = "SELECT pg_stat_get_xact_tuples_returned('{schema}.message_shared_pkey'::regclass)";
        let before = self.number(client, read).await;
        self.run(client, statement).await;
        let visits = self.number(client, read).await - before;
        self.run(client, "COMMIT").await;
        visits
    }
}

/// Claims and acks until `count` messages were delivered. Returns their offsets, and the number of claims.
async fn drain(store: &PostgresStore, subscription: &Subscription, count: usize) -> (Vec<i64>, usize) {
    let (mut offsets, mut claims) = (Vec::new(), 0);
    let want =
        ClaimRequest { wants: vec![Want::new(subscription.subscription_id, 1_000)], ..request(subscription) };
    until_true("the messages come", async || {
        let leases = store.claim(&want).await.unwrap().leases;
        claims += usize::from(!leases.is_empty());
        for lease in &leases {
            let messages = store.fetch(lease.topic_id, lease.range).await.unwrap();
            offsets.extend(messages.iter().map(|message| message.offset.0));
        }
        let acks: Vec<_> = leases.iter().map(Settlement::ack_all).collect();
        store.settle(&acks).await.unwrap();
        offsets.len() >= count
    })
    .await;
    (offsets, claims)
}

/// Publishes in an open transaction, then in others: the rows of the open transaction are searched a few times in all, not
/// at each claim, whatever other transactions come and go, and are delivered once when it commits.
async fn beside_an_open_transaction(publish: &str) {
    let Some(scene) = Scene::new() else { return };
    let (store, subscription) = impatient(&scene).await;
    let (open, client, beside) = (scene.client().await, scene.client().await, scene.client().await);
    scene.run(&open, "BEGIN").await;
    scene.run(&open, publish).await;
    // Nothing is visible above, and the open transaction continues to publish.
    let mut visits = 0;
    for _ in 0..20 {
        scene.run(&open, "SELECT {schema}.publish('orders', '1')").await;
        visits += scene.visits(&client, &beside).await;
    }
    assert!(visits < 8 * OPEN, "{visits} visits: the rows are searched each time");
    // Others publish above, so that the head moves each time.
    visits = 0;
    for _ in 0..20 {
        store.publish(&orders(), &[NewMessage::new("x")]).await.unwrap();
        scene.run(&open, "SELECT {schema}.publish('orders', '1')").await;
        visits += scene.visits(&client, &beside).await;
    }
    assert!(visits < 8 * OPEN, "{visits} visits: the gap is searched each time");
    let expected = usize::try_from(OPEN).unwrap() + 60;
    let (mut offsets, _) = drain(&store, &subscription, 20).await;
    assert_eq!(offsets.len(), 20, "uncommitted messages are not delivered");
    scene.run(&open, "COMMIT").await;
    offsets.extend(drain(&store, &subscription, expected - 20).await.0);
    let distinct: BTreeSet<_> = offsets.iter().collect();
    assert_eq!((offsets.len(), distinct.len()), (expected, expected), "each is delivered once");
    until_true("the gaps close", async || {
        store.advance_heads().await.unwrap();
        scene.number(&client, "SELECT count(*) FROM {schema}.gap").await == 0
    })
    .await;
    assert_eq!(store.doctor().await.unwrap(), []);
    scene.drop().await;
}

#[tokio::test]
async fn an_open_publisher_costs_claims_no_search_of_its_rows() {
    beside_an_open_transaction(PUBLISH_MANY).await;
}

#[tokio::test]
async fn savepoints_of_an_open_publisher_cost_claims_no_search_of_its_rows() {
    beside_an_open_transaction(
        "DO $$ BEGIN FOR i IN 1..5000 LOOP
            BEGIN PERFORM {schema}.publish('orders', '1'); EXCEPTION WHEN division_by_zero THEN NULL; END;
        END LOOP; END $$",
    )
    .await;
}

/// A claim above a gap searches nothing while no transaction has ended that may own a row in it, and hands out the row as soon as
/// one has.
#[tokio::test]
async fn a_gap_is_not_searched_before_an_owner_may_have_ended() {
    let Some(scene) = Scene::new() else { return };
    let (store, subscription) = impatient(&scene).await;
    let (open, client) = (scene.client().await, scene.client().await);
    scene.run(&open, "BEGIN; SELECT {schema}.publish('orders', '1')").await;
    store.publish(&orders(), &[NewMessage::new("2")]).await.unwrap();
    assert_eq!(drain(&store, &subscription, 1).await.0, [2]);
    let checked = "UPDATE {schema}.head SET gaps_checked_at = clock_timestamp() - interval '100 ms'";
    let age =
        "SELECT (extract(epoch FROM clock_timestamp() - gaps_checked_at) * 1000)::bigint FROM {schema}.head";
    let mut offset = 2;
    // A transaction of another test that is older than the gap causes a search when it ends, and so does half a second.
    until_true("a claim searches nothing", async || {
        offset += 1;
        scene.run(&client, checked).await;
        store.publish(&orders(), &[NewMessage::new("x")]).await.unwrap();
        assert_eq!(drain(&store, &subscription, 1).await.0, [offset]);
        scene.number(&client, age).await >= 100
    })
    .await;
    scene.run(&open, "COMMIT").await;
    scene.run(&client, checked).await;
    let leases = store.claim(&request(&subscription)).await.unwrap().leases;
    assert_eq!(leases.len(), 1, "the late message comes with the next claim");
    assert_eq!(leases[0].range.first.0, 1);
    scene.drop().await;
}

/// Groups that start at now beside a transaction with many messages: its rows are searched a few times in all, not for each
/// group, and each group gets all of them once it commits.
#[tokio::test]
async fn an_open_publisher_costs_starts_no_search_of_its_rows() {
    let Some(scene) = Scene::new() else { return };
    let (store, _) = impatient(&scene).await;
    let (open, client, beside) = (scene.client().await, scene.client().await, scene.client().await);
    scene.run(&open, &format!("BEGIN; {PUBLISH_MANY}")).await;
    for above in [false, true] {
        if above {
            store.publish(&orders(), &[NewMessage::new("x")]).await.unwrap();
        }
        let mut visits = 0;
        for round in 0..20 {
            scene.visits(&client, &beside).await;
            let name = format!("{above}{round}");
            let subscribe =
                format!("SELECT {{schema}}.subscribe('orders', '{name}', 'now', NULL, NULL, 60000, NULL)");
            visits += scene.visits_of(&client, &subscribe).await;
        }
        assert!(
            visits < 8 * OPEN,
            "a message above: {above}, {visits} visits: the rows are searched each time"
        );
    }
    scene.run(&open, "COMMIT").await;
    for (name, above) in [("false0", 1), ("false19", 1), ("true0", 0), ("true19", 0)] {
        let subscription =
            store.subscribe(&orders(), &GroupName::new(name).unwrap(), Start::Now).await.unwrap();
        let expected = usize::try_from(OPEN).unwrap() + above;
        let (offsets, _) = drain(&store, &subscription, expected).await;
        let distinct: BTreeSet<_> = offsets.iter().collect();
        assert_eq!((offsets.len(), distinct.len()), (expected, expected), "{name}: each is delivered once");
    }
    scene.drop().await;
}

/// Publishes `count` times one message that is rolled back and one that is committed.
async fn roll_back_every_other(scene: &Scene, client: &Client, count: usize) {
    let text = format!(
        "DO $$ BEGIN FOR i IN 1..{count} LOOP
            PERFORM {{schema}}.publish('orders', '1'); ROLLBACK; PERFORM {{schema}}.publish('orders', '1'); COMMIT;
        END LOOP; END $$"
    );
    scene.run(client, &text).await;
}

#[tokio::test]
async fn a_publisher_of_another_topic_keeps_no_gap_open() {
    let Some(scene) = Scene::new() else { return };
    let (store, subscription) = impatient(&scene).await;
    let other = TopicName::new("other").unwrap();
    store.create_topic(&other, &TopicSettings::pub_sub()).await.unwrap();
    let (open, client) = (scene.client().await, scene.client().await);
    scene.run(&open, "BEGIN; SELECT {schema}.publish('other', '1')").await;
    // Reading this topic's last offset locks its sequence too, but is not a publish.
    let reader = scene.client().await;
    scene
        .run(&reader, "BEGIN; SELECT pg_current_xact_id(), {schema}.last_taken(topic_id) FROM {schema}.topic")
        .await;
    roll_back_every_other(&scene, &client, 300).await;
    let (offsets, claims) = drain(&store, &subscription, 300).await;
    assert_eq!(offsets, (1..=300).map(|n| n * 2).collect::<Vec<_>>());
    assert!(claims < 20, "{claims} claims: ranges end at offsets that were rolled back");
    assert_eq!(scene.number(&client, "SELECT count(*) FROM {schema}.gap").await, 0, "no gap is recorded");
    for client in [&open, &reader] {
        scene.run(client, "COMMIT").await;
    }
    scene.drop().await;
}

#[tokio::test]
async fn a_claim_gives_several_ranges_between_gaps() {
    let Some(scene) = Scene::new() else { return };
    let (store, subscription) = impatient(&scene).await;
    let (open, client) = (scene.client().await, scene.client().await);
    scene.run(&open, "BEGIN; SELECT {schema}.publish('orders', '1')").await;
    roll_back_every_other(&scene, &client, 60).await;
    let (offsets, claims) = drain(&store, &subscription, 60).await;
    assert_eq!(offsets, (1..=60).map(|n| n * 2 + 1).collect::<Vec<_>>());
    assert!(claims <= 5, "{claims} claims for 60 messages");
    assert!(scene.number(&client, "SELECT count(*) FROM {schema}.gap").await > 1, "the gaps are still open");
    scene.run(&open, "COMMIT").await;
    assert_eq!(drain(&store, &subscription, 1).await.0, [1], "it is in no range that was handed out before");
    scene.drop().await;
}

#[tokio::test]
async fn no_batch_notes_more_gaps_than_may_be() {
    let Some(scene) = Scene::new() else { return };
    impatient(&scene).await;
    let (open, client) = (scene.client().await, scene.client().await);
    scene.run(&open, "BEGIN; SELECT {schema}.publish('orders', '1')").await;
    roll_back_every_other(&scene, &client, 50).await;
    for _ in 0..5 {
        scene
            .run(&client, "SELECT {schema}.advance(ARRAY(SELECT topic_id FROM {schema}.topic), 20000, 10)")
            .await;
    }
    let gaps = scene.number(&client, "SELECT count(*) FROM {schema}.gap").await;
    let head = scene.number(&client, "SELECT head FROM {schema}.head").await;
    // The first gap is offsets 1 and 2, the tenth is 20, and 21 is committed.
    assert_eq!((gaps, head), (10, 21));
    scene.run(&open, "ROLLBACK").await;
    scene.drop().await;
}

/// A snapshot of another cluster, or of a lost timeline, does not show which transactions run now.
#[tokio::test]
async fn a_snapshot_from_the_future_hides_no_late_message() {
    let Some(scene) = Scene::new() else { return };
    let (store, subscription) = impatient(&scene).await;
    let (open, client) = (scene.client().await, scene.client().await);
    scene.run(&open, "BEGIN; SELECT {schema}.publish('orders', '1')").await;
    store.publish(&orders(), &[NewMessage::new("2")]).await.unwrap();
    assert_eq!(drain(&store, &subscription, 1).await.0, [2]);
    let restored = "UPDATE {schema}.head SET gaps_seen = '900000000000:900000000009:900000000000', gaps_checked_at = NULL,
        horizon_at = clock_timestamp()";
    scene.run(&client, restored).await;
    scene.run(&open, "COMMIT").await;
    // At once, before the check of locks, which would find it eventually.
    let late = "SELECT late FROM {schema}.advance(ARRAY(SELECT topic_id FROM {schema}.topic), 1000, 1000)";
    assert_eq!(scene.number(&client, late).await, 1);
    assert_eq!(drain(&store, &subscription, 1).await.0, [1]);
    scene.drop().await;
}

/// A transaction that advances a head sees its own rows before it ends. Its later message must not be shown without its
/// earlier one.
#[tokio::test]
async fn a_transaction_that_advances_hands_out_its_own_rows() {
    let Some(scene) = Scene::new() else { return };
    let (store, subscription) = impatient(&scene).await;
    let (open, client) = (scene.client().await, scene.client().await);
    scene.run(&open, "BEGIN; SELECT {schema}.publish('orders', '1')").await;
    store.publish(&orders(), &[NewMessage::new("2")]).await.unwrap();
    assert_eq!(drain(&store, &subscription, 1).await.0, [2]);
    let advance = "SELECT {schema}.advance(ARRAY(SELECT topic_id FROM {schema}.topic), 1000, 1000)";
    // Searched once more, so that the gap is recorded as unchanged.
    scene.run(&client, advance).await;
    scene.run(&open, "SELECT {schema}.publish('orders', '1')").await;
    scene.run(&open, advance).await;
    scene.run(&open, "COMMIT").await;
    let left = "SELECT count(*) FROM {schema}.gap g JOIN {schema}.message m ON m.message_offset BETWEEN g.first_offset AND g.last_offset";
    assert_eq!(
        scene.number(&client, left).await,
        0,
        "the head shows the later message, and the earlier is in a gap"
    );
    assert_eq!(drain(&store, &subscription, 2).await.0, [1, 3]);
    scene.drop().await;
}

/// Logical replication does not copy sequences: offsets at or below the head would never be delivered.
#[tokio::test]
async fn a_sequence_behind_the_head_is_raised_before_it_gives_an_offset() {
    let Some(scene) = Scene::new() else { return };
    let (store, subscription) = impatient(&scene).await;
    store.publish(&orders(), &vec![NewMessage::new("x"); 10]).await.unwrap();
    assert_eq!(drain(&store, &subscription, 10).await.0.len(), 10);
    let client = scene.client().await;
    let behind = "DELETE FROM {schema}.message; SELECT setval(offsets, 1, false) FROM {schema}.topic";
    scene.run(&client, behind).await;
    let offset = scene.number(&client, "SELECT {schema}.publish('orders', '1')").await;
    assert!(offset > 10, "{offset} was used already");
    assert_eq!(drain(&store, &subscription, 1).await.0, [offset]);
    // Claims and maintenance notice it too.
    scene.run(&client, behind).await;
    store.advance_heads().await.unwrap();
    let taken = scene.number(&client, "SELECT {schema}.last_taken(topic_id) FROM {schema}.topic").await;
    assert!(taken >= offset, "{taken}");
    scene.drop().await;
}

/// A late row is handed out after a claim has found no late row for its lane, and before the claim takes new offsets: the
/// claim must take none. A later message of the row's key would overtake it.
#[tokio::test]
async fn an_ordered_claim_takes_nothing_new_beside_what_came_late_meanwhile() {
    let Some(scene) = Scene::new() else { return };
    let store = Arc::new(scene.open().await);
    let ordering = crate::topic::Ordering::Key;
    let settings =
        TopicSettings { gap_patience: Duration::ZERO, ordering, lanes: 1, ..TopicSettings::pub_sub() };
    store.create_topic(&orders(), &settings).await.unwrap();
    let subscription =
        store.subscribe(&orders(), &GroupName::new("a").unwrap(), Start::Beginning).await.unwrap();
    let (open, other, mover) = (scene.client().await, scene.client().await, scene.client().await);
    let publish = |key: &str| format!("SELECT {{schema}}.publish('orders', '1'::jsonb, key => '{key}')");
    scene.run(&open, "BEGIN").await;
    scene.run(&open, &publish("k")).await;
    scene.run(&other, &publish("x")).await;
    scene.run(&other, &publish("x")).await;
    let first = drain_one(&store, &subscription).await;
    assert_eq!(first.range.last.0, 2);
    scene.run(&open, &publish("k")).await;
    // The claim blocks before it takes anything, at a lock that the test holds.
    let aside = format!("{}_aside", scene.namespace.as_str());
    let stopping = "CREATE SCHEMA {aside}; ALTER FUNCTION {schema}.take_next SET SCHEMA {aside};
        CREATE FUNCTION {schema}.take_next(p_topic_id integer, p_subscription_id integer, p_lane integer, p_next bigint, p_max bigint,
            p_due_from timestamptz, OUT first_offset bigint, OUT last_offset bigint, OUT skipped boolean, OUT more boolean)
        LANGUAGE plpgsql AS $$ BEGIN
            LOCK TABLE {schema}.stop IN SHARE MODE;
            SELECT n.* INTO first_offset, last_offset, skipped, more
            FROM {aside}.take_next(p_topic_id, p_subscription_id, p_lane, p_next, p_max, p_due_from) n;
        END $$;
        CREATE TABLE {schema}.stop ();";
    scene.run(&other, &stopping.replace("{aside}", &aside)).await;
    scene.run(&other, "BEGIN; LOCK TABLE {schema}.stop IN ACCESS EXCLUSIVE MODE").await;
    // Another session is moving the head when the claim begins.
    scene.run(&mover, "BEGIN; SELECT FROM {schema}.head FOR UPDATE").await;
    let claiming = tokio::spawn({
        let (store, request) = (Arc::clone(&store), request(&subscription));
        async move { store.claim(&request).await }
    });
    let waits = "SELECT count(*) FROM pg_locks WHERE relation = '{schema}.stop'::regclass AND NOT granted";
    until_true("the claim waits", async || scene.number(&other, waits).await == 1).await;
    scene.run(&open, "COMMIT").await;
    scene
        .run(
            &mover,
            "COMMIT; SELECT {schema}.advance(ARRAY(SELECT topic_id FROM {schema}.topic), 20000, 10000)",
        )
        .await;
    assert_eq!(scene.number(&open, "SELECT head FROM {schema}.head").await, 4);
    scene.run(&other, "COMMIT").await;
    let claimed = claiming.await.unwrap().unwrap();
    assert_eq!(claimed.leases, [], "offset 1, of the key of 4, waits");
    assert!(claimed.recheck_after.is_some(), "it is repeated soon");
    for offsets in [(1, 1), (3, 4)] {
        let lease = store.claim(&request(&subscription)).await.unwrap().leases.remove(0);
        assert_eq!((lease.range.first.0, lease.range.last.0), offsets);
        store.settle(&[Settlement::ack_all(&lease)]).await.unwrap().remove(0).unwrap();
    }
    scene.run(&other, &format!("DROP SCHEMA {aside} CASCADE")).await;
    scene.drop().await;
}

/// A transaction commits while a group starts at now, with one row below the last visible one and one above: the group gets
/// both.
#[tokio::test]
async fn a_transaction_that_commits_during_a_start_at_now_is_there_whole() {
    let Some(scene) = Scene::new() else { return };
    let store = Arc::new(scene.open().await);
    store.create_topic(&orders(), &TopicSettings::pub_sub()).await.unwrap();
    let (open, other) = (scene.client().await, scene.client().await);
    let publish = "SELECT {schema}.publish('orders', '1'::jsonb)";
    scene.run(&open, &format!("BEGIN; {publish}")).await;
    scene.run(&other, publish).await;
    scene.run(&open, publish).await;
    // The start blocks where it records missing offsets, while the test holds a lock.
    let stopping = "CREATE TABLE {schema}.stop ();
        CREATE FUNCTION {schema}.wait_here() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
            LOCK TABLE {schema}.stop IN SHARE MODE; RETURN NULL;
        END $$;
        CREATE TRIGGER wait_here BEFORE INSERT ON {schema}.gap EXECUTE FUNCTION {schema}.wait_here()";
    scene.run(&other, stopping).await;
    scene.run(&other, "BEGIN; LOCK TABLE {schema}.stop IN ACCESS EXCLUSIVE MODE").await;
    let starting = tokio::spawn({
        let store = Arc::clone(&store);
        async move { store.subscribe(&orders(), &GroupName::new("now").unwrap(), Start::Now).await }
    });
    let waits = "SELECT count(*) FROM pg_locks WHERE relation = '{schema}.stop'::regclass AND NOT granted";
    until_true("the start waits", async || scene.number(&other, waits).await == 1).await;
    scene.run(&open, "COMMIT").await;
    scene.run(&other, "COMMIT").await;
    let subscription = starting.await.unwrap().unwrap();
    for offset in [1, 3] {
        let lease = drain_one(&store, &subscription).await;
        assert_eq!((lease.range.first.0, lease.range.last.0), (offset, offset));
    }
    assert_eq!(store.claim(&request(&subscription)).await.unwrap().leases, []);
    scene.drop().await;
}

/// Claims one message, as soon as there is one, and acks it.
async fn drain_one(store: &PostgresStore, subscription: &Subscription) -> crate::store::Lease {
    let want =
        ClaimRequest { wants: vec![Want::new(subscription.subscription_id, 1)], ..request(subscription) };
    let mut lease = None;
    until_true("a message comes", async || {
        lease = store.claim(&want).await.unwrap().leases.pop();
        lease.is_some()
    })
    .await;
    let lease = lease.unwrap();
    store.settle(&[Settlement::ack_all(&lease)]).await.unwrap().remove(0).unwrap();
    lease
}
