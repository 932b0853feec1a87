//! Sessions of the dashboard: the cookie, and the CSRF token of forms.
//!
//! Pages take a [`Visitor`]; forms are extracted as [`Submitted`], which checks the hidden field `csrf` first:
//!
//! ```ignore
//! async fn page(State(app): State<App>, visitor: Visitor) -> Markup {
//!     html! { form method="post" action="…" { input type="hidden" name="csrf" value=(visitor.csrf()); … } }
//! }
//! async fn pause(State(app): State<App>, Submitted { visitor, form }: Submitted<Pause>) -> Result<Redirect, Problem> {
//!     visitor.caller.may(Scope::Admin, Some(&form.topic))?;
//!     …
//! }
//! ```
//!
//! A session is a short-lived token of its own, which the cookie has: nothing is kept here, so any server of the store accepts it, and it ends with
//! the token it was started with. The CSRF token is derived from the session's secret, which no page elsewhere can read. Where the store has no token
//! there is no session: the CSRF token is then one of the process.

use std::time::Duration;

use axum::extract::{FromRequest, FromRequestParts, Request};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, Uri, header};
use axum::response::{IntoResponse, Redirect, Response};
use headwater::tokens::PresentedToken;
use serde::de::DeserializeOwned;
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use super::Caller;
use crate::api::body;
use crate::app::App;
use crate::problem::{Denied, Problem};

/// The cookie of a session.
const COOKIE: &str = "headwater_session";
/// The header with the CSRF token, for requests of scripts.
const CSRF_HEADER: HeaderName = HeaderName::from_static("x-csrf-token");
/// How long a session lasts.
const LASTS: Duration = Duration::from_secs(12 * 3600);

/// Who sees a page. Without a session, a GET is redirected to `/login?next=…` (303), and anything else is 401.
#[derive(Clone, Debug)]
pub(crate) struct Visitor {
    pub(crate) caller: Caller,
    csrf: String,
    has_session: bool,
}

impl Visitor {
    /// The value of the hidden field `csrf` of every form, and of the header `X-CSRF-Token` of scripts.
    pub(crate) fn csrf(&self) -> &str {
        &self.csrf
    }

    /// Whether there is a session to end: not where the store has no token.
    pub(crate) fn has_session(&self) -> bool {
        self.has_session
    }

    /// 403 unless this is the CSRF token of the session.
    fn check(&self, csrf: &str) -> Result<(), Problem> {
        if bool::from(self.csrf.as_bytes().ct_eq(csrf.as_bytes())) {
            Ok(())
        } else {
            Err(refused(&self.caller))
        }
    }
}

impl FromRequestParts<App> for Visitor {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Response> {
        let session = Session::of(&parts.headers);
        let caller = match &session {
            Some(session) => app.tokens.caller(session.presented()).await,
            None => match app.tokens.is_open().await {
                Ok(true) => Ok(Caller::anonymous()),
                Ok(false) => Err(Problem::unauthorized("log in first: /login")),
                Err(error) => Err(error.into()),
            },
        };
        match caller {
            Ok(caller) => {
                let csrf = session.as_ref().map_or_else(|| app.csrf.clone(), Session::csrf);
                Ok(Visitor { caller, csrf, has_session: session.is_some() })
            }
            // A session that has ended does not lock its visitor out of a server that is open again.
            Err(_) if session.is_some() && matches!(app.tokens.is_open().await, Ok(true)) => {
                Ok(Visitor { caller: Caller::anonymous(), csrf: app.csrf.clone(), has_session: false })
            }
            Err(problem) if problem.status() == axum::http::StatusCode::UNAUTHORIZED => {
                Err(to_login(&parts.method, &parts.uri, problem))
            }
            Err(problem) => Err(problem.into_response()),
        }
    }
}

/// To the page that asks for a token, and back from there.
fn to_login(method: &Method, uri: &Uri, problem: Problem) -> Response {
    if method != Method::GET {
        return problem.into_response();
    }
    let next = uri.path_and_query().map_or("/", |path| path.as_str());
    let mut query = form_urlencoded::Serializer::new(String::new());
    query.append_pair("next", next);
    Redirect::to(&format!("/login?{}", query.finish())).into_response()
}

/// A form that was sent from a page of this server: its field `csrf` was checked. `T` has the other fields, and ignores `csrf`.
pub(crate) struct Submitted<T> {
    pub(crate) visitor: Visitor,
    pub(crate) form: T,
}

#[derive(serde::Deserialize)]
struct Csrf {
    #[serde(default)]
    csrf: String,
}

impl<T: DeserializeOwned> FromRequest<App> for Submitted<T> {
    type Rejection = Response;

    async fn from_request(request: Request, app: &App) -> Result<Self, Response> {
        let (mut parts, body) = request.into_parts();
        let visitor = Visitor::from_request_parts(&mut parts, app).await?;
        let bytes = body::read(body, &app.limits).await.map_err(IntoResponse::into_response)?;
        let form = submitted(&visitor, &bytes).map_err(IntoResponse::into_response)?;
        Ok(Submitted { visitor, form })
    }
}

fn submitted<T: DeserializeOwned>(visitor: &Visitor, bytes: &[u8]) -> Result<T, Problem> {
    let misread = |error: serde_urlencoded::de::Error| Problem::invalid("form", error);
    let csrf: Csrf = serde_urlencoded::from_bytes(bytes).map_err(misread)?;
    visitor.check(&csrf.csrf)?;
    serde_urlencoded::from_bytes(bytes).map_err(misread)
}

/// The session of a request, by its cookie; not checked yet.
pub(crate) struct Session {
    text: String,
    presented: PresentedToken,
}

impl Session {
    /// `None` without a cookie, or with one that is none of ours.
    pub(super) fn of(headers: &HeaderMap) -> Option<Self> {
        let cookies = headers.get_all(header::COOKIE).iter().filter_map(|value| value.to_str().ok());
        let mut pairs =
            cookies.flat_map(|line| line.split(';')).filter_map(|pair| pair.trim().split_once('='));
        let text = pairs.find(|(name, _)| *name == COOKIE)?.1.to_owned();
        Some(Session { presented: text.parse().ok()?, text })
    }

    pub(super) fn presented(&self) -> &PresentedToken {
        &self.presented
    }

    fn csrf(&self) -> String {
        csrf_of(&self.text)
    }

    /// 403 unless the request has the session's CSRF token in its header.
    pub(super) fn check_header(&self, headers: &HeaderMap, caller: &Caller) -> Result<(), Problem> {
        let sent = headers.get(CSRF_HEADER).map(HeaderValue::as_bytes).unwrap_or_default();
        if bool::from(self.csrf().as_bytes().ct_eq(sent)) { Ok(()) } else { Err(refused(caller)) }
    }
}

fn refused(caller: &Caller) -> Problem {
    let denied = Denied { caller: Some(caller.name().to_owned()), ..Denied::default() };
    Problem::forbidden("csrf", "the form has expired or is not from this server; load the page again", denied)
}

/// The CSRF token of a secret. Known to who knows the secret alone, and says nothing about it.
pub(crate) fn csrf_of(secret: &str) -> String {
    let digest = Sha256::new().chain_update(b"headwater csrf\0").chain_update(secret.as_bytes()).finalize();
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Starts a session for a token: the value of `Set-Cookie`. 401 if the token is not valid.
pub(crate) async fn start(app: &App, headers: &HeaderMap, token: &str) -> Result<HeaderValue, Problem> {
    let caller = match token.trim().parse::<PresentedToken>() {
        Ok(presented) => app.tokens.caller(&presented).await,
        Err(_) => Err(Problem::unauthorized("this is not a token: it begins with hw_")),
    };
    // Noted here: the page that shows it is no problem any more.
    let caller = caller.map_err(|mut problem| {
        if let Some(denied) = problem.take_denied() {
            app.denials.note(denied, None, &Method::POST, "/login");
        }
        problem
    })?;
    let id = caller.token().map(|token| token.id.clone()).unwrap_or_default();
    let session = app.acting(&caller).tokens().start_session(&id, LASTS).await?;
    cookie(session.secret(), LASTS, app.has_tls || is_behind_tls(headers))
}

/// Ends the session of a request: the value of `Set-Cookie`.
pub(crate) async fn end(app: &App, headers: &HeaderMap) -> Result<HeaderValue, Problem> {
    if let Some(session) = Session::of(headers) {
        app.tokens.caller(session.presented()).await?;
        app.tokens.store().end_session(session.presented().id()).await?;
        app.tokens.forget();
    }
    cookie("", Duration::ZERO, app.has_tls || is_behind_tls(headers))
}

/// Whether a proxy in front says that its client uses TLS. If it lies, the cookie is not sent back: nothing is given away.
fn is_behind_tls(headers: &HeaderMap) -> bool {
    headers.get("x-forwarded-proto").is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(b"https"))
}

fn cookie(value: &str, lasts: Duration, secure: bool) -> Result<HeaderValue, Problem> {
    let secure = if secure { "; Secure" } else { "" };
    let text =
        format!("{COOKIE}={value}; Path=/; HttpOnly; SameSite=Lax; Max-Age={}{secure}", lasts.as_secs());
    let mut value = HeaderValue::try_from(text).map_err(|error| Problem::invalid("cookie", error))?;
    value.set_sensitive(true);
    Ok(value)
}
