//! Publish: appends to a topic's log, or to its schedule, all or nothing.
//!
//! [`publish`] works inside a transaction of the caller's own connection to the same file; the engine's own publishes
//! use the same [`append`].

use std::fmt::Display;
use std::path::Path;

use jiff::Timestamp;
use rusqlite::{Connection, OptionalExtension, params};
use uuid::Uuid;

use super::SqliteStore;
use super::fault::{Attempt, Fault};
use super::log::Appender;
use super::migrate;
use super::work::Work;
use crate::error::{Error, ErrorKind, Result};
use crate::limits::{DELAY_MAX, PAYLOAD_BYTES_DEFAULT};
use crate::message::{NewMessage, Offset, Published, validate_batch};
use crate::name::TopicName;
use crate::observe::trace;
use crate::topic::{TopicId, TopicSettings};

/// Publishes inside the caller's own transaction, on the caller's own connection to the store's file, where there is no open
/// store. Programs with a [`Headwater`](crate::Headwater) call [`Sends::within`](crate::publish::Sends::within), which also
/// counts.
///
/// All of `messages` are in the transaction, or none. They become visible when the caller commits, and as durable as
/// the caller's own `synchronous` setting makes them; if the caller rolls back they are never visible. An unknown
/// topic is created as a queue unless the store was opened with `auto_create` off. On a connection without an open
/// transaction the batch is a transaction of its own.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # tokio::runtime::Runtime::new()?.block_on(async {
/// use headwater::NewMessage;
/// use headwater::store::{self, OpenOptions, sqlite};
///
/// # let directory = tempfile::tempdir()?;
/// # let path = directory.path().join("shop.db");
/// let store = store::open(&format!("sqlite:{}", path.display()), OpenOptions::default()).await?;
/// let mut connection = rusqlite::Connection::open(&path)?;
/// let transaction = connection.transaction()?;
/// // … the application's own statements …
/// sqlite::publish(&transaction, "orders", &[NewMessage::new("{}")])?;
/// transaction.commit()?;
/// # store.close().await?;
/// # Ok(()) })
/// # }
/// ```
pub fn publish(transaction: &Connection, topic: &str, messages: &[NewMessage]) -> Result<Vec<Published>> {
    let now_ms = Timestamp::now().as_millisecond();
    publish_in(transaction, &TopicName::new(topic)?, None, &trace::injected(messages), now_ms)
}

impl SqliteStore {
    /// Publishes in a transaction of the program's own, by the store's clock. The connection must be to the store's file.
    pub(crate) fn publish_within(
        &self,
        transaction: &Connection,
        topic: &TopicName,
        messages: &[NewMessage],
    ) -> Result<Vec<Published>> {
        self.check_file_of(transaction, format_args!("topic {topic}"))?;
        publish_in(transaction, topic, Some(self.auto_create), messages, super::work::now_ms(&self.clock))
    }

    /// Refuses a transaction on another file than that of the store, which has what it is for.
    pub(super) fn check_file_of(&self, transaction: &Connection, what: impl Display) -> Result<()> {
        let real = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_owned());
        let other = transaction.path().filter(|path| !path.is_empty()).map(Path::new);
        if other.map(real) != self.location.path.as_deref().map(real) {
            let other = other.map_or_else(|| "in memory".to_owned(), |path| path.display().to_string());
            let rule = format!(
                "its connection is to {other}, but {what} is in {}; open the program's own connection on the store's file",
                self.location.name
            );
            return Err(Error::invalid("transaction", rule));
        }
        Ok(())
    }
}

/// Publishes in an open transaction; without `auto_create` the stored setting decides.
fn publish_in(
    transaction: &Connection,
    topic: &TopicName,
    auto_create: Option<bool>,
    messages: &[NewMessage],
    now_ms: i64,
) -> Result<Vec<Published>> {
    validate_batch(messages)?;
    if messages.is_empty() {
        return Ok(Vec::new());
    }
    let location = transaction.path().unwrap_or("in memory").to_owned();
    let failed = |fault: Fault| fault.into_error(&location);
    // A savepoint: a caller that continues after an error must not commit half a batch.
    transaction.execute_batch("SAVEPOINT headwater_publish").map_err(|error| failed(error.into()))?;
    let published = publish_here(transaction, &location, topic, auto_create, messages, now_ms);
    let end = match published {
        Ok(_) => "RELEASE headwater_publish",
        Err(_) => "ROLLBACK TO headwater_publish; RELEASE headwater_publish",
    };
    // If SQLite has already rolled back the whole transaction, there is no savepoint left to end.
    let ended = if transaction.is_autocommit() { Ok(()) } else { transaction.execute_batch(end) };
    let published = published.map_err(failed)?;
    ended.map_err(|error| failed(error.into()))?;
    Ok(published)
}

fn publish_here(
    connection: &Connection,
    location: &str,
    topic: &TopicName,
    auto_create: Option<bool>,
    messages: &[NewMessage],
    now_ms: i64,
) -> Attempt<Vec<Published>> {
    let stored: Option<String> = connection
        .query_row("SELECT value FROM headwater_meta WHERE key = 'auto_create'", [], |row| row.get(0))
        .optional()
        .map_err(no_schema)?;
    migrate::check_written(connection, location)?;
    let mut logs = Logs::default();
    let prepared = Prepared::batch(messages);
    let auto_create = auto_create.unwrap_or(stored.as_deref() == Some("1"));
    let log = logs.of(connection, topic, auto_create, messages, now_ms)?;
    let published = append(connection, log, now_ms, messages, &prepared)?;
    logs.confirm();
    logs.flush(connection)?;
    Ok(published)
}

fn no_schema(error: rusqlite::Error) -> Fault {
    if error.to_string().contains("no such table: headwater_meta") {
        let text = "this connection's database is not a store of Headwater; `headwater migrate --adopt` makes it one";
        return Error::with_source(ErrorKind::NotAStore, text, error).into();
    }
    error.into()
}

/// What is computed from a message before the writer runs.
#[derive(Debug)]
pub(super) struct Prepared {
    message_id: Uuid,
    headers: Option<String>,
}

impl Prepared {
    /// Prepares a batch. Missing ids count up from one random UUIDv7: they sort as the batch does, and reading random
    /// bytes from the system per message would cost more than storing the message.
    pub(super) fn batch(messages: &[NewMessage]) -> Vec<Self> {
        let mut made = Uuid::now_v7().as_u128();
        let prepare = |message: &NewMessage| {
            let message_id = message.message_id.unwrap_or_else(|| {
                made = (made & !UUID_COUNTED) | (made.wrapping_add(1) & UUID_COUNTED);
                Uuid::from_u128(made)
            });
            Prepared { message_id, headers: message.headers_json() }
        };
        messages.iter().map(prepare).collect()
    }
}

/// The 62 bits of a UUIDv7 below its variant.
const UUID_COUNTED: u128 = (1 << 62) - 1;

/// The engine's own publish.
pub(super) fn run(
    work: &mut Work<'_>,
    topic: &TopicName,
    auto_create: bool,
    messages: &[NewMessage],
    prepared: &[Prepared],
) -> Attempt<Vec<Published>> {
    let now_ms = work.now_ms();
    let connection = work.connection;
    let log = work.logs.of(connection, topic, auto_create, messages, now_ms)?;
    let published = append(connection, log, now_ms, messages, prepared)?;
    let topic_id = log.topic_id;
    work.wake(topic_id);
    Ok(published)
}

/// Publishes in the transaction of a handler. Heads are written back at once: they are rolled back with the handler's
/// savepoint, which what a transaction remembers of its logs would not be.
pub(super) fn inside(
    work: &mut Work<'_>,
    topic: &TopicName,
    messages: &[NewMessage],
) -> Attempt<Vec<Published>> {
    let (connection, now_ms) = (work.connection, work.now_ms());
    let mut logs = Logs::default();
    let log = logs.of(connection, topic, false, messages, now_ms)?;
    let published = append(connection, log, now_ms, messages, &Prepared::batch(messages))?;
    let topic_id = log.topic_id;
    logs.confirm();
    logs.flush(connection)?;
    work.wake(topic_id);
    Ok(published)
}

/// Appends messages to a log. Everything that can be refused is refused before the first write.
fn append(
    connection: &Connection,
    log: &mut Log,
    now_ms: i64,
    messages: &[NewMessage],
    prepared: &[Prepared],
) -> Attempt<Vec<Published>> {
    check(log, now_ms, messages)?;
    let mut appender = Appender::new(connection)?;
    let mut published = Vec::with_capacity(messages.len());
    for (message, prepared) in messages.iter().zip(prepared) {
        if let Some(first) = first_of(connection, log, now_ms, message)? {
            published.push(first);
            continue;
        }
        let offset = match due_ms(message, now_ms) {
            Some(at_ms) if at_ms > now_ms => {
                schedule(connection, log, at_ms, message, prepared)?;
                None
            }
            _ => {
                log.last_offset += 1;
                let Prepared { message_id, headers } = prepared;
                appender.append(
                    log.topic_id,
                    log.last_offset,
                    now_ms,
                    message,
                    *message_id,
                    headers.as_deref(),
                )?;
                Some(Offset(log.last_offset))
            }
        };
        let entry = Published { offset, message_id: prepared.message_id, duplicate: false };
        if let Some(dedup_key) = &message.dedup_key {
            remember(connection, log, now_ms, dedup_key, &entry)?;
        }
        published.push(entry);
    }
    Ok(published)
}

/// When a message is to be delivered, if it is scheduled.
fn due_ms(message: &NewMessage, now_ms: i64) -> Option<i64> {
    let delayed = message.delay.map(|delay| now_ms.saturating_add(super::millis(delay)));
    delayed.or(message.deliver_at.map(Timestamp::as_millisecond))
}

fn check(log: &Log, now_ms: i64, messages: &[NewMessage]) -> Result<()> {
    if log.blocked {
        return Err(Error::no_subscriptions(&log.name));
    }
    let latest_ms = now_ms.saturating_add(super::millis(DELAY_MAX));
    for message in messages {
        if message.payload.len() > log.payload_bytes_max {
            return Err(Error::payload_too_large(&log.name, message.payload.len(), log.payload_bytes_max));
        }
        if message.deliver_at.is_some_and(|at| at.as_millisecond() > latest_ms) {
            return Err(Error::invalid("deliver_at", "more than 366 days from now"));
        }
    }
    Ok(())
}

/// By how much a window may seem longer than it is: the size of a clock step back is only known to this precision.
pub(super) const DEDUP_SLACK_MS: i64 = 10_000;

/// The first message with this one's dedup key, if its window still lasts.
fn first_of(
    connection: &Connection,
    log: &Log,
    now_ms: i64,
    message: &NewMessage,
) -> Attempt<Option<Published>> {
    let Some(dedup_key) = &message.dedup_key else { return Ok(None) };
    let latest_ms = now_ms.saturating_add(log.dedup_window_ms).saturating_add(DEDUP_SLACK_MS);
    let first = connection
        .prepare_cached(super::sql!(publish.dedup_find))?
        .query_row(params![log.topic_id.0, dedup_key, now_ms, latest_ms], |row| {
            let message_id = super::decode::uuid(row, 0)?;
            Ok(Published { offset: row.get::<_, Option<i64>>(1)?.map(Offset), message_id, duplicate: true })
        })
        .optional()?;
    Ok(first)
}

fn remember(
    connection: &Connection,
    log: &Log,
    now_ms: i64,
    dedup_key: &str,
    first: &Published,
) -> Attempt<()> {
    connection.prepare_cached(super::sql!(publish.dedup_store))?.execute(params![
        log.topic_id.0,
        dedup_key,
        first.message_id.as_bytes().as_slice(),
        first.offset.map(|offset| offset.0),
        now_ms.saturating_add(log.dedup_window_ms),
    ])?;
    Ok(())
}

fn schedule(
    connection: &Connection,
    log: &mut Log,
    at_ms: i64,
    message: &NewMessage,
    prepared: &Prepared,
) -> Attempt<()> {
    connection.prepare_cached(super::sql!(publish.schedule))?.execute(params![
        log.topic_id.0,
        at_ms,
        prepared.message_id.as_bytes().as_slice(),
        message.key,
        message.message_type,
        message.content_type,
        prepared.headers,
        message.correlation_id,
        message.dedup_key,
        &message.payload[..],
    ])?;
    // Waiters must claim again to get the new due time.
    log.wakes += 1;
    Ok(())
}

/// A topic's log within a transaction.
#[derive(Debug)]
pub(super) struct Log {
    topic_id: TopicId,
    name: String,
    last_offset: i64,
    /// `last_offset` after the last command that succeeded; `None` before one did.
    confirmed: Option<i64>,
    stored: i64,
    wakes: i64,
    payload_bytes_max: usize,
    dedup_window_ms: i64,
    /// No subscription counts, and the topic then refuses messages. Read again after every command that may change
    /// it.
    blocked: bool,
}

/// The logs that a transaction has appended to. Heads are written back once for publishes that follow each other, not once per
/// command.
#[derive(Debug, Default)]
pub(super) struct Logs(Vec<Log>);

impl Logs {
    /// The log of a topic; creates the topic as a queue if that is allowed and no message of the batch is refused.
    fn of(
        &mut self,
        connection: &Connection,
        topic: &TopicName,
        auto_create: bool,
        messages: &[NewMessage],
        now_ms: i64,
    ) -> Attempt<&mut Log> {
        if let Some(at) = self.0.iter().position(|log| log.name == topic.as_str()) {
            return Ok(&mut self.0[at]);
        }
        let log = match load(connection, topic)? {
            Some(log) => log,
            None if auto_create => {
                if let Some(large) = messages.iter().find(|m| m.payload.len() > PAYLOAD_BYTES_DEFAULT) {
                    let bytes = large.payload.len();
                    return Err(Error::payload_too_large(topic.as_str(), bytes, PAYLOAD_BYTES_DEFAULT).into());
                }
                super::topic::insert(connection, topic, &TopicSettings::default(), now_ms)?;
                load(connection, topic)?.expect("the topic was just created")
            }
            None => return Err(Error::no_such_topic(topic.as_str()).into()),
        };
        self.0.push(log);
        Ok(self.0.last_mut().expect("a log was just added"))
    }

    /// Keeps the offsets that the last command appended.
    pub(super) fn confirm(&mut self) {
        for log in &mut self.0 {
            log.confirmed = Some(log.last_offset);
        }
    }

    /// Takes back the offsets of a command that failed: they were never visible.
    pub(super) fn forget_unconfirmed(&mut self) {
        self.0.retain_mut(|log| {
            log.last_offset = log.confirmed.unwrap_or_default();
            log.confirmed.is_some()
        });
    }

    /// Writes the heads back, so that other commands of this transaction see them.
    pub(super) fn flush(&mut self, connection: &Connection) -> Attempt<()> {
        for log in self.0.drain(..) {
            if log.last_offset != log.stored || log.wakes > 0 {
                connection.prepare_cached(super::sql!(publish.head))?.execute(params![
                    log.topic_id.0,
                    log.last_offset,
                    log.wakes
                ])?;
            }
        }
        Ok(())
    }
}

fn load(connection: &Connection, topic: &TopicName) -> Attempt<Option<Log>> {
    let log = connection
        .prepare_cached(super::sql!(publish.log))?
        .query_row([topic.as_str()], |row| {
            let last_offset = row.get(1)?;
            Ok(Log {
                topic_id: TopicId(row.get(0)?),
                name: topic.as_str().to_owned(),
                last_offset,
                confirmed: None,
                stored: last_offset,
                wakes: 0,
                payload_bytes_max: row.get::<_, i64>(2)?.try_into().unwrap_or_default(),
                dedup_window_ms: row.get(3)?,
                blocked: row.get(4)?,
            })
        })
        .optional()?;
    Ok(log)
}
