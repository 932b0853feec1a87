//! Relays end to end, on both engines: topics and the outbox as sources, a sink that fails on command, webhooks, other stores, and
//! processes that are killed.

use std::sync::Arc;
use std::time::Duration;

use headwater::{Headwater, NewMessage, OpenOptions};
use headwater_relay::testing::TestSink;
use headwater_relay::{Relay, RelaySettings, RunningRelay, Sink, Source};
use tokio::time::Instant;

#[path = "relay/breaker.rs"]
mod breaker;
#[path = "relay/killed.rs"]
mod killed;
#[path = "relay/outbox.rs"]
mod outbox;
#[path = "relay/stores.rs"]
mod stores;
#[path = "relay/topic.rs"]
mod topic;
#[cfg(feature = "webhook")]
#[path = "relay/webhook.rs"]
mod webhook;

/// A store for one test.
struct Place {
    headwater: Headwater,
    url: String,
    /// Removed at the end.
    _folder: Option<tempfile::TempDir>,
}

impl Place {
    async fn sqlite() -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        let url = format!("sqlite:{}", folder.path().join("shop.db").display());
        Some(Self::open(url, Some(folder)).await)
    }

    /// `None`, with a printed line, where no server is given; a failure where nothing may be skipped.
    async fn postgres() -> Option<Self> {
        let Ok(server) = std::env::var("HEADWATER_TEST_POSTGRES") else {
            let required =
                ["HEADWATER_TEST_REQUIRE_ALL", "CI"].iter().any(|name| std::env::var_os(name).is_some());
            assert!(!required, "HEADWATER_TEST_POSTGRES is not set and nothing may be skipped");
            println!("skipped: HEADWATER_TEST_POSTGRES is not set");
            return None;
        };
        let separator = if server.contains('?') { '&' } else { '?' };
        let url = format!("{server}{separator}namespace=relay_{}", uuid::Uuid::now_v7().simple());
        Some(Self::open(url, None).await)
    }

    async fn open(url: String, folder: Option<tempfile::TempDir>) -> Self {
        let headwater = Headwater::open_with(&url, OpenOptions::default().auto_create(true)).await.unwrap();
        Place { headwater, url, _folder: folder }
    }

    async fn end(self) {
        self.headwater.store().drop_namespace().await.unwrap();
        self.headwater.close().await.unwrap();
    }

    async fn relay(&self, source: Source, sink: Arc<dyn Sink>, settings: RelaySettings) -> RunningRelay {
        Relay::new(&self.headwater, source, sink).settings(settings).run().await.unwrap()
    }

    async fn orders(&self, sink: &Arc<TestSink>, settings: RelaySettings) -> RunningRelay {
        self.relay(Source::Topic("orders".into()), Arc::clone(sink) as _, settings).await
    }

    /// Publishes numbers with these keys, in one batch.
    async fn publish(&self, topic: &str, keyed: &[(usize, &str)]) {
        let messages: Vec<NewMessage> =
            keyed.iter().map(|(n, key)| NewMessage::new(n.to_string()).key(key)).collect();
        self.headwater.producer(topic).send_batch(&messages).await.unwrap();
    }

    /// The errors of the dead letters of the group that relays orders to the test sink.
    async fn dead_letters(&self) -> Vec<String> {
        let dead = self.headwater.dead_letters().of("orders", "relay-test").list(1_000).await.unwrap();
        dead.into_iter().map(|dead_letter| dead_letter.error).collect()
    }

    async fn lag(&self, topic: &str, group: &str) -> u64 {
        let status = self.headwater.groups(topic).get(group).await.unwrap().status;
        status.lag
    }
}

/// Settings with short pauses.
fn quick() -> RelaySettings {
    RelaySettings {
        backoff: Some((Duration::from_millis(20), Duration::from_millis(50))),
        probe_pace: (Duration::from_millis(10), Duration::from_millis(50)),
        ..RelaySettings::default()
    }
}

const GRACE: Duration = Duration::from_secs(10);

/// Waits until something is true.
async fn until(what: &str, mut is_true: impl AsyncFnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !is_true().await {
        assert!(Instant::now() < deadline, "not within a minute: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// One test per engine of each case.
macro_rules! on_both {
    ($($case:ident),* $(,)?) => {
        mod sqlite {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() {
                if let Some(place) = crate::Place::sqlite().await {
                    super::$case(place).await;
                }
            })*
        }
        mod postgres {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() {
                if let Some(place) = crate::Place::postgres().await {
                    super::$case(place).await;
                }
            })*
        }
    };
}
pub(crate) use on_both;
