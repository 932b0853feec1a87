//! Dedicated storage: ten simulated days with a fast, a slow and a killed group, and a partition of ten million rows dropped.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use headwater::store::{ClaimRequest, Owner, Served, Settlement, SubscriptionId, Topic, TopicStatus, Want};
use headwater::testing::ManualClock;
use headwater::topic::{Partition, Storage};
use headwater::{
    Clock, GroupName, Headwater, NewMessage, OpenOptions, Start, SubscriptionState, TopicName, TopicSettings,
};

use super::Setting;
use crate::check::{Floor, Judged, Place, Unit, progress, soundness};
use crate::server::connect;

const HOUR: Duration = Duration::from_secs(3_600);
const DAY: Duration = Duration::from_secs(24 * 3_600);
const PER_HOUR: usize = 2_000;
/// How often messages are cleaned up: between two runs a message that a dead group has not read ages by five minutes at most,
/// so that a step of the clock removes nothing.
const STEPS_PER_HOUR: u32 = 12;
const DAYS: u32 = 10;
const RETENTION_DAYS: u32 = 7;
/// How often the slow group consumes.
const SLOW_HOURS: u32 = 12;

pub(super) async fn run(place: &Place<'_>, setting: &Setting) -> Result<Vec<Judged>> {
    let clock = ManualClock::at(jiff::Timestamp::now());
    let options = OpenOptions::default().clock(Clock::Manual(clock.clone()));
    let headwater = Headwater::open_with(&place.url, options).await?;
    let mut judged = days(&headwater, &clock).await?;
    judged.extend(large(place, &headwater, &clock, setting).await?);
    judged.push(soundness(&headwater).await?);
    Ok(judged)
}

async fn status(headwater: &Headwater, topic: &Topic) -> Result<TopicStatus> {
    let topics = headwater.store().topics().await?;
    topics.into_iter().find(|status| status.topic.topic_id == topic.topic_id).context("the topic is gone")
}

/// Ten days, hour by hour: a group consumes each hour, one twice a day, and one is killed on the first day.
async fn days(headwater: &Headwater, clock: &ManualClock) -> Result<Vec<Judged>> {
    let store = headwater.store();
    let settings = TopicSettings {
        storage: Storage::Dedicated(Partition::Day),
        message_retention: Some(DAY * RETENTION_DAYS),
        heartbeat_interval: Duration::from_secs(60),
        heartbeat_timeout: Duration::from_secs(300),
        ..TopicSettings::pub_sub()
    };
    let name = TopicName::new("days")?;
    let topic = headwater.topic("days").settings(settings).create().await?;
    let fast = store.subscribe(&name, &GroupName::new("fast")?, Start::Now).await?;
    let slow = store.subscribe(&name, &GroupName::new("slow")?, Start::Now).await?;
    let killed = store.subscribe(&name, &GroupName::new("killed")?, Start::Now).await?;
    let owner = Owner::new("the lab")?;
    let served = [&fast, &slow, &killed].map(|one| Served::new(one.subscription_id));
    let living = &served[..2];
    store.heartbeat(&owner, None, &served).await?;
    progress("ten simulated days");
    let (mut ahead_least, mut created, mut dropped, mut stored_most) = (u64::MAX, 0, 0, 0);
    for hour in 0..DAYS * 24 {
        store.publish(&name, &vec![NewMessage::new(vec![b'x'; 64]); PER_HOUR]).await?;
        store.advance_heads().await?;
        consume(headwater, fast.subscription_id, &owner).await?;
        if hour % SLOW_HOURS == SLOW_HOURS - 1 {
            consume(headwater, slow.subscription_id, &owner).await?;
        }
        store.heartbeat(&owner, None, living).await?;
        store.detect_dead().await?;
        clean(headwater, &topic).await?;
        let kept = store.keep_partitions(topic.topic_id).await?;
        ensure!(!kept.locked, "the table was locked although no session uses it");
        (created, dropped) = (created + kept.created, dropped + kept.dropped);
        ahead_least = ahead_least.min(kept.ahead);
        let status = status(headwater, &topic).await?;
        if hour > (RETENTION_DAYS + 2) * 24 {
            stored_most = stored_most.max(status.head.0 - status.first.0 + 1);
        }
        for step in 1..=STEPS_PER_HOUR {
            clock.advance(HOUR / STEPS_PER_HOUR);
            clean(headwater, &topic).await?;
            if step % (STEPS_PER_HOUR / 2) == 0 {
                store.heartbeat(&owner, None, living).await?;
                store.detect_dead().await?;
            }
        }
    }
    let missed_by_living = missed_by_living(headwater, &name).await?;
    let day = (PER_HOUR * 24) as f64;
    Ok(vec![
        Judged::new("partitions ahead, at least", ahead_least as f64, Unit::Count, Floor::AtLeast(2.0))
            .note(format!("{created} created")),
        Judged::new("partitions dropped", dropped as f64, Unit::Count, Floor::AtLeast(1.0)),
        Judged::new(
            "days of messages stored at most",
            stored_most as f64 / day,
            Unit::Count,
            // Retention begins once the slow group is done; whole partitions are dropped, at most two days' worth later.
            Floor::AtMost(f64::from(RETENTION_DAYS + 2) + f64::from(SLOW_HOURS) / 24.0),
        )
        .note(format!(
            "retention of {RETENTION_DAYS} days, partitions of about one, one group dead all the time"
        )),
        Judged::none_of("messages that living groups missed", missed_by_living),
    ])
}

/// Checks the states of the groups, and returns how many messages those that live have missed.
async fn missed_by_living(headwater: &Headwater, topic: &TopicName) -> Result<u64> {
    let groups = headwater.store().subscriptions(topic).await?;
    let mut missed = 0;
    for (group, state) in [
        ("fast", SubscriptionState::Active),
        ("slow", SubscriptionState::Active),
        ("killed", SubscriptionState::Dead),
    ] {
        let found = groups.iter().find(|one| one.group.as_str() == group).context("the group is gone")?;
        ensure!(found.state == state, "group {group} is {}", found.state);
        missed += if state == SubscriptionState::Active { found.missed.count } else { 0 };
    }
    Ok(missed)
}

async fn clean(headwater: &Headwater, topic: &Topic) -> Result<()> {
    while headwater.store().clean(topic.topic_id, 10_000).await?.more {}
    Ok(())
}

/// Acks all messages.
async fn consume(headwater: &Headwater, subscription: SubscriptionId, owner: &Owner) -> Result<()> {
    let store = headwater.store();
    let request = ClaimRequest { owner: owner.clone(), wants: vec![Want::new(subscription, 10_000)] };
    loop {
        let claimed = store.claim(&request).await?;
        if claimed.leases.is_empty() {
            return Ok(());
        }
        for lease in claimed.leases {
            store.settle(&[Settlement::ack_all(&lease)]).await?.remove(0)?;
        }
    }
}

/// A partition of many rows is dropped within a second.
async fn large(
    place: &Place<'_>,
    headwater: &Headwater,
    clock: &ManualClock,
    setting: &Setting,
) -> Result<Vec<Judged>> {
    let store = headwater.store();
    let rows = setting.scaled(10_000_000, 10_000_000);
    let settings = TopicSettings {
        storage: Storage::Dedicated(Partition::Rows(rows)),
        message_retention: Some(Duration::from_secs(60)),
        zero_subscription_retention: Duration::from_secs(60),
        ..TopicSettings::pub_sub()
    };
    let topic = headwater.topic("large").settings(settings).create().await?;
    store.keep_partitions(topic.topic_id).await?;
    progress(&format!("filling a partition with {rows} rows"));
    let client = connect(&place.url).await?;
    // Through the log's own sequence, but without a call for each message: only the drop is measured.
    client
        .batch_execute(&format!(
            "INSERT INTO headwater.message (message_offset, created_at, topic_id, message_id, payload) \
             SELECT nextval(t.offsets), '{}'::timestamptz, t.topic_id, gen_random_uuid(), '\\x00' \
             FROM headwater.topic t, generate_series(1, {rows}) WHERE t.name = 'large'",
            clock.now()
        ))
        .await?;
    while status(headwater, &topic).await?.head.0 < i64::try_from(rows)? {
        store.advance_heads().await?;
    }
    // An entry of now in the watermark history, later than the first one; then the time after which it counts.
    clock.advance(Duration::from_secs(1));
    store.clean(topic.topic_id, 10_000).await?;
    store.publish(&topic.name, &[NewMessage::new("the next one")]).await?;
    clock.advance(Duration::from_secs(120));
    store.advance_heads().await?;
    // Autovacuum may hold the table's lock; maintenance then tries again in its next run.
    let (kept, took) = loop {
        let start = Instant::now();
        let kept = store.keep_partitions(topic.topic_id).await?;
        if !kept.locked {
            break (kept, start.elapsed());
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    };
    ensure!(kept.dropped == 1, "nothing was dropped: {kept:?}");
    Ok(vec![
        Judged::new(
            "a large partition dropped",
            took.as_secs_f64() * 1_000.0,
            Unit::Milliseconds,
            Floor::AtMost(1_000.0),
        )
        .note(format!("{rows} rows, {} counted as removed", kept.removed)),
    ])
}
