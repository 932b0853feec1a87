//! The actors of the storm. Each calls what programs of its kind call, in random order.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use headwater::consumer::GroupLimits;
use headwater::store::{
    BackfillLimits, ClaimRequest, DeadLetterSelection, Lease, LeaseId, OffsetRange, Outcome, Owner, Served,
    Settlement, SubscriptionId, Want,
};
use headwater::topic::Tracking;
use headwater::{DeliveryPolicy, GroupName, NewMessage, Start, TopicName};
use rand::RngExt;
use rand::rngs::StdRng;

use super::Storm;

const TOPICS: [&str; 4] = ["plain", "counted", "ordered", "queue"];
const GROUPS: [&str; 3] = ["first", "second", "third"];
/// The groups that are subscribed and removed.
const GUESTS: [&str; 3] = ["guest-1", "guest-2", "guest-3"];
const LEASE: Duration = Duration::from_secs(2);
const SILENT_FOR: Duration = Duration::from_secs(3);

fn pick<T: Copy>(random: &mut StdRng, from: &[T]) -> T {
    from[random.random_range(0..from.len())]
}

fn topic(random: &mut StdRng) -> Result<TopicName> {
    Ok(TopicName::new(pick(random, &TOPICS))?)
}

/// A random group of a topic; a queue has only one.
fn group(random: &mut StdRng, topic: &TopicName) -> Result<GroupName> {
    Ok(GroupName::new(if topic.as_str() == "queue" { GROUPS[0] } else { pick(random, &GROUPS) })?)
}

async fn rest(random: &mut StdRng, up_to_ms: u64) {
    tokio::time::sleep(Duration::from_millis(random.random_range(0..up_to_ms))).await;
}

/// Publishes batches: plain, with keys, delayed, with dedup keys.
pub(super) async fn publisher(storm: Arc<Storm>, mut random: StdRng) -> Result<()> {
    while storm.is_on() {
        let topic = topic(&mut random)?;
        let messages: Vec<NewMessage> = (0..random.random_range(1..20))
            .map(|n| {
                let message = NewMessage::new("storm").key(format!("k{}", random.random_range(0..8)));
                match random.random_range(0..10) {
                    0 => message.dedup_key(format!("{n}-{}", random.random_range(0..50))),
                    1 => message.deliver_at(jiff::Timestamp::now() + Duration::from_millis(200)),
                    _ => message,
                }
            })
            .collect();
        storm.note(storm.store.publish(&topic, &messages).await);
        rest(&mut random, 10).await;
    }
    Ok(())
}

/// A process of several groups: one task extends leases and sends heartbeats while another settles.
pub(super) async fn member(storm: Arc<Storm>, number: u64, mut random: StdRng) -> Result<()> {
    let owner = Owner::new(format!("member-{number}"))?;
    while storm.is_on() {
        let mut subscriptions = vec![];
        for _ in 0..3 {
            let topic = topic(&mut random)?;
            let group = group(&mut random, &topic)?;
            let subscribed = storm.note(storm.store.subscribe(&topic, &group, Start::Beginning).await);
            subscriptions.extend(subscribed.map(|one| one.subscription_id));
        }
        subscriptions.sort();
        subscriptions.dedup();
        for _ in 0..20 {
            work(&storm, &owner, &subscriptions, &mut random).await;
        }
        storm.note(storm.store.depart(&owner).await);
    }
    Ok(())
}

async fn work(storm: &Storm, owner: &Owner, subscriptions: &[SubscriptionId], random: &mut StdRng) {
    let limits = GroupLimits { in_flight_max: Some(200), rate: None };
    let wants = subscriptions.iter().map(|id| Want { limits, ..Want::new(*id, 30) }).collect();
    let request = ClaimRequest { owner: owner.clone(), wants };
    let Some(claimed) = storm.note(storm.store.claim(&request).await) else { return };
    let ids: Vec<LeaseId> = claimed.leases.iter().map(LeaseId::from).collect();
    let settlements: Vec<Settlement> = claimed.leases.iter().map(|lease| settlement(lease, random)).collect();
    for lease in &claimed.leases {
        storm.note(storm.store.fetch(lease.topic_id, lease.range).await);
    }
    let served: Vec<Served> = subscriptions.iter().map(|id| Served::new(*id)).collect();
    let pause = Duration::from_millis(random.random_range(0..15));
    tokio::join!(
        async {
            if !ids.is_empty() {
                for extended in storm.note(storm.store.extend(&ids, LEASE).await).unwrap_or_default() {
                    storm.note(extended);
                }
            }
        },
        async {
            tokio::time::sleep(pause).await;
            if !settlements.is_empty() {
                for settled in storm.note(storm.store.settle(&settlements).await).unwrap_or_default() {
                    storm.note(settled);
                }
            }
        },
        async {
            storm.note(storm.store.heartbeat(owner, Some(SILENT_FOR), &served).await);
        },
    );
}

/// Acks, retries, releases or buries; a lease of a lane only as a whole.
fn settlement(lease: &Lease, random: &mut StdRng) -> Settlement {
    let whole = |outcome| Settlement::each(lease, vec![(lease.range, outcome)]);
    match random.random_range(0..10) {
        0 if lease.lane.is_none() => {
            let retry = Outcome::Retry { after: Duration::from_millis(50), error: "later".into(), key: None };
            whole(retry)
        }
        1 => whole(Outcome::Release),
        2 if lease.lane.is_none() => whole(Outcome::Bury { error: "never".into() }),
        3 if lease.lane.is_none() && lease.range.span() > 1 => {
            let first = OffsetRange::one(lease.range.first);
            let rest = OffsetRange::new(headwater::Offset(lease.range.first.0 + 1), lease.range.last);
            Settlement::each(lease, vec![(first, Outcome::Release), (rest, Outcome::Ack)])
        }
        _ => Settlement::ack_all(lease),
    }
}

/// What operators do with groups.
pub(super) async fn operator(storm: Arc<Storm>, mut random: StdRng) -> Result<()> {
    while storm.is_on() {
        let topic = topic(&mut random)?;
        let group = group(&mut random, &topic)?;
        match random.random_range(0..12) {
            0 => guests(&storm, &mut random).await?,
            1 => {
                storm.note(storm.store.pause(&topic, &group, None).await);
                rest(&mut random, 50).await;
                storm.note(storm.store.resume(&topic, &group).await);
            }
            2 => {
                let to = pick(&mut random, &[Start::Now, Start::Beginning, Start::BeginningBounded(50)]);
                storm.note(storm.store.seek(&topic, &group, to, false).await);
            }
            3 => drop(storm.note(storm.store.resurrect(&topic, &group, Some(100)).await)),
            4 => {
                let policy = DeliveryPolicy { max_attempts: Some(3), ..DeliveryPolicy::default() };
                storm.note(storm.store.set_policy(&topic, &group, &policy).await);
            }
            5 => drop(storm.note(storm.store.force_complete(&topic, Duration::from_secs(5), false).await)),
            6 => backfill(&storm, &topic, &group).await,
            7 => switch_mode(&storm, &mut random).await?,
            _ => one_group(&storm, &topic, &group, &mut random).await,
        }
        rest(&mut random, 30).await;
    }
    Ok(())
}

/// Dead letters, leases and figures of one group.
async fn one_group(storm: &Storm, topic: &TopicName, group: &GroupName, random: &mut StdRng) {
    let groups = storm.note(storm.store.subscriptions(topic).await).unwrap_or_default();
    let Some(status) = groups.iter().find(|one| one.group == *group) else { return };
    let id = status.subscription_id;
    let selection = DeadLetterSelection::all(id);
    match random.random_range(0..4) {
        0 => drop(storm.note(storm.store.redrive(&selection).await)),
        1 => drop(storm.note(storm.store.purge(&selection).await)),
        2 => drop(storm.note(storm.store.dead_letters(&selection, 10).await)),
        _ => {
            let leased = storm.note(storm.store.outstanding(id, 5).await).unwrap_or_default();
            if let Some(token) = leased.iter().find_map(|one| one.token) {
                storm.note(storm.store.release_lease(token).await);
            }
        }
    }
}

/// Groups that subscribe and are removed with all their state.
async fn guests(storm: &Storm, random: &mut StdRng) -> Result<()> {
    let topic = TopicName::new(pick(random, &TOPICS[..3]))?;
    let guest = pick(random, &GUESTS);
    let start = pick(random, &[Start::Now, Start::Beginning]);
    let subscribed = storm.note(storm.store.subscribe(&topic, &GroupName::new(guest)?, start).await);
    if let Some(subscription) = subscribed {
        let want = Want::new(subscription.subscription_id, 10);
        let request = ClaimRequest { owner: Owner::new(format!("owner of {guest}"))?, wants: vec![want] };
        storm.note(storm.store.claim(&request).await);
    }
    rest(random, 100).await;
    if random.random_range(0..2) == 0 {
        storm.note(storm.headwater.groups(topic.as_str()).remove(guest, Duration::ZERO).await);
    }
    Ok(())
}

async fn backfill(storm: &Storm, topic: &TopicName, group: &GroupName) {
    storm.note(storm.store.backfill(topic, group, &BackfillLimits::default()).await);
    storm.note(storm.store.cancel_backfill(topic, group).await);
    storm.note(storm.store.resume_backfill(topic, group).await);
}

/// Changes the tracking mode of one topic.
async fn switch_mode(storm: &Storm, random: &mut StdRng) -> Result<()> {
    let topic = TopicName::new("counted")?;
    if let Some(found) = storm.note(storm.store.topic(&topic).await) {
        let mut settings = found.settings;
        settings.tracking = pick(random, &[Tracking::ReferenceCounting, Tracking::OffsetWatermark]);
        storm.note(storm.store.alter_topic(&topic, &settings).await);
    }
    Ok(())
}

/// Every maintenance job, and the figures it reads.
pub(super) async fn maintainer(storm: Arc<Storm>, number: u64, mut random: StdRng) -> Result<()> {
    let worker = Owner::new(format!("maintainer-{number}"))?;
    while storm.is_on() {
        storm.note(storm.store.elect(&worker, Duration::from_secs(1)).await);
        storm.note(storm.store.advance_heads().await);
        storm.note(storm.store.detect_dead().await);
        for status in storm.note(storm.store.topics().await).unwrap_or_default() {
            let id = status.topic.topic_id;
            storm.note(storm.store.track(id, 1_000).await);
            storm.note(storm.store.clean(id, 1_000).await);
            storm.note(storm.store.keep_partitions(id).await);
        }
        storm.note(storm.store.step_backfill(&worker, 1_000).await);
        storm.note(storm.store.clean_subscriptions(Duration::from_secs(5)).await);
        storm.note(storm.store.jobs().await);
        storm.note(storm.store.resign(&worker).await);
        rest(&mut random, 20).await;
    }
    Ok(())
}

/// A cron job that every process has: one of them fires each tick.
pub(super) async fn cron(storm: Arc<Storm>) -> Result<()> {
    let (topic, message) = (TopicName::new("plain")?, NewMessage::new("tick"));
    while storm.is_on() {
        let now = jiff::Timestamp::now();
        storm.note(storm.store.cron_last("storm", now).await);
        storm.note(storm.store.cron_fire("storm", now, &topic, &message).await);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    Ok(())
}
