//! Options of the source.

use std::path::PathBuf;

use crate::error::{Error, Result};
use crate::tidepool::Config;

/// How long a world runs, how fast, and where its checkpoints are.
#[derive(Clone, Debug, PartialEq)]
pub struct SourceOptions {
    /// Ticks of the run, from 0; none: until it is stopped.
    pub ticks: Option<u64>,
    /// At most so many ticks per second; none: as fast as the queue takes them.
    pub ticks_per_second: Option<f64>,
    /// The directory of checkpoints. It is created if it is missing.
    pub checkpoint_directory: PathBuf,
    /// Ticks from one checkpoint to the next: at most so many are simulated and published again after a crash.
    pub checkpoint_every: u64,
    /// Ticks that are published together, at most.
    pub publish_ticks_max: usize,
    /// Bytes that are published together: what reaches it is the last of its group.
    pub publish_bytes_max: usize,
    /// The world.
    pub tidepool: Config,
}

impl Default for SourceOptions {
    fn default() -> Self {
        SourceOptions {
            ticks: None,
            ticks_per_second: None,
            checkpoint_directory: PathBuf::new(),
            checkpoint_every: 1_000,
            publish_ticks_max: 100,
            publish_bytes_max: 4 * 1024 * 1024,
            tidepool: Config::default(),
        }
    }
}

impl SourceOptions {
    /// Refuses what is out of range, by name.
    pub fn validate(&self) -> Result<()> {
        if self.checkpoint_directory.as_os_str().is_empty() {
            return Err(Error::invalid(
                "checkpoint_directory is missing, expected a directory for checkpoints",
            ));
        }
        let at_least_1 = [
            ("ticks", self.ticks.unwrap_or(1)),
            ("checkpoint_every", self.checkpoint_every),
            ("publish_ticks_max", self.publish_ticks_max as u64),
            ("publish_bytes_max", self.publish_bytes_max as u64),
        ];
        if let Some((name, _)) = at_least_1.into_iter().find(|(_, value)| *value == 0) {
            return Err(Error::invalid(format!("{name} is 0, expected at least 1")));
        }
        match self.ticks_per_second {
            // Slower than one tick in a quarter of an hour is a mistake, and a wait that a clock cannot hold.
            Some(rate) if !(0.001..=1e9).contains(&rate) => {
                Err(Error::invalid(format!("ticks_per_second is {rate}, expected 0.001 to 1000000000")))
            }
            _ => self.tidepool.validate().map(|_| ()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bad_options_are_refused_by_name() {
        let good = SourceOptions { checkpoint_directory: "c".into(), ..SourceOptions::default() };
        assert_eq!(good.validate(), Ok(()));
        let tidepool = Config { threads: 0, ..Config::default() };
        for (options, named) in [
            (SourceOptions::default(), "checkpoint_directory"),
            (SourceOptions { ticks: Some(0), ..good.clone() }, "ticks is 0"),
            (SourceOptions { checkpoint_every: 0, ..good.clone() }, "checkpoint_every is 0"),
            (SourceOptions { publish_ticks_max: 0, ..good.clone() }, "publish_ticks_max is 0"),
            (SourceOptions { publish_bytes_max: 0, ..good.clone() }, "publish_bytes_max is 0"),
            (SourceOptions { ticks_per_second: Some(f64::NAN), ..good.clone() }, "ticks_per_second is NaN"),
            (SourceOptions { ticks_per_second: Some(-1.0), ..good.clone() }, "ticks_per_second is -1"),
            (SourceOptions { tidepool, ..good }, "threads"),
        ] {
            let error = options.validate().expect_err(named).to_string();
            assert!(error.contains(named), "{error}");
        }
    }
}
