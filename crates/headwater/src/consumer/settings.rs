//! Settings of a group: those of its consumer, and those of its topic, which may be altered meanwhile.

use std::time::Duration;

use crate::backfill::BackfillPace;
use crate::handler::{Filter, Layers, States, Undecodable};
use crate::lease::GroupLimits;
use crate::settle::RetryPolicy;
use crate::topic::TopicSettings;

/// Settings of a consumer.
#[derive(Clone)]
pub(crate) struct GroupSettings {
    pub(crate) concurrency: usize,
    pub(crate) batch: usize,
    pub(crate) lease: Option<Duration>,
    pub(crate) timeout: Option<Duration>,
    pub(crate) undecodable: Undecodable,
    pub(crate) pause_after_burials: Option<u32>,
    pub(crate) limits: GroupLimits,
    pub(crate) catch_up_pace: Option<BackfillPace>,
    pub(crate) buffer_bytes_max: usize,
    pub(crate) filter: Option<Filter>,
    pub(crate) states: States,
    pub(crate) layers: Layers,
    /// The handler name in inbox entries.
    pub(crate) inbox_name: String,
    /// Whether a program takes batches itself, so that the group has no members here.
    pub(crate) pulled: bool,
}

/// Lease time and retry policy of a group, from the topic or the group's delivery policy.
#[derive(Clone, Copy, Debug)]
pub(super) struct Delivery {
    pub(super) lease: Duration,
    pub(super) retry: RetryPolicy,
}

impl From<&TopicSettings> for Delivery {
    fn from(settings: &TopicSettings) -> Self {
        Delivery { lease: settings.lease, retry: RetryPolicy::from(settings) }
    }
}
