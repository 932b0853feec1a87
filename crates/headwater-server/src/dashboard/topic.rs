//! `/topics/{topic}`: how a topic is doing, and its messages.

use axum::extract::{Path, Query, State};
use axum::response::Response;
use headwater::store::TopicStatus;
use headwater::topic::Removal;
use maud::{Markup, html};
use serde::Deserialize;

use super::act::{Leads, change, counted};
use super::chart::{self, Line};
use super::components::{Confirm, Head, Tile, card, empty, facts};
use super::groups;
use super::icons::Icon;
use super::layout::Section;
use super::topics::{issues, kept, retention, semantics};
use super::url::{self, Name};
use super::view::{Failure, View};
use super::{chart as charts, format};
use crate::app::App;
use crate::auth::Scope;
use crate::auth::session::Submitted;
use crate::problem::Problem;
use crate::sampler::{GroupFigures, Snapshot, Span, TopicFigures};

mod browse;
pub(crate) mod message;
pub(crate) mod publish;
pub(crate) mod settings;

pub(crate) use browse::headers;

use browse::Search;

/// The parts of a topic's pages.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Tab {
    Messages,
    Groups,
    Publish,
    Settings,
}

/// The head of every page of a topic, with the way to the others.
pub(super) fn head(view: &View, status: &TopicStatus, tab: Tab) -> Markup {
    let name = status.topic.name.as_str();
    let address = url::topic(name);
    let tabs = [
        (Tab::Messages, "Messages", String::new()),
        (Tab::Groups, "Groups", "/groups".to_owned()),
        (Tab::Publish, "Publish", "/publish".to_owned()),
        (Tab::Settings, "Settings", "/settings".to_owned()),
    ];
    html! {
        (Head::new(name).under(&[("Topics", "/topics".into())]).beside(html! { (semantics(&status.topic.settings)) (view.live("issues", issues(status))) }))
        nav.tabs aria-label="Parts of the topic" {
            @for (of, title, path) in tabs {
                a href={ (address) (path) } aria-current=[(of == tab).then_some("page")] {
                    (title) @if of == Tab::Groups { span.count { (format::count(status.subscriptions)) } }
                }
            }
        }
    }
}

/// A topic that the caller may see, read now: what was just created or changed must be there, however old the figures of everything are.
pub(super) async fn find(view: &View, name: &str) -> Result<TopicStatus, Failure> {
    view.must_see(name)?;
    let mut found = view.app.headwater.topics().find(1, |all| all.name(name)).await?;
    let missing = || {
        Problem::not_found(format!(
            "There is no topic {name:?}. It may have been deleted, or never had a message."
        ))
    };
    Ok(found.pop().ok_or_else(missing)?)
}

/// `GET /topics/{topic}`
pub(crate) async fn page(
    Path(Name(name)): Path<Name>,
    Query(search): Query<Search>,
    view: View,
) -> Result<Response, Failure> {
    let snapshot = view.app.sampler.snapshot().await?;
    let status = find(&view, &name).await?;
    let figures = snapshot.topic(&name);
    let content = html! {
        (head(&view, &status, Tab::Messages))
        div.stack {
            (view.live("tiles", tiles(&snapshot, &status, figures)))
            (card("Published per second", html! {}, view.live("rate", rate(&view, &status))))
            (browse::card(&view, &status, &search).await?)
        }
    };
    Ok(view.page(Section::Topics, &name, content).await)
}

fn tiles(snapshot: &Snapshot, status: &TopicStatus, figures: Option<&TopicFigures>) -> Markup {
    let published_per_s = figures.map_or(0.0, |figures| figures.published_per_s);
    let groups = figures.map_or(&[][..], |figures| snapshot.groups_of(figures));
    let lag = groups.iter().map(|group| group.status.lag).max().unwrap_or(0);
    let done = u64::try_from(status.watermark.0 - status.first.0 + 1).unwrap_or(0);
    let address = url::topic(status.topic.name.as_str());
    let storage = status.topic.settings.storage.to_string();
    html! {
        div.tiles {
            (Tile::new("Published", format::rate(published_per_s)).unit("/s").note(format!("up to offset {}", format::count(status.head.0.unsigned_abs()))))
            (Tile::new("Stored", format::compact(kept(status))).note(format!("{} done by every group", format::compact(done))))
            (Tile::new("Furthest behind", format::compact(lag)).note(counted(status.subscriptions, "group", "groups")).to(format!("{address}/groups")))
            (Tile::new("Kept for", retention(&status.topic.settings)).note(removed_after(status)).to(format!("{address}/settings")))
            (Tile::new("Scheduled", format::compact(status.scheduled)).note("not due yet").to(url::with_query("/scheduled", &[("topic", status.topic.name.as_str())])))
            (Tile::new("Partitions", if storage == "shared" { "shared".into() } else { storage.replace("dedicated by ", "by ") }).note(gaps(status)))
        }
        @if let Some(change) = status.tracking_change {
            div.card.card-body {
                p { "Completion records are being changed: " (format::count(change.done)) " of " (format::count(change.total)) " messages" }
                (charts::meter("Change of tracking", change.done, change.total))
            }
        }
    }
}

fn removed_after(status: &TopicStatus) -> String {
    match status.topic.settings.max_retention {
        Some(max) => format!("removed unread after {}", format::duration(max)),
        None => "never removed unread".into(),
    }
}

fn gaps(status: &TopicStatus) -> String {
    match status.gaps {
        0 => "no gaps below the head".into(),
        some => counted(some, "gap below the head", "gaps below the head"),
    }
}

fn rate(view: &View, status: &TopicStatus) -> Markup {
    let Some(past) = view.app.sampler.topic_past(status.topic.topic_id, Span::Minutes) else {
        return html! { p.card-body.soft { "Its past is not kept yet: it is new, or there are too many topics." } };
    };
    let lines = [Line { name: "Published", unit: "/s", style: 1, readings: &past }];
    chart::chart("chart-rate", "Messages published per second", &lines)
}

/// `GET /topics/{topic}/groups`
pub(crate) async fn groups_page(Path(Name(name)): Path<Name>, view: View) -> Result<Response, Failure> {
    let snapshot = view.app.sampler.snapshot().await?;
    let status = find(&view, &name).await?;
    // Read now, and with those that are cancelled and not removed yet.
    let listed = view.app.headwater.groups(&name).list().await?;
    let handled = |group: &str| snapshot.group(&name, group).map_or(0.0, |figures| figures.handled_per_s);
    let of_topic: Vec<GroupFigures> = listed
        .into_iter()
        .map(|health| GroupFigures {
            topic: status.topic.name.clone(),
            handled_per_s: handled(health.status.group.as_str()),
            issues: health.health_issues,
            behind: health.behind,
            status: health.status,
        })
        .collect();
    let of_topic: Vec<&GroupFigures> = of_topic.iter().collect();
    let list = if of_topic.is_empty() {
        empty(
            Icon::Groups,
            "No group reads this topic",
            "A group appears with its first consumer. From the command line:",
            html! { pre.command { "headwater consume " (name) " --group email" } },
        )
    } else {
        groups::table(&view, &of_topic, None)
    };
    let subscribe = html! {
        @if view.can_change(Some(&name)) { a.btn.is-small href={ (url::topic(&name)) "/subscribe" } data-dialog="" { (Icon::Plus) "Subscribe a group" } }
    };
    let content = html! {
        (head(&view, &status, Tab::Groups))
        (card("Groups", subscribe, view.live("groups", list)))
    };
    Ok(view.page(Section::Topics, &name, content).await)
}

/// `GET /topics/{topic}/purge` and `…/delete`
pub(crate) async fn ask_purge(Path(Name(name)): Path<Name>, view: View) -> Result<Response, Failure> {
    ask(view, &name, "purge").await
}

/// The same for a delete.
pub(crate) async fn ask_delete(Path(Name(name)): Path<Name>, view: View) -> Result<Response, Failure> {
    ask(view, &name, "delete").await
}

/// What would be removed, and whether that is wanted.
async fn ask(view: View, name: &str, act: &'static str) -> Result<Response, Failure> {
    view.visitor.caller.may(Scope::Admin, Some(name))?;
    let topics = view.app.headwater.topics();
    let contents = match act {
        "delete" => topics.delete(name, Removal::DryRun).await?,
        _ => topics.purge(name, Removal::DryRun).await?,
    };
    let served: Vec<_> = contents.served.iter().map(|(group, count)| format!("{group} ({count})")).collect();
    let mut rows = vec![("Messages", html! { (format::count(contents.messages)) })];
    if act == "delete" {
        rows.push(("Scheduled messages", html! { (format::count(contents.scheduled)) }));
        rows.push(("Groups", html! { (format::count(contents.groups)) }));
        rows.push(("Dead letters", html! { (format::count(contents.dead_letters)) }));
    }
    rows.push(("Leases that are lost", html! { (format::count(contents.leases)) }));
    let (title, button) = match act {
        "delete" => (format!("Delete topic {name}"), "Delete topic"),
        _ => (format!("Remove all messages of {name}"), "Remove messages"),
    };
    let confirm = Confirm {
        title: &title,
        text: html! {
            p { "This cannot be undone. It removes:" }
            (facts(&rows))
            @if !served.is_empty() {
                div.callout.is-warn { strong { "Processes serve it right now" } "Groups: " (served.join(", ")) ". They lose their leases." }
                label.check { input type="checkbox" name="force" value="yes"; span { "Do it although it is served" } }
            }
        },
        fields: super::components::text_field("typed", "Type the topic's name to confirm", "", ""),
        act: button,
        is_dangerous: true,
        dry_run: None,
        action: format!("{}/{act}", url::topic(name)),
        back: format!("{}/settings", url::topic(name)),
    };
    let content = html! { (Head::new(&title).under(&[("Topics", "/topics".into()), (name, url::topic(name))])) (confirm.render(&view)) };
    Ok(view.page(Section::Topics, &title, content).await)
}

/// A removal that was confirmed.
#[derive(Debug, Deserialize)]
pub(crate) struct Meant {
    #[serde(default)]
    typed: String,
    force: Option<String>,
}

impl Meant {
    fn removal(&self, name: &str) -> Result<Removal, Failure> {
        if self.typed.trim() != name.trim() {
            return Err(Problem::invalid("name", "it was not typed as it is; nothing was changed").into());
        }
        Ok(if self.force.is_some() { Removal::Forced } else { Removal::Unserved })
    }
}

/// `POST /topics/{topic}/purge`
pub(crate) async fn purge(
    State(app): State<App>,
    Path(Name(name)): Path<Name>,
    Submitted { visitor, form }: Submitted<Meant>,
) -> Response {
    let page = format!("{}/settings", url::topic(&name));
    let purges = async {
        let removed = app.acting(&visitor.caller).topics().purge(&name, form.removal(&name)?).await?;
        Ok(format!("{} removed.", counted(removed.messages, "message", "messages")))
    };
    change(&app, &visitor, (Scope::Admin, Some(&name)), Leads::to(&page), purges).await
}

/// `POST /topics/{topic}/delete`
pub(crate) async fn delete(
    State(app): State<App>,
    Path(Name(name)): Path<Name>,
    Submitted { visitor, form }: Submitted<Meant>,
) -> Response {
    let leads = Leads { done: "/topics", refused: &format!("{}/settings", url::topic(&name)) };
    let deletes = async {
        let removed = app.acting(&visitor.caller).topics().delete(&name, form.removal(&name)?).await?;
        Ok(format!("Topic {name} deleted, with {}.", counted(removed.messages, "message", "messages")))
    };
    change(&app, &visitor, (Scope::Admin, Some(&name)), leads, deletes).await
}
