//! The state of a world between two ticks, as a message: everything that its future depends on, and nothing else.

use super::config::Config;
use super::grid::Grid;
use super::organism::Organism;
use super::{Figures, Tidepool};
use crate::cells;
use crate::contracts::{FORMAT_VERSION, TidepoolCheckpoint, TidepoolOrganism};
use crate::error::{Error, ErrorCode, Result};

impl Tidepool {
    /// The state before the current tick is captured.
    pub fn checkpoint(&self, run_id: &str) -> TidepoolCheckpoint {
        TidepoolCheckpoint {
            format_version: FORMAT_VERSION,
            run_id: run_id.to_owned(),
            resolved_config: self.resolved_config.clone(),
            tick: self.tick,
            next_organism_id: self.next_id,
            cells: cells::encode(&self.grid.occupied(), self.config.compression),
            organisms: self.organisms.iter().map(Organism::stored).collect(),
            departed: self.departed.iter().map(Organism::stored).collect(),
            counters: self.counters(),
        }
    }

    /// The world of a checkpoint, which continues as if there had been no interruption. Threads and compression may differ from what it
    /// was made with; anything else is refused, because the ticks would not be of the same world.
    pub fn restore(config: Config, checkpoint: &TidepoolCheckpoint) -> Result<Self> {
        if checkpoint.format_version != FORMAT_VERSION {
            let found = checkpoint.format_version;
            return Err(damaged(checkpoint, &format!("has format {found}, known is {FORMAT_VERSION}")));
        }
        let made_with = toml::from_str::<Config>(&checkpoint.resolved_config)
            .map_err(|error| damaged(checkpoint, &format!("has a bad configuration: {error}")))?;
        if !config.continues(&made_with) {
            let run_id = &checkpoint.run_id;
            let message =
                format!("checkpoint of run {run_id} was made with another configuration of Tidepool");
            return Err(Error::invalid(message));
        }
        let mut tidepool = Tidepool::empty(config)?;
        let cells = cells::decode(&checkpoint.cells).map_err(|error| damaged(checkpoint, &error))?;
        tidepool.grid.occupy(&cells).map_err(|error| damaged(checkpoint, &error))?;
        let organisms = |stored: &[TidepoolOrganism], grid: &Grid| {
            let organisms = stored.iter().map(|stored| Organism::from_stored(stored, grid)).collect();
            Option::<Vec<Organism>>::ok_or_else(organisms, || damaged(checkpoint, &"has a bad organism"))
        };
        tidepool.organisms = organisms(&checkpoint.organisms, &tidepool.grid)?;
        tidepool.departed = organisms(&checkpoint.departed, &tidepool.grid)?;
        tidepool.living.extend(tidepool.organisms.iter().map(|organism| organism.id));
        if !tidepool.living.is_sorted_by(|a, b| a < b)
            || tidepool.living.last() >= Some(&checkpoint.next_organism_id)
        {
            return Err(damaged(checkpoint, &"has organisms out of order"));
        }
        // The text of the first start: metadata published again must be the same.
        tidepool.resolved_config.clone_from(&checkpoint.resolved_config);
        tidepool.tick = checkpoint.tick;
        tidepool.next_id = checkpoint.next_organism_id;
        let count = |name: &str| checkpoint.counters.get(name).copied().unwrap_or_default();
        tidepool.figures = Figures {
            births: count("births"),
            deaths: count("deaths"),
            contended: count("contended"),
            mutations: count("mutations"),
        };
        Ok(tidepool)
    }
}

fn damaged(checkpoint: &TidepoolCheckpoint, what: &dyn std::fmt::Display) -> Error {
    let (run_id, tick) = (&checkpoint.run_id, checkpoint.tick);
    Error::permanent(ErrorCode::DamagedFile, format!("checkpoint of run {run_id} at tick {tick} {what}"))
}
