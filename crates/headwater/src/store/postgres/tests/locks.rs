//! Which locks claims take: none that a role without rights could hold to block them, and no row lock if there is nothing
//! to claim. And in which order operators take theirs.

use super::leases::until_waited_for;
use super::lives::{until_a_session_waits, until_sessions_wait};
use super::races::{claim_of, in_time};
use super::*;
use crate::clock::ManualClock;
use crate::lease::{GroupLimits, RateLimit};
use crate::store::Served;
use crate::subscription::Activity;
use crate::topic::Ordering;

/// A claim as a statement of its own connection: 10 messages at most.
fn claim_sql(scene: &Scene, subscription: &Subscription, limits: &str) -> String {
    scene.sql(&format!(
        "SELECT * FROM {{schema}}.claim('tester', ARRAY[{}], ARRAY[10], ARRAY[60000::bigint], {limits}, false, 1000, 20000, 10000, 1000, NULL)",
        subscription.subscription_id.0
    ))
}

/// Every advisory lock whose key can be derived from public names, and every one that is seen in use.
#[tokio::test]
async fn a_role_without_rights_stops_no_claim_and_no_migration() {
    let Some(scene) = Scene::new() else { return };
    let store = scene.open().await;
    let subscription = subscribed(&store).await;
    let stranger = scene.client().await;
    stranger
        .batch_execute(&scene.sql("CREATE ROLE {name}_stranger; SET ROLE {name}_stranger"))
        .await
        .unwrap();
    let claims =
        "SELECT pg_advisory_lock(hashtext('headwater claims {name}'), n) FROM generate_series(0, 63) n";
    stranger.batch_execute(&scene.sql(claims)).await.unwrap();
    let migrate_key = xxhash_rust::xxh3::xxh3_64(format!("headwater migrate {}", scene.namespace).as_bytes());
    stranger.execute("SELECT pg_advisory_lock($1)", &[&migrate_key.cast_signed()]).await.unwrap();

    store.publish(&orders(), &["a", "b", "c"].map(NewMessage::new)).await.unwrap();
    let claimed = in_time("a claim", store.claim(&request(&subscription))).await.unwrap();
    assert_eq!(claimed.leases.len(), 1);
    let group = GroupName::new("a").unwrap();
    in_time("a pause", store.pause(&orders(), &group, None)).await.unwrap();
    let done = in_time("a migration", migrate(&scene.url, &scene.namespace, &OpenOptions::default())).await;
    assert_eq!(done.unwrap().to, newest());

    // Consumers, producers and readers may not take the lock that excludes claims either.
    for role in ["stranger", "producer", "consumer", "reader"] {
        for mode in ["ROW SHARE", "EXCLUSIVE", "ACCESS EXCLUSIVE"] {
            stranger
                .batch_execute(&scene.sql(&format!("RESET ROLE; SET ROLE {{name}}_{role}")))
                .await
                .unwrap();
            let lock = scene.sql(&format!("LOCK TABLE {{schema}}.claims_0 IN {mode} MODE"));
            let refused = stranger.batch_execute(&format!("BEGIN; {lock}")).await.unwrap_err();
            let code = refused.code().map(tokio_postgres::error::SqlState::code);
            assert_eq!(code, Some("42501"), "{role}, {mode}: {refused}");
            stranger.batch_execute("ROLLBACK").await.unwrap();
        }
    }
    stranger.batch_execute(&scene.sql("RESET ROLE; DROP ROLE {name}_stranger")).await.unwrap();
    scene.drop().await;
}

/// Without an xid nothing is written, and no commit waits for the disk. Ten thousand idle groups must not use up xids.
#[tokio::test]
async fn a_claim_that_finds_nothing_gets_no_xid() {
    let Some(scene) = Scene::new() else { return };
    let store = scene.open().await;
    let ordered = TopicSettings { ordering: Ordering::Key, lanes: 8, ..TopicSettings::pub_sub() };
    for (name, settings) in [("plain", TopicSettings::pub_sub()), ("ordered", ordered)] {
        let topic = TopicName::new(name).unwrap();
        store.create_topic(&topic, &settings).await.unwrap();
        let group = GroupName::new("a").unwrap();
        let subscription = store.subscribe(&topic, &group, Start::Beginning).await.unwrap();
        store.publish(&topic, &["a", "b", "c"].map(|text| NewMessage::new(text).key(text))).await.unwrap();
        // With limits and without; the first claim may still move the head.
        let limits = GroupLimits { in_flight_max: Some(100), rate: None };
        for _ in 0..20 {
            let mut request = claim_of(&subscription, "tester");
            request.wants[0].limits = limits;
            for lease in store.claim(&request).await.unwrap().leases {
                store.settle(&[Settlement::ack_all(&lease)]).await.unwrap().remove(0).unwrap();
            }
        }
        let client = scene.client().await;
        for limits in ["NULL, NULL, NULL", "ARRAY[100::bigint], ARRAY[NULL::float8], ARRAY[NULL::bigint]"] {
            let claim = claim_sql(&scene, &subscription, limits);
            client.batch_execute(&claim).await.unwrap();
            client.batch_execute("BEGIN").await.unwrap();
            client.batch_execute(&claim).await.unwrap();
            let xid = "SELECT pg_current_xact_id_if_assigned()::text";
            let xid: Option<String> = client.query_one(xid, &[]).await.unwrap().get(0);
            assert_eq!(xid, None, "{name}, {limits}");
            client.batch_execute("ROLLBACK").await.unwrap();
        }
    }
    scene.drop().await;
}

/// A claim locks lanes one after the other, in the order of locks. Here the rows are stored in another order, and the plan
/// finds them in that order.
#[tokio::test]
async fn a_pause_that_waits_for_a_lane_holds_no_later_lane() {
    let Some(scene) = Scene::new() else { return };
    let settings = TopicSettings { ordering: Ordering::Key, lanes: 2, ..TopicSettings::pub_sub() };
    let store = scene.open().await;
    store.create_topic(&orders(), &settings).await.unwrap();
    let group = GroupName::new("a").unwrap();
    store.subscribe(&orders(), &group, Start::Beginning).await.unwrap();
    let claim = scene.client().await;
    // A version of lane 0 behind that of lane 1.
    claim.batch_execute(&scene.sql("UPDATE {schema}.cursor SET moves = moves WHERE lane = 0")).await.unwrap();
    let by_place =
        format!("{}?options=-c%20enable_indexscan%3Doff%20-c%20enable_bitmapscan%3Doff", scene.url);
    let store =
        PostgresStore::open(&by_place, scene.namespace.clone(), OpenOptions::default()).await.unwrap();
    claim
        .batch_execute(&scene.sql("BEGIN; SELECT FROM {schema}.cursor WHERE lane = 0 FOR UPDATE"))
        .await
        .unwrap();
    let pausing = tokio::spawn(async move { store.pause(&orders(), &group, None).await });
    until_a_session_waits(&scene).await;
    let next = scene.sql("SELECT FROM {schema}.cursor WHERE lane = 1 FOR UPDATE NOWAIT");
    claim.batch_execute(&next).await.expect("the next lane is free");
    claim.batch_execute("COMMIT").await.unwrap();
    in_time("the pause", pausing).await.unwrap().unwrap();
    scene.drop().await;
}

/// Two silent groups, the first of the second topic: the order of topics is not that of subscriptions. The detector runs
/// beside a session that locks the first group and then the other, and one that has a head and then counts an expiry in a
/// subscription.
#[tokio::test]
async fn a_detector_that_waits_holds_nothing_later_in_the_order_of_locks() {
    // $1 and $2 are the subscriptions, $3 and $4 the topics, each in its order.
    for (held, next) in [
        (
            "{schema}.subscription WHERE subscription_id = $1 FOR UPDATE",
            "{schema}.subscription WHERE subscription_id = $2",
        ),
        ("{schema}.head WHERE topic_id = $3 FOR UPDATE", "{schema}.head WHERE topic_id = $4"),
        ("{schema}.head WHERE topic_id = $3 FOR UPDATE", "{schema}.subscription WHERE subscription_id = $1"),
    ] {
        let Some(scene) = Scene::new() else { return };
        let clock = ManualClock::at(jiff::Timestamp::now());
        let store = Arc::new(scene.open_at(&clock).await);
        let timeout = Duration::from_secs(60);
        let settings = TopicSettings {
            heartbeat_interval: timeout / 4,
            heartbeat_timeout: timeout,
            ..TopicSettings::pub_sub()
        };
        let [one, two] = ["one", "two"].map(|name| TopicName::new(name).unwrap());
        for topic in [&one, &two] {
            store.create_topic(topic, &settings).await.unwrap();
        }
        let group = GroupName::new("a").unwrap();
        let first = store.subscribe(&two, &group, Start::Beginning).await.unwrap();
        let second = store.subscribe(&one, &group, Start::Beginning).await.unwrap();
        let served = [&first, &second].map(|subscription| Served::new(subscription.subscription_id));
        store.heartbeat(&Owner::new("dying").unwrap(), None, &served).await.unwrap();
        assert_eq!(store.detect_dead().await.unwrap().died, []);
        clock.advance(timeout + Duration::from_secs(1));
        let ids = [
            first.subscription_id.0,
            second.subscription_id.0,
            second.topic.topic_id.0,
            first.topic.topic_id.0,
        ];
        let sql = |text: &str| {
            let text = scene.sql(&format!("SELECT FROM {text}"));
            (1..=4).fold(text, |text, n| text.replace(&format!("${n}"), &ids[n - 1].to_string()))
        };
        let other = scene.client().await;
        other.batch_execute("BEGIN").await.unwrap();
        other.batch_execute(&sql(held)).await.unwrap();
        let detecting = tokio::spawn({
            let store = Arc::clone(&store);
            async move { store.detect_dead().await }
        });
        until_a_session_waits(&scene).await;
        let free = other.batch_execute(&sql(&format!("{next} FOR UPDATE NOWAIT"))).await;
        assert!(free.is_ok(), "waits for {held}, and holds {next}: {free:?}");
        other.batch_execute("COMMIT").await.unwrap();
        let died = in_time("the detector", detecting).await.unwrap().unwrap().died;
        assert_eq!(died.len(), 2, "{died:?}");
        scene.drop().await;
    }
}

/// A running claim may wait for a head, also with SKIP LOCKED: see functions/locks.sql. So no operator that holds the head
/// waits for the claim.
#[tokio::test]
async fn an_operator_that_waits_for_claims_holds_no_head() {
    let group = "'orders', 'a'";
    for (state, operation) in [
        ("active", format!("seek({group}, 'now', NULL, NULL, false, 'tester', NULL)")),
        (
            "active",
            format!("set_state({group}, 'cancel', ARRAY['active'], 'cancelled', 'tester', NULL, NULL)"),
        ),
        ("active", "detect_dead(clock_timestamp() + interval '1 hour')".to_owned()),
        ("dead", format!("resurrect({group}, NULL, 'tester', NULL)")),
        ("dead", "force_complete('orders', 0, false, 'tester', NULL)".to_owned()),
        ("dead", "move_zombie(1, 1)".to_owned()),
        ("dead", "delete_subscription(1, 1)".to_owned()),
    ] {
        let Some(scene) = Scene::new() else { return };
        let store = scene.open().await;
        subscribed(&store).await;
        let claim = scene.client().await;
        let silent = format!(
            "UPDATE {{schema}}.subscription SET state = '{state}', heartbeat_at = clock_timestamp();
             INSERT INTO {{schema}}.job (job, last_run_at) VALUES ('dead_detection', clock_timestamp() + interval '1 hour')"
        );
        claim.batch_execute(&scene.sql(&silent)).await.unwrap();
        let under_way = "BEGIN; LOCK TABLE {schema}.claims_1 IN ROW SHARE MODE";
        claim.batch_execute(&scene.sql(under_way)).await.unwrap();
        let operator = scene.client().await;
        let statement = scene.sql(&format!("SELECT {{schema}}.{operation}"));
        let operating = tokio::spawn(async move { operator.batch_execute(&statement).await });
        until_a_session_waits(&scene).await;
        let head = claim.batch_execute(&scene.sql("SELECT FROM {schema}.head FOR UPDATE NOWAIT")).await;
        assert!(head.is_ok(), "{operation} waits for claims, and holds the head: {head:?}");
        claim.batch_execute("COMMIT").await.unwrap();
        in_time("the operator", operating).await.unwrap().unwrap();
        scene.drop().await;
    }
}

/// The counts of owners that leave are added to one row, which two owners that leave at once may both try to insert.
#[tokio::test]
async fn an_owner_that_leaves_and_waits_for_the_sums_holds_no_activity() {
    let Some(scene) = Scene::new() else { return };
    let store = Arc::new(scene.open().await);
    let subscription = subscribed(&store).await;
    let leaving = Owner::new("leaving").unwrap();
    let served = Served {
        subscription_id: subscription.subscription_id,
        activity: Activity { processed: 7, ..Activity::default() },
    };
    store.heartbeat(&leaving, None, &[served]).await.unwrap();
    let other = scene.client().await;
    let sums = "BEGIN; INSERT INTO {schema}.activity VALUES (1, '', 1, 0, 0, 0, 0, 0, false, '-infinity')";
    other.batch_execute(&scene.sql(sums)).await.unwrap();
    let departing = tokio::spawn({
        let store = Arc::clone(&store);
        async move { store.depart(&leaving).await }
    });
    until_a_session_waits(&scene).await;
    let free = "SELECT FROM {schema}.activity WHERE owner = 'leaving' FOR UPDATE NOWAIT";
    other.batch_execute(&scene.sql(free)).await.expect("the activity row of the leaving owner is free");
    other.batch_execute("COMMIT").await.unwrap();
    in_time("the departure", departing).await.unwrap().unwrap();
    let done = other.query_one(&scene.sql("SELECT processed FROM {schema}.activity"), &[]).await.unwrap();
    assert_eq!(done.get::<_, i64>(0), 8);
    scene.drop().await;
}

/// Another process ends an owner that is silent, and removes its row, while the owner departs.
#[tokio::test]
async fn an_owner_that_leaves_while_it_is_ended_leaves_its_counts() {
    let Some(scene) = Scene::new() else { return };
    let store = Arc::new(scene.open().await);
    let subscription = subscribed(&store).await;
    let leaving = Owner::new("leaving").unwrap();
    let activity = Activity { processed: 7, ..Activity::default() };
    let served = Served { subscription_id: subscription.subscription_id, activity };
    store.heartbeat(&leaving, None, &[served]).await.unwrap();
    let other = scene.client().await;
    other.batch_execute(&scene.sql("BEGIN; SELECT FROM {schema}.owner FOR UPDATE")).await.unwrap();
    let departing = tokio::spawn({
        let store = Arc::clone(&store);
        async move { store.depart(&leaving).await }
    });
    until_a_session_waits(&scene).await;
    other.batch_execute(&scene.sql("DELETE FROM {schema}.owner; COMMIT")).await.unwrap();
    in_time("the departure", departing).await.unwrap().unwrap();
    let left = "SELECT owner, processed FROM {schema}.activity UNION ALL SELECT owner, 0 FROM {schema}.owner";
    let left = other.query(&scene.sql(left), &[]).await.unwrap();
    let left: Vec<(&str, i64)> = left.iter().map(|row| (row.get(0), row.get(1))).collect();
    assert_eq!(left, [("", 7)]);
    scene.drop().await;
}

/// The row of an owner that was removed as silent is gone, and its rows in "activity" stay. Two sessions that write these exclude
/// each other by the owner's row all the same, whatever the order of the subscriptions they name.
#[tokio::test]
async fn sessions_of_an_owner_without_a_row_exclude_each_other() {
    let heartbeat = |ids: &str, done: i64| {
        format!(
            "SELECT FROM {{schema}}.heartbeat('tester', NULL, ARRAY[{ids}], ARRAY[{done}, {done}], ARRAY[0, 0], ARRAY[0, 0],
             ARRAY[0, 0], ARRAY[0, 0], ARRAY[0, 0], NULL)"
        )
    };
    let depart = "SELECT {schema}.depart('tester')".to_owned();
    // In which order rows are updated depends on the plan: so each of them is the one that both wait for.
    let pairs = [
        (depart.clone(), heartbeat("1, 2", 2)),
        (depart, heartbeat("2, 1", 2)),
        (heartbeat("1, 2", 2), heartbeat("1", 3)),
        (heartbeat("2, 1", 2), heartbeat("2", 3)),
    ];
    for (held, (first, second)) in [1, 2].into_iter().flat_map(|held| pairs.clone().map(|pair| (held, pair)))
    {
        let Some(scene) = Scene::new() else { return };
        let store = scene.open().await;
        subscribed(&store).await;
        store.subscribe(&orders(), &GroupName::new("b").unwrap(), Start::Beginning).await.unwrap();
        let gate = scene.client().await;
        gate.batch_execute(&scene.sql(&heartbeat("1, 2", 1))).await.unwrap();
        let hold = format!(
            "DELETE FROM {{schema}}.owner; BEGIN; SELECT FROM {{schema}}.activity WHERE subscription_id = {held} FOR UPDATE"
        );
        gate.batch_execute(&scene.sql(&hold)).await.unwrap();
        let mut sessions = Vec::new();
        for (waiting, sql) in [(1, first), (2, second)] {
            let (client, sql) = (scene.client().await, scene.sql(&sql));
            sessions.push(tokio::spawn(async move { client.batch_execute(&sql).await }));
            until_sessions_wait(&scene, waiting).await;
        }
        gate.batch_execute("COMMIT").await.unwrap();
        for session in sessions {
            in_time("both sessions", session).await.unwrap().expect("no deadlock");
        }
        scene.drop().await;
    }
}

/// A group that dies while a session registers it again: the session takes the lock of the topic range next, which a step of tracking
/// may hold that waits for the subscription.
#[tokio::test]
async fn a_registration_of_a_group_that_died_meanwhile_holds_it_no_longer() {
    let Some(scene) = Scene::new() else { return };
    let store = Arc::new(scene.open().await);
    subscribed(&store).await;
    let (killing, tracking) = (scene.client().await, scene.client().await);
    let dies = "BEGIN; UPDATE {schema}.subscription SET state = 'dead', heartbeat_at = '2000-01-01'";
    killing.batch_execute(&scene.sql(dies)).await.unwrap();
    let registering = tokio::spawn({
        let store = Arc::clone(&store);
        async move { store.subscribe(&orders(), &GroupName::new("a").unwrap(), Start::Now).await }
    });
    until_waited_for(&scene, &killing).await;
    tracking.batch_execute(&scene.sql("BEGIN; SELECT {schema}.begin_maintenance(1)")).await.unwrap();
    killing.batch_execute("COMMIT").await.unwrap();
    until_waited_for(&scene, &tracking).await;
    let free = scene.sql("SELECT FROM {schema}.subscription FOR UPDATE NOWAIT");
    tracking.batch_execute(&free).await.expect("the subscription is free");
    tracking.batch_execute("COMMIT").await.unwrap();
    in_time("the registration", registering).await.unwrap().unwrap();
    let state: String =
        tracking.query_one(&scene.sql("SELECT state FROM {schema}.subscription"), &[]).await.unwrap().get(0);
    assert_eq!(state, "active");
    scene.drop().await;
}

/// A registration updates the subscription's row and takes locks after it. A claim with limits holds locks already, so it must
/// not wait for that row: its limits have a row of their own.
#[tokio::test]
async fn a_claim_with_limits_does_not_wait_for_a_registration() {
    let Some(scene) = Scene::new() else { return };
    let store = scene.open().await;
    let subscription = subscribed(&store).await;
    store.publish(&orders(), &vec![NewMessage::new("x"); 20]).await.unwrap();
    let registering = scene.client().await;
    let note = "BEGIN; SELECT {schema}.note_restart(1, 60000, now())";
    registering.batch_execute(&scene.sql(note)).await.unwrap();
    let limits =
        GroupLimits { in_flight_max: Some(15), rate: Some(RateLimit { per_second: 0.001, burst: 12 }) };
    let want = Want { limits, ..Want::new(subscription.subscription_id, 10) };
    let request = ClaimRequest { wants: vec![want], ..claim_of(&subscription, "tester") };
    let mut claimed = 0;
    for _ in 0..2 {
        let leases = in_time("a claim", store.claim(&request)).await.unwrap().leases;
        claimed += leases.iter().map(|lease| lease.range.span()).sum::<u64>();
    }
    assert_eq!(claimed, 12, "the limits hold beside it");
    registering.batch_execute("ROLLBACK").await.unwrap();
    scene.drop().await;
}
