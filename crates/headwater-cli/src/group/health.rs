//! State and health of groups: the list for an overview, and everything about one.

use std::time::Duration;

use anyhow::Result;
use headwater::store::{GroupHealth, Outstanding};
use headwater::{Headwater, SubscriptionState};
use serde_json::{Value, json};

use super::topics;
use crate::args::{Global, GroupArgs, GroupListArgs, GroupShowArgs, Output};
use crate::human;
use crate::output::{Fields, Rows, in_short, print_objects};
use crate::topic::look_for_the_end;

/// Columns of the list that fit into 80 characters. In each list the topic comes first, and is left out if only one is listed.
const LISTED: [&str; 8] = ["topic", "group", "status", "lag", "behind", "retrying", "dead", "rate"];
/// Columns of the wide list.
const WIDE: [&str; 15] = [
    "topic",
    "group",
    "state",
    "health",
    "heartbeat",
    "lag",
    "behind",
    "in_flight",
    "retrying",
    "dead_letters",
    "processed",
    "failed",
    "rate",
    "p95",
    "missed",
];
/// All of them.
const COLUMNS: [&str; 17] = [
    "topic",
    "group",
    "status",
    "state",
    "health",
    "heartbeat",
    "lag",
    "behind",
    "in_flight",
    "retrying",
    "dead",
    "dead_letters",
    "processed",
    "failed",
    "rate",
    "p95",
    "missed",
];

pub(super) async fn list(global: &Global, headwater: &Headwater, args: &GroupListArgs) -> Result<()> {
    look_for_the_end(headwater).await;
    let mut groups = Vec::new();
    for topic in topics(headwater, args.topic.as_deref()).await? {
        let of_topic = headwater.groups(&topic).list().await?;
        groups.extend(of_topic.into_iter().map(|group| (topic.clone(), group)));
    }
    if global.output == Output::Json {
        return print_objects(groups.iter().map(|(topic, group)| fields_of(topic, group).object()));
    }
    let of_one = usize::from(args.topic.is_some());
    let rows = Rows::new(&COLUMNS);
    let mut rows =
        if args.wide { rows.showing(&WIDE[of_one..]).wide() } else { rows.showing(&LISTED[of_one..]) };
    for (topic, health) in &groups {
        let group = &health.status;
        rows.push(vec![
            json!(topic),
            json!(group.group.as_str()),
            json!(status(health)),
            json!(group.state.as_str()),
            json!(verdict(health)),
            json!(group.heartbeat_age.map(ago)),
            json!(group.lag),
            json!(health.behind.map(human::duration)),
            json!(group.in_flight),
            json!(group.retrying),
            json!(group.dead_letters),
            json!(group.dead_letters),
            json!(group.activity.processed),
            json!(group.activity.failed),
            json!(human::rate(group.activity.rate)),
            json!(human::duration(group.activity.handling_p95)),
            json!(group.missed.count),
        ]);
    }
    rows.print(global.output)
}

pub(super) async fn show(global: &Global, headwater: &Headwater, args: &GroupShowArgs) -> Result<()> {
    let GroupArgs { topic, group } = &args.of;
    look_for_the_end(headwater).await;
    let groups = headwater.groups(topic);
    let health = groups.get(group).await?;
    let ranges = groups.outstanding(group, args.max).await?;
    let mut fields = fields_of(topic, &health);
    if global.output == Output::Json {
        let ranges = ranges.iter().map(range_object).collect::<Vec<_>>();
        fields.push("outstanding", json!(ranges));
        return fields.print(global.output);
    }
    fields.print(global.output)?;
    if ranges.is_empty() {
        return Ok(());
    }
    let mut rows = Rows::new(&RANGE_COLUMNS);
    for range in &ranges {
        let mut object = range_object(range);
        object["last_error"] = json!(range.last_error.as_deref().map(in_short));
        rows.push(RANGE_COLUMNS.iter().map(|column| object[*column].take()).collect());
    }
    rows.print(global.output)
}

fn ago(age: Duration) -> String {
    // Milliseconds are noise in what a person compares with a timeout.
    let age = if age >= Duration::from_secs(10) { Duration::from_secs(age.as_secs()) } else { age };
    format!("{} ago", human::duration(age))
}

/// The state and health in one word: the state, if it is not active.
pub(crate) fn status(group: &GroupHealth) -> String {
    match group.status.state {
        SubscriptionState::Active => verdict(group),
        state => [&[state.as_str()], &issues(group)[..]].concat().join(", "),
    }
}

/// Healthy, or the health issues.
fn verdict(group: &GroupHealth) -> String {
    let issues = issues(group);
    match group.status.state {
        _ if !issues.is_empty() => issues.join(", "),
        SubscriptionState::Active => "healthy".into(),
        // Neither unhealthy nor active: the state column shows why.
        _ => "-".into(),
    }
}

fn issues(group: &GroupHealth) -> Vec<&'static str> {
    group.health_issues.iter().map(|issue| issue.as_str()).collect()
}

fn fields_of(topic: &str, health: &GroupHealth) -> Fields {
    let (group, issues) = (&health.status, issues(health));
    let mut fields = Fields::default();
    fields.push("topic", json!(topic));
    fields.push("group", json!(group.group.as_str()));
    fields.push("state", json!(group.state.as_str()));
    fields.push("state_since", json!(group.state_since));
    fields.push("state_reason", json!(group.state_reason));
    // Null for a group without issues that is not active: its state applies, not this field.
    let healthy = match group.state {
        SubscriptionState::Active => Some(issues.is_empty()),
        _ => (!issues.is_empty()).then_some(false),
    };
    fields.for_people("health", verdict(health));
    fields.for_programs("healthy", json!(healthy));
    fields.for_programs("health_issues", json!(issues));
    fields.push("heartbeat_at", json!(group.heartbeat_at));
    let age = group.heartbeat_age;
    fields.said(
        "heartbeat_age_ms",
        json!(age.map(human::ms)),
        age.map(ago).unwrap_or_else(|| "never".into()),
    );
    let timeout = group.heartbeat_timeout;
    fields.said("heartbeat_timeout_ms", human::ms(timeout), human::duration(timeout));
    fields.push("processes", json!(group.processes));
    fields.push("restarts", json!(group.restarts));
    fields.push("lanes", json!(group.lanes));
    fields.push("next", json!(group.next.0));
    fields.push("floor", json!(group.floor.0));
    fields.push("lag", json!(group.lag));
    let late = health.behind;
    fields.said("behind_ms", json!(late.map(human::ms)), late.map(human::duration).unwrap_or_default());
    fields.push("oldest_pending", json!(group.oldest_pending));
    fields.push("leased", json!(group.leased));
    fields.push("waiting", json!(group.waiting));
    fields.push("in_flight", json!(group.in_flight));
    fields.push("retrying", json!(group.retrying));
    fields.push("stuck", json!(group.stuck));
    fields.push("dead_letters", json!(group.dead_letters));
    fields.push("buried_lately", json!(group.buried_lately));
    fields.push("reassigned", json!(group.reassigned));
    fields.push("missed", json!(group.missed.count));
    fields.push("missed_first", json!(group.missed.range.map(|(first, _)| first.0)));
    fields.push("missed_last", json!(group.missed.range.map(|(_, last)| last.0)));
    let activity = &group.activity;
    fields.push("processed", json!(activity.processed));
    fields.push("failed", json!(activity.failed));
    fields.push("filtered", json!(activity.filtered));
    fields.said("rate", json!(activity.rate), human::rate(activity.rate));
    let mean = activity.handling_mean;
    fields.said("handling_mean_ms", human::ms_f64(mean), human::duration(mean));
    let p95 = activity.handling_p95;
    fields.said("handling_p95_ms", human::ms_f64(p95), human::duration(p95));
    fields
}

const RANGE_COLUMNS: [&str; 11] = [
    "first",
    "last",
    "lane",
    "state",
    "token",
    "owner",
    "attempts",
    "due_at",
    "key",
    "suspect",
    "last_error",
];

fn range_object(outstanding: &Outstanding) -> Value {
    json!({
        "first": outstanding.range.first.0,
        "last": outstanding.range.last.0,
        "lane": outstanding.lane,
        "state": outstanding.state.as_str(),
        "token": outstanding.token.map(|token| token.0),
        "owner": outstanding.owner.as_ref().map(headwater::store::Owner::as_str),
        "attempts": outstanding.attempts,
        "due_at": outstanding.due_at,
        "key": outstanding.key,
        "suspect": outstanding.suspect,
        "last_error": outstanding.last_error,
    })
}
