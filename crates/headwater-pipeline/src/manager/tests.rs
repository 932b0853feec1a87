//! What a manager does with services that a test controls.

use std::sync::atomic::{AtomicU32, Ordering};

use async_trait::async_trait;

use super::*;
use crate::error::ErrorCode;
use crate::health::Health;

/// Ends as the test says, and records what it did.
#[derive(Default)]
struct Fake {
    name: &'static str,
    log: Arc<Mutex<Vec<String>>>,
    /// What the next runs return instead of waiting for a stop.
    ends: Mutex<Vec<Result<()>>>,
    panics: bool,
    runs: AtomicU32,
}

#[async_trait]
impl Service for Fake {
    async fn run(&self, mut stop: Stop) -> Result<()> {
        self.runs.fetch_add(1, Ordering::Relaxed);
        self.log.lock().expect("unpoisoned").push(format!("{} started", self.name));
        assert!(!self.panics, "no water");
        let end = self.ends.lock().expect("unpoisoned").pop();
        if let Some(end) = end {
            return end;
        }
        stop.requested().await;
        self.log.lock().expect("unpoisoned").push(format!("{} flushed", self.name));
        Ok(())
    }

    fn health(&self) -> Arc<Health> {
        Arc::default()
    }
}

fn manager(services: Vec<Fake>) -> Manager {
    let mut manager = Manager::default();
    for service in services {
        manager.add(service.name, "fake", Arc::new(service));
    }
    manager
}

#[tokio::test]
async fn services_start_in_order_and_stop_in_the_opposite_one() {
    let log: Arc<Mutex<Vec<String>>> = Arc::default();
    let fake = |name| Fake { name, log: Arc::clone(&log), ..Fake::default() };
    let manager = manager(vec![fake("reader"), fake("source")]);
    manager.act_on_all(Action::Start).await.unwrap();
    tokio::task::yield_now().await;
    let states: Vec<_> = manager.list().into_iter().map(|status| status.state).collect();
    assert_eq!(states, [ServiceState::Running; 2]);
    manager.act_on_all(Action::Stop).await.unwrap();
    let log = log.lock().unwrap().clone();
    assert_eq!(log, ["reader started", "source started", "source flushed", "reader flushed"]);
}

#[tokio::test]
async fn pause_flushes_and_resume_runs_again() {
    let manager = manager(vec![Fake { name: "indexer", ..Fake::default() }]);
    let state = |status: ServiceStatus| status.state;
    let refused = manager.act(Action::Pause, "indexer").await.unwrap_err();
    assert_eq!(refused.to_string(), "service indexer is STOPPED; pause expects RUNNING");
    assert_eq!(state(manager.act(Action::Start, "indexer").await.unwrap()), ServiceState::Running);
    assert_eq!(state(manager.act(Action::Start, "indexer").await.unwrap()), ServiceState::Running);
    assert_eq!(state(manager.act(Action::Pause, "indexer").await.unwrap()), ServiceState::Paused);
    assert_eq!(manager.act_on_all(Action::Start).await.unwrap()[0].state, ServiceState::Running);
    manager.act_on_all(Action::Pause).await.unwrap();
    assert_eq!(state(manager.act(Action::Resume, "indexer").await.unwrap()), ServiceState::Running);
    assert_eq!(state(manager.act(Action::Restart, "indexer").await.unwrap()), ServiceState::Running);
    manager.act(Action::Pause, "indexer").await.unwrap();
    assert_eq!(state(manager.act(Action::Stop, "indexer").await.unwrap()), ServiceState::Stopped);
    let refused = manager.act(Action::Resume, "indexer").await.unwrap_err();
    assert_eq!(refused.to_string(), "service indexer is STOPPED; resume expects PAUSED");
}

#[tokio::test]
async fn failure_and_panic_are_errors_that_a_start_ends() {
    let ends = Mutex::new(vec![Err(Error::permanent(ErrorCode::SchemaSetupFailed, "no table"))]);
    let manager = manager(vec![
        Fake { name: "failing", ends, ..Fake::default() },
        Fake { name: "panicking", panics: true, ..Fake::default() },
    ]);
    manager.act_on_all(Action::Start).await.unwrap();
    assert_eq!(manager.until_ended("failing").await.unwrap(), ServiceState::Error);
    assert_eq!(manager.until_ended("panicking").await.unwrap(), ServiceState::Error);
    let error = |name| manager.status(name).unwrap().error.unwrap();
    assert_eq!(error("failing"), "SCHEMA_SETUP_FAILED: no table");
    assert_eq!(error("panicking"), "the service panicked: no water");
    let again = manager.act(Action::Start, "failing").await.unwrap();
    assert_eq!((again.state, again.error), (ServiceState::Running, None));
    manager.act_on_all(Action::Stop).await.unwrap();
    assert!(manager.list().iter().all(|status| status.state == ServiceState::Stopped));
}

#[tokio::test]
async fn one_that_finishes_by_itself_is_stopped() {
    let manager = manager(vec![Fake { name: "source", ends: Mutex::new(vec![Ok(())]), ..Fake::default() }]);
    manager.act(Action::Start, "source").await.unwrap();
    assert_eq!(manager.until_ended("source").await.unwrap(), ServiceState::Stopped);
}

#[tokio::test]
async fn unknown_names_are_refused_with_those_that_exist() {
    let manager = manager(vec![Fake { name: "source", ..Fake::default() }]);
    let refused = manager.act(Action::Start, "sauce").await.unwrap_err();
    assert_eq!(refused.to_string(), "no service \"sauce\" in this process; it has source");
    let refused = Action::parse("halt").unwrap_err();
    assert_eq!(
        refused.to_string(),
        "no action \"halt\"; expected one of start, stop, pause, resume, restart"
    );
}
