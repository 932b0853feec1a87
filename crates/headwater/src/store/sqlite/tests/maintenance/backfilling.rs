//! Backfills: held by one worker, resumed from their checkpoint, rolled back when a batch fails.

use super::*;

const COUNTED: &str = "tracking = 'reference_counting'";

/// A topic with 20 pending completion records and a group that came late.
async fn late_joiner() -> Scene {
    let scene = Scene::new(COUNTED).await;
    scene.group("a", Start::Beginning).await;
    scene.publish(20).await;
    scene.track().await;
    scene.group("late", Start::Beginning).await;
    scene
}

#[tokio::test]
async fn another_worker_takes_over_after_fifteen_seconds_of_silence() {
    let scene = late_joiner().await;
    let step = |name: &'static str| async { scene.store.step_backfill(&worker(name), 5).await.unwrap() };
    assert_eq!(step("first").await.unwrap().backfill.checkpoint, Offset(5));
    assert_eq!(step("second").await, None, "the first has it");
    scene.clock.advance(Duration::from_secs(10));
    let continued = step("first").await.unwrap().backfill;
    assert_eq!((continued.checkpoint, continued.processed, continued.total), (Offset(10), 10, 20));
    assert!(continued.rate > 0.9 && continued.rate < 1.1, "ten offsets took ten seconds: {}", continued.rate);
    scene.clock.advance(Duration::from_millis(14_999));
    assert_eq!(step("second").await, None);
    scene.clock.advance(Duration::from_millis(1));
    let taken = step("second").await.unwrap();
    assert_eq!((taken.backfill.checkpoint, taken.processed, taken.changed), (Offset(15), 5, 5));
    assert_eq!(step("first").await, None, "it lost it");
    assert_eq!(step("second").await.unwrap().backfill.state, BackfillState::Completed);
    assert_eq!(step("second").await, None);
    assert!(scene.shown().await.iter().all(|line| line.ends_with(":/alate")), "{:?}", scene.shown().await);
    scene.assert_sound().await;
}

#[tokio::test]
async fn a_batch_that_fails_half_way_is_rolled_back_and_says_why() {
    let scene = late_joiner().await;
    scene.store.step_backfill(&worker("w"), 5).await.unwrap();
    break_at(&scene, "headwater_completion_record", "UPDATE", 8);
    let failed = scene.store.step_backfill(&worker("w"), 5).await.unwrap().unwrap();
    assert_eq!((failed.processed, failed.changed, failed.backfill.checkpoint), (0, 0, Offset(5)));
    assert_eq!(failed.backfill.state, BackfillState::Failed);
    assert!(failed.backfill.error.as_ref().unwrap().contains("broken on purpose"), "{failed:?}");
    assert_eq!(scene.shown().await[5], "6:/a", "nothing of the batch is left");
    assert_eq!(scene.store.step_backfill(&worker("w"), 5).await.unwrap(), None, "it waits for an operator");
    scene.sql("DROP TRIGGER broken");
    let resumed = scene.store.resume_backfill(&topic("orders"), &group("late")).await.unwrap();
    assert_eq!((resumed.state, resumed.error), (BackfillState::InProgress, None));
    while scene.store.step_backfill(&worker("w"), 5).await.unwrap().is_some() {}
    assert!(scene.shown().await.iter().all(|line| line.ends_with(":/alate")));
    scene.assert_sound().await;
}

#[tokio::test]
async fn a_cancelled_one_stops_at_once_and_only_the_drawn_ways_are_open() {
    let scene = late_joiner().await;
    let (orders, late) = (topic("orders"), group("late"));
    let limits = BackfillLimits::default();
    let conflict = scene.store.backfill(&orders, &late, &limits).await.unwrap_err();
    assert_eq!(conflict.kind(), ErrorKind::Conflict);
    let invalid = scene.store.resume_backfill(&orders, &late).await.unwrap_err();
    assert_eq!(invalid.kind(), ErrorKind::InvalidTransition);
    let none = scene.store.cancel_backfill(&orders, &group("a")).await.unwrap_err();
    assert_eq!(none.kind(), ErrorKind::InvalidTransition, "it began at the end and has no backfill");
    scene.store.step_backfill(&worker("w"), 5).await.unwrap();
    let cancelled = scene.store.cancel_backfill(&orders, &late).await.unwrap();
    assert_eq!((cancelled.state, cancelled.checkpoint), (BackfillState::Cancelled, Offset(5)));
    assert_eq!(scene.store.step_backfill(&worker("w"), 5).await.unwrap(), None);
    let twice = scene.store.cancel_backfill(&orders, &late).await.unwrap_err();
    assert_eq!(twice.kind(), ErrorKind::InvalidTransition);
    scene.store.resume_backfill(&orders, &late).await.unwrap();
    scene.store.cancel_backfill(&orders, &late).await.unwrap();
    let bounded = BackfillLimits::bounded(4).rate(9);
    let anew = scene.store.backfill(&orders, &late, &bounded).await.unwrap();
    assert_eq!((anew.first, anew.last, anew.total, anew.rate_max), (Offset(17), Offset(20), 4, 9));
    let acts = "SELECT group_concat(act || ' by ' || actor) FROM headwater_audit";
    let audited: String = scene.place.connect().query_row(acts, [], |row| row.get(0)).unwrap();
    assert_eq!(
        audited,
        "cancel_backfill by tester,resume_backfill by tester,cancel_backfill by tester,backfill by tester"
    );
    scene.assert_sound().await;
}

#[tokio::test]
async fn the_backfill_of_a_group_that_dies_stops() {
    let scene = late_joiner().await;
    scene.store.step_backfill(&worker("w"), 5).await.unwrap();
    let late = scene.group("late", Start::Now).await;
    scene.set_state(&late, "dead").await;
    assert_eq!(scene.store.backfills().await.unwrap()[0].state, BackfillState::Cancelled);
    assert_eq!(scene.store.step_backfill(&worker("w"), 5).await.unwrap(), None);
    let error = scene.store.resume_backfill(&topic("orders"), &group("late")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidTransition);
    scene.track().await;
    assert!(scene.shown().await.iter().all(|line| line.ends_with(":/a")), "{:?}", scene.shown().await);
    scene.assert_sound().await;
}

#[tokio::test]
async fn without_records_a_backfill_only_shows_how_far_the_group_is() {
    let scene = Scene::new("").await;
    scene.publish(10).await;
    let late = scene.group("late", Start::Beginning).await;
    let shown = || async { scene.store.backfills().await.unwrap().remove(0) };
    let backfill = shown().await;
    assert_eq!(
        (backfill.state, backfill.first, backfill.last),
        (BackfillState::InProgress, Offset(1), Offset(10))
    );
    assert_eq!(scene.store.step_backfill(&worker("w"), 5).await.unwrap(), None, "there is nothing to do");
    scene.consume(&late, 4).await;
    scene.clock.advance(Duration::from_secs(2));
    let backfill = shown().await;
    assert_eq!((backfill.checkpoint, backfill.processed, backfill.total), (Offset(4), 4, 10));
    assert_eq!(backfill.remaining(), Some(Duration::from_secs(3)));
    scene.publish(3).await;
    scene.consume(&late, 6).await;
    assert_eq!(shown().await.state, BackfillState::Completed);
    let error = scene.store.cancel_backfill(&topic("orders"), &group("late")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidTransition);
    scene.group("at-the-end", Start::Now).await;
    assert_eq!(scene.store.backfills().await.unwrap().len(), 1);
    scene.assert_sound().await;
}

#[tokio::test]
async fn making_the_records_anew_leaves_no_backfill_open() {
    let scene = Scene::new("").await;
    scene.publish(10).await;
    let late = scene.group("late", Start::Beginning).await;
    scene.consume(&late, 4).await;
    assert_eq!(scene.store.backfills().await.unwrap()[0].state, BackfillState::InProgress);
    scene.change(Tracking::ReferenceCounting).await.unwrap();
    let shown = scene.store.backfills().await.unwrap().remove(0);
    assert_eq!((shown.state, shown.checkpoint), (BackfillState::Completed, Offset(10)));
    assert_eq!(
        scene.store.step_backfill(&worker("w"), 5).await.unwrap(),
        None,
        "each record is created complete"
    );
    scene.track().await;
    assert_eq!(scene.shown().await[3..5], ["4:late/late!", "5:/late"]);
    scene.assert_sound().await;
}
