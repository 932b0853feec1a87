//! Programs that block their threads: they are late, and lose no lease because of it.

use std::time::Duration;

use headwater::settle::Verdict;
use headwater::{Handling, Headwater, Json, OpenOptions};

use crate::each::{DEADLINE, Place, Seen, eventually, on_each, publish_numbers, settled};

on_each!(
    handlers_that_block_every_thread_keep_their_leases,
    a_batch_that_is_handled_keeps_its_lease_while_every_thread_is_blocked,
    what_waits_in_the_list_is_released_while_every_thread_is_blocked,
);

const LEASE: Duration = Duration::from_secs(1);
/// Long enough for another process to claim everything whose lease was not extended.
const BLOCKED: Duration = Duration::from_millis(2_500);

/// What another process, on another runtime, gets of the group between the start of `count` handlers here and their
/// end.
fn other_process(place: &Place, begun: &Seen<u64>, count: usize, done: &Seen<u64>) -> OtherProcess {
    let (url, begun, done) = (place.url().to_owned(), begun.clone(), done.clone());
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async move {
            let headwater = Headwater::open_with(&url, OpenOptions::default()).await.unwrap();
            let got = Seen::default();
            begun.reach(count).await;
            let consumer = headwater.consumer("orders", "email").lease(LEASE);
            let running = consumer.handling("other", crate::each::noting(&got)).run().await.unwrap();
            done.reach(count).await;
            running.shutdown(Duration::from_secs(5)).await.unwrap();
            headwater.close().await.unwrap();
            got.all()
        })
    })
}

type OtherProcess = std::thread::JoinHandle<Vec<u64>>;

async fn joined(other: OtherProcess) -> Vec<u64> {
    tokio::task::spawn_blocking(|| other.join().unwrap()).await.unwrap()
}

async fn handlers_that_block_every_thread_keep_their_leases(place: Place) {
    let headwater = place.open().await;
    publish_numbers(&headwater, "orders", 2).await;
    let (begun, done): (Seen<u64>, Seen<u64>) = Default::default();
    let other = other_process(&place, &begun, 2, &done);
    let (begin, end) = (begun.clone(), done.clone());
    let member = Handling::one(move |Json(n): Json<u64>, _| {
        let (begin, end) = (begin.clone(), end.clone());
        async move {
            begin.add(n);
            // As many handlers block as the runtime has threads.
            std::thread::sleep(BLOCKED);
            end.add(n);
            Ok(())
        }
    });
    let consumer = headwater.consumer("orders", "email").lease(LEASE).concurrency(2);
    let running = consumer.handling("one", member).run().await.unwrap();
    assert_eq!(joined(other).await, [0u64; 0], "nothing runs twice");
    settled(&headwater, "orders", "email").await;
    assert_eq!((begun.len(), running.health().totals.lease_lost), (2, 0));
    running.shutdown(Duration::from_secs(5)).await.unwrap();
    place.leave(&headwater).await;
}

async fn a_batch_that_is_handled_keeps_its_lease_while_every_thread_is_blocked(place: Place) {
    let headwater = place.open().await;
    publish_numbers(&headwater, "orders", 1).await;
    let (begun, done): (Seen<u64>, Seen<u64>) = Default::default();
    let other = other_process(&place, &begun, 1, &done);
    let mut consumer = headwater.consumer("orders", "email").lease(LEASE).open().await.unwrap();
    let batch = consumer.next(DEADLINE).await.unwrap().expect("one waits");
    // One thread each; the handler blocks this one.
    let blocking = [1, 2].map(|_| tokio::spawn(async { std::thread::sleep(BLOCKED + LEASE) }));
    let handled = batch.handle(|_, _| {
        begun.add(0);
        async {
            std::thread::sleep(BLOCKED);
            Verdict::Done
        }
    });
    handled.await.expect("its lease was extended");
    done.add(0);
    assert_eq!(joined(other).await, [0u64; 0], "nothing runs twice");
    for blocking in blocking {
        blocking.await.unwrap();
    }
    eventually("the batch was handled once", async || begun.len() == 1).await;
    consumer.close().await.unwrap();
    place.leave(&headwater).await;
}

async fn what_waits_in_the_list_is_released_while_every_thread_is_blocked(place: Place) {
    let headwater = place.open().await;
    let mut consumer = crate::pull::with_retries_due(&headwater, 4, LEASE * 3).await;
    let batch = consumer.next(DEADLINE).await.unwrap().expect("four are due");
    let url = place.url().to_owned();
    let other = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async move {
            let headwater = Headwater::open_with(&url, OpenOptions::default()).await.unwrap();
            let mut consumer = headwater.consumer("orders", "email").open().await.unwrap();
            let mut attempts = Vec::new();
            while attempts.len() < 3 {
                let batch = consumer.next(DEADLINE).await.unwrap().expect("three wait in the list");
                attempts.push(batch.attempt());
                batch.ack().await.unwrap();
            }
            consumer.close().await.unwrap();
            headwater.close().await.unwrap();
            attempts
        })
    });
    let blocking = [1, 2].map(|_| tokio::spawn(async { std::thread::sleep(LEASE * 5) }));
    // Joined on the test's thread: the runtime's threads are blocked.
    let attempts = other.join().unwrap();
    assert_eq!(attempts, [2, 2, 2], "released before the leases ended");
    for blocking in blocking {
        blocking.await.unwrap();
    }
    drop(batch);
    consumer.close().await.unwrap();
    place.leave(&headwater).await;
}
