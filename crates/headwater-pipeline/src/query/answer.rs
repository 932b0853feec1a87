//! Answers: their format, and how long they may be kept.

use std::hash::Hasher;

use axum::body::Body;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use xxhash_rust::xxh3::Xxh3;

use super::problem::{Answer, Problem};
use crate::error::{Error, ErrorCode};

/// Of answers whose ticks are indexed: they never change.
const FOR_EVER: HeaderValue = HeaderValue::from_static("private, max-age=31536000, immutable");
/// Of others: asked again each time.
const EACH_TIME: HeaderValue = HeaderValue::from_static("no-cache");
const JSON: HeaderValue = HeaderValue::from_static("application/json");

/// How cells are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    Json,
    Protobuf,
}

impl Format {
    /// What the client prefers; JSON if it does not mind.
    pub(super) fn negotiate(headers: &HeaderMap) -> Answer<Self> {
        let accept = headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok());
        let mut offered = accept.flat_map(|value| value.split(',')).filter_map(weighed).peekable();
        if offered.peek().is_none() {
            return Ok(Format::Json);
        }
        // The first of equal weights wins.
        let mut best: Option<(Format, f32)> = None;
        for (format, weight) in offered {
            if let Some(format) = format
                && weight > best.map_or(0.0, |(_, best)| best)
            {
                best = Some((format, weight));
            }
        }
        let known = "application/json and application/x-protobuf are known";
        best.map(|(format, _)| format).ok_or_else(|| Problem::not_acceptable(known))
    }
}

/// One entry of `Accept`: a format that is known, and its weight. `None` if the entry is empty.
fn weighed(entry: &str) -> Option<(Option<Format>, f32)> {
    let mut parts = entry.split(';').map(str::trim);
    let media = parts.next().filter(|media| !media.is_empty())?;
    let weight = parts.find_map(|part| part.strip_prefix("q=")).and_then(|q| q.parse().ok()).unwrap_or(1.0);
    let format = match media.to_ascii_lowercase().as_str() {
        "application/json" | "application/*" | "*/*" => Some(Format::Json),
        "application/x-protobuf" | "application/protobuf" | "application/vnd.google.protobuf" => {
            Some(Format::Protobuf)
        }
        _ => None,
    };
    Some((format, weight))
}

/// An answer that may change, as JSON.
pub(super) fn changing(content: &impl Serialize) -> Answer<Response> {
    let mut response = body(JSON, json(content)?);
    response.headers_mut().insert(header::CACHE_CONTROL, EACH_TIME);
    Ok(response)
}

/// JSON text.
pub(super) fn json(content: &impl Serialize) -> Answer<Vec<u8>> {
    let failed = |error| Problem::from(Error::permanent(ErrorCode::ReadFailed, format!("no JSON: {error}")));
    serde_json::to_vec(content).map_err(failed)
}

fn body(content_type: HeaderValue, bytes: Vec<u8>) -> Response {
    ([(header::CONTENT_TYPE, content_type)], Body::from(bytes)).into_response()
}

/// An answer about ticks that are indexed, identified by what was asked: the same question always has the same answer.
#[derive(Debug)]
pub(super) struct Lasting {
    tag: HeaderValue,
    format: Format,
}

impl Lasting {
    /// `question` names everything that the answer depends on.
    pub(super) fn new(question: &[&str], format: Format) -> Self {
        let mut hash = Xxh3::new();
        // Another version of this program may write the same content otherwise.
        for part in [env!("CARGO_PKG_VERSION"), if format == Format::Json { "json" } else { "protobuf" }] {
            hash.write(part.as_bytes());
            hash.write_u8(0);
        }
        for part in question {
            hash.write(part.as_bytes());
            hash.write_u8(0);
        }
        // Weak: compressed or not, it is the same answer.
        let tag = format!("W/\"{:016x}\"", hash.finish());
        Lasting { tag: HeaderValue::from_str(&tag).expect("hexadecimal digits"), format }
    }

    /// The short answer to a client that has the answer. It had it from here, so the ticks are indexed.
    pub(super) fn unchanged(&self, headers: &HeaderMap) -> Option<Response> {
        let tag = self.tag.to_str().ok()?;
        let asked = headers.get_all(header::IF_NONE_MATCH).iter().filter_map(|value| value.to_str().ok());
        let has = asked.flat_map(|value| value.split(',')).any(|known| known.trim() == tag);
        has.then(|| self.with_headers(StatusCode::NOT_MODIFIED.into_response()))
    }

    /// The answer.
    pub(super) fn response(&self, bytes: Vec<u8>) -> Response {
        let content_type = match self.format {
            Format::Json => JSON,
            Format::Protobuf => HeaderValue::from_static(
                "application/x-protobuf; messageType=\"headwater.pipeline.v1.CellStateList\"",
            ),
        };
        self.with_headers(body(content_type, bytes))
    }

    fn with_headers(&self, mut response: Response) -> Response {
        let headers = response.headers_mut();
        headers.insert(header::ETAG, self.tag.clone());
        headers.insert(header::CACHE_CONTROL, FOR_EVER);
        headers.append(header::VARY, HeaderValue::from_static("accept"));
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn negotiated(accept: &str) -> Result<Format, u16> {
        let mut headers = HeaderMap::new();
        headers.insert(header::ACCEPT, accept.parse().unwrap());
        Format::negotiate(&headers).map_err(|problem| problem.into_response().status().as_u16())
    }

    #[test]
    fn the_format_with_the_highest_weight_is_chosen() {
        assert_eq!(Format::negotiate(&HeaderMap::new()).unwrap(), Format::Json);
        assert_eq!(negotiated("*/*"), Ok(Format::Json));
        assert_eq!(negotiated("application/x-protobuf"), Ok(Format::Protobuf));
        assert_eq!(negotiated("application/json;q=0.5, application/protobuf"), Ok(Format::Protobuf));
        assert_eq!(negotiated("text/html, application/json;q=0.9, */*;q=0.8"), Ok(Format::Json));
        assert_eq!(negotiated("text/html"), Err(406));
        assert_eq!(negotiated("application/json;q=0"), Err(406));
    }

    #[test]
    fn a_tag_depends_on_question_and_format() {
        let tag = |question: &[&str], format| Lasting::new(question, format).tag;
        assert_eq!(tag(&["a", "1"], Format::Json), tag(&["a", "1"], Format::Json));
        assert_ne!(tag(&["a", "1"], Format::Json), tag(&["a", "1"], Format::Protobuf));
        assert_ne!(tag(&["a", "1"], Format::Json), tag(&["a1", ""], Format::Json));
    }

    #[test]
    fn a_client_that_has_the_answer_gets_a_short_one() {
        let lasting = Lasting::new(&["run", "7"], Format::Json);
        let mut headers = HeaderMap::new();
        assert!(lasting.unchanged(&headers).is_none());
        let known = format!("\"x\", {}", lasting.tag.to_str().unwrap());
        headers.insert(header::IF_NONE_MATCH, known.parse().unwrap());
        assert_eq!(lasting.unchanged(&headers).unwrap().status(), 304);
    }
}
