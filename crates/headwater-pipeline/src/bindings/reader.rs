//! A group that is being read: what its calls have in common, and its end.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use headwater::{Offset, Running};

use super::{BindingHandle, UsageState, backlog};
use crate::error::{Error, ErrorCode, Result};
use crate::health::Counter;
use crate::resource::Reading;
use crate::runs::RunStore;

/// What the calls of a reader record.
pub(super) struct Seen {
    store: Arc<RunStore>,
    topic: String,
    group: String,
    binding: Arc<BindingHandle>,
    calls: AtomicUsize,
}

/// A call that is under way.
pub(super) struct Active<'a>(&'a Seen);

impl Seen {
    pub(super) fn new(store: &Arc<RunStore>, topic: &str, group: &str, binding: &Arc<BindingHandle>) -> Self {
        Seen {
            store: Arc::clone(store),
            topic: topic.to_owned(),
            group: group.to_owned(),
            binding: Arc::clone(binding),
            calls: AtomicUsize::new(0),
        }
    }

    /// The topic and group, for people.
    pub(super) fn name(&self) -> String {
        format!("topic {}, group {}", self.topic, self.group)
    }

    /// A message was received.
    pub(super) fn begin(&self) -> Active<'_> {
        self.binding.health().count(Counter::MessagesReceived, 1);
        self.calls.fetch_add(1, Ordering::Relaxed);
        self.binding.set_state(UsageState::Active);
        Active(self)
    }

    pub(super) fn done(&self, messages: u64) {
        self.binding.health().count(Counter::MessagesDone, messages);
    }

    /// Headwater logs the dead letter that it becomes.
    pub(super) fn undecodable(&self, error: &Error, offset: Offset) {
        self.binding.health().count(Counter::MessagesUndecodable, 1);
        self.binding.health().record_error(error, format_args!("decode offset {offset}"));
    }

    /// Counts leases that were lost or taken over since this was last called for the group by any of its bindings here. Headwater counts
    /// them per group; the binding that comes first counts them as its own, so that each is in the resource's sum once.
    fn account(&self, running: &Running) {
        let totals = running.health().totals;
        let mut accounted = self.store.accounted.lock().expect("no panic while held");
        let former = accounted.entry((self.topic.clone(), self.group.clone())).or_default();
        let lost = totals.lease_lost.saturating_sub(former.lease_lost);
        let reassigned = totals.reassigned.saturating_sub(former.reassigned);
        (former.lease_lost, former.reassigned) = (totals.lease_lost, totals.reassigned);
        drop(accounted);
        let (topic, group) = (&self.topic, &self.group);
        let health = self.binding.health();
        if lost > 0 {
            tracing::warn!(
                topic,
                group,
                leases = lost,
                "lease lost before its ack: what was done is done again"
            );
            let text = format!("{lost} leases of topic {topic}, group {group} had moved on before their ack");
            health.count(Counter::LeasesLost, lost);
            health.record_error(&Error::transient(ErrorCode::LeaseLost, text), "ack");
        }
        if reassigned > 0 {
            tracing::warn!(topic, group, messages = reassigned, "stuck messages reassigned");
            let text = format!(
                "{reassigned} messages of topic {topic}, group {group} were taken from an owner that did not settle them"
            );
            health.count(Counter::StuckReassigned, reassigned);
            health.record_error(&Error::transient(ErrorCode::StuckReassigned, text), "claim");
        }
    }
}

impl Drop for Active<'_> {
    fn drop(&mut self) {
        if self.0.calls.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.0.binding.set_state(UsageState::Waiting);
        }
    }
}

/// How often totals are accounted while a group is read.
const ACCOUNT_EVERY: Duration = Duration::from_millis(500);

/// A running reader.
pub(super) struct Reader {
    running: Arc<Running>,
    seen: Arc<Seen>,
    accounting: tokio::task::JoinHandle<()>,
}

impl Reader {
    pub(super) fn new(running: Running, seen: Arc<Seen>) -> Self {
        let running = Arc::new(running);
        // Ends with the reader, which aborts it.
        let accounting = tokio::spawn({
            let (running, seen) = (Arc::downgrade(&running), Arc::clone(&seen));
            async move {
                let mut ticks = tokio::time::interval(ACCOUNT_EVERY);
                loop {
                    ticks.tick().await;
                    let Some(running) = running.upgrade() else { return };
                    seen.account(&running);
                    if let Some(reason) = running.ended() {
                        let error = Error::permanent(
                            ErrorCode::ClaimFailed,
                            format!("group {} ended: {reason}", seen.group),
                        );
                        seen.binding.failed(&error, "read");
                        return;
                    }
                }
            }
        });
        Reader { running, seen, accounting }
    }

    /// Ends it; calls have `grace` to return.
    pub(super) async fn end(self, grace: Duration) -> Result<()> {
        self.accounting.abort();
        // Awaited: it holds the consumer while it reads its totals.
        let _ = self.accounting.await;
        self.seen.account(&self.running);
        let Some(running) = Arc::into_inner(self.running) else {
            return Err(Error::permanent(ErrorCode::CloseFailed, "the consumer is still in use"));
        };
        let ended = running.shutdown(grace).await;
        ended.map(drop).map_err(|error| Error::from_store(ErrorCode::AckFailed, &error))
    }

    pub(super) async fn status(&self) -> Result<headwater::store::SubscriptionStatus> {
        let Seen { store, topic, group, .. } = &*self.seen;
        Ok(backlog::status(&store.headwater, topic, group).await?.status)
    }
}

#[async_trait]
impl Reading for Reader {
    async fn lag(&self) -> Result<u64> {
        Ok(self.status().await?.lag)
    }

    async fn settled_up_to(&self) -> Result<i64> {
        Ok(self.status().await?.floor.0)
    }

    async fn stop(self: Box<Self>, grace: Duration) -> Result<()> {
        let binding = Arc::clone(&self.seen.binding);
        let ended = self.end(grace).await;
        if let Err(error) = &ended {
            binding.failed(error, "stop");
        }
        ended
    }
}
