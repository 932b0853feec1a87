//! The world's shape: sizes of 1 to 8 dimensions, torus or bounded, and the way from flat indexes to coordinates and back.
//!
//! The last axis is the fastest: in a world of 100 x 200 the cell at (3, 7) has the flat index 3 * 200 + 7.

use std::fmt;
use std::ops::Deref;
use std::str::FromStr;

use crate::contracts::{Dimension, Environment, SimulationMetadata};
use crate::error::{Error, Result};

mod region;

pub use region::Region;

/// Most dimensions of a world.
pub const DIMENSIONS_MAX: usize = 8;

/// What is beyond the last cell of an axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Topology {
    /// The first cell again.
    Torus,
    /// Nothing.
    Bounded,
}

impl Topology {
    /// The name in metadata: `TORUS` or `BOUNDED`.
    pub fn as_str(self) -> &'static str {
        match self {
            Topology::Torus => "TORUS",
            Topology::Bounded => "BOUNDED",
        }
    }
}

impl fmt::Display for Topology {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Topology {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match [Topology::Torus, Topology::Bounded]
            .into_iter()
            .find(|known| text.eq_ignore_ascii_case(known.as_str()))
        {
            Some(topology) => Ok(topology),
            None => {
                Err(Error::invalid(format!("environment.topology {text:?}: TORUS or BOUNDED is expected")))
            }
        }
    }
}

/// The shape of a world.
///
/// ```
/// use headwater_pipeline::world::{Topology, World};
///
/// let world = World::new(&[100, 200], Topology::Torus)?;
/// assert_eq!(world.flat_index(&[3, 7])?, 607);
/// assert_eq!(*world.coordinates(607)?, [3, 7]);
/// assert_eq!(*world.wrap(&[-1, 200]).expect("a torus has no outside"), [99, 0]);
/// # Ok::<(), headwater_pipeline::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct World {
    sizes: Coordinates,
    /// How far apart two neighbours of an axis are in flat indexes.
    strides: Coordinates,
    topology: Topology,
    cells: u64,
}

impl World {
    /// A world of these sizes, first axis first.
    pub fn new(sizes: &[u64], topology: Topology) -> Result<Self> {
        if sizes.is_empty() || sizes.len() > DIMENSIONS_MAX {
            let count = sizes.len();
            let rule =
                format!("environment.dimensions has {count} entries: 1 to {DIMENSIONS_MAX} are allowed");
            return Err(Error::invalid(rule));
        }
        let mut strides = Coordinates::zero(sizes.len());
        let mut cells: u64 = 1;
        for (axis, &size) in sizes.iter().enumerate().rev() {
            if size == 0 {
                return Err(Error::invalid(format!(
                    "environment.dimensions[{axis}].size 0: at least 1 is expected"
                )));
            }
            strides.values[axis] = cells;
            // Databases have signed 64-bit integers only.
            cells =
                cells.checked_mul(size).filter(|cells| i64::try_from(*cells).is_ok()).ok_or_else(|| {
                    let rule = format!("the product must be at most {}", i64::MAX);
                    Error::invalid(format!("environment.dimensions {}: {rule}", shape(sizes)))
                })?;
        }
        Ok(World { sizes: Coordinates::new(sizes), strides, topology, cells })
    }

    /// The world of a run.
    pub fn from_metadata(metadata: &SimulationMetadata) -> Result<Self> {
        let environment = metadata.environment.as_ref().ok_or_else(|| {
            Error::invalid(format!(
                "metadata of run {:?} has no environment: one is expected",
                metadata.run_id
            ))
        })?;
        World::from_environment(environment)
    }

    /// The world that metadata describe.
    pub fn from_environment(environment: &Environment) -> Result<Self> {
        let sizes: Vec<u64> = environment.dimensions.iter().map(|dimension| dimension.size).collect();
        World::new(&sizes, environment.topology.parse()?)
    }

    /// The same as part of metadata.
    pub fn to_environment(&self) -> Environment {
        let dimensions = self.sizes.iter().map(|&size| Dimension { size }).collect();
        Environment { dimensions, topology: self.topology.as_str().to_owned() }
    }

    /// The size of each axis.
    pub fn sizes(&self) -> &[u64] {
        &self.sizes
    }

    /// The number of axes, 1 to 8.
    pub fn dimensions(&self) -> usize {
        self.sizes.len()
    }

    /// What is beyond the last cell of an axis.
    pub fn topology(&self) -> Topology {
        self.topology
    }

    /// The number of cells: flat indexes are below it.
    pub fn cells(&self) -> u64 {
        self.cells
    }

    /// The coordinates of a flat index; an error if the world has no such cell.
    pub fn coordinates(&self, flat_index: u64) -> Result<Coordinates> {
        self.check(flat_index)?;
        let mut coordinates = Coordinates::zero(self.dimensions());
        let mut rest = flat_index;
        for (value, stride) in coordinates.values.iter_mut().zip(self.strides.iter()) {
            *value = rest / stride;
            rest %= stride;
        }
        Ok(coordinates)
    }

    /// The flat index of coordinates; an error if there are not as many as axes, or one is outside.
    pub fn flat_index(&self, coordinates: &[u64]) -> Result<u64> {
        self.check_count(coordinates.len())?;
        let mut flat_index = 0;
        for (axis, (&value, stride)) in coordinates.iter().zip(self.strides.iter()).enumerate() {
            self.check_axis(axis, value)?;
            flat_index += value * stride;
        }
        Ok(flat_index)
    }

    /// Coordinates that may be outside, as cells of the world: on a torus those that they wrap around to, in a bounded world `None` if one
    /// is outside.
    ///
    /// # Panics
    /// If there are not as many as axes.
    pub fn wrap(&self, coordinates: &[i64]) -> Option<Coordinates> {
        assert_eq!(coordinates.len(), self.dimensions(), "one coordinate per axis");
        let mut wrapped = Coordinates::zero(self.dimensions());
        for (axis, &value) in coordinates.iter().enumerate() {
            let size = self.sizes[axis];
            wrapped.values[axis] = match (u64::try_from(value), self.topology) {
                (Ok(inside), _) if inside < size => inside,
                (_, Topology::Bounded) => return None,
                // The sizes' product fits an i64, so each of them does.
                (_, Topology::Torus) => value.rem_euclid(size.cast_signed()).cast_unsigned(),
            };
        }
        Some(wrapped)
    }

    /// An error if the world has no cell of this flat index.
    pub fn check(&self, flat_index: u64) -> Result<()> {
        if flat_index < self.cells {
            return Ok(());
        }
        let last = self.cells - 1;
        Err(Error::invalid(format!(
            "flat index {flat_index}: a world of {} has 0 to {last}",
            shape(&self.sizes)
        )))
    }

    fn check_count(&self, count: usize) -> Result<()> {
        if count == self.dimensions() {
            return Ok(());
        }
        let dimensions = self.dimensions();
        Err(Error::invalid(format!("{count} coordinates: the world has {dimensions} dimensions")))
    }

    fn check_axis(&self, axis: usize, value: u64) -> Result<()> {
        let size = self.sizes[axis];
        if value < size {
            return Ok(());
        }
        Err(Error::invalid(format!("coordinate {value} of axis {axis}: 0 to {} are allowed", size - 1)))
    }
}

impl fmt::Display for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", shape(&self.sizes), self.topology)
    }
}

/// `100x200`.
fn shape(sizes: &[u64]) -> String {
    sizes.iter().map(u64::to_string).collect::<Vec<_>>().join("x")
}

/// One number per axis, without an allocation: a slice of 1 to 8 numbers.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Coordinates {
    values: [u64; DIMENSIONS_MAX],
    count: usize,
}

impl Coordinates {
    fn zero(count: usize) -> Self {
        Coordinates { values: [0; DIMENSIONS_MAX], count }
    }

    /// At most [`DIMENSIONS_MAX`] values.
    fn new(values: &[u64]) -> Self {
        let mut new = Coordinates::zero(values.len());
        new.values[..values.len()].copy_from_slice(values);
        new
    }
}

impl Deref for Coordinates {
    type Target = [u64];

    fn deref(&self) -> &[u64] {
        &self.values[..self.count]
    }
}

impl fmt::Debug for Coordinates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.deref().fmt(f)
    }
}

#[cfg(test)]
mod tests;
