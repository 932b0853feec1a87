//! Cron jobs: what each does, its last and its next tick.

use axum::Json;
use axum::extract::State;
use headwater::jiff::Timestamp;
use headwater::store::CronStatus;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::body::QueryOf;
use super::page::{self, Page};
use crate::app::App;
use crate::auth::{Caller, Scope};
use crate::problem::{Problem, Problems};

/// The routes.
pub(crate) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(list))
}

/// A cron job, whichever processes run it.
#[derive(Debug, Serialize, ToSchema)]
#[schema(example = json!({
    "job": "nightly-report", "expression": "0 2 * * *", "time_zone": "Europe/Berlin", "topic": "reports", "started_at": "2026-03-01T08:00:00Z",
    "last_tick": "2026-03-02T01:00:00Z", "next_tick": "2026-03-03T01:00:00Z"
}))]
struct CronView {
    job: String,
    /// Null if no process described the job.
    expression: Option<String>,
    time_zone: Option<String>,
    /// The topic that ticks are published to.
    topic: Option<String>,
    /// When a process last started it.
    started_at: Option<Timestamp>,
    /// The last tick that was fired, or the time from which ticks count.
    last_tick: Timestamp,
    /// Null if there is none, or the expression is not known.
    next_tick: Option<Timestamp>,
}

impl From<CronStatus> for CronView {
    fn from(status: CronStatus) -> Self {
        let next_tick = status.next_tick(status.last_tick);
        let described = status.description;
        let topic = described.as_ref().map(|described| described.topic.as_str().to_owned());
        let (expression, time_zone) =
            described.map(|described| (described.expression, described.time_zone)).unzip();
        CronView {
            job: status.job,
            expression,
            time_zone,
            topic,
            started_at: status.started_at,
            last_tick: status.last_tick,
            next_tick,
        }
    }
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct CronQuery {
    /// Items at most; 100 by default.
    #[param(minimum = 1, maximum = 1000, example = 100)]
    limit: Option<u32>,
    /// The `next_cursor` of the page before.
    cursor: Option<String>,
}

/// Lists the cron jobs that were ever started on this store, by name.
///
/// A token for some topics sees the jobs that publish to these.
#[utoipa::path(
    get,
    path = "/v1/cron",
    tag = "scheduled",
    params(CronQuery),
    responses((status = 200, description = "Cron jobs", body = Page<CronView>), Problems),
)]
async fn list(
    State(app): State<App>,
    caller: Caller,
    QueryOf(query): QueryOf<CronQuery>,
) -> Result<Json<Page<CronView>>, Problem> {
    caller.has(Scope::Read)?;
    let mut jobs = app.headwater.cron_jobs().await?;
    jobs.retain(|job| {
        let topic = job.description.as_ref().map(|described| described.topic.as_str());
        caller.can(Scope::Read, topic)
    });
    let (limit, cursor) = (page::limit(query.limit)?, query.cursor.as_deref());
    Page::of_whole(jobs, limit, cursor, |job| job.job.clone(), CronView::from).map(Json)
}
