//! One column of cells: the form that its values get, and reading them a block at a time.
//!
//! Blocks keep loops short and without decisions, and need no memory for all cells.

use super::{Cell, damaged, varint};
use crate::error::Result;

/// Cells that are read at a time.
pub(super) const BLOCK: usize = 128;

const CONSTANT: u8 = 0;
const VARINTS: u8 = 1;
const BYTES: u8 = 2;
const PAIRS: u8 = 3;

/// Appends a column. `values` is a buffer that columns share.
pub(super) fn put(
    raw: &mut Vec<u8>,
    values: &mut Vec<u64>,
    may_be_constant: bool,
    cells: &[Cell],
    value_of: impl FnMut(&Cell) -> u64,
) {
    values.clear();
    values.extend(cells.iter().map(value_of));
    let (mut different, mut any) = (0, 0);
    let mut long = 0;
    for value in &*values {
        different |= value ^ values[0];
        any |= value;
        long += usize::from(*value >= 0x80);
    }
    // Pairs where varints would have two bytes for so many cells that a reader guesses their length wrong.
    let form = match any {
        _ if different == 0 && may_be_constant => CONSTANT,
        0..=0xff => BYTES,
        0x100..=0xffff if long * 2 >= values.len() => PAIRS,
        _ => VARINTS,
    };
    put_form(raw, form, values);
}

#[allow(clippy::cast_possible_truncation, reason = "the form was chosen by the largest value")]
fn put_form(raw: &mut Vec<u8>, form: u8, values: &[u64]) {
    let content = match form {
        CONSTANT => varint::len(values[0]),
        BYTES => values.len(),
        PAIRS => values.len() * 2,
        _ => values.iter().map(|value| varint::len(*value)).sum(),
    };
    varint::put(raw, content as u64 + 1);
    raw.push(form);
    match form {
        CONSTANT => varint::put(raw, values[0]),
        BYTES => raw.extend(values.iter().map(|value| *value as u8)),
        PAIRS => {
            raw.extend(values.iter().map(|value| *value as u8));
            raw.extend(values.iter().map(|value| (*value >> 8) as u8));
        }
        _ => values.iter().for_each(|value| varint::put(raw, *value)),
    }
}

/// The values of a column that were not read yet.
#[derive(Clone, Copy)]
pub(super) enum Column<'r> {
    Constant(u64),
    Varints(&'r [u8]),
    Bytes(&'r [u8]),
    Pairs(&'r [u8], &'r [u8]),
}

impl<'r> Column<'r> {
    /// Takes a column from the front of `rest`.
    pub(super) fn take(rest: &mut &'r [u8]) -> Result<Self> {
        let length = varint::take(rest).and_then(|length| usize::try_from(length).ok());
        let column = length.and_then(|length| rest.split_at_checked(length));
        let Some((&[form, ref content @ ..], after)) = column else {
            return Err(damaged("a column ends early"));
        };
        *rest = after;
        match form {
            VARINTS => Ok(Column::Varints(content)),
            BYTES => Ok(Column::Bytes(content)),
            PAIRS if content.len() % 2 == 0 => {
                let (low, high) = content.split_at(content.len() / 2);
                Ok(Column::Pairs(low, high))
            }
            PAIRS => Err(damaged("a column of pairs has an odd length")),
            CONSTANT => {
                let mut content = content;
                match (varint::take(&mut content), content) {
                    (Some(value), []) => Ok(Column::Constant(value)),
                    _ => Err(damaged("a column of one value has another length")),
                }
            }
            other => Err(damaged(format_args!("a column of form {other}"))),
        }
    }

    /// How many values it has at most; `None` if it has one for any number of cells.
    pub(super) fn values_max(&self) -> Option<usize> {
        match self {
            Column::Constant(_) => None,
            Column::Varints(bytes) | Column::Bytes(bytes) | Column::Pairs(bytes, _) => Some(bytes.len()),
        }
    }

    /// Whether all values were read.
    pub(super) fn is_used_up(&self) -> bool {
        self.values_max().is_none_or(|left| left == 0)
    }

    /// Reads the next values; `None` if there are fewer, or one is no number.
    #[inline]
    pub(super) fn read(&mut self, values: &mut [u64]) -> Option<()> {
        match self {
            Column::Constant(value) => values.fill(*value),
            Column::Varints(bytes) => return read_varints(bytes, values),
            Column::Bytes(bytes) => {
                let (now, later) = bytes.split_at_checked(values.len())?;
                for (value, byte) in values.iter_mut().zip(now) {
                    *value = u64::from(*byte);
                }
                *bytes = later;
            }
            Column::Pairs(low, high) => {
                let (now, later) = low.split_at_checked(values.len())?;
                let (above, later_above) = high.split_at_checked(values.len())?;
                for ((value, low), high) in values.iter_mut().zip(now).zip(above) {
                    *value = u64::from(*low) | u64::from(*high) << 8;
                }
                (*low, *high) = (later, later_above);
            }
        }
        Some(())
    }
}

fn read_varints(bytes: &mut &[u8], values: &mut [u64]) -> Option<()> {
    let mut groups = values.chunks_exact_mut(8);
    for group in &mut groups {
        // Most varints have one byte: eight at once, if all of them do.
        match bytes.split_first_chunk::<8>() {
            Some((first, rest)) if u64::from_le_bytes(*first) & 0x8080_8080_8080_8080 == 0 => {
                for (value, byte) in group.iter_mut().zip(first) {
                    *value = u64::from(*byte);
                }
                *bytes = rest;
            }
            _ => {
                for value in group {
                    *value = varint::take(bytes)?;
                }
            }
        }
    }
    for value in groups.into_remainder() {
        *value = varint::take(bytes)?;
    }
    Some(())
}
