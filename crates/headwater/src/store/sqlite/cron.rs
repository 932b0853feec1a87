//! Cron: a tick of a cron job fires once, in whichever process is first.

use jiff::Timestamp;
use rusqlite::{Connection, params};

use super::decode;
use super::fault::Attempt;
use super::publish::{self, Prepared};
use super::work::Work;
use crate::limits::TICK_AHEAD_MAX;
use crate::message::{NewMessage, Published};
use crate::name::TopicName;
use crate::store::{CronDescription, CronStatus};

/// The last tick fired of a job; on first use the job begins at `first`.
pub(super) fn last(work: &mut Work<'_>, job: &str, first: Timestamp) -> Attempt<Timestamp> {
    let mut statement = work.connection.prepare_cached(super::sql!(cron.last))?;
    Ok(statement.query_row(params![job, first.as_millisecond()], |row| super::decode::timestamp(row, 0))?)
}

/// Stores what a job does.
pub(super) fn describe(work: &mut Work<'_>, job: &CronDescription) -> Attempt<()> {
    let CronDescription { job, expression, time_zone, topic } = job;
    let parameters = params![job, expression, time_zone, topic.as_str(), work.now_ms()];
    work.connection.prepare_cached(super::sql!(cron.describe))?.execute(parameters)?;
    Ok(())
}

/// All jobs, by name.
pub(super) fn list(connection: &Connection) -> Attempt<Vec<CronStatus>> {
    let mut statement = connection.prepare_cached(super::sql!(cron.list))?;
    Ok(decode::all(&mut statement, [], |row| {
        let job: String = row.get(0)?;
        let described: (Option<String>, Option<String>, Option<String>) =
            (row.get(1)?, row.get(2)?, row.get(3)?);
        let description = match described {
            (Some(expression), Some(time_zone), Some(_)) => {
                let topic = decode::parsed(row, 3, |name| TopicName::new(name))?;
                Some(CronDescription { job: job.clone(), expression, time_zone, topic })
            }
            _ => None,
        };
        let started_at = decode::optional_timestamp(row, 4)?;
        Ok(CronStatus { job, description, started_at, last_tick: decode::timestamp(row, 5)? })
    })?)
}

/// Moves the job to a tick and publishes its message; `None` if the tick is not ahead of the job.
///
/// One transaction writes at a time, so of two processes that fire the same tick the second finds the job moved. A
/// publish that is refused also rolls back the move: this runs in a savepoint, or alone.
pub(super) fn fire(
    work: &mut Work<'_>,
    job: &str,
    tick: Timestamp,
    topic: &TopicName,
    auto_create: bool,
    message: &NewMessage,
) -> Attempt<Option<Published>> {
    let soon_ms = work.now_ms().saturating_add(super::millis(TICK_AHEAD_MAX));
    let mut statement = work.connection.prepare_cached(super::sql!(cron.fire))?;
    if statement.execute(params![job, tick.as_millisecond(), soon_ms])? == 0 {
        return Ok(None);
    }
    let messages = std::slice::from_ref(message);
    let published = publish::run(work, topic, auto_create, messages, &Prepared::batch(messages))?;
    Ok(published.into_iter().next())
}
