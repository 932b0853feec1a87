//! `headwater topic`.

mod remove;
mod settings;

use std::process::ExitCode;

use anyhow::{Result, bail};
use headwater::maintenance::Job;
use headwater::store::{Progress, Topic, TopicStatus};
use headwater::{Headwater, TopicSettings};
use serde_json::{Value, json};

use crate::args::{Global, Output, Switch, TopicAlterArgs, TopicCommand, TopicCreateArgs, TopicListArgs};
use crate::confirm;
use crate::human;
use crate::output::{Fields, Rows, Usage, note, print_objects};
use crate::progress::{POLL_EVERY, Shown};

pub(crate) async fn run(global: &Global, command: &TopicCommand) -> Result<ExitCode> {
    if let TopicCommand::Alter(args) = command
        && !args.wait
        && settings::names_nothing(&args.settings)
    {
        return Err(Usage("name a setting to change; see `headwater topic alter --help`".into()).into());
    }
    // Checked before the store is opened: a command refused for lack of confirmation has no effect at all.
    match command {
        TopicCommand::Delete(args) => confirm::require("topic delete", args.confirmation)?,
        TopicCommand::Purge(args) => confirm::require("topic purge", args.confirmation)?,
        _ => {}
    }
    let headwater = match command {
        TopicCommand::Create(_) => global.create(global.options()).await?,
        _ => global.open(global.options()).await?,
    };
    let done = match command {
        TopicCommand::Create(args) => create(global, &headwater, args).await,
        TopicCommand::Alter(args) => alter(global, &headwater, args).await,
        TopicCommand::Show(args) => show(global, &headwater, &args.name).await,
        TopicCommand::List(args) => list(global, &headwater, args).await,
        TopicCommand::Delete(args) => remove::delete(global, &headwater, args).await,
        TopicCommand::Purge(args) => remove::purge(global, &headwater, args).await,
        TopicCommand::AutoCreate(args) => {
            let set = headwater.topics().set_auto_create(args.setting == Switch::On).await;
            set.map_err(anyhow::Error::from)
        }
    };
    headwater.close().await?;
    done?;
    Ok(ExitCode::SUCCESS)
}

async fn create(global: &Global, headwater: &Headwater, args: &TopicCreateArgs) -> Result<()> {
    let pub_sub = args.pub_sub || args.settings.semantics == Some(headwater::topic::Semantics::PubSub);
    let base = match args.preset {
        Some(preset) => TopicSettings::preset(preset),
        None if pub_sub => TopicSettings::pub_sub(),
        None => TopicSettings::default(),
    };
    let mut settings = settings::changed(&base, &args.settings)?;
    if args.pub_sub {
        settings.semantics = headwater::topic::Semantics::PubSub;
    }
    if args.ordered {
        settings.ordering = headwater::topic::Ordering::Key;
    }
    let topic = headwater.topic(&args.name).settings(settings).create().await?;
    print_topic(global, &topic)
}

async fn alter(global: &Global, headwater: &Headwater, args: &TopicAlterArgs) -> Result<()> {
    let (topics, name) = (headwater.topics(), &args.name);
    let mut topic = topics.get(name).await?;
    let before = topic.settings.clone();
    if !settings::names_nothing(&args.settings) {
        let settings = settings::changed(&topic.settings, &args.settings)?;
        topic = topics.alter(name, &settings).await?;
    }
    if args.wait {
        wait_for_tracking(headwater, name).await?;
    } else if topics.status(name).await?.tracking_change.is_some() {
        note(format_args!(
            "the change of tracking is under way; see `headwater topic show {name}`, or add --wait"
        ));
    }
    print_altered(global, &before, &topic)
}

/// What was changed, for people; everything, and the names of what was changed, for programs.
fn print_altered(global: &Global, before: &TopicSettings, topic: &Topic) -> Result<()> {
    note_forever(topic);
    let now = topic.settings.described();
    let changed: Vec<_> =
        before.described().into_iter().zip(now).filter(|((_, was, _), (_, is, _))| was != is).collect();
    if global.output == Output::Json {
        let mut fields = all_fields(topic);
        let names = changed.iter().map(|((name, ..), _)| name).collect::<Vec<_>>();
        fields.for_programs("changed", json!(names));
        return fields.print(global.output);
    }
    if changed.is_empty() {
        note(format_args!("topic {} has these settings already; nothing was changed", topic.name.as_str()));
        return Ok(());
    }
    let mut rows = Rows::new(&["topic", "setting", "before", "now"]);
    for ((name, _, was), (_, _, is)) in changed {
        rows.push(vec![
            json!(topic.name.as_str()),
            json!(name.trim_end_matches("_ms")),
            json!(was),
            json!(is),
        ]);
    }
    rows.print(global.output)
}

/// Does the work of a tracking change and shows its progress until it is complete. Other processes may do it too: each
/// step finds the remaining work.
async fn wait_for_tracking(headwater: &Headwater, name: &str) -> Result<()> {
    let mut shown = Shown::new(format!("tracking of {name}"));
    let mut last = None;
    let (topics, maintenance) = (headwater.topics(), headwater.maintenance());
    while let Some(progress) = topics.status(name).await?.tracking_change {
        if last == Some(progress) {
            // Another process is doing it.
            tokio::time::sleep(POLL_EVERY).await;
        }
        last = Some(progress);
        shown.at(progress.done, progress.total, "");
        let work = maintenance.run_once(&[Job::Tracking]);
        tokio::pin!(work);
        loop {
            tokio::select! {
                runs = &mut work => {
                    if let Some(error) = runs?.into_iter().find_map(|run| run.error) {
                        bail!("the change is not complete; run this again to continue: {error}");
                    }
                    break;
                }
                () = tokio::time::sleep(POLL_EVERY) => {
                    if let Some(progress) = topics.status(name).await?.tracking_change {
                        shown.at(progress.done, progress.total, "");
                    }
                }
            }
        }
    }
    let total = last.map_or(0, |progress| progress.total);
    shown.end(total, total, "done");
    Ok(())
}

/// A retention that reads as endless and is not.
fn note_forever(topic: &Topic) {
    if topic.settings.message_retention.is_none()
        && let Some(max) = topic.settings.max_retention
    {
        let max = human::duration(max);
        note(format_args!(
            "note: forever means until max_retention, {max}; `--max-retention none` keeps every message"
        ));
    }
}

fn all_fields(topic: &Topic) -> Fields {
    let mut fields = Fields::default();
    fields.push("topic", json!(topic.name.as_str()));
    settings::push(&mut fields, &topic.settings);
    fields
}

fn print_topic(global: &Global, topic: &Topic) -> Result<()> {
    note_forever(topic);
    if global.output == Output::Json {
        return all_fields(topic).print(global.output);
    }
    let settings = &topic.settings;
    let mut rows =
        Rows::new(&["topic", "semantics", "ordering", "tracking", "message_retention", "max_retention"]);
    rows.push(vec![
        json!(topic.name.as_str()),
        json!(settings.semantics.as_str()),
        json!(settings.ordering.as_str()),
        json!(settings.tracking.as_str()),
        json!(human::limit(settings.message_retention, "forever")),
        json!(human::limit(settings.max_retention, "none")),
    ]);
    rows.print(global.output)
}

async fn show(global: &Global, headwater: &Headwater, name: &str) -> Result<()> {
    look_for_the_end(headwater).await;
    fields_of(&headwater.topics().status(name).await?).print(global.output)
}

/// Advances the heads: on PostgreSQL a topic without consumers may have a head older than its last messages.
pub(crate) async fn look_for_the_end(headwater: &Headwater) {
    if let Err(error) = headwater.topics().advance_heads().await {
        note(format_args!("figures may be too low: the heads of topics could not be advanced: {error}"));
    }
}

/// Columns of the list that fit into 80 characters.
const LISTED: [&str; 8] =
    ["topic", "semantics", "ordering", "groups", "head", "watermark", "kept", "at_most"];

async fn list(global: &Global, headwater: &Headwater, args: &TopicListArgs) -> Result<()> {
    let topics = headwater.topics().list().await?;
    if global.output == Output::Json {
        return print_objects(topics.iter().map(|status| fields_of(status).object()));
    }
    let mut rows = Rows::new(&[
        "topic",
        "semantics",
        "tracking",
        "ordering",
        "storage",
        "groups",
        "first",
        "head",
        "watermark",
        "scheduled",
        "gaps",
        "kept",
        "at_most",
    ]);
    rows = if args.wide { rows.wide() } else { rows.showing(&LISTED) };
    for status in topics {
        let settings = &status.topic.settings;
        rows.push(vec![
            json!(status.topic.name.as_str()),
            json!(settings.semantics.as_str()),
            json!(settings.tracking.as_str()),
            json!(settings.ordering.as_str()),
            json!(settings.storage),
            json!(status.subscriptions),
            json!(status.first.0),
            json!(status.head.0),
            json!(status.watermark.0),
            json!(status.scheduled),
            json!(status.gaps),
            json!(human::limit(settings.message_retention, "forever")),
            json!(human::limit(settings.max_retention, "none")),
        ]);
    }
    rows.print(global.output)
}

fn fields_of(status: &TopicStatus) -> Fields {
    let mut fields = Fields::default();
    fields.push("topic", json!(status.topic.name.as_str()));
    fields.push("head", json!(status.head.0));
    fields.push("first", json!(status.first.0));
    fields.push("watermark", json!(status.watermark.0));
    // Offsets that may be stored: some may never have been used, or be removed already.
    fields.push("retained", json!((status.head.0 - status.first.0 + 1).max(0)));
    fields.push("scheduled", json!(status.scheduled));
    fields.push("gaps", json!(status.gaps));
    fields.push("subscriptions", json!(status.subscriptions));
    fields.push("counting", json!(status.counting));
    let issues: Vec<&str> = status.health_issues().iter().map(|issue| issue.as_str()).collect();
    let words = if issues.is_empty() { "healthy".to_owned() } else { issues.join(", ") };
    fields.said("health_issues", json!(issues), words);
    let (change, text) = match status.tracking_change {
        Some(Progress { done, total }) => (
            json!({ "done": done, "total": total }),
            format!("under way: {} of {}", human::count(done), human::count(total)),
        ),
        None => (Value::Null, "none under way".into()),
    };
    fields.said("tracking_change", change, text);
    settings::push(&mut fields, &status.topic.settings);
    fields
}
