//! Where a case runs: a store on each engine, and the brokers that the test command has started.
#![allow(dead_code, reason = "each test binary uses its part")]

use std::time::{Duration, Instant};

use headwater::{Headwater, NewMessage, OpenOptions};
use headwater_relay::Record;
use headwater_servers::brokers::{Broker, Kind};

/// Longer than anything here takes on a busy machine; a wait of this length has failed.
pub(crate) const DEADLINE: Duration = Duration::from_secs(60);

/// The address of a broker; `None`, with a printed notice, where none is given, and a failure where nothing may be skipped.
pub(crate) fn broker(variable: &str) -> Option<String> {
    std::env::var(variable).ok().or_else(|| skipped(&format!("{variable} is not set")))
}

/// A broker of the test's own, or the same.
pub(crate) fn own<K: Kind>() -> Option<Broker<K>> {
    if let Err(error) = Broker::<K>::find() {
        return skipped(&error.to_string());
    }
    let mut broker = Broker::start(&std::env::temp_dir()).expect("started");
    broker.wait(|| Ok(())).expect("ready");
    Some(broker)
}

fn skipped<T>(why: &str) -> Option<T> {
    let required = ["HEADWATER_TEST_REQUIRE_ALL", "CI"].iter().any(|name| std::env::var_os(name).is_some());
    assert!(!required, "{why}, and nothing may be skipped");
    println!("skipped: {why}");
    None
}

/// A name that no other case has.
pub(crate) fn unique(name: &str) -> String {
    format!("{name}-{}", uuid::Uuid::now_v7().simple())
}

/// A record with every field.
pub(crate) fn record(n: usize, destination: &str) -> Record {
    Record {
        message_id: format!("m-{n}"),
        destination: destination.to_owned(),
        key: Some(format!("größe {}", n % 7)),
        message_type: Some("OrderPlaced".into()),
        content_type: Some("application/json".into()),
        correlation_id: Some(format!("c-{n}")),
        headers: [("a".to_owned(), "b \"ß\"".to_owned()), ("traceparent".to_owned(), "00-1".to_owned())]
            .into(),
        payload: format!("{{\"n\":{n}}}").into(),
        created_at: "2026-01-31T12:00:00.123456Z".parse().expect("a time"),
    }
}

/// Waits until something is so.
pub(crate) async fn eventually(what: &str, is_so: impl AsyncFnMut() -> bool) {
    eventually_or(|| what.to_owned(), is_so).await;
}

/// The same; what it was waiting for is described once that failed.
pub(crate) async fn eventually_or(what: impl Fn() -> String, mut is_so: impl AsyncFnMut() -> bool) {
    let begun = Instant::now();
    while !is_so().await {
        assert!(begun.elapsed() < DEADLINE, "{}: not within {DEADLINE:?}", what());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// A store for one case.
pub(crate) struct Place {
    url: String,
    directory: Option<tempfile::TempDir>,
}

impl Place {
    /// A separate file.
    pub(crate) fn sqlite() -> Option<Self> {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let url = format!("sqlite:{}", directory.path().join("bridge.db").display());
        Some(Place { url, directory: Some(directory) })
    }

    /// A separate namespace on the test server.
    pub(crate) fn postgres() -> Option<Self> {
        let server = broker("HEADWATER_TEST_POSTGRES")?;
        let separator = if server.contains('?') { '&' } else { '?' };
        let name = format!("bridge_{}", uuid::Uuid::now_v7().simple());
        Some(Place { url: format!("{server}{separator}namespace={name}"), directory: None })
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    pub(crate) async fn open(&self) -> Headwater {
        Headwater::open_with(&self.url, OpenOptions::default().auto_create(true)).await.expect("opened")
    }

    /// Checks the store and removes it.
    pub(crate) async fn leave(&self, headwater: &Headwater) {
        assert_eq!(headwater.doctor().await.expect("checked"), [], "the store is sound");
        headwater.store().drop_namespace().await.expect("removed");
    }
}

/// What a topic has, as text.
pub(crate) async fn payloads(headwater: &Headwater, topic: &str) -> Vec<String> {
    let messages = headwater.published(topic).await.expect("read");
    messages.iter().map(|message| String::from_utf8_lossy(&message.payload).into_owned()).collect()
}

/// A message that a topic with room for 1 KiB refuses.
pub(crate) fn large() -> NewMessage {
    NewMessage::new(vec![b'x'; 2_000])
}
