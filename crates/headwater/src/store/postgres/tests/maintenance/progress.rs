//! Cursors moved by operators, by cleanup and by the detector, beside claims and settlements.

use super::*;

fn group() -> GroupName {
    GroupName::new("a").unwrap()
}

/// A rewind loses nothing: a message below its offset, in a transaction that is still open, is delivered once when it commits.
#[tokio::test]
async fn a_rewind_keeps_what_commits_late_below_it() {
    let Some(stage) = Stage::set("message_retention_ms = NULL").await else { return };
    for (round, to) in [(0, Start::Offset(Offset(15))), (1, Start::BeginningBounded(7))] {
        let base = round * 21;
        let a = stage.subscribe("a").await;
        let open = stage.scene.client().await;
        open.batch_execute(&stage.scene.sql("BEGIN; SELECT {schema}.publish('orders', '1')")).await.unwrap();
        stage.publish(20).await;
        let mut offsets = Vec::new();
        until_true("the others come", async || {
            offsets.extend(stage.handle(&a, 100).await);
            offsets.last() == Some(&(base + 21))
        })
        .await;
        let to = if let Start::Offset(offset) = to { Start::Offset(Offset(base + offset.0)) } else { to };
        let moved = stage.store.seek(&orders(), &group(), to, false).await.unwrap();
        assert_eq!(moved.to, Offset(base + 15));
        open.batch_execute("COMMIT").await.unwrap();
        let mut offsets = Vec::new();
        until_true("all are redelivered, and the late message", async || {
            offsets.extend(stage.handle(&a, 100).await);
            offsets.len() >= 8
        })
        .await;
        offsets.sort_unstable();
        assert_eq!(offsets, [vec![base + 1], (base + 15..=base + 21).collect()].concat());
        assert_eq!(stage.handle(&a, 100).await, [] as [i64; 0]);
    }
    stage.strike().await;
}

/// A dry run of a seek waits for no other session, and no other session waits for it.
#[tokio::test]
async fn a_dry_seek_takes_no_lock() {
    let Some(stage) = Stage::set("message_retention_ms = NULL").await else { return };
    let a = stage.subscribe("a").await;
    stage.publish(10).await;
    stage.handle(&a, 6).await;
    stage
        .run("BEGIN; SELECT FROM {schema}.head FOR UPDATE; SELECT FROM {schema}.topic_range FOR UPDATE")
        .await;
    for (to, expected) in [
        (Start::Beginning, (1, 6, 0)),
        (Start::Now, (11, 0, 4)),
        (Start::Offset(Offset(9)), (9, 0, 2)),
        (Start::Timestamp(stage.clock.now()), (1, 6, 0)),
    ] {
        let (topic, group) = (orders(), group());
        let seek = stage.store.seek(&topic, &group, to, true);
        let moved = tokio::time::timeout(SOON, seek).await.expect("it waits for no lock").unwrap();
        assert_eq!((moved.to.0, moved.replayed, moved.skipped), expected, "{to:?}");
    }
    stage.run("COMMIT").await;
    stage.strike().await;
}

/// A binary search finds where a time begins: exactly where times rise, at the lowest offset where publishers overlapped.
#[tokio::test]
async fn a_start_by_time_is_where_the_time_begins() {
    let Some(stage) = Stage::set("message_retention_ms = NULL, max_retention_ms = NULL").await else {
        return;
    };
    let began = stage.clock.now();
    for _ in 0..40 {
        stage.publish(3).await;
        stage.clock.advance(Duration::from_secs(1));
    }
    // Missing offsets, and timestamps of publishers that overlapped.
    stage.run("DELETE FROM {schema}.message WHERE message_offset BETWEEN 31 AND 50").await;
    stage
        .run("UPDATE {schema}.message SET created_at = created_at + interval '5 seconds' WHERE message_offset IN (7, 70, 90, 91)")
        .await;
    stage.store.advance_heads().await.unwrap();
    let stored = stage.number("SELECT count(*) FROM {schema}.message").await;
    assert_eq!(stored, 100);
    for tenth in -5..450 {
        let at = began + jiff::SignedDuration::from_millis(tenth * 100);
        let searches = format!(
            "SELECT ARRAY[coalesce({{schema}}.first_since(1, 1, 120, '{at}'), 121),
                          coalesce((SELECT min(message_offset) FROM {{schema}}.message WHERE created_at >= '{at}'), 121)]"
        );
        let found: Vec<i64> = stage.client.query_one(&stage.scene.sql(&searches), &[]).await.unwrap().get(0);
        assert_eq!(found[0], found[1], "{tenth} tenths after the first");
    }
    stage.scene.drop().await;
}

/// Waits until two connections wait for locks.
async fn both_wait(stage: &Stage) {
    let watcher = stage.scene.client().await;
    let waits = format!(
        "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%{}%'",
        stage.scene.namespace
    );
    until_true("both wait", async || watcher.query_one(&waits, &[]).await.unwrap().get::<_, i64>(0) == 2)
        .await;
}

/// Two lanes, each with an expired lease, and cursors below the offsets that cleanup removes.
async fn expired_lanes() -> Option<(Stage, Subscription)> {
    let settings = "ordering = 'key', lanes = 2, max_retention_ms = 60000, heartbeat_timeout_ms = 300000";
    let stage = Stage::set(settings).await?;
    let a = stage.subscribe("a").await;
    stage.publish(10).await;
    assert_eq!(stage.clean().await, 0);
    let one = ClaimRequest { wants: vec![Want::new(a.subscription_id, 1)], ..request(&a) };
    for _ in 0..2 {
        assert_eq!(stage.store.claim(&one).await.unwrap().leases.len(), 1);
    }
    stage.run(&format!("UPDATE {{schema}}.subscription SET heartbeat_at = {}", stage.now())).await;
    stage.store.detect_dead().await.unwrap();
    Some((stage, a))
}

/// Runs maintenance until it waits for the cursor of one lane, then a claim that has the other lane's cursor and counts an
/// expiry.
async fn beside_a_claim(
    stage: &Stage,
    subscription: &Subscription,
    maintenance: impl Future<Output = crate::Result<()>> + Send + 'static,
) {
    stage.run("BEGIN; SELECT FROM {schema}.cursor WHERE lane = 0 FOR UPDATE").await;
    let maintenance = tokio::spawn(maintenance);
    until_waiting(stage).await;
    let store = Arc::clone(&stage.store);
    let request = request(subscription);
    let claim = tokio::spawn(async move { store.claim(&request).await });
    both_wait(stage).await;
    stage.run("COMMIT").await;
    maintenance.await.unwrap().expect("no deadlock in maintenance");
    claim.await.unwrap().expect("no deadlock in the claim");
}

#[tokio::test]
async fn cleanup_and_an_ordered_claim_never_wait_in_a_circle() {
    let Some((stage, a)) = expired_lanes().await else { return };
    stage.clock.advance(Duration::from_secs(301));
    let (store, topic) = (Arc::clone(&stage.store), stage.topic);
    let cleaning = async move { store.clean(topic, 100).await.map(|step| assert_eq!(step.removed, 10)) };
    beside_a_claim(&stage, &a, cleaning).await;
    assert_eq!(stage.number("SELECT min(next_offset) FROM {schema}.cursor").await, 11);
    stage.scene.drop().await;
}

#[tokio::test]
async fn a_death_and_an_ordered_claim_never_wait_in_a_circle() {
    let Some((stage, a)) = expired_lanes().await else { return };
    for _ in 0..2 {
        stage.clock.advance(Duration::from_secs(149));
        stage.store.detect_dead().await.unwrap();
    }
    stage.clock.advance(Duration::from_secs(3));
    let store = Arc::clone(&stage.store);
    let detecting = async move { store.detect_dead().await.map(|found| assert_eq!(found.died.len(), 1)) };
    beside_a_claim(&stage, &a, detecting).await;
    assert_eq!(stage.text("SELECT state FROM {schema}.subscription").await, "dead");
    stage.scene.drop().await;
}

/// Extending several leases locks them in the order of tokens; so does a seek that removes them.
#[tokio::test]
async fn a_seek_and_an_extension_never_wait_in_a_circle() {
    let Some(stage) = Stage::set("message_retention_ms = NULL").await else { return };
    let a = stage.subscribe("a").await;
    stage.publish(20).await;
    let mut leases = Vec::new();
    for _ in 0..2 {
        leases.push(stage.store.claim(&request(&a)).await.unwrap().leases.remove(0).id());
    }
    // The first is due later, and is stored behind the second in the table.
    stage.store.extend(&leases[..1], Duration::from_secs(600)).await.unwrap().remove(0).unwrap();
    stage
        .run(&format!(
            "BEGIN; SELECT FROM {{schema}}.outstanding WHERE token = {} FOR UPDATE",
            leases[0].token.0
        ))
        .await;
    let store = Arc::clone(&stage.store);
    let extending = tokio::spawn(async move { store.extend(&leases, Duration::from_secs(600)).await });
    until_waiting(&stage).await;
    let store = Arc::clone(&stage.store);
    let seeking = tokio::spawn(async move { store.seek(&orders(), &group(), Start::Beginning, false).await });
    both_wait(&stage).await;
    stage.run("COMMIT").await;
    assert_eq!(seeking.await.unwrap().expect("no deadlock in the seek").leases_lost, 2);
    extending.await.unwrap().expect("no deadlock in the extension");
    stage.strike().await;
}
