//! States that change while claims, settlements and heartbeats run.

use super::races::{claim_of, in_time, until_true};
use super::*;
use crate::clock::ManualClock;
use crate::lease::GroupLimits;
use crate::settle::Outcome;
use crate::store::{OffsetRange, Served, Signal};
use crate::subscription::{Activity, SubscriptionState};

fn group() -> GroupName {
    GroupName::new("a").expect("a valid name")
}

fn owner(name: &str) -> Owner {
    Owner::new(name).expect("a valid name")
}

fn served(subscription: &Subscription) -> [Served; 1] {
    [Served::new(subscription.subscription_id)]
}

async fn state_of(store: &PostgresStore) -> SubscriptionState {
    store.subscriptions(&orders()).await.unwrap()[0].state
}

/// Kills the group as the detector does.
async fn kill(scene: &Scene) {
    let killed = "UPDATE {schema}.subscription SET state = 'dead', heartbeat_at = '2000-01-01';
        SELECT {schema}.stop_counting(subscription_id) FROM {schema}.subscription";
    scene.client().await.batch_execute(&scene.sql(killed)).await.unwrap();
}

/// Waits until a session of this namespace's functions waits for a lock.
pub(super) async fn until_a_session_waits(scene: &Scene) {
    until_sessions_wait(scene, 1).await;
}

/// Waits until this many sessions wait for a lock.
pub(super) async fn until_sessions_wait(scene: &Scene, count: usize) {
    let client = scene.client().await;
    let like = format!("%{}%", scene.namespace);
    let waits = "SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE $1";
    until_true("sessions wait", async || client.query(waits, &[&like]).await.unwrap().len() >= count).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_at_once_are_one_resurrection() {
    let Some(scene) = Scene::new() else { return };
    let store = Arc::new(scene.open().await);
    let subscription = subscribed(&store).await;
    kill(&scene).await;
    // All of them wait for the lock of the topic range, and continue together.
    let gate = scene.client().await;
    gate.batch_execute(&scene.sql("BEGIN; SELECT FROM {schema}.topic_range FOR UPDATE")).await.unwrap();
    let tasks: Vec<_> = (0..10)
        .map(|n| {
            let (store, served) = (Arc::clone(&store), served(&subscription));
            tokio::spawn(async move {
                match n % 2 {
                    0 => store.resurrect(&orders(), &group(), None).await.unwrap().resurrected,
                    _ => {
                        let owner = owner(&format!("process-{n}"));
                        let answer = store.heartbeat(&owner, None, &served).await.unwrap();
                        matches!(answer.signals[0], Signal::Resurrected(_))
                    }
                }
            })
        })
        .collect();
    let subscribing = tokio::spawn({
        let store = Arc::clone(&store);
        async move { store.subscribe(&orders(), &group(), Start::Now).await.unwrap().subscription_id }
    });
    until_a_session_waits(&scene).await;
    gate.batch_execute("COMMIT").await.unwrap();
    let mut resurrections = 0;
    for task in tasks {
        resurrections += usize::from(in_time("a resurrection", task).await.unwrap());
    }
    assert_eq!(subscribing.await.unwrap(), subscription.subscription_id);
    // The subscribe may have resurrected it.
    assert!(resurrections <= 1, "{resurrections} resurrections");
    let audited = store.audit(100).await.unwrap().iter().filter(|line| line.act == "resurrect").count();
    assert!(audited <= 1, "{audited} lines");
    assert_eq!(state_of(&store).await, SubscriptionState::Active);
    let age = store.subscriptions(&orders()).await.unwrap()[0].heartbeat_age.unwrap();
    assert!(age < Duration::from_secs(60), "the heartbeat begins anew");
    scene.drop().await;
}

#[tokio::test]
async fn a_heartbeat_waits_for_no_row_of_its_group_and_writes_rarely() {
    let Some(scene) = Scene::new() else { return };
    let clock = ManualClock::at(jiff::Timestamp::now());
    let store = scene.open_at(&clock).await;
    let subscription = subscribed(&store).await;
    let (other, served) = (scene.client().await, served(&subscription));
    let status = async || store.subscriptions(&orders()).await.unwrap().remove(0);
    let heartbeat = async |name: &str| {
        let answer = in_time("a heartbeat beside a lock", store.heartbeat(&owner(name), None, &served)).await;
        assert_eq!(answer.unwrap().signals, [Signal::Active]);
    };
    let lock = scene.sql("BEGIN; SELECT FROM {schema}.subscription FOR UPDATE");
    other.batch_execute(&lock).await.unwrap();
    heartbeat("a").await;
    assert_eq!(status().await.heartbeat_at, None, "the first heartbeat is stored once the row is free");
    other.batch_execute("COMMIT").await.unwrap();
    heartbeat("a").await;
    heartbeat("b").await;
    assert_eq!((status().await.heartbeat_at, status().await.processes), (Some(clock.now()), 2));
    // From then on no lock of the group's row blocks a heartbeat, however long it is held.
    other.batch_execute(&lock).await.unwrap();
    let written = scene.sql(
        "SELECT (SELECT string_agg(xmin::text, ' ' ORDER BY owner) FROM {schema}.activity)
             || ' ' || (SELECT xmin FROM {schema}.subscription)",
    );
    let before: String = other.query_one(&written, &[]).await.unwrap().get(0);
    for _ in 0..10 {
        clock.advance(Duration::from_secs(151));
        heartbeat("a").await;
        assert_eq!(status().await.heartbeat_at, Some(clock.now()));
    }
    let after: String = other.query_one(&written, &[]).await.unwrap().get(0);
    assert_eq!(after, before, "only the owner's own row is written");
    assert_eq!(status().await.processes, 1, "b has been silent for longer than the timeout");
    other.batch_execute("COMMIT").await.unwrap();
    scene.drop().await;
}

/// A heartbeat that waits for its own row reads the clock afterwards: otherwise heartbeats of the meantime would seem to be of the future.
#[tokio::test]
async fn a_heartbeat_that_waited_sets_no_other_owner_back() {
    let Some(scene) = Scene::new() else { return };
    let store = Arc::new(scene.open().await);
    let [waits, lives] = ["waits", "lives"].map(|name| Owner::new(name).unwrap());
    let silent = Some(Duration::from_secs(15));
    for owner in [&waits, &lives] {
        store.heartbeat(owner, silent, &[]).await.unwrap();
    }
    let other = scene.client().await;
    let lock = "BEGIN; SELECT FROM {schema}.owner WHERE owner = 'waits' FOR UPDATE";
    other.batch_execute(&scene.sql(lock)).await.unwrap();
    let waiting = tokio::spawn({
        let store = Arc::clone(&store);
        async move { store.heartbeat(&waits, silent, &[]).await }
    });
    until_a_session_waits(&scene).await;
    let began: String = other.query_one("SELECT clock_timestamp()::text", &[]).await.unwrap().get(0);
    let passed = "SELECT clock_timestamp() > $1::text::timestamptz + interval '1500 ms'";
    until_true("a second and a half has passed", async || {
        other.query_one(passed, &[&began]).await.unwrap().get(0)
    })
    .await;
    store.heartbeat(&lives, silent, &[]).await.unwrap();
    let seen = scene.sql("SELECT seen_at::text FROM {schema}.owner WHERE owner = 'lives'");
    let before: String = other.query_one(&seen, &[]).await.unwrap().get(0);
    other.batch_execute("COMMIT").await.unwrap();
    in_time("the heartbeat", waiting).await.unwrap().unwrap();
    let after: String = other.query_one(&seen, &[]).await.unwrap().get(0);
    assert_eq!(after, before);
    scene.drop().await;
}

/// Whether a process lives does not depend on the locks of a dead group that it serves.
#[tokio::test]
async fn a_dead_group_that_is_locked_delays_no_heartbeat() {
    let Some(scene) = Scene::new() else { return };
    let store = scene.open().await;
    let subscription = subscribed(&store).await;
    let other = scene.client().await;
    // Apart: statements sent together would be one transaction.
    for sql in
        ["UPDATE {schema}.subscription SET state = 'dead'", "BEGIN; SELECT {schema}.lock_topic_range(1)"]
    {
        other.batch_execute(&scene.sql(sql)).await.unwrap();
    }
    let served = [Served { subscription_id: subscription.subscription_id, activity: Activity::default() }];
    let owner = Owner::new("lives").unwrap();
    let heartbeat = || store.heartbeat(&owner, None, &served);
    in_time("the heartbeat", heartbeat()).await.unwrap();
    let seen = scene.sql("SELECT count(*) FROM {schema}.owner WHERE owner = 'lives'");
    assert_eq!(other.query_one(&seen, &[]).await.unwrap().get::<_, i64>(0), 1);
    other.batch_execute("COMMIT").await.unwrap();
    heartbeat().await.unwrap();
    let state = store.subscriptions(&orders()).await.unwrap()[0].state;
    assert_eq!(state, SubscriptionState::Active, "the next heartbeat resurrects it");
    scene.drop().await;
}

#[tokio::test]
async fn the_audit_names_the_state_that_a_change_found() {
    let Some(scene) = Scene::new() else { return };
    let store = Arc::new(scene.open().await);
    subscribed(&store).await;
    let pauser = scene.client().await;
    let pause = "BEGIN; SELECT {schema}.set_state('orders', 'a', 'pause', ARRAY['active'], 'paused', 'test', NULL, NULL)";
    pauser.batch_execute(&scene.sql(pause)).await.unwrap();
    let cancelling = tokio::spawn({
        let store = Arc::clone(&store);
        async move { store.cancel(&orders(), &group()).await }
    });
    until_a_session_waits(&scene).await;
    pauser.batch_execute("COMMIT").await.unwrap();
    in_time("the cancel", cancelling).await.unwrap().unwrap();
    let entry = store.audit(10).await.unwrap().into_iter().find(|entry| entry.act == "cancel").unwrap();
    assert!(entry.detail.contains(r#""from": "paused""#), "{entry:?}");
    scene.drop().await;
}

/// A pause waits for a claim that is running; a claim that begins while the pause runs sees it.
#[tokio::test]
async fn after_a_pause_nothing_is_handed_out_whatever_was_under_way() {
    let Some(scene) = Scene::new() else { return };
    let store = Arc::new(scene.open().await);
    let subscription = subscribed(&store).await;
    let held = async || store.subscriptions(&orders()).await.unwrap()[0].in_flight;
    // The fast path: a full range, and the rest. Then the slow path, which a group with limits takes.
    for (count, in_flight_max) in [(10, None), (3, None), (10, Some(1_000))] {
        store.publish(&orders(), &vec![NewMessage::new("x"); count]).await.unwrap();
        store.advance_heads().await.unwrap();
        let claimer = scene.client().await;
        let claim = format!(
            "BEGIN; SELECT {{schema}}.claim('open', ARRAY[{}], ARRAY[{}], ARRAY[60000::bigint], {}, NULL, NULL, true,
             100, 1000, 1000, 1000, NULL)",
            subscription.subscription_id,
            2,
            in_flight_max.map_or("NULL".into(), |max| format!("ARRAY[{max}::bigint]"))
        );
        claimer.batch_execute(&scene.sql(&claim)).await.unwrap();
        let pausing = tokio::spawn({
            let store = Arc::clone(&store);
            async move { store.pause(&orders(), &group(), None).await }
        });
        until_a_session_waits(&scene).await;
        assert!(!pausing.is_finished());
        let before = held().await;
        claimer.batch_execute("COMMIT").await.unwrap();
        in_time("the pause", pausing).await.unwrap().unwrap();
        let after = held().await;
        assert_eq!(after, before + 2, "the claim came before the pause");
        let refused = store.claim(&request(&subscription)).await.unwrap();
        assert_eq!(refused.leases, []);
        assert_eq!(refused.inactive, [(subscription.subscription_id, SubscriptionState::Paused)]);
        store.resume(&orders(), &group()).await.unwrap();

        let pauser = scene.client().await;
        let pause = "BEGIN; SELECT {schema}.set_state('orders', 'a', 'pause', ARRAY['active'], 'paused', 'test', NULL, NULL)";
        pauser.batch_execute(&scene.sql(pause)).await.unwrap();
        let claiming = tokio::spawn({
            let (store, request) = (Arc::clone(&store), claim_of(&subscription, "late"));
            let limits = GroupLimits { in_flight_max, rate: None };
            let wants = vec![Want { limits, ..Want::new(subscription.subscription_id, 2) }];
            async move { store.claim(&ClaimRequest { wants, ..request }).await }
        });
        until_a_session_waits(&scene).await;
        pauser.batch_execute("COMMIT").await.unwrap();
        let mut claimed = in_time("the claim", claiming).await.unwrap().unwrap();
        assert_eq!(claimed.leases, [], "it saw the pause");
        if claimed.inactive.is_empty() {
            // It had locked the cursor, and did not wait for the operator's other lock, which is released a moment later.
            assert!(claimed.recheck_after.is_some(), "it is repeated soon");
            claimed = in_time("the repeated claim", store.claim(&request(&subscription))).await.unwrap();
        }
        assert_eq!(claimed.inactive, [(subscription.subscription_id, SubscriptionState::Paused)]);
        assert_eq!(held().await, after);
        store.resume(&orders(), &group()).await.unwrap();
    }
    assert_eq!(store.doctor().await.unwrap(), []);
    scene.drop().await;
}

/// Settlements and claims split rows: rows that they insert while a seek or cancel waits for them are removed too.
#[tokio::test]
async fn nothing_outstanding_survives_a_seek_or_a_cancel() {
    let Some(scene) = Scene::new() else { return };
    let store = Arc::new(scene.open().await);
    let subscription = subscribed(&store).await;
    store.publish(&orders(), &vec![NewMessage::new("x"); 10]).await.unwrap();
    for cancels in [false, true] {
        let lease = store.claim(&request(&subscription)).await.unwrap().leases.remove(0);
        assert_eq!(lease.range, OffsetRange::new(crate::Offset(1), crate::Offset(10)));
        let settler = scene.client().await;
        let settle = format!(
            "BEGIN; SELECT {{schema}}.settle_parts({}, {}, '{}', ARRAY[3, 7]::bigint[], ARRAY[4, 8]::bigint[],
             ARRAY['retry', 'ack'], ARRAY[0, NULL]::bigint[], ARRAY['no', NULL], ARRAY[NULL, NULL]::text[], true, NULL)",
            lease.token.0, lease.subscription_id, lease.owner
        );
        settler.batch_execute(&scene.sql(&settle)).await.unwrap();
        let moving = tokio::spawn({
            let store = Arc::clone(&store);
            async move {
                if cancels {
                    return store.cancel(&orders(), &group()).await.map(|()| None);
                }
                store.seek(&orders(), &group(), Start::Beginning, false).await.map(Some)
            }
        });
        until_a_session_waits(&scene).await;
        settler.batch_execute("COMMIT").await.unwrap();
        let moved = in_time("the operator", moving).await.unwrap().unwrap();
        if let Some(moved) = moved {
            assert_eq!((moved.to.0, moved.leases_lost), (1, 1));
        }
        assert_eq!(store.outstanding(subscription.subscription_id, 100).await.unwrap(), []);
        let lost = store.settle(&[Settlement::ack_all(&lease)]).await.unwrap().remove(0).unwrap_err();
        assert_eq!(lost.kind(), ErrorKind::LeaseLost);
        assert_eq!(store.doctor().await.unwrap(), []);
    }
    let listed = store.subscriptions(&orders()).await.unwrap().remove(0);
    assert_eq!((listed.state, listed.leased, listed.waiting), (SubscriptionState::Cancelled, 0, 0));
    scene.drop().await;
}

/// An outcome that the functions do not know, as of a newer program, neither acks its messages nor changes their lease.
#[tokio::test]
async fn an_unknown_outcome_is_refused() {
    let Some(scene) = Scene::new() else { return };
    let store = scene.open().await;
    let subscription = subscribed(&store).await;
    store.publish(&orders(), &["a", "b", "c"].map(NewMessage::new)).await.unwrap();
    let lease = store.claim(&request(&subscription)).await.unwrap().leases.remove(0);
    let held = store.outstanding(subscription.subscription_id, 100).await.unwrap();
    assert_eq!(held.iter().map(|range| range.token).collect::<Vec<_>>(), [Some(lease.token)]);
    let client = scene.client().await;
    for outcome in ["'postpone'", "NULL"] {
        let settle = format!(
            "SELECT {{schema}}.settle_parts({}, {}, '{}', ARRAY[1, 2]::bigint[], ARRAY[1, 3]::bigint[],
             ARRAY['ack', {outcome}], ARRAY[NULL, 0]::bigint[], ARRAY[NULL, 'no'], ARRAY[NULL, NULL]::text[], true, NULL)",
            lease.token.0, lease.subscription_id, lease.owner
        );
        let refused = client.batch_execute(&scene.sql(&settle)).await.unwrap_err();
        assert_eq!(refused.code().map(tokio_postgres::error::SqlState::code), Some("HW003"), "{refused}");
        assert_eq!(store.outstanding(subscription.subscription_id, 100).await.unwrap(), held, "{outcome}");
    }
    store.settle(&[Settlement::ack_all(&lease)]).await.unwrap().remove(0).unwrap();
    assert_eq!(store.outstanding(subscription.subscription_id, 100).await.unwrap(), []);
    scene.drop().await;
}

/// Claims of all kinds, settlements and heartbeats beside operators that pause, resume and seek: no deadlock.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn operators_and_members_never_deadlock() {
    let Some(scene) = Scene::new() else { return };
    let clock = ManualClock::at(jiff::Timestamp::now());
    let store = Arc::new(scene.open_at(&clock).await);
    let settings = TopicSettings { lease: Duration::from_secs(1), ..TopicSettings::pub_sub() };
    store.create_topic(&orders(), &settings).await.unwrap();
    let subscription = store.subscribe(&orders(), &group(), Start::Beginning).await.unwrap();
    store.publish(&orders(), &vec![NewMessage::new("x"); 200]).await.unwrap();
    let members = (0..6).map(|n| {
        let limits = GroupLimits { in_flight_max: (n % 2 == 0).then_some(1_000), rate: None };
        let wants = vec![Want { limits, ..Want::new(subscription.subscription_id, 3) }];
        let request = ClaimRequest { wants, ..claim_of(&subscription, &format!("member-{n}")) };
        let (store, served) = (Arc::clone(&store), served(&subscription));
        tokio::spawn(async move {
            for round in 0..40_u32 {
                for lease in store.claim(&request).await.expect("no deadlock").leases {
                    let again = Outcome::Retry { after: Duration::ZERO, error: "no".into(), key: None };
                    let parts = vec![(OffsetRange::one(lease.range.first), again)];
                    let settlement = match round % 3 {
                        0 => Settlement::ack_all(&lease),
                        1 => Settlement::each(&lease, parts),
                        _ => continue,
                    };
                    // Lost if the group was moved meanwhile.
                    store.settle(&[settlement]).await.expect("no deadlock").remove(0).ok();
                }
                let owner = owner(&format!("member-{n}"));
                store.heartbeat(&owner, None, &served).await.expect("no deadlock");
            }
        })
    });
    let members: Vec<_> = members.collect();
    for round in 0..25 {
        store.pause(&orders(), &group(), None).await.expect("no deadlock");
        clock.advance(Duration::from_millis(700));
        store.resume(&orders(), &group()).await.expect("no deadlock");
        let to = if round % 2 == 0 { Start::Beginning } else { Start::BeginningBounded(50) };
        store.seek(&orders(), &group(), to, false).await.expect("no deadlock");
    }
    for member in members {
        in_time("a member", member).await.expect("the member claims");
    }
    assert_eq!(store.doctor().await.unwrap(), []);
    scene.drop().await;
}
