//! The ack log of topics that keep one: which owner acked which offsets, and when.

use tokio_postgres::Row;
use uuid::Uuid;

use super::time::stored;
use super::{PostgresStore, topic};
use crate::error::Result;
use crate::lease::OffsetRange;
use crate::limits::{CLAIM_MESSAGES_MAX, LANES_MAX};
use crate::message::{Offset, lane_of};
use crate::name::{GroupName, Owner, TopicName};
use crate::store::Ack;

/// The acks of the message at an offset, oldest first.
pub(super) async fn list(store: &PostgresStore, name: &TopicName, offset: Offset) -> Result<Vec<Ack>> {
    let topic = topic::get(store, name).await?;
    let span_max = i64::from(CLAIM_MESSAGES_MAX) * i64::from(LANES_MAX);
    // Far enough from the end that the span can be added.
    let offset = offset.0.min(i64::MAX - span_max);
    let rows = store
        .connections
        .query(
            &format!("reading the acks of topic {name}"),
            &store.statements.audit_acks,
            &[&topic.topic_id.0, &offset, &span_max],
        )
        .await?;
    let mut acks = Vec::new();
    for row in &rows {
        if is_of_its_lane(row)? {
            acks.push(ack_of(row)?);
        }
    }
    Ok(acks)
}

/// The ranges of lanes overlap: an ack covers a message only if it is of the message's lane.
fn is_of_its_lane(row: &Row) -> Result<bool> {
    let lane: Option<i32> = stored(row, "lane")?;
    let message_id: Option<Uuid> = stored(row, "message_id")?;
    let Some((lane, message_id)) = lane.zip(message_id) else { return Ok(true) };
    let lanes = u16::try_from(stored::<_, i32>(row, "lanes")?).expect("lanes fit 16 bits");
    Ok(i32::from(lane_of(stored(row, "key")?, message_id, lanes)) == lane)
}

fn ack_of(row: &Row) -> Result<Ack> {
    Ok(Ack {
        group: GroupName::new(stored::<_, String>(row, "group_name")?)?,
        range: OffsetRange::new(Offset(stored(row, "first_offset")?), Offset(stored(row, "last_offset")?)),
        owner: Owner::new(stored::<_, String>(row, "owner")?)?,
        at: stored(row, "acked_at")?,
    })
}
