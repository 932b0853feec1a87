//! A group in this process: its members, its queue of work and its workers.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, RwLock};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::catch_up::CatchUp;
use super::leases::{GroupLeases, HELD_MAX};
use super::member::{Member, Members};
use super::pace::Pace;
use super::queue::{Queue, Slice};
use super::serve_state::{EndReason, ServeState};
use super::settings::{Delivery, GroupSettings};
use super::settler::Settler;
use super::transaction::together::Tries;
use super::work::LeaseWork;
use super::worker;
use crate::handler::{Burials, Handler, HandlerGuard, Messages};
use crate::lease::Want;
use crate::message::{Message, Offset};
use crate::observe::metrics::GroupMetrics;
use crate::settle::{Outcome, RetryPolicy};
use crate::store::FetchBound;
use crate::subscription::{Subscription, SubscriptionState};
use crate::topic::TopicSettings;

/// With all workers busy and no message finished for this long, a group claims nothing more.
const STUCK: Duration = Duration::from_millis(900);

/// One group's work in this process.
pub(crate) struct Group {
    pub(crate) subscription: Arc<Subscription>,
    pub(crate) settings: GroupSettings,
    /// Its lease time and retry policy; may be altered while it runs.
    delivery: Mutex<Delivery>,
    pub(crate) metrics: Arc<GroupMetrics>,
    pub(crate) settler: Settler,
    pub(crate) pace: Pace,
    /// How it yields to applications while it has a backlog, if configured.
    pub(crate) catch_up: Option<CatchUp>,
    /// Whether it may be served.
    pub(crate) serve_state: Arc<ServeState>,
    /// Calls its handlers.
    pub(crate) guard: Arc<HandlerGuard>,
    /// Its held leases.
    pub(crate) leases: Arc<GroupLeases>,
    /// Which of its slices are tried together.
    pub(crate) tries: Tries,
    members: RwLock<Arc<Members>>,
    queue: Queue,
    workers: Mutex<JoinSet<()>>,
    /// Whether anything was delivered since the lag was last read.
    moved: AtomicBool,
}

impl std::fmt::Debug for Group {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Group({} on {})", self.subscription.group, self.subscription.topic.name)
    }
}

impl Group {
    pub(crate) fn new(
        subscription: Subscription,
        settings: GroupSettings,
        members: Members,
        settler: Settler,
        changed: Arc<Notify>,
        metrics: Arc<GroupMetrics>,
    ) -> Self {
        let subscription = Arc::new(subscription);
        let interval = subscription.topic.settings.heartbeat_interval;
        let serve_state =
            if settings.pulled { ServeState::pulled(interval) } else { ServeState::new(interval) };
        let serve_state = Arc::new(serve_state);
        let guard = HandlerGuard {
            subscription: Arc::clone(&subscription),
            timeout: settings.timeout,
            metrics: Arc::clone(&metrics),
            serve_state: Arc::clone(&serve_state),
            undecodable: settings.undecodable,
            burials: Burials::new(settings.pause_after_burials),
            store: Some(Arc::clone(settler.store())),
        };
        let leases = GroupLeases::new(
            Arc::clone(&subscription),
            Arc::clone(&metrics),
            Arc::clone(&serve_state),
            !settings.limits.is_none(),
            changed,
        );
        Group {
            delivery: Mutex::new(Delivery::from(&subscription.topic.settings)),
            metrics,
            pace: Pace::new(settings.batch.max(settings.concurrency), settings.buffer_bytes_max),
            catch_up: settings.catch_up_pace.map(CatchUp::new),
            queue: Queue::new(settings.concurrency),
            members: RwLock::new(Arc::new(members)),
            workers: Mutex::default(),
            serve_state,
            tries: Tries::default(),
            guard: Arc::new(guard),
            moved: AtomicBool::new(true),
            subscription,
            settings,
            settler,
            leases: Arc::new(leases),
        }
    }

    pub(crate) fn members(&self) -> Arc<Members> {
        Arc::clone(&self.members.read().expect("no panic while held"))
    }

    pub(crate) fn change_members<T>(&self, change: impl FnOnce(&mut Vec<Arc<Member>>) -> T) -> T {
        let mut members = self.members.write().expect("no panic while held");
        let mut changed = Members::clone(&members);
        let result = change(&mut changed.0);
        *members = Arc::new(changed);
        drop(members);
        self.leases.changed.notify_one();
        result
    }

    /// The lease time of claims from now on.
    pub(crate) fn lease_for(&self) -> Duration {
        self.settings.lease.unwrap_or_else(|| self.delivery.lock().expect("no panic while held").lease)
    }

    /// The retry policy of messages claimed from now on.
    pub(crate) fn policy(&self) -> RetryPolicy {
        self.delivery.lock().expect("no panic while held").retry
    }

    /// Applies the settings as last read: of the topic, with the group's delivery policy.
    pub(crate) fn learn(&self, settings: &TopicSettings) {
        *self.delivery.lock().expect("no panic while held") = Delivery::from(settings);
        self.serve_state.set_heartbeat_interval(settings.heartbeat_interval);
    }

    /// What to claim for it now, if anything.
    pub(crate) fn want(&self) -> Option<Want> {
        // A paused group continues to claim: that is how it learns that it was resumed.
        if self.serve_state.is_stopping() || self.serve_state.is_suspended() {
            return None;
        }
        // Until its own pause is stored, a claim would bring what it cannot hand out.
        if self.serve_state.own_pause.is_pending() {
            return None;
        }
        // No worker here could start it soon; the next one that is free notifies the feed.
        if self.queue.free() == 0 && self.pace.idle_for() >= STUCK {
            return None;
        }
        if self.leases.held() >= HELD_MAX {
            return None;
        }
        // It claims again once half of its bytes are free: handlers have the other half meanwhile.
        if !self.bound().at_least_one {
            return None;
        }
        let paced = match &self.catch_up {
            // The feed is notified when the pause is over.
            Some(catch_up) => catch_up.messages_max()? as usize,
            None => usize::MAX,
        };
        let unit = self.unit();
        let messages_max = self.pace.want(self.queue.buffered(), self.queue.free(), unit)?;
        // A lane's lease spans all lanes, and a transaction settles its lease as a whole: neither should be larger than
        // a batch.
        let most = if self.subscription.lanes > 0 || self.is_transactional() {
            self.settings.batch
        } else {
            messages_max
        };
        Some(Want {
            lease: Some(self.lease_for()),
            limits: self.settings.limits,
            ..Want::new(
                self.subscription.subscription_id,
                u32::try_from(messages_max.min(most).min(paced)).unwrap_or(u32::MAX),
            )
        })
    }

    /// How many messages one worker takes at a time.
    fn unit(&self) -> usize {
        let members = self.members.read().expect("no panic while held");
        let singles = members.0.iter().all(|member| matches!(member.handler, Handler::One(_)));
        if singles && self.subscription.lanes == 0 { 1 } else { self.settings.batch }
    }

    fn is_transactional(&self) -> bool {
        let members = self.members.read().expect("no panic while held");
        members.0.iter().any(|member| member.handler.is_transactional())
    }

    /// Takes a lease: routes its messages to members and queues them.
    pub(crate) fn take_over(self: &Arc<Self>, work: LeaseWork) {
        let work = Arc::new(work);
        self.settler.take(&work);
        // Registered first: a concurrent stop of the group either finds this lease held, or is seen here.
        // Also released if it came late, because no thread here ran: it may expire and be claimed by another owner
        // before a handler is done with it.
        if self.serve_state.is_stopping() || work.came_late() {
            self.settler.give_back(&work);
            return;
        }
        let members = self.members();
        let count = work.messages();
        self.metrics.delivered.add(count as u64);
        self.moved.store(true, Ordering::Relaxed);
        if work.lease.suspect {
            self.metrics.reassigned.add(count as u64);
        }
        if count == 0 {
            self.settler.finish(&work);
            return;
        }
        let mut slices = Vec::new();
        let mut ended = false;
        for slice in work.take_slices() {
            ended |= self.route(&work, &members, &slice, &mut slices);
        }
        if ended {
            self.settler.finish(&work);
        } else if work.has_unread()
            && let Some(unread) = work.settle_done(Duration::ZERO)
        {
            // Released before anything is started: unread messages are for a process that has room.
            self.settler.settle_part(&work, unread);
        }
        let workers = self.queue.push(slices);
        self.start_workers(workers);
        // Queued first: a concurrent stop or pause of the group either finds the messages in the queue, or is seen
        // here.
        if self.serve_state.is_stopping() {
            self.release(self.queue.close());
        } else if self.serve_state.is_held_back() {
            self.release_unstarted();
        }
        // A filter that fails may have buried one too many.
        self.pause_if_due();
    }

    /// Releases what is queued and not started.
    pub(super) fn release_unstarted(&self) {
        self.release(self.queue.take_stale(Duration::ZERO));
    }

    /// Runs a task of the group; its end waits for it as for workers.
    pub(super) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.workers.lock().expect("no panic while held").spawn(task);
    }

    fn start_workers(self: &Arc<Self>, count: usize) {
        if count == 0 {
            return;
        }
        let mut workers = self.workers.lock().expect("no panic while held");
        while workers.try_join_next().is_some() {}
        for _ in 0..count {
            workers.spawn(worker::run(Arc::clone(self)));
        }
    }

    /// The next piece of work for a worker; notifies the feed when the buffer runs low.
    pub(crate) fn next(&self, current: &mut Option<Arc<Slice>>) -> Option<super::queue::Unit> {
        let unit = self.queue.next(current);
        if self.pace.is_low(self.queue.buffered()) {
            self.leases.changed.notify_one();
        }
        unit
    }

    /// How many bytes of messages it may take now. One message is taken whatever its size while half of the limit is
    /// free, which is when claims are made: a message too large for the limit is handled too.
    pub(crate) fn bound(&self) -> FetchBound {
        let (bytes, bytes_max) = (self.queue.bytes(), self.settings.buffer_bytes_max);
        FetchBound { bytes_max: bytes_max.saturating_sub(bytes), at_least_one: bytes <= bytes_max / 2 }
    }

    /// Messages were handled, with any outcome.
    pub(crate) fn done(&self, messages: &[Message]) {
        self.queue.done(messages);
        self.pace.done(messages.len());
    }

    /// A handler waits: another worker should take what is queued behind it.
    pub(crate) fn call_for_help(self: &Arc<Self>) {
        if self.queue.hire_one() {
            self.start_workers(1);
        }
    }

    /// Its held leases.
    pub(crate) fn in_hand(&self) -> Vec<Arc<LeaseWork>> {
        let mut works = self.settler.in_hand();
        works.retain(|work| Arc::ptr_eq(&work.of, &self.leases));
        works
    }

    /// Releases messages that were not started for too long while handlers are busy: other processes may be free.
    pub(crate) fn give_back_stale(&self, waited: Duration) {
        if self.pace.idle_for() >= waited {
            self.release(self.queue.take_stale(waited));
        }
    }

    /// Releases messages that were not started, at once, although others of their leases are being handled.
    fn release(&self, unstarted: Vec<(Arc<Slice>, Messages)>) {
        for (slice, messages) in unstarted {
            let released: Vec<(Offset, Outcome)> =
                messages.iter().map(|message| (message.offset, Outcome::Release)).collect();
            if slice.work.finish_all(&messages, released) {
                self.settler.finish(&slice.work);
            } else if let Some(settlement) = slice.work.settle_done(Duration::ZERO) {
                self.settler.settle_part(&slice.work, settlement);
            }
        }
    }

    /// Whether something was delivered since the last call, or the group is behind.
    pub(crate) fn take_moved(&self) -> bool {
        let behind = self.metrics.lag.get().is_some_and(|lag| lag > 0);
        self.moved.swap(false, Ordering::Relaxed) || behind
    }

    /// Applies the state of its subscription, as the store reported it to a call that started at `asked_at`; true if it
    /// is held back from now on.
    pub(crate) fn note_state(&self, state: SubscriptionState, asked_at: Instant) -> bool {
        self.serve_state.heard();
        let (topic, group) = (&self.subscription.topic.name, &self.subscription.group);
        match state {
            SubscriptionState::Active => {
                self.serve_state.set_dead(false);
                if self.serve_state.own_pause.may_end(asked_at) && self.serve_state.set_paused(false) {
                    self.guard.burials.reset();
                    tracing::info!(%topic, %group, "subscription resumed");
                }
            }
            SubscriptionState::Paused => {
                if self.serve_state.set_paused(true) {
                    tracing::info!(%topic, %group, "subscription paused, unstarted messages released");
                    self.release_unstarted();
                    return true;
                }
            }
            SubscriptionState::Dead => {
                self.serve_state.set_dead(true);
            }
            SubscriptionState::Cancelled => self.end(EndReason::Cancelled),
        }
        false
    }

    /// Contact with the database is lost: hands out nothing, and releases messages that were not started. True if that
    /// changed.
    pub(crate) fn suspend(&self) -> bool {
        // A pulled group is in contact whenever it gets messages.
        let changed = !self.settings.pulled && self.serve_state.set_suspended(true);
        if changed {
            self.release_unstarted();
        }
        changed
    }

    /// Contact with the database is restored.
    pub(crate) fn unsuspend(&self) {
        if self.serve_state.set_suspended(false) {
            self.leases.wake();
        }
    }

    /// Nothing more is handed to members. If the subscription has ended, its leases are lost; otherwise members finish
    /// what they have.
    pub(crate) fn end(&self, reason: EndReason) {
        if !self.serve_state.set_ended(reason) {
            return;
        }
        let (topic, group) = (&self.subscription.topic.name, &self.subscription.group);
        tracing::warn!(%topic, %group, %reason, "consumer ended");
        if self.serve_state.is_over() {
            self.in_hand().iter().for_each(|work| work.lost.store(true, Ordering::Relaxed));
        }
        self.stop();
        self.serve_state.ending.notify_waiters();
    }

    /// Accepts no more work, and releases what is queued and not started. Running handlers continue.
    pub(crate) fn stop(&self) {
        self.serve_state.set_stopping();
        self.release(self.queue.close());
        self.leases.changed.notify_one();
    }

    /// Waits until every worker has ended, or stops them at the deadline. True if all ended by themselves.
    pub(crate) async fn workers_ended(&self, deadline: Instant) -> bool {
        let mut workers = std::mem::take(&mut *self.workers.lock().expect("no panic while held"));
        let all = async { while workers.join_next().await.is_some() {} };
        if tokio::time::timeout_at(deadline, all).await.is_ok() {
            return true;
        }
        workers.shutdown().await;
        false
    }
}
