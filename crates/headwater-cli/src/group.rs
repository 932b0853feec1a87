//! `headwater group`.

mod change;
mod health;
mod inspect;
mod remove;

use std::process::ExitCode;

use anyhow::Result;
use headwater::{ErrorKind, Headwater};

use crate::args::{Global, GroupCommand};
use crate::confirm;
use crate::output::with_hint;

pub(crate) use health::status;

pub(crate) async fn run(global: &Global, command: &GroupCommand) -> Result<ExitCode> {
    // Checked before the store is opened: a command refused for lack of confirmation has no effect at all.
    match command {
        GroupCommand::Cancel(args) => confirm::require("group cancel", args.confirmation)?,
        GroupCommand::Remove(args) => confirm::require("group remove", args.confirmation)?,
        GroupCommand::Seek(args) => confirm::require("group seek", args.confirmation)?,
        GroupCommand::ForceComplete(args) => confirm::require("group force-complete", args.confirmation)?,
        _ => {}
    }
    let headwater = global.open(global.options()).await?;
    let done = act(global, &headwater, command).await;
    headwater.close().await?;
    done?;
    Ok(ExitCode::SUCCESS)
}

async fn act(global: &Global, headwater: &Headwater, command: &GroupCommand) -> Result<()> {
    match command {
        GroupCommand::List(args) => health::list(global, headwater, args).await,
        GroupCommand::Show(args) => health::show(global, headwater, args).await,
        GroupCommand::Subscribe(args) => change::subscribe(global, headwater, args).await,
        GroupCommand::Pause(args) => change::pause(global, headwater, args).await,
        GroupCommand::Resume(args) => change::resume(global, headwater, args).await,
        GroupCommand::Cancel(args) => remove::cancel(global, headwater, args).await,
        GroupCommand::Remove(args) => remove::remove(global, headwater, args).await,
        GroupCommand::Resurrect(args) => change::resurrect(global, headwater, args).await,
        GroupCommand::Seek(args) => change::seek(global, headwater, args).await,
        GroupCommand::Policy(args) => change::policy(global, headwater, args).await,
        GroupCommand::ReleaseLease(args) => change::release_lease(global, headwater, args).await,
        GroupCommand::ForceComplete(args) => change::force_complete(global, headwater, args).await,
        GroupCommand::Stuck(args) => inspect::stuck(global, headwater, args).await,
        GroupCommand::Acks(args) => inspect::acks(global, headwater, args).await,
        GroupCommand::Records(args) => inspect::records(global, headwater, args).await,
    }
}

/// The given topic, or all topics.
async fn topics(headwater: &Headwater, named: Option<&str>) -> Result<Vec<String>> {
    match named {
        Some(name) => Ok(vec![name.to_owned()]),
        None => {
            let topics = headwater.topics().list().await?;
            Ok(topics.into_iter().map(|status| status.topic.name.as_str().to_owned()).collect())
        }
    }
}

/// A queue refuses a second group: the hint shows how it becomes a topic that accepts several.
pub(crate) fn with_fan_out_hint(error: headwater::Error, topic: &str) -> anyhow::Error {
    with_hint(error.into(), |error| {
        let is_queue = error.kind() == ErrorKind::InvalidInput && error.to_string().contains("is a queue");
        is_queue
            .then(|| format!("`headwater topic alter {topic} --semantics pub_sub` makes this one fan out"))
    })
}
