//! Streaming by WebSocket: messages one way, credit and settlements the other.
//!
//! | the client sends | meaning |
//! |---|---|
//! | `{"credit":100}` | at most 100 unsettled messages from now on; none is sent before the first one |
//! | `{"settle":[{"receipt":…,"outcome":"ack"}]}` | as the body of a settle request; answered by `{"settled":[…]}` |
//! | `{"extend":{"receipts":[…],"lease_ms":…}}` | as the body of an extend request; answered by `{"extended":[…]}` |
//!
//! The server sends `{"message":{…}}` for each message, and `{"error":{…}}` with a problem; the connection continues after one about a request of the client.

use std::time::Duration;

use axum::extract::State;
use axum::extract::ws::{CloseFrame, Message as Frame, WebSocket, WebSocketUpgrade, close_code};
use axum::response::Response;
use futures_util::{SinkExt, StreamExt};
use headwater::consumer::ClaimedMessage;
use serde::{Deserialize, Serialize};
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::body::{PathOf, QueryOf, parse};
use super::claim::{in_batch, lease};
use super::extend::{ExtendAnswer, ExtendBody, extend_all};
use super::message::DeliveredMessage;
use super::settle::{SettleAnswer, Settlement, settle_all};
use super::stream::{Feed, checked_credit};
use crate::app::App;
use crate::auth::{Caller, Scope};
use crate::metrics;
use crate::problem::{Problem, Problems};

/// How often a ping is sent, and how long a client may be silent.
const PING_EVERY: Duration = Duration::from_secs(15);
const SILENT_MAX: Duration = Duration::from_secs(60);

/// The routes.
pub(crate) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(socket))
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct SocketQuery {
    /// How long the lease of a message lasts; the group's lease time by default.
    #[param(minimum = 1, maximum = 31_622_400_000u64, example = 30000)]
    lease_ms: Option<u64>,
}

/// What a client sends: one of the fields.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
enum Request {
    Credit(usize),
    Settle(Vec<Settlement>),
    Extend(ExtendBody),
}

/// What the server sends: one of the fields.
#[derive(Debug, Serialize)]
#[serde(rename_all = "snake_case")]
enum Answer<'a> {
    Message(DeliveredMessage<'a>),
    Settled(SettleAnswer),
    Extended(ExtendAnswer),
    Error(&'a Problem),
}

/// Opens a WebSocket with messages of a group.
///
/// The client sends `{"credit":n}`, `{"settle":[…]}` and `{"extend":{…}}`; the server sends `{"message":{…}}`, `{"settled":{…}}`, `{"extended":{…}}` and
/// `{"error":{…}}`. At most `credit` messages are unsettled at any time.
#[utoipa::path(
    get,
    path = "/v1/topics/{topic}/groups/{group}/socket",
    tag = "consuming",
    params(
        ("topic" = String, Path, description = "The topic", example = "orders"),
        ("group" = String, Path, description = "The group", example = "email"),
        SocketQuery,
    ),
    responses((status = 101, description = "The connection is a WebSocket from now on"), Problems),
)]
async fn socket(
    State(app): State<App>,
    caller: Caller,
    PathOf((topic, group)): PathOf<(String, String)>,
    QueryOf(query): QueryOf<SocketQuery>,
    upgrade: Result<WebSocketUpgrade, axum::extract::ws::rejection::WebSocketUpgradeRejection>,
) -> Result<Response, Problem> {
    caller.may(Scope::Consume, Some(&topic))?;
    let lease = lease(query.lease_ms)?;
    let claims = app.claims.get(&app, &topic, &group).await?;
    let upgrade = upgrade.map_err(|error| {
        Problem::new(axum::http::StatusCode::BAD_REQUEST, "no-websocket", error.body_text())
    })?;
    let bytes_max = app.limits.body_bytes_max;
    let guest = app.stopping.guest();
    let credit = app.streams.open(0);
    let feed = Feed { app, claims, credit, lease };
    let upgrade = upgrade.max_message_size(bytes_max).max_frame_size(bytes_max);
    Ok(upgrade.on_upgrade(async move |socket| {
        let waits = metrics::waiting("socket");
        let reason = talk(socket, &feed).await;
        drop(waits);
        tracing::debug!(reason, "socket closed");
        drop(guest);
    }))
}

/// Serves a client until it leaves, is silent for too long, or the server stops. Returns why it ended.
async fn talk(socket: WebSocket, feed: &Feed) -> &'static str {
    let (mut sink, mut stream) = socket.split();
    let write_timeout = feed.app.limits.write_timeout;
    let mut ping = tokio::time::interval(PING_EVERY);
    let mut heard_at = tokio::time::Instant::now();
    // Kept while requests are answered: a claim that is dropped releases what it got.
    let mut next = Box::pin(feed.next(PING_EVERY));
    let (reason, code) = loop {
        let frames = tokio::select! {
            received = stream.next() => {
                heard_at = tokio::time::Instant::now();
                match received {
                    Some(Ok(Frame::Text(text))) => vec![answer(feed, text.as_bytes()).await],
                    Some(Ok(Frame::Binary(bytes))) => vec![answer(feed, &bytes).await],
                    Some(Ok(Frame::Ping(_) | Frame::Pong(_))) => continue,
                    Some(Ok(Frame::Close(_))) | None => return "left by the client",
                    Some(Err(_)) => return "broken",
                }
            }
            claimed = next.as_mut() => {
                next.set(feed.next(PING_EVERY));
                match claimed {
                    Ok(Some(claimed)) => claimed.iter().map(|claimed| Some(message(claimed))).collect(),
                    Ok(None) if feed.app.stopping.is_stopping() => break ("the server stops", close_code::AWAY),
                    Ok(None) => continue,
                    Err(problem) => {
                        let last = frame(&Answer::Error(&problem));
                        let _ = tokio::time::timeout(write_timeout, sink.send(last)).await;
                        break ("the group failed", close_code::ERROR);
                    }
                }
            },
            _ = ping.tick() => {
                if heard_at.elapsed() > SILENT_MAX {
                    break ("silent", close_code::POLICY);
                }
                vec![Some(Frame::Ping(bytes::Bytes::new()))]
            }
        };
        let sent = async {
            for frame in frames.into_iter().flatten() {
                sink.feed(frame).await?;
            }
            sink.flush().await
        };
        match tokio::time::timeout(write_timeout, sent).await {
            Ok(Ok(())) => {}
            Ok(Err(_)) => return "broken",
            Err(_) => return "not read",
        }
    };
    let close = Frame::Close(Some(CloseFrame { code, reason: reason.into() }));
    let _ = tokio::time::timeout(write_timeout, sink.send(close)).await;
    reason
}

fn message(claimed: &ClaimedMessage) -> Frame {
    frame(&Answer::Message(DeliveredMessage::from(claimed)))
}

/// The answer to what a client sent; none to a credit.
async fn answer(feed: &Feed, bytes: &[u8]) -> Option<Frame> {
    match act(feed, bytes).await {
        Ok(answer) => answer.as_ref().map(frame),
        Err(problem) => Some(frame(&Answer::Error(&problem))),
    }
}

async fn act(feed: &Feed, bytes: &[u8]) -> Result<Option<Answer<'static>>, Problem> {
    let Feed { app, claims, credit, .. } = feed;
    Ok(match parse(bytes)? {
        Request::Credit(limit) => {
            credit.set_limit(if limit == 0 { 0 } else { checked_credit(limit)? });
            None
        }
        Request::Settle(settlements) => {
            in_batch(&app.limits, "settle", settlements.len())?;
            Some(Answer::Settled(settle_all(app, claims, settlements).await?))
        }
        Request::Extend(body) => Some(Answer::Extended(extend_all(claims, body).await?)),
    })
}

fn frame(answer: &Answer<'_>) -> Frame {
    match serde_json::to_string(answer) {
        Ok(text) => Frame::Text(text.into()),
        Err(error) => {
            tracing::error!(%error, "frame not written");
            Frame::Text("{}".into())
        }
    }
}
