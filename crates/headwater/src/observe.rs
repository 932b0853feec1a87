//! Observability of a running program: metrics, health, recent errors and traces. O(1) per message everywhere.

pub(crate) mod attention;
pub(crate) mod errors;
pub mod health;
pub(crate) mod metrics;
#[cfg(feature = "otel")]
mod otel;
pub mod trace;
pub(crate) mod window;
