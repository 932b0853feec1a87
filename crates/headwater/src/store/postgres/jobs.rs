//! Which process runs maintenance, and the results of its jobs: see `schema/functions/maintenance.sql`.

use std::time::Duration;

use tokio_postgres::Row;

use super::PostgresStore;
use super::time::{count, millis, stored};
use crate::error::Result;
use crate::maintenance::{Job, JobRun, JobStatus};
use crate::name::Owner;

pub(super) async fn elect(store: &PostgresStore, worker: &Owner, term: Duration) -> Result<bool> {
    let rows = store
        .connections
        .query_leases(
            "electing a worker",
            &store.statements.maintenance_elect,
            &[&worker.as_str(), &millis(term), &store.clock.injected()],
        )
        .await?;
    stored(&rows[0], "elected")
}

pub(super) async fn resign(store: &PostgresStore, worker: &Owner) -> Result<()> {
    store
        .connections
        .query_leases("resigning", &store.statements.maintenance_resign, &[&worker.as_str()])
        .await
        .map(drop)
}

pub(super) async fn probe(store: &PostgresStore) -> Result<()> {
    store.connections.query("probing", &store.statements.maintenance_probe, &[]).await.map(drop)
}

pub(super) async fn list(store: &PostgresStore) -> Result<Vec<JobStatus>> {
    let rows = store.connections.query("listing jobs", &store.statements.maintenance_jobs, &[]).await?;
    // Jobs that only a later version has are skipped.
    rows.iter().filter_map(|row| status_of(row).transpose()).collect()
}

fn status_of(row: &Row) -> Result<Option<JobStatus>> {
    let name: &str = stored(row, "job")?;
    let Some(job) = Job::ALL.into_iter().find(|job| job.as_str() == name) else { return Ok(None) };
    Ok(Some(JobStatus {
        job,
        runs: count(row, "runs")?,
        failures: count(row, "failures")?,
        rows: count(row, "rows")?,
        backlog: count(row, "backlog")?,
        last_run_at: stored(row, "last_run_at")?,
        last_duration: Duration::from_micros(count(row, "duration_us")?),
        last_error: stored(row, "last_error")?,
    }))
}

/// One statement on one connection, whose plans are made.
pub(super) async fn ran(store: &PostgresStore, runs: &[JobRun]) -> Result<()> {
    let number = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
    let names: Vec<&str> = runs.iter().map(|run| run.job.as_str()).collect();
    let durations_us: Vec<i64> =
        runs.iter().map(|run| i64::try_from(run.duration.as_micros()).unwrap_or(i64::MAX)).collect();
    let rows: Vec<i64> = runs.iter().map(|run| number(run.rows)).collect();
    let backlogs: Vec<i64> = runs.iter().map(|run| number(run.backlog)).collect();
    let errors: Vec<Option<&str>> = runs.iter().map(|run| run.error.as_deref()).collect();
    store
        .connections
        .query(
            &format!("recording runs of the jobs {}", names.join(", ")),
            &store.statements.maintenance_jobs_ran,
            &[&names, &durations_us, &rows, &backlogs, &errors, &store.clock.injected()],
        )
        .await
        .map(drop)
}
