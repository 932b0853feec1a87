//! The doctor: what is wrong with the store, and what needs an operator although it is sound.

use axum::Json;
use axum::extract::State;
use headwater::store::Finding;
use serde::Serialize;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::app::App;
use crate::auth::{Caller, Scope};
use crate::problem::{Problem, Problems};

/// The routes.
pub(crate) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(doctor))
}

/// What a check found.
#[derive(Debug, Serialize, ToSchema)]
#[schema(example = json!({
    "check": "group_unserved", "problem": "group email on topic orders has 12 messages to handle, and no process serves it",
    "remedy": "start a consumer of the group"
}))]
struct FindingView {
    /// Which check found it.
    check: &'static str,
    /// What is wrong.
    problem: String,
    /// What to do.
    remedy: String,
}

impl From<Finding> for FindingView {
    fn from(finding: Finding) -> Self {
        FindingView { check: finding.check, problem: finding.problem, remedy: finding.remedy }
    }
}

/// What the doctor found.
#[derive(Debug, Serialize, ToSchema)]
#[schema(example = json!({"sound": true, "errors": [], "attention": [], "warnings": []}))]
struct Diagnosis {
    /// Whether the store has no error.
    sound: bool,
    /// Broken invariants of what is stored.
    errors: Vec<FindingView>,
    /// What an operator should act on although the store is sound.
    attention: Vec<FindingView>,
    /// Settings of the database that weaken durability.
    warnings: Vec<FindingView>,
}

/// Checks the invariants of everything stored, and finds what needs an operator.
///
/// It reads much: call it now and then, not every second.
#[utoipa::path(
    get,
    path = "/v1/doctor",
    tag = "operations",
    responses((status = 200, description = "What was found", body = Diagnosis), Problems),
)]
async fn doctor(State(app): State<App>, caller: Caller) -> Result<Json<Diagnosis>, Problem> {
    caller.may(Scope::Read, None)?;
    let shown = |findings: Vec<Finding>| findings.into_iter().map(FindingView::from).collect::<Vec<_>>();
    let errors = shown(app.headwater.doctor().await?);
    let attention = shown(app.headwater.attention().await?);
    let warnings = shown(app.headwater.durability().await?);
    Ok(Json(Diagnosis { sound: errors.is_empty(), errors, attention, warnings }))
}
