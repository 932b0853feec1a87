//! Publishing inside a transaction held by sqlx.

use ::sqlx::postgres::{PgArguments, PgConnection};
use ::sqlx::{Arguments, Row};
use jiff::Timestamp;

use super::PostgresStore;
use super::fault::{is_moved_partition, kind_of_code};
use super::publish::Columns;
use super::statements::{PUBLISH, in_namespace};
use crate::error::{Error, ErrorKind, Result};
use crate::message::{NewMessage, Published};
use crate::name::TopicName;
use crate::namespace::Namespace;
use crate::observe::trace;

/// Publishes in the caller's own sqlx transaction (`&mut *transaction`), where there is no open store: if it rolls back, the
/// messages never become visible. The topic must exist. Programs with a [`Headwater`](crate::Headwater) call
/// [`Sends::within`](crate::publish::Sends::within), which also counts.
pub async fn publish(
    transaction: &mut PgConnection,
    namespace: &Namespace,
    topic: &str,
    messages: &[NewMessage],
) -> Result<Vec<Published>> {
    publish_in(transaction, namespace, &TopicName::new(topic)?, &trace::injected(messages), None).await
}

/// Publishes in a transaction of the program's own, in the store's namespace and by its clock.
pub(crate) async fn publish_within(
    store: &PostgresStore,
    transaction: &mut PgConnection,
    topic: &TopicName,
    messages: &[NewMessage],
) -> Result<Vec<Published>> {
    publish_in(transaction, &store.namespace, topic, messages, store.clock.injected()).await
}

async fn publish_in(
    transaction: &mut PgConnection,
    namespace: &Namespace,
    topic: &TopicName,
    messages: &[NewMessage],
    now: Option<Timestamp>,
) -> Result<Vec<Published>> {
    let Some(columns) = Columns::in_transaction(messages, now, false)? else { return Ok(Vec::new()) };
    let sql = in_namespace(PUBLISH, namespace);
    let arguments = bind(topic, &columns).map_err(|error| Error::invalid("message", error))?;
    let row = ::sqlx::query_with(::sqlx::AssertSqlSafe(sql), arguments)
        .fetch_one(transaction)
        .await
        .map_err(|error| translate(topic, error))?;
    let duplicates: Option<Vec<Option<uuid::Uuid>>> = row.get("duplicate_of");
    Ok(columns.outcome(row.get("offsets"), duplicates.as_deref()))
}

fn bind(topic: &TopicName, columns: &Columns<'_>) -> Result<PgArguments, ::sqlx::error::BoxDynError> {
    let mut arguments = PgArguments::default();
    arguments.add(topic.as_str())?;
    arguments.add(&columns.message_ids)?;
    arguments.add(&columns.payloads)?;
    arguments.add(&columns.keys)?;
    arguments.add(&columns.types)?;
    arguments.add(&columns.content_types)?;
    arguments.add(&columns.headers)?;
    arguments.add(&columns.correlation_ids)?;
    arguments.add(&columns.dedup_keys)?;
    // sqlx has no codec for jiff: times are sent as text, which PostgreSQL parses.
    let deliver_ats = columns.deliver_ats.as_ref().map(|times| {
        times.iter().map(|time| time.map(|time| time.to_string())).collect::<Vec<Option<String>>>()
    });
    arguments.add(deliver_ats)?;
    arguments.add(columns.now.map(|now| now.to_string()))?;
    arguments.add(columns.own)?;
    arguments.add(None::<String>)?;
    arguments.add(&columns.delays_ms)?;
    Ok(arguments)
}

fn translate(topic: &TopicName, error: ::sqlx::Error) -> Error {
    let doing = format!("publishing to topic {topic}");
    let Some(database) = error.as_database_error() else {
        return Error::with_source(
            ErrorKind::Unavailable,
            format!("database unavailable while {doing}: {error}"),
            error,
        );
    };
    let said = database.message().to_owned();
    let kind = match database.code() {
        Some(code) if is_moved_partition(&code, database.table(), database.constraint()) => ErrorKind::Busy,
        Some(code) => kind_of_code(&code),
        None => ErrorKind::Database,
    };
    match kind {
        ErrorKind::NoSuchTopic => Error::no_such_topic(topic.as_str()),
        ErrorKind::NoSubscriptions => Error::no_subscriptions(topic.as_str()),
        ErrorKind::InvalidInput | ErrorKind::PayloadTooLarge => Error::with_source(kind, said, error),
        _ => Error::with_source(kind, format!("database error while {doing}: {said}"), error),
    }
}
