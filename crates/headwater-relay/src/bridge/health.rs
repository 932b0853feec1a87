//! What a bridge does and has done: for programs, and as metrics.

use std::sync::{Arc, Mutex};

use jiff::Timestamp;
use metrics::{Counter, Gauge};

/// The state of a bridge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BridgeState {
    /// It connects to the broker.
    Connecting,
    /// It reads and publishes.
    Running,
    /// It waits before it tries again; [`BridgeHealth::last_error`] says why.
    Waiting,
    /// It has ended.
    Stopped,
}

/// What a bridge does and has done since it was started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BridgeHealth {
    /// What it does now.
    pub state: BridgeState,
    /// Messages that were published to the topic.
    pub published: u64,
    /// Messages that were delivered again and had been published before.
    pub duplicates: u64,
    /// Messages that could not be published, and are in the dead letters.
    pub parked: u64,
    /// Failures to connect, to read or to store.
    pub failures: u64,
    /// The last of them, with what to do.
    pub last_error: Option<String>,
    /// When the last batch was published, by this machine's clock.
    pub last_batch_at: Option<Timestamp>,
}

/// What became of a batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    pub(super) published: u64,
    pub(super) duplicates: u64,
    pub(super) parked: u64,
}

impl std::ops::AddAssign for Counts {
    fn add_assign(&mut self, other: Self) {
        self.published += other.published;
        self.duplicates += other.duplicates;
        self.parked += other.parked;
    }
}

#[derive(Debug)]
pub(super) struct Health {
    now: Mutex<BridgeHealth>,
    published: Counter,
    duplicates: Counter,
    parked: Counter,
    failures: Counter,
    connected: Gauge,
}

impl Health {
    pub(super) fn new(bridge: &str, kind: &'static str) -> Arc<Self> {
        let counter =
            |name: &'static str| metrics::counter!(name, "bridge" => bridge.to_owned(), "from" => kind);
        Arc::new(Health {
            now: Mutex::new(BridgeHealth {
                state: BridgeState::Connecting,
                published: 0,
                duplicates: 0,
                parked: 0,
                failures: 0,
                last_error: None,
                last_batch_at: None,
            }),
            published: counter("headwater_bridge_published_total"),
            duplicates: counter("headwater_bridge_duplicates_total"),
            parked: counter("headwater_bridge_parked_total"),
            failures: counter("headwater_bridge_failures_total"),
            connected: metrics::gauge!("headwater_bridge_connected", "bridge" => bridge.to_owned(), "from" => kind),
        })
    }

    pub(super) fn read(&self) -> BridgeHealth {
        self.now.lock().expect("no panic while held").clone()
    }

    pub(super) fn set(&self, state: BridgeState) {
        self.connected.set(if state == BridgeState::Running { 1.0 } else { 0.0 });
        self.now.lock().expect("no panic while held").state = state;
    }

    pub(super) fn committed(&self, counts: Counts) {
        self.published.increment(counts.published);
        self.duplicates.increment(counts.duplicates);
        self.parked.increment(counts.parked);
        let mut now = self.now.lock().expect("no panic while held");
        now.published += counts.published;
        now.duplicates += counts.duplicates;
        now.parked += counts.parked;
        now.last_batch_at = Some(Timestamp::now());
    }

    pub(super) fn failed(&self, error: String) {
        self.failures.increment(1);
        self.set(BridgeState::Waiting);
        let mut now = self.now.lock().expect("no panic while held");
        now.failures += 1;
        now.last_error = Some(error);
    }
}
