//! The writer: groups of commands, failures, a full disk, the size of its log.

use std::sync::atomic::{AtomicU32, Ordering};

use tokio::sync::oneshot::error::TryRecvError;

use super::super::epoch::History;
use super::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commands_that_fail_or_panic_harm_no_neighbour() {
    let place = Place::new();
    let store = Arc::new(place.open().await);
    let subscription = subscribed(&store, "orders").await;
    let mut tasks = Vec::new();
    for n in 0..200 {
        let store = Arc::clone(&store);
        tasks.push(tokio::spawn(async move {
            match n % 4 {
                0 => store.publish(&topic("orders"), &messages(2)).await.map(|published| published.len()),
                1 => store.write::<usize>(Kind::Define, |_| panic!("on purpose")).await,
                2 => store.write::<usize>(Kind::Publish, |_| panic!("on purpose")).await,
                _ => {
                    let large = NewMessage::new(vec![0; 2 * 1024 * 1024]);
                    store.publish(&topic("orders"), &[large]).await.map(|published| published.len())
                }
            }
        }));
    }
    let mut published = 0;
    for task in tasks {
        match task.await.unwrap() {
            Ok(count) => published += count,
            Err(error) => assert!(
                error.kind() == ErrorKind::PayloadTooLarge || error.to_string().contains("on purpose"),
                "{error:?}"
            ),
        }
    }
    assert_eq!(published, 100);
    assert_eq!(drain(&store, &subscription).await.len(), 100);
    assert_eq!(store.doctor().await.unwrap(), []);
}

#[tokio::test]
async fn a_full_disk_is_reported_and_service_resumes() {
    let place = Place::new();
    let store = place.open().await;
    let subscription = subscribed(&store, "orders").await;
    store.publish(&topic("orders"), &messages(3)).await.unwrap();
    let limit = |pages: i64| {
        store.write(Kind::Read, move |work| {
            Ok(work
                .connection
                .query_row(&format!("PRAGMA max_page_count = {pages}"), [], |row| row.get::<_, i64>(0))?)
        })
    };
    let pages = limit(1).await.unwrap();
    let large: Vec<NewMessage> = (0..10).map(|_| NewMessage::new(vec![7; 100_000])).collect();
    let error = store.publish(&topic("orders"), &large).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::StorageFull, "{error:?}");
    let (orders, small, refused) = (topic("orders"), messages(1), large.clone());
    let (small, refused) = tokio::join!(store.publish(&orders, &small), store.publish(&orders, &refused));
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::StorageFull);
    assert!(small.is_ok(), "a neighbour that fits is not refused: {small:?}");
    limit(pages + 10_000).await.unwrap();
    store.publish(&topic("orders"), &large).await.unwrap();
    let drained = drain(&store, &subscription).await;
    assert_eq!(drained.len(), 14, "what was refused was not stored");
    assert_eq!(store.doctor().await.unwrap(), []);
}

#[tokio::test]
async fn a_lock_held_by_another_is_reported_as_busy_and_nothing_is_acknowledged() {
    let place = Place::new();
    let options = OpenOptions::default().statement_timeout(Duration::from_millis(50));
    let store = open_at(&place.path(), options).await.unwrap();
    store.publish(&topic("orders"), &messages(1)).await.unwrap();
    let own = place.connect();
    own.execute_batch("BEGIN IMMEDIATE").unwrap();
    let error = store.publish(&topic("orders"), &messages(1)).await.unwrap_err();
    assert!(error.kind() == ErrorKind::Busy && error.is_retryable(), "{error:?}");
    #[cfg(target_os = "linux")]
    assert!(error.to_string().contains("another connection of this process holds its write lock"), "{error}");
    own.execute_batch("COMMIT").unwrap();
    store.publish(&topic("orders"), &messages(1)).await.unwrap();
    assert_eq!(store.topics().await.unwrap()[0].head.0, 2);
}

#[tokio::test]
async fn claims_do_not_wait_for_the_disk_unless_configured() {
    async fn level(store: &SqliteStore) -> i64 {
        let read = |work: &mut Work<'_>| {
            Ok(work.connection.query_row("PRAGMA synchronous", [], |row| row.get(0))?)
        };
        store.write(Kind::Consume, read).await.unwrap()
    }
    let publish =
        |work: &mut Work<'_>| Ok(work.connection.query_row("PRAGMA synchronous", [], |row| row.get(0))?);
    let place = Place::new();
    let store = place.open().await;
    assert_eq!(store.write::<i64>(Kind::Publish, publish).await.unwrap(), 2, "FULL");
    assert_eq!(level(&store).await, 1, "NORMAL");
    let durable = open_at(&place.path(), OpenOptions::default().durable_settlements(true)).await.unwrap();
    assert_eq!(level(&durable).await, 2, "FULL");
    let fast = open_at(&place.path(), OpenOptions::default().sync_every_publish(false)).await.unwrap();
    assert_eq!(fast.write::<i64>(Kind::Publish, publish).await.unwrap(), 1, "NORMAL");
}

#[tokio::test]
async fn promoting_waits_for_the_disk() {
    static SYNCED: AtomicU32 = AtomicU32::new(9);
    let place = Place::new();
    let store = place.open().await;
    let subscription = subscribed(&store, "orders").await;
    let later = Timestamp::now() + jiff::Span::new().hours(1);
    store.publish(&topic("orders"), &[NewMessage::new("x").deliver_at(later)]).await.unwrap();
    place.connect().execute("UPDATE headwater_schedule SET deliver_at_ms = 1", []).unwrap();
    let wanted = request(&subscription, 1);
    let claimed = store
        .write(Kind::Consume, move |work| {
            let (claimed, _) = claim::claim(work, &wanted, &History::default(), &rivals::Rivals::default())?;
            SYNCED.store(u32::from(work.synced), Ordering::SeqCst);
            Ok(claimed)
        })
        .await
        .unwrap();
    assert_eq!((claimed.leases.len(), SYNCED.load(Ordering::SeqCst)), (1, 1));
}

#[tokio::test]
async fn a_claim_whose_caller_was_cancelled_is_released() {
    let place = Place::new();
    let store = place.open().await;
    let subscription = subscribed(&store, "orders").await;
    store.publish(&topic("orders"), &messages(1)).await.unwrap();
    // The receiver of the answer is dropped while the writer runs the claim.
    let (wanted, (entered, mut runs)) = (request(&subscription, 1), tokio::sync::mpsc::channel(1));
    let (go, gate) = std::sync::mpsc::channel::<()>();
    let (job, answer) = Job::new(Kind::Consume, move |work| {
        let _ = entered.blocking_send(());
        let _ = gate.recv();
        claim::claim(work, &wanted, &History::default(), &rivals::Rivals::default())
    });
    assert!(store.commands.push(Box::new(job.undo(claim::give_back))).await.is_ok());
    runs.recv().await.unwrap();
    drop(answer);
    go.send(()).unwrap();
    // Queued after it: by then the writer has undone the claim, or will before the next claim.
    store.advance_heads().await.unwrap();
    let claimed = store.claim(&request(&subscription, 1)).await.unwrap();
    assert_eq!((claimed.leases.len(), claimed.leases[0].attempt), (1, 1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_log_stays_bounded_while_publishing_continues() {
    let place = Place::new();
    let store = open_at(&place.path(), OpenOptions::default().sync_every_publish(false)).await.unwrap();
    let batch: Vec<NewMessage> = (0..100).map(|_| NewMessage::new(vec![7; 10_000])).collect();
    let mut largest = 0;
    for _ in 0..400 {
        store.publish(&topic("orders"), &batch).await.unwrap();
        let log = std::fs::metadata(place.path().with_extension("db-wal")).unwrap().len();
        largest = largest.max(log);
    }
    let megabytes = largest / 1024 / 1024;
    // The hard size limit, the frames' headers and the one commit that passes it: no more, however the threads are
    // scheduled.
    let most = u64::try_from(checkpoint::FORCE_BYTES).unwrap() / 1024 / 1024 + 8;
    assert!(megabytes < most, "400 MB were published and the log grew to {megabytes} MB, over {most}");
}

/// A command that found the file locked has not run. A publish is put back at the front of the queue and stays ahead
/// of later commands; a command that a lease depends on is answered.
#[tokio::test]
async fn a_publish_outlasts_a_lock_that_ends_a_claim() {
    let place = Place::new();
    let options = OpenOptions::default().statement_timeout(Duration::from_secs(18));
    let store = Arc::new(open_at(&place.path(), options).await.unwrap());
    let subscription = subscribed(&store, "orders").await;
    let publish = |name: &'static str| {
        let store = Arc::clone(&store);
        tokio::spawn(async move { store.publish(&topic("orders"), &[NewMessage::new(name)]).await })
    };
    let own = place.connect();
    own.execute_batch("BEGIN IMMEDIATE").unwrap();
    let first = publish("first");
    let claimed = store.claim(&request(&subscription, 1)).await;
    assert_eq!(claimed.unwrap_err().kind(), ErrorKind::Busy);
    let second = publish("second");
    let claimed = store.claim(&request(&subscription, 1)).await;
    assert_eq!(claimed.unwrap_err().kind(), ErrorKind::Busy);
    assert!(!first.is_finished() && !second.is_finished(), "they still wait");
    own.execute_batch("COMMIT").unwrap();
    first.await.unwrap().unwrap();
    second.await.unwrap().unwrap();
    assert_eq!(drain(&store, &subscription).await, ["first", "second"]);
}

/// A command that a lease depends on is answered while a lock is held, however many publishes were put back in front
/// of it.
#[tokio::test]
async fn publishes_that_were_put_back_keep_no_claim_from_its_answer() {
    let place = Place::new();
    let options = OpenOptions::default().statement_timeout(Duration::from_secs(18));
    let store = open_at(&place.path(), options).await.unwrap();
    let subscription = subscribed(&store, "orders").await;
    let own = place.connect();
    own.execute_batch("BEGIN IMMEDIATE").unwrap();
    // One more than a transaction runs.
    let mut answers = Vec::new();
    for _ in 0..=writer::GROUP_COMMANDS_MAX {
        let (job, answer) = Job::new(Kind::Publish, |_| Ok(()));
        assert!(store.commands.push(Box::new(job)).await.is_ok());
        answers.push(answer);
    }
    let claimed = store.claim(&request(&subscription, 1)).await;
    assert_eq!(claimed.unwrap_err().kind(), ErrorKind::Busy);
    let waits = |answer: &mut oneshot::Receiver<_>| {
        answer.try_recv().is_err_and(|empty| empty == TryRecvError::Empty)
    };
    assert!(answers.iter_mut().all(waits), "they wait longer than the claim");
    own.execute_batch("COMMIT").unwrap();
    for answer in answers {
        answer.await.unwrap().unwrap();
    }
}

/// By its own handler: SQLite's would wait for five seconds, and without one there would be no wait.
#[test]
fn every_connection_waits_for_a_lock_as_long_as_it_may() {
    let place = Place::new();
    let location = Location::new(&SqlitePath::File(place.path())).unwrap();
    let connection = connection::open(&location, Role::Writer).unwrap();
    let own = place.connect();
    own.execute_batch("BEGIN IMMEDIATE").unwrap();
    let limit = Duration::from_millis(50);
    let began = std::time::Instant::now();
    let refused = patience::at_most(limit, || connection.execute_batch("BEGIN IMMEDIATE"));
    let elapsed = began.elapsed();
    assert!(fault::is_busy(&refused.unwrap_err()));
    assert!(elapsed >= limit && elapsed < patience::LOCK_WAIT, "{elapsed:?}");
}
