//! A wrong deploy does not empty a backlog into the dead letters: the group pauses itself, and nothing is lost.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use headwater::consumer::Undecodable;
use headwater::health::HealthState;
use headwater::store::{DeadLetterSelection, HealthIssue};
use headwater::testing::{ManualClock, Stepper};
use headwater::{Headwater, Json, NewMessage, Running, SubscriptionState};
use serde::{Deserialize, Serialize};

use crate::each::{DEADLINE, Place, Seen, eventually, on_each};
use crate::logs::{capture, lines_of};

on_each!(
    a_wrong_deploy_pauses_its_group_and_loses_nothing,
    each_process_buries_no_more_than_the_limit,
    what_cannot_be_decoded_is_retried_if_wanted,
    what_cannot_be_decoded_pauses_the_group_if_wanted,
    without_a_limit_everything_is_buried,
);

/// Large enough that a group without a limit would bury far more than the limit while its pause is stored.
const BACKLOG: u64 = 100_000;

/// What is published.
#[derive(Serialize, Deserialize)]
struct Order {
    id: u64,
}

/// What a wrong deploy expects: the field was renamed.
#[derive(Deserialize)]
struct Renamed {
    #[serde(rename = "number")]
    _number: u64,
}

async fn publish(headwater: &Headwater, topic: &str, count: u64) {
    let messages: Vec<_> = (0..count).map(|id| NewMessage::json(&Order { id }).unwrap()).collect();
    for batch in messages.chunks(5_000) {
        headwater.producer(topic).send_batch(batch).await.unwrap();
    }
}

async fn wrong(headwater: &Headwater, topic: &str) -> Running {
    let member = |_: Json<Renamed>, _| async { Ok(()) };
    headwater.consumer(topic, "email").member("mailer", member).run().await.unwrap()
}

async fn until_paused(running: &Running) {
    eventually("the group pauses itself", async || running.health().state == HealthState::Paused).await;
}

async fn a_wrong_deploy_pauses_its_group_and_loses_nothing(place: Place) {
    capture();
    let headwater = place.open().await;
    let topic = format!("deployed-{}", headwater.store().engine());
    publish(&headwater, &topic, BACKLOG).await;
    let running = wrong(&headwater, &topic).await;
    until_paused(&running).await;
    let reason = running.health().reason.unwrap();
    assert!(reason.starts_with("the group paused itself: 100 messages in a row"), "{reason}");
    running.shutdown(DEADLINE).await.unwrap();

    let groups = headwater.groups(&topic);
    let group = groups.get("email").await.unwrap();
    let (status, lag) = (&group.status, BACKLOG - 100);
    assert_eq!((status.state, status.dead_letters, status.lag), (SubscriptionState::Paused, 100, lag));
    assert!(status.state_reason.as_ref().is_some_and(|reason| reason.contains("missing field `number`")));
    assert!(group.health_issues.contains(&HealthIssue::Paused), "{:?}", group.health_issues);
    let entry = headwater.audit(1).await.unwrap().remove(0);
    assert!(entry.act == "pause" && entry.detail.contains("100 messages in a row"), "{entry:?}");
    let lines = lines_of(&topic);
    let warned = |line: &&String| line.contains("WARN") && line.contains("group paused itself");
    let warning = lines.iter().find(warned).expect("the pause is logged");
    assert!(warning.contains("group resume") && warning.contains("dead-letter redrive"), "{warning}");

    // The right version is deployed.
    let (handled, all) = (Arc::new(AtomicU64::new(0)), Seen::default());
    let (count, note) = (Arc::clone(&handled), all.clone());
    let member = move |Json(order): Json<Order>, _| {
        count.fetch_add(1, Ordering::Relaxed);
        note.add(order.id);
        async { Ok(()) }
    };
    let running = headwater.consumer(&topic, "email").member("mailer", member).run().await.unwrap();
    groups.resume("email").await.unwrap();
    let buried = DeadLetterSelection::all(status.subscription_id);
    assert_eq!(headwater.store().redrive(&buried).await.unwrap().redriven, 100);
    eventually("all are handled", async || handled.load(Ordering::Relaxed) >= BACKLOG).await;
    running.shutdown(DEADLINE).await.unwrap();
    assert_eq!(all.all().into_iter().collect::<BTreeSet<_>>().len() as u64, BACKLOG);
    let status = groups.get("email").await.unwrap().status;
    assert_eq!((status.state, status.dead_letters, status.lag), (SubscriptionState::Active, 0, 0));
    assert_eq!(status.state_reason, None);
    place.leave(&headwater).await;
}

async fn each_process_buries_no_more_than_the_limit(place: Place) {
    let (one, two) = (place.open().await, place.open().await);
    publish(&one, "orders", 5_000).await;
    let running = [wrong(&one, "orders").await, wrong(&two, "orders").await];
    for running in running {
        until_paused(&running).await;
        running.shutdown(DEADLINE).await.unwrap();
    }
    let status = one.groups("orders").get("email").await.unwrap().status;
    assert_eq!(status.state, SubscriptionState::Paused);
    assert!((100..=200).contains(&status.dead_letters), "{} dead letters", status.dead_letters);
    assert_eq!(status.lag + status.dead_letters, 5_000, "nothing else was settled");
    two.close().await.unwrap();
    place.leave(&one).await;
}

/// A consumer by steps, with one message that it cannot decode and one that it can.
async fn stepping(place: &Place, undecodable: Undecodable) -> (Headwater, ManualClock, Stepper, Seen<u64>) {
    let clock = ManualClock::at("2026-03-02T09:00:00Z".parse().unwrap());
    let headwater = place.open_at(&clock).await;
    headwater.topic("orders").max_attempts(2).create().await.unwrap();
    for payload in ["{broken", "7"] {
        headwater.producer("orders").send(NewMessage::new(payload)).await.unwrap();
    }
    let seen = Seen::default();
    let note = seen.clone();
    let member = move |Json(n): Json<u64>, _| {
        note.add(n);
        async { Ok(()) }
    };
    let consumer = headwater.consumer("orders", "email").member("mailer", member);
    let stepper = consumer.undecodable(undecodable).concurrency(1).stepwise().await.unwrap();
    (headwater, clock, stepper, seen)
}

async fn what_cannot_be_decoded_is_retried_if_wanted(place: Place) {
    let (headwater, clock, mut stepper, seen) = stepping(&place, Undecodable::Retry).await;
    stepper.drain().await.unwrap();
    let totals = stepper.running().health().totals;
    assert_eq!((seen.all(), totals.retried, totals.buried, totals.decode_failed), (vec![7], 1, 0, 1));
    clock.advance(Duration::from_secs(3_600));
    stepper.drain().await.unwrap();
    let totals = stepper.running().health().totals;
    assert_eq!((totals.buried, totals.decode_failed), (1, 2), "its attempts are used up");
    place.leave(&headwater).await;
}

async fn what_cannot_be_decoded_pauses_the_group_if_wanted(place: Place) {
    let (headwater, _, mut stepper, seen) = stepping(&place, Undecodable::Pause).await;
    stepper.drain().await.unwrap();
    let groups = headwater.groups("orders");
    let status = groups.get("email").await.unwrap().status;
    assert_eq!((status.state, status.dead_letters, status.lag), (SubscriptionState::Paused, 0, 2));
    let reason = status.state_reason.unwrap();
    assert!(reason.starts_with("payload at offset 1 "), "{reason}");
    assert_eq!(stepper.running().health().state, HealthState::Paused);
    assert_eq!(seen.all(), [] as [u64; 0], "nothing behind it was handled");
    // Resumed without a correction, it pauses again at the same message.
    groups.resume("email").await.unwrap();
    stepper.drain().await.unwrap();
    assert_eq!(groups.get("email").await.unwrap().status.state, SubscriptionState::Paused);
    let totals = stepper.running().health().totals;
    assert_eq!((totals.retried, totals.buried, totals.decode_failed), (0, 0, 2), "no attempt is counted");
    place.leave(&headwater).await;
}

async fn without_a_limit_everything_is_buried(place: Place) {
    let headwater = place.open().await;
    publish(&headwater, "orders", 300).await;
    let member = |_: Json<Renamed>, _| async { Ok(()) };
    let consumer = headwater.consumer("orders", "email").member("mailer", member).pause_after_burials(None);
    let mut stepper = consumer.stepwise().await.unwrap();
    stepper.drain().await.unwrap();
    let status = headwater.groups("orders").get("email").await.unwrap().status;
    assert_eq!((status.state, status.dead_letters, status.lag), (SubscriptionState::Active, 300, 0));
    place.leave(&headwater).await;
}
