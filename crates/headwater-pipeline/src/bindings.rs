//! Bindings: a resource as one service uses it, over Headwater's public API. Each is a handle of its own with its own figures, errors and
//! state; a resource shows the sum over its bindings.

use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use headwater::{Message, NewMessage};
use serde::{Deserialize, Serialize};

use crate::config;
use crate::error::{Error, Result};
use crate::health::{Health, HealthSnapshot};

mod backlog;
mod close;
mod metered;
mod queue;
mod reader;
mod ticks;
mod topic;

pub(crate) use backlog::QueueBacklog;
pub(crate) use close::Closing;
pub(crate) use metered::Metered;
pub(crate) use queue::TickSender;
pub(crate) use ticks::TickReceiver;
pub(crate) use topic::{TopicReceiver, TopicSender, decode};

/// The group of a queue: a queue has one.
pub(crate) const QUEUE_GROUP: &str = "persistence";
/// The prefix of type URLs, as in `google.protobuf.Any`.
const TYPE_URL_HOST: &str = "type.googleapis.com";

/// What a binding does at the moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum UsageState {
    /// There is nothing to do.
    #[default]
    Waiting,
    /// At work.
    Active,
    /// The last call failed.
    Failed,
}

/// A binding of a service. It serves one run.
#[derive(Debug)]
pub struct BindingHandle {
    service: String,
    config: config::Binding,
    run: OnceLock<String>,
    state: AtomicU8,
    health: Arc<Health>,
}

impl BindingHandle {
    pub(crate) fn new(service: &str, config: config::Binding, health: Arc<Health>) -> Self {
        BindingHandle {
            service: service.to_owned(),
            config,
            run: OnceLock::new(),
            state: AtomicU8::new(UsageState::Waiting as u8),
            health,
        }
    }

    /// Sets the run that it serves. A second one is refused, and so is a blank one.
    pub fn serve(&self, run_id: &str) -> Result<()> {
        let uri = &self.config.uri;
        if run_id.trim().is_empty() {
            return Err(Error::invalid(format_args!(
                "binding {uri} of service {}: the run id is blank",
                self.service
            )));
        }
        self.run.set(run_id.to_owned()).map_err(|refused| {
            let served = self.run.get().map_or("", String::as_str);
            let service = &self.service;
            Error::invalid(format_args!(
                "binding {uri} of service {service} serves run {served}; run {refused} is refused"
            ))
        })?;
        self.health.set_run(run_id);
        Ok(())
    }

    /// The service that it belongs to.
    pub fn service(&self) -> &str {
        &self.service
    }

    /// How it is configured.
    pub fn config(&self) -> &config::Binding {
        &self.config
    }

    /// Its figures and errors.
    pub fn health(&self) -> &Arc<Health> {
        &self.health
    }

    /// What it does at the moment.
    pub fn state(&self) -> UsageState {
        match self.state.load(Ordering::Relaxed) {
            state if state == UsageState::Active as u8 => UsageState::Active,
            state if state == UsageState::Failed as u8 => UsageState::Failed,
            _ => UsageState::Waiting,
        }
    }

    pub(crate) fn set_state(&self, state: UsageState) {
        self.state.store(state as u8, Ordering::Relaxed);
    }

    /// Records an error of a call.
    pub(crate) fn failed(&self, error: &Error, doing: impl std::fmt::Display) {
        self.set_state(UsageState::Failed);
        self.health.record_error(error, doing);
    }

    /// Records a call: active while it runs, failed or waiting afterwards.
    pub(crate) async fn record<T>(&self, doing: &str, call: impl Future<Output = Result<T>>) -> Result<T> {
        self.set_state(UsageState::Active);
        let answer = call.await;
        match &answer {
            Ok(_) => self.set_state(UsageState::Waiting),
            Err(error) => self.failed(error, doing),
        }
        answer
    }
}

/// The bindings of a process, in the order in which they were made.
///
/// A service that follows runs binds each of them anew; its figures continue, because they belong to the service and its port.
#[derive(Debug, Default)]
pub struct Bindings(Mutex<Vec<(PortOf, Arc<BindingHandle>)>>);

/// A service and one of its ports.
type PortOf = (String, &'static str);

/// A binding as the control API shows it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct BindingStatus {
    /// The service.
    pub service: String,
    /// The name under which the service binds it.
    pub port: String,
    /// The URI.
    pub uri: String,
    /// What it does at the moment.
    pub state: UsageState,
    /// Figures and errors.
    pub health: HealthSnapshot,
}

/// A resource as the control API shows it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ResourceStatus {
    /// Its name.
    pub resource: String,
    /// The sum over its bindings.
    pub health: HealthSnapshot,
    /// Its bindings.
    pub bindings: Vec<BindingStatus>,
}

impl Bindings {
    /// Makes the binding of a service's port for a run.
    pub fn bind(
        &self,
        service: &str,
        port: &'static str,
        config: &config::Binding,
        run_id: &str,
    ) -> Result<Arc<BindingHandle>> {
        let mut all = self.0.lock().expect("no panic while held");
        let key = (service.to_owned(), port);
        let former = all.iter().position(|(other, _)| *other == key);
        let health = former.map_or_else(
            || Arc::new(Health::new(service, &config.resource, config.metrics_window)),
            |at| Arc::clone(&all[at].1.health),
        );
        let binding = Arc::new(BindingHandle::new(service, config.clone(), health));
        binding.serve(run_id)?;
        match former {
            Some(at) => all[at].1 = Arc::clone(&binding),
            None => all.push((key, Arc::clone(&binding))),
        }
        Ok(binding)
    }

    /// Each resource that is bound, with the sum over its bindings.
    pub fn resources(&self) -> Vec<ResourceStatus> {
        let all = self.0.lock().expect("no panic while held").clone();
        let mut names: Vec<&str> = Vec::new();
        for (_, binding) in &all {
            if !names.contains(&binding.config.resource.as_str()) {
                names.push(&binding.config.resource);
            }
        }
        let status = |name: &str| {
            let own: Vec<_> = all.iter().filter(|(_, binding)| binding.config.resource == name).collect();
            let health = Health::sum(own.iter().map(|(_, binding)| &*binding.health));
            let bindings = own
                .iter()
                .map(|((service, port), binding)| BindingStatus {
                    service: service.clone(),
                    port: (*port).to_owned(),
                    uri: binding.config.uri.clone(),
                    state: binding.state(),
                    health: binding.health.snapshot(),
                })
                .collect();
            // The sum belongs to no service.
            ResourceStatus {
                resource: name.to_owned(),
                health: HealthSnapshot { service: String::new(), ..health },
                bindings,
            }
        };
        names.into_iter().map(status).collect()
    }
}

/// A protobuf message with its type URL, without a copy of the value.
pub(crate) fn message_of<T: prost::Name>(value: &T) -> NewMessage {
    NewMessage::new(value.encode_to_vec())
        .content_type("application/protobuf")
        .message_type(format!("{TYPE_URL_HOST}/{}", T::full_name()))
}

/// Whether a message has this type. As for `Any`, what is before the last slash is where the type is described, not which type it is.
pub(crate) fn type_is<T: prost::Name>(message: &Message) -> bool {
    message.message_type.as_deref().and_then(|url| url.rsplit('/').next()) == Some(T::full_name().as_str())
}
