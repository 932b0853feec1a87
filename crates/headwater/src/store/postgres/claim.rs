//! Claiming: hands out ranges, and reports leases that expired.

use std::time::Duration;

use tokio_postgres::Row;

use super::PostgresStore;
use super::clock::{self, On};
use super::time::{millis, stored};
use crate::error::Result;
use crate::lease::{
    ClaimRequest, Claimed, Epoch, Lease, LeaseId, LeaseToken, OffsetRange, RateLimit, UsedUp, Want,
};
use crate::limits::{ADVANCE_ROWS_MAX, GAPS_NOTED_MAX, PARKED_PER_LANE_MAX};
use crate::message::Offset;
use crate::name::Owner;
use crate::settle::{Outcome, Settlement};
use crate::store::Delivery;
use crate::subscription::{SubscriptionId, SubscriptionState};
use crate::topic::TopicId;

pub(super) async fn claim(store: &PostgresStore, request: &ClaimRequest) -> Result<Claimed> {
    if request.wants.is_empty() {
        return Ok(Claimed::default());
    }
    let ids: Vec<i32> = request.wants.iter().map(|want| want.subscription_id.0).collect();
    let messages_max: Vec<i32> = request.wants.iter().map(|want| want.messages_max.cast_signed()).collect();
    let leases_ms: Vec<Option<i64>> = request.wants.iter().map(|want| want.lease.map(millis)).collect();
    let limits = Limits::of(&request.wants);
    let mut refused = 0;
    let rows = loop {
        let (expected, moved_ms) = (clock::expected(store, On::Work).await?, store.guard.moved_ms());
        let answer = store
            .connections
            .query(
                "claiming",
                &store.statements.claim,
                &[
                    &request.owner.as_str(),
                    &ids,
                    &messages_max,
                    &leases_ms,
                    &limits.in_flight_max,
                    &limits.rates,
                    &limits.bursts,
                    &store.durable_settlements,
                    &store.promotion.messages_max(),
                    &ADVANCE_ROWS_MAX,
                    &GAPS_NOTED_MAX,
                    &PARKED_PER_LANE_MAX,
                    &store.clock.injected(),
                    &expected,
                    &moved_ms,
                ],
            )
            .await;
        store.promotion.note(&answer);
        match answer {
            Err(error) if clock::repeats(store, On::Work, &mut refused, &error).await? => {}
            answer => break answer?,
        }
    };
    let mut claimed = Claimed::default();
    for row in &rows {
        take(row, &request.owner, &mut claimed)?;
    }
    for row in rows.iter().filter(|row| row.get::<_, &str>("kind") == "used_up") {
        if bury_if_ours(store, &request.owner, row).await? {
            claimed.used_up.push(used_up_of(row, row.get("attempt")));
        }
        claimed.recheck_after = Some(Duration::from_millis(1));
    }
    for lease in &claimed.leases {
        store.flags.found(lease.topic_id);
    }
    if let Some(row) = rows.first() {
        claimed.epoch = match row.get("epoch") {
            Some(epoch) => Epoch(epoch),
            None => begin_epoch(store).await?,
        };
        store.replica.iter().for_each(|replica| replica.follow(claimed.epoch));
    }
    Ok(claimed)
}

pub(super) async fn claimable(
    store: &PostgresStore,
    subscriptions: &[SubscriptionId],
) -> Result<Vec<SubscriptionId>> {
    let ids: Vec<i32> = subscriptions.iter().map(|subscription| subscription.0).collect();
    let (doing, asked) = ("checking idle subscriptions", &store.statements.arm_claimable);
    let rows = store.connections.query(doing, asked, &[&ids, &store.clock.injected()]).await?;
    Ok(rows.iter().map(|row| SubscriptionId(row.get("subscription_id"))).collect())
}

/// Begins an epoch if the server has none: it crashed, was promoted or restored since the last claim of any client. If that
/// happens once more between the claim and this call, the leases are lost and the epoch is the next one: clients drop what they
/// keep in either case.
async fn begin_epoch(store: &PostgresStore) -> Result<Epoch> {
    let rows = store.connections.query("beginning an epoch", &store.statements.epoch, &[]).await?;
    let cause: &str = rows[0].get("cause");
    tracing::warn!(
        cause,
        "epoch begun: the server crashed, failed over or was restored; see `headwater doctor`"
    );
    Ok(Epoch(rows[0].get("epoch")))
}

/// The limits of wants as columns; null where no want has one, which lets the claim take its fast path.
#[derive(Default)]
struct Limits {
    in_flight_max: Option<Vec<Option<i64>>>,
    rates: Option<Vec<Option<f64>>>,
    bursts: Option<Vec<Option<i64>>>,
}

impl Limits {
    fn of(wants: &[Want]) -> Self {
        if wants.iter().all(|want| want.limits.is_none()) {
            return Limits::default();
        }
        let rates = || wants.iter().map(|want| want.limits.rate);
        Limits {
            in_flight_max: Some(wants.iter().map(|want| want.limits.in_flight_max.map(i64::from)).collect()),
            rates: Some(rates().map(|rate| rate.map(RateLimit::bounded_per_second)).collect()),
            bursts: Some(rates().map(|rate| rate.map(|rate| i64::from(rate.burst))).collect()),
        }
    }
}

/// A message of an ordered subscription that used up its attempts: buried if it is of the lane that gave up on it, which
/// is returned. The leases of lanes overlap, and only the stable hash shows to which lane a message belongs.
async fn bury_if_ours(store: &PostgresStore, owner: &Owner, row: &Row) -> Result<bool> {
    let (range, token) = (range_of(row), LeaseToken(row.get("token")));
    let subscription_id: i32 = row.get("subscription_id");
    let id = LeaseId { token, subscription_id: SubscriptionId(subscription_id), owner: owner.clone() };
    let lane: i32 = row.get("lane");
    let lanes = store
        .connections
        .query("reading the subscription", &store.statements.subscribe_lanes, &[&subscription_id])
        .await?;
    let lanes = u16::try_from(lanes[0].get::<_, i32>("lanes")).expect("lanes fit 16 bits");
    let messages = store.fetch(TopicId(row.get("topic_id")), range).await?;
    let ours = messages.iter().any(|message| i32::from(message.lane(lanes)) == lane);
    let settlement = if ours {
        Settlement::each(&id, vec![(range, Outcome::Bury { error: row.get("detail") })])
    } else {
        Settlement::ack_all(&id)
    };
    // Lost only if this took longer than the lease: then the next claim does the same.
    let settled = store.settle(&[settlement]).await?.remove(0).is_ok();
    Ok(ours && settled)
}

fn used_up_of(row: &Row, attempts: i32) -> UsedUp {
    UsedUp {
        subscription_id: SubscriptionId(row.get("subscription_id")),
        offset: Offset(row.get("first_offset")),
        attempts: u32::try_from(attempts).expect("attempts count up from 1"),
        error: row.get("detail"),
    }
}

fn take(row: &Row, owner: &Owner, claimed: &mut Claimed) -> Result<()> {
    let subscription_id = SubscriptionId(row.get("subscription_id"));
    let topic_id = TopicId(row.get("topic_id"));
    match row.get::<_, &str>("kind") {
        "lease" => claimed.leases.push(lease_of(row, owner, subscription_id, topic_id)?),
        "inactive" => {
            claimed.inactive.push((subscription_id, SubscriptionState::parse(row.get("detail"))?));
        }
        "expired" => {
            let names: Vec<&str> = row.get("names");
            tracing::warn!(
                topic = names[0], group = names[1], offsets = %range_of(row), token = row.get::<_, i64>("token"),
                owner = row.get::<_, &str>("detail"), attempt = row.get::<_, i32>("attempt"),
                "lease expired, reassigning"
            );
        }
        // The row has the number of the attempt that would have followed.
        "buried" => claimed.used_up.push(used_up_of(row, row.get::<_, i32>("attempt") - 1)),
        // Settled below, and only then buried.
        "used_up" => {}
        _ => {
            let recheck_ms: Option<i64> = row.get("recheck_ms");
            let recheck = recheck_ms.map(|ms| Duration::from_millis(u64::try_from(ms).unwrap_or(0)));
            claimed.recheck_after = match (claimed.recheck_after, recheck) {
                (Some(a), Some(b)) => Some(a.min(b)),
                (a, b) => a.or(b),
            };
        }
    }
    Ok(())
}

fn lease_of(row: &Row, owner: &Owner, subscription_id: SubscriptionId, topic_id: TopicId) -> Result<Lease> {
    let lane: Option<i32> = row.get("lane");
    let attempt: i32 = row.get("attempt");
    Ok(Lease {
        subscription_id,
        owner: owner.clone(),
        topic_id,
        token: LeaseToken(row.get("token")),
        range: range_of(row),
        attempt: u32::try_from(attempt).expect("attempts count up from 1"),
        deadline: stored(row, "deadline")?,
        suspect: row.get("suspect"),
        lane: lane.map(|lane| u16::try_from(lane).expect("lanes fit 16 bits")),
        blocked_keys: row.get::<_, Option<Vec<String>>>("blocked_keys").unwrap_or_default(),
    })
}

fn range_of(row: &Row) -> OffsetRange {
    OffsetRange::new(Offset(row.get("first_offset")), Offset(row.get("last_offset")))
}
