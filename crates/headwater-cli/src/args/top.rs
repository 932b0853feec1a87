//! Arguments of `top`.

use std::time::Duration;

use clap::ValueEnum;

use super::words::every;

#[derive(Debug, clap::Args)]
pub(crate) struct TopArgs {
    /// How often figures are read
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = every)]
    pub(crate) every: Duration,
    /// Show only topics and groups whose name contains this; `/` changes it
    #[arg(long, value_name = "TEXT", default_value = "")]
    pub(crate) filter: String,
    /// What groups are sorted by; `s` changes it
    #[arg(long, value_enum, default_value_t = TopSort::Lag)]
    pub(crate) sort: TopSort,
}

/// What groups are sorted by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum TopSort {
    /// The most messages behind first
    Lag,
    /// The most handled per second first
    Rate,
    /// Those with health issues first
    Health,
    /// By topic and group
    Name,
}
