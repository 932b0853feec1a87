//! The brokers as publishers: messages with every field, and many with numbers.

use std::time::Duration;

use async_nats::jetstream::{self, stream};
use lapin::options::{BasicPublishOptions, ConfirmSelectOptions, QueueDeclareOptions};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{BasicProperties, Channel, Connection, ConnectionProperties};
use rdkafka::ClientConfig;
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::message::OwnedHeaders;
use rdkafka::producer::{FutureProducer, FutureRecord};

use crate::place::{broker, unique};

/// A broker, a place in it that this case alone uses, and the URL of a bridge from there.
pub(crate) enum From {
    Kafka { producer: FutureProducer, topic: String, url: String },
    RabbitMq { _connection: Connection, channel: Channel, queue: String, url: String },
    Nats { context: jetstream::Context, stream: String, url: String },
}

/// A broker by its name, if the test command has one.
pub(crate) async fn from(kind: &str) -> Option<From> {
    Some(match kind {
        "kafka" => kafka(&broker("HEADWATER_TEST_KAFKA")?, &unique("in"), 3).await,
        "rabbitmq" => rabbitmq(&broker("HEADWATER_TEST_RABBITMQ")?, &unique("in")).await,
        "nats" => nats(&broker("HEADWATER_TEST_NATS")?, &unique("in")).await,
        other => unreachable!("{other}"),
    })
}

pub(crate) async fn kafka(hosts: &str, topic: &str, partitions: i32) -> From {
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", hosts).set("linger.ms", "5").set("enable.idempotence", "true");
    let admin: AdminClient<_> = config.create().expect("a client");
    let new = NewTopic::new(topic, partitions, TopicReplication::Fixed(1));
    let created = admin.create_topics([&new], &AdminOptions::new()).await.expect("answered");
    created[0].as_ref().expect("created");
    From::Kafka {
        producer: config.create().expect("a producer"),
        topic: topic.to_owned(),
        url: format!("kafka://{hosts}/{topic}"),
    }
}

pub(crate) async fn rabbitmq(url: &str, queue: &str) -> From {
    let connection = Connection::connect(url, ConnectionProperties::default()).await.expect("connected");
    let channel = connection.create_channel().await.expect("a channel");
    channel.confirm_select(ConfirmSelectOptions::default()).await.expect("confirms");
    let options = QueueDeclareOptions::durable();
    channel.queue_declare(queue.into(), options, FieldTable::default()).await.expect("declared");
    let url = format!("{url}?queue={queue}");
    From::RabbitMq { _connection: connection, channel, queue: queue.to_owned(), url }
}

pub(crate) async fn nats(url: &str, name: &str) -> From {
    let context = jetstream::new(async_nats::connect(url).await.expect("connected"));
    let config = stream::Config {
        name: name.to_owned(),
        subjects: vec![format!("{name}.>")],
        ..stream::Config::default()
    };
    context.create_stream(config).await.expect("created");
    From::Nats { context, stream: name.to_owned(), url: format!("{url}/{name}.>?ack_wait_ms=1000") }
}

/// A header of a message.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Value<'v> {
    Text(&'v str),
    /// Nothing that is text.
    Bytes(&'v [u8]),
}

impl From {
    pub(crate) fn url(&self) -> &str {
        match self {
            From::Kafka { url, .. } | From::RabbitMq { url, .. } | From::Nats { url, .. } => url,
        }
    }

    /// Publishes a message, and waits until the broker has it.
    pub(crate) async fn publish(
        &self,
        id: Option<&str>,
        key: &str,
        headers: &[(&str, Value<'_>)],
        payload: &[u8],
    ) {
        match self {
            From::Kafka { producer, topic, .. } => {
                let mut all = OwnedHeaders::new();
                let id = id.map(|id| ("headwater-message-id", Value::Text(id)));
                for (name, value) in headers.iter().copied().chain(id) {
                    let value = Some(match value {
                        Value::Text(text) => text.as_bytes(),
                        Value::Bytes(bytes) => bytes,
                    });
                    all = all.insert(rdkafka::message::Header { key: name, value });
                }
                let record = FutureRecord::to(topic).key(key).payload(payload).headers(all);
                producer.send(record, Duration::from_secs(30)).await.expect("stored");
            }
            From::RabbitMq { channel, queue, .. } => {
                let mut table = FieldTable::default();
                table.insert("headwater-key".into(), AMQPValue::LongString(key.into()));
                for (name, value) in headers {
                    let value = match value {
                        Value::Text(text) => AMQPValue::LongString((*text).into()),
                        Value::Bytes(bytes) => AMQPValue::LongString(bytes.to_vec().into()),
                    };
                    table.insert((*name).into(), value);
                }
                let mut properties = BasicProperties::default().with_delivery_mode(2).with_headers(table);
                if let Some(id) = id {
                    properties = properties.with_message_id(id.into());
                }
                self.publish_amqp(channel, queue, payload, properties).await;
            }
            From::Nats { context, stream, .. } => {
                let mut map = async_nats::HeaderMap::new();
                map.insert("headwater-key", key);
                if let Some(id) = id {
                    map.insert("Nats-Msg-Id", id);
                }
                for (name, value) in headers {
                    let Value::Text(text) = value else { unreachable!("headers of NATS are text") };
                    map.insert(*name, *text);
                }
                let sent = context.publish_with_headers(format!("{stream}.a"), map, payload.to_vec().into());
                sent.await.expect("sent").await.expect("stored");
            }
        }
    }

    pub(crate) async fn publish_amqp(
        &self,
        channel: &Channel,
        queue: &str,
        payload: &[u8],
        properties: BasicProperties,
    ) {
        let options = BasicPublishOptions::default();
        let sent = channel.basic_publish("".into(), queue.into(), options, payload, properties);
        assert!(sent.await.expect("sent").await.expect("confirmed").is_ack());
    }

    /// Publishes numbers from..until as payloads, with ids and keys of their own, at the same time.
    pub(crate) async fn publish_numbers(&self, range: std::ops::Range<usize>) {
        for chunk in range.collect::<Vec<_>>().chunks(200) {
            futures_util::future::join_all(chunk.iter().map(async |n| {
                let (id, key, payload) = (format!("n-{n}"), format!("k-{}", n % 16), n.to_string());
                self.publish(Some(&id), &key, &[], payload.as_bytes()).await;
            }))
            .await;
        }
    }
}
