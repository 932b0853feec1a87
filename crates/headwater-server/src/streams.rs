//! Streams with a limit on unsettled messages: how many each has, and how it gets credit back.
//!
//! A settlement arrives as a request of its own, at this server or at another one. Here it gives the stream its credit back at once. What was settled elsewhere, or
//! whose lease ended, the stream finds by asking the store while it has no credit left.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use headwater::Offset;
use headwater::consumer::{Claims, Holder, Ticket};
use tokio::sync::Notify;

use crate::problem::Problem;

/// Below this share of its limit a credit is scarce.
const SCARCE_SHARE: usize = 4;

/// The streams of this server, by the holder of their leases.
#[derive(Default)]
pub(crate) struct Streams(Mutex<HashMap<Holder, Weak<Credit>>>);

/// The unsettled messages of one stream.
pub(crate) struct Credit {
    pub(crate) holder: Holder,
    state: Mutex<State>,
    changed: Notify,
}

struct State {
    limit: usize,
    unsettled: HashSet<Offset>,
}

impl Streams {
    /// A stream that may have this many unsettled messages.
    pub(crate) fn open(&self, limit: usize) -> Arc<Credit> {
        let state = State { limit, unsettled: HashSet::new() };
        let credit =
            Arc::new(Credit { holder: Holder::new(), state: Mutex::new(state), changed: Notify::new() });
        let mut streams = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        streams.retain(|_, stream| stream.strong_count() > 0);
        streams.insert(credit.holder, Arc::downgrade(&credit));
        credit
    }

    /// These messages are settled, or lost: their streams may have others.
    pub(crate) fn settled<'a>(&self, tickets: impl Iterator<Item = &'a Ticket>) {
        let mut offsets: HashMap<Holder, Vec<Offset>> = HashMap::new();
        for ticket in tickets {
            offsets.entry(ticket.holder()).or_default().push(ticket.offset());
        }
        let streams = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for (holder, offsets) in offsets {
            if let Some(credit) = streams.get(&holder).and_then(Weak::upgrade) {
                credit.give_back(&offsets);
            }
        }
    }

    /// How many are open.
    #[cfg(test)]
    fn count(&self) -> usize {
        let streams = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        streams.values().filter(|stream| stream.strong_count() > 0).count()
    }
}

impl Credit {
    /// How many messages may be sent now.
    pub(crate) fn left(&self) -> usize {
        let state = self.lock();
        state.limit.saturating_sub(state.unsettled.len())
    }

    /// A message is sent.
    pub(crate) fn take(&self, offset: Offset) {
        self.lock().unsettled.insert(offset);
    }

    /// Sets the limit: the client asks for more, or for less.
    pub(crate) fn set_limit(&self, limit: usize) {
        self.lock().limit = limit;
        self.changed.notify_one();
    }

    /// Whether so little of the credit is left that a claim for it would be one of many small ones.
    pub(crate) fn is_scarce(&self) -> bool {
        let state = self.lock();
        state.limit.saturating_sub(state.unsettled.len()) < state.limit / SCARCE_SHARE
    }

    /// Wakes the stream once for all of them: it would claim for the first alone.
    fn give_back(&self, offsets: &[Offset]) {
        let mut state = self.lock();
        let before = state.unsettled.len();
        for offset in offsets {
            state.unsettled.remove(offset);
        }
        if state.unsettled.len() < before {
            self.changed.notify_one();
        }
    }

    /// Completes when a message was settled since the last call, or the limit changed.
    pub(crate) async fn changed(&self) {
        self.changed.notified().await;
    }

    /// Forgets messages that the store does not have as leased to this stream any more.
    pub(crate) async fn refresh(&self, claims: &Claims) -> Result<(), Problem> {
        if let Some(held) = claims.held(self.holder).await? {
            self.lock().unsettled.retain(|offset| held.iter().any(|range| range.contains(*offset)));
        }
        Ok(())
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credit_is_given_back_once_per_message() {
        let streams = Streams::default();
        let credit = streams.open(2);
        credit.take(Offset(1));
        credit.take(Offset(2));
        assert_eq!(credit.left(), 0);
        credit.give_back(&[Offset(1)]);
        credit.give_back(&[Offset(1)]);
        assert_eq!(credit.left(), 1);
        credit.set_limit(5);
        assert_eq!((credit.left(), streams.count()), (4, 1));
        drop(credit);
        assert_eq!(streams.count(), 0);
    }
}
