//! Reference counting: the content of completion records, and changes between the two tracking modes.

use std::collections::BTreeMap;

use super::case::{Case, Scene, bury, failed, group, range};
use super::life::{HOUR, MOMENT, counted, groups_of, lively};
use crate::error::ErrorKind;
use crate::limits::TRACKED_GROUPS_MAX;
use crate::settle::Outcome;
use crate::store::TrackStep;
use crate::subscription::Start;
use crate::topic::{Progress, TopicSettings, Tracking};

/// The groups and state of a completion record, as owned text.
async fn record(scene: &Scene, offset: i64) -> (Vec<String>, Vec<String>, bool) {
    let record = scene.record(offset).await;
    let (required, completed, done) = groups_of(&record);
    let owned = |names: Vec<&str>| names.into_iter().map(str::to_owned).collect();
    (owned(required), owned(completed), done)
}

fn shows(required: &[&str], completed: &[&str], done: bool) -> (Vec<String>, Vec<String>, bool) {
    let owned = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
    (owned(required), owned(completed), done)
}

/// A completion record shows the groups it waits for, the groups that are done, and when the last of them was.
pub async fn a_record_shows_required_and_completed_groups(case: &Case) {
    let scene = case.scene(counted()).await;
    let second = scene.subscribe("second", Start::Beginning).await;
    scene.publish(3).await;
    scene.store.advance_heads().await.unwrap();
    let both = ["second", "workers"];
    assert_eq!(record(&scene, 1).await, shows(&both, &[], false), "shown as it will be");
    assert_eq!(scene.track_all().await.recorded, 3);
    assert_eq!(record(&scene, 1).await, shows(&both, &[], false));
    second.ack_next(2).await;
    scene.track_all().await;
    assert_eq!(record(&scene, 2).await, shows(&both, &["second"], false));
    assert_eq!(record(&scene, 3).await, shows(&both, &[], false));
    case.advance(HOUR / 2);
    let lease = scene.claim_one("a", 3).await;
    // Tracking has processed the whole lease before its end is settled.
    scene.track_all().await;
    scene.settle_each(&lease, vec![((2, 2), Outcome::Ack), ((3, 3), bury("no"))]).await.unwrap();
    let step = scene.track_all().await;
    assert_eq!(step.completed, 1, "{step:?}");
    assert_eq!(record(&scene, 1).await, shows(&both, &["second"], false), "leased is not done");
    assert_eq!(record(&scene, 2).await, shows(&both, &both, true));
    assert_eq!(scene.record(2).await.completed_at, Some(case.now()));
    assert_eq!(record(&scene, 3).await, shows(&both, &["workers"], false), "buried is done");
    let offsets: Vec<_> = scene.records().await.iter().map(|record| record.offset.0).collect();
    assert_eq!(offsets, [1, 2, 3]);
    assert_eq!(scene.store.records(&scene.topic, range(2, 2)).await.unwrap().len(), 1);
}

/// A message requires only groups that started at or below it.
pub async fn a_message_requires_groups_that_started_before_it(case: &Case) {
    let scene = case.scene(counted()).await;
    scene.publish(2).await;
    scene.subscribe("late", Start::Now).await;
    scene.publish(1).await;
    scene.track_all().await;
    assert_eq!(record(&scene, 2).await, shows(&["workers"], &[], false));
    assert_eq!(record(&scene, 3).await, shows(&["late", "workers"], &[], false));
}

/// A message that no group is to get is complete as soon as it is recorded.
pub async fn a_message_without_required_groups_is_complete(case: &Case) {
    let scene = case.scene(counted()).await;
    scene.cancel().await;
    scene.publish(2).await;
    let step = scene.track_all().await;
    assert_eq!((step.recorded, step.completed), (2, 2));
    assert_eq!(record(&scene, 1).await, shows(&[], &[], true));
}

/// Dead and cancelled groups are removed from pending records, which may complete them.
pub async fn dead_and_cancelled_groups_are_removed_from_pending_records(case: &Case) {
    let scene = case.scene(counted()).await;
    let dies = scene.subscribe("dies", Start::Beginning).await;
    let quits = scene.subscribe("quits", Start::Beginning).await;
    scene.publish(4).await;
    scene.ack_next(3).await;
    dies.ack_next(1).await;
    quits.ack_next(1).await;
    scene.track_all().await;
    let all = ["dies", "quits", "workers"];
    assert_eq!(record(&scene, 1).await, shows(&all, &all, true));
    let before = scene.record(1).await;
    assert_eq!(record(&scene, 2).await, shows(&all, &["workers"], false));
    dies.let_die(case).await;
    scene.track_all().await;
    assert_eq!(record(&scene, 2).await, shows(&["quits", "workers"], &["workers"], false));
    quits.cancel().await;
    scene.track_all().await;
    assert_eq!(record(&scene, 2).await, shows(&["workers"], &["workers"], true));
    assert_eq!(record(&scene, 3).await, shows(&["workers"], &["workers"], true));
    assert_eq!(scene.record(3).await.completed_at, Some(case.now()));
    assert_eq!(record(&scene, 4).await, shows(&["workers"], &[], false));
    assert_eq!(scene.record(1).await, before, "a completed record is never changed");
}

/// Completion records release a cancelled group in steps; the group cannot be removed before that is done.
pub async fn a_group_is_removed_only_once_it_is_released(case: &Case) {
    let scene = case.scene(counted()).await;
    let quits = scene.subscribe("quits", Start::Beginning).await;
    scene.publish(9).await;
    scene.track_all().await;
    quits.cancel().await;
    let too_early = scene.store.remove(&scene.topic, &group("quits")).await;
    failed(too_early, ErrorKind::InvalidTransition);
    let mut steps = 0;
    while scene.track(2).await.more {
        steps += 1;
        assert!(steps < 100, "the release never ends");
    }
    assert!(steps >= 4, "nine messages, two at a time: {steps} steps");
    scene.store.remove(&scene.topic, &group("quits")).await.unwrap();
    for record in scene.records().await {
        assert_eq!(groups_of(&record), (vec!["workers"], vec![], false));
    }
}

/// A resurrected group is added to pending records only; records that were completed without it stay as they are.
pub async fn a_resurrection_touches_pending_records_only(case: &Case) {
    let scene = case.scene(counted()).await;
    let dies = scene.subscribe("dies", Start::Beginning).await;
    scene.publish(6).await;
    scene.ack_next(4).await;
    dies.ack_next(1).await;
    dies.let_die(case).await;
    scene.track_all().await;
    let completed: Vec<_> = scene.records().await.into_iter().take(4).collect();
    assert!(completed.iter().all(|record| record.completed_at.is_some()), "{completed:?}");
    case.advance(MOMENT);
    dies.heartbeat("a").await;
    dies.backfill_all().await;
    scene.track_all().await;
    let records = scene.records().await;
    assert_eq!(records[..4], completed[..], "completed records are never modified");
    for record in &records[4..] {
        assert_eq!(groups_of(record), (vec!["dies", "workers"], vec![], false));
    }
    assert_eq!(dies.reads().await, [2, 3, 4, 5, 6], "delivery does not depend on records");
    assert_eq!(scene.reads().await, [5, 6]);
    scene.track_all().await;
    assert!(scene.records().await.iter().all(|record| record.completed_at.is_some()));
}

/// A message that is handed out again is not done: its completion is undone while the record is pending.
pub async fn what_is_handed_out_again_is_unset(case: &Case) {
    let scene = case.scene(counted()).await;
    let slow = scene.subscribe("slow", Start::Beginning).await;
    scene.publish(4).await;
    let lease = scene.claim_one("a", 4).await;
    scene.settle_each(&lease, vec![((1, 1), bury("no")), ((2, 4), Outcome::Ack)]).await.unwrap();
    slow.ack_next(2).await;
    scene.track_all().await;
    let both = ["slow", "workers"];
    assert_eq!(record(&scene, 1).await, shows(&both, &both, true));
    assert_eq!(record(&scene, 3).await, shows(&both, &["workers"], false));
    scene.store.seek(&scene.topic, &group("workers"), Start::Beginning, false).await.unwrap();
    scene.track_all().await;
    assert_eq!(record(&scene, 1).await, shows(&both, &both, true), "a completed record stays complete");
    assert_eq!(record(&scene, 3).await, shows(&both, &[], false));
    assert_eq!(record(&scene, 4).await, shows(&both, &[], false));
    assert_eq!(scene.reads().await, [1, 2, 3, 4]);
    assert_eq!(slow.reads().await, [3, 4]);
    scene.track_all().await;
    assert_eq!(record(&scene, 4).await, shows(&both, &both, true));
}

/// A group that is resurrected before it was released from its records: what is handed out to it again is unset there.
pub async fn a_resurrection_unsets_what_is_handed_out_again(case: &Case) {
    let scene = case.scene(counted()).await;
    let dies = scene.subscribe("dies", Start::Beginning).await;
    scene.publish(4).await;
    dies.ack_next(2).await;
    scene.track_all().await;
    dies.let_die(case).await;
    scene.store.seek(&scene.topic, &group("dies"), Start::Beginning, false).await.unwrap();
    dies.heartbeat("a").await;
    scene.reads().await;
    scene.track_all().await;
    let both = ["dies", "workers"];
    for offset in 1..=4 {
        assert_eq!(record(&scene, offset).await, shows(&both, &["workers"], false), "offset {offset}");
    }
    dies.reads().await;
    scene.track_all().await;
    assert!(scene.records().await.iter().all(|record| record.completed_at.is_some()));
}

/// A completion record has space for a limited number of groups: one more is refused, with the way out. A bit is free
/// again only when no stored record carries it.
pub async fn the_sixty_fifth_group_is_refused(case: &Case) {
    let scene = case.scene(counted()).await;
    let mut groups = vec![scene.clone()];
    for n in 1..TRACKED_GROUPS_MAX {
        groups.push(scene.subscribe(&format!("group-{n}"), Start::Beginning).await);
    }
    scene.publish(1).await;
    for one in &groups {
        assert_eq!(one.reads().await, [1]);
    }
    scene.track_all().await;
    assert_eq!(scene.record(1).await.required.len(), groups.len());
    assert!(scene.record(1).await.completed_at.is_some());
    let one_more = async || scene.store.subscribe(&scene.topic, &group("more"), Start::Now).await;
    let error = failed(one_more().await, ErrorKind::InvalidInput).to_string();
    for part in ["orders", "offset_watermark"] {
        assert!(error.contains(part), "{part} is missing in: {error}");
    }
    let last = groups.last().expect("there are groups");
    last.cancel().await;
    scene.track_all().await;
    scene.store.remove(&scene.topic, &last.subscription.group).await.unwrap();
    failed(one_more().await, ErrorKind::InvalidInput);
    case.advance(HOUR);
    assert_eq!(scene.clean_all().await.removed, 1);
    one_more().await.unwrap();
    scene.publish(1).await;
    scene.track_all().await;
    let required = scene.record(2).await.required;
    assert!(required.contains(&group("more")) && required.len() == groups.len(), "{required:?}");
}

/// A cancelled group that is kept for its dead letters blocks no other: its bit is free once no record names it.
pub async fn a_group_kept_for_dead_letters_frees_its_bit(case: &Case) {
    let scene = case.scene(counted()).await;
    let kept = scene.subscribe("kept", Start::Beginning).await;
    scene.publish(1).await;
    assert_eq!(scene.reads().await, [1]);
    let lease = kept.claim_one("a", 1).await;
    kept.settle_each(&lease, vec![((1, 1), bury("no"))]).await.unwrap();
    scene.track_all().await;
    kept.cancel().await;
    scene.track_all().await;
    for n in 2..TRACKED_GROUPS_MAX {
        scene.subscribe(&format!("group-{n}"), Start::Now).await;
    }
    let one_more = async || scene.store.subscribe(&scene.topic, &group("more"), Start::Now).await;
    failed(one_more().await, ErrorKind::InvalidInput);
    case.advance(HOUR);
    assert_eq!(scene.clean_all().await.removed, 1);
    one_more().await.unwrap();
    scene.publish(1).await;
    scene.track_all().await;
    let required = scene.record(2).await.required;
    assert!(required.contains(&group("more")) && !required.contains(&group("kept")), "{required:?}");
    let dead_letters = scene.store.dead_letters(&kept.dead_letter_selection(), 9).await.unwrap();
    assert_eq!(dead_letters.len(), 1, "its dead letter can still be read");
    assert_eq!(scene.store.doctor().await.unwrap(), []);
}

/// Completed messages are removed with their records although older messages are pending, and the rest stays right.
pub async fn cleanup_works_in_the_middle_of_pending(case: &Case) {
    let scene = case.scene(counted()).await;
    scene.publish(7).await;
    let lease = scene.claim_one("a", 7).await;
    let acked = vec![((3, 4), Outcome::Ack), ((6, 6), Outcome::Ack)];
    scene.settle_each(&lease, acked).await.unwrap();
    scene.track_all().await;
    case.advance(HOUR);
    assert_eq!(scene.clean_in_steps_of(1).await.removed, 3);
    assert_eq!(scene.stored().await, [1, 2, 5, 7]);
    let offsets: Vec<_> = scene.records().await.iter().map(|record| record.offset.0).collect();
    assert_eq!(offsets, [1, 2, 5, 7]);
    let mut got = scene.reads().await;
    got.sort_unstable();
    assert_eq!(got, [1, 2, 5, 7]);
    scene.track_all().await;
    case.advance(HOUR);
    assert_eq!(scene.clean_all().await.removed, 4);
    assert_eq!(scene.records().await, []);
}

/// Records follow from cursors and outstanding ranges: tracking again changes nothing, and steps respect their limit.
pub async fn tracking_twice_changes_nothing_twice(case: &Case) {
    let scene = case.scene(counted()).await;
    let second = scene.subscribe("second", Start::Beginning).await;
    scene.publish(10).await;
    let mut recorded = 0;
    for _ in 0..100 {
        let step = scene.track(3).await;
        assert!(step.recorded + step.changed <= 3, "{step:?}");
        recorded += step.recorded;
        if !step.more {
            break;
        }
    }
    assert_eq!(recorded, 10);
    second.ack_next(6).await;
    scene.ack_next(4).await;
    let all = scene.track_all().await;
    assert_eq!((all.recorded, all.changed, all.completed), (0, 6, 4), "each message is written once");
    let records = scene.records().await;
    for _ in 0..3 {
        assert_eq!(scene.track(1_000).await, TrackStep::default());
    }
    scene.store.close().await.unwrap();
    let scene = scene.through(&case.open().await);
    assert_eq!(scene.track(1_000).await, TrackStep::default(), "after a restart too");
    assert_eq!(scene.records().await, records);
}

/// Trackers of two processes run at once while groups ack: each change is made once, and in the end all is complete.
pub async fn trackers_at_once_count_once(case: &Case) {
    let scene = case.scene(counted()).await;
    let second = scene.subscribe("second", Start::Beginning).await;
    scene.publish(60).await;
    // A claim that finds the head being advanced returns nothing: it is advanced before they race.
    scene.store.advance_heads().await.unwrap();
    let stores = [scene.clone(), scene.through(&case.open().await)];
    let trackers: Vec<_> = (0..4)
        .map(|n| {
            let scene = stores[n % 2].clone();
            tokio::spawn(async move {
                let mut all = TrackStep::default();
                for _ in 0..25 {
                    let step = scene.track(7).await;
                    all.recorded += step.recorded;
                    all.completed += step.completed;
                }
                all
            })
        })
        .collect();
    for _ in 0..20 {
        scene.ack_next(3).await;
        second.ack_next(3).await;
    }
    let mut all = TrackStep::default();
    for tracker in trackers {
        let one = tracker.await.unwrap();
        all.recorded += one.recorded;
        all.completed += one.completed;
    }
    let rest = scene.track_all().await;
    assert_eq!((all.recorded + rest.recorded, all.completed + rest.completed), (60, 60));
    assert!(scene.records().await.iter().all(|record| record.completed_at.is_some()));
}

/// What each group got so far.
struct Readers {
    groups: Vec<Scene>,
    got: Vec<BTreeMap<i64, u32>>,
}

impl Readers {
    async fn three(scene: &Scene) -> Self {
        let groups = vec![
            scene.clone(),
            scene.subscribe("second", Start::Beginning).await,
            scene.subscribe("third", Start::Beginning).await,
        ];
        Readers { got: vec![BTreeMap::new(); groups.len()], groups }
    }

    /// One group takes a few messages and acks them; returns whether there were any.
    async fn read(&mut self, which: usize, count: u32) -> bool {
        let scene = &self.groups[which];
        let leases = scene.claim("reader", count).await;
        for lease in &leases {
            for message in scene.fetch(lease).await {
                *self.got[which].entry(message.offset.0).or_default() += 1;
            }
            scene.ack(lease).await;
        }
        !leases.is_empty()
    }

    async fn finish(&mut self, last: i64) {
        for which in 0..self.groups.len() {
            while self.read(which, 50).await {}
            let got = &self.got[which];
            assert!(got.keys().copied().eq(1..=last), "group {which} lost messages: {got:?}");
            assert!(got.values().all(|times| *times == 1), "group {which} got messages twice: {got:?}");
        }
    }
}

async fn progress(scene: &Scene) -> Option<Progress> {
    scene.topic_status().await.tracking_change
}

/// The mode changes step by step, in both directions, while three groups consume and others publish: nothing is lost
/// or delivered twice, the progress is shown, and in the end the records match what the groups did.
pub async fn the_mode_is_changed_while_groups_consume(case: &Case) {
    let keep = TopicSettings { message_retention: None, ..lively() };
    let scene = case.scene(keep.clone()).await;
    let mut readers = Readers::three(&scene).await;
    scene.publish(40).await;
    readers.read(0, 20).await;
    readers.read(1, 10).await;
    let counting = TopicSettings { tracking: Tracking::ReferenceCounting, ..keep.clone() };
    scene.store.alter_topic(&scene.topic, &counting).await.unwrap();
    let begun = progress(&scene).await.expect("a change is under way");
    assert_eq!(begun.total, 40);
    let (mut last, mut rounds, mut done_before) = (40, 0, begun.done);
    while let Some(now) = progress(&scene).await {
        assert!(now.done >= done_before && now.done <= now.total, "{now:?} after {done_before}");
        done_before = now.done;
        rounds += 1;
        assert!(rounds < 200, "the change never ends: {now:?}");
        scene.track(4).await;
        readers.read(rounds % 3, 2).await;
        last = scene.publish(1).await[0];
    }
    assert!(rounds >= 10, "four at a time of forty: {rounds} rounds");
    scene.track_all().await;
    for record in scene.records().await {
        let (required, completed, done) = groups_of(&record);
        for (one, got) in readers.groups.iter().zip(&readers.got) {
            let (name, acked) = (one.subscription.group.as_str(), got.contains_key(&record.offset.0));
            assert!(acked || required.contains(&name), "{name} has yet to do {record:?}");
            assert_eq!(completed.contains(&name), acked && required.contains(&name), "{name} in {record:?}");
        }
        assert_eq!(done, required == completed, "{record:?}");
    }
    scene.store.alter_topic(&scene.topic, &keep).await.unwrap();
    assert_eq!(scene.records().await, [], "no records in offset watermark");
    rounds = 0;
    while progress(&scene).await.is_some() {
        rounds += 1;
        assert!(rounds < 200, "the change never ends");
        scene.track(4).await;
        readers.read(rounds % 3, 2).await;
        last = scene.publish(1).await[0];
    }
    assert!(rounds >= 5, "four at a time: {rounds} rounds");
    readers.finish(last).await;
    assert_eq!(scene.topic_status().await.watermark.0, last);
    assert_eq!(scene.track_all().await, TrackStep::default());
    // Once more from the start: the first change leaves nothing behind that blocks it.
    scene.store.alter_topic(&scene.topic, &counting).await.unwrap();
    scene.track_all().await;
    assert_eq!(progress(&scene).await, None);
    assert!(scene.records().await.iter().all(|record| record.completed_at.is_some()));
}

/// A change of mode that stops half way, because the worker died, continues where it stopped.
pub async fn a_change_of_mode_survives_a_restart(case: &Case) {
    let scene = case.scene(TopicSettings { message_retention: None, ..lively() }).await;
    scene.publish(20).await;
    scene.ack_next(5).await;
    let counting =
        TopicSettings { tracking: Tracking::ReferenceCounting, message_retention: None, ..lively() };
    scene.store.alter_topic(&scene.topic, &counting).await.unwrap();
    scene.track(6).await;
    let before = progress(&scene).await.expect("under way");
    scene.store.close().await.unwrap();
    let scene = scene.through(&case.open().await);
    assert_eq!(progress(&scene).await, Some(before));
    let all = scene.track_all().await;
    assert_eq!(before.done + all.recorded, 20, "nothing is recorded twice");
    assert_eq!(progress(&scene).await, None);
    let done = scene.records().await.iter().filter(|record| record.completed_at.is_some()).count();
    assert_eq!(done, 5);
    assert_eq!(scene.reads().await.len(), 15);
}
