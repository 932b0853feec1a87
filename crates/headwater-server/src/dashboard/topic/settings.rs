//! `/topics/{topic}/settings`: every setting as the command line writes it, and what a change of them would be.

use std::collections::BTreeMap;

use axum::extract::{Path, Query, State};
use axum::response::Response;
use headwater::TopicSettings;
use maud::{Markup, html};
use serde_json::Value;

use super::{Tab, find, head};
use crate::app::App;
use crate::auth::Scope;
use crate::auth::session::Submitted;
use crate::dashboard::act::{Leads, change};
use crate::dashboard::components::{card, field};
use crate::dashboard::icons::Icon;
use crate::dashboard::input;
use crate::dashboard::layout::Section;
use crate::dashboard::url::{self, Name};
use crate::dashboard::view::{Failure, View};
use crate::problem::Problem;

/// Settings with a few possible words.
const WORDS: [(&str, &[&str]); 3] = [
    ("semantics", &["queue", "pub_sub"]),
    ("tracking", &["offset_watermark", "reference_counting"]),
    ("ordering", &["none", "key"]),
];

/// What a setting means.
fn hint(name: &str) -> &'static str {
    match name {
        "semantics" => "queue: one group. pub_sub: every group gets every message",
        "tracking" => "How completion is recorded",
        "message_retention_ms" => "How long a message is kept after every group has done it, or forever",
        "max_retention_ms" => "The age at which it is removed even if it is unread, or none",
        "zero_subscription_retention_ms" => "How long a message is kept that no group was there for",
        "block_writes_on_zero_subscriptions" => "Publishing fails while no group subscribes",
        "zombie_subscription_ttl_ms" => "After this a dead group gives up what is removed",
        "lease_ms" => "How long a message is handed out for",
        "max_attempts" => "How often a message is handed out before it becomes a dead letter",
        "backoff_initial_ms" => "The first delay before a retry; it doubles",
        "backoff_max_ms" => "The longest delay before a retry",
        "ordering" => "key: messages of one key strictly in order",
        "lanes" => "How many parts of an ordered group run side by side",
        "storage" => "shared, dedicated, or dedicated by rows:N, hour, day, month",
        "payload_bytes_max" => "The largest payload in bytes",
        "dedup_window_ms" => "How long a dedup key is remembered",
        "heartbeat_interval_ms" => "How often processes report that they live",
        "heartbeat_timeout_ms" => "After this without a heartbeat a group is dead",
        "ack_log" => "Whether it is recorded who acked what",
        "gap_patience_ms" => "How long the head waits for a missing offset (PostgreSQL)",
        _ => "",
    }
}

/// The word that people use for a setting.
fn label(name: &str) -> String {
    let words = name.trim_end_matches("_ms").replace('_', " ");
    let mut characters = words.chars();
    characters.next().map_or_else(String::new, |first| first.to_uppercase().chain(characters).collect())
}

/// `GET /topics/{topic}/settings`; with values of settings a dry run.
pub(crate) async fn page(
    Path(Name(name)): Path<Name>,
    Query(wanted): Query<BTreeMap<String, String>>,
    view: View,
) -> Result<Response, Failure> {
    let status = &find(&view, &name).await?;
    let settings = status.topic.settings.clone();
    let can_change = view.can_change(Some(&name));
    let dry_run = (!wanted.is_empty()).then(|| changed(&settings, &wanted));
    let action = format!("{}/settings", url::topic(&name));
    let content = html! {
        (head(&view, status, Tab::Settings))
        div.stack {
            @if let Some(dry_run) = &dry_run { (would_change(&settings, dry_run)) }
            section.card {
                div.card-head { h2 { "Settings" } span.card-note { "Durations are written as 30s, 5m, 2h, 7d" } }
                form.form.card-body method="post" action=(action) {
                    (view.csrf())
                    @for (title, part) in parts(&settings) {
                        fieldset.form {
                            legend { (title) }
                            div.fields {
                                @for (setting, value, words) in part { (input_for(&setting, &value, wanted.get(&setting).unwrap_or(&words), can_change)) }
                            }
                        }
                    }
                    @if can_change {
                        div.form-acts {
                            button.btn.is-primary { "Save settings" }
                            button.btn formmethod="get" formaction=(action) { "Show what would change" }
                        }
                    }
                }
            }
            @if can_change { (dangers(&name)) }
        }
    };
    Ok(view.page(Section::Topics, &format!("Settings of {name}"), content).await)
}

/// A setting: its stored name, its stored value, and as people write it.
type Described = (String, Value, String);

/// The settings by what they are about.
fn parts(settings: &TopicSettings) -> Vec<(&'static str, Vec<Described>)> {
    let mut parts = vec![
        ("Messages", Vec::new()),
        ("Delivery", Vec::new()),
        ("Retention", Vec::new()),
        ("Groups", Vec::new()),
    ];
    for described in settings.described() {
        let part = match described.0.as_str() {
            "lease_ms" | "max_attempts" | "backoff_initial_ms" | "backoff_max_ms" | "ordering" | "lanes" => 1,
            name if name.contains("retention") || name.starts_with("block") || name.starts_with("zombie") => {
                2
            }
            name if name.starts_with("heartbeat") || name == "tracking" || name == "ack_log" => 3,
            _ => 0,
        };
        parts[part].1.push(described);
    }
    parts
}

fn input_for(setting: &str, value: &Value, words: &str, can_change: bool) -> Markup {
    let choices: Option<&[&str]> = match value {
        Value::Bool(_) => Some(&["false", "true"]),
        _ => WORDS.iter().find(|(name, _)| *name == setting).map(|(_, words)| *words),
    };
    field(
        setting,
        &label(setting),
        hint(setting),
        html! {
            @match choices {
                Some(choices) => {
                    select id=(setting) name=(setting) disabled[!can_change] aria-describedby={ (setting) "-hint" } {
                        @for choice in choices { option value=(choice) selected[*choice == words] { (choice) } }
                    }
                }
                None => {
                    input type="text" id=(setting) name=(setting) value=(words) disabled[!can_change] autocomplete="off" spellcheck="false" aria-describedby={ (setting) "-hint" };
                }
            }
        },
    )
}

/// The settings with the values of a form.
fn changed(settings: &TopicSettings, wanted: &BTreeMap<String, String>) -> Result<TopicSettings, Failure> {
    let mut json = serde_json::Map::new();
    for (name, value, words) in settings.described() {
        let value = match wanted.get(&name).map(|text| text.trim()).filter(|text| *text != words) {
            None => value,
            Some(text) => parsed(&name, &value, text)?,
        };
        json.insert(name, value);
    }
    let settings: TopicSettings =
        serde_json::from_value(Value::Object(json)).map_err(|error| Problem::invalid("settings", error))?;
    settings.validate()?;
    Ok(settings)
}

/// A setting as it was written.
fn parsed(name: &str, before: &Value, text: &str) -> Result<Value, Failure> {
    let is_endless = matches!(name, "message_retention_ms" | "max_retention_ms")
        && matches!(text, "forever" | "none" | "");
    Ok(match before {
        _ if is_endless => Value::Null,
        _ if name.ends_with("_ms") => {
            let millis = input::duration(name.trim_end_matches("_ms"), text)?.as_nanos().div_ceil(1_000_000);
            Value::from(u64::try_from(millis).unwrap_or(u64::MAX))
        }
        Value::Bool(_) => Value::Bool(text == "true"),
        Value::Number(_) => Value::from(input::number(name, text)?),
        _ => Value::from(text),
    })
}

/// Each setting that differs: before and after.
fn differences(before: &TopicSettings, after: &TopicSettings) -> Vec<(String, String, String)> {
    let pairs = before.described().into_iter().zip(after.described());
    pairs
        .filter(|((_, a, _), (_, b, _))| a != b)
        .map(|((name, _, a), (_, _, b))| (label(&name), a, b))
        .collect()
}

fn would_change(settings: &TopicSettings, wanted: &Result<TopicSettings, Failure>) -> Markup {
    match wanted.as_ref().map(|wanted| differences(settings, wanted)) {
        Err(why) => {
            html! { div.callout.is-bad role="alert" { strong { "This would be refused" } (why.detail()) } }
        }
        Ok(none) if none.is_empty() => html! { div.callout role="status" { "Nothing would change." } },
        Ok(some) => html! {
            div.callout role="status" {
                strong { "This would change" }
                @for (name, before, after) in &some { div { (name) ": " (before) " → " b { (after) } } }
            }
        },
    }
}

fn dangers(name: &str) -> Markup {
    card(
        "Remove",
        html! {},
        html! {
            div.card-body.form-acts {
                a.btn.is-danger href={ (url::topic(name)) "/purge" } data-dialog="" { (Icon::Trash) "Remove all messages" }
                a.btn.is-danger href={ (url::topic(name)) "/delete" } data-dialog="" { (Icon::Trash) "Delete topic" }
                span.soft { "Both show first what they would remove." }
            }
        },
    )
}

/// `POST /topics/{topic}/settings`
pub(crate) async fn save(
    State(app): State<App>,
    Path(Name(name)): Path<Name>,
    Submitted { visitor, form }: Submitted<BTreeMap<String, String>>,
) -> Response {
    let page = format!("{}/settings", url::topic(&name));
    let saves = async {
        let topics = app.acting(&visitor.caller).topics();
        let before = topics.get(&name).await?.settings;
        let wanted = changed(&before, &form)?;
        let differ = differences(&before, &wanted);
        if differ.is_empty() {
            return Ok("Nothing was changed: the topic has these settings already.".to_owned());
        }
        topics.alter(&name, &wanted).await?;
        let words: Vec<_> =
            differ.iter().map(|(name, before, after)| format!("{name}: {before} → {after}")).collect();
        Ok(format!("Changed. {}", words.join(", ")))
    };
    change(&app, &visitor, (Scope::Admin, Some(&name)), Leads::to(&page), saves).await
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(pairs: &[(&str, &str)]) -> Result<TopicSettings, Failure> {
        let wanted = pairs.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect();
        changed(&TopicSettings::pub_sub(), &wanted)
    }

    #[test]
    fn what_was_not_touched_stays_and_what_was_is_read_as_people_write_it() {
        assert_eq!(with(&[]).unwrap(), TopicSettings::pub_sub());
        let settings = with(&[
            ("lease_ms", "30s"),
            ("max_attempts", "3"),
            ("ack_log", "true"),
            ("message_retention_ms", "forever"),
            ("max_retention_ms", "none"),
            ("storage", "dedicated by day"),
        ])
        .unwrap();
        assert_eq!((settings.lease.as_secs(), settings.max_attempts, settings.ack_log), (30, 3, true));
        assert_eq!((settings.message_retention, settings.max_retention), (None, None));
        assert_eq!(settings.storage.to_string(), "dedicated by day");
        assert_eq!(differences(&TopicSettings::pub_sub(), &settings).len(), 6);
    }

    #[test]
    fn values_that_make_no_sense_are_refused_with_the_field() {
        for (name, text, says) in [
            ("lease_ms", "soon", "lease"),
            ("max_attempts", "0", "max_attempts"),
            ("storage", "cloud", "storage"),
        ] {
            let refused = with(&[(name, text)]).unwrap_err();
            assert!(refused.detail().contains(says), "{refused:?}");
        }
    }

    #[test]
    fn every_setting_is_explained() {
        for (name, ..) in TopicSettings::default().described() {
            assert!(!hint(&name).is_empty(), "{name}");
        }
    }
}
