//! Beat: a process says that it serves subscriptions, and learns how they are.

use rusqlite::{OptionalExtension, params};

use super::fault::Attempt;
use super::work::Work;
use super::{decode, group, resurrect};
use crate::name::{GroupName, Owner};
use crate::store::{Beat, Pulse};
use crate::subscription::SubscriptionState;
use crate::topic::TopicId;

/// How a subscription is when a process beats for it.
struct Beaten {
    state: SubscriptionState,
    heartbeat_at_ms: Option<i64>,
    interval_ms: i64,
    topic_id: TopicId,
    group: GroupName,
}

/// Beats for every subscription, in their order.
pub(super) fn beat(work: &mut Work<'_>, owner: &Owner, beats: &[Beat]) -> Attempt<Vec<Pulse>> {
    beats.iter().map(|beat| beat_one(work, owner, beat)).collect()
}

fn beat_one(work: &mut Work<'_>, owner: &Owner, beat: &Beat) -> Attempt<Pulse> {
    let (subscription_id, now_ms) = (beat.subscription_id.0, work.now_ms());
    let Some(found) = find(work, subscription_id)? else { return Ok(Pulse::Gone) };
    let mut pulse = Pulse::of(found.state);
    match found.state {
        SubscriptionState::Cancelled => return Ok(pulse),
        SubscriptionState::Dead => {
            resurrect::revive(work, found.topic_id, subscription_id, None)?;
            let missed = group::find(work.connection, found.topic_id, &found.group)?;
            let missed = missed.map(|found| found.missed).unwrap_or_default();
            pulse = Pulse::Resurrected(missed);
        }
        SubscriptionState::Active | SubscriptionState::Paused => {
            // Every process of a group beats, and one stamp in a quarter of an interval is enough. One from the future is
            // a clock's that was turned back.
            let fresh_from_ms = now_ms.saturating_sub(found.interval_ms / 4);
            if found.heartbeat_at_ms.is_none_or(|at_ms| at_ms < fresh_from_ms || at_ms > now_ms) {
                let mut stamp = work.connection.prepare_cached(super::sql!(beat.stamp))?;
                stamp.execute(params![subscription_id, now_ms])?;
            }
        }
    }
    tell(work, owner, beat, now_ms)?;
    Ok(pulse)
}

fn find(work: &Work<'_>, subscription_id: i32) -> Attempt<Option<Beaten>> {
    let mut statement = work.connection.prepare_cached(super::sql!(beat.state))?;
    let found = statement.query_row([subscription_id], |row| {
        Ok(Beaten {
            state: decode::parsed(row, 0, SubscriptionState::parse)?,
            heartbeat_at_ms: row.get(1)?,
            interval_ms: row.get(2)?,
            topic_id: TopicId(row.get(3)?),
            group: decode::parsed(row, 5, |name| GroupName::new(name))?,
        })
    });
    Ok(found.optional()?)
}

/// Stores what the process has done.
fn tell(work: &Work<'_>, owner: &Owner, beat: &Beat, now_ms: i64) -> Attempt<()> {
    let whole = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
    let micros = |time: std::time::Duration| i64::try_from(time.as_micros()).unwrap_or(i64::MAX);
    let activity = &beat.activity;
    work.connection.prepare_cached(super::sql!(beat.activity))?.execute(params![
        beat.subscription_id.0,
        owner.as_str(),
        whole(activity.processed),
        whole(activity.failed),
        whole(activity.filtered),
        if activity.rate.is_finite() { activity.rate } else { 0.0 },
        micros(activity.handling_mean),
        micros(activity.handling_p95),
        now_ms,
    ])?;
    Ok(())
}
