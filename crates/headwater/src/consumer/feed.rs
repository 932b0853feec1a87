//! The feed of one topic: one claim for all groups of the process that want messages, and one read of what they were
//! handed.
//!
//! A group that found nothing claims again only after a publish or at the time the store returned, so that a group far
//! behind does not make a hundred idle ones claim at its pace. No wake-up is missed: the wake is armed before the claim
//! that finds nothing, and awaited after it.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::catch_up;
use super::group::Group;
use super::heartbeat::HeartbeatRequest;
use super::idle::Idle;
use super::pages::Pages;
use super::serve_state::EndReason;
use super::work::LeaseWork;
use crate::error::{ErrorKind, Result, panic_text};
use crate::handler::Messages;
use crate::lease::{ClaimRequest, Claimed, Epoch, Lease, OffsetRange, Want};
use crate::limits::{CLAIM_SUBSCRIPTIONS_MAX, SAFETY_POLL};
use crate::message::{Message, Offset};
use crate::name::Owner;
use crate::settle::{Outcome, own_messages};
use crate::store::{Store, Weighing};
use crate::subscription::SubscriptionId;
use crate::topic::TopicId;

mod read;

/// Bytes of pages kept at most for groups and lanes that read the same offsets a little later.
const PAGES_BYTES_MAX: usize = 32 * 1024 * 1024;
/// How long releasing the leases of an abandoned claim is retried.
const GIVE_BACK_FOR: Duration = Duration::from_secs(60);
/// How many panics in a row end a feed, and after how long without one the row starts anew.
const PANICS_MAX: u32 = 5;
const CALM: Duration = Duration::from_secs(60);
/// The longest wait. A claim follows in any case, whatever checks found in between.
const WAIT_MAX: Duration = Duration::from_secs(300);
/// How late a check may be.
const LATE: Duration = Duration::from_secs(4);
/// The longest pause after a claim that failed.
const PAUSE_MAX: Duration = Duration::from_secs(2);

/// One topic's feed, shared by all groups of the process on it.
#[derive(Debug)]
pub(crate) struct Feed {
    store: Arc<dyn Store>,
    topic: TopicId,
    owner: Owner,
    groups: Mutex<Vec<Arc<Group>>>,
    pages: Mutex<Pages>,
    /// The history that the pages were read in.
    epoch: Mutex<Option<Epoch>>,
    /// Notified when a group joins, leaves or wants more.
    pub(crate) changed: Arc<Notify>,
    /// Requests a heartbeat, which returns the states of subscriptions.
    request: Arc<HeartbeatRequest>,
    /// Queried before a claim without a wake-up.
    idle: Arc<Idle>,
    read: AtomicU64,
    handed: AtomicU64,
    task: Mutex<Option<JoinHandle<()>>>,
    /// Held during a claim: a group that leaves waits for messages it may still be handed.
    claiming: tokio::sync::Mutex<()>,
}

impl Feed {
    pub(crate) fn new(
        store: Arc<dyn Store>,
        topic: TopicId,
        owner: Owner,
        request: Arc<HeartbeatRequest>,
        idle: Arc<Idle>,
    ) -> Arc<Self> {
        Arc::new(Feed {
            store,
            topic,
            owner,
            groups: Mutex::default(),
            pages: Mutex::new(Pages::new()),
            epoch: Mutex::default(),
            changed: Arc::default(),
            request,
            idle,
            read: AtomicU64::new(0),
            handed: AtomicU64::new(0),
            task: Mutex::default(),
            claiming: tokio::sync::Mutex::default(),
        })
    }

    /// Starts serving a group; the first one starts the task.
    pub(crate) fn join(self: &Arc<Self>, group: Arc<Group>) {
        self.groups.lock().expect("no panic while held").push(group);
        let mut task = self.task.lock().expect("no panic while held");
        if task.is_none() {
            *task = Some(tokio::spawn(serve(Arc::clone(self))));
        }
        drop(task);
        self.changed.notify_one();
    }

    /// Serves the group no more. After this returns it is handed nothing more.
    pub(crate) async fn leave(&self, group: &Arc<Group>) {
        self.remove_group(group);
        drop(self.claiming.lock().await);
    }

    /// Removes a group from the list, without waiting for a claim that may be under way.
    pub(crate) fn remove_group(&self, group: &Arc<Group>) {
        self.groups.lock().expect("no panic while held").retain(|other| !Arc::ptr_eq(other, group));
        self.changed.notify_one();
    }

    /// Messages read from the store, and messages handed to groups.
    pub(crate) fn counts(&self) -> (u64, u64) {
        (self.read.load(Ordering::Relaxed), self.handed.load(Ordering::Relaxed))
    }

    /// The groups that have not ended, starting with a different one each time.
    fn groups(&self) -> Vec<Arc<Group>> {
        let mut groups = self.groups.lock().expect("no panic while held");
        groups.retain(|group| group.serve_state.ended().is_none());
        if groups.len() > 1 {
            groups.rotate_left(1);
        }
        groups.clone()
    }

    /// One claim for these groups. Returns how many leases each was handed, and when to claim again although nothing is
    /// published.
    pub(crate) async fn claim(
        &self,
        groups: &[Arc<Group>],
    ) -> Result<(HashMap<SubscriptionId, usize>, Option<Duration>)> {
        // Before a group is asked what it wants: one that leaves has stopped wanting, and waits for the claims that began before.
        let _claiming = self.claiming.lock().await;
        // One want per subscription: where a group runs twice in this process, the first that wants messages is served.
        let mut by_id: HashMap<SubscriptionId, &Arc<Group>> = HashMap::new();
        let mut wants: Vec<Want> = Vec::new();
        for group in groups {
            if let Entry::Vacant(free) = by_id.entry(group.subscription.subscription_id)
                && let Some(want) = group.want()
            {
                free.insert(group);
                wants.push(want);
            }
        }
        let asked: HashMap<SubscriptionId, u32> =
            wants.iter().map(|want| (want.subscription_id, want.messages_max)).collect();
        let mut got: HashMap<SubscriptionId, usize> = by_id.keys().map(|id| (*id, 0)).collect();
        if wants.is_empty() {
            return Ok((got, None));
        }
        let started = Instant::now();
        let lease_of: HashMap<SubscriptionId, Option<Duration>> =
            wants.iter().map(|want| (want.subscription_id, want.lease)).collect();
        let claimed = self.store.claim(&ClaimRequest { owner: self.owner.clone(), wants }).await?;
        let took = started.elapsed();
        for id in got.keys() {
            by_id[id].metrics.claim_seconds.record(took);
        }
        if !claimed.leases.is_empty() {
            self.enter(claimed.epoch, groups);
        }
        self.note_states(groups, &got, &claimed, started);
        claimed.used_up.iter().for_each(|used_up| by_id[&used_up.subscription_id].guard.used_up(used_up));
        // From here on the leases are known, and are extended or released whatever happens.
        let mut handed = Hand { store: &self.store, leases: claimed.leases.clone() };
        self.read_missing(&claimed.leases, &by_id).await?;
        let took = started.elapsed();
        let mut messages: HashMap<SubscriptionId, u64> = HashMap::new();
        for lease in claimed.leases {
            *messages.entry(lease.subscription_id).or_default() += lease.range.span();
            let group = by_id[&lease.subscription_id];
            handed.leases.retain(|other| other.token != lease.token);
            *got.get_mut(&lease.subscription_id).expect("only what was wanted is handed out") += 1;
            let lease_for = lease_of[&lease.subscription_id].unwrap_or_else(|| group.lease_for());
            self.hand_over(group, lease, lease_for, started);
        }
        for (id, messages) in messages {
            catch_up::claimed(by_id[&id], &self.store, asked[&id], messages, took);
        }
        let keep = self.pages_bytes_max();
        self.pages.lock().expect("no panic while held").trim(keep);
        Ok((got, claimed.recheck_after))
    }

    /// Drops the pages of another history before a lease of this one is served from them: an offset may stand for a
    /// different message now. Held leases are verified: a lease that the new history does not have is lost, and no more
    /// of its messages are started.
    fn enter(&self, epoch: Epoch, groups: &[Arc<Group>]) {
        let before = self.epoch.lock().expect("no panic while held").replace(epoch);
        if before.is_none_or(|before| before == epoch) {
            return;
        }
        self.pages.lock().expect("no panic while held").clear();
        groups.iter().for_each(|group| group.settler.verify());
        let topic = groups.first().map_or("", |group| group.subscription.topic.name.as_str());
        tracing::warn!(topic, "epoch changed, cached messages dropped, held leases verified");
    }

    /// Passes the states of their subscriptions to the groups of a claim.
    fn note_states(
        &self,
        groups: &[Arc<Group>],
        asked: &HashMap<SubscriptionId, usize>,
        claimed: &Claimed,
        asked_at: Instant,
    ) {
        let inactive: HashMap<_, _> = claimed.inactive.iter().copied().collect();
        for group in groups.iter().filter(|group| asked.contains_key(&group.subscription.subscription_id)) {
            let state = inactive.get(&group.subscription.subscription_id).copied().unwrap_or_default();
            group.note_state(state, asked_at);
            if group.serve_state.is_dead() {
                // A heartbeat resurrects it.
                self.request.now();
            }
        }
    }

    /// After a wake-up, which a pause may have caused. Groups that took part in a claim since know their state; for a
    /// group that holds messages and did not claim, a heartbeat is requested.
    fn check_after_wake(&self, groups: &[Arc<Group>], woken_at: Instant) {
        let uninformed =
            |group: &Arc<Group>| group.leases.held() > 0 && !group.serve_state.has_heard_since(woken_at);
        if groups.iter().any(uninformed) {
            self.request.ask();
        }
    }

    /// Hands a lease to its group: what was read of it and the group has room for. The rest is released.
    fn hand_over(&self, group: &Arc<Group>, lease: Lease, lease_for: Duration, claimed_at: Instant) {
        let views = {
            let pages = self.pages.lock().expect("no panic while held");
            let read = pages.prefix(lease.range);
            read.map(|read| (read, pages.view(read)))
        };
        let mut unread_from = views.as_ref().map_or(lease.range.first, |(read, _)| Offset(read.last.0 + 1));
        let views = views.map_or_else(Vec::new, |(_, views)| views);
        let (mut slices, mut parked) = if lease.lane.is_some() {
            let lanes = group.subscription.lanes;
            let in_lane = |message: &&Message| Some(message.lane(lanes)) == lease.lane;
            let all: Vec<_> = views.iter().flatten().filter(in_lane).cloned().collect();
            let (own, parked) = own_messages(&lease, lanes, all);
            let slices = if own.is_empty() { vec![] } else { vec![Messages::from(own)] };
            (slices, parked.into_iter().map(|(offset, key)| (offset, Outcome::Park { key })).collect())
        } else {
            (views, Vec::new())
        };
        let mut weighing = Weighing::new(group.bound());
        let too_much = slices.iter().flatten().find(|message| !weighing.fits(message.weight()));
        if let Some(message) = too_much {
            unread_from = message.offset;
            slices = slices.iter().filter_map(|slice| below(slice, unread_from)).collect();
            parked.retain(|(offset, _)| *offset < unread_from);
        }
        let count: usize = slices.iter().map(|slice| slice.len()).sum();
        // Every sixteenth message is sampled for the size of messages.
        let sample = slices.iter().flatten().step_by(16).map(Message::weight);
        let (sampled, bytes) = sample.fold((0, 0), |(count, bytes), weight| (count + 1, bytes + weight));
        group.pace.saw(sampled, bytes);
        self.handed.fetch_add(count as u64, Ordering::Relaxed);
        let last = lease.range.last;
        let mut work = LeaseWork::new(
            lease,
            Arc::clone(&group.leases),
            group.policy(),
            lease_for,
            slices,
            parked,
            claimed_at,
        );
        if unread_from <= last {
            work.leave_unread(OffsetRange::new(unread_from, last));
        }
        group.take_over(work);
    }

    /// Bytes of pages to keep for later claims: 0 if only one group reads, and each message once.
    fn pages_bytes_max(&self) -> usize {
        let groups = self.groups.lock().expect("no panic while held");
        let shared = groups.len() > 1 || groups.iter().any(|group| group.subscription.lanes > 0);
        let allowed = groups.iter().map(|group| group.settings.buffer_bytes_max / 2);
        if shared { allowed.fold(0, usize::saturating_add).min(PAGES_BYTES_MAX) } else { 0 }
    }
}

/// The messages of a view below an offset.
fn below(messages: &Messages, offset: Offset) -> Option<Messages> {
    let count = messages.partition_point(|message| message.offset < offset);
    (count > 0).then(|| messages.part(0..count))
}

/// Leases that were claimed and not handed over yet: released if the claim is abandoned on the way.
struct Hand<'a> {
    store: &'a Arc<dyn Store>,
    leases: Vec<Lease>,
}

impl Drop for Hand<'_> {
    fn drop(&mut self) {
        if self.leases.is_empty() {
            return;
        }
        let settlements: Vec<_> = self
            .leases
            .drain(..)
            .map(|lease| crate::settle::Settlement::each(&lease, vec![(lease.range, Outcome::Release)]))
            .collect();
        let store = Arc::clone(self.store);
        tokio::spawn(async move {
            let deadline = Instant::now() + GIVE_BACK_FOR;
            while let Err(error) = store.settle(&settlements).await {
                let unknown = error.kind() == ErrorKind::CommitUnknown;
                if !(error.is_retryable() || unknown) || Instant::now() > deadline {
                    tracing::warn!(%error, "leases not released, they expire at their deadline");
                    return;
                }
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
        });
    }
}

/// Runs the feed, and starts it again after a panic. A feed that panics repeatedly ends its groups: heartbeats must not
/// name a group that no feed claims for, and its program has to be informed.
async fn serve(feed: Arc<Feed>) {
    let (mut panics, mut pause) = (0, Duration::from_millis(50));
    loop {
        let started = Instant::now();
        let Err(panic) = AssertUnwindSafe(run(Arc::clone(&feed))).catch_unwind().await else { return };
        if started.elapsed() >= CALM {
            (panics, pause) = (0, Duration::from_millis(50));
        }
        panics += 1;
        tracing::error!(topic = %feed.topic, panics, panic = panic_text(&*panic), "feed panicked");
        if panics >= PANICS_MAX {
            // Under the lock that `join` takes after it added its group: the group is ended here, or finds no task and
            // starts one.
            let mut task = feed.task.lock().expect("no panic while held");
            feed.groups().iter().for_each(|group| group.end(EndReason::Panicked));
            *task = None;
            return;
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(PAUSE_MAX);
    }
}

/// Claims for the groups that want messages, until no group is served.
async fn run(feed: Arc<Feed>) {
    let mut idle: HashSet<SubscriptionId> = HashSet::new();
    let mut wake: Option<BoxFuture<'static, bool>> = None;
    let mut recheck_at = Instant::now();
    // When each idle subscription was last claimed for, or checked.
    let mut asked_at = Instant::now();
    let mut pause = Duration::from_millis(50);
    loop {
        let groups = feed.groups();
        if groups.is_empty() {
            // Under the lock that `join` takes after it added its group: it finds either this task running, or none.
            let mut task = feed.task.lock().expect("no panic while held");
            if feed.groups.lock().expect("no panic while held").is_empty() {
                *task = None;
                return;
            }
            continue;
        }
        if wake.as_mut().is_some_and(|wake| wake.now_or_never().is_some()) {
            wake = None;
        }
        let woken_at = wake.is_none().then(Instant::now);
        let now = Instant::now();
        if woken_at.is_some() || now >= recheck_at {
            (asked_at, recheck_at) = (now, now + WAIT_MAX);
            idle.clear();
        } else if now >= asked_at + SAFETY_POLL {
            asked_at = feed.check(&mut idle, asked_at).await;
        }
        for group in groups.iter().filter(|group| group.leases.take_wake()) {
            idle.remove(&group.subscription.subscription_id);
        }
        let is_ready = |group: &Arc<Group>| !idle.contains(&group.subscription.subscription_id);
        let ready: Vec<_> = groups.into_iter().filter(is_ready).take(CLAIM_SUBSCRIPTIONS_MAX).collect();
        let stepped = feed.step(&ready, &mut wake, &mut idle, &mut recheck_at).await;
        if let Some(woken_at) = woken_at {
            feed.check_after_wake(&ready, woken_at);
        }
        match stepped {
            Ok(true) => pause = Duration::from_millis(50),
            Ok(false) => {
                pause = Duration::from_millis(50);
                let woken = wake.as_mut().expect("armed by the step");
                tokio::select! {
                    _ = woken => wake = None,
                    () = feed.changed.notified() => {}
                    () = tokio::time::sleep_until(recheck_at.min(asked_at + SAFETY_POLL)) => {}
                }
            }
            Err(error) => {
                for group in &ready {
                    group.metrics.errors.record_error(&error, "claiming");
                }
                if error.kind() == ErrorKind::Closed {
                    tracing::info!(topic = %feed.topic, "claiming stopped, store closed");
                    return;
                }
                if error.kind() == ErrorKind::NoSuchSubscription {
                    // One of the subscriptions was removed: a heartbeat returns which.
                    feed.request.now();
                }
                tracing::warn!(topic = %feed.topic, %error, ?pause, "claim failed, retrying");
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(PAUSE_MAX);
                // The same failure may have broken the wake.
                wake = None;
            }
        }
    }
}

impl Feed {
    /// Checks whether claims for idle subscriptions may find something without a wake-up; those are idle no more. The
    /// wake stays armed: what comes after the check wakes it. Returns the time of the check.
    async fn check(&self, idle: &mut HashSet<SubscriptionId>, asked_at: Instant) -> Instant {
        let subscriptions: Vec<_> = idle.iter().copied().collect();
        let started = Instant::now();
        let checked = async {
            // Renewed, so that publishers keep notifying for as long as this waits.
            drop(self.store.arm(&[self.topic]).await?);
            // After a late check publishers may have stopped notifying: only a result from now on is valid.
            let is_late = started > asked_at + SAFETY_POLL + LATE;
            self.idle.claimable(&subscriptions, if is_late { Instant::now() } else { asked_at }).await
        };
        match checked.await {
            Ok((at, claimable)) => {
                idle.retain(|subscription| !claimable.contains(subscription));
                at
            }
            Err(error) => {
                // The claim that follows gets the same error, and reports it.
                tracing::debug!(topic = %self.topic, %error, "check of idle subscriptions failed, claiming");
                idle.clear();
                started
            }
        }
    }

    /// Arms the wake if needed, and claims once for the groups that are ready; true if a group was handed something.
    async fn step(
        &self,
        ready: &[Arc<Group>],
        wake: &mut Option<BoxFuture<'static, bool>>,
        idle: &mut HashSet<SubscriptionId>,
        recheck_at: &mut Instant,
    ) -> Result<bool> {
        if wake.is_none() {
            let armed = self.store.arm(&[self.topic]).await?;
            *wake = Some(armed.wait(WAIT_MAX).boxed());
        }
        let (got, recheck_after) = self.claim(ready).await?;
        if let Some(after) = recheck_after {
            *recheck_at = (*recheck_at).min(Instant::now() + after);
        }
        let mut any = false;
        for (id, leases) in got {
            if leases == 0 {
                idle.insert(id);
            }
            any |= leases > 0;
        }
        Ok(any)
    }
}

#[cfg(all(test, feature = "sqlite"))]
mod tests;
