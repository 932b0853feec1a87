//! Sessions that settle, extend or release the same leases at once. Each waits for a row that another replaces, and finds the rest.

use tokio::task::JoinHandle;
use tokio_postgres::SimpleQueryMessage;

use super::lives::{until_a_session_waits, until_sessions_wait};
use super::races::{in_time, until_true};
use super::*;

const A: i64 = 70;
/// Handed out before A, and after it in the order of locks.
const B: i64 = 60;

/// Two leases of one owner, A of offsets 1 to 5 and B of 11 to 15. In the table B comes first.
async fn two_leases(scene: &Scene, owner: &str) -> PostgresStore {
    let store = scene.open().await;
    subscribed(&store).await;
    store.publish(&orders(), &vec![NewMessage::new("x"); 20]).await.unwrap();
    store.advance_heads().await.unwrap();
    let rows = format!(
        "INSERT INTO {{schema}}.outstanding (token, first_offset, last_offset, due_at, subscription_id, owner)
         VALUES ({B}, 11, 15, clock_timestamp() + interval '1 hour', 1, '{owner}'),
                ({A}, 1, 5, clock_timestamp() + interval '1 hour', 1, '{owner}');
         UPDATE {{schema}}.cursor SET next_offset = 16"
    );
    scene.client().await.batch_execute(&scene.sql(&rows)).await.unwrap();
    store
}

/// Runs a query in a session of its own; its result is the first column.
async fn session(scene: &Scene, query: &str) -> JoinHandle<Result<Vec<String>, tokio_postgres::Error>> {
    let (client, query) = (scene.client().await, scene.sql(&format!("SELECT {{schema}}.{query}")));
    tokio::spawn(async move {
        let answer = client.simple_query(&query).await?;
        let rows = answer.iter().filter_map(|message| match message {
            SimpleQueryMessage::Row(row) => Some(row.get(0).unwrap_or("null").to_owned()),
            _ => None,
        });
        Ok(rows.collect())
    })
}

async fn outcome(what: &str, session: JoinHandle<Result<Vec<String>, tokio_postgres::Error>>) -> Vec<String> {
    in_time(what, session).await.unwrap().unwrap_or_else(|error| panic!("{what}: {error:?}"))
}

fn ack_part(token: i64, offset: i64) -> String {
    format!(
        "settle_parts({token}, 1, 'o', '{{{offset}}}', '{{{offset}}}', '{{ack}}', '{{0}}', '{{NULL}}', '{{NULL}}', false, NULL)"
    )
}

/// Acks leases in the order of their tokens, which is not that of locks.
fn ack_whole(tokens: &[i64]) -> String {
    ack_whole_at(tokens, "NULL")
}

fn ack_whole_at(tokens: &[i64], now: &str) -> String {
    let (subscriptions, owners) = (vec![1; tokens.len()], vec!["o"; tokens.len()]);
    format!("settle_all(ARRAY{tokens:?}, ARRAY{subscriptions:?}, '{{{}}}', false, {now})", owners.join(","))
}

fn extend_both() -> String {
    format!("extend_leases('{{{B},{A}}}', '{{1,1}}', '{{o,o}}', 7200000, false, NULL)")
}

/// A session that holds rows until it commits.
async fn holding(scene: &Scene, rows: &str) -> Client {
    let client = scene.client().await;
    let lock = format!("BEGIN; SELECT FROM {{schema}}.outstanding WHERE {rows} FOR UPDATE");
    client.batch_execute(&scene.sql(&lock)).await.unwrap();
    client
}

/// Waits until a session waits for this one.
pub(super) async fn until_waited_for(scene: &Scene, holder: &Client) {
    let pid: i32 = holder.query_one("SELECT pg_backend_pid()", &[]).await.unwrap().get(0);
    let client = scene.client().await;
    let waits = "SELECT FROM pg_stat_activity WHERE $1 = ANY (pg_blocking_pids(pid))";
    until_true("a session waits", async || !client.query(waits, &[&pid]).await.unwrap().is_empty()).await;
}

/// What is left of the leases, as ranges.
async fn left(scene: &Scene) -> Vec<(i64, i64)> {
    let left = scene.sql("SELECT first_offset, last_offset FROM {schema}.outstanding ORDER BY 1");
    let rows = scene.client().await.query(&left, &[]).await.unwrap();
    rows.iter().map(|row| (row.get(0), row.get(1))).collect()
}

/// Two sessions wait for lease A, the first of which acks offset 2. Returns the outcome of the second.
async fn after_a_part(scene: &Scene, first: &str, second: &str) -> Vec<String> {
    let gate = holding(scene, "true").await;
    let first = session(scene, first).await;
    until_a_session_waits(scene).await;
    let second = session(scene, second).await;
    until_sessions_wait(scene, 2).await;
    gate.batch_execute("COMMIT").await.unwrap();
    assert_ne!(outcome("the ack of a part", first).await, ["null"]);
    outcome("the second session", second).await
}

#[tokio::test]
async fn two_settlements_of_parts_of_one_lease_both_find_it() {
    let Some(scene) = Scene::new() else { return };
    let store = two_leases(&scene, "o").await;
    assert_ne!(after_a_part(&scene, &ack_part(A, 2), &ack_part(A, 4)).await, ["null"]);
    assert_eq!(left(&scene).await, [(1, 1), (3, 3), (5, 5), (11, 15)]);
    // Of several rows, too, the first of which is gone.
    assert_ne!(after_a_part(&scene, &ack_part(A, 1), &ack_part(A, 5)).await, ["null"]);
    assert_eq!(left(&scene).await, [(3, 3), (11, 15)]);
    assert_eq!(after_a_part(&scene, &ack_part(A, 3), &ack_part(A, 3)).await, ["null"], "nothing is left");
    assert_eq!(store.doctor().await.unwrap(), []);
    scene.drop().await;
}

#[tokio::test]
async fn plain_sql_settles_what_another_session_left_of_a_lease() {
    let part = format!("ack({A}, '{{2}}')");
    for (second, expected, rest) in [
        (format!("ack({A}, '{{4}}')"), "1", vec![(1, 1), (3, 3), (5, 5), (11, 15)]),
        (format!("ack({A})"), "4", vec![(11, 15)]),
        (format!("release({A})"), "4", vec![(1, 1), (3, 5), (11, 15)]),
    ] {
        let Some(scene) = Scene::new() else { return };
        let store = two_leases(&scene, "sql o").await;
        assert_eq!(after_a_part(&scene, &part, &second).await, [expected], "{second}");
        assert_eq!(left(&scene).await, rest, "{second}");
        // A lease of several rows, as nothing waits.
        assert_eq!(outcome("an ack", session(&scene, &format!("ack({B}, '{{13}}')")).await).await, ["1"]);
        assert_eq!(outcome("an ack", session(&scene, &format!("ack({B})")).await).await, ["4"]);
        assert!(!left(&scene).await.contains(&(11, 12)));
        assert_eq!(store.doctor().await.unwrap(), []);
        scene.drop().await;
    }
}

#[tokio::test]
async fn a_release_by_hand_ends_what_a_settlement_left_of_a_lease() {
    let Some(scene) = Scene::new() else { return };
    let store = two_leases(&scene, "o").await;
    let release = format!("release_lease({A}, 'tester', NULL)");
    assert_ne!(after_a_part(&scene, &ack_part(A, 2), &release).await, ["null"]);
    let held =
        format!("SELECT count(*) FROM {{schema}}.outstanding WHERE token <> {B} AND owner IS NOT NULL");
    assert_eq!(scene.number(&scene.client().await, &held).await, 0);
    assert_eq!(left(&scene).await, [(1, 1), (3, 5), (11, 15)]);
    assert_eq!(store.doctor().await.unwrap(), []);
    scene.drop().await;
}

#[tokio::test]
async fn an_ack_of_whole_leases_beside_a_settlement_of_parts_leaves_nothing() {
    let Some(scene) = Scene::new() else { return };
    let store = two_leases(&scene, "o").await;
    assert_eq!(after_a_part(&scene, &ack_part(A, 2), &ack_whole(&[A])).await, ["(70,)", "(70,)"]);
    assert_eq!(left(&scene).await, [(11, 15)]);
    scene.drop().await;

    // The rows of B are found, and replaced before they are reached. One of them is there again, smaller.
    let Some(scene) = Scene::new() else { return };
    drop(store);
    let store = two_leases(&scene, "o").await;
    let gate = holding(&scene, "first_offset = 1").await;
    let whole = session(&scene, &ack_whole(&[B, A])).await;
    until_waited_for(&scene, &gate).await;
    assert_ne!(outcome("the part", session(&scene, &ack_part(B, 13)).await).await, ["null"]);
    gate.batch_execute("COMMIT").await.unwrap();
    assert_eq!(outcome("the ack", whole).await, ["(70,)", "(60,)", "(60,)"]);
    assert_eq!(left(&scene).await, []);
    assert_eq!(store.doctor().await.unwrap(), []);
    scene.drop().await;
}

/// The extension of A has not committed when the old deadlines pass: A is held once it commits, and B is lost.
#[tokio::test]
async fn an_ack_beside_an_extension_that_commits_late_finds_the_lease() {
    let Some(scene) = Scene::new() else { return };
    let store = two_leases(&scene, "o").await;
    let extending = scene.client().await;
    let extend =
        format!("BEGIN; SELECT {{schema}}.extend_leases('{{{A}}}', '{{1}}', '{{o}}', 7200000, false, NULL)");
    extending.batch_execute(&scene.sql(&extend)).await.unwrap();
    let late = ack_whole_at(&[B, A], "clock_timestamp() + interval '90 minutes'");
    let whole = session(&scene, &late).await;
    until_waited_for(&scene, &extending).await;
    extending.batch_execute("COMMIT").await.unwrap();
    assert_eq!(outcome("the ack", whole).await, ["(70,)"]);
    assert_eq!(left(&scene).await, [(11, 15)]);
    assert!(outcome("the ack again", session(&scene, &late).await).await.is_empty());
    assert_eq!(left(&scene).await, [(11, 15)]);
    assert_eq!(store.doctor().await.unwrap(), []);
    scene.drop().await;
}

/// The extension waits for A while its rows are replaced, and then for B. It must hold the new rows of A by then: the ack of both
/// leases waits for B with them.
#[tokio::test]
async fn an_extension_that_waits_holds_all_that_is_left_of_an_earlier_lease() {
    let Some(scene) = Scene::new() else { return };
    let store = two_leases(&scene, "o").await;
    let (gate, settling) = (holding(&scene, "first_offset = 11").await, scene.client().await);
    let part = format!("BEGIN; SELECT {{schema}}.{}", ack_part(A, 2));
    settling.batch_execute(&scene.sql(&part)).await.unwrap();
    let extension = session(&scene, &extend_both()).await;
    until_waited_for(&scene, &settling).await;
    settling.batch_execute("COMMIT").await.unwrap();
    until_waited_for(&scene, &gate).await;
    let whole = session(&scene, &ack_whole(&[B, A])).await;
    until_sessions_wait(&scene, 2).await;
    gate.batch_execute("COMMIT").await.unwrap();
    assert_eq!(outcome("the extension", extension).await, ["60", "70"]);
    assert_eq!(outcome("the ack", whole).await, ["(70,)", "(70,)", "(60,)"]);
    assert_eq!(left(&scene).await, []);
    assert_eq!(store.doctor().await.unwrap(), []);
    scene.drop().await;
}

/// Rows are stored in another order than that of locks, and tokens are given in a third.
#[tokio::test]
async fn sessions_that_wait_for_a_lease_hold_no_later_one() {
    for (first, second) in [(ack_whole(&[B, A]), extend_both()), (extend_both(), ack_whole(&[A, B]))] {
        let Some(scene) = Scene::new() else { return };
        let store = two_leases(&scene, "o").await;
        let gate = holding(&scene, "first_offset = 1").await;
        let mut sessions = Vec::new();
        for (waiting, query) in [(1, &first), (2, &second)] {
            sessions.push(session(&scene, query).await);
            until_sessions_wait(&scene, waiting).await;
        }
        let later = scene.sql("SELECT FROM {schema}.outstanding WHERE first_offset = 11 FOR UPDATE NOWAIT");
        gate.batch_execute(&later).await.expect("the later lease is free");
        gate.batch_execute("COMMIT").await.unwrap();
        for session in sessions {
            outcome("both sessions", session).await;
        }
        assert_eq!(left(&scene).await, [], "acked, whatever came first");
        assert_eq!(store.doctor().await.unwrap(), []);
        scene.drop().await;
    }
}
