//! Programs that block their threads: they are late, and lose no lease because of it.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use headwater::settle::Verdict;
use headwater::testing::ManualClock;
use headwater::{Clock, Handling, Headwater, Json, OpenOptions};

use crate::each::{DEADLINE, Place, Seen, leased_until, on_each, publish_numbers, settled};
use crate::pull::{released, with_retries_due};

on_each!(
    handlers_that_block_every_thread_keep_their_leases,
    a_batch_that_is_handled_keeps_its_lease_while_every_thread_is_blocked,
    what_waits_in_the_list_is_released_while_every_thread_is_blocked,
);

/// It is extended after a third. A batch is lost only if the machine stalls for the rest of it. The clock passes seven sixths of it at most:
/// less than the 15 seconds after which a process without a heartbeat loses its leases.
const LEASE: Duration = Duration::from_secs(12);

/// Blocks threads until the sender is dropped.
#[derive(Clone)]
struct Block(Arc<Mutex<Receiver<()>>>);

fn blocking() -> (Sender<()>, Block) {
    let (unblock, blocked) = channel();
    (unblock, Block(Arc::new(Mutex::new(blocked))))
}

impl Block {
    fn wait(&self) {
        let _ = self.0.lock().unwrap().recv();
    }
}

/// Acts as another process, on another runtime.
fn elsewhere<T: Send + 'static, F: Future<Output = T> + 'static>(
    place: &Place,
    clock: &ManualClock,
    act: impl FnOnce(Headwater) -> F + Send + 'static,
) -> JoinHandle<T> {
    let (url, clock) = (place.url().to_owned(), clock.clone());
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async move {
            let options = OpenOptions::default().clock(Clock::Manual(clock));
            let headwater = Headwater::open_with(&url, options).await.unwrap();
            let result = act(headwater.clone()).await;
            headwater.close().await.unwrap();
            result
        })
    })
}

/// Another process, which lets more than a lease time pass once `count` threads here are blocked. It gets nothing of
/// the group, and then unblocks them.
fn other_process(
    place: &Place,
    clock: &ManualClock,
    begun: &Seen<u64>,
    count: usize,
    unblock: Sender<()>,
) -> JoinHandle<()> {
    let (time, begun) = (clock.clone(), begun.clone());
    elsewhere(place, clock, move |headwater| async move {
        begun.reach(count).await;
        let mut consumer = headwater.consumer("orders", "email").open().await.unwrap();
        time.advance(LEASE / 3);
        leased_until(&headwater, "orders", "email", time.now() + LEASE).await;
        time.advance(LEASE / 6 * 5);
        assert!(consumer.next(Duration::ZERO).await.unwrap().is_none(), "nothing runs twice");
        consumer.close().await.unwrap();
        drop(unblock);
    })
}

async fn joined(other: JoinHandle<()>) {
    tokio::task::spawn_blocking(|| other.join().unwrap()).await.unwrap();
}

async fn handlers_that_block_every_thread_keep_their_leases(place: Place) {
    let (headwater, clock) = place.open_still().await;
    publish_numbers(&headwater, "orders", 2).await;
    let (begun, (unblock, block)) = (Seen::default(), blocking());
    let other = other_process(&place, &clock, &begun, 2, unblock);
    let begin = begun.clone();
    let member = Handling::one(move |Json(n): Json<u64>, _| {
        let (begin, block) = (begin.clone(), block.clone());
        async move {
            begin.add(n);
            // As many handlers block as the runtime has threads.
            block.wait();
            Ok(())
        }
    });
    let consumer = headwater.consumer("orders", "email").lease(LEASE).concurrency(2);
    let running = consumer.handling("one", member).run().await.unwrap();
    joined(other).await;
    settled(&headwater, "orders", "email").await;
    assert_eq!((begun.len(), running.health().totals.lease_lost), (2, 0));
    running.shutdown(Duration::from_secs(5)).await.unwrap();
    place.leave(&headwater).await;
}

async fn a_batch_that_is_handled_keeps_its_lease_while_every_thread_is_blocked(place: Place) {
    let (headwater, clock) = place.open_still().await;
    publish_numbers(&headwater, "orders", 1).await;
    let (begun, (unblock, block)) = (Seen::default(), blocking());
    let other = other_process(&place, &clock, &begun, 3, unblock);
    let mut consumer = headwater.consumer("orders", "email").lease(LEASE).open().await.unwrap();
    let batch = consumer.next(DEADLINE).await.unwrap().expect("one waits");
    // One thread each; the handler blocks this one.
    let blocking = [1, 2].map(|n| {
        let (begun, block) = (begun.clone(), block.clone());
        tokio::spawn(async move {
            begun.add(n);
            block.wait();
        })
    });
    let handled = batch.handle(|_, _| {
        begun.add(0);
        block.wait();
        std::future::ready(Verdict::Done)
    });
    handled.await.expect("its lease was extended");
    joined(other).await;
    for blocking in blocking {
        blocking.await.unwrap();
    }
    assert_eq!(begun.len(), 3, "the batch was handled once");
    consumer.close().await.unwrap();
    place.leave(&headwater).await;
}

async fn what_waits_in_the_list_is_released_while_every_thread_is_blocked(place: Place) {
    let (headwater, clock) = place.open_still().await;
    let lease = Duration::from_secs(12);
    let mut consumer = with_retries_due(&headwater, &clock, 4, lease).await;
    let batch = consumer.next(DEADLINE).await.unwrap().expect("four are due");
    let (unblock, block) = blocking();
    let other = elsewhere(&place, &clock, move |headwater| async move {
        let mut consumer = headwater.consumer("orders", "email").open().await.unwrap();
        let mut attempts = Vec::new();
        while attempts.len() < 3 {
            let batch = released(&mut consumer, lease).await;
            attempts.push(batch.attempt());
            batch.ack().await.unwrap();
        }
        consumer.close().await.unwrap();
        drop(unblock);
        attempts
    });
    let blocking = [1, 2].map(|_| {
        let block = block.clone();
        tokio::spawn(async move { block.wait() })
    });
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
