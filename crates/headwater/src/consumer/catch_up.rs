//! Makes a group with a long backlog yield to applications, with the controller of backfills.
//!
//! A claim that brings as many messages as requested indicates that there are more. Before the next claim the group
//! measures how long a small piece of work takes and pauses for as long as the controller of backfills returns. A claim
//! that brings fewer messages has reached the head: new messages are handed out as they come.
//!
//! It never stops permanently: every pause ends by itself, also when the database does not answer.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::time::{Instant, timeout};

use super::group::Group;
use crate::backfill::BackfillPace;
use crate::backfill::pace::{Controller, Observed, OwnLimits};
use crate::error::Result;
use crate::store::Store;

/// How long a probe may take; a slower database counts as busy.
const PROBE_MAX: Duration = Duration::from_secs(5);

/// The pace of a group with a backlog.
#[derive(Debug)]
pub(crate) struct CatchUp {
    controller: Mutex<Controller>,
    resting: AtomicBool,
}

impl CatchUp {
    pub(crate) fn new(pace: BackfillPace) -> Self {
        CatchUp { controller: Mutex::new(Controller::new(pace)), resting: AtomicBool::new(false) }
    }

    /// How many messages may be claimed now; `None` during a pause.
    pub(crate) fn messages_max(&self) -> Option<u32> {
        (!self.resting.load(Ordering::Acquire))
            .then(|| self.controller.lock().expect("no panic while held").batch())
    }

    /// Measures how busy the database is, and pauses accordingly.
    async fn rest(&self, messages: u64, took: Duration, probe: impl Future<Output = Result<()>>) {
        let started = Instant::now();
        // The next claim reports an error; for the pace it counts as a database that does not answer.
        let answered = matches!(timeout(PROBE_MAX, probe).await, Ok(Ok(())));
        let took_probe = if answered { started.elapsed() } else { PROBE_MAX };
        let observed = Observed { processed: messages, took, quiet: None, beside: vec![took_probe] };
        let pause = self
            .controller
            .lock()
            .expect("no panic while held")
            .observe(&observed, OwnLimits::rate(u32::MAX));
        tokio::time::sleep(pause).await;
    }
}

/// Records a claim of a group: how many messages were requested and brought, and how long claiming and reading took.
pub(crate) fn claimed(group: &Arc<Group>, store: &Arc<dyn Store>, asked: u32, messages: u64, took: Duration) {
    let Some(catch_up) = &group.catch_up else { return };
    if messages < u64::from(asked) || catch_up.resting.swap(true, Ordering::AcqRel) {
        return;
    }
    let (group, store) = (Arc::clone(group), Arc::clone(store));
    tokio::spawn(async move {
        let catch_up = group.catch_up.as_ref().expect("checked above");
        catch_up.rest(messages, took, store.probe()).await;
        catch_up.resting.store(false, Ordering::Release);
        group.leases.changed.notify_one();
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::{Error, ErrorKind};

    const TOOK: Duration = Duration::from_millis(20);

    async fn takes(time: Duration) -> Result<()> {
        tokio::time::sleep(time).await;
        Ok(())
    }

    /// How long `count` pauses take when a probe takes this long.
    async fn rests(catch_up: &CatchUp, count: usize, probe: Duration) -> Duration {
        let started = Instant::now();
        for _ in 0..count {
            catch_up.rest(100, TOOK, takes(probe)).await;
        }
        started.elapsed() - probe * u32::try_from(count).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn it_yields_to_load_and_continues_when_that_ends() {
        let catch_up = CatchUp::new(BackfillPace::Standard);
        let free = rests(&catch_up, 60, Duration::from_millis(1)).await;
        assert!(free < TOOK * 60 / 2, "hardly any: {free:?}");
        let free = catch_up.messages_max().unwrap();
        let busy = rests(&catch_up, 20, Duration::from_millis(50)).await;
        assert!(busy > Duration::from_secs(10), "{busy:?}");
        assert!(catch_up.messages_max().unwrap() < free / 10);
        rests(&catch_up, 100, Duration::from_millis(1)).await;
        assert_eq!(catch_up.messages_max().unwrap(), free);
    }

    #[tokio::test(start_paused = true)]
    async fn a_database_that_does_not_answer_is_busy_and_no_rest_is_for_ever() {
        let catch_up = CatchUp::new(BackfillPace::Standard);
        let before = catch_up.messages_max().unwrap();
        let started = Instant::now();
        catch_up.rest(100, TOOK, std::future::pending()).await;
        assert!(started.elapsed() < PROBE_MAX * 2);
        assert!(catch_up.messages_max().unwrap() < before);
        let broken = async { Err(Error::new(ErrorKind::Unavailable, "disconnected")) };
        let before = catch_up.messages_max().unwrap();
        catch_up.rest(100, TOOK, broken).await;
        assert!(catch_up.messages_max().unwrap() <= before);
    }
}
