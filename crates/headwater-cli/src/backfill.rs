//! `headwater backfill`.

use std::process::ExitCode;

use anyhow::{Result, bail};
use headwater::Headwater;
use headwater::maintenance::Job;
use headwater::store::{Backfill, BackfillLimits, BackfillPace, BackfillState};
use headwater::topic::Tracking;
use serde_json::json;

use crate::args::{BackfillCommand, BackfillListArgs, BackfillWatchArgs, Global, GroupArgs, Output};
use crate::human;
use crate::output::{Fields, Rows, in_short, note, print_objects};
use crate::progress::{POLL_EVERY, Shown};

pub(crate) async fn run(global: &Global, command: &BackfillCommand) -> Result<ExitCode> {
    let headwater = global.open(global.options()).await?;
    let done = act(global, &headwater, command).await;
    headwater.close().await?;
    done
}

async fn act(global: &Global, headwater: &Headwater, command: &BackfillCommand) -> Result<ExitCode> {
    let changed = match command {
        BackfillCommand::List(args) => return list(global, headwater, args).await,
        BackfillCommand::Watch(args) => return watch(global, headwater, args).await,
        BackfillCommand::Start(args) => {
            let limits = BackfillLimits {
                messages_max: args.messages_max,
                rate_max: args.rate_max,
                batch_max: args.batch_max,
                target_latency: args.target_latency,
            };
            headwater.groups(&args.of.topic).start_backfill(&args.of.group, &limits).await?
        }
        BackfillCommand::Cancel(args) => headwater.groups(&args.topic).cancel_backfill(&args.group).await?,
        BackfillCommand::Resume(args) => headwater.groups(&args.topic).resume_backfill(&args.group).await?,
    };
    print(global, &[changed])?;
    Ok(ExitCode::SUCCESS)
}

async fn list(global: &Global, headwater: &Headwater, args: &BackfillListArgs) -> Result<ExitCode> {
    let backfills = match &args.topic {
        Some(topic) => {
            headwater.topics().get(topic).await?;
            headwater.groups(topic).backfills().await?
        }
        None => headwater.backfills().await?,
    };
    print(global, &backfills)?;
    Ok(ExitCode::SUCCESS)
}

async fn watch(global: &Global, headwater: &Headwater, args: &BackfillWatchArgs) -> Result<ExitCode> {
    let GroupArgs { topic, group } = &args.of;
    if args.run && headwater.topics().get(topic).await?.settings.tracking == Tracking::OffsetWatermark {
        headwater.groups(topic).get(group).await?;
        let as_it_is = find(headwater, &args.of).await?;
        note(format_args!(
            "nothing to do: topic {topic} is in offset_watermark, where group {group} consumes from its cursor and \
             needs no backfill"
        ));
        print(global, as_it_is.as_slice())?;
        return Ok(ExitCode::SUCCESS);
    }
    let ended = until_ended(headwater, &args.of, args.run.then_some(args.pace)).await?;
    let is_done = ended.state == BackfillState::Completed;
    print(global, &[ended])?;
    Ok(if is_done { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Runs a group's backfill in this process. In offset watermark there is no work: it is complete when the group has
/// consumed.
pub(crate) async fn run_to_the_end(headwater: &Headwater, of: &GroupArgs) -> Result<()> {
    let tracking = headwater.topics().get(&of.topic).await?.settings.tracking;
    if tracking == Tracking::OffsetWatermark || find(headwater, of).await?.is_none() {
        return Ok(());
    }
    let ended = until_ended(headwater, of, Some(BackfillPace::default())).await?;
    match ended.state {
        BackfillState::Completed => Ok(()),
        state => {
            let error = ended.error.unwrap_or_default();
            bail!("the backfill of group {} is {}: {error}", of.group, state.as_str())
        }
    }
}

/// Shows the progress of a backfill until it ends, and meanwhile does its work at this pace, if one is given.
async fn until_ended(headwater: &Headwater, of: &GroupArgs, pace: Option<BackfillPace>) -> Result<Backfill> {
    let GroupArgs { topic, group } = of;
    let mut shown = Shown::new(format!("backfill of {group} on {topic}"));
    let run = pace.is_some();
    let maintenance = headwater.maintenance().backfill_pace(pace.unwrap_or_default());
    loop {
        // The job applies the backfill's own limits. It ends when another process does the remaining work.
        let work =
            async { if run { maintenance.run_once(&[Job::Backfill]).await.map(Some) } else { Ok(None) } };
        tokio::pin!(work);
        let mut working = true;
        loop {
            let Some(backfill) = find(headwater, of).await? else {
                bail!("no backfill: topic {topic}, group {group}; see `headwater backfill list`");
            };
            let more = more(&backfill);
            if !backfill.state.is_open() {
                shown.end(backfill.processed, backfill.total, &more);
                return Ok(backfill);
            }
            shown.at(backfill.processed, backfill.total, &more);
            tokio::select! {
                runs = &mut work, if working => {
                    let error = runs?.into_iter().flatten().find_map(|run| run.error);
                    if let Some(error) = error {
                        bail!("the backfill stopped at its checkpoint; run this again to continue: {error}");
                    }
                    working = false;
                }
                () = tokio::time::sleep(POLL_EVERY) => {
                    if run && !working {
                        break;
                    }
                }
            }
        }
    }
}

fn more(backfill: &Backfill) -> String {
    let mut words = vec![backfill.state.as_str().to_owned(), human::rate(backfill.rate)];
    words.extend(backfill.remaining().map(|left| format!("{} left", human::duration(left))));
    words.extend(backfill.error.as_deref().map(in_short));
    words.join(", ")
}

async fn find(headwater: &Headwater, of: &GroupArgs) -> Result<Option<Backfill>> {
    let backfills = headwater.groups(&of.topic).backfills().await?;
    Ok(backfills.into_iter().find(|backfill| backfill.group.as_str() == of.group))
}

fn print(global: &Global, backfills: &[Backfill]) -> Result<()> {
    for Backfill { topic, group, total, left_out, .. } in backfills.iter().filter(|one| one.left_out > 0) {
        note(format_args!(
            "note: the backfill of topic {topic}, group {group} reached its limit: it covers {} messages, {} older ones \
             are left out; `headwater backfill start --messages-max` covers more",
            human::count(*total),
            human::count(*left_out)
        ));
    }
    if global.output == Output::Json {
        return print_objects(backfills.iter().map(|backfill| fields_of(backfill).object()));
    }
    let mut rows = Rows::new(&[
        "topic",
        "group",
        "state",
        "processed",
        "total",
        "checkpoint",
        "rate",
        "left",
        "left_out",
        "started",
        "error",
    ]);
    for backfill in backfills {
        rows.push(vec![
            json!(backfill.topic.as_str()),
            json!(backfill.group.as_str()),
            json!(backfill.state.as_str()),
            json!(backfill.processed),
            json!(backfill.total),
            json!(backfill.checkpoint.0),
            json!(human::rate(backfill.rate)),
            json!(backfill.remaining().map(human::duration)),
            json!(backfill.left_out),
            json!(backfill.created_at),
            json!(backfill.error.as_deref().map(in_short)),
        ]);
    }
    rows.print(global.output)
}

fn fields_of(backfill: &Backfill) -> Fields {
    let mut fields = Fields::default();
    fields.push("topic", json!(backfill.topic.as_str()));
    fields.push("group", json!(backfill.group.as_str()));
    fields.push("state", json!(backfill.state.as_str()));
    fields.push("first", json!(backfill.first.0));
    fields.push("last", json!(backfill.last.0));
    fields.push("checkpoint", json!(backfill.checkpoint.0));
    fields.push("processed", json!(backfill.processed));
    fields.push("total", json!(backfill.total));
    fields.push("created_at", json!(backfill.created_at));
    fields.push("progressed_at", json!(backfill.progressed_at));
    fields.push("rate", json!(backfill.rate));
    fields.push("rate_max", json!(backfill.rate_max));
    fields.push("batch_max", json!(backfill.batch_max));
    fields.push("target_latency_ms", json!(backfill.target_latency.map(human::ms)));
    fields.push("remaining_ms", json!(backfill.remaining().map(human::ms)));
    fields.push("left_out", json!(backfill.left_out));
    fields.push("error", json!(backfill.error));
    fields
}
