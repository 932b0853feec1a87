//! `headwater bridge`.

use std::process::ExitCode;

use anyhow::{Result, bail};
use headwater::Headwater;
use headwater_relay::bridge::{Bridge, BridgeError};
use headwater_relay::target::expand;
use serde_json::json;

use crate::args::{BridgeCommand, BridgeRunArgs, Global};
use crate::output::{Rows, note};
use crate::stop::Stop;

pub(crate) async fn run(global: &Global, command: &BridgeCommand) -> Result<ExitCode> {
    let headwater = global.open(global.options()).await?;
    let done = match command {
        BridgeCommand::Run(args) => serve(&headwater, args).await,
        BridgeCommand::List(_) => list(global, &headwater).await,
    };
    headwater.close().await?;
    done
}

/// Runs a bridge until stopped. What is wrong at the start ends it; what happens later it waits for.
async fn serve(headwater: &Headwater, args: &BridgeRunArgs) -> Result<ExitCode> {
    let url = expand(&args.from, |name| std::env::var(name).ok())?;
    let mut bridge = Bridge::from_url(headwater, &url, &args.to)?.batch_messages(args.batch);
    if let Some(name) = &args.name {
        bridge = bridge.name(name);
    }
    let mut stop = Stop::on_signals("stopping after the batch in hand; again to stop at once")?;
    let checked = tokio::select! {
        checked = bridge.check() => checked,
        () = stop.asked() => return Ok(ExitCode::SUCCESS),
    };
    match checked {
        Ok(()) => {}
        Err(BridgeError::Store(error)) => return Err(error.into()),
        Err(BridgeError::Broker(error)) => bail!("bridge {}: {error}", bridge.named()),
    }
    let name = bridge.named().to_owned();
    let running = bridge.start()?;
    note(format_args!("bridge {name} started, until SIGTERM or SIGINT"));
    stop.asked().await;
    let health = running.health();
    running.stop().await;
    note(format_args!(
        "published {}, known already {}, parked {}",
        health.published, health.duplicates, health.parked
    ));
    Ok(ExitCode::SUCCESS)
}

async fn list(global: &Global, headwater: &Headwater) -> Result<ExitCode> {
    let mut rows = Rows::new(&["bridge", "source", "position", "updated_at"]);
    for stored in headwater.bridge_positions().list().await? {
        rows.push(vec![
            json!(stored.bridge),
            json!(stored.source),
            json!(stored.position),
            json!(stored.updated_at),
        ]);
    }
    rows.print(global.output)?;
    Ok(ExitCode::SUCCESS)
}
