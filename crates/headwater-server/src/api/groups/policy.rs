//! The delivery policy of a group in JSON.

use std::time::Duration;

use headwater::{DeliveryPolicy, TopicSettings};
use serde::{Deserialize, Deserializer, Serialize};
use utoipa::ToSchema;

/// The delivery settings of a group's own; null where the topic's apply.
#[derive(Debug, Serialize, ToSchema)]
#[schema(example = json!({
    "lease_ms": 60000, "max_attempts": null, "backoff_initial_ms": null, "backoff_max_ms": null, "heartbeat_interval_ms": null, "heartbeat_timeout_ms": null
}))]
pub(super) struct Policy {
    /// How long a lease lasts.
    lease_ms: Option<u64>,
    /// How often a message is handed out before it becomes a dead letter.
    max_attempts: Option<u32>,
    /// The first retry delay.
    backoff_initial_ms: Option<u64>,
    /// The longest retry delay.
    backoff_max_ms: Option<u64>,
    /// How often the processes of the group send a heartbeat.
    heartbeat_interval_ms: Option<u64>,
    /// After how long without a heartbeat the group is dead.
    heartbeat_timeout_ms: Option<u64>,
}

/// The delivery settings that apply to a group.
#[derive(Debug, Serialize, ToSchema)]
#[schema(example = json!({
    "lease_ms": 60000, "max_attempts": 10, "backoff_initial_ms": 1000, "backoff_max_ms": 300000, "heartbeat_interval_ms": 60000,
    "heartbeat_timeout_ms": 300000
}))]
pub(super) struct EffectivePolicy {
    lease_ms: u64,
    max_attempts: u32,
    backoff_initial_ms: u64,
    backoff_max_ms: u64,
    heartbeat_interval_ms: u64,
    heartbeat_timeout_ms: u64,
}

impl From<&DeliveryPolicy> for Policy {
    fn from(policy: &DeliveryPolicy) -> Self {
        Policy {
            lease_ms: policy.lease.map(millis),
            max_attempts: policy.max_attempts,
            backoff_initial_ms: policy.backoff_initial.map(millis),
            backoff_max_ms: policy.backoff_max.map(millis),
            heartbeat_interval_ms: policy.heartbeat_interval.map(millis),
            heartbeat_timeout_ms: policy.heartbeat_timeout.map(millis),
        }
    }
}

impl From<&TopicSettings> for EffectivePolicy {
    fn from(settings: &TopicSettings) -> Self {
        EffectivePolicy {
            lease_ms: millis(settings.lease),
            max_attempts: settings.max_attempts,
            backoff_initial_ms: millis(settings.backoff_initial),
            backoff_max_ms: millis(settings.backoff_max),
            heartbeat_interval_ms: millis(settings.heartbeat_interval),
            heartbeat_timeout_ms: millis(settings.heartbeat_timeout),
        }
    }
}

/// What of a policy is changed: `None` stays, the inner `None` takes the topic's.
pub(super) struct PolicyChange {
    pub(super) lease_ms: Option<Option<u64>>,
    pub(super) max_attempts: Option<Option<u32>>,
    pub(super) backoff_initial_ms: Option<Option<u64>>,
    pub(super) backoff_max_ms: Option<Option<u64>>,
    pub(super) heartbeat_interval_ms: Option<Option<u64>>,
    pub(super) heartbeat_timeout_ms: Option<Option<u64>>,
}

impl PolicyChange {
    pub(super) fn is_empty(&self) -> bool {
        let durations = [
            self.lease_ms,
            self.backoff_initial_ms,
            self.backoff_max_ms,
            self.heartbeat_interval_ms,
            self.heartbeat_timeout_ms,
        ];
        self.max_attempts.is_none() && durations.iter().all(Option::is_none)
    }

    pub(super) fn applied_to(&self, before: &DeliveryPolicy) -> DeliveryPolicy {
        let duration = |change: Option<Option<u64>>, before: Option<Duration>| {
            change.map_or(before, |own| own.map(Duration::from_millis))
        };
        DeliveryPolicy {
            lease: duration(self.lease_ms, before.lease),
            max_attempts: self.max_attempts.unwrap_or(before.max_attempts),
            backoff_initial: duration(self.backoff_initial_ms, before.backoff_initial),
            backoff_max: duration(self.backoff_max_ms, before.backoff_max),
            heartbeat_interval: duration(self.heartbeat_interval_ms, before.heartbeat_interval),
            heartbeat_timeout: duration(self.heartbeat_timeout_ms, before.heartbeat_timeout),
        }
    }
}

/// A field that is there, be it null.
pub(super) fn given<'de, D: Deserializer<'de>, T: Deserialize<'de>>(field: D) -> Result<Option<T>, D::Error> {
    T::deserialize(field).map(Some)
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
