//! Drives Headwater through its public API, the same way on both databases.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use bytes::Bytes;
use headwater::store::{ClaimRequest, Owner, Settlement, Store, Subscription, Want};
use headwater::{Consumer, GroupName, Headwater, NewMessage, Start, TopicName, TopicSettings};

use super::PAYLOAD_BYTES;
use super::measure::{Rate, Run, run_tasks};

/// An open store with the shortcuts the measurements need.
#[derive(Clone, Debug)]
pub(crate) struct Engine {
    headwater: Headwater,
    pub(crate) store: Arc<dyn Store>,
}

impl Engine {
    /// Opens the store at a URL.
    pub(crate) async fn open(url: &str) -> Result<Self> {
        let headwater = Headwater::open(url).await?;
        Ok(Engine { store: Arc::clone(headwater.store()), headwater })
    }

    /// The handle, for what programs use.
    pub(crate) fn headwater(&self) -> &Headwater {
        &self.headwater
    }

    /// Creates a fan-out topic, so that every measurement can use its own groups.
    pub(crate) async fn topic(&self, name: &str) -> Result<TopicName> {
        let name = TopicName::new(name)?;
        self.store.create_topic(&name, &TopicSettings::pub_sub()).await?;
        Ok(name)
    }

    /// Subscribes a new group from the beginning.
    pub(crate) async fn group(&self, topic: &TopicName, group: &str) -> Result<Subscription> {
        Ok(self.store.subscribe(topic, &GroupName::new(group)?, Start::Beginning).await?)
    }

    /// Publishes batches in a loop in each task.
    pub(crate) async fn publish_batches(
        &self,
        topic: &TopicName,
        batch: usize,
        tasks: usize,
        during: Duration,
    ) -> Result<Rate> {
        run_tasks(tasks, during, |_, run| {
            let (store, topic) = (Arc::clone(&self.store), topic.clone());
            async move {
                while run.goes_on() {
                    let published = store.publish(&topic, &messages(batch)).await?;
                    ensure!(published.len() == batch, "published {} of {batch}", published.len());
                    run.count(batch);
                }
                Ok(())
            }
        })
        .await
    }

    /// Publishes this many messages, in batches large enough not to matter.
    pub(crate) async fn fill(&self, topic: &TopicName, messages_wanted: usize) -> Result<()> {
        let mut left = messages_wanted;
        while left > 0 {
            let batch = left.min(5_000);
            self.store.publish(topic, &messages(batch)).await?;
            left -= batch;
        }
        Ok(())
    }

    /// Sends one message at a time from each of `senders` tasks, all through one producer.
    pub(crate) async fn send_singles(
        &self,
        topic: &TopicName,
        senders: usize,
        during: Duration,
    ) -> Result<Rate> {
        let producer = self.headwater.producer(topic.as_str());
        run_tasks(senders, during, |_, run| {
            let producer = producer.clone();
            async move {
                while run.goes_on() {
                    producer.send(message()).await?;
                    run.count(1);
                }
                Ok(())
            }
        })
        .await
    }

    /// Claims, fetches and acks batches in a loop in each task, until the time or the backlog is used up.
    pub(crate) async fn consume(
        &self,
        subscription: &Subscription,
        batch: u32,
        tasks: usize,
        during: Duration,
    ) -> Result<Rate> {
        run_tasks(tasks, during, |task, run| {
            let (store, subscription) = (Arc::clone(&self.store), subscription.clone());
            async move {
                let request = request(&format!("lab-{task}"), &[&subscription], batch)?;
                while run.goes_on() && step(store.as_ref(), &request, &run).await? > 0 {}
                Ok(())
            }
        })
        .await
    }

    /// Serves several groups from one loop, as one process does: one claim for all of them, each page of messages
    /// fetched once, one settlement for all. Ends when the backlog does; counts each group's messages.
    pub(crate) async fn consume_groups(&self, subscriptions: &[Subscription], batch: u32) -> Result<u64> {
        let wants: Vec<&Subscription> = subscriptions.iter().collect();
        let request = request("lab-groups", &wants, batch)?;
        let mut done = 0;
        loop {
            let claimed = self.store.claim(&request).await?;
            if claimed.leases.is_empty() {
                return Ok(done);
            }
            let ranges: BTreeSet<_> =
                claimed.leases.iter().map(|lease| (lease.topic_id, lease.range)).collect();
            let mut pages = BTreeMap::new();
            for (topic, range) in ranges {
                pages.insert(range, self.store.fetch(topic, range).await?);
            }
            done += claimed.leases.iter().map(|lease| pages[&lease.range].len() as u64).sum::<u64>();
            let acks: Vec<_> = claimed.leases.iter().map(Settlement::ack_all).collect();
            for settled in self.store.settle(&acks).await? {
                settled?;
            }
        }
    }

    /// A consumer as programs use it, one message per batch.
    pub(crate) async fn consumer(&self, topic: &TopicName, group: &str) -> Result<Consumer> {
        Ok(self.headwater.consumer(topic.as_str(), group).batch(1).open().await?)
    }
}

/// Waits for the next message, returns when it arrived, and acks it.
pub(crate) async fn receive(consumer: &mut Consumer, at_most: Duration) -> Result<Option<Instant>> {
    let Some(batch) = consumer.next(at_most).await? else { return Ok(None) };
    let received = Instant::now();
    batch.ack().await?;
    Ok(Some(received))
}

/// One claim, fetch and ack; returns how many messages it handled.
async fn step(store: &dyn Store, request: &ClaimRequest, run: &Run) -> Result<usize> {
    let claimed = store.claim(request).await?;
    let mut count = 0;
    for lease in &claimed.leases {
        let messages = store.fetch(lease.topic_id, lease.range).await?;
        ensure!(
            messages.iter().all(|message| message.payload.len() == PAYLOAD_BYTES),
            "a payload came back changed"
        );
        count += messages.len();
    }
    let acks: Vec<_> = claimed.leases.iter().map(Settlement::ack_all).collect();
    if !acks.is_empty() {
        for settled in store.settle(&acks).await? {
            settled?;
        }
    }
    run.count(count);
    Ok(count)
}

fn request(owner: &str, subscriptions: &[&Subscription], batch: u32) -> Result<ClaimRequest> {
    let wants = subscriptions.iter().map(|subscription| Want::new(subscription.subscription_id, batch));
    Ok(ClaimRequest { owner: Owner::new(owner)?, wants: wants.collect() })
}

fn messages(count: usize) -> Vec<NewMessage> {
    vec![message(); count]
}

fn message() -> NewMessage {
    static PAYLOAD: [u8; PAYLOAD_BYTES] = [b'x'; PAYLOAD_BYTES];
    NewMessage::new(Bytes::from_static(&PAYLOAD))
}
