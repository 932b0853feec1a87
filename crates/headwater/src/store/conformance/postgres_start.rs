//! Groups that subscribe while transactions are open: each start is exact about what has yet to commit.

use std::time::Duration;

use super::case::{Case, Scene};
use super::sessions::{Session, gaps_close, nothing_comes, numbers, numbers_until, scene_with_patience};
use crate::message::Offset;
use crate::subscription::Start;

const PATIENCE: Duration = Duration::from_millis(50);
/// A patience that no case waits out.
const LONG: Duration = Duration::from_secs(600);

/// What committed before is out, what commits afterwards is in, although its offset is lower.
pub async fn now_is_exact_with_an_open_transaction(case: &Case) {
    for (patience, read_first) in [(PATIENCE, true), (PATIENCE, false), (LONG, false)] {
        let scene = scene_with_patience_named(case, patience, read_first).await;
        let (open, other) = (Session::open(case).await, Session::open(case).await);
        other.publish_number(scene.topic.as_str(), 0).await;
        open.begin().await;
        open.publish_number(scene.topic.as_str(), 1).await;
        other.publish_number(scene.topic.as_str(), 2).await;
        if read_first {
            // The head has stepped over the gap before the group subscribes.
            assert_eq!(numbers_until(&scene, 2).await.0, [0, 2]);
        }
        let now = scene.subscribe("now", Start::Now).await;
        nothing_comes(&now, PATIENCE).await;
        other.publish_number(scene.topic.as_str(), 3).await;
        open.publish_number(scene.topic.as_str(), 4).await;
        open.commit().await;
        let (mut got, _) = numbers_until(&now, 3).await;
        got.sort_unstable();
        assert_eq!(got, [1, 3, 4], "patience {patience:?}, read first: {read_first}");
        nothing_comes(&now, PATIENCE).await;
        gaps_close(&scene).await;
    }
}

async fn scene_with_patience_named(case: &Case, patience: Duration, read_first: bool) -> Scene {
    let store = case.open_with(case.real_time_options()).await.expect("the store opens");
    let settings = crate::TopicSettings { gap_patience: patience, ..crate::TopicSettings::pub_sub() };
    Scene::new(store, &format!("start-{}-{read_first}", patience.as_millis()), settings).await
}

/// A group that starts at the beginning gets everything once, also messages that were uncommitted when it subscribed.
pub async fn beginning_waits_for_an_open_transaction(case: &Case) {
    let scene = scene_with_patience(case, PATIENCE).await;
    let (open, other) = (Session::open(case).await, Session::open(case).await);
    open.begin().await;
    open.publish(1).await;
    other.publish(2).await;
    let before = scene.subscribe("before the step", Start::Beginning).await;
    assert_eq!(numbers_until(&scene, 1).await.0, [2]);
    let after = scene.subscribe("after the step", Start::Beginning).await;
    let reading = scene.subscribe("reading", Start::Beginning).await;
    assert_eq!(numbers_until(&reading, 1).await.0, [2]);
    open.commit().await;
    for group in [&before, &after] {
        let (mut got, _) = numbers_until(group, 2).await;
        got.sort_unstable();
        assert_eq!(got, [1, 2]);
    }
    for group in [&scene, &reading] {
        assert_eq!(numbers_until(group, 1).await.0, [1]);
    }
    for group in [&scene, &before, &after, &reading] {
        nothing_comes(group, PATIENCE).await;
    }
    gaps_close(&scene).await;
}

/// Starts by offset and by count include uncommitted messages in their range, and nothing below it.
pub async fn offset_and_bounded_starts_wait_for_an_open_transaction(case: &Case) {
    let scene = scene_with_patience(case, PATIENCE).await;
    let (open, other) = (Session::open(case).await, Session::open(case).await);
    open.begin().await;
    let first = open.publish(1).await;
    other.publish(2).await;
    let third = open.publish(3).await;
    other.publish(4).await;
    assert_eq!(numbers_until(&scene, 2).await.0, [2, 4]);
    let from_third = scene.subscribe("from third", Start::Offset(Offset(third))).await;
    let from_first = scene.subscribe("from first", Start::Offset(Offset(first))).await;
    let last_two = scene.subscribe("last two", Start::BeginningBounded(2)).await;
    assert_eq!(numbers_until(&from_third, 1).await.0, [4]);
    open.commit().await;
    assert_eq!(numbers_until(&from_third, 1).await.0, [3]);
    let (mut all, _) = numbers_until(&from_first, 4).await;
    all.sort_unstable();
    assert_eq!(all, [1, 2, 3, 4]);
    let (mut two, _) = numbers_until(&last_two, 2).await;
    two.sort_unstable();
    assert_eq!(two, [3, 4]);
    for group in [&from_third, &from_first, &last_two] {
        nothing_comes(group, PATIENCE).await;
    }
}

/// Many publishers commit while groups subscribe at now: what committed before the call is out, what begins to commit
/// after its return is in, each once.
pub async fn now_is_exact_at_every_interleaving(case: &Case) {
    let scene = scene_with_patience(case, Duration::from_millis(5)).await;
    for round in 0..12_i64 {
        let (before, open_one, open_two, after) = (
            Session::open(case).await,
            Session::open(case).await,
            Session::open(case).await,
            Session::open(case).await,
        );
        let base = round * 10;
        open_one.begin().await;
        open_one.publish(base + 1).await;
        open_two.begin().await;
        if round % 2 == 0 {
            open_two.publish(base + 2).await;
        } else {
            open_two.take_xid().await;
        }
        before.publish(base + 3).await;
        if round % 3 == 0 {
            scene.drain("reader").await;
        }
        let group = scene.subscribe(&format!("now-{round}"), Start::Now).await;
        if round % 2 == 1 {
            open_two.publish(base + 2).await;
        }
        open_two.commit().await;
        after.publish(base + 4).await;
        open_one.commit().await;
        let got = group.drain_until("reader", 3).await;
        let mut got = numbers(&got);
        got.sort_unstable();
        assert_eq!(got, [base + 1, base + 2, base + 4], "round {round}");
        nothing_comes(&group, Duration::from_millis(20)).await;
    }
    gaps_close(&scene).await;
}
