//! API tokens: list, create, rotate, revoke. The text of a token is in the answer that creates or rotates it, and nowhere else.

use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use headwater::jiff::Timestamp;
use headwater::tokens::{IssuedToken, NewToken, Scope, Token};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::body::{JsonBody, OptionalBody, PathOf, QueryOf};
use super::page::{self, Page};
use crate::app::App;
use crate::auth::Caller;
use crate::problem::{Problem, Problems};

/// How long the secret before a rotation is accepted, if the request does not say.
const GRACE_MS: u64 = 0;

/// The routes.
pub(crate) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(list, create)).routes(routes!(revoke)).routes(routes!(rotate))
}

/// What a token allows. Each is separate: a token with `admin` alone cannot publish.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
enum ScopeName {
    /// Publish messages.
    Publish,
    /// Claim, settle, extend and stream messages of groups.
    Consume,
    /// See topics, groups, messages and figures.
    Read,
    /// Change topics, groups, dead letters, processes and tokens.
    Admin,
}

impl From<ScopeName> for Scope {
    fn from(name: ScopeName) -> Self {
        match name {
            ScopeName::Publish => Scope::Publish,
            ScopeName::Consume => Scope::Consume,
            ScopeName::Read => Scope::Read,
            ScopeName::Admin => Scope::Admin,
        }
    }
}

impl From<Scope> for ScopeName {
    fn from(scope: Scope) -> Self {
        match scope {
            Scope::Publish => ScopeName::Publish,
            Scope::Consume => ScopeName::Consume,
            Scope::Read => ScopeName::Read,
            Scope::Admin => ScopeName::Admin,
        }
    }
}

/// A token, without its secret.
#[derive(Debug, Serialize, ToSchema)]
#[schema(example = json!({
    "id": "5Xk2mPq9", "name": "shop", "scopes": ["publish"], "topics": ["orders*"], "created_at": "2026-03-02T09:00:00Z", "rotated_at": null,
    "old_until": null, "expires_at": null
}))]
struct TokenView {
    /// Part of its text, and no secret.
    id: String,
    /// Audit entries have it.
    name: String,
    scopes: Vec<ScopeName>,
    /// The topics it is for; `*` stands for any characters.
    topics: Vec<String>,
    created_at: Timestamp,
    rotated_at: Option<Timestamp>,
    /// Until when the secret before the last rotation is accepted too.
    old_until: Option<Timestamp>,
    /// Null for never.
    expires_at: Option<Timestamp>,
}

impl From<Token> for TokenView {
    fn from(token: Token) -> Self {
        TokenView {
            id: token.id,
            name: token.name,
            scopes: token.scopes.into_iter().map(ScopeName::from).collect(),
            topics: token.topics,
            created_at: token.created_at,
            rotated_at: token.rotated_at,
            old_until: token.old_until,
            expires_at: token.expires_at,
        }
    }
}

/// A token with its text, which is shown this once. It has no debug form: that could end in a log.
#[derive(Serialize, ToSchema)]
#[schema(example = json!({
    "secret": "hw_5Xk2mPq9_…", "id": "5Xk2mPq9", "name": "shop", "scopes": ["publish"], "topics": ["orders*"], "created_at": "2026-03-02T09:00:00Z",
    "rotated_at": null, "old_until": null, "expires_at": null
}))]
struct IssuedView {
    /// The text of the token: keep it now, the store has a hash of it.
    secret: String,
    #[serde(flatten)]
    about: TokenView,
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct TokensQuery {
    /// Items at most; 100 by default.
    #[param(minimum = 1, maximum = 1000, example = 100)]
    limit: Option<u32>,
    /// The `next_cursor` of the page before.
    cursor: Option<String>,
}

/// Lists tokens by name, without their secrets.
#[utoipa::path(
    get,
    path = "/v1/tokens",
    tag = "tokens",
    params(TokensQuery),
    responses((status = 200, description = "Tokens", body = Page<TokenView>), Problems),
)]
async fn list(
    State(app): State<App>,
    caller: Caller,
    QueryOf(query): QueryOf<TokensQuery>,
) -> Result<Json<Page<TokenView>>, Problem> {
    caller.may(Scope::Admin, None)?;
    let tokens = app.tokens.store().list().await?;
    let (limit, cursor) = (page::limit(query.limit)?, query.cursor.as_deref());
    Page::of_whole(tokens, limit, cursor, |token| token.name.clone(), TokenView::from).map(Json)
}

/// A token to create.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"name": "shop", "scopes": ["publish"], "topics": ["orders*"], "expires_in_ms": 7_776_000_000u64}))]
struct NewTokenBody {
    /// Unique; audit entries have it.
    #[schema(min_length = 1, max_length = 255)]
    name: String,
    /// What it allows; at least one.
    #[schema(min_items = 1)]
    scopes: Vec<ScopeName>,
    /// The topics it is for: names, in which `*` stands for any characters. All if this is missing.
    #[serde(default)]
    #[schema(max_items = 64)]
    topics: Vec<String>,
    /// How long it is valid; for ever if this is missing.
    #[schema(minimum = 1)]
    expires_in_ms: Option<u64>,
}

/// Answers with a secret are not kept by anything on the way.
const NOT_STORED: [(HeaderName, HeaderValue); 1] =
    [(header::CACHE_CONTROL, HeaderValue::from_static("no-store"))];

type Issued = ([(HeaderName, HeaderValue); 1], Json<IssuedView>);

/// The answer with a new secret. The token is read again: it has the times of the store.
async fn issued(app: &App, issued: IssuedToken) -> Result<Issued, Problem> {
    app.tokens.forget();
    let Some(record) = app.tokens.store().find(issued.id()).await? else {
        return Err(no_such_token(issued.id()));
    };
    Ok((NOT_STORED, Json(IssuedView { secret: issued.secret().to_owned(), about: record.token.into() })))
}

fn no_such_token(id: &str) -> Problem {
    Problem::not_found(format!("no such token: {id:?}; GET /v1/tokens lists them")).at("id")
}

/// Creates a token. Its text is in the answer, and nowhere else.
///
/// The first token of a store closes its servers: from then on every request needs one.
#[utoipa::path(
    post,
    path = "/v1/tokens",
    tag = "tokens",
    request_body = NewTokenBody,
    responses((status = 201, description = "Created", body = IssuedView), Problems),
)]
async fn create(
    State(app): State<App>,
    caller: Caller,
    JsonBody(body): JsonBody<NewTokenBody>,
) -> Result<(StatusCode, Issued), Problem> {
    caller.may(Scope::Admin, None)?;
    let new = NewToken {
        scopes: body.scopes.into_iter().map(Scope::from).collect(),
        topics: body.topics,
        expires_in: body.expires_in_ms.map(Duration::from_millis),
        ..NewToken::new(body.name)
    };
    let token = app.acting(&caller).tokens().create(&new).await;
    let token = token.map_err(|error| {
        Problem::from(error).renamed(&[
            ("token_name", "name"),
            ("topic_pattern", "topics"),
            ("expires_in", "expires_in_ms"),
        ])
    })?;
    Ok((StatusCode::CREATED, issued(&app, token).await?))
}

/// A token that was revoked.
#[derive(Debug, Serialize, ToSchema)]
#[schema(example = json!({"id": "5Xk2mPq9", "revoked": true}))]
struct RevokedToken {
    id: String,
    revoked: bool,
}

/// Revokes a token with its sessions. Other servers accept it for a few seconds more.
#[utoipa::path(
    delete,
    path = "/v1/tokens/{id}",
    tag = "tokens",
    params(("id" = String, Path, description = "The id of the token", example = "5Xk2mPq9")),
    responses((status = 200, description = "Revoked", body = RevokedToken), Problems),
)]
async fn revoke(
    State(app): State<App>,
    caller: Caller,
    PathOf(id): PathOf<String>,
) -> Result<Json<RevokedToken>, Problem> {
    caller.may(Scope::Admin, None)?;
    let is_revoked = app.acting(&caller).tokens().revoke(&id).await?;
    app.tokens.forget();
    if !is_revoked {
        return Err(no_such_token(&id));
    }
    Ok(Json(RevokedToken { id, revoked: true }))
}

/// How a token is rotated.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
#[schema(example = json!({"grace_ms": 3_600_000}))]
struct Rotate {
    /// How long the secret before is accepted too, so that programs change over without an outage; 0 by default.
    #[schema(maximum = 31_622_400_000u64)]
    grace_ms: Option<u64>,
}

/// Gives a token another secret. Its text is in the answer, and nowhere else. Its sessions end.
#[utoipa::path(
    post,
    path = "/v1/tokens/{id}/rotate",
    tag = "tokens",
    params(("id" = String, Path, description = "The id of the token", example = "5Xk2mPq9")),
    request_body = Option<Rotate>,
    responses((status = 200, description = "Rotated", body = IssuedView), Problems),
)]
async fn rotate(
    State(app): State<App>,
    caller: Caller,
    PathOf(id): PathOf<String>,
    OptionalBody(body): OptionalBody<Rotate>,
) -> Result<Issued, Problem> {
    caller.may(Scope::Admin, None)?;
    let tokens = app.acting(&caller).tokens();
    if tokens.find(&id).await?.is_none_or(|record| record.session_of.is_some()) {
        return Err(no_such_token(&id));
    }
    let grace = Duration::from_millis(body.grace_ms.unwrap_or(GRACE_MS));
    let token = tokens.rotate(&id, grace).await;
    let token = token.map_err(|error| Problem::from(error).renamed(&[("grace", "grace_ms")]))?;
    issued(&app, token).await
}
