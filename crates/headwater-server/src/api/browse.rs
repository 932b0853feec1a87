//! Browsing: reading messages without consuming them.

use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use headwater::{Headwater, Message, Offset, Start};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;
use uuid::Uuid;

use super::body::{PathOf, QueryOf};
use super::message::StoredMessage;
use crate::app::App;
use crate::auth::{Caller, Scope};
use crate::problem::{Problem, Problems};

/// Messages of a page at most, and by default.
const LIMIT_MAX: usize = 1_000;
const LIMIT_DEFAULT: usize = 100;
/// Messages that a request with a filter examines at most; the next page continues.
const EXAMINED_MAX: usize = 20_000;
/// Bytes of messages of a page at most, except for a single larger one.
const PAGE_BYTES_MAX: usize = 8 * 1024 * 1024;

/// The routes.
pub(crate) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(browse)).routes(routes!(show))
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct BrowseQuery {
    /// Where to begin: an offset, a time, `start` (the default) or `last:N`.
    #[param(example = "last:100")]
    from: Option<String>,
    /// Only messages with this key.
    key: Option<String>,
    /// Only the message with this id.
    id: Option<Uuid>,
    /// Messages at most; 100 by default.
    #[param(minimum = 1, maximum = 1000, example = 100)]
    limit: Option<usize>,
    /// Where the page before ended.
    cursor: Option<String>,
}

/// Messages of a topic.
#[derive(Debug, Serialize, ToSchema)]
#[schema(example = json!({"items": [{
    "offset": 17, "id": "0199d8a0-5a3c-7c4e-9b0a-2f6d1c3b4a59", "key": "customer-1", "type": "order", "payload": {"id": 7},
    "content_type": "application/json", "headers": {}, "correlation_id": null, "published_at": "2026-03-02T09:00:00Z"
}], "next_cursor": "18"}))]
struct MessagePage<'a> {
    /// Offsets rise.
    items: Vec<StoredMessage<'a>>,
    /// For the next page; null at the end of the topic. With a filter a page may be empty and have one.
    next_cursor: Option<String>,
}

/// Reads messages of a topic without consuming them.
#[utoipa::path(
    get,
    path = "/v1/topics/{topic}/messages",
    tag = "messages",
    params(("topic" = String, Path, description = "The topic", example = "orders"), BrowseQuery),
    responses((status = 200, description = "The messages", body = MessagePage<'static>), Problems),
)]
async fn browse(
    State(app): State<App>,
    caller: Caller,
    PathOf(topic): PathOf<String>,
    QueryOf(query): QueryOf<BrowseQuery>,
) -> Result<Response, Problem> {
    caller.may(Scope::Read, Some(&topic))?;
    let limit = query.limit.unwrap_or(LIMIT_DEFAULT);
    if !(1..=LIMIT_MAX).contains(&limit) {
        return Err(Problem::invalid("limit", format!("{limit}, from 1 to {LIMIT_MAX} are allowed")));
    }
    let start = match (&query.cursor, &query.from) {
        (Some(_), Some(_)) => {
            return Err(Problem::invalid("cursor", "from is there too; send one of the two"));
        }
        (Some(cursor), None) => Start::Offset(Offset(
            offset_of(cursor).ok_or_else(|| Problem::invalid("cursor", "not of this list"))?,
        )),
        (None, from) => start_of(from.as_deref())?,
    };
    let wanted = |message: &Message| {
        query.key.as_ref().is_none_or(|key| message.key.as_ref() == Some(key))
            && query.id.is_none_or(|id| message.message_id == id)
    };
    let (messages, next) = page(&app.headwater, &topic, start, limit, wanted).await?;
    let next = next.filter(|_| query.id.is_none() || messages.is_empty());
    let next_cursor = next.map(|offset| offset.0.to_string());
    json(&MessagePage { items: messages.iter().map(StoredMessage::from).collect(), next_cursor })
}

/// Reads one message without consuming it.
#[utoipa::path(
    get,
    path = "/v1/topics/{topic}/messages/{offset}",
    tag = "messages",
    params(
        ("topic" = String, Path, description = "The topic", example = "orders"),
        ("offset" = i64, Path, description = "The offset", example = 17, minimum = 1),
    ),
    responses((status = 200, description = "The message", body = StoredMessage<'static>), Problems),
)]
async fn show(
    State(app): State<App>,
    caller: Caller,
    PathOf((topic, offset)): PathOf<(String, i64)>,
) -> Result<Response, Problem> {
    caller.may(Scope::Read, Some(&topic))?;
    let (messages, _) = page(&app.headwater, &topic, Start::Offset(Offset(offset)), 1, |_| true).await?;
    match messages.first().filter(|message| message.offset.0 == offset) {
        Some(message) => json(&StoredMessage::from(message)),
        None => Err(Problem::not_found(format!("topic {topic} has no message at offset {offset}"))),
    }
}

fn json(answer: &impl Serialize) -> Result<Response, Problem> {
    let json = serde_json::to_vec(answer).map_err(|error| Problem::unwritable(&error))?;
    Ok(([(header::CONTENT_TYPE, "application/json")], json).into_response())
}

/// The first messages from a start on that are wanted, and where to continue if that was not the end.
async fn page(
    headwater: &Headwater,
    topic: &str,
    start: Start,
    limit: usize,
    wanted: impl Fn(&Message) -> bool,
) -> Result<(Vec<Message>, Option<Offset>), Problem> {
    let mut tail =
        headwater.tail(topic, start).await?.messages_max(u32::try_from(limit.max(100)).unwrap_or(100));
    let (mut found, mut examined, mut bytes) = (Vec::new(), 0, 0);
    while examined < EXAMINED_MAX {
        let messages = tail.next(std::time::Duration::ZERO).await?;
        if messages.is_empty() {
            return Ok((found, None));
        }
        examined += messages.len();
        for message in messages.into_iter().filter(&wanted) {
            bytes += message.weight();
            if found.len() == limit || bytes > PAGE_BYTES_MAX && !found.is_empty() {
                return Ok((found, Some(message.offset)));
            }
            found.push(message);
        }
    }
    Ok((found, Some(tail.position())))
}

/// Where to begin: an offset, a time, `start` or `last:N`.
pub(super) fn start_of(from: Option<&str>) -> Result<Start, Problem> {
    let Some(from) = from else { return Ok(Start::Beginning) };
    if from == "start" {
        return Ok(Start::Beginning);
    }
    if let Some(count) = from.strip_prefix("last:").and_then(|count| count.parse().ok()) {
        return Ok(Start::BeginningBounded(count));
    }
    if let Some(offset) = offset_of(from) {
        return Ok(Start::Offset(Offset(offset)));
    }
    let time = from.parse().map(Start::Timestamp);
    time.map_err(|_| {
        Problem::invalid("from", format!("{from:?} is not an offset, a time (RFC 3339), start or last:N"))
    })
}

fn offset_of(text: &str) -> Option<i64> {
    text.parse().ok().filter(|offset| *offset >= 0)
}
