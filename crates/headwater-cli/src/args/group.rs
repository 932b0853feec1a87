//! Arguments of `group`.

use std::time::Duration;

use clap::Subcommand;
use headwater::Start;
use headwater::store::OffsetRange;

use super::Watch;
use super::subscribe::SubscribeArgs;
use super::words::{duration, number, offsets, start};

#[derive(Debug, Subcommand)]
pub(crate) enum GroupCommand {
    /// List the groups of one topic or of all topics, with state and health
    ///
    /// The table shows the most important columns; --wide shows more, --output json everything.
    ///
    /// Examples:
    ///   headwater group list
    ///   headwater group list orders --wide
    ///   headwater group list --watch 1s
    #[command(verbatim_doc_comment)]
    List(GroupListArgs),
    /// Show everything about a group, with its outstanding ranges, earliest due first
    ///
    /// Example: headwater group show orders email
    Show(GroupShowArgs),
    /// Subscribe a group before its first process runs; an existing group keeps its cursor, order and policy
    ///
    /// Examples:
    ///   headwater group subscribe orders audit --from beginning
    ///   headwater group subscribe orders shipping --ordered --lanes 32 --max-attempts 4
    #[command(verbatim_doc_comment)]
    Subscribe(SubscribeArgs),
    /// Stop handing out messages to a group in every process, at once; nothing is lost
    ///
    /// Examples:
    ///   headwater group pause orders email
    ///   headwater group pause orders email --reason "mail server is down"
    #[command(verbatim_doc_comment)]
    Pause(GroupPauseArgs),
    /// Hand out messages to a paused group again
    ///
    /// Example: headwater group resume orders email
    Resume(GroupArgs),
    /// Cancel a group permanently: its leases are lost at once; `remove` lets it finish first
    ///
    /// On a terminal it shows what would be lost and asks; elsewhere --yes is needed.
    ///
    /// Examples:
    ///   headwater group cancel orders email --dry-run
    ///   headwater group cancel orders email --yes
    #[command(verbatim_doc_comment)]
    Cancel(CancelArgs),
    /// Remove a group: pause it, let messages in flight finish, cancel it and delete it with its dead letters
    ///
    /// On a terminal it shows what would be lost and asks; elsewhere --yes is needed.
    ///
    /// Examples:
    ///   headwater group remove orders email --dry-run
    ///   headwater group remove orders email --wait 30s --yes
    #[command(verbatim_doc_comment)]
    Remove(RemoveArgs),
    /// Make a dead group active again at its cursor; shows what retention removed meanwhile
    ///
    /// Examples:
    ///   headwater group resurrect orders email
    ///   headwater group resurrect orders email --behind-max 10000 --backfill
    #[command(verbatim_doc_comment)]
    Resurrect(ResurrectArgs),
    /// Move a group's cursor, to replay or to skip. Its leases are lost, its dead letters stay
    ///
    /// On a terminal it shows what would happen and asks; elsewhere --yes is needed.
    ///
    /// Examples:
    ///   headwater group seek orders email --to beginning --dry-run
    ///   headwater group seek orders email --to -1h --yes
    #[command(verbatim_doc_comment)]
    Seek(SeekArgs),
    /// Show or change a group's own delivery policy; the value `topic` restores the topic's setting
    ///
    /// Examples:
    ///   headwater group policy orders email
    ///   headwater group policy orders email --lease 10m --max-attempts topic
    #[command(verbatim_doc_comment)]
    Policy(PolicyArgs),
    /// End a lease, whichever owner holds it; its messages are handed out again at once. `group show` lists tokens
    ///
    /// Example: headwater group release-lease 4711
    ReleaseLease(ReleaseLeaseArgs),
    /// Give up, for dead groups, old messages that only dead groups have not done
    ///
    /// On a terminal it shows what would happen and asks; elsewhere --yes is needed.
    ///
    /// Examples:
    ///   headwater group force-complete orders --older-than 1h --dry-run
    ///   headwater group force-complete orders --older-than 7d --yes
    #[command(verbatim_doc_comment)]
    ForceComplete(ForceCompleteArgs),
    /// Count old messages that groups have not done
    ///
    /// Example: headwater group stuck orders --older-than 1h
    Stuck(StuckArgs),
    /// Show which owner acked a message and when; needs the topic's ack_log
    ///
    /// Example: headwater group acks orders 42
    Acks(AcksArgs),
    /// Show completion records: which groups messages wait for; only with reference counting
    ///
    /// Example: headwater group records orders 1..100
    Records(RecordsArgs),
}

/// All groups of one topic, or of all topics.
#[derive(Debug, clap::Args)]
pub(crate) struct GroupListArgs {
    /// The topic; all topics if none is given
    pub(crate) topic: Option<String>,
    /// Show all columns
    #[arg(long)]
    pub(crate) wide: bool,
    #[command(flatten)]
    pub(crate) watch: Watch,
}

/// One group on a topic.
#[derive(Debug, clap::Args)]
pub(crate) struct GroupArgs {
    /// The topic
    pub(crate) topic: String,
    /// The group
    pub(crate) group: String,
}

#[derive(Debug, clap::Args)]
pub(crate) struct GroupPauseArgs {
    #[command(flatten)]
    pub(crate) of: GroupArgs,
    /// Why; shown with the group until it is resumed, and kept in the audit
    #[arg(long)]
    pub(crate) reason: Option<String>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct GroupShowArgs {
    #[command(flatten)]
    pub(crate) of: GroupArgs,
    /// The most outstanding ranges to list
    #[arg(long, default_value_t = 100)]
    pub(crate) max: u32,
}

#[derive(Debug, clap::Args)]
pub(crate) struct CancelArgs {
    #[command(flatten)]
    pub(crate) of: GroupArgs,
    #[command(flatten)]
    pub(crate) confirmation: Confirmation,
}

#[derive(Debug, clap::Args)]
pub(crate) struct RemoveArgs {
    #[command(flatten)]
    pub(crate) of: GroupArgs,
    /// How long messages in flight may take to finish
    #[arg(long, default_value = "30s", value_name = "DURATION", value_parser = duration, allow_hyphen_values = true)]
    pub(crate) wait: Duration,
    #[command(flatten)]
    pub(crate) confirmation: Confirmation,
}

#[derive(Debug, clap::Args)]
pub(crate) struct ResurrectArgs {
    #[command(flatten)]
    pub(crate) of: GroupArgs,
    /// Continue at most this many messages behind the end; earlier messages are skipped
    #[arg(long, value_name = "MESSAGES")]
    pub(crate) behind_max: Option<u64>,
    /// Run its backfill in this process, whatever its size; otherwise one above 100,000 messages is left to maintenance
    #[arg(long)]
    pub(crate) backfill: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct SeekArgs {
    #[command(flatten)]
    pub(crate) of: GroupArgs,
    /// The new position: beginning, now, offset:N, bounded:N (at most the last N), or a time: -1h, 2026-01-31 (UTC),
    /// 2026-01-31T12:00:00Z
    #[arg(long, value_parser = start, allow_hyphen_values = true)]
    pub(crate) to: Start,
    #[command(flatten)]
    pub(crate) confirmation: Confirmation,
}

/// Dry run, or confirmation given on the command line.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(crate) struct Confirmation {
    /// Only show what would happen
    #[arg(long, conflicts_with = "yes")]
    pub(crate) dry_run: bool,
    /// Do it without asking
    #[arg(long)]
    pub(crate) yes: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct PolicyArgs {
    #[command(flatten)]
    pub(crate) of: GroupArgs,
    /// How long a lease lasts
    #[arg(long, value_name = "DURATION|topic", value_parser = own(duration), allow_hyphen_values = true)]
    pub(crate) lease: Option<PolicyValue<Duration>>,
    /// How often a message is handed out before it is buried
    #[arg(long, value_name = "NUMBER|topic", value_parser = own(number), allow_hyphen_values = true)]
    pub(crate) max_attempts: Option<PolicyValue<u32>>,
    /// The first retry delay
    #[arg(long, value_name = "DURATION|topic", value_parser = own(duration), allow_hyphen_values = true)]
    pub(crate) backoff_initial: Option<PolicyValue<Duration>>,
    /// The longest retry delay
    #[arg(long, value_name = "DURATION|topic", value_parser = own(duration), allow_hyphen_values = true)]
    pub(crate) backoff_max: Option<PolicyValue<Duration>>,
    /// How often the group's processes send a heartbeat
    #[arg(long, value_name = "DURATION|topic", value_parser = own(duration), allow_hyphen_values = true)]
    pub(crate) heartbeat_interval: Option<PolicyValue<Duration>>,
    /// After how long without a heartbeat the group is dead
    #[arg(long, value_name = "DURATION|topic", value_parser = own(duration), allow_hyphen_values = true)]
    pub(crate) heartbeat_timeout: Option<PolicyValue<Duration>>,
}

/// A group's own value, or `None` for its topic's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PolicyValue<T>(pub(crate) Option<T>);

fn own<T>(
    parse: fn(&str) -> Result<T, String>,
) -> impl Fn(&str) -> Result<PolicyValue<T>, String> + Clone + Send + Sync + 'static
where
    T: 'static,
{
    move |text| match text {
        "topic" => Ok(PolicyValue(None)),
        _ => match parse(text) {
            Ok(value) => Ok(PolicyValue(Some(value))),
            Err(error) => Err(format!("{error}; or topic, for the topic's setting")),
        },
    }
}

#[derive(Debug, clap::Args)]
pub(crate) struct ReleaseLeaseArgs {
    /// The lease's token
    pub(crate) token: i64,
}

#[derive(Debug, clap::Args)]
pub(crate) struct ForceCompleteArgs {
    /// The topic
    pub(crate) topic: String,
    /// Only messages published longer ago than this
    #[arg(long, value_name = "DURATION", value_parser = duration, allow_hyphen_values = true)]
    pub(crate) older_than: Duration,
    #[command(flatten)]
    pub(crate) confirmation: Confirmation,
}

#[derive(Debug, clap::Args)]
pub(crate) struct StuckArgs {
    /// The topic; all topics if none is given
    pub(crate) topic: Option<String>,
    /// Only messages published longer ago than this
    #[arg(long, default_value = "1h", value_name = "DURATION", value_parser = duration, allow_hyphen_values = true)]
    pub(crate) older_than: Duration,
    #[command(flatten)]
    pub(crate) watch: Watch,
}

#[derive(Debug, clap::Args)]
pub(crate) struct AcksArgs {
    /// The topic
    pub(crate) topic: String,
    /// The message's offset
    #[arg(value_parser = clap::value_parser!(i64).range(1..))]
    pub(crate) offset: i64,
}

#[derive(Debug, clap::Args)]
pub(crate) struct RecordsArgs {
    /// The topic
    pub(crate) topic: String,
    /// The offsets, both ends included: 1..100, or 7
    #[arg(value_parser = offsets, value_name = "FIRST..LAST")]
    pub(crate) range: OffsetRange,
}
