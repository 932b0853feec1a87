//! What a service knows of runs: the topic of runs, read without a group and kept in memory.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::Duration;

use async_trait::async_trait;
use headwater::tail::Tail;
use headwater::{Headwater, Message, Start};
use tokio::sync::watch;
use tokio::time::Instant;

use super::{DROPPED, RUNS_TOPIC, decoded};
use crate::contracts::RunInfo;
use crate::error::{Error, ErrorCode, Result};
use crate::resource::RunDirectory;

/// The pause after a read that failed.
const PAUSE: Duration = Duration::from_secs(1);

/// The runs, as read so far.
pub struct Directory {
    /// Reads what is there.
    reader: tokio::sync::Mutex<Tail>,
    /// Waits for what comes. Apart from the reader, so that no read waits behind a wait.
    waiter: tokio::sync::Mutex<Tail>,
    known: Mutex<Known>,
    /// Raised with each message that a wait has found.
    version: watch::Sender<u64>,
}

/// Runs by the offset of their first message. It orders them as they were registered, whatever the clocks of their machines show.
#[derive(Default)]
struct Known {
    runs: BTreeMap<i64, (RunInfo, i64)>,
    offsets: BTreeMap<String, i64>,
}

impl Known {
    /// On PostgreSQL a message may come after one with a higher offset: the highest counts.
    fn apply(&mut self, message: &Message) {
        let run = match decoded(message) {
            Ok(run) => run,
            Err(error) => {
                tracing::warn!(%error, "message of a run not understood");
                return;
            }
        };
        let offset = message.offset.0;
        match self.offsets.get(&run.run_id).copied() {
            Some(first) => {
                let (info, newest) = self.runs.remove(&first).expect("each run has an entry");
                let entry = if offset > newest { (run, offset) } else { (info, newest) };
                let first = first.min(offset);
                self.offsets.insert(entry.0.run_id.clone(), first);
                self.runs.insert(first, entry);
            }
            None => {
                self.offsets.insert(run.run_id.clone(), offset);
                self.runs.insert(offset, (run, offset));
            }
        }
    }

    fn newest(&self, after: Option<&str>) -> Option<RunInfo> {
        let from = after.and_then(|after| self.offsets.get(after)).map_or(0, |first| first + 1);
        let newer = self.runs.range(from..).rev().map(|(_, (run, _))| run);
        newer.filter(|run| run.state != DROPPED).map(RunInfo::clone).next()
    }
}

impl Directory {
    pub(super) async fn open(base: &Headwater) -> Result<Self> {
        let tail = || async {
            base.tail(RUNS_TOPIC, Start::Beginning)
                .await
                .map_err(|error| Error::from_store(ErrorCode::ReadFailed, &error))
        };
        Ok(Directory {
            reader: tokio::sync::Mutex::new(tail().await?),
            waiter: tokio::sync::Mutex::new(tail().await?),
            known: Mutex::default(),
            version: watch::Sender::new(0),
        })
    }

    /// Reads what was registered since the last call.
    async fn catch_up(&self) -> Result<()> {
        let mut reader = self.reader.lock().await;
        loop {
            let page = reader.next(Duration::ZERO).await;
            let page = page.map_err(|error| Error::from_store(ErrorCode::ReadFailed, &error))?;
            if page.is_empty() {
                return Ok(());
            }
            let mut known = self.known.lock().expect("no panic while held");
            page.iter().for_each(|message| known.apply(message));
        }
    }

    /// All runs, newest first.
    pub async fn list(&self) -> Result<Vec<RunInfo>> {
        self.catch_up().await?;
        let known = self.known.lock().expect("no panic while held");
        Ok(known
            .runs
            .values()
            .rev()
            .map(|(run, _)| run)
            .filter(|run| run.state != DROPPED)
            .cloned()
            .collect())
    }

    /// The run with this id, also if it was dropped.
    pub(super) async fn even_dropped(&self, run_id: &str) -> Result<Option<RunInfo>> {
        self.catch_up().await?;
        let known = self.known.lock().expect("no panic while held");
        Ok(known.offsets.get(run_id).and_then(|first| known.runs.get(first)).map(|(run, _)| run.clone()))
    }

    /// Waits for a message, woken by its commit, and reports it to all that wait here.
    async fn wait(&self, until: Instant) {
        let Ok(mut waiter) = tokio::time::timeout_at(until, self.waiter.lock()).await else { return };
        match waiter.next(until.saturating_duration_since(Instant::now())).await {
            Ok(page) if page.is_empty() => {}
            Ok(_) => self.version.send_modify(|version| *version += 1),
            Err(error) => {
                tracing::debug!(%error, "runs not read");
                tokio::time::sleep_until(until.min(Instant::now() + PAUSE)).await;
            }
        }
    }
}

#[async_trait]
impl RunDirectory for Directory {
    async fn run(&self, run_id: &str) -> Result<Option<RunInfo>> {
        Ok(self.even_dropped(run_id).await?.filter(|run| run.state != DROPPED))
    }

    async fn newest(&self, after: Option<&str>) -> Result<Option<RunInfo>> {
        self.catch_up().await?;
        Ok(self.known.lock().expect("no panic while held").newest(after))
    }

    /// A change that a read before this call has found already may end the wait at once; a change after that read always ends it.
    async fn changed(&self, at_most: Duration) {
        // Subscribed before the wait: a message that another wait takes from the shared tail is reported here.
        let mut version = self.version.subscribe();
        tokio::select! {
            _ = version.changed() => {}
            () = self.wait(Instant::now() + at_most) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bindings::message_of;

    fn message(offset: i64, run_id: &str, state: &str) -> Message {
        let run = RunInfo { run_id: run_id.into(), state: state.into(), ..RunInfo::default() };
        let new = message_of(&run);
        Message {
            offset: headwater::Offset(offset),
            message_id: uuid::Uuid::nil(),
            key: None,
            message_type: new.message_type,
            payload: new.payload,
            content_type: new.content_type,
            headers: headwater::Headers::new(),
            correlation_id: None,
            created_at: jiff::Timestamp::UNIX_EPOCH,
        }
    }

    #[test]
    fn newest_is_by_registration_and_its_newest_state_counts() {
        let mut known = Known::default();
        for (offset, run, state) in [
            (5, "run_b", "STARTING"),
            (1, "run_a", "STARTING"),
            (9, "run_b", "ENDED"),
            (7, "run_b", "RUNNING"),
            (8, "run_a", "RUNNING"),
        ] {
            known.apply(&message(offset, run, state));
        }
        let newest = known.newest(None).expect("a run");
        assert_eq!((newest.run_id.as_str(), newest.state.as_str()), ("run_b", "ENDED"));
        assert_eq!(known.newest(Some("run_a")).expect("a newer run").run_id, "run_b");
        assert_eq!(known.newest(Some("run_b")), None);
        assert_eq!(known.newest(Some("run_unknown")).expect("the newest").run_id, "run_b");
        known.apply(&message(10, "run_b", DROPPED));
        assert_eq!(known.newest(None).expect("the other").run_id, "run_a");
        assert_eq!(known.newest(Some("run_a")), None);
    }
}
