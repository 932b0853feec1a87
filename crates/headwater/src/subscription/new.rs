//! How a new subscription is made: its start, order, delivery policy and backfill.

use super::{DeliveryPolicy, Start, Subscription};
use crate::backfill::BackfillLimits;
use crate::error::{Error, Result};
use crate::limits::LANES_MAX;
use crate::topic::{Ordering, TopicSettings};

/// How a new subscription is made. An existing group keeps its cursor, its order, its policy and its backfill, whatever
/// is given: they are decided when the group first subscribes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NewSubscription {
    /// Where it starts.
    pub start: Start,
    /// In which order its messages are handled.
    pub order: GroupOrder,
    /// Its own delivery settings; what is `None` is the topic's.
    pub policy: DeliveryPolicy,
    /// What is added of it to existing completion records. Only with reference counting: otherwise there are none.
    pub backfill: BackfillLimits,
}

/// In which order the messages of a group are handled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GroupOrder {
    /// As its topic's settings say when the group first subscribes.
    #[default]
    AsTopic,
    /// Offsets rise within a lease; leases are handled concurrently.
    Unordered,
    /// Strictly by offset among messages of one key.
    ByKey {
        /// Into how many lanes it is split, which is how many of its keys are handled concurrently at most; `None` takes
        /// the topic's.
        lanes: Option<u16>,
    },
}

impl From<Start> for NewSubscription {
    fn from(start: Start) -> Self {
        NewSubscription { start, ..NewSubscription::default() }
    }
}

impl NewSubscription {
    /// Checks what does not depend on the topic.
    pub(crate) fn validate(&self) -> Result<()> {
        if let GroupOrder::ByKey { lanes: Some(lanes) } = self.order
            && !(1..=LANES_MAX).contains(&lanes)
        {
            return Err(Error::invalid("lanes", format!("must be from 1 to {LANES_MAX}")));
        }
        self.backfill.validate()
    }

    /// What an existing subscription has otherwise: each difference in words. What this leaves to the topic is none.
    pub(crate) fn differences(&self, stored: &Subscription) -> Vec<String> {
        let mut differences = Vec::new();
        if !self.order.is_met_by(stored) {
            let wanted = in_words(self.order.lanes_for(&stored.topic.settings));
            differences.push(format!("order {}, not {wanted}", in_words(stored.lanes)));
        }
        differences.extend(self.policy_differences(&stored.topic.settings));
        differences
    }

    /// Those of the policy, beside the settings that hold for the group.
    pub(crate) fn policy_differences(&self, effective: &TopicSettings) -> Vec<String> {
        effective.differences(&self.policy.apply_to(effective))
    }
}

impl GroupOrder {
    /// Into how many lanes a new subscription is split; 0 if it is not ordered.
    pub(crate) fn lanes_for(self, topic: &TopicSettings) -> u16 {
        match (self, topic.ordering) {
            (GroupOrder::Unordered, _) | (GroupOrder::AsTopic, Ordering::None) => 0,
            (GroupOrder::AsTopic, Ordering::Key) => topic.lanes,
            (GroupOrder::ByKey { lanes }, _) => lanes.unwrap_or(topic.lanes),
        }
    }

    /// A number of lanes counts only where it is given: the topic's may have been altered since.
    fn is_met_by(self, stored: &Subscription) -> bool {
        match self {
            GroupOrder::AsTopic => true,
            GroupOrder::Unordered => stored.lanes == 0,
            GroupOrder::ByKey { lanes: None } => stored.lanes > 0,
            GroupOrder::ByKey { lanes: Some(lanes) } => stored.lanes == lanes,
        }
    }
}

fn in_words(lanes: u16) -> String {
    match lanes {
        0 => "none".to_owned(),
        lanes => format!("by key in {lanes} lanes"),
    }
}
