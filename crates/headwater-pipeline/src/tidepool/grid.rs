//! The cells of the world and the way from one to the next.

use crate::cells::Cell;
use crate::error::{Error, ErrorCode, Result};
use crate::world::{Topology, World};

/// Molecule types. 0 is an empty cell.
pub(super) const CODE: u8 = 1;
pub(super) const DATA: u8 = 2;
pub(super) const ENERGY: u8 = 3;
/// Their names, for people.
pub(super) const TYPE_NAMES: [(u8, &str); 3] = [(CODE, "code"), (DATA, "data"), (ENERGY, "food")];

/// What a cell holds. The default is an empty cell.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Molecule {
    pub(super) kind: u8,
    /// The generation of the organism that wrote it, modulo 256.
    pub(super) marker: u8,
    pub(super) value: i32,
    /// The organism that wrote it, alive or not; 0 for none.
    pub(super) owner: u64,
}

/// All cells, last axis fastest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Grid {
    cells: Vec<Molecule>,
    /// Size and stride of each dimension.
    axes: Vec<(usize, usize)>,
    is_torus: bool,
}

impl Grid {
    /// Empty cells. The configuration has checked that they fit into memory.
    pub(super) fn new(world: &World) -> Self {
        let mut axes = Vec::with_capacity(world.dimensions());
        let mut stride = 1;
        for size in world.sizes().iter().rev() {
            axes.push((*size as usize, stride));
            stride *= *size as usize;
        }
        axes.reverse();
        Grid { cells: vec![Molecule::default(); stride], axes, is_torus: world.topology() == Topology::Torus }
    }

    pub(super) fn len(&self) -> usize {
        self.cells.len()
    }

    /// Two per dimension: forwards and backwards.
    pub(super) fn directions(&self) -> u8 {
        2 * self.axes.len() as u8
    }

    pub(super) fn get(&self, at: usize) -> Molecule {
        self.cells[at]
    }

    pub(super) fn set(&mut self, at: usize, molecule: Molecule) {
        self.cells[at] = molecule;
    }

    /// The neighbour in a direction; none beyond the edge of a bounded world.
    pub(super) fn neighbour(&self, at: usize, direction: u8) -> Option<usize> {
        let (size, stride) = self.axes[usize::from(direction / 2)];
        let coordinate = at / stride % size;
        let around = (size - 1) * stride;
        match (direction.is_multiple_of(2), coordinate) {
            (true, last) if last + 1 == size => self.is_torus.then(|| at - around),
            (true, _) => Some(at + stride),
            (false, 0) => self.is_torus.then(|| at + around),
            (false, _) => Some(at - stride),
        }
    }

    /// The n-th cell of a program: programs continue along the last axis and, like text, in the next line. None beyond the last cell of
    /// a bounded world.
    pub(super) fn nth(&self, origin: usize, n: usize) -> Option<usize> {
        match origin + n {
            inside if inside < self.len() => Some(inside),
            beyond => self.is_torus.then(|| beyond % self.len()),
        }
    }

    /// Coordinates of a cell.
    pub(super) fn coordinates(&self, at: usize) -> Vec<u64> {
        self.axes.iter().map(|(size, stride)| (at / stride % size) as u64).collect()
    }

    /// A direction as a step per dimension.
    pub(super) fn vector(&self, direction: u8) -> Vec<i32> {
        let step = if direction.is_multiple_of(2) { 1 } else { -1 };
        (0..self.axes.len()).map(|axis| if axis == usize::from(direction / 2) { step } else { 0 }).collect()
    }

    /// Cells that are not empty, by rising index.
    pub(super) fn occupied(&self) -> Vec<Cell> {
        let mut cells = Vec::with_capacity(self.len() / 2);
        for (at, molecule) in self.cells.iter().enumerate() {
            if *molecule != Molecule::default() {
                cells.push(Cell {
                    flat_index: at as u64,
                    molecule_type: u32::from(molecule.kind),
                    molecule_value: i64::from(molecule.value),
                    owner_id: molecule.owner,
                    marker: u32::from(molecule.marker),
                });
            }
        }
        cells
    }

    /// Puts back what [`Grid::occupied`] returned.
    pub(super) fn occupy(&mut self, cells: &[Cell]) -> Result<()> {
        for cell in cells {
            let molecule = Molecule::try_from(cell).ok();
            let place = usize::try_from(cell.flat_index).ok().and_then(|at| self.cells.get_mut(at));
            let (Some(molecule), Some(place)) = (molecule, place) else {
                let message = format!("cell {} of a checkpoint does not fit its world", cell.flat_index);
                return Err(Error::permanent(ErrorCode::DamagedFile, message));
            };
            *place = molecule;
        }
        Ok(())
    }
}

impl TryFrom<&Cell> for Molecule {
    type Error = std::num::TryFromIntError;

    fn try_from(cell: &Cell) -> Result<Self, Self::Error> {
        Ok(Molecule {
            kind: cell.molecule_type.try_into()?,
            marker: cell.marker.try_into()?,
            value: cell.molecule_value.try_into()?,
            owner: cell.owner_id,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grid(sizes: &[u64], topology: Topology) -> Grid {
        Grid::new(&World::new(sizes, topology).expect("a world"))
    }

    #[test]
    fn torus_wraps_and_bounded_ends() {
        for dimensions in 1..=4_usize {
            let sizes: Vec<u64> = (0..dimensions as u64).map(|axis| 3 + axis).collect();
            let (torus, bounded) = (grid(&sizes, Topology::Torus), grid(&sizes, Topology::Bounded));
            assert_eq!(usize::from(torus.directions()), 2 * dimensions);
            for (at, direction) in
                (0..torus.len()).flat_map(|at| (0..torus.directions()).map(move |d| (at, d)))
            {
                let axis = usize::from(direction / 2);
                let step = i64::from(torus.vector(direction)[axis]);
                let moved = torus.coordinates(at)[axis] as i64 + step;
                let to = torus.neighbour(at, direction).expect("a torus has no edge");
                let mut expected = torus.coordinates(at);
                expected[axis] = moved.rem_euclid(sizes[axis] as i64) as u64;
                assert_eq!(torus.coordinates(to), expected);
                // Forwards and backwards undo each other.
                assert_eq!(torus.neighbour(to, direction ^ 1), Some(at));
                let is_inside = (0..sizes[axis] as i64).contains(&moved);
                assert_eq!(bounded.neighbour(at, direction), is_inside.then_some(to));
            }
        }
    }

    #[test]
    fn programs_continue_in_the_next_line() {
        let (torus, bounded) = (grid(&[2, 3], Topology::Torus), grid(&[2, 3], Topology::Bounded));
        assert_eq!(torus.nth(2, 1), Some(3));
        assert_eq!(torus.coordinates(3), [1, 0]);
        assert_eq!((torus.nth(4, 3), bounded.nth(4, 3), bounded.nth(4, 1)), (Some(1), None, Some(5)));
    }

    #[test]
    fn sparse_only() {
        let mut original = grid(&[10, 10], Topology::Torus);
        assert!(original.occupied().is_empty());
        let molecule = Molecule { kind: DATA, marker: 200, value: -5, owner: u64::MAX };
        original.set(42, molecule);
        // Type 0 with any other field set is a cell as well.
        original.set(7, Molecule { owner: 1, ..Molecule::default() });
        let cells = original.occupied();
        assert_eq!(cells.iter().map(|cell| cell.flat_index).collect::<Vec<_>>(), [7, 42]);
        let mut restored = grid(&[10, 10], Topology::Torus);
        restored.occupy(&cells).expect("the same world");
        assert_eq!(restored, original);
        let error = grid(&[10], Topology::Torus).occupy(&cells).expect_err("cell 42 of 10");
        assert_eq!((error.code(), error.to_string().contains("cell 42")), (ErrorCode::DamagedFile, true));
    }
}
