//! Changes of a group: each is asked for first, with what it would do, and then done.

use std::time::Duration;

use axum::extract::{Path, Query, State};
use axum::response::Response;
use headwater::store::{GroupHealth, LeaseToken, Moved};
use headwater::{DeliveryPolicy, Headwater, SubscriptionState};
use maud::{Markup, html};
use serde::Deserialize;

use crate::app::App;
use crate::auth::Scope;
use crate::auth::session::Submitted;
use crate::dashboard::act::{Leads, change, counted};
use crate::dashboard::components::{Confirm, Head, facts, field, select, text_field};
use crate::dashboard::format;
use crate::dashboard::input::{self, given};
use crate::dashboard::layout::Section;
use crate::dashboard::url::{self, Name};
use crate::dashboard::view::{Failure, View};
use crate::problem::Problem;

/// How long a removal waits for messages that are being handled.
const REMOVE_WAITS: Duration = Duration::from_secs(5);

/// What the forms of all changes have.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Wanted {
    reason: String,
    /// Where a seek leads.
    to: String,
    value: String,
    /// The most that a resurrected group is behind.
    behind_max: String,
    /// The token of a lease.
    token: String,
    lease: String,
    max_attempts: String,
    backoff_initial: String,
    backoff_max: String,
    heartbeat_interval: String,
    heartbeat_timeout: String,
}

/// `GET /topics/{topic}/groups/{group}/{act}`: the question.
pub(crate) async fn ask(
    Path((Name(topic), Name(group), act)): Path<(Name, Name, String)>,
    Query(wanted): Query<Wanted>,
    view: View,
) -> Result<Response, Failure> {
    view.visitor.caller.may(Scope::Admin, Some(&topic))?;
    let health = view.app.headwater.groups(&topic).get(&group).await?;
    let own = url::group(&topic, &group);
    let Some(question) = question(&view.app.headwater, &topic, &health, &act, &wanted).await? else {
        return Err(Problem::not_found("There is no such action.").into());
    };
    let title = format!("{} {group}", question.verb);
    let confirm = Confirm {
        title: &title,
        text: question.text,
        fields: question.fields,
        act: question.verb,
        is_dangerous: question.is_dangerous,
        dry_run: question.dry_run,
        action: format!("{own}/{act}"),
        back: own.clone(),
    };
    let crumbs =
        [("Groups", "/groups".to_owned()), (topic.as_str(), url::topic(&topic)), (group.as_str(), own)];
    let content = html! { (Head::new(&title).under(&crumbs)) (confirm.render(&view)) };
    Ok(view.page(Section::Groups, &title, content).await)
}

struct Question {
    verb: &'static str,
    text: Markup,
    fields: Markup,
    is_dangerous: bool,
    dry_run: Option<&'static str>,
}

impl Question {
    fn new(verb: &'static str, text: Markup) -> Self {
        Question { verb, text, fields: html! {}, is_dangerous: false, dry_run: None }
    }
}

async fn question(
    headwater: &Headwater,
    topic: &str,
    health: &GroupHealth,
    act: &str,
    wanted: &Wanted,
) -> Result<Option<Question>, Failure> {
    let status = &health.status;
    let group = status.group.as_str();
    Ok(Some(match act {
        "pause" => Question {
            fields: text_field("reason", "Reason", "Shown with the group until it is resumed", ""),
            ..Question::new(
                "Pause",
                html! { p { "Delivery stops in every process at once. Nothing is lost: " (format::count(status.lag)) " messages and all later ones wait, and retention waits for the group." } },
            )
        },
        "resume" => Question::new(
            "Resume",
            html! { p { "Delivery starts again in every process: " (format::count(status.lag)) " messages wait." } },
        ),
        "resurrect" => Question {
            fields: text_field(
                "behind_max",
                "At most this many messages behind",
                "Empty: it continues at its position",
                &wanted.behind_max,
            ),
            ..Question::new(
                "Resurrect",
                html! { p { "The group becomes active again and gets what it has not done: " (format::count(status.lag)) " messages." } },
            )
        },
        "seek" => seek_question(headwater, topic, group, wanted).await,
        "cancel" => Question {
            is_dangerous: true,
            ..Question::new(
                "Cancel",
                html! {
                    p { "This is permanent. The group gets no messages any more, its leases are lost at once, and retention no longer waits for it." }
                    (facts(&[("Not done", html! { (format::count(status.lag)) " messages" }), ("In flight", html! { (format::count(status.in_flight)) }), ("Processes", html! { (status.processes) })]))
                },
            )
        },
        "remove" => Question {
            is_dangerous: true,
            ..Question::new(
                "Remove",
                html! { p { "Deletes the cancelled group with its " (format::count(status.dead_letters)) " dead letters." } },
            )
        },
        "policy" => Question {
            fields: policy_fields(&headwater.groups(topic).policy(group).await?),
            ..Question::new(
                "Change delivery of",
                html! { p { "What is empty is taken from the topic. Running consumers apply it to messages they claim from then on." } },
            )
        },
        "backfill-cancel" => Question {
            is_dangerous: true,
            ..Question::new(
                "Cancel backfill of",
                html! { p { "It stops at once; what it has done stays, and it can be resumed." } },
            )
        },
        "backfill-resume" => Question::new(
            "Resume backfill of",
            html! { p { "It continues from its checkpoint. Maintenance runs it." } },
        ),
        _ => return Ok(None),
    }))
}

async fn seek_question(headwater: &Headwater, topic: &str, group: &str, wanted: &Wanted) -> Question {
    let positions = [
        ("beginning", "The oldest message stored"),
        ("now", "Now: skip everything published so far"),
        ("offset", "An offset"),
        ("time", "A time"),
        ("back", "So many messages back from the head"),
    ];
    let dry_run = match wanted.to.as_str() {
        "" => html! {},
        _ => seek_effect(dry_run(headwater, topic, group, wanted).await),
    };
    Question {
        verb: "Seek",
        text: html! {
            p { "Moves the group’s position. What is in flight is dropped: its leases are lost. Dead letters stay." }
            (dry_run)
        },
        fields: html! {
            div.fields {
                (select("to", "To", &positions, &wanted.to))
                (field("value", "Offset, time or number", "A time like 2026-03-02T09:00:00Z, in UTC", html! { input type="text" id="value" name="value" value=(wanted.value) autocomplete="off" aria-describedby="value-hint"; }))
            }
        },
        is_dangerous: true,
        dry_run: Some("Show the effect"),
    }
}

async fn dry_run(headwater: &Headwater, topic: &str, group: &str, wanted: &Wanted) -> Result<Moved, Failure> {
    let to = input::position(&wanted.to, Some(&wanted.value))?;
    Ok(headwater.groups(topic).seek(group, to, true).await?)
}

fn seek_effect(moved: Result<Moved, Failure>) -> Markup {
    match moved {
        Err(why) => {
            html! { div.callout.is-bad role="alert" { strong { "This would be refused" } (why.detail()) } }
        }
        Ok(moved) => html! {
            div.callout role="status" {
                strong { "From offset " (format::count(moved.from.0.unsigned_abs())) " to " (format::count(moved.to.0.unsigned_abs())) }
                div { (counted(moved.replayed, "message is", "messages are")) " handed out again although done" }
                div { (counted(moved.skipped, "message is", "messages are")) " never handed out" }
                div { (counted(moved.leases_lost, "lease is", "leases are")) " lost" }
            }
        },
    }
}

fn policy_fields(policy: &DeliveryPolicy) -> Markup {
    let duration =
        |value: Option<Duration>| value.map(|value| format!("{}ms", value.as_millis())).unwrap_or_default();
    html! {
        div.fields {
            (text_field("lease", "Lease", "", &duration(policy.lease)))
            (text_field("max_attempts", "Attempts", "", &policy.max_attempts.map(|attempts| attempts.to_string()).unwrap_or_default()))
            (text_field("backoff_initial", "First delay before a retry", "", &duration(policy.backoff_initial)))
            (text_field("backoff_max", "Longest delay", "", &duration(policy.backoff_max)))
            (text_field("heartbeat_interval", "Heartbeat every", "", &duration(policy.heartbeat_interval)))
            (text_field("heartbeat_timeout", "Dead after", "", &duration(policy.heartbeat_timeout)))
        }
    }
}

fn policy_of(wanted: &Wanted) -> Result<DeliveryPolicy, Failure> {
    let duration =
        |field: &str, text: &str| given(Some(text)).map(|text| input::duration(field, text)).transpose();
    let attempts =
        given(Some(&wanted.max_attempts)).map(|text| input::number("max_attempts", text)).transpose()?;
    let too_many = |_| Problem::invalid("max_attempts", "must be from 1 to 1000");
    Ok(DeliveryPolicy {
        lease: duration("lease", &wanted.lease)?,
        max_attempts: attempts.map(|attempts| u32::try_from(attempts).map_err(too_many)).transpose()?,
        backoff_initial: duration("backoff_initial", &wanted.backoff_initial)?,
        backoff_max: duration("backoff_max", &wanted.backoff_max)?,
        heartbeat_interval: duration("heartbeat_interval", &wanted.heartbeat_interval)?,
        heartbeat_timeout: duration("heartbeat_timeout", &wanted.heartbeat_timeout)?,
    })
}

/// `POST /topics/{topic}/groups/{group}/{act}`
pub(crate) async fn act(
    State(app): State<App>,
    Path((Name(topic), Name(group), act)): Path<(Name, Name, String)>,
    Submitted { visitor, form }: Submitted<Wanted>,
) -> Response {
    let own = url::group(&topic, &group);
    let groups_page = format!("{}/groups", url::topic(&topic));
    let leads = Leads { done: if act == "remove" { &groups_page } else { &own }, refused: &own };
    let headwater = app.acting(&visitor.caller);
    let acts = done(&headwater, &topic, &group, &act, &form);
    change(&app, &visitor, (Scope::Admin, Some(&topic)), leads, acts).await
}

/// Does it, and says what was done.
async fn done(
    headwater: &Headwater,
    topic: &str,
    group: &str,
    act: &str,
    form: &Wanted,
) -> Result<String, Failure> {
    let groups = headwater.groups(topic);
    Ok(match act {
        "pause" => {
            match given(Some(&form.reason)) {
                Some(reason) => groups.pause_because(group, reason).await?,
                None => groups.pause(group).await?,
            }
            format!("Group {group} is paused.")
        }
        "resume" => {
            groups.resume(group).await?;
            format!("Group {group} is active again.")
        }
        "resurrect" => {
            let behind =
                given(Some(&form.behind_max)).map(|text| input::number("behind_max", text)).transpose()?;
            let back = groups.resurrect(group, behind).await?;
            format!("Group {group} is active again, at offset {}.", format::count(back.next.0.unsigned_abs()))
        }
        "seek" => {
            let moved = groups.seek(group, input::position(&form.to, Some(&form.value))?, false).await?;
            let replayed = counted(moved.replayed, "message is", "messages are");
            let skipped = counted(moved.skipped, "is", "are");
            format!(
                "Group {group} is at offset {}: {replayed} handed out again, {skipped} skipped.",
                format::count(moved.to.0.unsigned_abs())
            )
        }
        "cancel" => {
            groups.cancel(group).await?;
            format!("Group {group} is cancelled.")
        }
        "remove" => {
            // What is not cancelled is in use: a form that was left open must not remove it.
            if groups.get(group).await?.status.state != SubscriptionState::Cancelled {
                return Err(Problem::invalid(
                    "state",
                    "only a cancelled group is removed; nothing was changed",
                )
                .into());
            }
            groups.remove(group, REMOVE_WAITS).await?;
            format!("Group {group} is removed.")
        }
        "policy" => {
            groups.set_policy(group, &policy_of(form)?).await?;
            format!("Delivery of group {group} is changed.")
        }
        "release" => {
            let token =
                form.token.parse().map_err(|_| Problem::invalid("token", "is not the token of a lease"))?;
            headwater.release_lease(LeaseToken(token)).await?;
            "The lease is ended: its messages are handed out again.".into()
        }
        "backfill-cancel" => {
            groups.cancel_backfill(group).await?;
            format!("Backfill of group {group} is cancelled.")
        }
        "backfill-resume" => {
            groups.resume_backfill(group).await?;
            format!("Backfill of group {group} is resumed.")
        }
        _ => return Err(Problem::not_found("There is no such action.").into()),
    })
}
