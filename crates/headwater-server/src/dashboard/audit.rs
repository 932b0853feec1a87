//! `/audit`: what operators changed and what was refused, newest first.

use axum::extract::Query;
use axum::response::Response;
use headwater::store::AuditEntry;
use maud::{Markup, html};
use serde::Deserialize;

use super::act::counted;
use super::components::{Head, Tone, badge, empty};
use super::icons::Icon;
use super::layout::Section;
use super::view::{Failure, View};
use super::{format, url};
use crate::auth::Scope;

/// Entries of a page, and those that are read to find some that match.
const PER_PAGE: u32 = 100;
const READ_MAX: u32 = 2_000;

/// What is shown.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Shown {
    q: String,
    /// Only entries before this one.
    before: Option<i64>,
}

/// `GET /audit`
pub(crate) async fn page(Query(shown): Query<Shown>, view: View) -> Result<Response, Failure> {
    view.visitor.caller.may(Scope::Admin, None)?;
    let (entries, next) = list(&view, &shown).await?;
    let table = table(&view, &shown, &entries, next);
    let content = html! {
        (Head::new("Audit").note("Every change by an operator, and every request that was denied."))
        section.card {
            div.card-head {
                form.search method="get" action="/audit" role="search" {
                    input type="search" name="q" value=(shown.q) placeholder="Actor, act, topic or group" aria-label="Actor, act, topic or group";
                    button.btn { "Search" }
                }
            }
            @if shown.before.is_none() { (view.live("list", table)) } @else { (table) }
        }
    };
    Ok(view.page(Section::Audit, "Audit", content).await)
}

/// The entries of a page, and where the next one begins.
async fn list(view: &View, shown: &Shown) -> Result<(Vec<AuditEntry>, Option<i64>), Failure> {
    let headwater = &view.app.headwater;
    let limit = if shown.q.is_empty() { PER_PAGE } else { READ_MAX };
    let mut read = match shown.before {
        None => headwater.audit(limit).await?,
        Some(before) => headwater.audit_before(before, limit).await?,
    };
    let oldest = read.last().filter(|_| read.len() == limit as usize).map(|entry| entry.audit_id);
    let text = shown.q.to_lowercase();
    let contains = |field: &str| field.to_lowercase().contains(&text);
    read.retain(|entry| {
        let fields = [Some(&entry.actor), Some(&entry.act), entry.topic.as_ref(), entry.group.as_ref()];
        fields.into_iter().flatten().any(|field| contains(field))
    });
    let is_more = read.len() > PER_PAGE as usize;
    read.truncate(PER_PAGE as usize);
    let next = if is_more { read.last().map(|entry| entry.audit_id) } else { oldest };
    Ok((read, next))
}

fn table(view: &View, shown: &Shown, entries: &[AuditEntry], next: Option<i64>) -> Markup {
    if entries.is_empty() {
        let text = if shown.q.is_empty() {
            "Pausing a group, changing a topic, redriving dead letters: each leaves an entry here."
        } else {
            "Other words may find some."
        };
        return empty(
            Icon::Audit,
            if shown.q.is_empty() { "Nothing was changed yet" } else { "No entry matches" },
            text,
            html! {},
        );
    }
    html! {
        table.data.stacks {
            thead { tr { th scope="col" { "When" } th scope="col" { "Who" } th scope="col" { "Act" } th scope="col" { "Topic, group" } th scope="col" { "Particulars" } } }
            tbody { @for entry in entries { (row(view, entry)) } }
        }
        div.pager {
            span { (counted(entries.len() as u64, "entry", "entries")) ", newest first" }
            nav aria-label="Parts of the list" {
                @if shown.before.is_some() { a.btn.is-small href=(url::with_query("/audit", &[("q", &shown.q)])) { (Icon::Back) "Newest" } }
                @if let Some(next) = next { a.btn.is-small rel="next" href=(url::with_query("/audit", &[("q", &shown.q), ("before", &next.to_string())])) { "Older" (Icon::Forward) } }
            }
        }
    }
}

fn row(view: &View, entry: &AuditEntry) -> Markup {
    let act = entry.act.replace('_', " ");
    let is_denial = entry.act.starts_with("den");
    html! {
        tr data-key=(entry.audit_id) data-arrives="" {
            td.nowrap data-label="When" { (format::ago(view.now, entry.at)) }
            td data-label="Who" { span.break { (entry.actor) } }
            td data-label="Act" { @if is_denial { (badge(Tone::Bad, Icon::Cancelled, &act)) } @else { span.strong { (act) } } }
            td data-label="Topic, group" {
                @if let Some(topic) = &entry.topic { a.break href=(url::topic(topic)) { (topic) } }
                @if let (Some(topic), Some(group)) = (&entry.topic, &entry.group) { " " a.break href=(url::group(topic, group)) { (group) } }
            }
            td.text.wide { span.clip.soft title=(entry.detail) { (particulars(&entry.detail)) } }
        }
    }
}

/// A JSON object as words: `from active, to paused`.
fn particulars(detail: &str) -> String {
    let Ok(serde_json::Value::Object(fields)) = serde_json::from_str(detail) else {
        return detail.to_owned();
    };
    let word = |value: &serde_json::Value| match value {
        serde_json::Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    let parts: Vec<_> = fields
        .iter()
        .filter(|(_, value)| !value.is_null())
        .map(|(name, value)| format!("{} {}", name.replace('_', " "), word(value)))
        .collect();
    parts.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn particulars_are_told_in_words() {
        assert_eq!(
            particulars(r#"{"from":"active","to":"paused","leases_lost":2,"reason":null}"#),
            "from active, leases lost 2, to paused"
        );
        assert_eq!(particulars("no JSON"), "no JSON");
    }
}
