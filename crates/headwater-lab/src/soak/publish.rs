//! Shared by publishers of both databases: the plan of a transaction, and the record of each message's fate.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Context, Result};
use rand::RngExt;
use rand::rngs::StdRng;

use super::check::Fate;
use super::history::now_us;

/// Once there are enough messages, publishers continue slowly while kills are left.
pub(crate) const PAUSE_AFTER_GOAL: Duration = Duration::from_millis(200);

/// Where publishers record the fate of every message they tried to publish.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ledger(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    fates: Mutex<HashMap<String, Fate>>,
    places: Mutex<Places>,
    committed: AtomicUsize,
    committed_us: AtomicU64,
    numbers: AtomicU64,
    stop: AtomicBool,
    pause: AtomicBool,
}

/// Which message was acknowledged at which offset of which topic.
#[derive(Debug, Default)]
struct Places {
    taken: HashMap<(String, i64), String>,
    /// Offsets acknowledged for a second message.
    reused: usize,
}

impl Ledger {
    /// A new identity that starts with the prefix.
    pub(crate) fn new_id(&self, prefix: &str) -> String {
        format!("{prefix}-{}", self.0.numbers.fetch_add(1, Ordering::Relaxed))
    }

    /// Records the fate of messages. `at_us` is when their COMMIT was sent.
    pub(crate) fn note(&self, ids: &[String], fate: Fate) {
        let mut fates = self.0.fates.lock().expect("no panic while held");
        fates.extend(ids.iter().map(|id| (id.clone(), fate)));
        if let Fate::Committed { at_us } = fate {
            self.0.committed.fetch_add(ids.len(), Ordering::Relaxed);
            self.0.committed_us.fetch_max(at_us, Ordering::Relaxed);
        }
    }

    /// Records at which offsets of a topic messages were acknowledged.
    pub(crate) fn note_offsets(&self, topic: &str, ids: &[String], offsets: &[i64]) {
        let mut places = self.0.places.lock().expect("no panic while held");
        for (id, offset) in ids.iter().zip(offsets) {
            let before = places.taken.insert((topic.to_owned(), *offset), id.clone());
            places.reused += usize::from(before.is_some_and(|before| before != *id));
        }
    }

    /// Offsets acknowledged for more than one message.
    pub(crate) fn reused_offsets(&self) -> usize {
        self.0.places.lock().expect("no panic while held").reused
    }

    /// When the last COMMIT was sent that has been answered.
    pub(crate) fn committed_us(&self) -> u64 {
        self.0.committed_us.load(Ordering::Relaxed)
    }

    /// Pauses publishers, or lets them continue.
    pub(crate) fn pause(&self, pause: bool) {
        self.0.pause.store(pause, Ordering::Relaxed);
    }

    /// Whether publishers are paused.
    pub(crate) fn is_paused(&self) -> bool {
        self.0.pause.load(Ordering::Relaxed) && !self.is_stopped()
    }

    /// How many messages are committed so far.
    pub(crate) fn committed(&self) -> usize {
        self.0.committed.load(Ordering::Relaxed)
    }

    /// Asks publishers to end after their transaction.
    pub(crate) fn stop(&self) {
        self.0.stop.store(true, Ordering::Relaxed);
    }

    /// Whether publishers were asked to end.
    pub(crate) fn is_stopped(&self) -> bool {
        self.0.stop.load(Ordering::Relaxed)
    }

    /// Lets publishers start again.
    pub(crate) fn resume(&self) {
        self.0.stop.store(false, Ordering::Relaxed);
    }

    /// All recorded fates.
    pub(crate) fn fates(&self) -> HashMap<String, Fate> {
        self.0.fates.lock().expect("no panic while held").clone()
    }
}

/// The plan of one transaction of a publisher.
#[derive(Debug)]
pub(crate) struct TransactionPlan {
    pub(crate) kept: Vec<String>,
    /// Published after a savepoint that is rolled back.
    pub(crate) undone: Vec<String>,
    pub(crate) delay: Duration,
    pub(crate) rolls_back: bool,
}

impl TransactionPlan {
    /// Draws a transaction: 1 to 20 messages, one in ten rolled back, one in ten with a savepoint undone, some with a
    /// delay before COMMIT of up to `delay_max`.
    pub(crate) fn draw(random: &mut StdRng, ledger: &Ledger, prefix: &str, delay_max: Duration) -> Self {
        let ids = |count: u32| (0..count).map(|_| ledger.new_id(prefix)).collect();
        let chance = random.random_range(0..1_000);
        let delay = match chance {
            0..15 => delay_max.mul_f64(random.random()),
            15..100 => (delay_max / 8).mul_f64(random.random()),
            _ => Duration::ZERO,
        };
        let undone = if random.random_range(0..10) == 0 { random.random_range(1..=5) } else { 0 };
        TransactionPlan {
            kept: ids(random.random_range(1..=20)),
            undone: ids(undone),
            delay,
            rolls_back: random.random_range(0..10) == 0,
        }
    }

    /// Records the transaction's outcome; `sent_us` is when COMMIT was sent.
    pub(crate) fn note(&self, ledger: &Ledger, sent_us: u64) {
        ledger.note(&self.undone, Fate::RolledBack);
        let fate = if self.rolls_back { Fate::RolledBack } else { Fate::Committed { at_us: sent_us } };
        ledger.note(&self.kept, fate);
    }
}

/// Keys of each publisher.
const KEYS: u64 = 8;

/// The key of a message. Each publisher has its own keys, so that the numbers of a key's messages show their order.
pub(crate) fn key_of(id: &str) -> Option<(String, u64)> {
    let (prefix, number) = id.rsplit_once('-')?;
    let number: u64 = number.parse().ok()?;
    Some((format!("{prefix}-k{}", number % KEYS), number))
}

/// The identity in a payload.
pub(crate) fn id_of(payload: &[u8]) -> Result<String> {
    let payload: serde_json::Value =
        serde_json::from_slice(payload).context("a payload came back changed")?;
    Ok(payload["id"].as_str().context("a payload without its id")?.to_owned())
}

/// The payload of a message: its identity, and when it was created.
pub(crate) fn payload(id: &str) -> serde_json::Value {
    serde_json::json!({ "id": id, "made_us": now_us() })
}
