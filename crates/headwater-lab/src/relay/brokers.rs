//! The brokers of a check: started by the lab, with the destinations that relays deliver to.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use async_nats::jetstream::{self, stream};
use headwater_relay::testing::checker::Found;
use headwater_servers::Stop;
use headwater_servers::brokers::{Kafka, Nats, RabbitMq};
use lapin::options::QueueDeclareOptions;
use lapin::types::FieldTable;
use lapin::{Channel, Connection, ConnectionProperties};
use rdkafka::ClientConfig;
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;

use super::read;

/// How often a starting broker is asked whether it is there.
const POLL: Duration = Duration::from_millis(20);
/// Partitions of each topic of Kafka.
const PARTITIONS: i32 = 3;

/// A kind of broker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Kafka,
    RabbitMq,
    Nats,
}

impl Kind {
    pub(super) const ALL: [Kind; 3] = [Kind::Kafka, Kind::RabbitMq, Kind::Nats];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Kind::Kafka => "kafka",
            Kind::RabbitMq => "rabbitmq",
            Kind::Nats => "nats",
        }
    }
}

/// A broker of the lab's own. Stopped and removed with its value.
#[derive(Debug)]
pub(crate) enum Live {
    Kafka(Kafka),
    RabbitMq(RabbitMq),
    Nats(Nats),
}

/// The same expression for each kind of broker.
macro_rules! each {
    ($live:expr, $broker:ident => $what:expr) => {
        match $live {
            Live::Kafka($broker) => $what,
            Live::RabbitMq($broker) => $what,
            Live::Nats($broker) => $what,
        }
    };
}

impl Live {
    /// Starts a broker. On the thread of the caller, which must live as long: the broker ends with it.
    pub(crate) async fn start(kind: Kind, work: &Path) -> Result<Self> {
        let mut live = match kind {
            Kind::Kafka => Live::Kafka(Kafka::start(work)?),
            Kind::RabbitMq => Live::RabbitMq(RabbitMq::start(work)?),
            Kind::Nats => Live::Nats(Nats::start(work)?),
        };
        live.ready().await?;
        Ok(live)
    }

    pub(crate) fn kind(&self) -> Kind {
        match self {
            Live::Kafka(_) => Kind::Kafka,
            Live::RabbitMq(_) => Kind::RabbitMq,
            Live::Nats(_) => Kind::Nats,
        }
    }

    pub(super) fn stop(&mut self, how: Stop) -> Result<()> {
        each!(self, broker => broker.stop(how))
    }

    /// Starts it again, with its data.
    pub(super) async fn recover(&mut self) -> Result<()> {
        each!(self, broker => broker.serve())?;
        self.ready().await
    }

    async fn ready(&mut self) -> Result<()> {
        while !each!(self, broker => broker.poll())? {
            tokio::time::sleep(POLL).await;
        }
        Ok(())
    }

    /// The address for clients.
    pub(crate) fn address(&self) -> String {
        each!(self, broker => broker.url())
    }

    /// Where a relay delivers to a destination.
    pub(super) fn target(&self, destination: &str) -> String {
        let address = self.address();
        match self.kind() {
            Kind::Kafka => format!("kafka://{address}/{destination}"),
            Kind::RabbitMq => format!("{address}?queue={destination}"),
            Kind::Nats => format!("{address}/{destination}"),
        }
    }

    /// Creates a destination that keeps what it gets through a restart: a topic, a durable queue, or a stream in files.
    pub(crate) async fn create(&self, destination: &str) -> Result<()> {
        let address = self.address();
        match self.kind() {
            Kind::Kafka => {
                let admin: AdminClient<DefaultClientContext> =
                    ClientConfig::new().set("bootstrap.servers", &address).create()?;
                let new = NewTopic::new(destination, PARTITIONS, TopicReplication::Fixed(1));
                let options = AdminOptions::new().operation_timeout(Some(Duration::from_secs(20)));
                for created in admin.create_topics([&new], &options).await? {
                    created.map_err(|(topic, code)| anyhow::anyhow!("creating topic {topic}: {code}"))?;
                }
            }
            Kind::RabbitMq => {
                let (connection, channel) = amqp(&address).await?;
                let (options, arguments) = (QueueDeclareOptions::durable(), FieldTable::default());
                channel.queue_declare(destination.into(), options, arguments).await?;
                connection.close(200, "OK".into()).await?;
            }
            Kind::Nats => {
                let config = stream::Config {
                    name: destination.to_owned(),
                    subjects: vec![destination.to_owned()],
                    storage: stream::StorageType::File,
                    ..stream::Config::default()
                };
                jetstream(&address).await?.create_stream(config).await?;
            }
        }
        Ok(())
    }

    /// Everything that a destination has, in the order of its partitions. Takes it out of a queue.
    pub(super) async fn read(&self, destination: &str) -> Result<Vec<Found>> {
        let (address, destination) = (self.address(), destination.to_owned());
        let read = match self.kind() {
            Kind::Kafka => tokio::task::spawn_blocking(move || read::kafka(&address, &destination)).await?,
            Kind::RabbitMq => read::rabbitmq(&address, &destination).await,
            Kind::Nats => read::nats(&address, &destination).await,
        };
        read.with_context(|| format!("reading from {}", self.kind().name()))
    }
}

/// A connection to RabbitMQ and a channel on it.
pub(crate) async fn amqp(address: &str) -> Result<(Connection, Channel)> {
    let connection = Connection::connect(address, ConnectionProperties::default()).await?;
    let channel = connection.create_channel().await?;
    Ok((connection, channel))
}

/// A connection to NATS.
pub(crate) async fn jetstream(address: &str) -> Result<jetstream::Context> {
    Ok(jetstream::new(async_nats::connect(address).await?))
}
