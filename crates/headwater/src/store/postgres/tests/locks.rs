//! Which locks claims take: none that a role without rights could hold against them, and none at all where nothing is there.

use super::races::{claim_of, in_time};
use super::*;
use crate::lease::GroupLimits;
use crate::topic::Ordering;

/// A claim as a statement of its own connection: 10 messages at most.
fn claim_sql(scene: &Scene, subscription: &Subscription, limits: &str) -> String {
    scene.sql(&format!(
        "SELECT * FROM {{schema}}.claim('tester', ARRAY[{}], ARRAY[10], ARRAY[60000::bigint], {limits}, false, 1000, 20000, 10000, 1000, NULL)",
        subscription.subscription_id.0
    ))
}

/// Every advisory lock whose number is derived from what is public, and every one that is seen in use.
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
    in_time("a pause", store.shift(&orders(), &group, crate::subscription::Transition::Pause)).await.unwrap();
    let done = in_time("a migration", migrate(&scene.url, &scene.namespace, &OpenOptions::default())).await;
    assert_eq!(done.unwrap().to, NEWEST);

    // Nor may those who consume, publish or read take what claims are held apart by.
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
        // With limits and without; the first look may still move the head.
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
