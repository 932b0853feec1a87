//! What `group` takes.

use std::time::Duration;

use clap::Subcommand;
use headwater::Start;
use headwater::store::OffsetRange;

use super::words::{duration, number, offsets, start};

#[derive(Debug, Subcommand)]
pub(crate) enum GroupCommand {
    /// List the groups of a topic, or of all, and how each is doing
    ///
    /// The table shows what matters first; --output json has everything.
    ///
    /// Examples:
    ///   headwater group list
    ///   headwater group list orders
    #[command(verbatim_doc_comment)]
    List(TopicArgs),
    /// Show everything about a group, and what it has handed out and is not done, oldest due first
    ///
    /// Example: headwater group show orders email
    Show(GroupShowArgs),
    /// Subscribe a group before its first process runs; one that exists keeps its place
    ///
    /// Example: headwater group subscribe orders audit --from beginning
    Subscribe(SubscribeArgs),
    /// Stop handing out to a group in every process, at once; nothing is lost
    ///
    /// Example: headwater group pause orders email
    Pause(GroupArgs),
    /// Hand out to a paused group again
    ///
    /// Example: headwater group resume orders email
    Resume(GroupArgs),
    /// Give a group up: its leases are lost at once and it never comes back; `remove` lets it finish first
    ///
    /// On a terminal it shows what would be lost and asks; elsewhere --yes is needed.
    ///
    /// Examples:
    ///   headwater group cancel orders email --dry-run
    ///   headwater group cancel orders email --yes
    #[command(verbatim_doc_comment)]
    Cancel(CancelArgs),
    /// Remove a group: pause it, let what is in flight finish, cancel it and delete it with its dead letters
    ///
    /// On a terminal it shows what would be lost and asks; elsewhere --yes is needed.
    ///
    /// Examples:
    ///   headwater group remove orders email --dry-run
    ///   headwater group remove orders email --wait 30s --yes
    #[command(verbatim_doc_comment)]
    Remove(RemoveArgs),
    /// Bring a dead group back where it was; what retention took meanwhile is told
    ///
    /// Examples:
    ///   headwater group resurrect orders email
    ///   headwater group resurrect orders email --behind-max 10000 --backfill
    #[command(verbatim_doc_comment)]
    Resurrect(ResurrectArgs),
    /// Move a group's cursor: replay, or skip. Its leases are lost, its dead letters stay
    ///
    /// On a terminal it shows what would happen and asks; elsewhere --yes is needed.
    ///
    /// Examples:
    ///   headwater group seek orders email --to beginning --dry-run
    ///   headwater group seek orders email --to time:2026-01-31T12:00:00Z --yes
    #[command(verbatim_doc_comment)]
    Seek(SeekArgs),
    /// Show or change a group's own delivery policy; `topic` takes the topic's again
    ///
    /// Examples:
    ///   headwater group policy orders email
    ///   headwater group policy orders email --lease 10m --max-attempts topic
    #[command(verbatim_doc_comment)]
    Policy(PolicyArgs),
    /// End a lease by hand, whoever holds it; it is handed out again at once. Tokens are in `group show`
    ///
    /// Example: headwater group release-lease 4711
    ReleaseLease(ReleaseLeaseArgs),
    /// Give up, for dead groups, old messages that only they have not done
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
    /// Who acked a message, when; needs the topic's ack_log
    ///
    /// Example: headwater group acks orders 42
    Acks(AcksArgs),
    /// Which groups messages wait for; in reference counting
    ///
    /// Example: headwater group records orders 1..100
    Records(RecordsArgs),
}

/// All groups of a topic, or of all.
#[derive(Debug, clap::Args)]
pub(crate) struct TopicArgs {
    /// The topic; all if none is named
    pub(crate) topic: Option<String>,
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
pub(crate) struct GroupShowArgs {
    #[command(flatten)]
    pub(crate) of: GroupArgs,
    /// At most so many ranges
    #[arg(long, default_value_t = 100)]
    pub(crate) max: u32,
}

#[derive(Debug, clap::Args)]
pub(crate) struct SubscribeArgs {
    #[command(flatten)]
    pub(crate) of: GroupArgs,
    /// Where it starts: beginning, now, offset:N, time:TIMESTAMP, bounded:N (at most the last N)
    #[arg(long, default_value = "beginning", value_parser = start, allow_hyphen_values = true)]
    pub(crate) from: Start,
}

#[derive(Debug, clap::Args)]
pub(crate) struct CancelArgs {
    #[command(flatten)]
    pub(crate) of: GroupArgs,
    #[command(flatten)]
    pub(crate) meant: Meant,
}

#[derive(Debug, clap::Args)]
pub(crate) struct RemoveArgs {
    #[command(flatten)]
    pub(crate) of: GroupArgs,
    /// How long what is in flight may take to finish
    #[arg(long, default_value = "30s", value_name = "DURATION", value_parser = duration, allow_hyphen_values = true)]
    pub(crate) wait: Duration,
    #[command(flatten)]
    pub(crate) meant: Meant,
}

#[derive(Debug, clap::Args)]
pub(crate) struct ResurrectArgs {
    #[command(flatten)]
    pub(crate) of: GroupArgs,
    /// Go on at most so many messages behind the end; what lies before is skipped
    #[arg(long, value_name = "MESSAGES")]
    pub(crate) behind_max: Option<u64>,
    /// Do its backfill here however large it is; above 100,000 messages it is otherwise left to maintenance
    #[arg(long)]
    pub(crate) backfill: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct SeekArgs {
    #[command(flatten)]
    pub(crate) of: GroupArgs,
    /// Where to: beginning, now, offset:N, time:TIMESTAMP, bounded:N (at most the last N)
    #[arg(long, value_parser = start, allow_hyphen_values = true)]
    pub(crate) to: Start,
    #[command(flatten)]
    pub(crate) meant: Meant,
}

/// Whether it is meant.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(crate) struct Meant {
    /// Only tell what would happen
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
    /// How long a hand-out lasts
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
}

/// A group's own value, or its topic's again.
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
            Err(error) => Err(format!("{error}; or topic, for the topic's")),
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
    /// Only what was published longer ago
    #[arg(long, value_name = "DURATION", value_parser = duration, allow_hyphen_values = true)]
    pub(crate) older_than: Duration,
    #[command(flatten)]
    pub(crate) meant: Meant,
}

#[derive(Debug, clap::Args)]
pub(crate) struct StuckArgs {
    /// The topic; all if none is named
    pub(crate) topic: Option<String>,
    /// Only what was published longer ago
    #[arg(long, default_value = "1h", value_name = "DURATION", value_parser = duration, allow_hyphen_values = true)]
    pub(crate) older_than: Duration,
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
