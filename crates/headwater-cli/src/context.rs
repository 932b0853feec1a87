//! `headwater context`: stores under names, and the question before a change in production.
//!
//! Which store a command uses, the first that is given: `--store`, `--context`, HEADWATER_STORE, HEADWATER_CONTEXT, the context in
//! use, `sqlite:headwater.db`.

mod file;

use std::process::ExitCode;

use anyhow::{Result, bail};
use clap::ArgMatches;
use clap::parser::ValueSource;
use headwater::store::StoreUrl;
use serde_json::json;

use crate::args::{self, Args, Command, ContextAddArgs, ContextCommand, Global};
use crate::output::{Rows, Usage, note};
use crate::{confirm, suggest};
use file::{Context, Contexts};

pub(crate) use file::without_password;

/// The context of this command.
#[derive(Clone, Debug)]
pub(crate) struct InContext {
    pub(crate) name: String,
    pub(crate) is_production: bool,
}

pub(crate) fn run(global: &Global, command: &ContextCommand) -> Result<ExitCode> {
    match command {
        ContextCommand::Add(args) => add(global, args)?,
        ContextCommand::List => list(global)?,
        ContextCommand::Use(args) => choose(&args.name)?,
        ContextCommand::Remove(args) => remove(&args.name)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn add(global: &Global, args: &ContextAddArgs) -> Result<()> {
    StoreUrl::parse(&args.url, global.namespace.as_deref())?;
    let mut contexts = Contexts::read()?;
    if contexts.contexts.contains_key(&args.name) {
        bail!("context {0} exists; `headwater context remove {0}` forgets it", args.name);
    }
    let context =
        Context { store: args.url.clone(), namespace: global.namespace.clone(), production: args.production };
    contexts.contexts.insert(args.name.clone(), context);
    contexts.write()?;
    note(format_args!("context {0} added; `headwater context use {0}` makes it the default", args.name));
    Ok(())
}

fn list(global: &Global) -> Result<()> {
    let contexts = Contexts::read()?;
    let mut rows = Rows::new(&["context", "in_use", "store", "namespace", "production"]);
    for (name, context) in &contexts.contexts {
        rows.push(vec![
            json!(name),
            json!(contexts.in_use.as_deref() == Some(name)),
            json!(file::without_password(&context.store)),
            json!(context.namespace),
            json!(context.production),
        ]);
    }
    rows.print(global.output)
}

fn choose(name: &str) -> Result<()> {
    let mut contexts = Contexts::read()?;
    find(&contexts, name)?;
    contexts.in_use = Some(name.to_owned());
    contexts.write()?;
    note(format_args!("context {name} is in use"));
    Ok(())
}

fn remove(name: &str) -> Result<()> {
    let mut contexts = Contexts::read()?;
    find(&contexts, name)?;
    contexts.contexts.remove(name);
    contexts.in_use = contexts.in_use.filter(|in_use| in_use != name);
    contexts.write()
}

fn find<'a>(contexts: &'a Contexts, name: &str) -> Result<&'a Context, Usage> {
    contexts.contexts.get(name).ok_or_else(|| {
        let meant = suggest::closest(name, contexts.contexts.keys().map(String::as_str));
        let meant = meant.map(|meant| format!("; did you mean {meant}?")).unwrap_or_default();
        Usage(format!("no such context: {name}; see `headwater context list`{meant}"))
    })
}

/// Puts the store of the chosen context into the options, unless they name one themselves.
pub(crate) fn apply(args: &mut Args, given: &ArgMatches) -> Result<()> {
    let source = |option: &str| given.value_source(option);
    let is_typed = |option: &str| source(option) == Some(ValueSource::CommandLine);
    match &args.command {
        Command::Demo(_) if is_typed("store") || is_typed("context") || is_typed("namespace") => {
            let refused = "the demo uses a store of its own in a temporary directory: leave out --store, --namespace and --context";
            return Err(Usage(refused.into()).into());
        }
        Command::Serve(serve)
            if serve.demo && (is_typed("store") || is_typed("context") || is_typed("namespace")) =>
        {
            let refused = "--demo serves a store of its own in a temporary directory: leave out --store, --namespace and --context";
            return Err(Usage(refused.into()).into());
        }
        Command::Serve(serve) if serve.demo => return Ok(()),
        Command::Pipeline(_) if is_typed("store") || is_typed("context") || is_typed("namespace") => {
            let refused = "the store of a pipeline is in its configuration: leave out --store, --namespace and --context, use --config or --dir";
            return Err(Usage(refused.into()).into());
        }
        Command::Demo(_)
        | Command::Pipeline(_)
        | Command::DemoWorker(_)
        | Command::Context(_)
        | Command::Completions(_)
        | Command::Man(_) => return Ok(()),
        _ => {}
    }
    if is_typed("store") && is_typed("context") {
        return Err(Usage("--store and --context each name a store: give one of them".into()).into());
    }
    let names_store = match source("store") {
        Some(ValueSource::CommandLine) => true,
        Some(ValueSource::EnvVariable) => !is_typed("context"),
        _ => false,
    };
    if names_store {
        return Ok(());
    }
    let contexts = Contexts::read()?;
    let Some(name) = args.global.context.clone().or_else(|| contexts.in_use.clone()) else { return Ok(()) };
    let context = find(&contexts, &name)?;
    args.global.store.clone_from(&context.store);
    if !is_typed("namespace") && context.namespace.is_some() {
        args.global.namespace.clone_from(&context.namespace);
    }
    args.global.in_context = Some(InContext { name, is_production: context.production });
    Ok(())
}

/// Commands that change nothing. Every other command asks in production: one that is missing here asks too often, not too seldom.
const READING: [&str; 14] = [
    "top",
    "list",
    "show",
    "log",
    "stuck",
    "acks",
    "records",
    "audit",
    "doctor",
    "peek",
    "watch",
    "check",
    "completions",
    "man",
];
/// Options with which a command changes nothing.
const READING_WITH: [&str; 2] = ["dry_run", "status"];

/// In a context that is marked as production: asks before a command that may change something.
pub(crate) fn confirm(args: &Args, given: &ArgMatches) -> Result<()> {
    let Some(InContext { name, is_production: true }) = &args.global.in_context else { return Ok(()) };
    let (path, leaf) = (args::path(given), args::leaf(given));
    let is_on = |option: &str| leaf.try_get_one::<bool>(option).is_ok_and(|on| on == Some(&true));
    let reads = READING.contains(&path.last().copied().unwrap_or_default()) && !is_on("run");
    if reads || READING_WITH.iter().any(|option| is_on(option)) || is_on("yes") {
        return Ok(());
    }
    let command = path.join(" ");
    if !confirm::is_interactive() {
        return Err(Usage(format!(
            "context {name} is in production: `headwater {command}` needs --yes where there is no terminal to confirm on; nothing \
             was changed"
        ))
        .into());
    }
    confirm::ask(&format!("context {name} is in production: run `headwater {command}`?"))
}
