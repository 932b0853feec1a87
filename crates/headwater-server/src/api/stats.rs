//! Figures of everything at a glance.

use axum::Json;
use axum::extract::State;
use headwater::SubscriptionState;
use headwater::jiff::Timestamp;
use serde::Serialize;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::app::App;
use crate::auth::{Caller, Scope};
use crate::problem::{Problem, Problems};

/// The routes.
pub(crate) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(stats))
}

/// Sums over all topics and groups.
#[derive(Debug, Serialize, ToSchema)]
#[schema(example = json!({
    "at": "2026-03-02T09:00:00Z", "version": "0.1.0", "started_at": "2026-03-02T08:00:00Z", "store": "orders on db1", "production": false, "topics": 3,
    "groups": {"active": 4, "paused": 1, "dead": 0}, "unhealthy_groups": 0, "published_per_s": 120.5, "handled_per_s": 118.0, "lag": 12, "in_flight": 3,
    "retrying": 0, "dead_letters": 1, "scheduled": 2, "attention": 0
}))]
struct Stats {
    /// When the figures were read, by the database's clock; at most a few seconds ago.
    at: Timestamp,
    /// The version of the server.
    version: &'static str,
    /// When this server was started.
    started_at: Timestamp,
    /// What the server calls its store.
    store: String,
    /// Whether the store is marked as production.
    production: bool,
    topics: usize,
    groups: GroupCounts,
    /// Groups with a health issue.
    unhealthy_groups: usize,
    /// Messages published per second, recently.
    published_per_s: f64,
    /// Messages done per second, recently.
    handled_per_s: f64,
    /// Messages that groups have not done.
    lag: u64,
    /// Messages in leases.
    in_flight: u64,
    /// Messages that wait for a retry.
    retrying: u64,
    /// Dead letters of groups.
    dead_letters: u64,
    /// Scheduled messages that are not due.
    scheduled: u64,
    /// Findings that need an operator; see `/v1/doctor`.
    attention: usize,
}

/// Groups by state, without cancelled ones.
#[derive(Debug, Serialize, ToSchema)]
struct GroupCounts {
    active: usize,
    paused: usize,
    dead: usize,
}

/// Shows sums over all topics and groups.
#[utoipa::path(
    get,
    path = "/v1/stats",
    tag = "operations",
    responses((status = 200, description = "Sums", body = Stats), Problems),
)]
async fn stats(State(app): State<App>, caller: Caller) -> Result<Json<Stats>, Problem> {
    caller.may(Scope::Read, None)?;
    let snapshot = app.sampler.snapshot().await?;
    let in_state = |state| snapshot.groups.iter().filter(|group| group.status.state == state).count();
    let totals = &snapshot.totals;
    Ok(Json(Stats {
        at: snapshot.at,
        version: env!("CARGO_PKG_VERSION"),
        started_at: app.started_at,
        store: app.label.name.clone(),
        production: app.label.production,
        topics: snapshot.topics.len(),
        groups: GroupCounts {
            active: in_state(SubscriptionState::Active),
            paused: in_state(SubscriptionState::Paused),
            dead: in_state(SubscriptionState::Dead),
        },
        unhealthy_groups: totals.unhealthy,
        published_per_s: totals.published_per_s,
        handled_per_s: totals.handled_per_s,
        lag: totals.lag,
        in_flight: totals.in_flight,
        retrying: totals.retrying,
        dead_letters: totals.dead_letters,
        scheduled: totals.scheduled,
        attention: snapshot.findings.len(),
    }))
}
