//! The settings of a topic, their rules, and presets.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::json::{millis, written};
use super::{Ordering, Partition, Semantics, Storage};
use crate::error::{Error, Result};
use crate::limits::{
    DELAY_MAX, HEARTBEAT_INTERVAL_MIN, LANES_MAX, PARTITION_ROWS_MIN, PAYLOAD_BYTES_DEFAULT,
    PAYLOAD_BYTES_MAX, RETENTION_MAX,
};

const HOUR: Duration = Duration::from_secs(3_600);
const DAY: Duration = Duration::from_secs(24 * 3_600);
/// Largest partition by rows: the range of offsets has room for several of them.
const PARTITION_ROWS_MAX: u64 = 1_000_000_000_000;

/// How completion is recorded. Delivery is the same in both modes; they differ in what is stored about a message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Tracking {
    /// A message is done for a group when it is below the group's cursor and in no outstanding range; it is done for
    /// the topic at or below the watermark. Any number of groups, and nothing is written per message.
    #[default]
    OffsetWatermark,
    /// Each message also has a completion record of the groups it waits for and of the groups that are done: two sets
    /// of at most [`crate::limits::TRACKED_GROUPS_MAX`] groups, by id, that plain SQL can read.
    ReferenceCounting,
}

impl Tracking {
    /// The name that the stores and the CLI use.
    pub fn as_str(self) -> &'static str {
        match self {
            Tracking::OffsetWatermark => "offset_watermark",
            Tracking::ReferenceCounting => "reference_counting",
        }
    }
}

/// A named choice of retention and blocking.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Preset {
    /// Messages that must not be lost: kept for a week, and publishing fails while no group subscribes.
    Critical,
    /// Messages for audits: kept for ninety days, and publishing fails while no group subscribes.
    Audit,
    /// Events: kept for a day.
    Standard,
    /// Messages that are soon outdated: kept for an hour.
    Ephemeral,
    /// Work for one group; publishing never fails for lack of subscriptions.
    Queue,
}

impl Preset {
    /// All presets.
    pub const ALL: [Preset; 5] =
        [Preset::Critical, Preset::Audit, Preset::Standard, Preset::Ephemeral, Preset::Queue];

    /// The name that the CLI uses.
    pub fn as_str(self) -> &'static str {
        match self {
            Preset::Critical => "critical",
            Preset::Audit => "audit",
            Preset::Standard => "standard",
            Preset::Ephemeral => "ephemeral",
            Preset::Queue => "queue",
        }
    }
}

/// The settings of a topic. Subscriptions take lease, attempts, back-off, heartbeats and ordering from their topic.
///
/// Stored as JSON under their serde names on every engine; see [`TopicSettings::described`]. Where SQL reads a setting,
/// the table `topic` also has a column for it.
///
/// Each can be changed later by [`crate::store::Admin::alter_topic`]. Changed lanes and ordering apply to groups that
/// subscribe from then on; storage can be changed while the topic has no messages.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TopicSettings {
    /// Queue or pub/sub.
    pub semantics: Semantics,
    /// How completion is recorded.
    pub tracking: Tracking,
    /// How long a message is kept after every counting subscription is done with it; `None` keeps all messages for
    /// replay.
    #[serde(rename = "message_retention_ms", with = "millis::optional")]
    pub message_retention: Option<Duration>,
    /// The age at which a message is removed even if subscriptions are not done with it; `None` for never, the default
    /// of a queue. Messages that it removes unread are counted, logged and shown as the subscription's missed range.
    #[serde(rename = "max_retention_ms", with = "millis::optional")]
    pub max_retention: Option<Duration>,
    /// How long a message published while no subscription counted is kept at least.
    #[serde(rename = "zero_subscription_retention_ms", with = "millis")]
    pub zero_subscription_retention: Duration,
    /// Publishing fails with `NoSubscriptions` while no subscription counts. Only pub/sub: a queue never blocks.
    pub block_writes_on_zero_subscriptions: bool,
    /// Only pub/sub: a subscription that has been dead for longer gives up its outstanding ranges of messages that are
    /// removed.
    #[serde(rename = "zombie_subscription_ttl_ms", with = "millis")]
    pub zombie_subscription_ttl: Duration,
    /// How long a lease lasts; zero means it never expires.
    #[serde(rename = "lease_ms", with = "millis")]
    pub lease: Duration,
    /// How often a message is handed out before it becomes a dead letter.
    pub max_attempts: u32,
    /// The first retry delay; it doubles with each attempt.
    #[serde(rename = "backoff_initial_ms", with = "millis")]
    pub backoff_initial: Duration,
    /// The longest retry delay.
    #[serde(rename = "backoff_max_ms", with = "millis")]
    pub backoff_max: Duration,
    /// Per-key order, or none.
    pub ordering: Ordering,
    /// Into how many lanes an ordered subscription is split. Fixed when a group subscribes.
    pub lanes: u16,
    /// Where messages are stored.
    pub storage: Storage,
    /// The largest payload.
    pub payload_bytes_max: usize,
    /// How long a dedup key is remembered.
    #[serde(rename = "dedup_window_ms", with = "millis")]
    pub dedup_window: Duration,
    /// How often the processes of a group send a heartbeat.
    #[serde(rename = "heartbeat_interval_ms", with = "millis")]
    pub heartbeat_interval: Duration,
    /// A group without a heartbeat for this long is dead.
    #[serde(rename = "heartbeat_timeout_ms", with = "millis")]
    pub heartbeat_timeout: Duration,
    /// Whether each ack is logged: which owner acked which offsets, and when.
    pub ack_log: bool,
    /// How long the head waits at a missing offset before it steps over it and records the gap (PostgreSQL; SQLite has
    /// one writer and no gaps).
    #[serde(rename = "gap_patience_ms", with = "millis")]
    pub gap_patience: Duration,
}

impl Default for TopicSettings {
    fn default() -> Self {
        TopicSettings {
            semantics: Semantics::Queue,
            tracking: Tracking::OffsetWatermark,
            message_retention: Some(DAY),
            max_retention: None,
            zero_subscription_retention: DAY,
            block_writes_on_zero_subscriptions: false,
            zombie_subscription_ttl: DAY * 7,
            lease: Duration::from_secs(300),
            max_attempts: 10,
            backoff_initial: Duration::from_secs(1),
            backoff_max: Duration::from_secs(300),
            ordering: Ordering::None,
            lanes: 16,
            storage: Storage::Shared,
            payload_bytes_max: PAYLOAD_BYTES_DEFAULT,
            dedup_window: Duration::from_secs(600),
            heartbeat_interval: Duration::from_secs(60),
            heartbeat_timeout: Duration::from_secs(300),
            ack_log: false,
            gap_patience: Duration::from_millis(50),
        }
    }
}

impl TopicSettings {
    /// The defaults of a fan-out topic.
    pub fn pub_sub() -> Self {
        TopicSettings {
            semantics: Semantics::PubSub,
            max_retention: Some(DAY * 30),
            ..TopicSettings::default()
        }
    }

    /// The settings of a preset.
    pub fn preset(preset: Preset) -> Self {
        let kept = |retention: Duration, max: Duration, blocking: bool| TopicSettings {
            message_retention: Some(retention),
            max_retention: Some(max),
            zero_subscription_retention: retention,
            block_writes_on_zero_subscriptions: blocking,
            ..TopicSettings::pub_sub()
        };
        match preset {
            Preset::Critical => kept(DAY * 7, DAY * 30, true),
            Preset::Audit => kept(DAY * 90, DAY * 365, true),
            Preset::Standard => kept(DAY, DAY * 30, false),
            Preset::Ephemeral => kept(HOUR, DAY, false),
            Preset::Queue => TopicSettings::default(),
        }
    }

    /// Checks every field against its rule, and against the other fields.
    pub fn validate(&self) -> Result<()> {
        self.validate_times()?;
        if self.block_writes_on_zero_subscriptions && self.semantics == Semantics::Queue {
            return Err(Error::invalid(
                "block_writes_on_zero_subscriptions",
                "a queue never blocks; make the topic pub_sub",
            ));
        }
        if let Storage::Dedicated(Partition::Rows(rows)) = self.storage
            && !(PARTITION_ROWS_MIN..=PARTITION_ROWS_MAX).contains(&rows)
        {
            return Err(Error::invalid(
                "partition rows",
                format!("must be from {PARTITION_ROWS_MIN} to {PARTITION_ROWS_MAX}"),
            ));
        }
        if self.max_attempts == 0 || self.max_attempts > 1_000 {
            return Err(Error::invalid("max_attempts", "must be from 1 to 1000"));
        }
        if self.lanes == 0 || self.lanes > LANES_MAX {
            return Err(Error::invalid("lanes", format!("must be from 1 to {LANES_MAX}")));
        }
        if self.payload_bytes_max == 0 || self.payload_bytes_max > PAYLOAD_BYTES_MAX {
            return Err(Error::invalid(
                "payload_bytes_max",
                format!("must be from 1 to {PAYLOAD_BYTES_MAX}"),
            ));
        }
        Ok(())
    }

    fn validate_times(&self) -> Result<()> {
        let durations = [
            ("lease", self.lease),
            ("backoff_initial", self.backoff_initial),
            ("backoff_max", self.backoff_max),
            ("dedup_window", self.dedup_window),
            ("gap_patience", self.gap_patience),
            ("heartbeat_interval", self.heartbeat_interval),
            ("heartbeat_timeout", self.heartbeat_timeout),
        ];
        for (field, value) in durations {
            if value > DELAY_MAX {
                return Err(Error::invalid(field, "longer than 366 days"));
            }
        }
        let retentions = [
            ("message_retention", self.message_retention),
            ("max_retention", self.max_retention),
            ("zero_subscription_retention", Some(self.zero_subscription_retention)),
            ("zombie_subscription_ttl", Some(self.zombie_subscription_ttl)),
        ];
        for (field, value) in retentions {
            if value.is_some_and(|value| value > RETENTION_MAX) {
                return Err(Error::invalid(field, "longer than 100 years"));
            }
        }
        if self.max_retention.is_some_and(|max| max.is_zero()) {
            return Err(Error::invalid("max_retention", "must be longer than zero, or none"));
        }
        // Otherwise max_retention would remove messages that message_retention promises to keep, with no visible
        // reason.
        if let (Some(kept), Some(max)) = (self.message_retention, self.max_retention)
            && kept > max
        {
            let (kept, max) = (written(kept), written(max));
            return Err(Error::invalid(
                "message_retention",
                format!(
                    "{kept} is longer than max_retention, {max}, which removes messages before; raise max_retention \
                     (or set it to none), or shorten message_retention"
                ),
            ));
        }
        if self.backoff_initial > self.backoff_max {
            let (initial, max) = (written(self.backoff_initial), written(self.backoff_max));
            return Err(Error::invalid(
                "backoff_initial",
                format!(
                    "{initial} is longer than backoff_max, {max}; raise backoff_max, or shorten backoff_initial"
                ),
            ));
        }
        if self.heartbeat_interval < HEARTBEAT_INTERVAL_MIN {
            return Err(Error::invalid("heartbeat_interval", "must be at least 100 ms"));
        }
        if self.heartbeat_timeout < self.heartbeat_interval * 2 {
            return Err(Error::invalid(
                "heartbeat_timeout",
                "must be at least twice heartbeat_interval, or one lost heartbeat is a death",
            ));
        }
        Ok(())
    }
}

impl TopicSettings {
    /// Settings that are valid but cannot work together as they promise; each as a sentence for an operator.
    pub(crate) fn contradictions(&self) -> Vec<String> {
        let Some(max) = self.max_retention else { return Vec::new() };
        let retries = self.retries_take();
        let removes = format!("max_retention, {}, removes messages before", written(max));
        let checks = [
            (
                self.zero_subscription_retention > max,
                format!(
                    "zero_subscription_retention promises {}, but {removes}",
                    written(self.zero_subscription_retention)
                ),
            ),
            (self.lease > max, format!("a lease lasts {}, but {removes}", written(self.lease))),
            (
                retries > max,
                format!(
                    "{} attempts take at least {}, but {removes}: a message that fails never becomes a dead letter",
                    self.max_attempts,
                    written(retries)
                ),
            ),
        ];
        checks.into_iter().filter_map(|(is_so, text)| is_so.then_some(text)).collect()
    }

    /// The sum of the back-offs before the last attempt.
    fn retries_take(&self) -> Duration {
        let mut delay = self.backoff_initial;
        let mut sum = Duration::ZERO;
        for _ in 1..self.max_attempts {
            sum += delay;
            delay = (delay * 2).min(self.backoff_max);
        }
        sum
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_that_cannot_work_together_are_named() {
        let with = |change: fn(&mut TopicSettings)| {
            let mut settings = TopicSettings::preset(Preset::Ephemeral);
            change(&mut settings);
            settings.validate().unwrap();
            settings.contradictions()
        };
        assert!(
            Preset::ALL.map(TopicSettings::preset).iter().all(|preset| preset.contradictions().is_empty())
        );
        let zero = with(|settings| settings.zero_subscription_retention = DAY * 2);
        assert_eq!(
            zero,
            ["zero_subscription_retention promises 2d, but max_retention, 1d, removes messages before"]
        );
        assert!(with(|settings| settings.lease = DAY * 2)[0].starts_with("a lease lasts 2d"));
        let slow = with(|settings| {
            (settings.backoff_initial, settings.backoff_max, settings.max_attempts) = (HOUR, HOUR * 8, 7);
        });
        assert!(slow[0].starts_with("7 attempts take at least 1d7h"), "{slow:?}");
    }

    #[test]
    fn settings_that_contradict_each_other_are_refused() {
        let refused = |settings: TopicSettings| settings.validate().unwrap_err().to_string();
        let kept = refused(TopicSettings { message_retention: Some(DAY * 31), ..TopicSettings::pub_sub() });
        assert!(kept.contains("invalid message_retention: 31d is longer than max_retention, 30d"), "{kept}");
        let slow =
            refused(TopicSettings { backoff_initial: Duration::from_secs(301), ..TopicSettings::default() });
        assert!(slow.contains("invalid backoff_initial: 5m1s is longer than backoff_max, 5m"), "{slow}");
        let fine = [
            TopicSettings { message_retention: Some(DAY * 30), ..TopicSettings::pub_sub() },
            TopicSettings { message_retention: None, ..TopicSettings::default() },
            TopicSettings {
                message_retention: Some(DAY * 31),
                max_retention: None,
                ..TopicSettings::default()
            },
        ];
        let presets = Preset::ALL.map(TopicSettings::preset);
        assert!(fine.iter().chain(&presets).all(|settings| settings.validate().is_ok()));
    }
}
