//! Bridges from real brokers into topics, on both engines.
#![cfg(all(feature = "kafka", feature = "nats", feature = "rabbitmq"))]

#[path = "bridge/brokers.rs"]
mod brokers;
#[path = "bridge/fields.rs"]
mod fields;
#[path = "bridge/killed.rs"]
mod killed;
#[path = "queues/place.rs"]
mod place;
#[path = "bridge/refused.rs"]
mod refused;
#[path = "bridge/restarted.rs"]
mod restarted;

/// Runs each named case on both databases.
macro_rules! on_each {
    ($($case:ident),* $(,)?) => {
        mod sqlite {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() {
                if let Some(place) = $crate::place::Place::sqlite() {
                    super::$case(place).await;
                }
            })*
        }
        mod postgres {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() {
                if let Some(place) = $crate::place::Place::postgres() {
                    super::$case(place).await;
                }
            })*
        }
    };
}
pub(crate) use on_each;
