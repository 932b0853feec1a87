//! What a case works with: its store, its clock, and a scene of one topic with one group.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use jiff::{SignedDuration, Timestamp};

use super::harness::Harness;
use crate::clock::{Clock, ManualClock};
use crate::dead_letter::{DeadLetter, DeadLetterSelection};
use crate::error::{Error, ErrorKind, Result};
use crate::lease::{ClaimRequest, Claimed, GroupLimits, Lease, LeaseId, OffsetRange, Want};
use crate::message::{Message, NewMessage, Offset};
use crate::name::{GroupName, Owner, TopicName};
use crate::settle::{Outcome, Settlement};
use crate::store::{OpenOptions, Store};
use crate::subscription::{Outstanding, Start, Subscription, SubscriptionStatus};
use crate::topic::{TopicSettings, TopicStatus};

/// How long anything in real time may take before a case fails. Long, because test machines stall.
pub const DEADLINE: Duration = Duration::from_secs(30);

/// One running case.
pub struct Case {
    harness: Box<dyn Harness>,
    clock: ManualClock,
    opened: Mutex<Vec<Arc<dyn Store>>>,
}

impl Case {
    /// A case in this environment. Its clock starts at the real time, because the caller's transactions cannot be given
    /// another, and stands still.
    pub fn new(harness: Box<dyn Harness>) -> Self {
        Case { harness, clock: ManualClock::at(Timestamp::now()), opened: Mutex::default() }
    }

    /// The engine's test environment.
    pub fn harness(&self) -> &dyn Harness {
        self.harness.as_ref()
    }

    /// The time the stores of this case see.
    pub fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// The clock itself, for code that moves it during a call.
    pub fn clock(&self) -> ManualClock {
        self.clock.clone()
    }

    /// Moves the clock.
    pub fn advance(&self, by: Duration) {
        self.clock.advance(by);
    }

    /// Moves the clock as if maintenance had read it every minute, so that all of that time counts as elapsed.
    pub async fn pass(&self, by: Duration) {
        let (now, ms) = (self.now().as_millisecond(), by.as_millis());
        let sqlite = format!(
            "INSERT INTO headwater_elapsed (one, read_at_ms, elapsed_ms) VALUES (1, {now} + {ms}, {ms})
             ON CONFLICT (one) DO UPDATE SET read_at_ms = read_at_ms + {ms}, elapsed_ms = elapsed_ms + {ms}"
        );
        let postgres = format!(
            "INSERT INTO {{schema}}.elapsed AS c (read_at, elapsed_ms)
             VALUES (to_timestamp(({now} + {ms}) / 1000.0), {ms}) ON CONFLICT (one) DO UPDATE
             SET read_at = c.read_at + interval '{ms} ms', elapsed_ms = c.elapsed_ms + {ms}"
        );
        self.harness.sql(&sqlite, &postgres).await.expect("the elapsed time is moved");
        self.clock.advance(by);
    }

    /// Moves the clock by milliseconds.
    pub fn advance_ms(&self, by: u64) {
        self.advance(Duration::from_millis(by));
    }

    /// Turns the clock back, as database clocks sometimes do.
    pub fn turn_back(&self, by: Duration) {
        self.step(-SignedDuration::try_from(by).expect("a step fits"));
    }

    /// Sets the clock forward or back, without any time passing.
    pub fn step(&self, by: SignedDuration) {
        self.clock.set(self.clock.now() + by);
    }

    /// The options cases open with: the manual clock, and topics created by publishing.
    pub fn options(&self) -> OpenOptions {
        OpenOptions::default().clock(Clock::Manual(self.clock.clone())).auto_create(true)
    }

    /// The options of cases that need real time, such as those with several processes.
    pub fn real_time_options(&self) -> OpenOptions {
        OpenOptions::default().auto_create(true)
    }

    /// Opens the case's store.
    pub async fn open(&self) -> Arc<dyn Store> {
        self.open_with(self.options()).await.expect("the case's store opens")
    }

    /// Opens the case's store with these options.
    pub async fn open_with(&self, options: OpenOptions) -> Result<Arc<dyn Store>> {
        let store = self.harness.open(options).await?;
        self.keep(&store);
        Ok(store)
    }

    /// Opens any store of this engine.
    pub async fn open_at(&self, url: &str, options: OpenOptions) -> Result<Arc<dyn Store>> {
        let store = self.harness.open_at(url, options).await?;
        self.keep(&store);
        Ok(store)
    }

    fn keep(&self, store: &Arc<dyn Store>) {
        self.opened.lock().expect("no panic while held").push(Arc::clone(store));
    }

    /// A store with the topic `orders` with these settings and the group `workers` subscribed from the beginning.
    pub async fn scene(&self, settings: TopicSettings) -> Scene {
        Scene::new(self.open().await, "orders", settings).await
    }

    /// A scene with a default queue.
    pub async fn queue(&self) -> Scene {
        self.scene(TopicSettings::default()).await
    }

    /// A scene with a default fan-out topic.
    pub async fn pub_sub(&self) -> Scene {
        self.scene(TopicSettings::pub_sub()).await
    }

    /// Closes what the case left open. Closing twice is allowed, so stores that the case closed are not skipped.
    pub(super) async fn close_all(&self) {
        let stores = std::mem::take(&mut *self.opened.lock().expect("no panic while held"));
        for store in stores {
            let _ = store.close().await;
        }
    }
}

/// One topic with one group in an open store.
#[derive(Clone)]
pub struct Scene {
    /// The store.
    pub store: Arc<dyn Store>,
    /// The topic.
    pub topic: TopicName,
    /// The group's subscription.
    pub subscription: Subscription,
}

impl Scene {
    /// Creates topic and group.
    pub async fn new(store: Arc<dyn Store>, name: &str, settings: TopicSettings) -> Self {
        let topic = topic(name);
        store.create_topic(&topic, &settings).await.expect("the topic is created");
        let subscription =
            store.subscribe(&topic, &group("workers"), Start::Beginning).await.expect("the group subscribes");
        Scene { store, topic, subscription }
    }

    /// The same topic and group through another store.
    pub fn through(&self, store: &Arc<dyn Store>) -> Self {
        Scene { store: Arc::clone(store), ..self.clone() }
    }

    /// Another group of the same topic.
    pub async fn subscribe(&self, name: &str, start: Start) -> Self {
        let subscription =
            self.store.subscribe(&self.topic, &group(name), start).await.expect("the group subscribes");
        Scene { subscription, ..self.clone() }
    }

    /// Publishes `count` messages with the payloads `1`, `2` and so on in one batch, and returns their offsets.
    pub async fn publish(&self, count: usize) -> Vec<i64> {
        let messages: Vec<_> = (1..=count).map(|n| NewMessage::new(n.to_string())).collect();
        self.publish_all(&messages).await
    }

    /// Publishes these messages, none delayed, and returns their offsets.
    pub async fn publish_all(&self, messages: &[NewMessage]) -> Vec<i64> {
        let published = self.store.publish(&self.topic, messages).await.expect("the batch is published");
        assert_eq!(published.len(), messages.len(), "one answer per message");
        published.iter().map(|one| one.offset.expect("not delayed").0).collect()
    }

    /// A claim by an owner for at most `count` messages.
    pub async fn claimed(&self, owner_name: &str, count: u32) -> Claimed {
        self.claimed_for(owner_name, count, None).await
    }

    /// A claim with a lease other than the topic's.
    pub async fn claimed_for(&self, owner_name: &str, count: u32, lease: Option<Duration>) -> Claimed {
        self.claimed_as(owner_name, Want { lease, ..self.want(count) }).await
    }

    /// A claim with limits for the whole group.
    pub async fn claimed_within(&self, owner_name: &str, count: u32, limits: GroupLimits) -> Claimed {
        self.claimed_as(owner_name, Want { limits, ..self.want(count) }).await
    }

    async fn claimed_as(&self, owner_name: &str, want: Want) -> Claimed {
        let request = ClaimRequest { owner: owner(owner_name), wants: vec![want] };
        self.store.claim(&request).await.expect("the claim is answered")
    }

    /// A want for at most `count` messages.
    pub fn want(&self, count: u32) -> Want {
        Want::new(self.subscription.subscription_id, count)
    }

    /// The leases of a claim.
    pub async fn claim(&self, owner_name: &str, count: u32) -> Vec<Lease> {
        self.claimed(owner_name, count).await.leases
    }

    /// A claim that must return exactly one lease. A `claimable` check before it must have found the subscription.
    pub async fn claim_one(&self, owner_name: &str, count: u32) -> Lease {
        let claimable = self.claimable().await;
        let mut leases = self.claim(owner_name, count).await;
        assert_eq!(leases.len(), 1, "one lease expected: {leases:?}");
        assert!(claimable, "a check found nothing before the claim that got {leases:?}");
        leases.remove(0)
    }

    /// Whether a claim may find something.
    pub async fn claimable(&self) -> bool {
        let id = self.subscription.subscription_id;
        !self.store.claimable(&[id]).await.expect("the subscription is checked").is_empty()
    }

    /// A claim that must return nothing.
    pub async fn claim_nothing(&self, owner_name: &str, count: u32) {
        let leases = self.claim(owner_name, count).await;
        assert_eq!(leases, [], "nothing is to be handed out");
    }

    /// Settles one lease.
    pub async fn settle(&self, settlement: Settlement) -> Result<()> {
        let mut answers = self.store.settle(&[settlement]).await.expect("the store settles");
        assert_eq!(answers.len(), 1, "one answer per settlement");
        answers.remove(0)
    }

    /// Settles parts of a lease, given as first and last offset.
    pub async fn settle_each(
        &self,
        lease: impl Into<LeaseId>,
        parts: Vec<((i64, i64), Outcome)>,
    ) -> Result<()> {
        let parts = parts.into_iter().map(|((first, last), outcome)| (range(first, last), outcome));
        self.settle(Settlement::each(lease, parts.collect())).await
    }

    /// Acks a whole lease, which must be held.
    pub async fn ack(&self, lease: &Lease) {
        self.settle(Settlement::ack_all(lease)).await.expect("the lease is held");
    }

    /// Extends one lease.
    pub async fn extend(&self, lease: impl Into<LeaseId>, by: Duration) -> Result<()> {
        let mut answers = self.store.extend(&[lease.into()], by).await.expect("the store extends");
        assert_eq!(answers.len(), 1, "one answer per token");
        answers.remove(0)
    }

    /// Sends an owner's heartbeat, which declares others dead after this many milliseconds of silence. Returns how many
    /// leases ended.
    pub async fn heartbeat_judging(&self, owner_name: &str, silent_ms: u64) -> u64 {
        let silent_for = Some(Duration::from_millis(silent_ms));
        let answer = self.store.heartbeat(&owner(owner_name), silent_for, &[]).await;
        answer.expect("the heartbeat is answered").ended
    }

    /// Proves that an owner is alive, and takes over from owners that ended. Returns how many leases ended.
    pub async fn take_over(&self, owner_name: &str) -> u64 {
        take_over(self.store.as_ref(), &owner(owner_name)).await
    }

    /// The messages of a lease.
    pub async fn fetch(&self, lease: &Lease) -> Vec<Message> {
        self.store.fetch(lease.topic_id, lease.range).await.expect("the range is fetched")
    }

    /// The messages between two offsets.
    pub async fn fetch_range(&self, first: i64, last: i64) -> Vec<Message> {
        let topic_id = self.subscription.topic.topic_id;
        self.store.fetch(topic_id, range(first, last)).await.expect("the range is fetched")
    }

    /// The group's progress.
    pub async fn status(&self) -> SubscriptionStatus {
        let all = self.store.subscriptions(&self.topic).await.expect("the subscriptions are listed");
        let id = self.subscription.subscription_id;
        all.into_iter().find(|status| status.subscription_id == id).expect("the subscription is listed")
    }

    /// The group's outstanding ranges.
    pub async fn outstanding(&self) -> Vec<Outstanding> {
        let id = self.subscription.subscription_id;
        self.store.outstanding(id, 10_000).await.expect("outstanding ranges are listed")
    }

    /// The topic's progress after maintenance ran once: an engine may advance its head only then.
    pub async fn topic_status(&self) -> TopicStatus {
        self.store.advance_heads().await.expect("maintenance runs");
        let all = self.store.topics().await.expect("the topics are listed");
        all.into_iter().find(|status| status.topic.name == self.topic).expect("the topic is listed")
    }

    /// The group's dead letters.
    pub async fn dead_letters(&self) -> Vec<DeadLetter> {
        self.store
            .dead_letters(&self.dead_letter_selection(), 10_000)
            .await
            .expect("the dead letters are listed")
    }

    /// A selection of all of the group's dead letters, to be narrowed.
    pub fn dead_letter_selection(&self) -> DeadLetterSelection {
        DeadLetterSelection::all(self.subscription.subscription_id)
    }

    /// Claims and acks until nothing is left, and returns the messages in the order of delivery.
    pub async fn drain(&self, owner_name: &str) -> Vec<Message> {
        let mut got = Vec::new();
        loop {
            let leases = self.claim(owner_name, 100).await;
            if leases.is_empty() {
                return got;
            }
            for lease in leases {
                got.extend(self.fetch(&lease).await);
                self.ack(&lease).await;
            }
        }
    }

    /// Claims and acks until this many messages were delivered, or panics at the deadline. For concurrent commits.
    pub async fn drain_until(&self, owner_name: &str, count: usize) -> Vec<Message> {
        let until = Instant::now() + DEADLINE;
        let mut got = self.drain(owner_name).await;
        while got.len() < count {
            let so_far = offsets_of(&got);
            assert!(Instant::now() < until, "{} of {count} messages were delivered: {so_far:?}", got.len());
            pause().await;
            got.extend(self.drain(owner_name).await);
        }
        got
    }
}

/// Proves that an owner is alive, and takes over from owners that ended. Repeated where a slow server did not answer in time.
pub async fn take_over(store: &dyn Store, owner: &Owner) -> u64 {
    let until = Instant::now() + DEADLINE;
    loop {
        match store.take_over(owner).await {
            Err(error) if error.is_retryable() && Instant::now() < until => {}
            ended => return ended.expect("the owner proves that it is alive"),
        }
    }
}

/// A short pause between two checks of something that happens in real time.
pub async fn pause() {
    tokio::time::sleep(Duration::from_millis(5)).await;
}

/// A topic's name.
pub fn topic(name: &str) -> TopicName {
    TopicName::new(name).expect("a valid topic name")
}

/// A group's name.
pub fn group(name: &str) -> GroupName {
    GroupName::new(name).expect("a valid group name")
}

/// An owner's name.
pub fn owner(name: &str) -> Owner {
    Owner::new(name).expect("a valid owner name")
}

/// A range of offsets.
pub fn range(first: i64, last: i64) -> OffsetRange {
    OffsetRange::new(Offset(first), Offset(last))
}

/// A retry after milliseconds.
pub fn retry(after_ms: u64, error: &str) -> Outcome {
    Outcome::Retry { after: Duration::from_millis(after_ms), error: error.into(), key: None }
}

/// An outcome that buries the message.
pub fn bury(error: &str) -> Outcome {
    Outcome::Bury { error: error.into() }
}

/// All offsets that leases span, in their order.
pub fn spanned(leases: &[Lease]) -> Vec<i64> {
    leases.iter().flat_map(|lease| lease.range.first.0..=lease.range.last.0).collect()
}

/// The offsets of messages.
pub fn offsets_of(messages: &[Message]) -> Vec<i64> {
    messages.iter().map(|message| message.offset.0).collect()
}

/// The payloads of messages as text.
pub fn payloads_of(messages: &[Message]) -> Vec<String> {
    messages.iter().map(|message| String::from_utf8_lossy(&message.payload).into_owned()).collect()
}

/// The error of a call that must fail in this way.
#[track_caller]
pub fn failed<T: std::fmt::Debug>(result: Result<T>, kind: ErrorKind) -> Error {
    let error = match result {
        Ok(value) => panic!("{kind:?} expected, got {value:?}"),
        Err(error) => error,
    };
    assert_eq!(error.kind(), kind, "{error:?}");
    error
}
