//! One query for everything in the process that waits: whether a claim for an idle subscription may find something.
//!
//! Each feed checks now and then without a wake-up. If each of a hundred idle topics claimed, they would keep the
//! database busy; so the first feed that checks does it for all subscriptions of the process, and the others use its
//! result.

use std::collections::HashSet;
use std::sync::{Arc, Weak};

use tokio::time::Instant;

use super::runtime::Runtime;
use crate::error::Result;
use crate::store::Store;
use crate::subscription::SubscriptionId;

/// The latest result, shared by the feeds of a process.
#[derive(Debug)]
pub(crate) struct Idle {
    store: Arc<dyn Store>,
    runtime: Weak<Runtime>,
    /// Locked during a query: feeds that check meanwhile wait for its result.
    latest: tokio::sync::Mutex<Option<Answer>>,
}

#[derive(Debug)]
struct Answer {
    /// When the query started, and so what it covers: everything before.
    at: Instant,
    asked: HashSet<SubscriptionId>,
    claimable: HashSet<SubscriptionId>,
}

impl Idle {
    pub(super) fn new(store: Arc<dyn Store>, runtime: Weak<Runtime>) -> Self {
        Idle { store, runtime, latest: tokio::sync::Mutex::default() }
    }

    /// For which of these subscriptions a claim may find something, and as of when. A result that is younger than
    /// `since` is valid: the caller has been armed all the time, so it is woken by what came after it.
    pub(super) async fn claimable(
        &self,
        subscriptions: &[SubscriptionId],
        since: Instant,
    ) -> Result<(Instant, Vec<SubscriptionId>)> {
        let mut latest = self.latest.lock().await;
        let serves = |answer: &Answer| {
            answer.at > since && subscriptions.iter().all(|subscription| answer.asked.contains(subscription))
        };
        if !latest.as_ref().is_some_and(serves) {
            let at = Instant::now();
            let served = self.runtime.upgrade().map(|runtime| runtime.groups()).unwrap_or_default();
            let all = served.iter().map(|group| group.subscription.subscription_id);
            let asked: HashSet<_> = all.chain(subscriptions.iter().copied()).collect();
            let claimable = self.store.claimable(&asked.iter().copied().collect::<Vec<_>>()).await?;
            *latest = Some(Answer { at, asked, claimable: claimable.into_iter().collect() });
        }
        let answer = latest.as_ref().expect("queried just now, or before");
        let found = subscriptions.iter().copied().filter(|id| answer.claimable.contains(id));
        Ok((answer.at, found.collect()))
    }
}
