//! Topics: list, create, show, change, purge, delete.

mod settings;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use headwater::store::TopicStatus;
use headwater::topic::{Removal, TopicContents};
use headwater::{ErrorKind, TopicSettings};
use serde::{Deserialize, Serialize};
use serde_json::json;
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use self::settings::{PresetName, Settings, SettingsChange};
use super::body::{JsonBody, OptionalBody, PathOf, QueryOf, object};
use super::page::{self, Page};
use crate::app::App;
use crate::auth::{Caller, Scope};
use crate::problem::{Problem, Problems};

/// The routes.
pub(crate) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(list, create))
        .routes(routes!(show, alter, delete))
        .routes(routes!(purge))
}

/// A topic: its settings and the progress of its log.
#[derive(Debug, Serialize, ToSchema)]
#[schema(example = json!({
    "name": "orders", "head": 1200, "first": 201, "watermark": 1190, "retained": 1000, "scheduled": 2, "gaps": 0, "subscriptions": 1, "counting": 1,
    "health_issues": [], "tracking_change": null, "settings": {"semantics": "queue", "lease_ms": 300000}
}))]
pub(super) struct TopicView {
    /// Its name.
    name: String,
    /// The highest offset that may be delivered.
    head: i64,
    /// The first offset that may still be stored.
    first: i64,
    /// Everything at or below it is done for every group that counts.
    watermark: i64,
    /// Offsets that may be stored.
    retained: i64,
    /// Scheduled messages that are not due.
    scheduled: u64,
    /// Gaps below the head; always 0 on SQLite.
    gaps: u64,
    /// Groups that are not cancelled.
    subscriptions: u64,
    /// Groups that retention waits for.
    counting: u64,
    /// What is wrong with it; empty if nothing is.
    health_issues: Vec<&'static str>,
    /// How far a change of `tracking` is; null if none is under way.
    tracking_change: Option<TrackingChange>,
    /// Its settings.
    settings: Settings,
}

/// The progress of a change of `tracking`, in offsets.
#[derive(Debug, Serialize, ToSchema)]
struct TrackingChange {
    /// Offsets processed.
    done: u64,
    /// Offsets to process in total.
    total: u64,
}

impl From<TopicStatus> for TopicView {
    fn from(status: TopicStatus) -> Self {
        TopicView {
            name: status.topic.name.as_str().to_owned(),
            head: status.head.0,
            first: status.first.0,
            watermark: status.watermark.0,
            retained: (status.head.0 - status.first.0 + 1).max(0),
            scheduled: status.scheduled,
            gaps: status.gaps,
            subscriptions: status.subscriptions,
            counting: status.counting,
            health_issues: status
                .health_issues()
                .into_iter()
                .map(headwater::topic::TopicIssue::as_str)
                .collect(),
            tracking_change: status
                .tracking_change
                .map(|change| TrackingChange { done: change.done, total: change.total }),
            settings: Settings(status.topic.settings),
        }
    }
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct TopicsQuery {
    /// Only topics whose name contains this text; upper and lower case are the same in ASCII.
    #[param(example = "order", max_length = 255)]
    search: Option<String>,
    /// Items at most; 100 by default.
    #[param(minimum = 1, maximum = 1000, example = 100)]
    limit: Option<u32>,
    /// The `next_cursor` of the page before.
    cursor: Option<String>,
}

/// Lists topics by name.
///
/// A token for some topics sees these.
#[utoipa::path(
    get,
    path = "/v1/topics",
    tag = "topics",
    params(TopicsQuery),
    responses((status = 200, description = "Topics", body = Page<TopicView>), Problems),
)]
async fn list(
    State(app): State<App>,
    caller: Caller,
    QueryOf(query): QueryOf<TopicsQuery>,
) -> Result<Json<Page<TopicView>>, Problem> {
    caller.has(Scope::Read)?;
    let (limit, search) = (page::limit(query.limit)?, page::search(query.search));
    let topics = app.headwater.topics();
    let read = |after: Option<String>, limit: u32| {
        let (topics, search) = (topics.clone(), search.clone());
        async move {
            let found = topics.find(limit, |mut all| {
                all = search.map_or(all.clone(), |search| all.contains(search));
                after.map_or(all.clone(), |after| all.after(after))
            });
            Ok(found.await?)
        }
    };
    let name = |status: &TopicStatus| status.topic.name.as_str().to_owned();
    let sees = |status: &TopicStatus| caller.can(Scope::Read, Some(status.topic.name.as_str()));
    let page = page::seen(limit, page::decode(query.cursor.as_deref())?, read, name, sees).await?;
    Ok(Json(page.map(TopicView::from)))
}

/// A topic to create.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"name": "orders", "preset": "standard", "settings": {"max_attempts": 5, "lease_ms": 60000}}))]
struct NewTopic {
    /// Its name: 1 to 255 bytes without control characters.
    #[schema(min_length = 1, max_length = 255)]
    name: String,
    /// Where settings that are not given come from; those of a queue by default, or of a fan-out topic if `semantics` is `pub_sub`.
    preset: Option<PresetName>,
    /// Settings that differ.
    #[serde(default, deserialize_with = "object")]
    settings: SettingsChange,
}

/// Creates a topic.
///
/// A topic that exists with the same settings is returned as it is, with 200; one with others is a conflict and is not changed.
#[utoipa::path(
    post,
    path = "/v1/topics",
    tag = "topics",
    request_body = NewTopic,
    responses(
        (status = 201, description = "Created", body = TopicView),
        (status = 200, description = "It exists with these settings", body = TopicView),
        Problems,
    ),
)]
async fn create(
    State(app): State<App>,
    caller: Caller,
    JsonBody(new): JsonBody<NewTopic>,
) -> Result<(StatusCode, Json<TopicView>), Problem> {
    caller.may(Scope::Admin, Some(&new.name))?;
    let base = match new.preset {
        Some(preset) => TopicSettings::preset(preset.into()),
        None if new.settings.is_pub_sub() => TopicSettings::pub_sub(),
        None => TopicSettings::default(),
    };
    let settings = new.settings.applied_to(&base).map_err(|problem| problem.inside("settings"))?;
    let headwater = app.acting(&caller);
    let is_new = match headwater.topics().get(&new.name).await {
        Ok(_) => false,
        Err(error) if error.kind() == ErrorKind::NoSuchTopic => true,
        Err(error) => return Err(Problem::from(error).renamed(&[("topic", "name")])),
    };
    headwater.topic(&new.name).settings(settings.clone()).create().await?;
    if is_new {
        let detail = serde_json::to_value(&settings).unwrap_or_else(|_| json!({}));
        headwater.note_act("create_topic", Some(&new.name), None, &detail).await?;
    }
    let status = if is_new { StatusCode::CREATED } else { StatusCode::OK };
    Ok((status, Json(headwater.topics().status(&new.name).await?.into())))
}

/// Shows a topic: its settings and the progress of its log.
#[utoipa::path(
    get,
    path = "/v1/topics/{topic}",
    tag = "topics",
    params(("topic" = String, Path, description = "The topic", example = "orders")),
    responses((status = 200, description = "The topic", body = TopicView), Problems),
)]
async fn show(
    State(app): State<App>,
    caller: Caller,
    PathOf(topic): PathOf<String>,
) -> Result<Json<TopicView>, Problem> {
    caller.may(Scope::Read, Some(&topic))?;
    Ok(Json(app.headwater.topics().status(&topic).await?.into()))
}

/// Changes settings of a topic while it is in use; those that are not given stay.
#[utoipa::path(
    patch,
    path = "/v1/topics/{topic}",
    tag = "topics",
    params(("topic" = String, Path, description = "The topic", example = "orders")),
    request_body = SettingsChange,
    responses((status = 200, description = "The topic with its settings", body = TopicView), Problems),
)]
async fn alter(
    State(app): State<App>,
    caller: Caller,
    PathOf(topic): PathOf<String>,
    JsonBody(change): JsonBody<SettingsChange>,
) -> Result<Json<TopicView>, Problem> {
    caller.may(Scope::Admin, Some(&topic))?;
    let topics = app.acting(&caller).topics();
    let settings = change.applied_to(&topics.get(&topic).await?.settings)?;
    topics.alter(&topic, &settings).await.map_err(settings::named)?;
    Ok(Json(topics.status(&topic).await?.into()))
}

/// What a topic holds: what was removed, or would be.
#[derive(Debug, Serialize, ToSchema)]
#[schema(example = json!({
    "topic": "orders", "dry_run": true, "messages": 1000, "scheduled": 2, "groups": 1, "served": 1, "served_groups": [{"group": "email", "processes": 2}],
    "leases": 3, "dead_letters": 1
}))]
struct Contents {
    topic: String,
    /// Whether nothing was changed.
    dry_run: bool,
    /// Stored messages.
    messages: u64,
    /// Scheduled messages that are not due.
    scheduled: u64,
    /// Groups that are not cancelled.
    groups: u64,
    /// Groups that processes serve.
    served: usize,
    /// Which groups processes serve.
    served_groups: Vec<ServedGroup>,
    /// Leases that have not expired.
    leases: u64,
    /// Dead letters of all groups.
    dead_letters: u64,
}

/// A group that processes serve.
#[derive(Debug, Serialize, ToSchema)]
struct ServedGroup {
    group: String,
    /// How many processes.
    processes: u32,
}

impl Contents {
    fn of(topic: String, dry_run: bool, contents: TopicContents) -> Self {
        let served = contents.served.into_iter();
        let served_groups: Vec<ServedGroup> = served
            .map(|(group, processes)| ServedGroup { group: group.as_str().to_owned(), processes })
            .collect();
        Contents {
            topic,
            dry_run,
            messages: contents.messages,
            scheduled: contents.scheduled,
            groups: contents.groups,
            served: served_groups.len(),
            served_groups,
            leases: contents.leases,
            dead_letters: contents.dead_letters,
        }
    }
}

/// How something is removed.
#[derive(Debug, Default, Deserialize, IntoParams, ToSchema)]
#[serde(deny_unknown_fields, default)]
#[into_params(parameter_in = Query)]
#[schema(example = json!({"dry_run": true}))]
struct Removing {
    /// Changes nothing: the answer shows what would be removed.
    dry_run: bool,
    /// Also while processes serve its groups: they lose their leases.
    force: bool,
}

impl Removing {
    fn removal(&self) -> Removal {
        match self {
            Removing { dry_run: true, .. } => Removal::DryRun,
            Removing { force: true, .. } => Removal::Forced,
            _ => Removal::Unserved,
        }
    }
}

/// Deletes a topic with its messages, groups and dead letters.
///
/// Refused with 409 while a process serves one of its groups, unless it is forced.
#[utoipa::path(
    delete,
    path = "/v1/topics/{topic}",
    tag = "topics",
    params(("topic" = String, Path, description = "The topic", example = "orders"), Removing),
    responses((status = 200, description = "What was removed, or would be", body = Contents), Problems),
)]
async fn delete(
    State(app): State<App>,
    caller: Caller,
    PathOf(topic): PathOf<String>,
    QueryOf(removing): QueryOf<Removing>,
) -> Result<Json<Contents>, Problem> {
    caller.may(Scope::Admin, Some(&topic))?;
    let contents = app.acting(&caller).topics().delete(&topic, removing.removal()).await?;
    Ok(Json(Contents::of(topic, removing.dry_run, contents)))
}

/// Removes all messages of a topic. Its groups stay and continue with what is published next; scheduled messages and dead letters stay.
///
/// Refused with 409 while a process serves one of its groups, unless it is forced.
#[utoipa::path(
    post,
    path = "/v1/topics/{topic}/purge",
    tag = "topics",
    params(("topic" = String, Path, description = "The topic", example = "orders")),
    request_body = Option<Removing>,
    responses((status = 200, description = "What was removed, or would be", body = Contents), Problems),
)]
async fn purge(
    State(app): State<App>,
    caller: Caller,
    PathOf(topic): PathOf<String>,
    OptionalBody(removing): OptionalBody<Removing>,
) -> Result<Json<Contents>, Problem> {
    caller.may(Scope::Admin, Some(&topic))?;
    let contents = app.acting(&caller).topics().purge(&topic, removing.removal()).await?;
    Ok(Json(Contents::of(topic, removing.dry_run, contents)))
}
