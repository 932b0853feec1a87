//! Scheduled messages: listed, cancelled or moved until they are due.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use uuid::Uuid;

use crate::error::Result;
use crate::message::Headers;
use crate::name::TopicName;
use crate::store::Store;

/// The scheduled messages of a topic; from [`crate::Headwater::scheduled`]. Cheap to clone. Every change makes an audit
/// entry.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> headwater::Result<()> {
/// # use std::time::Duration;
/// # let headwater = headwater::Headwater::in_memory().await?;
/// let hour = Duration::from_secs(3_600);
/// let reminder = headwater.producer("reminders").send(&"pay").key("order-7").delay(hour).await?.message_id;
///
/// let scheduled = headwater.scheduled("reminders");
/// assert_eq!(scheduled.list(10).await?[0].message_id, reminder);
/// assert!(scheduled.delay(reminder, 2 * hour).await?, "two hours from now");
/// assert!(scheduled.cancel(reminder).await?, "it is never delivered");
/// assert!(!scheduled.cancel(reminder).await?, "nothing is scheduled any more");
/// # headwater.close().await }
/// ```
#[derive(Clone, Debug)]
pub struct ScheduledMessages {
    store: Arc<dyn Store>,
    topic: String,
}

impl ScheduledMessages {
    pub(crate) fn new(store: Arc<dyn Store>, topic: &str) -> Self {
        ScheduledMessages { store, topic: topic.to_owned() }
    }

    /// The messages that are not delivered yet, by their time, at most `limit`. `NoSuchTopic` if the topic does not exist.
    pub async fn list(&self, limit: u32) -> Result<Vec<Scheduled>> {
        self.store.scheduled(&self.topic()?, limit).await
    }

    /// The same, of those after this place: the next page.
    pub async fn list_after(&self, place: ScheduledPlace, limit: u32) -> Result<Vec<Scheduled>> {
        self.store.scheduled_after(&self.topic()?, Some(place), limit).await
    }

    /// Cancels a message. True: it is never delivered. False: there is none with this id, or it has been delivered.
    pub async fn cancel(&self, message_id: Uuid) -> Result<bool> {
        self.store.cancel_scheduled(&self.topic()?, message_id).await
    }

    /// Moves a message to another time; one in the past delivers it at once. True: it is delivered at that time and not
    /// before. False: there is none with this id, or it has been delivered.
    pub async fn reschedule(&self, message_id: Uuid, at: Timestamp) -> Result<bool> {
        self.store.reschedule(&self.topic()?, message_id, Reschedule::At(at)).await
    }

    /// Moves a message to this long from now, by the database's clock, as [`ScheduledMessages::reschedule`] does.
    pub async fn delay(&self, message_id: Uuid, delay: Duration) -> Result<bool> {
        self.store.reschedule(&self.topic()?, message_id, Reschedule::After(delay)).await
    }

    fn topic(&self) -> Result<TopicName> {
        TopicName::new(&self.topic)
    }
}

/// Where a scheduled message is moved to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reschedule {
    /// This time.
    At(Timestamp),
    /// This long from now, by the database's clock.
    After(Duration),
}

/// A message that is not due yet. Its payload is not read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scheduled {
    /// When it is delivered, at the earliest.
    pub deliver_at: Timestamp,
    /// Its identity.
    pub message_id: Uuid,
    /// Its key, if it has one.
    pub key: Option<String>,
    /// Its type, if it has one.
    pub message_type: Option<String>,
    /// The media type of the payload.
    pub content_type: Option<String>,
    /// Headers.
    pub headers: Headers,
    /// Links messages of one conversation.
    pub correlation_id: Option<String>,
    /// Its dedup key: a cancelled message no longer counts as the first with it.
    pub dedup_key: Option<String>,
    /// The size of its payload.
    pub payload_bytes: u64,
    /// The store's number for it: orders messages of one time.
    pub number: i64,
}

impl Scheduled {
    /// Its place in lists, from which the next page follows.
    pub fn place(&self) -> ScheduledPlace {
        ScheduledPlace { deliver_at: self.deliver_at, number: self.number }
    }
}

/// The place of a scheduled message in lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScheduledPlace {
    /// When it is delivered.
    pub deliver_at: Timestamp,
    /// The store's number for it.
    pub number: i64,
}
