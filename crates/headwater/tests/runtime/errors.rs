//! Errors a user encounters: each names what is wrong and what to do.

use std::time::Duration;

use headwater::{ErrorKind, Handling, Headwater, Message, NewMessage, OpenOptions};

use crate::each::{Place, Seen, eventually, noting, on_each, publish_numbers};

on_each!(
    a_consumer_without_a_member_is_refused,
    settings_that_cannot_work_are_refused,
    an_unknown_topic_is_named,
    a_transaction_of_the_other_database_is_refused,
    a_database_outage_loses_no_message,
    bad_names_are_refused_at_the_first_use,
);

fn ignore() -> Handling {
    Handling::one(|_: Message, _| async { Ok(()) })
}

async fn a_consumer_without_a_member_is_refused(place: Place) {
    let headwater = place.open().await;
    headwater.topic("orders").create().await.unwrap();
    let error = headwater.consumer("orders", "email").run().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    assert_eq!(
        error.to_string(),
        "invalid member: group email on topic orders has none and could handle nothing; add one with `.member(name, handler)`"
    );
    let topic = headwater::TopicName::new("orders").unwrap();
    assert_eq!(headwater.store().subscriptions(&topic).await.unwrap(), [], "nothing was written");
    place.leave(&headwater).await;
}

async fn settings_that_cannot_work_are_refused(place: Place) {
    let headwater = place.open().await;
    let consumer = || headwater.consumer("orders", "email").handling("a", ignore());
    let cases = [
        (consumer().concurrency(0), "invalid concurrency"),
        (consumer().batch(0), "invalid batch"),
        (consumer().pause_after_burials(0), "invalid pause_after_burials"),
        (consumer().lease(Duration::from_secs(400 * 24 * 3_600)), "invalid lease"),
        (consumer().max_in_flight(0), "in_flight_max"),
        (consumer().rate_limit(0.0, 1), "per_second"),
        (consumer().handling("a", ignore()), "a is named twice"),
        (consumer().handling("", ignore()), "invalid member"),
        (consumer().inbox_name(""), "invalid inbox_name"),
    ];
    for (consumer, text) in cases {
        let error = consumer.run().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        assert!(error.to_string().contains(text), "{error}");
    }
    place.leave(&headwater).await;
}

async fn an_unknown_topic_is_named(place: Place) {
    let migrated = place.open().await;
    let headwater =
        Headwater::open_with(place.url(), OpenOptions::default().auto_create(false)).await.unwrap();
    let error = headwater.consumer("nowhere", "email").handling("a", ignore()).run().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoSuchTopic);
    assert!(error.to_string().contains("no such topic: nowhere; create it"), "{error}");
    let error = headwater.producer("nowhere").send(NewMessage::new("x")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoSuchTopic);
    headwater.close().await.unwrap();
    place.leave(&migrated).await;
}

async fn a_transaction_of_the_other_database_is_refused(place: Place) {
    let headwater = place.open().await;
    let wrong = if headwater.store().engine() == "sqlite" {
        Handling::in_postgres(|_, _: Message, _| async { Ok(()) })
    } else {
        Handling::in_sqlite(|_, _: Message, _| Ok(()))
    };
    let error = headwater.consumer("orders", "email").handling("a", wrong).run().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    assert!(error.to_string().contains("use the handling of that database"), "{error}");
    place.leave(&headwater).await;
}

async fn bad_names_are_refused_at_the_first_use(place: Place) {
    let headwater = place.open().await;
    let error = headwater.producer("").send(NewMessage::new("x")).await.unwrap_err();
    assert!(error.to_string().starts_with("invalid topic"), "{error}");
    let error = headwater.topic("a\nb").create().await.unwrap_err();
    assert!(error.to_string().starts_with("invalid topic"), "{error}");
    let error = headwater.consumer("orders", "").handling("a", ignore()).run().await.unwrap_err();
    assert!(error.to_string().starts_with("invalid group"), "{error}");
    place.leave(&headwater).await;
}

/// Cuts the store's connections (PostgreSQL) or locks the file for a while (SQLite) while messages flow.
async fn a_database_outage_loses_no_message(place: Place) {
    let headwater = place.open().await;
    let seen = Seen::default();
    headwater.topic("orders").create().await.unwrap();
    let running = headwater.consumer("orders", "email").handling("one", noting(&seen)).run().await.unwrap();
    publish_numbers(&headwater, "orders", 500).await;
    seen.reach(100).await;
    for _ in 0..3 {
        disturb(&place, &headwater).await;
        let until = tokio::time::Instant::now() + crate::each::DEADLINE;
        // The publisher's own call may fail too: the program decides to repeat it.
        while let Err(error) = headwater.producer("orders").send(&9_999u64).await {
            assert!(error.is_retryable() || error.kind() == ErrorKind::CommitUnknown, "{error:?}");
            assert!(tokio::time::Instant::now() < until, "publishing never recovered: {error:?}");
        }
    }
    eventually("all 500 are handled", async || {
        let mut all: Vec<u64> = seen.all().into_iter().filter(|n| *n < 500).collect();
        all.sort_unstable();
        all.dedup();
        all.len() == 500
    })
    .await;
    eventually("what was published afterwards is handled", async || seen.all().contains(&9_999)).await;
    running.shutdown(Duration::from_secs(10)).await.unwrap();
    place.leave(&headwater).await;
}

async fn disturb(place: &Place, headwater: &Headwater) {
    if headwater.store().engine() == "postgres" {
        let (client, connection) =
            tokio_postgres::connect(place.server(), tokio_postgres::NoTls).await.unwrap();
        tokio::spawn(connection);
        // Only the connections whose last query was on this namespace.
        let cut = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
                   WHERE application_name = 'headwater' AND query LIKE '%' || $1 || '%' AND pid <> pg_backend_pid()";
        client.query(cut, &[&place.namespace()]).await.unwrap();
    } else {
        let path = place.url().trim_start_matches("sqlite:").to_owned();
        tokio::task::spawn_blocking(move || {
            let lock = rusqlite::Connection::open(path).unwrap();
            lock.busy_timeout(Duration::from_secs(10)).unwrap();
            lock.execute_batch("BEGIN IMMEDIATE").unwrap();
            std::thread::sleep(Duration::from_millis(300));
            lock.execute_batch("ROLLBACK").unwrap();
        })
        .await
        .unwrap();
    }
}
