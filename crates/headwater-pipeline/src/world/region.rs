//! A part of a world: bounds per axis, both inclusive.

use super::{Coordinates, Topology, World};
use crate::error::{Error, Result};

/// A box of cells. On a torus an axis may wrap around: 90 to 9 of 100 are 20 cells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Region {
    lower: Coordinates,
    upper: Coordinates,
    sizes: Coordinates,
}

impl World {
    /// The region between inclusive bounds, one pair per axis. On a torus a lower bound above the upper one wraps around; in a bounded
    /// world it is refused.
    pub fn region(&self, bounds: &[(u64, u64)]) -> Result<Region> {
        self.check_count(bounds.len())?;
        let mut region = self.whole();
        for (axis, &(lower, upper)) in bounds.iter().enumerate() {
            self.check_axis(axis, lower)?;
            self.check_axis(axis, upper)?;
            if lower > upper && self.topology == Topology::Bounded {
                let rule = "the lower bound must not be above the upper one in a bounded world";
                return Err(Error::invalid(format!("bounds {lower} to {upper} of axis {axis}: {rule}")));
            }
            (region.lower.values[axis], region.upper.values[axis]) = (lower, upper);
        }
        Ok(region)
    }

    /// All cells.
    pub fn whole(&self) -> Region {
        let mut upper = self.sizes;
        upper.values[..upper.count].iter_mut().for_each(|size| *size -= 1);
        Region { lower: Coordinates::zero(self.dimensions()), upper, sizes: self.sizes }
    }

    /// Whether a region has the cell of a flat index; an error if the world has no such cell.
    pub fn region_has(&self, region: &Region, flat_index: u64) -> Result<bool> {
        Ok(region.contains(&self.coordinates(flat_index)?))
    }
}

impl Region {
    /// The inclusive bounds of each axis. A lower one above its upper one wraps around.
    pub fn bounds(&self) -> impl ExactSizeIterator<Item = (u64, u64)> + '_ {
        self.lower.iter().copied().zip(self.upper.iter().copied())
    }

    /// Whether it has the cell of these coordinates. Coordinates of another number of axes are in no region.
    pub fn contains(&self, coordinates: &[u64]) -> bool {
        coordinates.len() == self.lower.len()
            && self.bounds().zip(coordinates).all(|((lower, upper), &value)| {
                if lower <= upper {
                    (lower..=upper).contains(&value)
                } else {
                    value >= lower || value <= upper
                }
            })
    }

    /// How many cells it has along an axis.
    pub fn extent(&self, axis: usize) -> u64 {
        let (lower, upper) = (self.lower[axis], self.upper[axis]);
        if lower <= upper { upper - lower + 1 } else { self.sizes[axis] - lower + upper + 1 }
    }

    /// How many cells it has.
    pub fn cells(&self) -> u64 {
        // At most as many as the world, whose number fits.
        (0..self.lower.len()).map(|axis| self.extent(axis)).product()
    }

    /// The bounds of an axis as one pair that rises, or as two where it wraps around.
    pub fn spans(&self, axis: usize) -> impl Iterator<Item = (u64, u64)> {
        let (lower, upper) = (self.lower[axis], self.upper[axis]);
        let (first, second) = if lower <= upper {
            ((lower, upper), None)
        } else {
            ((0, upper), Some((lower, self.sizes[axis] - 1)))
        };
        std::iter::once(first).chain(second)
    }
}
