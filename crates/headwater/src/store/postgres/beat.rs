//! Heartbeats of processes for the subscriptions they serve.

use std::time::Duration;

use tokio_postgres::Row;

use super::PostgresStore;
use super::status::missed_of;
use super::time::stored;
use crate::error::Result;
use crate::name::Owner;
use crate::store::{Beat, Pulse};
use crate::subscription::{Activity, SubscriptionState};
use crate::topic::TopicId;

/// A heartbeat that takes longer has failed: the next one is due soon, and many failures mean that the process is cut off.
const BEAT_TIMEOUT: Duration = Duration::from_secs(5);

pub(super) async fn beat(store: &PostgresStore, owner: &Owner, beats: &[Beat]) -> Result<Vec<Pulse>> {
    if beats.is_empty() {
        return Ok(Vec::new());
    }
    let ids: Vec<i32> = beats.iter().map(|beat| beat.subscription_id.0).collect();
    let column = |get: fn(&Activity) -> u64| -> Vec<i64> {
        beats.iter().map(|beat| i64::try_from(get(&beat.activity)).unwrap_or(i64::MAX)).collect()
    };
    let rates: Vec<f64> = beats.iter().map(|beat| beat.activity.rate).collect();
    // On the leases' own pool: a process whose work pool is busy is not dead.
    let rows = store
        .connections
        .query_leases_within(
            BEAT_TIMEOUT,
            "beating for subscriptions",
            &store.statements.beat,
            &[
                &owner.as_str(),
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
    assert_eq!(rows.len(), beats.len(), "the store answers for every subscription");
    rows.iter().map(|row| pulse_of(store, row)).collect()
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

fn pulse_of(store: &PostgresStore, row: &Row) -> Result<Pulse> {
    let Some(state) = stored::<_, Option<&str>>(row, "state")? else { return Ok(Pulse::Gone) };
    if stored(row, "resurrected")? {
        let missed = missed_of(row)?;
        store.hub.wake(TopicId(stored(row, "topic_id")?));
        return Ok(Pulse::Resurrected(missed));
    }
    Ok(Pulse::of(SubscriptionState::parse(state)?))
}
