//! What pages are made of: badges, tiles, tables of names and values, empty states, fields, confirmations.

use headwater::SubscriptionState;
use headwater::process::ProcessStatus;
use headwater::store::{BackfillState, Finding, HealthIssue};
use maud::{Markup, Render, html};

use super::icons::Icon;
use super::view::View;
use super::{format, url};

/// How something is: repeated by a colour, always said by a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tone {
    Calm,
    Accent,
    Good,
    Warn,
    Bad,
}

impl Tone {
    pub(crate) fn class(self) -> &'static str {
        match self {
            Tone::Calm => "is-calm",
            Tone::Accent => "is-accent",
            Tone::Good => "is-good",
            Tone::Warn => "is-warn",
            Tone::Bad => "is-bad",
        }
    }
}

/// A state: a shape and a word.
pub(crate) fn badge(tone: Tone, icon: Icon, text: &str) -> Markup {
    html! { span.badge.(tone.class()) { (icon) (text) } }
}

/// The state of a group.
pub(crate) fn group_state(state: SubscriptionState) -> Markup {
    let (tone, icon) = match state {
        SubscriptionState::Active => (Tone::Good, Icon::Active),
        SubscriptionState::Paused => (Tone::Warn, Icon::Pause),
        SubscriptionState::Dead => (Tone::Bad, Icon::Dead),
        SubscriptionState::Cancelled => (Tone::Calm, Icon::Cancelled),
    };
    badge(tone, icon, state.as_str())
}

/// What is wrong with a group, beyond its state.
pub(crate) fn group_issues(issues: &[HealthIssue]) -> Markup {
    let is_said_by_state = |issue: &HealthIssue| matches!(issue, HealthIssue::Dead | HealthIssue::Paused);
    html! {
        span.badges {
            @for issue in issues.iter().filter(|issue| !is_said_by_state(issue)) {
                (badge(Tone::Warn, Icon::Alert, issue.as_str()))
            }
        }
    }
}

/// The status of a process.
pub(crate) fn process_status(status: ProcessStatus) -> Markup {
    let (tone, icon) = match status {
        ProcessStatus::New => (Tone::Calm, Icon::Step),
        ProcessStatus::Running => (Tone::Accent, Icon::Active),
        ProcessStatus::Succeeded => (Tone::Good, Icon::Check),
        ProcessStatus::Failed => (Tone::Bad, Icon::Dead),
        ProcessStatus::Compensating => (Tone::Warn, Icon::Undo),
        ProcessStatus::Compensated => (Tone::Warn, Icon::Check),
        ProcessStatus::Paused => (Tone::Warn, Icon::Pause),
    };
    badge(tone, icon, &status.as_str().to_lowercase())
}

/// The state of a backfill.
pub(crate) fn backfill_state(state: BackfillState) -> Markup {
    let (tone, icon) = match state {
        BackfillState::NotStarted => (Tone::Calm, Icon::Clock),
        BackfillState::InProgress => (Tone::Accent, Icon::Active),
        BackfillState::Completed => (Tone::Good, Icon::Check),
        BackfillState::Cancelled => (Tone::Calm, Icon::Cancelled),
        BackfillState::Failed => (Tone::Bad, Icon::Dead),
    };
    badge(tone, icon, &state.as_str().replace('_', " "))
}

/// The head of a page: where it is, what it is, and what can be done.
pub(crate) struct Head<'a> {
    pub(crate) crumbs: &'a [(&'a str, String)],
    pub(crate) title: &'a str,
    pub(crate) note: Option<&'a str>,
    pub(crate) beside: Markup,
    pub(crate) acts: Markup,
}

impl<'a> Head<'a> {
    pub(crate) fn new(title: &'a str) -> Self {
        Head { crumbs: &[], title, note: None, beside: html! {}, acts: html! {} }
    }

    pub(crate) fn note(self, note: &'a str) -> Self {
        Head { note: Some(note), ..self }
    }

    pub(crate) fn under(self, crumbs: &'a [(&'a str, String)]) -> Self {
        Head { crumbs, ..self }
    }

    pub(crate) fn beside(self, beside: Markup) -> Self {
        Head { beside, ..self }
    }

    pub(crate) fn acts(self, acts: Markup) -> Self {
        Head { acts, ..self }
    }
}

impl Render for Head<'_> {
    fn render(&self) -> Markup {
        html! {
            div.page-head {
                div {
                    @if !self.crumbs.is_empty() {
                        nav aria-label="Breadcrumbs" {
                            ol.crumbs { @for (name, href) in self.crumbs { li { a href=(href) { (format::cut(name, 60)) } } } }
                        }
                    }
                    div.page-title { h1 { (self.title) } (self.beside) }
                    @if let Some(note) = self.note { p.page-note { (note) } }
                }
                div.page-acts { (self.acts) }
            }
        }
    }
}

/// A figure with its name. With an address it leads there.
pub(crate) struct Tile<'a> {
    pub(crate) name: &'a str,
    pub(crate) figure: String,
    pub(crate) unit: &'a str,
    pub(crate) note: String,
    pub(crate) tone: Tone,
    pub(crate) href: Option<String>,
    pub(crate) below: Markup,
}

impl<'a> Tile<'a> {
    pub(crate) fn new(name: &'a str, figure: String) -> Self {
        Tile { name, figure, unit: "", note: String::new(), tone: Tone::Calm, href: None, below: html! {} }
    }

    pub(crate) fn unit(self, unit: &'a str) -> Self {
        Tile { unit, ..self }
    }

    pub(crate) fn note(self, note: impl Into<String>) -> Self {
        Tile { note: note.into(), ..self }
    }

    pub(crate) fn tone(self, tone: Tone) -> Self {
        Tile { tone, ..self }
    }

    pub(crate) fn to(self, href: impl Into<String>) -> Self {
        Tile { href: Some(href.into()), ..self }
    }

    pub(crate) fn below(self, below: Markup) -> Self {
        Tile { below, ..self }
    }
}

impl Render for Tile<'_> {
    fn render(&self) -> Markup {
        let content = html! {
            span.tile-name { (self.name) }
            span.tile-figure { (self.figure) @if !self.unit.is_empty() { small { " " (self.unit) } } }
            span.tile-note { (self.note) }
            (self.below)
        };
        html! {
            @match &self.href {
                Some(href) => { a.tile.(self.tone.class()) href=(href) { (content) } }
                None => { div.tile.(self.tone.class()) { (content) } }
            }
        }
    }
}

/// A card with a heading.
#[expect(clippy::needless_pass_by_value, reason = "parts of a page are made where they are passed")]
pub(crate) fn card(title: &str, beside: Markup, content: Markup) -> Markup {
    html! {
        section.card { div.card-head { h2 { (title) } (beside) } (content) }
    }
}

/// Nothing to show: why, and what to do next.
#[expect(clippy::needless_pass_by_value, reason = "parts of a page are made where they are passed")]
pub(crate) fn empty(icon: Icon, title: &str, text: &str, next: Markup) -> Markup {
    html! { div.empty { (icon) h3 { (title) } p { (text) } (next) } }
}

/// Names with values.
pub(crate) fn facts(facts: &[(&str, Markup)]) -> Markup {
    html! { dl.facts { @for (name, value) in facts { dt { (name) } dd { (value) } } } }
}

/// A number, faint if it is zero.
pub(crate) fn number(number: u64) -> Markup {
    html! { span.is-zero[number == 0] { (format::count(number)) } }
}

/// What needs attention, with the way to it.
pub(crate) fn findings(findings: &[Finding]) -> Markup {
    html! {
        ul.notices {
            @for finding in findings {
                li data-key=(format!("{}{}", finding.check, finding.problem)) {
                    (Icon::Alert)
                    p { (finding.problem) }
                    p.remedy { (with_code(&finding.remedy)) }
                    @if let Some(href) = way_to(finding) { a.btn.is-small.act href=(href) { "Show" span.unseen { " " (finding.problem) } } }
                }
            }
        }
    }
}

/// A text in which commands are between backticks.
fn with_code(text: &str) -> Markup {
    html! { @for (at, part) in text.split('`').enumerate() { @if at % 2 == 1 { code { (part) } } @else { (part) } } }
}

/// The page about a finding. Its text names topic and group in a fixed form.
fn way_to(finding: &Finding) -> Option<String> {
    if matches!(finding.check, "no_maintenance" | "job_overdue" | "job_failing" | "cleanup_behind") {
        return Some("/maintenance".into());
    }
    if let Some(rest) = finding.problem.strip_prefix("process ") {
        return rest.split_once(',').map(|(id, _)| format!("/processes/{}", url::segment(id)));
    }
    let rest = finding.problem.strip_prefix("topic ")?;
    if let Some((topic, rest)) = rest.split_once(", group ") {
        let (group, _) = rest.split_once(": ")?;
        return Some(url::group(topic, group));
    }
    let end = rest.find(" is pub_sub and no subscription").or_else(|| rest.find(": "))?;
    Some(url::topic(&rest[..end]))
}

/// A field of a form.
#[expect(clippy::needless_pass_by_value, reason = "parts of a page are made where they are passed")]
pub(crate) fn field(id: &str, label: &str, hint: &str, input: Markup) -> Markup {
    html! {
        div.field {
            label for=(id) { (label) }
            (input)
            @if !hint.is_empty() { span.hint id={ (id) "-hint" } { (hint) } }
        }
    }
}

/// A field for one line of text.
pub(crate) fn text_field(id: &str, label: &str, hint: &str, value: &str) -> Markup {
    let hinted = (!hint.is_empty()).then(|| format!("{id}-hint"));
    field(
        id,
        label,
        hint,
        html! { input type="text" id=(id) name=(id) value=(value) autocomplete="off" spellcheck="false" aria-describedby=[hinted]; },
    )
}

/// A choice among words.
pub(crate) fn select(id: &str, label: &str, choices: &[(&str, &str)], chosen: &str) -> Markup {
    field(
        id,
        label,
        "",
        html! {
            select id=(id) name=(id) {
                @for (value, text) in choices { option value=(value) selected[*value == chosen] { (text) } }
            }
        },
    )
}

/// A question before something is changed: a page of its own, shown in a dialog where scripts run.
pub(crate) struct Confirm<'a> {
    /// What is done, as a heading.
    pub(crate) title: &'a str,
    /// What it means.
    pub(crate) text: Markup,
    /// Fields, beside the CSRF token.
    pub(crate) fields: Markup,
    /// The word on the button.
    pub(crate) act: &'a str,
    pub(crate) is_dangerous: bool,
    /// A dry run: the same form by GET, with this word on its button.
    pub(crate) dry_run: Option<&'a str>,
    /// Where the form leads.
    pub(crate) action: String,
    /// Where "Cancel" leads.
    pub(crate) back: String,
}

impl Confirm<'_> {
    pub(crate) fn render(&self, view: &View) -> Markup {
        let danger = if self.is_dangerous { "is-danger" } else { "" };
        html! {
            section.card.confirm data-confirm="" {
                div.card-head { h2 { (self.title) } }
                form.form.card-body method="post" action=(self.action) {
                    (view.csrf())
                    (self.text)
                    (self.fields)
                    div.form-acts {
                        button.btn.is-primary.(danger) { (self.act) }
                        @if let Some(word) = self.dry_run {
                            button.btn formmethod="get" formaction=(self.action) { (word) }
                        }
                        a.btn.is-quiet href=(self.back) data-close="" { "Cancel" }
                    }
                }
            }
        }
    }
}

/// Which part of a list is shown, with the way to the others.
pub(crate) struct Pages {
    pub(crate) page: usize,
    pub(crate) per_page: usize,
    pub(crate) total: usize,
}

impl Pages {
    /// Page numbers start with 1; one beyond the end is the last.
    pub(crate) fn new(page: Option<usize>, per_page: usize, total: usize) -> Self {
        let last = total.div_ceil(per_page).max(1);
        Pages { page: page.unwrap_or(1).clamp(1, last), per_page, total }
    }

    /// What of a list is on the page.
    pub(crate) fn of<'a, T>(&self, list: &'a [T]) -> &'a [T] {
        let from = ((self.page - 1) * self.per_page).min(list.len());
        &list[from..(from + self.per_page).min(list.len())]
    }

    /// `link` makes the address of a page.
    pub(crate) fn render(&self, what: &str, link: impl Fn(usize) -> String) -> Markup {
        let first = (self.page - 1) * self.per_page + 1;
        let last = (self.page * self.per_page).min(self.total);
        let has_more = last < self.total;
        html! {
            div.pager {
                span {
                    @if self.total <= self.per_page { (format::count(self.total as u64)) " " (what) }
                    @else { (format::count(first as u64)) "–" (format::count(last as u64)) " of " (format::count(self.total as u64)) " " (what) }
                }
                @if self.total > self.per_page {
                    nav aria-label="Parts of the list" {
                        @if self.page > 1 { a.btn.is-small rel="prev" href=(link(self.page - 1)) { (Icon::Back) "Previous" } }
                        @if has_more { a.btn.is-small rel="next" href=(link(self.page + 1)) { "Next" (Icon::Forward) } }
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_stay_inside_of_the_list() {
        let list: Vec<u32> = (0..25).collect();
        let page = |number| Pages::new(number, 10, list.len());
        assert_eq!(page(None).of(&list).len(), 10);
        assert_eq!(page(Some(3)).of(&list), [20, 21, 22, 23, 24]);
        assert_eq!((page(Some(0)).page, page(Some(99)).page), (1, 3));
        assert!(Pages::new(Some(7), 10, 0).of::<u32>(&[]).is_empty());
    }

    #[test]
    fn findings_lead_to_what_they_are_about() {
        let of =
            |check, problem: &str| way_to(&Finding { check, problem: problem.into(), remedy: String::new() });
        assert_eq!(
            of("group_dead", "topic a/b, group c: dead for 3m, lag 7").unwrap(),
            "/topics/a%2Fb/groups/c"
        );
        assert_eq!(
            of("zero_subscriptions", "topic news is pub_sub and no subscription counts: x").unwrap(),
            "/topics/news"
        );
        assert_eq!(of("settings_conflict", "topic news: a lease lasts 2d").unwrap(), "/topics/news");
        assert_eq!(of("no_maintenance", "no maintenance ran for 1h").unwrap(), "/maintenance");
        assert_eq!(
            of("compensation_failed", "process 0198, type order, key o: step x").unwrap(),
            "/processes/0198"
        );
        assert_eq!(of("other", "something"), None);
    }
}
