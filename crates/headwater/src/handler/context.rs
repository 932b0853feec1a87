//! What a handler may ask about the message in hand.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::Messages;
use crate::message::Message;

/// Which member of which group on which topic; the same for all of its messages.
#[derive(Debug)]
pub(crate) struct Identity {
    pub(crate) topic: String,
    pub(crate) group: String,
    pub(crate) member: String,
}

/// The circumstances of a delivery. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Context {
    identity: Arc<Identity>,
    messages: Messages,
    attempt: u32,
    lost: Arc<AtomicBool>,
}

impl Context {
    pub(crate) fn new(
        identity: Arc<Identity>,
        messages: Messages,
        attempt: u32,
        lost: Arc<AtomicBool>,
    ) -> Self {
        Context { identity, messages, attempt, lost }
    }

    /// The topic.
    pub fn topic(&self) -> &str {
        &self.identity.topic
    }

    /// The group.
    pub fn group(&self) -> &str {
        &self.identity.group
    }

    /// The member that handles.
    pub fn member(&self) -> &str {
        &self.identity.member
    }

    /// Which hand-out this is, from 1.
    pub fn attempt(&self) -> u32 {
        self.attempt
    }

    /// The message as stored: offset, id, key, headers, time. Of a batch, the first one.
    pub fn message(&self) -> &Message {
        &self.messages[0]
    }

    /// Whether the lease was lost meanwhile: another holder has the message, and whatever is done now may be done twice.
    /// Long handlers ask before each irreversible step.
    pub fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Relaxed)
    }
}
