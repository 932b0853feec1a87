//! Random lives of topics and groups against a small model: no message that a group has yet to do is removed
//! uncounted, and nothing that may be removed stays.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::case::{Case, Scene, bury, group, owner, range, retry};
use super::life::{INTERVAL, MODES, MOMENT, TIMEOUT, lively};
use super::rng::{Rng, seeds};
use crate::message::Offset;
use crate::settle::{Outcome, Settlement};
use crate::store::Signal;
use crate::subscription::{Start, SubscriptionState};
use crate::topic::{Semantics, TopicSettings, Tracking};

mod member;

use member::{Known, Member};

/// Seeds that once found a bug.
const REGRESSIONS: &[u64] = &[525];
const SEEDS: u64 = 40;
const STEPS: u32 = 90;
const GROUPS_MAX: usize = 5;

/// Whatever happens in whatever order: a message that a counting group has not done is stored, unless `max_retention`
/// removed it and it is counted. A message that is done and past its time is removed once cleanup has nothing left to
/// do.
pub async fn random_lives_keep_every_rule_of_retention(case: &Case) {
    for seed in seeds(REGRESSIONS, SEEDS) {
        println!("retention_model seed {seed} (HEADWATER_SEED={seed} runs it alone)");
        let mut play = Play::new(case, seed).await;
        for _ in 0..STEPS {
            play.step().await;
        }
        play.finish().await;
    }
}

struct Play<'a> {
    case: &'a Case,
    seed: u64,
    rng: Rng,
    settings: TopicSettings,
    scene: Scene,
    members: Vec<Member>,
    stored: BTreeMap<i64, Known>,
    named: u32,
    last: i64,
    /// The first offset published since no group counts.
    zero_from: i64,
}

impl<'a> Play<'a> {
    async fn new(case: &'a Case, seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let secs = Duration::from_secs;
        let settings = TopicSettings {
            tracking: MODES[usize::from(seed.is_multiple_of(2))],
            message_retention: [Some(Duration::ZERO), Some(secs(20)), None][rng.index(3)],
            max_retention: [None, Some(secs(60)), Some(secs(300))][rng.index(3)],
            zero_subscription_retention: [Duration::ZERO, secs(10)][rng.index(2)],
            lease: secs(100_000),
            semantics: if seed.is_multiple_of(5) { Semantics::Queue } else { Semantics::PubSub },
            ..lively()
        };
        let store = case.open().await;
        let scene = Scene::new(store, &format!("life-{seed}"), settings.clone()).await;
        let first = Member::new(scene.clone(), 1, BTreeSet::new());
        let members = vec![first];
        let (stored, zero_from) = (BTreeMap::new(), i64::MAX);
        Play { case, seed, rng, settings, scene, members, stored, named: 0, last: 0, zero_from }
    }

    async fn step(&mut self) {
        match self.rng.below(100) {
            0..18 => self.publish().await,
            18..38 => self.claim().await,
            38..58 => self.settle().await,
            58..63 => {
                let by = Duration::from_millis(self.rng.between(1, 25_000));
                self.case.pass(by).await;
            }
            63..67 => self.subscribe().await,
            67..72 => self.pause_or_resume().await,
            72..75 => self.die().await,
            75..78 => self.resurrect().await,
            78..80 => self.cancel().await,
            80..83 => self.redrive().await,
            83..85 => self.seek().await,
            85..92 => self.clean().await,
            92..97 => {
                let count = u32::try_from(self.rng.between(1, 9)).expect("small");
                self.scene.track(count).await;
            }
            _ => {
                let count = u32::try_from(self.rng.between(1, 9)).expect("small");
                self.scene.store.step_backfill(&owner("backfiller"), count).await.expect("it continues");
            }
        }
        self.note_done();
    }

    fn counting(&self) -> impl Iterator<Item = &Member> {
        self.members.iter().filter(|member| member.state.counts(self.settings.semantics))
    }

    /// The groups that hold retention: all that count, or all if none does.
    fn holding(&self) -> impl Iterator<Item = &Member> {
        let any_counts = self.counting().next().is_some();
        let counts = |member: &&Member| member.state.counts(self.settings.semantics);
        self.members.iter().filter(move |member| !any_counts || counts(member))
    }

    /// Notes when a message was first done for every group.
    fn note_done(&mut self) {
        let now = self.case.now();
        let all = self.settings.tracking == Tracking::OffsetWatermark;
        let semantics = self.settings.semantics;
        let mut holding: Vec<_> =
            self.members.iter().filter(|member| member.state.counts(semantics)).collect();
        if !holding.is_empty() {
            self.zero_from = i64::MAX;
        } else if self.zero_from == i64::MAX {
            self.zero_from = self.last + 1;
        }
        if all && holding.is_empty() {
            holding = self.members.iter().collect();
        }
        for (offset, known) in &mut self.stored {
            let owes = |member: &&Member| {
                let id = member.scene.subscription.subscription_id;
                (all || known.listeners.contains(&id)) && member.pending.contains(offset)
            };
            if known.done_at.is_none() && !(all && *offset >= self.zero_from) && !holding.iter().any(owes) {
                known.done_at = Some(now);
            }
        }
    }

    async fn publish(&mut self) {
        let listeners: BTreeSet<_> =
            self.counting().map(|member| member.scene.subscription.subscription_id).collect();
        let offsets = self.scene.publish(self.rng.index(6) + 1).await;
        for offset in offsets {
            assert_eq!(offset, self.last + 1, "offsets rise and are never reused");
            self.last = offset;
            let known = Known {
                created_at: self.case.now(),
                noted_at: None,
                listeners: listeners.clone(),
                done_at: None,
            };
            self.stored.insert(offset, known);
            for member in &mut self.members {
                if offset >= member.start {
                    member.pending.insert(offset);
                }
            }
        }
    }

    fn any(&mut self) -> Option<usize> {
        (!self.members.is_empty()).then(|| self.rng.index(self.members.len()))
    }

    async fn claim(&mut self) {
        let Some(which) = self.any() else { return };
        let count = u32::try_from(self.rng.between(1, 8)).expect("small");
        let name = format!("owner-{}", self.rng.below(3));
        let member = &mut self.members[which];
        let claimed = member.scene.claimed(&name, count).await;
        if member.state != SubscriptionState::Active {
            assert_eq!(claimed.leases, [], "{} is {}", member.scene.subscription.group, member.state);
            assert_eq!(claimed.inactive, [(member.scene.subscription.subscription_id, member.state)]);
            return;
        }
        for lease in claimed.leases {
            let there: BTreeSet<_> = member.scene.fetch(&lease).await.iter().map(|m| m.offset.0).collect();
            let held: BTreeSet<_> = (lease.range.first.0..=lease.range.last.0).collect();
            for offset in &held {
                let doubled = member.held.iter().any(|(_, other)| other.contains(offset));
                assert!(!doubled, "{offset} is leased twice");
                let owed = member.pending.contains(offset);
                assert_eq!(there.contains(offset), self.stored.contains_key(offset), "{offset} is stored");
                assert!(owed || !there.contains(offset), "{offset} was done and is handed out");
            }
            member.held.push((lease.id(), held));
        }
    }

    async fn settle(&mut self) {
        let Some(which) = self.any() else { return };
        let member = &mut self.members[which];
        if member.held.is_empty() {
            return;
        }
        let index = self.rng.index(member.held.len());
        let (token, offsets) = member.held.remove(index);
        if self.rng.percent(50) {
            member.scene.settle(Settlement::ack_all(token)).await.expect("the lease is held");
            for offset in offsets {
                member.pending.remove(&offset);
            }
            return;
        }
        let parts: Vec<_> = offsets
            .iter()
            .map(|offset| match self.rng.below(5) {
                0 | 1 => (*offset, Outcome::Ack),
                2 => (*offset, bury("random")),
                3 => (*offset, retry(self.rng.below(3_000), "random")),
                _ => (*offset, Outcome::Release),
            })
            .collect();
        let settlement: Vec<_> =
            parts.iter().map(|(offset, outcome)| (range(*offset, *offset), outcome.clone())).collect();
        member.scene.settle(Settlement::each(token, settlement)).await.expect("the lease is held");
        for (offset, outcome) in parts {
            match outcome {
                Outcome::Ack => {
                    member.pending.remove(&offset);
                }
                Outcome::Bury { .. } => {
                    member.pending.remove(&offset);
                    if self.stored.contains_key(&offset) {
                        member.letters.insert(offset);
                    }
                }
                _ => {}
            }
        }
    }

    async fn subscribe(&mut self) {
        let most = if self.settings.semantics == Semantics::Queue { 1 } else { GROUPS_MAX };
        if self.members.len() >= most {
            return;
        }
        let back = Duration::from_millis(self.rng.below(60_000));
        let start = match self.rng.below(5) {
            0 => Start::Now,
            1 => Start::Beginning,
            2 => Start::Timestamp(self.case.now() - back),
            3 => Start::BeginningBounded(self.rng.below(12)),
            _ => Start::Offset(Offset(self.last - 5)),
        };
        self.named += 1;
        let scene = self.scene.subscribe(&format!("group-{}", self.named), start).await;
        let next = scene.status().await.next.0;
        match start {
            Start::Now => assert!(next > self.last, "now is after {}", self.last),
            Start::Beginning => {
                let first = self.stored.keys().next().copied().unwrap_or(self.last + 1);
                assert!(next <= first, "{next} is after the first stored, {first}");
            }
            _ => {}
        }
        let pending = self.stored.range(next..).map(|(offset, _)| *offset).collect();
        self.members.push(Member::new(scene, next, pending));
    }

    async fn pause_or_resume(&mut self) {
        let Some(which) = self.any() else { return };
        let member = &mut self.members[which];
        member.state = match member.state {
            SubscriptionState::Active => {
                member.scene.pause().await;
                SubscriptionState::Paused
            }
            SubscriptionState::Paused => {
                member.scene.resume().await;
                SubscriptionState::Active
            }
            _ => return,
        };
    }

    /// One group sends a heartbeat and becomes silent; other silent groups die with it.
    async fn die(&mut self) {
        let Some(which) = self.any() else { return };
        if self.members[which].state != SubscriptionState::Active {
            return;
        }
        assert_eq!(self.members[which].scene.heartbeat("a").await, Signal::Active);
        self.detect().await;
        self.case.pass(TIMEOUT + MOMENT).await;
        self.detect().await;
        assert_eq!(self.members[which].state, SubscriptionState::Dead, "it was silent and detection ran");
    }

    async fn detect(&mut self) {
        let found = self.scene.detect().await;
        for (_, name) in found.died.iter().filter(|(topic, _)| *topic == self.scene.topic) {
            let member = self.members.iter_mut().find(|member| member.scene.subscription.group == *name);
            let member = member.expect("only groups that live die");
            assert_eq!(member.state, SubscriptionState::Active, "{name} dies once");
            member.state = SubscriptionState::Dead;
        }
    }

    async fn resurrect(&mut self) {
        let Some(which) = self.any() else { return };
        let member = &mut self.members[which];
        if member.state != SubscriptionState::Dead {
            return;
        }
        match self.rng.below(3) {
            0 => assert_eq!(member.scene.heartbeat("b").await, Signal::Resurrected(member.missed)),
            1 => drop(member.scene.subscribe(member.scene.subscription.group.as_str(), Start::Now).await),
            _ => {
                let name = &member.scene.subscription.group;
                let back = member.scene.store.resurrect(&member.scene.topic, name, None).await.expect("dead");
                assert_eq!((back.resurrected, back.missed), (true, member.missed));
            }
        }
        member.state = SubscriptionState::Active;
    }

    async fn cancel(&mut self) {
        let Some(which) = self.any() else { return };
        let member = self.members.remove(which);
        member.scene.cancel().await;
    }

    async fn redrive(&mut self) {
        let Some(which) = self.any() else { return };
        let member = &mut self.members[which];
        let (there, gone): (BTreeSet<i64>, BTreeSet<i64>) =
            member.letters.iter().partition(|offset| self.stored.contains_key(offset));
        let redriven =
            member.scene.store.redrive(&member.scene.dead_letter_selection()).await.expect("redriven");
        assert_eq!((redriven.redriven, redriven.gone), (there.len() as u64, gone.len() as u64));
        member.pending.extend(there);
        member.letters = gone;
    }

    async fn seek(&mut self) {
        let Some(which) = self.any() else { return };
        let to =
            Offset(i64::try_from(self.rng.below(u64::try_from(self.last).unwrap_or(0) + 1)).expect("small"));
        let member = &mut self.members[which];
        // A message that is both replayed and redriven has a separate case.
        member.scene.store.purge(&member.scene.dead_letter_selection()).await.expect("purged");
        member.letters.clear();
        let (store, topic) = (&member.scene.store, &member.scene.topic);
        let moved = store.seek(topic, &member.scene.subscription.group, Start::Offset(to), false).await;
        let moved = moved.expect("the cursor is moved");
        assert_eq!(moved.leases_lost, member.held.len() as u64);
        assert!(moved.to >= to, "{moved:?}");
        member.held.clear();
        member.start = moved.to.0;
        let replay = self.stored.range(moved.to.0..).map(|(offset, _)| *offset);
        member.pending = replay.collect();
    }

    async fn clean(&mut self) {
        let count = u32::try_from(self.rng.between(1, 9)).expect("small");
        let step = self.scene.clean(count).await;
        self.check_removed(step.removed).await;
    }

    /// Checks each removed message: whether it may be removed, and whether groups that had not done it count it as
    /// missed.
    async fn check_removed(&mut self, removed: u64) {
        let now = self.case.now();
        for known in self.stored.values_mut() {
            known.noted_at.get_or_insert(now);
        }
        let there: BTreeSet<i64> = self.scene.stored().await.into_iter().collect();
        let gone: Vec<i64> = self.stored.keys().filter(|offset| !there.contains(offset)).copied().collect();
        assert_eq!(gone.len() as u64, removed, "seed {}: removed: {gone:?}", self.seed);
        for offset in gone {
            let known = self.stored.remove(&offset).expect("it was stored");
            let age = now.duration_since(known.created_at).unsigned_abs();
            let capped = self.settings.max_retention.is_some_and(|max| age >= max);
            let owed = self.counting().any(|member| member.pending.contains(&offset));
            let least =
                self.settings.message_retention.map(|r| r.max(self.settings.zero_subscription_retention));
            let alone = self.counting().next().is_none();
            let unsubscribed = alone && offset >= self.zero_from && least.is_some_and(|least| age >= least);
            let held = self.holding().any(|member| member.pending.contains(&offset));
            let why = format!("seed {}: {offset} was not done and is gone", self.seed);
            assert!(capped || !owed && (unsubscribed || !held), "{why}");
            let kept_for = known.done_at.map(|at| now.duration_since(at).unsigned_abs());
            let retention = self.settings.message_retention;
            let in_time = retention.zip(kept_for).is_some_and(|(least, kept)| kept >= least);
            let heard = !known.listeners.is_empty() || age >= self.settings.zero_subscription_retention;
            assert!(
                capped || unsubscribed || in_time && heard,
                "seed {}: {offset} is gone too early: {known:?}",
                self.seed
            );
            for member in &mut self.members {
                member.lose(offset);
            }
        }
        assert!(there.iter().all(|offset| self.stored.contains_key(offset)), "no removed message reappears");
        for member in &self.members {
            let missed = member.scene.status().await.missed;
            assert_eq!(missed, member.missed, "seed {}: {}", self.seed, member.scene.subscription.group);
        }
        let first = self.scene.topic_status().await.first.0;
        assert!(there.first().is_none_or(|lowest| first <= *lowest), "{first} is above {there:?}");
    }

    async fn clean_all(&mut self) {
        while self.scene.store.step_backfill(&owner("finisher"), 50).await.expect("it continues").is_some() {}
        self.scene.track_all().await;
        loop {
            let step = self.scene.clean(7).await;
            self.check_removed(step.removed).await;
            if !step.more {
                return;
            }
        }
    }

    /// Everything that may be removed is removed, the rest is delivered, and the doctor reports no findings.
    async fn finish(mut self) {
        // A worker of the steps above may still hold a backfill.
        self.case.pass(Duration::from_secs(16)).await;
        self.note_done();
        self.clean_all().await;
        self.case.pass(Duration::from_secs(1)).await;
        self.clean_all().await;
        let done = self.done();
        let retention = self.settings.message_retention.unwrap_or_default();
        self.case.pass(retention.max(self.settings.zero_subscription_retention) + MOMENT).await;
        self.note_done();
        self.clean_all().await;
        self.check_gone(&done);
        self.deliver_the_rest().await;
        let findings = self.scene.store.doctor().await.expect("the doctor runs");
        assert_eq!(findings, [], "seed {}", self.seed);
        for member in &self.members {
            member.scene.cancel().await;
        }
        self.scene.track_all().await;
        self.scene.store.close().await.expect("closes");
    }

    /// The stored messages that cleanup counts as done. A leased range holds the watermark even after `max_retention`
    /// removed its messages: the lease is still valid, and ends soon.
    fn done(&self) -> BTreeSet<i64> {
        let owed: BTreeSet<i64> = self.holding().flat_map(|member| member.pending.iter().copied()).collect();
        let held = self.holding().flat_map(|member| member.held.iter().flat_map(|(_, offsets)| offsets));
        let lowest = owed.iter().chain(held).min().copied().unwrap_or(i64::MAX);
        let is_done = |offset: &&i64| match self.settings.tracking {
            _ if **offset >= self.zero_from => true,
            Tracking::OffsetWatermark => **offset < lowest,
            Tracking::ReferenceCounting => !owed.contains(offset),
        };
        self.stored.keys().filter(is_done).copied().collect()
    }

    /// A message that was done at the last cleanup, a retention ago, does not stay; nor does one that is too old.
    fn check_gone(&self, done: &BTreeSet<i64>) {
        let now = self.case.now();
        for (offset, known) in &self.stored {
            let unread = self.members.iter().any(|member| member.pending.contains(offset));
            let since =
                if unread || self.members.is_empty() { known.noted_at } else { Some(known.created_at) };
            let age = since.map(|since| now.duration_since(since).unsigned_abs());
            // Watermark notes are thinned out: those of age `a` are about `a / 256` apart.
            let capped = self.settings.max_retention.zip(age).is_some_and(|(max, age)| age >= max + max / 64);
            let over = done.contains(offset) && self.settings.message_retention.is_some();
            assert!(!capped && !over, "seed {}: {offset} stays though it may go: {known:?}", self.seed);
        }
    }

    async fn deliver_the_rest(&mut self) {
        self.case.advance(INTERVAL);
        for member in &mut self.members {
            let name = group(member.scene.subscription.group.as_str());
            match member.state {
                SubscriptionState::Paused => member.scene.resume().await,
                SubscriptionState::Dead => {
                    member.scene.store.resurrect(&member.scene.topic, &name, None).await.expect("dead");
                }
                _ => {}
            }
            for (token, offsets) in member.held.drain(..) {
                member.scene.settle(Settlement::ack_all(token)).await.expect("the lease is held");
                for offset in offsets {
                    member.pending.remove(&offset);
                }
            }
            let mut got = member.scene.reads().await;
            got.sort_unstable();
            let owed: Vec<_> = member.pending.iter().copied().collect();
            assert_eq!(got, owed, "seed {}: {name} gets what it is owed, once", self.seed);
        }
    }
}
