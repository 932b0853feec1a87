//! Who calls, and what the caller may do.
//!
//! A handler takes a [`Caller`] and asks it: `caller.may(Scope::Consume, Some(&topic))?`. Pages take a [`session::Visitor`]. What is refused is
//! written to the audit by the layer around all routes ([`guard`]).
//!
//! A caller is known by the header `Authorization: Bearer hw_…`, or by the cookie of a session. Where the store has no token at all, every caller that
//! reaches the server is an administrator, under the name `anonymous`: it listens on a loopback address then, or was started as insecure.

use std::sync::Arc;

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use axum::http::{HeaderMap, header};
use headwater::tokens::{PresentedToken, Token};

use crate::app::App;
use crate::problem::{Denied, Problem};

mod denials;
pub(crate) mod guard;
pub(crate) mod session;
mod tokens;

pub(crate) use denials::{Denials, note_denials};
/// What a token allows: `Publish`, `Consume`, `Read`, `Admin`. Each is separate.
pub(crate) use headwater::tokens::Scope;
pub(crate) use tokens::Tokens;

/// The name of callers where no token exists.
const ANONYMOUS: &str = "anonymous";

/// Who sent a request. An extractor: requests without a valid token are answered with 401 before the handler runs. A request with the cookie of a
/// session that changes something needs the header `X-CSRF-Token` too.
#[derive(Clone, Debug)]
pub(crate) struct Caller {
    /// `None` where the store has no token: everything is allowed.
    token: Option<Arc<Token>>,
    name: Arc<str>,
}

impl Caller {
    pub(crate) fn anonymous() -> Self {
        Caller { token: None, name: ANONYMOUS.into() }
    }

    pub(crate) fn with_token(token: Arc<Token>) -> Self {
        Caller { name: format!("token {}", token.name).into(), token: Some(token) }
    }

    /// Whether the caller has the scope, and for a topic the right to this one; else 403. Without a topic, that is for something of the whole
    /// store, the token must allow all topics (`*`).
    pub(crate) fn may(&self, scope: Scope, topic: Option<&str>) -> Result<(), Problem> {
        if self.can(scope, topic) {
            return Ok(());
        }
        let denied = Denied {
            caller: Some(self.name.to_string()),
            scope: Some(scope),
            topic: topic.map(str::to_owned),
            ..Denied::default()
        };
        let has_scope = self.token.as_ref().is_none_or(|token| token.scopes.contains(&scope));
        Err(match (has_scope, topic) {
            (false, _) => {
                let detail = format!("{} lacks the scope {scope}", self.name);
                Problem::forbidden("missing-scope", detail, denied)
            }
            (true, Some(topic)) => {
                let detail = format!("{} is not for topic {topic}", self.name);
                Problem::forbidden("wrong-topic", detail, denied)
            }
            (true, None) => {
                let detail = format!("{} is for some topics, and this is about the whole store", self.name);
                Problem::forbidden("wrong-topic", detail, denied)
            }
        })
    }

    /// The same as a question: for pages and lists that leave out what the caller may not see.
    pub(crate) fn can(&self, scope: Scope, topic: Option<&str>) -> bool {
        self.token.as_ref().is_none_or(|token| token.allows(scope, topic))
    }

    /// Whether the caller has the scope for at least one topic: for lists that are filtered by [`Caller::can`].
    pub(crate) fn has(&self, scope: Scope) -> Result<(), Problem> {
        match &self.token {
            Some(token) if !token.scopes.contains(&scope) => self.may(scope, None),
            _ => Ok(()),
        }
    }

    /// The name in audit entries and pages: `token NAME`, or `anonymous`.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Its token; `None` where the store has none and everything is allowed.
    pub(crate) fn token(&self) -> Option<&Token> {
        self.token.as_deref()
    }
}

impl FromRequestParts<App> for Caller {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Problem> {
        if let Some(presented) = bearer(&parts.headers)? {
            return app.tokens.caller(&presented).await;
        }
        if let Some(session) = session::Session::of(&parts.headers) {
            match app.tokens.caller(session.presented()).await {
                Ok(caller) if parts.method.is_safe() => return Ok(caller),
                Ok(caller) => return session.check_header(&parts.headers, &caller).map(|()| caller),
                // A session that has ended locks its visitor out of no a server that is open.
                Err(_) if app.tokens.is_open().await? => {}
                Err(problem) => return Err(problem),
            }
        }
        match app.tokens.is_open().await? {
            true => Ok(Caller::anonymous()),
            false => Err(Problem::unauthorized("send a token: Authorization: Bearer hw_…")),
        }
    }
}

/// The token of the header `Authorization`, if there is one.
fn bearer(headers: &HeaderMap) -> Result<Option<PresentedToken>, Problem> {
    let Some(value) = headers.get(header::AUTHORIZATION) else { return Ok(None) };
    let token = value.to_str().ok().and_then(|text| text.split_once(' '));
    let token = token.filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"));
    // The text is not repeated: it may be a secret of something else.
    let malformed = || Problem::unauthorized("the header Authorization is not of the form Bearer hw_…");
    let (_, token) = token.ok_or_else(malformed)?;
    token.trim().parse().map(Some).map_err(|_| malformed())
}
