//! Dead letters of every source: what a subscription gave up on, what ran out of attempts in the outbox, and commands that were parked
//! by hand.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use jiff::Timestamp;
use uuid::Uuid;

use super::selection::{AnyDeadLetterSelection, ids_json};
use super::{DeadLetterSelection, GroupDeadLetters, Redriven};
use crate::error::{Error, ErrorKind, Result};
use crate::limits::{
    DEAD_LETTER_IDS_MAX, DEAD_LETTERS_PER_STEP, FAILED_STATUS_BYTES_MAX, PARKED_BY_BYTES_MAX,
    PAYLOAD_BYTES_MAX, STEP_BYTES_MAX,
};
#[cfg(feature = "sqlite")]
use crate::message::NewMessage;
use crate::message::{Headers, check_headers};
use crate::name::check_name;
use crate::outbox::{headers_of, json_of, time_of, unreadable};
use crate::repository::{Repository, check_id, check_id_within};
use crate::settle::bound_error_text;
use crate::store::Store;
use crate::store::repository::Verb;
use crate::subscription::SubscriptionId;
use crate::transaction::{Row, Transaction, Value};

/// Where a dead letter comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeadLetterSource {
    /// A group gave up on a message.
    Subscription {
        /// The group's subscription.
        subscription_id: SubscriptionId,
        /// The topic.
        topic: String,
        /// The group.
        group: String,
        /// The offset of the message.
        offset: crate::Offset,
    },
    /// An entry of the outbox ran out of attempts.
    Outbox {
        /// The entry, which is PARKED.
        id: i64,
        /// The topic of the broker.
        topic: String,
    },
    /// A command was parked by hand.
    Command {
        /// Where a redrive publishes it.
        topic: Option<String>,
    },
}

impl std::fmt::Display for DeadLetterSource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            DeadLetterSource::Subscription { topic, group, .. } => write!(f, "{topic}/{group}"),
            DeadLetterSource::Outbox { .. } => f.write_str("outbox"),
            DeadLetterSource::Command { .. } => f.write_str("command"),
        }
    }
}

/// A dead letter of any source.
#[derive(Clone, Debug, PartialEq)]
pub struct AnyDeadLetter {
    /// Its identity.
    pub dead_letter_id: Uuid,
    /// Where it comes from.
    pub source: DeadLetterSource,
    /// The id of the command or message.
    pub command_id: String,
    /// The name of the command, or the type of the message.
    pub name: Option<String>,
    /// The business key, or the key of the message.
    pub business_key: Option<String>,
    /// The bytes, exactly; none where the selection is [without payloads](AnyDeadLetterSelection::without_payloads).
    pub payload: Bytes,
    /// The size of the payload.
    pub payload_bytes: u64,
    /// The media type.
    pub content_type: Option<String>,
    /// Headers.
    pub headers: Headers,
    /// How it failed: FAILED, TIMED_OUT, REJECTED or another word.
    pub failed_status: Option<String>,
    /// The class of the error.
    pub error_class: Option<String>,
    /// The error; a long one is kept to 64 KiB with a marker.
    pub error_message: Option<String>,
    /// How often it was tried.
    pub attempts: u32,
    /// The owner, claimer or component that gave it up; `None` if an operator buried the message.
    pub parked_by: Option<String>,
    /// When, by the database's clock.
    pub parked_at: Timestamp,
    /// The store's number for it, which orders lists.
    pub number: i64,
}

/// The place of a dead letter in lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeadLetterPlace {
    /// The store's number for it.
    pub number: i64,
    /// Its identity.
    pub dead_letter_id: Uuid,
}

impl AnyDeadLetter {
    /// Its place in lists, from which the next page follows.
    pub fn place(&self) -> DeadLetterPlace {
        DeadLetterPlace { number: self.number, dead_letter_id: self.dead_letter_id }
    }

    fn from_row(row: &Row) -> Result<Self> {
        let text = |column: &str| row.get::<Option<String>>(column);
        let needed =
            |column: &'static str, value: Option<String>| value.ok_or_else(|| unreadable(column, "NULL"));
        let source = match row.get::<String>("source")?.as_str() {
            "subscription" => DeadLetterSource::Subscription {
                subscription_id: SubscriptionId(row.get("subscription_id")?),
                // A group that was just removed has no name any more; its dead letters are removed with it.
                topic: text("topic")?.unwrap_or_default(),
                group: text("group_name")?.unwrap_or_default(),
                offset: crate::Offset(row.get("message_offset")?),
            },
            "outbox" => DeadLetterSource::Outbox {
                id: row.get("outbox_id")?,
                topic: needed("topic", text("topic")?)?,
            },
            _ => DeadLetterSource::Command { topic: text("topic")? },
        };
        Ok(AnyDeadLetter {
            dead_letter_id: row.get("dead_letter_id")?,
            source,
            command_id: row.get("command_id")?,
            name: text("name")?,
            business_key: text("key")?,
            payload: row.get::<Vec<u8>>("payload")?.into(),
            payload_bytes: row.get("payload_bytes")?,
            content_type: text("content_type")?,
            headers: text("headers")?.map_or_else(|| Ok(Headers::new()), |headers| headers_of(&headers))?,
            failed_status: text("failed_status")?,
            error_class: text("error_class")?,
            error_message: text("error")?,
            attempts: row.get("attempts")?,
            parked_by: text("parked_by")?,
            parked_at: time_of(row, "parked_at_us")?.ok_or_else(|| unreadable("parked_at", "NULL"))?,
            number: row.get("place")?,
        })
    }
}

/// A command to be parked for manual intervention.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> headwater::Result<()> {
/// use headwater::Headwater;
/// use headwater::store::ParkedCommand;
///
/// let headwater = Headwater::in_memory().await?;
/// headwater.topic("payments").create().await?;
/// let command = ParkedCommand::new("7f3c", "ChargeCard", r#"{"cents":500}"#, "payment-worker")
///     .business_key("customer-3")
///     .failed_status("REJECTED")
///     .error("CardDeclined", "insufficient funds")
///     .attempts(3)
///     .topic("payments");
/// let id = headwater.dead_letters().park(&command).await?;
/// assert_eq!(headwater.dead_letters().show(id).await?.unwrap().name.as_deref(), Some("ChargeCard"));
/// // Published to its topic, once.
/// assert_eq!(headwater.dead_letters().redrive(&[id]).await?.redriven, 1);
/// assert_eq!(headwater.published("payments").await?[0].payload, r#"{"cents":500}"#);
/// # headwater.close().await }
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct ParkedCommand {
    command_id: String,
    command_name: String,
    business_key: Option<String>,
    payload: Bytes,
    failed_status: Option<String>,
    error_class: Option<String>,
    error_message: Option<String>,
    attempts: u32,
    parked_by: String,
    topic: Option<String>,
    headers: Headers,
}

impl ParkedCommand {
    /// A command: its id, its name, its payload, and what parks it.
    pub fn new(
        command_id: impl std::fmt::Display,
        command_name: impl Into<String>,
        payload: impl Into<Bytes>,
        parked_by: impl Into<String>,
    ) -> Self {
        ParkedCommand {
            command_id: command_id.to_string(),
            command_name: command_name.into(),
            business_key: None,
            payload: payload.into(),
            failed_status: None,
            error_class: None,
            error_message: None,
            attempts: 0,
            parked_by: parked_by.into(),
            topic: None,
            headers: Headers::new(),
        }
    }

    /// Sets the business key.
    #[must_use]
    pub fn business_key(mut self, key: impl Into<String>) -> Self {
        self.business_key = Some(key.into());
        self
    }

    /// Sets how it failed: FAILED, TIMED_OUT, REJECTED or another word of up to 50 bytes.
    #[must_use]
    pub fn failed_status(mut self, status: impl Into<String>) -> Self {
        self.failed_status = Some(status.into());
        self
    }

    /// Sets the class and the text of the error. A long text is kept to 64 KiB with a marker.
    #[must_use]
    pub fn error(self, class: impl Into<String>, message: impl Into<String>) -> Self {
        ParkedCommand { error_class: Some(class.into()), ..self.error_message(message) }
    }

    /// Sets the text of the error.
    #[must_use]
    pub fn error_message(mut self, message: impl Into<String>) -> Self {
        self.error_message = Some(message.into());
        self
    }

    /// Sets how often it was tried.
    #[must_use]
    pub fn attempts(mut self, attempts: u32) -> Self {
        self.attempts = attempts;
        self
    }

    /// Sets the topic of this store that a redrive publishes it to, with its name as type and its business key as key.
    #[must_use]
    pub fn topic(mut self, topic: impl Into<String>) -> Self {
        self.topic = Some(topic.into());
        self
    }

    /// Adds a header, for the redrive.
    #[must_use]
    pub fn header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.headers.insert(name.into(), value.into());
        self
    }

    fn params(&self) -> Result<Vec<Value>> {
        check_id("command_id", &self.command_id)?;
        check_name("command_name", &self.command_name)?;
        self.business_key.as_deref().map_or(Ok(()), |key| check_name("business_key", key))?;
        let within = |field, value: &Option<String>, most| {
            value.as_deref().map_or(Ok(()), |value| check_id_within(field, value, most))
        };
        within("failed_status", &self.failed_status, FAILED_STATUS_BYTES_MAX)?;
        within("error_class", &self.error_class, crate::limits::NAME_BYTES_MAX)?;
        check_id_within("parked_by", &self.parked_by, PARKED_BY_BYTES_MAX)?;
        self.topic.as_deref().map_or(Ok(()), |topic| check_name("topic", topic))?;
        check_headers(&self.headers)?;
        let (bytes, most) = (self.payload.len(), PAYLOAD_BYTES_MAX);
        if bytes > most {
            let text =
                format!("payload too large: {bytes} bytes, a dead letter allows {most}; store it elsewhere");
            return Err(Error::new(ErrorKind::PayloadTooLarge, text));
        }
        let rule = || format!("{} is above {}", self.attempts, i32::MAX);
        let attempts = i32::try_from(self.attempts).map_err(|_| Error::invalid("attempts", rule()))?;
        let error = self.error_message.clone().map(|mut error| {
            bound_error_text(&mut error);
            error
        });
        let headers = (!self.headers.is_empty()).then(|| json_of(&self.headers));
        Ok(vec![
            self.command_id.as_str().into(),
            self.command_name.as_str().into(),
            self.business_key.clone().into(),
            self.payload.clone().into(),
            self.failed_status.clone().into(),
            self.error_class.clone().into(),
            error.into(),
            attempts.into(),
            self.parked_by.as_str().into(),
            self.topic.clone().into(),
            headers.into(),
        ])
    }
}

/// The dead letters of every source; from [`Headwater::dead_letters`](crate::Headwater::dead_letters).
#[derive(Clone, Debug)]
pub struct DeadLetters {
    repository: Repository,
}

impl DeadLetters {
    pub(crate) fn new(store: &Arc<dyn Store>) -> Self {
        DeadLetters { repository: Repository::new(store) }
    }

    /// The dead letters of one group on one topic.
    pub fn of(&self, topic: &str, group: &str) -> GroupDeadLetters {
        GroupDeadLetters::new(Arc::clone(&self.repository.store), topic, group)
    }

    /// The same in a transaction: what is done here is committed or rolled back with it, and reads see it.
    #[must_use]
    pub fn within(&self, transaction: &Transaction) -> Self {
        DeadLetters { repository: self.repository.within(transaction) }
    }

    /// Parks a command for manual intervention, and returns the id of its dead letter.
    pub async fn park(&self, command: &ParkedCommand) -> Result<Uuid> {
        self.repository.one(Verb::DeadLetterPark, command.params()?).await?.get("dead_letter_id")
    }

    /// The oldest of a selection, at most `limit`.
    pub async fn list(
        &self,
        limit: u32,
        choose: impl FnOnce(AnyDeadLetterSelection) -> AnyDeadLetterSelection,
    ) -> Result<Vec<AnyDeadLetter>> {
        let params = choose(AnyDeadLetterSelection::default()).params(limit)?;
        let rows = self.repository.run(Verb::DeadLetterAll, params).await?;
        rows.iter().map(AnyDeadLetter::from_row).collect()
    }

    /// One dead letter; `None` if there is none with that id.
    pub async fn show(&self, id: Uuid) -> Result<Option<AnyDeadLetter>> {
        Ok(self.list(1, |all| all.ids([id])).await?.pop())
    }

    /// Redrives dead letters by their source: a message is handed to its group again, an entry of the outbox becomes NEW with no
    /// attempts, a parked command is published to its topic; one without a topic is refused, with what to do. Each once, even if the
    /// call is repeated. Those of a group are redriven in transactions of their own, and so not within one of the caller; others in
    /// transactions like those of [`DeadLetters::delete`].
    pub async fn redrive(&self, ids: &[Uuid]) -> Result<Redriven> {
        let mut of_groups: BTreeMap<SubscriptionId, Vec<Uuid>> = BTreeMap::new();
        let mut others = Vec::new();
        for known in self.known(ids).await? {
            match known.subscription_id {
                Some(group) => of_groups.entry(group).or_default().push(known.dead_letter_id),
                None => others.push(known),
            }
        }
        if !of_groups.is_empty() && self.repository.transaction().is_some() {
            let rule = "those of a group are redriven in transactions of their own; redrive them outside of this one";
            return Err(Error::invalid("dead letters", rule));
        }
        // Before the first transaction: otherwise the refusal would come after some were redriven.
        if let Some(command) = others.iter().find(|known| known.topic.is_none()) {
            return Err(no_topic(command.dead_letter_id));
        }
        let mut done = Redriven::default();
        for page in pages(&others) {
            let redriven = self.act(Verb::DeadLetterRedrive, &page).await?;
            done.redriven += redriven;
            done.gone += page.len() as u64 - redriven;
        }
        for (subscription_id, ids) in of_groups {
            let selection = DeadLetterSelection::all(subscription_id).ids(ids);
            let redriven = self.repository.store.redrive(&selection).await?;
            done.redriven += redriven.redriven;
            done.gone += redriven.gone;
        }
        Ok(done)
    }

    /// Deletes dead letters of any source permanently, that of a parked entry of the outbox with the entry; returns how many there
    /// were. In transactions of at most 500 and at most 16 MiB of payloads, or of one that alone is larger, each with its audit entry.
    pub async fn delete(&self, ids: &[Uuid]) -> Result<u64> {
        let mut deleted = 0;
        for page in pages(&self.known(ids).await?) {
            deleted += self.act(Verb::DeadLetterDelete, &page).await?;
        }
        Ok(deleted)
    }

    /// Those of the ids that exist, oldest first.
    async fn known(&self, ids: &[Uuid]) -> Result<Vec<Known>> {
        if ids.len() > DEAD_LETTER_IDS_MAX {
            let count = ids.len();
            return Err(Error::invalid("ids", format!("{count}, at most {DEAD_LETTER_IDS_MAX} are allowed")));
        }
        let rows = self.repository.run(Verb::DeadLetterKnown, vec![ids_json(ids).into()]).await?;
        rows.iter().map(Known::from_row).collect()
    }

    async fn act(&self, verb: Verb, ids: &[Uuid]) -> Result<u64> {
        Ok(self.repository.run(verb, vec![ids_json(ids).into()]).await?.len() as u64)
    }
}

/// What decides how a dead letter is redriven or deleted.
struct Known {
    dead_letter_id: Uuid,
    subscription_id: Option<SubscriptionId>,
    topic: Option<String>,
    payload_bytes: u64,
}

impl Known {
    fn from_row(row: &Row) -> Result<Self> {
        Ok(Known {
            dead_letter_id: row.get("dead_letter_id")?,
            subscription_id: row.get::<Option<i32>>("subscription_id")?.map(SubscriptionId),
            topic: row.get("topic")?,
            payload_bytes: row.get("payload_bytes")?,
        })
    }
}

/// So many at a time that a transaction stays short: a payload may have any size, so a number alone does not bound one.
fn pages(all: &[Known]) -> Vec<Vec<Uuid>> {
    let most = DEAD_LETTERS_PER_STEP.unsigned_abs() as usize;
    let (mut pages, mut bytes) = (Vec::<Vec<Uuid>>::new(), 0_u64);
    for known in all {
        bytes = bytes.saturating_add(known.payload_bytes);
        match pages.last_mut() {
            Some(page) if page.len() < most && bytes <= STEP_BYTES_MAX => page.push(known.dead_letter_id),
            _ => {
                pages.push(vec![known.dead_letter_id]);
                bytes = known.payload_bytes;
            }
        }
    }
    pages
}

/// The refusal to redrive a command that has no topic.
pub(crate) fn no_topic(id: Uuid) -> Error {
    let rule = format!(
        "{id} is a command without a topic, and nothing was changed; send it by its own means and delete the dead letter, or park it \
         with a topic"
    );
    Error::invalid("dead letter", rule)
}

/// The message of a parked command. Its id is the command's, if that is a UUID: then the receiver's inbox knows it.
#[cfg(feature = "sqlite")]
pub(crate) fn command_message(message: NewMessage, command_id: Option<&str>) -> NewMessage {
    let id = command_id.filter(|id| id.len() == 36).and_then(|id| id.parse().ok());
    NewMessage { message_id: id, ..message }
}
