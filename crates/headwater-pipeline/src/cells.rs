//! Cells of a tick as packed columns: what batch files and index rows contain.
//!
//! A blob names its codec and version, so rows of different settings are read side by side. The indexer stores a blob as it came;
//! only queries and the strategy `regions` decode it.
//!
//! ```text
//! blob    version (1 byte) | codec (1 byte) | length of raw (varint) | raw, compressed by the codec
//! raw     number of cells (varint) | 5 columns: flat index, type, value, owner, marker
//! column  length in bytes (varint) | form (1 byte) | content
//! ```
//! The forms of a column, of which the smallest is taken that is fast to read:
//! - 0: one varint, the value of every cell
//! - 1: one varint per cell
//! - 2: one byte per cell
//! - 3: two bytes per cell, the low ones of all cells first
//!
//! The column of flat indexes has the first one, and then for each cell how many empty ones are before it; it is never of form 0. Molecule
//! values are zigzag. No cells are no bytes at all.

use bytes::Bytes;

use crate::error::{Error, ErrorCode, Result};

mod column;
mod compression;
mod decode;
mod varint;

use compression::Codec;
pub(crate) use compression::decompressed;
pub use compression::{Compression, LEVEL_DEFAULT};
pub use decode::{decode, decode_within, find, visit};

/// The version of blobs that this program writes, and the only one that it reads.
pub const BLOB_VERSION: u8 = 1;
/// How many bytes [`decode`] decompresses at most.
pub const RAW_BYTES_MAX: u64 = 256 * 1024 * 1024;

/// The columns of a cell.
const COLUMNS: usize = 5;
/// One cell that is not empty.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Cell {
    /// Its place: see [`World::coordinates`](crate::world::World::coordinates).
    pub flat_index: u64,
    /// The type of its molecule.
    pub molecule_type: u32,
    /// The value of its molecule.
    pub molecule_value: i64,
    /// The organism that owns it; 0 for none.
    pub owner_id: u64,
    /// The source's mark.
    pub marker: u32,
}

impl Cell {
    /// Whether it holds nothing: such cells are not stored.
    pub fn is_empty(&self) -> bool {
        self.molecule_type == 0 && self.molecule_value == 0 && self.owner_id == 0 && self.marker == 0
    }
}

impl From<Cell> for crate::contracts::CellState {
    fn from(cell: Cell) -> Self {
        let Cell { flat_index, molecule_type, molecule_value, owner_id, marker } = cell;
        Self { flat_index, molecule_type, molecule_value, owner_id, marker }
    }
}

/// The cells as a blob. In any order; empty ones are left out, and of those with the same flat index the first is kept.
///
/// ```
/// use headwater_pipeline::cells::{self, Cell, Compression};
///
/// let cell = Cell { flat_index: 7, molecule_type: 1, molecule_value: -3, owner_id: 0, marker: 0 };
/// let blob = cells::encode(&[cell, Cell { flat_index: 8, ..Cell::default() }], Compression::default());
/// assert_eq!(cells::decode(&blob)?, [cell]);
/// # Ok::<(), headwater_pipeline::Error>(())
/// ```
pub fn encode(cells: &[Cell], compression: Compression) -> Bytes {
    encode_counted(cells, compression).0
}

/// The same, and how many cells the blob has: `cell_count` of a tick.
pub fn encode_counted(cells: &[Cell], compression: Compression) -> (Bytes, u64) {
    let is_ready =
        cells.is_sorted_by(|a, b| a.flat_index < b.flat_index) && !cells.iter().any(Cell::is_empty);
    if is_ready {
        return encode_ready(cells, compression);
    }
    let mut kept: Vec<Cell> = cells.iter().filter(|cell| !cell.is_empty()).copied().collect();
    // Stable: the first of equal ones stays in front.
    kept.sort_by_key(|cell| cell.flat_index);
    kept.dedup_by_key(|cell| cell.flat_index);
    encode_ready(&kept, compression)
}

/// `cells` are rising and none is empty.
fn encode_ready(cells: &[Cell], compression: Compression) -> (Bytes, u64) {
    if cells.is_empty() {
        return (Bytes::new(), 0);
    }
    let mut raw = Vec::with_capacity(32 + cells.len() * COLUMNS * 2);
    varint::put(&mut raw, cells.len() as u64);
    let mut values = Vec::with_capacity(cells.len());
    let mut next = 0;
    column::put(&mut raw, &mut values, false, cells, |cell| {
        let empty = cell.flat_index - next;
        // The last one may be the largest number.
        next = cell.flat_index.wrapping_add(1);
        empty
    });
    column::put(&mut raw, &mut values, true, cells, |cell| u64::from(cell.molecule_type));
    column::put(&mut raw, &mut values, true, cells, |cell| varint::zigzag(cell.molecule_value));
    column::put(&mut raw, &mut values, true, cells, |cell| cell.owner_id);
    column::put(&mut raw, &mut values, true, cells, |cell| u64::from(cell.marker));
    (wrap(&raw, compression), cells.len() as u64)
}

/// The blob of raw columns.
fn wrap(raw: &[u8], compression: Compression) -> Bytes {
    let mut blob = Vec::with_capacity(2 + varint::BYTES_MAX + compression.bound(raw.len()));
    blob.push(BLOB_VERSION);
    blob.push(compression.codec() as u8);
    varint::put(&mut blob, raw.len() as u64);
    compression.compress_onto(raw, &mut blob);
    // The bound of a compressor is far above what it needs.
    blob.shrink_to_fit();
    blob.into()
}

/// The same cells under another codec. A blob that has the codec already is returned as it is, whatever its level was.
pub fn recode(blob: &Bytes, compression: Compression, raw_bytes_max: u64) -> Result<Bytes> {
    if blob.is_empty() || Header::read(blob)?.codec == compression.codec() {
        return Ok(blob.clone());
    }
    decode::with_raw(blob, raw_bytes_max, |raw| Ok(wrap(raw, compression)))
}

/// How many bytes decoding a blob decompresses, read from its first bytes.
pub fn raw_bytes(blob: &[u8]) -> Result<u64> {
    if blob.is_empty() { Ok(0) } else { Ok(Header::read(blob)?.raw_bytes) }
}

/// The codec of a blob by name, `none` or `zstd`; `None` of an empty one.
pub fn codec_name(blob: &[u8]) -> Result<Option<&'static str>> {
    if blob.is_empty() { Ok(None) } else { Ok(Some(Header::read(blob)?.codec.as_str())) }
}

/// What the first bytes of a blob say.
struct Header<'b> {
    codec: Codec,
    raw_bytes: u64,
    content: &'b [u8],
}

impl<'b> Header<'b> {
    fn read(blob: &'b [u8]) -> Result<Self> {
        let &[version, codec, ref rest @ ..] = blob else {
            return Err(damaged(format_args!("{} bytes are too few for a header", blob.len())));
        };
        if version != BLOB_VERSION {
            let known = format!("this program knows version {BLOB_VERSION}");
            return Err(Error::permanent(
                ErrorCode::DecodeFailed,
                format!("cells of version {version}: {known}"),
            ));
        }
        let Some(codec) = Codec::from_number(codec) else {
            let known = "this program knows 0 (none) and 1 (zstd)";
            return Err(Error::permanent(
                ErrorCode::DecodeFailed,
                format!("cells of codec {codec}: {known}"),
            ));
        };
        let mut content = rest;
        let raw_bytes = varint::take(&mut content).ok_or_else(|| damaged("the header ends early"))?;
        Ok(Header { codec, raw_bytes, content })
    }
}

fn damaged(what: impl std::fmt::Display) -> Error {
    Error::permanent(ErrorCode::DecodeFailed, format!("damaged cells: {what}"))
}

#[cfg(test)]
mod tests;
