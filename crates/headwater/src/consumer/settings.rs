//! How a group runs: what its consumer says, and what its topic says, which may be altered meanwhile.

use std::time::Duration;

use crate::backfill::BackfillPace;
use crate::handler::Filter;
use crate::lease::GroupLimits;
use crate::settle::RetryPolicy;
use crate::topic::TopicSettings;

/// How a group runs.
#[derive(Clone)]
pub(crate) struct GroupSettings {
    pub(crate) concurrency: usize,
    pub(crate) batch: usize,
    pub(crate) lease: Option<Duration>,
    pub(crate) timeout: Option<Duration>,
    pub(crate) limits: GroupLimits,
    pub(crate) catch_up_pace: Option<BackfillPace>,
    pub(crate) buffer_bytes_max: usize,
    pub(crate) filter: Option<Filter>,
    /// The name under which effects are remembered in the inbox.
    pub(crate) inbox_name: String,
    /// Whether a program takes its messages by itself, and no member here.
    pub(crate) pulled: bool,
}

/// How messages of a group are handed out and tried again, if its consumer does not say otherwise.
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
