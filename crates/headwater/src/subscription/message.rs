//! One message as a group sees it, and what an operator may do with it: pure.

use uuid::Uuid;

use super::{Outstanding, OutstandingState};
use crate::error::{Error, ErrorKind, Result};
use crate::limits::ERROR_TEXT_BYTES_MAX;
use crate::message::Offset;

/// The state of one message in a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MessageState {
    /// The group has not reached it.
    NotHandedOut,
    /// Handed out and not done: leased, waiting for a time, or parked. Its range may contain other messages.
    Outstanding(Outstanding),
    /// The group gave up on it: it is this dead letter.
    Buried(Uuid),
    /// Done, or from before the group began.
    Done,
}

impl MessageState {
    /// The state as text: `not_handed_out`, `leased`, `waiting`, `parked`, `buried` or `done`.
    pub fn as_str(&self) -> &'static str {
        match self {
            MessageState::NotHandedOut => NOT_HANDED_OUT,
            MessageState::Outstanding(outstanding) => outstanding.state.as_str(),
            MessageState::Buried(_) => BURIED,
            MessageState::Done => DONE,
        }
    }
}

const NOT_HANDED_OUT: &str = "not_handed_out";
const BURIED: &str = "buried";
const DONE: &str = "done";

/// What an operator does with one message of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MessageAct {
    /// It is done, without being handled.
    Skip,
    /// It becomes a dead letter with this error.
    Bury {
        /// Why, as the dead letter shows it.
        reason: String,
    },
    /// It is handed out again at once, not only at its time.
    Retry,
}

impl MessageAct {
    /// The name of the act, as in the audit: `skip_message`, `bury_message` or `retry_message`.
    pub fn as_str(&self) -> &'static str {
        match self {
            MessageAct::Skip => "skip_message",
            MessageAct::Bury { .. } => "bury_message",
            MessageAct::Retry => "retry_message",
        }
    }

    /// The states from which it is possible. A lease is ended only if that is forced.
    pub(crate) fn starts(&self, force: bool) -> Vec<&'static str> {
        let waiting = OutstandingState::Waiting.as_str();
        let mut starts = match self {
            MessageAct::Skip | MessageAct::Bury { .. } => {
                vec![NOT_HANDED_OUT, waiting, OutstandingState::Parked.as_str()]
            }
            MessageAct::Retry => vec![waiting],
        };
        if force {
            starts.push(OutstandingState::Leased.as_str());
        }
        starts
    }

    /// The reason for the dead letter.
    pub(crate) fn reason(&self) -> Option<&str> {
        match self {
            MessageAct::Bury { reason } => Some(reason),
            MessageAct::Skip | MessageAct::Retry => None,
        }
    }

    /// Checks the reason against its rule.
    pub(crate) fn validate(&self) -> Result<()> {
        match self.reason() {
            Some(text) if text.is_empty() || text.len() > ERROR_TEXT_BYTES_MAX || text.contains('\0') => {
                let rule = format!("must be 1 to {ERROR_TEXT_BYTES_MAX} bytes without NUL");
                Err(Error::invalid("reason", rule))
            }
            _ => Ok(()),
        }
    }

    /// The refusal in a state from which it is not possible.
    pub(crate) fn refused(&self, topic: &str, group: &str, offset: Offset, state: &str) -> Error {
        let why = match state {
            "leased" => "is leased: wait for its owner, or force it, which ends the lease",
            "parked" => "is parked behind an older message of its key: act on that one",
            BURIED => "is a dead letter: redrive or purge it, see `headwater dead-letter`",
            DONE => "is done: `headwater group seek` replays messages",
            _ => "was not handed out yet: it needs no retry",
        };
        let (act, offset) = (self.as_str().trim_end_matches("_message"), offset.0);
        let text = format!(
            "invalid transition: {act} of offset {offset}, topic {topic}, group {group}: the message {why}; nothing was changed"
        );
        Error::new(ErrorKind::InvalidTransition, text)
    }
}

/// No message is stored at an offset.
pub(crate) fn no_message(topic: &str, offset: Offset) -> Error {
    let offset = offset.0;
    Error::invalid("offset", format!("no message is stored at offset {offset} of topic {topic}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_ends_only_by_force_and_what_is_done_stays_done() {
        let bury = MessageAct::Bury { reason: "no".into() };
        for act in [MessageAct::Skip, bury, MessageAct::Retry] {
            assert!(!act.starts(false).contains(&"leased"), "{act:?}");
            assert!(act.starts(true).contains(&"leased"), "{act:?}");
            for state in [DONE, BURIED] {
                assert!(!act.starts(true).contains(&state), "{act:?} {state}");
            }
        }
        assert!(!MessageAct::Retry.starts(true).contains(&"parked"));
        let refused = MessageAct::Skip.refused("orders", "email", Offset(7), "leased").to_string();
        assert!(refused.contains("skip of offset 7") && refused.contains("force it"), "{refused}");
    }
}
