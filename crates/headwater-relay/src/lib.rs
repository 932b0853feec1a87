//! Relays what Headwater holds to other brokers, and what they hold into Headwater.
//!
//! A [`Relay`] takes records from a [source](Source), a topic or the outbox, and delivers them to a [`Sink`]: at least once, in the order
//! of keys. What fails is retried and ends in the dead letters; a sink that is down costs no record an attempt, and no other relay
//! anything.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> headwater::Result<()> {
//! use std::time::Duration;
//! use headwater::Headwater;
//! use headwater_relay::testing::TestSink;
//! use headwater_relay::{Relay, Source};
//!
//! let headwater = Headwater::in_memory().await?;
//! let sink = TestSink::new(); // or target::sink_for("https://hooks.example.com/orders#secret=…")?
//! let running = Relay::new(&headwater, Source::Topic("orders".into()), sink.clone()).run().await?;
//!
//! headwater.producer("orders").send(&"a kettle").key("customer-1").await?;
//! sink.until_delivered(1).await;
//! assert_eq!(sink.delivered()[0].destination, "orders");
//!
//! running.shutdown(Duration::from_secs(10)).await?;
//! # headwater.close().await }
//! ```

mod breaker;
#[cfg_attr(not(any(feature = "kafka", feature = "nats", feature = "rabbitmq")), allow(dead_code, unused))]
pub mod bridge;
#[cfg_attr(not(any(feature = "kafka", feature = "nats", feature = "rabbitmq")), allow(dead_code, unused))]
mod broker_url;
mod courier;
#[cfg(feature = "kafka")]
pub mod kafka;
mod meter;
#[cfg(feature = "nats")]
pub mod nats;
#[cfg(feature = "rabbitmq")]
pub mod rabbitmq;
pub mod registered;
pub mod relay;
pub mod sink;
mod source;
pub mod target;
pub mod testing;
pub mod topic_sink;
#[cfg(feature = "webhook")]
pub mod webhook;

pub use relay::{Relay, RelayHealth, RelaySettings, RelayState, RunningRelay, Source};
pub use sink::{Delivery, Record, Sink, SinkError};
