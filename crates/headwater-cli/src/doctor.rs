//! `headwater doctor`.

use std::process::ExitCode;

use anyhow::Result;
use serde_json::json;

use crate::args::Global;
use crate::output::{Rows, note};

/// The exit code if the store is sound but something needs an operator.
const ATTENTION: u8 = 3;

pub(crate) async fn run(global: &Global) -> Result<ExitCode> {
    let headwater = global.open(global.options()).await?;
    let errors = headwater.doctor().await?;
    let attention = headwater.attention().await?;
    // Only a warning: the store is sound, and the server may be configured so on purpose.
    for warning in headwater.durability().await? {
        note(format_args!("warning: {}; {}", warning.problem, warning.remedy));
    }
    headwater.close().await?;
    let code = match (errors.is_empty(), attention.is_empty()) {
        (true, true) => {
            note("no problems found");
            return Ok(ExitCode::SUCCESS);
        }
        (true, false) => {
            note("the store is sound; some things need attention");
            ExitCode::from(ATTENTION)
        }
        (false, _) => ExitCode::FAILURE,
    };
    let mut rows = Rows::new(&["kind", "check", "problem", "remedy"]);
    for (kind, findings) in [("error", errors), ("attention", attention)] {
        for finding in findings {
            rows.push(vec![json!(kind), json!(finding.check), json!(finding.problem), json!(finding.remedy)]);
        }
    }
    rows.print(global.output)?;
    Ok(code)
}
