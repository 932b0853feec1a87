//! What operators do with entries of the outbox and with dead letters of any source: requeue, redrive, delete. Each writes its audit
//! entry in the same transaction.

use std::sync::Arc;

use rusqlite::{OptionalExtension, params};
use uuid::Uuid;

use super::fault::Attempt;
use super::work::Work;
use super::{audit, decode, publish};
use crate::dead_letter::{command_message, no_topic};
use crate::error::{Error, Result};
use crate::message::NewMessage;
use crate::name::TopicName;
use crate::store::repository::Verb;
use crate::transaction::{Row, Value};

/// Runs one of these operations. The first parameter has the ids, as JSON.
pub(super) fn act(work: &mut Work<'_>, verb: Verb, params: &[Value], actor: &str) -> Attempt<Vec<Row>> {
    let Some(Value::Text(ids)) = params.first() else { unreachable!("ids are one parameter of JSON") };
    match verb {
        Verb::OutboxRequeue => requeue(work, &listed::<i64>(ids)?, actor),
        Verb::DeadLetterRedrive => redrive(work, &listed::<Uuid>(ids)?, actor),
        Verb::DeadLetterDelete => delete(work, &listed::<Uuid>(ids)?, actor),
        _ => unreachable!("{verb:?} is one statement"),
    }
}

fn listed<T: serde::de::DeserializeOwned>(json: &str) -> Result<Vec<T>> {
    serde_json::from_str(json).map_err(|error| Error::invalid("ids", error))
}

fn requeue(work: &mut Work<'_>, ids: &[i64], actor: &str) -> Attempt<Vec<Row>> {
    let mut requeued = Vec::new();
    for id in ids {
        if requeue_one(work, *id)? {
            requeued.push(Value::Integer(*id));
        }
    }
    let detail = serde_json::json!({ "requeued": requeued.len() });
    audit::note(work, actor, "requeue", None, None, &detail)?;
    Ok(rows("id", requeued))
}

/// A trigger deletes the dead letter of the entry.
fn requeue_one(work: &Work<'_>, id: i64) -> Attempt<bool> {
    Ok(work.connection.prepare_cached(sql!(outbox.requeue))?.execute([id])? == 1)
}

/// What a redrive needs of a dead letter.
struct Parked {
    key: i64,
    source: Option<String>,
    outbox_id: Option<i64>,
    topic: Option<String>,
    message: NewMessage,
}

impl Parked {
    fn find(work: &Work<'_>, id: Uuid) -> Attempt<Option<Self>> {
        let mut statement = work.connection.prepare_cached(sql!(dead_letter.find))?;
        let found = statement.query_row([id.as_bytes().as_slice()], |row| {
            let command_id = decode::text(row, 3)?;
            let message = NewMessage {
                key: decode::text(row, 5)?,
                message_type: decode::text(row, 6)?,
                content_type: decode::text(row, 8)?,
                headers: decode::headers(row, 9)?,
                correlation_id: decode::text(row, 10)?,
                ..NewMessage::new(decode::blob(row, 7)?.to_vec())
            };
            Ok(Parked {
                key: row.get(0)?,
                source: decode::text(row, 1)?,
                outbox_id: row.get(2)?,
                topic: decode::text(row, 4)?,
                message: command_message(message, command_id.as_deref()),
            })
        });
        Ok(found.optional()?)
    }
}

/// An entry of the outbox becomes NEW, a command is published to its topic; those of a subscription are not redriven here.
fn redrive(work: &mut Work<'_>, ids: &[Uuid], actor: &str) -> Attempt<Vec<Row>> {
    let mut redriven = Vec::new();
    for id in ids {
        let Some(parked) = Parked::find(work, *id)? else { continue };
        match (parked.source.as_deref(), parked.outbox_id, parked.topic) {
            // The trigger deletes the dead letter.
            (Some(_), Some(entry), _) if requeue_one(work, entry)? => {}
            (Some(_), Some(_), _) | (None, ..) => continue,
            // Everything before is rolled back.
            (Some(_), None, None) => return Err(no_topic(*id).into()),
            (Some(_), None, Some(topic)) => {
                publish::inside(work, &TopicName::new(topic)?, &[parked.message])?;
                remove(work, parked.key)?;
            }
        }
        redriven.push(Value::from(*id));
    }
    let detail = serde_json::json!({ "redriven": redriven.len() });
    audit::note(work, actor, "redrive", None, None, &detail)?;
    Ok(rows("dead_letter_id", redriven))
}

/// That of a parked entry of the outbox is deleted with the entry.
fn delete(work: &mut Work<'_>, ids: &[Uuid], actor: &str) -> Attempt<Vec<Row>> {
    let mut deleted = Vec::new();
    for id in ids {
        let Some((key, entry)) = keys(work, *id)? else { continue };
        remove(work, key)?;
        if let Some(entry) = entry {
            work.connection.prepare_cached(sql!(outbox.drop_parked))?.execute([entry])?;
        }
        deleted.push(Value::from(*id));
    }
    let detail = serde_json::json!({ "deleted": deleted.len() });
    audit::note(work, actor, "delete_dead_letters", None, None, &detail)?;
    Ok(rows("dead_letter_id", deleted))
}

/// The key of a dead letter and the id of its entry of the outbox. Without the payload, which may be large.
fn keys(work: &Work<'_>, id: Uuid) -> Attempt<Option<(i64, Option<i64>)>> {
    let mut statement = work.connection.prepare_cached(sql!(dead_letter.keys))?;
    let found =
        statement.query_row([id.as_bytes().as_slice()], |row| Ok((row.get(0)?, row.get(1)?))).optional();
    Ok(found?)
}

fn remove(work: &Work<'_>, key: i64) -> Attempt<()> {
    work.connection.prepare_cached(sql!(dead_letter.purge))?.execute(params![key])?;
    Ok(())
}

fn rows(column: &str, values: Vec<Value>) -> Vec<Row> {
    let columns: Arc<[String]> = [column.to_owned()].into();
    values.into_iter().map(|value| Row::new(&columns, vec![value])).collect()
}
