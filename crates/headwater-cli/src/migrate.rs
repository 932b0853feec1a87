//! `headwater migrate`.

use std::process::ExitCode;

use anyhow::Result;
use headwater::store;
use headwater::store::{Namespace, SqlitePath, StoreUrl};
use serde_json::json;

use crate::args::{Global, MigrateArgs, Output};
use crate::output::Fields;

pub(crate) async fn run(global: &Global, args: &MigrateArgs) -> Result<ExitCode> {
    match StoreUrl::parse(&global.store, global.namespace.as_deref())? {
        StoreUrl::Postgres { url, namespace, .. } => postgres(global, args, &url, &namespace).await?,
        StoreUrl::Sqlite(path) => sqlite(global, args, &path).await?,
    }
    Ok(ExitCode::SUCCESS)
}

async fn postgres(global: &Global, args: &MigrateArgs, url: &str, namespace: &Namespace) -> Result<()> {
    let options = global.options();
    let name = format!("namespace {namespace}");
    if args.status {
        // Also on a standby.
        let found = store::postgres::version(url, namespace, &options.read_only(true)).await?;
        let missing = format!("{name} does not exist; `headwater migrate` or `headwater publish` creates it");
        let version = found.map(|found| i64::from(found.tables));
        let is_current = found.is_none_or(|found| found.is_current);
        return status(global, &name, version, store::postgres::newest().into(), is_current, &missing);
    }
    let done = store::postgres::migrate(url, namespace, &options).await?;
    migrated(global, &name, done.from.into(), done.to.into(), done.code_replaced)
}

/// Opening an embedded file migrates it, so reading only its version must not open it.
async fn sqlite(global: &Global, args: &MigrateArgs, path: &SqlitePath) -> Result<()> {
    let name = match path {
        SqlitePath::File(path) => path.display().to_string(),
        SqlitePath::Memory => "memory".into(),
    };
    let before = store::sqlite::version_of(path)?;
    if args.status {
        let exists = matches!(path, SqlitePath::File(path) if path.exists());
        let missing = if exists {
            format!("{name} holds no store; `headwater migrate --adopt` installs one into it")
        } else {
            format!("no store at {name}; `headwater migrate` or `headwater publish` creates it")
        };
        return status(global, &name, before, store::sqlite::newest(), true, &missing);
    }
    global.create(global.options().adopt(args.adopt)).await?.close().await?;
    migrated(global, &name, before.unwrap_or(0), store::sqlite::newest(), false)
}

fn status(
    global: &Global,
    name: &str,
    version: Option<i64>,
    newest: i64,
    is_current: bool,
    missing: &str,
) -> Result<()> {
    if global.output == Output::Json {
        let mut fields = Fields::default();
        fields.push("store", json!(name));
        fields.push("version", json!(version));
        fields.push("newest", json!(newest));
        fields.push("pending", json!((newest - version.unwrap_or(0)).max(i64::from(!is_current))));
        return fields.print(global.output);
    }
    match version {
        None => println!("{missing}"),
        Some(version) if version < newest => println!(
            "{name} is at schema version {version}, {} behind this program: `headwater migrate` brings it to {newest}",
            newest - version
        ),
        Some(version) if version > newest => println!(
            "{name} is at schema version {version}, this program supports up to {newest}: upgrade the program"
        ),
        Some(version) if !is_current => println!(
            "{name} is at schema version {version} with the functions of another build: `headwater migrate` replaces them"
        ),
        Some(version) => println!("{name} is at schema version {version}; nothing is pending"),
    }
    Ok(())
}

fn migrated(global: &Global, name: &str, from: i64, to: i64, code_replaced: bool) -> Result<()> {
    if global.output == Output::Json {
        let mut fields = Fields::default();
        fields.push("store", json!(name));
        fields.push("from", json!(from));
        fields.push("to", json!(to));
        fields.push("code_replaced", json!(code_replaced));
        return fields.print(global.output);
    }
    if from == to && code_replaced {
        println!("{name} is at schema version {to}; its functions were replaced");
    } else if from == to {
        println!("{name} is at schema version {to}; nothing to do");
    } else {
        println!("{name} migrated from schema version {from} to {to}");
    }
    Ok(())
}
