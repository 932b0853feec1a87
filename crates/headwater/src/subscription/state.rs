//! The states of a subscription and the changes between them.

use std::fmt;

use crate::error::{Error, ErrorKind, Result};
use crate::topic::Semantics;

/// The state of a subscription.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum SubscriptionState {
    /// Gets messages. Counts for retention and the watermark.
    #[default]
    Active,
    /// Gets no messages and loses none: it still counts.
    Paused,
    /// Without a heartbeat for too long. Does not count; its cursor is kept until it becomes active again.
    Dead,
    /// Ended by an operator. Does not count, and is final: subscribing again creates a new subscription.
    Cancelled,
}

/// A change from one state of a subscription to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Transition {
    /// By an operator.
    Pause,
    /// By an operator.
    Resume,
    /// Only by detection, after the heartbeat timeout.
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

    /// Whether retention waits for it: a message that a counting subscription has not done is not removed. The group of
    /// a queue counts until it is cancelled: its messages wait for its processes, however long none is running.
    pub fn counts(self, semantics: Semantics) -> bool {
        match self {
            SubscriptionState::Active | SubscriptionState::Paused => true,
            SubscriptionState::Dead => semantics == Semantics::Queue,
            SubscriptionState::Cancelled => false,
        }
    }

    /// The name that the stores and the CLI use.
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
            .ok_or_else(|| Error::invalid("state", format!("{text} is not a subscription state")))
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

    /// The states it may start from.
    pub fn from(self) -> &'static [SubscriptionState] {
        use SubscriptionState::{Active, Dead, Paused};
        match self {
            Transition::Pause | Transition::Die => &[Active],
            Transition::Resume => &[Paused],
            Transition::Resurrect => &[Dead],
            Transition::Cancel => &[Active, Paused, Dead],
        }
    }

    /// The state it leads to.
    pub fn to(self) -> SubscriptionState {
        match self {
            Transition::Pause => SubscriptionState::Paused,
            Transition::Resume | Transition::Resurrect => SubscriptionState::Active,
            Transition::Die => SubscriptionState::Dead,
            Transition::Cancel => SubscriptionState::Cancelled,
        }
    }

    /// The name that error messages and the audit use.
    pub fn as_str(self) -> &'static str {
        match self {
            Transition::Pause => "pause",
            Transition::Resume => "resume",
            Transition::Die => "die",
            Transition::Resurrect => "resurrect",
            Transition::Cancel => "cancel",
        }
    }

    /// The names of the states it may start from, for statements.
    pub(crate) fn starts(self) -> Vec<&'static str> {
        self.from().iter().map(|state| state.as_str()).collect()
    }

    /// The error when the state of the subscription does not allow it.
    pub(crate) fn refused(self, topic: &str, group: &str, state: SubscriptionState) -> Error {
        refused(self.as_str(), &self.starts().join(" or "), topic, group, state)
    }
}

/// The error when the state of a subscription does not allow an operation.
fn refused(act: &str, needs: &str, topic: &str, group: &str, state: SubscriptionState) -> Error {
    let text = format!(
        "invalid transition: topic {topic}, group {group} is {state}; {act} needs {needs}; nothing was changed"
    );
    Error::new(ErrorKind::InvalidTransition, text)
}

/// The error for an operation on a cancelled subscription: that state is final.
pub(crate) fn refused_cancelled(act: &str, topic: &str, group: &str) -> Error {
    refused(act, &Transition::Cancel.starts().join(" or "), topic, group, SubscriptionState::Cancelled)
}

/// The error when a subscription cannot be removed: it is in another state, or cancelled and still in completion
/// records.
pub(crate) fn refused_removal(topic: &str, group: &str, state: SubscriptionState) -> Error {
    if state != SubscriptionState::Cancelled {
        return refused("remove", SubscriptionState::Cancelled.as_str(), topic, group, state);
    }
    let text = format!(
        "invalid transition: topic {topic}, group {group} is cancelled and not yet released from the completion records; \
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
        assert_eq!(counting, [true, true, true, false], "the messages of a queue are kept");
    }
}
