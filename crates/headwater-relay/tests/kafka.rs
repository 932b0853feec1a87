//! Kafka against a real broker: the sink, and exactly once.
#![cfg(feature = "kafka")]

#[path = "kafka/exactly_once.rs"]
mod exactly_once;
#[path = "kafka/sink.rs"]
mod sink;
#[path = "kafka/support.rs"]
mod support;
