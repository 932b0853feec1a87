//! What the consumers of one process share: one owner, one settler, one feed per topic, one keeper, one heartbeat task,
//! and maintenance.
//!
//! Keeper and heartbeat task run on the process's thread for leases, everything else on the program's runtime: a
//! program that blocks its threads delays messages, but loses no lease by it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use uuid::Uuid;

use super::feed::Feed;
use super::group::Group;
use super::heartbeat::{HEARTBEAT_MAX, HeartbeatRequest, Introduced, in_time};
use super::idle::Idle;
use super::reported::ReportedActivity;
use super::settler::Settler;
use super::{heartbeat, keeper};
use crate::error::Result;
use crate::lease_thread::LeaseThread;
use crate::limits::DELAY_MAX;
use crate::maintenance::{Maintaining, Maintenance, MaintenanceSettings};
use crate::name::{Owner, TopicName};
use crate::store::{Served, Signal, Store};
use crate::subscription::SubscriptionId;
use crate::topic::TopicId;

/// How long an owner may be silent before its leases are taken over. It sends four heartbeats in that time.
pub(crate) const SILENT_FOR: Duration = Duration::from_secs(15);

/// How long the end of the last consumer waits for a maintenance step that is under way.
const MAINTENANCE_ENDS_WITHIN: Duration = Duration::from_secs(2);

/// Shared by all consumers that run on one handle.
#[derive(Debug)]
pub(crate) struct Runtime {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) owner: Owner,
    pub(crate) settler: Settler,
    feeds: Mutex<HashMap<TopicId, Weak<Feed>>>,
    groups: Mutex<Vec<Arc<Group>>>,
    /// How long the owner may be silent; with `None` it is not judged by silence, and its leases last until their
    /// deadlines.
    silent_for: Option<Duration>,
    /// The thread that extends leases and sends heartbeats.
    pub(crate) thread: Arc<LeaseThread>,
    /// The program's runtime: reads that follow heartbeats run there.
    pub(super) home: Handle,
    keeper: JoinHandle<()>,
    heartbeats: Mutex<Option<JoinHandle<()>>>,
    /// Of the latest task of heartbeats: whether it has tried to prove that the process lives.
    introduced: Mutex<watch::Receiver<bool>>,
    /// Held while the last consumer departs: the heartbeats of a consumer that starts meanwhile begin afterwards.
    departing: Arc<tokio::sync::Mutex<()>>,
    /// What was reported of the groups.
    reported: ReportedActivity,
    /// Requests a heartbeat out of turn.
    pub(crate) request: Arc<HeartbeatRequest>,
    idle: Arc<Idle>,
    /// How processes that serve groups run maintenance; `None` for not at all.
    maintenance: Option<MaintenanceSettings>,
    /// Present while groups are served.
    maintaining: Mutex<Option<Maintaining>>,
    this: Weak<Runtime>,
}

impl Runtime {
    pub(crate) fn start(
        thread: Arc<LeaseThread>,
        store: Arc<dyn Store>,
        owner: Owner,
        silent_for: Option<Duration>,
        maintenance: Option<MaintenanceSettings>,
    ) -> Arc<Self> {
        let settler = Settler::start(Arc::clone(&store));
        Arc::new_cyclic(|this: &Weak<Runtime>| Runtime {
            idle: Arc::new(Idle::new(Arc::clone(&store), Weak::clone(this))),
            store,
            owner,
            settler,
            feeds: Mutex::default(),
            groups: Mutex::default(),
            silent_for,
            keeper: {
                let this = Weak::clone(this);
                thread.spawn_watched("keeper", move || keeper::keep(Weak::clone(&this)))
            },
            thread,
            home: Handle::current(),
            heartbeats: Mutex::default(),
            introduced: Mutex::new(watch::channel(true).1),
            departing: Arc::default(),
            reported: ReportedActivity::default(),
            request: Arc::default(),
            maintenance,
            maintaining: Mutex::default(),
            this: Weak::clone(this),
        })
    }

    pub(super) fn downgrade(&self) -> Weak<Runtime> {
        Weak::clone(&self.this)
    }

    /// A unique name.
    pub(crate) fn new_owner() -> Result<Owner> {
        Owner::new(format!("{}-{}", std::process::id(), Uuid::now_v7()))
    }

    /// The feed of a topic, made if there is none.
    pub(crate) fn feed(&self, topic: TopicId) -> Arc<Feed> {
        let mut feeds = self.feeds.lock().expect("no panic while held");
        if let Some(feed) = feeds.get(&topic).and_then(Weak::upgrade) {
            return feed;
        }
        let (request, idle) = (Arc::clone(&self.request), Arc::clone(&self.idle));
        let feed = Feed::new(Arc::clone(&self.store), topic, self.owner.clone(), request, idle);
        feeds.insert(topic, Arc::downgrade(&feed));
        feed
    }

    /// Serves a group from now on; the first one starts heartbeats and maintenance.
    pub(crate) fn serve(&self, group: Arc<Group>) {
        self.reported.begin(&group);
        // Added to the list under the heartbeat task's lock: a task about to end finds the group, or has ended before.
        let mut heartbeats = self.heartbeats.lock().expect("no panic while held");
        self.groups.lock().expect("no panic while held").push(group);
        if heartbeats.is_some() {
            self.request.now();
        } else {
            // It starts with every group in the list.
            let (this, silent_for, departing) =
                (Weak::clone(&self.this), self.silent_for, Arc::clone(&self.departing));
            let (introduced, tried) = Introduced::new();
            *self.introduced.lock().expect("no panic while held") = tried;
            let run = move || {
                heartbeat::run(Weak::clone(&this), silent_for, introduced.clone(), Arc::clone(&departing))
            };
            *heartbeats = Some(self.thread.spawn_watched("heartbeat", run));
        }
        let mut maintaining = self.maintaining.lock().expect("no panic while held");
        if let (None, Some(settings)) = (&*maintaining, self.maintenance) {
            let maintenance = Maintenance::new(Arc::clone(&self.store) as _).settings(settings);
            *maintaining = Some(maintenance.start());
        }
    }

    /// Waits until the owner of a group that is served has tried to prove that it lives.
    pub(crate) async fn introduced(&self) {
        let mut tried = self.introduced.lock().expect("no panic while held").clone();
        // Without a sender the heartbeats have ended.
        let _ = tried.wait_for(|tried| *tried).await;
    }

    /// Serves a group no more. The last one also departs from the store, if no lease is held.
    pub(crate) async fn dismiss(&self, group: &Arc<Group>, clean: bool) {
        self.remove_group(group);
        let departing = Arc::clone(&self.departing).lock_owned().await;
        let ends = {
            let mut heartbeats = self.heartbeats.lock().expect("no panic while held");
            let last = self.groups().is_empty() && self.settler.is_idle();
            last.then(|| (heartbeats.take(), self.take_maintaining()))
        };
        let Some((heartbeats, maintaining)) = ends else {
            drop(departing);
            if clean {
                self.report_last(group).await;
            }
            return;
        };
        if let Some(heartbeats) = &heartbeats {
            heartbeats.abort();
        }
        let this = self.this.upgrade().expect("the caller holds it");
        let group = Arc::clone(group);
        // To its end, also if the caller is cancelled: a departure that is stored later would remove the owner of a consumer that
        // has started since.
        let leaving = self.home.spawn(async move {
            if let Some(maintaining) = maintaining {
                // Another process takes over at once. The task was signalled to stop, so it also ends if its step takes
                // longer.
                let _ = tokio::time::timeout(MAINTENANCE_ENDS_WITHIN, maintaining.stop()).await;
            }
            if let Some(heartbeats) = heartbeats {
                // No heartbeat follows the departure.
                let _ = heartbeats.await;
            }
            if clean {
                this.report_last(&group).await;
                this.depart().await;
            }
            drop(departing);
        });
        let _ = leaving.await;
    }

    /// Reports what a group has done since the last heartbeat, as no other heartbeat follows.
    async fn report_last(&self, group: &Arc<Group>) {
        if let Err(error) = in_time(HEARTBEAT_MAX, self.report(group)).await {
            tracing::debug!(%error, "last activity not reported");
        }
    }

    async fn depart(&self) {
        match self.store.depart(&self.owner).await {
            Ok(()) => self.reported.departed(),
            Err(error) => {
                tracing::debug!(%error, "owner departure not recorded, its heartbeat expires");
            }
        }
    }

    /// Reports that the owner lives, which groups it serves and what was done for them. Returns the state of each.
    pub(crate) async fn heartbeat(
        &self,
        groups: &[Arc<Group>],
        silent_for: Option<Duration>,
    ) -> Result<Vec<(SubscriptionId, Signal)>> {
        let served = self.served(groups);
        // The store logs whose leases ended by it.
        let signals = self.store.heartbeat(&self.owner, silent_for, &served).await?.signals;
        self.reported.reported(&served);
        Ok(served.iter().map(|one| one.subscription_id).zip(signals).collect())
    }

    /// A heartbeat out of turn that also names this group as served: for a group that ends, or is to be resurrected.
    pub(super) async fn report(&self, group: &Arc<Group>) -> Result<Option<Signal>> {
        let mut groups = self.groups();
        // It judges no other owner, so it ends no leases; and without heartbeats that follow, none of this owner's end by silence.
        let is_served = groups.iter().any(|other| Arc::ptr_eq(other, group));
        let silent_for = self.silent_for.filter(|_| is_served).map(|_| DELAY_MAX);
        groups.push(Arc::clone(group));
        let signals = self.heartbeat(&groups, silent_for).await?;
        let own = group.subscription.subscription_id;
        Ok(signals.into_iter().find(|(id, _)| *id == own).map(|(_, signal)| signal))
    }

    /// Each subscription once: a group may run twice in one process.
    pub(super) fn served(&self, groups: &[Arc<Group>]) -> Vec<Served> {
        let mut served: Vec<Served> = Vec::new();
        let is_served =
            |group: &&Arc<Group>| group.serve_state.ended().is_none() && group.serve_state.is_used();
        for group in groups.iter().filter(is_served) {
            let subscription_id = group.subscription.subscription_id;
            if served.iter().all(|one| one.subscription_id != subscription_id) {
                served.push(Served { subscription_id, activity: self.reported.activity(group) });
            }
        }
        served
    }

    /// Removes a group from the list, without waiting for anything.
    pub(crate) fn remove_group(&self, group: &Arc<Group>) {
        self.groups.lock().expect("no panic while held").retain(|other| !Arc::ptr_eq(other, group));
    }

    /// The groups that are served; groups that have ended are removed.
    pub(crate) fn groups(&self) -> Vec<Arc<Group>> {
        let mut groups = self.groups.lock().expect("no panic while held");
        groups.retain(|group| group.serve_state.ended().is_none());
        groups.clone()
    }

    fn take_maintaining(&self) -> Option<Maintaining> {
        self.maintaining.lock().expect("no panic while held").take()
    }

    /// Reads the lag of the groups that got messages since their lag was last read.
    pub(crate) async fn measure_lag(&self) -> Result<()> {
        let groups: Vec<_> = self.groups().into_iter().filter(|group| group.take_moved()).collect();
        if groups.is_empty() {
            return Ok(());
        }
        let heads: HashMap<TopicId, i64> = self
            .store
            .topics()
            .await?
            .into_iter()
            .map(|status| (status.topic.topic_id, status.head.0))
            .collect();
        let topics: HashMap<TopicId, &TopicName> = groups
            .iter()
            .map(|group| (group.subscription.topic.topic_id, &group.subscription.topic.name))
            .collect();
        for (topic, name) in topics {
            let head = heads.get(&topic).copied().unwrap_or(0);
            for status in self.store.subscriptions(name).await? {
                let lag = u64::try_from(head - status.floor.0).unwrap_or(0);
                let served = groups
                    .iter()
                    .filter(|group| group.subscription.subscription_id == status.subscription_id);
                served.for_each(|group| group.metrics.lag.set(lag));
            }
        }
        Ok(())
    }

    /// Whether no group is served and no lease is held; then the heartbeat task counts as ended.
    pub(crate) fn heartbeats_may_end(&self) -> bool {
        let mut heartbeats = self.heartbeats.lock().expect("no panic while held");
        let last = self.groups().is_empty() && self.settler.is_idle();
        if last {
            *heartbeats = None;
            // Dropping it stops maintenance.
            drop(self.take_maintaining());
        }
        last
    }
}

impl Drop for Runtime {
    fn drop(&mut self) {
        self.keeper.abort();
        if let Some(heartbeats) = self.heartbeats.lock().expect("no panic while held").take() {
            heartbeats.abort();
        }
    }
}
