//! Handlers on the writer thread: whatever one does to its transaction affects no other command.

use crate::handler::{HandlerGuard, HandlerRun, Said};
use crate::lease::Lease;
use crate::settle::{RetryPolicy, Verdict};
use crate::{Message, Offset};

use super::*;

type Handle = fn(&Connection) -> Verdict;

/// Claims one message and handles it.
async fn handle(store: &SqliteStore, subscription: &Subscription, handler: Handle) -> Result<Said> {
    let lease = store.claim(&request(subscription, 1)).await.unwrap().leases.remove(0);
    let messages = store.fetch(lease.topic_id, lease.range).await.unwrap();
    store.handle_in_transaction(work(subscription, &lease, messages, handler)).await
}

fn work(
    subscription: &Subscription,
    lease: &Lease,
    messages: Vec<Message>,
    handler: Handle,
) -> TransactionWork {
    let (guard, id) = (HandlerGuard::apart(subscription), lease.id());
    let policy = RetryPolicy::from(&subscription.topic.settings);
    let offsets: Vec<_> = messages.iter().map(|message| message.offset).collect();
    TransactionWork {
        handler_name: "mailer".into(),
        member: "one".into(),
        lease: id.clone(),
        run: HandlerRun::new(&guard, messages.into(), lease, &policy),
        handlers: Handlers::Each(Box::new(move |open, _| Ok(handler(open.connection())))),
        decide: Box::new(move |said| {
            let outcome = |offset| match said.verdicts.iter().find(|(of, _)| *of == offset) {
                None => Outcome::Ack,
                Some((_, Verdict::Release)) => Outcome::Release,
                Some((_, Verdict::Failed(error))) => {
                    Outcome::Retry { after: Duration::ZERO, error: error.clone(), key: None }
                }
                Some((_, other)) => panic!("no handler here returns {other:?}"),
            };
            let part = |offset| (OffsetRange::one(offset), outcome(offset));
            Settlement::each(id, offsets.into_iter().map(part).collect())
        }),
    }
}

fn run(connection: &Connection, sql: &str) -> Verdict {
    match connection.execute_batch(sql) {
        Ok(()) => Verdict::Done,
        Err(error) => Verdict::Failed(error.to_string()),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_handler_that_ends_the_transaction_gets_an_error_and_harms_no_neighbour() {
    let place = Place::new();
    let store = Arc::new(place.open().await);
    let subscription = subscribed(&store, "orders").await;
    place.connect().execute_batch("CREATE TABLE effect (n INTEGER)").unwrap();
    let bad: [Handle; 5] = [
        |connection| run(connection, "INSERT INTO effect VALUES (1); COMMIT"),
        |connection| run(connection, "ROLLBACK"),
        |connection| run(connection, "COMMIT; BEGIN"),
        |connection| run(connection, "ROLLBACK; BEGIN IMMEDIATE"),
        |connection| run(connection, "RELEASE headwater_handler"),
    ];
    for handler in bad {
        store.publish(&topic("orders"), &messages(1)).await.unwrap();
        let lease = store.claim(&request(&subscription, 1)).await.unwrap().leases.remove(0);
        let fetched = store.fetch(lease.topic_id, lease.range).await.unwrap();
        let neighbours: Vec<_> = (0..20)
            .map(|_| {
                let store = Arc::clone(&store);
                tokio::spawn(async move { store.publish(&topic("others"), &messages(1)).await })
            })
            .collect();
        let error =
            store.handle_in_transaction(work(&subscription, &lease, fetched, handler)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error:?}");
        assert!(error.to_string().contains("mailer ended the transaction"), "{error}");
        for neighbour in neighbours {
            neighbour.await.unwrap().unwrap();
        }
        // It is not settled, and its lease is still held: the ack is accepted.
        store.settle(&[Settlement::ack_all(&lease)]).await.unwrap().remove(0).unwrap();
    }
    let heads: Vec<_> = store.topics().await.unwrap().iter().map(|topic| topic.head.0).collect();
    assert_eq!(heads, [5, 100]);
    assert_eq!(store.doctor().await.unwrap(), []);
}

#[tokio::test]
async fn a_handler_that_begins_or_panics_only_fails() {
    let place = Place::new();
    let store = place.open().await;
    let subscription = subscribed(&store, "orders").await;
    place.connect().execute_batch("CREATE TABLE effect (n INTEGER)").unwrap();
    store.publish(&topic("orders"), &messages(1)).await.unwrap();
    let done = handle(&store, &subscription, |connection| run(connection, "BEGIN")).await.unwrap();
    assert!(
        matches!(&done.verdicts[0].1, Verdict::Failed(error) if error.contains("transaction")),
        "{done:?}"
    );
    let panics: Handle = |connection| {
        run(connection, "INSERT INTO effect VALUES (1)");
        panic!("on purpose")
    };
    let done = handle(&store, &subscription, panics).await.unwrap();
    assert_eq!(done.verdicts[0].1, Verdict::Failed("the handler panicked: on purpose".into()));
    let count = |table: &str| -> i64 {
        let sql = format!("SELECT count(*) FROM {table}");
        place.connect().query_row(&sql, [], |row| row.get(0)).unwrap()
    };
    assert_eq!((count("effect"), count("headwater_inbox")), (0, 0));
    let done = handle(&store, &subscription, |connection| run(connection, "INSERT INTO effect VALUES (1)"));
    assert_eq!(done.await.unwrap(), Said::default());
    assert_eq!((count("effect"), count("headwater_inbox")), (1, 1));
}

#[tokio::test]
async fn what_a_handler_publishes_wakes_waiters_of_its_own_process() {
    for in_memory in [false, true] {
        let place = Place::new();
        let path = if in_memory { SqlitePath::Memory } else { SqlitePath::File(place.path()) };
        let store = SqliteStore::open(path, OpenOptions::default()).await.unwrap();
        let subscription = subscribed(&store, "orders").await;
        let follow_ups = subscribed(&store, "follow-ups").await;
        store.publish(&topic("orders"), &messages(2)).await.unwrap();
        let by_library: Handle = |connection| {
            super::super::publish(connection, "follow-ups", &messages(1)).unwrap();
            Verdict::Done
        };
        let by_sql: Handle = |connection| {
            run(connection, "INSERT INTO headwater_publish (topic, payload) VALUES ('follow-ups', 'x')")
        };
        for handler in [by_library, by_sql] {
            let wake = store.arm(&[follow_ups.topic.topic_id]).await.unwrap();
            handle(&store, &subscription, handler).await.unwrap();
            assert!(wake.wait(Duration::from_secs(30)).await, "no waiter was woken");
            assert_eq!(drain(&store, &follow_ups).await.len(), 1);
        }
    }
}

#[tokio::test]
async fn messages_behind_a_failed_one_of_their_key_are_not_started() {
    let place = Place::new();
    let store = place.open().await;
    let subscription = subscribed(&store, "orders").await;
    let batch: Vec<_> =
        ["a", "b", "a"].iter().map(|key| NewMessage::new((*key).to_owned()).key(*key)).collect();
    store.publish(&topic("orders"), &batch).await.unwrap();
    let mut lease = store.claim(&request(&subscription, 3)).await.unwrap().leases.remove(0);
    let messages = store.fetch(lease.topic_id, lease.range).await.unwrap();
    lease.lane = Some(0);
    let mut todo = work(&subscription, &lease, messages, |_| Verdict::Done);
    todo.handlers = Handlers::Each(Box::new(|_, message| match message[0].offset.0 {
        1 => Ok(Verdict::Failed("x".into())),
        2 => Ok(Verdict::Done),
        offset => panic!("{offset} was started"),
    }));
    let said = store.handle_in_transaction(todo).await.unwrap();
    let failed = (Offset(1), Verdict::Failed("x".into()));
    assert_eq!(said.verdicts, [failed, (Offset(3), Verdict::Release)]);
}

#[tokio::test]
async fn messages_missing_from_the_log_are_counted_by_a_handler_that_passes_them() {
    let place = Place::new();
    let store = place.open().await;
    let subscription = subscribed(&store, "orders").await;
    store.publish(&topic("orders"), &messages(3)).await.unwrap();
    let sql = "DELETE FROM headwater_message WHERE row_key & 8796093022207 = 2";
    place.connect().execute(sql, []).unwrap();
    let lease = store.claim(&request(&subscription, 3)).await.unwrap().leases.remove(0);
    let fetched = store.fetch(lease.topic_id, lease.range).await.unwrap();
    assert_eq!(fetched.len(), 2);
    store.handle_in_transaction(work(&subscription, &lease, fetched, |_| Verdict::Done)).await.unwrap();
    let status = store.subscriptions(&topic("orders")).await.unwrap().remove(0);
    let range = status.missed.range.map(|(first, last)| (first.0, last.0));
    assert_eq!((status.missed.count, range), (1, Some((2, 2))));
}
