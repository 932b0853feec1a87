//! One producer per topic for all requests: it combines concurrent publishes of single messages into few statements.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use headwater::{ErrorKind, Producer};
use tokio::time::Instant;

use crate::app::App;
use crate::auth::{Caller, Scope};
use crate::problem::Problem;

/// How long a producer is kept that is not used.
const IDLE: Duration = Duration::from_secs(60);
/// Producers kept at most; beyond it those not used for the longest are dropped.
const KEPT_MAX: usize = 10_000;

/// The producers in use.
#[derive(Default)]
pub(crate) struct Producers(Mutex<HashMap<String, (Producer, Instant)>>);

impl Producers {
    /// The producer of a topic that exists. One that does not is created by the first publish if the store was opened so and the caller may create
    /// topics; else it is 404.
    pub(crate) async fn get(&self, app: &App, caller: &Caller, topic: &str) -> Result<Producer, Problem> {
        if let Some(known) = self.known(topic) {
            return Ok(known);
        }
        if let Err(error) = app.headwater.topics().get(topic).await {
            let creates = error.kind() == ErrorKind::NoSuchTopic && caller.can(Scope::Admin, Some(topic));
            // Not kept: names of topics that do not exist are without number.
            return if creates { Ok(app.headwater.producer(topic)) } else { Err(error.into()) };
        }
        let producer = app.headwater.producer(topic);
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.len() >= KEPT_MAX
            && let Some(oldest) =
                kept.iter().min_by_key(|(_, (_, used_at))| *used_at).map(|(topic, _)| topic.clone())
        {
            kept.remove(&oldest);
        }
        let (producer, _) = kept.entry(topic.to_owned()).or_insert((producer, Instant::now()));
        Ok(producer.clone())
    }

    fn known(&self, topic: &str) -> Option<Producer> {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (producer, used_at) = kept.get_mut(topic)?;
        *used_at = Instant::now();
        Some(producer.clone())
    }

    /// Drops those that are not used. A topic that was deleted is found missing again after that.
    pub(crate) fn sweep(&self) {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        kept.retain(|_, (_, used_at)| used_at.elapsed() < IDLE);
    }
}
