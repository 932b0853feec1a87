//! `headwater serve`: the HTTP API, the dashboard and maintenance in one process.

mod demo;

use std::net::SocketAddr;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result};
use axum::Router;
use headwater::maintenance::{Maintaining, MaintenanceSettings};
use headwater::{Headwater, OpenOptions};
use headwater_pipeline::Config;
use headwater_pipeline::pipeline::Operator;
use headwater_server::{Label, ServeError, ServeOptions, Server, TlsFiles};
use serde_json::json;

use self::demo::Demo;
use crate::args::{Global, ServeArgs};
use crate::output::{Fields, Usage, note};
use crate::pipeline::explained;
use crate::stop::Stop;

/// What is printed on the first signal.
const STOPPING: &str = "stopping after the requests under way; again to stop at once";

pub(crate) async fn run(global: &Global, args: &ServeArgs) -> Result<ExitCode> {
    let stop = Stop::on_signals(STOPPING)?;
    // Before the store is opened: it counts with the recorder that it finds.
    headwater_server::record_metrics();
    match args.demo {
        true => serve_demo(global, args, stop).await?,
        false => serve_store(global, args, stop).await?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Serves the store that is given, and creates it if it is missing.
async fn serve_store(global: &Global, args: &ServeArgs, stop: Stop) -> Result<()> {
    let label = args.label.clone().unwrap_or_else(|| global.label());
    let label = Label { name: label, production: args.production || global.is_production() };
    let shown = Shown::open(args.pipeline.as_deref()).await?;
    let options = options(args, label, shown.router());
    let headwater = global.create(global.options()).await?;
    let maintenance = (!args.no_maintenance).then(|| MaintenanceSettings::from(args.preset));
    let served = serve(global, &headwater, options, maintenance, stop).await;
    shown.close().await?;
    headwater.close().await?;
    served
}

/// Serves a store of its own with live traffic, and removes it at the end.
async fn serve_demo(global: &Global, args: &ServeArgs, stop: Stop) -> Result<()> {
    // Removed when dropped, so also when something fails or panics.
    let folder = tempfile::Builder::new().prefix("headwater-serve-demo-").tempdir()?;
    let url = format!("sqlite:{}", folder.path().join("shop.db").display());
    // Maintenance is started with the server, with settings that keep the store small.
    let headwater = Headwater::open_with(&url, OpenOptions::default().maintenance(false)).await?;
    let demo = Demo::start(&headwater, folder.path()).await?;
    let name = args.label.clone().unwrap_or_else(|| "demo shop".into());
    let label = Label { name, production: args.production };
    let options = options(args, label, Some(demo.router()));
    let served = serve(global, &headwater, options, Some(demo::maintenance()?), stop).await;
    let ended = demo.stop().await;
    headwater.close().await?;
    folder.close().context("removing the demo's temporary directory")?;
    served?;
    ended
}

/// Serves until stopped, with maintenance beside it.
async fn serve(
    global: &Global,
    headwater: &Headwater,
    options: ServeOptions,
    maintenance: Option<MaintenanceSettings>,
    mut stop: Stop,
) -> Result<()> {
    let (has_tls, store) = (options.tls.is_some(), options.label.name.clone());
    let server = Server::bind(headwater.clone(), options).await.map_err(refused)?;
    let maintaining = maintenance.map(|settings| headwater.maintenance().settings(settings).start());
    print_address(global, server.local_addr(), has_tls, &store)?;
    let served = server.run(async move { stop.asked().await }).await;
    if let Some(maintaining) = maintaining {
        Maintaining::stop(maintaining).await;
    }
    Ok(served?)
}

fn options(args: &ServeArgs, label: Label, pipeline: Option<Router>) -> ServeOptions {
    let mut options = ServeOptions::default();
    options.address = args.listen;
    options.tls = args.tls_cert.as_ref().zip(args.tls_key.as_ref()).map(|(certificate, key)| TlsFiles {
        certificate: certificate.clone(),
        key: key.clone(),
        client_authorities: args.client_ca.clone(),
    });
    options.insecure = args.insecure;
    options.host_names.clone_from(&args.host_name);
    options.limits = args.limits.limits();
    options.label = label;
    options.pipeline = pipeline;
    options
}

/// Options that are refused are wrong usage; an address that is taken and a store that fails are not.
fn refused(error: ServeError) -> anyhow::Error {
    match error {
        ServeError::Store(error) => error.into(),
        ServeError::Bind { .. } => error.into(),
        other => Usage(other.to_string()).into(),
    }
}

/// The address on stdout, for people and programs: with port 0 it is known only now.
fn print_address(global: &Global, address: SocketAddr, has_tls: bool, store: &str) -> Result<()> {
    let url = format!("{}://{address}/", if has_tls { "https" } else { "http" });
    let mut fields = Fields::default();
    fields.said("url", json!(url), format!("{url}  (dashboard; the API is below {url}v1)"));
    fields.push("store", json!(store));
    fields.print(global.output)?;
    note("serving until SIGTERM or SIGINT");
    Ok(())
}

/// The pipeline whose runs are shown, as long as it is open.
struct Shown(Option<(Operator, Router)>);

impl Shown {
    async fn open(path: Option<&Path>) -> Result<Self> {
        let Some(path) = path else { return Ok(Shown(None)) };
        let path = std::path::absolute(path)?;
        let config =
            if path.is_dir() { Config::default_embedded(&path, None) } else { Config::from_file(&path) };
        let operator = Operator::open(config.map_err(explained)?).await.map_err(explained)?;
        let router = operator.router().await.map_err(explained)?;
        Ok(Shown(Some((operator, router))))
    }

    fn router(&self) -> Option<Router> {
        self.0.as_ref().map(|(_, router)| router.clone())
    }

    async fn close(self) -> Result<()> {
        match self.0 {
            Some((operator, _)) => operator.close().await.map_err(explained),
            None => Ok(()),
        }
    }
}
