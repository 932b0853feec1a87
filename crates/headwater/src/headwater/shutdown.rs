//! How a handle ends: everything that runs on it, in an order in which nothing that still runs misses what it needs.
//!
//! First cron jobs: they make work. Then consumers, all at once: their handlers may publish until they have ended. Then
//! producers: what was sent is answered. Then maintenance and the connections.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::time::Instant;

use super::Headwater;
use crate::consumer::{FLUSH, ShutdownReport, end};
use crate::error::Result;
use crate::gate::Gate;
use crate::limits::DELAY_MAX;

/// How long the end waits for a maintenance step that is under way.
const MAINTENANCE_ENDS_WITHIN: Duration = Duration::from_secs(2);

/// What runs on a handle and its clones, by kind. Consumers that run are in their runtime.
#[derive(Debug, Default)]
pub(crate) struct Gates {
    /// Running cron jobs.
    pub(crate) cron: Arc<Gate>,
    /// Calls and batches of opened consumers.
    pub(crate) opened: Arc<Gate>,
    /// Sends that are not answered.
    pub(crate) sends: Arc<Gate>,
    /// Maintenance that the program started.
    pub(crate) maintenance: Arc<Gate>,
}

impl Gates {
    fn close(&self) {
        [&self.cron, &self.opened, &self.sends, &self.maintenance].into_iter().for_each(|gate| gate.close());
    }
}

impl Headwater {
    /// Ends everything that runs on this handle and its clones, and closes it: cron jobs first, then all consumers at
    /// once, as [`Running::shutdown`](crate::Running::shutdown) does, then producers, whose sends are finished, then
    /// maintenance and the connections. Handlers have `grace` to finish, and can publish meanwhile. Returns what was
    /// left unfinished; where the database does not answer it may take some seconds longer than `grace`.
    ///
    /// A waiting [`Consumer::next`](crate::Consumer::next) fails with `Closed`; batches that are not settled in time
    /// are redelivered.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> headwater::Result<()> {
    /// # use std::time::Duration;
    /// # use headwater::{Headwater, Message};
    /// let headwater = Headwater::in_memory().await?;
    /// let _email = headwater.consumer("orders", "email").member("mailer", |_: Message, _| async { Ok(()) }).run().await?;
    /// headwater.producer("orders").send(&7).await?;
    /// // … until the program has to end:
    /// let left = headwater.shutdown(Duration::from_secs(10)).await?;
    /// assert!(left.is_clean(), "{left:?}");
    /// # Ok(()) }
    /// ```
    pub async fn shutdown(&self, grace: Duration) -> Result<ShutdownReport> {
        let deadline = Instant::now() + grace.min(DELAY_MAX);
        let mut report = ShutdownReport::default();
        self.gates.cron.close();
        let _ = tokio::time::timeout_at(deadline, self.gates.cron.emptied()).await;
        report.cron_jobs = self.gates.cron.inside();

        let ended = self.end_consumers(deadline, &mut report).await;

        self.gates.sends.close();
        let _ = tokio::time::timeout(FLUSH, self.gates.sends.emptied()).await;
        report.sends = self.gates.sends.inside();

        self.gates.maintenance.close();
        let _ = tokio::time::timeout(MAINTENANCE_ENDS_WITHIN, self.gates.maintenance.emptied()).await;
        let closed = self.close().await;
        ended.and(closed).map(|()| report)
    }

    /// Ends all consumers concurrently; the first error, once all have ended.
    async fn end_consumers(&self, deadline: Instant, report: &mut ShutdownReport) -> Result<()> {
        let runtime = self.runtime.lock().expect("no panic while held").clone();
        self.gates.opened.close();
        let opened = tokio::time::timeout_at(deadline, self.gates.opened.emptied());
        let running = async {
            let Some(runtime) = &runtime else { return Vec::new() };
            let groups = runtime.groups().into_iter();
            join_all(groups.map(async |group| (end(runtime, &group, deadline).await, group))).await
        };
        let (_, ended) = futures_util::future::join(opened, running).await;
        report.batches = self.gates.opened.inside();
        let mut result = Ok(());
        for (stopped, group) in ended {
            match stopped {
                Ok(stopped) => {
                    report.given_back += stopped.given_back;
                    if !stopped.in_time {
                        let subscription = &group.subscription;
                        report.groups.push((subscription.topic.name.clone(), subscription.group.clone()));
                    }
                }
                Err(error) => result = result.and(Err(error)),
            }
        }
        result
    }

    /// Removes everything of this namespace permanently, topics, messages and groups, and closes the handle: the PostgreSQL schema, or
    /// the SQLite file unless it has tables of other applications. It does not ask which processes use them:
    /// [`TopicContents::served`](crate::topic::TopicContents::served) shows that.
    pub async fn drop_namespace(&self) -> Result<()> {
        self.gates.close();
        self.store.drop_namespace().await
    }

    /// Closes the connections at once, and what runs on the handle with them: messages that handlers hold are
    /// redelivered, and sends under way may fail. [`Headwater::shutdown`] lets them finish first.
    pub async fn close(&self) -> Result<()> {
        self.gates.close();
        self.store.close().await
    }
}
