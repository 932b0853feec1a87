//! Organisms: what one instruction does to its organism, and what the organism wants of the world.
//!
//! An instruction reads the world as it was at the start of the tick and changes nothing but its own organism. What concerns cells is
//! returned as an [`Intent`] and decided later, among all intents of the tick.

use std::cmp::Reverse;

use super::grid::{CODE, Grid, Molecule};
use super::instruction::{Instruction, Operation, REGISTERS};
use super::random::Random;
use crate::contracts::{OrganismState, TidepoolOrganism};

/// An organism and its program counter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Organism {
    /// From 1, rising with birth.
    pub(super) id: u64,
    /// 0 for the first ones.
    pub(super) parent_id: u64,
    pub(super) birth_tick: u64,
    pub(super) generation: u32,
    pub(super) energy: i64,
    /// The cell it is at.
    pub(super) head: usize,
    /// The first cell of its program.
    pub(super) origin: usize,
    pub(super) direction: u8,
    /// Cells of the program, at least 1.
    pub(super) length: u16,
    /// The cell of the program that is executed next.
    pub(super) counter: u16,
    pub(super) registers: [i64; REGISTERS],
}

/// What an organism sees: the state at the start of a tick.
#[derive(Clone, Copy)]
pub(super) struct View<'a> {
    pub(super) seed: u64,
    pub(super) tick: u64,
    pub(super) fork_energy: i64,
    pub(super) grid: &'a Grid,
    /// Ids of living organisms, rising.
    pub(super) living: &'a [u64],
}

impl View<'_> {
    /// Whether the molecule belongs to a living organism.
    pub(super) fn is_held(&self, molecule: Molecule) -> bool {
        molecule.owner != 0 && self.living.binary_search(&molecule.owner).is_ok()
    }
}

/// What an organism wants to do with cells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    Eat,
    Write(i32),
    Fork,
}

/// A wish and what decides between wishes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Intent {
    pub(super) energy: i64,
    pub(super) id: u64,
    /// The organism's place in the list of organisms.
    pub(super) index: usize,
    /// The first cell that it claims.
    pub(super) cell: usize,
    pub(super) action: Action,
}

impl Intent {
    /// The rule of competition: more energy first, then the older organism. No two intents of a tick are equal in it, so the order in
    /// which threads return them does not matter.
    pub(super) fn rank(&self) -> (Reverse<i64>, u64) {
        (Reverse(self.energy), self.id)
    }
}

impl Organism {
    /// Executes one instruction. Costs 1 of energy, and 1 more for a move or a write.
    pub(super) fn execute(&mut self, index: usize, view: &View<'_>) -> Option<Intent> {
        let instruction = self.instruction(view.grid);
        let Instruction { operation, register, constant } = instruction;
        let ahead = view.grid.neighbour(self.head, self.direction);
        self.energy -= 1;
        let mut jump = 1;
        let value = &mut self.registers[register];
        let mut action = None;
        match operation {
            Operation::Rest => {}
            Operation::Move => {
                self.energy -= 1;
                self.head = ahead.unwrap_or(self.head);
            }
            Operation::Sense => {
                *value = ahead.map(|cell| view.grid.get(cell)).map_or(-1, |molecule| {
                    if view.is_held(molecule) { -1 } else { i64::from(molecule.kind) }
                });
            }
            Operation::Eat => action = Some(Action::Eat),
            Operation::Write => {
                self.energy -= 1;
                // Cells hold 32 bits.
                action = Some(Action::Write(*value as i32));
            }
            Operation::Turn => {
                let directions = i64::from(view.grid.directions());
                let turn = value.rem_euclid(directions);
                self.direction = ((i64::from(self.direction) + turn) % directions) as u8;
            }
            Operation::Jump if *value == 0 => jump = constant,
            Operation::Jump => {}
            Operation::Add => *value = value.wrapping_add(constant),
            Operation::Random => {
                let mut random = Random::new(view.seed, view.tick, self.id);
                *value = random.below(constant.unsigned_abs()) as i64;
            }
            Operation::Set => *value = constant,
            Operation::Fork => action = (self.energy >= view.fork_energy).then_some(Action::Fork),
        }
        self.counter = (i64::from(self.counter) + jump).rem_euclid(i64::from(self.length)) as u16;
        let (action, cell) = (action?, ahead?);
        Some(Intent { energy: self.energy, id: self.id, index, cell, action })
    }

    /// The instruction in the world; what is not code does nothing.
    fn instruction(&self, grid: &Grid) -> Instruction {
        let molecule = grid.nth(self.origin, usize::from(self.counter)).map(|at| grid.get(at));
        Instruction::decode(molecule.filter(|molecule| molecule.kind == CODE).map_or(0, |code| code.value))
    }

    /// The form in which a tick holds it. Registers 4 and 5 are the program's first cell and the instruction that is next.
    pub(super) fn state(&self, grid: &Grid, alive: bool) -> OrganismState {
        let mut registers = Vec::with_capacity(REGISTERS + 2);
        registers.extend(self.registers);
        registers.extend([self.origin as i64, i64::from(self.counter)]);
        OrganismState {
            id: self.id,
            parent_id: self.parent_id,
            birth_tick: self.birth_tick as i64,
            energy: self.energy,
            position: grid.coordinates(self.head),
            direction: grid.vector(self.direction),
            registers,
            alive,
        }
    }

    /// The form in which a checkpoint holds it.
    pub(super) fn stored(&self) -> TidepoolOrganism {
        TidepoolOrganism {
            id: self.id,
            parent_id: self.parent_id,
            birth_tick: self.birth_tick,
            generation: self.generation,
            energy: self.energy,
            head: self.head as u64,
            origin: self.origin as u64,
            direction: u32::from(self.direction),
            length: u32::from(self.length),
            counter: u32::from(self.counter),
            registers: self.registers.to_vec(),
        }
    }

    /// From a checkpoint; none if it does not fit this world.
    pub(super) fn from_stored(stored: &TidepoolOrganism, grid: &Grid) -> Option<Self> {
        let cell = |at: u64| usize::try_from(at).ok().filter(|at| *at < grid.len());
        let organism = Organism {
            id: stored.id,
            parent_id: stored.parent_id,
            birth_tick: stored.birth_tick,
            generation: stored.generation,
            energy: stored.energy,
            head: cell(stored.head)?,
            origin: cell(stored.origin)?,
            direction: stored.direction.try_into().ok()?,
            length: stored.length.try_into().ok()?,
            counter: stored.counter.try_into().ok()?,
            registers: stored.registers.as_slice().try_into().ok()?,
        };
        let fits = organism.direction < grid.directions() && organism.counter < organism.length;
        fits.then_some(organism)
    }
}
