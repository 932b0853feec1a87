//! `headwater serve --demo`: a small shop in a temporary store, so that the dashboard has something to show from the first second.
//!
//! Everything is real: topics, groups, sagas, an outbox with its relay, cron jobs, a pipeline. Nothing grows for ever: retention removes
//! what is done within minutes, so the demo can run for days.

mod consumers;
mod housekeeping;
mod orders;
mod saga;
mod traffic;
mod world;

use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use axum::Router;
use headwater::cron::CronJob;
use headwater::maintenance::{Job, MaintenanceSettings};
use headwater::{Headwater, Running, TopicSettings};
use headwater_relay::registered::{self, NewRelay};
use headwater_relay::{RelaySettings, RunningRelay, Source};
use tokio::sync::watch;
use tokio::task::JoinSet;

use self::world::World;

/// How long a message is kept after every group is done with it.
const KEPT: Duration = Duration::from_secs(10 * 60);
/// The age at which a message is removed although a group is not done with it: one group is paused.
const KEPT_AT_MOST: Duration = Duration::from_secs(6 * 3_600);
/// How long what is in hand may take when the demo ends.
const GRACE: Duration = Duration::from_secs(5);

/// The topics: events for several groups, and queues with one group each.
const EVENTS: [&str; 3] = ["orders", "payments", "shipments"];
const QUEUES: [&str; 7] = [
    "stock.commands",
    "payment.commands",
    "shipping.commands",
    "process.order",
    "reminders",
    "reports",
    "stock-counts",
];

/// The demo at work.
pub(super) struct Demo {
    stop: watch::Sender<bool>,
    /// Publishers and housekeeping.
    tasks: JoinSet<()>,
    running: Vec<Running>,
    cron: Vec<CronJob>,
    relay: RunningRelay,
    /// The other end of the relay, a store of its own.
    partner: Partner,
    world: World,
}

/// A partner of the shop: another store, to which the outbox is relayed.
struct Partner {
    headwater: Headwater,
    running: Running,
}

/// Maintenance that keeps the store small: each kind of cleanup every minute.
pub(super) fn maintenance() -> headwater::Result<MaintenanceSettings> {
    let minute = Duration::from_secs(60);
    MaintenanceSettings::default()
        .every(Job::MessageCleanup, minute)?
        .every(Job::EntryCleanup, minute)?
        .every(Job::SubscriptionCleanup, minute)?
        .every(Job::Survey, Duration::from_secs(5))?
        .inbox_retention(KEPT)?
        .outbox_retention(KEPT)?
        .process_retention(KEPT)
}

impl Demo {
    /// Starts everything in a store that is empty, with further files in this folder.
    pub(super) async fn start(headwater: &Headwater, folder: &Path) -> Result<Self> {
        create_topics(headwater).await?;
        let mut running = saga::start(headwater).await?;
        running.extend(consumers::start(headwater).await?);
        let analytics = consumers::open_analytics(headwater).await?;
        // Resumed by hand, in the dashboard: what it missed waits for it.
        let reason = "waits for the new tax rates; resume it whenever you like";
        headwater.groups("payments").pause_because("tax", reason).await?;
        let partner = Partner::open(folder).await?;
        let relay = start_relay(headwater, folder).await?;
        let cron = start_cron(headwater).await?;
        let world = World::start(&folder.join("world")).await?;
        let (stop, stopped) = watch::channel(false);
        let mut tasks = JoinSet::new();
        tasks.spawn(traffic::orders(headwater.clone(), stopped.clone()));
        tasks.spawn(traffic::sagas(headwater.clone(), stopped.clone()));
        tasks.spawn(consumers::analytics(analytics, stopped.clone()));
        tasks.spawn(traffic::reminders(headwater.clone(), stopped.clone()));
        tasks.spawn(housekeeping::run(headwater.clone(), stopped));
        Ok(Demo { stop, tasks, running, cron, relay, partner, world })
    }

    /// The pipeline's query API, for `/v1/pipeline`.
    pub(super) fn router(&self) -> Router {
        self.world.router()
    }

    /// Ends everything: first what publishes, then what consumes.
    pub(super) async fn stop(mut self) -> Result<()> {
        self.stop.send_replace(true);
        while self.tasks.join_next().await.is_some() {}
        for job in self.cron {
            job.stop().await;
        }
        let world = self.world.stop().await;
        self.relay.shutdown(GRACE).await?;
        for consumer in self.running {
            consumer.shutdown(GRACE).await?;
        }
        self.partner.running.shutdown(GRACE).await?;
        self.partner.headwater.close().await?;
        world
    }
}

fn settings() -> TopicSettings {
    TopicSettings {
        message_retention: Some(KEPT),
        max_retention: Some(KEPT_AT_MOST),
        zero_subscription_retention: KEPT,
        heartbeat_interval: Duration::from_secs(2),
        heartbeat_timeout: Duration::from_secs(30),
        lease: Duration::from_secs(30),
        max_attempts: 3,
        backoff_initial: Duration::from_secs(1),
        backoff_max: Duration::from_secs(8),
        ..TopicSettings::default()
    }
}

async fn create_topics(headwater: &Headwater) -> headwater::Result<()> {
    for topic in EVENTS {
        let settings = TopicSettings { semantics: TopicSettings::pub_sub().semantics, ..settings() };
        headwater.topic(topic).settings(settings).create().await?;
    }
    for topic in QUEUES {
        headwater.topic(topic).settings(settings()).create().await?;
    }
    Ok(())
}

/// Sends the outbox to the partner's store.
async fn start_relay(headwater: &Headwater, folder: &Path) -> Result<RunningRelay> {
    let target = format!("headwater+sqlite:{}", folder.join("partner.db").display());
    let new = NewRelay {
        name: Some("partner".into()),
        source: Source::Outbox,
        target,
        settings: RelaySettings::default(),
    };
    registered::add(headwater, new).await?;
    let relays = registered::load(headwater).await?;
    let added = relays.first().ok_or_else(|| anyhow::anyhow!("the relay of the demo is not registered"))?;
    Ok(added.relay(headwater)?.run().await?)
}

async fn start_cron(headwater: &Headwater) -> headwater::Result<Vec<CronJob>> {
    let report =
        headwater.cron("sales-report", "0 * * * * *").topic("reports").message("sales").start().await?;
    let count = headwater
        .cron("stock-count", "*/15 * * * * *")
        .topic("stock-counts")
        .message("count")
        .start()
        .await?;
    Ok(vec![report, count])
}

impl Partner {
    async fn open(folder: &Path) -> Result<Self> {
        let url = format!("sqlite:{}", folder.join("partner.db").display());
        let options = headwater::OpenOptions::default().maintenance_settings(maintenance()?);
        let headwater = Headwater::open_with(&url, options).await?;
        headwater.topic("shop.parcels").settings(settings()).create().await?;
        let running =
            headwater.consumer("shop.parcels", "partner").member("reader", consumers::read).run().await?;
        Ok(Partner { headwater, running })
    }
}
