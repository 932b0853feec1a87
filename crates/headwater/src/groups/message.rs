//! Acts on one message of a group, for operators.

use super::Groups;
use crate::error::Result;
use crate::lease::OffsetRange;
use crate::message::{Message, Offset};
use crate::name::GroupName;
use crate::subscription::{MessageAct, MessageState, no_message};

/// A stored message, and its state in each group that is not cancelled.
#[derive(Clone, Debug, PartialEq)]
pub struct MessageStatus {
    /// The message.
    pub message: Message,
    /// The groups by name.
    pub groups: Vec<(GroupName, MessageState)>,
}

impl Groups {
    /// A message and its state in each group. `InvalidInput` if no message is stored at the offset.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> headwater::Result<()> {
    /// # use headwater::{Headwater, Offset, Start};
    /// # let headwater = Headwater::in_memory().await?;
    /// headwater.producer("orders").send(&"a kettle").await?;
    /// headwater.producer("orders").send(&"poison").await?;
    /// let groups = headwater.groups("orders");
    /// groups.subscribe("email", Start::Beginning).await?;
    ///
    /// assert_eq!(groups.message(Offset(2)).await?.groups[0].1.as_str(), "not_handed_out");
    /// groups.skip("email", Offset(2), false).await?;
    /// assert_eq!(groups.message(Offset(2)).await?.groups[0].1.as_str(), "done");
    /// # headwater.close().await }
    /// ```
    pub async fn message(&self, offset: Offset) -> Result<MessageStatus> {
        let name = self.topic()?;
        let topic = self.store.topic(&name).await?;
        let found = self.store.fetch(topic.topic_id, OffsetRange::new(offset, offset)).await?;
        let message = found.into_iter().next().ok_or_else(|| no_message(name.as_str(), offset))?;
        Ok(MessageStatus { message, groups: self.store.message_states(&name, offset).await? })
    }

    /// Marks a message as done for a group, without handling it. In an ordered group the next message of its key
    /// follows. `InvalidTransition` if it is done, buried, or leased; with `force` a lease is ended, and its other messages
    /// are handed out again.
    pub async fn skip(&self, group: &str, offset: Offset, force: bool) -> Result<()> {
        self.act(group, offset, MessageAct::Skip, force).await
    }

    /// Makes a message a dead letter of a group, with this reason. Refused as [`Groups::skip`] is.
    pub async fn bury(&self, group: &str, offset: Offset, reason: &str, force: bool) -> Result<()> {
        self.act(group, offset, MessageAct::Bury { reason: reason.into() }, force).await
    }

    /// Hands a message that waits for its retry time to its group at once. `InvalidTransition` if it does not wait; with
    /// `force` a lease is ended, and all of its messages are handed out again.
    pub async fn retry(&self, group: &str, offset: Offset, force: bool) -> Result<()> {
        self.act(group, offset, MessageAct::Retry, force).await
    }

    async fn act(&self, group: &str, offset: Offset, act: MessageAct, force: bool) -> Result<()> {
        let (topic, group) = self.names(group)?;
        self.store.act_on_message(&topic, &group, offset, &act, force).await
    }
}
