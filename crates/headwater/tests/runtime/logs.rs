//! What the log shows to an operator: each event once.

use std::io;
use std::sync::Mutex;
use std::time::Duration;

use headwater::SubscriptionState;
use headwater::maintenance::Job;
use headwater::testing::ManualClock;
use tracing_subscriber::fmt::MakeWriter;

use crate::each::{Place, on_each, publish_numbers};

on_each!(a_death_and_a_return_are_logged_once);

static LINES: Mutex<Vec<u8>> = Mutex::new(Vec::new());

/// Global, because engines log from their own threads: a case finds its lines by its own topic name.
struct Capture;

impl io::Write for Capture {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        LINES.lock().unwrap().extend(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Capture {
    type Writer = Capture;

    fn make_writer(&'a self) -> Capture {
        Capture
    }
}

/// Starts capturing what the crate logs, once per process.
pub(crate) fn capture() {
    let capture = tracing_subscriber::fmt().with_ansi(false).with_max_level(tracing::Level::DEBUG);
    let _ = capture.with_writer(Capture).try_init();
}

/// The lines about a topic so far.
pub(crate) fn lines_of(topic: &str) -> Vec<String> {
    let lines = String::from_utf8(LINES.lock().unwrap().clone()).unwrap();
    lines.lines().filter(|line| line.contains(topic)).map(str::to_owned).collect()
}

async fn a_death_and_a_return_are_logged_once(place: Place) {
    capture();
    let clock = ManualClock::at("2026-03-02T09:00:00Z".parse().unwrap());
    let headwater = place.open_at(&clock).await;
    let topic = format!("logged-{}", headwater.store().engine());
    // Longer than this case takes: between the first heartbeat and the last detection the consumer sends none by
    // itself.
    let [interval, timeout] = [1, 2].map(|hours| Duration::from_secs(hours * 3_600));
    headwater.topic(&topic).pub_sub().heartbeats(interval, timeout).create().await.unwrap();
    let mut consumer = headwater.consumer(&topic, "email").open().await.unwrap();
    assert!(consumer.next(Duration::ZERO).await.unwrap().is_none());
    let status = async || headwater.groups(&topic).get("email").await.unwrap().status;
    crate::each::eventually("heartbeat stored", async || status().await.heartbeat_at.is_some()).await;
    publish_numbers(&headwater, &topic, 5).await;
    let run = async |job: Job| {
        let run = headwater.maintenance().run_once(&[job]).await.unwrap().remove(0);
        assert_eq!(run.error, None);
    };
    run(Job::DeadDetection).await;
    clock.advance(timeout + interval);
    run(Job::DeadDetection).await;
    clock.advance(interval);
    run(Job::DeadDetection).await;
    assert_eq!(status().await.state, SubscriptionState::Dead);
    clock.advance(interval);
    run(Job::DeadDetection).await;
    run(Job::Heads).await;
    run(Job::SubscriptionCleanup).await;
    publish_numbers(&headwater, &topic, 5).await;
    consumer.next(Duration::ZERO).await.unwrap().expect("all are delivered");
    let mut lines = lines_of(&topic);
    lines.retain(|line| !line.contains("DEBUG"));
    for once in ["declared dead", "resurrected"] {
        assert_eq!(lines.iter().filter(|line| line.contains(once)).count(), 1, "{once}: {lines:#?}");
    }
    let loud = lines.iter().filter(|line| line.contains("WARN")).count();
    assert_eq!((loud, lines.iter().filter(|line| line.contains("dead")).count()), (2, 2), "{lines:#?}");
    place.leave(&headwater).await;
}
