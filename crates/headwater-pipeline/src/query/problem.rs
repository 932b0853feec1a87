//! Answers to requests that fail: `application/problem+json` (RFC 9457), which names the parameter and the rule.

use axum::http::{HeaderValue, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;

use crate::error::Error;

/// What handlers return.
pub(super) type Answer<T> = Result<T, Problem>;

/// After how many seconds a request that met a busy or unreachable server may be repeated.
const RETRY_AFTER_S: u64 = 1;

/// Why a request fails.
#[derive(Debug, Serialize)]
pub(super) struct Problem {
    #[serde(rename = "type")]
    kind: &'static str,
    title: &'static str,
    status: u16,
    detail: String,
    /// The parameter that is refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    parameter: Option<&'static str>,
    /// What it must be.
    #[serde(skip_serializing_if = "Option::is_none")]
    rule: Option<String>,
}

impl Problem {
    fn new(status: StatusCode, detail: String) -> Self {
        let title = status.canonical_reason().unwrap_or_default();
        Problem { kind: "about:blank", title, status: status.as_u16(), detail, parameter: None, rule: None }
    }

    /// 404: it does not exist, or not yet.
    pub(super) fn not_found(detail: impl Into<String>) -> Self {
        Problem::new(StatusCode::NOT_FOUND, detail.into())
    }

    /// 400: a parameter breaks a rule.
    pub(super) fn refused(parameter: &'static str, value: &str, rule: impl Into<String>) -> Self {
        let rule = rule.into();
        let detail = format!("{parameter} {value:?}: {rule}");
        Problem {
            parameter: Some(parameter),
            rule: Some(rule),
            ..Problem::new(StatusCode::BAD_REQUEST, detail)
        }
    }

    /// 406: no format that the client accepts.
    pub(super) fn not_acceptable(rule: &str) -> Self {
        Problem {
            parameter: Some("Accept"),
            rule: Some(rule.to_owned()),
            ..Problem::new(StatusCode::NOT_ACCEPTABLE, format!("Accept: {rule}"))
        }
    }

    /// 503: it may work later.
    pub(super) fn unavailable(detail: impl Into<String>) -> Self {
        Problem::new(StatusCode::SERVICE_UNAVAILABLE, detail.into())
    }
}

impl From<Error> for Problem {
    /// What passes is 503. The rest is damage in the index or a mistake of this program: a person must act.
    fn from(error: Error) -> Self {
        if error.is_transient() {
            return Problem::unavailable(format!("{}: {error}", error.code()));
        }
        tracing::error!(code = %error.code(), %error, "query failed");
        Problem::new(StatusCode::INTERNAL_SERVER_ERROR, format!("{}: {error}", error.code()))
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let body = serde_json::to_vec(&self).unwrap_or_default();
        let mut response = (status, body).into_response();
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        if status == StatusCode::SERVICE_UNAVAILABLE {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(RETRY_AFTER_S));
        }
        response
    }
}

/// 404 for a path that no route has.
pub(super) async fn no_such_path(uri: Uri) -> Problem {
    Problem::not_found(format!("no path {:?}", uri.path()))
}

/// 405: everything here is read.
pub(super) async fn only_get() -> Response {
    let problem = Problem::new(StatusCode::METHOD_NOT_ALLOWED, "only GET and HEAD are allowed".into());
    let mut response = problem.into_response();
    response.headers_mut().insert(header::ALLOW, HeaderValue::from_static("GET, HEAD"));
    response
}
