//! Message flow: all messages, once, to many groups, and an orderly shutdown.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use headwater::store::BackfillPace;
use headwater::{Context, Handling, Json, Messages, NewMessage, TopicName};
use tokio::sync::{Notify, Semaphore};

use crate::each::{
    DEADLINE, Place, Seen, eventually, gated, leased_until, noting, on_each, publish_numbers, settled,
};

on_each!(
    every_message_is_handled_once,
    a_batch_handler_gets_everything_in_batches,
    many_groups_read_each_message_once,
    a_slow_message_blocks_no_others_and_they_are_acked,
    messages_not_started_go_to_another_process,
    shutdown_releases_what_was_not_started,
    shutdown_ends_handlers_after_the_grace_time,
    a_lease_is_extended_while_its_handler_works,
    a_dead_process_is_replaced,
    new_messages_reach_a_waiting_consumer,
    a_group_may_run_twice_in_one_process,
    a_paced_group_catches_up_with_everything_and_then_keeps_up,
);

async fn every_message_is_handled_once(place: Place) {
    let headwater = place.open().await;
    publish_numbers(&headwater, "orders", 3_000).await;
    let seen = Seen::default();
    let running = headwater
        .consumer("orders", "email")
        .handling("one", noting(&seen))
        .concurrency(8)
        .run()
        .await
        .unwrap();
    let mut got = seen.reach(3_000).await;
    settled(&headwater, "orders", "email").await;
    got.sort_unstable();
    assert_eq!(got, (0..3_000).collect::<Vec<_>>());
    let health = running.health();
    assert_eq!((health.totals.delivered, health.totals.acked, health.in_flight), (3_000, 3_000, 0));
    running.shutdown(Duration::from_secs(5)).await.unwrap();
    assert_eq!(seen.len(), 3_000);
    place.leave(&headwater).await;
}

async fn a_batch_handler_gets_everything_in_batches(place: Place) {
    let headwater = place.open().await;
    publish_numbers(&headwater, "orders", 2_500).await;
    let seen = Seen::default();
    let add = seen.clone();
    let running = headwater
        .consumer("orders", "email")
        .handling(
            "all",
            Handling::batch(move |messages: Messages, _| {
                add.add(messages.iter().map(|message| message.offset.0).collect::<Vec<_>>());
                async { Ok(()) }
            }),
        )
        .batch(100)
        .run()
        .await
        .unwrap();
    settled(&headwater, "orders", "email").await;
    let batches: Vec<Vec<i64>> = seen.all();
    assert!(batches.iter().all(|batch| !batch.is_empty() && batch.len() <= 100));
    let all: HashSet<i64> = batches.iter().flatten().copied().collect();
    assert_eq!((all.len(), batches.iter().flatten().count()), (2_500, 2_500));
    running.shutdown(Duration::from_secs(5)).await.unwrap();
    place.leave(&headwater).await;
}

async fn many_groups_read_each_message_once(place: Place) {
    let headwater = place.open().await;
    headwater.topic("orders").pub_sub().create().await.unwrap();
    publish_numbers(&headwater, "orders", 1_000).await;
    let seen = Seen::default();
    let mut running = Vec::new();
    for group in 0..20 {
        let add = seen.clone();
        let consumer = headwater.consumer("orders", &format!("group-{group}")).handling(
            "all",
            Handling::batch(move |messages: Messages, _| {
                messages.iter().for_each(|message| add.add((group, message.offset.0)));
                async { Ok(()) }
            }),
        );
        running.push(consumer.run().await.unwrap());
    }
    seen.reach(20_000).await;
    // Groups that started earlier may have read the first messages before the others subscribed.
    let (read_before, handed_before) = running[0].read_and_handed();
    assert_eq!(handed_before, 20_000);
    publish_numbers(&headwater, "orders", 1_000).await;
    let got: HashSet<(i32, i64)> = seen.reach(40_000).await.into_iter().collect();
    assert_eq!(got.len(), 40_000, "every group got every message once");
    let (read, handed) = running[0].read_and_handed();
    assert_eq!((read - read_before, handed), (1_000, 40_000), "each message was read from the store once");
    for running in running {
        running.shutdown(Duration::from_secs(5)).await.unwrap();
    }
    place.leave(&headwater).await;
}

async fn a_slow_message_blocks_no_others_and_they_are_acked(place: Place) {
    let headwater = place.open().await;
    publish_numbers(&headwater, "orders", 500).await;
    let (seen, gate) = (Seen::default(), Arc::new(Notify::new()));
    let (add, wait) = (seen.clone(), Arc::clone(&gate));
    let running = headwater
        .consumer("orders", "email")
        .member("one", move |Json(n): Json<u64>, _| {
            let (add, wait) = (add.clone(), Arc::clone(&wait));
            async move {
                if n == 3 {
                    wait.notified().await;
                }
                add.add(n);
                Ok(())
            }
        })
        .concurrency(4)
        .run()
        .await
        .unwrap();
    let got = seen.reach(499).await;
    assert!(!got.contains(&3));
    // The others are acked although their lease has not ended: one offset stays outstanding.
    let topic = TopicName::new("orders").unwrap();
    eventually("only the slow message is outstanding", async || {
        let status = headwater.store().subscriptions(&topic).await.unwrap().remove(0);
        status.floor.0 == 3 && status.next.0 == 501 && status.leased == 1 && status.waiting == 0
    })
    .await;
    gate.notify_one();
    settled(&headwater, "orders", "email").await;
    assert_eq!(seen.len(), 500);
    running.shutdown(Duration::from_secs(5)).await.unwrap();
    place.leave(&headwater).await;
}

async fn messages_not_started_go_to_another_process(place: Place) {
    let headwater = place.open().await;
    publish_numbers(&headwater, "orders", 60).await;
    let (gate, seen) = (Arc::new(Semaphore::new(0)), Seen::default());
    let stuck = headwater
        .consumer("orders", "email")
        .handling("stuck", gated(&seen, &gate))
        .concurrency(2)
        .run()
        .await
        .unwrap();
    eventually("the first consumer is busy", async || stuck.health().in_flight == 2).await;
    let other = place.open().await;
    let free = other.consumer("orders", "email").handling("free", noting(&seen)).run().await.unwrap();
    seen.reach(58).await;
    gate.add_permits(60);
    let got: HashSet<u64> = seen.reach(60).await.into_iter().collect();
    assert_eq!(got.len(), 60);
    settled(&headwater, "orders", "email").await;
    assert_eq!(seen.len(), 60, "nothing was handled twice");
    stuck.shutdown(Duration::from_secs(5)).await.unwrap();
    free.shutdown(Duration::from_secs(5)).await.unwrap();
    other.close().await.unwrap();
    place.leave(&headwater).await;
}

async fn shutdown_releases_what_was_not_started(place: Place) {
    let headwater = place.open().await;
    publish_numbers(&headwater, "orders", 200).await;
    let (gate, seen) = (Arc::new(Semaphore::new(0)), Seen::default());
    let first = headwater
        .consumer("orders", "email")
        .handling("first", gated(&seen, &gate))
        .concurrency(3)
        .run()
        .await
        .unwrap();
    eventually("three are being handled", async || first.health().in_flight == 3).await;
    let stopping = tokio::spawn(async move { first.shutdown(Duration::from_secs(20)).await.unwrap() });
    // Others get what was not started while the three are still being handled.
    let other = place.open().await;
    let second = other.consumer("orders", "email").handling("second", noting(&seen)).run().await.unwrap();
    seen.reach(197).await;
    gate.add_permits(10);
    let stopped = stopping.await.unwrap();
    assert!(stopped.in_time);
    settled(&headwater, "orders", "email").await;
    let got: HashSet<u64> = seen.all().into_iter().collect();
    assert_eq!((got.len(), seen.len()), (200, 200), "everything once");
    second.shutdown(Duration::from_secs(5)).await.unwrap();
    other.close().await.unwrap();
    place.leave(&headwater).await;
}

async fn shutdown_ends_handlers_after_the_grace_time(place: Place) {
    let headwater = place.open().await;
    publish_numbers(&headwater, "orders", 10).await;
    let started = Seen::default();
    let add = started.clone();
    let running = headwater
        .consumer("orders", "email")
        .member("endless", move |Json(n): Json<u64>, _| {
            add.add(n);
            async {
                std::future::pending::<()>().await;
                Ok(())
            }
        })
        .concurrency(4)
        .run()
        .await
        .unwrap();
    started.reach(4).await;
    let stopped = running.shutdown(Duration::from_millis(50)).await.unwrap();
    assert!(!stopped.in_time);
    let mut consumer = headwater.consumer("orders", "email").batch(10).open().await.unwrap();
    let mut offsets = HashSet::new();
    while offsets.len() < 10 {
        let batch = consumer.next(DEADLINE).await.unwrap().expect("all are released at once");
        assert_eq!(batch.attempt(), 1, "a release counts no attempt");
        offsets.extend(batch.messages().iter().map(|message| message.offset.0));
        batch.ack().await.unwrap();
    }
    place.leave(&headwater).await;
}

/// More than three lease times pass: without extension another member would get the message by then.
async fn a_lease_is_extended_while_its_handler_works(place: Place) {
    let (headwater, clock) = place.open_still().await;
    let lease = Duration::from_millis(900);
    publish_numbers(&headwater, "orders", 1).await;
    let (gate, seen) = (Arc::new(Notify::new()), Seen::default());
    let (wait, add) = (Arc::clone(&gate), seen.clone());
    let running = headwater
        .consumer("orders", "email")
        .member("slow", move |Json(n): Json<u64>, context: Context| {
            let (wait, add) = (Arc::clone(&wait), add.clone());
            async move {
                add.add((n, context.attempt()));
                wait.notified().await;
                assert!(!context.is_lost());
                Ok(())
            }
        })
        .lease(lease)
        .run()
        .await
        .unwrap();
    seen.reach(1).await;
    let mut other = headwater.consumer("orders", "email").open().await.unwrap();
    for _ in 0..5 {
        clock.advance(lease / 3 * 2);
        assert!(other.next(Duration::ZERO).await.unwrap().is_none());
        leased_until(&headwater, "orders", "email", clock.now() + lease).await;
    }
    gate.notify_one();
    settled(&headwater, "orders", "email").await;
    assert_eq!(seen.all(), [(0, 1)]);
    running.shutdown(Duration::from_secs(5)).await.unwrap();
    place.leave(&headwater).await;
}

async fn a_dead_process_is_replaced(place: Place) {
    let headwater = place.open().await;
    publish_numbers(&headwater, "orders", 5).await;
    let dead = headwater::store::Owner::new("dead").unwrap();
    let store = headwater.store();
    store.heartbeat(&dead, Some(Duration::from_secs(15)), &[]).await.unwrap();
    let mut consumer = headwater.consumer("orders", "email").owner(dead).open().await.unwrap();
    let held = consumer.next(DEADLINE).await.unwrap().expect("five wait");
    assert_eq!(held.messages().len(), 5);
    // Its lease runs for five minutes, but it sends no more heartbeats: the next heartbeat of another owner ends it.
    let alive = headwater::store::Owner::new("alive").unwrap();
    eventually("the silent owner is noticed", async || {
        store.heartbeat(&alive, Some(Duration::from_millis(300)), &[]).await.unwrap().ended > 0
    })
    .await;
    let seen = Seen::default();
    let running = headwater.consumer("orders", "email").handling("one", noting(&seen)).run().await.unwrap();
    seen.reach(5).await;
    settled(&headwater, "orders", "email").await;
    assert_eq!(running.health().totals.reassigned, 5);
    assert_eq!(held.ack().await.unwrap_err().kind(), headwater::ErrorKind::LeaseLost);
    running.shutdown(Duration::from_secs(5)).await.unwrap();
    place.leave(&headwater).await;
}

async fn new_messages_reach_a_waiting_consumer(place: Place) {
    let headwater = place.open().await;
    let other = place.open().await;
    let seen = Seen::default();
    let add = seen.clone();
    headwater.topic("orders").create().await.unwrap();
    let running = headwater
        .consumer("orders", "email")
        .member("one", move |message: headwater::Message, _| {
            add.add(message.payload);
            async { Ok(()) }
        })
        .run()
        .await
        .unwrap();
    for n in 0..20 {
        let from = if n % 2 == 0 { &headwater } else { &other };
        from.producer("orders").send(NewMessage::new(format!("{n}"))).await.unwrap();
        seen.reach(n + 1).await;
    }
    running.shutdown(Duration::from_secs(5)).await.unwrap();
    other.close().await.unwrap();
    place.leave(&headwater).await;
}

async fn a_group_may_run_twice_in_one_process(place: Place) {
    let headwater = place.open().await;
    publish_numbers(&headwater, "orders", 400).await;
    let (seen, gate) = (Seen::default(), Arc::new(Semaphore::new(0)));
    let mut running = Vec::new();
    for consumer in 0..2 {
        let (add, wait) = (seen.clone(), Arc::clone(&gate));
        let consumer = headwater.consumer("orders", "email").concurrency(2).member(
            "one",
            move |Json(n): Json<u64>, _| {
                let (add, wait) = (add.clone(), Arc::clone(&wait));
                async move {
                    add.add((consumer, n));
                    wait.acquire().await.unwrap().forget();
                    Ok(())
                }
            },
        );
        running.push(consumer.run().await.unwrap());
    }
    // Both consumers are busy: neither keeps the other from its share.
    let first = seen.reach(4).await;
    assert_eq!(first.iter().filter(|(consumer, _)| *consumer == 0).count(), 2, "{first:?}");
    gate.add_permits(1_000);
    let got: HashSet<u64> = seen.reach(400).await.into_iter().map(|(_, n)| n).collect();
    settled(&headwater, "orders", "email").await;
    assert_eq!((got.len(), seen.len()), (400, 400));
    for running in running {
        running.shutdown(Duration::from_secs(5)).await.unwrap();
    }
    place.leave(&headwater).await;
}

/// A group that yields to applications while it has a backlog gets all of it, in more than one claim, and what
/// follows.
async fn a_paced_group_catches_up_with_everything_and_then_keeps_up(place: Place) {
    let headwater = place.open().await;
    publish_numbers(&headwater, "orders", 2_000).await;
    let seen = Seen::default();
    let running = headwater
        .consumer("orders", "late")
        .handling("one", noting(&seen))
        .catch_up_pace(BackfillPace::Conservative)
        .run()
        .await
        .unwrap();
    seen.reach(2_000).await;
    publish_numbers(&headwater, "orders", 10).await;
    seen.reach(2_010).await;
    settled(&headwater, "orders", "late").await;
    assert_eq!(seen.len(), 2_010, "everything once");
    running.shutdown(Duration::from_secs(5)).await.unwrap();
    place.leave(&headwater).await;
}
