//! What can be seen of a running program: metrics, health, recent errors and traces. O(1) per message everywhere.

pub(crate) mod errors;
pub(crate) mod health;
#[allow(dead_code, reason = "the group's part is the consumer runtime's")]
pub(crate) mod metrics;
#[allow(dead_code, reason = "the consumer's part is the consumer runtime's")]
pub mod trace;
pub(crate) mod window;
