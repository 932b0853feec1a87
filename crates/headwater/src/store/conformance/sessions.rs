//! Database sessions of other programs, for cases about transactions that end in another order than they began.

use std::time::{Duration, Instant};

use tokio_postgres::{Client, NoTls};

use super::case::{Case, DEADLINE, Scene, pause};
use crate::message::Message;
use crate::namespace::StoreUrl;
use crate::topic::TopicSettings;

/// One connection that publishes with plain SQL.
pub(super) struct Session {
    client: Client,
    schema: String,
    gid: String,
}

impl Session {
    pub(super) async fn open(case: &Case) -> Self {
        let parsed = StoreUrl::parse(&case.harness().url(), None).expect("the harness has a valid URL");
        let StoreUrl::Postgres { url, namespace, .. } = parsed else { panic!("not a PostgreSQL URL") };
        let (client, connection) = tokio_postgres::connect(&url, NoTls).await.expect("the server answers");
        tokio::spawn(connection);
        let gid = format!("{namespace}-{}", uuid::Uuid::now_v7());
        Session { client, schema: namespace.quoted(), gid }
    }

    /// Runs statements unchanged, except for `{schema}`, which becomes this case's schema.
    pub(super) async fn run(&self, sql: &str) {
        let sql = sql.replace("{schema}", &self.schema);
        self.client.batch_execute(&sql).await.unwrap_or_else(|error| panic!("{sql}: {error:?}"));
    }

    pub(super) async fn begin(&self) {
        self.run("BEGIN").await;
    }

    pub(super) async fn commit(&self) {
        self.run("COMMIT").await;
    }

    pub(super) async fn rollback(&self) {
        self.run("ROLLBACK").await;
    }

    /// Gives the transaction its id without publishing anything.
    pub(super) async fn take_xid(&self) {
        self.run("SELECT pg_current_xact_id()").await;
    }

    /// Publishes a number to `orders`, with the key `k`, and returns its offset.
    pub(super) async fn publish(&self, number: i64) -> i64 {
        self.publish_number("orders", number).await
    }

    /// Publishes a message to a topic, and returns its offset.
    pub(super) async fn publish_named(&self, topic: &str) -> i64 {
        self.publish_number(topic, 0).await
    }

    /// Publishes a number to a topic, with the key `k`, and returns its offset.
    pub(super) async fn publish_number(&self, topic: &str, number: i64) -> i64 {
        let sql = format!("SELECT {}.publish($1, to_jsonb($2::bigint), key => 'k')", self.schema);
        self.client.query_one(&sql, &[&topic, &number]).await.expect("published").get(0)
    }

    /// The name of its prepared transaction.
    pub(super) fn gid(&self) -> &str {
        &self.gid
    }

    pub(super) async fn prepare_transaction(&self) {
        self.run(&format!("PREPARE TRANSACTION '{}'", self.gid)).await;
    }

    pub(super) async fn commit_prepared(&self) {
        self.run(&format!("COMMIT PREPARED '{}'", self.gid)).await;
    }

    pub(super) async fn rollback_prepared(&self) {
        self.run(&format!("ROLLBACK PREPARED '{}'", self.gid)).await;
    }
}

/// A fan-out topic in real time, with this patience at a missing offset.
pub(super) async fn scene_with_patience(case: &Case, patience: Duration) -> Scene {
    let store = case.open_with(case.real_time_options()).await.expect("the store opens");
    let settings = TopicSettings { gap_patience: patience, ..TopicSettings::pub_sub() };
    Scene::new(store, "orders", settings).await
}

/// The numbers that messages carry.
pub(super) fn numbers(messages: &[Message]) -> Vec<i64> {
    let texts = messages.iter().map(|message| std::str::from_utf8(&message.payload).expect("a number"));
    texts.map(|text| text.parse().expect("a number")).collect()
}

/// Drains until this many messages were delivered, and returns their numbers and how long it took.
pub(super) async fn numbers_until(scene: &Scene, count: usize) -> (Vec<i64>, Duration) {
    let started = Instant::now();
    let got = scene.drain_until("reader", count).await;
    (numbers(&got), started.elapsed())
}

/// Claims for a while and must find nothing: what is not committed is not delivered.
pub(super) async fn nothing_comes(scene: &Scene, during: Duration) {
    let until = Instant::now() + during;
    while Instant::now() < until {
        let got = scene.drain("reader").await;
        assert_eq!(got, [], "nothing is to be delivered");
        pause().await;
    }
}

/// Maintenance closes every gap in time.
pub(super) async fn gaps_close(scene: &Scene) {
    let until = Instant::now() + DEADLINE;
    loop {
        let gaps = scene.topic_status().await.gaps;
        if gaps == 0 {
            return;
        }
        assert!(Instant::now() < until, "{gaps} gaps never closed");
        pause().await;
    }
}
