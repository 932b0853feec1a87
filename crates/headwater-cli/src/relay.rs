//! `headwater relay`.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Result, bail};
use headwater::Headwater;
use headwater_relay::registered::{self, NewRelay, Registered};
use headwater_relay::target::{expand, sink_for};
use headwater_relay::{Relay, RunningRelay, Source};
use serde_json::json;
use tokio::task::JoinSet;

use crate::args::{Global, Output, RelayAddArgs, RelayCommand, RelayOne, RelayRunArgs};
use crate::output::{Rows, explain, note, print_objects};
use crate::stop::Stop;
use crate::suggest;

/// How long a check of a sink may take.
const CHECK_MAX: Duration = Duration::from_secs(30);

pub(crate) async fn run(global: &Global, command: &RelayCommand) -> Result<ExitCode> {
    let headwater = global.open(global.options()).await?;
    let done = match command {
        RelayCommand::Add(args) => add(global, &headwater, args).await,
        RelayCommand::List(_) => list(global, &headwater).await,
        RelayCommand::Remove(args) => remove(global, &headwater, args).await,
        RelayCommand::Run(args) => serve(&headwater, args).await,
        RelayCommand::Check(args) => check(global, &headwater, args).await,
    };
    headwater.close().await?;
    done
}

async fn add(global: &Global, headwater: &Headwater, args: &RelayAddArgs) -> Result<ExitCode> {
    let new = NewRelay {
        name: args.name.clone(),
        source: Source::parse(&args.source)?,
        target: args.to.clone(),
        settings: args.how.settings(),
    };
    let name = registered::add(headwater, new).await?;
    let added = find(headwater, &name).await?;
    let mut rows = Rows::new(&["relay", "source", "group", "target"]);
    rows.push(vec![json!(name), json!(added.source.to_string()), json!(added.group()), json!(added.target)]);
    rows.print(global.output)?;
    if let Err(error) = expand(&added.target, |name| std::env::var(name).ok()) {
        note(format_args!("{error}"));
    }
    Ok(ExitCode::SUCCESS)
}

async fn list(global: &Global, headwater: &Headwater) -> Result<ExitCode> {
    let relays = registered::load(headwater).await?;
    if global.output == Output::Json {
        print_objects(relays.iter().map(|relay| {
            json!({
                "relay": relay.name,
                "source": relay.source.to_string(),
                "group": relay.group(),
                "target": relay.target,
                "settings": relay.settings,
                "created_at": relay.created_at,
            })
        }))?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut rows = Rows::new(&["relay", "source", "group", "key_order", "target"]);
    for relay in &relays {
        rows.push(vec![
            json!(relay.name),
            json!(relay.source.to_string()),
            json!(relay.group()),
            json!(relay.settings.key_order),
            json!(relay.target),
        ]);
    }
    rows.print(global.output)?;
    Ok(ExitCode::SUCCESS)
}

async fn remove(global: &Global, headwater: &Headwater, one: &RelayOne) -> Result<ExitCode> {
    let relay = find(headwater, &one.relay).await?;
    headwater.relays().remove(&relay.name).await?;
    let mut rows = Rows::new(&["removed"]);
    rows.push(vec![json!(relay.name)]);
    rows.print(global.output)?;
    if let (Source::Topic(topic), Some(group)) = (&relay.source, relay.group()) {
        note(format_args!(
            "group {group} of topic {topic} stays, with what waits there; `headwater group cancel {topic} {group}` ends it"
        ));
    }
    Ok(ExitCode::SUCCESS)
}

async fn check(global: &Global, headwater: &Headwater, one: &RelayOne) -> Result<ExitCode> {
    let relay = find(headwater, &one.relay).await?;
    let url = expand(&relay.target, |name| std::env::var(name).ok())?;
    let sink = sink_for(&url)?;
    let checked = tokio::time::timeout(CHECK_MAX, sink.check()).await;
    sink.close().await;
    match checked {
        Ok(Ok(())) => {}
        Ok(Err(error)) => bail!("relay {}: {error}", relay.name),
        Err(_) => bail!("relay {}: no answer within {CHECK_MAX:?}", relay.name),
    }
    let mut rows = Rows::new(&["relay", "sink", "reached"]);
    rows.push(vec![json!(relay.name), json!(sink.kind()), json!(true)]);
    rows.print(global.output)?;
    Ok(ExitCode::SUCCESS)
}

async fn find(headwater: &Headwater, name: &str) -> Result<Registered> {
    let mut relays = registered::load(headwater).await?;
    if let Some(at) = relays.iter().position(|relay| relay.name == name) {
        return Ok(relays.swap_remove(at));
    }
    let meant = suggest::closest(name, relays.iter().map(|relay| relay.name.as_str()));
    let meant = meant.map(|meant| format!("; did you mean {meant}?")).unwrap_or_default();
    bail!("no such relay: {name}; see `headwater relay list`{meant}")
}

/// Runs a relay that delivers exactly once until it is stopped. Exits with 1 if another instance takes over.
#[cfg(feature = "kafka")]
async fn serve_exactly_once(headwater: &Headwater, args: &RelayRunArgs, id: &str) -> Result<ExitCode> {
    use headwater_relay::kafka::{End, ExactlyOnce};
    let (Some(from), Some(to)) = (&args.from, &args.to) else {
        bail!("--exactly-once needs --from and --to")
    };
    let Source::Topic(topic) = Source::parse(from)? else {
        bail!("--exactly-once relays topics, not the outbox: its entries have no position");
    };
    let url = expand(to, |name| std::env::var(name).ok())?;
    let settings = args.how.settings();
    let group = settings.group.as_deref().unwrap_or("relay-kafka-exactly-once");
    let relay = ExactlyOnce::new(headwater, &topic, group, &url)?;
    let relay = relay.id(id).batch(settings.batch).start_from(settings.start);
    let mut stop = Stop::on_signals("stopping after the transaction in hand; again to stop at once")?;
    note(format_args!("relay {from} started, exactly once as {id}, until SIGTERM or SIGINT"));
    match relay.run(async move { stop.asked().await }).await? {
        End::Stopped => Ok(ExitCode::SUCCESS),
        End::Fenced => {
            note(format_args!("another instance with id {id} has taken over"));
            Ok(ExitCode::FAILURE)
        }
    }
}

/// Runs relays until stopped. One that cannot be started, or ends by itself, is reported, and the others run.
async fn serve(headwater: &Headwater, args: &RelayRunArgs) -> Result<ExitCode> {
    #[cfg(feature = "kafka")]
    if let Some(id) = &args.exactly_once {
        return serve_exactly_once(headwater, args, id).await;
    }
    let stop = Stop::on_signals("stopping after what is being sent; again to stop at once")?;
    let mut code = ExitCode::SUCCESS;
    let mut running = Vec::new();
    for (name, relay) in chosen(headwater, args).await? {
        let started = match relay {
            Ok(relay) => relay.run().await,
            Err(error) => Err(error),
        };
        match started {
            Ok(relay) => running.push(relay),
            Err(error) => {
                note(format_args!("relay {name} not started: {}", explain(&error.into())));
                code = ExitCode::FAILURE;
            }
        }
    }
    if running.is_empty() {
        bail!("no relay could be started");
    }
    let names: Vec<&str> = running.iter().map(RunningRelay::name).collect();
    note(format_args!("relays started, until SIGTERM or SIGINT: {}", names.join(", ")));
    let mut tasks = JoinSet::new();
    for relay in running {
        tasks.spawn(until_stopped(relay, stop.clone(), args.grace));
    }
    while let Some(ended) = tasks.join_next().await {
        if !ended?? {
            code = ExitCode::FAILURE;
        }
    }
    Ok(code)
}

/// Waits for a relay; false if it ended by itself.
async fn until_stopped(relay: RunningRelay, mut stop: Stop, grace: Duration) -> Result<bool> {
    let was_stopped = tokio::select! {
        () = stop.asked() => true,
        reason = relay.until_ended() => {
            note(format_args!("relay {} ended: {reason}", relay.name()));
            false
        }
    };
    relay.shutdown(grace).await?;
    Ok(was_stopped)
}

/// The relays to run, by name; those that are wrong with why.
async fn chosen(
    headwater: &Headwater,
    args: &RelayRunArgs,
) -> Result<Vec<(String, headwater::Result<Relay>)>> {
    if let (Some(from), Some(to)) = (&args.from, &args.to) {
        let (source, url) = (Source::parse(from)?, expand(to, |name| std::env::var(name).ok())?);
        let relay = Relay::new(headwater, source, sink_for(&url)?.into()).settings(args.how.settings());
        return Ok(vec![(from.clone(), Ok(relay))]);
    }
    let mut relays = Vec::new();
    if args.relays.is_empty() {
        relays = registered::load(headwater).await?;
    }
    for name in &args.relays {
        relays.push(find(headwater, name).await?);
    }
    if relays.is_empty() {
        bail!("no relay is registered; add one with `headwater relay add`, or give --from and --to");
    }
    Ok(relays.into_iter().map(|relay| (relay.name.clone(), relay.relay(headwater))).collect())
}
