//! Arguments of `bridge`.

use clap::Subcommand;

use super::Watch;

#[derive(Debug, Subcommand)]
pub(crate) enum BridgeCommand {
    /// Publish what another broker has to a topic, until SIGTERM or SIGINT
    ///
    /// Each message is published once, however often this is killed: positions of Kafka are stored with the messages, those of RabbitMQ and NATS are
    /// known by their ids. One that cannot be published is parked: see `parked list`. Passwords are better not in arguments: write ${NAME},
    /// and set that environment variable. URLs: kafka://host:9092/topic, amqp://user:password@host/vhost?queue=name,
    /// nats://host/subject; their options are in docs/bridges.md.
    ///
    /// Exits with 1 if the broker cannot be reached, or refuses, at the start; later it reconnects by itself.
    ///
    /// Examples:
    ///   headwater bridge run --from 'amqp://127.0.0.1?queue=legacy' --to orders
    ///   headwater bridge run --from nats://127.0.0.1/shop.orders --to orders --name shop
    #[command(verbatim_doc_comment)]
    Run(BridgeRunArgs),
    /// List how far bridges from Kafka have read: the next offset of each partition
    ///
    /// Example: headwater bridge list
    List(BridgeListArgs),
}

#[derive(Debug, clap::Args)]
pub(crate) struct BridgeRunArgs {
    /// What is read: a topic of Kafka, a queue of RabbitMQ, a subject of NATS
    #[arg(long, value_name = "URL")]
    pub(crate) from: String,
    /// The topic, which must exist
    #[arg(long, value_name = "TOPIC")]
    pub(crate) to: String,
    /// Its name, under which it remembers what it has read [default: made of what it reads and the topic]
    #[arg(long)]
    pub(crate) name: Option<String>,
    /// Messages of one transaction at most
    #[arg(long, value_name = "MESSAGES", default_value_t = 500)]
    pub(crate) batch: usize,
}

#[derive(Debug, clap::Args)]
pub(crate) struct BridgeListArgs {
    #[command(flatten)]
    pub(crate) watch: Watch,
}
