//! Publishing: one message, or several at once.

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use headwater::NewMessage;
use headwater::trace::TraceContext;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::body::{JsonBody, PathOf, objects};
use super::message::{MessageBody, PublishedMessage};
use crate::app::App;
use crate::auth::{Caller, Scope};
use crate::problem::{Problem, Problems};

/// The routes.
pub(crate) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(publish)).routes(routes!(publish_batch))
}

/// Several messages to publish.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"messages": [{"payload": {"id": 7}}, {"payload": {"id": 8}, "key": "customer-1"}]}))]
struct BatchBody {
    /// At least one.
    #[serde(deserialize_with = "objects")]
    #[schema(min_items = 1)]
    messages: Vec<MessageBody>,
}

/// What became of them, in their order.
#[derive(Debug, Serialize, ToSchema)]
#[schema(example = json!({"published": [{"offset": 17, "id": "0199d8a0-5a3c-7c4e-9b0a-2f6d1c3b4a59", "duplicate": false}]}))]
struct BatchAnswer {
    published: Vec<PublishedMessage>,
}

/// Publishes a message.
///
/// It is durable when this returns. A dedup key, or the header `Idempotency-Key` without one, makes it safe to repeat the request: within the topic's window the
/// message is stored once. The header `traceparent` is stored with it.
#[utoipa::path(
    post,
    path = "/v1/topics/{topic}/messages",
    tag = "publishing",
    params(
        ("topic" = String, Path, description = "The topic", example = "orders"),
        ("Idempotency-Key" = Option<String>, Header, description = "The dedup key of the message, if it has none", example = "payment-9"),
        ("traceparent" = Option<String>, Header, description = "The trace context of the message (W3C)", example = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
    ),
    request_body = MessageBody,
    responses((status = 201, description = "Published", body = PublishedMessage), Problems),
)]
async fn publish(
    State(app): State<App>,
    caller: Caller,
    PathOf(topic): PathOf<String>,
    headers: HeaderMap,
    JsonBody(body): JsonBody<MessageBody>,
) -> Result<(StatusCode, Json<PublishedMessage>), Problem> {
    caller.may(Scope::Publish, Some(&topic))?;
    let message = body.message(idempotency_key(&headers)?.map(str::to_owned), trace(&headers).as_ref())?;
    let producer = app.producers.get(&app, &caller, &topic).await?;
    let published = producer.send(message).await?;
    Ok((StatusCode::CREATED, Json(published.into())))
}

/// Publishes messages, all of them or none.
///
/// With the header `Idempotency-Key`, the dedup key of each message without one is that key, a slash and the message's place from 0.
#[utoipa::path(
    post,
    path = "/v1/topics/{topic}/batches",
    tag = "publishing",
    params(
        ("topic" = String, Path, description = "The topic", example = "orders"),
        ("Idempotency-Key" = Option<String>, Header, description = "The prefix of the dedup keys of messages that have none", example = "import-3"),
        ("traceparent" = Option<String>, Header, description = "The trace context of the messages (W3C)", example = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
    ),
    request_body = BatchBody,
    responses((status = 201, description = "Published", body = BatchAnswer), Problems),
)]
async fn publish_batch(
    State(app): State<App>,
    caller: Caller,
    PathOf(topic): PathOf<String>,
    headers: HeaderMap,
    JsonBody(body): JsonBody<BatchBody>,
) -> Result<(StatusCode, Json<BatchAnswer>), Problem> {
    caller.may(Scope::Publish, Some(&topic))?;
    let (count, count_max) = (body.messages.len(), app.limits.batch_max);
    if count == 0 || count > count_max {
        return Err(Problem::invalid(
            "messages",
            format!("{count} messages, from 1 to {count_max} are allowed"),
        ));
    }
    let (key, trace) = (idempotency_key(&headers)?, trace(&headers));
    let message = |(at, body): (usize, MessageBody)| {
        let message = body.message(key.map(|key| format!("{key}/{at}")), trace.as_ref());
        message.map_err(|problem| problem.inside(&format!("messages[{at}]")))
    };
    let messages: Vec<NewMessage> =
        body.messages.into_iter().enumerate().map(message).collect::<Result<_, _>>()?;
    let producer = app.producers.get(&app, &caller, &topic).await?;
    let published = producer.send_batch(&messages).await?;
    let published = published.into_iter().map(PublishedMessage::from).collect();
    Ok((StatusCode::CREATED, Json(BatchAnswer { published })))
}

/// The header `Idempotency-Key`.
fn idempotency_key(headers: &HeaderMap) -> Result<Option<&str>, Problem> {
    let Some(value) = headers.get("idempotency-key") else { return Ok(None) };
    match value.to_str() {
        Ok(key) if !key.is_empty() => Ok(Some(key)),
        _ => Err(Problem::invalid("Idempotency-Key", "must be visible ASCII characters, at least one")),
    }
}

/// The trace context of a request; one that cannot be read is left out, as the standard says.
fn trace(headers: &HeaderMap) -> Option<TraceContext> {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let context: TraceContext = text("traceparent")?.parse().ok()?;
    Some(match text("tracestate") {
        Some(state) => context.with_state(state),
        None => context,
    })
}
