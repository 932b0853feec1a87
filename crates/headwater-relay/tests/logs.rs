//! What a relay logs. A program of its own: a subscriber of one thread misses lines whose callsites other tests have met first.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use headwater::{Headwater, NewMessage};
use headwater_relay::testing::TestSink;
use headwater_relay::{Relay, RelaySettings, SinkError, Source};
use tokio::time::Instant;

/// Lines that were logged.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl std::io::Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Lines {
    fn count(&self, text: &str) -> usize {
        String::from_utf8_lossy(&self.0.lock().unwrap()).matches(text).count()
    }

    async fn until(&self, text: &str, times: usize) {
        let deadline = Instant::now() + Duration::from_secs(60);
        while self.count(text) < times {
            assert!(Instant::now() < deadline, "not within a minute: {text}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

#[tokio::test]
async fn an_outage_is_reported_again_and_again_with_the_backlog() {
    let lines = Lines::default();
    let writer = lines.clone();
    tracing_subscriber::fmt().with_writer(move || writer.clone()).with_ansi(false).init();
    let headwater = Headwater::in_memory().await.unwrap();
    let sink = TestSink::new();
    sink.go_down(SinkError::Unavailable("connection refused".into()));
    let messages = ["1", "2", "3"].map(|n| NewMessage::new(n).key(n));
    headwater.producer("orders").send_batch(&messages).await.unwrap();
    let settings = RelaySettings {
        alarm_every: Duration::from_millis(30),
        probe_pace: (Duration::from_millis(10), Duration::from_millis(20)),
        ..RelaySettings::default()
    };
    let relay = Relay::new(&headwater, Source::Topic("orders".into()), sink.clone()).settings(settings);
    let running = relay.run().await.unwrap();
    lines.until("relay waits: the sink is unavailable", 2).await;
    assert!(lines.count("backlog=\"3 messages\"") > 0);
    assert_eq!(lines.count("WARN headwater_relay::breaker: relay breaker opened"), 1);
    sink.come_up();
    lines.until("INFO headwater_relay::breaker: relay breaker closed", 1).await;
    sink.until_delivered(3).await;
    running.shutdown(Duration::from_secs(10)).await.unwrap();
    headwater.close().await.unwrap();
}
