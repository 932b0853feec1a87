//! The lab: benchmarks beside peers in one run, the soak that counts every message, checks of running consumers, the
//! readiness of fan-out, what chaos must not break, what neighbours must not slow down, relays to real brokers, the
//! pipeline, and the server over HTTP.

mod bench;
mod beside;
mod chaos;
mod check;
mod http;
mod machine;
mod pipeline;
mod readiness;
mod relay;
mod runtime;
mod server;
mod soak;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Figures beside peers, the correctness soak, the consumers' checks, the readiness of fan-out, chaos, neighbours, relays, the pipeline and the server.
#[derive(Debug, Parser)]
#[command(name = "headwater-lab", version, about)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Measures this engine and its peers on this machine and judges each floor.
    Bench(bench::BenchArgs),
    /// Runs publishers and consumer processes against a store and counts every message.
    Soak(soak::SoakArgs),
    /// Measures and judges running consumers: rates, lag, order, single effects, endings, idle cost.
    Runtime(runtime::RuntimeArgs),
    /// Judges fan-out under load: both modes, deaths, backfills, changes of mode, partitions, heartbeats.
    Readiness(readiness::ReadinessArgs),
    /// Judges what disks, clocks, operators and blocking handlers do to a store, with real processes.
    Chaos(chaos::ChaosArgs),
    /// Judges Headwater beside hostile neighbours: open transactions, old snapshots, greedy writers, killed processes.
    Beside(beside::BesideArgs),
    /// Judges relays to Kafka, RabbitMQ and NATS: rates, outages, killed relays, exactly once.
    Relay(relay::RelayArgs),
    /// Judges the pipeline: indexing rates, size, queries, and services that are killed.
    Pipeline(pipeline::PipelineArgs),
    /// Judges the server over HTTP: rates beside brokers, idle clients, waiting claims, pages.
    Http(http::HttpArgs),
    /// One process of a soak or a check.
    #[command(hide = true)]
    RuntimeChild(check::ChildArgs),
}

#[tokio::main]
async fn main() -> ExitCode {
    // Brokers are stopped and killed on purpose: the client library would report each of these as an error.
    let quiet = |_| "error,lapin=off".into();
    tracing_subscriber::fmt()
        .with_env_filter(tracing_subscriber::EnvFilter::try_from_default_env().unwrap_or_else(quiet))
        .with_writer(std::io::stderr)
        .init();
    let outcome = match Cli::parse().command {
        Command::Bench(args) => until_interrupted(bench::run(args)).await,
        Command::Soak(args) => until_interrupted(soak::run(args)).await,
        Command::Runtime(args) => until_interrupted(runtime::run(args)).await,
        Command::Readiness(args) => until_interrupted(readiness::run(args)).await,
        Command::Chaos(args) => until_interrupted(chaos::run(args)).await,
        Command::Beside(args) => until_interrupted(beside::run(args)).await,
        Command::Relay(args) => until_interrupted(relay::run(args)).await,
        Command::Pipeline(args) => until_interrupted(pipeline::run(args)).await,
        Command::Http(args) => until_interrupted(http::run(args)).await,
        Command::RuntimeChild(args) => check::child::run_child(args).await.map(|()| true),
    };
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::from(2)
        }
    }
}

/// Runs a command until it ends or a signal stops it. Dropping the future stops the server and the children it
/// started, so nothing is left behind either way.
async fn until_interrupted(command: impl Future<Output = anyhow::Result<bool>>) -> anyhow::Result<bool> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut terminate = signal(SignalKind::terminate())?;
    tokio::select! {
        outcome = command => outcome,
        _ = tokio::signal::ctrl_c() => anyhow::bail!("interrupted"),
        _ = terminate.recv() => anyhow::bail!("terminated"),
    }
}
