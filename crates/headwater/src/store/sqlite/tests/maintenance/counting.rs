//! Reference counting: completion records follow from cursors and outstanding ranges.

use super::*;

const COUNTED: &str = "tracking = 'reference_counting'";

#[tokio::test]
async fn records_show_whom_each_message_waits_for() {
    let scene = Scene::new(COUNTED).await;
    let a = scene.group("a", Start::Beginning).await;
    scene.publish(2).await;
    let b = scene.group("b", Start::Now).await;
    scene.publish(1).await;
    scene.consume(&a, 1).await;
    let expected = ["1:a/a", "2:/a", "3:/ab"];
    assert_eq!(scene.shown().await, expected, "as they will be");
    let shown = "SELECT group_concat(line, ' ') FROM (SELECT message_offset || status || required_groups || completed_groups
        || waiting_for || (completed_at IS NOT NULL) AS line FROM headwater_message_status WHERE topic = 'orders'
        ORDER BY message_offset)";
    let shown = || scene.place.connect().query_row(shown, [], |row| row.get::<_, String>(0)).unwrap();
    let seen = r#"1COMPLETED["a"]["a"][]0 2PENDING["a"][]["a"]0 3PENDING["a","b"][]["a","b"]0"#;
    assert_eq!(shown(), seen);
    scene.track().await;
    assert_eq!(scene.shown().await, ["1:a/a!", "2:/a", "3:/ab"]);
    assert_eq!(shown(), seen.replace("[]0 2", "[]1 2"));
    scene.consume(&b, 9).await;
    scene.consume(&a, 9).await;
    let step = scene.store.track(scene.topic, 100).await.unwrap();
    assert_eq!((step.recorded, step.changed, step.completed, step.more), (0, 2, 2, false));
    assert_eq!(scene.shown().await, ["1:a/a!", "2:a/a!", "3:ab/ab!"]);
    let again = scene.store.track(scene.topic, 100).await.unwrap();
    assert_eq!(again, crate::store::TrackStep::default(), "nothing changes twice");
    scene.assert_sound().await;
}

/// Bit 63 is the sign of SQLite's integers.
#[tokio::test]
async fn the_sixty_fourth_group_counts_like_any_other() {
    let scene = Scene::new(COUNTED).await;
    let mut groups = Vec::new();
    for n in 0..64 {
        groups.push(scene.group(&format!("g{n:02}"), Start::Beginning).await);
    }
    let error = scene.store.subscribe(&topic("orders"), &group("one-more"), Start::Now).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    assert!(error.to_string().contains("offset_watermark"), "{error}");
    assert_eq!(scene.store.subscriptions(&topic("orders")).await.unwrap().len(), 64, "nothing was created");
    let last = &groups[63];
    let bit =
        format!("SELECT bit FROM headwater_subscription WHERE subscription_id = {}", last.subscription_id.0);
    assert_eq!(scene.number(&bit), Some(63));
    scene.publish(3).await;
    scene.track().await;
    assert_eq!(scene.number("SELECT min(required) FROM headwater_completion_record"), Some(-1));
    scene.consume(last, 2).await;
    scene.track().await;
    let records = scene.records().await;
    assert_eq!(records.iter().map(|record| record.completed.len()).collect::<Vec<_>>(), [1, 1, 0]);
    assert_eq!(records[0].completed, [group("g63")]);
    let waiting = "SELECT count(*) FROM headwater_message_status AS s, json_each(s.waiting_for) AS w WHERE w.value = 'g63'";
    assert_eq!(scene.number(waiting), Some(1));
    for early in &groups[..63] {
        scene.consume(early, 3).await;
    }
    scene.track().await;
    let pending = "SELECT count(*) FROM headwater_message_status WHERE status = 'PENDING'";
    assert_eq!(scene.number(pending), Some(1));
    scene.assert_sound().await;
    scene.set_state(last, "dead").await;
    scene.track().await;
    assert_eq!(scene.number(pending), Some(0), "no record waits for a dead group");
    scene.assert_sound().await;
}

#[tokio::test]
async fn a_group_that_is_gone_is_released_step_by_step_and_its_bit_is_not_taken_too_soon() {
    let scene = Scene::new(COUNTED).await;
    let a = scene.group("a", Start::Beginning).await;
    let b = scene.group("b", Start::Beginning).await;
    scene.publish(10).await;
    scene.consume(&a, 10).await;
    scene.consume(&b, 2).await;
    scene.track().await;
    scene.set_state(&b, "cancelled").await;
    assert!(scene.store.track(scene.topic, 5).await.unwrap().more);
    assert_eq!(scene.shown().await[2..8], ["3:a/a!", "4:a/a!", "5:a/a!", "6:a/a!", "7:a/a!", "8:a/ab"]);
    scene.assert_sound().await;
    scene.track().await;
    assert_eq!(
        scene.shown().await[0..3],
        ["1:ab/ab!", "2:ab/ab!", "3:a/a!"],
        "completed records are never changed"
    );
    assert_eq!(
        scene.number("SELECT count(*) FROM headwater_subscription WHERE released_until IS NOT NULL"),
        Some(0)
    );
    scene.sql("DELETE FROM headwater_subscription WHERE group_name = 'b';
        DELETE FROM headwater_cursor WHERE subscription_id = 2; DELETE FROM headwater_applied WHERE subscription_id = 2;
        DELETE FROM headwater_backfill WHERE subscription_id = 2;");
    scene.group("c", Start::Now).await;
    let bit_of_c = "SELECT bit FROM headwater_subscription WHERE group_name = 'c'";
    assert_eq!(scene.number(bit_of_c), Some(2), "records still have bit 1");
    scene.assert_sound().await;
}

#[tokio::test]
async fn one_that_comes_back_is_set_again_on_what_is_pending_only() {
    let scene = Scene::new(COUNTED).await;
    let a = scene.group("a", Start::Beginning).await;
    let b = scene.group("b", Start::Beginning).await;
    scene.publish(6).await;
    scene.consume(&a, 2).await;
    scene.consume(&b, 1).await;
    scene.track().await;
    scene.set_state(&b, "dead").await;
    scene.track().await;
    assert_eq!(scene.shown().await, ["1:ab/ab!", "2:a/a!", "3:/a", "4:/a", "5:/a", "6:/a"]);
    scene.publish(1).await;
    scene.set_state(&b, "active").await;
    let backfill = scene.store.backfills().await.unwrap().remove(0);
    assert_eq!((backfill.first.0, backfill.last.0, backfill.state), (2, 6, BackfillState::NotStarted));
    scene.consume(&b, 3).await;
    scene.track().await;
    scene.assert_sound().await;
    let step = scene.store.step_backfill(&worker("w"), 100).await.unwrap().unwrap();
    assert_eq!((step.processed, step.changed, step.backfill.state), (5, 4, BackfillState::Completed));
    scene.track().await;
    assert_eq!(scene.shown().await, ["1:ab/ab!", "2:a/a!", "3:b/ab", "4:b/ab", "5:/ab", "6:/ab", "7:/ab"]);
    scene.assert_sound().await;
}

#[tokio::test]
async fn what_is_handed_out_again_is_unset_until_it_is_completed() {
    let scene = Scene::new(COUNTED).await;
    let a = scene.group("a", Start::Beginning).await;
    scene.group("b", Start::Beginning).await;
    scene.publish(4).await;
    scene.consume(&a, 4).await;
    scene.track().await;
    scene.sql("UPDATE headwater_cursor SET next_offset = 3 WHERE subscription_id = 1");
    let step = scene.store.track(scene.topic, 100).await.unwrap();
    assert_eq!((step.changed, step.completed), (2, 0));
    assert_eq!(scene.shown().await, ["1:a/ab", "2:a/ab", "3:/ab", "4:/ab"]);
    scene.assert_sound().await;
}

#[tokio::test]
async fn a_step_that_fails_half_way_leaves_nothing() {
    let scene = Scene::new(COUNTED).await;
    let a = scene.group("a", Start::Beginning).await;
    scene.group("b", Start::Beginning).await;
    scene.publish(10).await;
    scene.track().await;
    scene.consume(&a, 10).await;
    scene.publish(5).await;
    break_at(&scene, "headwater_completion_record", "UPDATE", 7);
    let before = scene.shown().await;
    let error = scene.store.track(scene.topic, 100).await.unwrap_err();
    assert!(error.to_string().contains("broken on purpose"), "{error}");
    assert_eq!(scene.shown().await[..10], before[..10]);
    assert_eq!(scene.number("SELECT tracked_until FROM headwater_topic"), Some(10));
    assert_eq!(scene.number("SELECT count(*) FROM headwater_applied"), Some(0));
    scene.sql("DROP TRIGGER broken");
    scene.track().await;
    assert_eq!(scene.shown().await[6], "7:a/ab");
    scene.assert_sound().await;
}

#[tokio::test]
async fn a_topic_changes_its_mode_and_back_while_messages_flow() {
    let scene = Scene::new("").await;
    let a = scene.group("a", Start::Beginning).await;
    let b = scene.group("b", Start::Beginning).await;
    scene.publish(10).await;
    scene.consume(&a, 6).await;
    scene.consume(&b, 3).await;
    assert_eq!(scene.shown().await, [""; 0]);
    scene.change(Tracking::ReferenceCounting).await.unwrap();
    // How far records are created, or the lowest that is left, out of how many: the progress in the list of topics.
    let progress = |scene: &Scene| {
        let reached = "SELECT CASE tracking WHEN 'reference_counting' THEN tracked_until
            ELSE (SELECT min(row_key) & 8796093022207 FROM headwater_completion_record) - 1 END FROM headwater_topic";
        let until = scene.number("SELECT change_until FROM headwater_topic");
        until.map(|until| (scene.number(reached).unwrap(), until))
    };
    assert_eq!(progress(&scene), Some((0, 10)));
    assert!(scene.store.track(scene.topic, 4).await.unwrap().more);
    assert_eq!(progress(&scene), Some((4, 10)));
    let error = scene.change(Tracking::OffsetWatermark).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Conflict, "{error}");
    scene.consume(&b, 2).await;
    scene.publish(1).await;
    scene.track().await;
    assert_eq!(progress(&scene), None);
    let expected = ["1:ab/ab!", "2:ab/ab!", "3:ab/ab!", "4:ab/ab!", "5:ab/ab!", "6:a/ab", "7:/ab"];
    assert_eq!(scene.shown().await[..7], expected);
    scene.assert_sound().await;

    scene.change(Tracking::OffsetWatermark).await.unwrap();
    assert_eq!(progress(&scene), Some((0, 11)));
    let step = scene.store.track(scene.topic, 4).await.unwrap();
    assert_eq!((step.removed, step.more, progress(&scene)), (4, true, Some((4, 11))));
    scene.assert_sound().await;
    scene.track().await;
    assert_eq!(progress(&scene), None);
    assert_eq!(scene.number("SELECT count(*) FROM headwater_completion_record"), Some(0));
    assert_eq!(scene.number("SELECT count(bit) FROM headwater_subscription"), Some(0));
    scene.assert_sound().await;
    scene.change(Tracking::ReferenceCounting).await.unwrap();
    scene.track().await;
    assert_eq!(scene.shown().await[..7], expected, "nothing was lost on the way");
    scene.assert_sound().await;
}

#[tokio::test]
async fn a_change_ends_although_retention_took_the_records_first() {
    let settings = format!("{COUNTED}, message_retention_ms = 0, zero_subscription_retention_ms = 0");
    let scene = Scene::new(&settings).await;
    let a = scene.group("a", Start::Beginning).await;
    scene.publish(10).await;
    scene.consume(&a, 10).await;
    scene.track().await;
    scene.change(Tracking::OffsetWatermark).await.unwrap();
    assert_eq!(scene.clean().await, 10);
    let change = || async { scene.store.topics().await.unwrap().remove(0).tracking_change };
    assert!(change().await.is_some(), "the bits are still to be released: maintenance must run");
    scene.track().await;
    assert_eq!(change().await, None);
    assert_eq!(scene.number("SELECT count(bit) FROM headwater_subscription"), Some(0));
    scene.change(Tracking::ReferenceCounting).await.unwrap();
    scene.assert_sound().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_stores_on_one_file_may_step_at_once() {
    let scene =
        Scene::new(&format!("{COUNTED}, message_retention_ms = 0, zero_subscription_retention_ms = 0")).await;
    let other = Arc::new(scene.open_again().await);
    let a = scene.group("a", Start::Beginning).await;
    scene.publish(200).await;
    scene.track().await;
    scene.group("b", Start::Beginning).await;
    let topic_id = scene.topic;
    let stepping = tokio::spawn({
        let other = Arc::clone(&other);
        async move {
            let (mut backfilled, mut removed) = (0, 0);
            for _ in 0..60 {
                other.track(topic_id, 7).await.unwrap();
                removed += other.clean(topic_id, 7).await.unwrap().removed;
                if let Some(step) = other.step_backfill(&worker("other"), 7).await.unwrap() {
                    backfilled += step.processed;
                }
            }
            (backfilled, removed)
        }
    });
    let (mut backfilled, mut removed) = (0, 0);
    for _ in 0..60 {
        scene.consume(&a, 5).await;
        scene.store.track(topic_id, 7).await.unwrap();
        removed += scene.store.clean(topic_id, 7).await.unwrap().removed;
        if let Some(step) = scene.store.step_backfill(&worker("own"), 7).await.unwrap() {
            backfilled += step.processed;
        }
    }
    let (theirs, removed_by_them) = stepping.await.unwrap();
    assert_eq!(backfilled + theirs, 200, "each offset was processed once");
    assert!(backfilled == 0 || theirs == 0, "two never run the same one: {backfilled}, {theirs}");
    scene.track().await;
    assert_eq!(removed + removed_by_them, 0, "b has done nothing yet");
    let lines = scene.shown().await;
    let completed = lines.iter().filter(|line| line.ends_with(":a/a!")).count();
    let waiting = lines.iter().filter(|line| line.ends_with(":a/ab")).count();
    assert_eq!(completed + waiting, 200, "completed before b came to it, or waiting for b: {lines:?}");
    scene.assert_sound().await;
}
