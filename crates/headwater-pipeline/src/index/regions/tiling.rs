//! The tiles of a world: boxes of equal edges, numbered like cells, with the last axis fastest.

use std::ops::RangeInclusive;

use crate::error::Result;
use crate::world::{Region, World};

/// A world cut into tiles. Those at the end of an axis may be smaller.
#[derive(Clone, Debug)]
pub(super) struct Tiling {
    world: World,
    edge: u64,
    /// How far apart two neighbours of an axis are in numbers of tiles.
    strides: Vec<u64>,
}

impl Tiling {
    pub(super) fn new(world: &World, edge: u64) -> Self {
        let mut strides = vec![1; world.dimensions()];
        for axis in (1..world.dimensions()).rev() {
            // There are no more tiles than cells, whose number fits an i64.
            strides[axis - 1] = strides[axis] * world.sizes()[axis].div_ceil(edge);
        }
        Tiling { world: world.clone(), edge, strides }
    }

    /// The tile of a cell; an error if the world has no such cell.
    pub(super) fn tile_of(&self, flat_index: u64) -> Result<i64> {
        let coordinates = self.world.coordinates(flat_index)?;
        let tile: u64 =
            coordinates.iter().zip(&self.strides).map(|(value, stride)| value / self.edge * stride).sum();
        Ok(tile.cast_signed())
    }

    /// Ranges of numbers that have every tile with cells of the region; `None` if there are more than so many.
    pub(super) fn ranges(&self, region: &Region, ranges_max: usize) -> Option<Vec<RangeInclusive<i64>>> {
        let mut ranges = vec![0..=0];
        let last = self.strides.len() - 1;
        for (axis, stride) in self.strides.iter().enumerate() {
            // A region that wraps around has two spans, whose tiles may be the same.
            let mut spans: Vec<(u64, u64)> = Vec::new();
            for (lower, upper) in region.spans(axis) {
                let (lower, upper) = (lower / self.edge, upper / self.edge);
                match spans.last_mut() {
                    Some(before) if lower <= before.1 + 1 => before.1 = before.1.max(upper),
                    _ => spans.push((lower, upper)),
                }
            }
            let steps = spans.into_iter().flat_map(|(lower, upper)| {
                // Neighbours along the last axis have neighbouring numbers.
                let parts = if axis == last { 1 } else { upper - lower + 1 };
                (0..parts).map(move |part| match axis == last {
                    true => lower * stride..=upper * stride,
                    false => (lower + part) * stride..=(lower + part) * stride,
                })
            });
            let steps: Vec<RangeInclusive<u64>> = steps.take(ranges_max + 1).collect();
            if ranges.len() * steps.len() > ranges_max {
                return None;
            }
            ranges = ranges
                .iter()
                .flat_map(|from: &RangeInclusive<u64>| {
                    steps.iter().map(move |step| from.start() + step.start()..=from.end() + step.end())
                })
                .collect();
        }
        Some(
            ranges.into_iter().map(|range| range.start().cast_signed()..=range.end().cast_signed()).collect(),
        )
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::world::Topology;

    #[test]
    fn tiles_are_numbered_like_cells() {
        let world = World::new(&[100, 200], Topology::Torus).unwrap();
        let tiling = Tiling::new(&world, 64);
        let tile = |coordinates: [u64; 2]| tiling.tile_of(world.flat_index(&coordinates).unwrap()).unwrap();
        assert_eq!(
            [tile([0, 0]), tile([0, 64]), tile([0, 199]), tile([64, 0]), tile([99, 199])],
            [0, 1, 3, 4, 7]
        );
        assert!(tiling.tile_of(20_000).is_err());
    }

    #[test]
    fn an_area_of_one_tile_is_one_range() {
        let world = World::new(&[2000, 2000], Topology::Torus).unwrap();
        let tiling = Tiling::new(&world, 64);
        let area = world.region(&[(70, 89), (130, 149)]).unwrap();
        assert_eq!(tiling.ranges(&area, 64).unwrap(), [34..=34]);
        assert_eq!(tiling.ranges(&world.whole(), 64).unwrap().len(), 32);
        assert_eq!(tiling.ranges(&world.whole(), 31), None);
    }

    proptest! {
        #[test]
        fn every_cell_of_an_area_is_in_its_tiles(
            sizes in prop::collection::vec(1_u64..7, 1..4),
            edge in 1_u64..5,
            corners in prop::collection::vec((0_u64..7, 0_u64..7), 3),
        ) {
            let world = World::new(&sizes, Topology::Torus).unwrap();
            let bounds: Vec<(u64, u64)> =
                sizes.iter().zip(&corners).map(|(size, (a, b))| (a % size, b % size)).collect();
            let area = world.region(&bounds).unwrap();
            let tiling = Tiling::new(&world, edge);
            let ranges = tiling.ranges(&area, 10_000).unwrap();
            let mut wanted = std::collections::BTreeSet::new();
            for flat_index in 0..world.cells() {
                if world.region_has(&area, flat_index).unwrap() {
                    wanted.insert(tiling.tile_of(flat_index).unwrap());
                }
            }
            let read: Vec<i64> = ranges.into_iter().flatten().collect();
            // Each once, and no tile that has nothing of the area.
            prop_assert_eq!(read.len(), wanted.len());
            prop_assert_eq!(read.into_iter().collect::<std::collections::BTreeSet<_>>(), wanted);
        }
    }
}
