//! Dead subscriptions: detected, moved up, deleted.

use super::*;

async fn with_heartbeat(scene: &Scene, name: &str) -> Subscription {
    let subscription = scene.group(name, Start::Beginning).await;
    let (now_ms, id) = (scene.clock.now().as_millisecond(), subscription.subscription_id.0);
    scene.sql(&format!(
        "UPDATE headwater_subscription SET heartbeat_at_ms = {now_ms} WHERE subscription_id = {id}"
    ));
    subscription
}

fn names(found: &[(TopicName, GroupName)]) -> Vec<&str> {
    found.iter().map(|(_, group)| group.as_str()).collect()
}

#[tokio::test]
async fn silence_is_death_only_while_detection_runs() {
    let scene = Scene::new("heartbeat_interval_ms = 60000, heartbeat_timeout_ms = 300000").await;
    with_heartbeat(&scene, "a").await;
    scene.group("never-heard-of", Start::Beginning).await;
    scene.clock.advance(Duration::from_secs(301));
    let detect = || async { scene.store.detect_dead().await.unwrap() };
    let first = detect().await;
    assert_eq!(
        (names(&first.died), names(&first.suspected)),
        (vec![], vec!["a"]),
        "the detector was not running"
    );
    let again = detect().await;
    assert_eq!(names(&again.suspected), ["a"], "an interval has not passed");
    scene.clock.advance(Duration::from_secs(60));
    assert_eq!(names(&detect().await.died), ["a"]);
    assert_eq!(detect().await, crate::store::Detected::default(), "no group dies twice");

    with_heartbeat(&scene, "b").await;
    for _ in 0..4 {
        scene.clock.advance(Duration::from_secs(60));
        assert_eq!(names(&detect().await.died), [""; 0]);
    }
    assert_eq!(names(&detect().await.near_timeout), ["b"]);
    scene.clock.advance(Duration::from_secs(60));
    assert_eq!(names(&detect().await.near_timeout), ["b"]);
    scene.clock.advance(Duration::from_secs(1));
    assert_eq!(names(&detect().await.died), ["b"], "the detector was running");
    assert_eq!(scene.number("SELECT zero_until FROM headwater_topic"), Some(0), "one still counts");
    scene.assert_sound().await;
}

#[tokio::test]
async fn the_last_death_lets_go_of_the_topic() {
    let scene = Scene::new("tracking = 'reference_counting'").await;
    let a = with_heartbeat(&scene, "a").await;
    scene.publish(3).await;
    scene.track().await;
    scene.store.detect_dead().await.unwrap();
    scene.clock.advance(Duration::from_secs(170));
    scene.store.detect_dead().await.unwrap();
    scene.clock.advance(Duration::from_secs(170));
    assert_eq!(names(&scene.store.detect_dead().await.unwrap().died), ["a"]);
    assert_eq!(scene.number("SELECT zero_until FROM headwater_topic"), None);
    scene.assert_sound().await;
    scene.track().await;
    assert_eq!(scene.shown().await, ["1:/!", "2:/!", "3:/!"]);
    scene.publish(1).await;
    scene.set_state(&a, "active").await;
    assert_eq!(scene.number("SELECT zero_until FROM headwater_topic"), Some(4));
    scene.assert_sound().await;
}

#[tokio::test]
async fn only_what_holds_nothing_is_deleted() {
    let scene = Scene::new("tracking = 'reference_counting', zombie_subscription_ttl_ms = 99999999999").await;
    let behind = scene.group("behind", Start::Beginning).await;
    let cancelled = scene.group("cancelled", Start::Beginning).await;
    let with_dead_letter = scene.group("with-letter", Start::Beginning).await;
    scene.group("alive", Start::Beginning).await;
    scene.publish(3).await;
    scene.track().await;
    let lease = scene.store.claim(&request(&with_dead_letter, 3)).await.unwrap().leases.remove(0);
    let bury = (lease.range, Outcome::Bury { error: "no".into() });
    scene.store.settle(&[Settlement::each(&lease, vec![bury])]).await.unwrap().remove(0).unwrap();
    let alive = scene.group("alive", Start::Beginning).await;
    scene.consume(&alive, 3).await;
    for gone in [&behind, &with_dead_letter] {
        scene.set_state(gone, "dead").await;
    }
    scene.set_state(&cancelled, "cancelled").await;
    scene.pass(HOUR);
    let clean = || async { names_of(scene.store.clean_subscriptions(HOUR).await.unwrap().deleted) };
    assert_eq!(clean().await, [""; 0], "they are still in completion records");
    scene.track().await;
    assert_eq!(clean().await, ["cancelled"]);
    let purged =
        scene.store.purge(&DeadLetterSelection::all(with_dead_letter.subscription_id)).await.unwrap();
    assert_eq!(purged, 3);
    assert_eq!(clean().await, ["with-letter"]);
    scene.assert_sound().await;
}

fn names_of(found: Vec<(TopicName, GroupName)>) -> Vec<String> {
    found.into_iter().map(|(_, group)| group.as_str().to_owned()).collect()
}
