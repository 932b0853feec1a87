//! One query for everything in the process that waits: whether a claim for an idle subscription may find something.
//!
//! Each feed asks now and then although nothing woke it. A hundred idle topics that claimed each would keep the database busy; so the
//! first that asks does it for all subscriptions of the process, and the others take its answer.

use std::collections::HashSet;
use std::sync::{Arc, Weak};

use tokio::time::Instant;

use super::runtime::Runtime;
use crate::error::Result;
use crate::store::Store;
use crate::subscription::SubscriptionId;

/// The latest answer, shared by the feeds of a process.
#[derive(Debug)]
pub(crate) struct Idle {
    store: Arc<dyn Store>,
    runtime: Weak<Runtime>,
    /// Locked while one asks: those that come meanwhile wait for its answer.
    latest: tokio::sync::Mutex<Option<Answer>>,
}

#[derive(Debug)]
struct Answer {
    /// When it was asked, and so what it covers: whatever came before.
    at: Instant,
    asked: HashSet<SubscriptionId>,
    claimable: HashSet<SubscriptionId>,
}

impl Idle {
    pub(super) fn new(store: Arc<dyn Store>, runtime: Weak<Runtime>) -> Self {
        Idle { store, runtime, latest: tokio::sync::Mutex::default() }
    }

    /// Which of these subscriptions a claim may find something for, and as of when. An answer that is younger than `since` serves:
    /// the caller has been armed all the time, so it hears of what came after it.
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
        let answer = latest.as_ref().expect("asked just now, or before");
        let found = subscriptions.iter().copied().filter(|id| answer.claimable.contains(id));
        Ok((answer.at, found.collect()))
    }
}
