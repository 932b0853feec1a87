//! Options of every command, and how they lead to a store.

use anyhow::{Result, anyhow};
use clap::ValueEnum;
use headwater::store::StoreUrl;
use headwater::{ErrorKind, Headwater, OpenOptions};

use crate::context::{InContext, without_password};
use crate::output::{explain, kind, note};

/// The heading of these options in every help.
pub(super) const HEADING: &str = "Global options";

/// Options of every command.
#[derive(Debug, clap::Args)]
pub(crate) struct Global {
    /// Where the messages are stored: sqlite:PATH or postgres://USER@HOST/DATABASE
    #[arg(
        short,
        long,
        global = true,
        env = "HEADWATER_STORE",
        default_value = "sqlite:headwater.db",
        hide_env_values = true,
        help_heading = HEADING
    )]
    pub(crate) store: String,
    /// The store of a context: see `headwater context`
    #[arg(long, global = true, env = "HEADWATER_CONTEXT", value_name = "NAME", help_heading = HEADING)]
    pub(crate) context: Option<String>,
    /// An isolated set of topics: a schema on PostgreSQL, a file of its own beside PATH on SQLite
    #[arg(short, long, global = true, env = "HEADWATER_NAMESPACE", help_heading = HEADING)]
    pub(crate) namespace: Option<String>,
    /// How results are printed
    #[arg(short, long, global = true, value_enum, default_value_t = Output::Table, help_heading = HEADING)]
    pub(crate) output: Output,
    /// Print results and errors only: no notes, no warnings
    #[arg(short, long, global = true, conflicts_with = "verbose", help_heading = HEADING)]
    pub(crate) quiet: bool,
    /// Log more to stderr: -v is info, -vv debug
    #[arg(short, long, global = true, action = clap::ArgAction::Count, help_heading = HEADING)]
    pub(crate) verbose: u8,
    /// No colour, also on a terminal; the same as NO_COLOR=1
    #[arg(long, global = true, help_heading = HEADING)]
    pub(crate) no_color: bool,
    /// Do not ask for confirmation
    #[arg(long, global = true, help_heading = HEADING)]
    pub(crate) yes: bool,
    /// The context that the store was taken from.
    #[arg(skip)]
    pub(crate) in_context: Option<InContext>,
}

/// For people, or for programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Output {
    /// For people
    Table,
    /// One JSON object per line
    Json,
}

impl Global {
    /// The options that every command opens the store with.
    pub(crate) fn options(&self) -> OpenOptions {
        let options = OpenOptions::default().actor(actor());
        match &self.namespace {
            Some(namespace) => options.namespace(namespace),
            None => options,
        }
    }

    /// What people call the store: its context, or else where it is, without a password.
    pub(crate) fn label(&self) -> String {
        match (&self.in_context, &self.namespace) {
            (Some(context), _) => context.name.clone(),
            (None, Some(namespace)) => format!("{}, namespace {namespace}", without_password(&self.store)),
            (None, None) => without_password(&self.store),
        }
    }

    /// Whether the context says so.
    pub(crate) fn is_production(&self) -> bool {
        self.in_context.as_ref().is_some_and(|context| context.is_production)
    }

    pub(crate) fn store_url(&self) -> Result<StoreUrl> {
        Ok(StoreUrl::parse(&self.store, self.namespace.as_deref())?)
    }

    /// Opens an existing store. A missing one is refused: a command that only reads, or a mistyped name, must not create it. A
    /// store that cannot be written is opened read-only: commands that only read work, and a write is refused with the reason.
    pub(crate) async fn open(&self, options: OpenOptions) -> Result<Headwater> {
        let options = options.create(false);
        let is_file = matches!(self.store_url()?, StoreUrl::Sqlite(_));
        let unwritable = |error: &anyhow::Error| match kind(error) {
            Some(ErrorKind::ReadOnly) => true,
            // The rights of a role are the same read-only; those of a file are not.
            Some(ErrorKind::PermissionDenied) => is_file,
            _ => false,
        };
        match self.create(options.clone()).await {
            Err(error) if unwritable(&error) => match self.create(options.read_only(true)).await {
                Ok(headwater) => {
                    note(format_args!("opened read-only: {}", explain(&error)));
                    Ok(headwater)
                }
                Err(unread) => {
                    let unread = explain(&unread);
                    Err(anyhow!("{}; it cannot be opened read-only either: {unread}", explain(&error)))
                }
            },
            opened => opened,
        }
    }

    /// Opens the store, and creates it if it is missing.
    pub(crate) async fn create(&self, options: OpenOptions) -> Result<Headwater> {
        Ok(Headwater::open_with(&self.store, options).await?)
    }
}

/// The user and host for audit entries, as far as the environment shows them.
fn actor() -> String {
    let user = ["USER", "LOGNAME"].iter().find_map(|name| std::env::var(name).ok());
    let user = user.unwrap_or_else(|| format!("uid {}", rustix::process::getuid().as_raw()));
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    format!("cli {user}@{host}")
}
