//! Which cells of a tick are wanted, and what differs between two ticks. Pure functions over blobs: the caller decides when to decode.

use std::ops::{ControlFlow, RangeInclusive};

use super::strategy::StoredTick;
use crate::cells::{self, Cell};
use crate::error::Result;
use crate::world::{Region, World};

/// Cells that fulfil all of its conditions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selection {
    /// Within these bounds.
    pub area: Option<Region>,
    /// With a molecule of this type.
    pub molecule_type: Option<u32>,
    /// Of this owner.
    pub owner_id: Option<u64>,
    /// With a value of this range.
    pub values: Option<RangeInclusive<i64>>,
}

impl Selection {
    fn accepts(&self, world: &World, cell: &Cell) -> Result<bool> {
        let fits = self.molecule_type.is_none_or(|wanted| wanted == cell.molecule_type)
            && self.owner_id.is_none_or(|wanted| wanted == cell.owner_id)
            && self.values.as_ref().is_none_or(|wanted| wanted.contains(&cell.molecule_value));
        match &self.area {
            Some(area) if fits => world.region_has(area, cell.flat_index),
            _ => Ok(fits),
        }
    }
}

/// The wanted cells of a tick, flat indexes rising.
pub fn select(
    stored: &StoredTick,
    world: &World,
    selection: &Selection,
    raw_bytes_max: u64,
) -> Result<Vec<Cell>> {
    let mut wanted = Vec::new();
    for blob in &stored.blobs {
        let mut failed = None;
        cells::visit(blob, raw_bytes_max, |cell| match selection.accepts(world, &cell) {
            Ok(accepted) => {
                wanted.extend(accepted.then_some(cell));
                ControlFlow::Continue(())
            }
            Err(error) => {
                failed = Some(error);
                ControlFlow::Break(())
            }
        })?;
        failed.map_or(Ok(()), Err)?;
    }
    if stored.blobs.len() > 1 {
        wanted.sort_unstable_by_key(|cell| cell.flat_index);
    }
    Ok(wanted)
}

/// The cell of a flat index; `None` if it is empty.
pub fn find(stored: &StoredTick, flat_index: u64, raw_bytes_max: u64) -> Result<Option<Cell>> {
    for blob in &stored.blobs {
        if let Some(cell) = cells::find(blob, flat_index, raw_bytes_max)? {
            return Ok(Some(cell));
        }
    }
    Ok(None)
}

/// A cell that differs between two ticks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change {
    /// Its place.
    pub flat_index: u64,
    /// In the first tick; `None` if it was empty.
    pub before: Option<Cell>,
    /// In the second tick; `None` if it is empty.
    pub after: Option<Cell>,
}

/// What differs between two lists of cells, both with rising flat indexes.
pub fn difference(before: &[Cell], after: &[Cell]) -> Vec<Change> {
    let (mut before, mut after) = (before.iter().peekable(), after.iter().peekable());
    let mut changes = Vec::new();
    loop {
        let (old, new) = (before.peek().copied(), after.peek().copied());
        let flat_index = match (old, new) {
            (None, None) => return changes,
            (Some(cell), None) | (None, Some(cell)) => cell.flat_index,
            (Some(old), Some(new)) => old.flat_index.min(new.flat_index),
        };
        let old = before.next_if(|cell| cell.flat_index == flat_index).copied();
        let new = after.next_if(|cell| cell.flat_index == flat_index).copied();
        if old != new {
            changes.push(Change { flat_index, before: old, after: new });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cells::{Compression, RAW_BYTES_MAX};
    use crate::world::Topology;

    fn cell(flat_index: u64, molecule_value: i64) -> Cell {
        Cell { flat_index, molecule_type: 1 + flat_index as u32 % 2, molecule_value, owner_id: 7, marker: 0 }
    }

    fn stored(blobs: &[&[Cell]]) -> StoredTick {
        let blobs = blobs.iter().map(|cells| cells::encode(cells, Compression::default())).collect();
        StoredTick { tick: 1, blobs }
    }

    #[test]
    fn all_conditions_must_be_fulfilled() {
        let world = World::new(&[10, 10], Topology::Torus).unwrap();
        let tick = stored(&[&[cell(55, 5), cell(99, 9)], &[cell(0, 1), cell(11, 2), cell(12, 30)]]);
        let flat = |selection: Selection| -> Vec<u64> {
            let cells = select(&tick, &world, &selection, RAW_BYTES_MAX).unwrap();
            cells.iter().map(|cell| cell.flat_index).collect()
        };
        assert_eq!(flat(Selection::default()), [0, 11, 12, 55, 99]);
        let area = Some(world.region(&[(9, 1), (9, 2)]).unwrap());
        assert_eq!(flat(Selection { area: area.clone(), ..Selection::default() }), [0, 11, 12, 99]);
        let values = Some(1..=9);
        assert_eq!(
            flat(Selection { area, values, molecule_type: Some(2), ..Selection::default() }),
            [11, 99]
        );
        assert_eq!(flat(Selection { owner_id: Some(8), ..Selection::default() }), [0_u64; 0]);
    }

    #[test]
    fn a_cell_outside_the_world_is_an_error_where_its_place_counts() {
        let world = World::new(&[4], Topology::Bounded).unwrap();
        let tick = stored(&[&[cell(4, 1)]]);
        let area = Some(world.whole());
        let error =
            select(&tick, &world, &Selection { area, ..Selection::default() }, RAW_BYTES_MAX).unwrap_err();
        assert!(error.to_string().starts_with("flat index 4: "), "{error}");
    }

    #[test]
    fn differences_are_additions_removals_and_changes() {
        let before = [cell(1, 1), cell(2, 2), cell(4, 4)];
        let after = [cell(2, 2), cell(3, 3), cell(4, 5), cell(9, 9)];
        let changes = difference(&before, &after);
        let flat: Vec<(u64, bool, bool)> = changes
            .iter()
            .map(|change| (change.flat_index, change.before.is_some(), change.after.is_some()))
            .collect();
        assert_eq!(flat, [(1, true, false), (3, false, true), (4, true, true), (9, false, true)]);
        assert_eq!(difference(&after, &after), []);
    }

    #[test]
    fn one_cell_is_found_in_any_blob() {
        let tick = stored(&[&[cell(5, 1)], &[cell(0, 2)]]);
        assert_eq!(find(&tick, 0, RAW_BYTES_MAX).unwrap().unwrap().molecule_value, 2);
        assert_eq!(find(&tick, 1, RAW_BYTES_MAX).unwrap(), None);
    }
}
