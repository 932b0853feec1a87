//! The configuration of a Tidepool, checked before anything is started.

use serde::{Deserialize, Serialize};

use super::instruction::ANCESTOR;
use crate::cells::Compression;
use crate::error::{Error, Result};
use crate::world::{Topology, World};

/// 4096x4096: 400 MB here, and a full tick is still within what readers decode at once.
const CELLS_MAX: u64 = 1 << 24;
/// Far from the limits of 32-bit molecules, so that sums of energy cannot overflow.
const ENERGY_MAX: i64 = 1_000_000;

/// Everything that determines a world's course, with defaults for a lively one of 100x100 cells.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Equal seeds give equal worlds. At most 2^63 - 1, the largest number in TOML.
    pub seed: u64,
    /// Sizes of 1 to 8 dimensions.
    pub dimensions: Vec<u64>,
    /// `TORUS` or `BOUNDED`, in any case.
    #[serde(with = "topology_by_name")]
    pub topology: Topology,
    /// Every n-th tick is captured.
    pub sampling_interval: u64,
    /// Organisms at the start.
    pub organisms: u64,
    /// The most organisms alive at a time; beyond it a fork fails.
    pub organisms_max: u64,
    /// Energy of an organism at the start.
    pub energy: i64,
    /// Energy that an organism needs for a fork.
    pub fork_energy: i64,
    /// Ticks after which an organism dies with any energy.
    pub age_max: u64,
    /// Chance of a change per copied instruction, and of one instruction more or less per copied program.
    pub mutation_rate: f64,
    /// The longest program; a copy does not grow beyond it.
    pub program_length_max: u16,
    /// Share of the cells that hold food at the start.
    pub food_at_start: f64,
    /// Share of the cells that get food per tick, if they are empty.
    pub food_rate: f64,
    /// Energy of a cell of food.
    pub food_energy: i64,
    /// Energy of a molecule that a dead organism left.
    pub remains_energy: i64,
    /// Threads that execute organisms, if there are many. The result does not depend on it.
    pub threads: usize,
    /// How cells of a tick are stored: `enabled`, `codec` and `level`.
    #[serde(with = "compression_settings")]
    pub compression: Compression,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            seed: 1,
            dimensions: vec![100, 100],
            topology: Topology::Torus,
            sampling_interval: 1,
            organisms: 20,
            organisms_max: 1_000,
            energy: 300,
            fork_energy: 200,
            age_max: 5_000,
            mutation_rate: 0.005,
            program_length_max: 64,
            food_at_start: 0.2,
            food_rate: 0.001,
            food_energy: 60,
            remains_energy: 3,
            threads: 1,
            compression: Compression::default(),
        }
    }
}

impl Config {
    /// The world's shape, if every setting is in its range.
    pub fn validate(&self) -> Result<World> {
        let world = World::new(&self.dimensions, self.topology)?;
        let cells = world.cells();
        let ancestor = ANCESTOR.len() as u64;
        check("dimensions", cells, ancestor, CELLS_MAX, " cells in all")?;
        check("seed", self.seed, 0, i64::MAX as u64, "")?;
        check("sampling_interval", self.sampling_interval, 1, i64::MAX as u64, "")?;
        check("organisms", self.organisms, 1, cells / ancestor, "")?;
        check("organisms_max", self.organisms_max, self.organisms, CELLS_MAX, "")?;
        check("energy", self.energy, 1, ENERGY_MAX, "")?;
        check("fork_energy", self.fork_energy, 1, ENERGY_MAX, "")?;
        check("age_max", self.age_max, 1, i64::MAX as u64, "")?;
        check("mutation_rate", self.mutation_rate, 0.0, 1.0, "")?;
        check("program_length_max", u64::from(self.program_length_max), ancestor, 4_096, "")?;
        check("food_at_start", self.food_at_start, 0.0, 1.0, "")?;
        check("food_rate", self.food_rate, 0.0, 1.0, "")?;
        check("food_energy", self.food_energy, 1, ENERGY_MAX, "")?;
        check("remains_energy", self.remains_energy, 0, ENERGY_MAX, "")?;
        check("threads", self.threads, 1, 256, "")?;
        Ok(world)
    }

    /// This configuration with every default filled in, as TOML.
    pub(super) fn resolved(&self) -> Result<String> {
        toml::to_string(self).map_err(|error| Error::invalid(format!("configuration of Tidepool: {error}")))
    }

    /// Whether a world of one continues under the other: only speed and storage may differ.
    pub(super) fn continues(&self, other: &Config) -> bool {
        let (threads, compression) = (self.threads, self.compression);
        *self == Config { threads, compression, ..other.clone() }
    }
}

/// Also refuses a number that is not comparable.
fn check<N: Copy + PartialOrd + std::fmt::Display>(
    name: &str,
    value: N,
    min: N,
    max: N,
    unit: &str,
) -> Result<()> {
    if value >= min && value <= max {
        return Ok(());
    }
    Err(Error::invalid(format!("{name} of Tidepool is {value}{unit}, expected {min} to {max}")))
}

/// The name is the one of metadata.
mod topology_by_name {
    use serde::de::Error as _;
    use serde::{Deserialize as _, Deserializer, Serializer};

    use crate::world::Topology;

    pub(super) fn serialize<S: Serializer>(topology: &Topology, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(topology.as_str())
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Topology, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}

/// The table of all compression settings of the pipeline.
mod compression_settings {
    use serde::de::Error as _;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use crate::cells::Compression;

    #[derive(Serialize, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Settings {
        enabled: Option<bool>,
        codec: Option<String>,
        level: Option<i64>,
    }

    pub(super) fn serialize<S: Serializer>(
        compression: &Compression,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        let level = compression.level();
        let codec = level.map(|_| "zstd".to_owned());
        Settings { enabled: Some(level.is_some()), codec, level: level.map(i64::from) }.serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Compression, D::Error> {
        let Settings { enabled, codec, level } = Settings::deserialize(deserializer)?;
        Compression::from_settings(enabled, codec.as_deref(), level).map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_and_resolved_configuration_round_trip() {
        let config: Config = toml::from_str(
            "seed = 7\ndimensions = [20, 30]\ntopology = \"bounded\"\ncompression = { enabled = false }\n",
        )
        .expect("a configuration");
        assert_eq!((config.seed, config.organisms_max), (7, 1_000));
        let world = config.validate().expect("valid");
        assert_eq!(world.cells(), 600);
        let text = config.resolved().expect("TOML");
        assert_eq!(toml::from_str::<Config>(&text).expect("the same"), config);
        let other = Config { threads: 4, ..config.clone() };
        assert!(other.continues(&config) && config.continues(&other));
        assert!(!Config { seed: 8, ..config.clone() }.continues(&config));
    }

    #[test]
    fn bad_settings_are_refused_by_name() {
        let refused = |text: &str| {
            let config = toml::from_str::<Config>(text).map_err(|error| error.to_string());
            config.and_then(|config| config.validate().map_err(|error| error.to_string()))
        };
        for (text, named) in [
            ("dimensions = []", "dimension"),
            ("dimensions = [0, 5]", "dimension"),
            ("dimensions = [2, 2, 2, 2, 2, 2, 2, 2, 2]", "dimension"),
            ("dimensions = [3, 3]", "9 cells in all"),
            ("dimensions = [100000, 100000]", "cells in all"),
            ("seed = -1", "seed"),
            ("sampling_interval = 0", "sampling_interval"),
            ("organisms = 0", "organisms"),
            ("organisms = 2000", "organisms of Tidepool is 2000, expected 1 to 909"),
            ("organisms_max = 3", "organisms_max"),
            ("energy = 0", "energy"),
            ("mutation_rate = 1.5", "mutation_rate of Tidepool is 1.5, expected 0 to 1"),
            ("food_rate = nan", "food_rate"),
            ("program_length_max = 5", "program_length_max"),
            ("threads = 0", "threads"),
            ("topology = \"sphere\"", "sphere"),
            ("compression = { level = 23 }", "compression.level 23"),
            ("compression = { codec = \"lz4\" }", "lz4"),
            ("compression = { levels = 3 }", "levels"),
            ("sed = 1", "sed"),
        ] {
            let error = refused(text).expect_err(text);
            assert!(error.contains(named), "{text}: {error}");
        }
        assert!(refused("").is_ok());
    }
}
