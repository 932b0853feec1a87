//! Publishes a batch in one transaction, with what says that it was read.

use std::collections::BTreeMap;
use std::sync::Arc;

use headwater::transaction::Transaction;
use headwater::{Error, ErrorKind, NewMessage};

use super::Bridge;
use super::health::Counts;
use super::incoming::Incoming;
use super::source::{Batch, Position};

/// Why a batch was not committed.
#[derive(Debug)]
pub(super) enum NotCommitted {
    /// A position is elsewhere: another process has this bridge, or a commit without an answer happened after all.
    Moved,
    Store(Error),
}

impl From<Error> for NotCommitted {
    fn from(error: Error) -> Self {
        NotCommitted::Store(error)
    }
}

/// Commits a batch. If the store refuses one of its messages, each is committed by itself, and parked if it is the one.
pub(super) async fn commit(bridge: &Bridge, batch: &Batch) -> Result<Counts, NotCommitted> {
    match publish(bridge, &batch.messages, &batch.positions).await {
        Err(NotCommitted::Store(error)) if is_of_a_message(&error) => {}
        done => return done,
    }
    let mut counts = Counts::default();
    for (at, message) in batch.messages.iter().enumerate() {
        let positions = batch.positions.get(at..=at).unwrap_or_default();
        let one = std::slice::from_ref(message);
        counts += match publish(bridge, one, positions).await {
            Err(NotCommitted::Store(error)) if is_of_a_message(&error) && message.poison.is_none() => {
                let mut refused = message.clone();
                refused.poison(error.to_string());
                publish(bridge, &[refused], positions).await?
            }
            done => done?,
        };
    }
    Ok(counts)
}

/// Whether the store refuses a message, which another attempt does not change.
fn is_of_a_message(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::InvalidInput | ErrorKind::PayloadTooLarge)
}

async fn publish(
    bridge: &Bridge,
    messages: &[Incoming],
    positions: &[Position],
) -> Result<Counts, NotCommitted> {
    let (messages, moves) = (messages.to_vec(), moves(positions));
    let headwater = bridge.headwater.clone();
    let (name, topic): (Arc<str>, Arc<str>) = (bridge.name.as_str().into(), bridge.topic.as_str().into());
    let producer = bridge.producer.clone();
    let stored = headwater.clone();
    let work = move |tx: Transaction| async move {
        let positions = stored.bridge_positions().within(&tx);
        for (source, (from, to)) in &moves {
            if !positions.advance(&name, source, *from, *to).await? {
                return Err(NotCommitted::Moved);
            }
        }
        let is_new = entered(&stored, &tx, &messages, &name).await?;
        let mut counts = Counts::default();
        let mut sound: Vec<NewMessage> = Vec::with_capacity(messages.len());
        for (incoming, is_new) in messages.into_iter().zip(is_new) {
            if !is_new {
                counts.duplicates += 1;
            } else if let Some(reason) = &incoming.poison {
                tracing::warn!(
                    bridge = &*name,
                    topic = &*topic,
                    origin = incoming.origin,
                    reason,
                    "message parked"
                );
                stored.dead_letters().within(&tx).park(&incoming.parked(&name, &topic)).await?;
                counts.parked += 1;
            } else {
                sound.push(incoming.message);
                counts.published += 1;
            }
        }
        if !sound.is_empty() {
            producer.send_batch(&sound).within(&tx).await?;
        }
        Ok(counts)
    };
    headwater.transaction(work).await
}

/// The first and last position of each source. By name: transactions of two processes wait for each other in one order.
fn moves(positions: &[Position]) -> BTreeMap<Arc<str>, (Option<i64>, i64)> {
    let mut moves: BTreeMap<Arc<str>, (Option<i64>, i64)> = BTreeMap::new();
    for position in positions {
        moves.entry(Arc::clone(&position.source)).or_insert((position.from, position.to)).1 = position.to;
    }
    moves
}

/// Which messages are new to the inbox; one without an id always is. The statements are sent without waiting for each other.
#[cfg(any(feature = "nats", feature = "rabbitmq"))]
async fn entered(
    headwater: &headwater::Headwater,
    tx: &Transaction,
    messages: &[Incoming],
    bridge: &str,
) -> Result<Vec<bool>, Error> {
    let inbox = &headwater.inbox().within(tx);
    let inserts = messages.iter().map(|message| async move {
        match &message.id {
            Some(id) => inbox.insert_if_absent(id, bridge).await,
            None => Ok(true),
        }
    });
    futures_util::future::try_join_all(inserts).await
}

/// Without these brokers no message has an id for the inbox.
#[cfg(not(any(feature = "nats", feature = "rabbitmq")))]
async fn entered(
    _headwater: &headwater::Headwater,
    _tx: &Transaction,
    messages: &[Incoming],
    _bridge: &str,
) -> Result<Vec<bool>, Error> {
    Ok(vec![true; messages.len()])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_moves_from_its_first_to_its_last_position() {
        let at = |source: &str, from, to| Position { source: source.into(), from, to };
        let found = moves(&[at("b", None, 1), at("a", Some(4), 5), at("b", Some(1), 2), at("a", Some(5), 9)]);
        let found: Vec<_> = found.iter().map(|(source, moved)| (&**source, *moved)).collect();
        assert_eq!(found, [("a", (Some(4), 9)), ("b", (None, 2))]);
    }
}
