//! Runs backfills: at their pace in the background, or a small one at once for whoever has just subscribed.

use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::{Instant, timeout};
use uuid::Uuid;

use super::pace::{BackfillPace, Controller, Observed};
use super::{BACKFILL_INLINE_MAX, Backfill, BackfillStep};
use crate::error::{Error, Result};
use crate::limits::UPKEEP_MESSAGES_MAX;
use crate::maintain::going::Going;
use crate::name::{GroupName, Owner, TopicName};
use crate::store::Upkeep;

/// How long whoever subscribed waits at most; maintenance does the rest.
const INLINE_FOR: Duration = Duration::from_secs(10);

/// How long after a batch the first probe begins: not beside one that finds nothing to do.
const PROBE_FIRST: Duration = Duration::from_millis(1);
/// How long after a probe beside a batch the next one begins.
const PROBE_EVERY: Duration = Duration::from_millis(20);

/// Steps through whatever backfills are open, at their pace, until there is none, it is told to stop, or `until`.
pub(crate) async fn run(
    upkeep: &(dyn Upkeep + Send + Sync),
    worker: &Owner,
    pace: BackfillPace,
    going: &Going,
    until: Instant,
    mut each: impl FnMut(&BackfillStep),
) -> Result<()> {
    let mut controller = Controller::new(pace);
    let mut quiet = None;
    while going.is_on() && Instant::now() < until {
        let started = Instant::now();
        let (step, beside) = beside(upkeep, upkeep.step_backfill(worker, controller.batch())).await?;
        let Some(step) = step else { return Ok(()) };
        let took = started.elapsed();
        each(&step);
        if !step.backfill.state.is_open() {
            let Backfill { topic, group, state, processed, .. } = &step.backfill;
            tracing::info!(%topic, %group, state = state.as_str(), processed, "a backfill has ended");
        }
        let observed = Observed { processed: step.processed, took, quiet, beside };
        let pause = controller.observe(&observed, step.backfill.rate_max);
        if going.rest(pause).await {
            quiet = Some(probe(upkeep).await?);
        }
    }
    Ok(())
}

async fn probe(upkeep: &(dyn Upkeep + Send + Sync)) -> Result<Duration> {
    let started = Instant::now();
    upkeep.probe().await?;
    Ok(started.elapsed())
}

/// Does a batch, and sees how long small pieces of work take while it is under way.
async fn beside<T>(
    upkeep: &(dyn Upkeep + Send + Sync),
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
            probes.push(probe(upkeep).await?);
            after = PROBE_EVERY;
        }
        Ok::<_, Error>(probes)
    };
    // Not given up when a probe fails: what is done is worth its checkpoint.
    let (done, probes) = tokio::join!(batch, probing);
    Ok((done?, probes?))
}

/// Does the backfill of a group that has just come, if it has one that is small. A large one is left to maintenance.
pub(crate) async fn inline(
    upkeep: &(dyn Upkeep + Send + Sync),
    topic: &TopicName,
    group: &GroupName,
) -> Result<()> {
    let is_ours = |backfill: &Backfill| backfill.topic == *topic && backfill.group == *group;
    let small = |backfill: &Backfill| backfill.state.is_open() && backfill.total <= BACKFILL_INLINE_MAX;
    if !upkeep.backfills().await?.iter().any(|backfill| is_ours(backfill) && small(backfill)) {
        return Ok(());
    }
    let worker = Owner::new(format!("inline-{}-{}", std::process::id(), Uuid::now_v7()))?;
    let until = Instant::now() + INLINE_FOR;
    while Instant::now() < until {
        match upkeep.step_backfill(&worker, UPKEEP_MESSAGES_MAX).await? {
            Some(step) if is_ours(&step.backfill) && step.backfill.state.is_open() => {}
            // It is done; or another's came first, which is for maintenance to pace, and ours after it.
            Some(_) | None => break,
        }
    }
    Ok(())
}
