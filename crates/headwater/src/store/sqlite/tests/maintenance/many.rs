//! Steps whose cost depends on what they do, not on what waits: counted in steps of SQLite's virtual machine.

use std::sync::atomic::{AtomicU64, Ordering};

use super::*;

/// Creates messages of which every other waits to be retried by the group.
async fn with_waiting(settings: &str, waiting: i64) -> (Scene, Subscription) {
    let scene = Scene::new(settings).await;
    let workers = scene.group("workers", Start::Beginning).await;
    let (id, messages, now_ms) = (workers.subscription_id.0, waiting * 2, scene.clock.now().as_millisecond());
    scene.sql(&format!(
        "INSERT INTO headwater_message (row_key, message_id, payload, created_at_ms)
         WITH RECURSIVE n (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < {messages})
         SELECT (1 << 43) | n, randomblob(16), x'78', {now_ms} FROM n;
         UPDATE headwater_topic SET last_offset = {messages};
         UPDATE headwater_cursor SET next_offset = {messages} + 1 WHERE subscription_id = {id};
         INSERT INTO headwater_outstanding
         WITH RECURSIVE n (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < {waiting})
         SELECT n, n * 2, n * 2, {id}, NULL, NULL, {now_ms} + 2592000000, 1, 0, 0, NULL, NULL FROM n;
         UPDATE headwater_cursor SET next_offset = 1000000 WHERE subscription_id = 0;"
    ));
    (scene, workers)
}

/// How many steps of the virtual machine the writer runs, in thousands.
async fn counted<T>(scene: &Scene, run: impl Future<Output = T>) -> (u64, T) {
    static STEPS: AtomicU64 = AtomicU64::new(0);
    static ONE_AT_A_TIME: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());
    let _turn = ONE_AT_A_TIME.lock().await;
    let watch = |on: bool| {
        scene.store.write(Kind::Consume, move |work| {
            let count: Option<fn() -> bool> = on.then_some(|| {
                STEPS.fetch_add(1, Ordering::Relaxed);
                false
            });
            work.connection.progress_handler(1_000, count)?;
            Ok(())
        })
    };
    watch(true).await.unwrap();
    STEPS.store(0, Ordering::Relaxed);
    let ran = run.await;
    let steps = STEPS.load(Ordering::Relaxed);
    watch(false).await.unwrap();
    (steps, ran)
}

/// How many transactions the writer commits.
pub(super) async fn commits<T>(scene: &Scene, run: impl Future<Output = T>) -> (u64, T) {
    let count = Arc::new(AtomicU64::new(0));
    let hook = Arc::clone(&count);
    let watch = scene.store.write(Kind::Consume, move |work| {
        let hook = Arc::clone(&hook);
        let counting = move || {
            hook.fetch_add(1, Ordering::Relaxed);
            false
        };
        Ok(work.connection.commit_hook(Some(counting))?)
    });
    watch.await.unwrap();
    count.store(0, Ordering::Relaxed);
    let ran = run.await;
    (count.load(Ordering::Relaxed), ran)
}

#[tokio::test]
async fn a_step_of_cleanup_reads_no_range_of_what_must_stay() {
    let (scene, _) = with_waiting("", 20_000).await;
    let (steps, cleaned) = counted(&scene, scene.store.clean(scene.topic, 10_000)).await;
    let cleaned = cleaned.unwrap();
    assert!(cleaned.removed == 0 && !cleaned.more, "{cleaned:?}");
    assert!(steps < 20, "{steps} thousand steps");
}

#[tokio::test]
async fn each_step_of_cleanup_is_bounded_and_a_pass_removes_all_that_may_go() {
    let (scene, _) = with_waiting("tracking = 'reference_counting', message_retention_ms = 1", 20_000).await;
    scene.sql("UPDATE headwater_subscription SET bit = 0; UPDATE headwater_topic SET bits_used = 1");
    scene.track().await;
    scene.pass(HOUR);
    let (mut removed, mut most) = (0, 0);
    loop {
        let (steps, cleaned) = counted(&scene, scene.store.clean(scene.topic, 10_000)).await;
        let cleaned = cleaned.unwrap();
        most = most.max(steps);
        removed += cleaned.removed;
        if !cleaned.more {
            break;
        }
    }
    assert_eq!(removed, 20_000, "done messages are removed between waiting ones");
    assert!(most < 250, "{most} thousand steps in one step");
    scene.assert_sound().await;
}

#[tokio::test]
async fn a_step_of_tracking_costs_what_changed_and_not_what_waits() {
    let (scene, workers) = with_waiting("tracking = 'reference_counting'", 20_000).await;
    scene.sql("UPDATE headwater_subscription SET bit = 0; UPDATE headwater_topic SET bits_used = 1");
    let mut most = 0;
    loop {
        let (steps, tracked) = counted(&scene, scene.store.track(scene.topic, 10_000)).await;
        most = most.max(steps);
        if !tracked.unwrap().more {
            break;
        }
    }
    assert!(most < 250, "{most} thousand steps in one step");
    let (steps, tracked) = counted(&scene, scene.store.track(scene.topic, 10_000)).await;
    assert!(!tracked.unwrap().more);
    assert!(steps < 5, "{steps} thousand steps for nothing");
    // One of them is handed out and done.
    scene.sql("UPDATE headwater_outstanding SET due_at_ms = 0 WHERE first_offset = 20000");
    scene.consume(&workers, 1).await;
    let (steps, tracked) = counted(&scene, scene.store.track(scene.topic, 10_000)).await;
    let tracked = tracked.unwrap();
    assert!(tracked.changed == 1 && tracked.completed == 1, "{tracked:?}");
    assert!(steps < 10, "{steps} thousand steps for one");
    scene.assert_sound().await;
}

#[tokio::test]
async fn numbers_of_what_waits_or_is_delayed_are_kept_and_not_counted() {
    let (scene, workers) = with_waiting("", 20_000).await;
    let mut delayed = NewMessage::new("later");
    delayed.deliver_at = Some(scene.clock.now() + HOUR);
    scene.store.publish(&topic("orders"), &vec![delayed; 1_000]).await.unwrap();
    // On the writer's own connection: a reader's steps would not be counted.
    let read = scene.store.write(Kind::Consume, |work| topic::list(work.connection));
    let (steps, topics) = counted(&scene, read).await;
    let topics = topics.unwrap();
    assert_eq!((topics[0].scheduled, topics[0].watermark.0), (1_000, 1));
    assert!(steps < 3, "{steps} thousand steps");
    let (name, now_ms) = (topic("orders"), scene.clock.now().as_millisecond());
    let read = scene.store.write(Kind::Consume, move |work| status::list(work.connection, &name, now_ms));
    let (steps, groups) = counted(&scene, read).await;
    let groups = groups.unwrap();
    assert_eq!((groups[0].waiting, groups[0].retrying, groups[0].lag), (20_000, 20_000, 20_000));
    assert!(steps < 3, "{steps} thousand steps");
    // The counts follow what is handed out and what is promoted.
    scene.sql("UPDATE headwater_outstanding SET due_at_ms = 0 WHERE first_offset <= 20");
    scene.consume(&workers, 10).await;
    scene.clock.advance(HOUR * 2);
    scene.store.advance_heads().await.unwrap();
    let kept = "SELECT (SELECT waiting FROM headwater_subscription) * 100000 + (SELECT scheduled FROM headwater_topic)";
    let real = "SELECT (SELECT count(*) FROM headwater_outstanding WHERE owner IS NULL) * 100000
        + (SELECT count(*) FROM headwater_schedule)";
    assert_eq!(scene.number(kept), scene.number(real));
    assert_ne!(scene.number(real), Some(20_000 * 100_000 + 1_000), "something has moved");
}

#[tokio::test]
async fn a_group_is_removed_in_steps_and_a_removal_that_was_cut_off_is_repeated() {
    let (scene, workers) = with_waiting("", 3_000).await;
    let id = workers.subscription_id.0;
    scene.sql(&format!(
        "INSERT INTO headwater_dead_letter (dead_letter_id, subscription_id, message_offset, message_id, created_at_ms,
             error, attempts, buried_at_ms, payload)
         WITH RECURSIVE n (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < 5000)
         SELECT randomblob(16), {id}, n, randomblob(16), 0, 'no', 1, 0, x'78' FROM n"
    ));
    let (name, workers) = (topic("orders"), group("workers"));
    let (steps, cancelled) = commits(&scene, scene.store.cancel(&name, &workers)).await;
    cancelled.unwrap();
    assert!(steps >= 4, "the cancel and 3,000 ranges in {steps} transactions");
    assert_eq!(scene.number("SELECT count(*) FROM headwater_outstanding"), Some(0));
    // One step, as before a crash.
    let (of, by) = (name.clone(), workers.clone());
    let step =
        scene.store.write(Kind::Consume, move |work| state::remove(work, &of, &by, state::Removal::Empty));
    assert!(step.await.unwrap(), "there is more");
    assert_eq!(scene.number("SELECT count(*) FROM headwater_dead_letter"), Some(4_000));
    scene.assert_sound().await;
    let (_, left) = scene
        .store
        .write(Kind::Read, {
            let (name, workers) = (name.clone(), workers.clone());
            move |work| group::get(work.connection, &name, &workers)
        })
        .await
        .unwrap();
    assert_eq!(left.state, SubscriptionState::Cancelled, "nothing claims for it");
    let (steps, removed) = commits(&scene, scene.store.remove(&name, &workers)).await;
    removed.unwrap();
    assert!(steps >= 5, "4,000 dead letters and the group in {steps} transactions");
    for table in ["dead_letter", "outstanding", "touched", "applied", "subscription"] {
        assert_eq!(scene.number(&format!("SELECT count(*) FROM headwater_{table}")), Some(0), "{table}");
    }
}

/// A crash between the steps of a cancel leaves waiting ranges.
#[tokio::test]
async fn what_waits_for_a_cancelled_group_is_forgotten_by_maintenance() {
    let (scene, workers) = with_waiting("", 3_000).await;
    let (name, workers, _) = (topic("orders"), group("workers"), workers);
    let cancel = scene
        .store
        .write(Kind::Define, move |work| state::set(work, &name, &workers, Transition::Cancel, None, "me"));
    cancel.await.unwrap();
    assert_eq!(scene.number("SELECT waiting FROM headwater_subscription"), Some(3_000));
    scene.assert_sound().await;
    scene.store.clean_subscriptions(HOUR).await.unwrap();
    assert_eq!(scene.number("SELECT count(*) FROM headwater_outstanding"), Some(0));
}
