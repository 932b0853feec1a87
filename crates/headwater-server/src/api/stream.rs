//! Streaming by server-sent events: messages of a group as they come, with a limit on how many may be unsettled.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures_util::stream::unfold;
use headwater::consumer::{ClaimOptions, ClaimedMessage, Claims};
use serde::Deserialize;
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::body::{PathOf, QueryOf};
use super::claim::lease;
use super::message::DeliveredMessage;
use crate::app::App;
use crate::auth::{Caller, Scope};
use crate::problem::{Problem, Problems};
use crate::streams::Credit;

/// The credit of a stream that asks for none, and the largest one.
const CREDIT_DEFAULT: usize = 100;
pub(super) const CREDIT_MAX: usize = 10_000;
/// Messages of one claim at most: they are one piece of the answer.
const CLAIM_MAX: usize = 1_000;
/// Bytes of messages of one claim, about.
const CLAIM_BYTES_MAX: usize = 2 * 1024 * 1024;
/// How often a line is sent although there is no message: proxies and dead connections notice.
const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// How often a stream without credit asks the store what it still holds.
const REFRESH_EVERY: Duration = Duration::from_secs(1);
/// How long a stream with little credit left waits for more before it claims.
const CREDIT_LINGER: Duration = Duration::from_millis(2);

/// The routes.
pub(crate) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(stream))
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct StreamQuery {
    /// Unsettled messages at most; 100 by default.
    #[param(minimum = 1, maximum = 10000, example = 100)]
    credit: Option<usize>,
    /// How long the lease of a message lasts; the group's lease time by default.
    #[param(minimum = 1, maximum = 31_622_400_000u64, example = 30000)]
    lease_ms: Option<u64>,
}

/// Streams messages of a group.
///
/// Each event `message` has one message with its receipt, as a claim returns it, and its offset as the event's id. At most `credit` messages are unsettled at any
/// time: settle them by their receipts, and others follow. When the connection ends, what is not settled stays leased until its lease ends. An event `error` has a
/// problem, and is the last.
#[utoipa::path(
    get,
    path = "/v1/topics/{topic}/groups/{group}/stream",
    tag = "consuming",
    params(
        ("topic" = String, Path, description = "The topic", example = "orders"),
        ("group" = String, Path, description = "The group", example = "email"),
        StreamQuery,
    ),
    responses((status = 200, description = "The messages", content_type = "text/event-stream", body = String, example = json!("event: message\nid: 17\ndata: {\"receipt\":\"AdJxQ6\",\"attempt\":1,\"offset\":17,\"payload\":{\"id\":7}}\n\n")), Problems),
)]
async fn stream(
    State(app): State<App>,
    caller: Caller,
    PathOf((topic, group)): PathOf<(String, String)>,
    QueryOf(query): QueryOf<StreamQuery>,
) -> Result<Response, Problem> {
    caller.may(Scope::Consume, Some(&topic))?;
    let credit = checked_credit(query.credit.unwrap_or(CREDIT_DEFAULT))?;
    let lease = lease(query.lease_ms)?;
    let claims = app.claims.get(&app, &topic, &group).await?;
    let credit = app.streams.open(credit);
    let feed = Feed { app, claims, credit, lease };
    let events = unfold(Some(feed), |feed| async move {
        let feed = feed?;
        match feed.next(KEEP_ALIVE).await {
            Ok(Some(claimed)) => Some((events(&claimed), Some(feed))),
            // The server stops, or the keep-alive is due.
            Ok(None) if feed.app.stopping.is_stopping() => None,
            Ok(None) => Some((Bytes::from_static(b":\n\n"), Some(feed))),
            Err(problem) => Some((error(&problem), None)),
        }
    });
    let opened = futures_util::stream::once(async { Bytes::from_static(b": open\n\n") });
    Ok(event_stream(futures_util::StreamExt::chain(opened, events)))
}

/// An answer of server-sent events.
pub(super) fn event_stream(events: impl futures_util::Stream<Item = Bytes> + Send + 'static) -> Response {
    let headers = [
        (header::CONTENT_TYPE, "text/event-stream"),
        (header::CACHE_CONTROL, "no-store"),
        // Proxies that collect an answer before they pass it on would delay messages.
        (header::HeaderName::from_static("x-accel-buffering"), "no"),
    ];
    let events = futures_util::StreamExt::map(events, Ok::<Bytes, Infallible>);
    (headers, Body::from_stream(events)).into_response()
}

/// A credit within its limits.
pub(super) fn checked_credit(credit: usize) -> Result<usize, Problem> {
    match credit {
        1..=CREDIT_MAX => Ok(credit),
        _ => Err(Problem::invalid("credit", format!("{credit}, from 1 to {CREDIT_MAX} are allowed"))),
    }
}

/// Messages for one client, as many as its credit allows.
pub(super) struct Feed {
    pub(super) app: App,
    pub(super) claims: Claims,
    pub(super) credit: Arc<Credit>,
    pub(super) lease: Option<Duration>,
}

impl Feed {
    /// The next messages; `None` if there was none within the time, or the server stops. May be dropped at any moment.
    pub(super) async fn next(&self, wait: Duration) -> Result<Option<Vec<ClaimedMessage>>, Problem> {
        tokio::select! {
            claimed = self.next_within(wait) => claimed,
            () = self.app.stopping.stopped() => Ok(None),
        }
    }

    async fn next_within(&self, wait: Duration) -> Result<Option<Vec<ClaimedMessage>>, Problem> {
        let deadline = tokio::time::Instant::now() + wait;
        let mut waited = false;
        loop {
            let left = deadline.saturating_duration_since(tokio::time::Instant::now());
            if left.is_zero() {
                return Ok(None);
            }
            let count = self.credit.left().min(CLAIM_MAX);
            if count == 0 {
                if tokio::time::timeout(REFRESH_EVERY.min(left), self.credit.changed()).await.is_err() {
                    self.credit.refresh(&self.claims).await?;
                }
                continue;
            }
            // A client that settles one by one gives its credit back in small pieces, and each claim is a transaction.
            if !waited && self.credit.is_scarce() {
                waited = true;
                tokio::time::sleep(CREDIT_LINGER.min(left)).await;
                continue;
            }
            let options = ClaimOptions {
                messages_max: u32::try_from(count).unwrap_or(1),
                bytes_max: CLAIM_BYTES_MAX,
                lease: self.lease,
                wait: left,
            };
            let claimed = self.claims.claim(self.credit.holder, &options).await?;
            if !claimed.is_empty() {
                claimed.iter().for_each(|claimed| self.credit.take(claimed.message.offset));
                return Ok(Some(claimed));
            }
        }
    }
}

/// Messages as events, one piece for all of them.
fn events(claimed: &[ClaimedMessage]) -> Bytes {
    let mut text = Vec::with_capacity(claimed.len() * 384);
    for claimed in claimed {
        event(&mut text, "message", Some(claimed.message.offset.0), &DeliveredMessage::from(claimed));
    }
    text.into()
}

/// The last event: why the stream ends.
pub(super) fn error(problem: &Problem) -> Bytes {
    let mut text = Vec::new();
    event(&mut text, "error", None, problem);
    text.into()
}

/// Appends an event. JSON on one line: it has no line break of its own.
pub(super) fn event(text: &mut Vec<u8>, name: &str, id: Option<i64>, data: &impl serde::Serialize) {
    text.extend_from_slice(b"event: ");
    text.extend_from_slice(name.as_bytes());
    if let Some(id) = id {
        text.extend_from_slice(b"\nid: ");
        text.extend_from_slice(id.to_string().as_bytes());
    }
    text.extend_from_slice(b"\ndata: ");
    if let Err(error) = serde_json::to_writer(&mut *text, data) {
        tracing::error!(%error, "event not written");
    }
    text.extend_from_slice(b"\n\n");
}
