//! Relays in processes that are killed: nothing is lost, and the order of keys stays.

use std::process::{Child, Command, Stdio};

use headwater::outbox::NewEntry;
use headwater_relay::target::sink_for;

use super::*;

/// What the child process relays, and where.
const STORE: &str = "HEADWATER_TEST_RELAY_STORE";
const SOURCE: &str = "HEADWATER_TEST_RELAY_SOURCE";
const TARGET: &str = "HEADWATER_TEST_RELAY_TARGET";
const KEYS: usize = 8;

on_both!(a_killed_relay_of_a_topic_loses_nothing, a_killed_relay_of_the_outbox_loses_nothing,);

/// The lab variant: many kills.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes minutes: run it by name"]
async fn fifty_kills_lose_nothing() {
    for place in [Place::sqlite().await, Place::postgres().await].into_iter().flatten() {
        topic_survives(place, 50).await;
    }
    for place in [Place::sqlite().await, Place::postgres().await].into_iter().flatten() {
        outbox_survives(place, 50).await;
    }
}

async fn a_killed_relay_of_a_topic_loses_nothing(place: Place) {
    topic_survives(place, 5).await;
}

async fn a_killed_relay_of_the_outbox_loses_nothing(place: Place) {
    outbox_survives(place, 5).await;
}

/// A claim that a killed relay leaves ends soon, and costs no entry its last attempt.
fn settings() -> RelaySettings {
    RelaySettings {
        timeout: Duration::from_millis(900),
        claim_timeout: Duration::from_secs(1),
        max_attempts: Some(1_000),
        // Small loads, so that kills meet work that is half done.
        batch: 20,
        ..quick()
    }
}

/// The body of the child processes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "tests start it in separate processes"]
async fn relay_process() {
    let Ok(store) = std::env::var(STORE) else { return };
    let headwater = Headwater::open(&store).await.unwrap();
    let source = Source::parse(&std::env::var(SOURCE).unwrap()).unwrap();
    let sink = sink_for(&std::env::var(TARGET).unwrap()).unwrap().into();
    let running = Relay::new(&headwater, source, sink).settings(settings()).run().await.unwrap();
    running.until_ended().await;
}

struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        // SIGKILL: it gets no chance to say goodbye.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn start(place: &Place, source: &str, target: &str) -> Killed {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["killed::relay_process", "--exact", "--ignored", "--nocapture", "--test-threads=1"]);
    command.env(STORE, &place.url).env(SOURCE, source).env(TARGET, target);
    Killed(command.stdout(Stdio::null()).spawn().unwrap())
}

/// Kills a relay process again and again while numbers are added, and checks that all of them arrive in the order of their keys.
async fn survives(
    place: Place,
    source: &str,
    kills: usize,
    mut add: impl AsyncFnMut(&Place, &[(usize, &str)]),
) {
    let other = Place::sqlite().await.unwrap();
    let target = format!("headwater+{}?topic=archive", other.url);
    let arrived = async || other.headwater.published("archive").await.unwrap_or_default();
    // The processes find it, whether or not topics are created on the fly.
    place.headwater.topic("orders").create_if_missing().await.unwrap();
    let keys: Vec<String> = (0..KEYS).map(|key| format!("k{key}")).collect();
    let mut next = 0;
    for kill in 0..kills {
        let before = arrived().await.len();
        let _process = start(&place, source, &target);
        let keyed: Vec<(usize, &str)> = (next..next + 100).map(|n| (n, keys[n % KEYS].as_str())).collect();
        next += 100;
        add(&place, &keyed).await;
        // At another point of the work each time.
        let progress = before + 1 + kill * 13 % 60;
        until("it makes progress", async || arrived().await.len() >= progress.min(next)).await;
    }
    let _last = start(&place, source, &target);
    until("all arrived", async || arrived().await.len() >= next).await;
    let stored = arrived().await;
    for (at, key) in keys.iter().enumerate() {
        let of_key = stored.iter().filter(|message| message.key.as_ref() == Some(key));
        let payloads: Vec<String> =
            of_key.map(|message| String::from_utf8_lossy(&message.payload).into_owned()).collect();
        let expected: Vec<String> = (0..next).filter(|n| n % KEYS == at).map(|n| n.to_string()).collect();
        assert_eq!(payloads, expected, "{key}: none is lost, and repeats are not stored");
    }
    drop(_last);
    other.end().await;
    place.end().await;
}

async fn topic_survives(place: Place, kills: usize) {
    survives(place, "orders", kills, async |place, keyed| place.publish("orders", keyed).await).await;
}

async fn outbox_survives(place: Place, kills: usize) {
    let add = async |place: &Place, keyed: &[(usize, &str)]| {
        for (n, key) in keyed {
            let entry = NewEntry::kafka_event("orders", *key, "OrderCreated", n.to_string());
            place.headwater.outbox().insert_returning_id(&entry).await.unwrap();
        }
    };
    survives(place, "outbox", kills, add).await;
}
