//! From a blob to its cells: all of them, one after the other, or one.

use std::ops::ControlFlow;

use super::column::{BLOCK, Column};
use super::compression::{Codec, decompressed};
use super::varint::{self, unzigzag};
use super::{COLUMNS, Cell, Header, RAW_BYTES_MAX, damaged};
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
        let mut block = Block::default();
        while columns.read(&mut block)? {
            cells.extend(block.cells());
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
        let mut block = Block::default();
        while columns.read(&mut block)? {
            if block.cells().try_for_each(&mut visitor).is_break() {
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
    /// The lowest flat index that the next cell may have; `None` after the largest number.
    lowest: Option<u64>,
    columns: [Column<'r>; COLUMNS],
}

/// The next cells, column by column.
struct Block {
    count: usize,
    values: [[u64; BLOCK]; COLUMNS],
}

impl Default for Block {
    fn default() -> Self {
        Block { count: 0, values: [[0; BLOCK]; COLUMNS] }
    }
}

impl<'r> Columns<'r> {
    fn open(raw: &'r [u8]) -> Result<Self> {
        let mut columns = [Column::Constant(0); COLUMNS];
        if raw.is_empty() {
            return Ok(Columns { left: 0, lowest: Some(0), columns });
        }
        let mut rest = raw;
        let count = varint::take(&mut rest).ok_or_else(|| damaged("the number of cells ends early"))?;
        for column in &mut columns {
            *column = Column::take(&mut rest)?;
        }
        if !rest.is_empty() {
            return Err(damaged(format_args!("{} bytes after the last column", rest.len())));
        }
        // A flat index has a byte at least. So memory for cells is taken only if as many bytes were there.
        let most = columns[0].values_max().unwrap_or(0);
        let left = usize::try_from(count).ok().filter(|count| (1..=most).contains(count));
        let left = left.ok_or_else(|| damaged(format_args!("{count} cells and {most} flat indexes")))?;
        Ok(Columns { left, lowest: Some(0), columns })
    }

    /// Reads the next cells; false after the last, when all columns must be used up.
    fn read(&mut self, block: &mut Block) -> Result<bool> {
        block.count = self.left.min(BLOCK);
        self.left -= block.count;
        if block.count == 0 {
            return match self.columns.iter().all(Column::is_used_up) {
                true => Ok(false),
                false => Err(damaged("a column has more values than there are cells")),
            };
        }
        for (column, values) in self.columns.iter_mut().zip(&mut block.values) {
            let read = column.read(&mut values[..block.count]);
            read.ok_or_else(|| damaged("a column has fewer values than there are cells"))?;
        }
        let [indexes, types, _, _, markers] = &mut block.values;
        self.add_up(&mut indexes[..block.count])
            .ok_or_else(|| damaged("a flat index is above the largest number"))?;
        let above =
            |values: &[u64; BLOCK]| values[..block.count].iter().fold(0, |any, value| any | value) >> 32;
        if above(types) | above(markers) != 0 {
            return Err(damaged("a type or marker has more than 32 bits"));
        }
        Ok(true)
    }

    /// From numbers of empty cells to flat indexes.
    fn add_up(&mut self, indexes: &mut [u64]) -> Option<()> {
        for index in indexes {
            *index = self.lowest?.checked_add(*index)?;
            self.lowest = index.checked_add(1);
        }
        Some(())
    }
}

impl Block {
    #[allow(clippy::cast_possible_truncation, reason = "types and markers were checked when they were read")]
    fn cells(&self) -> impl ExactSizeIterator<Item = Cell> + '_ {
        let [indexes, types, values, owners, markers] = &self.values;
        (0..self.count.min(BLOCK)).map(|at| Cell {
            flat_index: indexes[at],
            molecule_type: types[at] as u32,
            molecule_value: unzigzag(values[at]),
            owner_id: owners[at],
            marker: markers[at] as u32,
        })
    }
}
