//! What requests bring: JSON bodies, queries and paths, each refused with a problem that names the field.
//!
//! Handlers take [`JsonBody`], [`OptionalBody`], [`QueryOf`] and [`PathOf`] in place of axum's own extractors, whose refusals are plain text.

use std::fmt;
use std::marker::PhantomData;

use axum::body::Body;
use axum::extract::{FromRequest, FromRequestParts, Path, Query, Request};
use axum::http::request::Parts;
use axum::http::{StatusCode, header};
use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use serde::de::value::MapAccessDeserializer;
use serde::de::{DeserializeOwned, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};

use crate::app::App;
use crate::limits::Limits;
use crate::problem::Problem;

/// The JSON body of a request. Its type denies unknown fields.
pub(crate) struct JsonBody<T>(pub(crate) T);

impl<T: DeserializeOwned> FromRequest<App> for JsonBody<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, app: &App) -> Result<Self, Problem> {
        check_json(request.headers())?;
        let bytes = read(request.into_body(), &app.limits).await?;
        parse(&bytes).map(JsonBody)
    }
}

/// The same where the body may be missing: then it is the default.
pub(crate) struct OptionalBody<T>(pub(crate) T);

impl<T: DeserializeOwned + Default> FromRequest<App> for OptionalBody<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, app: &App) -> Result<Self, Problem> {
        let checked = check_json(request.headers());
        let bytes = read(request.into_body(), &app.limits).await?;
        if bytes.is_empty() {
            return Ok(OptionalBody(T::default()));
        }
        checked?;
        parse(&bytes).map(OptionalBody)
    }
}

/// The parameters of a request's query.
pub(crate) struct QueryOf<T>(pub(crate) T);

impl<T: DeserializeOwned + Send> FromRequestParts<App> for QueryOf<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &App) -> Result<Self, Problem> {
        match Query::<T>::try_from_uri(&parts.uri) {
            Ok(Query(query)) => Ok(QueryOf(query)),
            Err(error) => Err(misread("query", &error.body_text())),
        }
    }
}

/// The parameters in a request's path, decoded.
pub(crate) struct PathOf<T>(pub(crate) T);

impl<T: DeserializeOwned + Send> FromRequestParts<App> for PathOf<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Problem> {
        match Path::<T>::from_request_parts(parts, app).await {
            Ok(Path(path)) => Ok(PathOf(path)),
            Err(error) => Err(misread("path", &error.body_text())),
        }
    }
}

/// Only a body that says it is JSON is read as such: a page elsewhere can send other types without asking the browser's leave.
fn check_json(headers: &axum::http::HeaderMap) -> Result<(), Problem> {
    let stated = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let essence = stated.split(';').next().unwrap_or_default().trim();
    if essence.eq_ignore_ascii_case("application/json") {
        return Ok(());
    }
    let detail = format!("content type {stated:?}; send application/json");
    Err(Problem::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported-media-type", detail))
}

/// Reads a body up to its limit. A client that stops sending is not waited for.
pub(crate) async fn read(mut body: Body, limits: &Limits) -> Result<Bytes, Problem> {
    let bytes_max = limits.body_bytes_max;
    let mut whole = BytesMut::new();
    let mut first: Option<Bytes> = None;
    loop {
        let frame = match tokio::time::timeout(limits.read_timeout, body.frame()).await {
            Ok(None) => break,
            Ok(Some(Ok(frame))) => frame,
            Ok(Some(Err(error))) => {
                return Err(Problem::new(
                    StatusCode::BAD_REQUEST,
                    "incomplete-body",
                    format!("the body broke off: {error}"),
                ));
            }
            Err(_) => return Err(too_slow(limits)),
        };
        let Ok(data) = frame.into_data() else { continue };
        let total = first.as_ref().map_or(whole.len(), Bytes::len) + data.len();
        if total > bytes_max {
            return Err(too_large(bytes_max));
        }
        // A body of one piece, the usual case, is not copied.
        match first.take() {
            None if whole.is_empty() => first = Some(data),
            before => {
                whole.extend_from_slice(&before.unwrap_or_default());
                whole.extend_from_slice(&data);
            }
        }
    }
    Ok(first.unwrap_or_else(|| whole.freeze()))
}

fn too_slow(limits: &Limits) -> Problem {
    let detail = format!("no part of the body came within {:?}; send it without pauses", limits.read_timeout);
    Problem::new(StatusCode::REQUEST_TIMEOUT, "request-timeout", detail)
}

fn too_large(bytes_max: usize) -> Problem {
    let detail = format!("the body is over {bytes_max} bytes; split it, or raise the server's limit");
    Problem::new(StatusCode::PAYLOAD_TOO_LARGE, "body-too-large", detail)
}

/// Parses a JSON object. A failure is parsed once more to find the field that is wrong.
pub(crate) fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Problem> {
    // Serde takes a list for the fields of a structure, in their order.
    if bytes.trim_ascii_start().starts_with(b"[") {
        return Err(Problem::invalid("body", "is a list; send a JSON object"));
    }
    serde_json::from_slice(bytes).map_err(|error| match error.classify() {
        serde_json::error::Category::Data => located::<T>(bytes, &error),
        _ => Problem::new(StatusCode::BAD_REQUEST, "invalid-json", format!("the body is not JSON: {error}")),
    })
}

fn located<T: DeserializeOwned>(bytes: &[u8], error: &serde_json::Error) -> Problem {
    let mut deserializer = serde_json::Deserializer::from_slice(bytes);
    let field = match serde_path_to_error::deserialize::<_, T>(&mut deserializer) {
        Err(error) => error.path().to_string(),
        Ok(_) => ".".to_owned(),
    };
    let text = error.to_string();
    let unknown = text.strip_prefix("unknown field `").and_then(|rest| rest.split('`').next());
    let field = match (field.as_str(), unknown) {
        (".", Some(name)) => name.to_owned(),
        (path, Some(name)) if !path.ends_with(name) => format!("{path}.{name}"),
        (".", None) => "body".to_owned(),
        _ => field,
    };
    Problem::invalid(&field, text)
}

/// The problem of a query or a path; the text of serde starts with the name of its field, if it knows it.
fn misread(part: &str, text: &str) -> Problem {
    let rule = text.rsplit_once("string: ").map_or(text, |(_, rule)| rule);
    let named = rule.strip_prefix("unknown field `").or_else(|| rule.strip_prefix("missing field `"));
    let field = named.and_then(|rest| rest.split('`').next());
    let field = field.or_else(|| rule.split_once(": ").map(|(field, _)| field));
    Problem::invalid(field.filter(|field| !field.contains(' ')).unwrap_or(part), rule)
}

/// A part of a body that is an object: `deserialize_with = "object"`. Serde alone takes a list too.
pub(crate) fn object<'de, D: Deserializer<'de>, T: Deserialize<'de>>(part: D) -> Result<T, D::Error> {
    struct Object<T>(PhantomData<T>);

    impl<'de, T: Deserialize<'de>> Visitor<'de> for Object<T> {
        type Value = T;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("an object")
        }

        fn visit_map<A: MapAccess<'de>>(self, fields: A) -> Result<T, A::Error> {
            T::deserialize(MapAccessDeserializer::new(fields))
        }
    }

    part.deserialize_map(Object(PhantomData))
}

/// A part of a body that is a list of objects: `deserialize_with = "objects"`.
pub(crate) fn objects<'de, D: Deserializer<'de>, T: Deserialize<'de>>(part: D) -> Result<Vec<T>, D::Error> {
    #[derive(Deserialize)]
    #[serde(bound = "T: Deserialize<'de>")]
    struct Each<T>(#[serde(deserialize_with = "object")] T);

    Ok(Vec::<Each<T>>::deserialize(part)?.into_iter().map(|Each(each)| each).collect())
}

/// A part of a body that is an object, and may be missing: `default, deserialize_with = "optional_object"`.
pub(crate) fn optional_object<'de, D, T>(part: D) -> Result<Option<T>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    #[derive(Deserialize)]
    #[serde(bound = "T: Deserialize<'de>")]
    struct One<T>(#[serde(deserialize_with = "object")] T);

    Ok(Option::<One<T>>::deserialize(part)?.map(|One(one)| one))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Outer {
        #[expect(dead_code, reason = "only read")]
        #[serde(deserialize_with = "objects")]
        list: Vec<Inner>,
        #[expect(dead_code, reason = "only read")]
        #[serde(default, deserialize_with = "optional_object")]
        one: Option<Inner>,
    }

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Inner {
        #[expect(dead_code, reason = "only read")]
        size: u32,
    }

    #[test]
    fn a_wrong_field_is_named_with_its_place() {
        for (body, field) in [
            (r#"{"list":[{"size":1},{"size":-1}]}"#, "list[1].size"),
            (r#"{"list":[{"size":1,"colour":2}]}"#, "list[0].colour"),
            (r#"{"list":[],"other":2}"#, "other"),
            (r#"{"list":3}"#, "list"),
            (r#"{"list":[[1]]}"#, "list[0]"),
            (r#"{"list":[],"one":[1]}"#, "one"),
            (r#"{"list":[],"one":{"size":"x"}}"#, "one.size"),
            (r"[1]", "body"),
        ] {
            let problem = parse::<Outer>(body.as_bytes()).expect_err("refused");
            assert_eq!(problem.field(), Some(field), "{body}: {}", problem.detail());
        }
        let problem = parse::<Outer>(b"{").expect_err("refused");
        assert_eq!((problem.kind(), problem.field()), ("invalid-json", None));
    }
}
