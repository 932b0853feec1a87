//! The environment of a case: an empty store on each engine, removed afterwards.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use headwater::testing::ManualClock;
use headwater::{Clock, Handling, Headwater, Json, OpenOptions};
use tokio::sync::Semaphore;

/// Longer than anything here takes on a busy machine; a wait of this length has failed.
pub(crate) const DEADLINE: Duration = Duration::from_secs(30);

/// A store for one case.
pub(crate) struct Place {
    url: String,
    _directory: Option<tempfile::TempDir>,
}

impl Place {
    /// A separate file.
    pub(crate) fn sqlite() -> Option<Self> {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let url = format!("sqlite:{}", directory.path().join("runtime.db").display());
        Some(Place { url, _directory: Some(directory) })
    }

    /// A separate namespace on the test server, if there is one.
    pub(crate) fn postgres() -> Option<Self> {
        let Ok(server) = std::env::var("HEADWATER_TEST_POSTGRES") else {
            assert!(
                std::env::var_os("HEADWATER_TEST_REQUIRE_ALL").is_none(),
                "HEADWATER_TEST_POSTGRES is not set"
            );
            println!("skipped: HEADWATER_TEST_POSTGRES is not set");
            return None;
        };
        let name = format!("runtime_{}", uuid::Uuid::now_v7().simple());
        let separator = if server.contains('?') { '&' } else { '?' };
        Some(Place { url: format!("{server}{separator}namespace={name}"), _directory: None })
    }

    /// Another store on the same engine.
    pub(crate) fn another(&self) -> Self {
        let another = if self._directory.is_some() { Self::sqlite() } else { Self::postgres() };
        another.expect("the engine of this one")
    }

    /// Another handle on the store, as another process has.
    pub(crate) async fn open(&self) -> Headwater {
        Headwater::open_with(&self.url, OpenOptions::default().auto_create(true)).await.unwrap()
    }

    /// A handle whose time stands still until moved.
    pub(crate) async fn open_at(&self, clock: &ManualClock) -> Headwater {
        let options = OpenOptions::default().auto_create(true).clock(Clock::Manual(clock.clone()));
        Headwater::open_with(&self.url, options).await.unwrap()
    }

    /// The same, with its clock.
    pub(crate) async fn open_still(&self) -> (Headwater, ManualClock) {
        let clock = ManualClock::at("2026-03-02T09:00:00Z".parse().unwrap());
        (self.open_at(&clock).await, clock)
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// Checks the store's invariants and removes it.
    pub(crate) async fn leave(&self, headwater: &Headwater) {
        assert_eq!(headwater.store().doctor().await.unwrap(), [], "the store is sound");
        headwater.store().drop_namespace().await.unwrap();
    }
}

/// Runs each named case on both databases.
macro_rules! on_each {
    ($($case:ident),* $(,)?) => {
        mod sqlite {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() {
                if let Some(place) = $crate::each::Place::sqlite() {
                    super::$case(place).await;
                }
            })*
        }
        mod postgres {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() {
                if let Some(place) = $crate::each::Place::postgres() {
                    super::$case(place).await;
                }
            })*
        }
    };
}
pub(crate) use on_each;

/// What handlers saw, in order of arrival.
#[derive(Clone, Debug)]
pub(crate) struct Seen<T>(Arc<Mutex<Vec<T>>>);

impl<T> Default for Seen<T> {
    fn default() -> Self {
        Seen(Arc::default())
    }
}

impl<T: Clone> Seen<T> {
    pub(crate) fn add(&self, value: T) {
        self.0.lock().unwrap().push(value);
    }

    pub(crate) fn all(&self) -> Vec<T> {
        self.0.lock().unwrap().clone()
    }

    pub(crate) fn len(&self) -> usize {
        self.0.lock().unwrap().len()
    }

    /// Waits until there are this many.
    pub(crate) async fn reach(&self, count: usize) -> Vec<T> {
        eventually(&format!("{count} are seen"), async || self.len() >= count).await;
        self.all()
    }
}

/// Waits until a condition holds; fails with its name if it never does.
pub(crate) async fn eventually(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let until = tokio::time::Instant::now() + DEADLINE;
    while !holds().await {
        assert!(tokio::time::Instant::now() < until, "not within {DEADLINE:?}: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Publishes `0..count` as JSON numbers.
pub(crate) async fn publish_numbers(headwater: &Headwater, topic: &str, count: u64) {
    let messages: Vec<_> = (0..count).map(|n| headwater::NewMessage::json(&n).unwrap()).collect();
    for batch in messages.chunks(1_000) {
        headwater.producer(topic).send_batch(batch).await.unwrap();
    }
}

/// Waits until a group has nothing left to do.
pub(crate) async fn settled(headwater: &Headwater, topic: &str, group: &str) {
    let topic = headwater::TopicName::new(topic).unwrap();
    eventually(&format!("{group} has settled everything"), async || {
        // Advances the head over everything committed, so that it covers all messages.
        headwater.store().advance_heads().await.unwrap();
        let groups = headwater.store().subscriptions(&topic).await.unwrap();
        let topics = headwater.store().topics().await.unwrap();
        let head = topics.iter().find(|status| status.topic.name == topic).unwrap().head;
        groups
            .iter()
            .any(|status| status.group.as_str() == group && status.leased == 0 && status.floor >= head)
    })
    .await;
}

/// Waits until each lease of a group lasts at least until this time.
pub(crate) async fn leased_until(headwater: &Headwater, topic: &str, group: &str, time: jiff::Timestamp) {
    eventually(&format!("the leases of {group} are extended"), async || {
        let held = headwater.groups(topic).outstanding(group, 10).await.unwrap();
        held.iter().map(|range| range.due_at).min() >= Some(Some(time))
    })
    .await;
}

/// The dead letters of a subscription.
pub(crate) async fn dead_letters(
    headwater: &Headwater,
    id: headwater::store::SubscriptionId,
) -> Vec<headwater::store::DeadLetter> {
    let all = headwater::store::DeadLetterSelection::all(id);
    headwater.store().dead_letters(&all, 100).await.unwrap()
}

impl Place {
    /// The test server's URL.
    pub(crate) fn server(&self) -> &str {
        self.url.split(['?', '&']).next().expect("a URL has a beginning")
    }

    /// The namespace's name.
    pub(crate) fn namespace(&self) -> &str {
        self.url.split("namespace=").nth(1).expect("a namespace is named")
    }
}

/// A member that records each number it handles.
pub(crate) fn noting(seen: &Seen<u64>) -> Handling {
    let seen = seen.clone();
    Handling::one(move |Json(n): Json<u64>, _| {
        seen.add(n);
        async { Ok(()) }
    })
}

/// A member that handles nothing before the gate opens, and then records the number.
pub(crate) fn gated(seen: &Seen<u64>, gate: &Arc<Semaphore>) -> Handling {
    let (seen, gate) = (seen.clone(), Arc::clone(gate));
    Handling::one(move |Json(n): Json<u64>, _| {
        let (seen, gate) = (seen.clone(), Arc::clone(&gate));
        async move {
            gate.acquire().await.unwrap().forget();
            seen.add(n);
            Ok(())
        }
    })
}
