//! `headwater group`.

mod change;
mod confirm;
mod health;
mod look;
mod remove;

use std::process::ExitCode;

use anyhow::{Result, bail};
use headwater::{
    ErrorKind, GroupName, Headwater, SubscriptionState, SubscriptionStatus, TopicName, Transition,
};

use crate::args::{Global, GroupArgs, GroupCommand};
use crate::output::with_hint;

pub(crate) async fn run(global: &Global, command: &GroupCommand) -> Result<ExitCode> {
    // Before anything is opened: what is refused for want of a word has no effect whatsoever.
    match command {
        GroupCommand::Cancel(args) => confirm::needs_a_word("group cancel", args.meant)?,
        GroupCommand::Remove(args) => confirm::needs_a_word("group remove", args.meant)?,
        GroupCommand::Seek(args) => confirm::needs_a_word("group seek", args.meant)?,
        GroupCommand::ForceComplete(args) => confirm::needs_a_word("group force-complete", args.meant)?,
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
        GroupCommand::Pause(args) => change::shift(global, headwater, args, Transition::Pause).await,
        GroupCommand::Resume(args) => change::shift(global, headwater, args, Transition::Resume).await,
        GroupCommand::Cancel(args) => remove::cancel(global, headwater, args).await,
        GroupCommand::Remove(args) => remove::remove(global, headwater, args).await,
        GroupCommand::Resurrect(args) => change::resurrect(global, headwater, args).await,
        GroupCommand::Seek(args) => change::seek(global, headwater, args).await,
        GroupCommand::Policy(args) => change::policy(global, headwater, args).await,
        GroupCommand::ReleaseLease(args) => change::release_lease(global, headwater, args).await,
        GroupCommand::ForceComplete(args) => change::force_complete(global, headwater, args).await,
        GroupCommand::Stuck(args) => look::stuck(global, headwater, args).await,
        GroupCommand::Acks(args) => look::acks(global, headwater, args).await,
        GroupCommand::Records(args) => look::records(global, headwater, args).await,
    }
}

pub(crate) fn names(args: &GroupArgs) -> Result<(TopicName, GroupName)> {
    Ok((TopicName::new(&args.topic)?, GroupName::new(&args.group)?))
}

/// The topic that is named, or all there are.
async fn topics(headwater: &Headwater, named: Option<&str>) -> Result<Vec<TopicName>> {
    match named {
        Some(name) => Ok(vec![TopicName::new(name)?]),
        None => Ok(headwater.store().topics().await?.into_iter().map(|status| status.topic.name).collect()),
    }
}

/// The group's subscription: the living one, where a cancelled one of the same name was not removed yet.
async fn find(
    headwater: &Headwater,
    topic: &TopicName,
    group: &GroupName,
) -> Result<Option<SubscriptionStatus>> {
    let mut found = headwater.store().subscriptions(topic).await?;
    found.retain(|status| status.group == *group);
    let living = found.iter().position(|status| status.state != SubscriptionState::Cancelled);
    Ok(living.map(|at| found.swap_remove(at)).or_else(|| found.pop()))
}

pub(crate) async fn status_of(
    headwater: &Headwater,
    topic: &TopicName,
    group: &GroupName,
) -> Result<SubscriptionStatus> {
    match find(headwater, topic, group).await? {
        Some(status) => Ok(status),
        None => {
            bail!("no such subscription: topic {topic}, group {group}; see `headwater group list {topic}`")
        }
    }
}

/// A queue refuses a second group: says how it becomes a topic that takes one.
pub(crate) fn with_fan_out_hint(error: headwater::Error, topic: &TopicName) -> anyhow::Error {
    with_hint(error.into(), |error| {
        let is_queue = error.kind() == ErrorKind::InvalidInput && error.to_string().contains("is a queue");
        is_queue
            .then(|| format!("`headwater topic alter {topic} --semantics pub_sub` makes this one fan out"))
    })
}
