//! Order by key: lanes with one owner each, blocked keys and keys that continue.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Duration;

use super::case::{Case, Scene, payloads_of, spanned};
use super::lane_consumer::{Handled, LaneConsumer};
use super::rng::{Rng, seeds};
use crate::limits::PARKED_PER_LANE_MAX;
use crate::message::{Message, NewMessage};
use crate::settle::Outcome;
use crate::topic::{Ordering, TopicSettings};

/// Seeds that once found a bug.
const REGRESSIONS: &[u64] = &[];

fn ordered(lanes: u16) -> TopicSettings {
    TopicSettings {
        ordering: Ordering::Key,
        lanes,
        lease: Duration::from_secs(10),
        max_attempts: 1_000,
        ..TopicSettings::default()
    }
}

fn keyed(key: &str, text: &str) -> NewMessage {
    NewMessage::new(text.to_owned()).key(key)
}

/// Runs one consumer until nothing is delivered any more, and returns what it handled.
async fn consume(
    scene: &Scene,
    consumer: &mut LaneConsumer,
    count: u32,
    fails: &[(&str, u64)],
) -> Vec<String> {
    let fails: HashMap<_, _> = fails.iter().copied().collect();
    let mut handled = Vec::new();
    let mut claims = 0;
    while consumer.claim(scene, count).await {
        claims += 1;
        assert!(claims < 2_000, "claims repeat without end after {} messages", handled.len());
        let judge = |message: &Message, _: &_| {
            let text = String::from_utf8_lossy(&message.payload).into_owned();
            let verdict = fails.get(text.as_str()).map_or(Handled::Done, |ms| Handled::Failed(*ms));
            handled.push(text);
            verdict
        };
        let mut judge = judge;
        while consumer.handle_next(scene.subscription.lanes, &mut judge) {}
        assert!(consumer.settle(scene).await, "no lease was lost");
    }
    handled
}

/// Lanes divide the log: every message has one lane, and a lane has one owner at a time.
pub async fn lanes_have_one_owner_each(case: &Case) {
    let scene = case.scene(ordered(4)).await;
    let messages: Vec<_> = (0..100).map(|n| keyed(&format!("key-{}", n % 20), &n.to_string())).collect();
    scene.publish_all(&messages).await;
    let mut holders: Vec<_> = (0..4).map(|n| LaneConsumer::new(&format!("holder-{n}"))).collect();
    let mut lanes = HashSet::new();
    for holder in &mut holders {
        assert!(holder.claim(&scene, 1_000).await, "a lane is free for {}", holder.owner);
        let new = holder.lanes().into_iter().all(|lane| lanes.insert(lane));
        assert!(new, "a lane has two owners");
    }
    assert_eq!(lanes, HashSet::from([0, 1, 2, 3]));
    scene.claim_nothing("one too many", 1_000).await;
    scene.claim_nothing("holder-0", 1_000).await;

    let mut by_holder = Vec::new();
    for holder in &mut holders {
        let mut keys = HashSet::new();
        let mut handled = Vec::new();
        while holder.handle_next(4, |message, _| {
            keys.insert(message.key.clone().unwrap());
            handled.push(String::from_utf8_lossy(&message.payload).into_owned());
            Handled::Done
        }) {}
        assert!(holder.settle(&scene).await);
        by_holder.push((keys, handled));
    }
    let keys: usize = by_holder.iter().map(|(keys, _)| keys.len()).sum();
    assert_eq!(keys, 20, "no key is in two lanes");
    let mut all: Vec<u32> =
        by_holder.iter().flat_map(|(_, handled)| handled).map(|n| n.parse().unwrap()).collect();
    all.sort_unstable();
    assert!(all.into_iter().eq(0..100), "every message was handled once");
    assert_eq!(scene.status().await.floor.0, 100);
}

/// The next owner gets a lane when the first is done, and continues after it.
pub async fn a_lane_continues_with_its_next_owner(case: &Case) {
    let scene = case.scene(ordered(1)).await;
    let messages: Vec<_> = (0..10).map(|n| keyed("k", &n.to_string())).collect();
    scene.publish_all(&messages).await;
    let mut seen = Vec::new();
    for holder in ["a", "b", "c", "d"] {
        let leases = scene.claim(holder, 3).await;
        scene.claim_nothing("meanwhile", 3).await;
        seen.extend(spanned(&leases));
        for lease in &leases {
            scene.ack(lease).await;
        }
    }
    assert!(seen.into_iter().eq(1..=10), "one after the other");
}

/// A failed key waits for its retry, later messages of the key are parked, and the other keys of the lane continue.
pub async fn a_blocked_key_parks_and_others_continue(case: &Case) {
    let scene = case.scene(ordered(1)).await;
    let first = [keyed("a", "a1"), keyed("b", "b1"), keyed("a", "a2"), keyed("b", "b2")];
    scene.publish_all(&first).await;
    let mut consumer = LaneConsumer::new("w");
    assert_eq!(consume(&scene, &mut consumer, 10, &[("a1", 5_000)]).await, ["a1", "b1", "b2"]);
    scene.publish_all(&[keyed("b", "b3"), keyed("a", "a3"), keyed("c", "c1")]).await;
    assert_eq!(consume(&scene, &mut consumer, 10, &[]).await, ["b3", "c1"]);
    let status = scene.status().await;
    assert_eq!((status.leased, status.waiting, status.floor.0), (0, 3, 0));
    case.advance_ms(4_999);
    assert_eq!(consume(&scene, &mut consumer, 10, &[]).await, Vec::<String>::new());
    case.advance_ms(1);
    assert_eq!(consume(&scene, &mut consumer, 10, &[]).await, ["a1", "a2", "a3"]);
    assert_eq!(scene.status().await.floor.0, 7);
}

/// The same with claims of one message: the retry itself is never parked behind later messages of its key.
pub async fn a_retry_is_not_blocked_by_its_followers(case: &Case) {
    let scene = case.scene(ordered(1)).await;
    scene.publish_all(&[keyed("a", "a1"), keyed("a", "a2"), keyed("b", "b1"), keyed("a", "a3")]).await;
    let mut consumer = LaneConsumer::new("w");
    assert_eq!(consume(&scene, &mut consumer, 10, &[("a1", 1_000)]).await, ["a1", "b1"]);
    case.advance_ms(1_000);
    let mut handled = Vec::new();
    for _ in 0..20 {
        let mut next = LaneConsumer::new("w");
        if !next.claim(&scene, 1).await {
            break;
        }
        while next.handle_next(1, |message, lease| {
            let text = String::from_utf8_lossy(&message.payload).into_owned();
            handled.push((text, lease.attempt));
            Handled::Done
        }) {}
        assert!(next.settle(&scene).await);
    }
    assert_eq!(handled, [("a1".into(), 2), ("a2".into(), 1), ("a3".into(), 1)]);
    assert_eq!(scene.status().await.floor.0, 4);
}

/// A key that fails again while later messages are handed out with it keeps them behind.
pub async fn a_key_that_fails_again_keeps_its_order(case: &Case) {
    let scene = case.scene(ordered(2)).await;
    scene.publish_all(&[keyed("a", "a1"), keyed("a", "a2"), keyed("a", "a3")]).await;
    let mut consumer = LaneConsumer::new("w");
    for attempt in 1..=4 {
        let handled = consume(&scene, &mut consumer, 10, &[("a1", 1_000)]).await;
        assert_eq!(handled, ["a1"], "attempt {attempt}");
        scene.publish_all(&[keyed("a", &format!("a{}", attempt + 3))]).await;
        case.advance_ms(1_000);
    }
    let handled = consume(&scene, &mut consumer, 10, &[("a3", 1_000)]).await;
    assert_eq!(handled, ["a1", "a2", "a3"]);
    case.advance_ms(1_000);
    assert_eq!(consume(&scene, &mut consumer, 10, &[]).await, ["a3", "a4", "a5", "a6", "a7"]);
}

/// A buried message no longer blocks its key.
pub async fn burying_unblocks_the_key(case: &Case) {
    let scene = case.scene(ordered(1)).await;
    scene.publish_all(&[keyed("a", "a1"), keyed("a", "a2")]).await;
    let mut consumer = LaneConsumer::new("w");
    assert_eq!(consume(&scene, &mut consumer, 10, &[("a1", 1_000)]).await, ["a1"]);
    case.advance_ms(1_000);
    let lease = scene.claim("w", 1).await.remove(0);
    assert_eq!(payloads_of(&scene.fetch(&lease).await), ["a1"]);
    scene.settle_each(&lease, vec![((1, 1), super::case::bury("hopeless"))]).await.unwrap();
    assert_eq!(consume(&scene, &mut consumer, 10, &[]).await, ["a2"]);
    assert_eq!(scene.dead_letters().await.len(), 1);
}

/// The lane of an owner that disappeared moves to another, in halves, and keeps its order.
pub async fn a_lane_is_reassigned_when_its_owner_disappears(case: &Case) {
    let scene = case.scene(ordered(1)).await;
    let messages: Vec<_> = (1..=8).map(|n| keyed("k", &n.to_string())).collect();
    scene.publish_all(&messages).await;
    let mut vanishing = LaneConsumer::new("vanishing");
    assert!(vanishing.claim(&scene, 8).await);
    scene.claim_nothing("other", 8).await;
    case.advance_ms(10_000);
    let mut other = LaneConsumer::new("other");
    let handled = consume(&scene, &mut other, 8, &[]).await;
    assert_eq!(handled, ["1", "2", "3", "4", "5", "6", "7", "8"]);
    assert!(!vanishing.settle_lost(&scene).await, "the old owner settles nothing");
    assert_eq!(scene.status().await.reassigned, 1);
}

/// Messages without a key have no order; they spread over the lanes, and each is delivered once.
pub async fn messages_without_a_key_are_delivered_once(case: &Case) {
    let scene = case.scene(ordered(3)).await;
    scene.publish(60).await;
    let mut handled = HashSet::new();
    for owner in ["a", "b", "c", "a", "b", "c"] {
        let mut consumer = LaneConsumer::new(owner);
        for text in consume(&scene, &mut consumer, 10, &[]).await {
            assert!(handled.insert(text.clone()), "{text} was delivered twice");
        }
    }
    assert_eq!(handled.len(), 60);
    assert_eq!(scene.status().await.floor.0, 60);
}

/// A lane with its maximum of parked messages takes no new ones until its key continues; then all are delivered in
/// order.
pub async fn a_lane_limits_its_parked_messages(case: &Case) {
    let scene = case.scene(ordered(1)).await;
    let limit = u64::try_from(PARKED_PER_LANE_MAX).unwrap();
    let count = limit + 600;
    let messages: Vec<_> = (1..=count).map(|n| keyed("k", &n.to_string())).collect();
    scene.publish_all(&messages).await;
    let mut consumer = LaneConsumer::new("w");
    scene.heartbeat("w").await;
    assert_eq!(consume(&scene, &mut consumer, 100, &[("1", 1_000)]).await, ["1"]);
    let status = scene.status().await;
    assert!(status.waiting >= limit, "{} waiting", status.waiting);
    assert!(status.waiting < limit + 200, "{} waiting; the lane continued too long", status.waiting);
    assert!(u64::try_from(status.next.0).unwrap() < limit + 200);
    assert_eq!(
        (status.lanes_full, status.health_issues(case.now())),
        (1, vec![crate::store::HealthIssue::LaneFull])
    );
    case.advance_ms(1_000);
    let handled = consume(&scene, &mut consumer, 100, &[]).await;
    assert!(handled.iter().map(|n| n.parse::<u64>().unwrap()).eq(1..=count), "all, in order");
    let status = scene.status().await;
    assert_eq!((status.lanes_full, status.health_issues(case.now())), (0, vec![]));
}

/// Several members, failures, crashes and lost leases in random interleavings: order per key holds.
pub async fn order_per_key_survives_retries_and_crashes(case: &Case) {
    let store = case.open().await;
    for seed in seeds(REGRESSIONS, 12) {
        println!("order seed {seed} (HEADWATER_SEED={seed} runs it alone)");
        let mut rng = Rng::new(seed);
        let lanes = u16::try_from(rng.between(1, 4)).unwrap();
        let scene = Scene::new(store.clone(), &format!("order-{seed}"), ordered(lanes)).await;
        Run::new(scene, lanes).play(case, &mut rng).await;
    }
}

/// One random run.
struct Run {
    scene: Scene,
    lanes: u16,
    members: Vec<LaneConsumer>,
    /// Per key, the offsets published and, of those, how many were done.
    published: BTreeMap<String, Vec<i64>>,
    done: HashSet<i64>,
    names: u32,
}

impl Run {
    fn new(scene: Scene, lanes: u16) -> Self {
        let members = (0..3).map(|n| LaneConsumer::new(&format!("member-{n}"))).collect();
        Run { scene, lanes, members, published: BTreeMap::new(), done: HashSet::new(), names: 0 }
    }

    async fn play(mut self, case: &Case, rng: &mut Rng) {
        for _ in 0..150 {
            if rng.percent(12) {
                self.publish(rng).await;
            }
            if rng.percent(8) {
                case.advance_ms(rng.between(1, 6_000));
            }
            let member = rng.index(self.members.len());
            self.step(member, rng, 25, 4).await;
        }
        for _ in 0..4_000 {
            if self.done.len() == self.published.values().map(Vec::len).sum::<usize>() {
                break;
            }
            let member = rng.index(self.members.len());
            if !self.step(member, rng, 0, 0).await {
                case.advance_ms(1_000);
            }
        }
        for (key, offsets) in &self.published {
            let missing: Vec<_> = offsets.iter().filter(|offset| !self.done.contains(offset)).collect();
            assert!(missing.is_empty(), "key {key}: {missing:?} were never delivered");
        }
        assert_eq!(self.scene.dead_letters().await, []);
    }

    async fn publish(&mut self, rng: &mut Rng) {
        let keys: Vec<_> = (0..rng.between(1, 12)).map(|_| format!("key-{}", rng.below(5))).collect();
        let messages: Vec<_> = keys.iter().map(|key| keyed(key, key)).collect();
        let offsets = self.scene.publish_all(&messages).await;
        for (key, offset) in keys.into_iter().zip(offsets) {
            self.published.entry(key).or_default().push(offset);
        }
    }

    /// One action of one member. Returns false if there was nothing to do.
    async fn step(&mut self, member: usize, rng: &mut Rng, fail_percent: u64, crash_percent: u64) -> bool {
        let consumer = &mut self.members[member];
        if !consumer.is_busy() {
            return consumer.claim(&self.scene, u32::try_from(rng.between(1, 6)).unwrap()).await;
        }
        if rng.percent(crash_percent) {
            self.names += 1;
            consumer.crash(&format!("reborn-{}", self.names));
            return true;
        }
        let verdict =
            if rng.percent(fail_percent) { Handled::Failed(rng.between(0, 4_000)) } else { Handled::Done };
        let (published, done) = (&self.published, &mut self.done);
        let handled = consumer.handle_next(self.lanes, |message, _| {
            let key = message.key.as_deref().expect("every message has a key");
            let older = published[key].iter().take_while(|offset| **offset < message.offset.0);
            for offset in older {
                assert!(done.contains(offset), "key {key}: {} before {offset} was done", message.offset);
            }
            if verdict == Handled::Done {
                done.insert(message.offset.0);
            }
            verdict
        });
        if !handled {
            consumer.settle(&self.scene).await;
        }
        true
    }
}

/// A release in an ordered subscription keeps the order.
pub async fn released_messages_keep_their_order(case: &Case) {
    let scene = case.scene(ordered(1)).await;
    let messages: Vec<_> = (1..=6).map(|n| keyed("k", &n.to_string())).collect();
    scene.publish_all(&messages).await;
    let lease = scene.claim_one("a", 6).await;
    scene.settle_each(&lease, vec![((1, 2), Outcome::Ack), ((3, 6), Outcome::Release)]).await.unwrap();
    let mut consumer = LaneConsumer::new("b");
    assert_eq!(consume(&scene, &mut consumer, 2, &[]).await, ["3", "4", "5", "6"]);
}
