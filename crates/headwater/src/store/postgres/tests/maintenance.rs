//! Maintenance under conditions specific to PostgreSQL: rolled back transactions, concurrent workers, snapshots, late messages.

use super::*;
use crate::clock::ManualClock;
use crate::store::{OffsetRange, TrackStep, Tracking as _};
use crate::topic::TopicId;
use crate::{Clock, Offset};

mod backfill;
mod large;
mod partitions;
mod progress;
mod retention;
mod tracking;

const SOON: Duration = Duration::from_secs(20);

/// A topic `orders` in a namespace of its own, with a manual clock and a connection beside the store's.
struct Stage {
    scene: Scene,
    clock: ManualClock,
    store: Arc<PostgresStore>,
    client: Client,
    topic: TopicId,
}

impl Stage {
    /// `None` if no server is configured. `settings` are the topic's, as in [`Stage::alter`].
    async fn set(settings: &str) -> Option<Self> {
        let scene = Scene::new()?;
        let clock = ManualClock::at(jiff::Timestamp::now());
        let options = OpenOptions::default().clock(Clock::Manual(clock.clone()));
        let store = PostgresStore::open(&scene.url, scene.namespace.clone(), options).await.unwrap();
        let patient = TopicSettings { gap_patience: Duration::ZERO, ..TopicSettings::pub_sub() };
        let topic = store.create_topic(&orders(), &patient).await.unwrap().topic_id;
        let client = scene.client().await;
        let stage = Stage { scene, clock, store: Arc::new(store), client, topic };
        stage.alter(settings).await;
        Some(stage)
    }

    /// Changes settings as they are stored, unchecked: `message_retention_ms = 0, ordering = 'key'`.
    async fn alter(&self, settings: &str) {
        let settings: Vec<String> = settings
            .split(',')
            .map(|setting| setting.trim().split_once(" = ").expect("name = value"))
            .map(|(name, value)| format!("'{name}', {value}"))
            .collect();
        let settings = settings.join(", ");
        self.run(&format!(
            "UPDATE {{schema}}.topic SET settings = settings || jsonb_build_object({settings})"
        ))
        .await;
    }

    async fn run(&self, sql: &str) {
        self.client.batch_execute(&self.scene.sql(sql)).await.unwrap();
    }

    async fn number(&self, sql: &str) -> i64 {
        self.client.query_one(&self.scene.sql(sql), &[]).await.unwrap().get(0)
    }

    async fn text(&self, sql: &str) -> String {
        self.client.query_one(&self.scene.sql(sql), &[]).await.unwrap().get(0)
    }

    /// The injected time, as a literal.
    fn now(&self) -> String {
        format!("'{}'::timestamptz", self.clock.now())
    }

    async fn subscribe(&self, group: &str) -> Subscription {
        let group = GroupName::new(group).unwrap();
        self.store.subscribe(&orders(), &group, Start::Beginning).await.unwrap()
    }

    async fn publish(&self, count: usize) {
        self.store.publish(&orders(), &vec![NewMessage::new("x"); count]).await.unwrap();
    }

    /// Claims up to `count` messages and acks them. Returns the offsets.
    async fn handle(&self, subscription: &Subscription, count: u32) -> Vec<i64> {
        let wants = vec![Want::new(subscription.subscription_id, count)];
        let request = ClaimRequest { wants, ..request(subscription) };
        let mut offsets = Vec::new();
        for lease in self.store.claim(&request).await.unwrap().leases {
            offsets.extend(lease.range.first.0..=lease.range.last.0);
            self.store.settle(&[Settlement::ack_all(&lease)]).await.unwrap().remove(0).unwrap();
        }
        offsets
    }

    /// Runs tracking steps until there is nothing left to do.
    async fn track(&self) -> TrackStep {
        let mut sum = TrackStep::default();
        loop {
            let step = self.store.track(self.topic, 100).await.unwrap();
            sum.recorded += step.recorded;
            sum.changed += step.changed;
            sum.completed += step.completed;
            sum.removed += step.removed;
            if !step.more {
                return sum;
            }
        }
    }

    /// Runs cleanup steps until there is nothing left to do. Returns the number of removed messages.
    async fn clean(&self) -> u64 {
        let mut sum = 0;
        loop {
            let step = self.store.clean(self.topic, 100).await.unwrap();
            sum += step.removed;
            if !step.more {
                return sum;
            }
        }
    }

    /// `offset: required, completed` of each completion record, with a star once it is complete.
    async fn records(&self) -> Vec<String> {
        let all = OffsetRange::new(Offset(1), Offset(1_000_000));
        let names = |groups: &[GroupName]| groups.iter().map(GroupName::as_str).collect::<Vec<_>>().join("+");
        let line = |record: &crate::store::Record| {
            let star = if record.completed_at.is_some() { "*" } else { "" };
            let (required, completed) = (names(&record.required), names(&record.completed));
            format!("{}: {required}, {completed}{star}", record.offset.0)
        };
        self.store.records(&orders(), all).await.unwrap().iter().map(line).collect()
    }

    /// Ends a test: the doctor finds nothing, and the namespace is dropped.
    async fn strike(self) {
        assert_eq!(self.store.doctor().await.unwrap(), []);
        self.scene.drop().await;
    }
}

/// Waits until another connection waits for a lock held by the stage's own.
async fn until_waiting(stage: &Stage) {
    let watcher = stage.scene.client().await;
    let waits = format!(
        "SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%{}%'",
        stage.scene.namespace
    );
    let until = Instant::now() + SOON;
    while watcher.query(&waits, &[]).await.unwrap().is_empty() {
        assert!(Instant::now() < until, "no session waits for a lock");
        tokio::task::yield_now().await;
    }
}

/// Waits until the condition is true, or panics.
async fn until_true(what: &str, mut condition: impl AsyncFnMut() -> bool) {
    let until = Instant::now() + SOON;
    while !condition().await {
        assert!(Instant::now() < until, "never: {what}");
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn maintenance_refuses_a_snapshot_older_than_its_lock() {
    let Some(stage) = Stage::set("message_retention_ms = 0").await else { return };
    for step in ["track(1, 10, NULL)", "clean(1, 10, NULL)"] {
        stage.run("BEGIN ISOLATION LEVEL REPEATABLE READ").await;
        let refused =
            stage.client.batch_execute(&stage.scene.sql(&format!("SELECT {{schema}}.{step}"))).await;
        assert_eq!(refused.unwrap_err().code().unwrap().code(), "HW003", "{step}");
        stage.run("ROLLBACK").await;
    }
    stage.strike().await;
}

/// Each check of the doctor finds its defect, and nothing before the defect exists.
#[tokio::test]
async fn the_doctor_finds_what_is_broken() {
    let breakages = [
        ("topic_range_missing", "DELETE FROM {schema}.topic_range"),
        ("message_below_first", "UPDATE {schema}.topic_range SET first_offset = 3"),
        ("first_beyond_head", "UPDATE {schema}.topic_range SET first_offset = 100"),
        ("cursor_below_first", "UPDATE {schema}.topic_range SET first_offset = 11; DELETE FROM {schema}.message;
            UPDATE {schema}.cursor SET next_offset = 3"),
        ("outstanding_cancelled", "INSERT INTO {schema}.outstanding (token, first_offset, last_offset, due_at, subscription_id)
            VALUES (99, 1, 1, now(), 1); UPDATE {schema}.subscription SET state = 'cancelled' WHERE subscription_id = 1"),
        ("zero_until_wrong", "UPDATE {schema}.topic_range SET zero_until = NULL"),
        ("tracked_beyond_head", "UPDATE {schema}.topic_range SET tracked_until = 100"),
        ("bit_missing", "UPDATE {schema}.subscription SET bit = NULL WHERE subscription_id = 2"),
        ("bit_twice", "UPDATE {schema}.subscription SET bit = 0"),
        ("record_stuck", "UPDATE {schema}.completion_record SET completed = required, completed_at = NULL WHERE message_offset = 9"),
        ("record_uncovered", "UPDATE {schema}.completion_record SET completed = 0, completed_at = now() WHERE message_offset = 9"),
        ("record_bit_unknown", "UPDATE {schema}.completion_record SET required = 7 WHERE message_offset = 9"),
        ("record_not_applied", "UPDATE {schema}.completion_record SET completed = 0, completed_at = NULL WHERE message_offset = 3"),
        ("record_orphan", "DELETE FROM {schema}.message WHERE message_offset = 9"),
        ("record_missing", "DELETE FROM {schema}.completion_record WHERE message_offset = 9"),
        ("pending_below", "UPDATE {schema}.topic_range SET pending_from = 11"),
        ("storage_missing", "UPDATE {schema}.topic SET settings = settings || '{\"storage\": \"dedicated\"}'"),
        ("partition_missing", "INSERT INTO {schema}.partition VALUES (1, 1, 1000, 'message_t1_o1', now())"),
        ("process_log", "SELECT {schema}.process_insert(gen_random_uuid(), 'order'); DELETE FROM {schema}.process_event"),
    ];
    let Some(stage) = Stage::set("tracking = 'reference_counting'").await else { return };
    let a = stage.subscribe("a").await;
    stage.subscribe("b").await;
    stage.publish(10).await;
    stage.handle(&a, 5).await;
    stage.track().await;
    assert_eq!(stage.store.doctor().await.unwrap(), []);
    let connections =
        Connections::new(&stage.scene.url, &stage.scene.namespace, &OpenOptions::default()).unwrap();
    for (check, breakage) in breakages {
        // The doctor's own statement, inside a transaction that is rolled back.
        stage.run("BEGIN").await;
        stage.run(breakage).await;
        let found = stage
            .client
            .query(&stage.store.statements.doctor_maintenance, &[&stage.clock.now()])
            .await
            .unwrap();
        stage.run("ROLLBACK").await;
        let found: Vec<String> = found.iter().map(|row| row.get("finding")).collect();
        assert!(found.iter().any(|finding| finding == check), "{check} is not among {found:?}");
        assert!(super::super::doctor::has_remedy(check), "{check}");
    }
    connections.close();
    stage.strike().await;
}

/// Silence counts only while detection runs regularly, and a heartbeat during a detection run keeps its group alive.
#[tokio::test]
async fn a_group_dies_once_and_only_while_detection_runs() {
    let Some(stage) = Stage::set("heartbeat_interval_ms = 60000, heartbeat_timeout_ms = 300000").await else {
        return;
    };
    stage.subscribe("a").await;
    stage.subscribe("never_beat").await;
    let group = (orders(), GroupName::new("a").unwrap());
    stage
        .run(&format!(
            "UPDATE {{schema}}.subscription SET heartbeat_at = {} WHERE group_name = 'a'",
            stage.now()
        ))
        .await;
    stage.clock.advance(Duration::from_secs(301));
    let detected = stage.store.detect_dead().await.unwrap();
    assert_eq!(
        (detected.died, detected.suspected),
        (vec![], vec![group.clone()]),
        "detection did not run before"
    );
    stage.clock.advance(Duration::from_secs(59));
    let detected = stage.store.detect_dead().await.unwrap();
    assert_eq!(
        (detected.died, detected.suspected),
        (vec![], vec![group.clone()]),
        "an interval has not passed"
    );
    // A heartbeat whose transaction is open while the detector decides: the detector waits, and sees it.
    stage
        .run(&format!(
            "BEGIN; UPDATE {{schema}}.subscription SET heartbeat_at = {} WHERE group_name = 'a'",
            stage.now()
        ))
        .await;
    stage.clock.advance(Duration::from_secs(1));
    let store = Arc::clone(&stage.store);
    let detecting = tokio::spawn(async move { store.detect_dead().await });
    until_waiting(&stage).await;
    stage.run("COMMIT").await;
    assert_eq!(detecting.await.unwrap().unwrap().died, vec![]);
    stage.clock.advance(Duration::from_secs(120));
    stage.store.detect_dead().await.unwrap();
    stage.clock.advance(Duration::from_secs(120));
    assert_eq!(stage.store.detect_dead().await.unwrap().near_timeout, vec![group.clone()]);
    stage.clock.advance(Duration::from_secs(61));
    // A rolled back run has no effect; in two concurrent runs the group dies once.
    stage.run(&format!("BEGIN; SELECT {{schema}}.detect_dead({}); ROLLBACK", stage.now())).await;
    let (one, two) = tokio::join!(stage.store.detect_dead(), stage.store.detect_dead());
    assert_eq!([one.unwrap().died, two.unwrap().died].concat(), vec![group]);
    assert_eq!(stage.store.detect_dead().await.unwrap().died, vec![]);
    stage.strike().await;
}

/// Detection of dead groups does not wait for publishers, nor they for it.
#[tokio::test]
async fn a_death_beside_open_publishers_loses_none_of_their_messages() {
    let Some(stage) = Stage::set("tracking = 'reference_counting'").await else { return };
    stage.subscribe("a").await;
    let b = stage.subscribe("b").await;
    stage
        .run(&format!(
            "UPDATE {{schema}}.subscription SET heartbeat_at = {} WHERE group_name = 'a'",
            stage.now()
        ))
        .await;
    stage.store.detect_dead().await.unwrap();
    stage.publish(5).await;
    stage.track().await;
    let publisher = stage.scene.client().await;
    publisher.batch_execute(&stage.scene.sql("BEGIN; SELECT {schema}.publish('orders', '1')")).await.unwrap();
    for _ in 0..2 {
        stage.clock.advance(Duration::from_secs(170));
        stage.store.detect_dead().await.unwrap();
    }
    assert_eq!(stage.text("SELECT state FROM {schema}.subscription WHERE group_name = 'a'").await, "dead");
    publisher.batch_execute("COMMIT").await.unwrap();
    stage.track().await;
    assert_eq!(stage.records().await, ["1: b, ", "2: b, ", "3: b, ", "4: b, ", "5: b, ", "6: b, "]);
    assert_eq!(stage.handle(&b, 10).await, [1, 2, 3, 4, 5, 6]);
    stage.strike().await;
}

#[tokio::test]
async fn one_worker_is_elected_until_its_term_ends() {
    let Some(stage) = Stage::set("message_retention_ms = 0").await else { return };
    let (a, b) = (Owner::new("a").unwrap(), Owner::new("b").unwrap());
    let term = Duration::from_secs(15);
    assert!(stage.store.elect(&a, term).await.unwrap());
    assert!(!stage.store.elect(&b, term).await.unwrap());
    stage.clock.advance(Duration::from_secs(10));
    assert!(stage.store.elect(&a, term).await.unwrap(), "confirmed");
    stage.clock.advance(Duration::from_secs(14));
    assert!(!stage.store.elect(&b, term).await.unwrap(), "the term was renewed");
    stage.clock.advance(Duration::from_secs(1));
    assert!(stage.store.elect(&b, term).await.unwrap());
    stage.store.resign(&a).await.unwrap();
    assert!(!stage.store.elect(&a, term).await.unwrap(), "resigning a term of another worker has no effect");
    stage.store.resign(&b).await.unwrap();
    assert!(stage.store.elect(&a, term).await.unwrap());
    stage.strike().await;
}

#[tokio::test]
async fn jobs_add_up_and_an_error_stays_until_it_is_gone() {
    use crate::maintenance::{Job, JobRun};
    let Some(stage) = Stage::set("message_retention_ms = 0").await else { return };
    let run = |error: Option<&str>| JobRun {
        job: Job::MessageCleanup,
        duration: Duration::from_millis(3),
        rows: 5,
        backlog: 7,
        error: error.map(str::to_owned),
    };
    stage.store.jobs_ran(&[run(Some("no disk"))]).await.unwrap();
    let job = stage.store.jobs().await.unwrap().remove(0);
    assert_eq!((job.runs, job.failures, job.last_error.as_deref()), (1, 1, Some("no disk")));
    stage.store.jobs_ran(&[run(None)]).await.unwrap();
    let job = stage.store.jobs().await.unwrap().remove(0);
    assert_eq!((job.runs, job.failures, job.rows, job.backlog, job.last_error), (2, 1, 10, 7, None));
    assert_eq!((job.last_run_at, job.last_duration), (stage.clock.now(), Duration::from_millis(3)));
    stage.store.probe().await.unwrap();
    stage.strike().await;
}

/// Dead detection holds the row of its job while it runs.
#[tokio::test]
async fn runs_that_wait_for_dead_detection_hold_no_row_of_another_job() {
    use crate::maintenance::{Job, JobRun};
    let Some(stage) = Stage::set("message_retention_ms = 0").await else { return };
    let run = |job| JobRun { job, duration: Duration::ZERO, rows: 1, backlog: 0, error: None };
    stage.store.jobs_ran(&Job::ALL.map(run)).await.unwrap();
    stage.run("BEGIN; SELECT FROM {schema}.job WHERE job = 'dead_detection' FOR UPDATE").await;
    let store = Arc::clone(&stage.store);
    let all = tokio::spawn(async move { store.jobs_ran(&Job::ALL.map(run)).await });
    until_waiting(&stage).await;
    for job in Job::ALL.into_iter().filter(|job| *job != Job::DeadDetection) {
        let recorded = tokio::time::timeout(SOON, stage.store.jobs_ran(&[run(job)])).await;
        recorded.unwrap_or_else(|_| panic!("{job:?} waits for dead detection")).unwrap();
    }
    stage.run("COMMIT").await;
    all.await.unwrap().unwrap();
    let runs = |job: &crate::maintenance::JobStatus| job.runs == 2 + u64::from(job.job != Job::DeadDetection);
    assert!(stage.store.jobs().await.unwrap().iter().all(runs));
    stage.strike().await;
}
