//! Maintenance: completion records, retention, backfills and deaths, in the edge cases of this engine.

use super::*;
use crate::backfill::{BackfillLimits, BackfillState};
use crate::clock::ManualClock;
use crate::message::Offset;
use crate::store::{Record, Tracking as _};
use crate::subscription::{SubscriptionState, Transition};
use crate::topic::Tracking;

mod backfilling;
mod cleaning;
mod clock;
mod counting;
mod dying;
mod holding;
mod large;
mod many;
mod random;

const HOUR: Duration = Duration::from_secs(3_600);

/// A fan-out topic in a file of its own, with a manual clock.
struct Scene {
    place: Place,
    store: SqliteStore,
    clock: ManualClock,
    topic: TopicId,
}

impl Scene {
    async fn new(settings: &str) -> Self {
        let place = Place::new();
        let clock = ManualClock::at("2026-01-01T00:00:00Z".parse().unwrap());
        let store = open_at(&place.path(), options(&clock)).await.unwrap();
        let topic = store.create_topic(&topic("orders"), &TopicSettings::pub_sub()).await.unwrap().topic_id;
        let scene = Scene { place, store, clock, topic };
        // As they are stored, unchecked: `message_retention_ms = 0, ordering = 'key'`.
        for (name, value) in settings.split(',').filter_map(|setting| setting.trim().split_once(" = ")) {
            scene.sql(&format!(
                "UPDATE headwater_topic SET settings = json_set(settings, '$.{name}', {value})"
            ));
        }
        scene
    }

    /// A second store on the same file.
    async fn open_again(&self) -> SqliteStore {
        open_at(&self.place.path(), options(&self.clock)).await.unwrap()
    }

    fn sql(&self, sql: &str) {
        self.place.connect().execute_batch(sql).unwrap();
    }

    fn number(&self, sql: &str) -> Option<i64> {
        self.place.connect().query_row(sql, [], |row| row.get(0)).unwrap()
    }

    async fn group(&self, name: &str, start: Start) -> Subscription {
        self.store.subscribe(&topic("orders"), &group(name), start).await.unwrap()
    }

    async fn publish(&self, count: usize) {
        self.store.publish(&topic("orders"), &messages(count)).await.unwrap();
    }

    /// Claims this many messages and acks them.
    async fn consume(&self, subscription: &Subscription, count: u32) {
        let claimed = self.store.claim(&request(subscription, count)).await.unwrap();
        for lease in claimed.leases {
            self.store.settle(&[Settlement::ack_all(&lease)]).await.unwrap().remove(0).unwrap();
        }
    }

    /// Moves the clock, and lets maintenance have measured that time.
    fn pass(&self, by: Duration) {
        let (now, ms) = (self.clock.now().as_millisecond(), by.as_millis());
        self.sql(&format!(
            "INSERT INTO headwater_elapsed (one, read_at_ms, elapsed_ms) VALUES (1, {now} + {ms}, {ms})
             ON CONFLICT (one) DO UPDATE SET read_at_ms = read_at_ms + {ms}, elapsed_ms = elapsed_ms + {ms}"
        ));
        self.clock.advance(by);
    }

    /// Moves a subscription to a state, as the life cycle does.
    async fn set_state(&self, subscription: &Subscription, status: &'static str) {
        let subscription_id = subscription.subscription_id.0;
        let changed = self.store.write(Kind::Define, move |work| {
            let sql =
                "UPDATE headwater_subscription SET state = ?2, state_at_ms = ?3 WHERE subscription_id = ?1";
            work.connection.execute(sql, rusqlite::params![subscription_id, status, work.now_ms()])?;
            match status {
                "active" => tracking::start_counting(work, subscription_id, &BackfillLimits::default()),
                "paused" => Ok(()),
                "cancelled" => {
                    let sql = "DELETE FROM headwater_outstanding WHERE subscription_id = ?1";
                    work.connection.execute(sql, [subscription_id])?;
                    tracking::stop_counting(work, subscription_id)
                }
                _ => tracking::stop_counting(work, subscription_id),
            }
        });
        changed.await.unwrap();
    }

    async fn change(&self, target: Tracking) -> Result<()> {
        let topic = self.topic;
        self.store.write(Kind::Define, move |work| tracking::change_tracking(work, topic, target)).await
    }

    /// Tracks until nothing is left to do.
    async fn track(&self) {
        while self.store.track(self.topic, 10_000).await.unwrap().more {}
    }

    /// Cleans until nothing is left to do. Returns how many messages were removed.
    async fn clean(&self) -> u64 {
        let mut removed = 0;
        loop {
            let step = self.store.clean(self.topic, 10_000).await.unwrap();
            removed += step.removed;
            if !step.more {
                return removed;
            }
        }
    }

    async fn records(&self) -> Vec<Record> {
        let range = OffsetRange::new(Offset(1), Offset(OFFSET_MAX));
        let topic = topic("orders");
        self.store.records(&topic, range).await.unwrap()
    }

    /// Offset, completed and required groups, and whether all are done, in short form.
    async fn shown(&self) -> Vec<String> {
        let names = |groups: &[GroupName]| groups.iter().map(GroupName::as_str).collect::<Vec<_>>().join("");
        let line = |record: Record| {
            let done = if record.completed_at.is_some() { "!" } else { "" };
            format!("{}:{}/{}{done}", record.offset, names(&record.completed), names(&record.required))
        };
        self.records().await.into_iter().map(line).collect()
    }

    async fn stored(&self) -> Vec<i64> {
        let range = OffsetRange::new(Offset(1), Offset(OFFSET_MAX));
        let messages = self.store.fetch(self.topic, range).await.unwrap();
        messages.into_iter().map(|message| message.offset.0).collect()
    }

    async fn assert_sound(&self) {
        assert_eq!(self.store.doctor().await.unwrap(), []);
    }
}

fn options(clock: &ManualClock) -> OpenOptions {
    OpenOptions::default().clock(Clock::Manual(clock.clone())).sync_every_publish(false).actor("tester")
}

fn group(name: &str) -> GroupName {
    GroupName::new(name).unwrap()
}

fn worker(name: &str) -> Owner {
    Owner::new(name).unwrap()
}

/// Makes the next write of a kind fail at an offset, as a broken disk page would.
fn break_at(scene: &Scene, table: &str, event: &str, offset: i64) {
    let key = row_key(scene.topic, offset);
    scene.sql(&format!(
        "CREATE TRIGGER broken BEFORE {event} ON {table} WHEN OLD.row_key = {key}
         BEGIN SELECT RAISE(ABORT, 'broken on purpose'); END"
    ));
}

#[tokio::test]
async fn a_worker_is_elected_until_its_term_runs_out() {
    let scene = Scene::new("").await;
    let term = Duration::from_secs(10);
    assert!(scene.store.elect(&worker("a"), term).await.unwrap());
    assert!(!scene.store.elect(&worker("b"), term).await.unwrap());
    scene.clock.advance(Duration::from_secs(9));
    assert!(scene.store.elect(&worker("a"), term).await.unwrap(), "confirmed");
    scene.clock.advance(Duration::from_secs(9));
    assert!(!scene.store.elect(&worker("b"), term).await.unwrap());
    scene.clock.advance(Duration::from_secs(1));
    assert!(scene.store.elect(&worker("b"), term).await.unwrap());
    scene.store.resign(&worker("a")).await.unwrap();
    assert!(!scene.store.elect(&worker("a"), term).await.unwrap(), "a worker can only give up its own term");
    scene.store.resign(&worker("b")).await.unwrap();
    assert!(scene.store.elect(&worker("a"), term).await.unwrap());
}

#[tokio::test]
async fn runs_of_jobs_add_up_and_a_failed_check_is_none() {
    use crate::maintenance::{Job, JobRun};
    let scene = Scene::new("").await;
    let run = |job, error: Option<&str>| JobRun {
        job,
        duration: Duration::from_millis(3),
        rows: 5,
        backlog: 7,
        error: error.map(str::to_owned),
    };
    scene.store.jobs_ran(&[run(Job::MessageCleanup, Some("no"))]).await.unwrap();
    scene.store.jobs_ran(&[run(Job::MessageCleanup, None)]).await.unwrap();
    scene.store.jobs_ran(&[run(Job::DeadDetection, Some("no"))]).await.unwrap();
    let jobs = scene.store.jobs().await.unwrap();
    assert_eq!(
        jobs.iter().map(|status| status.job).collect::<Vec<_>>(),
        [Job::DeadDetection, Job::MessageCleanup]
    );
    assert_eq!(jobs[0].last_run_at, Timestamp::UNIX_EPOCH, "it failed, so it has not checked");
    let cleanup = &jobs[1];
    assert_eq!((cleanup.runs, cleanup.failures, cleanup.rows, cleanup.backlog), (2, 1, 10, 7));
    assert_eq!((cleanup.last_run_at, &cleanup.last_error), (scene.clock.now(), &None));
    assert_eq!(cleanup.last_duration, Duration::from_millis(3));
    scene.store.jobs_ran(&[run(Job::DeadDetection, None)]).await.unwrap();
    scene.assert_sound().await;
    scene.store.probe().await.unwrap();
}
