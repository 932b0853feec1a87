//! The layer around all routes: where a request comes from, and what was denied.
//!
//! A browser sends requests on behalf of any page it shows. Two checks keep other pages out, both for requests without a token in `Authorization`, which
//! only a program sends:
//!
//! - **Host.** Where every caller is an administrator, the host of a request must be an IP address, `localhost` or a name that the server was given: a
//!   page elsewhere may have its name resolve to this server (DNS rebinding), and is then refused by its name. With given names those alone are
//!   accepted, whatever the tokens.
//! - **Origin.** A request of another page is refused: its `Origin` differs from the host, or the browser says `Sec-Fetch-Site: cross-site`. A link from
//!   elsewhere to a page of the dashboard is not.

use std::net::{IpAddr, SocketAddr};

use axum::extract::{ConnectInfo, FromRequestParts, Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::{Caller, Scope};
use crate::app::App;
use crate::problem::{Denied, Problem};

/// Refuses requests that come from other pages, reports what was denied, and adds headers that keep browsers from guessing.
pub(crate) async fn guard(State(app): State<App>, request: Request, next: Next) -> Response {
    let peer = request.extensions().get::<ConnectInfo<SocketAddr>>().map(|info| info.0.ip());
    let (parts, body) = request.into_parts();
    let (method, path) = (parts.method.clone(), parts.uri.path().to_owned());
    let mut response = match check(&app, &parts).await {
        Ok(()) => next.run(Request::from_parts(parts, body)).await,
        Err(problem) => problem.into_response(),
    };
    if let Some(denied) = response.extensions_mut().remove::<Denied>() {
        app.denials.note(denied, peer, &method, &path);
    }
    let headers = response.headers_mut();
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    headers.entry(header::REFERRER_POLICY).or_insert(HeaderValue::from_static("same-origin"));
    headers.entry(header::X_FRAME_OPTIONS).or_insert(HeaderValue::from_static("DENY"));
    response
}

/// For routes of others that know no callers: only those with `read` for all topics pass.
pub(crate) async fn readers_only(State(app): State<App>, request: Request, next: Next) -> Response {
    let (mut parts, body) = request.into_parts();
    let caller = Caller::from_request_parts(&mut parts, &app).await;
    match caller.and_then(|caller| caller.may(Scope::Read, None)) {
        Ok(()) => next.run(Request::from_parts(parts, body)).await,
        Err(problem) => problem.into_response(),
    }
}

async fn check(app: &App, request: &Parts) -> Result<(), Problem> {
    let headers = &request.headers;
    if headers.contains_key(header::AUTHORIZATION) {
        return Ok(());
    }
    let host = host_of(request)?;
    let is_given = app.host_names.iter().any(|name| name.eq_ignore_ascii_case(name_of(host)));
    let must_be_known = !app.host_names.is_empty() || app.tokens.is_open().await?;
    if must_be_known && !is_given && !is_local(name_of(host)) {
        let detail = format!(
            "the host {host:?} is not a name of this server; serve with --host-name {}",
            name_of(host)
        );
        return Err(Problem::forbidden("wrong-host", detail, Denied::default()));
    }
    if is_of_another_page(headers, host) && !is_link(request) {
        let detail = "the request comes from a page elsewhere; use a token in the header Authorization";
        return Err(Problem::forbidden("wrong-origin", detail, Denied::default()));
    }
    Ok(())
}

/// The host that the client asked for, with its port.
fn host_of(request: &Parts) -> Result<&str, Problem> {
    let header = request.headers.get(header::HOST).and_then(|host| host.to_str().ok());
    let host = request.uri.authority().map(axum::http::uri::Authority::as_str).or(header);
    host.filter(|host| !host.is_empty())
        .ok_or_else(|| Problem::new(StatusCode::BAD_REQUEST, "no-host", "the request has no header Host"))
}

/// A host without its port.
fn name_of(host: &str) -> &str {
    match host.rsplit_once(':') {
        // The colons of an IPv6 address are in brackets.
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    }
}

/// Whether no name server has a say in where it leads.
fn is_local(name: &str) -> bool {
    let address = name.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(name);
    let name = name.to_ascii_lowercase();
    name == "localhost" || name.ends_with(".localhost") || address.parse::<IpAddr>().is_ok()
}

fn is_of_another_page(headers: &HeaderMap, host: &str) -> bool {
    let text = |name: &str| headers.get(name).map(|value| value.to_str().unwrap_or("?"));
    let origin =
        text("origin").is_some_and(|origin| origin.split_once("://").map(|(_, at)| at) != Some(host));
    origin || text("sec-fetch-site").is_some_and(|site| !matches!(site, "same-origin" | "none"))
}

/// A link that was followed to a page, which shows it and changes nothing.
fn is_link(request: &Parts) -> bool {
    let mode = request.headers.get("sec-fetch-mode").map(HeaderValue::as_bytes);
    let is_page = !request.uri.path().starts_with("/v1/");
    is_page
        && request.method == Method::GET
        && mode == Some(b"navigate")
        && !request.headers.contains_key("origin")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_hosts_that_no_name_server_moves_are_local() {
        for host in [
            "localhost",
            "localhost:7070",
            "127.0.0.1:80",
            "[::1]:7070",
            "[::1]",
            "10.1.2.3",
            "App.LOCALHOST:1",
        ] {
            assert!(is_local(name_of(host)), "{host}");
        }
        for host in [
            "evil.example",
            "localhost.evil.example:7070",
            "127.0.0.1.evil.example",
            "::1.evil",
            "localhost:x",
            "",
        ] {
            assert!(!is_local(name_of(host)), "{host}");
        }
    }

    #[test]
    fn pages_elsewhere_are_known_by_origin_or_by_the_browser() {
        let of = |name: &'static str, value: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(name, HeaderValue::from_static(value));
            is_of_another_page(&headers, "localhost:7070")
        };
        assert!(!is_of_another_page(&HeaderMap::new(), "localhost:7070"));
        assert!(
            !of("origin", "http://localhost:7070")
                && !of("sec-fetch-site", "same-origin")
                && !of("sec-fetch-site", "none")
        );
        for origin in
            ["http://localhost:8080", "https://evil.example", "null", "http://localhost:7070.evil.example"]
        {
            assert!(of("origin", origin), "{origin}");
        }
        assert!(of("sec-fetch-site", "cross-site") && of("sec-fetch-site", "same-site"));
    }
}
