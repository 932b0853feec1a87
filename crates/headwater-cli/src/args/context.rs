//! Arguments of `context`, `completions` and `man`.

use std::path::PathBuf;

use clap::Subcommand;

#[derive(Debug, Subcommand)]
pub(crate) enum ContextCommand {
    /// Store a URL under a name, with a namespace if --namespace is given
    ///
    /// The file is readable by its owner only: a URL may contain a password. `context list` shows none.
    ///
    /// Examples:
    ///   headwater context add dev sqlite:dev.db
    ///   headwater context add prod postgres://ann@db/shop --namespace orders --production
    #[command(verbatim_doc_comment)]
    Add(ContextAddArgs),
    /// List contexts
    ///
    /// Example: headwater context list
    List,
    /// Use a context wherever neither --store, --context nor the environment names a store
    ///
    /// Example: headwater context use staging
    Use(ContextNameArgs),
    /// Forget a context; its store stays
    ///
    /// Example: headwater context remove staging
    Remove(ContextNameArgs),
}

#[derive(Debug, clap::Args)]
pub(crate) struct ContextAddArgs {
    /// Its name
    pub(crate) name: String,
    /// The store: sqlite:PATH or postgres://USER@HOST/DATABASE
    pub(crate) url: String,
    /// Ask before every command that may change something; without a terminal --yes is needed
    #[arg(long)]
    pub(crate) production: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct ContextNameArgs {
    /// Its name, as listed
    pub(crate) name: String,
}

#[derive(Debug, clap::Args)]
pub(crate) struct CompletionsArgs {
    /// The shell
    pub(crate) shell: clap_complete::Shell,
}

#[derive(Debug, clap::Args)]
pub(crate) struct ManArgs {
    /// The folder for the pages; created if it is missing
    #[arg(long)]
    pub(crate) dir: PathBuf,
}
