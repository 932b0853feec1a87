//! Bridges that are killed anywhere: each message is published once.

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use headwater::{Headwater, OpenOptions};
use headwater_relay::bridge::Bridge;

use crate::brokers::from;
use crate::on_each;
use crate::place::{Place, eventually, payloads};

on_each!(
    each_message_of_kafka_is_published_once_whatever_is_killed,
    each_message_of_rabbitmq_is_published_once_whatever_is_killed,
    each_message_of_nats_is_published_once_whatever_is_killed,
    bridges_of_one_name_publish_each_message_once,
    a_bridge_that_starts_at_the_end_misses_nothing_after_it,
);

async fn each_message_of_kafka_is_published_once_whatever_is_killed(place: Place) {
    killed("kafka", &place).await;
}

async fn each_message_of_rabbitmq_is_published_once_whatever_is_killed(place: Place) {
    killed("rabbitmq", &place).await;
}

async fn each_message_of_nats_is_published_once_whatever_is_killed(place: Place) {
    killed("nats", &place).await;
}

const MESSAGES: usize = 3_000;

/// A process with the bridge, killed with SIGKILL again and again; and one in this process, dropped again and again.
async fn killed(kind: &str, place: &Place) {
    let Some(from) = from(kind).await else { return };
    let headwater = place.open().await;
    headwater.topic("t").create().await.unwrap();
    from.publish_numbers(0..MESSAGES / 2).await;
    let mut rng = 0x9e37_79b9_u64;
    let mut pause = || {
        rng = rng.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        Duration::from_millis(30 + (rng >> 33) % 250)
    };
    for round in 0..4 {
        let mut child = Bridging::start(place, from.url());
        let (before, there) =
            (payloads(&headwater, "t").await.len(), if round < 2 { MESSAGES / 2 } else { MESSAGES });
        // It is killed while it publishes.
        eventually("progress", async || before >= there || payloads(&headwater, "t").await.len() > before)
            .await;
        tokio::time::sleep(pause()).await;
        child.kill();
        if round == 1 {
            from.publish_numbers(MESSAGES / 2..MESSAGES).await;
        }
    }
    for _ in 0..6 {
        let bridge = Bridge::from_url(&headwater, from.url(), "t").unwrap().name("killed").batch_messages(37);
        let running = bridge.start().unwrap();
        tokio::time::sleep(pause()).await;
        drop(running);
    }
    let bridge = Bridge::from_url(&headwater, from.url(), "t").unwrap().name("killed").start().unwrap();
    eventually("all", async || payloads(&headwater, "t").await.len() >= MESSAGES).await;
    // Time for what would come twice.
    from.publish(Some("last"), "k-0", &[], b"last").await;
    eventually("the last", async || payloads(&headwater, "t").await.iter().any(|payload| payload == "last"))
        .await;
    let messages = headwater.published("t").await.unwrap();
    let mut numbers: Vec<usize> = messages
        .iter()
        .filter_map(|message| std::str::from_utf8(&message.payload).ok()?.parse().ok())
        .collect();
    if kind == "kafka" {
        for key in 0..16 {
            let of_key: Vec<_> = numbers.iter().copied().filter(|n| n % 16 == key).collect();
            assert!(of_key.is_sorted(), "key {key}: {of_key:?}");
        }
    }
    numbers.sort_unstable();
    assert_eq!(numbers, (0..MESSAGES).collect::<Vec<_>>(), "each once");
    bridge.stop().await;
    place.leave(&headwater).await;
}

/// A child process that runs a bridge.
struct Bridging(Child);

impl Bridging {
    fn start(place: &Place, from: &str) -> Self {
        let mut command = Command::new(std::env::current_exe().expect("this program"));
        command
            .args(["--exact", "killed::bridging", "--nocapture"])
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        command.env("HEADWATER_BRIDGE_STORE", place.url()).env("HEADWATER_BRIDGE_FROM", from);
        Bridging(command.spawn().expect("started"))
    }

    fn kill(&mut self) {
        self.0.kill().expect("killed");
        self.0.wait().expect("ended");
    }
}

impl Drop for Bridging {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What the child process runs; by itself it does nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bridging() {
    let (Ok(store), Ok(from)) =
        (std::env::var("HEADWATER_BRIDGE_STORE"), std::env::var("HEADWATER_BRIDGE_FROM"))
    else {
        return;
    };
    let headwater = Headwater::open_with(&store, OpenOptions::default()).await.expect("opened");
    let bridge =
        Bridge::from_url(&headwater, &from, "t").expect("a bridge").name("killed").batch_messages(50);
    let _running = bridge.start().expect("started");
    std::future::pending::<()>().await;
}

/// Several at once: positions move from where they are, and the inbox has each id once.
async fn bridges_of_one_name_publish_each_message_once(place: Place) {
    for kind in ["kafka", "rabbitmq", "nats"] {
        let Some(from) = from(kind).await else { return };
        let headwater = place.open().await;
        headwater.topic(kind).create().await.unwrap();
        let start = |batch| {
            let bridge = Bridge::from_url(&headwater, from.url(), kind).unwrap();
            bridge.name(kind).batch_messages(batch).start().unwrap()
        };
        let running: Vec<_> = [7, 50, 500].into_iter().map(start).collect();
        from.publish_numbers(0..1_000).await;
        eventually(kind, async || payloads(&headwater, kind).await.len() >= 1_000).await;
        for bridge in running {
            bridge.stop().await;
        }
        let mut numbers: Vec<usize> =
            payloads(&headwater, kind).await.iter().map(|payload| payload.parse().unwrap()).collect();
        numbers.sort_unstable();
        assert_eq!(numbers, (0..1_000).collect::<Vec<_>>(), "{kind}: each once");
    }
    let headwater = place.open().await;
    place.leave(&headwater).await;
}

async fn a_bridge_that_starts_at_the_end_misses_nothing_after_it(place: Place) {
    for kind in ["kafka", "nats"] {
        let Some(from) = from(kind).await else { return };
        let headwater = place.open().await;
        headwater.topic(kind).create().await.unwrap();
        from.publish_numbers(0..10).await;
        let separator = if from.url().contains('?') { '&' } else { '?' };
        let url = format!("{}{separator}start=latest", from.url());
        let start = || Bridge::from_url(&headwater, &url, kind).unwrap().name(kind);
        // Its start is stored before it has read anything.
        start().check().await.unwrap();
        from.publish_numbers(10..20).await;
        let running = start().start().unwrap();
        eventually(kind, async || payloads(&headwater, kind).await.len() >= 10).await;
        let mut numbers: Vec<usize> =
            payloads(&headwater, kind).await.iter().map(|payload| payload.parse().unwrap()).collect();
        numbers.sort_unstable();
        assert_eq!(numbers, (10..20).collect::<Vec<_>>(), "{kind}");
        running.stop().await;
    }
    let headwater = place.open().await;
    place.leave(&headwater).await;
}
