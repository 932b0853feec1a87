//! Wake-up across processes: `PRAGMA data_version`, asked only while somebody waits.
//!
//! It is asked on the write connection, by the writer's thread: there it moves for commits of *other* connections
//! only, so our own claims and settlements wake nobody. It never misses one: the value compared with is the last one
//! asked for, and a commit that the writer met at the start of its own transaction has moved it as well.
//!
//! When to ask is another matter, and only one of speed. Where the kernel tells of writes to the write-ahead log
//! ([`super::notice`]) nothing is asked while the log is still, and yet no commit waits for the next safety look:
//!
//! 1. Whoever commits has written to the log before. From the first look on every such write leaves a notice, which
//!    stays until it is taken.
//! 2. A look takes the notices *before* it asks. A write after that leaves another, which ends the next sleep or does not
//!    let it begin. A write before that belongs to a commit which the look sees, or which still waits for the disk.
//! 3. For the latter, looks go on after a notice, ever more rarely: a commit that took some time to become visible is
//!    found after another eighth of that time.
//! 4. Notices are taken only while somebody waits. Of a commit whose notice was taken for an earlier waiter, rule 3 still
//!    holds; and one that was visible before the waiter armed is found by the claim it makes after that.
//!
//! The safety look every [`BEAT_SAFETY`] is for what this does not know of. If it finds a commit of which there was no
//! notice, then notices do not come here, and the file is looked at on a short beat, as where there are none.

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

/// Without notices: the beat while something happened lately, the beat after that, and the beat once nothing has
/// happened for long. Each look costs a wake-up of the thread.
const BEAT_BRISK: Duration = Duration::from_millis(2);
const BEAT_CALM: Duration = Duration::from_millis(5);
const BEAT_IDLE: Duration = Duration::from_millis(12);
/// How long nothing must have happened for that.
const CALM_FOR: Duration = Duration::from_secs(2);
/// How long "lately" is.
const BRISK_FOR: Duration = Duration::from_millis(100);

/// With notices: how often to look although there was none.
const BEAT_SAFETY: Duration = Duration::from_millis(250);
/// A commit may be seen this much later than its last notice: disks stall, and processes are stopped. Longer than
/// anybody waits for a lock.
const NOTICE_VALID_FOR: Duration = Duration::from_secs(10);

/// The topics somebody ever waited for, with what was last seen of them: last offset and stirs.
///
/// A foreign commit is mostly a claim or settlement; waking everybody for each would make idle consumers of one
/// process compete with the busy ones of another for the write lock.
#[derive(Debug, Default)]
pub(super) struct Watched {
    topics: Mutex<HashMap<TopicId, Option<Seen>>>,
    pub(super) rivals: Rivals,
}

type Seen = (i64, i64);

impl Watched {
    /// Adds topics; what they look like is not known yet, so the first foreign commit wakes their waiters.
    pub(super) fn add(&self, topics: &[TopicId]) {
        let mut watched = self.topics.lock().expect("no panic while held");
        for topic in topics {
            watched.entry(*topic).or_insert(None);
        }
    }
}

/// Whether the kernel tells of writes to the log.
#[derive(Debug)]
enum Hearing {
    /// Not asked yet: who never waits needs none of the few that a user may have.
    Untried(PathBuf),
    Tells(Notices),
    /// It cannot, or does not.
    Silent,
}

/// The writer's view of other connections' commits.
#[derive(Debug)]
pub(super) struct Watch {
    /// `None` in memory, where there is no other connection.
    watched: Option<Arc<Watched>>,
    hearing: Hearing,
    /// There was a notice since the last look.
    noticed: bool,
    noticed_at: Instant,
    beat_safety: Duration,
    /// `None` before the first look.
    data_version: Option<i64>,
    looked_at: Instant,
    changed_at: Instant,
    was_waiting: bool,
    /// Topics with new messages that are left to other processes first, with their heads, and until when.
    late: HashMap<TopicId, i64>,
    late_until: Option<Instant>,
}

impl Watch {
    /// In memory there is nothing to watch.
    pub(super) fn none() -> Self {
        Self::new(None, Hearing::Silent)
    }

    /// Watches the file of a connection that has read or written it, so that its log exists.
    pub(super) fn of(connection: &Connection, watched: Arc<Watched>) -> Self {
        // SQLite's name of the file, and not ours: the log lies beside what a symbolic link points to.
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
            beat_safety: BEAT_SAFETY,
            data_version: None,
            looked_at: now,
            changed_at: now,
            was_waiting: false,
            late: HashMap::new(),
            late_until: None,
        }
    }

    /// How the writer may sleep: to the next look while somebody waits, else for good (`arm` nudges it).
    pub(super) fn pause(&mut self, hub: &Hub) -> Sleep<'_> {
        let waiting = self.watched.is_some() && hub.waiting() > 0;
        if waiting && !self.was_waiting {
            self.changed_at = Instant::now();
        }
        self.was_waiting = waiting;
        let beat = self.beat();
        match &self.hearing {
            _ if !waiting => Sleep::ForGood,
            _ if self.late_until.is_some() => Sleep::AtMost(self.late_for()),
            // While a look is due anyhow further notices are left alone: who writes without pause wakes nobody more often.
            Hearing::Tells(_) if self.noticed => Sleep::AtMost(self.left(beat)),
            Hearing::Tells(notices) => Sleep::UntilNotice(notices, self.left(beat)),
            Hearing::Untried(_) | Hearing::Silent => Sleep::AtMost(beat),
        }
    }

    fn late_for(&self) -> Duration {
        self.late_until.map_or(Duration::ZERO, |until| until.saturating_duration_since(Instant::now()))
    }

    fn left(&self, beat: Duration) -> Duration {
        beat.saturating_sub(self.looked_at.elapsed())
    }

    /// The time from one look to the next, if no notice comes.
    fn beat(&self) -> Duration {
        if matches!(self.hearing, Hearing::Tells(_)) {
            let since_notice = self.looked_at.saturating_duration_since(self.noticed_at);
            return (since_notice / 8).clamp(BEAT_BRISK, self.beat_safety);
        }
        match self.changed_at.elapsed() {
            quiet if quiet < BRISK_FOR => BEAT_BRISK,
            quiet if quiet < CALM_FOR => BEAT_CALM,
            _ => BEAT_IDLE,
        }
    }

    /// Looks whether somebody else committed, if it is time to, and wakes whom it may concern.
    pub(super) fn look(&mut self, connection: &Connection, hub: &Hub) {
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
        let due = if matches!(self.hearing, Hearing::Tells(_)) { self.beat() } else { BEAT_BRISK };
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
            // Waiters have their safety poll; the claim they then make reports what is wrong.
            Err(error) => tracing::debug!(%error, "asking for data_version failed"),
        }
    }

    fn wake(&mut self, watched: &Watched, connection: &Connection, hub: &Hub) {
        match wake_changed(watched, connection, hub, &mut self.late) {
            // What is late already stays so until then: its waiters are not left out.
            Ok(Some(start)) => {
                self.late_until.get_or_insert(Instant::now() + start);
            }
            Ok(None) => {}
            Err(error) => {
                tracing::debug!(%error, "reading the watched topics failed, all waiters woken");
                hub.wake_all();
            }
        }
    }

    /// Wakes the waiters of topics that were left to others and still have something.
    fn wake_late(&mut self, watched: &Watched, connection: &Connection, hub: &Hub) {
        self.late_until = None;
        let now_ms = jiff::Timestamp::now().as_millisecond();
        for (topic, head) in std::mem::take(&mut self.late) {
            let left = watched.rivals.has_more(connection, topic, head, now_ms);
            // After a failed read they are woken: the claim returns what is wrong.
            if left.unwrap_or(true) {
                hub.wake(topic);
            }
        }
    }

    /// Takes the notices there are. The first time it asks for them: before the look, so that nothing falls between.
    fn listen(&mut self) {
        if let Hearing::Untried(log) = &self.hearing {
            self.hearing = match Notices::of(log) {
                Ok(notices) => Hearing::Tells(notices),
                Err(error) => {
                    tracing::debug!(log = %log.display(), %error, "no notices of writes, looking on a beat");
                    Hearing::Silent
                }
            };
            // What was written until now is not known.
            (self.noticed, self.noticed_at) = (true, Instant::now());
        }
        let Hearing::Tells(notices) = &self.hearing else { return };
        match notices.take() {
            Ok(true) => (self.noticed, self.noticed_at) = (true, Instant::now()),
            Ok(false) => {}
            Err(error) => {
                tracing::debug!(%error, "notices of writes failed, looking on a beat");
                self.hearing = Hearing::Silent;
            }
        }
    }

    /// After a commit was found that the look before did not see: gives up notices if none can have told of it.
    fn doubt(&mut self, looked_before_at: Instant) {
        // It may have come since they were taken.
        self.listen();
        let silent_for = looked_before_at.saturating_duration_since(self.noticed_at);
        if matches!(self.hearing, Hearing::Tells(_)) && silent_for >= NOTICE_VALID_FOR {
            tracing::debug!("a commit came without a notice, looking on a beat");
            self.hearing = Hearing::Silent;
        }
    }

    /// Wakes whom a commit of our own connection may concern, where nobody knows what it wrote.
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

/// Wakes the waiters of topics that have changed. Answers how long to leave some of them to other processes.
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
    /// Has heard nothing for long, and never looks unless it does.
    pub(super) fn by_notice_only(connection: &Connection, watched: Arc<Watched>) -> Self {
        let mut watch = Self::of(connection, watched);
        watch.listen();
        assert!(watch.trusts_notices(), "the kernel tells of writes to {:?}", connection.path());
        watch.rest();
        Watch { beat_safety: Duration::from_secs(3600), ..watch }
    }

    /// Believes in notices where none ever come.
    pub(super) fn deaf(_: &Connection, watched: Arc<Watched>) -> Self {
        let mut watch = Self::new(Some(watched), Hearing::Tells(Notices::of_nothing().unwrap()));
        watch.rest();
        watch
    }

    /// As if the last notice were long ago.
    fn rest(&mut self) {
        self.noticed = false;
        self.noticed_at = self.looked_at.checked_sub(NOTICE_VALID_FOR).unwrap();
    }

    pub(super) fn trusts_notices(&self) -> bool {
        matches!(self.hearing, Hearing::Tells(_))
    }

    pub(super) fn has_looked(&mut self) -> bool {
        self.data_version.is_some()
    }

    /// Whether the file was written to since the last look.
    pub(super) fn is_noticed(&mut self) -> bool {
        self.listen();
        self.noticed
    }
}
