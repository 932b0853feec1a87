//! Settling and extending leases, by token, owner and subscription.

use std::collections::HashSet;
use std::time::Duration;

use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

use super::PostgresStore;
use super::clock::{self, On};
use super::heartbeat::ANSWER_TIMEOUT;
use super::time::millis;
use crate::error::{Error, ErrorKind, Result};
use crate::lease::{LeaseId, LeaseToken, OffsetRange};
use crate::lease_thread::LeaseThread;
use crate::settle::{Outcome, Parts, Settlement};
use crate::topic::TopicId;

/// Settles, and repeats the settlements reported as lost if the clock stepped meanwhile: their leases may still be held.
///
/// On the thread for leases it uses the connections made there: the others do not progress while the program blocks its
/// runtime.
pub(super) async fn settle(store: &PostgresStore, settlements: &[Settlement]) -> Result<Vec<Result<()>>> {
    let on = if LeaseThread::is_current() { On::Leases } else { On::Work };
    let moved_ms = store.guard.moved_ms();
    let mut results = settle_once(store, on, settlements).await?;
    let is_lost = |result: &Result<()>| matches!(result, Err(error) if error.kind() == ErrorKind::LeaseLost);
    if results.iter().any(is_lost) && clock::moved_since(store, on, moved_ms).await {
        for (settlement, result) in settlements.iter().zip(&mut results).filter(|(_, result)| is_lost(result))
        {
            *result = settle_one(store, on, settlement).await?;
        }
    }
    Ok(results)
}

/// Whole acks are one statement whatever their number; each partial settlement is its own statement, so that a lost lease does
/// not affect the others.
async fn settle_once(store: &PostgresStore, on: On, settlements: &[Settlement]) -> Result<Vec<Result<()>>> {
    let tokens: HashSet<i64> = settlements.iter().map(|settlement| settlement.lease.token.0).collect();
    let all_whole = settlements.iter().all(|settlement| settlement.parts == Parts::AckAll);
    let mut results = Vec::with_capacity(settlements.len());
    // Several settlements of one lease are applied in their order.
    if !all_whole || tokens.len() < settlements.len() {
        for settlement in settlements {
            results.push(settle_one(store, on, settlement).await?);
        }
        return Ok(results);
    }
    let wanted: Vec<&LeaseId> = settlements.iter().map(|settlement| &settlement.lease).collect();
    let held = if wanted.is_empty() { HashSet::new() } else { ack_all(store, on, &wanted).await? };
    Ok(wanted.into_iter().map(|id| answer(&held, id)).collect())
}

/// The inner result is the settlement's own; the outer one is the store's.
async fn settle_one(store: &PostgresStore, on: On, settlement: &Settlement) -> Result<Result<()>> {
    let held = match &settlement.parts {
        Parts::AckAll => ack_all(store, on, &[&settlement.lease]).await?.contains(&settlement.lease.token.0),
        Parts::Each(parts) if reaches_the_end(parts) => false,
        Parts::Each(parts) => settle_parts(store, on, &settlement.lease, parts).await?,
    };
    Ok(if held { Ok(()) } else { Err(Error::lease_lost(settlement.lease.token.0)) })
}

/// No offset is that high, and a range up to it has no exclusive end.
pub(super) fn reaches_the_end(parts: &[(OffsetRange, Outcome)]) -> bool {
    parts.iter().any(|(range, _)| range.last.0 == i64::MAX)
}

/// `Ok` if the lease is among those held.
fn answer(held: &HashSet<i64>, id: &LeaseId) -> Result<()> {
    if held.contains(&id.token.0) { Ok(()) } else { Err(Error::lease_lost(id.token.0)) }
}

/// Leases as the columns that statements compare.
struct IdColumns<'a> {
    tokens: Vec<i64>,
    subscription_ids: Vec<i32>,
    owners: Vec<&'a str>,
}

impl<'a> IdColumns<'a> {
    fn from_ids(ids: impl Iterator<Item = &'a LeaseId> + Clone) -> Self {
        IdColumns {
            tokens: ids.clone().map(|id| id.token.0).collect(),
            subscription_ids: ids.clone().map(|id| id.subscription_id.0).collect(),
            owners: ids.map(|id| id.owner.as_str()).collect(),
        }
    }
}

/// Runs a statement that settles.
async fn commit(
    store: &PostgresStore,
    on: On,
    doing: &str,
    sql: &str,
    params: &[&(dyn ToSql + Sync)],
) -> Result<Vec<Row>> {
    match on {
        On::Leases => store.connections.commit_leases_within(ANSWER_TIMEOUT, doing, sql, params).await,
        On::Work => store.connections.commit(doing, sql, params).await,
    }
}

async fn ack_all(store: &PostgresStore, on: On, leases: &[&LeaseId]) -> Result<HashSet<i64>> {
    let now = store.clock.injected();
    let ids = IdColumns::from_ids(leases.iter().copied());
    // If the connection breaks meanwhile, the outcome is unknown: the caller repeats the call.
    let params: [&(dyn ToSql + Sync); 5] =
        [&ids.tokens, &ids.subscription_ids, &ids.owners, &store.durable_settlements, &now];
    let rows = commit(store, on, "settling leases", &store.statements.settle_all, &params).await?;
    let freed: HashSet<i32> = rows.iter().filter_map(|row| row.get("freed_topic_id")).collect();
    if !freed.is_empty() {
        let freed: Vec<i32> = freed.into_iter().collect();
        // The acks are committed: a consumer that is not woken polls a little later.
        if let Err(error) = commit(store, on, "waking others", &store.statements.settle_wake, &[&freed]).await
        {
            tracing::debug!(%error, "wake-up of other processes failed");
        }
        freed.iter().for_each(|topic| store.hub.wake(TopicId(*topic)));
    }
    Ok(rows.iter().map(|row| row.get("token")).collect())
}

async fn settle_parts(
    store: &PostgresStore,
    on: On,
    id: &LeaseId,
    parts: &[(OffsetRange, Outcome)],
) -> Result<bool> {
    let columns = PartColumns::of(parts);
    let now = store.clock.injected();
    let mut refused = 0;
    let rows = loop {
        let expected = clock::expected(store, on).await?;
        let params: [&(dyn ToSql + Sync); 12] = [
            &id.token.0,
            &id.subscription_id.0,
            &id.owner.as_str(),
            &columns.firsts,
            &columns.lasts,
            &columns.outcomes,
            &columns.delays_ms,
            &columns.errors,
            &columns.keys,
            &store.durable_settlements,
            &now,
            &expected,
        ];
        let doing = format!("settling lease {}", id.token);
        let answer = commit(store, on, &doing, &store.statements.settle_parts, &params).await;
        match answer {
            Err(error) if clock::repeats(store, on, &mut refused, &error).await? => {}
            answer => break answer?,
        }
    };
    let topic: Option<i32> = rows[0].get("topic_id");
    if let Some(topic) = topic
        && columns.comes_again
    {
        store.hub.wake(TopicId(topic));
    }
    Ok(topic.is_some())
}

/// Parts of a lease as the columns the schema's functions take.
pub(super) struct PartColumns<'a> {
    pub(super) firsts: Vec<i64>,
    pub(super) lasts: Vec<i64>,
    pub(super) outcomes: Vec<&'a str>,
    pub(super) delays_ms: Vec<Option<i64>>,
    pub(super) errors: Vec<Option<&'a str>>,
    pub(super) keys: Vec<Option<&'a str>>,
    /// Whether a message of it is redelivered, so that waiters must be woken.
    pub(super) comes_again: bool,
}

impl<'a> PartColumns<'a> {
    pub(super) fn of(parts: &'a [(OffsetRange, Outcome)]) -> Self {
        PartColumns {
            firsts: parts.iter().map(|(range, _)| range.first.0).collect(),
            lasts: parts.iter().map(|(range, _)| range.last.0).collect(),
            outcomes: parts.iter().map(|(_, outcome)| outcome.word()).collect(),
            delays_ms: parts.iter().map(|(_, outcome)| outcome.delay().map(millis)).collect(),
            errors: parts.iter().map(|(_, outcome)| outcome.error()).collect(),
            keys: parts.iter().map(|(_, outcome)| outcome.key()).collect(),
            comes_again: parts.iter().any(|(_, outcome)| outcome.comes_again()),
        }
    }
}

/// Ends a lease for an operator.
pub(super) async fn release_by_hand(store: &PostgresStore, token: LeaseToken) -> Result<()> {
    let rows = store
        .connections
        .query(
            &format!("releasing lease {token}"),
            &store.statements.settle_release,
            &[&token.0, &&*store.actor.now(), &store.clock.injected()],
        )
        .await?;
    let topic: i32 = rows[0].get::<_, Option<i32>>("topic_id").ok_or_else(|| Error::lease_lost(token.0))?;
    store.hub.wake(TopicId(topic));
    Ok(())
}

/// Extends, and repeats the extensions reported as lost if deadlines were moved meanwhile, as settling does.
pub(super) async fn extend(
    store: &PostgresStore,
    leases: &[LeaseId],
    lease: Duration,
) -> Result<Vec<Result<()>>> {
    let moved_ms = store.guard.moved_ms();
    let mut held = extend_once(store, leases, lease).await?;
    if leases.iter().any(|id| !held.contains(&id.token.0))
        && clock::moved_since(store, On::Leases, moved_ms).await
    {
        held = extend_once(store, leases, lease).await?;
    }
    Ok(leases.iter().map(|id| answer(&held, id)).collect())
}

async fn extend_once(store: &PostgresStore, leases: &[LeaseId], lease: Duration) -> Result<HashSet<i64>> {
    if leases.is_empty() {
        return Ok(HashSet::new());
    }
    let ids = IdColumns::from_ids(leases.iter());
    let mut refused = 0;
    loop {
        let (now, expected) = (store.clock.injected(), clock::expected(store, On::Leases).await?);
        let answer = store
            .connections
            .query_leases_within(
                ANSWER_TIMEOUT,
                "extending leases",
                &store.statements.settle_extend,
                &[
                    &ids.tokens,
                    &ids.subscription_ids,
                    &ids.owners,
                    &millis(lease),
                    &store.durable_settlements,
                    &now,
                    &expected,
                ],
            )
            .await;
        match answer {
            Err(error) if clock::repeats(store, On::Leases, &mut refused, &error).await? => {}
            answer => return Ok(answer?.iter().map(|row| row.get("token")).collect()),
        }
    }
}
