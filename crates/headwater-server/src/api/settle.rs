//! Settling: what became of claimed messages.

use std::time::Duration;

use axum::Json;
use axum::extract::State;
use headwater::consumer::{Claims, Settled, Ticket};
use headwater::settle::Verdict;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::body::{JsonBody, PathOf, objects};
use super::claim::in_batch;
use crate::app::App;
use crate::auth::{Caller, Scope};
use crate::problem::{Problem, Problems};

/// The routes.
pub(crate) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(settle))
}

/// Messages to settle.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"settlements": [{"receipt": "AdJxQ6", "outcome": "ack"}, {"receipt": "AdJxQ7", "outcome": "retry", "delay_ms": 5000, "reason": "no stock"}]}))]
struct SettleBody {
    /// At least one.
    #[serde(deserialize_with = "objects")]
    #[schema(min_items = 1)]
    settlements: Vec<Settlement>,
}

/// How one message is settled.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Settlement {
    /// As the claim returned it.
    receipt: String,
    outcome: Outcome,
    /// Of a retry: when the message is handed out again; by the group's back-off if missing.
    #[schema(minimum = 0, maximum = 31_622_400_000u64)]
    delay_ms: Option<u64>,
    /// Of a retry or a burial: why, for people.
    reason: Option<String>,
}

/// What becomes of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
enum Outcome {
    /// It is done.
    Ack,
    /// It failed and is handed out again later; at its last attempt it becomes a dead letter.
    Retry,
    /// It cannot be handled and becomes a dead letter.
    Bury,
    /// It was not handled: handed out again at once, and no attempt is counted.
    Release,
}

/// What became of the receipts, in their order.
#[derive(Debug, Serialize, ToSchema)]
#[schema(example = json!({"results": [{"receipt": "AdJxQ6", "result": "settled"}, {"receipt": "AdJxQ7", "result": "lost"}]}))]
pub(super) struct SettleAnswer {
    results: Vec<SettleResult>,
}

/// What became of a receipt.
#[derive(Debug, Serialize, ToSchema)]
struct SettleResult {
    receipt: String,
    result: Settling,
}

/// Whether a message was settled.
#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
enum Settling {
    /// As asked for.
    Settled,
    /// Nothing changed: its lease ended, it was settled before, or it waits behind an older message of its key that is handed out again.
    Lost,
}

/// Settles claimed messages by their receipts.
///
/// Each independently: a receipt that is lost affects no other. Repeating the request is safe. In a group that is ordered by key, a message that is retried or
/// released takes the later ones of its key along that were claimed with it: their receipts are lost, and they are handed out after it.
#[utoipa::path(
    post,
    path = "/v1/topics/{topic}/groups/{group}/settle",
    tag = "consuming",
    params(
        ("topic" = String, Path, description = "The topic", example = "orders"),
        ("group" = String, Path, description = "The group", example = "email"),
    ),
    request_body = SettleBody,
    responses((status = 200, description = "Settled", body = SettleAnswer), Problems),
)]
async fn settle(
    State(app): State<App>,
    caller: Caller,
    PathOf((topic, group)): PathOf<(String, String)>,
    JsonBody(body): JsonBody<SettleBody>,
) -> Result<Json<SettleAnswer>, Problem> {
    caller.may(Scope::Consume, Some(&topic))?;
    in_batch(&app.limits, "settlements", body.settlements.len())?;
    let claims = app.claims.get(&app, &topic, &group).await?;
    settle_all(&app, &claims, body.settlements).await.map(Json)
}

/// Settles, and gives streams their credit back.
pub(super) async fn settle_all(
    app: &App,
    claims: &Claims,
    settlements: Vec<Settlement>,
) -> Result<SettleAnswer, Problem> {
    let mut verdicts: Vec<(Ticket, Verdict)> = Vec::with_capacity(settlements.len());
    let mut receipts = Vec::with_capacity(settlements.len());
    for (at, settlement) in settlements.into_iter().enumerate() {
        let ticket = settlement
            .receipt
            .parse()
            .map_err(|error| Problem::from(error).at(&format!("settlements[{at}].receipt")))?;
        let (receipt, verdict) =
            settlement.verdict().map_err(|problem| problem.inside(&format!("settlements[{at}]")))?;
        verdicts.push((ticket, verdict));
        receipts.push(receipt);
    }
    let settled = claims.settle(&verdicts).await?;
    app.streams.settled(verdicts.iter().map(|(ticket, _)| ticket));
    let result = |(receipt, settled)| {
        let result = if settled == Settled::Settled { Settling::Settled } else { Settling::Lost };
        SettleResult { receipt, result }
    };
    Ok(SettleAnswer { results: receipts.into_iter().zip(settled).map(result).collect() })
}

impl Settlement {
    /// The receipt, and the verdict on its message.
    fn verdict(self) -> Result<(String, Verdict), Problem> {
        let Settlement { receipt, outcome, delay_ms, reason } = self;
        if delay_ms.is_some() && outcome != Outcome::Retry {
            return Err(Problem::invalid("delay_ms", "only a retry is delayed"));
        }
        if reason.is_some() && !matches!(outcome, Outcome::Retry | Outcome::Bury) {
            return Err(Problem::invalid("reason", "only a retry and a burial have one"));
        }
        let verdict = match outcome {
            Outcome::Ack => Verdict::Done,
            Outcome::Release => Verdict::Release,
            Outcome::Bury => Verdict::Bury(reason.unwrap_or_else(|| "buried without a reason".into())),
            Outcome::Retry => {
                let reason = reason.unwrap_or_else(|| "retried without a reason".into());
                match delay_ms {
                    Some(delay_ms) => Verdict::RetryAfter(Duration::from_millis(delay_ms), reason),
                    None => Verdict::Failed(reason),
                }
            }
        };
        Ok((receipt, verdict))
    }
}
