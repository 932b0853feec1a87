//! Ticks of a chosen size without a simulation, for benchmarks: as many cells as asked for, in patches as organisms leave them, and a
//! little different from tick to tick. However many ticks are made, the last one is as ordered as the first: it compresses as well.

use std::collections::VecDeque;

use super::grid::{CODE, DATA, ENERGY, Grid, Molecule};
use super::instruction::{self, REGISTERS};
use super::organism::Organism;
use super::random::Random;
use crate::cells::{self, Compression};
use crate::contracts::TickData;
use crate::error::{Error, Result};
use crate::world::World;

/// Cells of one patch: about the length of a program.
const PATCH_CELLS: u64 = 12;
/// One of so many occupied cells leaves its patch in a tick, and another one returns.
const LEAVES_ONE_OF: usize = 200;
/// Ticks until a cell that left its patch returns: without that all of them would be scattered in the end.
const AWAY_TICKS: usize = 10;

/// Makes ticks with an exact number of occupied cells.
#[derive(Debug)]
pub struct Synthetic {
    grid: Grid,
    occupied: Vec<usize>,
    /// The places in their patches of those that left them, by their position in `occupied`.
    homes: Vec<Option<usize>>,
    /// Their positions in `occupied`, in the order in which they left.
    away: VecDeque<usize>,
    organisms: Vec<Organism>,
    random: Random,
    compression: Compression,
    tick: u64,
}

impl Synthetic {
    /// Cells of a world, of which a share from 0 to 1 is occupied: `0.5` of 100x100 cells are 5,000 per tick.
    pub fn new(world: &World, occupancy: f64, seed: u64, compression: Compression) -> Result<Self> {
        if !(0.0..=1.0).contains(&occupancy) {
            return Err(Error::invalid(format!("occupancy is {occupancy}, expected 0 to 1")));
        }
        let mut grid = Grid::new(world);
        let mut random = Random::new(seed, 0, 0);
        let wanted = (grid.len() as f64 * occupancy).round() as usize;
        let mut occupied = Vec::with_capacity(wanted);
        let mut owner = 0;
        while occupied.len() < wanted {
            // From the first empty cell after a random one: the last patches find a place without a search of the whole world each.
            let origin = first_empty(&grid, random.below(grid.len() as u64) as usize);
            owner += 1;
            let kind = [CODE, CODE, DATA, ENERGY][random.below(4) as usize];
            for n in 0..=random.below(2 * PATCH_CELLS) as usize {
                let at = (origin + n) % grid.len();
                if occupied.len() == wanted || grid.get(at) != Molecule::default() {
                    break;
                }
                grid.set(at, molecule(kind, owner, &mut random));
                occupied.push(at);
            }
        }
        let (homes, away, organisms) = (vec![None; occupied.len()], VecDeque::new(), Vec::new());
        Ok(Synthetic { grid, occupied, homes, away, organisms, random, compression, tick: 0 })
    }

    /// With so many organisms in each tick.
    #[must_use]
    pub fn organisms(mut self, count: u64) -> Self {
        let cells = self.grid.len() as u64;
        self.organisms = (1..=count)
            .map(|id| Organism {
                id,
                parent_id: id / 2,
                birth_tick: 0,
                generation: id.ilog2(),
                energy: 100 + self.random.below(400) as i64,
                head: self.random.below(cells) as usize,
                origin: self.random.below(cells) as usize,
                direction: self.random.below(u64::from(self.grid.directions())) as u8,
                length: PATCH_CELLS as u16,
                counter: self.random.below(PATCH_CELLS) as u16,
                registers: [0; REGISTERS],
            })
            .collect();
        self
    }

    /// The next tick, from 0.
    pub fn next_tick(&mut self, run_id: &str) -> TickData {
        if self.tick > 0 {
            self.change();
        }
        let (cells, cell_count) = cells::encode_counted(&self.grid.occupied(), self.compression);
        let tick = TickData {
            run_id: run_id.to_owned(),
            tick_number: self.tick as i64,
            capture_time_ms: self.tick as i64,
            cell_count,
            cells,
            organisms: self.organisms.iter().map(|organism| organism.state(&self.grid, true)).collect(),
            counters: [("births".to_owned(), self.organisms.len() as u64)].into(),
        };
        self.tick += 1;
        tick
    }

    /// Some molecules move to an empty neighbour, or change their value where there is none, and others return; organisms move and pay.
    fn change(&mut self) {
        let count = self.occupied.len().div_ceil(LEAVES_ONE_OF);
        for _ in 0..count.min(self.away.len().saturating_sub(count * AWAY_TICKS)) {
            self.bring_back();
        }
        for _ in 0..count {
            let n = self.random.below(self.occupied.len() as u64) as usize;
            let from = self.occupied[n];
            let direction = self.random.below(u64::from(self.grid.directions())) as u8;
            let to =
                self.grid.neighbour(from, direction).filter(|to| self.grid.get(*to) == Molecule::default());
            match to {
                Some(to) if self.homes[n].is_none() => {
                    self.homes[n] = Some(from);
                    self.away.push_back(n);
                    self.put(n, to);
                }
                _ => {
                    let Molecule { kind, owner, .. } = self.grid.get(from);
                    self.grid.set(from, molecule(kind, owner, &mut self.random));
                }
            }
        }
        for organism in &mut self.organisms {
            organism.energy -= 1;
            organism.head = self.grid.neighbour(organism.head, organism.direction).unwrap_or(organism.head);
        }
    }

    /// The molecule that is away for the longest time returns, once its place is empty.
    fn bring_back(&mut self) {
        let Some(n) = self.away.pop_front() else { return };
        match self.homes[n] {
            Some(home) if self.grid.get(home) == Molecule::default() => {
                self.homes[n] = None;
                self.put(n, home);
            }
            _ => self.away.push_back(n),
        }
    }

    fn put(&mut self, n: usize, to: usize) {
        let from = std::mem::replace(&mut self.occupied[n], to);
        let moved = self.grid.get(from);
        self.grid.set(from, Molecule::default());
        self.grid.set(to, moved);
    }
}

/// Values as in a simulated world: code is spread over 16 bits, food is all the same, data are small.
fn molecule(kind: u8, owner: u64, random: &mut Random) -> Molecule {
    let (value, owner) = match kind {
        CODE => (instruction::value_from_bits(random.next()), owner),
        DATA => (random.below(16) as i32, owner),
        _ => (40, 0),
    };
    Molecule { kind, marker: owner as u8, value, owner }
}

/// There is one: fewer cells are occupied than wanted, and wanted are at most all.
fn first_empty(grid: &Grid, from: usize) -> usize {
    let cells = (from..grid.len()).chain(0..from);
    cells.into_iter().find(|at| grid.get(*at) == Molecule::default()).unwrap_or(from)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::world::Topology;

    #[test]
    fn occupancy_is_exact_and_ticks_differ_a_little() {
        let world = World::new(&[100, 100], Topology::Torus).expect("a world");
        for (occupancy, expected) in [(0.0, 0), (0.1, 1_000), (0.5, 5_000), (1.0, 10_000)] {
            let mut synthetic =
                Synthetic::new(&world, occupancy, 3, Compression::default()).expect("valid").organisms(10);
            let ticks: Vec<TickData> = (0..5).map(|_| synthetic.next_tick("run")).collect();
            for (n, tick) in ticks.iter().enumerate() {
                assert_eq!((tick.tick_number, tick.cell_count), (n as i64, expected));
                let cells = cells::decode(&tick.cells).expect("cells");
                assert_eq!(cells.len() as u64, expected);
                assert_eq!(tick.organisms.len(), 10);
            }
            for pair in ticks.windows(2) {
                let [before, after] =
                    [&pair[0], &pair[1]].map(|tick| cells::decode(&tick.cells).expect("cells"));
                let kept = after.iter().filter(|cell| {
                    before
                        .binary_search_by_key(&cell.flat_index, |c| c.flat_index)
                        .is_ok_and(|at| before[at] == **cell)
                });
                let changed = expected - kept.count() as u64;
                assert!(
                    changed <= expected / 50 && (changed > 0 || expected == 0),
                    "{changed} of {expected}"
                );
            }
        }
        assert!(Synthetic::new(&world, f64::NAN, 3, Compression::default()).is_err());
    }

    #[test]
    fn late_ticks_are_as_ordered_as_the_first() {
        let world = World::new(&[60, 60], Topology::Torus).expect("a world");
        let mut synthetic = Synthetic::new(&world, 0.3, 3, Compression::default()).expect("valid");
        let first = synthetic.next_tick("run").cells.len();
        // Each cell has left its patch several times by then.
        for _ in 0..LEAVES_ONE_OF * 3 {
            synthetic.change();
        }
        let last = synthetic.next_tick("run").cells.len();
        assert!(last < first * 6 / 5, "{first} bytes at first, {last} in the end");
    }

    #[test]
    fn neighbours_are_alike() {
        let world = World::new(&[100, 100], Topology::Torus).expect("a world");
        let mut synthetic = Synthetic::new(&world, 0.5, 3, Compression::default()).expect("valid");
        let cells = cells::decode(&synthetic.next_tick("run").cells).expect("cells");
        let alike = cells.windows(2).filter(|pair| {
            pair[0].owner_id == pair[1].owner_id && pair[0].flat_index + 1 == pair[1].flat_index
        });
        assert!(alike.count() > cells.len() / 2);
    }
}
