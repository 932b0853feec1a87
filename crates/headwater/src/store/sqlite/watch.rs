//! Wake-up across processes: `PRAGMA data_version`, on a short beat, only while somebody waits.
//!
//! It is asked on the write connection, by the writer's thread: there it moves for commits of *other* connections
//! only, so our own claims and settlements wake nobody. It never misses one: the value compared with is the last one
//! asked for, and a commit that the writer met at the start of its own transaction has moved it as well.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rusqlite::{Connection, OptionalExtension};

use crate::store::wake::Hub;
use crate::topic::TopicId;

/// The beat while something happened lately, the beat after that, and the beat once nothing has happened for long: each
/// look costs a wake-up of the thread, and waiting must stay far below one percent of a core.
const BEAT_BRISK: Duration = Duration::from_millis(2);
const BEAT_CALM: Duration = Duration::from_millis(5);
const BEAT_IDLE: Duration = Duration::from_millis(12);
/// How long nothing must have happened for that.
const CALM_FOR: Duration = Duration::from_secs(2);
/// How long "lately" is.
const BRISK_FOR: Duration = Duration::from_millis(100);

/// The topics somebody ever waited for, with what was last seen of them: last offset and stirs.
///
/// A foreign commit is mostly a claim or settlement; waking everybody for each would make idle consumers of one
/// process compete with the busy ones of another for the write lock.
#[derive(Debug, Default)]
pub(super) struct Watched(Mutex<HashMap<TopicId, Option<Seen>>>);

type Seen = (i64, i64);

impl Watched {
    /// Adds topics; what they look like is not known yet, so the first foreign commit wakes their waiters.
    pub(super) fn add(&self, topics: &[TopicId]) {
        let mut watched = self.0.lock().expect("no panic while held");
        for topic in topics {
            watched.entry(*topic).or_insert(None);
        }
    }
}

/// The writer's view of other connections' commits.
#[derive(Debug)]
pub(super) struct Watch {
    /// `None` in memory, where there is no other connection.
    watched: Option<Arc<Watched>>,
    data_version: i64,
    looked_at: Instant,
    changed_at: Instant,
    was_waiting: bool,
}

impl Watch {
    pub(super) fn new(watched: Option<Arc<Watched>>) -> Self {
        let now = Instant::now();
        Watch { watched, data_version: -1, looked_at: now, changed_at: now, was_waiting: false }
    }

    /// How long the writer may sleep: to the next beat while somebody waits, else for good (`arm` nudges it).
    pub(super) fn pause(&mut self, hub: &Hub) -> Option<Duration> {
        let waiting = self.watched.is_some() && hub.waiting() > 0;
        if waiting && !self.was_waiting {
            self.changed_at = Instant::now();
        }
        self.was_waiting = waiting;
        waiting.then(|| self.beat())
    }

    fn beat(&self) -> Duration {
        match self.changed_at.elapsed() {
            quiet if quiet < BRISK_FOR => BEAT_BRISK,
            quiet if quiet < CALM_FOR => BEAT_CALM,
            _ => BEAT_IDLE,
        }
    }

    /// Looks whether somebody else committed, if the beat is due, and wakes whom it may concern.
    pub(super) fn look(&mut self, connection: &Connection, hub: &Hub) {
        let Some(watched) = &self.watched else { return };
        if hub.waiting() == 0 || self.looked_at.elapsed() < BEAT_BRISK {
            return;
        }
        self.looked_at = Instant::now();
        let version = connection
            .prepare_cached("PRAGMA data_version")
            .and_then(|mut statement| statement.query_row([], |row| row.get(0)));
        match version {
            Ok(version) if version == self.data_version => {}
            Ok(version) => {
                self.changed_at = self.looked_at;
                if let Err(error) = wake_changed(watched, connection, hub) {
                    tracing::debug!(%error, "reading the watched topics failed, waking everybody");
                    hub.wake_all();
                }
                self.data_version = version;
            }
            // Waiters have their safety poll; the claim they then make reports what is wrong.
            Err(error) => tracing::debug!(%error, "asking for data_version failed"),
        }
    }
}

fn wake_changed(watched: &Watched, connection: &Connection, hub: &Hub) -> rusqlite::Result<()> {
    let mut statement = connection.prepare_cached(super::sql!("arm/topic_seen.sql"))?;
    let mut watched = watched.0.lock().expect("no panic while held");
    for (topic, seen) in watched.iter_mut() {
        let now: Option<Seen> =
            statement.query_row([topic.0], |row| Ok((row.get(0)?, row.get(1)?))).optional()?;
        if *seen != now || now.is_none() {
            *seen = now;
            hub.wake(*topic);
        }
    }
    Ok(())
}
