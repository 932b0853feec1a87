//! `/dead-letters`: what was given up, whatever gave it up: a group, the outbox, or a program that parked a command.

use axum::extract::{Query, State};
use axum::response::Response;
use headwater::store::{AnyDeadLetter, AnyDeadLetterSelection, DeadLetterPlace, DeadLetterSource};
use headwater::uuid::Uuid;
use maud::{Markup, html};
use serde::Deserialize;

use super::act::{Leads, change, counted};
use super::components::{Confirm, Head, empty};
use super::icons::Icon;
use super::input::given;
use super::layout::Section;
use super::view::{Failure, View};
use super::{format, payload, url};
use crate::app::App;
use crate::auth::Scope;
use crate::auth::session::{Submitted, Visitor};
use crate::problem::Problem;

/// How many a page has.
const PER_PAGE: u32 = 25;

/// What of them is shown.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Shown {
    source: String,
    topic: String,
    group: String,
    /// Part of the error, the name, the key or the id.
    q: String,
    /// The place after which the page begins: `number.id`.
    after: String,
}

impl Shown {
    fn link(&self, source: &str, after: &str) -> String {
        let parameters = [
            ("source", source),
            ("topic", &self.topic),
            ("group", &self.group),
            ("q", &self.q),
            ("after", after),
        ];
        url::with_query("/dead-letters", &parameters)
    }

    fn is_filtered(&self) -> bool {
        [&self.source, &self.topic, &self.group, &self.q].iter().any(|text| !text.is_empty())
    }

    fn chosen(&self, all: AnyDeadLetterSelection) -> AnyDeadLetterSelection {
        let mut chosen = match self.source.as_str() {
            "subscription" => all.of_subscriptions(),
            "outbox" => all.of_outbox(),
            "command" => all.of_commands(),
            _ => all,
        };
        if let Some(topic) = given(Some(&self.topic)) {
            chosen = chosen.topic(topic);
        }
        if let Some(group) = given(Some(&self.group)) {
            chosen = chosen.group(group);
        }
        if let Some(text) = given(Some(&self.q)) {
            chosen = chosen.contains(text);
        }
        let place = self.after.split_once('.').and_then(|(number, id)| {
            Some(DeadLetterPlace { number: number.parse().ok()?, dead_letter_id: id.parse().ok()? })
        });
        match place {
            Some(place) => chosen.after(place),
            None => chosen,
        }
    }
}

/// `GET /dead-letters`
pub(crate) async fn page(Query(shown): Query<Shown>, view: View) -> Result<Response, Failure> {
    let mut found = view.app.headwater.dead_letters().list(PER_PAGE, |all| shown.chosen(all)).await?;
    let next = found.last().filter(|_| found.len() == PER_PAGE as usize).map(|last| {
        let place = last.place();
        format!("{}.{}", place.number, place.dead_letter_id)
    });
    found.retain(|one| topic_of(one).is_none_or(|topic| view.sees(topic)));
    let content = html! {
        (Head::new("Dead letters").note("Messages that were given up. Nothing retries them: redrive, edit or purge them here."))
        section.card {
            div.card-head { (search(&shown)) (sources(&shown)) }
            form method="get" action="/dead-letters/act" {
                input type="hidden" name="from" value=(view.address);
                (view.live("list", table(&view, &shown, &found, next.as_deref())))
                @if !found.is_empty() && view.can_change(None) {
                    div.card-foot.sticks {
                        label.check { input type="checkbox" data-all="id" data-needs-script="" hidden; span data-chosen="id" {} }
                        button.btn.is-small name="act" value="redrive" { (Icon::Retry) "Redrive selected" }
                        button.btn.is-small.is-danger name="act" value="purge" { (Icon::Trash) "Purge selected" }
                    }
                }
            }
        }
    };
    Ok(view.page(Section::DeadLetters, "Dead letters", content).await)
}

fn search(shown: &Shown) -> Markup {
    html! {
        form.search method="get" action="/dead-letters" role="search" {
            input type="search" name="q" value=(shown.q) placeholder="Error, type, key or id" aria-label="Error, type, key or id";
            input.short type="text" name="topic" value=(shown.topic) placeholder="Topic" aria-label="Topic";
            input.short type="text" name="group" value=(shown.group) placeholder="Group" aria-label="Group";
            @if !shown.source.is_empty() { input type="hidden" name="source" value=(shown.source); }
            button.btn { "Search" }
        }
    }
}

fn sources(shown: &Shown) -> Markup {
    html! {
        nav.choices aria-label="Filter by source" {
            @for (source, name) in [("", "All"), ("subscription", "Groups"), ("outbox", "Outbox"), ("command", "Commands")] {
                a href=(shown.link(source, "")) aria-current=[(shown.source == source).then_some("true")] { (name) }
            }
        }
    }
}

/// The topic of this store that it is about. The topics of the outbox are those of other brokers.
pub(super) fn topic_of(dead_letter: &AnyDeadLetter) -> Option<&str> {
    match &dead_letter.source {
        DeadLetterSource::Subscription { topic, .. } => Some(topic),
        DeadLetterSource::Command { topic } => topic.as_deref(),
        DeadLetterSource::Outbox { .. } => None,
    }
}

/// Where it comes from, with the way there.
pub(super) fn source(dead_letter: &AnyDeadLetter) -> Markup {
    match &dead_letter.source {
        DeadLetterSource::Subscription { topic, group, .. } => html! {
            a href=(url::group(topic, group)) { (group) } small { a.faint href=(url::topic(topic)) { (topic) } }
        },
        DeadLetterSource::Outbox { id, topic } => {
            html! { a href={ "/outbox/" (id) } { "outbox " (id) } small.faint { (topic) } }
        }
        DeadLetterSource::Command { topic } => {
            html! { "command" small.faint { (topic.as_deref().unwrap_or("without a topic")) } }
        }
    }
}

fn table(view: &View, shown: &Shown, found: &[AnyDeadLetter], next: Option<&str>) -> Markup {
    if found.is_empty() {
        return nothing(shown);
    }
    let can_change = view.can_change(None);
    html! {
        table.data.stacks {
            thead {
                tr {
                    @if can_change { th scope="col" { span.unseen { "Select" } } }
                    th scope="col" { "Error" } th scope="col" { "From" } th scope="col" { "Key" } th.num scope="col" { "Attempts" } th.num scope="col" { "Given up" }
                }
            }
            tbody { @for one in found { (row(view, one, can_change)) } }
        }
        div.pager {
            span { (counted(found.len() as u64, "dead letter", "dead letters")) ", oldest first" }
            nav aria-label="Parts of the list" {
                @if !shown.after.is_empty() { a.btn.is-small href=(shown.link(&shown.source, "")) { (Icon::Back) "Oldest" } }
                @if let Some(next) = next { a.btn.is-small rel="next" href=(shown.link(&shown.source, next)) { "Next" (Icon::Forward) } }
            }
        }
    }
}

fn row(view: &View, one: &AnyDeadLetter, can_change: bool) -> Markup {
    let can_read = view.can_read(topic_of(one));
    let error = one.error_message.as_deref().unwrap_or("no error was recorded");
    html! {
        tr data-key=(one.dead_letter_id) {
            @if can_change { td { input type="checkbox" name="id" value=(one.dead_letter_id) aria-label={ "Select " (error) }; } }
            td.text.wide {
                a href={ "/dead-letters/" (one.dead_letter_id) } { span.clip { (error) } }
                @if can_read { small.faint.mono { span.clip { (payload::preview(&one.payload)) } } }
            }
            td.name data-label="From" { (source(one)) }
            td data-label="Key" { @match (&one.business_key, can_read) { (Some(key), true) => { span.break { (key) } } _ => { span.faint { "–" } } } }
            td.num data-label="Attempts" { (one.attempts) }
            td.num data-label="Given up" { (format::ago(view.now, one.parked_at)) }
        }
    }
}

fn nothing(shown: &Shown) -> Markup {
    if shown.is_filtered() {
        return empty(
            Icon::DeadLetters,
            "No dead letter matches",
            "Other words, another topic or another source may find some.",
            html! { a.btn href="/dead-letters" { "Show all dead letters" } },
        );
    }
    empty(
        Icon::Check,
        "No dead letters",
        "A message that fails as often as its topic allows, or that a handler buries, is kept here with its error until an operator decides.",
        html! {},
    )
}

/// Those that were selected: `id` once for each, `act`, and where to go back.
struct Selected {
    ids: Vec<Uuid>,
    act: String,
    from: String,
}

impl Selected {
    fn read(pairs: &[(String, String)]) -> Result<Self, Failure> {
        let value = |name: &str| {
            pairs.iter().find(|(of, _)| of == name).map(|(_, value)| value.clone()).unwrap_or_default()
        };
        let ids = pairs.iter().filter(|(name, _)| name == "id").map(|(_, id)| id.parse());
        let ids: Result<Vec<Uuid>, _> = ids.collect();
        let ids = ids.map_err(|_| Problem::invalid("id", "is not the id of a dead letter"))?;
        Ok(Selected { ids, act: value("act"), from: url::local(&value("from")).to_owned() })
    }
}

/// `GET /dead-letters/act`: the question about those that were selected.
pub(crate) async fn ask(Query(pairs): Query<Vec<(String, String)>>, view: View) -> Result<Response, Failure> {
    view.visitor.caller.may(Scope::Admin, None)?;
    let selected = Selected::read(&pairs)?;
    if selected.ids.is_empty() {
        return Ok(super::flash::refused(
            &selected.from,
            &Problem::invalid("selection", "nothing is selected").into(),
        ));
    }
    let number = counted(selected.ids.len() as u64, "dead letter", "dead letters");
    let is_purge = selected.act == "purge";
    let title = if is_purge { format!("Purge {number}") } else { format!("Redrive {number}") };
    let confirm = Confirm {
        title: &title,
        text: match is_purge {
            true => {
                html! { p { "They are deleted permanently. Messages that are still in the log stay there, and count as done for the group." } }
            }
            false => {
                html! { p { "Each is handed to its group again with attempts reset; an entry of the outbox is sent again; a command is published to its topic. Each once, even if this is repeated." } }
            }
        },
        fields: html! {
            @for id in &selected.ids { input type="hidden" name="id" value=(id); }
            input type="hidden" name="act" value=(selected.act);
            input type="hidden" name="from" value=(selected.from);
        },
        act: if is_purge { "Purge" } else { "Redrive" },
        is_dangerous: is_purge,
        dry_run: None,
        action: "/dead-letters/act".into(),
        back: selected.from.clone(),
    };
    let content = html! { (Head::new(&title).under(&[("Dead letters", "/dead-letters".into())])) (confirm.render(&view)) };
    Ok(view.page(Section::DeadLetters, &title, content).await)
}

/// `POST /dead-letters/act`
pub(crate) async fn act(
    State(app): State<App>,
    Submitted { visitor, form }: Submitted<Vec<(String, String)>>,
) -> Response {
    match Selected::read(&form) {
        Ok(selected) => acted(&app, &visitor, None, &selected).await,
        Err(why) => super::flash::refused("/dead-letters", &why),
    }
}

/// Redrives or purges those that were selected.
async fn acted(app: &App, visitor: &Visitor, topic: Option<&str>, selected: &Selected) -> Response {
    let acts = async {
        let dead_letters = app.acting(&visitor.caller).dead_letters();
        Ok(match selected.act.as_str() {
            "purge" => format!(
                "{} purged.",
                counted(dead_letters.delete(&selected.ids).await?, "dead letter", "dead letters")
            ),
            "redrive" => {
                let done = dead_letters.redrive(&selected.ids).await?;
                let gone = if done.gone > 0 {
                    format!(" {} kept: their message is no longer stored.", format::count(done.gone))
                } else {
                    String::new()
                };
                format!("{} redriven.{gone}", counted(done.redriven, "dead letter", "dead letters"))
            }
            _ => return Err(Problem::invalid("act", "must be redrive or purge").into()),
        })
    };
    change(app, visitor, (Scope::Admin, topic), Leads::to(&selected.from), acts).await
}

/// Redrives or purges one, which is then gone.
pub(super) async fn act_on_one(
    app: &App,
    visitor: &Visitor,
    topic: Option<&str>,
    id: Uuid,
    act: &str,
) -> Response {
    let selected = Selected { ids: vec![id], act: act.to_owned(), from: "/dead-letters".to_owned() };
    acted(app, visitor, topic, &selected).await
}
