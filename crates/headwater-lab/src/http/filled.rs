//! A large store: 1,000 topics with ten groups each, and something for every other page.
//!
//! Filled through the library, which takes a fraction of the time that requests would take.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Result, ensure};
use headwater::consumer::{ClaimOptions, Holder};
use headwater::outbox::NewEntry;
use headwater::process::ProcessInstance;
use headwater::settle::Verdict;
use headwater::{GroupName, Headwater, NewMessage, Start, TopicName};
use serde_json::json;
use tokio::task::JoinSet;

use crate::check::Place;

const TOPICS: usize = 1_000;
const GROUPS: usize = 10;
/// Of each topic, so that every group is behind.
const MESSAGES: usize = 10;
/// Dead letters, scheduled messages, processes, outbox entries and audit entries: several pages of each.
const OTHERS: usize = 200;
/// Topics that are created at once.
const TASKS: usize = 16;
/// A topic of its own, with its group.
const SHOP: &str = "shop";
const EMAIL: &str = "email";

/// Fills an empty store.
pub(super) async fn fill(place: &Place<'_>) -> Result<()> {
    let headwater = place.open().await?;
    let next = Arc::new(AtomicUsize::new(0));
    let mut tasks = JoinSet::new();
    for _ in 0..TASKS {
        let (headwater, next) = (headwater.clone(), Arc::clone(&next));
        tasks.spawn(async move {
            loop {
                let at = next.fetch_add(1, Ordering::Relaxed);
                if at >= TOPICS {
                    return anyhow::Ok(());
                }
                topic(&headwater, at).await?;
            }
        });
    }
    while let Some(ended) = tasks.join_next().await {
        ended??;
    }
    dead_letters(&headwater).await?;
    others(&headwater).await?;
    Ok(headwater.close().await?)
}

async fn topic(headwater: &Headwater, at: usize) -> Result<()> {
    let name = format!("topic-{at:04}");
    headwater.topic(&name).pub_sub().create().await?;
    let (store, name) = (headwater.store(), TopicName::new(&name)?);
    for group in 0..GROUPS {
        store.subscribe(&name, &GroupName::new(format!("group-{group}"))?, Start::Beginning).await?;
    }
    let messages: Vec<NewMessage> =
        (0..MESSAGES).map(|n| NewMessage::new(format!("{{\"n\":{n}}}")).key(format!("key-{n}"))).collect();
    store.publish(&name, &messages).await?;
    Ok(())
}

async fn dead_letters(headwater: &Headwater) -> Result<()> {
    headwater.topic(SHOP).pub_sub().create().await?;
    headwater.groups(SHOP).subscribe(EMAIL, Start::Beginning).await?;
    let messages: Vec<NewMessage> = (0..OTHERS).map(|n| NewMessage::new(format!("{{\"n\":{n}}}"))).collect();
    headwater.producer(SHOP).send_batch(&messages).await?;
    headwater.topics().advance_heads().await?;
    let claims = headwater.claims(SHOP, EMAIL).await?;
    let claimed = claims.claim(Holder::new(), &ClaimOptions::at_most(u32::try_from(OTHERS)?)).await?;
    ensure!(claimed.len() == OTHERS, "{} of {OTHERS} messages were claimed", claimed.len());
    let bury = |ticket| (ticket, Verdict::Bury("recipient unknown".into()));
    claims.settle(&claimed.into_iter().map(|one| bury(one.ticket)).collect::<Vec<_>>()).await?;
    Ok(())
}

async fn others(headwater: &Headwater) -> Result<()> {
    let later = Duration::from_secs(24 * 3_600);
    let scheduled: Vec<NewMessage> =
        (0..OTHERS).map(|n| NewMessage::new("{}").key(format!("later-{n}")).delay(later)).collect();
    headwater.producer(SHOP).send_batch(&scheduled).await?;
    let (processes, outbox) = (headwater.processes(), headwater.outbox());
    for n in 0..OTHERS {
        let process = ProcessInstance::create("order", Some(&format!("order-{n}")), None);
        processes.insert(&process, &process.started()).await?;
        let entry = NewEntry::kafka_event("parcels", format!("order-{n}"), "ParcelSent", "{}");
        outbox.insert_returning_id(&entry).await?;
        headwater.note_act("tried", Some(SHOP), Some(EMAIL), &json!({ "n": n })).await?;
    }
    headwater.relays().add("parcels-kafka", SHOP, "kafka://broker:9092/parcels", "{}").await?;
    Ok(())
}
