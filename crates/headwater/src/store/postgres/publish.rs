//! Publishing: a batch in one statement, in a transaction of its own or in the caller's.

use jiff::Timestamp;
use tokio_postgres::types::ToSql;
use tokio_postgres::{GenericClient, Row};
use uuid::Uuid;

use super::clock::{self, On};
use super::statements::{PUBLISH, in_namespace};
use super::time::{holdable, millis};
use super::{PostgresStore, fault};
use crate::error::{Error, ErrorKind, Result};
use crate::limits::PAYLOAD_BYTES_DEFAULT;
use crate::message::{NewMessage, Offset, Published, validate_batch};
use crate::name::TopicName;
use crate::namespace::Namespace;
use crate::observe::trace;
use crate::store::Admin;
use crate::topic::{TopicId, TopicSettings};

/// Publishes in the caller's own transaction, where there is no open store: if it rolls back, the messages never become
/// visible. Programs with a [`Headwater`](crate::Headwater) call [`Sends::within`](crate::publish::Sends::within), which
/// also counts.
///
/// The topic must exist; it is not created here, because that would be rolled back too.
pub async fn publish<C: GenericClient + Sync>(
    transaction: &C,
    namespace: &Namespace,
    topic: &str,
    messages: &[NewMessage],
) -> Result<Vec<Published>> {
    publish_in(transaction, namespace, &TopicName::new(topic)?, &trace::injected(messages), None).await
}

/// Publishes in a transaction of the program's own, in the store's namespace and by its clock.
pub(crate) async fn publish_within<C: GenericClient + Sync>(
    store: &PostgresStore,
    transaction: &C,
    topic: &TopicName,
    messages: &[NewMessage],
) -> Result<Vec<Published>> {
    publish_in(transaction, &store.namespace, topic, messages, store.clock.injected()).await
}

async fn publish_in<C: GenericClient + Sync>(
    transaction: &C,
    namespace: &Namespace,
    topic: &TopicName,
    messages: &[NewMessage],
    now: Option<Timestamp>,
) -> Result<Vec<Published>> {
    let Some(columns) = Columns::in_transaction(messages, now, false)? else { return Ok(Vec::new()) };
    let row = transaction
        .query_one(&in_namespace(PUBLISH, namespace), &columns.params(&topic.as_str()))
        .await
        .map_err(|error| fault::translate(&format!("publishing to topic {topic}"), error))?;
    Ok(columns.published(&row))
}

/// Publishes in a transaction of its own, and wakes this process's consumers.
pub(super) async fn publish_now(
    store: &PostgresStore,
    topic: &TopicName,
    messages: &[NewMessage],
) -> Result<Vec<Published>> {
    let mut columns = Columns::of(messages, store.clock.injected(), true);
    match publish_columns(store, topic, &mut columns).await {
        Err(error) if error.kind() == ErrorKind::NoSuchTopic && store.auto_create => {
            // A batch that the new topic would refuse must not leave the topic behind.
            let bytes = columns.payloads.iter().map(|payload| payload.len()).max().unwrap_or(0);
            if bytes > PAYLOAD_BYTES_DEFAULT {
                return Err(Error::payload_too_large(topic.as_str(), bytes, PAYLOAD_BYTES_DEFAULT));
            }
            store.create_topic(topic, &TopicSettings::default()).await?;
            publish_columns(store, topic, &mut columns).await
        }
        result => result,
    }
}

async fn publish_columns(
    store: &PostgresStore,
    topic: &TopicName,
    columns: &mut Columns<'_>,
) -> Result<Vec<Published>> {
    let doing = format!("publishing to topic {topic}");
    let (name, mut refused) = (topic.as_str(), 0);
    let rows = loop {
        // Only windows of dedup keys depend on the clock.
        if columns.dedup_keys.is_some() {
            columns.expected = clock::expected(store, On::Work).await?.now();
        }
        match store.connections.commit(&doing, &store.statements.publish, &columns.params(&name)).await {
            Err(error) if clock::repeats(store, On::Work, &mut refused, &error).await? => {}
            answer => break answer?,
        }
    };
    store.hub.wake(TopicId(rows[0].get("topic_id")));
    Ok(columns.published(&rows[0]))
}

/// A batch as the columns the statement takes. A column that is empty for every message is null: neither sent nor unpacked.
pub(super) struct Columns<'a> {
    pub(super) message_ids: Vec<Uuid>,
    pub(super) payloads: Vec<&'a [u8]>,
    pub(super) keys: Option<Vec<Option<&'a str>>>,
    pub(super) types: Option<Vec<Option<&'a str>>>,
    pub(super) content_types: Option<Vec<Option<&'a str>>>,
    pub(super) headers: Option<Vec<Option<String>>>,
    pub(super) correlation_ids: Option<Vec<Option<&'a str>>>,
    pub(super) dedup_keys: Option<Vec<Option<&'a str>>>,
    pub(super) deliver_ats: Option<Vec<Option<Timestamp>>>,
    pub(super) delays_ms: Option<Vec<Option<i64>>>,
    pub(super) now: Option<Timestamp>,
    /// Whether the transaction is publish's own.
    pub(super) own: bool,
    /// The time the server's clock must show, if the statement depends on it.
    expected: Option<Timestamp>,
}

impl<'a> Columns<'a> {
    /// For a publish in a transaction of the caller's own, which bypasses [`crate::store::Checked`]. `None` if there is
    /// nothing to publish.
    pub(super) fn in_transaction(
        messages: &'a [NewMessage],
        now: Option<Timestamp>,
        own: bool,
    ) -> Result<Option<Self>> {
        validate_batch(messages)?;
        Ok((!messages.is_empty()).then(|| Self::of(messages, now, own)))
    }

    pub(super) fn of(messages: &'a [NewMessage], now: Option<Timestamp>, own: bool) -> Self {
        Columns {
            message_ids: messages
                .iter()
                .map(|message| message.message_id.unwrap_or_else(Uuid::now_v7))
                .collect(),
            payloads: messages.iter().map(|message| message.payload.as_ref()).collect(),
            keys: column(messages, |message| message.key.as_deref()),
            types: column(messages, |message| message.message_type.as_deref()),
            content_types: column(messages, |message| message.content_type.as_deref()),
            headers: column(messages, NewMessage::headers_json),
            correlation_ids: column(messages, |message| message.correlation_id.as_deref()),
            dedup_keys: column(messages, |message| message.dedup_key.as_deref()),
            deliver_ats: column(messages, |message| message.deliver_at.map(holdable)),
            delays_ms: column(messages, |message| message.delay.map(millis)),
            now,
            own,
            expected: None,
        }
    }

    pub(super) fn params<'b>(&'b self, topic: &'b &'b str) -> [&'b (dyn ToSql + Sync); 14] {
        [
            topic,
            &self.message_ids,
            &self.payloads,
            &self.keys,
            &self.types,
            &self.content_types,
            &self.headers,
            &self.correlation_ids,
            &self.dedup_keys,
            &self.deliver_ats,
            &self.now,
            &self.own,
            &self.expected,
            &self.delays_ms,
        ]
    }

    pub(super) fn published(&self, row: &Row) -> Vec<Published> {
        let duplicates: Option<Vec<Option<Uuid>>> = row.get("duplicate_of");
        self.outcome(row.get("offsets"), duplicates.as_deref())
    }

    /// The result for each message, in their order.
    pub(super) fn outcome(
        &self,
        offsets: Vec<Option<i64>>,
        duplicates: Option<&[Option<Uuid>]>,
    ) -> Vec<Published> {
        assert_eq!(offsets.len(), self.message_ids.len(), "one result for each message");
        let duplicate_of = |i: usize| duplicates.and_then(|ids| ids[i]);
        let one = |(i, offset): (usize, Option<i64>)| Published {
            offset: offset.map(Offset),
            message_id: duplicate_of(i).unwrap_or(self.message_ids[i]),
            duplicate: duplicate_of(i).is_some(),
        };
        offsets.into_iter().enumerate().map(one).collect()
    }
}

fn column<'a, T>(
    messages: &'a [NewMessage],
    get: impl Fn(&'a NewMessage) -> Option<T>,
) -> Option<Vec<Option<T>>> {
    let column: Vec<Option<T>> = messages.iter().map(get).collect();
    column.iter().any(Option::is_some).then_some(column)
}
