//! Repair of the write-ahead log after a failed sync.
//!
//! After a failed fsync Linux marks the pages that it could not write as clean: they are in memory, not on the disk,
//! and no later fsync writes them. Claims and settlements before the failed commit were not synced on their own, so
//! their frames are among those pages. SQLite appends behind them. Each frame's checksum continues its predecessor's,
//! so after a power cut the log ends at the first frame that is missing: everything behind it is lost, synced or not.
//!
//! A checkpoint does not repair that. Its own sync of the log succeeds without writing anything, and then the file
//! gets pages that are newer than the log on the disk. A power cut before the log has restarted replays the older log
//! over them, and the database is damaged, not just shorter. So this process runs no checkpoint before the log is
//! complete again.
//!
//! Rewriting the log repairs it. Under SQLite's write lock no process appends to the log or restarts it. Every valid
//! frame is read, its checksum is compared, and the frame is written back to the same position; that makes the pages
//! dirty, and the following sync writes them. If the sync succeeds, the disk has every frame up to the last commit,
//! and appending may continue: the chain of checksums has no hole. Readers find the same bytes at the same positions.
//! If a page was evicted from memory before it could be written again, a checksum differs: the frames are lost, and
//! the store fails as damaged.
//!
//! Other processes: on Linux every descriptor that was open when the write failed reports the failure once, so each
//! process that syncs or checkpoints this log detects it by itself and does the same. A process that opens the file
//! later finds the marker ([`super::trust`]) and begins with the repair. A program that uses SQLite without Headwater
//! does neither: what it commits between the failure and the repair is as safe as SQLite alone makes it.

use std::fs::{File, OpenOptions};
use std::io::{self, BufReader, Read, Seek, SeekFrom, Write};
use std::path::Path;

/// The size of the log's header, and of each frame's header.
const HEADER_BYTES: usize = 32;
const FRAME_HEADER_BYTES: usize = 24;
/// How much is rewritten at a time.
const CHUNK_BYTES: u64 = 1024 * 1024;

/// Rewrites the first `frames` frames of the log and syncs it; `InvalidData` if they differ from what was written.
///
/// The caller holds SQLite's write lock and counted `frames` under it.
///
/// Unlike a descriptor of the database, one of the log may be closed: SQLite holds no locks on it.
pub(super) fn rewrite(log: &Path, frames: u64) -> io::Result<()> {
    let mut file = OpenOptions::new().read(true).write(true).open(log)?;
    if frames > 0 {
        let mut left = checked_bytes(&file, frames)?;
        let (mut at, mut chunk) = (0, Vec::new());
        while left > 0 {
            let bytes = left.min(CHUNK_BYTES);
            chunk.resize(usize::try_from(bytes).expect("a chunk is small"), 0);
            file.seek(SeekFrom::Start(at))?;
            file.read_exact(&mut chunk)?;
            file.seek(SeekFrom::Start(at))?;
            file.write_all(&chunk)?;
            (at, left) = (at + bytes, left - bytes);
        }
    }
    file.sync_all()
}

/// Compares all checksums. Returns the size of the header and the frames in bytes.
fn checked_bytes(file: &File, frames: u64) -> io::Result<u64> {
    let mut reader = BufReader::with_capacity(1 << 16, file);
    reader.seek(SeekFrom::Start(0))?;
    let mut header = [0; HEADER_BYTES];
    reader.read_exact(&mut header)?;
    let mut chain = Chain::begin(&header).ok_or_else(|| damaged("its header"))?;
    let page_bytes = u64::from(word(&header, 8));
    let mut frame = vec![0; FRAME_HEADER_BYTES + usize::try_from(page_bytes).expect("a page is small")];
    for number in 1..=frames {
        reader.read_exact(&mut frame)?;
        if !chain.continues_with(&header, &frame) {
            return Err(damaged(&format!("frame {number} of {frames}")));
        }
    }
    Ok(HEADER_BYTES as u64 + frames * (FRAME_HEADER_BYTES as u64 + page_bytes))
}

fn damaged(what: &str) -> io::Error {
    let text = format!(
        "{what} in the write-ahead log differs from what was written: the disk failed and memory no longer has it"
    );
    io::Error::new(io::ErrorKind::InvalidData, text)
}

/// SQLite's running checksum of a log.
struct Chain {
    big_endian: bool,
    sums: (u32, u32),
}

impl Chain {
    /// Starts with the header's own checksum; `None` if it does not match.
    fn begin(header: &[u8; HEADER_BYTES]) -> Option<Self> {
        let magic = word(header, 0);
        let mut chain = Chain { big_endian: magic & 1 == 1, sums: (0, 0) };
        chain.add(&header[..24]);
        let known = magic & !1 == 0x377f_0682 && matches!(word(header, 8), 512..=65_536);
        (known && chain.sums == (word(header, 24), word(header, 28))).then_some(chain)
    }

    fn continues_with(&mut self, header: &[u8; HEADER_BYTES], frame: &[u8]) -> bool {
        self.add(&frame[..8]);
        self.add(&frame[FRAME_HEADER_BYTES..]);
        frame[8..16] == header[16..24] && self.sums == (word(frame, 16), word(frame, 20))
    }

    fn add(&mut self, bytes: &[u8]) {
        let number = if self.big_endian { u32::from_be_bytes } else { u32::from_le_bytes };
        for pair in bytes.chunks_exact(8) {
            let half = |at: usize| number(pair[at..at + 4].try_into().expect("four bytes"));
            self.sums.0 = self.sums.0.wrapping_add(half(0)).wrapping_add(self.sums.1);
            self.sums.1 = self.sums.1.wrapping_add(half(4)).wrapping_add(self.sums.0);
        }
    }
}

/// Numbers in headers are big-endian on every machine.
fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

#[cfg(test)]
mod tests {
    use rusqlite::Connection;

    use super::*;

    #[test]
    fn a_log_is_rewritten_as_it_was_and_a_lost_page_is_noticed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.db");
        let connection = Connection::open(&path).unwrap();
        connection
            .execute_batch(
                "PRAGMA journal_mode = WAL; CREATE TABLE t (n); INSERT INTO t VALUES (randomblob(20000)); INSERT INTO t VALUES (2)",
            )
            .unwrap();
        let frames: u64 = connection
            .query_row("PRAGMA wal_checkpoint(NOOP)", [], |row| row.get::<_, i64>(1))
            .unwrap() as u64;
        assert!(frames > 5, "{frames}");
        let log = folder.path().join("x.db-wal");
        let before = std::fs::read(&log).unwrap();
        rewrite(&log, frames).unwrap();
        assert_eq!(std::fs::read(&log).unwrap(), before);
        // More frames than there are, and a frame that differs from what was written.
        assert!(rewrite(&log, frames + 1).is_err());
        let mut torn = before.clone();
        torn[HEADER_BYTES + 3 * (FRAME_HEADER_BYTES + 4096) + 100] ^= 1;
        std::fs::write(&log, &torn).unwrap();
        assert_eq!(rewrite(&log, frames).unwrap_err().kind(), io::ErrorKind::InvalidData);
        assert_eq!(std::fs::read(&log).unwrap(), torn, "nothing is written over it");
    }
}
