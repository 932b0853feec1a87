//! `headwater audit`.

use std::process::ExitCode;

use anyhow::Result;
use headwater::store::AuditEntry;
use serde_json::{Value, json};

use crate::args::{AuditArgs, Global, Output};
use crate::output::{Rows, in_short};

pub(crate) async fn run(global: &Global, args: &AuditArgs) -> Result<ExitCode> {
    let headwater = global.open(global.options()).await?;
    let entries = headwater.audit(args.max).await;
    headwater.close().await?;
    let mut rows = Rows::new(&["at", "actor", "act", "topic", "group", "detail"]);
    for entry in entries? {
        let detail = detail(&entry, global.output);
        rows.push(vec![
            json!(entry.at),
            json!(entry.actor),
            json!(entry.act),
            json!(entry.topic),
            json!(entry.group),
            detail,
        ]);
    }
    rows.print(global.output)?;
    Ok(ExitCode::SUCCESS)
}

/// The details as an object for programs, or as text if they are not JSON.
fn detail(entry: &AuditEntry, output: Output) -> Value {
    match output {
        Output::Table => json!(in_short(&entry.detail)),
        Output::Json => serde_json::from_str(&entry.detail).unwrap_or_else(|_| json!(entry.detail)),
    }
}
