//! `headwater pipeline service`: over the control API of a running process.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Result;
use headwater_pipeline::control::Client;
use headwater_pipeline::manager::{Action, ServiceStatus};
use serde_json::json;

use super::{config, explained};
use crate::args::{Global, Output, PipelineControl, PipelineServiceArgs, PipelineServiceCommand};
use crate::output::{Rows, Usage, in_short, print_objects};

/// The file in the directory of a pipeline without a configuration that has the address of its control API.
pub(super) fn address_file(directory: &Path) -> PathBuf {
    directory.join("control.address")
}

pub(crate) async fn run(global: &Global, command: &PipelineServiceCommand) -> Result<ExitCode> {
    let (action, args) = match command {
        PipelineServiceCommand::List(args) => {
            let services = client(&args.at)?.services().await.map_err(explained)?;
            return print(global, &services);
        }
        PipelineServiceCommand::Start(args) => (Action::Start, args),
        PipelineServiceCommand::Stop(args) => (Action::Stop, args),
        PipelineServiceCommand::Pause(args) => (Action::Pause, args),
        PipelineServiceCommand::Resume(args) => (Action::Resume, args),
        PipelineServiceCommand::Restart(args) => (Action::Restart, args),
    };
    let PipelineServiceArgs { service, at, .. } = args;
    let services = client(at)?.act(action, service.as_deref()).await.map_err(explained)?;
    print(global, &services)
}

fn client(at: &PipelineControl) -> Result<Client> {
    Ok(Client::new(address(at)?))
}

/// The address given, the configured one, or the one that the running process has written down.
fn address(at: &PipelineControl) -> Result<SocketAddr> {
    if let Some(address) = at.control {
        return Ok(address);
    }
    if at.of.config.is_some() {
        return Ok(config(&at.of, None)?.control);
    }
    let file = address_file(&at.of.dir);
    let missing = |error: &dyn std::fmt::Display| {
        let advice = "is `headwater pipeline run` running there? Else give --dir, --config or --control";
        Usage(format!("no control address in {}: {error}; {advice}", file.display()))
    };
    let text = std::fs::read_to_string(&file).map_err(|error| missing(&error))?;
    Ok(text.trim().parse().map_err(|error| missing(&error))?)
}

fn print(global: &Global, services: &[ServiceStatus]) -> Result<ExitCode> {
    if global.output == Output::Json {
        print_objects(services.iter().map(|service| json!(service)))?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut rows = Rows::new(&["service", "type", "state", "run", "since", "errors", "last_error"]);
    for service in services {
        let last =
            service.health.last_errors.first().map(|error| format!("{}: {}", error.code, error.message));
        let last = service.error.clone().or(last);
        rows.push(vec![
            json!(service.service),
            json!(service.service_type),
            json!(service.state.as_str()),
            json!(service.health.run),
            json!(service.since),
            json!(service.health.error_count),
            json!(last.as_deref().map(in_short)),
        ]);
    }
    rows.print(global.output)?;
    Ok(ExitCode::SUCCESS)
}
