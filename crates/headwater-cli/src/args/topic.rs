//! Arguments of `topic`.

use clap::{Subcommand, ValueEnum};
use headwater::Preset;
use headwater::topic::{Ordering, Partition, Semantics, Tracking};
use serde::Serialize;

use super::Watch;
use super::group::Confirmation;
use super::words::{
    Millis, Retention, lanes, millis, number, ordering, partition, preset, retention, semantics, tracking,
};

#[derive(Debug, Subcommand)]
pub(crate) enum TopicCommand {
    /// Create a topic; succeeds if it exists with the same settings
    ///
    /// Examples:
    ///   headwater topic create invoices --pub-sub --lease 30s
    ///   headwater topic create payments --preset critical --message-retention 14d
    #[command(verbatim_doc_comment)]
    Create(TopicCreateArgs),
    /// Change settings of a topic while it is in use; those not given stay
    ///
    /// storage can be changed only while no message is stored, and a topic becomes a queue only with at most one group.
    /// tracking is changed by maintenance, step by step, while consumers continue: --wait does the work here and shows progress.
    ///
    /// Examples:
    ///   headwater topic alter orders --message-retention forever --max-retention 90d
    ///   headwater topic alter orders --tracking reference_counting --wait
    #[command(verbatim_doc_comment)]
    Alter(TopicAlterArgs),
    /// Show a topic: its settings, its head and watermark, and a tracking change that is under way
    ///
    /// Example: headwater topic show orders
    Show(TopicShowArgs),
    /// List topics
    ///
    /// The table shows the most important columns; --wide shows more, --output json everything.
    ///
    /// Examples:
    ///   headwater topic list
    ///   headwater topic list --wide --watch 2s
    #[command(verbatim_doc_comment)]
    List(TopicListArgs),
    /// Delete a topic with its messages, scheduled messages, groups and dead letters
    ///
    /// The name is free at once. Refused while a process serves one of its groups, unless --force is given: then consumers lose
    /// their leases and end. Programs that publish to it fail, or create it again where publishing creates topics.
    /// On a terminal it shows what would be removed and asks; elsewhere --yes is needed.
    ///
    /// Examples:
    ///   headwater topic delete orders --dry-run
    ///   headwater topic delete orders --force --yes
    #[command(verbatim_doc_comment)]
    Delete(TopicRemoveArgs),
    /// Remove all messages of a topic; its groups stay and continue with what is published next
    ///
    /// Retries are dropped; dead letters and scheduled messages stay. Refused while a process serves one of its groups, unless
    /// --force is given: then consumers lose their leases and continue.
    /// On a terminal it shows what would be removed and asks; elsewhere --yes is needed.
    ///
    /// Examples:
    ///   headwater topic purge orders --dry-run
    ///   headwater topic purge orders --force --yes
    #[command(verbatim_doc_comment)]
    Purge(TopicRemoveArgs),
    /// Set whether publishing creates topics, unless the program or a flag decides it (embedded store)
    ///
    /// Stored in the file: plain SQL follows it at once, programs from when they open the store. PostgreSQL has no such setting:
    /// there each program decides, and plain SQL creates no topic.
    ///
    /// Example: headwater topic auto-create off
    #[command(verbatim_doc_comment)]
    AutoCreate(AutoCreateArgs),
}

#[derive(Debug, clap::Args)]
pub(crate) struct TopicListArgs {
    /// Show all columns
    #[arg(long)]
    pub(crate) wide: bool,
    #[command(flatten)]
    pub(crate) watch: Watch,
}

#[derive(Debug, clap::Args)]
pub(crate) struct AutoCreateArgs {
    /// on or off
    pub(crate) setting: Switch,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Switch {
    On,
    Off,
}

#[derive(Debug, clap::Args)]
pub(crate) struct TopicShowArgs {
    /// Its name
    pub(crate) name: String,
}

#[derive(Debug, clap::Args)]
pub(crate) struct TopicRemoveArgs {
    /// Its name
    pub(crate) name: String,
    /// Also while processes serve its groups
    #[arg(long)]
    pub(crate) force: bool,
    #[command(flatten)]
    pub(crate) confirmation: Confirmation,
}

#[derive(Debug, clap::Args)]
pub(crate) struct TopicCreateArgs {
    /// Its name
    pub(crate) name: String,
    /// Settings for a purpose; other flags override it [critical: kept 7 d, publishing fails while no group
    /// subscribes; audit: the same for 90 d; standard: 24 h; ephemeral: 1 h; queue: work for one group]
    #[arg(long, value_parser = preset())]
    pub(crate) preset: Option<Preset>,
    /// Every group gets every message; the same as --semantics pub_sub
    #[arg(long, conflicts_with = "semantics")]
    pub(crate) pub_sub: bool,
    /// Keep strict order among messages of one key; the same as --ordering key
    #[arg(long, conflicts_with = "ordering")]
    pub(crate) ordered: bool,
    #[command(flatten)]
    pub(crate) settings: SettingsArgs,
}

#[derive(Debug, clap::Args)]
pub(crate) struct TopicAlterArgs {
    /// Its name
    pub(crate) name: String,
    #[command(flatten)]
    pub(crate) settings: SettingsArgs,
    /// Wait until a change of tracking is complete, and do the work if no other process does
    #[arg(long)]
    pub(crate) wait: bool,
}

/// Where a topic's messages are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum StorageWord {
    /// With other topics in one table
    Shared,
    /// In tables of its own
    Dedicated,
}

/// Every setting of a topic, under the name and in the form in which it is stored: see `topic/settings.rs`. A setting that
/// is not given keeps its value, or that of the preset or default.
#[derive(Debug, Default, clap::Args, Serialize)]
#[command(next_help_heading = "Settings")]
pub(crate) struct SettingsArgs {
    /// queue: each message to one member of the one group; pub_sub: to every group [default: queue]
    #[arg(long, value_parser = semantics(), hide_possible_values = true)]
    pub(crate) semantics: Option<Semantics>,
    /// How completion is tracked: offset_watermark or reference_counting [default: offset_watermark]
    #[arg(long, value_parser = tracking(), hide_possible_values = true)]
    pub(crate) tracking: Option<Tracking>,
    /// How long a message stays after every group is done with it, or forever [default: 24h]
    #[arg(long = "message-retention", value_name = "DURATION", value_parser = retention, allow_hyphen_values = true)]
    pub(crate) message_retention_ms: Option<Retention>,
    /// The age at which a message is removed even if groups have not done it, or none [default: none; 30d for pub_sub]
    #[arg(long = "max-retention", value_name = "DURATION", value_parser = retention, allow_hyphen_values = true)]
    pub(crate) max_retention_ms: Option<Retention>,
    /// How long a message is kept at least if it was published while no group counted [default: 24h]
    #[arg(long = "zero-subscription-retention", value_name = "DURATION", value_parser = millis, allow_hyphen_values = true)]
    pub(crate) zero_subscription_retention_ms: Option<Millis>,
    /// Publishing fails while no group subscribes; pub_sub only [default: false]
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub(crate) block_writes_on_zero_subscriptions: Option<bool>,
    /// A group dead for longer gives up its outstanding ranges of removed messages; pub_sub only [default: 7d]
    #[arg(long = "zombie-subscription-ttl", value_name = "DURATION", value_parser = millis, allow_hyphen_values = true)]
    pub(crate) zombie_subscription_ttl_ms: Option<Millis>,
    /// How long a lease lasts; 0s means it never expires by itself [default: 300s]
    #[arg(long = "lease", value_name = "DURATION", value_parser = millis, allow_hyphen_values = true)]
    pub(crate) lease_ms: Option<Millis>,
    /// How often a message is handed out before it is buried [default: 10]
    #[arg(long, value_parser = number, allow_hyphen_values = true)]
    pub(crate) max_attempts: Option<u32>,
    /// The first retry delay; it doubles with each attempt [default: 1s]
    #[arg(long = "backoff-initial", value_name = "DURATION", value_parser = millis, allow_hyphen_values = true)]
    pub(crate) backoff_initial_ms: Option<Millis>,
    /// The longest retry delay [default: 5m]
    #[arg(long = "backoff-max", value_name = "DURATION", value_parser = millis, allow_hyphen_values = true)]
    pub(crate) backoff_max_ms: Option<Millis>,
    /// none, or key for strict order among messages of one key [default: none]
    #[arg(long, value_parser = ordering(), hide_possible_values = true)]
    pub(crate) ordering: Option<Ordering>,
    /// How many lanes an ordered group has that subscribes from now on [default: 16]
    #[arg(long, value_parser = lanes(), allow_hyphen_values = true)]
    pub(crate) lanes: Option<u16>,
    /// Where messages are stored on PostgreSQL [default: shared]
    #[arg(long, value_enum, hide_possible_values = true, value_name = "shared|dedicated")]
    #[serde(skip)]
    pub(crate) storage: Option<StorageWord>,
    /// How dedicated storage is partitioned: none, rows:N, hour, day, month; implies --storage dedicated [default: none]
    #[arg(long, value_parser = partition)]
    #[serde(skip)]
    pub(crate) partition: Option<Partition>,
    /// The largest payload, in bytes [default: 1048576]
    #[arg(long, value_name = "BYTES")]
    pub(crate) payload_bytes_max: Option<usize>,
    /// How long a dedup key is remembered [default: 10m]
    #[arg(long = "dedup-window", value_name = "DURATION", value_parser = millis, allow_hyphen_values = true)]
    pub(crate) dedup_window_ms: Option<Millis>,
    /// How often processes of a group send a heartbeat [default: 60s]
    #[arg(long = "heartbeat-interval", value_name = "DURATION", value_parser = millis, allow_hyphen_values = true)]
    pub(crate) heartbeat_interval_ms: Option<Millis>,
    /// How long a group may be without a heartbeat before it is dead [default: 300s]
    #[arg(long = "heartbeat-timeout", value_name = "DURATION", value_parser = millis, allow_hyphen_values = true)]
    pub(crate) heartbeat_timeout_ms: Option<Millis>,
    /// Record which owner acked which offsets and when: see `group acks` [default: false]
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub(crate) ack_log: Option<bool>,
    /// How long the head waits at a missing offset before it steps over it (PostgreSQL) [default: 50ms]
    #[arg(long = "gap-patience", value_name = "DURATION", value_parser = millis, allow_hyphen_values = true)]
    pub(crate) gap_patience_ms: Option<Millis>,
}
