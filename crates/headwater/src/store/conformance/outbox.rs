//! The outbox: the scenarios of its repository, each by its name; and its further rules.

use std::collections::BTreeSet;
use std::time::Duration;

use uuid::Uuid;

use super::case::{Case, DEADLINE};
use super::log_capture;
use crate::outbox::{Category, Marked, NewEntry, Outbox, OutboxEntry, OutboxStatus};

mod plain_sql;
mod rules;

pub use plain_sql::*;
pub use rules::*;

const SECOND: Duration = Duration::from_secs(1);
pub(super) const CLAIM_TIMEOUT: Duration = Duration::from_secs(300);

/// The outbox of a case's store.
pub(super) async fn open(case: &Case) -> Outbox {
    Outbox::new(&case.open().await)
}

/// Inserts events with the payloads `1`, `2` and so on, a millisecond after each other, and returns their ids.
pub(super) async fn insert(case: &Case, outbox: &Outbox, count: usize) -> Vec<i64> {
    let mut ids = Vec::with_capacity(count);
    for n in 1..=count {
        let event = NewEntry::kafka_event("orders", format!("key-{n}"), "OrderCreated", n.to_string());
        ids.push(outbox.insert_returning_id(&event).await.expect("inserted"));
        case.advance_ms(1);
    }
    ids
}

pub(super) async fn show(outbox: &Outbox, id: i64) -> OutboxEntry {
    outbox.show(id).await.expect("read").expect("the entry exists")
}

pub(super) fn ids_of(entries: &[OutboxEntry]) -> Vec<i64> {
    entries.iter().map(|entry| entry.id).collect()
}

pub(super) async fn swept(outbox: &Outbox, max: u32, claimer: &str) -> Vec<i64> {
    ids_of(&outbox.sweep_batch(max, claimer).await.expect("swept"))
}

/// The id is positive; the entry is NEW, with the current time and every field; headers are an empty object by default.
pub async fn insert_returning_id(case: &Case) {
    let outbox = open(case).await;
    let plain = NewEntry::new(Category::Event, "orders", "OrderCreated", vec![0_u8, 255]);
    let id = outbox.insert_returning_id(&plain).await.unwrap();
    assert!(id > 0, "{id}");
    let expected = OutboxEntry {
        id,
        category: Category::Event,
        topic: "orders".into(),
        key: None,
        entry_type: "OrderCreated".into(),
        payload: vec![0, 255].into(),
        headers: crate::Headers::new(),
        status: OutboxStatus::New,
        attempts: 0,
        next_at: None,
        claimed_by: None,
        claimed_at: None,
        created_at: case.now(),
        published_at: None,
        last_error: None,
    };
    assert_eq!(show(&outbox, id).await, expected);
    let sqlite = "SELECT count(*) FROM headwater_outbox_entry WHERE headers = '{}'";
    let postgres = "SELECT count(*) FROM {schema}.outbox_entry WHERE headers = '{}'";
    assert_eq!(case.harness().number(sqlite, postgres).await, 1, "an empty object, not null");
    let reply = [("replyTo".to_owned(), "größe \"quoted\"".to_owned())].into();
    let command = NewEntry::command_requested("Pay", Uuid::nil(), "customer-3", r#"{"n":1}"#, reply);
    let second = outbox.insert_returning_id(&command).await.unwrap();
    let stored = show(&outbox, second).await;
    assert!(second > id);
    assert_eq!(
        (stored.category, stored.topic, stored.key, stored.entry_type, stored.payload, stored.headers),
        (command.category, command.topic, command.key, command.entry_type, command.payload, command.headers)
    );
}

/// NEW gives the entry, which is CLAIMED then; claimed already and absent give nothing.
pub async fn claim_if_new(case: &Case) {
    let outbox = open(case).await;
    let id = insert(case, &outbox, 1).await[0];
    let claimed = outbox.claim_if_new(id, "relay-1").await.unwrap().expect("it was NEW");
    assert_eq!((claimed.id, claimed.status), (id, OutboxStatus::Claimed));
    assert_eq!(claimed.claimed_by.as_deref(), Some("relay-1"));
    assert_eq!(claimed.claimed_at, Some(case.now()));
    assert_eq!(show(&outbox, id).await, claimed);
    assert_eq!(outbox.claim_if_new(id, "relay-2").await.unwrap(), None, "claimed already");
    assert_eq!(outbox.claim_if_new(id + 1_000, "relay-2").await.unwrap(), None, "absent");
    assert_eq!(show(&outbox, id).await, claimed);
}

/// Takes what is due, oldest first, up to its limit: NEW, past its `next_at`, claimed longer ago than the timeout; and nothing else.
pub async fn sweep_batch(case: &Case) {
    let outbox = open(case).await;
    let ids = insert(case, &outbox, 6).await;
    let first = outbox.sweep_batch(2, "a").await.unwrap();
    assert_eq!(ids_of(&first), ids[..2]);
    assert!(first.iter().all(|entry| entry.status == OutboxStatus::Claimed));
    assert_eq!(show(&outbox, ids[0]).await, first[0], "what is returned is what is stored");
    assert_eq!(swept(&outbox, 1, "b").await, ids[2..3], "only NEW, of NEW and CLAIMED");
    outbox.mark_failed(ids[2], "b", "away", SECOND * 10).await.unwrap();
    assert_eq!(swept(&outbox, 1, "b").await, ids[3..4], "not before its next_at");
    case.advance(SECOND * 10);
    assert_eq!(swept(&outbox, 10, "b").await, [ids[2], ids[4], ids[5]], "past its next_at, oldest first");
    // The claims of the first two are younger than the others by ten seconds.
    case.advance(CLAIM_TIMEOUT - SECOND * 10 - Duration::from_millis(10));
    assert_eq!(swept(&outbox, 10, "c").await, [0; 0], "younger than the timeout");
    case.advance_ms(10);
    assert_eq!(swept(&outbox, 10, "c").await, [ids[0], ids[1], ids[3]], "older than the timeout");
    let again = show(&outbox, ids[0]).await;
    assert_eq!((again.status, again.claimed_by.as_deref()), (OutboxStatus::Claimed, Some("c")));
    assert_eq!(again.claimed_at, Some(case.now()), "counted from the claim and not from the creation");
}

/// The status and the time are set; an absent id is a warning and no error.
pub async fn mark_published(case: &Case) {
    let outbox = open(case).await;
    let id = insert(case, &outbox, 1).await[0];
    let claimer = format!("relay-{}", Uuid::now_v7());
    swept(&outbox, 1, &claimer).await;
    case.advance_ms(5);
    let marked = outbox.mark_published(id, &claimer).await.unwrap();
    assert_eq!(marked, Marked { marked: vec![id], ..Marked::default() });
    let entry = show(&outbox, id).await;
    assert_eq!((entry.status, entry.published_at), (OutboxStatus::Published, Some(case.now())));
    assert_eq!(log_capture::lines_with(&claimer), [] as [String; 0]);
    let absent = id + 1_000;
    let marked = outbox.mark_published(absent, &claimer).await.unwrap();
    assert_eq!(marked, Marked { unknown: vec![absent], ..Marked::default() });
    let lines = log_capture::lines_with(&claimer);
    assert!(lines.len() == 1 && lines[0].contains(&absent.to_string()), "{lines:?}");
}

/// The error is stored and `next_at` is in the future; of several marks the latest counts.
pub async fn mark_failed(case: &Case) {
    let outbox = open(case).await;
    let id = insert(case, &outbox, 1).await[0];
    swept(&outbox, 1, "a").await;
    let marked = outbox.mark_failed(id, "a", "first", SECOND).await.unwrap();
    assert_eq!(marked.marked, [id]);
    let entry = show(&outbox, id).await;
    assert_eq!((entry.status, entry.attempts), (OutboxStatus::Failed, 1));
    assert_eq!(entry.last_error.as_deref(), Some("first"));
    assert_eq!(entry.next_at, Some(case.now() + SECOND));
    let at = case.now() + SECOND * 30;
    outbox.mark_failed(id, "a", "second", at).await.unwrap();
    let entry = show(&outbox, id).await;
    assert_eq!((entry.status, entry.attempts), (OutboxStatus::Failed, 2));
    assert_eq!((entry.last_error.as_deref(), entry.next_at), (Some("second"), Some(at)));
    let marked = outbox.mark_failed(id + 1_000, "a", "absent", SECOND).await.unwrap();
    assert_eq!(marked.unknown, [id + 1_000], "no error");
}

/// Back-offs of 1, 5 and 60 seconds: `next_at` is right, the error is stored, and the status stays.
pub async fn reschedule(case: &Case) {
    let outbox = open(case).await;
    for (claimed, backoff_ms) in [(true, 1_000), (false, 5_000), (true, 60_000)] {
        let id = insert(case, &outbox, 1).await[0];
        assert_eq!(swept(&outbox, 1, "a").await, [id]);
        if !claimed {
            outbox.mark_failed(id, "a", "failed", Duration::ZERO).await.unwrap();
        }
        let before = show(&outbox, id).await;
        let backoff = Duration::from_millis(backoff_ms);
        let error = format!("busy for {backoff_ms} ms");
        let marked = outbox.reschedule(id, "a", backoff, Some(&error)).await.unwrap();
        assert_eq!(marked.marked, [id]);
        let next_at = Some(case.now() + backoff);
        let expected = OutboxEntry { next_at, last_error: Some(error), ..before };
        assert_eq!(show(&outbox, id).await, expected);
        // A back-off of one second is one second and not the claim timeout.
        case.advance(backoff - Duration::from_millis(1));
        assert_eq!(swept(&outbox, 10, "b").await, [0; 0], "{backoff_ms}");
        case.advance_ms(1);
        let again = outbox.sweep_batch(10, "b").await.unwrap();
        assert_eq!((ids_of(&again), again[0].attempts), (vec![id], expected.attempts), "{backoff_ms}");
        outbox.mark_published(id, "b").await.unwrap();
    }
    assert_eq!(outbox.reschedule(9_999, "a", SECOND, None).await.unwrap().unknown, [9_999], "no error");
}

/// Older than the threshold becomes NEW without `next_at`; younger ones are not touched.
pub async fn recover_stuck(case: &Case) {
    let outbox = open(case).await;
    let ids = insert(case, &outbox, 4).await;
    swept(&outbox, 2, "a").await;
    outbox.reschedule(ids[1], "a", SECOND * 3_600, Some("later")).await.unwrap();
    case.advance(SECOND * 60);
    swept(&outbox, 1, "b").await;
    let young = show(&outbox, ids[2]).await;
    assert_eq!(outbox.recover_stuck(SECOND * 61).await.unwrap(), 0);
    assert_eq!(outbox.recover_stuck(SECOND * 60).await.unwrap(), 2);
    for id in &ids[..2] {
        let entry = show(&outbox, *id).await;
        assert_eq!((entry.status, entry.next_at), (OutboxStatus::New, None));
        assert_eq!((entry.claimed_by, entry.claimed_at, entry.attempts), (None, None, 0));
    }
    assert_eq!(show(&outbox, ids[2]).await, young);
    assert_eq!(swept(&outbox, 10, "c").await, [ids[0], ids[1], ids[3]]);
}

/// Hundreds of entries in one call; ids and claimers are values, whatever they contain; concurrent claims are consistent.
pub async fn sweep_of_hundreds(case: &Case) {
    let outbox = open(case).await;
    let ids = insert(case, &outbox, 250).await;
    let injects = "'; UPDATE headwater_outbox_entry SET status = 'PUBLISHED'; --";
    let (first, second) = tokio::join!(outbox.sweep_batch(125, injects), outbox.sweep_batch(125, "b"));
    let (first, second) = (ids_of(&first.unwrap()), ids_of(&second.unwrap()));
    assert_eq!((first.len(), second.len()), (125, 125));
    let both: BTreeSet<i64> = first.iter().chain(&second).copied().collect();
    assert_eq!(both.into_iter().collect::<Vec<_>>(), ids, "each once");
    let marked = outbox.mark_published(&first, injects).await.unwrap();
    assert_eq!(marked.marked, first);
    let published = outbox.list(1_000, |all| all.status(OutboxStatus::Published)).await.unwrap();
    assert_eq!(ids_of(&published).len(), 125, "no more than asked for");
    let failed = outbox.mark_failed(&second, "b", injects, Duration::ZERO).await.unwrap();
    assert_eq!(failed.marked, second);
    assert_eq!(swept(&outbox, 1_000, "c").await.len(), 125);
}

/// Sweeps at the same time share nothing and wait for nothing: one beside an open transaction that has swept gets the rest at once.
pub async fn concurrent_sweeps(case: &Case) {
    let (outbox, other) = (open(case).await, open(case).await);
    let ids = insert(case, &outbox, 40).await;
    let sweeps = (0..8).map(|n| {
        let outbox = if n % 2 == 0 { outbox.clone() } else { other.clone() };
        async move { swept(&outbox, 5, &format!("relay-{n}")).await }
    });
    let all =
        tokio::time::timeout(DEADLINE, futures_util::future::join_all(sweeps)).await.expect("none waits");
    assert!(all.iter().all(|swept| swept.len() == 5), "{all:?}");
    let distinct: BTreeSet<i64> = all.into_iter().flatten().collect();
    assert_eq!(distinct.into_iter().collect::<Vec<_>>(), ids);
    beside_an_open_one(case).await;
}

/// On SQLite one transaction writes at a time.
#[cfg(feature = "postgres")]
async fn beside_an_open_one(case: &Case) {
    let store = case.open().await;
    let Some(postgres) = store.as_postgres() else { return };
    let outbox = Outbox::new(&store);
    let ids = insert(case, &outbox, 10).await;
    let transaction = postgres.begin().await.unwrap();
    let inside = outbox.within(&transaction.clone().into());
    assert_eq!(swept(&inside, 4, "a").await, ids[..4]);
    let beside = tokio::time::timeout(DEADLINE, swept(&outbox, 100, "b"));
    assert_eq!(beside.await.expect("it does not wait"), ids[4..]);
    drop(inside);
    transaction.rollback().await.unwrap();
    assert_eq!(swept(&outbox, 100, "b").await, ids[..4], "rolled back: never claimed");
}

#[cfg(not(feature = "postgres"))]
async fn beside_an_open_one(_: &Case) {}
