//! The pool of connections, and what is true of a connection that is lent from it.

use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use deadpool_postgres::{Manager, ManagerConfig, Object, Pool, RecyclingMethod, Runtime, Timeouts};
use headwater::store::postgres::driver_config;

use super::fault;
use crate::error::{Error, ErrorCode, Result};
use crate::index::database::PoolFigures;

/// How long to wait for a connection to become free, to be made, or to be checked.
const FREE_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a server may take beyond the connect timeout of the URL until the session is ready.
const READY_TIMEOUT: Duration = Duration::from_secs(5);
/// Unused connections beyond the minimum are closed after this.
const IDLE_FOR: Duration = Duration::from_secs(60);

/// The connections of one handle.
pub(super) struct Connections {
    pool: Pool,
    schema: String,
    idle_min: usize,
    is_warm: AtomicBool,
    reaped_at: Mutex<Instant>,
}

impl Connections {
    /// Connects to nothing yet.
    pub(super) fn new(url: &str, schema: &str, max: usize, idle_min: usize) -> Result<Self> {
        let (config, connector) = driver_config(url, "headwater-index")
            .map_err(|error| Error::invalid(format!("index URL: {error}")))?;
        let recycling = ManagerConfig { recycling_method: RecyclingMethod::Fast };
        let servers = u32::try_from(config.get_hosts().len().max(1)).unwrap_or(u32::MAX);
        let connect = config.get_connect_timeout().copied().unwrap_or(READY_TIMEOUT);
        let create = connect.saturating_mul(servers).saturating_add(READY_TIMEOUT);
        let limits = Timeouts { wait: Some(FREE_TIMEOUT), create: Some(create), recycle: Some(FREE_TIMEOUT) };
        let pool = Pool::builder(Manager::from_config(config, connector, recycling))
            .max_size(max)
            .timeouts(limits)
            .runtime(Runtime::Tokio1)
            .build()
            .map_err(|error| Error::invalid(format!("no connection pool: {error}")))?;
        Ok(Connections {
            pool,
            schema: schema.to_owned(),
            idle_min: idle_min.min(max),
            is_warm: AtomicBool::new(false),
            reaped_at: Mutex::new(Instant::now()),
        })
    }

    /// A clean connection.
    pub(super) async fn get(&self, code: ErrorCode) -> Result<Lent> {
        let failed = |error| fault::translate_pool(code, &self.schema, &error);
        let object = self.pool.get().await.map_err(failed)?;
        if !self.is_warm.swap(true, Ordering::Relaxed) {
            // The first caller also opens the connections that are kept ready; without them it works all the same.
            let others = (1..self.idle_min).map(|_| self.pool.get());
            futures_util::future::join_all(others).await;
        }
        self.reap();
        Ok(Lent { object: Some(object), is_clean: true })
    }

    /// Closes connections that were not used for long, down to the minimum.
    fn reap(&self) {
        {
            let mut reaped_at = self.reaped_at.lock().unwrap_or_else(PoisonError::into_inner);
            if reaped_at.elapsed() < IDLE_FOR {
                return;
            }
            *reaped_at = Instant::now();
        }
        let mut closable = self.pool.status().available.saturating_sub(self.idle_min);
        let _ = self.pool.retain(|_, metrics| {
            let closed = closable > 0 && metrics.last_used() > IDLE_FOR;
            closable -= usize::from(closed);
            !closed
        });
    }

    pub(super) fn figures(&self) -> PoolFigures {
        let status = self.pool.status();
        PoolFigures {
            active: status.size.saturating_sub(status.available),
            idle: status.available,
            total: status.size,
            waiting: status.waiting,
        }
    }

    pub(super) fn close(&self) {
        self.pool.close();
    }
}

/// A connection in use. It returns to the pool only if it is clean: between transactions, with no answer outstanding.
pub(super) struct Lent {
    object: Option<Object>,
    is_clean: bool,
}

impl Lent {
    pub(super) fn client(&self) -> &Object {
        self.object.as_ref().expect("only drop takes it")
    }

    /// From now on, dropping it closes the connection: a caller that is cancelled leaves no open transaction in the pool.
    pub(super) fn begin(&mut self) {
        self.is_clean = false;
    }

    /// The transaction has ended.
    pub(super) fn end(&mut self) {
        self.is_clean = true;
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        if let Some(object) = self.object.take()
            && !self.is_clean
        {
            drop(Object::take(object));
        }
    }
}
