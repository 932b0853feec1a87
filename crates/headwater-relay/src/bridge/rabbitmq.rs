//! Reads a queue of RabbitMQ.

use async_trait::async_trait;
use futures_util::StreamExt;
use headwater::{Error, NewMessage, Result};
use jiff::Timestamp;
use lapin::message::Delivery;
use lapin::options::{BasicAckOptions, BasicConsumeOptions, BasicQosOptions};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{Channel, Connection, Consumer};
use tokio::time::{Instant, timeout, timeout_at};

use super::incoming::{Incoming, utf8};
use super::source::{Batch, IDLE, LINGER, Source};
use super::{Bridge, BridgeError};
use crate::rabbitmq::server::{CONNECT_TIMEOUT, Server, close, while_connected};
use crate::sink::SinkError;

/// Headers that the broker itself adds when it moves a message from a queue to another.
const ADDED_BY_BROKER: [&str; 1] = ["x-death"];

/// A queue.
pub(super) struct FromRabbitMq {
    pub(super) server: Server,
    pub(super) queue: String,
}

impl FromRabbitMq {
    pub(super) fn from_url(url: &str) -> Result<Self> {
        let (server, mut url) = Server::from_url(url)?;
        let queue = url.take("queue");
        url.finish("queue, heartbeat, frame_max")?;
        let rule = || Error::invalid("url", "a bridge from RabbitMQ reads a queue; name it as ?queue=…");
        let queue = queue.filter(|queue| queue.len() <= 255).ok_or_else(rule)?;
        Ok(FromRabbitMq { server, queue })
    }

    pub(super) async fn open(&self, bridge: &Bridge) -> Result<FromQueue, SinkError> {
        let connection = self.server.connect(&format!("headwater bridge {}", bridge.name)).await?;
        let prefetch = u16::try_from(bridge.batch_messages * 2).unwrap_or(u16::MAX);
        let opened = async {
            let channel = connection.create_channel().await?;
            channel.basic_qos(prefetch, BasicQosOptions::default()).await?;
            let queue = self.queue.as_str().into();
            let (options, table) = (BasicConsumeOptions::default(), FieldTable::default());
            let consumer = channel.basic_consume(queue, "".into(), options, table).await?;
            Ok((channel, consumer))
        };
        let opened = while_connected(&self.server, &connection, CONNECT_TIMEOUT, opened).await?;
        let (channel, consumer) = opened.map_err(|error: lapin::Error| {
            self.server.sink_error(&error, &format!("queue {}", self.queue))
        })?;
        Ok(FromQueue {
            server: self.server.clone(),
            queue: self.queue.clone(),
            bridge: bridge.name.clone(),
            connection,
            channel,
            consumer,
            last_tag: 0,
            has_warned: false,
        })
    }
}

/// A connection that consumes a queue.
pub(super) struct FromQueue {
    server: Server,
    queue: String,
    bridge: String,
    connection: Connection,
    channel: Channel,
    consumer: Consumer,
    /// Of the last message that was read.
    last_tag: u64,
    has_warned: bool,
}

impl FromQueue {
    fn read(&mut self, delivery: Delivery) -> Incoming {
        self.last_tag = delivery.delivery_tag;
        let incoming = incoming(&self.queue, delivery);
        if incoming.id.is_none() && !self.has_warned {
            self.has_warned = true;
            let (bridge, queue) = (&self.bridge, &self.queue);
            tracing::warn!(bridge, queue, "messages without a message_id: published at least once");
        }
        incoming
    }

    fn read_next(&mut self, next: Option<lapin::Result<Delivery>>) -> Result<Incoming, SinkError> {
        match next {
            Some(Ok(delivery)) => Ok(self.read(delivery)),
            Some(Err(error)) => Err(self.server.sink_error(&error, &format!("queue {}", self.queue))),
            None => {
                let (place, queue) = (&self.server.place, &self.queue);
                Err(SinkError::Unavailable(format!("{place} ended the consumer of queue {queue}")))
            }
        }
    }
}

#[async_trait]
impl Source for FromQueue {
    async fn next(&mut self, messages_max: usize) -> Result<Batch, BridgeError> {
        let mut batch = Batch::default();
        let Ok(first) = timeout(IDLE, self.consumer.next()).await else {
            // The library may end a channel without ending its consumer's stream.
            if !self.connection.status().connected() || !self.channel.status().connected() {
                let lost = format!("connection to {} lost", self.server.place);
                return Err(SinkError::Unavailable(lost).into());
            }
            return Ok(batch);
        };
        batch.push(self.read_next(first)?);
        let linger = Instant::now() + LINGER;
        while !batch.is_full(messages_max) {
            let Ok(next) = timeout_at(linger, self.consumer.next()).await else { break };
            batch.push(self.read_next(next)?);
        }
        Ok(batch)
    }

    async fn done(&mut self, _batch: &Batch) -> Result<(), SinkError> {
        // Everything up to this tag was in this batch or one before it.
        let acked = self.channel.basic_ack(self.last_tag, BasicAckOptions { multiple: true });
        while_connected(&self.server, &self.connection, CONNECT_TIMEOUT, acked)
            .await?
            .map_err(|error| self.server.sink_error(&error, &format!("queue {}", self.queue)))
    }

    async fn close(self: Box<Self>) {
        close(&self.connection).await;
    }
}

fn incoming(queue: &str, delivery: Delivery) -> Incoming {
    let properties = delivery.properties;
    let text = |value: &Option<lapin::types::ShortString>| value.as_ref().map(ToString::to_string);
    let message = NewMessage {
        message_type: text(properties.kind()),
        content_type: text(properties.content_type()),
        correlation_id: text(properties.correlation_id()),
        ..NewMessage::new(delivery.data)
    };
    let id = text(properties.message_id()).filter(|id| !id.is_empty() && !id.contains('\0'));
    let origin = match &id {
        Some(id) => format!("queue {queue}, message {id}"),
        None => format!("queue {queue}"),
    };
    let mut incoming = Incoming::new(origin, message);
    for (name, value) in properties.headers().iter().flat_map(FieldTable::inner) {
        if !ADDED_BY_BROKER.contains(&name.as_str()) {
            incoming.header(name.as_str(), text_of(value));
        }
    }
    incoming.identified(id.as_deref());
    incoming.id = id;
    let at = properties.timestamp().and_then(|seconds| i64::try_from(seconds).ok());
    incoming.created_at(at.and_then(|seconds| Timestamp::from_second(seconds).ok()));
    incoming.fields_from_headers();
    incoming.checked()
}

/// The text of a header: what has one that says the same. Numbers and truth values have; lists, tables and bytes have none.
fn text_of(value: &AMQPValue) -> Result<String, &'static str> {
    Ok(match value {
        AMQPValue::LongString(value) => return utf8(value.as_bytes()),
        AMQPValue::ShortString(value) => value.to_string(),
        AMQPValue::Boolean(value) => value.to_string(),
        AMQPValue::ShortShortInt(value) => value.to_string(),
        AMQPValue::ShortShortUInt(value) => value.to_string(),
        AMQPValue::ShortInt(value) => value.to_string(),
        AMQPValue::ShortUInt(value) => value.to_string(),
        AMQPValue::LongInt(value) => value.to_string(),
        AMQPValue::LongUInt(value) => value.to_string(),
        AMQPValue::LongLongInt(value) => value.to_string(),
        AMQPValue::Timestamp(value) => value.to_string(),
        AMQPValue::Float(value) => value.to_string(),
        AMQPValue::Double(value) => value.to_string(),
        AMQPValue::DecimalValue(_) => return Err("a decimal"),
        AMQPValue::FieldArray(_) => return Err("a list"),
        AMQPValue::FieldTable(_) => return Err("a table"),
        AMQPValue::ByteArray(_) => return Err("bytes"),
        AMQPValue::Void => return Err("empty"),
    })
}
