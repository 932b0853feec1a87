//! States of subscriptions, as operators change them.

use super::PostgresStore;
use super::status::{counted, missed_of};
use super::time::stored;
use crate::error::{Error, ErrorKind, Result};
use crate::message::Offset;
use crate::name::{GroupName, TopicName};
use crate::store::Resurrected;
use crate::subscription::{SubscriptionState, Transition};
use crate::topic::TopicId;

pub(super) async fn shift(
    store: &PostgresStore,
    topic: &TopicName,
    group: &GroupName,
    transition: Transition,
) -> Result<()> {
    if matches!(transition, Transition::Die | Transition::Resurrect) {
        let why = match transition {
            Transition::Die => "only the detector declares a subscription dead",
            _ => "a dead subscription comes back by a heartbeat, a subscribe, or `resurrect`",
        };
        return Err(Error::new(
            ErrorKind::InvalidTransition,
            format!("invalid transition: topic {topic}, group {group}: {why}; nothing was changed"),
        ));
    }
    let rows = store
        .connections
        .query(
            &format!("{} of group {group} of topic {topic}", transition.as_str()),
            &store.statements.shift,
            &[
                &topic.as_str(),
                &group.as_str(),
                &transition.as_str(),
                &transition.starts(),
                &transition.to().as_str(),
                &store.actor,
                &store.clock.injected(),
            ],
        )
        .await?;
    let row = &rows[0];
    if !stored::<_, bool>(row, "shifted")? {
        let state = SubscriptionState::parse(stored(row, "state")?)?;
        return Err(transition.refused(topic.as_str(), group.as_str(), state));
    }
    tracing::info!(
        topic = topic.as_str(),
        group = group.as_str(),
        state = transition.to().as_str(),
        "subscription changed"
    );
    store.hub.wake(TopicId(stored(row, "topic_id")?));
    Ok(())
}

pub(super) async fn remove(store: &PostgresStore, topic: &TopicName, group: &GroupName) -> Result<()> {
    let rows = store
        .connections
        .query(
            &format!("removing group {group} of topic {topic}"),
            &store.statements.remove,
            &[&topic.as_str(), &group.as_str(), &store.actor, &store.clock.injected()],
        )
        .await?;
    if stored::<_, i64>(&rows[0], "removed")? > 0 {
        return Ok(());
    }
    let why = match SubscriptionState::parse(stored(&rows[0], "state")?)? {
        SubscriptionState::Cancelled => {
            "is cancelled and not yet released from the records; run maintenance and try again".to_owned()
        }
        state => format!("is {state}; remove needs cancelled"),
    };
    Err(Error::new(
        ErrorKind::InvalidTransition,
        format!("invalid transition: topic {topic}, group {group} {why}; nothing was changed"),
    ))
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
            &[&topic.as_str(), &group.as_str(), &behind_max, &store.actor, &store.clock.injected()],
        )
        .await?;
    let row = &rows[0];
    let resurrected: bool = stored(row, "resurrected")?;
    let state = SubscriptionState::parse(stored(row, "state")?)?;
    if !resurrected && state != SubscriptionState::Active {
        return Err(Transition::Resurrect.refused(topic.as_str(), group.as_str(), state));
    }
    if resurrected {
        let missed = counted(stored(row, "missed")?);
        tracing::info!(
            topic = topic.as_str(),
            group = group.as_str(),
            missed,
            "dead subscription resurrected"
        );
        store.hub.wake(TopicId(stored(row, "topic_id")?));
    }
    Ok(Resurrected { resurrected, next: Offset(stored(row, "next_offset")?), missed: missed_of(row)? })
}
