//! What an operator does with one group.

use anyhow::Result;
use headwater::{DeliveryPolicy, GroupName, Headwater, LeaseToken, Moved, Start, TopicName, Transition};
use serde_json::{Map, json};

use super::{confirm, find, names, status_of, with_fan_out_hint};
use crate::args::{
    ForceCompleteArgs, Global, GroupArgs, Output, PolicyArgs, PolicyValue, ReleaseLeaseArgs, ResurrectArgs,
    SeekArgs, SubscribeArgs,
};
use crate::backfill;
use crate::output::{Fields, Rows, print_objects};

pub(super) async fn subscribe(global: &Global, headwater: &Headwater, args: &SubscribeArgs) -> Result<()> {
    let (topic, group) = names(&args.of)?;
    // A topic that does not exist would be created by a slip of the pen.
    headwater.store().topic(&topic).await?;
    let before = find(headwater, &topic, &group).await?;
    let subscribed = headwater.store().subscribe(&topic, &group, args.from).await;
    subscribed.map_err(|error| with_fan_out_hint(error, &topic))?;
    backfill::run_if_small(headwater, &topic, &group).await?;
    let now = status_of(headwater, &topic, &group).await?;
    let created = before.is_none_or(|before| before.subscription_id != now.subscription_id);
    let mut rows = Rows::new(&["group", "state", "created", "next", "lag"]);
    rows.push(vec![
        json!(group.as_str()),
        json!(now.state.as_str()),
        json!(created),
        json!(now.next.0),
        json!(now.lag),
    ]);
    rows.print(global.output)?;
    if !created {
        eprintln!("it was there already and keeps its place; `headwater group seek` moves it");
    }
    Ok(())
}

pub(super) async fn shift(
    global: &Global,
    headwater: &Headwater,
    args: &GroupArgs,
    transition: Transition,
) -> Result<()> {
    let (topic, group) = names(args)?;
    headwater.store().shift(&topic, &group, transition).await?;
    let mut rows = Rows::new(&["topic", "group", "state"]);
    rows.push(vec![json!(topic.as_str()), json!(group.as_str()), json!(transition.to().as_str())]);
    rows.print(global.output)
}

pub(super) async fn resurrect(global: &Global, headwater: &Headwater, args: &ResurrectArgs) -> Result<()> {
    let (topic, group) = names(&args.of)?;
    let back = headwater.store().resurrect(&topic, &group, args.behind_max).await?;
    // A group that was active is left as it was found, with whatever backfill it has.
    match (back.resurrected, args.backfill) {
        (true, true) => backfill::run_to_the_end(headwater, &topic, &group).await?,
        (true, false) => backfill::run_if_small(headwater, &topic, &group).await?,
        (false, _) => {}
    }
    let mut rows = Rows::new(&["group", "resurrected", "next", "missed", "missed_first", "missed_last"]);
    rows.push(vec![
        json!(group.as_str()),
        json!(back.resurrected),
        json!(back.next.0),
        json!(back.missed.count),
        json!(back.missed.range.map(|(first, _)| first.0)),
        json!(back.missed.range.map(|(_, last)| last.0)),
    ]);
    rows.print(global.output)?;
    if !back.resurrected {
        eprintln!("it was active already; nothing was changed");
    }
    Ok(())
}

pub(super) async fn seek(global: &Global, headwater: &Headwater, args: &SeekArgs) -> Result<()> {
    let (topic, group) = names(&args.of)?;
    let mut to = args.to;
    if !args.meant.yes {
        let would = headwater.store().seek(&topic, &group, to, true).await?;
        print_moved(global, &group, &would, true)?;
        if args.meant.dry_run {
            return Ok(());
        }
        confirm::ask(&format!("move group {group} on topic {topic}?"))?;
        // What was shown is what is done, however much was published while the question stood.
        to = Start::Offset(would.to);
    }
    let moved = headwater.store().seek(&topic, &group, to, false).await?;
    print_moved(global, &group, &moved, false)
}

fn print_moved(global: &Global, group: &GroupName, moved: &Moved, dry_run: bool) -> Result<()> {
    let mut rows = Rows::new(&["group", "dry_run", "from", "to", "replayed", "skipped", "leases_lost"]);
    rows.push(vec![
        json!(group.as_str()),
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
    let (topic, group) = names(&args.of)?;
    let before = headwater.store().policy(&topic, &group).await?;
    let policy = DeliveryPolicy {
        lease: of(args.lease, before.lease),
        max_attempts: of(args.max_attempts, before.max_attempts),
        backoff_initial: of(args.backoff_initial, before.backoff_initial),
        backoff_max: of(args.backoff_max, before.backoff_max),
    };
    if policy != before {
        headwater.store().set_policy(&topic, &group, &policy).await?;
    }
    let topic = headwater.store().topic(&topic).await?.settings;
    let mut fields = Fields::default();
    fields.push("group", json!(group.as_str()));
    let own = json!(policy);
    let mut effective = Map::new();
    for (name, value, words) in policy.apply_to(&topic).described() {
        let Some(own) = own.get(&name) else { continue };
        let words = if own.is_null() { words + " (the topic's)" } else { words };
        effective.insert(name.clone(), value);
        fields.said(name, own.clone(), words);
    }
    if global.output == Output::Json {
        // People read it beside each value.
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
    headwater.store().release_lease(LeaseToken(args.token)).await?;
    if global.output == Output::Json {
        return print_objects([json!({ "token": args.token, "released": true })]);
    }
    eprintln!("lease {} is ended; what it held is handed out again at once", args.token);
    Ok(())
}

pub(super) async fn force_complete(
    global: &Global,
    headwater: &Headwater,
    args: &ForceCompleteArgs,
) -> Result<()> {
    let topic = TopicName::new(&args.topic)?;
    if !args.meant.yes {
        let found = given_up(global, headwater, &topic, args, true).await?;
        if args.meant.dry_run || found == 0 {
            return Ok(());
        }
        confirm::ask(&format!("give these up for the dead groups of topic {topic}?"))?;
    }
    given_up(global, headwater, &topic, args, false).await?;
    Ok(())
}

/// How many groups something was, or would be, given up for.
async fn given_up(
    global: &Global,
    headwater: &Headwater,
    topic: &TopicName,
    args: &ForceCompleteArgs,
    dry_run: bool,
) -> Result<usize> {
    let groups = headwater.store().force_complete(topic, args.older_than, dry_run).await?;
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
        eprintln!("nothing waits only for dead groups");
    }
    Ok(groups.len())
}
