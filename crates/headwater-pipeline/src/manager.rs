//! The service manager: starts services in order, and starts, stops, pauses, resumes and restarts one or all of them.
//!
//! A service has one way to end, its request to stop. A pause is that too: what is in hand is flushed and acked, nothing more is claimed, and
//! the manager remembers that it was paused.

use std::fmt;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::FutureExt;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::error::{Error, Result};
use crate::health::HealthSnapshot;
use crate::service::{Service, Stop, Stopper};

#[cfg(test)]
mod tests;

/// How long a stop waits before the service is ended: longer than the longest final flush.
const STOP_MAX: Duration = Duration::from_secs(330);

/// The state of a service.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum ServiceState {
    /// It does not run: not started, stopped, or finished.
    #[default]
    Stopped,
    /// It runs.
    Running,
    /// It was paused and can be resumed.
    Paused,
    /// It failed and can be started again.
    Error,
}

impl ServiceState {
    /// Its name in upper case.
    pub fn as_str(self) -> &'static str {
        match self {
            ServiceState::Stopped => "STOPPED",
            ServiceState::Running => "RUNNING",
            ServiceState::Paused => "PAUSED",
            ServiceState::Error => "ERROR",
        }
    }
}

impl fmt::Display for ServiceState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What an operator does with a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Starts it unless it runs.
    Start,
    /// Stops it.
    Stop,
    /// Stops it until it is resumed.
    Pause,
    /// Starts it after a pause.
    Resume,
    /// Stops it and starts it again.
    Restart,
}

impl Action {
    /// All of them.
    pub const ALL: [Action; 5] =
        [Action::Start, Action::Stop, Action::Pause, Action::Resume, Action::Restart];

    /// Its name.
    pub fn as_str(self) -> &'static str {
        match self {
            Action::Start => "start",
            Action::Stop => "stop",
            Action::Pause => "pause",
            Action::Resume => "resume",
            Action::Restart => "restart",
        }
    }

    /// The action of a name.
    pub fn parse(name: &str) -> Result<Self> {
        let known = Action::ALL.into_iter().find(|action| action.as_str() == name);
        known.ok_or_else(|| {
            let all = Action::ALL.map(Action::as_str).join(", ");
            Error::invalid(format_args!("no action {name:?}; expected one of {all}"))
        })
    }
}

/// A service as the control API shows it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ServiceStatus {
    /// Its name.
    pub service: String,
    /// What it is.
    #[serde(rename = "type")]
    pub service_type: String,
    /// Its state.
    pub state: ServiceState,
    /// Since when it is in that state.
    pub since: Timestamp,
    /// Why it failed, in the state ERROR.
    pub error: Option<String>,
    /// What it has done, and its last errors.
    pub health: HealthSnapshot,
}

/// The services of a process.
#[derive(Default)]
pub struct Manager {
    services: Vec<Arc<Managed>>,
}

struct Managed {
    name: String,
    service_type: String,
    service: Arc<dyn Service>,
    /// One action at a time.
    running: tokio::sync::Mutex<Option<(Stopper, JoinHandle<()>)>>,
    state: watch::Sender<(ServiceState, Timestamp, Option<String>)>,
    /// The state after an orderly end.
    ends_in: Mutex<ServiceState>,
}

impl Manager {
    /// Adds a service behind those that it is started after.
    pub fn add(&mut self, name: &str, service_type: &str, service: Arc<dyn Service>) {
        self.services.push(Arc::new(Managed {
            name: name.to_owned(),
            service_type: service_type.to_owned(),
            service,
            running: tokio::sync::Mutex::default(),
            state: watch::Sender::new((ServiceState::Stopped, Timestamp::now(), None)),
            ends_in: Mutex::new(ServiceState::Stopped),
        }));
    }

    /// Acts on one service.
    pub async fn act(&self, action: Action, service: &str) -> Result<ServiceStatus> {
        let managed = self.find(service)?;
        managed.act(action).await?;
        Ok(managed.status())
    }

    /// Acts on all services that are in a state for it. They are started in order and stopped in the opposite one: what an earlier stage
    /// still flushes finds its reader running.
    pub async fn act_on_all(&self, action: Action) -> Result<Vec<ServiceStatus>> {
        let (stops, starts) = match action {
            Action::Start | Action::Resume => (None, Some(action)),
            Action::Stop | Action::Pause => (Some(action), None),
            Action::Restart => (Some(Action::Stop), Some(Action::Start)),
        };
        if let Some(stop) = stops {
            for managed in self.services.iter().rev().filter(|managed| managed.accepts(stop)) {
                managed.act(stop).await?;
            }
        }
        if let Some(start) = starts {
            for managed in self.services.iter().filter(|managed| managed.accepts(start)) {
                managed.act(start).await?;
            }
        }
        Ok(self.list())
    }

    /// All services in order.
    pub fn list(&self) -> Vec<ServiceStatus> {
        self.services.iter().map(|managed| managed.status()).collect()
    }

    /// One service.
    pub fn status(&self, service: &str) -> Result<ServiceStatus> {
        Ok(self.find(service)?.status())
    }

    /// Waits until a service does not run, and returns its state.
    pub async fn until_ended(&self, service: &str) -> Result<ServiceState> {
        let mut states = self.find(service)?.state.subscribe();
        let ended = states.wait_for(|(state, ..)| *state != ServiceState::Running).await;
        // The sender lives as long as the manager.
        Ok(ended.map_or(ServiceState::Stopped, |state| state.0))
    }

    fn find(&self, service: &str) -> Result<&Arc<Managed>> {
        self.services.iter().find(|managed| managed.name == service).ok_or_else(|| {
            let names: Vec<&str> = self.services.iter().map(|managed| managed.name.as_str()).collect();
            Error::invalid(format_args!(
                "no service {service:?} in this process; it has {}",
                names.join(", ")
            ))
        })
    }
}

impl Managed {
    fn status(&self) -> ServiceStatus {
        let (state, since, error) = self.state.borrow().clone();
        ServiceStatus {
            service: self.name.clone(),
            service_type: self.service_type.clone(),
            state,
            since,
            error,
            health: self.service.health().snapshot(),
        }
    }

    /// Whether an action on all services concerns it.
    fn accepts(&self, action: Action) -> bool {
        let state = self.state.borrow().0;
        match action {
            Action::Start => state != ServiceState::Running,
            Action::Stop => state != ServiceState::Stopped,
            Action::Pause => state == ServiceState::Running,
            Action::Resume => state == ServiceState::Paused,
            Action::Restart => true,
        }
    }

    async fn act(self: &Arc<Self>, action: Action) -> Result<()> {
        let mut running = self.running.lock().await;
        let state = self.state.borrow().0;
        let refused = |expected: ServiceState| {
            let (name, action) = (&self.name, action.as_str());
            Err(Error::invalid(format_args!("service {name} is {state}; {action} expects {expected}")))
        };
        match action {
            Action::Start if state == ServiceState::Running => {}
            Action::Start => *running = Some(self.start()),
            Action::Stop => self.stop(&mut running, ServiceState::Stopped).await,
            Action::Pause if state != ServiceState::Running => return refused(ServiceState::Running),
            Action::Pause => self.stop(&mut running, ServiceState::Paused).await,
            Action::Resume if state != ServiceState::Paused => return refused(ServiceState::Paused),
            Action::Resume => *running = Some(self.start()),
            Action::Restart => {
                self.stop(&mut running, ServiceState::Stopped).await;
                *running = Some(self.start());
            }
        }
        Ok(())
    }

    fn start(self: &Arc<Self>) -> (Stopper, JoinHandle<()>) {
        let (stopper, stop) = Stop::new();
        *self.ends_in.lock().expect("no panic while held") = ServiceState::Stopped;
        self.enter(ServiceState::Running, None);
        let this = Arc::clone(self);
        let task = tokio::spawn(async move {
            let ended = AssertUnwindSafe(this.service.run(stop)).catch_unwind().await;
            match ended {
                Ok(Ok(())) => this.enter(*this.ends_in.lock().expect("no panic while held"), None),
                Ok(Err(error)) => this.failed(format!("{}: {error}", error.code())),
                Err(panic) => this.failed(format!("the service panicked: {}", panic_text(&*panic))),
            }
        });
        (stopper, task)
    }

    /// Ends it if it runs. A state that is no end, PAUSED or ERROR, becomes STOPPED by a stop.
    async fn stop(&self, running: &mut Option<(Stopper, JoinHandle<()>)>, ends_in: ServiceState) {
        *self.ends_in.lock().expect("no panic while held") = ends_in;
        let Some((stopper, mut task)) = running.take() else {
            self.enter(ServiceState::Stopped, None);
            return;
        };
        let was_running = self.state.borrow().0 == ServiceState::Running;
        stopper.stop();
        if tokio::time::timeout(STOP_MAX, &mut task).await.is_err() {
            task.abort();
            let _ = task.await;
            self.failed(format!("not stopped within {} s", STOP_MAX.as_secs()));
        } else if !was_running {
            self.enter(ServiceState::Stopped, None);
        }
    }

    fn enter(&self, state: ServiceState, error: Option<String>) {
        self.state.send_replace((state, Timestamp::now(), error));
    }

    fn failed(&self, error: String) {
        tracing::error!(service = self.name, error, "service failed");
        self.enter(ServiceState::Error, Some(error));
    }
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "no message".into())
}
