//! The batches that `consume` works on, until it ends: by a signal, `--wait`, `--max` or a reader that has gone.

use std::time::Duration;

use anyhow::Result;
use headwater::{Batch, Consumer, Headwater, SubscriptionState};
use tokio::time::Instant;

use crate::args::ConsumeArgs;
use crate::output::note;
use crate::reader;
use crate::stop::Stop;

/// How soon an idle consumer checks whether its group is paused, and how often after that: the pause doubles up to this.
const STATE_FIRST: Duration = Duration::from_secs(1);
const STATE_EVERY: Duration = Duration::from_secs(60);
/// Longer waits are cut to this.
const WAIT_MAX: Duration = Duration::from_secs(366 * 24 * 3600);
/// The pause before the next attempt to reach a database that is unavailable, and the longest one.
const RETRY_PAUSE: Duration = Duration::from_millis(100);
const RETRY_PAUSE_MAX: Duration = Duration::from_secs(5);

pub(super) struct Batches<'a> {
    pub(super) headwater: &'a Headwater,
    pub(super) args: &'a ConsumeArgs,
    pub(super) consumer: Consumer,
    pub(super) stop: Stop,
    /// Whether the reader of the output may go away.
    pub(super) is_pipe: bool,
    /// Whether the pause of the group was reported.
    pub(super) is_paused: bool,
}

impl Batches<'_> {
    /// The next batch; `None` if there is none any more.
    pub(super) async fn next(&mut self) -> Result<Option<Batch>> {
        let wait = self.args.wait.map(|wait| wait.min(WAIT_MAX));
        let mut deadline = wait.map(|wait| Instant::now() + wait);
        let (mut pause, mut check_after) = (RETRY_PAUSE, STATE_FIRST);
        loop {
            let left = deadline.map_or(check_after, |at| at.saturating_duration_since(Instant::now()));
            let mut ended = false;
            let end = async {
                tokio::select! {
                    () = self.stop.asked() => {}
                    () = reader::gone(self.is_pipe) => {}
                }
                ended = true;
            };
            match self.consumer.next_unless(left.min(check_after), end).await {
                Ok(Some(batch)) => {
                    self.is_paused = false;
                    return Ok(Some(batch));
                }
                Ok(None) if ended => return Ok(None),
                Ok(None) => {
                    self.report_pause().await;
                    check_after = (check_after * 2).min(STATE_EVERY);
                    if deadline.is_some_and(|at| at <= Instant::now()) {
                        return Ok(None);
                    }
                }
                Err(error) if error.is_retryable() => {
                    note(format_args!("waiting for the store: {error}"));
                    tokio::select! {
                        () = self.stop.asked() => return Ok(None),
                        () = tokio::time::sleep(pause) => {}
                    }
                    pause = (pause * 2).min(RETRY_PAUSE_MAX);
                    // What arrived meanwhile could not be seen.
                    deadline = wait.map(|wait| Instant::now() + wait);
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// A paused group gets nothing, however long it waits: that is reported once. Failing to read it is no failure.
    async fn report_pause(&mut self) {
        let (topic, group) = (&self.args.topic, &self.args.group);
        let Ok(found) = self.headwater.groups(topic).get(group).await else { return };
        let is_paused = found.status.state == SubscriptionState::Paused;
        if is_paused && !self.is_paused {
            note(format_args!(
                "group {group} is paused; `headwater group resume {topic} {group}` resumes it"
            ));
        }
        self.is_paused = is_paused;
    }
}
