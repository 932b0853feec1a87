//! What a message becomes.

use headwater::store::AnyDeadLetterSelection;
use headwater_relay::bridge::{Bridge, BridgeState};
use headwater_relay::rabbitmq::RabbitMqSink;
use headwater_relay::{Delivery, Sink};
use lapin::BasicProperties;
use lapin::types::{AMQPValue, FieldTable};

use crate::brokers::{From, Value, from};
use crate::on_each;
use crate::place::{Place, eventually, payloads, record};

on_each!(
    a_message_arrives_with_all_its_fields,
    what_amqp_carries_becomes_text,
    a_relayed_record_comes_back_as_it_was
);

async fn a_message_arrives_with_all_its_fields(place: Place) {
    let uuid = headwater::uuid::Uuid::now_v7().to_string();
    for kind in ["kafka", "rabbitmq", "nats"] {
        let Some(from) = from(kind).await else { return };
        let headwater = place.open().await;
        headwater.topic(kind).create().await.unwrap();
        let bridge = Bridge::from_url(&headwater, from.url(), kind).unwrap();
        assert!(bridge.named().starts_with(&format!("{kind}:in-")) && bridge.named().ends_with(kind));
        bridge.check().await.unwrap();
        let running = bridge.name(format!("{kind}-in")).start().unwrap();
        let headers = [("a", Value::Text("b ß")), ("headwater-type", Value::Text("Placed"))];
        from.publish(Some(&uuid), "größe 1", &headers, b"{\"n\":1}").await;
        from.publish(Some("order-7"), "k", &[], b"\xff\x00").await;
        eventually("both", async || headwater.published(kind).await.unwrap().len() == 2).await;
        let mut messages = headwater.published(kind).await.unwrap();
        // Kafka has an order per partition.
        messages.sort_by_key(|message| message.payload.len() < 7);
        let (one, other) = (&messages[0], &messages[1]);
        assert_eq!(one.message_id.to_string(), uuid, "{kind}");
        assert_eq!((one.key.as_deref(), one.message_type.as_deref()), (Some("größe 1"), Some("Placed")));
        assert_eq!((&*one.payload, one.headers["a"].as_str()), (b"{\"n\":1}".as_slice(), "b ß"));
        assert!(kind == "rabbitmq" || one.headers.contains_key("headwater-created-at"));
        assert!(!one.headers.contains_key("headwater-key") && !one.headers.contains_key("Nats-Msg-Id"));
        assert_eq!(
            (&*other.payload, other.headers["headwater-message-id"].as_str()),
            (b"\xff\x00".as_slice(), "order-7")
        );
        let health = running.health();
        assert_eq!(
            (health.state, health.published, health.parked),
            (BridgeState::Running, 2, 0),
            "{health:?}"
        );
        running.stop().await;
        headwater.close().await.unwrap();
    }
    let headwater = place.open().await;
    place.leave(&headwater).await;
}

/// Numbers and truth values have a text; a time stamp is kept; what the broker adds is not.
async fn what_amqp_carries_becomes_text(place: Place) {
    let Some(from) = from("rabbitmq").await else { return };
    let From::RabbitMq { channel, queue, .. } = &from else { unreachable!() };
    let headwater = place.open().await;
    headwater.topic("t").create().await.unwrap();
    let mut table = FieldTable::default();
    table.insert("n".into(), AMQPValue::LongLongInt(-7));
    table.insert("b".into(), AMQPValue::Boolean(true));
    table.insert("x-death".into(), AMQPValue::FieldArray(lapin::types::FieldArray::default()));
    let properties = BasicProperties::default()
        .with_headers(table.clone())
        .with_type("T".into())
        .with_content_type("text/plain".into())
        .with_correlation_id("c".into())
        .with_timestamp(1_769_860_800);
    from.publish_amqp(channel, queue, b"1", properties.clone()).await;
    // Without an id there is nothing to know it by: it is published again.
    from.publish_amqp(channel, queue, b"1", properties).await;
    table.insert("list".into(), AMQPValue::FieldArray(lapin::types::FieldArray::default()));
    from.publish_amqp(channel, queue, b"2", BasicProperties::default().with_headers(table)).await;
    let running = Bridge::from_url(&headwater, from.url(), "t").unwrap().name("in").start().unwrap();
    eventually("all", async || running.health().published == 2 && running.health().parked == 1).await;
    let message = headwater.published("t").await.unwrap().remove(0);
    assert_eq!((message.headers["n"].as_str(), message.headers["b"].as_str()), ("-7", "true"));
    assert_eq!(message.headers["headwater-created-at"], "2026-01-31T12:00:00Z");
    assert_eq!((message.headers.len(), message.message_type.as_deref()), (3, Some("T")));
    assert_eq!(
        (message.content_type.as_deref(), message.correlation_id.as_deref()),
        (Some("text/plain"), Some("c"))
    );
    let parked = headwater.dead_letters().list(10, AnyDeadLetterSelection::of_commands).await.unwrap();
    let error = parked[0].error_message.clone().unwrap();
    assert!(error.contains("header list is a list"), "{error}");
    running.stop().await;
    place.leave(&headwater).await;
}

/// Through a queue from one store to another, a message is the same.
async fn a_relayed_record_comes_back_as_it_was(place: Place) {
    let Some(from) = from("rabbitmq").await else { return };
    let headwater = place.open().await;
    headwater.topic("back").create().await.unwrap();
    let sink = RabbitMqSink::from_url(from.url()).unwrap();
    let mut sent = record(1, "-");
    sent.message_id = headwater::uuid::Uuid::now_v7().to_string();
    // Twice: the inbox knows it by its id.
    for _ in 0..2 {
        assert_eq!(sink.deliver(std::slice::from_ref(&sent)).await, Ok(vec![Delivery::Delivered]));
    }
    let running = Bridge::from_url(&headwater, from.url(), "back").unwrap().name("in").start().unwrap();
    eventually("both", async || running.health().published + running.health().duplicates == 2).await;
    assert_eq!(payloads(&headwater, "back").await.len(), 1);
    let mut got = headwater.published("back").await.unwrap().remove(0);
    got.headers.remove("headwater-created-at").unwrap();
    assert_eq!(
        (got.message_id.to_string(), got.key, got.message_type),
        (sent.message_id, sent.key, sent.message_type)
    );
    assert_eq!((got.content_type, got.correlation_id), (sent.content_type, sent.correlation_id));
    assert_eq!((got.headers, got.payload), (sent.headers, sent.payload));
    running.stop().await;
    place.leave(&headwater).await;
}
