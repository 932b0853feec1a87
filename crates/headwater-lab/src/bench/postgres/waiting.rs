//! The cost of waiting on PostgreSQL: latency on an idle system, and processor time while nothing happens.

use std::time::Duration;

use anyhow::Result;

use super::super::engine::Engine;
use super::super::report::{Beside, Floor, Row};
use super::super::{progress, waiting};
use super::{Context, DATABASE};
use crate::check::{Figure, Unit};

/// From the call of `publish` until a consumer of another store has fetched the message.
pub(super) async fn latency(context: &Context<'_>) -> Result<Vec<Row>> {
    progress("PostgreSQL: latency");
    let other = Engine::open(&context.url).await?;
    let topic = context.engine.topic("latency").await?;
    let across =
        waiting::latency(&context.engine, &other, &topic, "across", context.plan.latency_samples).await?;
    let within =
        waiting::latency(&context.engine, &context.engine, &topic, "within", context.plan.latency_samples)
            .await?;
    other.store.close().await?;
    let how = "publish call to message fetched, idle; publisher and consumer on separate stores (LISTEN)";
    let row = |work: &str, amount, floor, how: &str| Row {
        work: work.into(),
        headwater: Figure::new(amount, Unit::Milliseconds),
        beside: Beside::Nothing,
        floor,
        how: how.into(),
        rounds: vec![],
    };
    Ok(vec![
        row("PostgreSQL latency, p50", across.p50_ms, Floor::AtMost(3.0), how),
        row("PostgreSQL latency, p99", across.p99_ms, Floor::AtMost(15.0), how),
        row("PostgreSQL latency in one process, p50", within.p50_ms, Floor::None, "the same, on one store"),
    ])
}

/// Processor time of this process and of the server's processes for it while consumers wait.
pub(super) async fn idle(context: &Context<'_>) -> Result<Row> {
    progress("PostgreSQL: idle cost");
    let topic = context.engine.topic("idle").await?;
    let pause = Duration::from_millis(500);
    let backends = async || context.server.backends(DATABASE).await;
    let percent = waiting::idle_percent(&context.engine, &topic, context.plan.idle, pause, backends).await?;
    Ok(waiting::idle_row(
        "PostgreSQL idle cost of 4 waiting consumers",
        percent,
        "of a core: this process and its backends",
    ))
}
