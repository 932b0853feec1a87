//! Handlers in the store's transaction that are the same on both databases.

use std::time::Duration;

use headwater::testing::ManualClock;
use headwater::transaction::{Transaction, Value};
use headwater::{Context, Handling, Headwater, Json};
use uuid::Uuid;

use crate::each::{Place, eventually, on_each};

on_each!(
    an_effect_and_a_message_exist_once_however_often_the_handler_fails,
    every_kind_of_value_is_written_and_read_back,
    wrong_parameters_and_columns_are_named,
    an_error_that_a_handler_ignores_fails_its_message,
    a_handler_may_await_what_is_ready_and_on_sqlite_nothing_else,
    a_transaction_of_the_program_commits_all_or_nothing,
    a_transaction_that_is_kept_is_refused,
);

/// A table of this run: on PostgreSQL it is beside the namespace.
struct Table(String);

impl Table {
    async fn new(headwater: &Headwater, columns: &str) -> Self {
        let name = format!("neutral_{}", Uuid::now_v7().simple());
        let create = format!("CREATE TABLE {name} ({columns})");
        run(headwater, &create).await;
        Table(name)
    }

    async fn numbers(&self, headwater: &Headwater) -> Vec<i64> {
        let select = format!("SELECT n FROM {} ORDER BY n", self.0);
        let rows = headwater.transaction(move |tx: Transaction| async move { tx.query(&select, ()).await });
        rows.await.unwrap().iter().map(|row| row.get("n").unwrap()).collect()
    }

    async fn drop(self, headwater: &Headwater) {
        run(headwater, &format!("DROP TABLE {}", self.0)).await;
    }
}

async fn run(headwater: &Headwater, sql: &str) {
    let sql = sql.to_owned();
    let ran: headwater::Result<u64> =
        headwater.transaction(move |tx: Transaction| async move { tx.execute(&sql, ()).await }).await;
    ran.unwrap();
}

async fn open(place: &Place, messages: i64) -> (Headwater, ManualClock) {
    let clock = ManualClock::at("2026-03-02T09:00:00Z".parse().unwrap());
    let headwater = place.open_at(&clock).await;
    for topic in ["orders", "booked"] {
        headwater.topic(topic).create().await.unwrap();
    }
    for n in 0..messages {
        headwater.producer("orders").send(&n).await.unwrap();
    }
    (headwater, clock)
}

/// The numbers published to a topic, once there are this many. On PostgreSQL the head first steps over offsets that were
/// rolled back.
async fn numbers_of(headwater: &Headwater, topic: &str, count: usize) -> Vec<i64> {
    let published = async || headwater.published(topic).await.unwrap();
    eventually("all are visible", async || published().await.len() >= count).await;
    let number = |message: &headwater::Message| message.decode::<Json<i64>>().unwrap().0;
    let mut numbers: Vec<i64> = published().await.iter().map(number).collect();
    numbers.sort_unstable();
    numbers
}

/// What a dead letter of the only message says.
async fn buried(headwater: &Headwater) -> String {
    headwater.dead_letters().of("orders", "ledger").list(9).await.unwrap().remove(0).error
}

async fn an_effect_and_a_message_exist_once_however_often_the_handler_fails(place: Place) {
    let (headwater, clock) = open(&place, 5).await;
    let table = Table::new(&headwater, "n bigint").await;
    let insert = format!("INSERT INTO {} (n) VALUES ($1)", table.0);
    // Each message fails twice after it has written and published.
    let handling = Handling::transactional(move |tx: Transaction, Json(n): Json<i64>, context: Context| {
        let insert = insert.clone();
        async move {
            assert_eq!(tx.execute(&insert, (n,)).await?, 1);
            tx.publish("booked", &n).await?;
            if context.attempt() < 3 { Err("after the write".into()) } else { Ok(()) }
        }
    });
    let consumer = headwater.consumer("orders", "ledger").handling("clerk", handling);
    let mut consumer = consumer.stepwise().await.unwrap();
    for _ in 0..3 {
        consumer.drain().await.unwrap();
        clock.advance(Duration::from_secs(60));
    }
    assert_eq!(table.numbers(&headwater).await, [0, 1, 2, 3, 4]);
    assert_eq!(numbers_of(&headwater, "booked", 5).await, [0, 1, 2, 3, 4]);
    let totals = consumer.running().health().totals;
    assert_eq!((totals.acked, totals.retried), (5, 10));
    // What follows in the log of the other topic has its own offset: nothing of the rolled back ones is left.
    headwater.producer("booked").send(&9).await.unwrap();
    assert_eq!(numbers_of(&headwater, "booked", 6).await, [0, 1, 2, 3, 4, 9]);
    table.drop(&headwater).await;
    place.leave(&headwater).await;
}

async fn every_kind_of_value_is_written_and_read_back(place: Place) {
    let (headwater, _) = open(&place, 0).await;
    let postgres = headwater.store().engine() == "postgres";
    let bytes = if postgres { "bytea" } else { "blob" };
    let columns =
        format!("n bigint, b boolean, small integer, r double precision, t text, y {bytes}, u text");
    let table = Table::new(&headwater, &columns).await;
    let id = Uuid::now_v7();
    let (insert, select) = (
        // A parameter may be used twice, and in any order.
        format!("INSERT INTO {} (u, n, b, small, r, t, y) VALUES ($7, $1, $2, $3, $4, $5, $6)", table.0),
        format!("SELECT n, b, small, r, t, y, u, n = $1 AS same FROM {} WHERE n = $1 OR n IS NULL", table.0),
    );
    let rows: headwater::Result<_> = headwater
        .transaction(move |tx: Transaction| async move {
            let changed = tx.execute(&insert, (i64::MIN, true, -7, 0.5, "zoë", vec![0_u8, 255], id)).await?;
            let nulls = [const { Value::Null }; 7];
            Ok((changed + tx.execute(&insert, nulls).await?, tx.query(&select, (i64::MIN,)).await?))
        })
        .await;
    let (changed, rows) = rows.unwrap();
    assert_eq!((changed, rows.len()), (2, 2));
    let row = rows.iter().find(|row| row.get::<Option<i64>>("n").unwrap().is_some()).unwrap();
    assert_eq!((row.get::<i64>("n").unwrap(), row.get::<bool>("b").unwrap()), (i64::MIN, true));
    assert_eq!((row.get::<i32>("small").unwrap(), row.get::<f64>("r").unwrap()), (-7, 0.5));
    assert_eq!(
        (row.get::<String>("t").unwrap(), row.get::<Vec<u8>>("y").unwrap()),
        ("zoë".into(), vec![0, 255])
    );
    assert_eq!((row.get::<Uuid>("u").unwrap(), row.get::<bool>("same").unwrap()), (id, true));
    assert_eq!(row.columns(), ["n", "b", "small", "r", "t", "y", "u", "same"]);
    let nulls = rows.iter().find(|row| row.get::<Option<i64>>("n").unwrap().is_none()).unwrap();
    assert!((0..7).all(|at| nulls.get::<Value>(at).unwrap() == Value::Null), "{nulls:?}");
    table.drop(&headwater).await;
    place.leave(&headwater).await;
}

async fn wrong_parameters_and_columns_are_named(place: Place) {
    let (headwater, _) = open(&place, 0).await;
    let failed = async |sql: &'static str, params: Vec<Value>| {
        let rows: headwater::Result<Vec<_>> =
            headwater.transaction(move |tx: Transaction| async move { tx.query(sql, params).await }).await;
        rows.unwrap_err().to_string()
    };
    let too_many = failed("SELECT CAST($1 AS bigint)", vec![1.into(), 2.into()]).await;
    assert!(too_many.contains('2') || too_many.contains("parameters"), "{too_many}");
    let too_few = failed("SELECT CAST($2 AS bigint), CAST($1 AS bigint)", vec![1.into()]).await;
    assert!(too_few.contains("parameters"), "{too_few}");
    failed("SELECT no_such_column", vec![]).await;
    if headwater.store().engine() == "sqlite" {
        let named = failed("SELECT :name", vec![1.into()]).await;
        assert!(named.contains(":name is not possible; write parameters as $1"), "{named}");
        let several = failed("SELECT 1; SELECT 2", vec![]).await;
        assert!(several.contains("Multiple statements"), "{several}");
    } else {
        let of_another = failed("SELECT CAST($1 AS bigint)", vec!["x".into()]).await;
        assert!(of_another.contains("text of 1 bytes for a parameter of type int8"), "{of_another}");
        let no_value = failed("SELECT now() AS at", vec![]).await;
        assert!(no_value.contains("CAST"), "{no_value}");
    }
    place.leave(&headwater).await;
}

async fn an_error_that_a_handler_ignores_fails_its_message(place: Place) {
    let (headwater, _) = open(&place, 1).await;
    let handling = Handling::transactional(|tx: Transaction, _: Json<i64>| async move {
        tx.execute("INSERT INTO no_such_table VALUES (1)", ()).await.unwrap_err();
        Ok(())
    });
    let consumer = headwater.consumer("orders", "ledger").max_attempts(1).handling("clerk", handling);
    consumer.stepwise().await.unwrap().drain().await.unwrap();
    let error = buried(&headwater).await;
    assert!(error.contains("a statement of the handler failed"), "{error}");
    place.leave(&headwater).await;
}

async fn a_handler_may_await_what_is_ready_and_on_sqlite_nothing_else(place: Place) {
    let (headwater, _) = open(&place, 1).await;
    let ready = Handling::transactional(|tx: Transaction, _: Json<i64>| async move {
        tokio::task::yield_now().await;
        let lock = tokio::sync::Mutex::new(1);
        let _held = lock.lock().await;
        // Several at once.
        let (one, two) = tokio::join!(tx.query("SELECT 1", ()), tx.query("SELECT 2", ()));
        assert_eq!(one?.len() + two?.len(), 2);
        Ok(())
    });
    let consumer = headwater.consumer("orders", "ledger").handling("clerk", ready);
    let mut consumer = consumer.stepwise().await.unwrap();
    consumer.drain().await.unwrap();
    assert_eq!(consumer.running().health().totals.acked, 1);

    headwater.producer("orders").send(&1).await.unwrap();
    let producer = headwater.producer("booked");
    let waits = Handling::transactional(move |_: Transaction, _: Json<i64>| {
        let producer = producer.clone();
        async move {
            producer.send(&1).await?;
            Ok(())
        }
    });
    consumer.running().join("waits", waits.when(|message| message.payload == "1")).unwrap();
    consumer.running().leave("clerk").unwrap();
    consumer.drain().await.unwrap();
    let health = consumer.running().health();
    if headwater.store().engine() == "postgres" {
        assert_eq!(
            health.totals.acked, 2,
            "on PostgreSQL it holds a connection, and nothing else waits for it"
        );
    } else {
        assert_eq!((health.totals.acked, health.totals.retried), (1, 1));
        let shown = headwater.groups("orders").outstanding("ledger", 1).await.unwrap().remove(0);
        let error = shown.last_error.unwrap();
        assert!(error.contains("waits for something other than its transaction"), "{error}");
    }
    // The writer was not held up, whatever the handler waited for.
    headwater.producer("booked").send(&2).await.unwrap();
    place.leave(&headwater).await;
}

async fn a_transaction_of_the_program_commits_all_or_nothing(place: Place) {
    let (headwater, _) = open(&place, 0).await;
    let table = Table::new(&headwater, "n bigint").await;
    for (n, fails) in [(1, false), (2, true), (3, false)] {
        let insert = format!("INSERT INTO {} (n) VALUES ($1)", table.0);
        let placed: anyhow::Result<i64> = headwater
            .transaction(move |tx: Transaction| async move {
                tx.execute(&insert, (n,)).await?;
                tx.publish("orders", &n).await?;
                anyhow::ensure!(!fails, "no stock of {n}");
                Ok(n)
            })
            .await;
        match placed {
            Ok(placed) => assert_eq!((placed, fails), (n, false)),
            Err(error) => assert_eq!((error.to_string(), fails), ("no stock of 2".into(), true)),
        }
    }
    assert_eq!(table.numbers(&headwater).await, [1, 3]);
    assert_eq!(numbers_of(&headwater, "orders", 2).await, [1, 3]);
    // An error that is ignored rolls back too, on both.
    let insert = format!("INSERT INTO {} (n) VALUES ($1)", table.0);
    let ignored: headwater::Result<()> = headwater
        .transaction(move |tx: Transaction| async move {
            tx.execute(&insert, (4,)).await?;
            let _ = tx.execute("INSERT INTO no_such_table VALUES (1)", ()).await;
            Ok(())
        })
        .await;
    ignored.unwrap_err();
    assert_eq!(table.numbers(&headwater).await, [1, 3]);
    table.drop(&headwater).await;
    place.leave(&headwater).await;
}

async fn a_transaction_that_is_kept_is_refused(place: Place) {
    let (headwater, _) = open(&place, 0).await;
    if headwater.store().engine() == "postgres" {
        // A clone that is kept keeps the connection out of the pool; the driver answers on it.
        return place.leave(&headwater).await;
    }
    let kept: headwater::Result<Transaction> =
        headwater.transaction(|tx: Transaction| async move { Ok(tx) }).await;
    let error = kept.unwrap().execute("CREATE TABLE x (n bigint)", ()).await.unwrap_err();
    assert!(error.to_string().contains("has ended"), "{error}");
    place.leave(&headwater).await;
}
