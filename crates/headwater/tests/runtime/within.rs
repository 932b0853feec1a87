//! Publishing within a transaction of the program's own: with each driver, with its trace, counted, and refused elsewhere.

use headwater::store::StoreUrl;
use headwater::trace::{self, TraceContext};
use headwater::transaction::Transaction;
use headwater::{
    Context, ErrorKind, Handling, Headwater, Json, Message, NewMessage, rusqlite, tokio_postgres,
};

use crate::each::{DEADLINE, Place, eventually, on_each, settled};

const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

on_each!(
    a_transaction_of_the_other_engine_is_refused_and_named,
    neutral,
    the_neutral_transaction_of_another_store_is_refused,
    what_a_handler_publishes_within_its_transaction_commits_with_its_ack,
);

fn context() -> TraceContext {
    PARENT.parse().unwrap()
}

/// What the three drivers do: a batch and a message commit, another message rolls back.
async fn check(headwater: &Headwater) {
    let messages = headwater.published("orders").await.unwrap();
    let payloads: Vec<_> = messages.iter().map(|message| &message.payload[..]).collect();
    assert_eq!(payloads, [&b"1"[..], b"a", b"b"]);
    assert_eq!(messages[0].key.as_deref(), Some("7"));
    let parents: Vec<_> = messages.iter().map(|message: &Message| &message.headers["traceparent"]).collect();
    assert_eq!(parents, [PARENT, PARENT, "00-0000000000000000000000000000000a-000000000000000b-00"]);
    let health = headwater.producer("orders").health().unwrap();
    assert_eq!((health.totals.published, health.totals.published_in_transaction), (0, 4), "{health}");
    assert_eq!(health.totals.publish_errors, 0, "{health}");
}

fn batch() -> [NewMessage; 2] {
    let own = "00-0000000000000000000000000000000a-000000000000000b-00".parse().unwrap();
    [NewMessage::new("a"), NewMessage::new("b").traced(&own)]
}

fn file_of(place: &Place) -> std::path::PathBuf {
    let Ok(StoreUrl::Sqlite(headwater::store::SqlitePath::File(path))) = StoreUrl::parse(place.url(), None)
    else {
        panic!("{} is no file", place.url())
    };
    path
}

async fn connect(place: &Place) -> tokio_postgres::Client {
    let (client, connection) = tokio_postgres::connect(place.server(), tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

#[tokio::test]
async fn rusqlite() {
    let place = Place::sqlite().unwrap();
    let headwater = place.open().await;
    let orders = headwater.producer("orders");
    let mut connection = rusqlite::Connection::open(file_of(&place)).unwrap();
    trace::within(context(), async {
        let mut transaction = connection.transaction().unwrap();
        let published = orders.send(&1).key(7).within(&mut transaction).unwrap();
        assert_eq!(published.offset.unwrap().0, 1);
        assert_eq!(orders.send_batch(&batch()).within(&transaction).unwrap().len(), 2);
        transaction.commit().unwrap();
        let transaction = connection.transaction().unwrap();
        orders.send(&2).within(&transaction).unwrap();
        transaction.rollback().unwrap();
    })
    .await;
    check(&headwater).await;

    let other = Place::sqlite().unwrap();
    let elsewhere = other.open().await;
    let connection = rusqlite::Connection::open(file_of(&other)).unwrap();
    let refused = orders.send(&3).within(&connection).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidInput);
    assert!(refused.to_string().contains("runtime.db"), "{refused}");
    assert_eq!(elsewhere.topics().list().await.unwrap().len(), 0, "nothing reached the other store");
    drop(connection);
    place.leave(&headwater).await;
}

#[tokio::test]
async fn tokio_postgres() {
    let Some(place) = Place::postgres() else { return };
    let headwater = place.open().await;
    headwater.topic("orders").create().await.unwrap();
    assert_eq!(headwater.namespace().unwrap().as_str(), place.namespace());
    let orders = headwater.producer("orders");
    let mut client = connect(&place).await;
    trace::within(context(), async {
        let mut transaction = client.transaction().await.unwrap();
        let published = orders.send(&1).key(7).within(&mut transaction).await.unwrap();
        assert!(published.offset.is_some());
        assert_eq!(orders.send_batch(&batch()).within(&transaction).await.unwrap().len(), 2);
        transaction.commit().await.unwrap();
        let transaction = client.transaction().await.unwrap();
        orders.send(&2).within(&transaction).await.unwrap();
        transaction.rollback().await.unwrap();
    })
    .await;
    check(&headwater).await;

    // A failed send is counted, and a missing topic is not created: it would be rolled back too.
    let nowhere = headwater.producer("nowhere");
    let transaction = client.transaction().await.unwrap();
    let missing = nowhere.send(&1).within(&transaction).await.unwrap_err();
    assert_eq!(missing.kind(), ErrorKind::NoSuchTopic);
    assert_eq!(nowhere.health().unwrap().totals.publish_errors, 1);
    drop(transaction);
    place.leave(&headwater).await;
}

#[cfg(feature = "sqlx")]
#[tokio::test]
async fn sqlx() {
    use headwater::sqlx::Connection;

    let Some(place) = Place::postgres() else { return };
    let headwater = place.open().await;
    headwater.topic("orders").create().await.unwrap();
    let orders = headwater.producer("orders");
    let mut connection = headwater::sqlx::PgConnection::connect(place.server()).await.unwrap();
    trace::within(context(), async {
        let mut transaction = connection.begin().await.unwrap();
        orders.send(&1).key(7).within(&mut transaction).await.unwrap();
        assert_eq!(orders.send_batch(&batch()).within(&mut *transaction).await.unwrap().len(), 2);
        transaction.commit().await.unwrap();
        let mut transaction = connection.begin().await.unwrap();
        orders.send(&2).within(&mut transaction).await.unwrap();
        transaction.rollback().await.unwrap();
    })
    .await;
    check(&headwater).await;
    connection.close().await.unwrap();
    place.leave(&headwater).await;
}

/// The transaction of [`Headwater::transaction`], on each engine.
async fn neutral(place: Place) {
    let headwater = place.open().await;
    headwater.topic("orders").create().await.unwrap();
    let orders = headwater.producer("orders");
    trace::within(context(), async {
        let first = orders.clone();
        let committed = headwater.transaction(|tx: Transaction| async move {
            first.send(&1).key(7).within(&tx).await?;
            Ok::<_, headwater::Error>(first.send_batch(&batch()).within(&tx).await?.len())
        });
        assert_eq!(committed.await.unwrap(), 2);
        let rolled_back = headwater.transaction(|tx: Transaction| async move {
            orders.send(&2).within(&tx).await?;
            tx.execute("INSERT INTO no_such_table VALUES (1)", ()).await
        });
        assert_eq!(rolled_back.await.unwrap_err().kind(), ErrorKind::Database);
    })
    .await;
    check(&headwater).await;
    place.leave(&headwater).await;
}

async fn the_neutral_transaction_of_another_store_is_refused(place: Place) {
    let (headwater, elsewhere) = (place.open().await, place.another());
    headwater.topic("orders").create().await.unwrap();
    let other = elsewhere.open().await;
    other.topic("orders").create().await.unwrap();
    let orders = other.producer("orders");
    let refused = headwater
        .transaction(|tx: Transaction| async move { orders.send(&1).within(&tx).await })
        .await
        .unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidInput);
    assert!(refused.to_string().contains("transaction"), "{refused}");
    for store in [&headwater, &other] {
        assert_eq!(store.published("orders").await.unwrap().len(), 0);
    }
    elsewhere.leave(&other).await;
    place.leave(&headwater).await;
}

async fn a_transaction_of_the_other_engine_is_refused_and_named(place: Place) {
    let headwater = place.open().await;
    headwater.topic("orders").create().await.unwrap();
    let orders = headwater.producer("orders");
    let engine = headwater.store().engine();
    let refused = if engine == "sqlite" {
        let Some(other) = Place::postgres() else { return };
        let mut client = connect(&other).await;
        let transaction = client.transaction().await.unwrap();
        orders.send(&1).within(&transaction).await.unwrap_err()
    } else {
        let connection = rusqlite::Connection::open_in_memory().unwrap();
        orders.send(&1).within(&connection).unwrap_err()
    };
    assert_eq!(refused.kind(), ErrorKind::InvalidInput);
    assert!(refused.to_string().contains("transaction") && refused.to_string().contains(engine), "{refused}");
    assert_eq!(headwater.published("orders").await.unwrap().len(), 0);
    place.leave(&headwater).await;
}

/// The first attempt publishes and then fails: only what the second one publishes exists.
async fn what_a_handler_publishes_within_its_transaction_commits_with_its_ack(place: Place) {
    let headwater = place.open().await;
    headwater
        .topic("orders")
        .backoff(std::time::Duration::ZERO, std::time::Duration::ZERO)
        .create()
        .await
        .unwrap();
    headwater.topic("mails").create().await.unwrap();
    let mails = headwater.producer("mails");
    let ended =
        |context: &Context| if context.attempt() == 1 { Err("the first attempt fails") } else { Ok(()) };
    let once = if headwater.store().engine() == "sqlite" {
        Handling::in_sqlite(move |connection, Json(n): Json<u64>, context: &Context| {
            mails.send(&(n + u64::from(context.attempt()))).within(connection)?;
            ended(context)?;
            Ok(())
        })
    } else {
        Handling::in_postgres(move |transaction, Json(n): Json<u64>, context: Context| {
            let mails = mails.clone();
            async move {
                mails.send(&(n + u64::from(context.attempt()))).within(&transaction).await?;
                ended(&context)?;
                Ok(())
            }
        })
    };
    let running = headwater.consumer("orders", "mailer").handling("one", once).run().await.unwrap();
    headwater.producer("orders").send(&10).await.unwrap();
    settled(&headwater, "orders", "mailer").await;
    running.shutdown(DEADLINE).await.unwrap();
    // The first attempt took an offset: the head passes it once no transaction of the server can still fill it.
    eventually("the mail is visible", async || !headwater.published("mails").await.unwrap().is_empty()).await;
    let sent = headwater.published("mails").await.unwrap();
    assert_eq!(sent.iter().map(|message| &message.payload[..]).collect::<Vec<_>>(), [b"12"]);
    place.leave(&headwater).await;
}
