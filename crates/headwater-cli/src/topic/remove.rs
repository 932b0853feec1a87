//! Deleting and purging a topic. What is removed is shown first: it cannot be restored.

use anyhow::Result;
use headwater::topic::{Removal, TopicContents};
use headwater::{ErrorKind, Headwater};
use serde_json::json;

use crate::args::{Global, TopicRemoveArgs};
use crate::confirm;
use crate::output::{Rows, note, with_hint};

pub(super) async fn delete(global: &Global, headwater: &Headwater, args: &TopicRemoveArgs) -> Result<()> {
    let (topics, name) = (headwater.topics(), &args.name);
    let question = format!("delete topic {name} with everything it holds?");
    warn_of_cron_jobs(headwater, name).await;
    if !args.confirmation.yes && !is_confirmed(global, headwater, args, &question).await? {
        return Ok(());
    }
    let deleted = topics.delete(name, removal(args)).await.map_err(|error| with_force_hint(error, args))?;
    print(global, name, &deleted, false)?;
    note(format_args!("a program that publishes to {name} now fails, or creates it again"));
    Ok(())
}

pub(super) async fn purge(global: &Global, headwater: &Headwater, args: &TopicRemoveArgs) -> Result<()> {
    let (topics, name) = (headwater.topics(), &args.name);
    let question = format!("remove all messages of topic {name}?");
    if !args.confirmation.yes && !is_confirmed(global, headwater, args, &question).await? {
        return Ok(());
    }
    let purged = topics.purge(name, removal(args)).await.map_err(|error| with_force_hint(error, args))?;
    print(global, name, &purged, false)?;
    if purged.scheduled + purged.dead_letters > 0 {
        note("scheduled messages and dead letters stay");
    }
    Ok(())
}

/// The cron jobs that publish to the topic: they stay. A role that may not read them gets no warning.
async fn warn_of_cron_jobs(headwater: &Headwater, name: &str) {
    for job in headwater.cron_jobs().await.unwrap_or_default() {
        if job.description.is_some_and(|described| described.topic.as_str() == name) {
            note(format_args!(
                "cron job {} publishes to {name}: it fails at its next tick, or creates the topic again",
                job.job
            ));
        }
    }
}

/// Shows what would be removed and, unless it is a dry run, asks for confirmation.
async fn is_confirmed(
    global: &Global,
    headwater: &Headwater,
    args: &TopicRemoveArgs,
    question: &str,
) -> Result<bool> {
    let contents = headwater.topics().delete(&args.name, Removal::DryRun).await?;
    print(global, &args.name, &contents, true)?;
    for (group, processes) in &contents.served {
        let end = if args.force { "loses its leases" } else { "stop it first, or add --force" };
        note(format_args!("group {group} is served, processes: {processes}; {end}"));
    }
    if args.confirmation.dry_run {
        return Ok(false);
    }
    confirm::ask(question)?;
    Ok(true)
}

fn removal(args: &TopicRemoveArgs) -> Removal {
    if args.force { Removal::Forced } else { Removal::Unserved }
}

/// The library's refusal does not know the option.
fn with_force_hint(error: headwater::Error, args: &TopicRemoveArgs) -> anyhow::Error {
    with_hint(error.into(), |error| {
        let is_served = error.kind() == ErrorKind::InvalidTransition && !args.force;
        is_served.then(|| "--force does it anyway".into())
    })
}

fn print(global: &Global, name: &str, contents: &TopicContents, dry_run: bool) -> Result<()> {
    let mut rows = Rows::new(&[
        "topic",
        "dry_run",
        "messages",
        "scheduled",
        "groups",
        "served",
        "leases",
        "dead_letters",
    ]);
    rows.push(vec![
        json!(name),
        json!(dry_run),
        json!(contents.messages),
        json!(contents.scheduled),
        json!(contents.groups),
        json!(contents.served.len()),
        json!(contents.leases),
        json!(contents.dead_letters),
    ]);
    rows.print(global.output)
}
