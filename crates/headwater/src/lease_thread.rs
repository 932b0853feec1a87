//! The thread that keeps leases: heartbeats, extensions, and the connections they use.
//!
//! A program may block every thread of its runtime, with a handler that waits synchronously or a long computation. That
//! must not end its leases: nothing they depend on runs on the program's runtime. One thread with its own runtime
//! serves the whole process; it starts with its first user and ends with its last. Only code of this crate runs there,
//! and none of it blocks; code of the program (handlers, filters, codecs) never runs there.

use std::cell::Cell;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::{Arc, Mutex, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::FutureExt;
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::task::{JoinError, JoinHandle};

use crate::error::{Error, ErrorKind, Result, panic_text};

/// How soon a task that panicked is started again.
const RESTART_AFTER: Duration = Duration::from_secs(1);

static SHARED: Mutex<Weak<LeaseThread>> = Mutex::new(Weak::new());

thread_local! {
    static IS_CURRENT: Cell<bool> = const { Cell::new(false) };
}

/// Every user of the thread holds this.
#[derive(Debug)]
pub(crate) struct LeaseThread {
    runtime: Handle,
    /// Dropping it ends the thread. Nothing waits for that: the last user may be a task of the thread itself.
    _stop: Option<oneshot::Sender<()>>,
}

impl LeaseThread {
    /// The thread of this process, started if there is none.
    pub(crate) fn shared() -> Result<Arc<Self>> {
        let mut shared = SHARED.lock().expect("no panic while held");
        if let Some(thread) = shared.upgrade() {
            return Ok(thread);
        }
        let thread = Arc::new(Self::start().map_err(|error| {
            let text = format!("cannot start the thread for heartbeats and lease extensions: {error}");
            Error::with_source(ErrorKind::Unavailable, text, error)
        })?);
        *shared = Arc::downgrade(&thread);
        Ok(thread)
    }

    fn start() -> std::io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let handle = runtime.handle().clone();
        let (stop, stopped) = oneshot::channel::<()>();
        std::thread::Builder::new().name("headwater-leases".into()).spawn(move || {
            IS_CURRENT.set(true);
            let _ = runtime.block_on(stopped);
            // Does not wait for a host name that is still being resolved.
            runtime.shutdown_background();
        })?;
        Ok(LeaseThread { runtime: handle, _stop: Some(stop) })
    }

    /// Whether the caller runs on the thread. It must then depend on nothing that the program's runtime drives.
    #[cfg(any(feature = "postgres", test))]
    pub(crate) fn is_current() -> bool {
        IS_CURRENT.get()
    }

    /// No thread: the runtime of the caller, for tests with paused time.
    #[cfg(test)]
    pub(crate) fn here() -> Arc<Self> {
        Arc::new(LeaseThread { runtime: Handle::current(), _stop: None })
    }

    pub(crate) fn spawn<T: Send + 'static>(
        &self,
        task: impl Future<Output = T> + Send + 'static,
    ) -> JoinHandle<T> {
        self.runtime.spawn(task)
    }

    /// A task that ends when its handle is dropped.
    pub(crate) fn spawn_owned<T: Send + 'static>(
        &self,
        task: impl Future<Output = T> + Send + 'static,
    ) -> Owned<T> {
        Owned(self.spawn(task))
    }

    /// Runs a task to its end. Others rely on it, so a panic is logged and the task is started again.
    pub(crate) fn spawn_watched<F: Future<Output = ()> + Send + 'static>(
        &self,
        name: &'static str,
        start: impl Fn() -> F + Send + Sync + 'static,
    ) -> JoinHandle<()> {
        self.spawn(async move {
            while let Err(panic) = AssertUnwindSafe(start()).catch_unwind().await {
                tracing::error!(task = name, panic = panic_text(&*panic), "background task panicked");
                tokio::time::sleep(RESTART_AFTER).await;
            }
        })
    }
}

/// A task that ends when this is dropped; a plain handle detaches it.
#[derive(Debug)]
pub(crate) struct Owned<T>(JoinHandle<T>);

impl<T> Future for Owned<T> {
    type Output = Result<T, JoinError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0).poll(context)
    }
}

impl<T> Drop for Owned<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    fn name() -> Option<String> {
        std::thread::current().name().map(str::to_owned)
    }

    #[tokio::test]
    async fn all_share_one_named_thread_and_the_last_one_ends_it() {
        let (one, other) = (LeaseThread::shared().unwrap(), LeaseThread::shared().unwrap());
        assert!(Arc::ptr_eq(&one, &other));
        assert_eq!(one.spawn(async { name() }).await.unwrap().as_deref(), Some("headwater-leases"));
        assert!(one.spawn(async { LeaseThread::is_current() }).await.unwrap() && !LeaseThread::is_current());
        let alone = LeaseThread::start().unwrap();
        let forever = alone.spawn(std::future::pending::<()>());
        drop(alone);
        assert!(forever.await.unwrap_err().is_cancelled(), "its tasks end with it");
    }

    #[tokio::test]
    async fn a_task_ends_with_its_owner() {
        let (held, ended) = oneshot::channel::<()>();
        let task = LeaseThread::here().spawn_owned(async move {
            let _held = held;
            std::future::pending::<()>().await;
        });
        tokio::task::yield_now().await;
        drop(task);
        assert!(ended.await.is_err(), "what it held is dropped");
    }

    #[tokio::test(start_paused = true)]
    async fn a_task_that_panics_is_started_again() {
        let runs = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&runs);
        let task = LeaseThread::here().spawn_watched("test", move || {
            let runs = Arc::clone(&counted);
            async move { assert!(runs.fetch_add(1, Ordering::SeqCst) == 2, "panics twice") }
        });
        task.await.unwrap();
        assert_eq!(runs.load(Ordering::SeqCst), 3);
    }
}
