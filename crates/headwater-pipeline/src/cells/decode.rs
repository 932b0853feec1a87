//! From a blob to its cells: all of them, one after the other, or one.

use std::ops::ControlFlow;

use super::compression::{Codec, decompressed};
use super::varint::{self, unzigzag};
use super::{COLUMNS, Cell, FORM_CONSTANT, FORM_VARINTS, Header, RAW_BYTES_MAX, damaged};
use crate::error::{Error, ErrorCode, Result};

/// All cells of a blob, flat indexes rising. Damaged bytes, an unknown version or codec and more than [`RAW_BYTES_MAX`] bytes are errors.
pub fn decode(blob: &[u8]) -> Result<Vec<Cell>> {
    decode_within(blob, RAW_BYTES_MAX)
}

/// The same, with another limit on decompressed bytes. A cell has at least one of them, and 40 in memory.
pub fn decode_within(blob: &[u8], raw_bytes_max: u64) -> Result<Vec<Cell>> {
    with_raw(blob, raw_bytes_max, |raw| {
        let mut columns = Columns::open(raw)?;
        // Open has compared the number with the length of a column.
        let mut cells = Vec::with_capacity(columns.left);
        while let Some(cell) = columns.next()? {
            cells.push(cell);
        }
        Ok(cells)
    })
}

/// Passes each cell to `visitor`, flat indexes rising, until it breaks. An error may come after cells were passed.
///
/// ```
/// use std::ops::ControlFlow;
/// use headwater_pipeline::cells::{self, Cell, Compression, RAW_BYTES_MAX};
///
/// let cells: Vec<Cell> = (0..10).map(|flat_index| Cell { flat_index, owner_id: flat_index % 2, marker: 1, ..Cell::default() }).collect();
/// let blob = cells::encode(&cells, Compression::NONE);
/// let mut owned = 0;
/// cells::visit(&blob, RAW_BYTES_MAX, |cell| {
///     owned += u32::from(cell.owner_id == 1);
///     ControlFlow::Continue(())
/// })?;
/// assert_eq!(owned, 5);
/// # Ok::<(), headwater_pipeline::Error>(())
/// ```
pub fn visit(
    blob: &[u8],
    raw_bytes_max: u64,
    mut visitor: impl FnMut(Cell) -> ControlFlow<()>,
) -> Result<()> {
    with_raw(blob, raw_bytes_max, |raw| {
        let mut columns = Columns::open(raw)?;
        while let Some(cell) = columns.next()? {
            if visitor(cell).is_break() {
                break;
            }
        }
        Ok(())
    })
}

/// The cell of a flat index; `None` if it is empty.
pub fn find(blob: &[u8], flat_index: u64, raw_bytes_max: u64) -> Result<Option<Cell>> {
    let mut found = None;
    visit(blob, raw_bytes_max, |cell| {
        if cell.flat_index < flat_index {
            return ControlFlow::Continue(());
        }
        found = Some(cell).filter(|cell| cell.flat_index == flat_index);
        ControlFlow::Break(())
    })?;
    Ok(found)
}

/// Calls `read` with the raw columns of a blob: those of an empty blob are no bytes.
pub(super) fn with_raw<T>(
    blob: &[u8],
    raw_bytes_max: u64,
    read: impl FnOnce(&[u8]) -> Result<T>,
) -> Result<T> {
    if blob.is_empty() {
        return read(&[]);
    }
    let Header { codec, raw_bytes, content } = Header::read(blob)?;
    if raw_bytes > raw_bytes_max {
        let text = format!("cells of {raw_bytes} bytes: at most {raw_bytes_max} are decoded");
        return Err(Error::permanent(ErrorCode::DecodeFailed, text));
    }
    match codec {
        Codec::None if content.len() as u64 == raw_bytes => read(content),
        Codec::None => {
            let came = content.len();
            Err(damaged(format_args!("{came} bytes, the header says {raw_bytes}")))
        }
        Codec::Zstd => {
            let bytes = usize::try_from(raw_bytes).map_err(damaged)?;
            let raw = decompressed(content, bytes).map_err(|error| damaged(format_args!("zstd: {error}")))?;
            read(&raw)
        }
    }
}

/// Reads all columns side by side.
struct Columns<'r> {
    /// Cells that were not read yet.
    left: usize,
    /// The last flat index.
    before: Option<u64>,
    indexes: &'r [u8],
    values: [Values<'r>; COLUMNS - 1],
}

/// A column other than the first.
#[derive(Clone, Copy)]
enum Values<'r> {
    Constant(u64),
    Varints(&'r [u8]),
}

impl<'r> Columns<'r> {
    fn open(raw: &'r [u8]) -> Result<Self> {
        if raw.is_empty() {
            let values = [Values::Constant(0); COLUMNS - 1];
            return Ok(Columns { left: 0, before: None, indexes: &[], values });
        }
        let mut rest = raw;
        let count = varint::take(&mut rest).ok_or_else(|| damaged("the number of cells ends early"))?;
        let (FORM_VARINTS, indexes) = take_column(&mut rest)? else {
            return Err(damaged("flat indexes in another form than varints"));
        };
        // Each has a byte at least. So memory for cells is taken only if as many bytes were there.
        let left = usize::try_from(count).ok().filter(|count| (1..=indexes.len()).contains(count));
        let left = left.ok_or_else(|| {
            damaged(format_args!("{count} cells in {} bytes of flat indexes", indexes.len()))
        })?;
        let mut values = [Values::Constant(0); COLUMNS - 1];
        for column in &mut values {
            *column = Values::open(take_column(&mut rest)?)?;
        }
        if !rest.is_empty() {
            return Err(damaged(format_args!("{} bytes after the last column", rest.len())));
        }
        Ok(Columns { left, before: None, indexes, values })
    }

    #[inline]
    fn next(&mut self) -> Result<Option<Cell>> {
        if self.left == 0 {
            return self.end();
        }
        let cell = self.read().ok_or_else(|| damaged("a column has fewer, larger or unordered values"))?;
        self.left -= 1;
        Ok(Some(cell))
    }

    /// `None` if the columns are not sound.
    #[inline]
    fn read(&mut self) -> Option<Cell> {
        let step = varint::take(&mut self.indexes)?;
        let flat_index = match self.before {
            None => step,
            // A step of 0 would be the same cell again.
            Some(before) => before.checked_add(step).filter(|_| step > 0)?,
        };
        self.before = Some(flat_index);
        let [molecule_type, molecule_value, owner_id, marker] = &mut self.values;
        Some(Cell {
            flat_index,
            molecule_type: u32::try_from(molecule_type.take()?).ok()?,
            molecule_value: unzigzag(molecule_value.take()?),
            owner_id: owner_id.take()?,
            marker: u32::try_from(marker.take()?).ok()?,
        })
    }

    /// After the last cell all columns must be used up.
    fn end(&self) -> Result<Option<Cell>> {
        let is_used_up = |values: &Values<'_>| match values {
            Values::Constant(_) => true,
            Values::Varints(bytes) => bytes.is_empty(),
        };
        if self.indexes.is_empty() && self.values.iter().all(is_used_up) {
            return Ok(None);
        }
        Err(damaged("a column has more values than there are cells"))
    }
}

impl<'r> Values<'r> {
    fn open((form, mut content): (u8, &'r [u8])) -> Result<Self> {
        match form {
            FORM_VARINTS => Ok(Values::Varints(content)),
            FORM_CONSTANT => match (varint::take(&mut content), content) {
                (Some(value), []) => Ok(Values::Constant(value)),
                _ => Err(damaged("a column of one value has another length")),
            },
            other => Err(damaged(format_args!("a column of form {other}"))),
        }
    }

    #[inline]
    fn take(&mut self) -> Option<u64> {
        match self {
            Values::Constant(value) => Some(*value),
            Values::Varints(bytes) => varint::take(bytes),
        }
    }
}

/// The form and the content of the next column.
fn take_column<'r>(rest: &mut &'r [u8]) -> Result<(u8, &'r [u8])> {
    let length = varint::take(rest).and_then(|length| usize::try_from(length).ok());
    let column = length.and_then(|length| rest.split_at_checked(length));
    let Some((&[form, ref content @ ..], after)) = column else {
        return Err(damaged("a column ends early"));
    };
    *rest = after;
    Ok((form, content))
}
