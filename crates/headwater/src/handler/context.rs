//! What a handler can read about the message it handles.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::Messages;
use crate::message::Message;

/// The member, group and topic; the same for all messages of the member.
#[derive(Debug)]
pub(crate) struct Identity {
    pub(crate) topic: String,
    pub(crate) group: String,
    pub(crate) member: String,
}

/// The context of a delivery. Cheap to clone.
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

    /// The member that handles the message.
    pub fn member(&self) -> &str {
        &self.identity.member
    }

    /// The attempt, from 1.
    pub fn attempt(&self) -> u32 {
        self.attempt
    }

    /// The message as stored: offset, id, key, headers, time. Of a batch, the first one.
    pub fn message(&self) -> &Message {
        &self.messages[0]
    }

    /// Whether the lease was lost meanwhile: another owner may hold the message, and further work may be done twice.
    /// Long handlers should check it before each irreversible step.
    pub fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Relaxed)
    }
}
