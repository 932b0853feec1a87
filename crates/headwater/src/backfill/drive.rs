//! Runs backfills: at their pace in the background, or a small one at once for whoever has just subscribed.

use std::time::Duration;

use tokio::time::Instant;
use uuid::Uuid;

use super::pace::{BackfillPace, Controller};
use super::{BACKFILL_INLINE_MAX, Backfill, BackfillStep};
use crate::error::Result;
use crate::limits::UPKEEP_MESSAGES_MAX;
use crate::maintain::going::Going;
use crate::name::{GroupName, Owner, TopicName};
use crate::store::Upkeep;

/// How long whoever subscribed waits at most; maintenance does the rest.
const INLINE_FOR: Duration = Duration::from_secs(10);

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
    while going.is_on() && Instant::now() < until {
        let started = Instant::now();
        let Some(step) = upkeep.step_backfill(worker, controller.batch()).await? else { return Ok(()) };
        let took = started.elapsed();
        each(&step);
        if !step.backfill.state.is_open() {
            let Backfill { topic, group, state, processed, .. } = &step.backfill;
            tracing::info!(%topic, %group, state = state.as_str(), processed, "a backfill has ended");
        }
        let probed = Instant::now();
        upkeep.probe().await?;
        let pause = controller.observe(step.processed, took, probed.elapsed(), step.backfill.rate_max);
        going.rest(pause).await;
    }
    Ok(())
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
