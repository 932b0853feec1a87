//! Exactly once into Kafka: what is sent and the position that says so are one transaction of Kafka.
//!
//! # The argument
//! Let D be the set of messages that a committed position contains ([`Position`](super::position::Position)).
//!
//! **Nothing twice.** A record of message m is sent only in a transaction that also commits a position with m, and only by a producer that
//! knew the last committed position when it began, and found m not in it. A producer knows it: `init_transactions` completes the transactions of all
//! producers before it with the same transactional id and fences them, the position is read after that, and from then on only this producer commits. After any failure of a transaction
//! (refused, timed out, connection lost: it may have committed or not) the producer is dropped and another one begins, by reading.
//! So m is in D before a second record could be sent. Records of transactions that were aborted are not seen by a reader at `read_committed`.
//!
//! **Nothing lost.** A batch is acked in the database only after the commit of a position that contains all of its messages was confirmed, or after
//! it was found that D contains them. A message that Kafka refuses for its size is buried as a dead letter instead.
//!
//! **Order per key.** The group has one lane: one lease at a time, in the order of offsets, and no lease is handed out while an older
//! one is outstanding. One producer sends a batch in that order, and batches one after the other.
//!
//! **D stays small.** Messages that the database never hands out again need not be in D. Everything at or below the group's floor is done, but
//! acks on PostgreSQL are committed asynchronously: a crash of the server undoes the last ones, a failover or a restored copy more. So the
//! cursor of the position is a floor that was seen some time ago (4 seconds at least, 60 while there is room), and the position
//! also has a guard: a cursor of the database's group that was seen later than that floor, and has been passed for the same time. A database whose group's cursor is
//! below the guard has lost more than that, or an operator moved the group back: what is at or below the position's cursor may or may not be in Kafka. The relay
//! then ends with [`ExactlyOnceError::Position`]. With the group's cursor at or above the guard, an offset at or below the position's cursor that
//! is handed out was not done when the floor was seen to pass it: it is a late message (its transaction committed in a gap), and is sent. Late messages are listed in the
//! position until their acks have the same age.
//!
//! **The position belongs to this database.** The position has a digest of the id of the last message; another message at that offset, or a head below it, is
//! [`ExactlyOnceError::Position`]. So is a group that has done messages above the position, or without one: they would be missing in Kafka.

use std::time::Duration;

use headwater::{Headwater, Start};

use super::address::Address;
use super::faults::Fault;
use super::session::{Session, Trouble};

/// The pause before a session is opened again: the first, the longest, and the one where an operator has to act.
const PAUSE_FIRST: Duration = Duration::from_millis(200);
const PAUSE_LONGEST: Duration = Duration::from_secs(5);
const PAUSE_MISCONFIGURED: Duration = Duration::from_secs(15);

/// Relays a topic into a topic of Kafka, each message exactly once for readers at `read_committed`.
///
/// One instance works at a time: a new one ends all others with the same id, which then return [`End::Fenced`] without having sent anything that
/// counts. Start a standby again only once the instance that fenced it has ended, or the two end each other forever.
///
/// The id is that of the Kafka group with the position and of the transactions: `headwater-NAMESPACE-TOPIC-GROUP`. The namespace is not unique among
/// databases, and SQLite has none: [`Self::id`] sets another. Each relay into a Kafka cluster needs its own.
///
/// ```no_run
/// # async fn run(headwater: headwater::Headwater) -> Result<(), Box<dyn std::error::Error>> {
/// use headwater_relay::kafka::{End, ExactlyOnce};
///
/// let relay = ExactlyOnce::new(&headwater, "orders", "to-kafka", "kafka://localhost:9092/orders")?.id("shop-orders");
/// let an_hour = tokio::time::sleep(std::time::Duration::from_secs(3_600));
/// if relay.run(an_hour).await? == End::Fenced {
///     eprintln!("another instance has taken over");
/// }
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct ExactlyOnce {
    pub(super) headwater: Headwater,
    pub(super) topic: String,
    pub(super) group: String,
    pub(super) address: std::sync::Arc<Address>,
    /// The topic of Kafka.
    pub(super) destination: String,
    pub(super) id: Option<String>,
    pub(super) batch: u32,
    pub(super) lease: Duration,
    pub(super) start: Start,
}

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// It was asked to stop.
    Stopped,
    /// Another instance with the same id took over.
    Fenced,
}

/// Why a run cannot continue.
#[derive(Debug, thiserror::Error)]
pub enum ExactlyOnceError {
    /// The database refuses the relay.
    #[error(transparent)]
    Headwater(#[from] headwater::Error),
    /// The positions in the database and in Kafka contradict each other; the text says what to do.
    #[error("{0}")]
    Position(String),
}

impl ExactlyOnce {
    /// A relay from a topic, by a group of its own, to the topic of a URL, as [`KafkaSink`](super::KafkaSink) describes it; without one in the
    /// URL, to the topic of the same name. The group is created when the relay runs first; an existing one must be ordered in one lane.
    pub fn new(headwater: &Headwater, topic: &str, group: &str, url: &str) -> headwater::Result<Self> {
        let address = Address::from_url(url)?;
        let destination = address.topic.clone().unwrap_or_else(|| topic.to_owned());
        Ok(ExactlyOnce {
            headwater: headwater.clone(),
            topic: topic.to_owned(),
            group: group.to_owned(),
            address: std::sync::Arc::new(address),
            destination,
            id: headwater.namespace().map(|namespace| format!("headwater-{namespace}-{topic}-{group}")),
            batch: 2_000,
            lease: Duration::from_secs(60),
            start: Start::Beginning,
        })
    }

    /// Sets the id of the transactions and of the Kafka group with the position.
    #[must_use]
    pub fn id(mut self, id: &str) -> Self {
        self.id = Some(id.to_owned());
        self
    }

    /// How many messages are one transaction at most; 2,000 by default.
    #[must_use]
    pub fn batch(mut self, messages: u32) -> Self {
        self.batch = messages;
        self
    }

    /// Where a new group starts; at the oldest message by default.
    #[must_use]
    pub fn start_from(mut self, start: Start) -> Self {
        self.start = start;
        self
    }

    /// Relays until `stop` completes, another instance takes over, or an error needs a person. What is unavailable, Kafka or the database, is
    /// tried again.
    pub async fn run(self, stop: impl Future<Output = ()> + Send) -> Result<End, ExactlyOnceError> {
        let Some(id) = self.id.clone().filter(|id| !id.is_empty() && id.len() <= 249) else {
            let rule = "must have 1 to 249 bytes; SQLite has no namespace that it could be made of: set it with ExactlyOnce::id";
            return Err(headwater::Error::invalid("id", rule).into());
        };
        tokio::pin!(stop);
        let (topic, group) = (&self.topic, &self.group);
        let (mut pause, mut careful, mut refused) = (PAUSE_FIRST, false, std::collections::BTreeMap::new());
        loop {
            let trouble = match Session::open(&self, &id, careful).await {
                Ok(mut session) => {
                    let end = session.run(stop.as_mut(), &mut refused).await;
                    if session.has_committed() {
                        pause = PAUSE_FIRST;
                    }
                    session.close().await;
                    match end {
                        Ok(()) => return Ok(End::Stopped),
                        Err(trouble) => trouble,
                    }
                }
                Err(trouble) => trouble,
            };
            careful = false;
            let wait = match trouble {
                Trouble::Fatal(error) => return Err(error),
                Trouble::Kafka(Fault::Fenced(reason)) => {
                    tracing::warn!(topic, group, reason, "relay fenced by another instance");
                    return Ok(End::Fenced);
                }
                Trouble::Kafka(Fault::Refused(_)) => {
                    careful = true;
                    Duration::ZERO
                }
                Trouble::Kafka(Fault::Misconfigured(reason)) => {
                    tracing::error!(topic, group, reason, "kafka refuses the relay");
                    PAUSE_MISCONFIGURED
                }
                Trouble::Kafka(
                    Fault::Unavailable(reason) | Fault::NotSent(reason) | Fault::Failed(reason),
                ) => {
                    tracing::warn!(topic, group, reason, ?pause, "kafka transaction failed, retrying");
                    pause
                }
                Trouble::Database(error) => {
                    tracing::warn!(topic, group, %error, ?pause, "database failed, retrying");
                    pause
                }
            };
            pause = (pause * 2).min(PAUSE_LONGEST);
            tokio::select! {
                () = &mut stop => return Ok(End::Stopped),
                () = tokio::time::sleep(wait) => {}
            }
        }
    }
}
