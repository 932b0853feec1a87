//! Heartbeats: an owner reports that it is alive and which subscriptions it serves. The leases of silent owners end.

use std::time::{Duration, Instant};

use jiff::Timestamp;
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

use super::PostgresStore;
use super::clock::{self, On};
use super::status::missed_of;
use super::time::{count, millis, stored};
use crate::error::Result;
use crate::name::Owner;
use crate::store::{Heartbeat, Served, Signal};
use crate::subscription::{Activity, SubscriptionState};
use crate::topic::TopicId;

/// A heartbeat or an extension that takes longer has failed. The next one is due soon and uses another connection; repeated
/// failures mean that the process is disconnected.
pub(super) const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// How long a heartbeat ends the leases of silent owners, and how long one of them may take: together less than
/// [`ANSWER_TIMEOUT`], within which the heartbeat is answered. The next one continues.
const ENDING_MAX: Duration = Duration::from_secs(1);
const END_TIMEOUT: Duration = Duration::from_secs(3);

pub(super) async fn heartbeat(
    store: &PostgresStore,
    owner: &Owner,
    silent_for: Option<Duration>,
    served: &[Served],
) -> Result<Heartbeat> {
    if silent_for.is_some() {
        // A step of the clock must be corrected before silence is measured with it.
        clock::check(store, On::Leases).await?;
    }
    let ids: Vec<i32> = served.iter().map(|one| one.subscription_id.0).collect();
    let column = |get: fn(&Activity) -> u64| -> Vec<i64> {
        served.iter().map(|one| i64::try_from(get(&one.activity)).unwrap_or(i64::MAX)).collect()
    };
    let rates: Vec<f64> = served.iter().map(|one| one.activity.rate).collect();
    // On the pool for leases: a process whose work pool is busy is not dead.
    let rows = store
        .connections
        .query_leases_within(
            ANSWER_TIMEOUT,
            "sending a heartbeat",
            &store.statements.heartbeat,
            &[
                &owner.as_str(),
                &silent_for.map(millis),
                &ids,
                &column(|activity| activity.processed),
                &column(|activity| activity.failed),
                &column(|activity| activity.filtered),
                &rates,
                &column(|activity| micros(activity.handling_mean)),
                &column(|activity| micros(activity.handling_p95)),
                &store.clock.injected(),
            ],
        )
        .await?;
    let (mut heartbeat, began) = (Heartbeat::default(), Instant::now());
    for row in &rows {
        match stored::<_, Option<&str>>(row, "silent_owner")? {
            None => heartbeat.signals.push(signal_of(store, row)?),
            Some(_) if began.elapsed() > ENDING_MAX => {}
            Some(silent) => match end_silent(store, silent, stored(row, "seen_at")?, silent_for).await {
                Ok(leases) => heartbeat.ended += leases,
                // This owner's heartbeat is stored, and the next one finds the silent owner again.
                Err(error) => tracing::warn!(owner = silent, %error, "leases of a silent owner not ended"),
            },
        }
    }
    assert_eq!(heartbeat.signals.len(), served.len(), "one signal for each served subscription");
    Ok(heartbeat)
}

/// Ends the leases of a silent owner, unless it sent a heartbeat since. Returns how many.
async fn end_silent(
    store: &PostgresStore,
    owner: &str,
    seen_at: Timestamp,
    silent_for: Option<Duration>,
) -> Result<u64> {
    let params: [&(dyn ToSql + Sync); 4] =
        [&owner, &seen_at, &silent_for.map(millis), &store.clock.injected()];
    let (doing, asked) = ("ending the leases of a silent owner", &store.statements.heartbeat_end_silent);
    let rows = store.connections.query_leases_within(END_TIMEOUT, doing, asked, &params).await?;
    let Some(row) = rows.first() else { return Ok(0) };
    let leases = count(row, "leases")?;
    tracing::warn!(owner, leases, "owner fell silent, its leases end");
    let topics = stored::<_, Vec<i32>>(row, "topic_ids")?;
    topics.into_iter().for_each(|topic| store.hub.wake(TopicId(topic)));
    Ok(leases)
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

fn signal_of(store: &PostgresStore, row: &Row) -> Result<Signal> {
    let Some(state) = stored::<_, Option<&str>>(row, "state")? else { return Ok(Signal::Gone) };
    if stored(row, "resurrected")? {
        let missed = missed_of(row)?;
        store.hub.wake(TopicId(stored(row, "topic_id")?));
        return Ok(Signal::Resurrected(missed));
    }
    Ok(Signal::of(SubscriptionState::parse(state)?))
}

pub(super) async fn depart(store: &PostgresStore, owner: &Owner) -> Result<()> {
    store
        .connections
        .query_leases("departing", &store.statements.heartbeat_depart, &[&owner.as_str()])
        .await
        .map(drop)
}
