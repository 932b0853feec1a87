//! Backfills: started when a group comes late, listed, controlled by operators, and run batch by batch.
//!
//! In offset watermark there is nothing to do: the group's progress follows from its floor, whatever the row
//! contains. In reference counting a batch adds the group to pending completion records; where the group has done the
//! message already, it is added as done.

use std::time::{Duration, Instant};

use jiff::Timestamp;
use rusqlite::{Connection, OptionalExtension, Row, params};

use crate::backfill::{Backfill, BackfillLimits, BackfillState, BackfillStep};
use crate::error::{Error, ErrorKind};
use crate::message::Offset;
use crate::name::{GroupName, Owner, TopicName};
use crate::store::sqlite::fault::{Attempt, Fault};
use crate::store::sqlite::progress::{SubscriptionProgress, TopicRange};
use crate::store::sqlite::ranges::{Masks, segments};
use crate::store::sqlite::work::Work;
use crate::store::sqlite::{audit, decode, fault, group, millis, row_key};
use crate::subscription::SubscriptionState;
use crate::topic::{TopicId, Tracking};

/// A worker without progress for longer than this loses its backfill to another.
const WORKER_SILENT_MAX: Duration = Duration::from_secs(15);

/// Stores what a subscription has to process when it begins or is resurrected; nothing at the end of the log.
pub(super) fn begin(
    connection: &Connection,
    topic_range: &TopicRange,
    progress: &SubscriptionProgress,
    limits: &BackfillLimits,
    now_ms: i64,
) -> Attempt<()> {
    let first = topic_range.first.max(progress.floor + 1);
    if first > topic_range.head {
        return forget(connection, progress.subscription_id);
    }
    let (range, left_out) = match topic_range.tracking {
        Tracking::OffsetWatermark => ((first, topic_range.head), 0),
        Tracking::ReferenceCounting if limits.messages_max == 0 => {
            return forget(connection, progress.subscription_id);
        }
        Tracking::ReferenceCounting => {
            let messages_max = i64::try_from(limits.messages_max).unwrap_or(i64::MAX);
            let covered = first.max(topic_range.tracked_until.saturating_sub(messages_max) + 1);
            // Messages without a completion record get one that is for the group: nothing may be left to do.
            ((covered, topic_range.tracked_until.max(covered - 1)), covered - first)
        }
    };
    insert(connection, progress.subscription_id, range, left_out, limits, now_ms)
}

/// Stores a backfill of a range of which nothing is done; an empty one is completed.
fn insert(
    connection: &Connection,
    subscription_id: i32,
    (first, last): (i64, i64),
    left_out: i64,
    limits: &BackfillLimits,
    now_ms: i64,
) -> Attempt<()> {
    let state = if first > last { BackfillState::Completed } else { BackfillState::NotStarted };
    connection.prepare_cached(sql!(tracking.backfill_begin))?.execute(params![
        subscription_id,
        state.as_str(),
        first,
        last,
        limits.rate_max,
        now_ms,
        left_out,
        limits.batch_max,
        limits.target_latency.map(millis)
    ])?;
    Ok(())
}

/// A subscription no longer counts: its running backfill stops.
pub(super) fn end(connection: &Connection, subscription_id: i32) -> Attempt<()> {
    let Some(stored) = Stored::find(connection, subscription_id)? else { return Ok(()) };
    let shown = stored.shown(connection)?;
    let state = if shown.state.is_open() { BackfillState::Cancelled } else { shown.state };
    stored.set(connection, state, None)
}

/// Removes the backfill of a subscription.
pub(super) fn forget(connection: &Connection, subscription_id: i32) -> Attempt<()> {
    connection.prepare_cached(sql!(tracking.backfill_forget))?.execute([subscription_id])?;
    Ok(())
}

/// The completion records of a topic are created again, each with what is done by then: there is nothing to fill, and
/// a backfill that only showed a group's progress has nothing left to show.
pub(super) fn complete_all(connection: &Connection, topic: TopicId) -> Attempt<()> {
    connection.prepare_cached(sql!(tracking.backfill_complete))?.execute([topic.0])?;
    Ok(())
}

/// Starts a backfill at the request of an operator.
pub(super) fn start(
    work: &mut Work<'_>,
    actor: &str,
    name: &TopicName,
    group: &GroupName,
    limits: &BackfillLimits,
) -> Attempt<Backfill> {
    let connection = work.connection;
    let subscription_id = find(connection, name, group)?;
    let (topic, progress) = SubscriptionProgress::one(connection, subscription_id)?;
    if let Some(stored) = Stored::find(connection, subscription_id)?
        && stored.shown(connection)?.state.is_open()
    {
        let text = format!("a backfill is under way: topic {name}, group {group}; wait for it or cancel it");
        return Err(Error::new(ErrorKind::Conflict, text).into());
    }
    check_counts(&progress, name)?;
    let (topic_range, now_ms) = (TopicRange::load(connection, topic)?, work.now_ms());
    begin(connection, &topic_range, &progress, limits, now_ms)?;
    let stored = match Stored::find(connection, subscription_id)? {
        Some(stored) => stored,
        None => {
            // The group is at the end of the log: an empty backfill.
            insert(connection, subscription_id, (topic_range.head + 1, topic_range.head), 0, limits, now_ms)?;
            Stored::get(connection, subscription_id)?
        }
    };
    let detail = serde_json::json!({
        "first": stored.first, "last": stored.last, "messages_max": limits.messages_max, "rate_max": limits.rate_max,
        "batch_max": limits.batch_max, "target_latency_ms": limits.target_latency.map(millis),
    });
    audit::note(work, actor, "backfill", Some(name.as_str()), Some(group.as_str()), &detail)?;
    stored.show(work.connection, now_ms)
}

/// What an operator may do to an existing backfill.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    /// Stops it; completed batches stay.
    Cancel,
    /// Continues a cancelled or failed backfill from its checkpoint.
    Resume,
}

/// Cancels a backfill, or resumes it.
pub(super) fn turn(
    work: &mut Work<'_>,
    actor: &str,
    name: &TopicName,
    group: &GroupName,
    turn: Turn,
) -> Attempt<Backfill> {
    let connection = work.connection;
    let subscription_id = find(connection, name, group)?;
    let (act, needs) = match turn {
        Turn::Cancel => ("cancel_backfill", "not_started or in_progress"),
        Turn::Resume => ("resume_backfill", "cancelled or failed"),
    };
    let Some(stored) = Stored::find(connection, subscription_id)? else {
        return Err(refused(name, group, "missing", act, needs));
    };
    let shown = stored.shown(connection)?;
    let state = match (turn, shown.state) {
        (Turn::Cancel, open) if open.is_open() => BackfillState::Cancelled,
        (Turn::Resume, BackfillState::Cancelled | BackfillState::Failed) => {
            check_counts(&SubscriptionProgress::one(connection, subscription_id)?.1, name)?;
            let begun = stored.checkpoint >= stored.first;
            if begun { BackfillState::InProgress } else { BackfillState::NotStarted }
        }
        (_, other) => return Err(refused(name, group, other.as_str(), act, needs)),
    };
    stored.set(connection, state, None)?;
    let detail = serde_json::json!({ "checkpoint": shown.checkpoint });
    audit::note(work, actor, act, Some(name.as_str()), Some(group.as_str()), &detail)?;
    Stored::get(work.connection, subscription_id)?.show(work.connection, work.now_ms())
}

/// All backfills, newest first.
pub(super) fn list(connection: &Connection, now_ms: i64) -> Attempt<Vec<Backfill>> {
    let mut statement = connection.prepare_cached(sql!(tracking.backfill_list))?;
    let stored = decode::all(&mut statement, [None::<i32>], Stored::read)?;
    stored.into_iter().map(|stored| stored.show(connection, now_ms)).collect()
}

/// Runs one batch of a backfill that no other worker has.
///
/// A batch that fails is rolled back, and the error is stored with the backfill; only after a temporary fault (a
/// lock, a full disk) does the caller have to try again.
pub(super) fn step(work: &mut Work<'_>, worker: &Owner, messages_max: u32) -> Attempt<Option<BackfillStep>> {
    let (began, now_ms) = (Instant::now(), work.now_ms());
    let found: Option<i32> = work
        .connection
        .prepare_cached(sql!(tracking.backfill_open))?
        .query_row(params![worker.as_str(), now_ms, given_until_ms(now_ms)], |row| row.get(0))
        .optional()?;
    let Some(subscription_id) = found else { return Ok(None) };
    let stored = Stored::get(work.connection, subscription_id)?;
    work.connection.execute_batch("SAVEPOINT batch")?;
    let messages_max = messages_max.min(stored.batch_max.unwrap_or(u32::MAX));
    let ran = batch(work.connection, &stored, worker, messages_max, now_ms, began);
    let (processed, changed) = match ran {
        Ok(done) => done,
        Err(fault) if work.connection.is_autocommit() => return Err(fault),
        Err(fault) => {
            work.connection.execute_batch("ROLLBACK TO batch")?;
            work.connection.execute_batch("RELEASE batch")?;
            let error = lasting(fault)?;
            stored.set(work.connection, BackfillState::Failed, Some(&error.to_string()))?;
            let backfill = Stored::get(work.connection, subscription_id)?.show(work.connection, now_ms)?;
            return Ok(Some(BackfillStep { backfill, processed: 0, changed: 0 }));
        }
    };
    work.connection.execute_batch("RELEASE batch")?;
    let backfill = Stored::get(work.connection, subscription_id)?.show(work.connection, now_ms)?;
    Ok(Some(BackfillStep { backfill, processed, changed }))
}

/// Until when a worker that takes or continues a backfill owns it.
fn given_until_ms(now_ms: i64) -> i64 {
    now_ms.saturating_add(millis(WORKER_SILENT_MAX))
}

/// The error of a fault that a retry would hit again; any other fault is returned as it is.
fn lasting(fault: Fault) -> Attempt<Error> {
    match fault {
        Fault::NeedsSync => Err(Fault::NeedsSync),
        Fault::Refused(error) => Ok(error),
        Fault::Sqlite(sqlite) => {
            let passing = [
                rusqlite::ErrorCode::DatabaseBusy,
                rusqlite::ErrorCode::DatabaseLocked,
                rusqlite::ErrorCode::DiskFull,
                rusqlite::ErrorCode::SystemIoFailure,
                rusqlite::ErrorCode::OutOfMemory,
            ];
            if sqlite.sqlite_error_code().is_some_and(|code| passing.contains(&code)) {
                return Err(Fault::Sqlite(sqlite));
            }
            Ok(fault::sqlite_error("backfill", sqlite))
        }
    }
}

/// Adds the group to the pending completion records of the next offsets, and moves the checkpoint past them.
fn batch(
    connection: &Connection,
    stored: &Stored,
    worker: &Owner,
    messages_max: u32,
    now_ms: i64,
    began: Instant,
) -> Attempt<(u64, u64)> {
    let topic_range = TopicRange::load(connection, stored.topic)?;
    let (_, progress) = SubscriptionProgress::one(connection, stored.subscription_id)?;
    // Messages that were removed meanwhile need nothing.
    let first = topic_range.first.max(stored.checkpoint + 1);
    let last = stored.last.min(first + i64::from(messages_max) - 1);
    let mut changed = 0;
    if first <= last {
        let applied = super::applied(connection, stored.subscription_id, first, last)?;
        let layers = [(applied, Masks { one: progress.mask(), two: 0 })];
        let mut statement = connection.prepare_cached(sql!(tracking.backfill_set))?;
        for segment in segments(&layers, first, last) {
            changed += statement.execute(params![
                row_key(topic_range.topic, segment.first),
                row_key(topic_range.topic, segment.last),
                progress.mask().cast_signed(),
                segment.masks.one.cast_signed()
            ])? as u64;
        }
    }
    let checkpoint = last.max(stored.checkpoint).min(stored.last);
    let complete = checkpoint >= stored.last || first > stored.last;
    let (checkpoint, state) = match complete {
        true => (stored.last, BackfillState::Completed),
        false => (checkpoint, BackfillState::InProgress),
    };
    connection.prepare_cached(sql!(tracking.backfill_progress))?.execute(params![
        stored.subscription_id,
        state.as_str(),
        checkpoint,
        now_ms,
        stored.ran_since_ms(worker, now_ms).unwrap_or_else(|| millis(began.elapsed()).max(1)),
        (!complete).then_some(worker.as_str()),
        (!complete).then_some(given_until_ms(now_ms)),
    ])?;
    Ok((u64::try_from(checkpoint - stored.checkpoint).unwrap_or_default(), changed))
}

/// A backfill as stored.
struct Stored {
    subscription_id: i32,
    topic: TopicId,
    topic_name: String,
    group: String,
    tracking: Tracking,
    state: BackfillState,
    first: i64,
    last: i64,
    checkpoint: i64,
    rate_max: u32,
    created_at_ms: i64,
    progressed_at_ms: Option<i64>,
    ran_ms: i64,
    error: Option<String>,
    worker: Option<String>,
    worker_until_ms: Option<i64>,
    left_out: u64,
    batch_max: Option<u32>,
    target_latency: Option<Duration>,
}

/// The state of a backfill, derived from what is stored of its group.
struct Shown {
    state: BackfillState,
    checkpoint: i64,
}

impl Stored {
    fn find(connection: &Connection, subscription_id: i32) -> Attempt<Option<Self>> {
        let mut statement = connection.prepare_cached(sql!(tracking.backfill_list))?;
        Ok(statement.query_row([Some(subscription_id)], Self::read).optional()?)
    }

    /// A backfill that must exist.
    fn get(connection: &Connection, subscription_id: i32) -> Attempt<Self> {
        Ok(Self::find(connection, subscription_id)?.ok_or(rusqlite::Error::QueryReturnedNoRows)?)
    }

    fn read(row: &Row<'_>) -> rusqlite::Result<Self> {
        let unknown = |at, error: Error| {
            rusqlite::Error::FromSqlConversionFailure(at, rusqlite::types::Type::Text, Box::new(error))
        };
        Ok(Stored {
            subscription_id: row.get(0)?,
            topic: TopicId(row.get(1)?),
            topic_name: decode::name(row, 2)?,
            group: row.get(3)?,
            tracking: decode::word(row, 4)?,
            state: BackfillState::parse(&row.get::<_, String>(5)?).map_err(|error| unknown(5, error))?,
            first: row.get(6)?,
            last: row.get(7)?,
            checkpoint: row.get(8)?,
            rate_max: row.get(9)?,
            created_at_ms: row.get(10)?,
            progressed_at_ms: row.get(11)?,
            ran_ms: row.get(12)?,
            error: decode::text(row, 13)?,
            worker: decode::text(row, 14)?,
            worker_until_ms: row.get(15)?,
            left_out: decode::count(row, 16)?,
            batch_max: row.get(17)?,
            target_latency: decode::optional_duration(row, 18)?,
        })
    }

    fn set(&self, connection: &Connection, state: BackfillState, error: Option<&str>) -> Attempt<()> {
        connection.prepare_cached(sql!(tracking.backfill_set_state))?.execute(params![
            self.subscription_id,
            state.as_str(),
            error
        ])?;
        Ok(())
    }

    /// How long this worker has been running it since the last batch; `None` if it takes over only now.
    fn ran_since_ms(&self, worker: &Owner, now_ms: i64) -> Option<i64> {
        let mine = self.worker.as_deref() == Some(worker.as_str());
        let continuing = mine && self.worker_until_ms.is_some_and(|until_ms| until_ms > now_ms);
        self.progressed_at_ms.filter(|_| continuing).map(|at_ms| (now_ms - at_ms).max(0))
    }

    fn shown(&self, connection: &Connection) -> Attempt<Shown> {
        if self.tracking == Tracking::ReferenceCounting {
            return Ok(Shown { state: self.state, checkpoint: self.checkpoint });
        }
        let floor = SubscriptionProgress::one(connection, self.subscription_id)?.1.floor;
        let state = match self.state {
            open if open.is_open() && floor >= self.last => BackfillState::Completed,
            open if open.is_open() => BackfillState::InProgress,
            ended => ended,
        };
        Ok(Shown { state, checkpoint: floor.min(self.last).max(self.first - 1) })
    }

    fn show(&self, connection: &Connection, now_ms: i64) -> Attempt<Backfill> {
        let Shown { state, checkpoint } = self.shown(connection)?;
        let time = |at_ms: i64| {
            Timestamp::from_millisecond(at_ms)
                .map_err(|_| Error::new(ErrorKind::Database, format!("a backfill has time {at_ms}")))
        };
        let offsets = |until: i64| u64::try_from(until - self.first + 1).unwrap_or_default();
        let processed = offsets(checkpoint);
        let ran_ms = match self.tracking {
            Tracking::ReferenceCounting => self.ran_ms,
            Tracking::OffsetWatermark if state.is_open() => now_ms - self.created_at_ms,
            Tracking::OffsetWatermark => 0,
        };
        #[expect(clippy::cast_precision_loss, reason = "a rate for people")]
        let rate = if ran_ms > 0 { processed as f64 * 1_000.0 / ran_ms as f64 } else { 0.0 };
        Ok(Backfill {
            topic: TopicName::new(self.topic_name.clone())?,
            group: GroupName::new(self.group.clone())?,
            state,
            first: Offset(self.first),
            last: Offset(self.last),
            checkpoint: Offset(checkpoint),
            processed,
            total: offsets(self.last),
            created_at: time(self.created_at_ms)?,
            progressed_at: self.progressed_at_ms.map(time).transpose()?,
            rate,
            rate_max: self.rate_max,
            batch_max: self.batch_max,
            target_latency: self.target_latency,
            error: self.error.clone(),
            left_out: self.left_out,
        })
    }
}

/// The subscription of a group; not found if it is cancelled.
fn find(connection: &Connection, name: &TopicName, group: &GroupName) -> Attempt<i32> {
    let (_, found) = group::get(connection, name, group)?;
    if found.state == SubscriptionState::Cancelled {
        return Err(Error::no_such_subscription(name.as_str(), group.as_str()).into());
    }
    Ok(found.subscription_id)
}

fn refused(name: &TopicName, group: &GroupName, state: &str, act: &str, needs: &str) -> Fault {
    let text = format!(
        "invalid transition: the backfill of topic {name}, group {group} is {state}; {act} needs {needs}; nothing was changed"
    );
    Error::new(ErrorKind::InvalidTransition, text).into()
}

/// A dead or cancelled group handles nothing, so there is nothing to fill.
fn check_counts(progress: &SubscriptionProgress, name: &TopicName) -> Attempt<()> {
    if matches!(progress.state, SubscriptionState::Active | SubscriptionState::Paused) {
        return Ok(());
    }
    let text = format!(
        "invalid transition: topic {name}, group {} is {}; a backfill needs active or paused; nothing was changed",
        progress.group, progress.state
    );
    Err(Error::new(ErrorKind::InvalidTransition, text).into())
}
