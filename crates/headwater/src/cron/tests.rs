//! Tests of jobs: each tick is published once by any process, missed ticks follow the policy, and nothing sleeps.

use std::time::Duration;

use jiff::Timestamp;
use uuid::Uuid;

use super::*;
use crate::clock::ManualClock;
use crate::lease::OffsetRange;
use crate::message::{Message, Offset};
use crate::name::GroupName;
use crate::observe::health::HealthState;
use crate::store::{OpenOptions, Store};
use crate::subscription::Start;
use crate::topic::TopicSettings;

/// A store in memory that several processes share, with a manual clock.
struct Setting {
    store: Arc<dyn Store>,
    clock: ManualClock,
}

impl Setting {
    async fn at(now: &str) -> Self {
        let clock = ManualClock::at(now.parse().unwrap());
        Setting { store: open(Clock::Manual(clock.clone())).await, clock }
    }

    /// A job of another process.
    fn job(&self, name: &str, expression: &str) -> CronBuilder {
        let (store, clock) = (Arc::clone(&self.store), Clock::Manual(self.clock.clone()));
        CronBuilder::new(store, clock, Arc::default(), Arc::default(), name, expression).topic("reports")
    }

    fn set(&self, now: &str) {
        self.clock.set(now.parse().unwrap());
    }

    /// The messages published so far.
    async fn published(&self) -> Vec<Message> {
        published(&*self.store).await
    }

    /// The ticks published so far, by their headers.
    async fn ticks(&self) -> Vec<String> {
        self.published().await.iter().map(|message| message.headers["headwater-cron-tick"].clone()).collect()
    }
}

async fn open(clock: Clock) -> Arc<dyn Store> {
    let options = OpenOptions::default().clock(clock).auto_create(true);
    crate::store::open("sqlite::memory:", options).await.unwrap()
}

fn reports() -> TopicName {
    TopicName::new("reports").unwrap()
}

async fn published(store: &dyn Store) -> Vec<Message> {
    let Ok(topic) = store.topic(&reports()).await else { return Vec::new() };
    store.fetch(topic.topic_id, OffsetRange::new(Offset(1), Offset(1_000))).await.unwrap()
}

#[tokio::test]
async fn tick_is_published_once_with_its_headers() {
    let setting = Setting::at("2026-03-28T12:00:00Z").await;
    let job = setting
        .job("nightly-report", "0 2 * * *")
        .time_zone("Europe/Berlin")
        .message(NewMessage::new("go").key("k"))
        .start()
        .await
        .unwrap();
    assert_eq!(job.step().await.unwrap(), 0, "a new job starts from now");
    // 02:00 is left out that night: it fires at 03:00, which is 01:00 UTC.
    setting.set("2026-03-29T00:59:59Z");
    assert_eq!(job.step().await.unwrap(), 0);
    setting.set("2026-03-29T01:00:00Z");
    assert_eq!(job.step().await.unwrap(), 1);
    assert_eq!(job.step().await.unwrap(), 0);
    let published = setting.published().await;
    let expected = NewMessage::new("go")
        .key("k")
        .header("headwater-cron-job", "nightly-report")
        .header("headwater-cron-tick", "2026-03-29T01:00:00Z");
    assert_eq!(published.len(), 1);
    assert_eq!((&published[0].payload, &published[0].key), (&expected.payload, &expected.key));
    assert_eq!(published[0].headers, expected.headers);
    job.stop().await;
}

#[tokio::test]
async fn several_processes_publish_each_tick_once() {
    let setting = Setting::at("2026-01-01T00:00:00Z").await;
    let mut jobs = Vec::new();
    for _ in 0..3 {
        jobs.push(setting.job("hourly", "0 * * * *").start().await.unwrap());
    }
    let mut published = [0, 0, 0];
    for hour in 0..6 {
        setting.clock.advance(Duration::from_secs(3600));
        // Each process goes first in turn.
        for at in (0..3).map(|at| (at + hour) % 3) {
            published[at] += jobs[at].step().await.unwrap();
        }
    }
    assert_eq!(published, [2, 2, 2]);
    assert_eq!(setting.ticks().await.len(), 6);
}

#[tokio::test]
async fn missed_ticks_follow_the_policy() {
    for (missed, expected) in [
        (Missed::Skip, &[][..]),
        (Missed::FireOnce, &["2026-01-01T05:00:00Z"][..]),
        (Missed::FireAll { at_most: 2 }, &["2026-01-01T04:00:00Z", "2026-01-01T05:00:00Z"][..]),
    ] {
        let setting = Setting::at("2026-01-01T00:30:00Z").await;
        let job = setting.job("hourly", "0 * * * *").missed(missed).start().await.unwrap();
        job.stop().await;
        // No process runs for hours; then one starts, and a second one beside it.
        setting.set("2026-01-01T05:30:00Z");
        let job = setting.job("hourly", "0 * * * *").missed(missed).start().await.unwrap();
        let other = setting.job("hourly", "0 * * * *").missed(missed).start().await.unwrap();
        assert_eq!(job.step().await.unwrap(), expected.len() as u64, "{missed:?}");
        assert_eq!(other.step().await.unwrap(), 0, "{missed:?}");
        assert_eq!(setting.ticks().await, expected, "{missed:?}");
        // Later ticks are published as usual.
        setting.set("2026-01-01T06:00:01Z");
        assert_eq!(job.step().await.unwrap(), 1, "{missed:?}");
        assert_eq!(setting.ticks().await.last().unwrap(), "2026-01-01T06:00:00Z");
    }
}

#[tokio::test]
async fn restart_at_the_wrong_moment_misses_nothing() {
    let setting = Setting::at("2026-01-01T00:00:00Z").await;
    setting.job("nightly", "0 2 * * *").start().await.unwrap().stop().await;
    setting.set("2026-01-01T02:01:30Z");
    let job = setting.job("nightly", "0 2 * * *").missed(Missed::Skip).start().await.unwrap();
    assert_eq!(job.step().await.unwrap(), 1);
}

#[tokio::test]
async fn clock_set_back_publishes_nothing_again() {
    let setting = Setting::at("2026-01-01T00:00:00Z").await;
    let job = setting.job("minutely", "* * * * *").start().await.unwrap();
    setting.set("2026-01-01T00:02:00Z");
    assert_eq!(job.step().await.unwrap(), 2);
    setting.set("2026-01-01T00:00:30Z");
    assert_eq!(job.step().await.unwrap(), 0);
    setting.set("2026-01-01T00:03:00Z");
    assert_eq!(job.step().await.unwrap(), 1);
}

#[tokio::test]
async fn a_clock_that_was_ahead_does_not_silence_a_job() {
    let setting = Setting::at("2026-01-01T00:00:00Z").await;
    let job = setting.job("minutely", "* * * * *").start().await.unwrap();
    setting.set("2026-01-02T00:00:00Z");
    assert_eq!(job.step().await.unwrap(), 1, "the last missed tick");
    setting.set("2026-01-01T00:00:30Z");
    assert_eq!(job.step().await.unwrap(), 0);
    // The store handles it: a last tick that far ahead blocks nothing.
    setting.set("2026-01-01T00:02:00Z");
    assert_eq!(job.step().await.unwrap(), 2);
    assert_eq!(job.step().await.unwrap(), 0);
}

#[tokio::test]
async fn failure_is_shown_and_the_tick_is_tried_again() {
    let setting = Setting::at("2026-01-01T00:00:00Z").await;
    let job = setting.job("minutely", "* * * * *").start().await.unwrap();
    setting.set("2026-01-01T00:01:00Z");
    let blocked = TopicSettings { block_writes_on_zero_subscriptions: true, ..TopicSettings::pub_sub() };
    setting.store.create_topic(&reports(), &blocked).await.unwrap();
    assert_eq!(job.step().await.unwrap_err().kind(), ErrorKind::NoSubscriptions);
    let health = job.health();
    assert_eq!(health.state, HealthState::Failing);
    assert_eq!(health.last_errors[0].context, "tick 2026-01-01T00:01:00Z of cron job minutely");
    setting.store.subscribe(&reports(), &GroupName::new("readers").unwrap(), Start::Now).await.unwrap();
    assert_eq!(job.step().await.unwrap(), 1);
    let health = job.health();
    assert_eq!((health.state, health.totals.published), (HealthState::Running, 1));
}

#[tokio::test]
async fn runner_checks_without_being_asked() {
    let store = open(Clock::Database).await;
    // It is hours behind when it starts.
    let hours_ago = Timestamp::now() - jiff::SignedDuration::from_hours(3);
    store.cron_last("hourly", hours_ago).await.unwrap();
    let topic = store.create_topic(&reports(), &TopicSettings::default()).await.unwrap();
    let wake = store.arm(&[topic.topic_id]).await.unwrap();
    let job = CronBuilder::new(
        Arc::clone(&store) as _,
        Clock::Database,
        Arc::default(),
        Arc::default(),
        "hourly",
        "0 * * * *",
    )
    .topic("reports")
    .start()
    .await
    .unwrap();
    assert!(wake.wait(Duration::from_secs(30)).await);
    assert_eq!(published(&*store).await.len(), 1);
    job.stop().await;
}

#[tokio::test]
async fn bad_input_is_refused_with_what_to_do() {
    let setting = Setting::at("2026-01-01T00:00:00Z").await;
    let job = |name: &str| setting.job(name, "* * * * *");
    let with = |message: NewMessage| job("a").message(message);
    for (builder, says) in [
        (job(""), "invalid cron job: must not be empty; give it a unique name"),
        (job("a\n"), "invalid cron job: control character"),
        (setting.job("a", "61 * * * *"), "invalid cron expression: `61 * * * *`"),
        (setting.job("a", "0 0 31 4 *"), "never fires"),
        (job("a").time_zone("Mars/Olympus"), "invalid time zone: `Mars/Olympus`"),
        (job("a").topic(""), "invalid topic: must not be empty"),
        (job("a").missed(Missed::FireAll { at_most: 0 }), "use Skip"),
        (job("a").missed(Missed::FireAll { at_most: 1_001 }), "1 to 1000"),
        (with(NewMessage::new("a").message_id(Uuid::now_v7())), "invalid message_id: would be the same"),
        (with(NewMessage::new("a").dedup_key("k")), "invalid dedup_key: would be the same"),
        (with(NewMessage::new("a").key("")), "invalid key: must not be empty"),
    ] {
        let error = builder.start().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        assert!(error.to_string().contains(says), "{error}");
    }
    let mut nowhere = job("a");
    nowhere.topic = None;
    let error = nowhere.start().await.unwrap_err().to_string();
    assert!(error.contains("set the topic of the ticks with `topic`"), "{error}");
}

#[tokio::test]
async fn dropped_job_ends() {
    let setting = Setting::at("2026-01-01T00:00:00Z").await;
    let job = setting.job("a", "* * * * *").start().await.unwrap();
    let CronJob { orders, task, state, .. } = job;
    drop(orders);
    task.await.unwrap();
    assert_eq!(state.health().state, HealthState::Stopped);
}
