//! `/groups`: the groups of all topics, searched, filtered and sorted here.

use axum::extract::Query;
use axum::response::Response;
use headwater::SubscriptionState;
use maud::{Markup, html};
use serde::Deserialize;

use super::chart;
use super::components::{Head, Pages, empty, group_issues, group_state, number};
use super::icons::Icon;
use super::layout::Section;
use super::view::{Failure, View};
use super::{format, url};
use crate::sampler::{GroupFigures, Snapshot, Span};

const PER_PAGE: usize = 50;

/// What of the list is shown.
#[derive(Clone, Debug, Default, Deserialize)]
pub(crate) struct Shown {
    #[serde(default)]
    q: String,
    #[serde(default)]
    state: String,
    #[serde(default)]
    sort: String,
    page: Option<usize>,
}

impl Shown {
    fn link(&self, changed: &[(&str, &str)]) -> String {
        let value = |name: &str, own: &str| {
            changed
                .iter()
                .find(|(of, _)| *of == name)
                .map_or_else(|| own.to_owned(), |(_, value)| (*value).to_owned())
        };
        let page = value("page", "");
        url::with_query(
            "/groups",
            &[
                ("q", &value("q", &self.q)),
                ("state", &value("state", &self.state)),
                ("sort", &value("sort", &self.sort)),
                ("page", &page),
            ],
        )
    }
}

/// `GET /groups`
pub(crate) async fn page(Query(shown): Query<Shown>, view: View) -> Result<Response, Failure> {
    let snapshot = view.app.sampler.snapshot().await?;
    let content = html! {
        (Head::new("Groups").note("Each reads a topic at its own pace, shared among its processes."))
        section.card {
            div.card-head {
                form.search method="get" action="/groups" role="search" {
                    input type="search" name="q" value=(shown.q) placeholder="Search by group or topic" aria-label="Search by group or topic";
                    @for (name, value) in [("state", &shown.state), ("sort", &shown.sort)] {
                        @if !value.is_empty() { input type="hidden" name=(name) value=(value); }
                    }
                    button.btn { "Search" }
                }
                (view.live("states", states(&view, &snapshot, &shown)))
            }
            (view.live("list", list(&view, &snapshot, &shown)))
        }
    };
    Ok(view.page(Section::Groups, "Groups", content).await)
}

/// The filters, with how many each has.
fn states(view: &View, snapshot: &Snapshot, shown: &Shown) -> Markup {
    let choices = [
        ("", "All"),
        ("issue", "With an issue"),
        ("active", "Active"),
        ("paused", "Paused"),
        ("dead", "Dead"),
    ];
    let mut counts = [0_u64; 5];
    for group in snapshot.groups.iter().filter(|group| matches_text(view, group, &shown.q)) {
        for (count, (state, _)) in counts.iter_mut().zip(choices) {
            *count += u64::from(has_state(group, state));
        }
    }
    html! {
        nav.choices aria-label="Filter by state" {
            @for ((state, name), count) in choices.iter().zip(counts) {
                a href=(shown.link(&[("state", state), ("page", "")])) aria-current=[(shown.state == *state).then_some("true")] {
                    (name) " " span.faint { (format::compact(count)) }
                }
            }
        }
    }
}

fn has_state(group: &GroupFigures, state: &str) -> bool {
    match state {
        "" => true,
        "issue" => !group.issues.is_empty(),
        other => group.status.state.as_str() == other,
    }
}

fn matches_text(view: &View, group: &GroupFigures, text: &str) -> bool {
    let text = text.to_lowercase();
    let contains = |name: &str| name.to_lowercase().contains(&text);
    let is_wanted =
        text.is_empty() || contains(group.status.group.as_str()) || contains(group.topic.as_str());
    is_wanted && view.sees(group.topic.as_str())
}

fn list(view: &View, snapshot: &Snapshot, shown: &Shown) -> Markup {
    let mut groups: Vec<&GroupFigures> = snapshot
        .groups
        .iter()
        .filter(|group| has_state(group, &shown.state) && matches_text(view, group, &shown.q))
        .collect();
    match shown.sort.as_str() {
        "lag" => groups.sort_by_key(|group| std::cmp::Reverse(group.status.lag)),
        "behind" => groups.sort_by_key(|group| std::cmp::Reverse(group.behind)),
        "rate" => groups.sort_by(|a, b| b.handled_per_s.total_cmp(&a.handled_per_s)),
        "flight" => groups.sort_by_key(|group| std::cmp::Reverse(group.status.in_flight)),
        "retrying" => groups.sort_by_key(|group| std::cmp::Reverse(group.status.retrying)),
        "dead" => groups.sort_by_key(|group| std::cmp::Reverse(group.status.dead_letters)),
        _ => {}
    }
    if groups.is_empty() {
        return nothing(shown);
    }
    let pages = Pages::new(shown.page, PER_PAGE, groups.len());
    html! {
        (table(view, pages.of(&groups), Some(shown)))
        (pages.render("groups", |page| shown.link(&[("page", &page.to_string())])))
    }
}

fn nothing(shown: &Shown) -> Markup {
    if shown.q.is_empty() && shown.state.is_empty() {
        return empty(
            Icon::Groups,
            "No groups yet",
            "A group appears with its first consumer. From the command line:",
            html! { pre.command { "headwater consume TOPIC --group GROUP" } },
        );
    }
    let title = if shown.state == "issue" && shown.q.is_empty() {
        "No group has an issue"
    } else {
        "No group matches"
    };
    empty(
        Icon::Check,
        title,
        "Cancelled groups are on the page of their topic until they are removed.",
        html! { a.btn href="/groups" { "Show all groups" } },
    )
}

/// A table of groups; with the topic of each, and sorted, on the page of all groups.
pub(crate) fn table(view: &View, groups: &[&GroupFigures], shown: Option<&Shown>) -> Markup {
    html! {
        table.data.stacks {
            thead {
                tr {
                    (column(shown, "", "Group", false))
                    th scope="col" { "State" }
                    (column(shown, "lag", "Lag", true))
                    th.optional scope="col" { span.unseen { "Lag in the last five minutes" } }
                    (column(shown, "behind", "Behind", true))
                    (column(shown, "rate", "Handled", true))
                    (column(shown, "flight", "In flight", true))
                    (column(shown, "retrying", "Retrying", true))
                    (column(shown, "dead", "Dead letters", true))
                }
            }
            tbody { @for group in groups { (row(view, group, shown.is_some())) } }
        }
    }
}

fn column(shown: Option<&Shown>, sort: &str, name: &str, is_number: bool) -> Markup {
    let Some(shown) = shown else {
        return html! { th.num[is_number] scope="col" { (name) } };
    };
    let is_chosen = shown.sort == sort;
    let direction = is_chosen.then_some(if is_number { "descending" } else { "ascending" });
    html! {
        th.num[is_number] scope="col" aria-sort=[direction] {
            a href=(shown.link(&[("sort", sort), ("page", "")])) { (name) @if is_chosen { @if is_number { " ↓" } @else { " ↑" } } }
        }
    }
}

fn row(view: &View, group: &GroupFigures, with_topic: bool) -> Markup {
    let status = &group.status;
    let (topic, name) = (group.topic.as_str(), status.group.as_str());
    let past = view.app.sampler.group_past(status.subscription_id, Span::Minutes);
    let is_idle = group.handled_per_s < 0.05;
    html! {
        tr data-key=(status.subscription_id) {
            td.name {
                a href=(url::group(topic, name)) { (name) }
                @if with_topic { small { a.faint href=(url::topic(topic)) { (topic) } } }
            }
            td data-label="State" { span.badges { (group_state(status.state)) (group_issues(&group.issues)) } }
            td.num data-label="Lag" { (number(status.lag)) }
            td.optional { @if status.state != SubscriptionState::Cancelled { @if let Some(past) = &past { (chart::spark(&past.lag, 3)) } } }
            td.num data-label="Behind" { @match group.behind { Some(behind) => { (format::duration(behind)) } None => { span.is-zero { "–" } } } }
            td.num data-label="Handled" { span.is-zero[is_idle] { (format::rate(group.handled_per_s)) "/s" } }
            td.num data-label="In flight" { (number(status.in_flight)) }
            td.num data-label="Retrying" { (number(status.retrying)) }
            td.num data-label="Dead letters" { (number(status.dead_letters)) }
        }
    }
}
