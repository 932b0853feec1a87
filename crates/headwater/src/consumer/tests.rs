//! Rules of the runtime that are visible only inside: what happens to a held lease.

mod drivers;
mod silent;
pub(crate) mod still;

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::group::Group;
use super::member::Members;
use super::runtime::Runtime;
use super::settings::GroupSettings;
use super::work::LeaseWork;
use super::{BUFFER_BYTES_MAX, Handling, member_of};
use crate::handler::{Layers, Messages, States, Undecodable};
use crate::lease::{ClaimRequest, GroupLimits, Lease, OffsetRange, Want};
use crate::message::{Message, NewMessage, Offset};
use crate::name::{GroupName, Owner};
use crate::settle::{Outcome, Parts, Settlement};
use crate::subscription::Start;
use crate::{Headwater, TopicName};

/// A group on an embedded store with messages, one lease over all of them claimed for it.
pub(super) struct Scene {
    headwater: Headwater,
    pub(super) group: Arc<Group>,
    pub(super) lease: Lease,
    messages: Vec<Message>,
}

impl Scene {
    pub(super) async fn new(messages: usize) -> Self {
        Scene::with(messages, Handling::one(|_: Message, _| async { Ok(()) })).await
    }

    /// One whose handler never returns.
    pub(super) async fn busy(messages: usize) -> Self {
        Scene::with(messages, Handling::one(|_: Message, _| std::future::pending())).await
    }

    async fn with(messages: usize, handling: Handling) -> Self {
        let headwater = Headwater::in_memory().await.unwrap();
        let batch = vec![NewMessage::new("x"); messages];
        headwater.producer("orders").send_batch(&batch).await.unwrap();
        let store = headwater.store();
        let (topic, name) = (TopicName::new("orders").unwrap(), GroupName::new("email").unwrap());
        let subscription = store.subscribe(&topic, &name, Start::Beginning).await.unwrap();
        let runtime = headwater.runtime().unwrap();
        let wants = vec![Want::new(subscription.subscription_id, 1_000)];
        let owner = Owner::new("test").unwrap();
        let lease = store.claim(&ClaimRequest { owner, wants }).await.unwrap().leases.remove(0);
        let messages = store.fetch(lease.topic_id, lease.range).await.unwrap();
        let (states, layers, replier) = (States::default(), Layers::default(), headwater.replier());
        let member = member_of(&subscription, "one", handling, &states, &layers, &replier, "test").unwrap();
        let members = Members(vec![Arc::new(member)]);
        let settings = plain();
        let metrics = headwater.metrics().group(&topic, &name);
        let settler = runtime.settler.clone();
        let group = Group::new(subscription, settings, members, settler, Arc::default(), metrics);
        Scene { headwater, group: Arc::new(group), lease, messages }
    }

    /// Hands the lease to the group. Its only member has not started when this returns: workers are tasks of this
    /// thread.
    pub(super) fn fill(&self) {
        self.group.take_over(self.work());
    }

    /// Returns once all settlements are in the store.
    pub(super) async fn settle(&self) {
        self.headwater.runtime().unwrap().settler.flush().await;
    }

    /// What another owner can claim.
    pub(super) async fn claim(&self, owner: &str) -> Option<Lease> {
        let wants = vec![Want::new(self.group.subscription.subscription_id, 1_000)];
        let request = ClaimRequest { owner: Owner::new(owner).unwrap(), wants };
        self.headwater.store().claim(&request).await.unwrap().leases.into_iter().next()
    }

    pub(super) fn runtime(&self) -> Arc<Runtime> {
        self.headwater.runtime().unwrap()
    }

    fn work(&self) -> LeaseWork {
        self.work_of(Duration::from_secs(300))
    }

    /// The held lease, claimed now for this long.
    fn work_of(&self, lease_for: Duration) -> LeaseWork {
        let slices = vec![Messages::from(self.messages.clone())];
        let (of, policy) = (Arc::clone(&self.group.leases), self.group.policy());
        LeaseWork::new(self.lease.clone(), of, policy, lease_for, slices, vec![], Instant::now())
    }
}

/// Settings of a group without anything special.
pub(super) fn plain() -> GroupSettings {
    GroupSettings {
        concurrency: 1,
        batch: 100,
        lease: None,
        timeout: None,
        undecodable: Undecodable::default(),
        pause_after_burials: None,
        limits: GroupLimits::default(),
        catch_up_pace: None,
        buffer_bytes_max: BUFFER_BYTES_MAX,
        filter: None,
        states: Default::default(),
        layers: Default::default(),
        inbox_name: "test".into(),
        pulled: false,
    }
}

fn range(first: i64, last: i64) -> OffsetRange {
    OffsetRange::new(Offset(first), Offset(last))
}

fn retry() -> Outcome {
    Outcome::Retry { after: Duration::from_secs(1), error: "again".into(), key: None }
}

#[tokio::test]
async fn what_was_settled_apart_is_never_named_again_nor_swept_along() {
    let scene = Scene::new(6).await;
    let work = scene.work();
    assert!(!work.finish(Offset(1), Outcome::Ack));
    assert!(!work.finish(Offset(2), retry()));
    let early = work.settle_done(Duration::ZERO).expect("two are done");
    assert_eq!(early.parts, Parts::Each(vec![(range(1, 1), Outcome::Ack), (range(2, 2), retry())]));
    for offset in 3..=6 {
        work.finish(Offset(offset), Outcome::Ack);
    }
    let last = work.settle_all().expect("four are left");
    assert_eq!(last.parts, Parts::Each(vec![(range(3, 6), Outcome::Ack)]), "not the whole lease");
    assert_eq!(work.settle_all(), None, "only once");
}

#[tokio::test]
async fn an_early_settlement_that_was_refused_is_repeated() {
    let scene = Scene::new(3).await;
    let work = scene.work();
    work.finish(Offset(2), retry());
    let early = work.settle_done(Duration::ZERO).expect("one is done");
    work.unsettle(early);
    work.finish(Offset(1), Outcome::Ack);
    work.finish(Offset(3), Outcome::Ack);
    let last = work.settle_all().expect("all are left");
    let parts = vec![(range(1, 1), Outcome::Ack), (range(2, 2), retry()), (range(3, 3), Outcome::Ack)];
    assert_eq!(last.parts, Parts::Each(parts));
}

#[tokio::test]
async fn giving_back_releases_only_what_is_not_done() {
    let scene = Scene::new(4).await;
    let work = scene.work();
    work.finish(Offset(1), Outcome::Ack);
    work.finish(Offset(3), retry());
    let back: Settlement = work.give_back().expect("something is left");
    let parts = vec![
        (range(1, 1), Outcome::Ack),
        (range(2, 2), Outcome::Release),
        (range(3, 3), retry()),
        (range(4, 4), Outcome::Release),
    ];
    assert_eq!(back.parts, Parts::Each(parts));
    assert_eq!(work.give_back(), None);
}

#[tokio::test]
async fn a_lease_that_came_late_is_given_back_unseen() {
    let scene = Scene::busy(3).await;
    let second = Duration::from_secs(1);
    let late = scene.work_of(second * 3);
    assert!(!late.came_late() && !late.is_lost(Instant::now()) && !late.needs_extension());
    tokio::time::pause();
    tokio::time::advance(second * 2).await;
    assert!(late.came_late() && late.needs_extension() && !late.is_lost(Instant::now()));
    tokio::time::resume();
    scene.group.take_over(late);
    scene.settle().await;
    assert!(scene.claim("another").await.is_some_and(|lease| lease.range == scene.lease.range));
}

#[tokio::test]
async fn nothing_is_started_once_the_time_of_a_lease_is_over_unextended() {
    let scene = Scene::new(3).await;
    let second = Duration::from_secs(1);
    let work = scene.work_of(second * 3);
    tokio::time::pause();
    tokio::time::advance(second * 2).await;
    let asked_at = Instant::now();
    tokio::time::advance(second / 2).await;
    work.extended(asked_at);
    tokio::time::advance(second * 2).await;
    assert!(!work.is_lost(Instant::now()), "two and a half seconds since it was extended");
    tokio::time::advance(second).await;
    assert!(work.is_lost(Instant::now()), "three and a half seconds since it was extended");
}
