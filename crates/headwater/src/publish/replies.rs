//! Replies: one reader per open store takes them from the reply topic and hands each to the request that waits for it.
//!
//! Why no reply is missed: the reader's tail is opened before the request is published, so every reply commits after the
//! tail's position was read; and a tail returns everything that does, late messages included. The reader runs while requests
//! wait and for a while after; one that failed is replaced by the next request.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::{Producer, Sends};
use crate::codec::IntoMessage;
use crate::error::{Error, ErrorKind, Result};
use crate::headwater::TopicBuilder;
use crate::message::{Message, NewMessage};
use crate::observe::metrics::Registry;
use crate::store::Store;
use crate::subscription::Start;
use crate::tail::Tail;
use crate::topic::TopicSettings;

/// The header of a request with the topic that awaits the reply.
pub(crate) const REPLY_TO: &str = "reply-to";
/// The topic of replies.
pub(crate) const REPLIES_TOPIC: &str = "headwater.replies";
/// How long replies are kept: only requests that still wait read them.
const REPLIES_KEPT_FOR: Duration = Duration::from_secs(600);
/// How long the reader stays after the last request: programs that ask now and then do not open a tail each time.
const IDLE_FOR: Duration = Duration::from_secs(60);
/// How long one read waits at most, before the reader checks whether it is still needed.
const READ_MAX: Duration = Duration::from_secs(5);
/// The pause after a failed read, and the longest one.
const PAUSE: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(2);
/// Most topics with a producer for replies: one in practice.
const PRODUCERS_MAX: usize = 16;

/// The requests of an open store that wait for replies, and the producers that send replies.
#[derive(Debug, Default)]
pub(crate) struct Replies {
    waiting: Mutex<HashMap<String, oneshot::Sender<Message>>>,
    /// Held while a reader is started.
    reader: tokio::sync::Mutex<Option<JoinHandle<()>>>,
    producers: Mutex<HashMap<String, Producer>>,
}

impl Replies {
    /// Registers a request. The result completes with its reply; dropping it forgets the request.
    pub(super) async fn expect(
        self: &Arc<Self>,
        store: &Arc<dyn Store>,
        id: &str,
    ) -> Result<impl Future<Output = Result<Message>> + use<>> {
        let (answer, answered) = oneshot::channel();
        self.waiting.lock().expect("no panic while held").insert(id.to_owned(), answer);
        let forget = Forget { replies: Arc::clone(self), id: id.to_owned() };
        self.read(store).await?;
        Ok(async move {
            let _forget = forget;
            let stopped = || Error::new(ErrorKind::Unavailable, "replies are no longer read; ask again");
            answered.await.map_err(|_| stopped())
        })
    }

    /// Makes sure that a reader runs. The request is registered before: a reader that is about to end sees it.
    async fn read(self: &Arc<Self>, store: &Arc<dyn Store>) -> Result<()> {
        let mut reader = self.reader.lock().await;
        if reader.as_ref().is_some_and(|reader| !reader.is_finished()) {
            return Ok(());
        }
        let topic = TopicBuilder::new(Arc::clone(store), REPLIES_TOPIC).settings(settings());
        let tail = Tail::open(Arc::clone(store), topic.find_or_create().await?, Start::Now).await?;
        *reader = Some(tokio::spawn(run(Arc::downgrade(self), tail)));
        Ok(())
    }

    /// Hands a reply to its request. A second reply, and one that came too late, has none.
    fn hand_over(&self, message: Message) {
        let id = message.correlation_id.as_deref().unwrap_or_default();
        let waiting = self.waiting.lock().expect("no panic while held").remove(id);
        if let Some(waiting) = waiting {
            // A request that gave up meanwhile has dropped its receiver.
            let _ = waiting.send(message);
        }
    }

    fn is_idle(&self) -> bool {
        self.waiting.lock().expect("no panic while held").is_empty()
    }
}

/// What a handler replies with.
#[derive(Clone, Debug)]
pub(crate) struct Replier {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) metrics: Arc<Registry>,
    pub(crate) replies: Arc<Replies>,
}

impl Replier {
    /// A reply to a message, to be sent or published within a transaction.
    pub(crate) fn reply(&self, to: &Message, with: impl IntoMessage) -> Sends<'static> {
        let topic = to.headers.get(REPLY_TO).map_or(REPLIES_TOPIC, String::as_str);
        let producer = self.producer(topic);
        let message = match &to.correlation_id {
            Some(id) if to.headers.contains_key(REPLY_TO) => {
                with.into_message().map(|reply: NewMessage| reply.correlation_id(id))
            }
            _ => Err(Error::invalid(
                "reply",
                format!(
                    "message {} awaits none: it has no header {REPLY_TO} or no correlation id; send it with producer.request",
                    to.message_id
                ),
            )),
        };
        Sends::new(std::borrow::Cow::Owned(producer), message)
    }

    /// The producer of a reply topic, kept: each has a task.
    fn producer(&self, topic: &str) -> Producer {
        let mut producers = self.replies.producers.lock().expect("no panic while held");
        if let Some(producer) = producers.get(topic).filter(|producer| !producer.is_stopped()) {
            return producer.clone();
        }
        if producers.len() >= PRODUCERS_MAX {
            producers.clear();
        }
        // With replies of its own: it sends no requests, and must not keep this alive.
        let producer =
            Producer::new(Arc::clone(&self.store), topic, &self.metrics, Arc::default(), Arc::default());
        producers.insert(topic.to_owned(), producer.clone());
        producer
    }
}

/// A queue, so that it is not reported as a fan-out topic without groups. Nothing is held back for a group that is not there.
fn settings() -> TopicSettings {
    TopicSettings {
        message_retention: Some(REPLIES_KEPT_FOR),
        zero_subscription_retention: REPLIES_KEPT_FOR,
        max_retention: Some(2 * REPLIES_KEPT_FOR),
        ..TopicSettings::default()
    }
}

/// Removes a request that no longer waits.
#[derive(Debug)]
struct Forget {
    replies: Arc<Replies>,
    id: String,
}

impl Drop for Forget {
    fn drop(&mut self) {
        self.replies.waiting.lock().expect("no panic while held").remove(&self.id);
    }
}

/// Reads replies until no request has waited for a while, or the store is closed or dropped.
async fn run(replies: Weak<Replies>, mut tail: Tail) {
    let (mut used_at, mut pause) = (Instant::now(), PAUSE);
    loop {
        let read = tail.next(READ_MAX).await;
        let Some(replies) = replies.upgrade() else { return };
        if !replies.is_idle() {
            used_at = Instant::now();
        }
        match read {
            Ok(messages) => {
                pause = PAUSE;
                messages.into_iter().for_each(|message| replies.hand_over(message));
            }
            Err(error) if matches!(error.kind(), ErrorKind::Closed | ErrorKind::NoSuchTopic) => {
                // Requests that wait get an error when their senders are dropped; the next one starts a reader.
                tracing::debug!(%error, "replies are no longer read");
                replies.waiting.lock().expect("no panic while held").clear();
                return;
            }
            Err(error) => {
                tracing::warn!(%error, ?pause, "replies not read, retrying");
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(PAUSE_MAX);
            }
        }
        if used_at.elapsed() >= IDLE_FOR {
            // Under the lock that a request takes after it was registered: it is seen here, or finds no reader.
            let mut reader = replies.reader.lock().await;
            if replies.is_idle() {
                *reader = None;
                return;
            }
        }
    }
}
