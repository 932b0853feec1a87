//! States of subscriptions, changed by operators.

use jiff::Timestamp;
use tokio_postgres::types::ToSql;

use super::PostgresStore;
use super::status::missed_of;
use super::time::stored;
use crate::error::Result;
use crate::limits::DEAD_LETTERS_PER_STEP;
use crate::message::Offset;
use crate::name::{GroupName, TopicName};
use crate::store::Resurrected;
use crate::subscription::{SubscriptionState, Transition, refused_removal};
use crate::topic::TopicId;

/// Resumes or cancels, in one statement. It changes nothing if the transition does not start from the current state.
pub(super) async fn set(
    store: &PostgresStore,
    topic: &TopicName,
    group: &GroupName,
    transition: Transition,
) -> Result<()> {
    let params: [&(dyn ToSql + Sync); 7] = [
        &topic.as_str(),
        &group.as_str(),
        &transition.as_str(),
        &transition.starts(),
        &transition.to().as_str(),
        &&*store.actor.now(),
        &store.clock.injected(),
    ];
    change(store, topic, group, transition, &store.statements.state_set, &params).await
}

/// Pauses, with a reason: by a function of its own, which consumers may call.
pub(super) async fn pause(
    store: &PostgresStore,
    topic: &TopicName,
    group: &GroupName,
    reason: Option<&str>,
) -> Result<()> {
    let params: [&(dyn ToSql + Sync); 5] =
        [&topic.as_str(), &group.as_str(), &&*store.actor.now(), &reason, &store.clock.injected()];
    change(store, topic, group, Transition::Pause, &store.statements.state_pause, &params).await
}

async fn change(
    store: &PostgresStore,
    topic: &TopicName,
    group: &GroupName,
    transition: Transition,
    sql: &str,
    params: &[&(dyn ToSql + Sync)],
) -> Result<()> {
    let doing = format!("{} of group {group} of topic {topic}", transition.as_str());
    let rows = store.connections.query(&doing, sql, params).await?;
    let row = &rows[0];
    if !stored::<_, bool>(row, "changed")? {
        let state = SubscriptionState::parse(stored(row, "state")?)?;
        return Err(transition.refused(topic.as_str(), group.as_str(), state));
    }
    store.hub.wake(TopicId(stored(row, "topic_id")?));
    Ok(())
}

/// Removes the dead letters first, step by step, each step in a transaction of its own; then the rest.
pub(super) async fn remove(store: &PostgresStore, topic: &TopicName, group: &GroupName) -> Result<()> {
    let dead_letters = remove_dead_letters(store, topic, group).await?;
    let rows = store
        .connections
        .query(
            &format!("removing group {group} of topic {topic}"),
            &store.statements.state_remove,
            &[&topic.as_str(), &group.as_str(), &dead_letters, &&*store.actor.now(), &store.clock.injected()],
        )
        .await?;
    if stored::<_, i64>(&rows[0], "removed")? > 0 {
        return Ok(());
    }
    let Some(state) = stored::<_, Option<&str>>(&rows[0], "state")? else {
        // Another call, or maintenance, removed it meanwhile.
        return Ok(());
    };
    Err(refused_removal(topic.as_str(), group.as_str(), SubscriptionState::parse(state)?))
}

/// Deletes the dead letters of the cancelled subscriptions of this group name. Returns their number.
async fn remove_dead_letters(store: &PostgresStore, topic: &TopicName, group: &GroupName) -> Result<i64> {
    let doing = format!("removing dead letters of group {group} of topic {topic}");
    let mut after: (i32, Option<Timestamp>, i64) = (0, None, 0);
    let mut deleted = 0;
    loop {
        let (subscription_id, buried_at, offset) = &after;
        let params: [&(dyn ToSql + Sync); 6] =
            [&topic.as_str(), &group.as_str(), &DEAD_LETTERS_PER_STEP, subscription_id, buried_at, offset];
        let rows =
            store.connections.query(&doing, &store.statements.state_remove_dead_letters, &params).await?;
        let step: i64 = stored(&rows[0], "dead_letters")?;
        if step == 0 {
            return Ok(deleted);
        }
        deleted += step;
        after = (
            stored(&rows[0], "subscription_id")?,
            stored(&rows[0], "buried_at")?,
            stored(&rows[0], "message_offset")?,
        );
    }
}

pub(super) async fn resurrect(
    store: &PostgresStore,
    topic: &TopicName,
    group: &GroupName,
    behind_max: Option<u64>,
) -> Result<Resurrected> {
    let behind_max = behind_max.map(|count| i64::try_from(count).unwrap_or(i64::MAX));
    let rows = store
        .connections
        .query(
            &format!("resurrecting group {group} of topic {topic}"),
            &store.statements.resurrect,
            &[&topic.as_str(), &group.as_str(), &behind_max, &&*store.actor.now(), &store.clock.injected()],
        )
        .await?;
    let row = &rows[0];
    let resurrected: bool = stored(row, "resurrected")?;
    let state = SubscriptionState::parse(stored(row, "state")?)?;
    if !resurrected && state != SubscriptionState::Active {
        return Err(Transition::Resurrect.refused(topic.as_str(), group.as_str(), state));
    }
    if resurrected {
        store.hub.wake(TopicId(stored(row, "topic_id")?));
    }
    Ok(Resurrected { resurrected, next: Offset(stored(row, "next_offset")?), missed: missed_of(row)? })
}
