//! Tidepool: a small artificial-life simulator, the source of ticks.
//!
//! Cells of an n-dimensional world hold molecules: food, data, and code. An organism executes one instruction per tick, read from the
//! cells of its program; it pays energy for it, eats, writes, forks with mutation, and dies without energy or of age.
//!
//! A tick has two phases. In the first each organism executes its instruction against the state at the start of the tick and changes only
//! itself: threads may share this work. In the second what they want of cells is decided one by one, by energy and then by age. Random
//! numbers depend on seed, tick and organism. So the course of a world depends on its configuration alone, whatever the number of
//! threads, and a world restored from a checkpoint continues bit by bit.

mod checkpoint;
mod config;
mod grid;
mod instruction;
mod organism;
mod random;
mod synthetic;

use std::collections::BTreeMap;
use std::{mem, thread};

use grid::{CODE, DATA, ENERGY, Grid, Molecule, TYPE_NAMES};
use instruction::{ANCESTOR, REGISTERS};
use organism::{Action, Intent, Organism, View};
use random::Random;

use crate::cells;
use crate::contracts::{FORMAT_VERSION, SimulationMetadata, TickData};
use crate::error::{Error, Result};
use crate::world::World;

pub use config::Config;
pub use synthetic::Synthetic;

/// Below it a thread costs more than it saves.
const ORGANISMS_PER_THREAD_MIN: usize = 512;
/// Streams of random numbers that are no organism's: ids begin at 1 and are handed out one by one.
const FOOD_STREAM: u64 = 0;
const START_STREAM: u64 = u64::MAX;

/// A world in which organisms live.
#[derive(Debug)]
pub struct Tidepool {
    config: Config,
    resolved_config: String,
    world: World,
    grid: Grid,
    tick: u64,
    next_id: u64,
    /// By rising id.
    organisms: Vec<Organism>,
    /// Their ids, apart: read by all threads while the organisms change.
    living: Vec<u64>,
    /// Those that died since the last captured tick.
    departed: Vec<Organism>,
    figures: Figures,
    /// Per cell the last tick in which an organism got it, plus 1. Not part of the state: only the current tick's count.
    claims: Vec<u64>,
    /// Kept for their memory.
    intents: Vec<Intent>,
    newborn: Vec<Organism>,
}

/// What happened since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// Organisms that came from a fork.
    pub births: u64,
    /// Organisms that died.
    pub deaths: u64,
    /// Claims of a cell that another organism got in the same tick.
    pub contended: u64,
    /// Instructions that were copied wrongly, or inserted or left out.
    pub mutations: u64,
}

impl Tidepool {
    /// A world at tick 0.
    pub fn new(config: Config) -> Result<Self> {
        let mut tidepool = Tidepool::empty(config)?;
        tidepool.populate()?;
        Ok(tidepool)
    }

    fn empty(config: Config) -> Result<Self> {
        let world = config.validate()?;
        let grid = Grid::new(&world);
        let claims = vec![0; grid.len()];
        Ok(Tidepool {
            resolved_config: config.resolved()?,
            config,
            world,
            grid,
            tick: 0,
            next_id: 1,
            organisms: Vec::new(),
            living: Vec::new(),
            departed: Vec::new(),
            figures: Figures::default(),
            claims,
            intents: Vec::new(),
            newborn: Vec::new(),
        })
    }

    /// Food and the first organisms, at random places.
    fn populate(&mut self) -> Result<()> {
        let mut random = Random::new(self.config.seed, 0, START_STREAM);
        for _ in 0..self.config.organisms {
            let free = |at: usize| {
                let mut cells = (0..ANCESTOR.len()).map(|n| self.grid.nth(at, n));
                cells.all(|cell| cell.is_some_and(|cell| self.grid.get(cell) == Molecule::default()))
            };
            // Random places first; in a full world the first that is free.
            let mut random_places = (0..100).map(|_| random.below(self.grid.len() as u64) as usize);
            let origin =
                random_places.find(|at| free(*at)).or_else(|| (0..self.grid.len()).find(|at| free(*at)));
            let Some(origin) = origin else {
                let (organisms, cells) = (self.config.organisms, self.grid.len());
                return Err(Error::invalid(format!(
                    "organisms of Tidepool: {organisms} have no room in {cells} cells"
                )));
            };
            let direction = random.below(u64::from(self.grid.directions())) as u8;
            let organism = Organism {
                id: self.next_id,
                parent_id: 0,
                birth_tick: 0,
                generation: 0,
                energy: self.config.energy,
                head: origin,
                origin,
                direction,
                length: ANCESTOR.len() as u16,
                counter: 0,
                registers: [0; REGISTERS],
            };
            self.settle(organism, &ANCESTOR);
        }
        self.organisms.append(&mut self.newborn);
        self.living.extend(self.organisms.iter().map(|organism| organism.id));
        self.grow(self.config.food_at_start, &mut random);
        Ok(())
    }

    /// Writes a program into its cells, which were checked, and adds the organism to the newborn.
    fn settle(&mut self, organism: Organism, program: &[i32]) {
        for (n, value) in program.iter().enumerate() {
            let cell = self.grid.nth(organism.origin, n).expect("checked to be inside");
            let marker = organism.generation as u8;
            self.grid.set(cell, Molecule { kind: CODE, marker, value: *value, owner: organism.id });
        }
        self.next_id += 1;
        self.newborn.push(organism);
    }

    /// Food for a share of the cells, where they are empty.
    fn grow(&mut self, share: f64, random: &mut Random) {
        let cells = self.grid.len() as u64;
        for _ in 0..random.round(share * cells as f64) {
            let at = random.below(cells) as usize;
            if self.grid.get(at) == Molecule::default() {
                let value = self.config.food_energy as i32;
                self.grid.set(at, Molecule { kind: ENERGY, marker: 0, value, owner: 0 });
            }
        }
    }

    /// The tick that the world is at.
    pub fn tick(&self) -> u64 {
        self.tick
    }

    /// Whether this tick is one to capture.
    pub fn is_sampled(&self) -> bool {
        self.tick.is_multiple_of(self.config.sampling_interval)
    }

    /// The world's shape.
    pub fn world(&self) -> &World {
        &self.world
    }

    /// Organisms alive.
    pub fn population(&self) -> usize {
        self.organisms.len()
    }

    /// What happened since the start.
    pub fn figures(&self) -> Figures {
        self.figures
    }

    /// Goes to the next tick.
    pub fn step(&mut self) {
        if self.is_sampled() {
            self.departed.clear();
        }
        let mut intents = self.plan();
        intents.sort_unstable_by_key(Intent::rank);
        for intent in &intents {
            self.apply(intent);
        }
        self.intents = intents;
        self.bury();
        self.living.extend(self.newborn.iter().map(|organism| organism.id));
        self.organisms.append(&mut self.newborn);
        self.grow(self.config.food_rate, &mut Random::new(self.config.seed, self.tick, FOOD_STREAM));
        self.tick += 1;
    }

    /// Each organism executes one instruction. What they want of cells, in any order.
    fn plan(&mut self) -> Vec<Intent> {
        let mut intents = mem::take(&mut self.intents);
        intents.clear();
        let Tidepool { organisms, grid, living, config, tick, .. } = self;
        let view = View {
            seed: config.seed,
            tick: *tick,
            fork_energy: config.fork_energy,
            grid,
            living: living.as_slice(),
        };
        let threads = (organisms.len() / ORGANISMS_PER_THREAD_MIN).clamp(1, config.threads);
        if threads == 1 {
            let all = organisms.iter_mut().enumerate();
            intents.extend(all.filter_map(|(index, organism)| organism.execute(index, &view)));
            return intents;
        }
        let part = organisms.len().div_ceil(threads);
        thread::scope(|scope| {
            let parts = organisms.chunks_mut(part).enumerate().map(|(n, organisms)| {
                scope.spawn(move || {
                    let all = organisms.iter_mut().enumerate();
                    all.filter_map(|(index, organism)| organism.execute(n * part + index, &view)).collect()
                })
            });
            // All are started before the first is waited for.
            let parts: Vec<thread::ScopedJoinHandle<'_, Vec<Intent>>> = parts.collect();
            for part in parts {
                intents.extend(part.join().expect("executing an instruction does not panic"));
            }
        });
        intents
    }

    /// Grants an intent if its cells are free and no intent of higher rank got one of them.
    fn apply(&mut self, intent: &Intent) {
        match intent.action {
            Action::Eat => {
                let molecule = self.grid.get(intent.cell);
                if self.claim(intent.cell, 0) {
                    self.organisms[intent.index].energy += match molecule.kind {
                        0 => 0,
                        ENERGY => i64::from(molecule.value),
                        _ => self.config.remains_energy,
                    };
                    self.grid.set(intent.cell, Molecule::default());
                }
            }
            Action::Write(value) => {
                // Its own data, too; its own code it cannot damage.
                let is_data = self.grid.get(intent.cell).kind == DATA;
                if self.claim(intent.cell, if is_data { intent.id } else { 0 }) {
                    let marker = self.organisms[intent.index].generation as u8;
                    self.grid.set(intent.cell, Molecule { kind: DATA, marker, value, owner: intent.id });
                }
            }
            Action::Fork => self.fork(intent),
        }
    }

    /// Whether the organism gets the cell. A cell is its owner's as long as the owner lives; `except` is an owner that does not count.
    fn claim(&mut self, cell: usize, except: u64) -> bool {
        if self.claims[cell] == self.tick + 1 {
            self.figures.contended += 1;
            return false;
        }
        let owner = self.grid.get(cell).owner;
        if owner != 0 && owner != except && self.living.binary_search(&owner).is_ok() {
            return false;
        }
        self.claims[cell] = self.tick + 1;
        true
    }

    /// Copies the program, with mutation, if there is room for all of it.
    fn fork(&mut self, intent: &Intent) {
        if self.organisms.len() + self.newborn.len() >= self.config.organisms_max as usize {
            return;
        }
        let mut random = Random::new(self.config.seed, self.tick, intent.id);
        let (program, mutations) = self.copy(intent.index, &mut random);
        let cells = (0..program.len()).map(|n| self.grid.nth(intent.cell, n)).collect::<Option<Vec<_>>>();
        // There is no room beyond the end of a bounded world, and none for a program longer than the world.
        let Some(cells) = cells.filter(|cells| cells.len() <= self.grid.len()) else { return };
        // Claimed one by one: what was claimed before the one that is refused stays claimed in this tick, for no organism.
        if !cells.iter().all(|cell| self.claim(*cell, 0)) {
            return;
        }
        let id = self.next_id;
        let parent = &mut self.organisms[intent.index];
        // The copy costs 1 per instruction; the rest is shared.
        parent.energy -= program.len() as i64;
        let share = parent.energy / 2;
        parent.energy -= share;
        let child = Organism {
            id,
            parent_id: parent.id,
            birth_tick: self.tick + 1,
            generation: parent.generation.wrapping_add(1),
            energy: share,
            head: intent.cell,
            origin: intent.cell,
            direction: random.below(u64::from(self.grid.directions())) as u8,
            length: program.len() as u16,
            counter: 0,
            registers: [0; REGISTERS],
        };
        self.figures.births += 1;
        self.figures.mutations += mutations;
        self.settle(child, &program);
    }

    /// The program as it is in the world now, with errors. What is not code is copied as an instruction that does nothing.
    fn copy(&self, index: usize, random: &mut Random) -> (Vec<i32>, u64) {
        let Organism { origin, length, .. } = self.organisms[index];
        let rate = self.config.mutation_rate;
        let mut mutations = 0;
        let mut program = Vec::with_capacity(usize::from(length) + 1);
        for n in 0..usize::from(length) {
            let molecule = self.grid.nth(origin, n).map(|cell| self.grid.get(cell));
            let mut value = molecule.filter(|molecule| molecule.kind == CODE).map_or(0, |code| code.value);
            if random.chance(rate) {
                value = instruction::value_from_bits(random.next());
                mutations += 1;
            }
            program.push(value);
        }
        if random.chance(rate) {
            let at = random.below(program.len() as u64) as usize;
            match random.below(2) {
                0 if program.len() > 1 => drop(program.remove(at)),
                _ => program.insert(at, instruction::value_from_bits(random.next())),
            }
            program.truncate(usize::from(self.config.program_length_max));
            mutations += 1;
        }
        (program, mutations)
    }

    /// Removes organisms without energy and those that are too old. What they wrote stays, and belongs to none from now on.
    fn bury(&mut self) {
        let (tick, age_max) = (self.tick, self.config.age_max);
        let departed_before = self.departed.len();
        self.departed.extend(
            self.organisms
                .extract_if(.., |organism| organism.energy <= 0 || tick - organism.birth_tick >= age_max),
        );
        let dead = self.departed.len() - departed_before;
        if dead > 0 {
            self.living.clear();
            self.living.extend(self.organisms.iter().map(|organism| organism.id));
            self.figures.deaths += dead as u64;
        }
    }

    /// The world as it is now: cells that are not empty, living organisms, and once each organism that died since the last capture.
    pub fn capture(&self, run_id: &str, capture_time_ms: i64) -> TickData {
        let (cells, cell_count) = cells::encode_counted(&self.grid.occupied(), self.config.compression);
        let dead = self.departed.iter().map(|organism| organism.state(&self.grid, false));
        let living = self.organisms.iter().map(|organism| organism.state(&self.grid, true));
        TickData {
            run_id: run_id.to_owned(),
            tick_number: self.tick as i64,
            capture_time_ms,
            cell_count,
            cells,
            organisms: dead.chain(living).collect(),
            counters: self.counters(),
        }
    }

    fn counters(&self) -> BTreeMap<String, u64> {
        let Figures { births, deaths, contended, mutations } = self.figures;
        [("births", births), ("deaths", deaths), ("contended", contended), ("mutations", mutations)]
            .map(|(name, count)| (name.to_owned(), count))
            .into()
    }

    /// What a run of this world is described by.
    pub fn metadata(&self, run_id: &str, start_time_ms: i64) -> SimulationMetadata {
        SimulationMetadata {
            format_version: FORMAT_VERSION,
            run_id: run_id.to_owned(),
            start_time_ms,
            seed: self.config.seed,
            environment: Some(self.world.to_environment()),
            sampling_interval: self.config.sampling_interval,
            resolved_config: self.resolved_config.clone(),
            molecule_types: TYPE_NAMES.map(|(kind, name)| (u32::from(kind), name.to_owned())).into(),
        }
    }
}

#[cfg(test)]
mod tests;
