//! Connections: the work pool, one for handlers' transactions, a small one for leases, and the deadline on every statement.
//!
//! A connection is a task of the runtime on which it was made. Those for leases are made on the thread for leases,
//! whichever task uses them first: a process whose program blocks its own runtime still extends its leases and sends
//! heartbeats.

use std::panic::resume_unwind;
use std::sync::Arc;
use std::time::{Duration, Instant};

use deadpool_postgres::{
    Connect, Hook, HookError, Manager, ManagerConfig, Object, Pool, PoolError, QueueMode, RecyclingMethod,
    Runtime, Timeouts,
};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio::task::JoinHandle;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Config, Row};

use super::hosts::Hosts;
use super::{fault, rights, tls};
use crate::error::{Error, ErrorKind, Result};
use crate::lease_thread::LeaseThread;
use crate::namespace::Namespace;
use crate::store::OpenOptions;

/// How long to wait for a connection to become free.
const FREE_TIMEOUT: Duration = Duration::from_secs(10);
/// How long the client waits beyond the server's own statement timeout before it drops the connection.
const GRACE: Duration = Duration::from_secs(2);
/// A pool of their own: extensions must not queue behind other statements.
const LEASE_CONNECTIONS: usize = 2;

/// The pools of one store. Clones share them.
#[derive(Clone)]
pub(super) struct Connections {
    work: Pool,
    leases: Pool,
    /// A handler holds its connection for as long as it runs: claims and acks must not queue behind it.
    transactions: Pool,
    statement_timeout: Duration,
    namespace: Namespace,
    hosts: Hosts,
}

/// How busy a pool is.
#[cfg(any(test, feature = "conformance"))]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PoolState {
    /// Connections in use.
    pub(crate) active: usize,
    /// Connections open and unused.
    pub(crate) idle: usize,
}

impl Connections {
    pub(super) fn new(url: &str, namespace: &Namespace, options: &OpenOptions) -> Result<Self> {
        let hosts = Hosts::new(url, namespace, options)?;
        Ok(Connections {
            work: pool(hosts.clone(), &hosts, options.connections_max)?,
            leases: {
                let on_thread = OnLeaseThread { thread: LeaseThread::shared()?, hosts: hosts.clone() };
                pool(on_thread, &hosts, LEASE_CONNECTIONS)?
            },
            transactions: pool(hosts.clone(), &hosts, options.connections_max)?,
            statement_timeout: options.statement_timeout,
            namespace: namespace.clone(),
            hosts,
        })
    }

    pub(super) async fn get(&self) -> Result<Object> {
        self.work.get().await.map_err(|error| self.not_connected(error))
    }

    fn not_connected(&self, error: PoolError) -> Error {
        fault::translate_pool(self.hosts.address(), error)
    }

    /// The TLS connector for cancel requests.
    pub(super) fn connector(&self) -> tls::Connector {
        self.hosts.connector()
    }

    /// The servers behind the pools.
    pub(super) fn hosts(&self) -> &Hosts {
        &self.hosts
    }

    /// How long a statement may take before its connection is dropped.
    pub(super) fn answer_timeout(&self) -> Duration {
        self.statement_timeout + GRACE
    }

    /// A connection for a transaction that a handler will hold.
    pub(super) async fn get_for_transaction(&self) -> Result<Object> {
        self.transactions.get().await.map_err(|error| self.not_connected(error))
    }

    /// Runs one statement on the work pool.
    pub(super) async fn query(
        &self,
        doing: &str,
        sql: &str,
        params: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<Row>> {
        let client = self.get().await?;
        self.query_on(client, doing, sql, params, false).await
    }

    /// Runs one statement that commits something that must not be repeated blindly.
    pub(super) async fn commit(
        &self,
        doing: &str,
        sql: &str,
        params: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<Row>> {
        let client = self.get().await?;
        self.query_on(client, doing, sql, params, true).await
    }

    /// A connection of the pool for leases.
    pub(super) async fn get_for_leases(&self) -> Result<Object> {
        self.leases.get().await.map_err(|error| self.not_connected(error))
    }

    /// Runs one statement on the pool for leases.
    pub(super) async fn query_leases(
        &self,
        doing: &str,
        sql: &str,
        params: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<Row>> {
        let client = self.get_for_leases().await?;
        self.query_leases_on(client, doing, sql, params).await
    }

    /// Runs one statement on a connection of the pool for leases.
    pub(super) async fn query_leases_on(
        &self,
        client: Object,
        doing: &str,
        sql: &str,
        params: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<Row>> {
        self.query_within(self.answer_timeout(), Asked::for_leases(client), doing, sql, params, false).await
    }

    /// Runs one statement on the pool for leases; `limit` covers both the wait for a connection and the answer.
    pub(super) async fn query_leases_within(
        &self,
        limit: Duration,
        doing: &str,
        sql: &str,
        params: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<Row>> {
        let started = tokio::time::Instant::now();
        let late = || Error::new(ErrorKind::Unavailable, format!("no answer in time while {doing}"));
        let client = tokio::time::timeout(limit, self.leases.get()).await.map_err(|_| late())?;
        let left = limit.saturating_sub(started.elapsed()).min(self.answer_timeout());
        let asked = Asked::for_leases(client.map_err(|error| self.not_connected(error))?);
        self.query_within(left, asked, doing, sql, params, false).await
    }

    /// Runs one statement on the pool for leases that commits something; waits at most `limit` for the answer.
    pub(super) async fn commit_leases_within(
        &self,
        limit: Duration,
        doing: &str,
        sql: &str,
        params: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<Row>> {
        let asked = Asked::for_leases(self.get_for_leases().await?);
        self.query_within(limit.min(self.answer_timeout()), asked, doing, sql, params, true).await
    }

    pub(super) async fn query_on(
        &self,
        client: Object,
        doing: &str,
        sql: &str,
        params: &[&(dyn ToSql + Sync)],
        commits: bool,
    ) -> Result<Vec<Row>> {
        let asked = Asked { connection: Some(client), closes: false };
        self.query_within(self.answer_timeout(), asked, doing, sql, params, commits).await
    }

    async fn query_within(
        &self,
        limit: Duration,
        mut asked: Asked,
        doing: &str,
        sql: &str,
        params: &[&(dyn ToSql + Sync)],
        commits: bool,
    ) -> Result<Vec<Row>> {
        let client = asked.connection.as_ref().expect("only drop takes it");
        let (asked_at, made_at) = (Instant::now(), Object::metrics(client).created);
        let run = async {
            // Preparing commits nothing, so its failure is never an unknown outcome.
            let statement =
                client.prepare_cached(sql).await.map_err(|error| fault::translate(doing, error))?;
            let translate = if commits { fault::translate_commit } else { fault::translate };
            client.query(&statement, params).await.map_err(|error| translate(doing, error))
        };
        let answer = tokio::time::timeout(limit, run).await;
        // Without an answer the connection is in an unknown state.
        asked.closes = answer.is_err();
        match answer {
            Ok(Ok(rows)) => Ok(rows),
            Ok(Err(error)) => {
                self.hosts.heed(&error, made_at);
                if !rights::are_missing(&error) {
                    return Err(error);
                }
                // Not reused: the caller may be cancelled before the answer.
                asked.closes = true;
                let client = asked.connection.as_ref().expect("only drop takes it");
                Err(rights::explain(client, &self.namespace, sql, error).await)
            }
            Err(_) => {
                if limit >= self.answer_timeout() {
                    // A working server would have ended the statement by its own timeout: all connections to this one hang.
                    self.hosts.leave(asked_at);
                }
                if commits {
                    return Err(fault::unknown(doing, "no answer in time"));
                }
                Err(Error::new(ErrorKind::Unavailable, format!("no answer in time while {doing}")))
            }
        }
    }

    #[cfg(any(test, feature = "conformance"))]
    pub(super) fn transactions_state(&self) -> PoolState {
        let status = self.transactions.status();
        PoolState { active: status.size.saturating_sub(status.available), idle: status.available }
    }

    pub(super) fn close(&self) {
        self.work.close();
        self.leases.close();
        self.transactions.close();
    }
}

/// A connection with a statement under way.
struct Asked {
    connection: Option<Object>,
    /// Whether it is closed when this is dropped, instead of returned to its pool.
    closes: bool,
}

impl Asked {
    /// Closed also if the caller is cancelled before the answer: heartbeats and extensions have deadlines of their own, and the
    /// next one must not wait behind a statement that hangs.
    fn for_leases(connection: Object) -> Self {
        Asked { connection: Some(connection), closes: true }
    }
}

impl Drop for Asked {
    fn drop(&mut self) {
        if let Some(connection) = self.connection.take()
            && self.closes
        {
            drop(Object::take(connection));
        }
    }
}

/// Makes connections on the thread for leases. The pool holds the thread, so it lasts as long as they do.
struct OnLeaseThread {
    thread: Arc<LeaseThread>,
    hosts: Hosts,
}

type Connected = std::result::Result<(Client, JoinHandle<()>), tokio_postgres::Error>;

impl Connect for OnLeaseThread {
    fn connect(&self, config: &Config) -> BoxFuture<'_, Connected> {
        let (hosts, config) = (self.hosts.clone(), config.clone());
        // A cancelled caller ends the attempt too, and the next attempt begins with the next server.
        let connecting = self.thread.spawn_owned(async move { Connect::connect(&hosts, &config).await });
        // The task is not cancelled while the thread exists, so the join error is a panic.
        connecting.map(|made| made.unwrap_or_else(|error| resume_unwind(error.into_panic()))).boxed()
    }
}

fn pool(connect: impl Connect + 'static, hosts: &Hosts, size: usize) -> Result<Pool> {
    let recycling = ManagerConfig { recycling_method: RecyclingMethod::Fast };
    let create = hosts.connect_timeout();
    let timeouts = Timeouts { wait: Some(FREE_TIMEOUT), create: Some(create), recycle: Some(FREE_TIMEOUT) };
    let kept = hosts.clone();
    // `Hosts` has the configuration of each server; the manager's own is not used.
    Pool::builder(Manager::from_connect(Config::new(), connect, recycling))
        .max_size(size)
        // The connection that was used last: it has the plans of its statements, and the others may stay idle.
        .queue_mode(QueueMode::Lifo)
        .timeouts(timeouts)
        .runtime(Runtime::Tokio1)
        .pre_recycle(Hook::sync_fn(move |_, metrics| match kept.is_left(metrics.created) {
            true => Err(HookError::message("server of the connection no longer takes writes")),
            false => Ok(()),
        }))
        .build()
        .map_err(|error| Error::new(ErrorKind::Unavailable, format!("no connection pool: {error}")))
}
