//! What `pipeline run` uses without a configuration: one SQLite file, a local directory, all services in one process.

use std::path::Path;

use super::{Config, ServiceOptions};
use crate::error::{Error, Result};

/// The file, as a person would write it. Batches wait for a second only: the end of a run is soon seen.
const TEXT: &str = include_str!("embedded.toml");

impl Config {
    /// Everything in this directory, and all services in one process; the source makes so many ticks, or works until it is stopped.
    pub fn default_embedded(directory: &Path, ticks: Option<u64>) -> Result<Self> {
        let Some(path) = directory.to_str() else {
            return Err(Error::invalid(format_args!("directory {} is not valid UTF-8", directory.display())));
        };
        let lookup = |name: &str| (name == "DIRECTORY").then(|| path.to_owned());
        let mut config = Config::parse(Path::new("built-in configuration"), TEXT, &lookup)?;
        for service in &mut config.services {
            if let ServiceOptions::Tidepool(source) = &mut service.options {
                source.ticks = ticks;
            }
        }
        Ok(config)
    }

    /// The text of the built-in configuration, with `${DIRECTORY}` for its directory: to begin one's own with.
    pub fn embedded_text() -> &'static str {
        TEXT
    }
}
