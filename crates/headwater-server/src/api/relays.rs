//! Relays that are registered in the store, and the positions of bridges.

use axum::Json;
use axum::extract::State;
use headwater::bridge::BridgePosition;
use headwater::jiff::Timestamp;
use headwater::relays::RegisteredRelay;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::body::QueryOf;
use super::page::{self, Page};
use crate::app::App;
use crate::auth::{Caller, Scope};
use crate::problem::{Problem, Problems};

/// The routes.
pub(crate) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(relays)).routes(routes!(bridges))
}

/// A registered relay.
#[derive(Debug, Serialize, ToSchema)]
#[schema(example = json!({
    "relay": "orders-kafka", "source": "orders", "target": "kafka://broker:9092/orders", "settings": {"key_order": true}, "created_at": "2026-03-02T09:00:00Z"
}))]
struct RelayView {
    relay: String,
    /// Where its records come from: a topic, or `outbox`.
    source: String,
    /// The URL of its sink. It has no passwords: `${NAME}` stands for a variable of the process that runs it.
    target: String,
    /// How it delivers.
    settings: Value,
    created_at: Timestamp,
}

impl From<RegisteredRelay> for RelayView {
    fn from(relay: RegisteredRelay) -> Self {
        RelayView {
            settings: serde_json::from_str(&relay.settings).unwrap_or(Value::Null),
            relay: relay.name,
            source: relay.source,
            target: relay.target,
            created_at: relay.created_at,
        }
    }
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct ListQuery {
    /// Items at most; 100 by default.
    #[param(minimum = 1, maximum = 1000, example = 100)]
    limit: Option<u32>,
    /// The `next_cursor` of the page before.
    cursor: Option<String>,
}

/// Lists the registered relays by name.
#[utoipa::path(
    get,
    path = "/v1/relays",
    tag = "outbox",
    params(ListQuery),
    responses((status = 200, description = "Relays", body = Page<RelayView>), Problems),
)]
async fn relays(
    State(app): State<App>,
    caller: Caller,
    QueryOf(query): QueryOf<ListQuery>,
) -> Result<Json<Page<RelayView>>, Problem> {
    caller.may(Scope::Read, None)?;
    let relays = app.headwater.relays().list().await?;
    let (limit, cursor) = (page::limit(query.limit)?, query.cursor.as_deref());
    Page::of_whole(relays, limit, cursor, |relay| relay.name.clone(), RelayView::from).map(Json)
}

/// How far a bridge has read a source of another broker.
#[derive(Debug, Serialize, ToSchema)]
#[schema(example = json!({"bridge": "orders-in", "source": "orders/0", "position": 12, "updated_at": "2026-03-02T09:00:00Z"}))]
struct BridgeView {
    bridge: String,
    /// What it reads, by its own naming.
    source: String,
    /// The next position to read.
    position: i64,
    updated_at: Timestamp,
}

impl From<BridgePosition> for BridgeView {
    fn from(stored: BridgePosition) -> Self {
        BridgeView {
            bridge: stored.bridge,
            source: stored.source,
            position: stored.position,
            updated_at: stored.updated_at,
        }
    }
}

/// Lists the positions of bridges, by bridge and source.
#[utoipa::path(
    get,
    path = "/v1/bridges",
    tag = "outbox",
    params(ListQuery),
    responses((status = 200, description = "Positions", body = Page<BridgeView>), Problems),
)]
async fn bridges(
    State(app): State<App>,
    caller: Caller,
    QueryOf(query): QueryOf<ListQuery>,
) -> Result<Json<Page<BridgeView>>, Problem> {
    caller.may(Scope::Read, None)?;
    let stored = app.headwater.bridge_positions().list().await?;
    let (limit, cursor) = (page::limit(query.limit)?, query.cursor.as_deref());
    let key = |stored: &BridgePosition| format!("{}\u{1}{}", stored.bridge, stored.source);
    Page::of_whole(stored, limit, cursor, key, BridgeView::from).map(Json)
}
