//! Backfills: a late joiner is added to the completion records of earlier messages, in steps that are never repeated.

use std::time::Duration;

use uuid::Uuid;

use super::case::{Case, Scene, failed, group, owner};
use super::life::{MOMENT, counted, groups_of, lively};
use super::log_capture;
use crate::backfill::{Backfill, BackfillLimits, BackfillState, BackfillStep};
use crate::error::ErrorKind;
use crate::subscription::{NewSubscription, Start};
use crate::topic::TopicSettings;

/// A worker that is silent for this long loses its backfill.
const WORKER_LEASE: Duration = Duration::from_secs(15);

/// A counted topic with this many recorded, pending messages, and a late joiner at their beginning.
async fn late_joiner(case: &Case, count: usize) -> (Scene, Scene) {
    let scene = case.scene(counted()).await;
    scene.publish(count).await;
    scene.track_all().await;
    let late = scene.subscribe("late", Start::Beginning).await;
    (scene, late)
}

async fn shown(scene: &Scene) -> Backfill {
    let all = scene.store.backfills().await.unwrap();
    let of_group = |one: &&Backfill| one.group == scene.subscription.group && one.topic == scene.topic;
    all.iter().find(of_group).unwrap_or_else(|| panic!("no backfill of the group in {all:?}")).clone()
}

async fn step(scene: &Scene, worker: &str, count: u32) -> Option<BackfillStep> {
    scene.store.step_backfill(&owner(worker), count).await.unwrap()
}

/// A backfill is not started, then in progress with a checkpoint after every batch, then completed: the group is then
/// in every pending record.
pub async fn a_late_joiner_is_added_to_pending_records(case: &Case) {
    let scene = case.scene(counted()).await;
    scene.publish(25).await;
    scene.ack_next(4).await;
    scene.track_all().await;
    let completed: Vec<_> = scene.records().await.into_iter().take(4).collect();
    let late = scene.subscribe("late", Start::Beginning).await;
    let begun = shown(&late).await;
    assert_eq!((begun.state, begun.first.0, begun.last.0), (BackfillState::NotStarted, 1, 25));
    assert_eq!((begun.processed, begun.total, begun.created_at), (0, 25, case.now()));
    let (mut processed, mut changed, mut steps) = (0, 0, 0);
    while let Some(step) = step(&late, "w", 10).await {
        // Messages that were completed before the group joined are passed over, and need not count for the batch.
        assert!(step.changed <= 10, "{step:?}");
        processed += step.processed;
        changed += step.changed;
        steps += 1;
        let expected = if processed < 25 { BackfillState::InProgress } else { BackfillState::Completed };
        assert_eq!(step.backfill.state, expected, "{step:?}");
        assert_eq!((step.backfill.checkpoint.0, step.backfill.processed), (processed as i64, processed));
        assert_eq!(step.backfill.progressed_at, Some(case.now()));
        assert_eq!(shown(&late).await, step.backfill);
        case.advance_ms(100);
    }
    assert_eq!((processed, changed), (25, 21));
    assert!(steps >= 3, "ten at a time: {steps}");
    assert_eq!(step(&late, "w", 10).await, None, "there is nothing left to do");
    let records = scene.records().await;
    assert_eq!(records[..4], completed[..], "completed records are never modified");
    for record in &records[4..] {
        assert_eq!(groups_of(record), (vec!["late", "workers"], vec![], false));
    }
    assert_eq!(late.reads().await.len(), 25);
}

/// Only an open backfill can be cancelled, only a stopped one resumed; any other request changes nothing.
pub async fn only_valid_changes_of_a_backfill_are_accepted(case: &Case) {
    let (scene, late) = late_joiner(case, 10).await;
    let (topic, name) = (&scene.topic, group("late"));
    let cancel = async || scene.store.cancel_backfill(topic, &name).await;
    let resume = async || scene.store.resume_backfill(topic, &name).await;
    let start = async || scene.store.backfill(topic, &name, &BackfillLimits::default()).await;
    failed(resume().await, ErrorKind::InvalidTransition);
    failed(start().await, ErrorKind::Conflict);
    assert_eq!(cancel().await.unwrap().state, BackfillState::Cancelled, "before it started");
    failed(cancel().await, ErrorKind::InvalidTransition);
    assert_eq!(step(&late, "w", 5).await, None, "cancelled at once");
    assert_eq!(resume().await.unwrap().state, BackfillState::NotStarted, "nothing was begun");
    step(&late, "w", 4).await.expect("the backfill continues");
    failed(resume().await, ErrorKind::InvalidTransition);
    failed(start().await, ErrorKind::Conflict);
    let cancelled = cancel().await.unwrap();
    assert_eq!((cancelled.state, cancelled.checkpoint.0), (BackfillState::Cancelled, 4), "progress is kept");
    assert_eq!(step(&late, "w", 5).await, None);
    let resumed = resume().await.unwrap();
    assert_eq!((resumed.state, resumed.checkpoint.0), (BackfillState::InProgress, 4), "from its checkpoint");
    let mut left = 0;
    while let Some(step) = step(&late, "w", 5).await {
        left += step.processed;
    }
    assert_eq!(left, 6);
    assert_eq!(shown(&late).await.state, BackfillState::Completed);
    failed(cancel().await, ErrorKind::InvalidTransition);
    failed(resume().await, ErrorKind::InvalidTransition);
    let unknown = group("unknown");
    failed(scene.store.cancel_backfill(topic, &unknown).await, ErrorKind::NoSuchSubscription);
    failed(
        scene.store.backfill(topic, &unknown, &BackfillLimits::default()).await,
        ErrorKind::NoSuchSubscription,
    );
    assert!(start().await.is_ok(), "after completion another may be started");
}

/// A stopped backfill cannot be resumed for a group that does not count: its resurrection starts another.
pub async fn a_dead_groups_backfill_cannot_be_resumed(case: &Case) {
    let (scene, late) = late_joiner(case, 10).await;
    let name = group("late");
    step(&late, "w", 4).await.expect("it starts");
    scene.store.cancel_backfill(&scene.topic, &name).await.unwrap();
    late.let_die(case).await;
    failed(scene.store.resume_backfill(&scene.topic, &name).await, ErrorKind::InvalidTransition);
    assert_eq!(shown(&late).await.state, BackfillState::Cancelled);
}

/// No two workers run the same backfill. A worker that is silent for fifteen seconds loses it, and the next one
/// continues at the checkpoint.
pub async fn a_silent_worker_loses_its_backfill(case: &Case) {
    let (_, late) = late_joiner(case, 30).await;
    let first = step(&late, "first", 10).await.expect("it starts");
    assert_eq!(first.backfill.checkpoint.0, 10);
    assert_eq!(step(&late, "second", 10).await, None, "the first has it");
    case.advance(WORKER_LEASE - MOMENT);
    assert_eq!(step(&late, "second", 10).await, None);
    case.advance(MOMENT * 2);
    let second = step(&late, "second", 10).await.expect("the first was silent");
    assert_eq!((second.processed, second.changed, second.backfill.checkpoint.0), (10, 10, 20));
    assert_eq!(step(&late, "first", 10).await, None, "the second holds it now");
    // Each step renews the worker's lease.
    case.advance(WORKER_LEASE - MOMENT);
    let last = step(&late, "second", 100).await.expect("the second still holds it");
    assert_eq!((last.processed, last.backfill.state), (10, BackfillState::Completed));
}

/// A bounded backfill covers at most that many messages, the last ones before the group joined, and shows its rate.
pub async fn a_bounded_backfill_covers_the_last_ones(case: &Case) {
    let (scene, late) = late_joiner(case, 20).await;
    assert_eq!(shown(&late).await.rate_max, BackfillLimits::default().rate_max);
    scene.store.cancel_backfill(&scene.topic, &group("late")).await.unwrap();
    let limits = BackfillLimits::bounded(7).rate(1_234);
    let begun = scene.store.backfill(&scene.topic, &group("late"), &limits).await.unwrap();
    assert_eq!((begun.first.0, begun.last.0, begun.total, begun.rate_max), (14, 20, 7, 1_234));
    let mut done = (0, 0);
    while let Some(step) = step(&late, "w", 3).await {
        assert!(step.processed <= 3, "{step:?}");
        done = (done.0 + step.processed, done.1 + step.changed);
    }
    assert_eq!(done, (7, 7));
    for record in scene.records().await {
        let has_late = groups_of(&record).0.contains(&"late");
        assert_eq!(has_late, record.offset.0 >= 14, "{record:?}");
    }
}

/// A new group brings the limits of its backfill: how many messages, how fast, in which batches; or none at all. It
/// gets all messages in any case.
pub async fn a_new_group_limits_its_backfill(case: &Case) {
    let scene = case.scene(counted()).await;
    scene.publish(20).await;
    scene.track_all().await;
    let join = async |name: &str, backfill: BackfillLimits| {
        let new = NewSubscription { backfill, ..NewSubscription::default() };
        let subscription = scene.store.subscribe_with(&scene.topic, &group(name), &new).await.unwrap();
        Scene { subscription, ..scene.clone() }
    };
    let limits = BackfillLimits::bounded(7).rate(1_234).batch(3).target_latency(Duration::from_millis(15));
    let bounded = join("bounded", limits).await;
    let shown_of = shown(&bounded).await;
    assert_eq!((shown_of.first.0, shown_of.last.0, shown_of.rate_max), (14, 20, 1_234));
    assert_eq!((shown_of.batch_max, shown_of.target_latency), (Some(3), Some(Duration::from_millis(15))));
    let mut steps = Vec::new();
    while let Some(step) = step(&bounded, "w", 100).await {
        steps.push(step.processed);
    }
    assert_eq!(steps, [3, 3, 1], "no batch is larger than its limit");
    let unlimited = join("unlimited", BackfillLimits::unlimited()).await;
    let shown_of = shown(&unlimited).await;
    assert_eq!((shown_of.first.0, shown_of.total, shown_of.batch_max), (1, 20, None));
    assert_eq!(step(&unlimited, "w", 100).await.expect("it has work").processed, 20);
    let none = join("none", BackfillLimits::none()).await;
    let backfills = scene.store.backfills().await.unwrap();
    assert!(backfills.iter().all(|backfill| backfill.group != group("none")), "{backfills:?}");
    assert_eq!(step(&none, "w", 100).await, None);
    for record in scene.records().await {
        let (required, ..) = groups_of(&record);
        assert_eq!(required.contains(&"bounded"), record.offset.0 >= 14, "{record:?}");
        assert!(required.contains(&"unlimited") && !required.contains(&"none"), "{record:?}");
    }
    assert_eq!(none.drain("a").await.len(), 20, "delivery does not depend on it");
}

/// The end is fixed at the start: later messages have the group in their record anyway, and the backfill does not
/// grow.
pub async fn the_end_is_fixed_when_it_starts(case: &Case) {
    let (scene, late) = late_joiner(case, 6).await;
    step(&late, "w", 2).await.expect("it starts");
    scene.publish(5).await;
    scene.track_all().await;
    assert_eq!((shown(&late).await.last.0, shown(&late).await.total), (6, 6));
    for record in &scene.records().await[6..] {
        assert_eq!(groups_of(record).0, ["late", "workers"], "{record:?}");
    }
    let mut left = 0;
    while let Some(step) = step(&late, "w", 2).await {
        left += step.processed;
    }
    assert_eq!(left, 4);
}

/// Workers of two processes run at once and take over from each other: every offset is processed once.
pub async fn nothing_is_counted_twice(case: &Case) {
    let (scene, late) = late_joiner(case, 60).await;
    let stores = [late.clone(), late.through(&case.open().await)];
    let (mut processed, mut changed) = (0, 0);
    for round in 0..40 {
        let workers: Vec<_> = (0..4)
            .map(|n| {
                let scene = stores[n % 2].clone();
                tokio::spawn(async move { step(&scene, &format!("worker-{n}-{round}"), 4).await })
            })
            .collect();
        for worker in workers {
            if let Some(step) = worker.await.unwrap() {
                processed += step.processed;
                changed += step.changed;
            }
        }
        case.advance(WORKER_LEASE + MOMENT);
    }
    assert_eq!((processed, changed), (60, 60));
    assert_eq!(shown(&late).await.processed, 60);
    assert_eq!(shown(&late).await.state, BackfillState::Completed);
    assert!(scene.records().await.iter().all(|record| groups_of(record).0 == ["late", "workers"]));
}

/// A batch may find records that require the group already: an operator started it, or the group was resurrected before
/// it was released from them. What the group has done since the last step of tracking completes such a record.
pub async fn records_that_require_the_group_already_are_completed(case: &Case) {
    let scene = case.scene(counted()).await;
    scene.publish(6).await;
    scene.track_all().await;
    let completed = async || {
        scene.track_all().await;
        scene.records().await.iter().filter(|record| record.completed_at.is_some()).count()
    };
    scene.store.backfill(&scene.topic, &scene.subscription.group, &BackfillLimits::default()).await.unwrap();
    scene.ack_next(4).await;
    step(&scene, "w", 10).await.expect("it was started by hand");
    assert_eq!(completed().await, 4);
    scene.let_die(case).await;
    scene.heartbeat("a").await;
    scene.ack_next(1).await;
    step(&scene, "w", 10).await.expect("the resurrection started it");
    assert_eq!(completed().await, 5);
    scene.ack_next(1).await;
    assert_eq!(completed().await, 6);
}

/// What a batch set as done is unset if it is handed out again before the next step of tracking.
pub async fn what_a_batch_set_is_unset_when_it_is_handed_out_again(case: &Case) {
    let (scene, late) = late_joiner(case, 6).await;
    late.ack_next(4).await;
    step(&late, "w", 10).await.expect("it starts");
    late.store.seek(&late.topic, &group("late"), Start::Beginning, false).await.unwrap();
    scene.reads().await;
    scene.track_all().await;
    for record in scene.records().await {
        assert_eq!(groups_of(&record), (vec!["late", "workers"], vec!["workers"], false));
    }
    late.reads().await;
    scene.track_all().await;
    assert!(scene.records().await.iter().all(|record| record.completed_at.is_some()));
}

/// The checkpoint is in the database: a restart loses nothing and repeats nothing.
pub async fn a_restart_continues_at_the_checkpoint(case: &Case) {
    let (scene, late) = late_joiner(case, 12).await;
    step(&late, "w", 5).await.expect("it starts");
    let before = shown(&late).await;
    scene.store.close().await.unwrap();
    let late = late.through(&case.open().await);
    assert_eq!(shown(&late).await, before);
    case.advance(WORKER_LEASE + MOMENT);
    let next = step(&late, "another", 100).await.expect("the backfill continues");
    assert_eq!((next.processed, next.changed), (7, 7));
}

/// A batch that fails is rolled back, and the backfill is returned as failed, with the reason: both are logged once. It waits for an
/// operator.
pub async fn a_batch_that_fails_says_why_and_waits(case: &Case) {
    let name = format!("fails-{}", Uuid::now_v7());
    let scene = case.scene(counted()).await;
    scene.publish(20).await;
    scene.track_all().await;
    let late = scene.subscribe(&name, Start::Beginning).await;
    assert_eq!(step(&late, "w", 5).await.expect("a step").backfill.checkpoint.0, 5);
    let sql = async |sqlite: &str, postgres: &str| {
        case.harness().sql(sqlite, postgres).await.expect("changed");
    };
    sql(
        "CREATE TRIGGER broken BEFORE UPDATE ON headwater_completion_record WHEN OLD.row_key & 8796093022207 = 8
         BEGIN SELECT RAISE(ABORT, 'broken on purpose'); END",
        "ALTER TABLE {schema}.completion_record
         ADD CONSTRAINT broken_on_purpose CHECK (message_offset <> 8 OR required < 2) NOT VALID",
    )
    .await;
    let failed = step(&late, "w", 5).await.expect("a step");
    assert_eq!((failed.processed, failed.changed, failed.backfill.checkpoint.0), (0, 0, 5), "rolled back");
    assert_eq!(failed.backfill.state, BackfillState::Failed);
    let error = failed.backfill.error.clone().expect("the reason");
    assert!(error.contains("broken"), "{error}");
    assert_eq!(shown(&late).await, failed.backfill);
    let lines = log_capture::lines_with(&name);
    let parts = ["ERROR", "backfill failed", "orders", "broken"];
    assert!(lines.len() == 1 && parts.iter().all(|part| lines[0].contains(part)), "{lines:?}");
    assert_eq!(step(&late, "w", 5).await, None, "it waits for an operator");
    sql("DROP TRIGGER broken", "ALTER TABLE {schema}.completion_record DROP CONSTRAINT broken_on_purpose")
        .await;
    let resumed = late.store.resume_backfill(&late.topic, &late.subscription.group).await.unwrap();
    assert_eq!((resumed.state, resumed.error), (BackfillState::InProgress, None));
    while step(&late, "w", 5).await.is_some() {}
    assert_eq!(shown(&late).await.state, BackfillState::Completed);
}

/// In offset watermark there are no records to change: the backfill shows how far the group has caught up.
pub async fn in_offset_watermark_a_backfill_shows_the_groups_progress(case: &Case) {
    let scene = case.scene(TopicSettings { message_retention: None, ..lively() }).await;
    scene.publish(10).await;
    scene.store.advance_heads().await.unwrap();
    let late = scene.subscribe("late", Start::Beginning).await;
    let begun = shown(&late).await;
    assert!(begun.state.is_open(), "{begun:?}");
    assert_eq!((begun.first.0, begun.last.0, begun.total, begun.processed), (1, 10, 10, 0));
    assert_eq!(step(&late, "w", 10).await, None, "there is no work");
    late.ack_next(4).await;
    scene.publish(3).await;
    let under_way = shown(&late).await;
    assert_eq!((under_way.state, under_way.checkpoint.0), (BackfillState::InProgress, 4));
    assert_eq!((under_way.processed, under_way.total, under_way.last.0), (4, 10, 10));
    late.reads().await;
    let done = shown(&late).await;
    assert_eq!((done.state, done.processed, done.checkpoint.0), (BackfillState::Completed, 10, 10));
    // A group that starts at the end has nothing to catch up with.
    let now = scene.subscribe("now", Start::Now).await;
    let open = scene
        .store
        .backfills()
        .await
        .unwrap()
        .into_iter()
        .filter(|one| one.group == now.subscription.group && one.state.is_open());
    assert_eq!(open.count(), 0);
}

/// A resurrection starts a backfill; a cancellation of the group ends it.
pub async fn a_resurrection_starts_one_and_a_cancellation_ends_it(case: &Case) {
    let scene = case.scene(counted()).await;
    let dies = scene.subscribe("dies", Start::Beginning).await;
    scene.publish(8).await;
    scene.track_all().await;
    dies.let_die(case).await;
    scene.track_all().await;
    assert!(scene.records().await.iter().all(|record| groups_of(record).0 == ["workers"]));
    dies.heartbeat("a").await;
    assert!(shown(&dies).await.state.is_open());
    let first = step(&dies, "w", 3).await.expect("it starts");
    assert_eq!((first.processed, first.changed), (3, 3));
    dies.cancel().await;
    case.advance(WORKER_LEASE + MOMENT);
    assert_eq!(step(&dies, "w", 3).await, None);
    scene.track_all().await;
    assert!(scene.records().await.iter().all(|record| groups_of(record).0 == ["workers"]));
}
