//! `/live`: one stream of server-sent events per open page, with the parts of it that changed, about once a second.
//!
//! The page itself is asked again, as a browser would, with the same cookies: what it may show is checked each time, and a session that ends,
//! ends the stream. Only parts marked by [`View::live`](super::view::View::live) are sent, and only those that differ from what was sent before.

use std::collections::HashMap;
use std::convert::Infallible;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::Query;
use axum::http::request::Parts;
use axum::http::{Method, Request, StatusCode, Uri};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::stream::{self, Stream};
use serde::Deserialize;
use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at};
use tower::ServiceExt;

use super::view::{Failure, Fragments, LiveCall};
use crate::app::App;
use crate::problem::Problem;
use crate::sampler::Watching;

/// How often a page is asked again.
const EVERY: Duration = Duration::from_secs(1);
/// The longest address of a page.
const PAGE_BYTES_MAX: usize = 4_096;

/// Which page.
#[derive(Debug, Deserialize)]
pub(crate) struct Wanted {
    page: String,
}

/// `GET /live?page=…`
pub(crate) async fn stream(app: App, pages: Router, parts: Parts) -> Response {
    let Ok(Query(Wanted { page })) = Query::<Wanted>::try_from_uri(&parts.uri) else {
        return Failure::from(Problem::invalid("page", "is missing")).into_response();
    };
    let uri: Option<Uri> =
        page.parse().ok().filter(|_| page.starts_with('/') && page.len() <= PAGE_BYTES_MAX);
    let Some(uri) = uri else {
        return Failure::from(Problem::invalid("page", "must be a path of this server")).into_response();
    };
    let watched = Watched::new(&app, pages, parts, uri);
    let keep_alive = KeepAlive::new().interval(Duration::from_secs(15));
    let mut response = Sse::new(events(watched)).keep_alive(keep_alive).into_response();
    // A proxy must not collect events before it passes them on.
    response.headers_mut().insert("x-accel-buffering", axum::http::HeaderValue::from_static("no"));
    response
}

/// A page that is open in a browser.
struct Watched {
    app: App,
    pages: Router,
    /// The request that opened the stream: its cookies and what layers added to it.
    parts: Parts,
    uri: Uri,
    /// What was sent of each part: a hash is enough.
    sent: HashMap<String, u64>,
    ticks: Interval,
    is_over: bool,
    _watching: Watching,
}

impl Watched {
    fn new(app: &App, pages: Router, parts: Parts, uri: Uri) -> Self {
        // The page was just rendered: what changed is sent after a moment.
        let mut ticks = interval_at(Instant::now() + EVERY / 2, EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let _watching = app.sampler.watch();
        Watched {
            app: app.clone(),
            pages,
            parts,
            uri,
            sent: HashMap::new(),
            ticks,
            is_over: false,
            _watching,
        }
    }

    fn request(&self) -> Request<Body> {
        let mut request = Request::new(Body::empty());
        *request.method_mut() = Method::GET;
        *request.uri_mut() = self.uri.clone();
        *request.headers_mut() = self.parts.headers.clone();
        *request.extensions_mut() = self.parts.extensions.clone();
        request.extensions_mut().insert(LiveCall);
        request
    }

    /// The parts that changed since they were last sent; an error if the page is not there any more.
    async fn changed(&mut self) -> Result<serde_json::Map<String, serde_json::Value>, StatusCode> {
        let response = match self.pages.clone().oneshot(self.request()).await {
            Ok(response) => response,
            Err(never) => match never {},
        };
        let status = response.status();
        let Some(Fragments(fragments)) = response.extensions().get::<Fragments>().cloned() else {
            // A store that cannot be reached may be there again in a second.
            return if status.is_server_error() { Ok(serde_json::Map::new()) } else { Err(status) };
        };
        let mut changed = serde_json::Map::new();
        for (name, html) in fragments {
            let hash = hash_of(&html);
            if self.sent.insert(name.clone(), hash) != Some(hash) {
                changed.insert(name, html.into());
            }
        }
        Ok(changed)
    }
}

fn hash_of(text: &str) -> u64 {
    use std::hash::{DefaultHasher, Hash, Hasher};
    let mut hasher = DefaultHasher::new();
    text.hash(&mut hasher);
    hasher.finish()
}

fn events(watched: Watched) -> impl Stream<Item = Result<Event, Infallible>> {
    stream::unfold(watched, |mut watched| async move {
        if watched.is_over {
            return None;
        }
        loop {
            tokio::select! {
                _ = watched.ticks.tick() => {}
                // A browser connects again, to the server that follows.
                () = watched.app.stopping.stopped() => return None,
            }
            match watched.changed().await {
                Ok(changed) if changed.is_empty() => {}
                Ok(changed) => {
                    let event = Event::default()
                        .event("fragments")
                        .data(serde_json::Value::Object(changed).to_string());
                    return Some((Ok(event), watched));
                }
                Err(status) => {
                    watched.is_over = true;
                    return Some((
                        Ok(Event::default().event("end").data(status.as_u16().to_string())),
                        watched,
                    ));
                }
            }
        }
    })
}
