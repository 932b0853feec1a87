//! The runtime as programs use it, each case on both databases.

#[path = "runtime/blocked.rs"]
mod blocked;
#[path = "runtime/burials.rs"]
mod burials;
#[path = "runtime/declare.rs"]
mod declare;
#[path = "runtime/each.rs"]
mod each;
#[path = "runtime/errors.rs"]
mod errors;
#[path = "runtime/expiry.rs"]
mod expiry;
#[path = "runtime/failover.rs"]
mod failover;
#[path = "runtime/failures.rs"]
mod failures;
#[path = "runtime/flow.rs"]
mod flow;
#[path = "runtime/handlers.rs"]
mod handlers;
#[path = "runtime/life.rs"]
mod life;
#[path = "runtime/logs.rs"]
mod logs;
#[path = "runtime/members.rs"]
mod members;
#[path = "runtime/memory.rs"]
mod memory;
#[path = "runtime/neutral.rs"]
mod neutral;
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
#[path = "runtime/process_kill.rs"]
mod process_kill;
#[path = "runtime/process_manager.rs"]
mod process_manager;
#[path = "runtime/process_operators.rs"]
mod process_operators;
#[path = "runtime/process_repository.rs"]
mod process_repository;
#[path = "runtime/process_rules.rs"]
mod process_rules;
#[path = "runtime/process_sagas.rs"]
mod process_sagas;
#[path = "runtime/process_scene.rs"]
mod process_scene;
#[path = "runtime/process_slices.rs"]
mod process_slices;
#[path = "runtime/process_sweep.rs"]
mod process_sweep;
#[path = "runtime/pull.rs"]
mod pull;
#[path = "runtime/request.rs"]
mod request;
#[path = "runtime/shutdown.rs"]
#[cfg(feature = "cron")]
mod shutdown;
#[path = "runtime/tail.rs"]
mod tail;
#[path = "runtime/topics.rs"]
mod topics;
#[path = "runtime/trace.rs"]
mod trace;
#[path = "runtime/within.rs"]
mod within;
