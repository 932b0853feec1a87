//! The life of a subscription: its states, who may move them, and nothing else.

use std::fmt;

use crate::error::{Error, ErrorKind, Result};
use crate::topic::Semantics;

/// Where a subscription is in its life.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum SubscriptionState {
    /// Delivered to. Counts for retention and the watermark.
    #[default]
    Active,
    /// Nothing is delivered, nothing is lost: it still counts.
    Paused,
    /// Silent for too long. Does not count; its cursor stays for the day it comes back.
    Dead,
    /// Given up on purpose. Does not count, and never comes back: subscribing again makes a new one.
    Cancelled,
}

/// What moves a subscription from one state to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Transition {
    /// By an operator.
    Pause,
    /// By an operator.
    Resume,
    /// By the detector alone, after the heartbeat timeout.
    Die,
    /// By a heartbeat, a subscribe, or an operator.
    Resurrect,
    /// By an operator.
    Cancel,
}

impl SubscriptionState {
    /// Every state.
    pub const ALL: [SubscriptionState; 4] = [
        SubscriptionState::Active,
        SubscriptionState::Paused,
        SubscriptionState::Dead,
        SubscriptionState::Cancelled,
    ];

    /// Whether messages wait for it: what a counting subscription has not done is not removed. The group of a queue counts
    /// until it is cancelled: its work waits for its workers, however long they are away.
    pub fn counts(self, semantics: Semantics) -> bool {
        match self {
            SubscriptionState::Active | SubscriptionState::Paused => true,
            SubscriptionState::Dead => semantics == Semantics::Queue,
            SubscriptionState::Cancelled => false,
        }
    }

    /// The word the stores and the CLI use.
    pub fn as_str(self) -> &'static str {
        match self {
            SubscriptionState::Active => "active",
            SubscriptionState::Paused => "paused",
            SubscriptionState::Dead => "dead",
            SubscriptionState::Cancelled => "cancelled",
        }
    }

    pub(crate) fn parse(text: &str) -> Result<Self> {
        SubscriptionState::ALL
            .into_iter()
            .find(|state| state.as_str() == text)
            .ok_or_else(|| Error::invalid("state", format!("{text} is no state of a subscription")))
    }
}

impl fmt::Display for SubscriptionState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Transition {
    /// Every transition.
    pub const ALL: [Transition; 5] =
        [Transition::Pause, Transition::Resume, Transition::Die, Transition::Resurrect, Transition::Cancel];

    /// Where it may start.
    pub fn from(self) -> &'static [SubscriptionState] {
        use SubscriptionState::{Active, Dead, Paused};
        match self {
            Transition::Pause | Transition::Die => &[Active],
            Transition::Resume => &[Paused],
            Transition::Resurrect => &[Dead],
            Transition::Cancel => &[Active, Paused, Dead],
        }
    }

    /// Where it leads.
    pub fn to(self) -> SubscriptionState {
        match self {
            Transition::Pause => SubscriptionState::Paused,
            Transition::Resume | Transition::Resurrect => SubscriptionState::Active,
            Transition::Die => SubscriptionState::Dead,
            Transition::Cancel => SubscriptionState::Cancelled,
        }
    }

    /// The word messages and the audit use.
    pub fn as_str(self) -> &'static str {
        match self {
            Transition::Pause => "pause",
            Transition::Resume => "resume",
            Transition::Die => "die",
            Transition::Resurrect => "resurrect",
            Transition::Cancel => "cancel",
        }
    }

    /// The words of the states it may start from, for statements.
    pub(crate) fn starts(self) -> Vec<&'static str> {
        self.from().iter().map(|state| state.as_str()).collect()
    }

    /// Why it is not possible from where the subscription is.
    pub(crate) fn refused(self, topic: &str, group: &str, state: SubscriptionState) -> Error {
        refused(self.as_str(), &self.starts().join(" or "), topic, group, state)
    }
}

/// Why an act is not possible in the state that a subscription is in.
fn refused(act: &str, needs: &str, topic: &str, group: &str, state: SubscriptionState) -> Error {
    let text = format!(
        "invalid transition: topic {topic}, group {group} is {state}; {act} needs {needs}; nothing was changed"
    );
    Error::new(ErrorKind::InvalidTransition, text)
}

/// Why an act is not possible with a cancelled subscription: that is for good.
pub(crate) fn refused_cancelled(act: &str, topic: &str, group: &str) -> Error {
    refused(act, &Transition::Cancel.starts().join(" or "), topic, group, SubscriptionState::Cancelled)
}

/// Why a subscription is not removed: it is in another state, or cancelled and not yet released from the records.
pub(crate) fn refused_removal(topic: &str, group: &str, state: SubscriptionState) -> Error {
    if state != SubscriptionState::Cancelled {
        return refused("remove", SubscriptionState::Cancelled.as_str(), topic, group, state);
    }
    let text = format!(
        "invalid transition: topic {topic}, group {group} is cancelled and not yet released from the records; \
         maintenance releases it; nothing was changed"
    );
    Error::new(ErrorKind::InvalidTransition, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_drawn_arrows_exist() {
        use SubscriptionState::{Active, Cancelled, Dead, Paused};
        let drawn = [
            (Active, Transition::Pause, Paused),
            (Paused, Transition::Resume, Active),
            (Active, Transition::Die, Dead),
            (Dead, Transition::Resurrect, Active),
            (Active, Transition::Cancel, Cancelled),
            (Paused, Transition::Cancel, Cancelled),
            (Dead, Transition::Cancel, Cancelled),
        ];
        for state in SubscriptionState::ALL {
            for transition in Transition::ALL {
                let arrow = drawn.iter().find(|(from, by, _)| (*from, *by) == (state, transition));
                assert_eq!(transition.from().contains(&state), arrow.is_some(), "{state} {transition:?}");
                if let Some((_, _, to)) = arrow {
                    assert_eq!(transition.to(), *to);
                }
            }
        }
        assert!(Transition::ALL.iter().all(|transition| !transition.from().contains(&Cancelled)));
    }

    #[test]
    fn a_pause_keeps_counting_and_a_death_does_not() {
        let counting = SubscriptionState::ALL.map(|state| state.counts(Semantics::PubSub));
        assert_eq!(counting, [true, true, false, false]);
        let counting = SubscriptionState::ALL.map(|state| state.counts(Semantics::Queue));
        assert_eq!(counting, [true, true, true, false], "the work of a queue waits");
    }
}
