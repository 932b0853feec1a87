//! Groups: list over all topics, subscribe, show, remove, and what they have outstanding. Their life cycle is in `groups/change.rs`.

mod change;
mod policy;
mod view;

use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use headwater::consumer::GroupOrder;
use headwater::store::{FoundGroup, GroupPlace, NewSubscription, SubscriptionId};
use headwater::{ErrorKind, Start, SubscriptionState};
use serde::{Deserialize, Serialize};
use serde_json::json;
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use self::policy::{EffectivePolicy, Policy, PolicyChange};
use self::view::{GroupView, OutstandingView, StateName};
use super::body::{OptionalBody, PathOf, QueryOf};
use super::page::{self, Page};
use super::position::Position;
use crate::app::App;
use crate::auth::{Caller, Scope};
use crate::problem::{Problem, Problems};

/// How long a removal waits for messages in flight, if the request does not say.
const REMOVAL_WAIT_MS: u64 = 10_000;

/// The routes.
pub(crate) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(list))
        .routes(routes!(show, put, remove))
        .routes(routes!(outstanding))
        .merge(change::routes())
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct GroupsQuery {
    /// Only groups of this topic.
    #[param(example = "orders", max_length = 255)]
    topic: Option<String>,
    /// Only groups in this state.
    #[param(inline, example = "active")]
    state: Option<StateName>,
    /// Only groups whose name or topic contains this text; upper and lower case are the same in ASCII.
    #[param(example = "mail", max_length = 255)]
    search: Option<String>,
    /// Items at most; 100 by default.
    #[param(minimum = 1, maximum = 1000, example = 100)]
    limit: Option<u32>,
    /// The `next_cursor` of the page before.
    cursor: Option<String>,
}

/// Lists groups of all topics, by topic and name, with their progress and health.
///
/// Cancelled groups are listed until they are removed. A token for some topics sees the groups of these.
#[utoipa::path(
    get,
    path = "/v1/groups",
    tag = "groups",
    params(GroupsQuery),
    responses((status = 200, description = "Groups", body = Page<GroupView>), Problems),
)]
async fn list(
    State(app): State<App>,
    caller: Caller,
    QueryOf(query): QueryOf<GroupsQuery>,
) -> Result<Json<Page<GroupView>>, Problem> {
    caller.has(Scope::Read)?;
    let GroupsQuery { topic, state, search, limit, cursor } = query;
    let (limit, search) = (page::limit(limit)?, page::search(search));
    if let Some(topic) = &topic {
        caller.may(Scope::Read, Some(topic))?;
        app.headwater.topics().get(topic).await?;
    }
    let groups = app.headwater.all_groups();
    let read = |after: Option<(String, String, i32)>, limit: u32| {
        let (groups, topic, search) = (groups.clone(), topic.clone(), search.clone());
        async move {
            let found = groups.list(limit, |mut all| {
                all = topic.map_or(all.clone(), |topic| all.topic(topic));
                all = state.map_or(all.clone(), |state| all.state(state.into()));
                all = search.map_or(all.clone(), |search| all.contains(search));
                after.map_or(all.clone(), |(topic, group, id)| {
                    all.after(GroupPlace { topic, group, subscription_id: SubscriptionId(id) })
                })
            });
            Ok(found.await?)
        }
    };
    let place = |found: &FoundGroup| {
        let GroupPlace { topic, group, subscription_id } = found.place();
        (topic, group, subscription_id.0)
    };
    let sees = |found: &FoundGroup| caller.can(Scope::Read, Some(found.topic.as_str()));
    let page = page::seen(limit, page::decode(cursor.as_deref())?, read, place, sees).await?;
    Ok(Json(page.map(|found| GroupView::new(found.topic.as_str(), found.health))))
}

/// A group with its delivery policy.
#[derive(Debug, Serialize, ToSchema)]
struct GroupDetail {
    #[serde(flatten)]
    group: GroupView,
    /// Its own delivery settings; null where the topic's apply. Null as a whole for a cancelled group.
    policy: Option<Policy>,
    /// The delivery settings that apply.
    effective_policy: Option<EffectivePolicy>,
}

async fn detail(app: &App, topic: &str, group: &str) -> Result<GroupDetail, Problem> {
    let groups = app.headwater.groups(topic);
    let health = groups.get(group).await?;
    let (mut policy, mut effective_policy) = (None, None);
    if health.status.state != SubscriptionState::Cancelled {
        let (own, settings) =
            (groups.policy(group).await?, app.headwater.topics().get(topic).await?.settings);
        effective_policy = Some(EffectivePolicy::from(&own.apply_to(&settings)));
        policy = Some(Policy::from(&own));
    }
    Ok(GroupDetail { group: GroupView::new(topic, health), policy, effective_policy })
}

/// Shows a group: its state, progress, health and policy.
#[utoipa::path(
    get,
    path = "/v1/topics/{topic}/groups/{group}",
    tag = "groups",
    params(
        ("topic" = String, Path, description = "The topic", example = "orders"),
        ("group" = String, Path, description = "The group", example = "email"),
    ),
    responses((status = 200, description = "The group", body = GroupDetail), Problems),
)]
async fn show(
    State(app): State<App>,
    caller: Caller,
    PathOf((topic, group)): PathOf<(String, String)>,
) -> Result<Json<GroupDetail>, Problem> {
    caller.may(Scope::Read, Some(&topic))?;
    Ok(Json(detail(&app, &topic, &group).await?))
}

/// A group to subscribe, and its delivery policy.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
#[schema(example = json!({"start": "start", "max_attempts": 5, "lease_ms": 60000}))]
struct NewGroup {
    /// Where a new group starts; at the oldest message still stored by default. An existing group keeps its position.
    start: Option<Position>,
    /// Whether a new group handles messages of one key strictly in order; as its topic says by default.
    ordered_by_key: Option<bool>,
    /// Into how many lanes a new ordered group is split; as its topic says by default.
    #[schema(minimum = 1, maximum = 256)]
    lanes: Option<u16>,
    /// How long a lease lasts; null for the topic's.
    #[serde(deserialize_with = "policy::given")]
    #[schema(value_type = Option<u64>, maximum = 31_622_400_000u64)]
    lease_ms: Option<Option<u64>>,
    /// How often a message is handed out before it becomes a dead letter; null for the topic's.
    #[serde(deserialize_with = "policy::given")]
    #[schema(value_type = Option<u32>, minimum = 1, maximum = 1000)]
    max_attempts: Option<Option<u32>>,
    /// The first retry delay; null for the topic's.
    #[serde(deserialize_with = "policy::given")]
    #[schema(value_type = Option<u64>, maximum = 31_622_400_000u64)]
    backoff_initial_ms: Option<Option<u64>>,
    /// The longest retry delay; null for the topic's.
    #[serde(deserialize_with = "policy::given")]
    #[schema(value_type = Option<u64>, maximum = 31_622_400_000u64)]
    backoff_max_ms: Option<Option<u64>>,
    /// How often the processes of the group send a heartbeat; null for the topic's.
    #[serde(deserialize_with = "policy::given")]
    #[schema(value_type = Option<u64>, minimum = 100, maximum = 31_622_400_000u64)]
    heartbeat_interval_ms: Option<Option<u64>>,
    /// After how long without a heartbeat the group is dead; null for the topic's.
    #[serde(deserialize_with = "policy::given")]
    #[schema(value_type = Option<u64>, maximum = 31_622_400_000u64)]
    heartbeat_timeout_ms: Option<Option<u64>>,
}

impl NewGroup {
    fn policy(&self) -> PolicyChange {
        PolicyChange {
            lease_ms: self.lease_ms,
            max_attempts: self.max_attempts,
            backoff_initial_ms: self.backoff_initial_ms,
            backoff_max_ms: self.backoff_max_ms,
            heartbeat_interval_ms: self.heartbeat_interval_ms,
            heartbeat_timeout_ms: self.heartbeat_timeout_ms,
        }
    }

    fn subscription(&self) -> Result<NewSubscription, Problem> {
        let start = self.start.as_ref().map_or(Ok(Start::Beginning), |start| start.start("start"))?;
        let order = match (self.ordered_by_key, self.lanes) {
            (None, None) => GroupOrder::AsTopic,
            (Some(false), None) => GroupOrder::Unordered,
            (Some(false), Some(_)) => {
                return Err(Problem::invalid("lanes", "a group that is not ordered has none; leave it out"));
            }
            (_, lanes) => GroupOrder::ByKey { lanes },
        };
        let policy = self.policy().applied_to(&headwater::DeliveryPolicy::default());
        Ok(NewSubscription { start, order, policy, ..NewSubscription::default() })
    }
}

/// Subscribes a group, or changes the delivery policy of one that exists.
///
/// An existing group keeps its position and its order; a dead one is resurrected. Delivery settings that are not given stay.
#[utoipa::path(
    put,
    path = "/v1/topics/{topic}/groups/{group}",
    tag = "groups",
    params(
        ("topic" = String, Path, description = "The topic", example = "orders"),
        ("group" = String, Path, description = "The group", example = "email"),
    ),
    request_body = Option<NewGroup>,
    responses(
        (status = 201, description = "Subscribed", body = GroupDetail),
        (status = 200, description = "It exists", body = GroupDetail),
        Problems,
    ),
)]
async fn put(
    State(app): State<App>,
    caller: Caller,
    PathOf((topic, group)): PathOf<(String, String)>,
    OptionalBody(new): OptionalBody<NewGroup>,
) -> Result<(StatusCode, Json<GroupDetail>), Problem> {
    caller.may(Scope::Admin, Some(&topic))?;
    let headwater = app.acting(&caller);
    let groups = headwater.groups(&topic);
    let is_new = groups.subscribe_with(&group, &new.subscription()?).await.map_err(named)?;
    if is_new {
        let next = groups.get(&group).await?.status.next.0;
        headwater.note_act("subscribe", Some(&topic), Some(&group), &json!({ "next": next })).await?;
    } else if !new.policy().is_empty() {
        let before = groups.policy(&group).await?;
        let policy = new.policy().applied_to(&before);
        if policy != before {
            groups.set_policy(&group, &policy).await.map_err(named)?;
        }
    }
    let status = if is_new { StatusCode::CREATED } else { StatusCode::OK };
    Ok((status, Json(detail(&app, &topic, &group).await?)))
}

/// The problem of a group, under the names of its JSON.
fn named(error: headwater::Error) -> Problem {
    Problem::from(error).renamed(&[
        ("lease", "lease_ms"),
        ("backoff_initial", "backoff_initial_ms"),
        ("backoff_max", "backoff_max_ms"),
        ("heartbeat_interval", "heartbeat_interval_ms"),
        ("heartbeat_timeout", "heartbeat_timeout_ms"),
        ("start_offset", "start"),
    ])
}

#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields, default)]
#[into_params(parameter_in = Query)]
struct RemovalQuery {
    /// Changes nothing: the answer shows what would be lost.
    dry_run: bool,
    /// How long messages in flight are waited for, up to 60 seconds; 10 seconds by default.
    #[param(maximum = 60_000, example = 0)]
    wait_ms: Option<u64>,
}

/// A group that was removed, or would be.
#[derive(Debug, Serialize, ToSchema)]
#[schema(example = json!({
    "topic": "orders", "group": "email", "dry_run": true, "state": "active", "lag": 12, "leases": 1, "in_flight": 3, "retrying": 0, "dead_letters": 2
}))]
struct RemovedGroup {
    topic: String,
    group: String,
    /// Whether nothing was changed.
    dry_run: bool,
    /// Its state before.
    state: StateName,
    /// Messages that it had not done.
    lag: u64,
    /// Leases that had not expired.
    leases: u64,
    /// Messages whose owners cannot settle them any more.
    in_flight: u64,
    /// Messages that waited for a retry.
    retrying: u64,
    /// Dead letters that were deleted with it.
    dead_letters: u64,
}

/// Removes a group with its dead letters: pauses it, waits for messages in flight, cancels and deletes it.
#[utoipa::path(
    delete,
    path = "/v1/topics/{topic}/groups/{group}",
    tag = "groups",
    params(
        ("topic" = String, Path, description = "The topic", example = "orders"),
        ("group" = String, Path, description = "The group", example = "email"),
        RemovalQuery,
    ),
    responses((status = 200, description = "What was lost, or would be", body = RemovedGroup), Problems),
)]
async fn remove(
    State(app): State<App>,
    caller: Caller,
    PathOf((topic, group)): PathOf<(String, String)>,
    QueryOf(query): QueryOf<RemovalQuery>,
) -> Result<Json<RemovedGroup>, Problem> {
    caller.may(Scope::Admin, Some(&topic))?;
    let wait = Duration::from_millis(query.wait_ms.unwrap_or(REMOVAL_WAIT_MS));
    if wait > app.limits.wait_max {
        let rule =
            format!("longer than {} ms, the longest wait of this server", app.limits.wait_max.as_millis());
        return Err(Problem::invalid("wait_ms", rule));
    }
    let groups = app.acting(&caller).groups(&topic);
    let before = groups.get(&group).await?.status;
    let in_flight = match query.dry_run {
        true => before.in_flight,
        false => groups.remove(&group, wait).await.map_err(half_way)?.in_flight,
    };
    Ok(Json(RemovedGroup {
        topic,
        group,
        dry_run: query.dry_run,
        state: before.state.into(),
        lag: before.lag,
        leases: before.leased,
        in_flight,
        retrying: before.retrying,
        dead_letters: before.dead_letters,
    }))
}

/// A removal may end between its steps; a repeat continues.
fn half_way(error: headwater::Error) -> Problem {
    let is_transition = error.kind() == ErrorKind::InvalidTransition;
    let problem = Problem::from(error);
    if !is_transition {
        return problem;
    }
    let detail =
        format!("{}; the group may be cancelled and not removed yet: repeat the request", problem.detail());
    Problem::new(problem.status(), problem.kind(), detail)
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct OutstandingQuery {
    /// Ranges at most; 100 by default.
    #[param(minimum = 1, maximum = 1000, example = 100)]
    limit: Option<u32>,
}

/// Lists what a group has been handed and has not done: leased, waiting for a retry, or parked behind another message of its key.
///
/// Those that are due first come first. There is no next page: `next_cursor` is always null, and `in_flight` and `retrying` of the group count all.
#[utoipa::path(
    get,
    path = "/v1/topics/{topic}/groups/{group}/outstanding",
    tag = "groups",
    params(
        ("topic" = String, Path, description = "The topic", example = "orders"),
        ("group" = String, Path, description = "The group", example = "email"),
        OutstandingQuery,
    ),
    responses((status = 200, description = "Ranges of offsets", body = Page<OutstandingView>), Problems),
)]
async fn outstanding(
    State(app): State<App>,
    caller: Caller,
    PathOf((topic, group)): PathOf<(String, String)>,
    QueryOf(query): QueryOf<OutstandingQuery>,
) -> Result<Json<Page<OutstandingView>>, Problem> {
    caller.may(Scope::Read, Some(&topic))?;
    let ranges = app.headwater.groups(&topic).outstanding(&group, page::limit(query.limit)?).await?;
    Ok(Json(Page { items: ranges.into_iter().map(OutstandingView::from).collect(), next_cursor: None }))
}
