//! The audit: who changed what, and what was denied.

use axum::Json;
use axum::extract::State;
use headwater::jiff::Timestamp;
use headwater::store::AuditEntry;
use serde::{Deserialize, Serialize};
use serde_json::Value;
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

/// An audit entry.
#[derive(Debug, Serialize, ToSchema)]
#[schema(example = json!({
    "id": 12, "at": "2026-03-02T09:00:00Z", "actor": "token ann", "act": "pause", "topic": "orders", "group": "email",
    "detail": {"from": "active", "to": "paused", "leases_lost": 0, "reason": "stock is counted"}
}))]
struct AuditView {
    /// Its number: later entries have higher ones.
    id: i64,
    /// When, by the database's clock.
    at: Timestamp,
    /// Who: `token` and its name, `anonymous`, or what another program calls itself.
    actor: String,
    /// What.
    act: String,
    topic: Option<String>,
    group: Option<String>,
    /// The particulars.
    detail: Value,
}

impl From<AuditEntry> for AuditView {
    fn from(entry: AuditEntry) -> Self {
        AuditView {
            id: entry.audit_id,
            at: entry.at,
            actor: entry.actor,
            act: entry.act,
            topic: entry.topic,
            group: entry.group,
            detail: serde_json::from_str(&entry.detail).unwrap_or(Value::String(entry.detail)),
        }
    }
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct AuditQuery {
    /// Items at most; 100 by default.
    #[param(minimum = 1, maximum = 1000, example = 100)]
    limit: Option<u32>,
    /// The `next_cursor` of the page before.
    cursor: Option<String>,
}

/// Lists audit entries, newest first.
#[utoipa::path(
    get,
    path = "/v1/audit",
    tag = "operations",
    params(AuditQuery),
    responses((status = 200, description = "Audit entries", body = Page<AuditView>), Problems),
)]
async fn list(
    State(app): State<App>,
    caller: Caller,
    QueryOf(query): QueryOf<AuditQuery>,
) -> Result<Json<Page<AuditView>>, Problem> {
    caller.may(Scope::Admin, None)?;
    let limit = page::limit(query.limit)?;
    let before: Option<i64> = page::decode(query.cursor.as_deref())?;
    let found = app.headwater.audit_before(before.unwrap_or(i64::MAX), limit + 1).await?;
    Ok(Json(Page::of(found, limit, |entry| entry.audit_id, AuditView::from)))
}
