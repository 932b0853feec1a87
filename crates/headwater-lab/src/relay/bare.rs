//! The bare clients: the libraries that the sinks use, with the same settings, publishing without waiting for each record.
//!
//! Each record has what a receiver needs of it: payload, key and id.

use std::collections::VecDeque;

use anyhow::{Result, ensure};
use async_nats::HeaderMap;
use async_nats::header::NATS_MESSAGE_ID;
use bytes::Bytes;
use headwater_relay::{kafka, nats, rabbitmq};
use lapin::options::{BasicPublishOptions, ConfirmSelectOptions};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{BasicProperties, Confirmation};
use rdkafka::ClientConfig;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{DeliveryFuture, FutureProducer, FutureRecord};

use super::brokers::{Kind, Live, amqp, jetstream};

/// Most records that wait for their confirmation at a time: of Kafka half of what the client's queue takes.
const KAFKA_WAITING_MAX: usize = 50_000;
const RABBITMQ_WAITING_MAX: usize = 5_000;
const NATS_WAITING_MAX: usize = 4_000;

/// What is published.
pub(super) struct Bare {
    pub(super) payload: Bytes,
    /// Ids and keys.
    pub(super) records: Vec<(String, String)>,
}

impl Bare {
    /// Publishes everything and waits for all confirmations.
    pub(super) async fn publish(&self, live: &Live, destination: &str) -> Result<()> {
        let address = live.address();
        match live.kind() {
            Kind::Kafka => self.kafka(&address, destination).await,
            Kind::RabbitMq => self.rabbitmq(&address, destination).await,
            Kind::Nats => self.nats(&address, destination).await,
        }
    }

    async fn kafka(&self, address: &str, topic: &str) -> Result<()> {
        let producer: FutureProducer = ClientConfig::new()
            .set("bootstrap.servers", address)
            .set("enable.idempotence", "true")
            .set("acks", "all")
            .set("partitioner", "murmur2_random")
            .set("compression.type", "lz4")
            .set("linger.ms", "5")
            .create()?;
        let mut waiting: VecDeque<DeliveryFuture> = VecDeque::with_capacity(KAFKA_WAITING_MAX);
        for (id, key) in &self.records {
            let header = Header { key: kafka::MESSAGE_ID_HEADER, value: Some(id) };
            let headers = OwnedHeaders::new_with_capacity(1).insert(header);
            let mut record = FutureRecord::to(topic).key(key).payload(&*self.payload).headers(headers);
            loop {
                if waiting.len() == KAFKA_WAITING_MAX {
                    confirmed(&mut waiting).await?;
                }
                match producer.send_result(record) {
                    Ok(sent) => break waiting.push_back(sent),
                    Err((KafkaError::MessageProduction(RDKafkaErrorCode::QueueFull), refused)) => {
                        record = refused;
                        confirmed(&mut waiting).await?;
                    }
                    Err((error, _)) => return Err(error.into()),
                }
            }
        }
        while !waiting.is_empty() {
            confirmed(&mut waiting).await?;
        }
        Ok(())
    }

    async fn rabbitmq(&self, address: &str, queue: &str) -> Result<()> {
        let (connection, channel) = amqp(address).await?;
        channel.confirm_select(ConfirmSelectOptions::default()).await?;
        let mut waiting = VecDeque::with_capacity(RABBITMQ_WAITING_MAX);
        let options = BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() };
        for (id, key) in &self.records {
            if waiting.len() == RABBITMQ_WAITING_MAX {
                acked(&mut waiting).await?;
            }
            let mut headers = FieldTable::default();
            headers.insert(rabbitmq::KEY_HEADER.into(), AMQPValue::LongString(key.as_str().into()));
            // Persistent.
            let properties = BasicProperties::default().with_delivery_mode(2);
            let properties = properties.with_message_id(id.as_str().into()).with_headers(headers);
            let published =
                channel.basic_publish("".into(), queue.into(), options, &self.payload, properties);
            waiting.push_back(published.await?);
        }
        while !waiting.is_empty() {
            acked(&mut waiting).await?;
        }
        // Its broker may end right after.
        Ok(connection.close(200, "OK".into()).await?)
    }

    async fn nats(&self, address: &str, subject: &str) -> Result<()> {
        let context = jetstream(address).await?;
        let mut waiting = VecDeque::with_capacity(NATS_WAITING_MAX);
        for (id, key) in &self.records {
            if waiting.len() == NATS_WAITING_MAX
                && let Some(oldest) = waiting.pop_front()
            {
                IntoFuture::into_future(oldest).await?;
            }
            let mut headers = HeaderMap::new();
            headers.insert(NATS_MESSAGE_ID, id.as_str());
            headers.insert(nats::KEY_HEADER, key.as_str());
            let sent =
                context.publish_with_headers(subject.to_owned(), headers, self.payload.clone()).await?;
            waiting.push_back(sent);
        }
        for sent in waiting {
            sent.await?;
        }
        Ok(())
    }
}

/// Waits for the oldest record of Kafka.
async fn confirmed(waiting: &mut VecDeque<DeliveryFuture>) -> Result<()> {
    if let Some(oldest) = waiting.pop_front() {
        oldest.await?.map_err(|(error, _)| error)?;
    }
    Ok(())
}

/// Waits for the oldest record of RabbitMQ.
pub(crate) async fn acked(waiting: &mut VecDeque<lapin::PublisherConfirm>) -> Result<()> {
    if let Some(oldest) = waiting.pop_front() {
        let confirmation = oldest.await?;
        ensure!(matches!(confirmation, Confirmation::Ack(None)), "not stored: {confirmation:?}");
    }
    Ok(())
}
