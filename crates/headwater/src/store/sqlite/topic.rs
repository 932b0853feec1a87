//! Topics: create, change, get, list.

use std::time::Duration;

use rusqlite::types::Value;
use rusqlite::{Connection, OptionalExtension, Row};

use super::fault::Attempt;
use super::publish::DEDUP_SLACK_MS;
use super::work::Work;
use super::{audit, decode, millis, row_key, tracking};
use crate::error::Error;
use crate::message::Offset;
use crate::name::TopicName;
use crate::topic::{
    Ordering, Progress, Semantics, Storage, Topic, TopicId, TopicSettings, TopicStatus, Tracking,
    exists_otherwise,
};

/// Creates a topic, or answers the one that is there if its settings are the same.
pub(super) fn create(work: &mut Work<'_>, name: &TopicName, settings: &TopicSettings) -> Attempt<Topic> {
    let settings = stored_form(settings);
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
    let mut parameters = vec![Value::from(name.as_str().to_owned()), Value::from(now_ms)];
    parameters.extend(values(settings));
    connection.prepare_cached(super::sql!(topic_create))?.execute(rusqlite::params_from_iter(parameters))?;
    Ok(())
}

/// Changes a topic's settings, with its line in the audit.
pub(super) fn alter(
    work: &mut Work<'_>,
    name: &TopicName,
    settings: &TopicSettings,
    actor: &str,
) -> Attempt<Topic> {
    let settings = stored_form(settings);
    let before = get(work.connection, name)?;
    check_alter(work.connection, &before, &settings)?;
    let mut parameters = vec![Value::from(before.topic_id.0)];
    parameters.extend(values(&settings));
    work.connection
        .prepare_cached(super::sql!(alter_topic))?
        .execute(rusqlite::params_from_iter(parameters))?;
    if settings.dedup_window < before.settings.dedup_window {
        shorten_dedup(work, &before, &settings)?;
    }
    if before.settings.semantics != settings.semantics {
        tracking::semantics_changed(work, before.topic_id)?;
    }
    if before.settings.tracking != settings.tracking {
        tracking::change_tracking(work, before.topic_id, settings.tracking)?;
    }
    let detail = difference(&before.settings, &settings);
    audit::note(work, actor, "alter_topic", Some(name.as_str()), None, &detail)?;
    Ok(Topic { settings, ..before })
}

/// Ends the known keys by the shorter window. Left as they are, their ends would lie beyond it, and count as those of a
/// clock that was ahead: a repeat would be stored again.
fn shorten_dedup(work: &Work<'_>, before: &Topic, settings: &TopicSettings) -> Attempt<()> {
    let end_ms = |window| work.now_ms().saturating_add(millis(window));
    work.connection.prepare_cached(super::sql!(publish.dedup_shorten))?.execute([
        i64::from(before.topic_id.0),
        end_ms(settings.dedup_window),
        end_ms(before.settings.dedup_window).saturating_add(DEDUP_SLACK_MS),
    ])?;
    Ok(())
}

/// What cannot be changed while something is there.
fn check_alter(connection: &Connection, before: &Topic, settings: &TopicSettings) -> Attempt<()> {
    let topic_id = before.topic_id;
    if before.settings.storage != settings.storage {
        let bounds = [row_key(topic_id, 0), row_key(topic_id, super::OFFSET_MAX)];
        let stored: Option<i64> = connection
            .prepare_cached(super::sql!(subscribe.time_at))?
            .query_row(bounds, |row| row.get(0))
            .optional()?;
        if stored.is_some() {
            let rule = format!("topic {} has messages; storage changes only while it has none", before.name);
            return Err(Error::invalid("storage", rule).into());
        }
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

/// The columns of the settings, as every statement about them lists them.
const COLUMNS: [&str; 22] = [
    "semantics",
    "lease_ms",
    "max_attempts",
    "backoff_initial_ms",
    "backoff_max_ms",
    "ordering",
    "lanes",
    "payload_bytes_max",
    "dedup_window_ms",
    "gap_patience_ms",
    "tracking",
    "message_retention_ms",
    "max_retention_ms",
    "zero_subscription_retention_ms",
    "block_writes",
    "zombie_subscription_ttl_ms",
    "heartbeat_interval_ms",
    "heartbeat_timeout_ms",
    "storage",
    "partition",
    "partition_rows",
    "ack_log",
];

fn values(settings: &TopicSettings) -> [Value; 22] {
    let text = |word: &str| Value::from(word.to_owned());
    let (storage, partition, partition_rows) = settings.storage.words();
    [
        text(settings.semantics.as_str()),
        millis(settings.lease).into(),
        i64::from(settings.max_attempts).into(),
        millis(settings.backoff_initial).into(),
        millis(settings.backoff_max).into(),
        text(settings.ordering.as_str()),
        i64::from(settings.lanes).into(),
        i64::try_from(settings.payload_bytes_max).unwrap_or(i64::MAX).into(),
        millis(settings.dedup_window).into(),
        millis(settings.gap_patience).into(),
        text(settings.tracking.as_str()),
        settings.message_retention.map(millis).into(),
        settings.max_retention.map(millis).into(),
        millis(settings.zero_subscription_retention).into(),
        settings.block_writes_on_zero_subscriptions.into(),
        millis(settings.zombie_subscription_ttl).into(),
        millis(settings.heartbeat_interval).into(),
        millis(settings.heartbeat_timeout).into(),
        text(storage),
        text(partition),
        partition_rows.into(),
        settings.ack_log.into(),
    ]
}

/// What was changed from what to what, for the audit.
fn difference(before: &TopicSettings, after: &TopicSettings) -> serde_json::Value {
    let json = |value: Value| match value {
        Value::Integer(number) => serde_json::Value::from(number),
        Value::Text(text) => serde_json::Value::from(text),
        Value::Null | Value::Real(_) | Value::Blob(_) => serde_json::Value::Null,
    };
    let changed = COLUMNS.into_iter().zip(values(before).into_iter().zip(values(after)));
    let changed = changed.filter(|(_, (from, to))| from != to);
    changed
        .map(|(name, (from, to))| {
            (name.to_owned(), serde_json::json!({ "from": json(from), "to": json(to) }))
        })
        .collect::<serde_json::Map<_, _>>()
        .into()
}

/// The topic of this name, or `NoSuchTopic`.
pub(super) fn get(connection: &Connection, name: &TopicName) -> Attempt<Topic> {
    find(connection, name)?.ok_or_else(|| Error::no_such_topic(name.as_str()).into())
}

fn find(connection: &Connection, name: &TopicName) -> Attempt<Option<Topic>> {
    let mut statement = connection.prepare_cached(super::sql!(topic_get))?;
    Ok(statement.query_row([name.as_str()], read).optional()?)
}

/// All topics by name.
pub(super) fn list(connection: &Connection) -> Attempt<Vec<TopicStatus>> {
    let mut statement = connection.prepare_cached(super::sql!(topic_list))?;
    Ok(decode::all(&mut statement, [], |row| {
        let (head, first): (i64, i64) = (row.get(24)?, row.get(27)?);
        let watermark: Option<i64> = row.get(28)?;
        let topic = read(row)?;
        let change = Change {
            first,
            tracked_until: row.get(29)?,
            change_until: row.get(30)?,
            lowest_record: row.get(31)?,
        };
        Ok(TopicStatus {
            head: Offset(head),
            gaps: 0,
            scheduled: decode::count(row, 25)?,
            subscriptions: decode::count(row, 26)?,
            first: Offset(first),
            watermark: Offset(watermark.map_or(head, |floor| floor.min(head))),
            tracking_change: change.progress(topic.settings.tracking),
            topic,
        })
    })?)
}

/// Where a change of mode is.
struct Change {
    first: i64,
    tracked_until: i64,
    change_until: Option<i64>,
    lowest_record: Option<i64>,
}

impl Change {
    /// Records are made upwards from the first message, and removed upwards too. Removing them is under way until the bits
    /// are taken back, even if retention took the last record: whoever runs upkeep goes by what is shown here.
    fn progress(&self, tracking: Tracking) -> Option<Progress> {
        let end = self.change_until?.saturating_add(1);
        let reached = match tracking {
            Tracking::ReferenceCounting => self.tracked_until.saturating_add(1),
            Tracking::OffsetWatermark => self.lowest_record.unwrap_or(end),
        };
        let total = u64::try_from(end - self.first).unwrap_or_default();
        let done = u64::try_from(reached - self.first).unwrap_or_default().min(total);
        let under_way = done < total || tracking == Tracking::OffsetWatermark;
        under_way.then_some(Progress { done, total })
    }
}

pub(super) fn read(row: &Row<'_>) -> rusqlite::Result<Topic> {
    let (partition, rows): (String, Option<i64>) = (row.get(21)?, row.get(22)?);
    let settings = TopicSettings {
        semantics: decode::parsed(row, 2, Semantics::parse)?,
        lease: decode::duration(row, 3)?,
        max_attempts: row.get(4)?,
        backoff_initial: decode::duration(row, 5)?,
        backoff_max: decode::duration(row, 6)?,
        ordering: decode::parsed(row, 7, Ordering::parse)?,
        lanes: row.get(8)?,
        payload_bytes_max: row.get::<_, i64>(9)?.try_into().unwrap_or_default(),
        dedup_window: decode::duration(row, 10)?,
        gap_patience: decode::duration(row, 11)?,
        tracking: decode::parsed(row, 12, Tracking::parse)?,
        message_retention: decode::optional_duration(row, 13)?,
        max_retention: decode::optional_duration(row, 14)?,
        zero_subscription_retention: decode::duration(row, 15)?,
        block_writes_on_zero_subscriptions: row.get(16)?,
        zombie_subscription_ttl: decode::duration(row, 17)?,
        heartbeat_interval: decode::duration(row, 18)?,
        heartbeat_timeout: decode::duration(row, 19)?,
        storage: decode::parsed(row, 20, |storage| Storage::parse(storage, &partition, rows))?,
        ack_log: row.get(23)?,
    };
    Ok(Topic {
        topic_id: TopicId(row.get(0)?),
        name: decode::parsed(row, 1, |name| TopicName::new(name))?,
        settings,
    })
}

/// A duration as it reads back: to the millisecond.
pub(super) fn whole(duration: Duration) -> Duration {
    Duration::from_millis(millis(duration).try_into().unwrap_or_default())
}

/// The settings as they read back.
fn stored_form(settings: &TopicSettings) -> TopicSettings {
    TopicSettings {
        message_retention: settings.message_retention.map(whole),
        max_retention: settings.max_retention.map(whole),
        zero_subscription_retention: whole(settings.zero_subscription_retention),
        zombie_subscription_ttl: whole(settings.zombie_subscription_ttl),
        lease: whole(settings.lease),
        backoff_initial: whole(settings.backoff_initial),
        backoff_max: whole(settings.backoff_max),
        dedup_window: whole(settings.dedup_window),
        heartbeat_interval: whole(settings.heartbeat_interval),
        heartbeat_timeout: whole(settings.heartbeat_timeout),
        gap_patience: whole(settings.gap_patience),
        ..settings.clone()
    }
}

/// Whether publishes that say nothing create topics. Kept in the file, for those in plain SQL.
pub(super) fn set_auto_create(work: &mut Work<'_>, auto_create: bool, actor: &str) -> Attempt<()> {
    let stored = if auto_create { "1" } else { "0" };
    work.connection.prepare_cached(super::sql!(publish.auto_create))?.execute([stored])?;
    let detail = serde_json::json!({ "auto_create": auto_create });
    audit::note(work, actor, "set_auto_create", None, None, &detail)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_of_mode_shows_how_far_it_is_until_it_is_through() {
        let change = |tracked_until, change_until, lowest_record| Change {
            first: 11,
            tracked_until,
            change_until,
            lowest_record,
        };
        let (counting, watermark) = (Tracking::ReferenceCounting, Tracking::OffsetWatermark);
        let some = |done, total| Some(Progress { done, total });
        assert_eq!(change(10, Some(20), None).progress(counting), some(0, 10));
        assert_eq!(change(14, Some(20), Some(11)).progress(counting), some(4, 10));
        assert_eq!(change(20, Some(20), Some(11)).progress(counting), None);
        assert_eq!(change(20, None, Some(11)).progress(counting), None);
        assert_eq!(change(20, Some(20), Some(11)).progress(watermark), some(0, 10));
        assert_eq!(change(20, Some(20), Some(16)).progress(watermark), some(5, 10));
        assert_eq!(change(20, Some(20), None).progress(watermark), some(10, 10));
        assert_eq!(change(0, None, None).progress(watermark), None);
        assert_eq!(
            change(10, Some(10), None).progress(watermark),
            some(0, 0),
            "retention took all of it, and the bits are still to be taken back"
        );
        assert_eq!(change(9, Some(10), None).progress(counting), None, "everything was removed meanwhile");
    }
}
