//! Commits wait for the disk and a synchronous standby, whatever the role or the session has set.

use super::*;

const WEAK: [&str; 3] = ["off", "local", "remote_write"];

#[tokio::test]
async fn publishing_in_the_callers_transaction_waits_for_disk_and_standby() {
    let Some(scene) = Scene::new() else { return };
    subscribed(&scene.open().await).await;
    let client = scene.client().await;
    let publish = scene.sql("BEGIN; SELECT {schema}.publish('orders', '1')");
    let weak = WEAK.map(|weak| (weak, "on"));
    for (before, inside) in weak.into_iter().chain([("on", "on"), ("remote_apply", "remote_apply")]) {
        client.batch_execute(&format!("SET synchronous_commit = {before}; {publish}")).await.unwrap();
        assert_eq!(setting(&client).await, inside, "{before} while it is open");
        client.batch_execute("COMMIT").await.unwrap();
        assert_eq!(setting(&client).await, before, "the caller's own setting is back");
    }
    scene.drop().await;
}

#[tokio::test]
async fn the_stores_own_sessions_wait_for_disk_and_standby() {
    let Some(scene) = Scene::new() else { return };
    for weak in WEAK {
        let store = open_with(&scene, weak).await;
        let client = store.connections.get().await.unwrap();
        assert_eq!(setting(&client).await, "on", "{weak}");
        // Behind a pooler the session may have settings of another program.
        let transaction = store.begin().await.unwrap();
        transaction.batch_execute("ROLLBACK").await.unwrap();
        transaction.batch_execute(&format!("SET synchronous_commit = {weak}; BEGIN")).await.unwrap();
        transaction.query(&store.statements.transaction_begin, &[&"mark"]).await.unwrap();
        assert_eq!(setting(&transaction).await, "on", "{weak} in a handler's transaction");
    }
    let stronger = open_with(&scene, "remote_apply").await;
    let client = stronger.connections.get().await.unwrap();
    assert_eq!(setting(&client).await, "remote_apply", "a stronger setting stays");
    drop(client);
    scene.drop().await;
}

#[tokio::test]
async fn settings_that_lose_data_are_warned_of() {
    let Some(scene) = Scene::new() else { return };
    let client = scene.client().await;
    let checks = async |store: &PostgresStore| {
        let found = store.durability().await.unwrap();
        found.into_iter().map(|finding| finding.check).collect::<Vec<_>>()
    };
    let mut expected = Vec::new();
    for (name, check) in [("fsync", "fsync_off"), ("full_page_writes", "full_page_writes_off")] {
        let value: String = client.query_one(&format!("SHOW {name}"), &[]).await.unwrap().get(0);
        expected.extend((value == "off").then_some(check));
    }
    assert_eq!(checks(&open_with(&scene, "on").await).await, expected);
    expected.push("synchronous_commit_weak");
    assert_eq!(checks(&open_with(&scene, "local").await).await, expected);
    assert_eq!(scene.open().await.doctor().await.unwrap(), [], "not a defect of the store");
    scene.drop().await;
}

async fn open_with(scene: &Scene, synchronous_commit: &str) -> PostgresStore {
    let url = format!("{}?options=-c%20synchronous_commit%3D{synchronous_commit}", scene.url);
    PostgresStore::open(&url, scene.namespace.clone(), OpenOptions::default()).await.unwrap()
}

async fn setting(client: &Client) -> String {
    client.query_one("SHOW synchronous_commit", &[]).await.unwrap().get(0)
}
