//! Waking: a waiter is woken for a message without polling, whichever process published it.

use std::time::{Duration, Instant};

use super::case::{Case, DEADLINE, Scene, payloads_of};
use crate::limits::SAFETY_POLL;
use crate::message::NewMessage;
use crate::settle::Outcome;
use crate::store::Wake;
use crate::subscription::Start;
use crate::topic::TopicSettings;

/// Well before the safety poll, and long enough for a stalling machine.
const SOON: Duration = Duration::from_secs(10);

/// Follows the contract: arm, claim once more (and find nothing), then wait.
pub(super) async fn arm(scene: &Scene) -> Wake {
    let wake = scene.store.arm(&[scene.subscription.topic.topic_id]).await.expect("armed");
    scene.claim_nothing("waiter", 10).await;
    wake
}

/// The wait must end soon and the message be available. A wake-up may be spurious: then the wait is repeated.
pub(super) async fn woken(scene: &Scene, mut wake: Wake, expected: &str) {
    let started = Instant::now();
    loop {
        wake.wait(SAFETY_POLL).await;
        let waited = started.elapsed();
        assert!(waited < SOON, "the waiter was not woken for {expected:?} in {waited:?}");
        wake = scene.store.arm(&[scene.subscription.topic.topic_id]).await.expect("armed");
        let got = scene.drain("waiter").await;
        if !got.is_empty() {
            assert_eq!(payloads_of(&got), [expected]);
            return;
        }
    }
}

/// While nothing is published a waiter sleeps and does not poll.
pub async fn an_idle_waiter_sleeps(case: &Case) {
    let scene = case.queue().await;
    scene.publish(1).await;
    assert_eq!(scene.drain("waiter").await.len(), 1);
    // Wake-ups of what was published and acked may come late.
    let (quiet, deadline) = (Duration::from_millis(300), Instant::now() + DEADLINE);
    loop {
        let (wake, armed_at) = (arm(&scene).await, Instant::now());
        wake.wait(quiet).await;
        if armed_at.elapsed() >= quiet {
            break;
        }
        assert!(Instant::now() < deadline, "the waiter never comes to rest");
    }
    let until = Instant::now() + Duration::from_secs(2);
    let mut wake_ups = 0;
    while Instant::now() < until {
        let wake = arm(&scene).await;
        wake.wait(until.saturating_duration_since(Instant::now())).await;
        wake_ups += 1;
    }
    // The last wait ends with the test; a few more may be spurious.
    assert!(wake_ups <= 5, "{wake_ups} wake-ups in two idle seconds");
}

/// A publish through the same store wakes a waiter.
pub async fn a_publish_wakes_a_waiter(case: &Case) {
    let scene = case.queue().await;
    let wake = arm(&scene).await;
    scene.publish_all(&[NewMessage::new("same store")]).await;
    woken(&scene, wake, "same store").await;
}

/// A publish wakes a waiter that already sleeps.
pub async fn a_publish_wakes_a_waiter_at_rest(case: &Case) {
    let scene = case.queue().await;
    let wake = arm(&scene).await;
    let waiting = {
        let scene = scene.clone();
        tokio::spawn(async move { woken(&scene, wake, "at last").await })
    };
    // Gives the waiter time to come to rest; the case holds if it has not.
    tokio::time::sleep(Duration::from_millis(50)).await;
    scene.publish_all(&[NewMessage::new("at last")]).await;
    waiting.await.unwrap();
}

/// A publish through another store, a second process in effect, wakes a waiter.
pub async fn a_publish_of_another_store_wakes_a_waiter(case: &Case) {
    let scene = case.queue().await;
    let other = scene.through(&case.open().await);
    for round in ["first", "second", "third"] {
        let wake = arm(&scene).await;
        other.publish_all(&[NewMessage::new(round)]).await;
        woken(&scene, wake, round).await;
    }
}

/// The commit of the caller's transaction wakes a waiter.
pub async fn a_transaction_of_the_caller_wakes_a_waiter(case: &Case) {
    let scene = case.queue().await;
    let wake = arm(&scene).await;
    let message = [NewMessage::new("transaction")];
    case.harness().publish_in_transaction(&scene.topic, &message, true).await.unwrap();
    woken(&scene, wake, "transaction").await;
}

/// Plain SQL wakes a waiter.
pub async fn plain_sql_wakes_a_waiter(case: &Case) {
    let scene = case.queue().await;
    let wake = arm(&scene).await;
    case.harness().publish_by_sql(&scene.topic, "7", None, true).await.unwrap();
    woken(&scene, wake, "7").await;
}

/// What was published before the waiter armed is found by the claim it must make.
pub async fn an_earlier_publish_is_found_by_the_claim_after_arming(case: &Case) {
    let scene = case.queue().await;
    let other = scene.through(&case.open().await);
    scene.claim_nothing("waiter", 10).await;
    other.publish_all(&[NewMessage::new("before")]).await;
    let _wake = scene.store.arm(&[scene.subscription.topic.topic_id]).await.unwrap();
    let lease = scene.claim_one("waiter", 10).await;
    assert_eq!(payloads_of(&scene.fetch(&lease).await), ["before"]);
}

/// Every group has its own wake-up.
pub async fn each_group_has_its_own_wake_up(case: &Case) {
    let first = case.pub_sub().await;
    let second = first.subscribe("second", Start::Beginning).await;
    let third = second.through(&case.open().await).subscribe("third", Start::Beginning).await;
    let wakes = [arm(&first).await, arm(&second).await, arm(&third).await, arm(&third).await];
    first.publish_all(&[NewMessage::new("for all")]).await;
    let [a, b, c, d] = wakes;
    woken(&first, a, "for all").await;
    woken(&second, b, "for all").await;
    let started = Instant::now();
    d.wait(SAFETY_POLL).await;
    assert!(started.elapsed() < SOON, "a second waiter of the same group is woken too");
    woken(&third, c, "for all").await;
}

/// A waiter for several topics is woken by any of them.
pub async fn a_waiter_may_wait_for_several_topics(case: &Case) {
    let store = case.open().await;
    let mut scenes = Vec::new();
    for name in ["a", "b", "c"] {
        scenes.push(Scene::new(store.clone(), name, TopicSettings::default()).await);
    }
    let ids: Vec<_> = scenes.iter().map(|scene| scene.subscription.topic.topic_id).collect();
    for scene in &scenes {
        let wake = store.arm(&ids).await.unwrap();
        scene.claim_nothing("waiter", 1).await;
        let text = format!("to {}", scene.topic);
        scene.publish_all(&[NewMessage::new(text.clone())]).await;
        woken(scene, wake, &text).await;
    }
}

/// A message that a member releases wakes another member.
pub async fn a_release_wakes_a_waiter(case: &Case) {
    let scene = case.queue().await;
    scene.publish_all(&[NewMessage::new("given back")]).await;
    let lease = scene.claim_one("a", 1).await;
    let wake = arm(&scene).await;
    scene.settle_each(&lease, vec![((1, 1), Outcome::Release)]).await.unwrap();
    woken(&scene, wake, "given back").await;
}

/// A publisher and a waiter race: no wake-up is lost between the claim and the wait.
pub async fn no_wake_up_is_missed(case: &Case) {
    const MESSAGES: usize = 150;
    let scene = case.queue().await;
    let other = scene.through(&case.open().await);
    let publisher = {
        let own = scene.clone();
        tokio::spawn(async move {
            for n in 0..MESSAGES {
                let scene = if n % 2 == 0 { &own } else { &other };
                scene.publish_all(&[NewMessage::new(n.to_string())]).await;
                for _ in 0..n % 7 {
                    tokio::task::yield_now().await;
                }
            }
        })
    };
    let mut got = 0;
    while got < MESSAGES {
        let wake = scene.store.arm(&[scene.subscription.topic.topic_id]).await.unwrap();
        let claimed = scene.claimed("waiter", 10).await;
        for lease in &claimed.leases {
            got += scene.fetch(lease).await.len();
            scene.ack(lease).await;
        }
        if claimed.leases.is_empty() {
            // A claim may return an earlier time, for a commit in progress.
            let at_most = claimed.recheck_after.unwrap_or(SAFETY_POLL).min(SAFETY_POLL);
            let started = Instant::now();
            let woken = wake.wait(at_most).await;
            assert!(woken || started.elapsed() < SOON, "a wake-up was missed after {got} messages");
        }
    }
    publisher.await.unwrap();
    assert_eq!(got, MESSAGES);
}
