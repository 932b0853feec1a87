//! One process of the demo: serves a group until its standard input is closed.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use headwater::{Context, HandlerResult, Handling, Headwater, Message, Start, rusqlite};
use tokio::io::AsyncReadExt;

use super::{TOPIC, ledger};
use crate::args::DemoWorkerArgs;

/// The group that cannot handle the poison message.
pub(super) const PICKY: &str = "billing";
/// How long handlers may take to finish when the process shuts down.
const GRACE: Duration = Duration::from_secs(5);

pub(crate) async fn run(args: &DemoWorkerArgs) -> Result<ExitCode> {
    let headwater = Headwater::open(&format!("sqlite:{}", args.file.display())).await?;
    let picky = args.group == PICKY && !args.mended;
    // The entry in the ledger and the ack commit together, so the effect happens exactly once.
    let handle =
        move |connection: &rusqlite::Connection, order: Message, context: &Context| -> HandlerResult {
            if picky {
                check_amount(&order)?;
            }
            Ok(ledger::note(connection, context.group(), order.offset)?)
        };
    let running = headwater
        .consumer(TOPIC, &args.group)
        .start_from(Start::Beginning)
        .handling(&format!("{} 1", args.group), Handling::in_sqlite(handle))
        .run()
        .await?;
    // The demo holds the other end and closes it, on purpose or by ending.
    tokio::io::stdin().read_to_end(&mut Vec::new()).await?;
    running.shutdown(GRACE).await?;
    headwater.close().await?;
    Ok(ExitCode::SUCCESS)
}

/// What the first version of billing does: it expects amounts to be numbers.
fn check_amount(order: &Message) -> Result<(), String> {
    let order: serde_json::Value =
        serde_json::from_slice(&order.payload).map_err(|error| error.to_string())?;
    match &order["amount"] {
        serde_json::Value::Number(_) => Ok(()),
        other => Err(format!("the amount of order {} is {other}, which is no number", order["order"])),
    }
}
