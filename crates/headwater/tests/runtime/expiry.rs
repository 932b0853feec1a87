//! Messages with a time to live: skipped and counted once it is over, whatever kind of handler they are for.

use std::time::Duration;

use headwater::testing::ManualClock;
use headwater::{Context, Handling, Json, Messages, NewMessage};

use crate::each::{DEADLINE, Place, Seen, noting, on_each};

on_each!(
    an_expired_message_reaches_no_handler_and_is_counted,
    an_expired_message_is_left_out_of_batches,
    an_expired_message_has_no_effect_in_transactions,
    a_pulled_batch_leaves_out_what_has_expired,
    the_time_of_a_scheduled_message_begins_when_it_is_due,
    a_header_that_is_no_time_means_never,
);

const MINUTE: Duration = Duration::from_secs(60);

fn clock() -> ManualClock {
    ManualClock::at("2026-03-02T09:00:00Z".parse().unwrap())
}

/// Publishes 0 to 3; 1 and 2 live for a minute.
async fn publish(headwater: &headwater::Headwater) {
    let orders = headwater.producer("orders");
    for n in 0..4_u64 {
        let message = NewMessage::json(&n).unwrap().key("k");
        let message = if n % 3 == 0 { message } else { message.expires_in(MINUTE) };
        orders.send(message).await.unwrap();
    }
}

async fn an_expired_message_reaches_no_handler_and_is_counted(place: Place) {
    let clock = clock();
    for ordered in [false, true] {
        let headwater = place.open_at(&clock).await;
        let topic = headwater.topic("orders");
        if ordered { topic.ordered_by_key().ensure() } else { topic.ensure() }.await.unwrap();
        let (seen, group) = (Seen::default(), if ordered { "ordered" } else { "plain" });
        let consumer = headwater.consumer("orders", group).concurrency(1).handling("one", noting(&seen));
        let mut consumer = consumer.start_from(headwater::Start::Now).stepwise().await.unwrap();
        publish(&headwater).await;
        clock.advance(MINUTE - Duration::from_millis(1));
        consumer.drain().await.unwrap();
        publish(&headwater).await;
        clock.advance(MINUTE);
        consumer.drain().await.unwrap();
        let totals = consumer.running().health().totals;
        assert_eq!(seen.all(), [0, 1, 2, 3, 0, 3], "{totals:?}");
        assert_eq!((totals.expired, totals.acked), (2, 8));
        headwater.groups("orders").cancel(group).await.unwrap();
        headwater.close().await.unwrap();
    }
    place.leave(&place.open().await).await;
}

async fn an_expired_message_is_left_out_of_batches(place: Place) {
    let clock = clock();
    let headwater = place.open_at(&clock).await;
    publish(&headwater).await;
    clock.advance(MINUTE);
    let seen = Seen::default();
    let add = seen.clone();
    let many = Handling::batch(move |messages: Messages, _: Context| {
        messages.iter().for_each(|message| add.add(message.payload.clone()));
        async { Ok(()) }
    });
    let mut consumer = headwater.consumer("orders", "email").handling("many", many).stepwise().await.unwrap();
    consumer.drain().await.unwrap();
    assert_eq!(seen.all(), ["0", "3"]);
    assert_eq!(consumer.running().health().totals.expired, 2);
    place.leave(&headwater).await;
}

async fn an_expired_message_has_no_effect_in_transactions(place: Place) {
    let clock = clock();
    let headwater = place.open_at(&clock).await;
    headwater.topic("done").create().await.unwrap();
    publish(&headwater).await;
    clock.advance(MINUTE);
    let done = headwater.producer("done");
    let once = if headwater.store().engine() == "sqlite" {
        Handling::in_sqlite(move |connection, Json(n): Json<u64>, _: &Context| {
            done.send(&n).within(connection)?;
            Ok(())
        })
    } else {
        Handling::in_postgres(move |transaction, Json(n): Json<u64>, _: Context| {
            let done = done.clone();
            async move {
                done.send(&n).within(&transaction).await?;
                Ok(())
            }
        })
    };
    let mut consumer = headwater.consumer("orders", "email").handling("once", once).stepwise().await.unwrap();
    consumer.drain().await.unwrap();
    let done: Vec<_> = headwater.published("done").await.unwrap();
    assert_eq!(done.iter().map(|message| &message.payload[..]).collect::<Vec<_>>(), [b"0", b"3"]);
    assert_eq!(consumer.running().health().totals.expired, 2);
    place.leave(&headwater).await;
}

async fn a_pulled_batch_leaves_out_what_has_expired(place: Place) {
    let clock = clock();
    let headwater = place.open_at(&clock).await;
    publish(&headwater).await;
    clock.advance(MINUTE);
    let mut consumer = headwater.consumer("orders", "email").open().await.unwrap();
    let batch = consumer.next(DEADLINE).await.unwrap().unwrap();
    let payloads: Vec<_> = batch.messages().iter().map(|message| message.payload.clone()).collect();
    assert_eq!(payloads, ["0", "3"]);
    batch.ack().await.unwrap();
    // A batch of nothing else is acked without being handed out.
    headwater.producer("orders").send(&4).expires_in(Duration::ZERO).await.unwrap();
    assert!(consumer.next(Duration::ZERO).await.unwrap().is_none());
    assert_eq!(headwater.groups("orders").get("email").await.unwrap().status.lag, 0);
    place.leave(&headwater).await;
}

async fn the_time_of_a_scheduled_message_begins_when_it_is_due(place: Place) {
    let clock = clock();
    let headwater = place.open_at(&clock).await;
    headwater.producer("orders").send(&1_u64).delay(2 * MINUTE).expires_in(MINUTE).await.unwrap();
    let seen = Seen::default();
    let mut consumer =
        headwater.consumer("orders", "email").handling("one", noting(&seen)).stepwise().await.unwrap();
    clock.advance(2 * MINUTE);
    consumer.drain().await.unwrap();
    assert_eq!(seen.all(), [1]);
    place.leave(&headwater).await;
}

async fn a_header_that_is_no_time_means_never(place: Place) {
    let clock = clock();
    let headwater = place.open_at(&clock).await;
    for (n, value) in ["soon", "-1", "1e3", "99999999999999999999999"].into_iter().enumerate() {
        headwater.producer("orders").send(&n).header("headwater-expires-in-ms", value).await.unwrap();
    }
    clock.advance(MINUTE);
    let seen = Seen::default();
    let consumer = headwater.consumer("orders", "email").concurrency(1).handling("one", noting(&seen));
    let mut consumer = consumer.stepwise().await.unwrap();
    consumer.drain().await.unwrap();
    assert_eq!(seen.all(), [0, 1, 2, 3]);
    place.leave(&headwater).await;
}
