//! The same load on NATS JetStream and RabbitMQ, each driven by its own client in the usual way: one connection, on it a channel or a
//! handle for each publisher and each consumer.
//!
//! Durability differs and is stated with each figure.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow};
use async_nats::jetstream::Context;
use async_nats::jetstream::consumer::{AckPolicy, pull};
use bytes::Bytes;
use futures_util::StreamExt;
use lapin::message::Delivery;
use lapin::options::{
    BasicAckOptions, BasicConsumeOptions, BasicPublishOptions, BasicQosOptions, ConfirmSelectOptions,
};
use lapin::types::FieldTable;
use lapin::{BasicProperties, Channel, Connection, Consumer};

use super::load::{Publish, Receive, Work};
use super::stream::ACKS_MAX;
use crate::bench::PAYLOAD_BYTES;
use crate::relay::{Kind, Live, acked, amqp, jetstream};

/// Messages that a consumer may have unacked: as many as a stream of the server.
const UNACKED_MAX: u16 = 10_000;
/// How long RabbitMQ's consumer waits for more before it acks what it has.
const ACK_AFTER: Duration = Duration::from_millis(5);
const GROUP: &str = "the-lab";

/// What a confirmation means.
pub(super) fn durability(kind: Kind) -> &'static str {
    match kind {
        Kind::Nats => "a stream in files, synced every two minutes (default); an ack for each message",
        Kind::RabbitMq => {
            "persistent messages with confirms on a durable queue; acks of up to 1,000 messages at once"
        }
        Kind::Kafka => "acks of all replicas",
    }
}

/// A handle that publishes.
pub(super) enum Publisher {
    Nats { context: Context, subject: String, payload: Bytes },
    RabbitMq { channel: Channel, queue: String, payload: Bytes, _connection: Arc<Connection> },
}

/// Handles for a piece of work, before it begins.
pub(super) async fn publishers(live: &Live, destination: &str, work: Work) -> Result<Vec<Publisher>> {
    let (address, payload) = (live.address(), Bytes::from("x".repeat(PAYLOAD_BYTES)));
    let mut publishers = Vec::with_capacity(work.connections);
    if live.kind() == Kind::Nats {
        let context = jetstream(&address).await?;
        let (subject, payload) = (destination.to_owned(), &payload);
        publishers.resize_with(work.connections, || {
            let (context, subject, payload) = (context.clone(), subject.clone(), payload.clone());
            Publisher::Nats { context, subject, payload }
        });
        return Ok(publishers);
    }
    let (connection, _) = amqp(&address).await?;
    let connection = Arc::new(connection);
    for _ in 0..work.connections {
        let channel = connection.create_channel().await?;
        channel.confirm_select(ConfirmSelectOptions::default()).await?;
        let (queue, payload, connection) = (destination.to_owned(), payload.clone(), Arc::clone(&connection));
        publishers.push(Publisher::RabbitMq { channel, queue, payload, _connection: connection });
    }
    Ok(publishers)
}

impl Publish for Publisher {
    async fn publish(&mut self, messages: u64) -> Result<()> {
        match self {
            Publisher::Nats { context, subject, payload } => {
                let mut waiting = Vec::new();
                for _ in 0..messages {
                    waiting.push(context.publish(subject.clone(), payload.clone()).await?);
                }
                for sent in waiting {
                    sent.await?;
                }
            }
            Publisher::RabbitMq { channel, queue, payload, .. } => {
                let options = BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() };
                let mut waiting = VecDeque::new();
                for _ in 0..messages {
                    // Persistent.
                    let properties = BasicProperties::default().with_delivery_mode(2);
                    let (exchange, queue) = ("".into(), queue.as_str().into());
                    let published = channel.basic_publish(exchange, queue, options, payload, properties);
                    waiting.push_back(published.await?);
                }
                while !waiting.is_empty() {
                    acked(&mut waiting).await?;
                }
            }
        }
        Ok(())
    }
}

/// A handle that receives and acks.
pub(super) enum Receiver {
    Nats(Box<pull::Stream>),
    RabbitMq(Box<QueueReader>),
}

/// A consumer of RabbitMQ, and what has to live as long.
pub(super) struct QueueReader {
    consumer: Consumer,
    _channel: Channel,
    _connection: Arc<Connection>,
}

/// Handles that share the messages of a destination.
pub(super) async fn receivers(live: &Live, destination: &str, count: usize) -> Result<Vec<Receiver>> {
    let address = live.address();
    let mut receivers = Vec::with_capacity(count);
    if live.kind() == Kind::Nats {
        let stream = jetstream(&address).await?.get_stream(destination).await?;
        let config = pull::Config {
            durable_name: Some(GROUP.to_owned()),
            ack_policy: AckPolicy::Explicit,
            max_ack_pending: i64::from(UNACKED_MAX) * count as i64,
            ..pull::Config::default()
        };
        let consumer = stream.create_consumer(config).await?;
        for _ in 0..count {
            let messages = consumer.stream().max_messages_per_batch(ACKS_MAX).messages().await?;
            receivers.push(Receiver::Nats(Box::new(messages)));
        }
        return Ok(receivers);
    }
    let (connection, _) = amqp(&address).await?;
    let connection = Arc::new(connection);
    for n in 0..count {
        let channel = connection.create_channel().await?;
        channel.basic_qos(UNACKED_MAX, BasicQosOptions::default()).await?;
        let (tag, options) = (format!("{GROUP}-{n}"), BasicConsumeOptions::default());
        let consumer =
            channel.basic_consume(destination.into(), tag.as_str().into(), options, FieldTable::default());
        let consumer = consumer.await?;
        let reader = QueueReader { consumer, _channel: channel, _connection: Arc::clone(&connection) };
        receivers.push(Receiver::RabbitMq(Box::new(reader)));
    }
    Ok(receivers)
}

impl Receive for Receiver {
    async fn receive(&mut self) -> Result<u64> {
        match self {
            Receiver::Nats(messages) => {
                let message = messages.next().await.context("the broker closed the connection")??;
                message.ack().await.map_err(|error| anyhow!("an ack was not sent: {error}"))?;
                Ok(1)
            }
            Receiver::RabbitMq(reader) => {
                let (mut last, mut count): (Option<Delivery>, u64) = (None, 0);
                while count < ACKS_MAX as u64 {
                    let next = tokio::time::timeout(ACK_AFTER, reader.consumer.next()).await;
                    match next {
                        Ok(next) => last = Some(next.context("the broker closed the connection")??),
                        Err(_) if count > 0 => break,
                        Err(_) => continue,
                    }
                    count += 1;
                }
                if let Some(last) = last {
                    last.ack(BasicAckOptions { multiple: true }).await?;
                }
                Ok(count)
            }
        }
    }
}
