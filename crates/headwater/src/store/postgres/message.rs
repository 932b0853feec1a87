//! One message of a group: its state, and what an operator does with it. See `schema/functions/message.sql`.

use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

use super::advance_heads::advance;
use super::outstanding::outstanding_of;
use super::time::stored;
use super::{PostgresStore, topic};
use crate::error::{Error, ErrorKind, Result};
use crate::lease::OffsetRange;
use crate::message::{Message, Offset, lane_of};
use crate::name::{GroupName, TopicName};
use crate::store::Delivery;
use crate::subscription::{MessageAct, MessageState, no_message, refused_cancelled};
use crate::topic::TopicId;

/// A group that is not cancelled, and the lane of the message in it.
struct Of {
    subscription_id: i32,
    group: GroupName,
    lane: Option<i32>,
}

pub(super) async fn states(
    store: &PostgresStore,
    name: &TopicName,
    offset: Offset,
) -> Result<Vec<(GroupName, MessageState)>> {
    let topic = topic::get(store, name).await?.topic_id;
    let message = message_at(store, name, topic, offset).await?;
    let groups = groups(store, topic, &message).await?;
    let ids: Vec<i32> = groups.iter().map(|of| of.subscription_id).collect();
    let lanes: Vec<Option<i32>> = groups.iter().map(|of| of.lane).collect();
    let params: [&(dyn ToSql + Sync); 4] = [&offset.0, &ids, &lanes, &store.clock.injected()];
    let doing = format!("reading the states of offset {} of topic {name}", offset.0);
    let rows = store.connections.query(&doing, &store.statements.message_states, &params).await?;
    let mut states = Vec::with_capacity(rows.len());
    for row in &rows {
        let at = usize::try_from(stored::<_, i64>(row, "i")? - 1).expect("rows are numbered from 1");
        states.push((groups[at].group.clone(), state_of(row, offset)?));
    }
    Ok(states)
}

fn state_of(row: &Row, offset: Offset) -> Result<MessageState> {
    if stored::<_, Option<i64>>(row, "token")?.is_some() {
        return Ok(MessageState::Outstanding(outstanding_of(row)?));
    }
    if offset.0 >= stored::<_, i64>(row, "next_offset")? {
        return Ok(MessageState::NotHandedOut);
    }
    Ok(stored::<_, Option<_>>(row, "dead_letter_id")?.map_or(MessageState::Done, MessageState::Buried))
}

pub(super) async fn act(
    store: &PostgresStore,
    name: &TopicName,
    group: &GroupName,
    offset: Offset,
    act: &MessageAct,
    force: bool,
) -> Result<()> {
    let topic = topic::get(store, name).await?.topic_id;
    let message = message_at(store, name, topic, offset).await?;
    let of = groups(store, topic, &message).await?.into_iter().find(|of| of.group == *group);
    // The lane is fixed for the life of a subscription. Without one the function names what is missing.
    let lane = of.and_then(|of| of.lane);
    advance(store, topic).await?;
    let params: [&(dyn ToSql + Sync); 9] = [
        &name.as_str(),
        &group.as_str(),
        &offset.0,
        &lane,
        &act.as_str(),
        &act.starts(force),
        &act.reason(),
        &&*store.actor.now(),
        &store.clock.injected(),
    ];
    let doing = format!("{} at offset {} of group {group} of topic {name}", act.as_str(), offset.0);
    let rows = store.connections.query(&doing, &store.statements.message_act, &params).await?;
    let row = &rows[0];
    if stored(row, "changed")? {
        store.hub.wake(TopicId(stored(row, "topic_id")?));
        return Ok(());
    }
    Err(match stored::<_, &str>(row, "state")? {
        "cancelled" => refused_cancelled(act.as_str(), name.as_str(), group.as_str()),
        "not_final" => {
            let text = format!(
                "offset {} of topic {name} is not final yet: an older transaction is open; try again",
                offset.0
            );
            Error::new(ErrorKind::Busy, text)
        }
        state => act.refused(name.as_str(), group.as_str(), offset, state),
    })
}

async fn message_at(
    store: &PostgresStore,
    name: &TopicName,
    topic: TopicId,
    offset: Offset,
) -> Result<Message> {
    let found = store.fetch(topic, OffsetRange::new(offset, offset)).await?;
    found.into_iter().next().ok_or_else(|| no_message(name.as_str(), offset))
}

async fn groups(store: &PostgresStore, topic: TopicId, message: &Message) -> Result<Vec<Of>> {
    let rows =
        store.connections.query("reading groups", &store.statements.message_groups, &[&topic.0]).await?;
    let of = |row: &Row| {
        let lanes = u16::try_from(stored::<_, i32>(row, "lanes")?).expect("lanes fit 16 bits");
        let lane = || i32::from(lane_of(message.key.as_deref(), message.message_id, lanes));
        Ok(Of {
            subscription_id: stored(row, "subscription_id")?,
            group: GroupName::new(stored::<_, String>(row, "group_name")?)?,
            lane: (lanes > 0).then(lane),
        })
    };
    rows.iter().map(of).collect()
}
