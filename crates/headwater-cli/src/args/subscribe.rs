//! Arguments of `group subscribe`: what a new group has of its own, and limits of backfills.

use std::time::Duration;

use headwater::consumer::{GroupOrder, NewSubscription};
use headwater::store::BackfillLimits;
use headwater::{DeliveryPolicy, Start};

use super::group::GroupArgs;
use super::words::{duration, lanes, number, start};

#[derive(Debug, clap::Args)]
pub(crate) struct SubscribeArgs {
    #[command(flatten)]
    pub(crate) of: GroupArgs,
    /// Where the group starts: beginning, now, offset:N, bounded:N (at most the last N), or a time: -1h, 2026-01-31 (UTC),
    /// 2026-01-31T12:00:00Z
    #[arg(long, default_value = "beginning", value_parser = start, allow_hyphen_values = true)]
    from: Start,
    /// Handle messages of one key strictly in order; the default is the topic's, and fixed for the life of the group
    #[arg(long)]
    ordered: bool,
    /// With --ordered: into how many lanes the group is split; the default is the topic's
    #[arg(long, requires = "ordered", value_parser = lanes())]
    lanes: Option<u16>,
    /// Handle messages in no strict order, although the topic's default is by key
    #[arg(long, conflicts_with = "ordered")]
    unordered: bool,
    #[command(flatten)]
    policy: PolicyOptions,
    /// What is added of the group to existing completion records: bounded:N (the last N messages), unlimited or none;
    /// only with reference counting
    #[arg(long, default_value = "bounded:1000000", value_parser = backfill, value_name = "MESSAGES")]
    backfill: BackfillLimits,
    /// The highest rate of the backfill, in messages per second
    #[arg(long, default_value_t = BackfillLimits::default().rate_max, value_parser = clap::value_parser!(u32).range(1..))]
    backfill_rate_max: u32,
    /// The most messages of the backfill in one transaction; the default is measured
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    backfill_batch_max: Option<u32>,
    /// The backfill slows down while a small piece of work of an application takes longer than this
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    backfill_target_latency: Option<Duration>,
}

impl SubscribeArgs {
    /// The subscription that is made if the group is new.
    pub(crate) fn new_subscription(&self) -> NewSubscription {
        let order = match (self.ordered, self.unordered) {
            (true, _) => GroupOrder::ByKey { lanes: self.lanes },
            (_, true) => GroupOrder::Unordered,
            _ => GroupOrder::AsTopic,
        };
        let backfill = BackfillLimits {
            rate_max: self.backfill_rate_max,
            batch_max: self.backfill_batch_max,
            target_latency: self.backfill_target_latency,
            ..self.backfill
        };
        NewSubscription { start: self.from, order, policy: self.policy.policy(), backfill }
    }
}

/// A group's own delivery settings; those not named are the topic's.
#[derive(Debug, clap::Args)]
struct PolicyOptions {
    /// How long a lease lasts, if it differs from the topic's
    #[arg(long, value_name = "DURATION", value_parser = duration, allow_hyphen_values = true)]
    lease: Option<Duration>,
    /// How often a message is handed out before it is buried, if it differs from the topic's
    #[arg(long, value_name = "NUMBER", value_parser = number, allow_hyphen_values = true)]
    max_attempts: Option<u32>,
    /// The first retry delay, if it differs from the topic's
    #[arg(long, value_name = "DURATION", value_parser = duration, allow_hyphen_values = true)]
    backoff_initial: Option<Duration>,
    /// The longest retry delay, if it differs from the topic's
    #[arg(long, value_name = "DURATION", value_parser = duration, allow_hyphen_values = true)]
    backoff_max: Option<Duration>,
    /// How often the group's processes send a heartbeat, if it differs from the topic's
    #[arg(long, value_name = "DURATION", value_parser = duration, allow_hyphen_values = true)]
    heartbeat_interval: Option<Duration>,
    /// After how long without a heartbeat the group is dead, if it differs from the topic's
    #[arg(long, value_name = "DURATION", value_parser = duration, allow_hyphen_values = true)]
    heartbeat_timeout: Option<Duration>,
}

impl PolicyOptions {
    fn policy(&self) -> DeliveryPolicy {
        DeliveryPolicy {
            lease: self.lease,
            max_attempts: self.max_attempts,
            backoff_initial: self.backoff_initial,
            backoff_max: self.backoff_max,
            heartbeat_interval: self.heartbeat_interval,
            heartbeat_timeout: self.heartbeat_timeout,
        }
    }
}

fn backfill(text: &str) -> Result<BackfillLimits, String> {
    match text.split_once(':') {
        None if text == "unlimited" => Ok(BackfillLimits::unlimited()),
        None if text == "none" => Ok(BackfillLimits::none()),
        Some(("bounded", messages)) => match messages.parse() {
            Ok(messages) => Ok(BackfillLimits::bounded(messages)),
            Err(_) => Err(format!("{messages:?} is not a number")),
        },
        _ => Err("write bounded:N, unlimited or none".into()),
    }
}
