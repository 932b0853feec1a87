//! A clock that was ahead and was set back: what it stamped holds up nothing.

use super::*;

const DAY: Duration = Duration::from_secs(24 * 3_600);

/// Runs acts with the clock a day ahead.
async fn a_day_ahead<T>(scene: &Scene, acts: impl Future<Output = T>) -> T {
    let now = scene.clock.now();
    scene.clock.advance(DAY);
    let done = acts.await;
    scene.clock.set(now);
    done
}

#[tokio::test]
async fn a_term_that_outlasts_any_other_is_taken_over() {
    let scene = Scene::new("").await;
    let term = Duration::from_secs(10);
    assert!(a_day_ahead(&scene, scene.store.elect(&worker("gone"), term)).await.unwrap());
    assert!(scene.store.elect(&worker("a"), term).await.unwrap(), "no worker has a term of a day");
    assert!(!scene.store.elect(&worker("b"), term).await.unwrap(), "a term that begins now is respected");
    scene.clock.advance(Duration::from_millis(1));
    assert!(!scene.store.elect(&worker("b"), term).await.unwrap());
}

#[tokio::test]
async fn a_backfill_of_a_worker_from_the_future_is_taken_over() {
    let scene = Scene::new("tracking = 'reference_counting'").await;
    scene.group("a", Start::Beginning).await;
    scene.publish(20).await;
    scene.track().await;
    scene.group("late", Start::Beginning).await;
    a_day_ahead(&scene, scene.store.step_backfill(&worker("gone"), 5)).await.unwrap().unwrap();
    let taken = scene.store.step_backfill(&worker("w"), 5).await.unwrap().expect("it is free");
    assert_eq!(taken.backfill.checkpoint, Offset(10));
    assert_eq!(scene.store.step_backfill(&worker("other"), 5).await.unwrap(), None, "w owns it now");
}

#[tokio::test]
async fn watermarks_from_the_future_do_not_stop_new_ones() {
    let settings =
        "message_retention_ms = 3600000, max_retention_ms = NULL, zero_subscription_retention_ms = 0";
    let scene = Scene::new(settings).await;
    let a = scene.group("a", Start::Beginning).await;
    scene.publish(6).await;
    a_day_ahead(&scene, async {
        scene.consume(&a, 3).await;
        scene.clean().await;
    })
    .await;
    scene.consume(&a, 3).await;
    assert_eq!(scene.clean().await, 0);
    scene.clock.advance(HOUR);
    assert_eq!(scene.clean().await, 6, "all were done an hour ago at the latest");
    assert_eq!(scene.number("SELECT count(*) FROM headwater_watermark_history"), Some(1));
}

#[tokio::test]
async fn a_fall_that_was_noted_ahead_of_time_is_not_forgotten() {
    let settings =
        "message_retention_ms = 3600000, max_retention_ms = NULL, zero_subscription_retention_ms = 0";
    let scene = Scene::new(settings).await;
    let a = scene.group("a", Start::Beginning).await;
    scene.publish(3).await;
    scene.consume(&a, 3).await;
    scene.clean().await;
    scene.clock.advance(HOUR / 2);
    // Ahead by less than the retention, so that nothing is removed because of that.
    let now = scene.clock.now();
    scene.clock.advance(HOUR / 4);
    scene.sql("UPDATE headwater_cursor SET next_offset = 2 WHERE subscription_id > 0");
    scene.clean().await;
    scene.clock.set(now);
    scene.consume(&a, 3).await;
    scene.clean().await;
    scene.clock.advance(HOUR / 2);
    assert_eq!(scene.clean().await, 1, "the others were done again half an hour ago");
    assert_eq!(scene.stored().await, [2, 3]);
    scene.clock.advance(HOUR);
    assert_eq!(scene.clean().await, 2);
}

#[tokio::test]
async fn what_was_stamped_ahead_of_time_does_not_keep_what_came_after_it() {
    let scene = Scene::new("message_retention_ms = NULL, max_retention_ms = 3600000").await;
    let a = scene.group("a", Start::Beginning).await;
    for ahead in 1..=9 {
        scene.publish(10).await;
        a_day_ahead(&scene, scene.publish(ahead * 7)).await;
    }
    scene.publish(10).await;
    scene.consume(&a, 1_000).await;
    let stored = scene.stored().await.len();
    scene.clock.advance(HOUR);
    assert_eq!(scene.clean().await, 100);
    assert_eq!(scene.stored().await.len(), stored - 100);
    scene.clock.advance(DAY);
    scene.clean().await;
    assert_eq!(scene.stored().await, [0; 0]);
    scene.assert_sound().await;
}
