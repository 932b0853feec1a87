//! Two faults in detail: an owner that is stopped past its lease, and a message that kills the process that handles it.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use headwater::store::DeadLetterSelection;
use headwater::{NewMessage, TopicSettings};
use rustix::process::Signal;

use super::check::MemberHistory;
use super::children::Children;
use super::history::MemberEvent;
use super::member::MemberJob;
use super::publish::payload;
use super::stage::{GROUPS, Stage};

const GROUP: &str = GROUPS[0];

/// Stops a member past its lease: its settlement must be refused, and its messages must have gone to another.
pub(super) async fn stopped_holder(work: &Path, store: &str, seed: u64) -> Result<bool> {
    let settings = TopicSettings { lease: Duration::from_secs(2), ..TopicSettings::pub_sub() };
    let stage = Stage::set(work, store, "stopped-holder", &settings, &GROUPS, seed).await?;
    publish(&stage, "m", 10).await?;
    let mut children = stage.children();
    children.start(0, MemberJob { hold: true, batch_max: Some(10), ..member() })?;
    children.process(0).ready().await?;
    children.process(0).signal(Signal::STOP)?;
    children.start(1, member())?;
    let held = delivered(&children, "m0")?;
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let other = acked_offsets(&children, "m1")?;
        if held.iter().all(|offset| other.contains(offset)) {
            break;
        }
        ensure!(
            Instant::now() < deadline,
            "the messages of the stopped owner went to no other member within 60 s"
        );
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    // The line waits in the pipe: the owner settles as the first thing after it continues.
    children.process(0).send_line("settle").await?;
    children.process(0).signal(Signal::CONT)?;
    let (refused, acked) = loop {
        let history = of_member(&children, "m0")?;
        let refused = history.iter().any(|event| matches!(event, MemberEvent::Refused { .. }));
        let acked = acked_offsets(&children, "m0")?.iter().any(|offset| held.contains(offset));
        if refused || acked {
            break (refused, acked);
        }
        ensure!(Instant::now() < deadline, "the stopped owner settled nothing within 60 s");
        tokio::time::sleep(Duration::from_millis(50)).await;
    };
    children.stop().await?;
    let clean = refused && !acked && !held.is_empty();
    println!(
        "stopped owner: {} messages held, all acked by another member; its own settlement was {}: {}",
        held.len(),
        if refused { "refused (LeaseLost)" } else { "ACCEPTED" },
        if clean { "CLEAN" } else { "VIOLATED" }
    );
    stage.clear(clean).await?;
    Ok(clean)
}

/// Publishes one message that aborts its worker among many: it must be buried alone, at exactly the allowed attempts.
pub(super) async fn poison(work: &Path, store: &str, seed: u64) -> Result<bool> {
    const MESSAGES: usize = 100;
    const POISON: &str = "m-37";
    let settings =
        TopicSettings { lease: Duration::from_secs(1), max_attempts: 4, ..TopicSettings::pub_sub() };
    let stage = Stage::set(work, store, "poison", &settings, &GROUPS, seed).await?;
    let mut children = stage.children();
    publish(&stage, "m", MESSAGES).await?;
    for number in 0..2 {
        let abort_on = Some(POISON.to_owned());
        children.start(number, MemberJob { abort_on, batch_max: Some(100), ..member() })?;
    }
    let subscriptions = stage.store.subscriptions(&stage.topic).await?;
    let subscription =
        subscriptions.iter().find(|status| status.group.as_str() == GROUP).context("the group is gone")?;
    let letters = DeadLetterSelection::all(subscription.subscription_id);
    let deadline = Instant::now() + Duration::from_secs(120);
    let (mut aborts, mut buried) = (0, vec![]);
    let mut acked = 0;
    while buried.is_empty() || acked < MESSAGES - 1 {
        ensure!(
            Instant::now() < deadline,
            "not over within 120 s: {} buried, {acked} acked, {aborts} aborts",
            buried.len()
        );
        tokio::time::sleep(Duration::from_millis(100)).await;
        aborts += children.restart_aborted()?;
        buried = stage.store.dead_letters(&letters, 100).await?;
        acked = acked_offsets(&children, "m")?.len();
    }
    children.stop().await?;
    let is_poison = |id: &serde_json::Value| id["id"] == POISON;
    let alone = buried.len() == 1
        && serde_json::from_slice(&buried[0].payload).is_ok_and(|payload| is_poison(&payload));
    let attempts = buried[0].attempts;
    let clean = alone && attempts == 4 && aborts == 4 && acked == MESSAGES - 1;
    println!(
        "poison: {} buried{} after {attempts} attempts (4 allowed) and {aborts} aborted workers; {acked} of {} neighbours acked: {}",
        buried.len(),
        if alone { ", the right one," } else { "" },
        MESSAGES - 1,
        if clean { "CLEAN" } else { "VIOLATED" }
    );
    stage.clear(clean).await?;
    Ok(clean)
}

fn member() -> MemberJob {
    MemberJob { group: GROUP.into(), ..MemberJob::default() }
}

async fn publish(stage: &Stage, prefix: &str, count: usize) -> Result<()> {
    let messages = (0..count).map(|number| NewMessage::json(&payload(&format!("{prefix}-{number}"))));
    let messages = messages.collect::<headwater::Result<Vec<_>>>()?;
    stage.store.publish(&stage.topic, &messages).await?;
    Ok(())
}

/// The events of all incarnations of the members whose number starts so (`m0`, or `m` for all).
fn of_member(children: &Children, number: &str) -> Result<Vec<MemberEvent>> {
    let prefix = format!("{GROUP}-{number}");
    let histories = children.histories(GROUP)?.into_iter();
    let of_member = histories.filter(|history: &MemberHistory| history.member.starts_with(&prefix));
    Ok(of_member.flat_map(|history| history.events).collect())
}

fn delivered(children: &Children, number: &str) -> Result<Vec<i64>> {
    let events = of_member(children, number)?.into_iter();
    let offset = |event| match event {
        MemberEvent::Delivered { offset, .. } => Some(offset),
        _ => None,
    };
    Ok(events.filter_map(offset).collect())
}

/// The offsets delivered and then acked under the same token.
fn acked_offsets(children: &Children, number: &str) -> Result<std::collections::BTreeSet<i64>> {
    let events = of_member(children, number)?;
    let mut offsets = std::collections::BTreeSet::new();
    for event in &events {
        let MemberEvent::Delivered { token, offset, .. } = event else { continue };
        let acks = |event: &MemberEvent| {
            matches!(event, MemberEvent::Acked { token: of, first, last, .. }
                if of == token && (*first..=*last).contains(offset))
        };
        if events.iter().any(acks) {
            offsets.insert(*offset);
        }
    }
    Ok(offsets)
}
