//! Cron: each tick of a cron job is fired once, by the first process that reaches it.

use jiff::Timestamp;
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

use super::PostgresStore;
use super::publish::Columns;
use super::time::{holdable, stored};
use crate::error::{ErrorKind, Result};
use crate::limits::PAYLOAD_BYTES_DEFAULT;
use crate::message::{NewMessage, Published};
use crate::name::TopicName;
use crate::store::{Admin, CronDescription, CronStatus};
use crate::topic::{TopicId, TopicSettings};

pub(super) async fn last(store: &PostgresStore, job: &str, first: Timestamp) -> Result<Timestamp> {
    let doing = format!("reading job {job}");
    // Rounded down to the millisecond, as on SQLite.
    let params: [&(dyn ToSql + Sync); 2] = [&job, &whole_ms(first)];
    let rows = store.connections.query(&doing, &store.statements.cron_last, &params).await?;
    stored(&rows[0], "last_tick")
}

pub(super) async fn describe(store: &PostgresStore, job: &CronDescription) -> Result<()> {
    let CronDescription { job, expression, time_zone, topic } = job;
    let params: [&(dyn ToSql + Sync); 5] =
        [job, expression, time_zone, &topic.as_str(), &store.clock.injected()];
    let doing = format!("describing job {job}");
    store.connections.query(&doing, &store.statements.cron_describe, &params).await.map(drop)
}

pub(super) async fn list(store: &PostgresStore) -> Result<Vec<CronStatus>> {
    let rows = store.connections.query("listing cron jobs", &store.statements.cron_list, &[]).await?;
    rows.iter().map(status_of).collect()
}

fn status_of(row: &Row) -> Result<CronStatus> {
    let job: String = stored(row, "job")?;
    let topic: Option<String> = stored(row, "topic")?;
    let description = match (stored(row, "expression")?, stored(row, "time_zone")?, topic) {
        (Some(expression), Some(time_zone), Some(topic)) => {
            let topic = TopicName::new(topic)?;
            Some(CronDescription { job: job.clone(), expression, time_zone, topic })
        }
        _ => None,
    };
    Ok(CronStatus {
        job,
        description,
        started_at: stored(row, "started_at")?,
        last_tick: stored(row, "last_tick")?,
    })
}

pub(super) async fn fire(
    store: &PostgresStore,
    job: &str,
    tick: Timestamp,
    topic: &TopicName,
    message: &NewMessage,
) -> Result<Option<Published>> {
    match fire_once(store, job, tick, topic, message).await {
        // A message that the new topic would refuse must not leave the topic behind.
        Err(error)
            if error.kind() == ErrorKind::NoSuchTopic
                && store.auto_create
                && message.payload.len() <= PAYLOAD_BYTES_DEFAULT =>
        {
            store.create_topic(topic, &TopicSettings::default()).await?;
            fire_once(store, job, tick, topic, message).await
        }
        result => result,
    }
}

async fn fire_once(
    store: &PostgresStore,
    job: &str,
    tick: Timestamp,
    topic: &TopicName,
    message: &NewMessage,
) -> Result<Option<Published>> {
    let columns = Columns::of(std::slice::from_ref(message), store.clock.injected(), true);
    let rows = store
        .connections
        .commit(
            &format!("firing job {job}"),
            &store.statements.cron_fire,
            &[
                &job,
                &whole_ms(tick),
                &topic.as_str(),
                &columns.message_ids[0],
                &columns.payloads[0],
                &message.key,
                &message.message_type,
                &message.content_type,
                &message.headers_json(),
                &message.correlation_id,
                &message.dedup_key,
                &message.deliver_at.map(holdable),
                &columns.now,
            ],
        )
        .await?;
    let Some(row) = rows.first() else { return Ok(None) };
    store.hub.wake(TopicId(stored(row, "topic_id")?));
    Ok(columns.published(row).pop())
}

fn whole_ms(at: Timestamp) -> Timestamp {
    holdable(Timestamp::from_millisecond(at.as_millisecond()).expect("rounding stays within jiff's range"))
}
