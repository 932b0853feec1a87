//! Maintenance: one worker is elected, another takes over, and the runs of each job are recorded.

use std::time::Duration;

use super::case::{Case, Scene, owner};
use super::life::{HOUR, MOMENT, counted, lively};
use crate::maintenance::{Job, JobRun};
use crate::message::Offset;
use crate::subscription::Start;
use crate::topic::TopicSettings;

const TERM: Duration = Duration::from_secs(15);

async fn elect(store: &std::sync::Arc<dyn crate::store::Store>, name: &str) -> bool {
    store.elect(&owner(name), TERM).await.expect("the election is held")
}

/// Of many candidates at once, in two processes, exactly one is elected.
pub async fn one_of_many_is_elected(case: &Case) {
    let stores = [case.open().await, case.open().await];
    for term in 0..5 {
        let workers: Vec<_> = (0..10)
            .map(|n| {
                let store = stores[n % 2].clone();
                tokio::spawn(async move { elect(&store, &format!("worker-{n}")).await })
            })
            .collect();
        let mut elected = 0;
        for worker in workers {
            elected += u32::from(worker.await.unwrap());
        }
        assert_eq!(elected, 1, "in term {term}");
        case.advance(TERM + MOMENT);
    }
}

/// A worker is elected for its term and no longer; a confirmation starts another term; a worker that lost it is
/// refused.
pub async fn the_elected_stays_for_its_term(case: &Case) {
    let store = case.open().await;
    let other = case.open().await;
    assert!(elect(&store, "first").await);
    assert!(elect(&store, "first").await, "confirmed");
    assert!(!elect(&other, "second").await);
    case.advance(TERM - MOMENT);
    assert!(!elect(&other, "second").await);
    assert!(elect(&store, "first").await, "confirmed for another term");
    case.advance(TERM - MOMENT);
    assert!(!elect(&other, "second").await);
    case.advance(MOMENT * 2);
    assert!(elect(&other, "second").await, "the term has run out");
    assert!(!elect(&store, "first").await, "the second holds it now");
    case.advance(TERM + MOMENT);
    assert!(elect(&other, "second").await, "no other candidate");
}

/// After a resignation another candidate is elected at once; a worker that is not elected resigns nothing.
pub async fn a_resigned_worker_is_replaced_at_once(case: &Case) {
    let store = case.open().await;
    assert!(elect(&store, "first").await);
    store.resign(&owner("second")).await.unwrap();
    assert!(!elect(&store, "second").await, "the first did not resign");
    store.resign(&owner("first")).await.unwrap();
    assert!(elect(&store, "second").await);
    store.resign(&owner("first")).await.unwrap();
    assert!(!elect(&store, "first").await);
}

/// An elected worker that is killed is replaced within its term, and what it left half done is finished.
pub async fn a_dead_worker_is_replaced_and_its_work_finished(case: &Case) {
    let scene = case.scene(lively()).await;
    let successor = scene.through(&case.open().await);
    assert!(elect(&scene.store, "dies").await);
    scene.publish(10).await;
    scene.reads().await;
    scene.store.jobs_ran(&[ran(Job::MessageCleanup, 4, None)]).await.unwrap();
    assert_eq!(scene.clean(4).await.removed, 4);
    scene.store.close().await.unwrap();
    assert!(!elect(&successor.store, "lives").await);
    case.advance(TERM + MOMENT);
    assert!(elect(&successor.store, "lives").await);
    assert_eq!(successor.clean_all().await.removed, 6);
    assert_eq!(successor.stored().await, [] as [i64; 0]);
    let jobs = successor.store.jobs().await.unwrap();
    let cleanup = jobs.iter().find(|one| one.job == Job::MessageCleanup).expect("the job is recorded");
    assert_eq!((cleanup.runs, cleanup.rows), (1, 4), "the dead worker's run is recorded");
}

fn ran(job: Job, rows: u64, error: Option<&str>) -> JobRun {
    JobRun { job, duration: Duration::from_millis(12), rows, backlog: 7, error: error.map(str::to_owned) }
}

/// Runs, failures, rows, backlog, time and duration are recorded; an error is shown until the job succeeds again.
pub async fn the_runs_of_each_job_are_recorded(case: &Case) {
    let store = case.open().await;
    store.jobs_ran(&[]).await.unwrap();
    store.jobs_ran(&Job::ALL.map(|job| ran(job, 5, None))).await.unwrap();
    case.advance_ms(1_000);
    store.jobs_ran(&[ran(Job::Tracking, 0, Some("no luck"))]).await.unwrap();
    let of = async |job: Job| {
        let jobs = store.jobs().await.unwrap();
        assert_eq!(jobs.len(), Job::ALL.len(), "{jobs:?}");
        jobs.into_iter().find(|one| one.job == job).expect("every job is listed")
    };
    let failed = of(Job::Tracking).await;
    assert_eq!((failed.runs, failed.failures, failed.rows, failed.backlog), (2, 1, 5, 7));
    assert_eq!(failed.last_error.as_deref(), Some("no luck"));
    assert_eq!((failed.last_run_at, failed.last_duration), (case.now(), Duration::from_millis(12)));
    let fine = of(Job::Heads).await;
    assert_eq!((fine.runs, fine.failures, fine.last_error), (1, 0, None));
    assert_eq!(fine.last_run_at, case.now() - Duration::from_secs(1));
    let more = JobRun { backlog: 0, ..ran(Job::Tracking, 3, None) };
    store.jobs_ran(&[more]).await.unwrap();
    let again = of(Job::Tracking).await;
    assert_eq!((again.runs, again.failures, again.rows, again.backlog), (3, 1, 8, 0));
    assert_eq!(again.last_error, None);
}

/// Runs that are recorded from many stores at once are all counted, in whatever order each lists its own.
pub async fn runs_recorded_at_once_are_all_counted(case: &Case) {
    let stores = [case.open().await, case.open().await];
    let tasks: Vec<_> = (0..20)
        .map(|n| {
            let store = stores[n % 2].clone();
            let mut runs = Job::ALL.map(|job| ran(job, 2, None));
            if n % 2 == 0 {
                runs.reverse();
            }
            tokio::spawn(async move { store.jobs_ran(&runs).await })
        })
        .collect();
    for task in tasks {
        task.await.unwrap().unwrap();
    }
    let jobs = stores[0].jobs().await.unwrap();
    assert_eq!(jobs.len(), Job::ALL.len());
    assert!(jobs.iter().all(|job| (job.runs, job.rows) == (20, 40)), "{jobs:?}");
    stores[0].probe().await.unwrap();
}

/// Runs the future with the clock a day ahead.
async fn a_day_ahead<T>(case: &Case, work: impl Future<Output = T>) -> T {
    let now = case.now();
    case.advance(HOUR * 24);
    let done = work.await;
    case.clock().set(now);
    done
}

/// A clock was ahead and was set back: terms granted meanwhile are taken over, and notes of that time block no new
/// ones.
pub async fn a_clock_that_was_ahead_blocks_no_maintenance(case: &Case) {
    let store = case.open().await;
    assert!(a_day_ahead(case, elect(&store, "gone")).await);
    assert!(elect(&store, "a").await, "no term lasts a day");
    assert!(!elect(&store, "b").await, "a term that begins now is respected");

    let scene = Scene::new(store, "counted", counted()).await;
    scene.publish(20).await;
    scene.track_all().await;
    scene.subscribe("late", Start::Beginning).await;
    let step = async |worker: &str| scene.store.step_backfill(&owner(worker), 5).await.expect("it answers");
    a_day_ahead(case, step("gone")).await.expect("it begins");
    assert_eq!(step("a").await.expect("it is taken over").backfill.checkpoint, Offset(10));
    assert_eq!(step("b").await, None, "worker a holds it");
    while step("a").await.is_some() {}

    let settings = TopicSettings { message_retention: Some(HOUR), max_retention: None, ..lively() };
    let scene = Scene::new(scene.store.clone(), "marked", settings).await;
    scene.publish(6).await;
    a_day_ahead(case, async {
        scene.ack_next(3).await;
        scene.clean_all().await;
    })
    .await;
    scene.ack_next(3).await;
    assert_eq!(scene.clean_all().await.removed, 0);
    case.advance(HOUR + MOMENT);
    assert_eq!(scene.clean_all().await.removed, 6, "all were done at least an hour ago");
}
