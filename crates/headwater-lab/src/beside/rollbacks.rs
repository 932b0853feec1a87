//! Many publishes of one topic are rolled back, while a transaction that published to another topic stays open.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Result;
use headwater::store::{ClaimRequest, Owner, Settlement, Store, Subscription, Want};
use headwater::{GroupName, Headwater, NewMessage, Start, TopicName, TopicSettings};

use super::open_transaction::{OpenTransaction, namespace};
use super::probe::TIMES_MAX;
use super::{Place, Setting};
use crate::check::{Floor, Judged, Unit, ms, progress};
use crate::server::connect;

/// A drain ends after this time, even if messages are left.
const DRAIN_MAX: Duration = Duration::from_secs(60);
/// A new message has to arrive within this time; the check waits a little longer for it.
const NEW_WITHIN: Duration = Duration::from_secs(1);
const NEW_MAX: Duration = Duration::from_secs(20);
/// Rollbacks sent to the server together.
const BATCH: u64 = 200;

pub(super) async fn run(place: &Place<'_>, setting: &Setting) -> Result<Vec<Judged>> {
    let rollbacks = setting.count(10_000, 2_000);
    let headwater = place.open().await?;
    let quiet = Backlog::make(place, &headwater, "quiet", rollbacks).await?.drain().await?;
    let other = TopicName::new("other")?;
    headwater.store().create_topic(&other, &TopicSettings::pub_sub()).await?;
    let open = OpenTransaction::begin(place, &headwater, "READ COMMITTED").await?;
    open.publish(&other, 1).await?;
    let backlog = Backlog::make(place, &headwater, "beside", rollbacks).await?;
    let beside = backlog.drain().await?;
    progress("a new message");
    let new = backlog.new_message().await?;
    open.roll_back().await?;
    headwater.close().await?;
    Ok(judge(&quiet, &beside, new, rollbacks))
}

/// How many messages were acked, and how long that took.
#[derive(Debug)]
struct Drained {
    messages: u64,
    claims: u64,
    took: Duration,
}

fn judge(quiet: &Drained, beside: &Drained, new: Duration, wanted: u64) -> Vec<Judged> {
    vec![
        // A drain that did not finish took at least its time limit.
        Judged::beside("drain of the messages between", ms(quiet.took), ms(beside.took), TIMES_MAX)
            .note(format!("{} claims, then {}", quiet.claims, beside.claims)),
        Judged::all_of("messages drained on the quiet store", quiet.messages, wanted),
        Judged::all_of("messages drained beside the open publisher", beside.messages, wanted)
            .note(format!("within {DRAIN_MAX:?}")),
        Judged::new("a new message", ms(new), Unit::Milliseconds, Floor::AtMost(ms(NEW_WITHIN))),
    ]
}

/// A topic whose messages alternate with offsets that are never used.
struct Backlog {
    store: Arc<dyn Store>,
    subscription: Subscription,
    messages: u64,
}

impl Backlog {
    async fn make(place: &Place<'_>, headwater: &Headwater, topic: &str, messages: u64) -> Result<Self> {
        let (store, name) = (Arc::clone(headwater.store()), TopicName::new(topic)?);
        store.create_topic(&name, &TopicSettings::pub_sub()).await?;
        let subscription = store.subscribe(&name, &GroupName::new("workers")?, Start::Beginning).await?;
        progress(&format!("{messages} rollbacks"));
        let (client, schema) = (connect(&place.url).await?, namespace(headwater)?.quoted());
        // Only the drain is measured.
        client.batch_execute("SET synchronous_commit = off").await?;
        let publish = format!("SELECT {schema}.publish('{topic}', '{{\"n\":1}}')");
        let pair = format!("BEGIN; {publish}; ROLLBACK; BEGIN; {publish}; COMMIT;");
        let mut left = messages;
        while left > 0 {
            let count = left.min(BATCH);
            client.batch_execute(&pair.repeat(usize::try_from(count)?)).await?;
            left -= count;
        }
        Ok(Backlog { store, subscription, messages })
    }

    async fn drain(&self) -> Result<Drained> {
        progress("draining");
        let (begin, mut messages, mut claims) = (Instant::now(), 0, 0);
        while messages < self.messages && begin.elapsed() < DRAIN_MAX {
            messages += self.claim().await?;
            claims += 1;
        }
        Ok(Drained { messages, claims, took: begin.elapsed() })
    }

    /// How long a message published now takes to arrive.
    async fn new_message(&self) -> Result<Duration> {
        let begin = Instant::now();
        let new = self.store.publish(&self.subscription.topic.name, &[NewMessage::new("new")]).await?;
        let mut last = None;
        while last != new[0].offset && begin.elapsed() < NEW_MAX {
            for lease in self.store.claim(&self.request()?).await?.leases {
                last = self.store.fetch(lease.topic_id, lease.range).await?.last().map(|one| one.offset);
                self.store.settle(&[Settlement::ack_all(&lease)]).await?.remove(0)?;
            }
        }
        Ok(begin.elapsed())
    }

    fn request(&self) -> Result<ClaimRequest> {
        let wants = vec![Want::new(self.subscription.subscription_id, 500)];
        Ok(ClaimRequest { owner: Owner::new("the drain")?, wants })
    }

    /// One claim, its messages read and acked; returns how many there were.
    async fn claim(&self) -> Result<u64> {
        let claimed = self.store.claim(&self.request()?).await?;
        let mut messages = 0;
        for lease in &claimed.leases {
            messages += self.store.fetch(lease.topic_id, lease.range).await?.len() as u64;
            self.store.settle(&[Settlement::ack_all(lease)]).await?.remove(0)?;
        }
        if claimed.leases.is_empty() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        Ok(messages)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slow_or_unfinished_drain_and_a_late_message_are_missed() {
        let drained = |messages, ms| Drained { messages, claims: 1, took: Duration::from_millis(ms) };
        let is_met = |beside: Drained, new_ms| {
            let judged = judge(&drained(100, 400), &beside, Duration::from_millis(new_ms), 100);
            judged.iter().all(Judged::is_met)
        };
        assert!(is_met(drained(100, 800), 1_000));
        assert!(!is_met(drained(100, 801), 10));
        assert!(!is_met(drained(99, 400), 10), "a drain that gave up early is fast");
        assert!(!is_met(drained(100, 400), 1_001));
    }
}
