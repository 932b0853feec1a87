//! Arguments of `cron`.

use clap::Subcommand;

#[derive(Debug, Subcommand)]
pub(crate) enum CronCommand {
    /// List the cron jobs that were ever started on this store, with their last and next tick
    ///
    /// What a job does is what the process that started it last has given. Whether a process runs it now is not known here: a next tick
    /// that has passed shows that none does.
    ///
    /// Example: headwater cron list
    #[command(verbatim_doc_comment)]
    List,
}
