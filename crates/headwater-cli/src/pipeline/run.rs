//! `headwater pipeline run`: starts the services, shows how far they are, and sums up.

use std::convert::Infallible;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Result;
use headwater_pipeline::config::{ServiceOptions, ServiceType};
use headwater_pipeline::manager::{ServiceState, ServiceStatus};
use headwater_pipeline::pipeline::{Progress, Stopped};
use headwater_pipeline::{Config, Pipeline, RunningPipeline};
use serde_json::{Value, json};

use super::service::address_file;
use super::{absolute, config, explained};
use crate::args::{Global, PipelineRunArgs};
use crate::human;
use crate::output::{Fields, Usage, note};
use crate::progress::{POLL_EVERY, Shown};
use crate::stop::Stop;

pub(crate) async fn run(global: &Global, args: &PipelineRunArgs) -> Result<ExitCode> {
    let config = chosen(args)?;
    let shows = Shows::new(&config);
    let stop = Stop::on_signals("stopping after what is in hand; again to stop at once")?;
    let begun = Instant::now();
    let pipeline = Pipeline::from_config(config).start().await.map_err(explained)?;
    let _address = AddressFile::write(args, &pipeline)?;
    note(format_args!("control API: {}", pipeline.control_address()));
    if let Some(address) = pipeline.query_address() {
        note(format_args!("page: http://{address}/"));
    }
    let ended = watch(&pipeline, &shows, stop.clone()).await;
    // Without the time that the page stays, or with that of the last work in hand.
    let finished = (ended.is_ok() && !stop.is_asked()).then(|| begun.elapsed());
    if finished.is_some() && stays(args, &pipeline) {
        note("all ticks are indexed; the page stays until SIGTERM or SIGINT");
        let mut stop = stop.clone();
        stop.asked().await;
    }
    let Stopped { services, progress } = pipeline.stop().await.map_err(explained)?;
    summary(&shows, &progress, finished.unwrap_or_else(|| begun.elapsed())).print(global.output)?;
    let failed: Vec<&ServiceStatus> =
        services.iter().filter(|status| status.state == ServiceState::Error).collect();
    for status in &failed {
        note(format_args!(
            "service {} failed: {}",
            status.service,
            status.error.as_deref().unwrap_or_default()
        ));
    }
    Ok(if failed.is_empty() && ended.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The configuration with what the command line changes.
fn chosen(args: &PipelineRunArgs) -> Result<Config> {
    let mut config = config(&args.of, args.ticks)?;
    if !args.service.is_empty() {
        config = config.only(&args.service).map_err(explained)?;
    }
    if let Some(control) = args.control {
        config.control = control;
    }
    let listen = args.listen.or_else(|| args.page.map(|port| ([127, 0, 0, 1], port).into()));
    let (mut has_query, mut has_source) = (false, false);
    for service in &mut config.services {
        match &mut service.options {
            ServiceOptions::Query(options) => {
                has_query = true;
                options.listen = listen.unwrap_or(options.listen);
            }
            ServiceOptions::Tidepool(options) => {
                has_source = true;
                options.ticks = args.ticks.or(options.ticks);
            }
            _ => {}
        }
    }
    if listen.is_some() && !has_query {
        return Err(Usage("no service of type query runs here: leave out --page and --listen".into()).into());
    }
    if args.ticks.is_some() && !has_source {
        return Err(Usage("no service of type tidepool runs here: leave out --ticks".into()).into());
    }
    Ok(config)
}

/// Whether the page was asked for: then it stays after the last tick.
fn stays(args: &PipelineRunArgs, pipeline: &RunningPipeline) -> bool {
    (args.page.is_some() || args.listen.is_some()) && pipeline.query_address().is_some()
}

/// Shows progress until everything is done, a service fails or a stop is asked for.
async fn watch(pipeline: &RunningPipeline, shows: &Shows, mut stop: Stop) -> headwater_pipeline::Result<()> {
    let mut shown = Shown::new("ticks");
    // Side by side: a reading that takes long delays neither the end nor a stop.
    let ended = tokio::select! {
        ended = pipeline.finished() => ended,
        () = stop.asked() => Ok(()),
        never = show(pipeline, shows, &mut shown) => match never {},
    };
    let progress = pipeline.progress().await;
    shown.end(shows.done(&progress), shows.total(&progress), "");
    if let Err(error) = &ended {
        note(format_args!("{error}"));
    }
    ended
}

async fn show(pipeline: &RunningPipeline, shows: &Shows, shown: &mut Shown) -> Infallible {
    let (mut former, mut read_at) = (pipeline.progress().await, Instant::now());
    loop {
        tokio::time::sleep(POLL_EVERY).await;
        let progress = pipeline.progress().await;
        let elapsed = read_at.elapsed();
        shown.at(shows.done(&progress), shows.total(&progress), &shows.rates(&former, &progress, elapsed));
        if elapsed >= Duration::from_secs(1) {
            (former, read_at) = (progress, Instant::now());
        }
    }
}

/// Which stages this process has.
struct Shows {
    has_source: bool,
    has_persistence: bool,
    has_environment: bool,
    has_organisms: bool,
}

impl Shows {
    fn new(config: &Config) -> Self {
        let has = |wanted: ServiceType| {
            config.services.iter().any(|service| service.options.service_type() == wanted)
        };
        Shows {
            has_source: has(ServiceType::Tidepool),
            has_persistence: has(ServiceType::Persistence),
            has_environment: has(ServiceType::EnvironmentIndexer),
            has_organisms: has(ServiceType::OrganismIndexer),
        }
    }

    /// The ticks of the last stage that this process has: of the run where that is known, also those of earlier and other processes.
    fn done(&self, progress: &Progress) -> u64 {
        if self.has_environment {
            progress.run_ticks_indexed.unwrap_or(progress.ticks_indexed)
        } else if self.has_organisms {
            progress.organism_ticks_indexed
        } else if self.has_persistence {
            progress.ticks_persisted
        } else {
            progress.run_ticks_published
        }
    }

    /// All ticks that are to be made, or those that have been.
    fn total(&self, progress: &Progress) -> u64 {
        progress.ticks_total.unwrap_or(progress.run_ticks_published).max(self.done(progress))
    }

    /// Ticks per second of each stage, and what is left of it.
    fn rates(&self, former: &Progress, progress: &Progress, elapsed: Duration) -> String {
        let rate = |name: &str, before: u64, after: u64| {
            let per_second = after.saturating_sub(before) as f64 / elapsed.as_secs_f64().max(0.001);
            format!("{name} {}", human::rate(per_second))
        };
        let mut parts = Vec::new();
        if self.has_source {
            parts.push(rate("made", former.ticks_published, progress.ticks_published));
        }
        if self.has_persistence {
            parts.push(rate("written", former.ticks_persisted, progress.ticks_persisted));
        }
        if self.has_environment {
            parts.push(rate("indexed", former.ticks_indexed, progress.ticks_indexed));
        }
        parts.push(format!("lag {}", human::count(lag(progress))));
        parts.join(", ")
    }
}

fn lag(progress: &Progress) -> u64 {
    progress.lags.iter().map(|lag| lag.messages).sum()
}

/// What was done, by stage.
fn summary(shows: &Shows, progress: &Progress, took: Duration) -> Fields {
    let seconds = took.as_secs_f64().max(0.001);
    let mut fields = Fields::default();
    let stage = |fields: &mut Fields, name: &'static str, ticks: u64| {
        let per_second = ticks as f64 / seconds;
        let value = json!({ "ticks": ticks, "per_second": (per_second * 10.0).round() / 10.0 });
        fields.said(name, value, format!("{} ticks, {}", human::count(ticks), human::rate(per_second)));
    };
    fields.push("run", json!(progress.run_id));
    if shows.has_source {
        stage(&mut fields, "made", progress.ticks_published);
    }
    if shows.has_persistence {
        stage(&mut fields, "written", progress.ticks_persisted);
        let bytes = progress.file_bytes;
        let value = json!({ "files": progress.files, "bytes": bytes });
        fields.said(
            "files",
            value,
            format!("{}, {} bytes", human::count(progress.files), human::count(bytes)),
        );
        let per_tick = bytes.checked_div(progress.ticks_persisted);
        fields.push("bytes_per_tick", json!(per_tick));
    }
    if shows.has_environment {
        stage(&mut fields, "indexed", progress.ticks_indexed);
        let cells = progress.cells_indexed;
        fields.said(
            "cells",
            json!(cells),
            format!("{}, {}", human::count(cells), human::rate(cells as f64 / seconds)),
        );
    }
    if shows.has_organisms {
        stage(&mut fields, "organisms_indexed", progress.organism_ticks_indexed);
    }
    if let Some(ticks) = progress.run_ticks_indexed {
        // Since the start of the run; the stages above are of this process.
        fields.said("run_ticks_indexed", json!(ticks), human::count(ticks));
    }
    let lags: Vec<Value> = progress
        .lags
        .iter()
        .map(|lag| json!({ "topic": lag.topic, "group": lag.group, "messages": lag.messages }))
        .collect();
    fields.said("lag", json!(lags), human::count(lag(progress)));
    fields.said("took_ms", human::ms(took), human::duration(took));
    fields
}

/// The address of the control API for `pipeline service --dir`, as long as the process runs.
struct AddressFile(Option<PathBuf>);

impl AddressFile {
    fn write(args: &PipelineRunArgs, pipeline: &RunningPipeline) -> Result<Self> {
        if args.of.config.is_some() {
            return Ok(AddressFile(None));
        }
        let file = address_file(&absolute(&args.of.dir)?);
        std::fs::write(&file, pipeline.control_address().to_string())?;
        Ok(AddressFile(Some(file)))
    }
}

impl Drop for AddressFile {
    fn drop(&mut self) {
        if let Some(file) = &self.0 {
            // Another process may have replaced or removed it.
            let _ = std::fs::remove_file(file);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_counts_the_run_and_not_the_process() {
        let shows = |has_environment| Shows {
            has_source: true,
            has_persistence: false,
            has_environment,
            has_organisms: false,
        };
        let progress = Progress {
            ticks_total: Some(100),
            ticks_published: 10,
            run_ticks_published: 70,
            ticks_indexed: 5,
            run_ticks_indexed: Some(60),
            ..Progress::default()
        };
        assert_eq!((shows(true).done(&progress), shows(false).done(&progress)), (60, 70));
        let endless = Progress { ticks_total: None, ..progress };
        assert_eq!(shows(true).total(&endless), 70);
        let unknown = Progress { run_ticks_indexed: None, ..endless };
        assert_eq!(shows(true).done(&unknown), 5);
    }
}
