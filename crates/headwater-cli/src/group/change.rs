//! What an operator does with one group.

use anyhow::Result;
use headwater::store::{LeaseToken, Moved};
use headwater::{DeliveryPolicy, ErrorKind, Headwater, Start, SubscriptionState};
use serde_json::{Map, json};

use super::with_fan_out_hint;
use crate::args::{
    ForceCompleteArgs, Global, GroupArgs, GroupPauseArgs, Output, PolicyArgs, PolicyValue, ReleaseLeaseArgs,
    ResurrectArgs, SeekArgs, SubscribeArgs,
};
use crate::backfill;
use crate::confirm;
use crate::output::{Fields, Rows, note, print_objects};

pub(super) async fn subscribe(global: &Global, headwater: &Headwater, args: &SubscribeArgs) -> Result<()> {
    let GroupArgs { topic, group } = &args.of;
    let groups = headwater.groups(topic);
    let created = groups.subscribe_with(group, &args.new_subscription()).await;
    let created = created.map_err(|error| with_fan_out_hint(error, topic))?;
    let now = groups.get(group).await?.status;
    let mut rows = Rows::new(&["group", "state", "created", "next", "lag", "lanes"]);
    rows.push(vec![
        json!(group),
        json!(now.state.as_str()),
        json!(created),
        json!(now.next.0),
        json!(now.lag),
        json!(now.lanes),
    ]);
    rows.print(global.output)?;
    if !created {
        note(
            "the group exists already and keeps its cursor, order and policy; `headwater group seek` moves it, \
             `headwater group policy` changes its policy",
        );
    }
    Ok(())
}

pub(super) async fn pause(global: &Global, headwater: &Headwater, args: &GroupPauseArgs) -> Result<()> {
    let (of, groups) = (&args.of, headwater.groups(&args.of.topic));
    let done = match &args.reason {
        Some(reason) => groups.pause_because(&of.group, reason).await,
        None => groups.pause(&of.group).await,
    };
    reached(global, headwater, of, done, SubscriptionState::Paused).await
}

pub(super) async fn resume(global: &Global, headwater: &Headwater, of: &GroupArgs) -> Result<()> {
    let done = headwater.groups(&of.topic).resume(&of.group).await;
    reached(global, headwater, of, done, SubscriptionState::Active).await
}

/// A group that is in the wanted state already is fine: a script may run twice.
async fn reached(
    global: &Global,
    headwater: &Headwater,
    of: &GroupArgs,
    done: headwater::Result<()>,
    wanted: SubscriptionState,
) -> Result<()> {
    if let Err(error) = done {
        let is_there = error.kind() == ErrorKind::InvalidTransition
            && headwater.groups(&of.topic).get(&of.group).await?.status.state == wanted;
        if !is_there {
            return Err(error.into());
        }
        note(format_args!("group {} is {} already; nothing was changed", of.group, wanted.as_str()));
    }
    print_state(global, of, wanted)
}

pub(super) fn print_state(global: &Global, of: &GroupArgs, state: SubscriptionState) -> Result<()> {
    let mut rows = Rows::new(&["topic", "group", "state"]);
    rows.push(vec![json!(of.topic), json!(of.group), json!(state.as_str())]);
    rows.print(global.output)
}

pub(super) async fn resurrect(global: &Global, headwater: &Headwater, args: &ResurrectArgs) -> Result<()> {
    let GroupArgs { topic, group } = &args.of;
    let back = headwater.groups(topic).resurrect(group, args.behind_max).await?;
    // A group that is active already is left unchanged, including its backfill.
    if back.resurrected && args.backfill {
        backfill::run_to_the_end(headwater, &args.of).await?;
    }
    let mut rows = Rows::new(&["group", "resurrected", "next", "missed", "missed_first", "missed_last"]);
    rows.push(vec![
        json!(group),
        json!(back.resurrected),
        json!(back.next.0),
        json!(back.missed.count),
        json!(back.missed.range.map(|(first, _)| first.0)),
        json!(back.missed.range.map(|(_, last)| last.0)),
    ]);
    rows.print(global.output)?;
    if !back.resurrected {
        note("the group is active already; nothing was changed");
    }
    Ok(())
}

pub(super) async fn seek(global: &Global, headwater: &Headwater, args: &SeekArgs) -> Result<()> {
    let GroupArgs { topic, group } = &args.of;
    let groups = headwater.groups(topic);
    let mut to = args.to;
    if !args.confirmation.yes {
        let would = groups.seek(group, to, true).await?;
        print_moved(global, group, &would, true)?;
        if args.confirmation.dry_run {
            return Ok(());
        }
        confirm::ask(&format!("move group {group} on topic {topic}?"))?;
        // The seek goes to the offset that was shown, however much was published before the answer.
        to = Start::Offset(would.to);
    }
    let moved = groups.seek(group, to, false).await?;
    print_moved(global, group, &moved, false)
}

fn print_moved(global: &Global, group: &str, moved: &Moved, dry_run: bool) -> Result<()> {
    let mut rows = Rows::new(&["group", "dry_run", "from", "to", "replayed", "skipped", "leases_lost"]);
    rows.push(vec![
        json!(group),
        json!(dry_run),
        json!(moved.from.0),
        json!(moved.to.0),
        json!(moved.replayed),
        json!(moved.skipped),
        json!(moved.leases_lost),
    ]);
    rows.print(global.output)
}

pub(super) async fn policy(global: &Global, headwater: &Headwater, args: &PolicyArgs) -> Result<()> {
    let GroupArgs { topic, group } = &args.of;
    let groups = headwater.groups(topic);
    let before = groups.policy(group).await?;
    let policy = DeliveryPolicy {
        lease: of(args.lease, before.lease),
        max_attempts: of(args.max_attempts, before.max_attempts),
        backoff_initial: of(args.backoff_initial, before.backoff_initial),
        backoff_max: of(args.backoff_max, before.backoff_max),
        heartbeat_interval: of(args.heartbeat_interval, before.heartbeat_interval),
        heartbeat_timeout: of(args.heartbeat_timeout, before.heartbeat_timeout),
    };
    if policy != before {
        groups.set_policy(group, &policy).await?;
    }
    let topic = headwater.topics().get(topic).await?.settings;
    let mut fields = Fields::default();
    fields.push("group", json!(group));
    let own = json!(policy);
    let mut effective = Map::new();
    for (name, value, words) in policy.apply_to(&topic).described() {
        let Some(own) = own.get(&name) else { continue };
        let words = if own.is_null() { words + " (the topic's)" } else { words };
        effective.insert(name.clone(), value);
        fields.said(name, own.clone(), words);
    }
    if global.output == Output::Json {
        // The table shows it beside each value.
        fields.push("effective", effective.into());
    }
    fields.print(global.output)
}

fn of<T>(said: Option<PolicyValue<T>>, before: Option<T>) -> Option<T> {
    said.map_or(before, |PolicyValue(value)| value)
}

pub(super) async fn release_lease(
    global: &Global,
    headwater: &Headwater,
    args: &ReleaseLeaseArgs,
) -> Result<()> {
    headwater.release_lease(LeaseToken(args.token)).await?;
    if global.output == Output::Json {
        return print_objects([json!({ "token": args.token, "released": true })]);
    }
    note(format_args!("lease {} released; its messages are handed out again at once", args.token));
    Ok(())
}

pub(super) async fn force_complete(
    global: &Global,
    headwater: &Headwater,
    args: &ForceCompleteArgs,
) -> Result<()> {
    if !args.confirmation.yes {
        let found = given_up(global, headwater, args, true).await?;
        if args.confirmation.dry_run || found == 0 {
            return Ok(());
        }
        confirm::ask(&format!("give these messages up for the dead groups of topic {}?", args.topic))?;
    }
    given_up(global, headwater, args, false).await?;
    Ok(())
}

/// The number of groups for which messages were, or would be, given up.
async fn given_up(
    global: &Global,
    headwater: &Headwater,
    args: &ForceCompleteArgs,
    dry_run: bool,
) -> Result<usize> {
    let groups = headwater.groups(&args.topic).force_complete(args.older_than, dry_run).await?;
    let mut rows = Rows::new(&["group", "dry_run", "messages", "until"]);
    for group in &groups {
        rows.push(vec![
            json!(group.group.as_str()),
            json!(dry_run),
            json!(group.messages),
            json!(group.until.0),
        ]);
    }
    rows.print(global.output)?;
    if groups.is_empty() {
        note("no messages wait only for dead groups");
    }
    Ok(groups.len())
}
