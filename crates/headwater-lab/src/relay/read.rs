//! What a destination has, with the id and the key that travelled with each record.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use async_nats::header::NATS_MESSAGE_ID;
use async_nats::jetstream::consumer::{AckPolicy, pull};
use futures_util::StreamExt;
use headwater_relay::testing::checker::Found;
use headwater_relay::{kafka, nats, rabbitmq};
use lapin::options::{BasicConsumeOptions, QueueDeclareOptions};
use lapin::types::{AMQPValue, FieldTable};
use rdkafka::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::KafkaError;
use rdkafka::message::{BorrowedMessage, Headers, Message};
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};

use super::brokers::{amqp, jetstream};

/// The longest wait for the next record.
const NEXT_MAX: Duration = Duration::from_secs(60);

/// A topic, as a reader at `read_committed` sees it; blocks.
pub(super) fn kafka(address: &str, topic: &str) -> Result<Vec<Found>> {
    let consumer: BaseConsumer = ClientConfig::new()
        .set("bootstrap.servers", address)
        .set("group.id", "the-lab")
        .set("isolation.level", "read_committed")
        .set("enable.partition.eof", "true")
        .set("enable.auto.commit", "false")
        .create()?;
    let metadata = consumer.fetch_metadata(Some(topic), NEXT_MAX)?;
    let partitions = metadata.topics().first().context("no such topic")?.partitions();
    let mut from = TopicPartitionList::new();
    for partition in partitions {
        from.add_partition_offset(topic, partition.id(), Offset::Beginning)?;
    }
    let (mut left, mut found, mut last) = (partitions.len(), Vec::new(), Instant::now());
    consumer.assign(&from)?;
    while left > 0 {
        ensure!(last.elapsed() < NEXT_MAX, "nothing after {} records for {NEXT_MAX:?}", found.len());
        match consumer.poll(Duration::from_millis(200)) {
            Some(Ok(message)) => found.push((message.offset(), of_kafka(&message)?)),
            Some(Err(KafkaError::PartitionEOF(_))) => left -= 1,
            // librdkafka tries again by itself.
            Some(Err(_)) | None => continue,
        }
        last = Instant::now();
    }
    found.sort_by_key(|(offset, found)| (found.partition, *offset));
    Ok(found.into_iter().map(|(_, found)| found).collect())
}

fn of_kafka(message: &BorrowedMessage<'_>) -> Result<Found> {
    let headers = message.headers().context("a record without headers")?;
    let id = headers.iter().find(|header| header.key == kafka::MESSAGE_ID_HEADER);
    let id = id.and_then(|header| header.value).context("a record without its id")?;
    Ok(Found {
        id: String::from_utf8(id.to_vec())?,
        key: String::from_utf8(message.key().unwrap_or_default().to_vec())?,
        partition: message.partition(),
    })
}

/// A queue.
pub(super) async fn rabbitmq(address: &str, queue: &str) -> Result<Vec<Found>> {
    let (connection, channel) = amqp(address).await?;
    let options = QueueDeclareOptions { passive: true, ..QueueDeclareOptions::default() };
    let count = channel.queue_declare(queue.into(), options, FieldTable::default()).await?.message_count();
    let options = BasicConsumeOptions { no_ack: true, ..BasicConsumeOptions::default() };
    let mut consumer =
        channel.basic_consume(queue.into(), "the-lab".into(), options, FieldTable::default()).await?;
    let mut found = Vec::with_capacity(count as usize);
    while found.len() < count as usize {
        let next = tokio::time::timeout(NEXT_MAX, consumer.next()).await.context("waiting for a record")?;
        let message = next.context("the broker closed the connection")??;
        let id = message.properties.message_id().as_ref().context("a record without its id")?.to_string();
        let headers = message.properties.headers().as_ref().context("a record without headers")?;
        let key = match headers.inner().get(rabbitmq::KEY_HEADER) {
            Some(AMQPValue::LongString(key)) => key.to_string(),
            other => anyhow::bail!("a record with the key {other:?}"),
        };
        found.push(Found { id, key, partition: 0 });
    }
    connection.close(200, "OK".into()).await?;
    Ok(found)
}

/// A stream.
pub(super) async fn nats(address: &str, stream: &str) -> Result<Vec<Found>> {
    let stream = jetstream(address).await?.get_stream(stream).await?;
    let count = usize::try_from(stream.get_info().await?.state.messages)?;
    let config = pull::Config { ack_policy: AckPolicy::None, ..pull::Config::default() };
    let mut messages = stream.create_consumer(config).await?.messages().await?;
    let mut found = Vec::with_capacity(count);
    while found.len() < count {
        let next = tokio::time::timeout(NEXT_MAX, messages.next()).await.context("waiting for a record")?;
        let message = next.context("the broker closed the connection")??;
        let headers = message.headers.as_ref().context("a record without headers")?;
        let id = headers.get(NATS_MESSAGE_ID).context("a record without its id")?.to_string();
        let key = headers.get(nats::KEY_HEADER).context("a record without its key")?.to_string();
        found.push(Found { id, key, partition: 0 });
    }
    Ok(found)
}
