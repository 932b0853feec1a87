//! Wake-up across processes: `PRAGMA data_version`, read only while a consumer waits.
//!
//! The writer thread reads it on the write connection. There it changes for commits of *other* connections only, so
//! this process's own claims and settlements cause no wake-up. No commit is missed: the value is compared with the
//! one read last, and a commit that the writer saw at the start of its own transaction has changed it as well.
//!
//! When to read it affects only the latency. Where the kernel reports writes to the write-ahead log
//! ([`super::notice`]), nothing is read while the log does not change, and still no commit waits for the next safety
//! check:
//!
//! 1. A commit writes to the log before it becomes visible. From the first check on, every such write leaves a
//!    notice, which stays until it is taken.
//! 2. A check takes the notices *before* it reads. A later write leaves another notice, which ends the next sleep or
//!    keeps it from beginning. An earlier write belongs to a commit that the check sees, or to one that still waits
//!    for the disk.
//! 3. For such a commit, checks continue after a notice, at growing intervals: a commit that took some time to become
//!    visible is found after at most another eighth of that time. Notices that are taken right after a commit of this
//!    process are its own, or of commits that are visible, because no other process writes to the log while this one
//!    holds the lock. Only a write in the moment between that commit and the taking has no other notice, so fewer checks
//!    follow: its commit is found after at most as long again.
//! 4. Notices are taken only while a consumer waits. If the notice of a commit was taken for an earlier waiter, rule
//!    3 still applies; a commit that was visible before the waiter armed is found by the claim that the waiter makes
//!    after arming.
//!
//! The safety check every [`INTERVAL_SAFETY`] covers cases that these rules do not. If it finds a commit without a
//! notice, notices do not work for this file, and the file is polled at a short interval, as on systems without
//! notices.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rusqlite::{Connection, OptionalExtension};

use super::notice::Notices;
use super::queue::Sleep;
use super::rivals::Rivals;
use crate::store::wake::Hub;
use crate::topic::TopicId;

/// Without notices: the polling interval while something changed recently, the interval after that, and the interval
/// once nothing has changed for long. Each check costs a wake-up of the thread.
const INTERVAL_BRISK: Duration = Duration::from_millis(2);
const INTERVAL_CALM: Duration = Duration::from_millis(5);
const INTERVAL_IDLE: Duration = Duration::from_millis(12);
/// How long nothing must have changed for the idle interval.
const CALM_FOR: Duration = Duration::from_secs(2);
/// How long the brisk interval applies after a change.
const BRISK_FOR: Duration = Duration::from_millis(100);

/// With notices: the interval of the checks without a notice.
const INTERVAL_SAFETY: Duration = Duration::from_millis(250);
/// A commit may become visible this much later than its last notice: disks stall, and processes are stopped. Longer
/// than any wait for a lock.
const NOTICE_VALID_FOR: Duration = Duration::from_secs(10);

/// The topics that a consumer of this process ever waited for, with what was last read of each: last offset and wake
/// counter.
///
/// A commit of another process is mostly a claim or a settlement. If each of them woke every waiter, idle consumers
/// of one process would compete with busy ones of another for the write lock.
#[derive(Debug, Default)]
pub(super) struct Watched {
    topics: Mutex<HashMap<TopicId, Option<Seen>>>,
    pub(super) rivals: Rivals,
}

type Seen = (i64, i64);

impl Watched {
    /// Adds topics. Their state is not read yet, so the first commit of another process wakes their waiters.
    pub(super) fn add(&self, topics: &[TopicId]) {
        let mut watched = self.topics.lock().expect("no panic while held");
        for topic in topics {
            watched.entry(*topic).or_insert(None);
        }
    }
}

/// Whether the kernel reports writes to the log.
#[derive(Debug)]
enum Hearing {
    /// Not requested yet: a process that never waits uses none of the few inotify instances that a user may have.
    Untried(PathBuf),
    Tells(Notices),
    /// The kernel cannot report writes, or does not.
    Silent,
}

/// The writer's view of other connections' commits.
#[derive(Debug)]
pub(super) struct Watch {
    /// `None` in memory, where there is no other connection.
    watched: Option<Arc<Watched>>,
    hearing: Hearing,
    /// A notice came since the last check.
    noticed: bool,
    noticed_at: Instant,
    /// The last notices were taken right after a commit of this process.
    own: bool,
    beat_safety: Duration,
    /// `None` before the first check.
    data_version: Option<i64>,
    looked_at: Instant,
    changed_at: Instant,
    was_waiting: bool,
    /// Topics with new messages that are left to other processes first, with their heads, and until when they are
    /// left.
    late: HashMap<TopicId, i64>,
    late_until: Option<Instant>,
}

impl Watch {
    /// For a store in memory: there is nothing to watch.
    pub(super) fn none() -> Self {
        Self::new(None, Hearing::Silent)
    }

    /// Watches the file of a connection that has read or written it, so that the log exists.
    pub(super) fn of(connection: &Connection, watched: Arc<Watched>) -> Self {
        // SQLite's name of the file, not the given path: the log is beside the target of a symbolic link.
        let log = connection.path().filter(|path| !path.is_empty()).map(|path| format!("{path}-wal"));
        Self::new(Some(watched), log.map_or(Hearing::Silent, |log| Hearing::Untried(log.into())))
    }

    fn new(watched: Option<Arc<Watched>>, hearing: Hearing) -> Self {
        let now = Instant::now();
        Watch {
            watched,
            hearing,
            noticed: false,
            noticed_at: now,
            own: false,
            beat_safety: INTERVAL_SAFETY,
            data_version: None,
            looked_at: now,
            changed_at: now,
            was_waiting: false,
            late: HashMap::new(),
            late_until: None,
        }
    }

    /// How the writer may sleep: until the next check while a consumer waits, else without a limit (`arm` nudges it).
    pub(super) fn pause(&mut self, hub: &Hub) -> Sleep<'_> {
        let waiting = self.watched.is_some() && hub.waiting() > 0;
        if waiting && !self.was_waiting {
            self.changed_at = Instant::now();
        }
        self.was_waiting = waiting;
        let interval = self.interval();
        match &self.hearing {
            _ if !waiting => Sleep::ForGood,
            _ if self.late_until.is_some() => Sleep::AtMost(self.late_for()),
            // While a check is due anyway, further notices are not waited for: a process that writes without pause
            // causes no more wake-ups.
            Hearing::Tells(_) if self.noticed => Sleep::AtMost(self.left(interval)),
            Hearing::Tells(notices) => Sleep::UntilNotice(notices, self.left(interval)),
            Hearing::Untried(_) | Hearing::Silent => Sleep::AtMost(interval),
        }
    }

    fn late_for(&self) -> Duration {
        self.late_until.map_or(Duration::ZERO, |until| until.saturating_duration_since(Instant::now()))
    }

    fn left(&self, interval: Duration) -> Duration {
        interval.saturating_sub(self.looked_at.elapsed())
    }

    /// The time from one check to the next, if no notice comes.
    fn interval(&self) -> Duration {
        if matches!(self.hearing, Hearing::Tells(_)) {
            let since_notice = self.looked_at.saturating_duration_since(self.noticed_at);
            let pause = if self.own { since_notice } else { since_notice / 8 };
            return pause.clamp(INTERVAL_BRISK, self.beat_safety);
        }
        match self.changed_at.elapsed() {
            quiet if quiet < BRISK_FOR => INTERVAL_BRISK,
            quiet if quiet < CALM_FOR => INTERVAL_CALM,
            _ => INTERVAL_IDLE,
        }
    }

    /// Checks whether another connection committed, if a check is due, and wakes the affected waiters.
    pub(super) fn check(&mut self, connection: &Connection, hub: &Hub) {
        let Some(watched) = self.watched.clone() else { return };
        if hub.waiting() == 0 {
            return;
        }
        if self.late_until.is_some() {
            if !self.late_for().is_zero() {
                return;
            }
            self.wake_late(&watched, connection, hub);
        }
        self.listen();
        let due = if matches!(self.hearing, Hearing::Tells(_)) { self.interval() } else { INTERVAL_BRISK };
        if self.looked_at.elapsed() < due {
            return;
        }
        let looked_before_at = std::mem::replace(&mut self.looked_at, Instant::now());
        self.noticed = false;
        let version = connection
            .prepare_cached("PRAGMA data_version")
            .and_then(|mut statement| statement.query_row([], |row| row.get(0)));
        match version {
            Ok(version) if Some(version) == self.data_version => {}
            Ok(version) => {
                self.changed_at = self.looked_at;
                self.wake(&watched, connection, hub);
                if self.data_version.replace(version).is_some() {
                    self.doubt(looked_before_at);
                }
            }
            // Waiters also poll; the claim they then make returns the error.
            Err(error) => tracing::debug!(%error, "read of data_version failed"),
        }
    }

    fn wake(&mut self, watched: &Watched, connection: &Connection, hub: &Hub) {
        match wake_changed(watched, connection, hub, &mut self.late) {
            // A topic that is late already keeps its deadline: its waiters must not be starved.
            Ok(Some(start)) => {
                self.late_until.get_or_insert(Instant::now() + start);
            }
            Ok(None) => {}
            Err(error) => {
                tracing::debug!(%error, "read of watched topics failed, all waiters woken");
                hub.wake_all();
            }
        }
    }

    /// Wakes the waiters of topics that were left to other processes and still have messages.
    fn wake_late(&mut self, watched: &Watched, connection: &Connection, hub: &Hub) {
        self.late_until = None;
        let now_ms = jiff::Timestamp::now().as_millisecond();
        for (topic, head) in std::mem::take(&mut self.late) {
            let left = watched.rivals.has_more(connection, topic, head, now_ms);
            // After a failed read they are woken as well: their claim returns the error.
            if left.unwrap_or(true) {
                hub.wake(topic);
            }
        }
    }

    /// Takes the notices of a commit of this process, which has just released the lock.
    pub(super) fn committed(&mut self, hub: &Hub) {
        if hub.waiting() > 0 && matches!(self.hearing, Hearing::Tells(_)) && self.listen() {
            self.own = true;
        }
    }

    /// Takes the pending notices; false if there are none. The first call starts them: before the check, so that no write
    /// falls in between.
    fn listen(&mut self) -> bool {
        if let Hearing::Untried(log) = &self.hearing {
            self.hearing = match Notices::of(log) {
                Ok(notices) => Hearing::Tells(notices),
                Err(error) => {
                    tracing::debug!(log = %log.display(), %error, "write notices unavailable, polling instead");
                    Hearing::Silent
                }
            };
            // Earlier writes left no notice, so a check is due.
            (self.noticed, self.noticed_at) = (true, Instant::now());
        }
        let Hearing::Tells(notices) = &self.hearing else { return false };
        let taken = notices.take().unwrap_or_else(|error| {
            tracing::debug!(%error, "write notices failed, polling instead");
            self.hearing = Hearing::Silent;
            false
        });
        if taken {
            (self.noticed, self.noticed_at, self.own) = (true, Instant::now(), false);
        }
        taken
    }

    /// After a check found a commit that the check before did not see: stops using notices if none can have announced
    /// it.
    fn doubt(&mut self, looked_before_at: Instant) {
        // The notice may have come since notices were last taken.
        self.listen();
        let silent_for = looked_before_at.saturating_duration_since(self.noticed_at);
        if matches!(self.hearing, Hearing::Tells(_)) && silent_for >= NOTICE_VALID_FOR {
            tracing::debug!("commit found without a write notice, polling instead");
            self.hearing = Hearing::Silent;
        }
    }

    /// Wakes the waiters that a commit of the own connection may affect, where it is not known what the commit wrote.
    pub(super) fn look_at_own(&mut self, connection: &Connection, hub: &Hub) {
        if hub.waiting() == 0 {
            return;
        }
        match self.watched.clone() {
            None => hub.wake_all(),
            Some(watched) => self.wake(&watched, connection, hub),
        }
    }
}

/// Wakes the waiters of topics that have changed. Returns how long to leave some of the topics to other processes.
fn wake_changed(
    watched: &Watched,
    connection: &Connection,
    hub: &Hub,
    late: &mut HashMap<TopicId, i64>,
) -> rusqlite::Result<Option<Duration>> {
    let mut statement = connection.prepare_cached(super::sql!(arm.topic_seen))?;
    let mut topics = watched.topics.lock().expect("no panic while held");
    let mut head_start: Option<Duration> = None;
    for (topic, seen) in topics.iter_mut() {
        let now: Option<Seen> =
            statement.query_row([topic.0], |row| Ok((row.get(0)?, row.get(1)?))).optional()?;
        if *seen == now && now.is_some() {
            continue;
        }
        let before = std::mem::replace(seen, now);
        let only_new = before.zip(now).filter(|(before, now)| before.1 == now.1);
        match only_new.and_then(|(_, now)| Some((now.0, watched.rivals.head_start(*topic)?))) {
            Some((head, start)) => {
                late.insert(*topic, head);
                head_start = head_start.max(Some(start));
            }
            None => {
                late.remove(topic);
                hub.wake(*topic);
            }
        }
    }
    Ok(head_start)
}

#[cfg(all(test, target_os = "linux"))]
impl Watch {
    /// Has received no notice for long, and checks only after one.
    pub(super) fn by_notice_only(connection: &Connection, watched: Arc<Watched>) -> Self {
        let mut watch = Self::of(connection, watched);
        watch.listen();
        assert!(watch.trusts_notices(), "the kernel reports writes to {:?}", connection.path());
        watch.rest();
        Watch { beat_safety: Duration::from_secs(3600), ..watch }
    }

    /// Relies on notices where none ever come.
    pub(super) fn deaf(_: &Connection, watched: Arc<Watched>) -> Self {
        let mut watch = Self::new(Some(watched), Hearing::Tells(Notices::of_nothing().unwrap()));
        watch.rest();
        watch
    }

    /// Behaves as if the last notice were long ago.
    fn rest(&mut self) {
        self.noticed = false;
        self.noticed_at = self.looked_at.checked_sub(NOTICE_VALID_FOR).unwrap();
    }

    pub(super) fn trusts_notices(&self) -> bool {
        matches!(self.hearing, Hearing::Tells(_))
    }

    /// The time from a check so long after the last notice to the next one.
    pub(super) fn interval_after(&mut self, since_notice: Duration) -> Duration {
        self.looked_at = self.noticed_at + since_notice;
        self.interval()
    }

    pub(super) fn has_looked(&mut self) -> bool {
        self.data_version.is_some()
    }

    /// Whether the file was written to since the last check.
    pub(super) fn is_noticed(&mut self) -> bool {
        self.listen();
        self.noticed
    }
}
