//! Extending leases of claimed messages.

use axum::Json;
use axum::extract::State;
use headwater::consumer::{Claims, Ticket};
use headwater::jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::body::{JsonBody, PathOf};
use super::claim::{in_batch, lease};
use crate::app::App;
use crate::auth::{Caller, Scope};
use crate::problem::{Problem, Problems};

/// The routes.
pub(crate) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(extend))
}

/// Leases to extend.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"receipts": ["AdJxQ6"], "lease_ms": 60000}))]
pub(super) struct ExtendBody {
    /// Of messages whose leases are extended; at least one.
    #[schema(min_items = 1)]
    receipts: Vec<String>,
    /// How long they last from now; the group's lease time by default.
    #[schema(minimum = 1, maximum = 31_622_400_000u64)]
    lease_ms: Option<u64>,
}

/// What became of the receipts, in their order.
#[derive(Debug, Serialize, ToSchema)]
#[schema(example = json!({"results": [{"receipt": "AdJxQ6", "result": "extended", "lease_until": "2026-03-02T09:01:00Z"}]}))]
pub(super) struct ExtendAnswer {
    results: Vec<ExtendResult>,
}

/// What became of a receipt.
#[derive(Debug, Serialize, ToSchema)]
struct ExtendResult {
    receipt: String,
    result: Extending,
    /// When the lease ends, if it was extended.
    #[serde(skip_serializing_if = "Option::is_none")]
    lease_until: Option<Timestamp>,
}

/// Whether a lease was extended.
#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
enum Extending {
    /// To the time given.
    Extended,
    /// Nothing changed: it ended, or its messages are settled.
    Lost,
}

/// Extends the leases of claimed messages.
///
/// Messages that were claimed together share a lease: extending one extends the others.
#[utoipa::path(
    post,
    path = "/v1/topics/{topic}/groups/{group}/extend",
    tag = "consuming",
    params(
        ("topic" = String, Path, description = "The topic", example = "orders"),
        ("group" = String, Path, description = "The group", example = "email"),
    ),
    request_body = ExtendBody,
    responses((status = 200, description = "Extended", body = ExtendAnswer), Problems),
)]
async fn extend(
    State(app): State<App>,
    caller: Caller,
    PathOf((topic, group)): PathOf<(String, String)>,
    JsonBody(body): JsonBody<ExtendBody>,
) -> Result<Json<ExtendAnswer>, Problem> {
    caller.may(Scope::Consume, Some(&topic))?;
    in_batch(&app.limits, "receipts", body.receipts.len())?;
    let claims = app.claims.get(&app, &topic, &group).await?;
    extend_all(&claims, body).await.map(Json)
}

pub(super) async fn extend_all(claims: &Claims, body: ExtendBody) -> Result<ExtendAnswer, Problem> {
    let ticket = |(at, receipt): (usize, &String)| {
        let ticket: Result<Ticket, headwater::Error> = receipt.parse();
        ticket.map_err(|error| Problem::from(error).at(&format!("receipts[{at}]")))
    };
    let tickets: Vec<Ticket> = body.receipts.iter().enumerate().map(ticket).collect::<Result<_, _>>()?;
    let extended = claims.extend(&tickets, lease(body.lease_ms)?).await?;
    let result = |(receipt, lease_until): (String, Option<Timestamp>)| {
        let result = if lease_until.is_some() { Extending::Extended } else { Extending::Lost };
        ExtendResult { receipt, result, lease_until }
    };
    Ok(ExtendAnswer { results: body.receipts.into_iter().zip(extended).map(result).collect() })
}
