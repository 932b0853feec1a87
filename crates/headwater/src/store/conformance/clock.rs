//! Steps of the database's clock, forward or back, for a moment or permanently: they suppress nothing and repeat
//! nothing.

use std::time::Duration;

use jiff::SignedDuration;

use super::case::{Case, Scene, failed, payloads_of, range, retry};
use crate::error::ErrorKind;
use crate::message::NewMessage;
use crate::settle::{Outcome, Settlement};
use crate::topic::TopicSettings;

const SILENT_MS: u64 = 15_000;
const HOUR: SignedDuration = SignedDuration::from_hours(1);
const MONTH: SignedDuration = SignedDuration::from_hours(31 * 24);
const STEPS: [SignedDuration; 4] =
    [HOUR, MONTH, SignedDuration::from_hours(-1), SignedDuration::from_hours(-31 * 24)];

fn settings() -> TopicSettings {
    TopicSettings { lease: Duration::from_secs(30), ..TopicSettings::default() }
}

/// A separate scene for each step, in two processes.
async fn scenes(case: &Case, n: usize) -> (Scene, Scene) {
    let (store, other) = (case.open().await, case.open().await);
    let scene = Scene::new(store, &format!("orders-{n}"), settings()).await;
    let there = scene.through(&other);
    (scene, there)
}

/// A live owner keeps its leases: another gets only what is free, in whatever order they act after the step.
pub async fn live_owners_keep_their_leases(case: &Case) {
    for (n, step) in STEPS.into_iter().enumerate() {
        let (here, there) = scenes(case, n).await;
        here.publish(4).await;
        here.heartbeat_judging("works", SILENT_MS).await;
        there.heartbeat_judging("other", SILENT_MS).await;
        let [held, silent] = [here.claim_one("works", 1).await, here.claim_one("no heartbeat", 1).await];
        case.advance_ms(3_000);
        case.step(step);
        assert_eq!(there.heartbeat_judging("other", SILENT_MS).await, 0, "{step:#}: an owner counts as dead");
        let free = there.claim_one("other", 10).await;
        assert_eq!(free.range, range(3, 4), "{step:#}");
        // The step is undone in every second round.
        if n % 2 == 0 {
            case.step(-step);
        }
        // Claimed by a process that did not see a momentary step; then that process reads the clock.
        here.claim_nothing("third", 10).await;
        here.extend(&held, Duration::from_secs(30)).await.unwrap();
        assert_eq!(here.heartbeat_judging("works", SILENT_MS).await, 0);
        for _ in 0..6 {
            case.advance_ms(4_000);
            assert_eq!(there.heartbeat_judging("other", SILENT_MS).await, 0);
            assert_eq!(here.heartbeat_judging("works", SILENT_MS).await, 0);
            there.claim_nothing("other", 10).await;
        }
        let status = here.status().await;
        assert_eq!((status.reassigned, status.leased), (0, 3), "{step:#}");
        for lease in [&held, &silent, &free] {
            here.ack(lease).await;
        }
        assert_eq!(here.status().await.floor.0, 4);
    }
}

/// An owner's first call after the step succeeds: a settlement, whole or in parts, or an extension.
pub async fn an_owner_settles_across_a_clock_step(case: &Case) {
    for (n, step) in STEPS.into_iter().enumerate() {
        let (here, there) = scenes(case, n).await;
        here.publish(3).await;
        let [whole, parts] = [here.claim_one("a", 1).await, here.claim_one("a", 1).await];
        let kept = there.claim_one("b", 1).await;
        case.advance_ms(3_000);
        case.step(step);
        if n % 2 == 0 {
            here.settle(Settlement::ack_all(&whole)).await.unwrap();
            here.settle_each(&parts, vec![((2, 2), Outcome::Ack)]).await.unwrap();
        } else {
            here.settle_each(&parts, vec![((2, 2), Outcome::Ack)]).await.unwrap();
            here.settle(Settlement::ack_all(&whole)).await.unwrap();
        }
        there.extend(&kept, Duration::from_secs(30)).await.unwrap();
        there.ack(&kept).await;
        assert_eq!(here.status().await.floor.0, 3, "{step:#}");
    }
}

/// An owner that died before the step or at it is found silent in the usual time, and a lease without heartbeats ends
/// when it would have ended without the step.
pub async fn dead_owners_lose_their_leases_in_time(case: &Case) {
    for (n, step) in STEPS.into_iter().enumerate() {
        let (here, there) = scenes(case, n).await;
        here.publish(2).await;
        let [dies, gone] = [format!("dies-{n}"), format!("gone-{n}")];
        here.heartbeat_judging(&dies, SILENT_MS).await;
        there.heartbeat_judging("lives", SILENT_MS).await;
        let lost = here.claim_one(&dies, 1).await;
        here.claim_one(&gone, 1).await;
        here.store.close().await.unwrap();
        case.advance_ms(3_000);
        case.step(step);
        let mut ended = 0;
        for _ in 0..4 {
            ended += there.heartbeat_judging("lives", SILENT_MS).await;
            assert_eq!(there.status().await.leased, 2 - ended, "{step:#}");
            case.advance_ms(4_000);
        }
        assert_eq!(
            ended + there.heartbeat_judging("lives", SILENT_MS).await,
            1,
            "{step:#}: the dead owner is not found"
        );
        let again = there.claim_one("lives", 1).await;
        assert_eq!((again.range, again.attempt), (lost.range, 2));
        failed(there.settle(Settlement::ack_all(&lost)).await, ErrorKind::LeaseLost);
        there.ack(&again).await;
        // 19 s of its 30 have passed.
        case.advance_ms(10_999);
        there.claim_nothing("lives", 1).await;
        case.advance_ms(1);
        assert_eq!(there.claim_one("lives", 1).await.range, range(2, 2), "{step:#}");
    }
}

/// No process ran at the step back: a deadline that was set while the clock was ahead ends as if it had been set now.
pub async fn a_process_that_starts_after_a_step_back_finds_no_deadline_of_the_future(case: &Case) {
    for (n, ahead) in [HOUR, MONTH].into_iter().enumerate() {
        case.step(ahead);
        let (here, there) = scenes(case, n).await;
        there.store.close().await.unwrap();
        let key = NewMessage::new("first").dedup_key("k");
        here.store.publish(&here.topic, std::slice::from_ref(&key)).await.unwrap();
        let (dies, gone) = (format!("dies-{n}"), format!("gone-{n}"));
        here.publish(1).await;
        here.heartbeat_judging(&dies, SILENT_MS).await;
        here.claim_one(&dies, 1).await;
        here.claim_one(&gone, 1).await;
        here.store.close().await.unwrap();
        case.step(-ahead);
        let scene = here.through(&case.open().await);
        scene.heartbeat_judging("lives", SILENT_MS).await;
        scene.claim_nothing("lives", 2).await;
        case.advance_ms(SILENT_MS + 1);
        assert_eq!(scene.heartbeat_judging("lives", SILENT_MS).await, 1, "the dead owner is not found");
        case.advance_ms(20_000);
        let one = scene.claim_one("lives", 2).await;
        scene.ack(&one).await;
        let other = scene.claim_one("lives", 2).await;
        scene.ack(&other).await;
        assert_eq!(scene.status().await.floor.0, 2);
        case.advance_ms(600_000);
        let again = scene.store.publish(&scene.topic, &[key]).await.unwrap().remove(0);
        assert!(!again.duplicate, "the window is over");
    }
}

/// A dedup window keeps its length: a repeat within it is a duplicate whatever the clock shows, and after it none is.
pub async fn dedup_windows_keep_their_length(case: &Case) {
    for (n, step) in STEPS.into_iter().enumerate() {
        let (here, there) = scenes(case, n).await;
        let publish = async |scene: &Scene, key: &str| {
            let message = NewMessage::new("x").dedup_key(key);
            scene.store.publish(&scene.topic, &[message]).await.unwrap()[0].duplicate
        };
        there.publish(1).await;
        assert!(!publish(&there, "other").await);
        assert!(!publish(&here, "k").await);
        case.advance_ms(300_000);
        assert!(publish(&here, "k").await);
        case.step(step);
        assert!(publish(&there, "k").await, "{step:#}: a repeat was stored");
        assert!(!publish(&here, "after").await);
        if n % 2 == 0 {
            case.step(-step);
            assert!(publish(&here, "after").await);
        }
        here.store.advance_heads().await.unwrap();
        assert!(publish(&here, "k").await, "{step:#}: the key was forgotten");
        // 300 s of its 600 have passed.
        case.advance_ms(300_000);
        assert!(!publish(&there, "k").await, "{step:#}: the window is over");
        assert!(publish(&there, "after").await);
        case.advance_ms(300_000);
        assert!(!publish(&here, "after").await);
    }
}

/// A retry waits for exactly its delay.
pub async fn retries_wait_for_their_requested_delay(case: &Case) {
    for (n, step) in STEPS.into_iter().enumerate() {
        let (here, there) = scenes(case, n).await;
        here.publish(1).await;
        let lease = here.claim_one("a", 1).await;
        there.claim_nothing("b", 1).await;
        here.settle_each(&lease, vec![((1, 1), retry(60_000, "again"))]).await.unwrap();
        case.advance_ms(20_000);
        case.step(step);
        there.claim_nothing("b", 1).await;
        case.advance_ms(39_999);
        there.claim_nothing("b", 1).await;
        case.advance_ms(1);
        let again = there.claim_one("b", 1).await;
        assert_eq!((again.range, again.attempt), (range(1, 1), 2), "{step:#}");
        there.ack(&again).await;
    }
}

/// A tick that was fired while the clock was ahead does not block its job any longer. Each tick still fires once.
pub async fn a_job_continues_after_a_clock_was_ahead(case: &Case) {
    for (n, ahead) in [HOUR, MONTH].into_iter().enumerate() {
        let (here, there) = scenes(case, n).await;
        let job = format!("job-{n}");
        let fire = async |scene: &Scene, tick| {
            scene.store.cron_fire(&job, tick, &scene.topic, &NewMessage::new("tick")).await.unwrap().is_some()
        };
        assert!(fire(&here, case.now()).await);
        case.step(ahead);
        assert!(fire(&here, case.now()).await);
        case.step(-ahead);
        case.advance_ms(60_000);
        let tick = case.now();
        assert!(fire(&there, tick).await, "the job does not fire");
        assert!(!fire(&here, tick).await, "twice");
        // A machine whose clock is a little ahead of the database's fires no tick again.
        let soon = tick + SignedDuration::from_secs(200);
        assert!(fire(&here, soon).await);
        assert!(!fire(&there, soon).await);
        assert!(!fire(&there, tick).await);
    }
}

/// A delayed message has an absolute time, which no step moves. It is delivered when the clock shows that time, once.
pub async fn delayed_messages_are_delivered_when_the_clock_shows_their_time(case: &Case) {
    for (n, step) in STEPS.into_iter().enumerate() {
        let (here, there) = scenes(case, n).await;
        let later = NewMessage::new("later").deliver_at(case.now() + Duration::from_secs(60));
        here.store.publish(&here.topic, &[later]).await.unwrap();
        assert_eq!(there.drain("b").await, []);
        case.step(step);
        let early = there.drain("b").await;
        assert_eq!(early.len(), usize::from(step.is_positive()));
        case.step(-step);
        case.advance_ms(60_000);
        let late = here.drain("a").await;
        assert_eq!(payloads_of(&[early, late].concat()), ["later"]);
    }
}

/// A process that never checked the clock stored timestamps of the future: they count as set now.
pub async fn timestamps_of_the_future_count_as_set_now(case: &Case) {
    let scene = case.scene(settings()).await;
    scene.publish(1).await;
    scene.heartbeat_judging("dies", SILENT_MS).await;
    scene.claimed_for("dies", 1, Some(Duration::from_secs(3_600))).await;
    let message = NewMessage::new("x").dedup_key("k");
    scene.store.publish(&scene.topic, std::slice::from_ref(&message)).await.unwrap();
    let harness = case.harness();
    let ahead = "UPDATE headwater_owner SET seen_at_ms = seen_at_ms + 86400000";
    harness.sql(ahead, "UPDATE {schema}.owner SET seen_at = seen_at + interval '1 day'").await.unwrap();
    let ahead = "UPDATE headwater_dedup SET expires_at_ms = expires_at_ms + 86400000";
    harness.sql(ahead, "UPDATE {schema}.dedup SET expires_at = expires_at + interval '1 day'").await.unwrap();
    assert_eq!(scene.heartbeat_judging("lives", SILENT_MS).await, 0, "the owner counts as seen now");
    case.advance_ms(SILENT_MS + 1);
    assert_eq!(
        scene.heartbeat_judging("lives", SILENT_MS).await,
        1,
        "the owner is dead when it stays silent"
    );
    let again = scene.store.publish(&scene.topic, &[message]).await.unwrap().remove(0);
    assert!(!again.duplicate, "no window lasts for a day");
}
