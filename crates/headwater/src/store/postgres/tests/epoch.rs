//! Epochs of a namespace, and what a new group may show.

use super::races::{in_time, until_true};
use super::*;
use crate::lease::Epoch;

async fn claimed_epoch(store: &PostgresStore, subscription: &Subscription) -> Epoch {
    store.publish(&orders(), &[NewMessage::new("x")]).await.unwrap();
    let mut claimed = store.claim(&request(subscription)).await.unwrap();
    while claimed.leases.is_empty() {
        claimed = store.claim(&request(subscription)).await.unwrap();
    }
    let acks: Vec<_> = claimed.leases.iter().map(Settlement::ack_all).collect();
    store.settle(&acks).await.unwrap();
    claimed.epoch
}

/// The same row as a dump restores it: with another xmin.
const RESTORED: &str =
    "BEGIN; CREATE TEMP TABLE dump ON COMMIT DROP AS TABLE {schema}.epoch; DELETE FROM {schema}.epoch;
    INSERT INTO {schema}.epoch TABLE dump; COMMIT";

#[tokio::test]
async fn a_restored_dump_begins_an_epoch_that_the_doctor_shows() {
    let Some(scene) = Scene::new() else { return };
    let store = scene.open().await;
    let subscription = subscribed(&store).await;
    let before = claimed_epoch(&store, &subscription).await;
    assert_eq!(claimed_epoch(&store, &subscription).await, before, "nothing happened");
    scene.client().await.batch_execute(&scene.sql(RESTORED)).await.unwrap();
    let after = claimed_epoch(&store, &subscription).await;
    assert_ne!(after, before);
    assert_eq!(claimed_epoch(&store, &subscription).await, after, "all claims get the same epoch");
    let findings = store.doctor().await.unwrap();
    let found: Vec<_> = findings.iter().map(|finding| (finding.check, finding.problem.as_str())).collect();
    assert_eq!((found.len(), found[0].0), (1, "epoch_changed"), "{found:?}");
    assert!(found[0].1.contains("restore"), "{found:?}");
}

/// The snapshots in a dump belong to the cluster it was made on. In the restored cluster another transaction may run with
/// an xid that is in such a snapshot: the rows it commits would be skipped, and then taken for rolled back.
#[tokio::test]
async fn a_restored_dump_brings_no_snapshot_of_what_was_seen() {
    let Some(scene) = Scene::new() else { return };
    let store = scene.open().await;
    let subscription = subscribed(&store).await;
    store.publish(&orders(), &["1", "2", "3"].map(NewMessage::new)).await.unwrap();
    store.close().await.unwrap();
    let (running, client) = (scene.client().await, scene.client().await);
    let xid = "SELECT pg_current_xact_id()::text::bigint";
    running.batch_execute("BEGIN").await.unwrap();
    let xid: i64 = running.query_one(xid, &[]).await.unwrap().get(0);
    let restored = format!(
        "UPDATE {{schema}}.head SET empty_until = '{{3}}', empty_bound = ARRAY['{after}'::xid8], empty_seen = '{xid}:{after}:{xid}',
            gaps_seen = '{xid}:{after}:{xid}'; {RESTORED}",
        after = xid + 1,
    );
    client.batch_execute(&scene.sql(&restored)).await.unwrap();
    let store = scene.open().await;
    let kept =
        scene.sql("SELECT count(*) FROM {schema}.head WHERE empty_seen IS NOT NULL OR gaps_seen IS NOT NULL");
    assert_eq!(client.query_one(&kept, &[]).await.unwrap().get::<_, i64>(0), 0);
    let leases = in_time("a claim", store.claim(&request(&subscription))).await.unwrap().leases;
    let ranges: Vec<String> = leases.iter().map(|lease| lease.range.to_string()).collect();
    assert_eq!(ranges, ["1..=3"]);
    running.batch_execute("ROLLBACK").await.unwrap();
    scene.drop().await;
}

/// The state of a promoted standby: no epoch, and another timeline than before.
const PROMOTED: &str = "TRUNCATE {schema}.epoch; UPDATE {schema}.epoch_history SET timeline = 'before';
    SELECT setval('{schema}.offsets_timeline', 4711)";

#[tokio::test]
async fn after_a_failover_offsets_continue_above_those_that_were_given() {
    let Some(scene) = Scene::new() else { return };
    let store = scene.open().await;
    let subscription = subscribed(&store).await;
    claimed_epoch(&store, &subscription).await;
    store.close().await.unwrap();
    scene.client().await.batch_execute(&scene.sql(PROMOTED)).await.unwrap();
    let store = scene.open().await;
    let offset = store.publish(&orders(), &[NewMessage::new("x")]).await.unwrap()[0].offset.unwrap();
    assert!(offset.0 > 1_000_000, "{offset} may have been used before");
    // A claim skips the unused offsets in one step, whatever its size.
    let one =
        ClaimRequest { wants: vec![Want::new(subscription.subscription_id, 1)], ..request(&subscription) };
    let mut claims = 0;
    let lease = loop {
        if let Some(lease) = store.claim(&one).await.unwrap().leases.pop() {
            break lease;
        }
        claims += 1;
        assert!(claims < 100, "the message was never delivered");
    };
    assert_eq!((lease.range.first, lease.range.last), (offset, offset));
    store.settle(&[Settlement::ack_all(&lease)]).await.unwrap().remove(0).unwrap();
    let found: Vec<_> = store.doctor().await.unwrap().into_iter().map(|finding| finding.check).collect();
    assert_eq!(found, ["epoch_changed"]);
}

/// Other programs publish before any store has connected to the new primary. Without moving the sequences in
/// "publish_batch" they would get offsets that were acknowledged for messages of the lost tail. The transaction of the
/// first program stays open and is rolled back: the others do not wait for it, and the sequences are moved once.
#[tokio::test]
async fn after_a_failover_other_programs_are_given_no_offset_again() {
    let Some(scene) = Scene::new() else { return };
    let store = scene.open().await;
    let subscription = subscribed(&store).await;
    claimed_epoch(&store, &subscription).await;
    store.close().await.unwrap();
    let first = scene.client().await;
    first.batch_execute(&scene.sql(PROMOTED)).await.unwrap();
    first.batch_execute(&scene.sql("BEGIN; SELECT {schema}.publish('orders', '1')")).await.unwrap();
    let publish = scene.sql("SELECT {schema}.publish('orders', '1')");
    let others = (0..8).map(|_| {
        let (scene, publish) = (&scene, &publish);
        async move {
            let row = scene.client().await.query_one(publish, &[]).await.unwrap();
            row.get::<_, i64>(0)
        }
    });
    let mut offsets = in_time("publishing beside the first", futures_util::future::join_all(others)).await;
    first.batch_execute("ROLLBACK").await.unwrap();
    offsets.push(first.query_one(&publish, &[]).await.unwrap().get(0));
    offsets.sort_unstable();
    offsets.dedup();
    assert_eq!(offsets.len(), 9, "{offsets:?}");
    assert!(offsets.iter().all(|offset| (1_000_000..1_000_100).contains(offset)), "{offsets:?}");
    // A store that connects later finds the sequences moved, and reports what happened.
    let store = scene.open().await;
    let offset = store.publish(&orders(), &[NewMessage::new("x")]).await.unwrap()[0].offset.unwrap();
    assert!((1_000_000..1_000_100).contains(&offset.0), "{offset}");
    let found: Vec<_> = store.doctor().await.unwrap().into_iter().map(|finding| finding.check).collect();
    assert_eq!(found, ["epoch_changed"]);
}

#[tokio::test]
async fn an_epoch_lost_in_a_crash_is_begun_once_by_all_that_claim() {
    let Some(scene) = Scene::new() else { return };
    let store = Arc::new(scene.open().await);
    let subscription = subscribed(&store).await;
    let before = claimed_epoch(&store, &subscription).await;
    store.publish(&orders(), &vec![NewMessage::new("x"); 40]).await.unwrap();
    // Recovery truncates unlogged tables.
    scene.client().await.batch_execute(&scene.sql("TRUNCATE {schema}.epoch")).await.unwrap();
    let claims = (0..8).map(|_| {
        let (store, request) = (Arc::clone(&store), request(&subscription));
        tokio::spawn(async move { store.claim(&request).await.unwrap() })
    });
    let mut epochs: Vec<Epoch> = Vec::new();
    for claim in claims.collect::<Vec<_>>() {
        let claimed = claim.await.unwrap();
        if !claimed.leases.is_empty() {
            epochs.push(claimed.epoch);
        }
    }
    epochs.dedup();
    assert_eq!(epochs.len(), 1, "{epochs:?}");
    assert_ne!(epochs[0], before);
    let causes = "SELECT string_agg(cause, ' ' ORDER BY began_at) FROM {schema}.epoch_history";
    let row = scene.client().await.query_one(&scene.sql(causes), &[]).await.unwrap();
    assert_eq!(row.get::<_, &str>(0), "created crash");
    assert_eq!(store.doctor().await.unwrap(), [], "a crash loses nothing that was acknowledged");
}

/// A transaction publishes `first`, which becomes a recorded gap, and `second`, and commits while a group subscribes at
/// now. If the gaps were searched by a statement before the one that finds the head, the head could show `second` while
/// `first` is still in its gap: an ordered group would get the later message of a key before the earlier one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_group_shows_no_later_row_of_a_transaction_before_its_earlier_one() {
    let Some(scene) = Scene::new() else { return };
    let store = Arc::new(scene.open().await);
    subscribed(&store).await;
    let publisher = scene.client().await;
    let publish = scene.sql("SELECT {schema}.publish('orders', '1'::jsonb, key => 'k')");
    publisher.batch_execute(&format!("BEGIN; {publish}")).await.unwrap();
    store.publish(&orders(), &[NewMessage::new("x")]).await.unwrap();
    let noted = scene.sql("SELECT count(*) FROM {schema}.gap");
    let client = scene.client().await;
    until_true("the gap is recorded", async || {
        store.advance_heads().await.unwrap();
        client.query_one(&noted, &[]).await.unwrap().get::<_, i64>(0) == 1
    })
    .await;
    publisher.batch_execute(&publish).await.unwrap();
    // The search of the gaps blocks at its end, so that the transaction can commit after it.
    let stops = "ALTER FUNCTION {schema}.rows_in_gaps RENAME TO rows_in_gaps_then;
        CREATE FUNCTION {schema}.rows_in_gaps(integer, xid8, bigint, bigint, xid8, OUT late int8multirange, OUT ended xid8)
        LANGUAGE plpgsql STABLE AS $$
        BEGIN
            SELECT r.late, r.ended INTO late, ended FROM {schema}.rows_in_gaps_then($1, $2, $3, $4, $5) r;
            PERFORM pg_advisory_xact_lock(hashtext('{schema}'));
        END $$";
    client.batch_execute(&scene.sql(stops)).await.unwrap();
    client.execute(&scene.sql("SELECT pg_advisory_lock(hashtext('{schema}'))"), &[]).await.unwrap();
    let other = Arc::clone(&store);
    let group = GroupName::new("late").unwrap();
    let subscribing = tokio::spawn(async move { other.subscribe(&orders(), &group, Start::Now).await });
    let waits = "SELECT FROM pg_stat_activity WHERE wait_event = 'advisory' AND query LIKE '%' || $1 || '%'";
    until_true("it waits", async || {
        !client.query(waits, &[&scene.namespace.as_str()]).await.unwrap().is_empty()
    })
    .await;
    publisher.batch_execute("COMMIT").await.unwrap();
    client.execute(&scene.sql("SELECT pg_advisory_unlock(hashtext('{schema}'))"), &[]).await.unwrap();
    in_time("it subscribes", subscribing).await.unwrap().unwrap();
    let overtaken = "SELECT count(*) FROM {schema}.gap g JOIN {schema}.message m ON m.topic_id = g.topic_id
        AND m.message_offset BETWEEN g.first_offset AND g.last_offset
        JOIN {schema}.message later ON later.topic_id = m.topic_id AND later.key = m.key
        AND later.message_offset > m.message_offset
        JOIN {schema}.head h ON h.topic_id = m.topic_id AND h.head >= later.message_offset";
    let row = client.query_one(&scene.sql(overtaken), &[]).await.unwrap();
    assert_eq!(
        row.get::<_, i64>(0),
        0,
        "the head shows a later message of the key, and the earlier one is in a gap"
    );
}
