//! The epoch: a change of the store's history never goes unnoticed by a client that keeps state.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::case::{Case, DEADLINE, failed, offsets_of};
use crate::error::ErrorKind;
use crate::headwater::Headwater;
use crate::lease::{ClaimRequest, Claimed, Want};
use crate::message::{Message, NewMessage};
use crate::settle::Settlement;
use crate::store::conformance::case::{Scene, owner};
use crate::topic::TopicSettings;

async fn claim(scene: &Scene, name: &str) -> Claimed {
    let wants = vec![Want::new(scene.subscription.subscription_id, 10)];
    scene.store.claim(&ClaimRequest { owner: owner(name), wants }).await.expect("claims")
}

/// A client must be able to detect that an offset may now belong to another message.
pub async fn a_lost_history_changes_the_epoch(case: &Case) {
    let scene = case.queue().await;
    scene.publish(3).await;
    let first = claim(&scene, "a").await;
    scene.ack(&first.leases[0]).await;
    case.harness().copy().await;
    let lost = scene.publish(2).await;
    let second = claim(&scene, "a").await;
    assert_eq!(first.epoch, second.epoch, "nothing happened to the history");
    scene.ack(&second.leases[0]).await;
    case.harness().restore().await;
    assert_eq!(scene.publish(2).await, lost, "the offsets are given out again");
    let third = claim(&scene, "a").await;
    assert_eq!(third.leases[0].range, second.leases[0].range);
    assert_ne!(third.epoch, second.epoch, "another history");
    scene.ack(&third.leases[0]).await;
    scene.publish(1).await;
    let fourth = claim(&scene, "a").await;
    assert_eq!(fourth.epoch, third.epoch, "the history continues");
    scene.ack(&fourth.leases[0]).await;
    shown_for_a_day(case, &scene).await;
}

/// The count of hand-outs goes back with the history. A token is never issued again, not even for the same owner and
/// group.
pub async fn a_token_of_a_lost_history_ends_no_lease(case: &Case) {
    let scene = case.queue().await;
    scene.publish(4).await;
    case.harness().copy().await;
    let stale = scene.claim_one("a", 2).await;
    case.harness().restore().await;
    let held = scene.claim_one("a", 2).await;
    assert_eq!(held.range, stale.range, "handed out again");
    failed(scene.extend(&stale, Duration::from_secs(60)).await, ErrorKind::LeaseLost);
    failed(scene.settle(Settlement::ack_all(&stale)).await, ErrorKind::LeaseLost);
    assert_eq!(scene.status().await.in_flight, 2, "the lease is still held");
    scene.ack(&held).await;
    assert_eq!(offsets_of(&scene.drain("a").await), [3, 4]);
    shown_for_a_day(case, &scene).await;
}

/// A running consumer caches messages by offset. It must not hand them out for messages of a new history.
pub async fn running_consumers_handle_what_the_new_history_holds(case: &Case) {
    let options = case.real_time_options();
    let headwater = Headwater::open_with(&case.harness().url(), options).await.expect("opens");
    let scene = Scene::new(Arc::clone(headwater.store()), "orders", TopicSettings::pub_sub()).await;
    let handled: Arc<Mutex<Vec<String>>> = Arc::default();
    let note = Arc::clone(&handled);
    let running = headwater
        .consumer("orders", "workers")
        .member("one", move |message: Message, _: crate::Context| {
            note.lock().unwrap().push(String::from_utf8_lossy(&message.payload).into_owned());
            async { Ok(()) }
        })
        .run()
        .await
        .expect("runs");
    case.harness().copy().await;
    for history in ["old", "new"] {
        let messages: Vec<_> = (1..=5).map(|n| NewMessage::new(format!("{history}-{n}"))).collect();
        let published = scene.store.publish(&scene.topic, &messages).await.expect("publishes");
        assert_eq!(published[0].offset.map(|offset| offset.0), Some(1), "the same offsets in both");
        let until = tokio::time::Instant::now() + DEADLINE;
        while handled.lock().unwrap().iter().filter(|text| text.starts_with(history)).count() < 5 {
            let so_far = handled.lock().unwrap().clone();
            assert!(tokio::time::Instant::now() < until, "not all {history} handled: {so_far:?}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        if history == "old" {
            while scene.status().await.floor.0 < 5 {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            case.harness().restore().await;
        }
    }
    running.shutdown(Duration::from_secs(10)).await.expect("ends");
    headwater.close().await.expect("closes");
    case.harness()
        .sql("DELETE FROM headwater_meta WHERE key = 'epoch_changed_at_ms'", "SELECT 1")
        .await
        .unwrap();
}

/// The doctor reports a changed epoch for a day, because an operator must be informed. A crash of the server loses
/// nothing acknowledged and is not reported.
async fn shown_for_a_day(case: &Case, scene: &Scene) {
    let found = scene.store.doctor().await.expect("the doctor runs");
    assert!(found.iter().all(|finding| finding.check == "epoch_changed"), "{found:?}");
    case.advance(Duration::from_secs(25 * 3600));
    assert_eq!(scene.store.doctor().await.expect("the doctor runs"), []);
}
