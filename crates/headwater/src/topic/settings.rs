//! How a topic behaves: its settings, their rules, and presets with names a person understands.

use std::time::Duration;

use super::{Ordering, Semantics};
use crate::error::{Error, ErrorKind, Result};
use crate::limits::{
    DELAY_MAX, HEARTBEAT_INTERVAL_MIN, LANES_MAX, PARTITION_ROWS_MIN, PAYLOAD_BYTES_DEFAULT,
    PAYLOAD_BYTES_MAX, RETENTION_MAX,
};
use crate::name::TopicName;

const HOUR: Duration = Duration::from_secs(3_600);
const DAY: Duration = Duration::from_secs(24 * 3_600);
/// Largest partition by rows: several of them fit into the offsets there are.
const PARTITION_ROWS_MAX: u64 = 1_000_000_000_000;

/// How it is recorded that a message is done. Delivery is the same in both; they differ in what is stored about a message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Tracking {
    /// Done for a group when it is below the group's next and in no outstanding range; done for the topic at or below the
    /// watermark. Any number of groups, nothing written per message.
    #[default]
    OffsetWatermark,
    /// Each message also has a record of the groups it waits for and of those that are done: two sets of at most
    /// [`crate::limits::TRACKED_GROUPS_MAX`] groups, by identity, that plain SQL can read.
    ReferenceCounting,
}

impl Tracking {
    /// The word the stores and the CLI use.
    pub fn as_str(self) -> &'static str {
        match self {
            Tracking::OffsetWatermark => "offset_watermark",
            Tracking::ReferenceCounting => "reference_counting",
        }
    }

    pub(crate) fn parse(text: &str) -> Result<Self> {
        match text {
            "offset_watermark" => Ok(Tracking::OffsetWatermark),
            "reference_counting" => Ok(Tracking::ReferenceCounting),
            other => Err(Error::invalid(
                "tracking",
                format!("{other} is neither offset_watermark nor reference_counting"),
            )),
        }
    }
}

/// Where a topic's messages are stored (PostgreSQL). The embedded file keeps the messages of each topic together
/// anyway and removes them by range, so there it changes nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Storage {
    /// With other topics, in one table. Old messages are deleted.
    #[default]
    Shared,
    /// In tables of its own, cut as the partition says. Old messages go with their table.
    Dedicated(Partition),
}

/// How dedicated storage is cut. Partitions are ranges of offsets, so a reader always knows where an offset is; those by
/// time are made as large as the topic's rate fills in that time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Partition {
    /// One table.
    #[default]
    None,
    /// A table for so many offsets.
    Rows(u64),
    /// About a table an hour.
    Hour,
    /// About a table a day.
    Day,
    /// About a table a month.
    Month,
}

impl Storage {
    /// The words the stores and the CLI use: storage, partition and rows.
    pub(crate) fn words(self) -> (&'static str, &'static str, Option<i64>) {
        match self {
            Storage::Shared => ("shared", "none", None),
            Storage::Dedicated(Partition::None) => ("dedicated", "none", None),
            Storage::Dedicated(Partition::Rows(rows)) => {
                ("dedicated", "rows", Some(i64::try_from(rows).unwrap_or(i64::MAX)))
            }
            Storage::Dedicated(Partition::Hour) => ("dedicated", "hour", None),
            Storage::Dedicated(Partition::Day) => ("dedicated", "day", None),
            Storage::Dedicated(Partition::Month) => ("dedicated", "month", None),
        }
    }

    pub(crate) fn parse(storage: &str, partition: &str, rows: Option<i64>) -> Result<Self> {
        Ok(match (storage, partition, rows) {
            ("shared", "none", _) => Storage::Shared,
            ("dedicated", "none", _) => Storage::Dedicated(Partition::None),
            ("dedicated", "rows", Some(rows)) => {
                Storage::Dedicated(Partition::Rows(u64::try_from(rows).unwrap_or(0)))
            }
            ("dedicated", "hour", _) => Storage::Dedicated(Partition::Hour),
            ("dedicated", "day", _) => Storage::Dedicated(Partition::Day),
            ("dedicated", "month", _) => Storage::Dedicated(Partition::Month),
            _ => {
                return Err(Error::invalid(
                    "storage",
                    format!("{storage} with partition {partition} is unknown"),
                ));
            }
        })
    }
}

/// A choice of retention and blocking with a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Preset {
    /// Must not be lost: a week, and publishing fails while nobody listens.
    Critical,
    /// For the record: ninety days, and publishing fails while nobody listens.
    Audit,
    /// Events: a day.
    Standard,
    /// Soon stale: an hour.
    Ephemeral,
    /// Work for one group; never blocks.
    Queue,
}

impl Preset {
    /// All of them.
    pub const ALL: [Preset; 5] =
        [Preset::Critical, Preset::Audit, Preset::Standard, Preset::Ephemeral, Preset::Queue];

    /// The word the CLI uses.
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

/// How a topic behaves. Subscriptions take lease, attempts, back-off, heartbeats and ordering from their topic.
///
/// Each can be changed later by [`crate::store::Lifecycle::alter_topic`]. Lanes and ordering hold for groups that
/// subscribe from then on; storage can be changed while the topic has no messages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopicSettings {
    /// Queue or pub/sub.
    pub semantics: Semantics,
    /// How completion is recorded.
    pub tracking: Tracking,
    /// How long a message stays after every counting subscription is done with it; `None` keeps all for replay.
    pub message_retention: Option<Duration>,
    /// The age at which a message goes whatever the subscriptions do; `None` for never, the default of a queue. What it
    /// takes unread is counted, logged and shown as the subscription's missed range.
    pub max_retention: Option<Duration>,
    /// The least life of a message published while no subscription counted.
    pub zero_subscription_retention: Duration,
    /// Publishing fails with `NoSubscriptions` while no subscription counts. Only pub/sub: a queue never blocks.
    pub block_writes_on_zero_subscriptions: bool,
    /// Only pub/sub: a subscription that has been dead for longer gives up what it holds of messages that are removed.
    pub zombie_subscription_ttl: Duration,
    /// How long a hand-out lasts; zero means it is never reassigned by itself.
    pub lease: Duration,
    /// How often a message is handed out before it is buried.
    pub max_attempts: u32,
    /// The first retry delay; it doubles with each attempt.
    pub backoff_initial: Duration,
    /// The longest retry delay.
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
    pub dedup_window: Duration,
    /// How often the processes of a group say that it is alive.
    pub heartbeat_interval: Duration,
    /// For how long a group may be silent before it is dead.
    pub heartbeat_timeout: Duration,
    /// Whether it is recorded who acked which offsets, when.
    pub ack_log: bool,
    /// How long the head waits at a missing offset before it steps over it, noting the gap (PostgreSQL; the
    /// embedded file has one writer and no gaps).
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

    /// Checks every field against its rule, and against its neighbours.
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
        // Else the cap would take what is promised to be kept, and nobody would know why.
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

    /// Every setting with its words, as people write them.
    fn words(&self) -> [(&'static str, String); 20] {
        let flag = |on: bool| if on { "true".to_owned() } else { "false".to_owned() };
        let (storage, partition, rows) = self.storage.words();
        let storage = match (storage, partition, rows) {
            (storage, "none", _) => storage.to_owned(),
            (storage, partition, Some(rows)) => format!("{storage} by {partition}:{rows}"),
            (storage, partition, None) => format!("{storage} by {partition}"),
        };
        // Every field is named here, so that a new one is not forgotten.
        let TopicSettings {
            semantics,
            tracking,
            message_retention,
            max_retention,
            zero_subscription_retention,
            block_writes_on_zero_subscriptions,
            zombie_subscription_ttl,
            lease,
            max_attempts,
            backoff_initial,
            backoff_max,
            ordering,
            lanes,
            storage: _,
            payload_bytes_max,
            dedup_window,
            heartbeat_interval,
            heartbeat_timeout,
            ack_log,
            gap_patience,
        } = self;
        [
            ("semantics", semantics.as_str().to_owned()),
            ("tracking", tracking.as_str().to_owned()),
            ("message_retention", message_retention.map_or_else(|| "forever".to_owned(), written)),
            ("max_retention", max_retention.map_or_else(|| "none".to_owned(), written)),
            ("zero_subscription_retention", written(*zero_subscription_retention)),
            ("block_writes_on_zero_subscriptions", flag(*block_writes_on_zero_subscriptions)),
            ("zombie_subscription_ttl", written(*zombie_subscription_ttl)),
            ("lease", written(*lease)),
            ("max_attempts", max_attempts.to_string()),
            ("backoff_initial", written(*backoff_initial)),
            ("backoff_max", written(*backoff_max)),
            ("ordering", ordering.as_str().to_owned()),
            ("lanes", lanes.to_string()),
            ("storage", storage),
            ("payload_bytes_max", payload_bytes_max.to_string()),
            ("dedup_window", written(*dedup_window)),
            ("heartbeat_interval", written(*heartbeat_interval)),
            ("heartbeat_timeout", written(*heartbeat_timeout)),
            ("ack_log", flag(*ack_log)),
            ("gap_patience", written(*gap_patience)),
        ]
    }
}

/// What creating a topic that is there otherwise answers: each setting that differs, and what to do. The same on every engine.
pub(crate) fn exists_otherwise(topic: &TopicName, there: &TopicSettings, wanted: &TopicSettings) -> Error {
    let differs = there.words().into_iter().zip(wanted.words()).filter(|(is, wanted)| is != wanted);
    let differs: Vec<String> =
        differs.map(|((field, is), (_, wanted))| format!("{field} {is}, not {wanted}")).collect();
    Error::new(
        ErrorKind::Conflict,
        format!(
            "topic {topic} exists with other settings: {}; nothing was changed: alter it with `headwater topic alter {topic}`",
            differs.join("; ")
        ),
    )
}

/// A duration as the command line takes it: in days or hours where that is all of it, else in seconds or milliseconds.
fn written(duration: Duration) -> String {
    let units = [(86_400_000, "d"), (3_600_000, "h"), (1_000, "s")];
    let ms = duration.as_millis();
    let whole = units.into_iter().find(|(size, _)| ms > 0 && ms.is_multiple_of(*size));
    match whole {
        Some((size, unit)) => format!("{}{unit}", ms / size),
        None if ms == 0 => "0s".into(),
        None => format!("{ms}ms"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_conflict_names_what_differs_and_nothing_else() {
        let there = TopicSettings { max_retention: Some(DAY * 30), ..TopicSettings::default() };
        let wanted = TopicSettings {
            lease: Duration::from_secs(30),
            max_retention: None,
            storage: Storage::Dedicated(Partition::Rows(5_000)),
            gap_patience: Duration::from_millis(1_500),
            ..TopicSettings::pub_sub()
        };
        let error = exists_otherwise(&TopicName::new("orders").unwrap(), &there, &wanted);
        assert_eq!(error.kind(), ErrorKind::Conflict);
        assert_eq!(
            error.to_string(),
            "topic orders exists with other settings: semantics queue, not pub_sub; max_retention 30d, not none; \
             lease 300s, not 30s; storage shared, not dedicated by rows:5000; gap_patience 50ms, not 1500ms; \
             nothing was changed: alter it with `headwater topic alter orders`"
        );
    }

    #[test]
    fn settings_that_contradict_each_other_are_refused() {
        let refused = |settings: TopicSettings| settings.validate().unwrap_err().to_string();
        let kept = refused(TopicSettings { message_retention: Some(DAY * 31), ..TopicSettings::pub_sub() });
        assert!(kept.contains("invalid message_retention: 31d is longer than max_retention, 30d"), "{kept}");
        let slow =
            refused(TopicSettings { backoff_initial: Duration::from_secs(301), ..TopicSettings::default() });
        assert!(slow.contains("invalid backoff_initial: 301s is longer than backoff_max, 300s"), "{slow}");
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
