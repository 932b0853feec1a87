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
//! Form 0 is one varint, the value of every cell; form 1 is one varint per cell. Flat indexes rise and are stored as differences,
//! always in form 1; values are zigzag. No cells are no bytes at all.

use bytes::Bytes;

use crate::error::{Error, ErrorCode, Result};

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
/// A column with one value for all cells.
const FORM_CONSTANT: u8 = 0;
/// A column with one varint per cell.
const FORM_VARINTS: u8 = 1;

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
    // Most varints have one byte; a longer column grows the buffer once.
    let mut raw = Vec::with_capacity(16 + cells.len() * (COLUMNS + 1));
    varint::put(&mut raw, cells.len() as u64);
    let mut before = 0;
    put_column(&mut raw, cells.len(), FORM_VARINTS, |column| {
        for cell in cells {
            varint::put(column, cell.flat_index - before);
            before = cell.flat_index;
        }
    });
    put_values(&mut raw, cells, |cell| u64::from(cell.molecule_type));
    put_values(&mut raw, cells, |cell| varint::zigzag(cell.molecule_value));
    put_values(&mut raw, cells, |cell| cell.owner_id);
    put_values(&mut raw, cells, |cell| u64::from(cell.marker));
    (wrap(&raw, compression), cells.len() as u64)
}

/// A column of values, as one if all are equal.
fn put_values(raw: &mut Vec<u8>, cells: &[Cell], value_of: impl Fn(&Cell) -> u64) {
    let first = value_of(&cells[0]);
    if cells.iter().all(|cell| value_of(cell) == first) {
        put_column(raw, 1, FORM_CONSTANT, |column| varint::put(column, first));
    } else {
        put_column(raw, cells.len(), FORM_VARINTS, |column| {
            for cell in cells {
                varint::put(column, value_of(cell));
            }
        });
    }
}

/// The length stands in front of the content but is known after it. A guess by the number of values is right for most columns; where
/// it is not, the content moves by the difference.
fn put_column(raw: &mut Vec<u8>, values: usize, form: u8, put: impl FnOnce(&mut Vec<u8>)) {
    let begin = raw.len();
    let guessed = varint::len(values as u64 + 1);
    raw.resize(begin + guessed, 0);
    raw.push(form);
    put(raw);
    let length = (raw.len() - begin - guessed) as u64;
    let mut prefix = Vec::with_capacity(varint::BYTES_MAX);
    varint::put(&mut prefix, length);
    raw.splice(begin..begin + guessed, prefix);
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
