//! What tests of relays use: a sink in memory that fails on command, and a checker of what arrived.

pub mod checker;

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use jiff::Timestamp;
use tokio::sync::watch;

use crate::sink::{Delivery, Record, Sink, SinkError};

/// A sink that keeps what was delivered, and fails as it is asked to. Records are chosen by their payload as text.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() {
/// use headwater_relay::testing::{TestSink, record};
/// use headwater_relay::{Delivery, Sink};
///
/// let sink = TestSink::new();
/// sink.fail("7", 1);
/// let records = [record(7, Some("a")), record(8, Some("b"))];
/// assert!(matches!(sink.deliver(&records).await.unwrap()[..], [Delivery::Failed { .. }, Delivery::Delivered]));
/// assert_eq!(sink.payloads(), ["8"]);
/// # }
/// ```
#[derive(Debug)]
pub struct TestSink {
    keeps_order: bool,
    state: Mutex<State>,
    count: watch::Sender<usize>,
}

#[derive(Debug, Default)]
struct State {
    delivered: Vec<Record>,
    /// The sizes of calls.
    calls: Vec<usize>,
    /// How often a payload fails, and how.
    failures: HashMap<String, (u32, Delivery)>,
    down: Option<SinkError>,
    panics: bool,
}

/// A record of the topic `orders` whose payload is this number.
pub fn record(n: usize, key: Option<&str>) -> Record {
    Record {
        message_id: format!("id-{n}"),
        destination: "orders".into(),
        key: key.map(str::to_owned),
        message_type: None,
        content_type: None,
        correlation_id: None,
        headers: headwater::Headers::new(),
        payload: n.to_string().into(),
        created_at: Timestamp::UNIX_EPOCH,
    }
}

fn text(record: &Record) -> String {
    String::from_utf8_lossy(&record.payload).into_owned()
}

impl TestSink {
    /// A sink that does not keep the order of a batch by itself.
    pub fn new() -> Arc<Self> {
        Self::with_order(false)
    }

    /// A sink that delivers nothing behind a failed record of the same key.
    pub fn keeping_order() -> Arc<Self> {
        Self::with_order(true)
    }

    fn with_order(keeps_order: bool) -> Arc<Self> {
        let (count, _) = watch::channel(0);
        Arc::new(TestSink { keeps_order, state: Mutex::default(), count })
    }

    fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        change(&mut self.state.lock().expect("no panic while held"))
    }

    /// Lets records with this payload fail so many times.
    pub fn fail(&self, payload: &str, times: u32) {
        let failed = Delivery::Failed { reason: format!("no room for {payload}"), retry_after: None };
        self.fail_as(payload, times, failed);
    }

    /// The same with this result.
    pub fn fail_as(&self, payload: &str, times: u32, delivery: Delivery) {
        self.change(|state| state.failures.insert(payload.to_owned(), (times, delivery)));
    }

    /// Refuses records with this payload.
    pub fn refuse(&self, payload: &str) {
        self.fail_as(
            payload,
            u32::MAX,
            Delivery::Refused { reason: format!("{payload} is not accepted here") },
        );
    }

    /// Answers every call with this error, from now on.
    pub fn go_down(&self, error: SinkError) {
        self.change(|state| state.down = Some(error));
    }

    /// Answers again.
    pub fn come_up(&self) {
        self.change(|state| state.down = None);
    }

    /// Lets the next call panic.
    pub fn panic_once(&self) {
        self.change(|state| state.panics = true);
    }

    /// What was delivered, in the order of arrival.
    pub fn delivered(&self) -> Vec<Record> {
        self.change(|state| state.delivered.clone())
    }

    /// The payloads of that.
    pub fn payloads(&self) -> Vec<String> {
        self.change(|state| state.delivered.iter().map(text).collect())
    }

    /// The payloads of a key.
    pub fn payloads_of(&self, key: &str) -> Vec<String> {
        let of_key = |record: &&Record| record.key.as_deref() == Some(key);
        self.change(|state| state.delivered.iter().filter(of_key).map(text).collect())
    }

    /// How many records each call had.
    pub fn calls(&self) -> Vec<usize> {
        self.change(|state| state.calls.clone())
    }

    /// Waits until so many records were delivered, repeats included.
    pub async fn until_delivered(&self, count: usize) {
        let mut counted = self.count.subscribe();
        counted.wait_for(|delivered| *delivered >= count).await.expect("the sender lives as long as this");
    }
}

#[async_trait]
impl Sink for TestSink {
    fn kind(&self) -> &'static str {
        "test"
    }

    fn keeps_order(&self) -> bool {
        self.keeps_order
    }

    async fn deliver(&self, records: &[Record]) -> Result<Vec<Delivery>, SinkError> {
        let deliveries = {
            let panics = self.change(|state| std::mem::take(&mut state.panics));
            assert!(!panics, "as the test asked");
            let mut state = self.state.lock().expect("no panic while held");
            if let Some(error) = &state.down {
                return Err(error.clone());
            }
            state.calls.push(records.len());
            let mut failed_keys: Vec<(&Option<String>, bool)> = Vec::new();
            let mut deliveries = Vec::with_capacity(records.len());
            for record in records {
                let behind = failed_keys.iter().find(|(key, _)| *key == &record.key && key.is_some());
                if let Some((_, is_outage)) = behind.filter(|_| self.keeps_order) {
                    let reason = "behind a failed record of its key".to_owned();
                    deliveries.push(match is_outage {
                        true => Delivery::Unconfirmed { reason },
                        false => Delivery::Failed { reason, retry_after: None },
                    });
                    continue;
                }
                let delivery = match state.failures.get_mut(&text(record)) {
                    Some((times, delivery)) if *times > 0 => {
                        *times -= 1;
                        delivery.clone()
                    }
                    _ => Delivery::Delivered,
                };
                match &delivery {
                    Delivery::Delivered => state.delivered.push(record.clone()),
                    Delivery::Failed { .. } => failed_keys.push((&record.key, false)),
                    Delivery::Unconfirmed { .. } => failed_keys.push((&record.key, true)),
                    Delivery::Refused { .. } => {}
                }
                deliveries.push(delivery);
            }
            self.count.send_replace(state.delivered.len());
            deliveries
        };
        // As with a real sink, the answer comes later.
        tokio::task::yield_now().await;
        Ok(deliveries)
    }

    async fn check(&self) -> Result<(), SinkError> {
        self.change(|state| state.down.clone().map_or(Ok(()), Err))
    }
}
