//! Messages read from a standby: where it has all of them, and never anything else.

use headwater_servers::{Listen, Server, Stop};

use super::races::until_true;
use super::*;
use crate::lease::OffsetRange;
use crate::message::{Message, Offset};
use crate::namespace::StoreUrl;

const STANDBY_PORT: u16 = 5_433;
/// Larger than what is read with its row: read by statements of its own.
const LARGE: usize = 100 * 1024;

/// A primary with a standby, and a store that reads from both.
struct Pair {
    primary: Server,
    standby: Server,
    store: PostgresStore,
    subscription: Subscription,
}

impl Pair {
    async fn start() -> Self {
        let settings = [("fsync", "off"), ("autovacuum", "off")];
        let mut primary = Server::start(&std::env::temp_dir(), Listen::Socket, &settings).unwrap();
        primary.wait(|| Ok(())).unwrap();
        let mut standby = primary.standby(STANDBY_PORT).unwrap();
        standby.wait(|| Ok(())).unwrap();
        let server = standby.url("postgres");
        let host = server.split_once('@').unwrap().1.split_once('/').unwrap().0.to_owned();
        let url = format!("{}?replica={host}", primary.url("postgres"));
        let StoreUrl::Postgres { url, namespace, replica } = StoreUrl::parse(&url, None).unwrap() else {
            panic!("a PostgreSQL URL");
        };
        let options = OpenOptions::default();
        let store = PostgresStore::open(&url, namespace, options.clone()).await.unwrap();
        let store = store.with_replica(replica.as_deref(), &options).unwrap();
        let subscription = subscribed(&store).await;
        Pair { primary, standby, store, subscription }
    }

    async fn publish(&self, payloads: &[String]) {
        let messages: Vec<_> = payloads.iter().map(|payload| NewMessage::new(payload.clone())).collect();
        self.store.publish(&orders(), &messages).await.unwrap();
    }

    /// Claims what was published, waits for the standby if it is to follow, and returns what is fetched.
    async fn fetched(&self, follows: bool) -> Vec<Message> {
        let mut leases = Vec::new();
        while leases.is_empty() {
            leases = self.store.claim(&request(&self.subscription)).await.unwrap().leases;
        }
        if follows {
            let primary = client_of(&self.primary).await;
            let at = primary.query_one("SELECT pg_current_wal_insert_lsn()::text", &[]).await.unwrap();
            let at: String = at.get(0);
            let standby = client_of(&self.standby).await;
            until_true("the standby follows", async || {
                let replayed = format!("SELECT pg_last_wal_replay_lsn() >= '{at}'::pg_lsn");
                standby.query_one(&replayed, &[]).await.unwrap().get(0)
            })
            .await;
        }
        let lease = &leases[0];
        let messages = self.store.fetch(lease.topic_id, lease.range).await.unwrap();
        self.store.settle(&[Settlement::ack_all(lease)]).await.unwrap().remove(0).unwrap();
        messages
    }

    /// How many fetches the standby and the primary have answered.
    fn answered(&self) -> [u64; 2] {
        let answered = &self.store.replica.as_ref().unwrap().answered;
        [answered[0].total(), answered[1].total()]
    }
}

async fn client_of(server: &Server) -> Client {
    let (client, connection) = tokio_postgres::connect(&server.url("postgres"), NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

fn payloads(messages: &[Message]) -> Vec<String> {
    messages.iter().map(|message| String::from_utf8(message.payload.to_vec()).unwrap()).collect()
}

#[tokio::test]
async fn messages_come_from_a_standby_only_if_it_has_all_of_them_and_this_history() {
    // Needs the programs of a server, as every test with a database.
    if Scene::new().is_none() {
        return;
    }
    let mut pair = Pair::start().await;
    let small: Vec<String> = (1..=5).map(|n| n.to_string()).collect();
    let large = ["x".repeat(LARGE), "y".into()];
    pair.publish(&small).await;
    assert_eq!(payloads(&pair.fetched(true).await), small);
    pair.publish(&large).await;
    assert_eq!(payloads(&pair.fetched(true).await), large);
    assert_eq!(pair.answered(), [2, 0], "the standby has everything");

    // A standby that lags: the primary answers, and nothing is missing.
    let standby = client_of(&pair.standby).await;
    standby.batch_execute("SELECT pg_wal_replay_pause()").await.unwrap();
    pair.publish(&small).await;
    assert_eq!(payloads(&pair.fetched(false).await), small);
    assert_eq!(pair.answered(), [2, 1]);

    // A history that the standby has not begun, although it has messages of the offsets: the primary answers.
    let primary = client_of(&pair.primary).await;
    primary.batch_execute("DELETE FROM headwater.epoch").await.unwrap();
    pair.publish(&small).await;
    pair.fetched(false).await;
    let first = OffsetRange::new(Offset(1), Offset(5));
    let (topic, before) = (pair.subscription.topic.topic_id, pair.answered());
    assert_eq!(payloads(&pair.store.fetch(topic, first).await.unwrap()), small);
    assert_eq!(pair.answered(), [before[0], before[1] + 1]);
    standby.batch_execute("SELECT pg_wal_replay_resume()").await.unwrap();
    pair.publish(&small).await;
    pair.fetched(true).await;
    assert_eq!(pair.answered()[0], before[0] + 1, "it has begun the history now");

    // Promoted, it has a history of its own.
    let before = pair.answered();
    standby.batch_execute("SELECT pg_promote()").await.unwrap();
    assert_eq!(payloads(&pair.store.fetch(topic, first).await.unwrap()), small);
    assert_eq!(pair.answered(), [before[0], before[1] + 1]);

    // Gone: the primary answers.
    pair.standby.stop(Stop::Immediate).unwrap();
    for _ in 0..2 {
        assert_eq!(payloads(&pair.store.fetch(topic, first).await.unwrap()), small);
    }
    assert_eq!(pair.answered(), [before[0], before[1] + 3]);
    pair.store.close().await.unwrap();
}
