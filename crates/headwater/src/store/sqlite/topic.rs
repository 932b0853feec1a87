//! Topics: create, get, list.

use std::time::Duration;

use rusqlite::{Connection, OptionalExtension, Row, params};

use super::decode;
use super::fault::Attempt;
use super::millis;
use super::work::Work;
use crate::error::{Error, ErrorKind};
use crate::message::Offset;
use crate::name::TopicName;
use crate::topic::{Ordering, Semantics, Topic, TopicId, TopicSettings, TopicStatus};

/// Creates a topic, or answers the one that is there if its settings are the same.
pub(super) fn create(work: &mut Work<'_>, name: &TopicName, settings: &TopicSettings) -> Attempt<Topic> {
    let settings = stored_form(settings);
    if let Some(topic) = find(work.connection, name)? {
        if topic.settings == settings {
            return Ok(topic);
        }
        let text = format!("topic {name} exists with other settings: {:?}, not {settings:?}", topic.settings);
        return Err(Error::new(ErrorKind::Conflict, text).into());
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
    connection.prepare_cached(super::sql!("topic_create.sql"))?.execute(params![
        name.as_str(),
        settings.semantics.as_str(),
        millis(settings.lease),
        settings.max_attempts,
        millis(settings.backoff_initial),
        millis(settings.backoff_max),
        settings.ordering.as_str(),
        settings.lanes,
        i64::try_from(settings.payload_bytes_max).unwrap_or(i64::MAX),
        millis(settings.dedup_window),
        millis(settings.gap_patience),
        now_ms,
    ])?;
    Ok(())
}

/// The topic of this name, or `NoSuchTopic`.
pub(super) fn get(connection: &Connection, name: &TopicName) -> Attempt<Topic> {
    find(connection, name)?.ok_or_else(|| Error::no_such_topic(name.as_str()).into())
}

fn find(connection: &Connection, name: &TopicName) -> Attempt<Option<Topic>> {
    let mut statement = connection.prepare_cached(super::sql!("topic_get.sql"))?;
    Ok(statement.query_row([name.as_str()], read).optional()?)
}

/// All topics by name.
pub(super) fn list(connection: &Connection) -> Attempt<Vec<TopicStatus>> {
    let mut statement = connection.prepare_cached(super::sql!("topic_list.sql"))?;
    Ok(decode::all(&mut statement, [], |row| {
        Ok(TopicStatus {
            topic: read(row)?,
            head: Offset(row.get(12)?),
            gaps: 0,
            scheduled: row.get::<_, u32>(13)?.into(),
            subscriptions: row.get::<_, u32>(14)?.into(),
            first: Offset(1),
            watermark: Offset(0),
            tracking_change: None,
        })
    })?)
}

fn read(row: &Row<'_>) -> rusqlite::Result<Topic> {
    let name: String = row.get(1)?;
    let settings = TopicSettings {
        semantics: Semantics::parse(&row.get::<_, String>(2)?).map_err(|error| unknown(2, error))?,
        lease: decode::duration(row, 3)?,
        max_attempts: row.get(4)?,
        backoff_initial: decode::duration(row, 5)?,
        backoff_max: decode::duration(row, 6)?,
        ordering: Ordering::parse(&row.get::<_, String>(7)?).map_err(|error| unknown(7, error))?,
        lanes: row.get(8)?,
        payload_bytes_max: row.get::<_, i64>(9)?.try_into().unwrap_or_default(),
        dedup_window: decode::duration(row, 10)?,
        gap_patience: decode::duration(row, 11)?,
        ..TopicSettings::default()
    };
    let name = TopicName::new(name).map_err(|error| unknown(1, error))?;
    Ok(Topic { topic_id: TopicId(row.get(0)?), name, settings })
}

fn unknown(at: usize, error: Error) -> rusqlite::Error {
    rusqlite::Error::FromSqlConversionFailure(at, rusqlite::types::Type::Text, Box::new(error))
}

/// The settings as they read back: to the millisecond.
fn stored_form(settings: &TopicSettings) -> TopicSettings {
    let whole = |duration: Duration| Duration::from_millis(millis(duration).try_into().unwrap_or_default());
    TopicSettings {
        lease: whole(settings.lease),
        backoff_initial: whole(settings.backoff_initial),
        backoff_max: whole(settings.backoff_max),
        dedup_window: whole(settings.dedup_window),
        gap_patience: whole(settings.gap_patience),
        ..settings.clone()
    }
}
