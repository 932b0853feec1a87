//! Maintenance: the history of its jobs, and a run by hand.

use axum::Json;
use axum::extract::State;
use headwater::jiff::Timestamp;
use headwater::maintenance::Job;
use headwater::store::{JobRun, JobStatus};
use serde::{Deserialize, Serialize};
use serde_json::json;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::body::OptionalBody;
use super::page::Page;
use crate::app::App;
use crate::auth::{Caller, Scope};
use crate::problem::{Problem, Problems};

/// The routes.
pub(crate) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(status)).routes(routes!(run))
}

/// A maintenance job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
enum JobName {
    /// Advances heads, hands out late messages, moves scheduled messages that are due into the log.
    Heads,
    /// Detects dead groups.
    DeadDetection,
    /// Maintains completion records.
    Tracking,
    /// Removes messages that retention allows to be removed.
    MessageCleanup,
    /// Creates partitions ahead, and drops old ones.
    Partitions,
    /// Removes groups, ended processes and dedup keys after their retention.
    SubscriptionCleanup,
    /// Removes inbox entries and published entries of the outbox after their retention.
    EntryCleanup,
    /// Runs backfills.
    Backfill,
    /// Exports metrics of all groups and topics.
    Survey,
}

impl From<JobName> for Job {
    fn from(name: JobName) -> Self {
        match name {
            JobName::Heads => Job::Heads,
            JobName::DeadDetection => Job::DeadDetection,
            JobName::Tracking => Job::Tracking,
            JobName::MessageCleanup => Job::MessageCleanup,
            JobName::Partitions => Job::Partitions,
            JobName::SubscriptionCleanup => Job::SubscriptionCleanup,
            JobName::EntryCleanup => Job::EntryCleanup,
            JobName::Backfill => Job::Backfill,
            JobName::Survey => Job::Survey,
        }
    }
}

impl From<Job> for JobName {
    fn from(job: Job) -> Self {
        match job {
            Job::Heads => JobName::Heads,
            Job::DeadDetection => JobName::DeadDetection,
            Job::Tracking => JobName::Tracking,
            Job::MessageCleanup => JobName::MessageCleanup,
            Job::Partitions => JobName::Partitions,
            Job::SubscriptionCleanup => JobName::SubscriptionCleanup,
            Job::EntryCleanup => JobName::EntryCleanup,
            Job::Backfill => JobName::Backfill,
            Job::Survey => JobName::Survey,
        }
    }
}

/// The history of a job, over all processes.
#[derive(Debug, Serialize, ToSchema)]
#[schema(example = json!({
    "job": "heads", "runs": 1200, "failures": 0, "rows": 15, "backlog": 0, "last_run_at": "2026-03-02T09:00:00Z", "last_duration_ms": 0.8, "last_error": null
}))]
struct JobView {
    job: JobName,
    /// Runs that were recorded; of frequent jobs not every run is.
    runs: u64,
    failures: u64,
    /// Rows removed, added or changed in total.
    rows: u64,
    /// Rows left when it last ran.
    backlog: u64,
    last_run_at: Timestamp,
    last_duration_ms: f64,
    /// Why it last failed, until it succeeds again.
    last_error: Option<String>,
}

impl From<JobStatus> for JobView {
    fn from(status: JobStatus) -> Self {
        JobView {
            job: status.job.into(),
            runs: status.runs,
            failures: status.failures,
            rows: status.rows,
            backlog: status.backlog,
            last_run_at: status.last_run_at,
            last_duration_ms: status.last_duration.as_secs_f64() * 1e3,
            last_error: status.last_error,
        }
    }
}

/// Shows the history of each maintenance job. Jobs that never ran are left out.
#[utoipa::path(
    get,
    path = "/v1/maintenance",
    tag = "operations",
    responses((status = 200, description = "Jobs", body = Page<JobView>), Problems),
)]
async fn status(State(app): State<App>, caller: Caller) -> Result<Json<Page<JobView>>, Problem> {
    caller.may(Scope::Read, None)?;
    let jobs = app.headwater.maintenance().status().await?;
    Ok(Json(Page { items: jobs.into_iter().map(JobView::from).collect(), next_cursor: None }))
}

/// Which jobs are run.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
#[schema(example = json!({"jobs": ["heads", "message_cleanup"]}))]
struct Run {
    /// These; all of them if this is missing.
    #[schema(min_items = 1)]
    jobs: Option<Vec<JobName>>,
}

/// Runs of jobs.
#[derive(Debug, Serialize, ToSchema)]
#[schema(example = json!({"runs": [{"job": "heads", "rows": 0, "backlog": 0, "duration_ms": 0.8, "error": null}]}))]
struct Runs {
    runs: Vec<RunView>,
}

/// A run of a job.
#[derive(Debug, Serialize, ToSchema)]
struct RunView {
    job: JobName,
    /// Rows removed, added or changed.
    rows: u64,
    /// Rows left for the next run.
    backlog: u64,
    duration_ms: f64,
    /// Why it failed, if it did.
    error: Option<String>,
}

impl From<JobRun> for RunView {
    fn from(run: JobRun) -> Self {
        RunView {
            job: run.job.into(),
            rows: run.rows,
            backlog: run.backlog,
            duration_ms: run.duration.as_secs_f64() * 1e3,
            error: run.error,
        }
    }
}

/// Runs maintenance jobs once, each until it has nothing left to do, beside the process that is elected to run them.
///
/// A job that fails does not stop the others; its run has the error.
#[utoipa::path(
    post,
    path = "/v1/maintenance/run",
    tag = "operations",
    request_body = Option<Run>,
    responses((status = 200, description = "Ran", body = Runs), Problems),
)]
async fn run(
    State(app): State<App>,
    caller: Caller,
    OptionalBody(run): OptionalBody<Run>,
) -> Result<Json<Runs>, Problem> {
    caller.may(Scope::Admin, None)?;
    let mut jobs: Vec<Job> =
        run.jobs.map_or(Job::ALL.to_vec(), |names| names.into_iter().map(Job::from).collect());
    // Each once, in the order of a round.
    jobs.sort_by_key(|job| Job::ALL.iter().position(|one| one == job));
    jobs.dedup();
    if jobs.is_empty() {
        return Err(Problem::invalid("jobs", "is empty; name a job, or leave it out for all"));
    }
    let headwater = app.acting(&caller);
    let names: Vec<&str> = jobs.iter().map(|job| job.as_str()).collect();
    headwater.note_act("run_maintenance", None, None, &json!({ "jobs": names })).await?;
    let runs = headwater.maintenance().run_once(&jobs).await?;
    Ok(Json(Runs { runs: runs.into_iter().map(RunView::from).collect() }))
}
