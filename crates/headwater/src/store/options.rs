//! How a store is opened.

use std::time::Duration;

use crate::clock::Clock;
use crate::maintenance::{MaintenancePreset, MaintenanceSettings};
use crate::observe::window::WINDOW_DEFAULT;

/// Options for opening a store. The defaults are for production.
#[derive(Clone, Debug)]
pub struct OpenOptions {
    pub(crate) namespace: Option<String>,
    pub(crate) auto_create: Option<bool>,
    pub(crate) create: bool,
    pub(crate) adopt: bool,
    pub(crate) migrate: bool,
    pub(crate) clock: Clock,
    pub(crate) durable_settlements: bool,
    pub(crate) sync_every_publish: bool,
    pub(crate) connections_max: usize,
    pub(crate) statement_timeout: Duration,
    pub(crate) listen_url: Option<String>,
    pub(crate) health_window: Duration,
    pub(crate) actor: String,
    pub(crate) maintenance: Option<MaintenanceSettings>,
    pub(crate) read_only: bool,
}

impl Default for OpenOptions {
    fn default() -> Self {
        OpenOptions {
            namespace: None,
            auto_create: None,
            create: true,
            adopt: false,
            migrate: false,
            clock: Clock::Database,
            durable_settlements: false,
            sync_every_publish: true,
            connections_max: 16,
            statement_timeout: Duration::from_secs(30),
            listen_url: None,
            health_window: WINDOW_DEFAULT,
            actor: format!("process {}", std::process::id()),
            maintenance: Some(MaintenanceSettings::default()),
            read_only: false,
        }
    }
}

impl OpenOptions {
    /// The namespace; takes precedence over the URL's parameter.
    #[must_use]
    pub fn namespace(mut self, name: impl Into<String>) -> Self {
        self.namespace = Some(name.into());
        self
    }

    /// Whether publishing through this handle to a topic that does not exist creates it as a queue. By default
    /// PostgreSQL does not, and SQLite does unless it is off in the file: `headwater topic auto-create off`.
    #[must_use]
    pub fn auto_create(mut self, auto_create: bool) -> Self {
        self.auto_create = Some(auto_create);
        self
    }

    /// Whether a missing store is created, the file or the PostgreSQL schema with its roles: on by default. Switch it off where a
    /// mistyped URL must have no effect; a missing store is then [`ErrorKind::NoSuchStore`](crate::ErrorKind::NoSuchStore).
    #[must_use]
    pub fn create(mut self, create: bool) -> Self {
        self.create = create;
        self
    }

    /// Allows the embedded store to install itself in an SQLite file with tables of another application, so that
    /// messages are published in that application's own transactions. Without it such a file is refused.
    #[must_use]
    pub fn adopt(mut self, adopt: bool) -> Self {
        self.adopt = adopt;
        self
    }

    /// Migrates an older PostgreSQL schema while opening. Without it a shared database is upgraded with `headwater migrate`;
    /// an SQLite file is always migrated.
    #[must_use]
    pub fn migrate(mut self, migrate: bool) -> Self {
        self.migrate = migrate;
        self
    }

    /// Opens the store for reading only: topics, groups and dead letters can be listed and the doctor runs; writes are
    /// refused. Nothing is created or migrated. On SQLite also where the file, its directory or the mount cannot be
    /// written; on PostgreSQL also a standby.
    #[must_use]
    pub fn read_only(mut self, read_only: bool) -> Self {
        self.read_only = read_only;
        self
    }

    /// The clock; tests inject a manual one.
    #[must_use]
    pub fn clock(mut self, clock: Clock) -> Self {
        self.clock = clock;
        self
    }

    /// Waits for the disk at every claim and settlement too. Off by default: losing one in a power failure only means a
    /// redelivery. Publishing always waits.
    #[must_use]
    pub fn durable_settlements(mut self, durable: bool) -> Self {
        self.durable_settlements = durable;
        self
    }

    /// Whether the embedded store waits for the disk at every publish (`synchronous = FULL`, the default). If off, a
    /// power failure may lose the most recent publishes; a crash of the process never does.
    #[must_use]
    pub fn sync_every_publish(mut self, sync: bool) -> Self {
        self.sync_every_publish = sync;
        self
    }

    /// How many connections the pool for work may have (PostgreSQL), or how many readers (SQLite, at most 4).
    #[must_use]
    pub fn connections_max(mut self, connections: usize) -> Self {
        self.connections_max = connections.max(1);
        self
    }

    /// How long a statement may take before it is cancelled (PostgreSQL), or how long a publish or a change of settings
    /// waits for another process's lock (SQLite). Calls that leases depend on wait for a sixth of it: 5 of 30 seconds.
    #[must_use]
    pub fn statement_timeout(mut self, timeout: Duration) -> Self {
        self.statement_timeout = timeout;
        self
    }

    /// A direct URL for LISTEN where the store's URL goes through a pooler in transaction mode (PostgreSQL).
    #[must_use]
    pub fn listen_url(mut self, url: impl Into<String>) -> Self {
        self.listen_url = Some(url.into());
        self
    }

    /// The window of rates and percentiles in a component's health: a second to an hour, a minute by default.
    #[must_use]
    pub fn health_window(mut self, window: Duration) -> Self {
        self.health_window = window;
        self
    }

    /// The actor in audit entries; the process by default.
    #[must_use]
    pub fn actor(mut self, actor: impl Into<String>) -> Self {
        self.actor = actor.into();
        self
    }

    /// Whether a handle that runs consumers also runs maintenance: retention, dead detection, completion records,
    /// partitions, backfills. On by default: one of these processes is elected, the others only check now and then
    /// whether its term has expired.
    ///
    /// Switch it off where a process of its own runs [`Headwater::maintenance`](crate::Headwater::maintenance), or where
    /// an operator runs it by hand. With a [manual clock](crate::clock::ManualClock) it is always run by hand: nothing runs by itself.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> headwater::Result<()> {
    /// use headwater::{Headwater, OpenOptions};
    /// let headwater =
    ///     Headwater::open_with("sqlite::memory:", OpenOptions::default().maintenance(false)).await?;
    /// # headwater.close().await }
    /// ```
    #[must_use]
    pub fn maintenance(mut self, maintenance: bool) -> Self {
        self.maintenance = maintenance.then(|| self.maintenance.unwrap_or_default());
        self
    }

    /// How often a handle that runs consumers runs maintenance jobs, and how much they do at a time; switches
    /// maintenance on.
    #[must_use]
    pub fn maintenance_preset(self, preset: MaintenancePreset) -> Self {
        self.maintenance_settings(preset.into())
    }

    /// The same, with values of its own; switches maintenance on.
    #[must_use]
    pub fn maintenance_settings(mut self, settings: MaintenanceSettings) -> Self {
        self.maintenance = Some(settings);
        self
    }
}
