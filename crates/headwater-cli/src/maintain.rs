//! `headwater maintain`.

use std::process::ExitCode;

use anyhow::Result;
use serde_json::json;

use crate::args::Global;
use crate::output::Rows;

pub(crate) async fn run(global: &Global) -> Result<ExitCode> {
    let headwater = global.open(global.options()).await?;
    let done = headwater.store().maintain().await?;
    let mut rows = Rows::new(&["promoted", "late", "gaps_closed", "dedup_forgotten", "inbox_forgotten"]);
    rows.push(vec![
        json!(done.promoted),
        json!(done.late),
        json!(done.gaps_closed),
        json!(done.dedup_forgotten),
        json!(done.inbox_forgotten),
    ]);
    rows.print(global.output)?;
    headwater.close().await?;
    Ok(ExitCode::SUCCESS)
}
