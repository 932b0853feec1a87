//! Claims beside a snapshot that keeps every dead row, and what they find without visiting all of those rows.

use super::races::claim_of;
use super::*;
use crate::clock::ManualClock;
use crate::settle::Outcome;

/// How many index entries of the namespace a claim visits. Those of dead rows count.
async fn entries(scene: &Scene, client: &Client, claim: &str) -> i64 {
    let sum = "SELECT coalesce(sum(pg_stat_get_xact_tuples_returned(i.indexrelid)), 0)::bigint
        FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid WHERE c.relnamespace = '{schema}'::regnamespace";
    let sum = scene.sql(sum);
    client.batch_execute("BEGIN").await.unwrap();
    let before: i64 = client.query_one(&sum, &[]).await.unwrap().get(0);
    client.batch_execute(claim).await.unwrap();
    let after: i64 = client.query_one(&sum, &[]).await.unwrap().get(0);
    client.batch_execute("ROLLBACK").await.unwrap();
    after - before
}

/// Both paths of a claim: with full ranges waiting, and with a publish before each claim, so that the head moves every time and the
/// last claim finds nothing. Leases have expired since, or were to last for long.
#[tokio::test]
async fn a_claim_visits_no_more_the_more_claims_there_were_beside_an_old_snapshot() {
    for (publishes, lease_ms) in [(false, 1), (true, 1), (true, 300_000)] {
        let Some(scene) = Scene::new() else { return };
        let store = scene.open().await;
        let subscription = subscribed(&store).await;
        let messages = vec![NewMessage::new("x"); 5_000];
        for _ in 0..if publishes { 0 } else { 2 } {
            store.publish(&orders(), &messages).await.unwrap();
            store.advance_heads().await.unwrap();
        }
        let (old, client) = (scene.client().await, scene.client().await);
        let pin = "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT pg_current_xact_id(), count(*) FROM {schema}.cursor";
        old.batch_execute(&scene.sql(pin)).await.unwrap();
        client.batch_execute("SET jit = off").await.unwrap();
        // Each claim is a millisecond later than the last and leases one message: all are within one span of five seconds, at
        // whose beginning a claim scans everything.
        let claim = |at: &str| {
            scene.sql(&format!(
                "SELECT * FROM {{schema}}.claim('tester', ARRAY[{}], ARRAY[3], ARRAY[{lease_ms}::bigint], NULL, NULL, NULL, false, 1000, 20000, 10000, 1000,
                 timestamptz '2026-01-01 00:00:00Z' + {at} * interval '1 ms')",
                subscription.subscription_id.0
            ))
        };
        let publish = "PERFORM {schema}.publish_batch('orders', ARRAY(SELECT gen_random_uuid() FROM generate_series(1, 3)),
            ARRAY['x', 'y', 'z']::bytea[], NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, true);";
        let run = async |from: u32, to: u32| {
            let publish = if publishes { scene.sql(publish) } else { String::new() };
            let claim = claim("i").replace("SELECT *", "SELECT token INTO v_token");
            let body = format!(
                "DO $do$ DECLARE v_token bigint; BEGIN FOR i IN {from}..{to} LOOP
                 {publish} COMMIT;
                 {claim} WHERE kind = 'lease'; COMMIT;
                 DELETE FROM {{schema}}.outstanding o WHERE o.token = v_token; COMMIT;
                 END LOOP; END $do$"
            );
            client.batch_execute(&scene.sql(&body)).await.unwrap();
        };
        run(1, 200).await;
        let early = entries(&scene, &client, &claim("201")).await;
        run(201, 3_000).await;
        // The least of three: planning visits entries too, and the session plans again after an automatic ANALYZE.
        let mut late = i64::MAX;
        for _ in 0..3 {
            late = late.min(entries(&scene, &client, &claim("3001")).await);
        }
        assert!(
            late <= early * 2,
            "publishes {publishes}, {lease_ms} ms: {early} entries, and after 3,000 claims {late}"
        );
        old.batch_execute("COMMIT").await.unwrap();
        scene.drop().await;
    }
}

/// No due range is skipped because an earlier claim found nothing.
#[tokio::test]
async fn what_becomes_due_is_found_after_an_earlier_search() {
    let Some(scene) = Scene::new() else { return };
    let clock = ManualClock::at("2026-01-01T00:00:01Z".parse().unwrap());
    let store = scene.open_at(&clock).await;
    let subscription = subscribed(&store).await;
    store.publish(&orders(), &vec![NewMessage::new("x"); 100]).await.unwrap();
    store.advance_heads().await.unwrap();
    let claim = async || store.claim(&claim_of(&subscription, "tester")).await.unwrap().leases;
    let first_of = async || claim().await[0].range.first.0;
    let (one, two) = (claim().await.remove(0), claim().await.remove(0));
    // Released: due at once.
    let released = Settlement::each(&one, vec![(one.range, Outcome::Release)]);
    store.settle(&[released]).await.unwrap().remove(0).unwrap();
    assert_eq!(first_of().await, 1, "released");
    // Retried: due at its time, to the millisecond.
    let failed = Outcome::Retry { after: Duration::from_millis(700), error: "e".into(), key: None };
    store.settle(&[Settlement::each(&two, vec![(two.range, failed)])]).await.unwrap().remove(0).unwrap();
    for ms in [0, 400, 299] {
        clock.advance(Duration::from_millis(ms));
        assert!(first_of().await > 20, "{ms}");
    }
    clock.advance(Duration::from_millis(1));
    assert_eq!(first_of().await, 11, "due now");
    // A range that is committed long after its due time, and after a later claim: found by the next full scan.
    let late = "UPDATE {schema}.outstanding SET owner = NULL, due_at = '2026-01-01T00:00:01Z' WHERE first_offset = 11";
    scene.client().await.batch_execute(&scene.sql(late)).await.unwrap();
    assert!(first_of().await > 20);
    clock.advance(Duration::from_secs(5));
    assert_eq!(first_of().await, 11, "within five seconds");
    // The leases of a dead owner end at once.
    let (tester, other) = (Owner::new("tester").unwrap(), Owner::new("other").unwrap());
    store.heartbeat(&tester, Some(Duration::from_secs(15)), &[]).await.unwrap();
    clock.advance(Duration::from_secs(16));
    assert!(first_of().await > 20);
    store.heartbeat(&other, Some(Duration::from_secs(15)), &[]).await.unwrap();
    let found = store.claim(&claim_of(&subscription, "other")).await.unwrap().leases;
    assert_eq!(found[0].range.first.0, 1, "the lease of a dead owner");
    assert_eq!(store.doctor().await.unwrap(), []);
    scene.drop().await;
}
