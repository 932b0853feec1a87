//! Answers to requests that fail: `application/problem+json` (RFC 9457).
//!
//! `type` is `urn:headwater:problem:<kind>` and stable: programs match on it. The detail is for people and holds no secret.

use std::collections::BTreeMap;

use axum::http::{HeaderValue, Method, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use headwater::ErrorKind;
use headwater::tokens::Scope;
use serde::Serialize;
use utoipa::openapi::{self, ContentBuilder, Ref, RefOr, ResponseBuilder};
use utoipa::{IntoResponses, ToSchema};

/// After how many seconds a request that met a busy or unreachable store may be repeated.
const RETRY_AFTER_S: u64 = 1;

/// Why a request fails. Handlers return `Result<_, Problem>`, and `?` turns an error of the library into one.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Problem {
    /// What happened, for programs.
    #[serde(rename = "type")]
    #[schema(example = "urn:headwater:problem:no-such-topic")]
    kind: String,
    /// What happened, in two words.
    #[schema(example = "no such topic")]
    title: String,
    /// The status of the answer.
    #[schema(example = 404)]
    status: u16,
    /// What happened here, and what to do about it.
    #[schema(example = "no such topic: orders")]
    detail: String,
    /// The field or parameter that is refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    field: Option<String>,
    /// What was denied, for the audit.
    #[serde(skip)]
    denied: Option<Box<Denied>>,
}

/// What was denied to a caller.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Denied {
    /// The caller, if it is known.
    pub(crate) caller: Option<String>,
    /// Why, as the kind of the problem.
    pub(crate) kind: String,
    /// What the caller would have needed.
    pub(crate) scope: Option<Scope>,
    pub(crate) topic: Option<String>,
}

impl Problem {
    /// `kind` is in kebab case, such as `no-such-topic`.
    pub(crate) fn new(status: StatusCode, kind: &str, detail: impl Into<String>) -> Self {
        Problem {
            kind: format!("urn:headwater:problem:{kind}"),
            title: kind.replace('-', " "),
            status: status.as_u16(),
            detail: detail.into(),
            field: None,
            denied: None,
        }
    }

    /// 401: the request has no valid token.
    pub(crate) fn unauthorized(detail: impl Into<String>) -> Self {
        let mut problem = Problem::new(StatusCode::UNAUTHORIZED, "unauthorized", detail);
        problem.denied = Some(Box::new(Denied { kind: "unauthorized".into(), ..Denied::default() }));
        problem
    }

    /// 403: the caller may not do this. `kind` says why.
    pub(crate) fn forbidden(kind: &str, detail: impl Into<String>, denied: Denied) -> Self {
        let mut problem = Problem::new(StatusCode::FORBIDDEN, kind, detail);
        problem.denied = Some(Box::new(Denied { kind: kind.to_owned(), ..denied }));
        problem
    }

    /// 404: a path or an entity does not exist.
    pub(crate) fn not_found(detail: impl Into<String>) -> Self {
        Problem::new(StatusCode::NOT_FOUND, "not-found", detail)
    }

    /// 400: a field or parameter breaks a rule; the rule says what is allowed.
    pub(crate) fn invalid(field: &str, rule: impl std::fmt::Display) -> Self {
        Problem::new(StatusCode::BAD_REQUEST, "invalid-input", format!("invalid {field}: {rule}")).at(field)
    }

    /// The same problem with the field it is about.
    pub(crate) fn at(mut self, field: &str) -> Self {
        self.field = Some(field.to_owned());
        self
    }

    /// The same problem with its field as the request calls it: the library's name, and the request's.
    pub(crate) fn renamed(mut self, names: &[(&str, &str)]) -> Self {
        let name = names.iter().find(|(library, _)| self.field.as_deref() == Some(library));
        if let Some((_, request)) = name {
            self.field = Some((*request).to_owned());
        }
        self
    }

    /// The same problem about a part of the body: its field is inside of it.
    pub(crate) fn inside(mut self, part: &str) -> Self {
        self.field = Some(self.field.map_or_else(|| part.to_owned(), |field| format!("{part}.{field}")));
        self
    }

    /// 500: an answer cannot be written, which is a mistake of this program.
    pub(crate) fn unwritable(error: &serde_json::Error) -> Self {
        tracing::error!(%error, "answer not written");
        Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", "the answer cannot be written")
    }

    /// What was denied, for a caller that reports it itself.
    pub(crate) fn take_denied(&mut self) -> Option<Denied> {
        self.denied.take().map(|denied| *denied)
    }

    pub(crate) fn status(&self) -> StatusCode {
        StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
    }

    /// For people, without secrets.
    pub(crate) fn detail(&self) -> &str {
        &self.detail
    }

    /// The field or parameter that is refused.
    #[cfg(test)]
    pub(crate) fn field(&self) -> Option<&str> {
        self.field.as_deref()
    }

    /// Without the prefix: `no-such-topic`.
    pub(crate) fn kind(&self) -> &str {
        self.kind.rsplit(':').next().unwrap_or_default()
    }
}

/// The status and the kind of each error of the library.
fn kind_of(kind: ErrorKind) -> (StatusCode, &'static str) {
    match kind {
        ErrorKind::InvalidInput => (StatusCode::BAD_REQUEST, "invalid-input"),
        ErrorKind::PayloadTooLarge => (StatusCode::PAYLOAD_TOO_LARGE, "payload-too-large"),
        ErrorKind::NoSuchTopic => (StatusCode::NOT_FOUND, "no-such-topic"),
        ErrorKind::NoSuchSubscription => (StatusCode::NOT_FOUND, "no-such-group"),
        ErrorKind::NoSuchProcess => (StatusCode::NOT_FOUND, "no-such-process"),
        ErrorKind::Conflict => (StatusCode::CONFLICT, "conflict"),
        ErrorKind::InvalidTransition => (StatusCode::CONFLICT, "invalid-transition"),
        ErrorKind::NoSubscriptions => (StatusCode::CONFLICT, "no-subscriptions"),
        ErrorKind::LeaseLost => (StatusCode::CONFLICT, "lease-lost"),
        ErrorKind::Unavailable => (StatusCode::SERVICE_UNAVAILABLE, "unavailable"),
        ErrorKind::Busy => (StatusCode::SERVICE_UNAVAILABLE, "busy"),
        ErrorKind::ReadOnly => (StatusCode::SERVICE_UNAVAILABLE, "read-only"),
        ErrorKind::Closed => (StatusCode::SERVICE_UNAVAILABLE, "closed"),
        ErrorKind::CommitUnknown => (StatusCode::SERVICE_UNAVAILABLE, "commit-unknown"),
        ErrorKind::StorageFull => (StatusCode::INSUFFICIENT_STORAGE, "storage-full"),
        ErrorKind::Timeout => (StatusCode::GATEWAY_TIMEOUT, "timeout"),
        ErrorKind::PermissionDenied => (StatusCode::INTERNAL_SERVER_ERROR, "store-permission-denied"),
        _ => (StatusCode::INTERNAL_SERVER_ERROR, "store-failed"),
    }
}

impl From<headwater::Error> for Problem {
    fn from(error: headwater::Error) -> Self {
        let (status, kind) = kind_of(error.kind());
        if status == StatusCode::INTERNAL_SERVER_ERROR {
            tracing::error!(?error, "request failed in the store");
        }
        let detail = error.to_string();
        let field = detail.strip_prefix("invalid ").and_then(|rest| rest.split_once(": "));
        let field = field.filter(|_| kind == "invalid-input").map(|(field, _)| field.replace(' ', "_"));
        let problem = Problem::new(status, kind, detail);
        Problem { field, ..problem }
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let status = self.status();
        let body = serde_json::to_vec(&self).unwrap_or_default();
        let mut response = (status, body).into_response();
        if let Some(denied) = self.denied {
            response.extensions_mut().insert(*denied);
        }
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        if status == StatusCode::UNAUTHORIZED {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        if status == StatusCode::SERVICE_UNAVAILABLE {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(RETRY_AFTER_S));
        }
        response
    }
}

/// What every operation may answer instead, for the OpenAPI document: `responses((status = 200, …), Problems)`.
pub(crate) struct Problems;

impl IntoResponses for Problems {
    fn responses() -> BTreeMap<String, RefOr<openapi::Response>> {
        let content = ContentBuilder::new().schema(Some(Ref::from_schema_name("Problem"))).build();
        let problem = |description: &str| {
            let response = ResponseBuilder::new().description(description);
            RefOr::T(response.content("application/problem+json", content.clone()).build())
        };
        let refused = problem("The request is refused; `type` says why.");
        let failed = problem("The store or the server failed; `type` says how, and 503 may be repeated.");
        BTreeMap::from([("4XX".to_owned(), refused), ("5XX".to_owned(), failed)])
    }
}

/// 404 for a path that no route has.
pub(crate) async fn no_such_path(uri: Uri) -> Problem {
    Problem::not_found(format!("no path {:?}; GET /v1/openapi.json lists them", uri.path()))
}

/// 405 for a path that has no route for the method.
pub(crate) async fn no_such_method(method: Method, uri: Uri) -> Problem {
    let detail = format!("{method} is not allowed for {:?}; GET /v1/openapi.json lists what is", uri.path());
    Problem::new(StatusCode::METHOD_NOT_ALLOWED, "method-not-allowed", detail)
}
