//! `headwater cron`.

use std::process::ExitCode;

use anyhow::Result;
use headwater::Headwater;
use serde_json::json;

use crate::args::{CronCommand, Global, Output};
use crate::output::{Rows, print_objects};

pub(crate) async fn run(global: &Global, command: &CronCommand) -> Result<ExitCode> {
    let headwater = global.open(global.options()).await?;
    let done = match command {
        CronCommand::List => list(global, &headwater).await,
    };
    headwater.close().await?;
    done?;
    Ok(ExitCode::SUCCESS)
}

async fn list(global: &Global, headwater: &Headwater) -> Result<()> {
    let jobs = headwater.cron_jobs().await?;
    if global.output == Output::Json {
        return print_objects(jobs.into_iter().map(|job| {
            let described = job.description.as_ref();
            json!({
                "job": job.job,
                "expression": described.map(|described| &described.expression),
                "time_zone": described.map(|described| &described.time_zone),
                "topic": described.map(|described| described.topic.as_str()),
                "started_at": job.started_at,
                "last_tick": job.last_tick,
                "next_tick": job.next_tick(job.last_tick),
            })
        }));
    }
    let mut rows = Rows::new(&["job", "topic", "expression", "last_tick", "next_tick"]);
    for job in jobs {
        let described = job.description.as_ref();
        rows.push(vec![
            json!(job.job),
            json!(described.map(|described| described.topic.as_str())),
            json!(described.map(|described| &described.expression)),
            json!(job.last_tick),
            json!(job.next_tick(job.last_tick)),
        ]);
    }
    rows.print(global.output)
}
