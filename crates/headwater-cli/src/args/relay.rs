//! Arguments of `relay`.

use std::time::Duration;

use clap::Subcommand;
use headwater::Start;
use headwater_relay::RelaySettings;

use super::Watch;
use super::words::{duration, number, start};

#[derive(Debug, Subcommand)]
pub(crate) enum RelayCommand {
    /// Register a relay: from a topic, or from the outbox, to a sink
    ///
    /// A topic gets a group for the relay at once: nothing that is published from then on is missed. `outbox` means the outbox; a
    /// topic of that name is topic:outbox. Passwords are not stored: write ${NAME}, and set that environment variable where the relay
    /// runs.
    ///
    /// Examples:
    ///   headwater relay add orders --to 'https://hooks.example.com/orders#secret=${HOOK_SECRET}'
    ///   headwater relay add outbox --to 'headwater+postgres://ann:${DB_PASSWORD}@db/archive'
    ///   headwater relay add orders --to 'headwater+sqlite:archive.db?topic=archive' --group archive
    #[command(verbatim_doc_comment)]
    Add(RelayAddArgs),
    /// List the registered relays
    ///
    /// Example: headwater relay list
    List(RelayListArgs),
    /// Remove a relay; its group stays, and with it what waits there
    ///
    /// Example: headwater relay remove archive
    Remove(RelayOne),
    /// Run all registered relays, or those named, or one that is not registered, until SIGTERM or SIGINT
    ///
    /// A sink that is down stops its own relay only: it is probed until it answers. Exits with 1 if a relay could not be started or ended
    /// by itself; the others run.
    ///
    /// Examples:
    ///   headwater relay run
    ///   headwater relay run archive
    ///   headwater relay run --from orders --to 'headwater+sqlite:archive.db?topic=orders'
    ///   headwater relay run --from orders --to kafka://localhost:9092/orders --exactly-once shop-orders
    #[command(verbatim_doc_comment)]
    Run(RelayRunArgs),
    /// Check that the sink of a relay can be reached and accepts it; nothing is sent
    ///
    /// Example: headwater relay check archive
    Check(RelayOne),
}

#[derive(Debug, clap::Args)]
pub(crate) struct RelayOne {
    /// The relay, as listed
    pub(crate) relay: String,
}

#[derive(Debug, clap::Args)]
pub(crate) struct RelayListArgs {
    #[command(flatten)]
    pub(crate) watch: Watch,
}

#[derive(Debug, clap::Args)]
pub(crate) struct RelayAddArgs {
    /// The topic, or `outbox`
    pub(crate) source: String,
    /// The sink: kafka://, amqp://, nats://, https://, headwater+sqlite: or headwater+postgres://, see docs/relay.md
    #[arg(long, value_name = "URL")]
    pub(crate) to: String,
    /// Its name [default: the source and the kind of the sink]
    #[arg(long)]
    pub(crate) name: Option<String>,
    #[command(flatten)]
    pub(crate) how: RelaySettingsArgs,
}

#[derive(Debug, clap::Args)]
pub(crate) struct RelayRunArgs {
    /// Only these relays
    #[arg(conflicts_with_all = ["from", "to"])]
    pub(crate) relays: Vec<String>,
    /// A relay that is not registered: its topic, or `outbox`
    #[arg(long, value_name = "SOURCE", requires = "to")]
    pub(crate) from: Option<String>,
    /// With --from: the sink
    #[arg(long, value_name = "URL", requires = "from")]
    pub(crate) to: Option<String>,
    /// Kafka: each message once for readers at read_committed; an id that no other relay into this cluster has
    #[cfg(feature = "kafka")]
    #[arg(long, value_name = "ID", requires = "from", conflicts_with_all = ["no_key_order", "max_attempts", "claim_timeout", "timeout"])]
    pub(crate) exactly_once: Option<String>,
    /// How long what is being sent may take when it is stopped
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = duration)]
    pub(crate) grace: Duration,
    #[command(flatten)]
    pub(crate) how: RelaySettingsArgs,
}

#[derive(Debug, clap::Args)]
pub(crate) struct RelaySettingsArgs {
    /// The group of the topic [default: relay- and the kind of the sink]
    #[arg(long)]
    pub(crate) group: Option<String>,
    /// Where a new group starts: beginning, now, an offset or a time
    #[arg(long, value_name = "START", value_parser = start, default_value = "beginning")]
    pub(crate) start: Start,
    /// Do not keep the order of keys: a failed record holds back no other
    #[arg(long)]
    pub(crate) no_key_order: bool,
    /// The most records of a claim or sweep [default: 2000]
    #[arg(long, value_parser = number)]
    pub(crate) batch: Option<u32>,
    /// How long the sink may take for one call [default: 60s]
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(crate) timeout: Option<Duration>,
    /// How often a record is tried before it becomes a dead letter [default: as the topic says; outbox: 10]
    #[arg(long, value_parser = number)]
    pub(crate) max_attempts: Option<u32>,
    /// Outbox: how long a claim of an entry lasts [default: 5m]
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(crate) claim_timeout: Option<Duration>,
}

impl RelaySettingsArgs {
    pub(crate) fn settings(&self) -> RelaySettings {
        let default = RelaySettings::default();
        RelaySettings {
            group: self.group.clone(),
            key_order: !self.no_key_order,
            batch: self.batch.unwrap_or(default.batch),
            timeout: self.timeout.unwrap_or(default.timeout),
            max_attempts: self.max_attempts,
            claim_timeout: self.claim_timeout.unwrap_or(default.claim_timeout),
            start: self.start,
            ..default
        }
    }
}
