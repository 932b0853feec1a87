//! Which process runs maintenance, and the results of its jobs.

use std::time::Duration;

use rusqlite::{Connection, OptionalExtension, params};

use super::fault::Attempt;
use super::work::Work;
use super::{decode, millis};
use crate::maintenance::{Job, JobRun, JobStatus};
use crate::name::Owner;

/// Elects or confirms a worker for a term; true if it is this one.
pub(super) fn elect(work: &mut Work<'_>, worker: &Owner, term: Duration) -> Attempt<bool> {
    let now_ms = work.now_ms();
    let until_ms = now_ms.saturating_add(millis(term));
    let mut statement = work.connection.prepare_cached(super::sql!(maintenance.elect))?;
    Ok(statement.execute(params![worker.as_str(), until_ms, now_ms])? == 1)
}

/// Ends a worker's term early.
pub(super) fn resign(work: &mut Work<'_>, worker: &Owner) -> Attempt<()> {
    work.connection.prepare_cached(super::sql!(maintenance.resign))?.execute([worker.as_str()])?;
    Ok(())
}

/// Records a run. The detector stores the time of its last check itself: a failed run of it has not checked.
pub(super) fn ran(work: &mut Work<'_>, run: &JobRun) -> Attempt<()> {
    let whole = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
    work.connection.prepare_cached(super::sql!(maintenance.job_ran))?.execute(params![
        run.job.as_str(),
        whole(run.rows),
        whole(run.backlog),
        work.now_ms(),
        i64::try_from(run.duration.as_micros()).unwrap_or(i64::MAX),
        run.error,
        run.job == Job::DeadDetection
    ])?;
    Ok(())
}

/// The results of each job, in the order of a round; jobs that never ran are left out.
pub(super) fn list(connection: &Connection) -> Attempt<Vec<JobStatus>> {
    let mut statement = connection.prepare_cached(super::sql!(maintenance.job))?;
    let mut jobs = Vec::new();
    for job in Job::ALL {
        let status = statement.query_row([job.as_str()], |row| {
            let count =
                |at: usize| Ok::<u64, rusqlite::Error>(row.get::<_, i64>(at)?.try_into().unwrap_or(0));
            Ok(JobStatus {
                job,
                runs: count(0)?,
                failures: count(1)?,
                rows: count(2)?,
                backlog: count(3)?,
                last_run_at: decode::timestamp(row, 4)?,
                last_duration: Duration::from_micros(count(5)?),
                last_error: decode::text(row, 6)?,
            })
        });
        jobs.extend(status.optional()?);
    }
    Ok(jobs)
}
