//! Backfills: at their pace, or at once.

use super::*;
use crate::backfill::drive::inline;

/// The topic of the fake's backfills.
fn counting() -> HashSet<TopicName> {
    HashSet::from([TopicName::new("orders").unwrap()])
}

#[tokio::test(start_paused = true)]
async fn a_backfill_goes_at_its_rate_and_gives_way_to_load() {
    let fake = fake(vec![]);
    fake.backfill(200_000, 10_000);
    let started = Instant::now();
    let run = maintenance(&fake).run_once(&[Job::Backfill]).await.unwrap().remove(0);
    assert_eq!((run.rows, run.backlog), (200_000, 0));
    let took = started.elapsed();
    assert!(took >= Duration::from_secs(19) && took < Duration::from_secs(30), "{took:?}");
    fake.batches.lock().unwrap().clear();
    *fake.probe_takes.lock().unwrap() = Duration::from_millis(40);
    *fake.step_takes.lock().unwrap() = Duration::from_millis(5);
    fake.backfill(1_000, 10_000);
    maintenance(&fake).run_once(&[Job::Backfill]).await.unwrap();
    assert!(fake.batches.lock().unwrap().iter().all(|batch| *batch <= 100));
}

#[tokio::test(start_paused = true)]
async fn a_small_backfill_is_done_at_once_and_a_large_one_left_to_maintenance() {
    let (topic, group) = (TopicName::new("orders").unwrap(), GroupName::new("late").unwrap());
    for (total, steps) in [(100_000, 10), (100_001, 0)] {
        let fake = fake(vec![]);
        fake.backfill(total, 50_000);
        inline(&*fake, &counting(), &topic, &group).await.unwrap();
        assert_eq!(fake.count("step_backfill"), steps, "{total}");
    }
    let other = GroupName::new("another").unwrap();
    let fake = fake(vec![]);
    fake.backfill(10, 50_000);
    inline(&*fake, &counting(), &topic, &other).await.unwrap();
    assert_eq!(fake.count("step_backfill"), 0, "the group has no backfill");
}

#[tokio::test(start_paused = true)]
async fn what_is_done_at_once_is_neither_a_strangers_nor_faster_than_its_rate() {
    let (topic, group) = (TopicName::new("orders").unwrap(), GroupName::new("late").unwrap());
    let strangers = fake(vec![]);
    strangers.backfill_of("another", 10, 50_000);
    strangers.backfill(10, 50_000);
    inline(&*strangers, &counting(), &topic, &group).await.unwrap();
    assert_eq!(strangers.count("step_backfill"), 0, "the backfill of another group is older");
    strangers.backfills.lock().unwrap()[0].state = BackfillState::Completed;
    inline(&*strangers, &counting(), &topic, &group).await.unwrap();
    assert_eq!(strangers.count("step_backfill"), 1);

    let paced = fake(vec![]);
    paced.backfill(20_000, 4_000);
    let started = Instant::now();
    inline(&*paced, &counting(), &topic, &group).await.unwrap();
    assert_eq!(*paced.batches.lock().unwrap(), [4_000; 5]);
    let took = started.elapsed();
    assert!(took >= Duration::from_secs(4) && took < Duration::from_secs(5), "{took:?}");

    let slow = fake(vec![]);
    slow.backfill(1_001, 100);
    inline(&*slow, &counting(), &topic, &group).await.unwrap();
    assert_eq!(slow.count("step_backfill"), 0, "too slow to be done inline");
}
