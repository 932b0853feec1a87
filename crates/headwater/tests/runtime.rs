//! The runtime as programs use it, each case on both databases.

#[path = "runtime/blocked.rs"]
mod blocked;
#[path = "runtime/each.rs"]
mod each;
#[path = "runtime/errors.rs"]
mod errors;
#[path = "runtime/failover.rs"]
mod failover;
#[path = "runtime/flow.rs"]
mod flow;
#[path = "runtime/life.rs"]
mod life;
#[path = "runtime/logs.rs"]
mod logs;
#[path = "runtime/members.rs"]
mod members;
#[path = "runtime/memory.rs"]
mod memory;
#[path = "runtime/once.rs"]
mod once;
#[path = "runtime/order.rs"]
mod order;
#[path = "runtime/otel.rs"]
#[cfg(feature = "otel")]
mod otel;
#[path = "runtime/outcomes.rs"]
mod outcomes;
#[path = "runtime/periodic.rs"]
#[cfg(feature = "cron")]
mod periodic;
#[path = "runtime/pull.rs"]
mod pull;
#[path = "runtime/trace.rs"]
mod trace;
