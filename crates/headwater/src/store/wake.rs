//! Wake-up inside one process: new messages of a topic wake all its waiters.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::watch;

use crate::topic::TopicId;

/// A registered waiter: made by [`Delivery::arm`](crate::store::Delivery::arm), used up by one wait.
///
/// Every waiter has its own, so one group's wake-up never consumes another's.
#[derive(Debug)]
pub struct Wake {
    receivers: Vec<watch::Receiver<u64>>,
    hub: Arc<Hub>,
    at_most: Option<Duration>,
}

impl Wake {
    /// Bounds the wait: the waiter then polls although no wake-up arrived.
    #[cfg(feature = "postgres")]
    pub(crate) fn at_most(mut self, at_most: Option<Duration>) -> Self {
        self.at_most = at_most;
        self
    }

    /// Waits until a message of an armed topic may have arrived, or the time is over. True if woken.
    pub async fn wait(mut self, at_most: Duration) -> bool {
        let changes = self.receivers.iter_mut().map(|receiver| Box::pin(receiver.changed()));
        let any = futures_util::future::select_all(changes);
        let bound = self.at_most.map_or(at_most, |bound| bound.min(at_most));
        tokio::time::timeout(bound, any).await.is_ok()
    }
}

impl Drop for Wake {
    fn drop(&mut self) {
        self.hub.waiting.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Keeps a version per topic that waiters watch.
#[derive(Debug, Default)]
pub(crate) struct Hub {
    topics: Mutex<HashMap<TopicId, watch::Sender<u64>>>,
    waiting: AtomicUsize,
}

impl Hub {
    /// Registers a waiter for these topics. From here on no wake-up is missed.
    pub(crate) fn arm(self: &Arc<Self>, topics: &[TopicId]) -> Wake {
        assert!(!topics.is_empty(), "a waiter waits for at least one topic");
        let mut senders = self.topics.lock().expect("no panic while held");
        let receivers = topics
            .iter()
            .map(|topic| senders.entry(*topic).or_insert_with(|| watch::channel(0).0).subscribe())
            .collect();
        drop(senders);
        self.waiting.fetch_add(1, Ordering::SeqCst);
        Wake { receivers, hub: Arc::clone(self), at_most: None }
    }

    /// Wakes the waiters of one topic.
    pub(crate) fn wake(&self, topic: TopicId) {
        if let Some(sender) = self.topics.lock().expect("no panic while held").get(&topic) {
            sender.send_modify(|version| *version += 1);
        }
    }

    /// The topics that have waiters.
    #[cfg(feature = "postgres")]
    pub(crate) fn awaited(&self) -> Vec<TopicId> {
        let topics = self.topics.lock().expect("no panic while held");
        topics.iter().filter(|(_, sender)| sender.receiver_count() > 0).map(|(topic, _)| *topic).collect()
    }

    /// Wakes all waiters: something changed and it is not known what.
    pub(crate) fn wake_all(&self) {
        for sender in self.topics.lock().expect("no panic while held").values() {
            sender.send_modify(|version| *version += 1);
        }
    }

    /// The number of waiters, including those about to wait: while there is none, the SQLite file is not watched.
    #[cfg(feature = "sqlite")]
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.load(Ordering::SeqCst)
    }
}
