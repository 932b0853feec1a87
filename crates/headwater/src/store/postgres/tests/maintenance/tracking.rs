//! Completion records: derived, resumable, and correct whatever runs at the same time.

use super::*;

const COUNTING: &str = "tracking = 'reference_counting', message_retention_ms = 0";

#[tokio::test]
async fn a_step_rolled_back_is_done_again_and_a_second_changes_nothing() {
    let Some(stage) = Stage::set(COUNTING).await else { return };
    let (a, b) = (stage.subscribe("a").await, stage.subscribe("b").await);
    stage.publish(3).await;
    stage.handle(&a, 2).await;
    stage.handle(&b, 1).await;
    let expected = ["1: a+b, a+b*", "2: a+b, a", "3: a+b, "];
    assert_eq!(stage.records().await, expected, "shown as they will be");
    let step = format!("BEGIN; SELECT {{schema}}.track({}, 100, {}); ROLLBACK", stage.topic.0, stage.now());
    stage.run(&step).await;
    assert_eq!(stage.number("SELECT count(*) FROM {schema}.completion_record").await, 0);
    let done = stage.track().await;
    assert_eq!((done.recorded, done.completed), (3, 1));
    assert_eq!(stage.records().await, expected);
    assert_eq!(stage.track().await, TrackStep::default());
    stage.handle(&b, 2).await;
    stage.run(&step).await;
    let done = stage.track().await;
    assert_eq!((done.recorded, done.changed, done.completed), (0, 2, 1));
    assert_eq!(stage.records().await, ["1: a+b, a+b*", "2: a+b, a+b*", "3: a+b, b"]);
    assert_eq!(stage.track().await, TrackStep::default());
    stage.strike().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_trackers_and_a_consumer_at_once_end_with_every_record_complete() {
    let Some(stage) = Stage::set(COUNTING).await else { return };
    let (a, b) = (stage.subscribe("a").await, stage.subscribe("b").await);
    let trackers: Vec<_> = (0..2)
        .map(|_| {
            let (store, topic) = (Arc::clone(&stage.store), stage.topic);
            tokio::spawn(async move {
                let mut recorded = 0;
                for _ in 0..40 {
                    recorded += store.track(topic, 50).await.unwrap().recorded;
                }
                recorded
            })
        })
        .collect();
    for _ in 0..20 {
        stage.publish(50).await;
        stage.handle(&a, 30).await;
        stage.handle(&b, 70).await;
    }
    let mut recorded = 0;
    for tracker in trackers {
        recorded += tracker.await.unwrap();
    }
    while !stage.handle(&a, 1_000).await.is_empty() || !stage.handle(&b, 1_000).await.is_empty() {}
    recorded += stage.track().await.recorded;
    assert_eq!(recorded, 1_000, "each once");
    let left = "SELECT count(*) FROM {schema}.completion_record WHERE completed_at IS NULL OR required <> 3 OR completed <> 3";
    assert_eq!(stage.number(left).await, 0);
    assert_eq!(stage.number("SELECT pending_from FROM {schema}.topic_range").await, 1_001);
    let ranges = "SELECT max(cardinality(ARRAY(SELECT unnest(applied))))::bigint FROM {schema}.subscription";
    assert_eq!(stage.number(ranges).await, 1, "adjacent ranges are merged");
    stage.strike().await;
}

/// A late message below the tracked offsets gets its record when it is handed out, whether it is acked before the next step or
/// after.
#[tokio::test]
async fn late_rows_have_records_and_wait_for_their_groups() {
    let Some(stage) = Stage::set(COUNTING).await else { return };
    let (a, b) = (stage.subscribe("a").await, stage.subscribe("b").await);
    let open = stage.scene.client().await;
    open.batch_execute(&stage.scene.sql("BEGIN; SELECT {schema}.publish('orders', '1')")).await.unwrap();
    stage.publish(2).await;
    until_true("the others come", async || !stage.handle(&a, 10).await.is_empty()).await;
    until_true("for the other group too", async || !stage.handle(&b, 10).await.is_empty()).await;
    stage.track().await;
    assert_eq!(stage.records().await, ["2: a+b, a+b*", "3: a+b, a+b*"]);
    assert_eq!(stage.number("SELECT pending_from FROM {schema}.topic_range").await, 1, "never beyond a gap");
    assert_eq!(stage.store.doctor().await.unwrap(), []);
    open.batch_execute("COMMIT").await.unwrap();
    until_true("it comes late", async || stage.handle(&a, 10).await == [1]).await;
    assert_eq!(stage.records().await[0], "1: a+b, ");
    assert_eq!(stage.store.doctor().await.unwrap(), []);
    assert_eq!(stage.clean().await, 2, "pending messages stay, done messages behind them are removed");
    stage.track().await;
    assert_eq!(stage.records().await, ["1: a+b, a"]);
    assert_eq!(stage.handle(&b, 10).await, [1]);
    stage.track().await;
    assert_eq!(stage.clean().await, 1);
    stage.strike().await;
}

/// The step's snapshot has the gap, which is gone when the step commits: the record is written when the message is handed out.
#[tokio::test]
async fn a_late_row_that_comes_while_a_step_is_under_way_has_its_record() {
    let Some(stage) = Stage::set(COUNTING).await else { return };
    let a = stage.subscribe("a").await;
    let open = stage.scene.client().await;
    open.batch_execute(&stage.scene.sql("BEGIN; SELECT {schema}.publish('orders', '1')")).await.unwrap();
    stage.publish(1).await;
    until_true("the other comes", async || stage.handle(&a, 10).await == [2]).await;
    stage.run(&format!("BEGIN; SELECT {{schema}}.track({}, 100, {})", stage.topic.0, stage.now())).await;
    open.batch_execute("COMMIT").await.unwrap();
    until_true("it comes late", async || stage.handle(&a, 10).await == [1]).await;
    stage.run("COMMIT").await;
    stage.track().await;
    assert_eq!(stage.records().await, ["1: a, a*", "2: a, a*"]);
    stage.strike().await;
}

#[tokio::test]
async fn what_is_handed_out_again_is_unset() {
    let Some(stage) = Stage::set(COUNTING).await else { return };
    let (a, _b) = (stage.subscribe("a").await, stage.subscribe("b").await);
    stage.publish(3).await;
    stage.handle(&a, 3).await;
    stage.track().await;
    stage
        .run(
            "INSERT INTO {schema}.outstanding (token, first_offset, last_offset, due_at, subscription_id)
             VALUES ({schema}.new_token(), 2, 2, '-infinity', 1)",
        )
        .await;
    let done = stage.track().await;
    assert_eq!((done.changed, done.completed), (1, 0));
    assert_eq!(stage.records().await, ["1: a+b, a", "2: a+b, ", "3: a+b, a"]);
    assert_eq!(stage.handle(&a, 3).await, [2]);
    stage.track().await;
    assert_eq!(stage.records().await[1], "2: a+b, a");
    stage.strike().await;
}

const DIES: &str = "BEGIN; SELECT {schema}.lock_topic_range(1);
    UPDATE {schema}.subscription SET state = 'dead' WHERE group_name = 'b'; SELECT {schema}.stop_counting(2); COMMIT";
const COMES_BACK: &str = "BEGIN; SELECT {schema}.lock_topic_range(1);
    UPDATE {schema}.subscription SET state = 'active' WHERE group_name = 'b'; SELECT {schema}.start_counting(2, NULL); COMMIT";

#[tokio::test]
async fn dead_groups_are_released_step_by_step_and_resurrected_at_any_point() {
    let Some(stage) = Stage::set(COUNTING).await else { return };
    let (a, b) = (stage.subscribe("a").await, stage.subscribe("b").await);
    stage.publish(6).await;
    stage.handle(&a, 2).await;
    // Acked by b, and not applied yet when it dies.
    stage.track().await;
    stage.handle(&b, 4).await;
    stage.run(DIES).await;
    let step = stage.store.track(stage.topic, 3).await.unwrap();
    assert!(step.more && step.changed == 3 && step.completed == 2, "{step:?}");
    assert_eq!(stage.store.doctor().await.unwrap(), []);
    // Alive again before it was released from the records: messages it had done must not become pending again.
    stage.run(COMES_BACK).await;
    stage.track().await;
    while stage.store.step_backfill(&Owner::new("w").unwrap(), 2).await.unwrap().is_some() {}
    stage.track().await;
    assert_eq!(
        stage.records().await,
        ["1: a, a*", "2: a, a*", "3: a, ", "4: a+b, b", "5: a+b, ", "6: a+b, "]
    );
    stage.run(DIES).await;
    stage.track().await;
    let released = "SELECT count(*) FROM {schema}.subscription WHERE released_until IS NOT NULL";
    assert_eq!(stage.number(released).await, 0);
    assert_eq!(stage.records().await[2..], ["3: a, ", "4: a, ", "5: a, ", "6: a, "]);
    stage.run(COMES_BACK).await;
    stage.handle(&a, 6).await;
    stage.track().await;
    assert_eq!(stage.clean().await, 4, "complete without b, but 5 and 6 b has not done");
    assert_eq!(stage.handle(&b, 9).await, [5, 6]);
    stage.track().await;
    assert_eq!(stage.clean().await, 2);
    stage.strike().await;
}

#[tokio::test]
async fn a_change_of_mode_goes_both_ways_while_groups_continue() {
    let Some(stage) = Stage::set("message_retention_ms = NULL").await else { return };
    let (a, b) = (stage.subscribe("a").await, stage.subscribe("b").await);
    stage.publish(250).await;
    stage.handle(&a, 200).await;
    let change = |target: &str| {
        format!(
            "BEGIN; SELECT {{schema}}.lock_topic_range(1); SELECT {{schema}}.change_tracking(1, '{target}', NULL); COMMIT"
        )
    };
    let progress = async || {
        let change = stage.store.topics().await.unwrap().remove(0).tracking_change?;
        Some(format!("{} of {}", change.done, change.total))
    };
    stage.store.advance_heads().await.unwrap();
    stage.run(&change("reference_counting")).await;
    assert_eq!(progress().await.unwrap(), "0 of 250");
    stage.store.track(stage.topic, 100).await.unwrap();
    assert_eq!(progress().await.unwrap(), "100 of 250");
    let refused = stage.client.batch_execute(&stage.scene.sql(&change("offset_watermark"))).await;
    assert_eq!(refused.unwrap_err().code().unwrap().code(), "HW008");
    stage.run("ROLLBACK").await;
    stage.handle(&b, 50).await;
    stage.track().await;
    assert_eq!(progress().await, None);
    let records = stage.records().await;
    assert_eq!([&records[49], &records[50], &records[200]], ["50: a+b, a+b*", "51: a+b, a", "201: a+b, "]);
    stage.run(&change("offset_watermark")).await;
    let step = stage.store.track(stage.topic, 100).await.unwrap();
    assert_eq!((step.removed, step.more), (100, true));
    assert_eq!(progress().await.unwrap(), "100 of 250");
    stage.handle(&b, 50).await;
    stage.track().await;
    assert_eq!(stage.number("SELECT count(*) FROM {schema}.completion_record").await, 0);
    assert_eq!(stage.handle(&b, 500).await.len(), 150);
    // And back to reference counting.
    stage.run(&change("reference_counting")).await;
    stage.track().await;
    assert_eq!(stage.records().await[249], "250: a+b, b");
    stage.strike().await;
}

#[tokio::test]
async fn the_65th_group_is_refused_and_a_bit_is_free_once_no_record_has_it() {
    let Some(stage) = Stage::set(COUNTING).await else { return };
    for n in 0..64 {
        stage.subscribe(&format!("g{n}")).await;
    }
    stage.publish(1).await;
    stage.track().await;
    let group = GroupName::new("one_too_many").unwrap();
    let refused = stage.store.subscribe(&orders(), &group, Start::Beginning).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidInput);
    assert!(refused.to_string().contains("offset_watermark"), "{refused}");
    assert_eq!(stage.number("SELECT required FROM {schema}.completion_record").await, -1, "all 64 bits");
    stage.run("DELETE FROM {schema}.subscription WHERE group_name = 'g7'").await;
    let refused = stage.store.subscribe(&orders(), &group, Start::Beginning).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidInput, "a record has the bit");
    stage.run("UPDATE {schema}.completion_record SET required = required & ~(1::bigint << 7)").await;
    stage.store.subscribe(&orders(), &group, Start::Beginning).await.unwrap();
    stage.strike().await;
}
