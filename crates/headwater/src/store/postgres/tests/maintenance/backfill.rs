//! Backfills: checkpointed, leased to a worker, and only of pending messages.

use super::*;
use crate::backfill::{BackfillLimits, BackfillState};

async fn staged() -> Option<(Stage, Subscription)> {
    let stage = Stage::set("tracking = 'reference_counting', message_retention_ms = NULL").await?;
    let a = stage.subscribe("a").await;
    stage.publish(20).await;
    stage.handle(&a, 5).await;
    stage.track().await;
    let b = stage.subscribe("b").await;
    Some((stage, b))
}

fn worker(name: &str) -> Owner {
    Owner::new(name).unwrap()
}

#[tokio::test]
async fn a_batch_rolled_back_is_done_again_and_a_silent_worker_loses_it() {
    let Some((stage, b)) = staged().await else { return };
    let first = stage.store.backfills().await.unwrap().remove(0);
    assert_eq!(
        (first.state, first.first, first.last, first.total),
        (BackfillState::NotStarted, Offset(1), Offset(20), 20)
    );
    let step = stage.store.step_backfill(&worker("one"), 8).await.unwrap().unwrap();
    // The first five are completed: never changed, and skipped without counting towards the batch.
    assert_eq!((step.changed, step.backfill.checkpoint), (8, Offset(13)));
    // Killed during its batch.
    stage
        .run(&format!(
            "BEGIN; SELECT {{schema}}.step_backfill(2, 'one', 8, 15000, {}); ROLLBACK",
            stage.now()
        ))
        .await;
    assert_eq!(stage.store.backfills().await.unwrap()[0].checkpoint, Offset(13));
    stage.clock.advance(Duration::from_millis(14_999));
    assert!(stage.store.step_backfill(&worker("two"), 8).await.unwrap().is_none(), "another worker has it");
    stage.clock.advance(Duration::from_millis(1));
    let step = stage.store.step_backfill(&worker("two"), 8).await.unwrap().unwrap();
    assert_eq!((step.processed, step.changed, step.backfill.state), (7, 7, BackfillState::Completed));
    assert!(step.backfill.rate > 0.0 && step.backfill.remaining().is_none());
    assert!(stage.store.step_backfill(&worker("one"), 8).await.unwrap().is_none());
    assert_eq!(stage.records().await[4..6], ["5: a, a*", "6: a+b, "]);
    // Messages that the group did meanwhile, before or after its bit was set, are applied.
    stage.handle(&b, 20).await;
    stage.track().await;
    assert_eq!(stage.records().await[5], "6: a+b, b");
    stage.strike().await;
}

#[tokio::test]
async fn two_workers_never_have_the_same_one() {
    let Some((stage, _)) = staged().await else { return };
    let (one, two) = (worker("one"), worker("two"));
    let (one, two) = tokio::join!(stage.store.step_backfill(&one, 5), stage.store.step_backfill(&two, 5));
    assert_eq!([one.unwrap(), two.unwrap()].iter().flatten().count(), 1);
    stage.strike().await;
}

#[tokio::test]
async fn a_backfill_is_cancelled_at_once_and_continues_from_its_checkpoint() {
    let Some((stage, _)) = staged().await else { return };
    let group = GroupName::new("b").unwrap();
    let again = stage.store.backfill(&orders(), &group, &BackfillLimits::default()).await.unwrap_err();
    assert_eq!(again.kind(), ErrorKind::Conflict, "{again}");
    stage.store.step_backfill(&worker("w"), 2).await.unwrap().unwrap();
    assert_eq!(stage.store.cancel_backfill(&orders(), &group).await.unwrap().state, BackfillState::Cancelled);
    let twice = stage.store.cancel_backfill(&orders(), &group).await.unwrap_err();
    assert_eq!(twice.kind(), ErrorKind::InvalidTransition, "{twice}");
    assert!(stage.store.step_backfill(&worker("w"), 2).await.unwrap().is_none());
    let resumed = stage.store.resume_backfill(&orders(), &group).await.unwrap();
    assert_eq!((resumed.state, resumed.checkpoint), (BackfillState::InProgress, Offset(7)));
    while stage.store.step_backfill(&worker("w"), 4).await.unwrap().is_some() {}
    assert_eq!(stage.records().await[19], "20: a+b, ");
    let limits = BackfillLimits::bounded(3).rate(10);
    let bounded = stage.store.backfill(&orders(), &group, &limits).await.unwrap();
    assert_eq!((bounded.first, bounded.last, bounded.rate_max), (Offset(18), Offset(20), 10));
    let acts = stage.text("SELECT string_agg(act, ' ' ORDER BY audit_id) FROM {schema}.audit").await;
    assert_eq!(acts, "cancel_backfill resume_backfill backfill");
    stage.strike().await;
}

/// A backfill without any step has not started; and only the backfill of a group that counts can be resumed.
#[tokio::test]
async fn it_continues_unchanged_and_only_for_a_group_that_counts() {
    let Some((stage, b)) = staged().await else { return };
    let group = GroupName::new("b").unwrap();
    stage.store.cancel_backfill(&orders(), &group).await.unwrap();
    let resumed = stage.store.resume_backfill(&orders(), &group).await.unwrap();
    assert_eq!((resumed.state, resumed.checkpoint), (BackfillState::NotStarted, Offset(0)));
    stage.store.cancel_backfill(&orders(), &group).await.unwrap();
    stage.run("UPDATE {schema}.subscription SET state = 'dead' WHERE group_name = 'b'").await;
    let refused = stage.store.resume_backfill(&orders(), &group).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidTransition, "{refused}");
    assert!(refused.to_string().contains("group b is dead"), "{refused}");
    assert_eq!(stage.store.backfills().await.unwrap()[0].state, BackfillState::Cancelled);
    // Deleted after it was taken and before its first batch.
    let gone = "SELECT processed FROM {schema}.step_backfill(4711, 'w', 10, 15000, NULL)";
    let row = stage.client.query_one(&stage.scene.sql(gone), &[]).await.unwrap();
    assert_eq!(row.get::<_, Option<i64>>(0), None, "nothing is left to do for {}", b.subscription_id.0);
    stage.scene.drop().await;
}

/// A batch skips messages without a pending record, and visits no more than its limit.
#[tokio::test]
async fn a_batch_reads_only_what_may_be_pending() {
    let Some(stage) = Stage::set("tracking = 'reference_counting', message_retention_ms = NULL").await else {
        return;
    };
    let a = stage.subscribe("a").await;
    stage.publish(3_000).await;
    stage.handle(&a, 2_900).await;
    stage.track().await;
    stage.subscribe("b").await;
    // Reading a record of a message that was completed before divides by zero.
    stage
        .run(
            "ALTER TABLE {schema}.completion_record RENAME TO record_all;
             CREATE FUNCTION {schema}.is_read(o bigint) RETURNS boolean LANGUAGE plpgsql COST 0.0001
                AS 'BEGIN RETURN 1 / (CASE WHEN o <= 2900 THEN 0 ELSE 1 END) = 1; END';
             CREATE VIEW {schema}.completion_record AS SELECT * FROM {schema}.record_all WHERE {schema}.is_read(message_offset)",
        )
        .await;
    let step = stage.store.step_backfill(&worker("w"), 10).await.unwrap().unwrap();
    assert_eq!((step.changed, step.backfill.checkpoint), (10, Offset(2_910)));
    stage.scene.drop().await;
}

#[tokio::test]
async fn an_error_stops_it_with_its_reason() {
    let Some((stage, _)) = staged().await else { return };
    stage
        .run("ALTER TABLE {schema}.completion_record ADD CONSTRAINT test CHECK (message_offset <> 9 OR required < 2)")
        .await;
    let failed = stage.store.step_backfill(&worker("w"), 100).await.unwrap().unwrap();
    assert_eq!((failed.processed, failed.changed), (0, 0));
    let backfill = stage.store.backfills().await.unwrap().remove(0);
    assert_eq!((backfill.state, backfill.checkpoint), (BackfillState::Failed, Offset(0)));
    assert!(backfill.error.unwrap().contains("test"));
    stage.run("ALTER TABLE {schema}.completion_record DROP CONSTRAINT test").await;
    stage.store.resume_backfill(&orders(), &GroupName::new("b").unwrap()).await.unwrap();
    assert_eq!(stage.store.step_backfill(&worker("w"), 100).await.unwrap().unwrap().changed, 15);
    stage.strike().await;
}

/// In the offset watermark mode there is nothing to do: the backfill shows the group's own progress.
#[tokio::test]
async fn in_offset_watermark_it_shows_how_far_the_group_is() {
    let Some(stage) = Stage::set("message_retention_ms = NULL").await else { return };
    stage.publish(10).await;
    stage.store.advance_heads().await.unwrap();
    let a = stage.subscribe("a").await;
    stage.handle(&a, 4).await;
    let shown = stage.store.backfills().await.unwrap().remove(0);
    assert_eq!(
        (shown.state, shown.checkpoint, shown.last),
        (BackfillState::InProgress, Offset(4), Offset(10))
    );
    assert!(stage.store.step_backfill(&worker("w"), 4).await.unwrap().is_none());
    stage.handle(&a, 10).await;
    let shown = stage.store.backfills().await.unwrap().remove(0);
    assert_eq!((shown.state, shown.processed), (BackfillState::Completed, 10));
    stage.strike().await;
}
