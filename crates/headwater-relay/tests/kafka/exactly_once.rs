//! Exactly once: relays and brokers that are killed, instances that fence each other, positions that contradict the database.
//!
//! The relay that is killed is this test program itself, started again with [`CHILD`] in its environment.

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use headwater::{Headwater, NewMessage, OpenOptions};
use headwater_relay::kafka::{End, ExactlyOnce, ExactlyOnceError};
use headwater_relay::testing::checker::{self, Published};
use headwater_servers::Stop;
use tokio::sync::oneshot;

use crate::support::*;

const CHILD: &str = "HEADWATER_TEST_KAFKA_CHILD";
const GROUP: &str = "to-kafka";

/// A store of the test, and the URL for other processes.
struct Place {
    url: String,
    directory: tempfile::TempDir,
    /// On PostgreSQL, and the URL of the server.
    namespace: Option<(String, String)>,
}

/// While this exists, nothing is acked: a relay that has committed to Kafka waits there.
enum AcksHeld {
    Sqlite(#[expect(dead_code, reason = "its end releases the lock")] headwater::rusqlite::Connection),
    Postgres(headwater::tokio_postgres::Client),
}

impl Place {
    fn sqlite() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let url = format!("sqlite:{}", directory.path().join("relay.db").display());
        Place { url, directory, namespace: None }
    }

    fn postgres() -> Option<Self> {
        let Some(server) = std::env::var("HEADWATER_TEST_POSTGRES").ok().filter(|url| !url.is_empty()) else {
            assert!(
                std::env::var_os("HEADWATER_TEST_REQUIRE_ALL").is_none(),
                "HEADWATER_TEST_POSTGRES is not set"
            );
            println!("skipped: HEADWATER_TEST_POSTGRES is not set");
            return None;
        };
        let separator = if server.contains('?') { '&' } else { '?' };
        let name = format!("relay_{}", headwater::uuid::Uuid::now_v7().simple());
        let url = format!("{server}{separator}namespace={name}");
        Some(Place { url, directory: tempfile::tempdir().unwrap(), namespace: Some((name, server)) })
    }

    async fn hold_acks(&self) -> AcksHeld {
        let Some((name, server)) = &self.namespace else {
            let connection =
                headwater::rusqlite::Connection::open(self.directory.path().join("relay.db")).unwrap();
            connection.busy_timeout(Duration::from_secs(5)).unwrap();
            connection.execute_batch("BEGIN IMMEDIATE").unwrap();
            return AcksHeld::Sqlite(connection);
        };
        let connected = headwater::tokio_postgres::connect(server, headwater::tokio_postgres::NoTls).await;
        let (client, connection) = connected.unwrap();
        tokio::spawn(connection);
        client.batch_execute(&format!("BEGIN; LOCK TABLE {name}.outstanding IN SHARE MODE")).await.unwrap();
        AcksHeld::Postgres(client)
    }

    async fn open(&self) -> Headwater {
        Headwater::open_with(&self.url, OpenOptions::default().auto_create(true)).await.unwrap()
    }
}

impl AcksHeld {
    async fn release(self) {
        if let AcksHeld::Postgres(client) = &self {
            // The ack of a relay that was killed would continue in the server.
            let end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pg_backend_pid() = ANY (pg_blocking_pids(pid))";
            client.batch_execute(end).await.unwrap();
            client.batch_execute("ROLLBACK").await.unwrap();
        }
    }
}

/// Publishes messages of several keys, in order, and returns them.
async fn publish(headwater: &Headwater, topic: &str, numbers: std::ops::Range<usize>) -> Vec<Published> {
    let numbers: Vec<usize> = numbers.collect();
    let mut published = Vec::new();
    for chunk in numbers.chunks(500) {
        let messages: Vec<NewMessage> = chunk
            .iter()
            .map(|n| NewMessage::new(format!("payload {n}")).key(format!("key-{}", n % 23)))
            .collect();
        let sent = headwater.producer(topic).send_batch(&messages).await.unwrap();
        published.extend(sent.iter().zip(&messages).map(|(sent, message)| Published {
            id: sent.message_id.to_string(),
            key: message.key.clone().unwrap(),
        }));
    }
    published
}

fn relay(headwater: &Headwater, topic: &str, address: &str) -> ExactlyOnce {
    let url = format!("kafka://{address}/{topic}?create=1&partitions=3&timeout_ms=5000");
    ExactlyOnce::new(headwater, topic, GROUP, &url).unwrap().id(&format!("test-{topic}")).batch(300)
}

/// A relay in a process of its own.
fn start_child(place: &Place, topic: &str, address: &str) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "exactly_once::relay_of_another_process", "--nocapture"])
        .env(CHILD, format!("{}|{topic}|{address}", place.url))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .unwrap()
}

/// Not a test of its own: what [`start_child`] runs. Ends when it is killed.
#[test]
fn relay_of_another_process() {
    let Ok(arguments) = std::env::var(CHILD) else { return };
    let parts: Vec<&str> = arguments.split('|').collect();
    let end = block_on(async {
        let headwater = Headwater::open(parts[0]).await.unwrap();
        relay(&headwater, parts[1], parts[2]).run(std::future::pending()).await
    });
    println!("{end:?}");
}

async fn lag(headwater: &Headwater, topic: &str) -> Option<u64> {
    headwater.groups(topic).get(GROUP).await.ok().map(|group| group.status.lag)
}

/// Waits until the group is at most so far behind.
async fn wait_for_lag(headwater: &Headwater, topic: &str, at_most: u64) {
    let deadline = Instant::now() + Duration::from_secs(90);
    while lag(headwater, topic).await.is_none_or(|lag| lag > at_most) {
        assert!(Instant::now() < deadline, "lag {:?} after 90 s", lag(headwater, topic).await);
        tokio::time::sleep(Duration::from_millis(30)).await;
    }
}

/// Publishes, and kills relays and the broker on the way; then judges what is in Kafka.
fn survives_kills(place: &Place, messages: usize, relay_kills: usize) {
    let Some(mut kafka) = own_kafka() else { return };
    let (address, topic) = (kafka.url(), "orders");
    let begun = Instant::now();
    let published = block_on(async {
        let headwater = place.open().await;
        headwater.topic(topic).create().await.unwrap();
        let published = publish(&headwater, topic, 0..messages).await;
        let mut child = start_child(place, topic, &address);
        let step = messages / (relay_kills + 2);
        for kill in 1..=relay_kills + 1 {
            wait_for_lag(&headwater, topic, (messages - kill * step) as u64).await;
            if kill == 2 {
                kafka.stop(Stop::Kill).unwrap();
                kafka.serve().unwrap();
                kafka.wait(|| Ok(())).unwrap();
                continue;
            }
            // Almost always after a commit to Kafka whose batch is not acked: that is what exactly once is about.
            let held = place.hold_acks().await;
            tokio::time::sleep(Duration::from_millis(300)).await;
            child.kill().unwrap();
            child.wait().unwrap();
            held.release().await;
            child = start_child(place, topic, &address);
        }
        wait_for_lag(&headwater, topic, 0).await;
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(headwater.dead_letters().of(topic, GROUP).count().await.unwrap(), 0);
        // Nothing is sent by one more instance.
        run_for(relay(&headwater, topic, &address), Duration::from_millis(1_500)).await.unwrap();
        published
    });
    let found = found(&read_all(&address, topic));
    println!(
        "{messages} messages, {relay_kills} kills of the relay and 1 of the broker in {:?}",
        begun.elapsed()
    );
    let wrong = checker::exactly_once(&published, &found);
    assert!(wrong.is_empty(), "{} wrong: {:?}", wrong.len(), &wrong[..wrong.len().min(10)]);
}

/// Runs a relay for a while.
async fn run_for(relay: ExactlyOnce, time: Duration) -> Result<End, ExactlyOnceError> {
    relay.run(tokio::time::sleep(time)).await
}

/// Relays until nothing is left.
async fn relay_all(headwater: &Headwater, topic: &str, address: &str) {
    let ended = relay(headwater, topic, address).run(wait_for_lag(headwater, topic, 0)).await;
    assert_eq!(ended.unwrap(), End::Stopped);
}

/// How a relay says that the positions contradict each other.
async fn refusal(relay: ExactlyOnce) -> String {
    let ended = tokio::time::timeout(Duration::from_secs(90), relay.run(std::future::pending())).await;
    match ended.expect("it is refused") {
        Err(ExactlyOnceError::Position(text)) => text,
        other => panic!("{other:?}"),
    }
}

#[test]
fn each_message_is_there_once_whatever_was_killed_sqlite() {
    survives_kills(&Place::sqlite(), 20_000, 4);
}

#[test]
fn each_message_is_there_once_whatever_was_killed_postgres() {
    let Some(place) = Place::postgres() else { return };
    survives_kills(&place, 10_000, 2);
    block_on(async { place.open().await.store().drop_namespace().await.unwrap() });
}

#[test]
fn second_instance_fences_the_first_and_nothing_is_sent_twice() {
    let Some(address) = kafka() else { return };
    let topic = unique("fenced");
    let published = block_on(async {
        let headwater = Headwater::in_memory().await.unwrap();
        let mut published = publish(&headwater, &topic, 0..500).await;
        let (_stop, stopped) = oneshot::channel::<()>();
        let first = tokio::spawn(relay(&headwater, &topic, &address).run(async { drop(stopped.await) }));
        wait_for_lag(&headwater, &topic, 0).await;
        let (stop_second, stopped) = oneshot::channel::<()>();
        let second = tokio::spawn(relay(&headwater, &topic, &address).run(async { drop(stopped.await) }));
        // The first may take the next batch, and cannot commit it.
        tokio::time::sleep(Duration::from_millis(1_500)).await;
        published.extend(publish(&headwater, &topic, 500..1_500).await);
        wait_for_lag(&headwater, &topic, 0).await;
        published.extend(publish(&headwater, &topic, 1_500..2_500).await);
        let ended = tokio::time::timeout(Duration::from_secs(90), first)
            .await
            .expect("it is fenced")
            .unwrap()
            .unwrap();
        assert_eq!(ended, End::Fenced);
        wait_for_lag(&headwater, &topic, 0).await;
        stop_second.send(()).unwrap();
        assert_eq!(second.await.unwrap().unwrap(), End::Stopped);
        published
    });
    let found = found(&read_all(&address, &topic));
    assert_eq!(checker::exactly_once(&published, &found), Vec::<String>::new());
}

#[test]
fn group_that_kafka_knows_nothing_about_is_refused() {
    let Some(address) = kafka() else { return };
    let topic = unique("unknown");
    block_on(async {
        let headwater = Headwater::in_memory().await.unwrap();
        publish(&headwater, &topic, 0..10).await;
        relay_all(&headwater, &topic, &address).await;
        // As after the loss of Kafka's data: the same group with an id that Kafka has never seen.
        let other = relay(&headwater, &topic, &address).id(&unique("other"));
        let text = refusal(other).await;
        assert!(text.contains("no position"), "{text}");
    });
}

#[test]
fn position_of_another_database_is_refused() {
    let Some(address) = kafka() else { return };
    let topic = unique("other-database");
    block_on(async {
        let [first, second] = [Headwater::in_memory().await.unwrap(), Headwater::in_memory().await.unwrap()];
        publish(&first, &topic, 0..10).await;
        relay_all(&first, &topic, &address).await;
        publish(&second, &topic, 0..10).await;
        let text = refusal(relay(&second, &topic, &address)).await;
        assert!(text.contains("another database"), "{text}");
    });
}

#[test]
fn group_that_was_moved_forward_is_refused_and_moved_back_sends_nothing_twice() {
    let Some(address) = kafka() else { return };
    let topic = unique("moved");
    let published = block_on(async {
        let headwater = Headwater::in_memory().await.unwrap();
        let mut published = publish(&headwater, &topic, 0..100).await;
        relay_all(&headwater, &topic, &address).await;
        // Back to the beginning: Kafka has it all.
        let groups = headwater.groups(&topic);
        groups.seek(GROUP, headwater::Start::Beginning, false).await.unwrap();
        assert_eq!(lag(&headwater, &topic).await, Some(100));
        relay_all(&headwater, &topic, &address).await;
        // Forward: what was skipped is not in Kafka.
        published.extend(publish(&headwater, &topic, 100..200).await);
        groups.seek(GROUP, headwater::Start::Now, false).await.unwrap();
        let text = refusal(relay(&headwater, &topic, &address)).await;
        assert!(text.contains("offset 101") && text.contains("group seek"), "{text}");
        // As it says.
        groups.seek(GROUP, headwater::Start::Offset(headwater::Offset(101)), false).await.unwrap();
        relay_all(&headwater, &topic, &address).await;
        published
    });
    let found = found(&read_all(&address, &topic));
    assert_eq!(checker::exactly_once(&published, &found), Vec::<String>::new());
}

#[test]
fn message_that_is_too_large_becomes_a_dead_letter_and_the_rest_is_relayed() {
    let Some(address) = kafka() else { return };
    let topic = unique("large-once");
    let published = block_on(async {
        create_topic(&address, &topic, 1, &[("max.message.bytes", "10000")]).await;
        let headwater = Headwater::in_memory().await.unwrap();
        let mut published = publish(&headwater, &topic, 0..20).await;
        let noise = |bytes: usize| (0..bytes).map(|_| rand::random()).collect::<Vec<u8>>();
        // The broker refuses the first; only the second is too large for the client.
        headwater.producer(&topic).send(NewMessage::new(noise(20_000)).key("key-1")).await.unwrap();
        headwater.producer(&topic).send(NewMessage::new(noise(1_040_000)).key("key-1")).await.unwrap();
        published.extend(publish(&headwater, &topic, 20..40).await);
        relay_all(&headwater, &topic, &address).await;
        assert_eq!(headwater.dead_letters().of(&topic, GROUP).count().await.unwrap(), 2);
        // What was buried at the end is not missing in Kafka.
        run_for(relay(&headwater, &topic, &address), Duration::from_secs(1)).await.unwrap();
        published
    });
    let found = found(&read_all(&address, &topic));
    assert_eq!(checker::exactly_once(&published, &found), Vec::<String>::new());
}
