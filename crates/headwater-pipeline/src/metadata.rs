//! What the two services of metadata have in common: one message per run, which is waited out, retried or buried.
//!
//! A service is its bindings: they say what is prepared and what is done with a message ([`ServeMetadata`]). Following runs, waiting out
//! what is away, attempts and figures are here, once.

use std::sync::Arc;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use crate::backoff::{Backoff, wait_out};
use crate::contracts::RunInfo;
use crate::error::{Error, Result};
use crate::follow::{Follower, ServeRun, serve_topic};
use crate::health::{Counter, Health};
use crate::resource::{Backlog, Bind, Closer, Delivery, Handler, RunDirectory, TopicReader, Verdict};
use crate::service::{Service, Stop};

/// The options of a service of metadata.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct MetadataOptions {
    /// The only run to serve; without it the newest one is followed.
    pub run_id: Option<String>,
    /// How often metadata that is broken is tried before it becomes a dead letter.
    pub batch_attempts: u32,
}

impl Default for MetadataOptions {
    fn default() -> Self {
        MetadataOptions { run_id: None, batch_attempts: 3 }
    }
}

/// What a service of metadata does with the bindings of a run.
#[async_trait]
pub trait ServeMetadata: Send + Sync + 'static {
    /// What its messages are.
    type Message: Send + Sync + 'static;

    /// Creates what is missing, before the first message.
    async fn prepare(&self, run_id: &str) -> Result<()>;

    /// Where messages come from, and what is in front of that.
    fn upstream(&self) -> (&dyn TopicReader<Self::Message>, Option<&dyn Backlog>);

    /// What is done with each message.
    fn work(&self, run_id: &str, health: &Arc<Health>, stop: &Stop) -> Box<dyn Work<Self::Message>>;

    /// Ends the bindings.
    fn into_closer(self) -> Box<dyn Closer>;
}

/// What is done with a message.
#[async_trait]
pub trait Work<T>: Send + Sync {
    /// The message, for people.
    fn name(&self, message: &T) -> String;

    /// Returns once everything made of the message is durable; false if a stop came first. Transient errors are waited out.
    async fn work(&self, message: &T) -> Result<bool>;
}

/// A service of metadata.
pub struct MetadataService<B> {
    name: String,
    follower: Follower,
    bind: Arc<dyn Bind<B>>,
    batch_attempts: u32,
    health: Arc<Health>,
}

impl<B: ServeMetadata> MetadataService<B> {
    /// A service that is not running yet. Refuses a blank name and options that cannot work.
    pub fn new(
        name: &str,
        directory: Arc<dyn RunDirectory>,
        bind: Arc<dyn Bind<B>>,
        options: MetadataOptions,
    ) -> Result<Self> {
        let MetadataOptions { run_id, batch_attempts } = options;
        if batch_attempts == 0 {
            return Err(Error::invalid(format!("service {name}: batch_attempts is 0, expected at least 1")));
        }
        let health = Arc::new(Health::of_service(name));
        let follower = Follower::new(name, directory, run_id, Arc::clone(&health))?;
        Ok(MetadataService { name: name.to_owned(), follower, bind, batch_attempts, health })
    }

    async fn serve(&self, run_id: &str, bindings: &B, stop: &mut Stop) -> Result<()> {
        let prepare = || bindings.prepare(run_id);
        if wait_out("preparation", &self.health, stop, prepare).await?.is_none() {
            return Ok(());
        }
        let handler = Attempts {
            service: self.name.clone(),
            run_id: run_id.to_owned(),
            work: bindings.work(run_id, &self.health, stop),
            batch_attempts: self.batch_attempts,
            health: Arc::clone(&self.health),
            stop: stop.clone(),
        };
        let (topic, upstream) = bindings.upstream();
        serve_topic(&self.follower, run_id, topic, Arc::new(handler), upstream, stop).await
    }
}

#[async_trait]
impl<B: ServeMetadata> ServeRun for MetadataService<B> {
    async fn serve_run(&self, run: &RunInfo, stop: &mut Stop) -> Result<()> {
        let open = || self.bind.bind(run);
        let Some(bindings) = wait_out("opening of bindings", &self.health, stop, open).await? else {
            return Ok(());
        };
        let served = self.serve(&run.run_id, &bindings, stop).await;
        bindings.into_closer().close().await;
        served
    }
}

#[async_trait]
impl<B: ServeMetadata> Service for MetadataService<B> {
    async fn run(&self, stop: Stop) -> Result<()> {
        self.follower.serve_runs(self, stop).await
    }

    fn health(&self) -> Arc<Health> {
        Arc::clone(&self.health)
    }
}

/// Calls the work for each message until it is done, broken for good, or a stop is requested.
struct Attempts<T> {
    service: String,
    run_id: String,
    work: Box<dyn Work<T>>,
    batch_attempts: u32,
    health: Arc<Health>,
    stop: Stop,
}

#[async_trait]
impl<T: Send + Sync + 'static> Handler<T> for Attempts<T> {
    async fn handle(&self, message: T, delivery: Delivery) -> Verdict {
        let (service, run, attempt) = (&self.service, &self.run_id, delivery.attempt);
        let name = self.work.name(&message);
        tracing::debug!(service, run, attempt, what = name, "metadata received");
        let (mut backoff, mut stop) = (Backoff::new(), self.stop.clone());
        loop {
            let error = match self.work.work(&message).await {
                Ok(true) => return Verdict::Done,
                Ok(false) => return Verdict::GiveBack,
                Err(error) => error,
            };
            self.health.record_error(&error, &name);
            tracing::warn!(service, run, attempt, code = %error.code(), %error, "metadata not handled");
            if error.is_transient() {
                if !backoff.wait(&mut stop).await {
                    return Verdict::GiveBack;
                }
                continue;
            }
            self.health.count(Counter::BatchesFailed, 1);
            let reason = format!("{name}: {}: {error}", error.code());
            if attempt < self.batch_attempts {
                return Verdict::Retry(reason);
            }
            self.health.count(Counter::BatchesBuried, 1);
            return Verdict::Bury(reason);
        }
    }
}
