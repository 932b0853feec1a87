//! The inbox: the scenarios of its repository, each by its name, and what it shares with handlers of topics.

use std::sync::Arc;
use std::time::Duration;

use super::case::{Case, DEADLINE, failed};
use super::effects::{Effects, done, handle};
use crate::error::ErrorKind;
use crate::inbox::Inbox;
use crate::store::Store;
use crate::transaction::Transaction;
use crate::transaction::run::in_store;

async fn open(case: &Case) -> Inbox {
    Inbox::new(&case.open().await)
}

/// How many rows are inserted: 1, or 0.
async fn inserted(inbox: &Inbox, message_id: &str, handler: &str) -> u64 {
    u64::from(inbox.insert_if_absent(message_id, handler).await.expect("answered"))
}

async fn stored(case: &Case) -> i64 {
    case.harness().number("SELECT count(*) FROM headwater_inbox", "SELECT count(*) FROM {schema}.inbox").await
}

/// The first insert of a pair is 1, and its row is there, with the time of the database.
pub async fn first_insert(case: &Case) {
    let inbox = open(case).await;
    assert_eq!(inserted(&inbox, "message-1", "handler-1").await, 1);
    let now_ms = case.now().as_millisecond();
    let sqlite = format!(
        "SELECT count(*) FROM headwater_inbox
         WHERE message_id = 'message-1' AND handler = 'handler-1' AND processed_at_ms = {now_ms}"
    );
    let postgres = format!(
        "SELECT count(*) FROM {{schema}}.inbox
         WHERE message_id = 'message-1' AND handler = 'handler-1' AND processed_at = to_timestamp({now_ms} / 1000.0)"
    );
    assert_eq!(case.harness().number(&sqlite, &postgres).await, 1);
}

/// The second insert of a pair is 0, and there is one row.
pub async fn duplicate(case: &Case) {
    let inbox = open(case).await;
    assert_eq!(inserted(&inbox, "message-1", "handler-1").await, 1);
    assert_eq!(inserted(&inbox, "message-1", "handler-1").await, 0);
    assert_eq!(inserted(&open(case).await, "message-1", "handler-1").await, 0, "from another process");
    assert_eq!(stored(case).await, 1);
}

/// Handlers are independent of each other.
pub async fn same_message_different_handlers(case: &Case) {
    let inbox = open(case).await;
    assert_eq!(inserted(&inbox, "message-1", "handler-1").await, 1);
    assert_eq!(inserted(&inbox, "message-1", "handler-2").await, 1);
    assert_eq!(inserted(&inbox, "message-2", "handler-1").await, 1);
    assert_eq!(stored(case).await, 3);
}

/// Null, empty and over-long ids are refused; any characters are fine, and compared exactly.
pub async fn edge_cases(case: &Case) {
    let inbox = open(case).await;
    let (long, longest) = ("x".repeat(1_000), "ö".repeat(127));
    for bad in ["", "a\0b", &*long, &"x".repeat(256)] {
        failed(inbox.insert_if_absent(bad, "handler").await, ErrorKind::InvalidInput);
        failed(inbox.insert_if_absent("message", bad).await, ErrorKind::InvalidInput);
    }
    for (sqlite, postgres) in [("NULL, 'h'", "NULL, 'h'"), ("'m', NULL", "'m', NULL"), ("'', 'h'", "'', 'h'")]
    {
        let sqlite = format!("INSERT INTO headwater_inbox_entries (message_id, handler) VALUES ({sqlite})");
        let postgres = format!("SELECT {{schema}}.insert_if_absent({postgres})");
        let refused = case.harness().sql(&sqlite, &postgres).await.unwrap_err();
        assert!(refused.contains("invalid "), "{refused}");
    }
    assert_eq!(stored(case).await, 0, "nothing was written");
    let strange =
        ["a\nb", "Robert'); DROP TABLE inbox;--", "größe \"q\" %_\\", "A", "a", " a", "a ", &longest];
    for handler in strange {
        assert_eq!(inserted(&inbox, "message", handler).await, 1, "{handler:?}");
        assert_eq!(inserted(&inbox, handler, "handler").await, 1, "{handler:?}");
    }
    for handler in strange {
        assert_eq!(inserted(&inbox, "message", handler).await, 0, "{handler:?}");
    }
    assert_eq!(stored(case).await, 16);
}

/// A duplicate in plain SQL is no error, whichever conflict clause the caller uses, and the answer says what happened.
pub async fn duplicates_on_the_embedded_engine(case: &Case) {
    let inbox = open(case).await;
    for (times, word) in
        ["INSERT", "INSERT OR IGNORE", "INSERT OR REPLACE", "INSERT OR ABORT"].into_iter().enumerate()
    {
        let sqlite = format!("{word} INTO headwater_inbox_entries (message_id, handler) VALUES ('m', 'h')");
        let postgres = "SELECT {schema}.insert_if_absent('m', 'h')";
        case.harness().sql(&sqlite, postgres).await.unwrap();
        let said = "SELECT inserted FROM headwater_inserted";
        let is_new = case.harness().number(said, &format!("SELECT ({times} = 0)::integer::bigint")).await;
        assert_eq!(is_new, i64::from(times == 0), "{word}");
    }
    assert_eq!(stored(case).await, 1);
    assert_eq!(inserted(&inbox, "m", "h").await, 0);
}

/// Callers at the same time: exactly one inserts, and the others get 0.
pub async fn duplicates_on_postgresql(case: &Case) {
    let (inbox, other) = (open(case).await, open(case).await);
    for message in 0..10 {
        let inserts = (0..10).map(|n| {
            let (inbox, id) = (if n % 2 == 0 { &inbox } else { &other }, format!("message-{message}"));
            async move { inserted(inbox, &id, "handler").await }
        });
        let all = tokio::time::timeout(DEADLINE, futures_util::future::join_all(inserts)).await;
        assert_eq!(all.expect("answered in time").into_iter().sum::<u64>(), 1);
    }
    assert_eq!(stored(case).await, 10);
}

/// An entry is rolled back with the effect, and then is new again. Inside its transaction it is seen.
pub async fn an_entry_exists_with_its_effect_or_never(case: &Case) {
    let store = case.open().await;
    let effects = Effects::new(case, &store).await;
    for (commits, expected) in [(false, 1), (true, 1), (true, 0)] {
        let done = process(&store, effects.insert_sql(), commits).await;
        assert_eq!(done.unwrap_or(1), expected);
    }
    assert_eq!(effects.seen().await, ["once"]);
}

async fn process(store: &Arc<dyn Store>, effect: String, commits: bool) -> crate::Result<u64> {
    let inbox = Inbox::new(store);
    in_store(&**store, move |tx: Transaction| async move {
        let inbox = inbox.within(&tx);
        let is_new = inbox.insert_if_absent("payment-9", "ledger").await?;
        assert!(!inbox.insert_if_absent("payment-9", "ledger").await?, "seen inside");
        if is_new {
            tx.execute(&effect, ("once",)).await?;
        }
        if commits { Ok(u64::from(is_new)) } else { Err(crate::Error::invalid("test", "rolled back")) }
    })
    .await
}

/// A pair that an open transaction entered is waited for: only at its end is it known whether the effect happened.
pub async fn a_pair_of_an_open_transaction_is_waited_for(case: &Case) {
    let store = case.open().await;
    for commits in [true, false] {
        let id = format!("message-{commits}");
        let (entered, mut inside) = tokio::sync::mpsc::channel::<()>(1);
        let (first, inbox, pair) = (Inbox::new(&store), Inbox::new(&store), id.clone());
        let (beside, postgres) = (Arc::clone(&store), store.engine() == "postgres");
        let holds = tokio::spawn(async move {
            let held: crate::Result<()> = in_store(&*beside, move |tx: Transaction| async move {
                assert!(first.within(&tx).insert_if_absent(&pair, "ledger").await?);
                entered.try_send(()).expect("it waits");
                if postgres {
                    // A handler on SQLite may not wait; there the writer itself makes the other one wait.
                    tokio::time::sleep(Duration::from_millis(200)).await;
                }
                if commits { Ok(()) } else { Err(crate::Error::invalid("test", "rolled back")) }
            })
            .await;
            held.is_ok()
        });
        inside.recv().await.expect("the first has entered");
        let second = tokio::time::timeout(DEADLINE, inserted(&inbox, &id, "ledger")).await;
        assert_eq!(second.expect("answered"), u64::from(!commits), "committed: {commits}");
        assert_eq!(holds.await.unwrap(), commits);
    }
}

/// Handlers of topics use the same entries, with the text of the message's id: both know what the other has processed.
pub async fn handlers_of_topics_use_the_same_entries(case: &Case) {
    let scene = case.queue().await;
    let effects = Effects::new(case, &scene.store).await;
    let inbox = Inbox::new(&scene.store);
    scene.publish(2).await;
    let lease = scene.claim_one("a", 2).await;
    let messages = scene.fetch(&lease).await;
    assert_eq!(inserted(&inbox, &messages[1].message_id.to_string(), "mailer").await, 1);
    handle(&scene, &lease, "mailer", done()).await.unwrap();
    assert_eq!(effects.seen().await, ["1"], "the second was entered by hand");
    assert_eq!(inserted(&inbox, &messages[0].message_id.to_string(), "mailer").await, 0);
    assert_eq!(inserted(&inbox, &messages[0].message_id.to_string(), "other").await, 1);
}
