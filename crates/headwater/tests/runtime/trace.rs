//! A trace follows its messages: from the publisher through the handler to what the handler publishes.

use std::time::Duration;

use headwater::trace::{self, TraceContext};
use headwater::{Message, NewMessage};

use crate::each::{Place, Seen, on_each};

on_each!(what_a_handler_publishes_belongs_to_the_messages_trace);

async fn what_a_handler_publishes_belongs_to_the_messages_trace(place: Place) {
    let headwater = place.open().await;
    let (producer, mails) = (headwater.producer("orders"), headwater.producer("mails"));
    let context: TraceContext = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01".parse().unwrap();
    let traced = context.clone().with_state("vendor=1");
    trace::within(traced, async { producer.send(NewMessage::new("traced")).await }).await.unwrap();
    producer.send(NewMessage::new("plain")).await.unwrap();

    let seen = Seen::default();
    let add = seen.clone();
    let running = headwater
        .consumer("orders", "email")
        .member("one", move |message: Message, _| {
            let (add, mails) = (add.clone(), mails.clone());
            async move {
                mails.send(NewMessage::new(message.payload.clone())).await?;
                add.add((message.payload, trace::current()));
                Ok(())
            }
        })
        .run()
        .await
        .unwrap();
    let contexts = seen.reach(2).await;
    running.shutdown(Duration::from_secs(5)).await.unwrap();
    let handled = |payload: &str| contexts.iter().find(|(seen, _)| seen == payload).unwrap().1.clone();
    assert_eq!(handled("plain"), None);
    let handler = handled("traced").unwrap();
    assert_eq!((handler.trace_id(), handler.state()), (context.trace_id(), Some("vendor=1")));
    assert_ne!(handler.span_id(), context.span_id(), "the handler has its own span");

    let mut consumer = headwater.consumer("mails", "all").open().await.unwrap();
    let mut published = Vec::new();
    while published.len() < 2 {
        let batch = consumer.next(Duration::from_secs(30)).await.unwrap().expect("both mails are delivered");
        published.extend(batch.messages().to_vec());
        batch.ack().await.unwrap();
    }
    let mail = |payload: &str| published.iter().find(|mail| mail.payload == payload).unwrap();
    assert_eq!(mail("traced").headers["traceparent"], handler.to_string());
    assert_eq!(mail("traced").headers["tracestate"], "vendor=1");
    assert!(mail("plain").headers.is_empty(), "no byte is added without a trace");
    place.leave(&headwater).await;
}
