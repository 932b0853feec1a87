//! The PostgreSQL engine: one schema per namespace, version 15 or newer.
//!
//! The algorithms are in `schema/functions/*.sql`, as functions of the schema: one round trip per operation, and plain SQL
//! publishes through the same code as Rust. This module has connections, types and errors. The argument why no message is
//! skipped is in `schema/functions/head.sql`.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;

use crate::clock::Clock;
use crate::error::Result;
use crate::lease::{ClaimRequest, Claimed, LeaseId, OffsetRange};
use crate::message::{NewMessage, Offset, Published};
use crate::name::{GroupName, Owner, TopicName};
use crate::namespace::Namespace;
use crate::settle::Settlement;
use crate::store::actor::Actor;
use crate::store::wake::Hub;
use crate::store::{
    CronDescription, Delivery, FetchBound, Fetched, Head, Heartbeat, OpenOptions, Served, Wake,
};
use crate::subscription::{NewSubscription, Subscription, SubscriptionId};
use crate::topic::{TopicId, TopicSettings};

mod acks;
mod address;
mod admin;
mod advance_heads;
mod arm;
mod audit;
mod claim;
mod clean;
mod clock;
mod connect;
mod cron;
mod dead_letter;
mod detect;
mod doctor;
mod fault;
mod heartbeat;
mod hosts;
mod jobs;
mod log;
mod maintenance;
mod message;
mod migrate;
mod outstanding;
mod partitions;
mod policy;
mod process;
mod promotion;
mod publish;
mod replica;
mod repository;
mod rights;
mod schedule;
mod seek;
mod settle;
#[cfg(feature = "sqlx")]
pub mod sqlx;
mod state;
mod statements;
mod status;
mod subscribe;
mod survey;
mod take_over;
mod time;
mod tls;
mod topic;
mod tracking;
mod transaction;
mod url;
mod vacuum;
mod value;

pub use migrate::{Migration, Version, migrate, newest, version};
pub use publish::publish;
pub(crate) use publish::publish_within;
pub use transaction::PostgresTransaction;
pub use url::driver_config;

use connect::Connections;
use hosts::Hosts;
use replica::Replica;
use statements::Statements;

/// A namespace in a PostgreSQL database.
pub struct PostgresStore {
    namespace: Namespace,
    connections: Connections,
    statements: Arc<Statements>,
    clock: Clock,
    auto_create: bool,
    durable_settlements: bool,
    /// The actor in audit entries.
    actor: Actor,
    hub: Arc<Hub>,
    flags: arm::Flags,
    listener: arm::Listener,
    prover: take_over::Prover,
    vacuums: vacuum::Vacuums,
    guard: clock::Guard,
    promotion: promotion::Promotion,
    /// Standbys from which messages are read where they have them.
    replica: Option<Replica>,
}

impl std::fmt::Debug for PostgresStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PostgresStore").field("namespace", &self.namespace).finish_non_exhaustive()
    }
}

impl PostgresStore {
    /// Opens a namespace; a missing one is created, and an older schema migrated, only if the options allow it.
    pub(crate) async fn open(url: &str, namespace: Namespace, options: OpenOptions) -> Result<Self> {
        let connections = Connections::new(url, &namespace, &options)?;
        migrate::prepare(&connections, &namespace, &options).await?;
        let hub = Arc::new(Hub::default());
        let pools = connections.hosts().clone();
        let listen = match options.listen_url.as_deref() {
            Some(url) => Hosts::new(url, &namespace, &options)?,
            None => pools.clone(),
        };
        Ok(PostgresStore {
            statements: Arc::new(Statements::of(&namespace)),
            prover: take_over::Prover::new(listen.clone())?,
            listener: arm::Listener::new(listen, pools, &namespace, Arc::clone(&hub)),
            flags: arm::Flags::new(),
            namespace,
            connections,
            clock: options.clock,
            auto_create: options.auto_create.unwrap_or(false),
            durable_settlements: options.durable_settlements,
            actor: Actor::new(&options.actor),
            hub,
            vacuums: vacuum::Vacuums::default(),
            guard: clock::Guard::default(),
            promotion: promotion::Promotion::default(),
            replica: None,
        })
    }

    /// Reads messages from the standbys of this URL where they have them.
    pub(crate) fn with_replica(mut self, url: Option<&str>, options: &OpenOptions) -> Result<Self> {
        self.replica = url.map(|url| Replica::new(url, &self.namespace, options)).transpose()?;
        Ok(self)
    }

    /// The namespace: publishing in a transaction of the caller's own needs it.
    pub fn namespace(&self) -> &Namespace {
        &self.namespace
    }

    /// The state of the pool for handlers' transactions.
    #[cfg(any(test, feature = "conformance"))]
    pub(crate) fn transactions_state(&self) -> connect::PoolState {
        self.connections.transactions_state()
    }
}

#[async_trait]
impl Delivery for PostgresStore {
    async fn subscribe_with(
        &self,
        topic: &TopicName,
        group: &GroupName,
        new: &NewSubscription,
    ) -> Result<Subscription> {
        subscribe::subscribe(self, topic, group, new).await
    }

    async fn publish(&self, topic: &TopicName, messages: &[NewMessage]) -> Result<Vec<Published>> {
        publish::publish_now(self, topic, messages).await
    }

    async fn claim(&self, request: &ClaimRequest) -> Result<Claimed> {
        claim::claim(self, request).await
    }

    async fn claimable(&self, subscriptions: &[SubscriptionId]) -> Result<Vec<SubscriptionId>> {
        claim::claimable(self, subscriptions).await
    }

    async fn fetch_within(&self, topic: TopicId, range: OffsetRange, bound: FetchBound) -> Result<Fetched> {
        replica::fetch(self, topic, range, bound).await
    }

    async fn held_keys(
        &self,
        topic: TopicId,
        lease: &LeaseId,
        from: Offset,
    ) -> Result<Vec<(Offset, String)>> {
        log::held_keys(self, topic, lease, from).await
    }

    fn now(&self) -> Timestamp {
        clock::estimated(self)
    }

    async fn head(&self, topic: TopicId) -> Result<Option<Head>> {
        log::head(self, topic).await
    }

    async fn settle(&self, settlements: &[Settlement]) -> Result<Vec<Result<()>>> {
        settle::settle(self, settlements).await
    }

    async fn extend(&self, leases: &[LeaseId], lease: Duration) -> Result<Vec<Result<()>>> {
        settle::extend(self, leases, lease).await
    }

    async fn heartbeat(
        &self,
        owner: &Owner,
        silent_for: Option<Duration>,
        served: &[Served],
    ) -> Result<Heartbeat> {
        heartbeat::heartbeat(self, owner, silent_for, served).await
    }

    async fn depart(&self, owner: &Owner) -> Result<()> {
        heartbeat::depart(self, owner).await
    }

    async fn take_over(&self, owner: &Owner) -> Result<u64> {
        take_over::take_over(self, owner).await
    }

    async fn arm(&self, topics: &[TopicId]) -> Result<Wake> {
        arm::arm(self, topics).await
    }

    async fn subscription(&self, topic: &TopicName, group: &GroupName) -> Result<Subscription> {
        subscribe::get(self, topic, group).await
    }

    async fn settings_of(
        &self,
        subscriptions: &[SubscriptionId],
    ) -> Result<Vec<(SubscriptionId, TopicSettings)>> {
        policy::settings_of(self, subscriptions).await
    }

    async fn cron_last(&self, job: &str, first: Timestamp) -> Result<Timestamp> {
        cron::last(self, job, first).await
    }

    async fn cron_describe(&self, job: &CronDescription) -> Result<()> {
        cron::describe(self, job).await
    }

    async fn cron_fire(
        &self,
        job: &str,
        tick: Timestamp,
        topic: &TopicName,
        message: &NewMessage,
    ) -> Result<Option<Published>> {
        cron::fire(self, job, tick, topic, message).await
    }
}

#[cfg(test)]
mod tests;
