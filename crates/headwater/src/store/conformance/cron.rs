//! Ticks of cron jobs: each fires once, whichever process is first.

use std::time::Duration;

use jiff::Timestamp;

use super::case::{Case, failed, payloads_of, topic};
use super::wake::{arm, woken};
use crate::error::ErrorKind;
use crate::message::NewMessage;
use crate::store::{CronDescription, CronStatus};

fn tick(second: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + second).expect("within range")
}

fn message(text: &str) -> NewMessage {
    NewMessage::new(text.to_owned()).key("k").message_type("tick").header("h", "v").correlation_id("c")
}

/// The first caller sets where a job begins; every later caller gets what is stored, also after a restart.
pub async fn a_job_begins_where_it_was_first_read(case: &Case) {
    let store = case.open().await;
    assert_eq!(store.cron_last("nightly", tick(10)).await.unwrap(), tick(10));
    assert_eq!(store.cron_last("nightly", tick(99)).await.unwrap(), tick(10));
    assert_eq!(
        store.cron_last("other 'job'", tick(5)).await.unwrap(),
        tick(5),
        "jobs have ticks of their own"
    );
    store.close().await.unwrap();
    assert_eq!(case.open().await.cron_last("nightly", tick(0)).await.unwrap(), tick(10));
}

/// A tick advances the job and publishes the whole message; the same tick again, or an older one, does nothing.
pub async fn a_tick_fires_once_and_older_ones_never(case: &Case) {
    let scene = case.queue().await;
    scene.store.cron_last("nightly", tick(0)).await.unwrap();
    let fire = async |second, text: &str| {
        let message = message(text);
        scene.store.cron_fire("nightly", tick(second), &scene.topic, &message).await.unwrap()
    };
    let published = fire(60, "at 60").await.expect("fired");
    assert_eq!((published.offset.map(|offset| offset.0), published.duplicate), (Some(1), false));
    for second in [60, 59, 0, -5] {
        assert_eq!(fire(second, "too late").await, None, "{second}");
    }
    assert_eq!(scene.store.cron_last("nightly", tick(0)).await.unwrap(), tick(60));
    assert!(fire(120, "at 120").await.is_some());
    let came = scene.drain("a").await;
    assert_eq!(payloads_of(&came), ["at 60", "at 120"]);
    assert_eq!((came[0].key.as_deref(), came[0].message_type.as_deref()), (Some("k"), Some("tick")));
    assert_eq!((came[0].headers["h"].as_str(), came[0].correlation_id.as_deref()), ("v", Some("c")));
    assert_eq!(came[0].message_id, published.message_id);
}

/// The tick at which a job begins is not fired; a job that was never read begins with the first tick that fires.
pub async fn a_job_may_begin_with_a_tick(case: &Case) {
    let scene = case.queue().await;
    scene.store.cron_last("asked", tick(60)).await.unwrap();
    let fire = async |job: &str| {
        scene.store.cron_fire(job, tick(60), &scene.topic, &message("x")).await.unwrap().is_some()
    };
    assert!(!fire("asked").await);
    assert!(fire("not asked").await);
    assert!(!fire("not asked").await);
    assert_eq!(scene.store.cron_last("not asked", tick(0)).await.unwrap(), tick(60));
}

/// Many processes fire every tick: there is one message for each.
pub async fn one_of_many_concurrent_ticks_fires(case: &Case) {
    let scene = case.queue().await;
    let mut stores = Vec::new();
    for _ in 0..3 {
        stores.push(case.open().await);
    }
    for second in 1..=10 {
        let mut tasks = Vec::new();
        for n in 0..12 {
            let (store, topic) = (stores[n % stores.len()].clone(), scene.topic.clone());
            tasks.push(tokio::spawn(async move {
                store.cron_fire("nightly", tick(second), &topic, &message(&second.to_string())).await.unwrap()
            }));
        }
        let mut fired = 0;
        for task in tasks {
            fired += u32::from(task.await.unwrap().is_some());
        }
        assert_eq!(fired, 1, "tick {second}");
    }
    let expected: Vec<String> = (1..=10).map(|second| second.to_string()).collect();
    assert_eq!(payloads_of(&scene.drain_until("a", 10).await), expected);
}

/// A refused publish leaves the job where it was, so that the tick fires once it can.
pub async fn a_refused_message_leaves_the_job_where_it_was(case: &Case) {
    let store = case.open_with(case.options().auto_create(false)).await.unwrap();
    let nowhere = topic("nowhere");
    store.cron_last("nightly", tick(0)).await.unwrap();
    failed(store.cron_fire("nightly", tick(60), &nowhere, &message("x")).await, ErrorKind::NoSuchTopic);
    assert_eq!(store.cron_last("nightly", tick(99)).await.unwrap(), tick(0));
    failed(
        store.cron_fire("never asked for", tick(60), &nowhere, &message("x")).await,
        ErrorKind::NoSuchTopic,
    );
    assert_eq!(store.cron_last("never asked for", tick(7)).await.unwrap(), tick(7));
    store.create_topic(&nowhere, &crate::TopicSettings::default()).await.unwrap();
    let large = NewMessage::new(vec![7; 2 * 1024 * 1024]);
    failed(store.cron_fire("nightly", tick(60), &nowhere, &large).await, ErrorKind::PayloadTooLarge);
    let neighbour = [NewMessage::new("neighbour")];
    let (neighbour, refused) = tokio::join!(
        store.publish(&nowhere, &neighbour),
        store.cron_fire("nightly", tick(60), &nowhere, &large)
    );
    neighbour.unwrap();
    failed(refused, ErrorKind::PayloadTooLarge);
    assert_eq!(store.cron_last("nightly", tick(99)).await.unwrap(), tick(0));
    assert!(store.cron_fire("nightly", tick(60), &nowhere, &message("x")).await.unwrap().is_some());
}

/// A tick creates an unknown topic, as a publish does, where that is allowed.
pub async fn an_unknown_topic_is_created_by_a_tick(case: &Case) {
    let store = case.open().await;
    let published = store.cron_fire("nightly", tick(60), &topic("made"), &message("x")).await.unwrap();
    assert_eq!(published.unwrap().offset.unwrap().0, 1);
    assert_eq!(store.topics().await.unwrap().len(), 1);
    assert_eq!(store.cron_fire("nightly", tick(60), &topic("made"), &message("x")).await.unwrap(), None);
}

/// The message of a tick is like any other: it may be delayed and de-duplicated, and it wakes waiters.
pub async fn a_tick_publishes_as_a_publish_does(case: &Case) {
    let scene = case.queue().await;
    let fire = async |second, message: NewMessage| {
        scene.store.cron_fire("nightly", tick(second), &scene.topic, &message).await.unwrap().expect("fired")
    };
    let wake = arm(&scene).await;
    fire(1, message("first").dedup_key("d")).await;
    woken(&scene, wake, "first").await;
    let again = fire(2, message("again").dedup_key("d")).await;
    assert_eq!((again.duplicate, again.offset.map(|offset| offset.0)), (true, Some(1)));
    let later = fire(3, message("later").deliver_at(case.now() + Duration::from_secs(60))).await;
    assert_eq!(later.offset, None);
    case.advance(Duration::from_secs(60));
    assert_eq!(payloads_of(&scene.drain_until("a", 1).await), ["later"]);
}

/// Job names follow the rule for names, and any time a tick can have is kept.
pub async fn strange_jobs_and_ticks_are_harmless(case: &Case) {
    let scene = case.queue().await;
    for bad in ["", "a\0b", &"x".repeat(256)] {
        failed(scene.store.cron_last(bad, tick(0)).await, ErrorKind::InvalidInput);
        let fired = scene.store.cron_fire(bad, tick(1), &scene.topic, &message("x")).await;
        failed(fired, ErrorKind::InvalidInput);
    }
    let bad = scene.store.cron_fire("job", tick(1), &scene.topic, &message("x").key("")).await;
    failed(bad, ErrorKind::InvalidInput);
    let job = "Robert'); DROP TABLE cron;--";
    // Ticks count in whole milliseconds.
    let fine = tick(1) + Duration::from_micros(1_500);
    assert!(scene.store.cron_fire(job, fine, &scene.topic, &message("x")).await.unwrap().is_some());
    let last = scene.store.cron_last(job, tick(0)).await.unwrap();
    assert_eq!(last, tick(1) + Duration::from_millis(1));
    assert_eq!(scene.store.cron_fire(job, fine, &scene.topic, &message("x")).await.unwrap(), None);
    assert_eq!(scene.status().await.floor.0, 0);
}

/// Jobs are listed by name with what the last process that started them gave and their last tick; a job that no process
/// described too.
pub async fn jobs_are_listed_as_last_described(case: &Case) {
    let scene = case.queue().await;
    let store = &scene.store;
    let described = |expression: &str, zone: &str, to: &str| CronDescription {
        job: "nightly".into(),
        expression: expression.into(),
        time_zone: zone.into(),
        topic: topic(to),
    };
    store.cron_describe(&described("* * * * *", "UTC", "orders")).await.unwrap();
    assert_eq!(store.cron_jobs().await.unwrap(), [], "a job begins with its ticks");
    store.cron_last("nightly", tick(0)).await.unwrap();
    store.cron_last("bare", tick(5)).await.unwrap();
    store.cron_describe(&described("0 2 * * *", "UTC", "reports")).await.unwrap();
    case.advance(Duration::from_secs(60));
    let newest = described("0 3 * * *", "Europe/Berlin", "orders");
    store.cron_describe(&newest).await.unwrap();
    store.cron_fire("nightly", tick(60), &scene.topic, &message("x")).await.unwrap();
    let expected = [
        CronStatus { job: "bare".into(), description: None, started_at: None, last_tick: tick(5) },
        CronStatus {
            job: "nightly".into(),
            description: Some(newest),
            started_at: Some(case.now()),
            last_tick: tick(60),
        },
    ];
    let whole_ms = |at: Timestamp| Timestamp::from_millisecond(at.as_millisecond()).unwrap();
    let mut listed = store.cron_jobs().await.unwrap();
    let mut expected = expected.to_vec();
    for job in listed.iter_mut().chain(&mut expected) {
        job.started_at = job.started_at.map(whole_ms);
    }
    assert_eq!(listed, expected);
    let bad = CronDescription { expression: String::new(), ..described("x", "UTC", "orders") };
    failed(store.cron_describe(&bad).await, ErrorKind::InvalidInput);
    scene.drain("a").await;
}
