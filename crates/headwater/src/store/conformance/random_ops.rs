//! Seeded random operations with crashes and restarts, checked against the model after each.

use std::time::{Duration, Instant};

use super::case::{Case, DEADLINE, Scene, group, pause, range, retry, topic};
use super::model::Model;
use super::rng::{Rng, seeds};
use crate::error::ErrorKind;
use crate::lease::{LeaseId, OffsetRange};
use crate::message::{NewMessage, Offset};
use crate::settle::{Outcome, Settlement};
use crate::subscription::Start;
use crate::topic::{Semantics, TopicSettings};

/// Seeds that once found a bug.
const REGRESSIONS: &[u64] = &[];
const SEEDS: u64 = 30;
const STEPS: u32 = 120;

/// Whatever is done in whatever order: the model and the store agree, and in the end every group got everything.
pub async fn random_ops_agree_with_the_model(case: &Case) {
    for seed in seeds(REGRESSIONS, SEEDS) {
        println!("random_ops seed {seed} (HEADWATER_SEED={seed} runs it alone)");
        let mut play = Play::new(case, seed).await;
        for _ in 0..STEPS {
            play.step().await;
        }
        play.finish().await;
    }
}

/// A lease that an owner remembers, whether or not it is still valid.
#[derive(Clone, Debug)]
struct Remembered {
    group: usize,
    owner: usize,
    id: LeaseId,
    range: OffsetRange,
}

struct Play<'a> {
    case: &'a Case,
    rng: Rng,
    model: Model,
    scene: Scene,
    groups: Vec<Scene>,
    held: Vec<Remembered>,
    forgotten: Vec<Remembered>,
    /// How often each owner was restarted: a crashed owner comes back under another name.
    lives: [u32; 4],
    payloads: u64,
}

impl<'a> Play<'a> {
    async fn new(case: &'a Case, seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let settings = TopicSettings {
            semantics: Semantics::PubSub,
            lease: Duration::from_secs(if rng.percent(10) { 0 } else { 10 }),
            max_attempts: u32::try_from(rng.between(1, 6)).expect("small"),
            dedup_window: Duration::from_secs(20),
            ..TopicSettings::default()
        };
        let scene = Scene::new(case.open().await, &format!("random-{seed}"), settings.clone()).await;
        let mut model = Model::new(settings);
        model.subscribed(scene.status().await.next.0, Some(1));
        let groups = vec![scene.clone()];
        let (held, forgotten) = (Vec::new(), Vec::new());
        Play { case, rng, model, scene, groups, held, forgotten, lives: [0; 4], payloads: 0 }
    }

    async fn step(&mut self) {
        match self.rng.below(100) {
            0..20 => self.publish().await,
            20..25 => self.publish_in_transaction().await,
            25..52 => self.claim().await,
            52..74 => self.settle().await,
            74..79 => self.extend().await,
            79..91 => self.pass_time(),
            91..94 => self.crash(),
            94..96 => self.subscribe().await,
            96..98 => self.restart().await,
            _ => {
                self.scene.store.advance_heads().await.expect("maintenance runs");
            }
        }
    }

    fn message(&mut self) -> NewMessage {
        self.payloads += 1;
        NewMessage::new(format!("payload {}", self.payloads))
    }

    async fn publish(&mut self) {
        let mut batch = Vec::new();
        for _ in 0..self.rng.between(1, 8) {
            let mut message = self.message();
            if self.rng.percent(25) {
                message = message.dedup_key(format!("dedup-{}", self.rng.below(8)));
            }
            if self.rng.percent(15) {
                let delay = Duration::from_millis(self.rng.below(15_000));
                message = message.deliver_at(self.case.now() + delay);
            }
            batch.push(message);
        }
        let answers = self.scene.store.publish(&self.scene.topic, &batch).await.expect("published");
        self.model.published(&batch, &answers, self.case.now());
    }

    async fn publish_in_transaction(&mut self) {
        let batch: Vec<_> = (0..self.rng.between(1, 3)).map(|_| self.message()).collect();
        let commit = self.rng.percent(50);
        let harness = self.case.harness();
        let answers = harness.publish_in_transaction(&self.scene.topic, &batch, commit).await;
        if commit {
            self.model.published(&batch, &answers.expect("published"), self.case.now());
        }
    }

    fn owner_name(&self, owner: usize) -> String {
        format!("owner-{owner}-life-{}", self.lives[owner])
    }

    async fn claim(&mut self) {
        let (group, owner) = (self.rng.index(self.groups.len()), self.rng.index(4));
        let count = u32::try_from(self.rng.between(1, 12)).expect("small");
        self.claim_as(group, owner, count).await;
    }

    /// Claims and checks the answer; returns how many leases were granted.
    async fn claim_as(&mut self, group: usize, owner: usize, count: u32) -> usize {
        let name = self.owner_name(owner);
        let leases = self.groups[group].claim(&name, count).await;
        for lease in &leases {
            let messages = self.groups[group].fetch(lease).await;
            self.model.fetched(lease.range, &messages, self.case.now());
        }
        self.model.claimed(group, &name, count, &leases, self.case.now());
        for lease in &leases {
            self.held.push(Remembered { group, owner, id: lease.id(), range: lease.range });
        }
        leases.len()
    }

    /// One of the remembered leases; now and then one of a crashed owner, whose token may be stale.
    fn pick(&mut self) -> Option<Remembered> {
        let from = if self.rng.percent(15) { &self.forgotten } else { &self.held };
        if from.is_empty() {
            return None;
        }
        Some(from[self.rng.index(from.len())].clone())
    }

    async fn settle(&mut self) {
        let mut settlements: Vec<(usize, Settlement)> = Vec::new();
        for _ in 0..self.rng.between(1, 3) {
            let Some(lease) = self.pick() else { continue };
            if settlements.iter().any(|(_, other)| other.lease == lease.id) {
                continue;
            }
            settlements.push((lease.group, self.settlement(&lease)));
        }
        let now = self.case.now();
        let asked: Vec<_> = settlements.iter().map(|(_, settlement)| settlement.clone()).collect();
        let answers = self.scene.store.settle(&asked).await.expect("the store settles");
        for ((group, settlement), answer) in settlements.iter().zip(answers) {
            let expected = self.model.settle(*group, settlement, now);
            match answer {
                Ok(()) => assert!(expected, "accepted though lost: {settlement:?}"),
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::LeaseLost, "{error:?}");
                    assert!(!expected, "refused though held: {settlement:?}");
                }
            }
        }
        let model = &self.model;
        self.held.retain(|lease| !model.held_under(lease.group, lease.id.token, now).is_empty());
    }

    /// A random settlement of what is left of a lease; sometimes with an offset that is not in it.
    fn settlement(&mut self, lease: &Remembered) -> Settlement {
        let held = self.model.held_under(lease.group, lease.id.token, self.case.now());
        if self.rng.percent(35) {
            return Settlement::ack_all(&lease.id);
        }
        let mut parts: Vec<(OffsetRange, Outcome)> = Vec::new();
        for offset in held {
            if self.rng.percent(30) {
                continue;
            }
            let grows = parts.last().is_some_and(|(range, _)| range.last.0 + 1 == offset);
            if grows && self.rng.percent(60) {
                parts.last_mut().expect("just checked").0.last = Offset(offset);
            } else {
                let outcome = self.outcome();
                parts.push((range(offset, offset), outcome));
            }
        }
        if parts.is_empty() || self.rng.percent(10) {
            let outside = lease.range.last.0 + 1 + i64::from(parts.is_empty()) * 1_000;
            parts.push((range(outside, outside), Outcome::Ack));
        }
        Settlement::each(&lease.id, parts)
    }

    fn outcome(&mut self) -> Outcome {
        match self.rng.below(10) {
            0..4 => Outcome::Ack,
            4..7 => retry(self.rng.below(12_000), "random retry"),
            7 => Outcome::Bury { error: format!("random burial {}", self.rng.below(1_000)) },
            _ => Outcome::Release,
        }
    }

    async fn extend(&mut self) {
        let Some(lease) = self.pick() else { return };
        let by = Duration::from_millis(self.rng.between(1, 15_000));
        let answer = self.groups[lease.group].extend(&lease.id, by).await;
        let expected = self.model.extend(lease.group, lease.id.token, by, self.case.now());
        assert_eq!(answer.is_ok(), expected, "extending {lease:?}: {answer:?}");
    }

    fn pass_time(&mut self) {
        let most = if self.rng.percent(40) { 14_000 } else { 2_000 };
        self.case.advance_ms(self.rng.between(1, most));
    }

    /// An owner is killed and comes back under another name, remembering nothing.
    fn crash(&mut self) {
        let owner = self.rng.index(4);
        self.lives[owner] += 1;
        let (lost, kept) = self.held.drain(..).partition(|lease| lease.owner == owner);
        self.held = kept;
        let lost: Vec<_> = lost;
        self.forgotten.extend(lost);
    }

    async fn subscribe(&mut self) {
        if self.groups.len() >= 4 {
            return;
        }
        // So that every delayed message is clearly before or after now.
        self.scene.store.advance_heads().await.expect("maintenance runs");
        let name = format!("group-{}", self.groups.len());
        let (start, expected) = match self.rng.below(3) {
            0 => (Start::Beginning, Some(1)),
            1 => (Start::Now, None),
            _ => {
                let end = self.scene.topic_status().await.head.0 + 1;
                let offset = i64::try_from(self.rng.between(1, 40)).expect("small").min(end);
                (Start::Offset(Offset(offset)), Some(offset))
            }
        };
        let scene = self.scene.subscribe(&name, start).await;
        self.model.subscribed(scene.status().await.next.0, expected);
        self.groups.push(scene);
    }

    async fn restart(&mut self) {
        self.scene.store.close().await.expect("closes");
        let store = self.case.open().await;
        self.scene = self.scene.through(&store);
        self.groups = self.groups.iter().map(|scene| scene.through(&store)).collect();
    }

    /// All groups consume until nothing is left; then nothing may be missing and nothing may be delivered twice.
    async fn finish(mut self) {
        // Leases without a deadline never expire: their owners settle them.
        for lease in std::mem::take(&mut self.held).into_iter().chain(std::mem::take(&mut self.forgotten)) {
            let settlement = Settlement::ack_all(&lease.id);
            let expected = self.model.settle(lease.group, &settlement, self.case.now());
            let answer = self.groups[lease.group].settle(settlement).await;
            assert_eq!(answer.is_ok(), expected, "finishing {lease:?}: {answer:?}");
        }
        let until = Instant::now() + DEADLINE;
        for group in 0..self.groups.len() {
            loop {
                if self.claim_as(group, 0, 50).await > 0 {
                    for lease in std::mem::take(&mut self.held) {
                        let settlement = Settlement::ack_all(&lease.id);
                        assert!(self.model.settle(lease.group, &settlement, self.case.now()));
                        self.groups[lease.group].settle(settlement).await.expect("just claimed");
                    }
                } else if self.model.unfinished(group) == 0 {
                    break;
                } else {
                    let left = self.model.unfinished(group);
                    assert!(Instant::now() < until, "group {group} never gets {left} messages");
                    self.case.advance_ms(1_000);
                    pause().await;
                }
            }
        }
        self.compare().await;
        self.scene.store.close().await.expect("closes");
    }

    async fn compare(&self) {
        for (index, scene) in self.groups.iter().enumerate() {
            let mut dead: Vec<_> = scene
                .dead_letters()
                .await
                .into_iter()
                .map(|one| (one.offset.0, one.attempts, one.error))
                .collect();
            dead.sort_unstable();
            let buried = self.model.buried(index);
            assert_eq!(dead.len(), buried.len(), "dead letters {dead:?}, expected {buried:?}");
            for (one, expected) in dead.iter().zip(&buried) {
                assert_eq!((one.0, one.1), (expected.0, expected.1), "{one:?}, expected {expected:?}");
                assert!(one.2.contains(&expected.2), "{one:?}, expected {expected:?}");
            }
            let status = scene.status().await;
            assert_eq!((status.leased, status.waiting), (0, 0), "{status:?}");
            assert_eq!(status.floor.0, status.next.0 - 1);
            assert_eq!(status.dead_letters, buried.len() as u64);
        }
        let findings = self.scene.store.doctor().await.expect("the doctor runs");
        assert_eq!(findings, [], "after {}", topic(self.scene.topic.as_str()));
        assert_eq!(self.groups[0].status().await.group, group("workers"));
    }
}
