//! The views for people: what each shows. That both engines have the same columns is a test of docs/sql.md.

use super::*;

async fn text(scene: &Scene, client: &Client, sql: &str) -> String {
    let rows = client.query(&scene.sql(sql), &[]).await.unwrap_or_else(|error| panic!("{sql}: {error:?}"));
    rows.iter().map(|row| row.get::<_, String>(0)).collect::<Vec<_>>().join("; ")
}

#[tokio::test]
async fn views_show_what_is_stored() {
    let Some(scene) = Scene::new() else { return };
    let store = scene.open().await;
    let subscription = subscribed(&store).await;
    let client = scene.client().await;
    store
        .publish(
            &orders(),
            &[NewMessage::new("größe").key("k"), NewMessage::new(vec![0, 255]), NewMessage::new("x")],
        )
        .await
        .unwrap();
    store
        .publish(
            &orders(),
            &[NewMessage::new("later").deliver_at(jiff::Timestamp::now() + Duration::from_secs(3600))],
        )
        .await
        .unwrap();
    let lag = "SELECT group_name || ' ' || state || ' ' || next_offset || ' ' || head || ' ' || lag FROM {schema}.subscriptions";
    assert_eq!(text(&scene, &client, lag).await, "a active 1 3 3", "also before any claim");
    let lease = store.claim(&request(&subscription)).await.unwrap().leases.remove(0);
    let bury = crate::settle::Outcome::Bury { error: "hopeless".into() };
    let parts = vec![(crate::store::OffsetRange::one(crate::Offset(3)), bury)];
    store.settle(&[Settlement::each(&lease, parts)]).await.unwrap().remove(0).unwrap();
    for (sql, expected) in [
        (lag, "a active 4 3 2"),
        ("SELECT payload FROM {schema}.messages ORDER BY message_offset", "größe; x'00FF'; x"),
        (
            "SELECT topic || ' ' || first_offset || ' ' || head || ' ' || scheduled FROM {schema}.topics",
            "orders 1 3 1",
        ),
        (
            "SELECT first_offset || '-' || last_offset || ' ' || owner FROM {schema}.outstanding_ranges",
            "1-2 tester",
        ),
        ("SELECT group_name || ' ' || error || ' ' || payload FROM {schema}.dead_letters", "a hopeless x"),
        (
            "SELECT topic || ' ' || payload || ' ' || (deliver_at > now()) FROM {schema}.scheduled",
            "orders later true",
        ),
        ("SELECT topic || ' ' || done_and_stored FROM {schema}.cleanup", "orders 0"),
        ("SELECT topic FROM {schema}.stuck", ""),
        ("SELECT topic FROM {schema}.near_timeout", ""),
        // No process sent a heartbeat.
        ("SELECT group_name || ' ' || holds_messages FROM {schema}.orphaned_groups", "a true"),
    ] {
        assert_eq!(text(&scene, &client, sql).await, expected, "{sql}");
    }
    client
        .batch_execute(&scene.sql("UPDATE {schema}.subscription SET heartbeat_at = now() - interval '250 s'"))
        .await
        .unwrap();
    let silent = "SELECT group_name || ' ' || (silent_s BETWEEN 249 AND 300) || ' ' || timeout_s FROM {schema}.near_timeout";
    assert_eq!(text(&scene, &client, silent).await, "a true 300");
    assert_eq!(text(&scene, &client, "SELECT group_name FROM {schema}.orphaned_groups").await, "");
    client
        .batch_execute(&scene.sql("UPDATE {schema}.message SET created_at = now() - interval '2 hours'"))
        .await
        .unwrap();
    let stuck = "SELECT group_name || ' ' || lag || ' ' || message_offset || ' ' || (oldest_s >= 7200) FROM {schema}.stuck";
    assert_eq!(text(&scene, &client, stuck).await, "a 2 1 true");
    scene.drop().await;
}

#[tokio::test]
async fn a_backfill_shows_its_progress_and_when_it_ends() {
    let Some(scene) = Scene::new() else { return };
    let store = scene.open().await;
    let subscription = subscribed(&store).await;
    let client = scene.client().await;
    let insert = format!(
        "UPDATE {{schema}}.topic SET settings = settings || '{{\"tracking\": \"reference_counting\"}}';
         DELETE FROM {{schema}}.backfill;
         INSERT INTO {{schema}}.backfill (subscription_id, state, first_offset, last_offset, checkpoint, rate_max, created_at, ran_ms)
         VALUES ({}, 'in_progress', 1, 1000, 250, 1000, now(), 500)",
        subscription.subscription_id
    );
    client.batch_execute(&scene.sql(&insert)).await.unwrap();
    let shown = "SELECT concat_ws(' ', state, processed, total, percent, per_second, eta_s) FROM {schema}.backfill_progress";
    assert_eq!(text(&scene, &client, shown).await, "in_progress 250 1000 25.0 500.0 2");
    scene.drop().await;
}

#[tokio::test]
async fn roles_read_the_views_of_their_part() {
    let Some(scene) = Scene::new() else { return };
    subscribed(&scene.open().await).await;
    let client = scene.client().await;
    for (role, view, allowed) in [
        ("reader", "subscriptions", true),
        ("operator", "dead_letters", true),
        ("consumer", "subscriptions", true),
        ("consumer", "messages", true),
        ("producer", "topics", false),
        ("producer", "messages", false),
    ] {
        client.batch_execute(&scene.sql(&format!("SET ROLE {{name}}_{role}"))).await.unwrap();
        let read = client.query(&scene.sql(&format!("SELECT * FROM {{schema}}.{view}")), &[]).await;
        assert_eq!(read.is_ok(), allowed, "{role}: {view}: {read:?}");
        client.batch_execute("RESET ROLE").await.unwrap();
    }
    // A role that has the right to a view can read it: functions in it are called with the rights of the reader.
    let granted = "SELECT k.kind, c.relname::text FROM pg_class c, unnest(ARRAY['producer', 'consumer', 'reader', 'operator']) k (kind)
        WHERE c.relnamespace = '{schema}'::regnamespace AND c.relkind = 'v' AND has_table_privilege('{name}_' || k.kind, c.oid, 'SELECT')";
    let granted = client.query(&scene.sql(granted), &[]).await.unwrap();
    assert!(granted.len() >= 50, "{} pairs", granted.len());
    for row in granted {
        let (role, view): (&str, &str) = (row.get(0), row.get(1));
        client.batch_execute(&scene.sql(&format!("SET ROLE {{name}}_{role}"))).await.unwrap();
        let read = client.query(&scene.sql(&format!("SELECT * FROM {{schema}}.{view}")), &[]).await;
        assert!(read.is_ok(), "{role}: {view}: {read:?}");
        client.batch_execute("RESET ROLE").await.unwrap();
    }
    scene.drop().await;
}
