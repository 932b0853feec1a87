//! The sink for RabbitMQ, on a real broker.
#![cfg(feature = "rabbitmq")]

#[path = "queues/place.rs"]
mod place;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use headwater_relay::rabbitmq::{KEY_HEADER, RabbitMqSink};
use headwater_relay::{Delivery, Sink, SinkError};
use headwater_servers::Stop;
use headwater_servers::brokers::RabbitMqKind;
use lapin::options::{
    BasicAckOptions, BasicGetOptions, ExchangeDeclareOptions, QueueBindOptions, QueueDeclareOptions,
};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{Channel, Connection, ConnectionProperties, ExchangeKind};
use place::{DEADLINE, broker, eventually, own, record, unique};

const VARIABLE: &str = "HEADWATER_TEST_RABBITMQ";
/// The load beside which the broker is killed: batches, and the records of one.
const BATCHES: usize = 60;
const BATCH: usize = 100;

async fn connect(url: &str) -> (Connection, Channel) {
    let connection = Connection::connect(url, ConnectionProperties::default()).await.expect("connected");
    let channel = connection.create_channel().await.expect("a channel");
    (connection, channel)
}

async fn declare(channel: &Channel, queue: &str, arguments: FieldTable) {
    channel.queue_declare(queue.into(), QueueDeclareOptions::durable(), arguments).await.expect("declared");
}

/// Takes all messages of a queue.
async fn take(channel: &Channel, queue: &str) -> Vec<lapin::message::Delivery> {
    let mut taken = Vec::new();
    while let Some(message) =
        channel.basic_get(queue.into(), BasicGetOptions::default()).await.expect("answered")
    {
        message.delivery.ack(BasicAckOptions::default()).await.expect("acked");
        taken.push(message.delivery);
    }
    taken
}

fn misconfigured(result: Result<impl std::fmt::Debug, SinkError>) -> String {
    match result {
        Err(SinkError::Misconfigured(text)) => text,
        other => panic!("not misconfigured: {other:?}"),
    }
}

#[tokio::test]
async fn a_record_arrives_with_all_its_fields() {
    let Some(url) = broker(VARIABLE) else { return };
    let (queue, exchange) = (unique("fields"), unique("events"));
    let (connection, channel) = connect(&url).await;
    declare(&channel, &queue, FieldTable::default()).await;
    let options = ExchangeDeclareOptions::default();
    let name = exchange.as_str();
    channel
        .exchange_declare(name.into(), ExchangeKind::Topic, options, FieldTable::default())
        .await
        .expect("declared");
    let bound = channel.queue_bind(
        queue.as_str().into(),
        name.into(),
        "order.*".into(),
        QueueBindOptions::default(),
        FieldTable::default(),
    );
    bound.await.expect("bound");
    let sinks = [
        (format!("{url}?queue={queue}"), "ignored"),
        (url.clone(), queue.as_str()),
        (format!("{url}?exchange={exchange}&routing_key=order.placed"), "ignored"),
        (format!("{url}?exchange={exchange}"), "order.placed"),
    ];
    for (url, destination) in sinks {
        let sink = RabbitMqSink::from_url(&url).expect("a URL");
        sink.check().await.expect("there");
        let sent = record(7, destination);
        assert_eq!(sink.deliver(std::slice::from_ref(&sent)).await, Ok(vec![Delivery::Delivered]));
        let taken = take(&channel, &queue).await;
        let [got] = taken.as_slice() else { panic!("{} messages", taken.len()) };
        let properties = &got.properties;
        let text = |value: &Option<lapin::types::ShortString>| value.as_ref().map(ToString::to_string);
        assert_eq!(text(properties.message_id()).as_deref(), Some("m-7"));
        assert_eq!(text(properties.kind()), sent.message_type);
        assert_eq!(text(properties.content_type()), sent.content_type);
        assert_eq!(text(properties.correlation_id()), sent.correlation_id);
        assert_eq!(*properties.delivery_mode(), Some(2), "persistent");
        assert_eq!(*properties.timestamp(), Some(1_769_860_800));
        let headers: BTreeMap<String, String> = properties
            .headers()
            .as_ref()
            .expect("headers")
            .inner()
            .iter()
            .map(|(name, value)| match value {
                AMQPValue::LongString(value) => (name.to_string(), value.to_string()),
                other => panic!("{name}: {other:?}"),
            })
            .collect();
        let mut expected = sent.headers.clone();
        expected.insert(KEY_HEADER.to_owned(), sent.key.clone().expect("a key"));
        assert_eq!((headers, got.data.as_slice()), (expected, &*sent.payload));
        sink.close().await;
    }
    drop(connection);
}

#[tokio::test]
async fn a_missing_queue_or_exchange_is_named_and_found_once_it_is_there() {
    let Some(url) = broker(VARIABLE) else { return };
    let (queue, exchange) = (unique("later"), unique("nowhere"));
    let sink = RabbitMqSink::from_url(&format!("{url}?queue={queue}")).expect("a URL");
    let text = misconfigured(sink.check().await);
    assert!(text.contains(&queue) && text.contains("declare it") && !text.contains("guest"), "{text}");
    let records = [record(1, "-"), record(2, "-")];
    let text = misconfigured(sink.deliver(&records).await);
    assert!(text.contains(&queue) && text.contains("declare it"), "{text}");
    let (_connection, channel) = connect(&url).await;
    declare(&channel, &queue, FieldTable::default()).await;
    sink.check().await.expect("there now");
    assert_eq!(sink.deliver(&records).await, Ok(vec![Delivery::Delivered; 2]));
    assert_eq!(take(&channel, &queue).await.len(), 2, "what was refused is not stored");

    let sink = RabbitMqSink::from_url(&format!("{url}?exchange={exchange}")).expect("a URL");
    for text in [misconfigured(sink.check().await), misconfigured(sink.deliver(&records).await)] {
        assert!(text.contains(&exchange) && text.contains("declare it"), "{text}");
    }
}

#[tokio::test]
async fn only_the_unroutable_records_of_a_batch_fail() {
    let Some(url) = broker(VARIABLE) else { return };
    let (there, missing) = (unique("there"), unique("missing"));
    let (_connection, channel) = connect(&url).await;
    declare(&channel, &there, FieldTable::default()).await;
    let sink = RabbitMqSink::from_url(&url).expect("a URL");
    let records = [record(1, &there), record(2, &missing), record(3, &there)];
    let delivered = sink.deliver(&records).await.expect("answered");
    let Delivery::Failed { reason, .. } = &delivered[1] else { panic!("{delivered:?}") };
    assert!(reason.contains(&missing) && reason.contains("declare it"), "{reason}");
    assert_eq!((&delivered[0], &delivered[2]), (&Delivery::Delivered, &Delivery::Delivered));
    assert_eq!(take(&channel, &there).await.len(), 2);
}

#[tokio::test]
async fn a_full_queue_fails_a_record_and_takes_it_later() {
    let Some(url) = broker(VARIABLE) else { return };
    let queue = unique("full");
    let (_connection, channel) = connect(&url).await;
    let mut arguments = FieldTable::default();
    arguments.insert("x-max-length".into(), AMQPValue::LongInt(1));
    arguments.insert("x-overflow".into(), AMQPValue::LongString("reject-publish".into()));
    declare(&channel, &queue, arguments).await;
    let sink = RabbitMqSink::from_url(&format!("{url}?queue={queue}")).expect("a URL");
    assert_eq!(sink.deliver(&[record(1, "-")]).await, Ok(vec![Delivery::Delivered]));
    let delivered = sink.deliver(&[record(2, "-")]).await.expect("answered");
    assert!(matches!(&delivered[0], Delivery::Failed { .. }), "{delivered:?}");
    assert_eq!(take(&channel, &queue).await.len(), 1);
    assert_eq!(sink.deliver(&[record(2, "-")]).await, Ok(vec![Delivery::Delivered]));
}

#[tokio::test]
async fn wrong_credentials_and_virtual_hosts_are_named_without_the_password() {
    let Some(url) = broker(VARIABLE) else { return };
    let host = url.rsplit_once('@').expect("an address").1.split('/').next().expect("a host");
    for (url, says) in [
        (format!("amqp://guest:hunter2@{host}/%2F?queue=q"), "user and password"),
        (format!("amqp://mallory:hunter2@{host}?queue=q"), "user and password"),
        (format!("amqp://guest:guest@{host}/no-such-host?queue=q"), "virtual host"),
    ] {
        let sink = RabbitMqSink::from_url(&url).expect("a URL");
        for text in [misconfigured(sink.check().await), misconfigured(sink.deliver(&[record(1, "q")]).await)]
        {
            assert!(text.contains(says) && text.contains(host) && !text.contains("hunter2"), "{text}");
        }
        assert!(!format!("{sink:?}").contains("hunter2"));
    }
    let nowhere = RabbitMqSink::from_url("amqp://127.0.0.1:1?queue=q").expect("a URL");
    let refused = nowhere.deliver(&[record(1, "q")]).await;
    assert!(
        matches!(&refused, Err(SinkError::Unavailable(text)) if text.contains("127.0.0.1:1")),
        "{refused:?}"
    );
}

#[tokio::test]
async fn what_does_not_fit_amqp_is_refused_alone() {
    let Some(url) = broker(VARIABLE) else { return };
    let queue = unique("fit");
    let (_connection, channel) = connect(&url).await;
    declare(&channel, &queue, FieldTable::default()).await;
    let sink = RabbitMqSink::from_url(&url).expect("a URL");
    let (mut large, mut long, mut fits) = (record(2, &queue), record(3, &"q".repeat(300)), record(4, &queue));
    // A frame has 128 KiB.
    large.headers = (0..16).map(|n| (format!("h{n}"), "x".repeat(9_000))).collect();
    fits.headers = (0..14).map(|n| (format!("h{n}"), "x".repeat(9_000))).collect();
    long.message_id = "i".repeat(300);
    let delivered = sink.deliver(&[record(1, &queue), large, long, fits]).await.expect("answered");
    let refused = |at: usize, says: &str| matches!(&delivered[at], Delivery::Refused { reason } if reason.contains(says));
    assert!(refused(1, "headers of") && refused(2, "message id"), "{delivered:?}");
    assert_eq!((&delivered[0], &delivered[3]), (&Delivery::Delivered, &Delivery::Delivered));
    assert_eq!(take(&channel, &queue).await.len(), 2);
}

/// How far the load is, in batches.
struct Load {
    sent: AtomicUsize,
    /// Calls that have delivered none or not all of their batch, as far as is known.
    unknown: AtomicUsize,
    /// How many batches may be sent.
    allowed: AtomicUsize,
}

/// Sends each batch until it is delivered.
async fn send_all(sink: RabbitMqSink, load: &Load) {
    for batch in 0..BATCHES {
        let until = Instant::now() + DEADLINE;
        while load.allowed.load(Ordering::Relaxed) <= batch {
            assert!(Instant::now() < until, "not allowed: batch {batch}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let records: Vec<_> = (0..BATCH).map(|n| record(batch * BATCH + n, "load")).collect();
        loop {
            // A broker that is stopping still answers, and has no queue any more: for the whole batch, or for the rest of it.
            match sink.deliver(&records).await {
                Ok(delivered) if delivered.iter().all(|one| *one == Delivery::Delivered) => break,
                Ok(delivered) => {
                    let is_refused = |one: &Delivery| matches!(one, Delivery::Refused { .. });
                    assert!(!delivered.iter().any(is_refused), "{delivered:?}");
                }
                Err(SinkError::Unavailable(_) | SinkError::Misconfigured(_)) => {}
            }
            load.unknown.fetch_add(1, Ordering::Relaxed);
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        load.sent.store(batch + 1, Ordering::Relaxed);
    }
}

/// Killed under load, the broker has everything afterwards that was delivered, and twice at most what was in flight.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn everything_arrives_although_the_broker_is_killed_under_load() {
    let Some(mut rabbit) = own::<RabbitMqKind>() else { return };
    let url = rabbit.url();
    let (connection, channel) = connect(&url).await;
    declare(&channel, "load", FieldTable::default()).await;
    drop(connection);
    let sink = RabbitMqSink::from_url(&format!("{url}?queue=load")).expect("a URL");
    let load = Arc::new(Load {
        sent: AtomicUsize::new(0),
        unknown: AtomicUsize::new(0),
        allowed: AtomicUsize::new(BATCHES / 3),
    });
    let sending = tokio::spawn({
        let load = Arc::clone(&load);
        async move { send_all(sink, &load).await }
    });
    for (at, how) in [(15, Stop::Kill), (35, Stop::Fast)] {
        eventually("the load", async || load.sent.load(Ordering::Relaxed) >= at).await;
        rabbit.stop(how).expect("stopped");
        // Now there are batches left for the time without a broker, however late it was stopped.
        let unknown = load.unknown.load(Ordering::Relaxed);
        load.allowed.fetch_add(BATCHES / 3, Ordering::Relaxed);
        eventually("a batch without a broker", async || load.unknown.load(Ordering::Relaxed) > unknown).await;
        rabbit.serve().expect("started");
        rabbit.wait(|| Ok(())).expect("ready");
    }
    sending.await.expect("sent");
    let unknown = load.unknown.load(Ordering::Relaxed);
    let (_connection, channel) = connect(&url).await;
    let mut arrived: BTreeMap<String, usize> = BTreeMap::new();
    for delivery in take(&channel, "load").await {
        *arrived.entry(delivery.properties.message_id().as_ref().expect("an id").to_string()).or_default() +=
            1;
    }
    assert_eq!(arrived.len(), BATCHES * BATCH, "each arrived");
    let twice: usize = arrived.values().map(|times| times - 1).sum();
    assert!(twice <= unknown * BATCH, "{twice} twice, {unknown} batches sent again");
}
