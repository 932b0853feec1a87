//! What a handler can read about the message it handles.

use std::any::type_name;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::{Bury, Failure, Messages, Retry, Skip, States};
use crate::codec::IntoMessage;
use crate::message::Message;
use crate::publish::Sends;
use crate::publish::replies::Replier;

/// The member, group and topic; the same for all messages of the member.
#[derive(Debug)]
pub(crate) struct Identity {
    pub(crate) topic: String,
    pub(crate) group: String,
    pub(crate) member: String,
    /// The handler name in inbox entries.
    pub(crate) inbox_name: String,
    pub(crate) replier: Replier,
    pub(crate) states: States,
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

    /// The handler name in the inbox entries of this member.
    pub(crate) fn inbox_name(&self) -> &str {
        &self.identity.inbox_name
    }

    /// The attempt, from 1.
    pub fn attempt(&self) -> u32 {
        self.attempt
    }

    /// The message as stored: offset, id, key, headers, time. Of a batch, the first one.
    pub fn message(&self) -> &Message {
        &self.messages[0]
    }

    /// The messages of a batch; of a handler of single messages, that one.
    pub fn messages(&self) -> &Messages {
        &self.messages
    }

    /// What the consumer was given by [`state`](crate::consumer::ConsumerBuilder::state), without a clone.
    ///
    /// # Panics
    /// If the consumer has no state of this type: the attempt fails, and the error names the type.
    pub fn state<S: Send + Sync + 'static>(&self) -> &S {
        self.identity.states.get().unwrap_or_else(|| {
            let (state, member) = (type_name::<S>(), self.member());
            panic!(
                "member {member} takes a state of type {state}, and its consumer has none; add `.state(…)`"
            )
        })
    }

    /// Ends the handler with a dead letter: `return context.bury("a negative amount");`
    pub fn bury<T>(&self, reason: impl Into<String>) -> Result<T, Failure> {
        Err(Bury(reason.into()).into())
    }

    /// Ends the handler, to be retried after a delay.
    pub fn retry_after<T>(&self, delay: Duration, reason: impl Into<String>) -> Result<T, Failure> {
        Err(Retry::after(delay).because(reason).into())
    }

    /// Ends the handler: the message is not wanted.
    pub fn skip<T>(&self) -> Result<T, Failure> {
        Err(Skip.into())
    }

    /// A reply to the message, which a [`Producer::request`](crate::Producer::request) sent: await it, or let it commit with the
    /// handler's transaction by [`within`](Sends::within). A message that awaits no reply is `InvalidInput`.
    ///
    /// ```
    /// # use headwater::{Context, Handling, Json};
    /// let one = Handling::one(|Json(n): Json<u64>, context: Context| async move {
    ///     context.reply(&(n + 1)).await?;
    ///     Ok(())
    /// });
    /// # #[cfg(feature = "postgres")]
    /// let once = Handling::in_postgres(|transaction, Json(n): Json<u64>, context: Context| async move {
    ///     context.reply(&(n + 1)).within(&transaction).await?; // with the ack, or not at all
    ///     Ok(())
    /// });
    /// # let _ = one;
    /// ```
    pub fn reply(&self, with: impl IntoMessage) -> Sends<'static> {
        self.reply_to(self.message(), with)
    }

    /// The same for one message of a batch.
    pub fn reply_to(&self, message: &Message, with: impl IntoMessage) -> Sends<'static> {
        self.identity.replier.reply(message, with)
    }

    /// Whether the lease was lost meanwhile: another owner may hold the message, and further work may be done twice.
    /// Long handlers should check it before each irreversible step.
    pub fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Relaxed)
    }
}
