//! Creating and listing topics.

use std::time::Duration;

use tokio_postgres::Row;

use super::PostgresStore;
use super::time::millis;
use crate::error::{Error, ErrorKind, Result};
use crate::message::Offset;
use crate::name::TopicName;
use crate::topic::{Ordering, Semantics, Topic, TopicId, TopicSettings, TopicStatus};

pub(super) async fn create(
    store: &PostgresStore,
    name: &TopicName,
    settings: &TopicSettings,
) -> Result<Topic> {
    settings.validate()?;
    let bytes_max = i32::try_from(settings.payload_bytes_max).expect("validated to be at most 64 MiB");
    store
        .connections
        .query(
            &format!("creating topic {name}"),
            &store.statements.topic_create,
            &[
                &name.as_str(),
                &settings.semantics.as_str(),
                &millis(settings.lease),
                &settings.max_attempts.cast_signed(),
                &millis(settings.backoff_initial),
                &millis(settings.backoff_max),
                &settings.ordering.as_str(),
                &i32::from(settings.lanes),
                &bytes_max,
                &millis(settings.dedup_window),
                &millis(settings.gap_patience),
                &store.clock.injected(),
            ],
        )
        .await?;
    let topic = get(store, name).await?;
    if topic.settings != *settings {
        return Err(Error::new(
            ErrorKind::Conflict,
            format!("topic {name} exists with other settings: {:?}; it was not changed", topic.settings),
        ));
    }
    Ok(topic)
}

pub(super) async fn get(store: &PostgresStore, name: &TopicName) -> Result<Topic> {
    let doing = format!("reading topic {name}");
    let rows = store.connections.query(&doing, &store.statements.topic_get, &[&name.as_str()]).await?;
    rows.first().map_or_else(|| Err(Error::no_such_topic(name.as_str())), topic_of)
}

pub(super) async fn list(store: &PostgresStore) -> Result<Vec<TopicStatus>> {
    let rows = store.connections.query("listing topics", &store.statements.topic_list, &[]).await?;
    let count =
        |row: &Row, column: &str| u64::try_from(row.get::<_, i64>(column)).expect("a count is not negative");
    let status = |row: &Row| {
        Ok(TopicStatus {
            topic: topic_of(row)?,
            head: Offset(row.get("head")),
            gaps: count(row, "gaps"),
            scheduled: count(row, "scheduled"),
            subscriptions: count(row, "subscriptions"),
            first: Offset(1),
            watermark: Offset(0),
            tracking_change: None,
        })
    };
    rows.iter().map(status).collect()
}

fn topic_of(row: &Row) -> Result<Topic> {
    let millis = |column: &str| {
        Duration::from_millis(u64::try_from(row.get::<_, i64>(column)).expect("the schema checks durations"))
    };
    let number = |column: &str| u32::try_from(row.get::<_, i32>(column)).expect("the schema checks numbers");
    Ok(Topic {
        topic_id: TopicId(row.get("topic_id")),
        name: TopicName::new(row.get::<_, String>("name"))?,
        settings: TopicSettings {
            semantics: Semantics::parse(row.get("semantics"))?,
            lease: millis("lease_ms"),
            max_attempts: number("max_attempts"),
            backoff_initial: millis("backoff_initial_ms"),
            backoff_max: millis("backoff_max_ms"),
            ordering: Ordering::parse(row.get("ordering"))?,
            lanes: u16::try_from(number("lanes")).expect("lanes fit 16 bits"),
            payload_bytes_max: number("payload_bytes_max") as usize,
            dedup_window: millis("dedup_window_ms"),
            gap_patience: millis("gap_patience_ms"),
            ..TopicSettings::default()
        },
    })
}
