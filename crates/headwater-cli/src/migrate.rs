//! `headwater migrate`.

use std::process::ExitCode;

use anyhow::Result;
use headwater::{StoreUrl, store};

use crate::args::{Global, MigrateArgs};

pub(crate) async fn run(global: &Global, args: &MigrateArgs) -> Result<ExitCode> {
    let options = global.options();
    match StoreUrl::parse(&global.store, global.namespace.as_deref())? {
        StoreUrl::Postgres { url, namespace } if args.status => {
            match store::postgres::version(&url, &namespace, &options).await? {
                Some(version) => println!("namespace {namespace} is at schema version {version}"),
                None => println!("namespace {namespace} does not exist"),
            }
        }
        StoreUrl::Postgres { url, namespace } => {
            let done = store::postgres::migrate(&url, &namespace, &options).await?;
            if done.from == done.to {
                println!("namespace {namespace} is at schema version {}; nothing to do", done.to);
            } else {
                println!("namespace {namespace} migrated from schema version {} to {}", done.from, done.to);
            }
        }
        StoreUrl::Sqlite(_) => {
            // The embedded file migrates itself whenever it is opened.
            let headwater = global.open(options.adopt(args.adopt)).await?;
            headwater.close().await?;
            println!("the embedded store is up to date");
        }
    }
    Ok(ExitCode::SUCCESS)
}
