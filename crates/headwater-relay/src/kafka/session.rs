//! One session of a relay that delivers exactly once: from a position that was read to the first failure.

use std::collections::{BTreeMap, BTreeSet};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use headwater::consumer::{Batch, Consumer, GroupOrder, NewSubscription};
use headwater::settle::Verdict;
use headwater::store::{FetchBound, OffsetRange, SubscriptionStatus};
use headwater::{DeliveryPolicy, ErrorKind, Message, Offset};
use tokio::time::Instant;

use super::exactly_once::{ExactlyOnce, ExactlyOnceError};
use super::faults::Fault;
use super::position::{POSITION_BYTES_MAX, Position};
use super::transactions::{self, Transactions};
use super::{convert, in_background};

/// The most that a group allows: only a lost lease is an attempt, and a message is never given up for lost leases.
const ATTEMPTS_MAX: u32 = 1_000;
const OUTSTANDING_MAX: u32 = 1_000;
/// How long one call waits for a batch.
const WAIT: Duration = Duration::from_secs(1);
/// How often the group's floor is read.
const SAMPLE_EVERY: Duration = Duration::from_secs(2);
/// How long ago a floor must have been seen to become the cursor: with room in the position, and without.
const AGE: Duration = Duration::from_secs(60);
const AGE_LEAST: Duration = Duration::from_secs(4);
/// How much of what the database has done above the position is read, to find a message that is missing in Kafka.
const CHECKED_BYTES: usize = 1 << 20;
/// From this length on there is no room.
const ROOMY_BYTES: usize = POSITION_BYTES_MAX / 2;

/// What ended a session.
#[derive(Debug)]
pub(super) enum Trouble {
    Kafka(Fault),
    /// The same call may succeed later.
    Database(headwater::Error),
    Fatal(ExactlyOnceError),
}

impl From<headwater::Error> for Trouble {
    fn from(error: headwater::Error) -> Self {
        let again =
            error.is_retryable() || matches!(error.kind(), ErrorKind::CommitUnknown | ErrorKind::LeaseLost);
        if again { Trouble::Database(error) } else { Trouble::Fatal(error.into()) }
    }
}

impl From<Fault> for Trouble {
    fn from(fault: Fault) -> Self {
        Trouble::Kafka(fault)
    }
}

/// The group as it was at a time.
#[derive(Clone, Debug)]
struct Sample {
    at: Instant,
    floor: i64,
    next: i64,
    /// Late messages that were acked by then.
    late: BTreeSet<i64>,
}

pub(super) struct Session<'a> {
    relay: &'a ExactlyOnce,
    transactions: Arc<Transactions>,
    consumer: Consumer,
    position: Position,
    samples: Vec<Sample>,
    /// Late messages of the position that the database has done.
    late_done: BTreeSet<i64>,
    has_committed: bool,
}

/// What is to be done with a batch.
#[derive(Debug, PartialEq)]
struct Plan {
    /// Places of messages to send.
    send: Vec<usize>,
    /// The position once they are sent.
    position: Position,
    /// How many messages, from the first on, are settled; the position has no room for the others.
    settled: usize,
    /// A message at or below the cursor that is not known to be sent.
    below: Option<i64>,
}

impl<'a> Session<'a> {
    /// Ends other instances, reads the position, compares it with the database, and takes over its leases.
    pub(super) async fn open(relay: &'a ExactlyOnce, id: &str, careful: bool) -> Result<Self, Trouble> {
        let groups = relay.headwater.groups(&relay.topic);
        let policy = DeliveryPolicy { max_attempts: Some(ATTEMPTS_MAX), ..DeliveryPolicy::default() };
        let order = GroupOrder::ByKey { lanes: Some(1) };
        let new = NewSubscription { start: relay.start, order, policy, ..NewSubscription::default() };
        groups.subscribe_with(&relay.group, &new).await?;
        let (address, id, topic) = (Arc::clone(&relay.address), id.to_owned(), relay.destination.clone());
        let (transactions, text) =
            in_background(move || Transactions::open(&address, &id, &topic, careful)).await?;
        let transactions = Arc::new(transactions);
        let status = groups.get(&relay.group).await?.status;
        let position = match text {
            Some(text) => {
                let unknown = || {
                    format!("{}: its position in Kafka is not known to this version: {text:?}", name(relay))
                };
                let position = Position::decode(&text).ok_or_else(|| position_error(unknown()))?;
                check(relay, &status, &position).await?;
                position
            }
            None => first_position(relay, &transactions, &status).await?,
        };
        // Their owners are fenced: what they sent is in the position, or was aborted.
        let mut held = BTreeSet::new();
        for outstanding in groups.outstanding(&relay.group, OUTSTANDING_MAX).await? {
            held.extend(position.late().range(outstanding.range.first.0..=outstanding.range.last.0));
            if let Some(token) = outstanding.token {
                match relay.headwater.release_lease(token).await {
                    Err(error) if error.kind() != ErrorKind::LeaseLost => return Err(error.into()),
                    _ => {}
                }
            }
        }
        let late_done = position.late().difference(&held).copied().collect();
        let consumer =
            relay.headwater.consumer(&relay.topic, &relay.group).batch(relay.batch).lease(relay.lease);
        let consumer = consumer.order(order).open().await?;
        if consumer.subscription().lanes != 1 {
            let text =
                format!("{}: the group is not ordered in one lane; use another group name", name(relay));
            return Err(position_error(text));
        }
        tracing::info!(
            topic = relay.topic,
            group = relay.group,
            cursor = position.cursor,
            "exactly-once relay started"
        );
        let (samples, has_committed) = (Vec::new(), false);
        Ok(Session { relay, transactions, consumer, position, samples, late_done, has_committed })
    }

    pub(super) fn has_committed(&self) -> bool {
        self.has_committed
    }

    /// Relays until `stop` completes or something fails. `refused` has messages that Kafka never accepts, and why.
    pub(super) async fn run(
        &mut self,
        mut stop: Pin<&mut (impl Future<Output = ()> + Send)>,
        refused: &mut BTreeMap<i64, String>,
    ) -> Result<(), Trouble> {
        loop {
            let stopped = AtomicBool::new(false);
            let stopping = async {
                stop.as_mut().await;
                stopped.store(true, Ordering::Relaxed);
            };
            let batch = self.consumer.next_unless(WAIT, stopping).await?;
            if stopped.load(Ordering::Relaxed) {
                if let Some(batch) = batch {
                    batch.release().await?;
                }
                return Ok(());
            }
            if let Some(batch) = batch {
                self.handle(batch, refused).await?;
            }
            self.sample().await?;
        }
    }

    /// Sends what is not in Kafka, and settles.
    async fn handle(&mut self, batch: Batch, refused: &mut BTreeMap<i64, String>) -> Result<(), Trouble> {
        let plan = plan(batch.messages(), &self.position, refused);
        if let Some(offset) = plan.below {
            let status = self.relay.headwater.groups(&self.relay.topic).get(&self.relay.group).await?.status;
            check_guard(self.relay, &status, &self.position)?;
            tracing::info!(
                topic = self.relay.topic,
                group = self.relay.group,
                offset,
                "late message relayed"
            );
        }
        if !plan.send.is_empty() {
            let messages = batch.messages();
            let records: Vec<_> = plan
                .send
                .iter()
                .map(|at| convert::record_of(&messages[*at], &self.relay.destination))
                .collect();
            let (transactions, position) = (Arc::clone(&self.transactions), plan.position.clone());
            let committed = in_background(move || transactions.commit(&records, &position)).await;
            if let Err(failure) = committed {
                if let (Fault::Refused(reason), true) = (&failure.fault, failure.is_certain) {
                    let offsets = failure.refused.iter().map(|at| messages[plan.send[*at]].offset.0);
                    refused.extend(offsets.map(|offset| (offset, reason.clone())));
                }
                if let Err(error) = batch.release().await {
                    tracing::debug!(%error, "batch not released, its lease expires or is taken over");
                }
                return Err(failure.fault.into());
            }
            self.has_committed = true;
        }
        self.position = plan.position;
        self.settle(batch, plan.settled, refused).await
    }

    async fn settle(
        &mut self,
        batch: Batch,
        settled: usize,
        refused: &mut BTreeMap<i64, String>,
    ) -> Result<(), Trouble> {
        let mut verdicts = Vec::new();
        let mut late = Vec::new();
        for (at, message) in batch.messages().iter().enumerate() {
            if at >= settled {
                verdicts.push((message.offset, Verdict::Release));
            } else if let Some(reason) = refused.remove(&message.offset.0) {
                verdicts.push((message.offset, Verdict::Bury(reason)));
            }
            late.extend(
                (message.offset.0 <= self.position.cursor && at < settled).then_some(message.offset.0),
            );
        }
        if settled == 0 {
            let (topic, group) = (&self.relay.topic, &self.relay.group);
            tracing::warn!(topic, group, "position has no room, waiting for the oldest acks to be certain");
            batch.release().await?;
            tokio::time::sleep(WAIT).await;
            return Ok(());
        }
        let done = if verdicts.is_empty() { batch.ack().await } else { batch.settle_each(verdicts).await };
        match done {
            Ok(()) => self.late_done.extend(late),
            // It is delivered again, and found in the position.
            Err(error) if error.kind() == ErrorKind::LeaseLost => {}
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }

    /// Reads the group's floor now and then, and raises the cursor to one that was seen long enough ago.
    async fn sample(&mut self) -> Result<(), Trouble> {
        let now = Instant::now();
        if self.samples.last().is_some_and(|last| now < last.at + SAMPLE_EVERY) {
            return Ok(());
        }
        let status = self.relay.headwater.groups(&self.relay.topic).get(&self.relay.group).await?.status;
        let late = self.late_done.clone();
        self.samples.push(Sample { at: now, floor: status.floor.0, next: status.next.0, late });
        let age = if self.position.encode().len() < ROOMY_BYTES { AGE } else { AGE_LEAST };
        if let Some((at, sample, guard)) = old_enough(&self.samples, now, age) {
            self.position.raise(sample.floor, guard);
            self.position.forget_late(&sample.late);
            self.late_done.retain(|offset| !sample.late.contains(offset));
            self.samples.drain(..at);
        }
        Ok(())
    }

    pub(super) async fn close(self) {
        if let Err(error) = self.consumer.close().await {
            tracing::debug!(%error, "leases not released, the next instance takes them over");
        }
        transactions::close(self.transactions).await;
    }
}

/// The newest sample whose floor may become the cursor, with the guard: the group's cursor of a later sample, above that of the first, both
/// at least so old.
fn old_enough(samples: &[Sample], now: Instant, age: Duration) -> Option<(usize, Sample, i64)> {
    let guard = samples.iter().rev().find(|sample| sample.at + age <= now)?;
    let at = samples.iter().rposition(|sample| sample.at < guard.at && sample.next < guard.next)?;
    Some((at, samples[at].clone(), guard.next))
}

/// Decides what of a batch is sent, and how much of it the position has room for.
fn plan(messages: &[Message], position: &Position, refused: &BTreeMap<i64, String>) -> Plan {
    let decide = |count: usize| {
        let mut plan = Plan { send: Vec::new(), position: position.clone(), settled: count, below: None };
        for (at, message) in messages[..count].iter().enumerate() {
            let offset = message.offset.0;
            if position.contains(offset) || refused.contains_key(&offset) {
                continue;
            }
            if offset <= position.cursor {
                plan.below = plan.below.or(Some(offset));
            }
            plan.send.push(at);
            plan.position.add(offset, digest(message));
        }
        plan
    };
    let mut count = messages.len();
    loop {
        let plan = decide(count);
        if count == 0 || plan.send.is_empty() || plan.position.encode().len() <= POSITION_BYTES_MAX {
            return plan;
        }
        count /= 2;
    }
}

/// Tells messages at the same offset of two databases apart.
fn digest(message: &Message) -> u32 {
    let bytes = message.message_id.as_bytes();
    // The end of an id is random; its beginning is a time.
    u32::from_be_bytes([bytes[12], bytes[13], bytes[14], bytes[15]])
}

/// The position of a group that never handed out anything; an error for any other group.
async fn first_position(
    relay: &ExactlyOnce,
    transactions: &Arc<Transactions>,
    status: &SubscriptionStatus,
) -> Result<Position, Trouble> {
    if status.heartbeat_at.is_some() {
        return Err(position_error(format!(
            "{}: Kafka has no position, but the group has been used up to offset {}: Kafka has lost it, or this is another cluster, or the \
             group was used by another relay; to relay from that offset on, use another group name with a start there; to relay everything \
             again, use another group name",
            name(relay),
            status.floor
        )));
    }
    // Written before anything is claimed: from here on a missing position means that it was lost.
    let position = Position::new(status.floor.0);
    let (transactions, first) = (Arc::clone(transactions), position.clone());
    in_background(move || transactions.commit(&[], &first)).await.map_err(|failure| failure.fault)?;
    Ok(position)
}

/// Compares a position with the database.
async fn check(relay: &ExactlyOnce, status: &SubscriptionStatus, position: &Position) -> Result<(), Trouble> {
    check_guard(relay, status, position)?;
    let store = relay.headwater.store();
    let topics = relay.headwater.topics();
    let topic_id = topics.get(&relay.topic).await?.topic_id;
    let top = position.last.map_or(position.cursor, |(offset, _)| offset.max(position.cursor));
    if let Some((offset, known)) = position.last {
        let stored = store.fetch(topic_id, OffsetRange::one(Offset(offset))).await?;
        let head = store.head(topic_id).await?.map_or(0, |head| head.offset.0);
        let is_other = stored.first().is_some_and(|message| digest(message) != known);
        if is_other || head < offset {
            return Err(position_error(format!(
                "{}: the position in Kafka is of another database: it has offset {offset}, which is another message here or does not exist; \
                 set another id for this relay, or restore the database that the position belongs to",
                name(relay)
            )));
        }
    }
    if status.floor.0 > top {
        let range = OffsetRange::new(Offset(top + 1), status.floor);
        let done =
            store.fetch_within(topic_id, range, FetchBound::at_least_one(CHECKED_BYTES)).await?.messages;
        let dead_letters =
            relay.headwater.dead_letters().of(&relay.topic, &relay.group).list(OUTSTANDING_MAX).await?;
        // Neither an expired message nor a dead letter was sent.
        let is_missing = |message: &&Message| {
            message.expires_at().is_none()
                && !dead_letters.iter().any(|letter| letter.offset == message.offset)
        };
        if let Some(message) = done.iter().find(is_missing) {
            return Err(position_error(format!(
                "{}: the database has done offset {}, which is not in Kafka: Kafka has lost records, or the group was moved forward; to relay \
                 what is missing, move the group to offset {} (`headwater group seek`): what Kafka has is not sent again",
                name(relay),
                message.offset,
                top + 1
            )));
        }
    }
    Ok(())
}

fn check_guard(relay: &ExactlyOnce, status: &SubscriptionStatus, position: &Position) -> Result<(), Trouble> {
    if status.next.0 >= position.guard {
        return Ok(());
    }
    Err(position_error(format!(
        "{}: the group was moved back to offset {}, and everything up to offset {} was relayed before: the database was restored, or an operator \
         moved the group; to continue without duplicates move it to offset {} (`headwater group seek`); to relay again use another group name",
        name(relay),
        status.next,
        position.cursor,
        position.guard
    )))
}

fn name(relay: &ExactlyOnce) -> String {
    format!("exactly-once relay of topic {}, group {}", relay.topic, relay.group)
}

fn position_error(text: String) -> Trouble {
    Trouble::Fatal(ExactlyOnceError::Position(text))
}

#[cfg(test)]
mod tests;
