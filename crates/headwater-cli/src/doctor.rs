//! `headwater doctor`.

use std::process::ExitCode;

use anyhow::Result;
use serde_json::json;

use crate::args::Global;
use crate::output::Rows;

pub(crate) async fn run(global: &Global) -> Result<ExitCode> {
    let headwater = global.open(global.options()).await?;
    let findings = headwater.doctor().await?;
    // Only a warning: the store is sound, and the server may be configured so on purpose.
    for warning in headwater.durability().await? {
        eprintln!("warning: {}; {}", warning.problem, warning.remedy);
    }
    headwater.close().await?;
    if findings.is_empty() {
        eprintln!("no problems found");
        return Ok(ExitCode::SUCCESS);
    }
    let mut rows = Rows::new(&["check", "problem", "remedy"]);
    for finding in findings {
        rows.push(vec![json!(finding.check), json!(finding.problem), json!(finding.remedy)]);
    }
    rows.print(global.output)?;
    Ok(ExitCode::FAILURE)
}
