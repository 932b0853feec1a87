//! `headwater maintain`.

use std::process::ExitCode;

use anyhow::Result;
use headwater::Headwater;
use headwater::maintenance::{Job, MaintenanceSettings};
use serde_json::json;

use crate::args::{Global, MaintainArgs, Output};
use crate::human;
use crate::output::{Rows, in_short, note};
use crate::stop::Stop;

pub(crate) async fn run(global: &Global, args: &MaintainArgs) -> Result<ExitCode> {
    let settings = args.settings()?;
    let headwater = global.open(global.options()).await?;
    let done = match args {
        MaintainArgs { status: true, .. } => status(global, &headwater).await,
        MaintainArgs { watch: true, .. } => watch(&headwater, settings).await,
        _ => once(global, &headwater, args, settings).await,
    };
    headwater.close().await?;
    done
}

async fn once(
    global: &Global,
    headwater: &Headwater,
    args: &MaintainArgs,
    settings: MaintenanceSettings,
) -> Result<ExitCode> {
    let jobs = if args.only.is_empty() { &Job::ALL[..] } else { &args.only };
    let runs = headwater.maintenance().settings(settings).run_once(jobs).await?;
    let mut rows = Rows::new(match global.output {
        Output::Table => &["job", "rows", "backlog", "took", "error"],
        Output::Json => &["job", "rows", "backlog", "duration_ms", "error"],
    });
    for run in &runs {
        let (took, error) = match global.output {
            Output::Table => {
                (json!(human::duration(run.duration)), json!(run.error.as_deref().map(in_short)))
            }
            Output::Json => (human::ms_f64(run.duration), json!(run.error)),
        };
        rows.push(vec![json!(run.job.as_str()), json!(run.rows), json!(run.backlog), took, error]);
    }
    rows.print(global.output)?;
    // A failed job has to show in the exit code, for runs from a timer.
    let failed = runs.iter().any(|run| run.error.is_some());
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

async fn watch(headwater: &Headwater, settings: MaintenanceSettings) -> Result<ExitCode> {
    let mut stop = Stop::on_signals("stopping after the current jobs; again to stop at once")?;
    let maintaining = headwater.maintenance().settings(settings).start();
    note("maintenance started: runs jobs while this process is elected, until SIGTERM or SIGINT");
    stop.asked().await;
    maintaining.stop().await;
    Ok(ExitCode::SUCCESS)
}

async fn status(global: &Global, headwater: &Headwater) -> Result<ExitCode> {
    let mut rows = Rows::new(match global.output {
        Output::Table => &["job", "runs", "failures", "rows", "backlog", "last_run_at", "took", "last_error"],
        Output::Json => {
            &["job", "runs", "failures", "rows", "backlog", "last_run_at", "last_duration_ms", "last_error"]
        }
    });
    for job in headwater.maintenance().status().await? {
        let (took, error) = match global.output {
            Output::Table => {
                (json!(human::duration(job.last_duration)), json!(job.last_error.as_deref().map(in_short)))
            }
            Output::Json => (human::ms_f64(job.last_duration), json!(job.last_error)),
        };
        rows.push(vec![
            json!(job.job.as_str()),
            json!(job.runs),
            json!(job.failures),
            json!(job.rows),
            json!(job.backlog),
            json!(job.last_run_at),
            took,
            error,
        ]);
    }
    rows.print(global.output)?;
    Ok(ExitCode::SUCCESS)
}
