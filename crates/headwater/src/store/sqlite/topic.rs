//! Topics: create, change, get, list; delete and purge are in files of their own.

use std::time::Duration;

use rusqlite::{Connection, OptionalExtension, Row, params};
use serde_json::{Map, Value, json};

use super::fault::Attempt;
use super::publish::DEDUP_SLACK_MS;
use super::work::Work;
use super::{audit, decode, log, millis, tracking};
use crate::error::Error;
use crate::message::Offset;
use crate::name::TopicName;
use crate::topic::{Semantics, Topic, TopicId, TopicSettings, TopicStatus, exists_otherwise};
use crate::topics::TopicSelection;

pub(super) mod delete;
pub(super) mod purge;

/// Creates a topic, or returns the existing one if its settings are the same.
pub(super) fn create(work: &mut Work<'_>, name: &TopicName, settings: &TopicSettings) -> Attempt<Topic> {
    let settings = settings.as_stored();
    if let Some(topic) = find(work.connection, name)? {
        if topic.settings == settings {
            return Ok(topic);
        }
        return Err(exists_otherwise(name, &topic.settings, &settings).into());
    }
    insert(work.connection, name, &settings, work.now_ms())?;
    let topic_id =
        TopicId(work.connection.last_insert_rowid().try_into().expect("the schema bounds topic ids"));
    Ok(Topic { topic_id, name: name.clone(), settings })
}

/// Stores a new topic.
pub(super) fn insert(
    connection: &Connection,
    name: &TopicName,
    settings: &TopicSettings,
    now_ms: i64,
) -> Attempt<()> {
    connection.prepare_cached(super::sql!(topic.create))?.execute(params![
        name.as_str(),
        now_ms,
        Value::from(settings.to_map()).to_string()
    ])?;
    Ok(())
}

/// Changes a topic's settings, with an audit entry if any setting differs.
pub(super) fn alter(
    work: &mut Work<'_>,
    name: &TopicName,
    settings: &TopicSettings,
    actor: &str,
) -> Attempt<Topic> {
    let settings = settings.as_stored();
    let before = get(work.connection, name)?;
    check_alter(work.connection, &before, &settings)?;
    let detail = store(work.connection, before.topic_id, &settings)?;
    if settings.dedup_window < before.settings.dedup_window {
        shorten_dedup(work, &before, &settings)?;
    }
    if before.settings.semantics != settings.semantics {
        tracking::semantics_changed(work, before.topic_id)?;
    }
    if before.settings.tracking != settings.tracking {
        tracking::change_tracking(work, before.topic_id, settings.tracking)?;
    }
    if !detail.is_empty() {
        audit::note(work, actor, "alter_topic", Some(name.as_str()), None, &detail.into())?;
    }
    Ok(Topic { settings, ..before })
}

/// Writes these settings over the stored ones and returns what changed, from what to what. Settings that only a later
/// version has are kept. The tracking mode is kept too: it is changed by its own step.
fn store(connection: &Connection, topic: TopicId, settings: &TopicSettings) -> Attempt<Map<String, Value>> {
    let mut stored: Map<String, Value> = connection
        .prepare_cached(super::sql!(topic.settings))?
        .query_row([topic.0], |row| decode::json(row, 0))?;
    let mut detail = Map::new();
    for (name, to) in settings.to_map() {
        let from = stored.get(&name);
        if from != Some(&to) {
            detail.insert(name.clone(), json!({ "from": from, "to": to }));
            if name != "tracking" {
                stored.insert(name, to);
            }
        }
    }
    let stored = Value::from(stored).to_string();
    connection.prepare_cached(super::sql!(topic.store))?.execute(params![topic.0, stored])?;
    Ok(detail)
}

/// Shortens the windows of the stored keys. Otherwise they would end beyond the new window and be treated as written
/// by a clock that was ahead: a repeated message would be stored again.
fn shorten_dedup(work: &Work<'_>, before: &Topic, settings: &TopicSettings) -> Attempt<()> {
    let end_ms = |window| work.now_ms().saturating_add(millis(window));
    work.connection.prepare_cached(super::sql!(publish.dedup_shorten))?.execute([
        i64::from(before.topic_id.0),
        end_ms(settings.dedup_window),
        end_ms(before.settings.dedup_window).saturating_add(DEDUP_SLACK_MS),
    ])?;
    Ok(())
}

/// Refuses changes that existing messages or groups do not allow.
fn check_alter(connection: &Connection, before: &Topic, settings: &TopicSettings) -> Attempt<()> {
    let topic_id = before.topic_id;
    if before.settings.storage != settings.storage
        && log::first_in(connection, topic_id, 0, super::OFFSET_MAX)?.is_some()
    {
        let rule = format!("topic {} has messages; storage changes only while it has none", before.name);
        return Err(Error::invalid("storage", rule).into());
    }
    if before.settings.semantics != settings.semantics && settings.semantics == Semantics::Queue {
        let mut statement = connection.prepare_cached(super::sql!(subscribe.others))?;
        let groups: Vec<String> = decode::all(&mut statement, [topic_id.0], |row| row.get(0))?;
        if groups.len() > 1 {
            let rule = format!(
                "topic {} has the groups {}; a queue has one: cancel the others first",
                before.name,
                groups.join(", ")
            );
            return Err(Error::invalid("semantics", rule).into());
        }
    }
    Ok(())
}

/// The topic of this name, or `NoSuchTopic`.
pub(super) fn get(connection: &Connection, name: &TopicName) -> Attempt<Topic> {
    find(connection, name)?.ok_or_else(|| Error::no_such_topic(name.as_str()).into())
}

fn find(connection: &Connection, name: &TopicName) -> Attempt<Option<Topic>> {
    let mut statement = connection.prepare_cached(super::sql!(topic.get))?;
    Ok(statement.query_row([name.as_str()], read).optional()?)
}

/// All topics by name.
pub(super) fn list(connection: &Connection) -> Attempt<Vec<TopicStatus>> {
    find_all(connection, &TopicSelection::default(), None)
}

/// The topics of a selection by name, at most this many.
pub(super) fn find_all(
    connection: &Connection,
    selection: &TopicSelection,
    limit: Option<u32>,
) -> Attempt<Vec<TopicStatus>> {
    let mut statement = connection.prepare_cached(super::sql!(topic.list))?;
    let TopicSelection { name, contains, after } = selection;
    let parameters = params![name, contains, after, limit.map_or(-1, i64::from)];
    Ok(decode::all(&mut statement, parameters, |row| {
        let (head, first): (i64, i64) = (row.get(3)?, row.get(6)?);
        let watermark: Option<i64> = row.get(7)?;
        let topic = read(row)?;
        let change = tracking::Change {
            first,
            tracked_until: row.get(8)?,
            change_until: row.get(9)?,
            lowest_record: row.get(10)?,
        };
        Ok(TopicStatus {
            head: Offset(head),
            gaps: 0,
            scheduled: decode::count(row, 4)?,
            subscriptions: decode::count(row, 5)?,
            counting: decode::count(row, 11)?,
            heartbeat_timeout: Duration::from_millis(decode::count(row, 12)?),
            first: Offset(first),
            watermark: Offset(watermark.map_or(head, |floor| floor.min(head))),
            tracking_change: change.progress(topic.settings.tracking),
            topic,
        })
    })?)
}

/// A topic from its id, name and settings.
fn read(row: &Row<'_>) -> rusqlite::Result<Topic> {
    Ok(Topic {
        topic_id: TopicId(row.get(0)?),
        name: decode::parsed(row, 1, |name| TopicName::new(name))?,
        settings: decode::json(row, 2)?,
    })
}

/// Sets whether publishes without the option create topics. Stored in the file, where publishes in plain SQL read it
/// too.
pub(super) fn set_auto_create(work: &mut Work<'_>, auto_create: bool, actor: &str) -> Attempt<()> {
    let stored = if auto_create { "1" } else { "0" };
    work.connection.prepare_cached(super::sql!(publish.auto_create))?.execute([stored])?;
    let detail = json!({ "auto_create": auto_create });
    audit::note(work, actor, "set_auto_create", None, None, &detail)
}
