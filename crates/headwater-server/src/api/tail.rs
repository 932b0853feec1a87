//! The tail of a topic: messages as they are published, without consuming them.

use std::time::Duration;

use axum::extract::State;
use axum::response::Response;
use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream::unfold;
use headwater::{Message, Start};
use serde::Deserialize;
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::body::{PathOf, QueryOf};
use super::browse::start_of;
use super::message::StoredMessage;
use super::stream::{error, event, event_stream};
use crate::app::App;
use crate::auth::{Caller, Scope};
use crate::problem::{Problem, Problems};

/// How often a line is sent although there is no message.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// The routes.
pub(crate) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(tail))
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct TailQuery {
    /// Where to begin: `now` (the default), an offset, a time, `start` or `last:N`.
    #[param(example = "last:10")]
    from: Option<String>,
}

/// Follows a topic without consuming.
///
/// Each event `message` has one message, and its offset as the event's id. No group sees or waits for it.
#[utoipa::path(
    get,
    path = "/v1/topics/{topic}/tail",
    tag = "messages",
    params(("topic" = String, Path, description = "The topic", example = "orders"), TailQuery),
    responses((status = 200, description = "The messages", content_type = "text/event-stream", body = String, example = json!("event: message\nid: 17\ndata: {\"offset\":17,\"payload\":{\"id\":7}}\n\n")), Problems),
)]
async fn tail(
    State(app): State<App>,
    caller: Caller,
    PathOf(topic): PathOf<String>,
    QueryOf(query): QueryOf<TailQuery>,
) -> Result<Response, Problem> {
    caller.may(Scope::Read, Some(&topic))?;
    let start = match query.from.as_deref() {
        None | Some("now") => Start::Now,
        from => start_of(from)?,
    };
    let tail = app.headwater.tail(&topic, start).await?;
    let events = unfold(Some((app, tail)), |state| async move {
        let (app, mut tail) = state?;
        let next = tokio::select! {
            next = tail.next(KEEP_ALIVE) => next,
            () = app.stopping.stopped() => return None,
        };
        match next {
            Ok(messages) if messages.is_empty() => Some((Bytes::from_static(b":\n\n"), Some((app, tail)))),
            Ok(messages) => Some((events(&messages), Some((app, tail)))),
            Err(failed) => Some((error(&failed.into()), None)),
        }
    });
    let opened = futures_util::stream::once(async { Bytes::from_static(b": open\n\n") });
    Ok(event_stream(opened.chain(events)))
}

fn events(messages: &[Message]) -> Bytes {
    let mut text = Vec::with_capacity(messages.len() * 384);
    for message in messages {
        event(&mut text, "message", Some(message.offset.0), &StoredMessage::from(message));
    }
    text.into()
}
