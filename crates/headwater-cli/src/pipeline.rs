//! `headwater pipeline`.

mod run;
mod service;

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Result, anyhow};
use headwater_pipeline::contracts::RunInfo;
use headwater_pipeline::index::select::Selection;
use headwater_pipeline::pipeline::Operator;
use headwater_pipeline::runs::RunContents;
use headwater_pipeline::world::World;
use headwater_pipeline::{Config, ErrorCode};
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::args::{
    Global, Output, PipelineCellsArgs, PipelineClaimsCommand, PipelineCommand, PipelineDropArgs, PipelineOf,
    PipelineOneRunArgs, PipelineStorageCommand, PipelineSweepArgs,
};
use crate::output::{Rows, Usage, note, print_objects};
use crate::{confirm, human};

pub(crate) async fn run(global: &Global, command: &PipelineCommand) -> Result<ExitCode> {
    // Checked before anything is opened: a command refused for lack of confirmation has no effect at all.
    if let PipelineCommand::Drop(args) = command {
        confirm::require("pipeline drop", args.confirmation)?;
    }
    match command {
        PipelineCommand::Run(args) => run::run(global, args).await,
        PipelineCommand::Service(command) => service::run(global, command).await,
        PipelineCommand::Runs(args) => runs(global, &args.of).await,
        PipelineCommand::Drop(args) => drop_run(global, args).await,
        PipelineCommand::Storage(PipelineStorageCommand::Check(args)) => check(global, args).await,
        PipelineCommand::Cells(args) => cells(global, args).await,
        PipelineCommand::Claims(PipelineClaimsCommand::Sweep(args)) => sweep(global, args).await,
    }
}

/// An error of the pipeline. What is refused is wrong usage.
pub(crate) fn explained(error: headwater_pipeline::Error) -> anyhow::Error {
    match error.code() {
        ErrorCode::InvalidConfiguration => Usage(error.to_string()).into(),
        _ => anyhow!(error),
    }
}

/// The configuration that is meant.
fn config(of: &PipelineOf, ticks: Option<u64>) -> Result<Config> {
    let config = match &of.config {
        Some(file) => Config::from_file(file),
        None => Config::default_embedded(&absolute(&of.dir)?, ticks),
    };
    config.map_err(explained)
}

fn absolute(directory: &Path) -> Result<std::path::PathBuf> {
    Ok(std::path::absolute(directory)?)
}

/// Works on a pipeline that exists, and closes it in any case.
async fn with_operator<T>(
    of: &PipelineOf,
    work: impl AsyncFnOnce(&Operator) -> headwater_pipeline::Result<T>,
) -> Result<T> {
    let operator = Operator::open(config(of, None)?).await.map_err(explained)?;
    let done = work(&operator).await;
    operator.close().await.map_err(explained)?;
    done.map_err(explained)
}

/// The id of the run that is meant.
async fn run_id(operator: &Operator, run: &str) -> headwater_pipeline::Result<String> {
    if run != "newest" {
        return Ok(run.to_owned());
    }
    let newest = operator.runs().await?.into_iter().next();
    newest.map(|run| run.run_id).ok_or_else(|| headwater_pipeline::Error::invalid("there is no run"))
}

fn time(ms: i64) -> Value {
    match Timestamp::from_millisecond(ms) {
        Ok(at) if ms > 0 => json!(at),
        _ => Value::Null,
    }
}

async fn runs(global: &Global, of: &PipelineOf) -> Result<ExitCode> {
    let found = with_operator(of, async |operator| {
        let mut found: Vec<(RunInfo, Option<(i64, i64)>)> = Vec::new();
        for run in operator.runs().await? {
            let ticks = operator.indexed_ticks(&run.run_id).await?;
            found.push((run, ticks));
        }
        Ok(found)
    })
    .await?;
    let columns =
        &["run", "state", "started_at", "ended_at", "first_tick", "last_tick", "namespace", "reason"];
    let mut rows =
        Rows::new(columns).showing(&["run", "state", "started_at", "ended_at", "last_tick", "reason"]);
    for (run, ticks) in found {
        rows.push(vec![
            json!(run.run_id),
            json!(run.state),
            time(run.started_at_ms),
            time(run.ended_at_ms),
            json!(ticks.map(|(first, _)| first)),
            json!(ticks.map(|(_, last)| last)),
            json!(run.namespace),
            json!(run.reason),
        ]);
    }
    rows.print(global.output)?;
    Ok(ExitCode::SUCCESS)
}

async fn drop_run(global: &Global, args: &PipelineDropArgs) -> Result<ExitCode> {
    let (run, of) = (&args.one.run, &args.one.of);
    let operator = Operator::open(config(of, None)?).await.map_err(explained)?;
    let dropping = async {
        let run = run_id(&operator, run).await.map_err(explained)?;
        let contents = operator.contents(&run).await.map_err(explained)?;
        if args.confirmation.dry_run || !args.confirmation.yes {
            print_contents(global, &contents, false)?;
        }
        if args.confirmation.dry_run {
            return Ok(());
        }
        if !args.confirmation.yes {
            confirm::ask(&format!("drop run {run} with all of this?"))?;
        }
        let dropped = operator.drop_run(&run).await.map_err(explained)?;
        if args.confirmation.yes { print_contents(global, &dropped, true) } else { Ok(()) }
    };
    let done = dropping.await;
    operator.close().await.map_err(explained)?;
    done.map(|()| ExitCode::SUCCESS)
}

/// What a run has, each with its size.
fn print_contents(global: &Global, contents: &RunContents, is_dropped: bool) -> Result<()> {
    let run = &contents.run.run_id;
    if contents.processes > 0 {
        note(format_args!("run {run} is used by processes: {}", contents.processes));
    }
    let mut rows = Rows::new(&["run", "what", "name", "count", "bytes", "dropped"])
        .showing(&["what", "name", "count", "bytes"]);
    let mut row = |what: &str, name: &str, count: Value, bytes: Value| {
        rows.push(vec![json!(run), json!(what), json!(name), count, bytes, json!(is_dropped)]);
    };
    for topic in &contents.topics {
        row("topic", &topic.topic, json!(topic.messages + topic.dead_letters), Value::Null);
    }
    row("topics", &contents.run.namespace, json!(contents.topics.len()), json!(contents.topics_bytes));
    row("index", run, Value::Null, json!(contents.index_bytes));
    let files = &contents.files;
    for (name, size) in [
        ("metadata", files.metadata),
        ("batches", files.batches),
        ("claims", files.claims),
        ("others", files.others),
    ] {
        row("files", name, json!(size.files), json!(size.bytes));
    }
    rows.print(global.output)
}

async fn check(global: &Global, args: &PipelineOneRunArgs) -> Result<ExitCode> {
    let (run, findings) = with_operator(&args.of, async |operator| {
        let run = run_id(operator, &args.run).await?;
        let findings = operator.check_storage(&run).await?;
        Ok((run, findings))
    })
    .await?;
    let mut rows = Rows::new(&["file", "severity", "problem"]);
    for finding in &findings {
        let severity = if finding.problem.is_harmful() { "error" } else { "harmless" };
        rows.push(vec![json!(finding.key), json!(severity), json!(finding.to_string())]);
    }
    rows.print(global.output)?;
    if findings.is_empty() {
        note(format_args!("files of run {run} are sound"));
    }
    let is_harmful = findings.iter().any(|finding| finding.problem.is_harmful());
    Ok(if is_harmful { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

async fn cells(global: &Global, args: &PipelineCellsArgs) -> Result<ExitCode> {
    let bounds = args.region.as_deref().map(bounds).transpose()?;
    let (run, found) = with_operator(&args.of, async |operator| {
        let run = run_id(operator, &args.run).await?;
        let found =
            operator.cells(&run, args.tick, |world| selection(args, bounds.as_deref(), world)).await?;
        Ok((run, found))
    })
    .await?;
    let tick = args.tick;
    let Some((world, cells)) = found else { return Err(anyhow!("tick {tick} of run {run} is not indexed")) };
    let at = |flat_index: u64| world.coordinates(flat_index).map(|place| place.to_vec()).map_err(explained);
    if global.output == Output::Json {
        let mut objects = Vec::new();
        for cell in &cells {
            objects.push(json!({
                "flat_index": cell.flat_index,
                "coordinates": at(cell.flat_index)?,
                "molecule_type": cell.molecule_type,
                "molecule_value": cell.molecule_value,
                "owner_id": cell.owner_id,
                "marker": cell.marker,
            }));
        }
        print_objects(objects)?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut rows = Rows::new(&["coordinates", "type", "value", "owner", "marker"]);
    for cell in &cells {
        let place: Vec<String> = at(cell.flat_index)?.iter().map(u64::to_string).collect();
        rows.push(vec![
            json!(place.join(",")),
            json!(cell.molecule_type),
            json!(cell.molecule_value),
            json!(cell.owner_id),
            json!(cell.marker),
        ]);
    }
    rows.print(global.output)?;
    note(format_args!("{} cells of tick {tick}", human::count(cells.len() as u64)));
    Ok(ExitCode::SUCCESS)
}

fn selection(
    args: &PipelineCellsArgs,
    bounds: Option<&[(u64, u64)]>,
    world: &World,
) -> headwater_pipeline::Result<Selection> {
    Ok(Selection {
        area: bounds.map(|bounds| world.region(bounds)).transpose()?,
        molecule_type: args.molecule_type,
        owner_id: args.owner,
        ..Selection::default()
    })
}

/// Bounds per axis, as in `0-9,90-9`; one number is a bound of one cell.
fn bounds(text: &str) -> Result<Vec<(u64, u64)>> {
    let axis = |axis: &str| {
        let (first, last) = axis.split_once('-').unwrap_or((axis, axis));
        Some((first.trim().parse().ok()?, last.trim().parse().ok()?))
    };
    let bounds: Option<Vec<(u64, u64)>> = text.split(',').map(axis).collect();
    bounds.ok_or_else(|| {
        Usage(format!("--region {text}: expected first-last of each axis, as in 0-9,90-9")).into()
    })
}

async fn sweep(global: &Global, args: &PipelineSweepArgs) -> Result<ExitCode> {
    let swept = with_operator(&args.of, async |operator| {
        let run = match &args.run {
            Some(run) => Some(run_id(operator, run).await?),
            None => None,
        };
        operator.sweep_claims(run.as_deref()).await
    })
    .await?;
    let mut rows = Rows::new(&["run", "removed", "held", "young"]);
    for (run, swept) in swept {
        rows.push(vec![json!(run), json!(swept.removed), json!(swept.held), json!(swept.young)]);
    }
    rows.print(global.output)?;
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_are_ranges_or_single_cells() {
        assert_eq!(bounds("0-9, 90-9,7").unwrap(), [(0, 9), (90, 9), (7, 7)]);
        for wrong in ["", "a-b", "1-2-3", "1,,2", "-1"] {
            assert!(bounds(wrong).unwrap_err().to_string().contains("expected first-last"), "{wrong}");
        }
    }
}
