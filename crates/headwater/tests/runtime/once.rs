//! Exactly-once effects: the handler's writes, the inbox entry and the ack commit together.

use std::time::Duration;

use headwater::testing::ManualClock;
use headwater::{Context, Handling, Headwater, Json, NewMessage};
use uuid::Uuid;

use crate::each::{Place, Seen, eventually, on_each, settled};

on_each!(
    effects_are_written_once_and_failed_ones_rolled_back,
    a_second_delivery_of_the_same_id_has_no_effect,
    a_transactional_group_in_order_keeps_it,
    the_context_belongs_to_the_handled_message,
    an_error_the_handler_ignores_fails_only_its_message,
    several_transactional_members_share_a_lease,
    a_clock_that_steps_while_a_transaction_is_open_costs_no_attempt,
);

/// A member that appends the number to the table `ledger`. If `fails` returns true for this attempt, it fails after
/// having written.
fn ledger(engine: &str, fails: fn(u64, u32) -> bool) -> Handling {
    if engine == "sqlite" {
        return Handling::in_sqlite(move |connection, Json(n): Json<u64>, context: &Context| {
            connection.execute("INSERT INTO ledger (n) VALUES (?1)", [n.cast_signed()])?;
            if fails(n, context.attempt()) { Err("after the write".into()) } else { Ok(()) }
        });
    }
    Handling::in_postgres(move |transaction, Json(n): Json<u64>, context: Context| async move {
        let n = i64::try_from(n)?;
        let table = table_of(&context);
        transaction.execute(&format!("INSERT INTO {table} (n) VALUES ($1)"), &[&n]).await?;
        if fails(n.cast_unsigned(), context.attempt()) { Err("after the write".into()) } else { Ok(()) }
    })
}

/// The ledger table is beside the namespace; the topic's name determines its name.
fn table_of(context: &Context) -> String {
    context.topic().replace("orders", "ledger")
}

async fn make_ledger(place: &Place, headwater: &Headwater) -> String {
    if headwater.store().engine() == "sqlite" {
        let connection = rusqlite::Connection::open(place.url().trim_start_matches("sqlite:")).unwrap();
        connection.execute_batch("CREATE TABLE ledger (n INTEGER)").unwrap();
        return "orders".into();
    }
    let topic = format!("orders_{}", Uuid::now_v7().simple());
    let client = client(place).await;
    client
        .batch_execute(&format!("CREATE TABLE {} (n bigint)", topic.replace("orders", "ledger")))
        .await
        .unwrap();
    topic
}

async fn client(place: &Place) -> tokio_postgres::Client {
    let (client, connection) = tokio_postgres::connect(place.server(), tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

async fn rows(place: &Place, headwater: &Headwater, topic: &str) -> Vec<u64> {
    if headwater.store().engine() == "sqlite" {
        let connection = rusqlite::Connection::open(place.url().trim_start_matches("sqlite:")).unwrap();
        let mut statement = connection.prepare("SELECT n FROM ledger ORDER BY rowid").unwrap();
        return statement
            .query_map([], |row| row.get::<_, i64>(0))
            .unwrap()
            .map(|n| n.unwrap().cast_unsigned())
            .collect();
    }
    let select = format!("SELECT n FROM {}", topic.replace("orders", "ledger"));
    let rows = client(place).await.query(&select, &[]).await.unwrap();
    rows.iter().map(|row| row.get::<_, i64>(0).cast_unsigned()).collect()
}

async fn remove_ledger(place: &Place, headwater: &Headwater, topic: &str) {
    if headwater.store().engine() == "postgres" {
        let drop = format!("DROP TABLE {}", topic.replace("orders", "ledger"));
        client(place).await.batch_execute(&drop).await.unwrap();
    }
}

async fn effects_are_written_once_and_failed_ones_rolled_back(place: Place) {
    let headwater = place.open().await;
    let topic = make_ledger(&place, &headwater).await;
    let settings = headwater::TopicSettings {
        backoff_initial: Duration::from_millis(20),
        backoff_max: Duration::from_millis(40),
        ..headwater::TopicSettings::default()
    };
    headwater.topic(&topic).settings(settings).create().await.unwrap();
    crate::each::publish_numbers(&headwater, &topic, 300).await;
    let member = ledger(headwater.store().engine(), |n, attempt| n % 7 == 0 && attempt == 1);
    let running =
        headwater.consumer(&topic, "email").handling("ledger", member).batch(40).run().await.unwrap();
    settled(&headwater, &topic, "email").await;
    let mut got = rows(&place, &headwater, &topic).await;
    got.sort_unstable();
    assert_eq!(got, (0..300).collect::<Vec<_>>());
    // Counted by the worker once its transaction has committed.
    eventually("all are counted", async || running.health().totals.acked == 300).await;
    assert_eq!(running.health().totals.retried, 43);
    running.shutdown(Duration::from_secs(5)).await.unwrap();
    remove_ledger(&place, &headwater, &topic).await;
    place.leave(&headwater).await;
}

async fn a_second_delivery_of_the_same_id_has_no_effect(place: Place) {
    let headwater = place.open().await;
    let topic = make_ledger(&place, &headwater).await;
    headwater.topic(&topic).create().await.unwrap();
    let member = ledger(headwater.store().engine(), |_, _| false);
    let running = headwater.consumer(&topic, "email").handling("ledger", member).run().await.unwrap();
    let id = Uuid::now_v7();
    for _ in 0..3 {
        let message = NewMessage::json(&5u64).unwrap().message_id(id);
        headwater.producer(&topic).send(message).await.unwrap();
    }
    headwater.producer(&topic).send(&6u64).await.unwrap();
    eventually("all four are done", async || running.health().totals.acked == 4).await;
    let mut got = rows(&place, &headwater, &topic).await;
    got.sort_unstable();
    assert_eq!(got, [5, 6]);
    running.shutdown(Duration::from_secs(5)).await.unwrap();
    remove_ledger(&place, &headwater, &topic).await;
    place.leave(&headwater).await;
}

async fn a_transactional_group_in_order_keeps_it(place: Place) {
    let headwater = place.open().await;
    let topic = make_ledger(&place, &headwater).await;
    let settings = headwater::TopicSettings {
        ordering: headwater::topic::Ordering::Key,
        lanes: 4,
        backoff_initial: Duration::from_millis(10),
        backoff_max: Duration::from_millis(20),
        ..headwater::TopicSettings::default()
    };
    headwater.topic(&topic).settings(settings).create().await.unwrap();
    let seen: Seen<u64> = Seen::default();
    for n in 0..60u64 {
        headwater.producer(&topic).send(&n).key(n % 5).await.unwrap();
        seen.add(n);
    }
    let member = ledger(headwater.store().engine(), |n, attempt| n % 11 == 0 && attempt < 3);
    let running =
        headwater.consumer(&topic, "email").handling("ledger", member).batch(10).run().await.unwrap();
    settled(&headwater, &topic, "email").await;
    let got = rows(&place, &headwater, &topic).await;
    assert_eq!(got.len(), 60);
    for key in 0..5 {
        let of_key: Vec<u64> = got.iter().copied().filter(|n| n % 5 == key).collect();
        assert!(of_key.is_sorted(), "key {key}: {of_key:?}");
    }
    running.shutdown(Duration::from_secs(5)).await.unwrap();
    remove_ledger(&place, &headwater, &topic).await;
    place.leave(&headwater).await;
}

async fn the_context_belongs_to_the_handled_message(place: Place) {
    let headwater = place.open().await;
    crate::each::publish_numbers(&headwater, "orders", 20).await;
    let seen: Seen<(u64, i64)> = Seen::default();
    let add = seen.clone();
    let member = if headwater.store().engine() == "sqlite" {
        Handling::in_sqlite(move |_, Json(n): Json<u64>, context: &Context| {
            add.add((n, context.message().offset.0));
            Ok(())
        })
    } else {
        Handling::in_postgres(move |_, Json(n): Json<u64>, context: Context| {
            add.add((n, context.message().offset.0));
            async { Ok(()) }
        })
    };
    let mut stepper = headwater.consumer("orders", "email").handling("one", member).stepwise().await.unwrap();
    stepper.drain().await.unwrap();
    let mut got = seen.all();
    got.sort_unstable();
    assert_eq!(got, (0..20u64).map(|n| (n, n.cast_signed() + 1)).collect::<Vec<_>>());
    place.leave(&headwater).await;
}

async fn an_error_the_handler_ignores_fails_only_its_message(place: Place) {
    let headwater = place.open().await;
    let topic = make_ledger(&place, &headwater).await;
    let settings = headwater::TopicSettings { max_attempts: 1, ..headwater::TopicSettings::default() };
    headwater.topic(&topic).settings(settings).create().await.unwrap();
    crate::each::publish_numbers(&headwater, &topic, 10).await;
    let member = if headwater.store().engine() == "sqlite" {
        Handling::in_sqlite(|connection, Json(n): Json<u64>, _| {
            if n == 4 {
                connection.execute("INSERT INTO nowhere VALUES (1)", [])?;
            }
            connection.execute("INSERT INTO ledger (n) VALUES (?1)", [n.cast_signed()])?;
            Ok(())
        })
    } else {
        Handling::in_postgres(|transaction, Json(n): Json<u64>, context: Context| async move {
            let n = n.cast_signed();
            let insert = format!("INSERT INTO {} (n) VALUES ($1)", table_of(&context));
            transaction.execute(&insert, &[&n]).await?;
            if n == 4 {
                // Breaks the transaction, and the handler ignores the error.
                let _ = transaction.execute("INSERT INTO nowhere VALUES (1)", &[]).await;
            }
            Ok(())
        })
    };
    let running = headwater.consumer(&topic, "email").handling("ledger", member).run().await.unwrap();
    settled(&headwater, &topic, "email").await;
    let mut got = rows(&place, &headwater, &topic).await;
    got.sort_unstable();
    assert_eq!(got, [0, 1, 2, 3, 5, 6, 7, 8, 9]);
    eventually("the burial is counted", async || running.health().totals.buried == 1).await;
    running.shutdown(Duration::from_secs(5)).await.unwrap();
    remove_ledger(&place, &headwater, &topic).await;
    place.leave(&headwater).await;
}

async fn several_transactional_members_share_a_lease(place: Place) {
    let headwater = place.open().await;
    let topic = make_ledger(&place, &headwater).await;
    headwater.topic(&topic).create().await.unwrap();
    crate::each::publish_numbers(&headwater, &topic, 400).await;
    let engine = headwater.store().engine();
    let mut consumer = headwater.consumer(&topic, "email").batch(50);
    for name in ["a", "b", "c", "d"] {
        consumer = consumer.handling(name, ledger(engine, |_, _| false));
    }
    let running = consumer.run().await.unwrap();
    settled(&headwater, &topic, "email").await;
    let mut got = rows(&place, &headwater, &topic).await;
    got.sort_unstable();
    assert_eq!(got, (0..400).collect::<Vec<_>>());
    eventually("all are counted", async || running.health().totals.acked == 400).await;
    let totals = running.health().totals;
    assert_eq!((totals.lease_lost, totals.retried), (0, 0));
    running.shutdown(Duration::from_secs(5)).await.unwrap();
    remove_ledger(&place, &headwater, &topic).await;
    place.leave(&headwater).await;
}

async fn a_clock_that_steps_while_a_transaction_is_open_costs_no_attempt(place: Place) {
    let clock = ManualClock::at("2026-03-01T12:00:00Z".parse().unwrap());
    let headwater = place.open_at(&clock).await;
    let settings = headwater::TopicSettings {
        max_attempts: 1,
        lease: Duration::from_secs(30),
        ..headwater::TopicSettings::default()
    };
    headwater.topic("orders").settings(settings).create().await.unwrap();
    crate::each::publish_numbers(&headwater, "orders", 3).await;
    let ran: Seen<u64> = Seen::default();
    let add = ran.clone();
    let handle = move |n: u64| {
        add.add(n);
        if add.len() == 2 {
            clock.set(clock.now() + Duration::from_secs(3_600));
        }
    };
    let member = if headwater.store().engine() == "sqlite" {
        Handling::in_sqlite(move |_, Json(n): Json<u64>, _: &Context| {
            handle(n);
            Ok(())
        })
    } else {
        Handling::in_postgres(move |_, Json(n): Json<u64>, _: Context| {
            handle(n);
            async { Ok(()) }
        })
    };
    let mut stepper = headwater.consumer("orders", "email").handling("one", member).stepwise().await.unwrap();
    stepper.drain().await.unwrap();
    settled(&headwater, "orders", "email").await;
    let topic = headwater::TopicName::new("orders").unwrap();
    let id = headwater.store().subscriptions(&topic).await.unwrap()[0].subscription_id;
    assert_eq!(crate::each::dead_letters(&headwater, id).await, [], "what was handled is no dead letter");
    assert!(ran.all().ends_with(&[0, 1, 2]), "{:?}", ran.all());
    place.leave(&headwater).await;
}

/// Handles ten messages of which number 4 ends its connection each time. Returns what was handled, in order, and how
/// often number 4 ran.
async fn with_a_killer(settings: headwater::TopicSettings, key: Option<&str>) -> Option<(Vec<u64>, usize)> {
    let place = Place::postgres()?;
    let headwater = place.open().await;
    let settings = headwater::TopicSettings {
        max_attempts: 3,
        backoff_initial: Duration::from_millis(5),
        backoff_max: Duration::from_millis(5),
        ..settings
    };
    headwater.topic("orders").settings(settings).create().await.unwrap();
    let message = |n: u64| {
        let message = NewMessage::json(&n).unwrap();
        if let Some(key) = key { message.key(key) } else { message }
    };
    headwater.producer("orders").send_batch(&(0..10).map(message).collect::<Vec<_>>()).await.unwrap();
    let (killed, table) = (Seen::<u64>::default(), format!("ledger_{}", Uuid::now_v7().simple()));
    client(&place).await.batch_execute(&format!("CREATE TABLE {table} (n bigint)")).await.unwrap();
    let (kill, insert) = (killed.clone(), format!("INSERT INTO {table} (n) VALUES ($1)"));
    let member = Handling::in_postgres(move |transaction, Json(n): Json<u64>, _| {
        let (kill, insert) = (kill.clone(), insert.clone());
        async move {
            transaction.execute(&insert, &[&n.cast_signed()]).await?;
            if n == 4 {
                kill.add(n);
                // As a timeout, an operator or a crashing extension does.
                let _ = transaction.batch_execute("SELECT pg_terminate_backend(pg_backend_pid())").await;
            }
            Ok(())
        }
    });
    let running = headwater.consumer("orders", "email").handling("ledger", member).run().await.unwrap();
    settled(&headwater, "orders", "email").await;
    let dead_letters = crate::each::dead_letters(&headwater, running.subscription().subscription_id).await;
    assert_eq!(dead_letters.iter().map(|one| (one.offset.0, one.attempts)).collect::<Vec<_>>(), [(5, 3)]);
    running.shutdown(Duration::from_secs(5)).await.unwrap();
    let rows = client(&place).await.query(&format!("SELECT n FROM {table}"), &[]).await.unwrap();
    client(&place).await.batch_execute(&format!("DROP TABLE {table}")).await.unwrap();
    place.leave(&headwater).await;
    Some((rows.iter().map(|row| row.get::<_, i64>(0).cast_unsigned()).collect(), killed.len()))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_handler_that_ends_its_connection_is_counted_and_buried_alone() {
    let Some((mut handled, ran)) = with_a_killer(headwater::TopicSettings::default(), None).await else {
        return;
    };
    handled.sort_unstable();
    assert_eq!(handled, [0, 1, 2, 3, 5, 6, 7, 8, 9], "the other messages have their effects, once");
    assert_eq!(ran, 3, "once per allowed attempt");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_handler_that_ends_its_connection_is_counted_in_a_lane_and_its_key_stays_in_order() {
    let ordered = headwater::TopicSettings {
        ordering: headwater::topic::Ordering::Key,
        lanes: 1,
        ..headwater::TopicSettings::default()
    };
    let Some((handled, ran)) = with_a_killer(ordered, Some("k")).await else { return };
    assert_eq!(handled, [0, 1, 2, 3, 5, 6, 7, 8, 9], "in order");
    assert_eq!(ran, 3);
}
