//! The rules of the outbox beyond its scenarios: who may mark, how entries end, order of keys, transactions, plain SQL.

use std::collections::BTreeSet;
use std::time::Duration;

use jiff::SignedDuration;

use super::super::case::{Case, DEADLINE, failed};
use super::{CLAIM_TIMEOUT, ids_of, insert, open, show, swept};
use crate::dead_letter::{AnyDeadLetterSelection, DeadLetterSource, DeadLetters};
use crate::error::ErrorKind;
use crate::limits::{
    DELAY_MAX, ERROR_TEXT_BYTES_MAX, INBOX_RETENTION, OUTBOX_ENTRIES_MAX, OUTBOX_RETENTION,
    PAYLOAD_BYTES_DEFAULT, PAYLOAD_BYTES_MAX,
};
use crate::outbox::{Category, FailedEntry, Marked, NewEntry, Outbox, OutboxStatus};
use crate::store::{EntryRetention, EntryStep};
use crate::transaction::run::in_store;

const SECOND: Duration = Duration::from_secs(1);
const MILLISECOND: Duration = Duration::from_millis(1);

/// An entry that another claimer has since is left alone, and reported; one that is published never changes.
pub async fn only_its_claimer_marks_an_entry(case: &Case) {
    let outbox = open(case).await;
    let ids = insert(case, &outbox, 2).await;
    swept(&outbox, 2, "slow").await;
    case.advance(CLAIM_TIMEOUT);
    assert_eq!(swept(&outbox, 1, "next").await, ids[..1]);
    let held = show(&outbox, ids[0]).await;
    let lost = Marked { lost: vec![ids[0]], ..Marked::default() };
    assert_eq!(outbox.mark_published(ids[0], "slow").await.unwrap(), lost);
    assert_eq!(outbox.mark_failed(ids[0], "slow", "late", SECOND).await.unwrap(), lost);
    assert_eq!(outbox.reschedule(ids[0], "slow", SECOND, Some("late")).await.unwrap(), lost);
    assert_eq!(show(&outbox, ids[0]).await, held);
    // The other one was not swept since: late, and still its own.
    assert_eq!(outbox.mark_published(&ids, "slow").await.unwrap().marked, ids[1..]);
    outbox.mark_published(ids[0], "next").await.unwrap();
    let published = show(&outbox, ids[0]).await;
    case.advance(SECOND);
    assert_eq!(outbox.mark_published(ids[0], "next").await.unwrap(), lost);
    assert_eq!(outbox.mark_failed(ids[0], "next", "no", SECOND).await.unwrap(), lost);
    assert_eq!(outbox.reschedule(ids[0], "next", SECOND, None).await.unwrap(), lost);
    assert_eq!(outbox.requeue(ids[0]).await.unwrap(), [0; 0]);
    assert_eq!(outbox.recover_stuck(Duration::ZERO).await.unwrap(), 0);
    assert_eq!(show(&outbox, ids[0]).await, published);
}

/// At its last attempt a failed entry is parked: a dead letter has it whole, and no sweep takes it.
pub async fn an_entry_without_an_attempt_left_is_parked(case: &Case) {
    let store = case.open().await;
    let (outbox, dead_letters) = (Outbox::new(&store).max_attempts(2), DeadLetters::new(&store));
    let command =
        NewEntry::command_requested("Pay", "c-7", "customer-3", vec![0_u8, 255], crate::Headers::new());
    let id = outbox.insert_returning_id(&command).await.unwrap();
    for attempt in 1..=2 {
        assert_eq!(swept(&outbox, 1, "relay-1").await, [id]);
        let marked = outbox.mark_failed(id, "relay-1", &format!("failure {attempt}"), Duration::ZERO).await;
        let marked = marked.unwrap();
        assert_eq!((marked.marked.len(), marked.parked.len()), if attempt == 1 { (1, 0) } else { (0, 1) });
    }
    let entry = show(&outbox, id).await;
    assert_eq!((entry.status, entry.attempts, entry.next_at), (OutboxStatus::Parked, 2, None));
    case.advance(CLAIM_TIMEOUT * 2);
    assert_eq!(swept(&outbox, 10, "relay-1").await, [0; 0]);
    let found = dead_letters.list(10, AnyDeadLetterSelection::of_outbox).await.unwrap().remove(0);
    assert_eq!(found.source, DeadLetterSource::Outbox { id, topic: "commands.Pay".into() });
    assert_eq!((found.command_id.as_str(), found.name.as_deref()), ("c-7", Some("CommandRequested")));
    assert_eq!((found.business_key.as_deref(), &found.payload[..]), (Some("customer-3"), &[0, 255][..]));
    assert_eq!(found.headers, command.headers);
    assert_eq!((found.failed_status.as_deref(), found.attempts), (Some("FAILED"), 2));
    assert_eq!(found.error_message.as_deref(), Some("failure 2"));
    assert_eq!(found.parked_by.as_deref(), Some("relay-1"));
    assert_eq!(found.parked_at, case.now() - CLAIM_TIMEOUT * 2);
}

/// A claim that times out counts as an attempt, so that an entry that kills its relay ends; a claim that is given back does not.
pub async fn an_entry_that_kills_its_relay_ends(case: &Case) {
    let store = case.open().await;
    let (outbox, dead_letters) = (Outbox::new(&store).max_attempts(3), DeadLetters::new(&store));
    // A header that is too long for an id must not keep the entry from ending.
    let endless = NewEntry::kafka_event("orders", "k", "T", "1").header("commandId", "x".repeat(1_000));
    let id = outbox.insert_returning_id(&endless).await.unwrap();
    for attempts in 0..3 {
        let entry = outbox.sweep_batch(10, "victim").await.unwrap().remove(0);
        assert_eq!((entry.id, entry.attempts), (id, attempts));
        outbox.reschedule(id, "victim", SECOND, None).await.unwrap();
        case.advance(SECOND);
        assert_eq!(outbox.sweep_batch(10, "victim").await.unwrap()[0].attempts, attempts);
        case.advance(CLAIM_TIMEOUT);
    }
    assert_eq!(swept(&outbox, 10, "survivor").await, [0; 0]);
    assert_eq!(show(&outbox, id).await.status, OutboxStatus::Parked);
    let found = dead_letters.list(10, AnyDeadLetterSelection::of_outbox).await.unwrap().remove(0);
    assert_eq!((found.failed_status.as_deref(), found.attempts), (Some("TIMED_OUT"), 3));
    assert_eq!(found.error_message.as_deref(), Some("claim by victim timed out"));
    assert_eq!((found.parked_by.as_deref(), found.command_id), (Some("survivor"), id.to_string()));
    assert_eq!(found.parked_at, case.now());
}

/// Requeued by an operator, an entry is NEW with no attempts, and its dead letter is gone; so is the audit aware of it.
pub async fn a_requeued_entry_is_new_and_has_no_dead_letter(case: &Case) {
    let store = case.open().await;
    let (outbox, dead_letters) = (Outbox::new(&store).max_attempts(1), DeadLetters::new(&store));
    let ids = insert(case, &outbox, 3).await;
    swept(&outbox, 2, "a").await;
    outbox.mark_failed(ids[0], "a", "parked", SECOND).await.unwrap();
    Outbox::new(&store).mark_failed(ids[1], "a", "failed", SECOND * 60).await.unwrap();
    assert_eq!(dead_letters.list(10, |all| all).await.unwrap().len(), 1);
    let mut requeued = outbox.requeue(vec![ids[0], ids[1], ids[2], 9_999]).await.unwrap();
    requeued.sort_unstable();
    assert_eq!(requeued, ids[..2], "NEW and unknown ones are not changed");
    assert_eq!(dead_letters.list(10, |all| all).await.unwrap(), []);
    let again = outbox.sweep_batch(10, "b").await.unwrap();
    assert_eq!(ids_of(&again), ids);
    assert!(again.iter().all(|entry| entry.attempts == 0), "{again:?}");
    assert_eq!(store.audit(1).await.unwrap()[0].act, "requeue");
    // Parked again, it has a dead letter again.
    outbox.mark_failed(ids[0], "b", "again", SECOND).await.unwrap();
    assert_eq!(dead_letters.list(10, |all| all).await.unwrap().len(), 1);
}

/// In the order of keys an entry waits for every older one of its topic and key; other keys, topics, and entries without a key do not.
pub async fn entries_of_a_key_are_swept_one_after_another(case: &Case) {
    let outbox = open(case).await;
    let add = async |topic: &str, key: Option<&str>| {
        let event = NewEntry::new(Category::Event, topic, "T", "1");
        let event = NewEntry { key: key.map(str::to_owned), ..event };
        outbox.insert_returning_id(&event).await.unwrap()
    };
    let first = add("orders", Some("k")).await;
    let second = add("orders", Some("k")).await;
    let third = add("orders", Some("k")).await;
    let others = [
        add("orders", Some("l")).await,
        add("mails", Some("k")).await,
        add("a", None).await,
        add("a", None).await,
    ];
    let ordered = async |claimer: &str| ids_of(&outbox.sweep_in_key_order(10, claimer).await.unwrap());
    assert_eq!(ordered("a").await, [&[first][..], &others].concat());
    assert_eq!(ordered("b").await, [0; 0], "the first is under way");
    outbox.mark_failed(first, "a", "away", SECOND).await.unwrap();
    assert_eq!(ordered("b").await, [0; 0], "the first is not due, and holds back the others");
    case.advance(SECOND);
    assert_eq!(ordered("b").await, [first]);
    outbox.mark_published(first, "b").await.unwrap();
    assert_eq!(ordered("b").await, [second]);
    case.advance(CLAIM_TIMEOUT);
    assert_eq!(
        swept(&outbox.clone().max_attempts(1), 1, "c").await,
        [third],
        "a plain sweep holds back nothing"
    );
    assert_eq!(show(&outbox, second).await.status, OutboxStatus::Parked);
    case.advance(CLAIM_TIMEOUT);
    assert_eq!(ordered("d").await[0], third, "what is parked holds back nothing");
    // A clock that goes back between two inserts does not change their order.
    let early = add("clocks", Some("k")).await;
    case.step(SignedDuration::from_secs(-30));
    add("clocks", Some("k")).await;
    let swept = outbox.sweep_in_key_order(10, "e").await.unwrap();
    assert_eq!(ids_of(&swept), [early]);
}

/// Each rule by its field; nothing is written.
pub async fn entries_outside_their_rules_are_refused(case: &Case) {
    let outbox = open(case).await;
    let good = || NewEntry::kafka_event("orders", "k", "T", "1");
    let long = "x".repeat(256);
    for (bad, says) in [
        (good().topic(""), "invalid topic: "),
        (good().topic(&*long), "invalid topic: 256 bytes"),
        (good().topic("a\nb"), "invalid topic: control"),
        (good().key(""), "invalid key: "),
        (good().key("a\0b"), "invalid key: "),
        (NewEntry { entry_type: String::new(), ..good() }, "invalid type: "),
        (NewEntry { entry_type: long.clone(), ..good() }, "invalid type: "),
        (good().header("", "x"), "invalid header name: "),
        (good().header("a", "b\0"), "invalid header value: "),
        (good().header("a", "x".repeat(16_385)), "invalid header value: "),
    ] {
        let error = failed(outbox.insert_returning_id(&bad).await, ErrorKind::InvalidInput).to_string();
        assert!(error.starts_with(says), "{error}");
    }
    let large = NewEntry { payload: vec![7; PAYLOAD_BYTES_DEFAULT + 1].into(), ..good() };
    failed(outbox.insert_returning_id(&large).await, ErrorKind::PayloadTooLarge);
    let beyond = NewEntry { payload: vec![7; PAYLOAD_BYTES_MAX + 1].into(), ..good() };
    let widest = outbox.clone().payload_bytes_max(usize::MAX);
    failed(widest.insert_returning_id(&beyond).await, ErrorKind::PayloadTooLarge);
    assert_eq!(outbox.list(10, |all| all).await.unwrap(), []);
    let id = widest.insert_returning_id(&large).await.unwrap();
    assert_eq!(show(&outbox, id).await.payload, large.payload, "with a higher limit");
    for max in [0, OUTBOX_ENTRIES_MAX + 1] {
        failed(outbox.sweep_batch(max, "a").await, ErrorKind::InvalidInput);
    }
    failed(outbox.sweep_batch(1, "").await, ErrorKind::InvalidInput);
    failed(outbox.claim_if_new(id, &long).await, ErrorKind::InvalidInput);
    failed(outbox.clone().max_attempts(0).sweep_batch(1, "a").await, ErrorKind::InvalidInput);
    failed(outbox.clone().claim_timeout(Duration::ZERO).sweep_batch(1, "a").await, ErrorKind::InvalidInput);
    failed(outbox.reschedule(id, "a", DELAY_MAX + SECOND, None).await, ErrorKind::InvalidInput);
    failed(outbox.mark_failed(id, "a", "x", DELAY_MAX + SECOND).await, ErrorKind::InvalidInput);
    let many: Vec<i64> = (0..=i64::from(OUTBOX_ENTRIES_MAX)).collect();
    failed(outbox.mark_published(many, "a").await, ErrorKind::InvalidInput);
    assert_eq!(show(&outbox, id).await.status, OutboxStatus::New);
}

/// A long error is kept to its limit with a marker, and NUL is replaced; each entry of a call may have its own.
pub async fn errors_are_kept_to_their_limit(case: &Case) {
    let outbox = open(case).await;
    let ids = insert(case, &outbox, 2).await;
    swept(&outbox, 2, "a").await;
    let long = "ö".repeat(ERROR_TEXT_BYTES_MAX);
    let failures =
        [FailedEntry::new(ids[0], &*long, SECOND), FailedEntry::new(ids[1], "a\0b", case.now() + SECOND * 2)];
    assert_eq!(outbox.mark_failed_each(&failures, "a").await.unwrap().marked, ids);
    let (first, second) = (show(&outbox, ids[0]).await, show(&outbox, ids[1]).await);
    let error = first.last_error.unwrap();
    assert!(error.len() <= ERROR_TEXT_BYTES_MAX && error.ends_with("… (cut)"), "{} bytes", error.len());
    assert_eq!(second.last_error.as_deref(), Some("a\u{FFFD}b"));
    assert_eq!((first.next_at, second.next_at), (Some(case.now() + SECOND), Some(case.now() + SECOND * 2)));
    outbox.reschedule(ids[0], "a", SECOND, Some(&long)).await.unwrap();
    assert!(show(&outbox, ids[0]).await.last_error.unwrap().len() <= ERROR_TEXT_BYTES_MAX);
}

/// What is done in a transaction is seen inside, and exists after its commit or never: entries, claims, and parking with its dead letter.
pub async fn an_entry_exists_with_its_transaction_or_never(case: &Case) {
    let store = case.open().await;
    let outbox = Outbox::new(&store).max_attempts(1);
    for commits in [false, true] {
        let (inside, parked) = (outbox.clone(), DeadLetters::new(&store));
        let done = in_store(&*store, move |tx| async move {
            let (outbox, dead_letters) = (inside.within(&tx), parked.within(&tx));
            let event = NewEntry::kafka_event("orders", "k", "T", "1");
            let id = outbox.insert_returning_id(&event).await?;
            assert_eq!(outbox.show(id).await?.unwrap().status, OutboxStatus::New, "seen inside");
            assert_eq!(ids_of(&outbox.sweep_batch(10, "a").await?), [id]);
            assert_eq!(outbox.mark_failed(id, "a", "no", SECOND).await?.parked, [id]);
            assert_eq!(dead_letters.list(10, |all| all).await?.len(), 1);
            // Refused input leaves the transaction as it was.
            failed(outbox.sweep_batch(0, "a").await, ErrorKind::InvalidInput);
            assert_eq!(outbox.mark_published(id, "a").await?.lost, [id]);
            if commits { Ok(id) } else { Err(crate::Error::invalid("test", "rolled back")) }
        });
        let done: crate::Result<i64> = done.await;
        assert_eq!(done.is_ok(), commits, "{done:?}");
        let entries = outbox.list(10, |all| all).await.unwrap();
        let dead_letters = DeadLetters::new(&store).list(10, |all| all).await.unwrap();
        assert_eq!((entries.len(), dead_letters.len()), if commits { (1, 1) } else { (0, 0) });
    }
}

/// A transaction of another store is refused, and nothing is written there.
pub async fn a_transaction_of_another_store_is_refused(case: &Case) {
    let store = case.open().await;
    let beside = case.harness().url_beside("beside");
    let Ok(other) = case.open_at(&beside, case.options()).await else { return };
    let outbox = Outbox::new(&store);
    let refused: crate::Result<i64> = in_store(&*other, move |tx| async move {
        outbox.within(&tx).insert_returning_id(&NewEntry::kafka_event("orders", "k", "T", "1")).await
    })
    .await;
    let error = failed(refused, ErrorKind::InvalidInput).to_string();
    assert!(error.starts_with("invalid transaction: "), "{error}");
    assert_eq!(Outbox::new(&other).list(10, |all| all).await.unwrap(), []);
}

/// Published entries are removed after their retention, and no others, whatever their age.
pub async fn published_entries_are_removed_after_their_retention(case: &Case) {
    let store = case.open().await;
    let outbox = Outbox::new(&store);
    let ids = insert(case, &outbox, 5).await;
    swept(&outbox, 4, "a").await;
    outbox.mark_published(&ids[..2], "a").await.unwrap();
    outbox.clone().max_attempts(1).mark_failed(ids[2], "a", "parked", SECOND).await.unwrap();
    let retention = EntryRetention { inbox: INBOX_RETENTION, outbox: OUTBOX_RETENTION };
    let clean = async || store.clean_entries(&retention).await.unwrap();
    case.advance(OUTBOX_RETENTION - MILLISECOND);
    assert_eq!(clean().await, EntryStep::default());
    case.advance(MILLISECOND);
    assert_eq!(clean().await, EntryStep { inbox: 0, outbox: 2, more: false });
    assert_eq!(clean().await, EntryStep::default());
    let left = outbox.list(10, |all| all).await.unwrap();
    assert_eq!(ids_of(&left), ids[2..]);
    assert_eq!(outbox.show(ids[0]).await.unwrap(), None);
    let short = EntryRetention { outbox: Duration::ZERO, ..retention };
    swept(&outbox, 10, "b").await;
    outbox.mark_published(ids[4], "b").await.unwrap();
    assert_eq!(store.clean_entries(&short).await.unwrap().outbox, 1, "a setting");
}

/// Lists by status, category, topic and key, oldest first, page by page.
pub async fn entries_are_listed_by_what_is_asked_for(case: &Case) {
    let outbox = open(case).await;
    let ids = insert(case, &outbox, 4).await;
    let reply =
        outbox.insert_returning_id(&NewEntry::new(Category::Reply, "answers", "T", "1")).await.unwrap();
    swept(&outbox, 3, "a").await;
    outbox.mark_published(ids[0], "a").await.unwrap();
    outbox.mark_failed(ids[1], "a", "no", SECOND).await.unwrap();
    let listed = async |choose: fn(crate::outbox::OutboxSelection) -> crate::outbox::OutboxSelection| {
        ids_of(&outbox.list(10, choose).await.unwrap())
    };
    assert_eq!(listed(|all| all).await, [ids[1], ids[2], ids[3], reply], "without those that are published");
    assert_eq!(listed(|all| all.status(OutboxStatus::Published)).await, ids[..1]);
    assert_eq!(listed(|all| all.status(OutboxStatus::Failed)).await, ids[1..2]);
    assert_eq!(listed(|all| all.status(OutboxStatus::Claimed)).await, ids[2..3]);
    assert_eq!(listed(|all| all.status(OutboxStatus::New)).await, [ids[3], reply]);
    assert_eq!(listed(|all| all.status(OutboxStatus::Parked)).await, [0; 0]);
    assert_eq!(listed(|all| all.category(Category::Reply)).await, [reply]);
    assert_eq!(listed(|all| all.topic("orders").key("key-3")).await, ids[2..3]);
    let page = ids_of(&outbox.list(2, |all| all).await.unwrap());
    assert_eq!(page, ids[1..3]);
    assert_eq!(ids_of(&outbox.list(2, |all| all.after(ids[2])).await.unwrap()), [ids[3], reply]);
}

/// A step of the clock neither ends nor lengthens a claim or a back-off.
pub async fn a_step_of_the_clock_moves_claims_and_back_offs(case: &Case) {
    for step in [SignedDuration::from_hours(5), SignedDuration::from_hours(-5)] {
        let store = case.open().await;
        let outbox = Outbox::new(&store);
        let ids = insert(case, &outbox, 2).await;
        assert_eq!(swept(&outbox, 2, "a").await, ids);
        outbox.mark_failed(ids[1], "a", "no", SECOND * 600).await.unwrap();
        store.advance_heads().await.unwrap();
        case.advance(SECOND);
        case.step(step);
        store.advance_heads().await.unwrap();
        assert_eq!(swept(&outbox, 10, "b").await, [0; 0], "{step:#}");
        case.advance(CLAIM_TIMEOUT);
        assert_eq!(swept(&outbox, 10, "b").await, ids[..1], "{step:#}: the claim ends in its time");
        case.advance(CLAIM_TIMEOUT);
        let all: BTreeSet<i64> = swept(&outbox, 10, "c").await.into_iter().collect();
        assert_eq!(all.into_iter().collect::<Vec<_>>(), ids, "{step:#}: and so does the back-off");
        outbox.mark_published(&ids, "c").await.unwrap();
    }
}

/// A waiter is woken by an entry of another store.
pub async fn a_new_entry_wakes_a_waiter(case: &Case) {
    let (outbox, other) = (open(case).await, open(case).await);
    for store in [&outbox, &other] {
        let wake = outbox.arm().await.unwrap();
        assert_eq!(swept(&outbox, 10, "waiter").await, [0; 0]);
        let id = insert(case, store, 1).await[0];
        let woken = tokio::time::timeout(DEADLINE, wake.wait(DEADLINE)).await;
        assert!(woken.unwrap_or(false), "the waiter was not woken");
        assert_eq!(swept(&outbox, 10, "waiter").await, [id]);
    }
}

/// Workers at the same time share no entry and leave none. `HEADWATER_OUTBOX_ENTRIES` says how many entries there are.
pub async fn workers_share_no_entry_and_leave_none(case: &Case) {
    const WORKERS: usize = 8;
    let asked = std::env::var("HEADWATER_OUTBOX_ENTRIES").ok().and_then(|text| text.parse().ok());
    let count: i64 = asked.unwrap_or(2_000);
    let store = case.open().await;
    let outbox = Outbox::new(&store);
    let now_ms = case.now().as_millisecond();
    // Beside the library: a hundred thousand inserts would take longer than what is tested.
    let sqlite = format!(
        "WITH RECURSIVE n (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < {count})
         INSERT INTO headwater_outbox_entry (category, topic, key, type, payload, created_at_ms)
         SELECT 'event', 'orders', 'k' || (n % 100), 'T', CAST(n AS BLOB), {now_ms} FROM n"
    );
    let postgres = format!(
        "INSERT INTO {{schema}}.outbox_entry (category, topic, key, type, payload, created_at)
         SELECT 'event', 'orders', 'k' || (n % 100), 'T', n::text::bytea, to_timestamp({now_ms} / 1000.0)
         FROM generate_series(1, {count}) n"
    );
    case.harness().sql(&sqlite, &postgres).await.unwrap();
    let workers = (0..WORKERS).map(|n| {
        let (outbox, claimer) = (outbox.clone(), format!("worker-{n}"));
        tokio::spawn(async move {
            let mut mine = Vec::new();
            loop {
                let entries = outbox.sweep_batch(100, &claimer).await.unwrap();
                if entries.is_empty() {
                    return mine;
                }
                let marked = outbox.mark_published(&entries, &claimer).await.unwrap();
                assert_eq!(marked.marked.len(), entries.len(), "{marked:?}");
                mine.extend(ids_of(&entries));
            }
        })
    });
    let workers: Vec<_> = workers.collect();
    let mut all = Vec::new();
    for worker in workers {
        all.extend(worker.await.unwrap());
    }
    let distinct: BTreeSet<i64> = all.iter().copied().collect();
    assert_eq!(all.len(), distinct.len(), "no entry was swept twice");
    assert_eq!(i64::try_from(all.len()).unwrap(), count, "none was left");
    assert_eq!(outbox.list(1, |all| all).await.unwrap(), []);
}
