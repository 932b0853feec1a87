//! What only PostgreSQL has: roles, schema versions, sqlx, poolers. The promises common to both engines are in
//! `store/conformance`.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio_postgres::{Client, NoTls};
use uuid::Uuid;

use super::connect::Connections;
use super::{PostgresStore, migrate, newest};
use crate::lease::{ClaimRequest, Want};
use crate::name::{GroupName, Owner, TopicName};
use crate::namespace::Namespace;
use crate::settle::Settlement;
use crate::store::{Admin, Delivery, Maintenance, OpenOptions};
use crate::subscription::{Start, Subscription};
use crate::topic::TopicSettings;
use crate::{ErrorKind, NewMessage};

mod clock;
mod dead_letters;
mod durability;
mod epoch;
mod gaps;
mod handling;
mod idle;
mod leases;
mod lives;
mod locks;
mod maintenance;
mod operators;
mod promotion;
mod races;
mod reading;
mod removal;
mod replica;
mod rights;
mod scale;
mod schema;
mod snapshots;
mod storage;
mod storm;
mod strangers;
mod take_over;
mod views;

/// A namespace of its own for one test, dropped at its end.
struct Scene {
    url: String,
    namespace: Namespace,
}

impl Scene {
    /// `None`, with a printed line, if no server is configured; a failure if no test may be skipped.
    fn new() -> Option<Self> {
        let Ok(url) = std::env::var("HEADWATER_TEST_POSTGRES") else {
            let required = std::env::var("HEADWATER_TEST_REQUIRE_ALL").is_ok();
            assert!(!required, "HEADWATER_TEST_POSTGRES is not set and nothing may be skipped");
            println!("skipped: HEADWATER_TEST_POSTGRES is not set");
            return None;
        };
        let namespace = Namespace::new(&format!("t{}", Uuid::now_v7().simple())).expect("a valid name");
        Some(Scene { url, namespace })
    }

    async fn open(&self) -> PostgresStore {
        self.open_as(None).await.expect("the store opens")
    }

    /// Opens it with another role's rights.
    async fn open_as(&self, role: Option<&str>) -> crate::Result<PostgresStore> {
        let url = match role {
            Some(role) => format!("{}?options=-c%20role%3D{}_{role}", self.url, self.namespace),
            None => self.url.clone(),
        };
        PostgresStore::open(&url, self.namespace.clone(), OpenOptions::default()).await
    }

    async fn client(&self) -> Client {
        let (client, connection) =
            tokio_postgres::connect(&self.url, NoTls).await.expect("the server accepts connections");
        tokio::spawn(connection);
        client
    }

    /// The text of a statement with the namespace put in.
    fn sql(&self, text: &str) -> String {
        super::statements::in_namespace(text, &self.namespace)
    }

    async fn drop(self) {
        self.open().await.drop_namespace().await.expect("the namespace is dropped");
    }
}

fn orders() -> TopicName {
    TopicName::new("orders").expect("a valid name")
}

fn request(subscription: &Subscription) -> ClaimRequest {
    ClaimRequest {
        owner: Owner::new("tester").expect("a valid name"),
        wants: vec![Want::new(subscription.subscription_id, 10)],
    }
}

async fn subscribed(store: &PostgresStore) -> Subscription {
    store.create_topic(&orders(), &TopicSettings::pub_sub()).await.expect("the topic is created");
    store
        .subscribe(&orders(), &GroupName::new("a").expect("a name"), Start::Beginning)
        .await
        .expect("subscribed")
}

#[tokio::test]
async fn roles_may_do_their_part_and_nothing_else() {
    let Some(scene) = Scene::new() else { return };
    let owner = scene.open().await;
    let subscription = subscribed(&owner).await;

    let producer = scene.open_as(Some("producer")).await.unwrap();
    producer.publish(&orders(), &[NewMessage::new("x").key("k").dedup_key("d")]).await.unwrap();
    let refused = producer.claim(&request(&subscription)).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::PermissionDenied, "{refused}");

    let consumer = scene.open_as(Some("consumer")).await.unwrap();
    let lease = consumer.claim(&request(&subscription)).await.unwrap().leases.remove(0);
    assert_eq!(consumer.fetch(lease.topic_id, lease.range).await.unwrap().len(), 1);
    consumer.extend(&[lease.id()], Duration::from_secs(60)).await.unwrap().remove(0).unwrap();
    let tester = Owner::new("tester").unwrap();
    consumer.heartbeat(&tester, Some(Duration::from_secs(15)), &[]).await.unwrap();
    consumer.depart(&tester).await.unwrap();
    let refused = producer.heartbeat(&tester, Some(Duration::from_secs(15)), &[]).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::PermissionDenied, "{refused}");
    consumer.settle(&[Settlement::ack_all(&lease)]).await.unwrap().remove(0).unwrap();
    consumer.subscribe(&orders(), &GroupName::new("b").unwrap(), Start::Now).await.unwrap();
    consumer.arm(&[lease.topic_id]).await.unwrap();
    assert_eq!(consumer.subscriptions(&orders()).await.unwrap().len(), 2);
    let refused = consumer.publish(&orders(), &[NewMessage::new("y")]).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::PermissionDenied, "{refused}");

    let reader = scene.open_as(Some("reader")).await.unwrap();
    assert_eq!(reader.topics().await.unwrap().len(), 1);
    assert_eq!(reader.doctor().await.unwrap(), []);
    let refused = reader.publish(&orders(), &[NewMessage::new("y")]).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::PermissionDenied, "{refused}");
    scene.drop().await;
}

#[tokio::test]
async fn no_role_writes_the_log_directly_and_public_has_nothing() {
    let Some(scene) = Scene::new() else { return };
    subscribed(&scene.open().await).await;
    let client = scene.client().await;
    client.batch_execute(&scene.sql("CREATE ROLE {name}_stranger")).await.unwrap();
    let insert = "INSERT INTO {schema}.message (message_offset, created_at, topic_id, message_id, payload)
                  VALUES (1, now(), 1, gen_random_uuid(), '')";
    let publish = "SELECT {schema}.publish('orders', '1')";
    for (role, statement) in [
        ("producer", insert),
        ("consumer", insert),
        ("reader", insert),
        ("stranger", publish),
        ("stranger", insert),
    ] {
        client.batch_execute(&scene.sql(&format!("SET ROLE {{name}}_{role}"))).await.unwrap();
        let refused = client.batch_execute(&scene.sql(statement)).await.unwrap_err();
        assert_eq!(
            refused.code().map(tokio_postgres::error::SqlState::code),
            Some("42501"),
            "{role}: {refused}"
        );
        client.batch_execute("RESET ROLE").await.unwrap();
    }
    client.batch_execute(&scene.sql("DROP ROLE {name}_stranger")).await.unwrap();
    scene.drop().await;
}

#[cfg(feature = "sqlx")]
#[tokio::test]
async fn sqlx_publishes_in_its_own_transaction() {
    use ::sqlx::Connection;
    let Some(scene) = Scene::new() else { return };
    let store = scene.open().await;
    let subscription = subscribed(&store).await;
    let mut connection = ::sqlx::PgConnection::connect(&scene.url).await.unwrap();
    let message = |text: &str| NewMessage::new(text.to_owned()).key("k").header("a", "b").message_type("t");
    for (text, commit) in [("kept", true), ("rolled back", false)] {
        let mut transaction = connection.begin().await.unwrap();
        let published = super::sqlx::publish(&mut transaction, &scene.namespace, "orders", &[message(text)])
            .await
            .unwrap();
        assert!(published[0].offset.is_some());
        if commit { transaction.commit().await.unwrap() } else { transaction.rollback().await.unwrap() }
    }
    let mut transaction = connection.begin().await.unwrap();
    let late = message("later").deliver_at(jiff::Timestamp::now() + Duration::from_secs(3600)).dedup_key("d");
    let answer = super::sqlx::publish(&mut transaction, &scene.namespace, "orders", &[late]).await.unwrap();
    assert_eq!(answer[0].offset, None);
    transaction.commit().await.unwrap();
    let error = super::sqlx::publish(&mut connection, &scene.namespace, "nowhere", &[message("x")])
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoSuchTopic);

    let lease = store.claim(&request(&subscription)).await.unwrap().leases.remove(0);
    let messages = store.fetch(lease.topic_id, lease.range).await.unwrap();
    assert_eq!(messages.iter().map(|message| &message.payload[..]).collect::<Vec<_>>(), [b"kept"]);
    assert_eq!(messages[0].headers["a"], "b");
    scene.drop().await;
}

#[tokio::test]
async fn where_listen_cannot_work_consumers_poll() {
    let Some(scene) = Scene::new() else { return };
    // No server listens on this port: the effect is that of a pooler that does not forward LISTEN.
    let options = OpenOptions::default().listen_url("postgres://missing@127.0.0.1:1/nothing");
    let store = PostgresStore::open(&scene.url, scene.namespace.clone(), options).await.unwrap();
    let subscription = subscribed(&store).await;
    let wake = store.arm(&[subscription.topic.topic_id]).await.unwrap();
    let publish = scene.sql("SELECT {schema}.publish('orders', '1')");
    scene.client().await.batch_execute(&publish).await.unwrap();
    assert!(wake.wait(Duration::from_secs(20)).await, "the store did not poll");
    scene.drop().await;
}

#[tokio::test]
async fn a_transaction_can_be_prepared_while_a_process_waits_and_wakes_it() {
    let Some(scene) = Scene::new() else { return };
    let client = scene.client().await;
    let allowed: String = client.query_one("SHOW max_prepared_transactions", &[]).await.unwrap().get(0);
    if allowed == "0" {
        assert!(
            std::env::var("HEADWATER_TEST_REQUIRE_ALL").is_err(),
            "the server allows no prepared transactions"
        );
        println!("skipped: the server allows no prepared transactions");
        return;
    }
    let store = scene.open().await;
    let subscription = subscribed(&store).await;
    let wake = store.arm(&[subscription.topic.topic_id]).await.unwrap();
    client.batch_execute(&scene.sql("BEGIN; SELECT {schema}.publish('orders', '1')")).await.unwrap();
    client.batch_execute(&scene.sql("PREPARE TRANSACTION '{name}'")).await.unwrap();
    client.batch_execute(&scene.sql("COMMIT PREPARED '{name}'")).await.unwrap();
    assert!(wake.wait(Duration::from_secs(20)).await, "the waiter was not woken");
    let until = Instant::now() + Duration::from_secs(20);
    while store.claim(&request(&subscription)).await.unwrap().leases.is_empty() {
        assert!(Instant::now() < until, "the prepared message was never delivered");
        tokio::task::yield_now().await;
    }
    scene.drop().await;
}

/// The bound of owners applies to offsets up to the last one read before it, and to none that another advance saw later.
#[tokio::test]
async fn a_bound_is_never_given_to_offsets_taken_after_it() {
    let Some(scene) = Scene::new() else { return };
    subscribed(&scene.open().await).await;
    let client = scene.client().await;
    // Another advance has recorded that the head waits at 1 with offsets up to 4 taken, and could not bound their owners.
    let stuck = "UPDATE {schema}.head SET stuck_at = 1, stuck_since = clock_timestamp(), stuck_top = 4, stuck_bound = NULL";
    client.batch_execute(&scene.sql(stuck)).await.unwrap();
    let later = |last: i64| {
        scene.sql(&format!(
            "SELECT (m).stuck_bound::text FROM (SELECT {{schema}}.move_head(h, {last}, '1000000000000', NULL, 1000, 1000) AS m
             FROM {{schema}}.head h) q"
        ))
    };
    let bound: Option<String> = client.query_one(&later(2), &[]).await.unwrap().get(0);
    assert_eq!(bound, None, "offsets 3 and 4 may belong to a later xid");
    let bound: Option<String> = client.query_one(&later(4), &[]).await.unwrap().get(0);
    assert_eq!(bound.as_deref(), Some("1000000000000"));
    scene.drop().await;
}

/// A message published before the start time, in a transaction that is still open, must still be delivered.
#[tokio::test]
async fn a_start_by_time_misses_nothing_that_commits_later() {
    let Some(scene) = Scene::new() else { return };
    let store = scene.open().await;
    // `gap_patience` outlasts the test: only subscribing may record the gap.
    let settings = TopicSettings { gap_patience: Duration::from_secs(3600), ..TopicSettings::pub_sub() };
    store.create_topic(&orders(), &settings).await.unwrap();
    let (open, other) = (scene.client().await, scene.client().await);
    open.batch_execute(&scene.sql("BEGIN; SELECT {schema}.publish('orders', '1')")).await.unwrap();
    other.batch_execute(&scene.sql("SELECT {schema}.publish('orders', '2')")).await.unwrap();
    let an_hour_ago = jiff::Timestamp::now() - Duration::from_secs(3600);
    let group = GroupName::new("a").unwrap();
    let subscription = store.subscribe(&orders(), &group, Start::Timestamp(an_hour_ago)).await.unwrap();
    open.batch_execute("COMMIT").await.unwrap();
    let mut offsets = Vec::new();
    let until = Instant::now() + Duration::from_secs(20);
    while offsets.len() < 2 {
        assert!(Instant::now() < until, "only {offsets:?} were delivered");
        for lease in store.claim(&request(&subscription)).await.unwrap().leases {
            offsets.extend(
                store
                    .fetch(lease.topic_id, lease.range)
                    .await
                    .unwrap()
                    .iter()
                    .map(|message| message.offset.0),
            );
        }
        tokio::task::yield_now().await;
    }
    offsets.sort_unstable();
    assert_eq!(offsets, [1, 2]);
    scene.drop().await;
}

/// An open transaction that published a dedup key again holds its row; what is due must not wait for it.
#[tokio::test]
async fn an_open_duplicate_does_not_hold_up_due_messages() {
    let Some(scene) = Scene::new() else { return };
    let clock = crate::clock::ManualClock::at(jiff::Timestamp::now());
    let options = OpenOptions::default().clock(crate::Clock::Manual(clock.clone()));
    let store = PostgresStore::open(&scene.url, scene.namespace.clone(), options).await.unwrap();
    subscribed(&store).await;
    let later = NewMessage::new("x").dedup_key("d").deliver_at(clock.now() + Duration::from_secs(60));
    store.publish(&orders(), &[later]).await.unwrap();
    let open = scene.client().await;
    let duplicate = scene.sql("BEGIN; SELECT {schema}.publish('orders', '1', dedup_key => 'd')");
    open.batch_execute(&duplicate).await.unwrap();
    clock.advance(Duration::from_secs(60));
    let round = tokio::time::timeout(Duration::from_secs(10), store.advance_heads()).await;
    assert_eq!(round.expect("it does not wait for the open transaction").unwrap().promoted, 1);
    open.batch_execute("ROLLBACK").await.unwrap();
    scene.drop().await;
}

#[tokio::test]
async fn a_lost_server_is_unavailable_and_a_lost_commit_unknown() {
    let Some(scene) = Scene::new() else { return };
    let store = Arc::new(scene.open().await);
    subscribed(&store).await;
    // Every connection of the store is ended while a publish waits for a lock: its outcome is unknown.
    let client = scene.client().await;
    client
        .batch_execute(&scene.sql("BEGIN; LOCK TABLE {schema}.message IN ACCESS EXCLUSIVE MODE"))
        .await
        .unwrap();
    let publishing = tokio::spawn({
        let store = Arc::clone(&store);
        async move { store.publish(&orders(), &[NewMessage::new("x")]).await }
    });
    let other = scene.client().await;
    let end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
               WHERE application_name = 'headwater' AND wait_event_type = 'Lock' AND query LIKE $1";
    let like = format!("%{}%publish_batch%", scene.namespace);
    let until = Instant::now() + Duration::from_secs(20);
    while other.query(end, &[&like]).await.unwrap().is_empty() {
        assert!(Instant::now() < until, "the publish never waited");
        tokio::task::yield_now().await;
    }
    let error = publishing.await.unwrap().unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::CommitUnknown), "{error:?}");
    assert!(!error.is_retryable() && error.to_string().contains("dedup key"), "{error}");
    client.batch_execute("ROLLBACK").await.unwrap();
    // The store recovers by itself. Another pooled connection may have been ended too without having noticed: the outcome of a
    // publish on it is unknown as well, and never falsely acknowledged.
    let until = Instant::now() + Duration::from_secs(20);
    while let Err(error) = store.publish(&orders(), &[NewMessage::new("y").dedup_key("y")]).await {
        assert!(matches!(error.kind(), ErrorKind::CommitUnknown | ErrorKind::Unavailable), "{error:?}");
        assert!(Instant::now() < until, "the store did not recover: {error}");
    }
    scene.drop().await;
}
