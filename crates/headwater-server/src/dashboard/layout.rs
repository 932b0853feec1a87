//! The frame around every page: navigation, which database it is, messages about what was done.

use axum::http::StatusCode;
use maud::{DOCTYPE, Markup, html};

use super::flash::Flash;
use super::icons::{Icon, mark};
use super::view::View;
use super::{assets, format};
use crate::sampler::Totals;

/// A page of the navigation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Section {
    Overview,
    Topics,
    Groups,
    DeadLetters,
    Scheduled,
    Processes,
    Outbox,
    Pipeline,
    Maintenance,
    Audit,
    Settings,
}

/// A section: its name, address, icon, and the key that leads there after `g`.
type Link = (Section, &'static str, &'static str, Icon, &'static str);

/// The sections by what they are about.
const NAVIGATION: [(&str, &[Link]); 4] = [
    ("", &[(Section::Overview, "Overview", "/", Icon::Overview, "o")]),
    (
        "Messages",
        &[
            (Section::Topics, "Topics", "/topics", Icon::Topics, "t"),
            (Section::Groups, "Groups", "/groups", Icon::Groups, "r"),
            (Section::DeadLetters, "Dead letters", "/dead-letters", Icon::DeadLetters, "d"),
            (Section::Scheduled, "Scheduled", "/scheduled", Icon::Scheduled, "c"),
        ],
    ),
    (
        "Work",
        &[
            (Section::Processes, "Processes", "/processes", Icon::Processes, "p"),
            (Section::Outbox, "Outbox and relays", "/outbox", Icon::Outbox, "x"),
            (Section::Pipeline, "Pipeline", "/pipeline", Icon::Pipeline, "l"),
        ],
    ),
    (
        "Store",
        &[
            (Section::Maintenance, "Maintenance", "/maintenance", Icon::Maintenance, "m"),
            (Section::Audit, "Audit", "/audit", Icon::Audit, "a"),
            (Section::Settings, "Settings", "/settings", Icon::Settings, "s"),
        ],
    ),
];

/// The document of a page.
pub(crate) async fn document(
    view: &View,
    section: Section,
    title: &str,
    flash: Option<&Flash>,
    content: Markup,
) -> Markup {
    let label = &view.app.label;
    let navigation = navigation(view, section).await;
    let marked = if label.production { "production" } else { "" };
    html! {
        (DOCTYPE)
        html lang="en" {
            (head(&format!("{title} · {}", store_name(view))))
            body.is-production[label.production] {
                a.skip href="#main" { "Skip to content" }
                header.bar {
                    a.brand href="/" { (mark()) "Headwater" }
                    span.bar-store { (marked) @if label.production { " · " } (store_name(view)) }
                    details.menu {
                        summary.btn.is-quiet.is-icon aria-label="Menu" { (Icon::Menu) }
                        div.menu-panel { (store(view)) (navigation) (foot(view)) }
                    }
                }
                div.shell {
                    div.side { div.side-inner { a.brand href="/" { (mark()) "Headwater" } (store(view)) (navigation) (foot(view)) } }
                    main id="main" tabindex="-1" {
                        @if let Some(flash) = flash { (flashed(flash)) }
                        @if let Some(problem) = view.app.sampler.problem() {
                            div.flash.is-bad role="alert" { (Icon::Alert) span { "The store cannot be read, so these figures are old: " (problem) } }
                        }
                        (content)
                    }
                }
            }
        }
    }
}

/// The head of every document.
fn head(title: &str) -> Markup {
    html! {
        head {
            meta charset="utf-8";
            meta name="viewport" content="width=device-width, initial-scale=1";
            meta name="color-scheme" content="light dark";
            title { (title) }
            link rel="icon" href="/favicon.svg" type="image/svg+xml";
            @for sheet in assets::style_sheets() { link rel="stylesheet" href=(sheet); }
            script src=(assets::url("theme.js")) {}
            script type="module" src=(assets::url("app.js")) {}
        }
    }
}

fn store_name(view: &View) -> &str {
    let name = view.app.label.name.as_str();
    if name.is_empty() { "this store" } else { name }
}

/// Which database this is.
fn store(view: &View) -> Markup {
    html! {
        div.store {
            @if view.app.label.production { span.store-mark { (Icon::Alert) "Production" } }
            span.store-name { (store_name(view)) }
            span.store-place { (place(view)) }
        }
    }
}

fn place(view: &View) -> String {
    match view.app.headwater.namespace() {
        Some(namespace) => format!("PostgreSQL, namespace {}", namespace.as_str()),
        None => "SQLite, embedded".into(),
    }
}

/// The links to all pages, with what needs attention there.
pub(crate) async fn navigation(view: &View, section: Section) -> Markup {
    let totals = view.app.sampler.snapshot().await.map(|snapshot| (snapshot.totals, snapshot.findings.len()));
    html! {
        nav.nav aria-label="Pages" {
            @for (title, pages) in NAVIGATION {
                div {
                    @if !title.is_empty() { span.nav-title { (title) } }
                    ul {
                        @for (of, name, href, icon, key) in pages {
                            li {
                                a href=(href) data-go=(key) aria-current=[(*of == section).then_some("page")] {
                                    (icon) (name)
                                    @if let Ok((totals, findings)) = &totals { (badge(view, *of, totals, *findings)) }
                                }
                            }
                        }
                    }
                }
            }
        }
    }
}

/// What a section has to say in the navigation.
fn badge(view: &View, section: Section, totals: &Totals, findings: usize) -> Markup {
    let (name, class, number, means) = match section {
        Section::Overview => ("nav-findings", "count is-warn", findings as u64, "need attention"),
        Section::DeadLetters => ("nav-dead", "count is-bad", totals.dead_letters, "dead letters"),
        Section::Scheduled => ("nav-scheduled", "count", totals.scheduled, "scheduled"),
        _ => return html! {},
    };
    view.live(
        name,
        html! {
            @if number > 0 { span class=(class) { (format::compact(number)) span.unseen { " " (means) } } }
        },
    )
}

fn foot(view: &View) -> Markup {
    let caller = view.visitor.caller.name();
    html! {
        div.side-foot {
            div.side-row {
                span.live-state data-live-state="" role="status" {}
                button.btn.is-quiet.is-small type="button" data-live-toggle="" hidden {}
            }
            div.side-row {
                span.who title=(caller) { (caller) }
                span {
                    button.btn.is-quiet.is-small.is-icon type="button" data-theme-toggle="" hidden aria-label="Dark colours" title="Dark colours" { (Icon::Moon) }
                    @if view.visitor.has_session() {
                        form method="post" action="/logout" { (view.csrf()) button.btn.is-quiet.is-small { "Log out" } }
                    }
                }
            }
        }
    }
}

fn flashed(flash: &Flash) -> Markup {
    html! {
        @if flash.is_good {
            div.flash.is-good role="status" { (Icon::Check) span { (flash.text) } }
        } @else {
            div.flash.is-bad role="alert" { (Icon::Alert) span { (flash.text) } }
        }
    }
}

/// A document without navigation: for those who are not logged in.
#[expect(clippy::needless_pass_by_value, reason = "parts of a page are made where they are passed")]
pub(crate) fn bare(title: &str, content: Markup) -> Markup {
    html! {
        (DOCTYPE)
        html lang="en" { (head(title)) body { main.login id="main" { (content) } } }
    }
}

/// The page of a failure.
pub(crate) fn failure(status: StatusCode, detail: &str) -> Markup {
    let title = match status {
        StatusCode::NOT_FOUND => "Not found",
        StatusCode::FORBIDDEN => "Not allowed",
        StatusCode::SERVICE_UNAVAILABLE => "Not available at the moment",
        status if status.is_client_error() => "This request cannot be answered",
        _ => "Something went wrong",
    };
    bare(
        title,
        html! {
            div.card {
                a.brand href="/" { (mark()) "Headwater" }
                div.form {
                    h1 { (title) }
                    p.break { (detail) }
                    a.btn href="/" { "Go to the overview" }
                }
            }
        },
    )
}
