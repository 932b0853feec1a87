//! Runs backfills: at their pace in the background, or a small one at once in the subscribing process.

use std::collections::HashSet;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::{Instant, timeout};
use uuid::Uuid;

use super::pace::{BackfillPace, Controller, Observed, OwnLimits, pause_by_rate};
use super::{BACKFILL_INLINE_MAX, Backfill, BackfillStep};
use crate::error::{Error, Result};
use crate::limits::MAINTENANCE_MESSAGES_MAX;
use crate::maintenance::stop::StopSignal;
use crate::name::{GroupName, Owner, TopicName};
use crate::store::{Maintenance, Store};
use crate::topic::Tracking;

/// How long the subscribing process waits at most; maintenance does the rest.
const INLINE_FOR: Duration = Duration::from_secs(10);

/// How long after the start of a batch the first probe begins: none beside a batch that finds nothing to do.
const PROBE_FIRST: Duration = Duration::from_millis(1);
/// How long after a probe beside a batch the next one begins.
const PROBE_EVERY: Duration = Duration::from_millis(20);

/// Steps through the open backfills at their pace, until there is none, it is stopped, or `until`.
pub(crate) async fn run(
    store: &dyn Maintenance,
    worker: &Owner,
    pace: BackfillPace,
    stop: &StopSignal,
    until: Instant,
    mut each: impl FnMut(&BackfillStep),
) -> Result<()> {
    let mut controller = Controller::new(pace);
    let mut quiet = None;
    while stop.may_continue() && Instant::now() < until {
        let started = Instant::now();
        let (step, beside) = beside(store, store.step_backfill(worker, controller.batch())).await?;
        let Some(step) = step else { return Ok(()) };
        let took = started.elapsed();
        each(&step);
        if !step.backfill.state.is_open() {
            let Backfill { topic, group, state, processed, .. } = &step.backfill;
            tracing::info!(%topic, %group, state = state.as_str(), processed, "backfill ended");
        }
        let observed = Observed { processed: step.processed, took, quiet, beside };
        let Backfill { rate_max, batch_max, target_latency, .. } = step.backfill;
        let pause = controller.observe(&observed, OwnLimits { rate_max, batch_max, target_latency });
        tracing::debug!(?observed, ?pause, next = controller.batch(), "backfill batch");
        if stop.rest(pause).await {
            quiet = Some(probe(store).await?);
        }
    }
    Ok(())
}

async fn probe(store: &dyn Maintenance) -> Result<Duration> {
    let started = Instant::now();
    store.probe().await?;
    Ok(started.elapsed())
}

/// Does a batch, and measures how long probes take while it is under way.
async fn beside<T>(
    store: &dyn Maintenance,
    batch: impl Future<Output = Result<T>>,
) -> Result<(T, Vec<Duration>)> {
    let (under_way, mut over) = oneshot::channel::<()>();
    let batch = async {
        let done = batch.await;
        drop(under_way);
        done
    };
    let probing = async {
        let mut probes = Vec::new();
        let mut after = PROBE_FIRST;
        while timeout(after, &mut over).await.is_err() {
            probes.push(probe(store).await?);
            after = PROBE_EVERY;
        }
        Ok::<_, Error>(probes)
    };
    // The batch is not abandoned when a probe fails: its checkpoint is kept.
    let (done, probes) = tokio::join!(batch, probing);
    Ok((done?, probes?))
}

/// Does the backfill of a group that has just subscribed, if its topic counts references and [`inline`] allows it.
pub(crate) async fn at_once(store: &dyn Store, topic: &TopicName, group: &GroupName) -> Result<()> {
    let topics = store.topics().await?.into_iter().map(|status| status.topic);
    let counting: HashSet<TopicName> = topics
        .filter(|topic| topic.settings.tracking == Tracking::ReferenceCounting)
        .map(|topic| topic.name)
        .collect();
    if counting.contains(topic) { inline(store, &counting, topic, group).await } else { Ok(()) }
}

/// Does a group's backfill, if it is small and the oldest open one. All others are left to maintenance. `counting` has
/// only topics with reference counting: in others there is nothing to do.
pub(crate) async fn inline(
    store: &dyn Maintenance,
    counting: &HashSet<TopicName>,
    topic: &TopicName,
    group: &GroupName,
) -> Result<()> {
    let is_ours = |backfill: &Backfill| backfill.topic == *topic && backfill.group == *group;
    let is_open = |backfill: &&Backfill| backfill.state.is_open() && counting.contains(&backfill.topic);
    let backfills = store.backfills().await?;
    // The list is newest first, and the store steps the oldest: the backfill of another group would be stepped here,
    // past its pace.
    let oldest = backfills.iter().rev().find(is_open);
    let Some(ours) = oldest.filter(|oldest| is_ours(oldest) && is_small(oldest)) else { return Ok(()) };
    let batch = MAINTENANCE_MESSAGES_MAX.min(ours.rate_max.max(1));
    let worker = Owner::new(format!("inline-{}-{}", std::process::id(), Uuid::now_v7()))?;
    let until = Instant::now() + INLINE_FOR;
    while Instant::now() < until {
        let started = Instant::now();
        match store.step_backfill(&worker, batch).await? {
            Some(BackfillStep { backfill, processed, .. })
                if is_ours(&backfill) && backfill.state.is_open() =>
            {
                let pause = pause_by_rate(processed, started.elapsed(), backfill.rate_max);
                tokio::time::sleep_until(until.min(Instant::now() + pause)).await;
            }
            // It is done, or another process works on it.
            Some(_) | None => break,
        }
    }
    Ok(())
}

/// Whether it can be done at its rate while the subscribing process waits.
fn is_small(backfill: &Backfill) -> bool {
    let by_rate = u64::from(backfill.rate_max) * INLINE_FOR.as_secs();
    backfill.total <= BACKFILL_INLINE_MAX.min(by_rate)
}
