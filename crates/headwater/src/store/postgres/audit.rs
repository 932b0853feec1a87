//! Audit entries, and the log of acks.

use tokio_postgres::Row;
use tokio_postgres::types::ToSql;
use uuid::Uuid;

use super::time::stored;
use super::{PostgresStore, topic};
use crate::error::Result;
use crate::lease::OffsetRange;
use crate::limits::{CLAIM_MESSAGES_MAX, LANES_MAX};
use crate::message::{Offset, lane_of};
use crate::name::{GroupName, Owner, TopicName};
use crate::store::{Ack, AuditEntry};

pub(super) async fn list(store: &PostgresStore, before: i64, limit: u32) -> Result<Vec<AuditEntry>> {
    let rows = store
        .connections
        .query("reading the audit", &store.statements.audit_list, &[&before, &i64::from(limit)])
        .await?;
    let entry = |row: &Row| {
        Ok(AuditEntry {
            audit_id: stored(row, "audit_id")?,
            at: stored(row, "acted_at")?,
            actor: stored(row, "actor")?,
            act: stored(row, "act")?,
            topic: stored(row, "topic")?,
            group: stored(row, "group_name")?,
            detail: stored(row, "detail")?,
        })
    };
    rows.iter().map(entry).collect()
}

/// Adds an entry for an act that has none of its own.
pub(super) async fn note(
    store: &PostgresStore,
    act: &str,
    topic: Option<&str>,
    group: Option<&str>,
    detail: &serde_json::Value,
) -> Result<()> {
    let (actor, now) = (store.actor.now(), store.clock.injected());
    let params: [&(dyn ToSql + Sync); 6] = [&&*actor, &act, &topic, &group, &detail, &now];
    let doing = format!("adding an audit entry: {act}");
    store.connections.query(&doing, &store.statements.audit_note, &params).await.map(drop)
}

pub(super) async fn acks(store: &PostgresStore, name: &TopicName, offset: Offset) -> Result<Vec<Ack>> {
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
