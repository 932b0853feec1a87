//! Dead letters: messages a subscription gave up on, how to select them, and the operations on them. Those of every source, also of
//! the outbox and commands that were parked by hand: `dead_letter/any.rs`.

use std::sync::Arc;

use jiff::Timestamp;
use uuid::Uuid;

use crate::error::{Error, Result};
use crate::groups::GroupSelection;
use crate::limits::{DEAD_LETTER_IDS_MAX, ERROR_TEXT_BYTES_MAX};
use crate::message::{Headers, NewMessage, Offset, Published};
use crate::name::{GroupName, TopicName, check_name};
use crate::store::Store;
use crate::subscription::{SubscriptionId, SubscriptionStatus};

mod all;
mod any;
mod pace;
mod selection;

pub use all::{AllDeadLetters, FoundDeadLetter};
pub use any::{AnyDeadLetter, DeadLetterPlace, DeadLetterSource, DeadLetters, ParkedCommand};
#[cfg(feature = "sqlite")]
pub(crate) use any::{command_message, no_topic};
use pace::Pace;
pub use selection::AnyDeadLetterSelection;

/// The header of an edited copy that has the offset of the original.
pub const HEADER_EDITED_FROM: &str = "headwater-edited-from";
/// The header of an edited copy that has the group that gave up on the original.
pub const HEADER_EDITED_FOR: &str = "headwater-edited-for";

/// A dead letter.
#[derive(Clone, Debug, PartialEq)]
pub struct DeadLetter {
    /// Its identity as a dead letter.
    pub dead_letter_id: Uuid,
    /// The subscription that gave up on it.
    pub subscription_id: SubscriptionId,
    /// Its offset in the topic.
    pub offset: Offset,
    /// The message's identity.
    pub message_id: Uuid,
    /// Its key.
    pub key: Option<String>,
    /// Its type.
    pub message_type: Option<String>,
    /// The bytes, exactly.
    pub payload: bytes::Bytes,
    /// The media type.
    pub content_type: Option<String>,
    /// Headers.
    pub headers: Headers,
    /// Links messages of one conversation.
    pub correlation_id: Option<String>,
    /// When it was published.
    pub created_at: Timestamp,
    /// Why it became a dead letter.
    pub error: String,
    /// How often it was handed out.
    pub attempts: u32,
    /// When it became a dead letter.
    pub buried_at: Timestamp,
}

impl DeadLetter {
    /// A new message with the content of this one, to be edited and passed to [`GroupDeadLetters::replace`].
    pub fn to_message(&self) -> NewMessage {
        NewMessage {
            key: self.key.clone(),
            message_type: self.message_type.clone(),
            content_type: self.content_type.clone(),
            headers: self.headers.clone(),
            correlation_id: self.correlation_id.clone(),
            ..NewMessage::new(self.payload.clone())
        }
    }
}

/// A selection of a subscription's dead letters: all, or those that match every field that is set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeadLetterSelection {
    /// The subscription.
    pub subscription_id: SubscriptionId,
    /// Those with one of these ids.
    pub ids: Option<Vec<Uuid>>,
    /// Those of this key.
    pub key: Option<String>,
    /// Those of this type.
    pub message_type: Option<String>,
    /// Those whose error contains this text literally.
    pub error_contains: Option<String>,
    /// Those buried at or after this time.
    pub buried_after: Option<Timestamp>,
    /// Those buried before this time.
    pub buried_before: Option<Timestamp>,
    /// Of those, at most this many, oldest first. In a redrive, dead letters whose message is gone do not count.
    pub at_most: Option<u32>,
}

impl DeadLetterSelection {
    /// All dead letters of a subscription.
    pub fn all(subscription_id: SubscriptionId) -> Self {
        DeadLetterSelection {
            subscription_id,
            ids: None,
            key: None,
            message_type: None,
            error_contains: None,
            buried_after: None,
            buried_before: None,
            at_most: None,
        }
    }

    /// Only those with one of these ids.
    #[must_use]
    pub fn ids(mut self, ids: impl IntoIterator<Item = Uuid>) -> Self {
        self.ids = Some(ids.into_iter().collect());
        self
    }

    /// Only those of this key.
    #[must_use]
    pub fn key(mut self, key: impl Into<String>) -> Self {
        self.key = Some(key.into());
        self
    }

    /// Only those of this type.
    #[must_use]
    pub fn message_type(mut self, message_type: impl Into<String>) -> Self {
        self.message_type = Some(message_type.into());
        self
    }

    /// Only those whose error contains this text literally.
    #[must_use]
    pub fn error_contains(mut self, text: impl Into<String>) -> Self {
        self.error_contains = Some(text.into());
        self
    }

    /// Only those buried at or after this time.
    #[must_use]
    pub fn buried_after(mut self, at: Timestamp) -> Self {
        self.buried_after = Some(at);
        self
    }

    /// Only those buried before this time.
    #[must_use]
    pub fn buried_before(mut self, at: Timestamp) -> Self {
        self.buried_before = Some(at);
        self
    }

    /// At most this many, oldest first.
    #[must_use]
    pub fn at_most(mut self, count: u32) -> Self {
        self.at_most = Some(count);
        self
    }

    /// Checks every field against its rule.
    pub fn validate(&self) -> Result<()> {
        if let Some(ids) = &self.ids
            && ids.len() > DEAD_LETTER_IDS_MAX
        {
            let count = ids.len();
            return Err(Error::invalid("ids", format!("{count}, at most {DEAD_LETTER_IDS_MAX} are allowed")));
        }
        self.key.as_deref().map_or(Ok(()), |key| check_name("key", key))?;
        self.message_type.as_deref().map_or(Ok(()), |name| check_name("type", name))?;
        match &self.error_contains {
            Some(text) if text.is_empty() || text.len() > ERROR_TEXT_BYTES_MAX || text.contains('\0') => {
                let rule = format!("must be 1 to {ERROR_TEXT_BYTES_MAX} bytes without NUL");
                Err(Error::invalid("error_contains", rule))
            }
            _ => Ok(()),
        }
    }
}

/// The result of a redrive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Redriven {
    /// Handed to their subscription again.
    pub redriven: u64,
    /// Kept as dead letters, because their message is no longer in the log.
    pub gone: u64,
}

/// The dead letters of one group on one topic.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> headwater::Result<()> {
/// use std::time::Duration;
/// use headwater::{Headwater, NewMessage, settle::Verdict};
///
/// let headwater = Headwater::open("sqlite::memory:").await?;
/// headwater.producer("orders").send(NewMessage::new("?").key("o-1")).await?;
/// let mut consumer = headwater.consumer("orders", "email").open().await?;
/// let batch = consumer.next(Duration::from_secs(1)).await?.expect("one message waits");
/// batch.handle(|_, _| async { Verdict::Bury("cannot be parsed".into()) }).await?;
///
/// let dead_letters = headwater.dead_letters().of("orders", "email");
/// assert_eq!(dead_letters.list(10).await?[0].error, "cannot be parsed");
/// let done = dead_letters.redrive(|all| all.key("o-1").error_contains("parsed")).await?;
/// assert_eq!((done.redriven, dead_letters.count().await?), (1, 0));
/// assert!(consumer.next(Duration::from_secs(1)).await?.is_some());
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct GroupDeadLetters {
    store: Arc<dyn Store>,
    topic: String,
    group: String,
}

impl GroupDeadLetters {
    pub(crate) fn new(store: Arc<dyn Store>, topic: &str, group: &str) -> Self {
        GroupDeadLetters { store, topic: topic.to_owned(), group: group.to_owned() }
    }

    /// The oldest dead letters, at most `limit`.
    pub async fn list(&self, limit: u32) -> Result<Vec<DeadLetter>> {
        self.select(limit, |all| all).await
    }

    /// The oldest of a selection, at most `limit`.
    pub async fn select(
        &self,
        limit: u32,
        choose: impl FnOnce(DeadLetterSelection) -> DeadLetterSelection,
    ) -> Result<Vec<DeadLetter>> {
        self.store.dead_letters(&choose(self.all().await?), limit).await
    }

    /// One dead letter; `None` if this group has none with that id.
    pub async fn show(&self, id: Uuid) -> Result<Option<DeadLetter>> {
        Ok(self.select(1, |all| all.ids([id])).await?.pop())
    }

    /// Hands a selection to this group again with attempts reset: to no other group, and once even if the call is
    /// repeated.
    pub async fn redrive(
        &self,
        choose: impl FnOnce(DeadLetterSelection) -> DeadLetterSelection,
    ) -> Result<Redriven> {
        self.store.redrive(&choose(self.all().await?)).await
    }

    /// Hands a selection to this group again, no more than `rate` a second: a handler that is just recovering is not
    /// flooded. Oldest first; messages buried meanwhile are not part of it. Each second is a redrive of its own, with its
    /// audit entry: what was redriven stays so if this is dropped. A rate that is not above zero is `InvalidInput`.
    pub async fn redrive_at(
        &self,
        rate: f64,
        choose: impl FnOnce(DeadLetterSelection) -> DeadLetterSelection,
    ) -> Result<Redriven> {
        Pace::new(rate)?.redrive(&*self.store, choose(self.all().await?)).await
    }

    /// How many of a selection a redrive would hand out, and how many have lost their message: the dry run of
    /// [`GroupDeadLetters::redrive`]. A purge would delete both.
    pub async fn count_of(
        &self,
        choose: impl FnOnce(DeadLetterSelection) -> DeadLetterSelection,
    ) -> Result<Redriven> {
        self.store.count_dead_letters(&choose(self.all().await?)).await
    }

    /// Publishes an edited copy of a dead letter and deletes the dead letter, in one transaction.
    ///
    /// A log cannot be changed, so the copy is a new message at the end of the topic, with an id and an offset of its
    /// own, behind later messages of its key; its headers [`HEADER_EDITED_FROM`] and [`HEADER_EDITED_FOR`] name the
    /// original. Every group of the topic gets it: with other groups it is `InvalidInput` unless `all_groups` is set.
    /// Begin with [`DeadLetter::to_message`].
    pub async fn replace(&self, id: Uuid, message: NewMessage, all_groups: bool) -> Result<Published> {
        let of = self.subscription().await?.subscription_id;
        let Some(dead_letter) = self.show(id).await? else {
            return Err(no_such(id));
        };
        let message = message
            .header(HEADER_EDITED_FROM, dead_letter.offset.0.to_string())
            .header(HEADER_EDITED_FOR, &self.group);
        self.store.replace_dead_letter(of, id, &message, all_groups).await
    }

    /// Deletes a selection permanently; returns how many there were.
    pub async fn purge(
        &self,
        choose: impl FnOnce(DeadLetterSelection) -> DeadLetterSelection,
    ) -> Result<u64> {
        self.store.purge(&choose(self.all().await?)).await
    }

    /// How many there are.
    pub async fn count(&self) -> Result<u64> {
        Ok(self.subscription().await?.dead_letters)
    }

    async fn all(&self) -> Result<DeadLetterSelection> {
        Ok(DeadLetterSelection::all(self.subscription().await?.subscription_id))
    }

    /// Read each time: the group may be subscribed after this handle was made.
    async fn subscription(&self) -> Result<SubscriptionStatus> {
        let (topic, group) = (TopicName::new(&self.topic)?, GroupName::new(&self.group)?);
        let of_name = GroupSelection::default().topic(topic.as_str()).group(group.as_str());
        match self.store.find_subscriptions(&of_name, 1).await?.1.pop() {
            Some(found) => Ok(found.status),
            // Returns the error if the topic is missing.
            None => {
                self.store.topic(&topic).await?;
                Err(Error::no_such_subscription(topic.as_str(), group.as_str()))
            }
        }
    }
}

/// No dead letter of the group has this id.
pub(crate) fn no_such(id: Uuid) -> Error {
    Error::invalid("id", format!("no such dead letter: {id}; see `headwater dead-letter list`"))
}

/// The refusal of an edited copy that other groups would get too.
pub(crate) fn refused_copy(topic: &str, others: &[String]) -> Error {
    let others = others.join(", ");
    let rule = format!(
        "an edited copy is a new message, which every group of topic {topic} gets: also {others}; allow that, or redrive the \
         dead letter unchanged; nothing was changed"
    );
    Error::invalid("copy", rule)
}

/// Cuts a page of a limited selection after the last row that counts towards the limit, and counts those down; true if
/// the limit is reached.
pub(crate) fn shorten<T>(page: &mut Vec<T>, left: &mut Option<u32>, counts: impl Fn(&T) -> bool) -> bool {
    let Some(left) = left else { return false };
    let mut kept = 0;
    for row in page.iter() {
        if *left == 0 {
            break;
        }
        *left -= u32::from(counts(row));
        kept += 1;
    }
    page.truncate(kept);
    *left == 0
}

#[cfg(test)]
mod tests {
    use super::shorten;

    #[test]
    fn a_limited_selection_ends_with_the_last_that_counts() {
        let is_even = |n: &i32| n % 2 == 0;
        let mut left = Some(2);
        let mut page = vec![1, 2, 3];
        assert!(!shorten(&mut page, &mut left, is_even));
        assert_eq!((page, left), (vec![1, 2, 3], Some(1)));
        let mut page = vec![5, 6, 7, 8];
        assert!(shorten(&mut page, &mut left, is_even));
        assert_eq!((page, left), (vec![5, 6], Some(0)));
        let mut page = vec![1, 2];
        assert!(!shorten(&mut page, &mut None, is_even));
        assert_eq!(page, [1, 2]);
    }
}
