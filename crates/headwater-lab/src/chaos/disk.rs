//! A disk rebuilt from the record of what a process wrote and synced: what Linux leaves behind when the power fails, also
//! after a sync that failed. Pure.
//!
//! A sync that fails marks the pages clean: they are not on the disk, and no later sync writes them unless they are
//! written again. Programs that read still see them.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, bail};
use rand::RngExt;
use rand::rngs::StdRng;

const PAGE: usize = 4_096;

/// One operation of a process on a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Deed {
    Write { file: String, offset: usize, bytes: Vec<u8> },
    Truncate { file: String, size: usize },
    Remove { file: String },
    Sync { file: String },
    FailedSync { file: String },
}

/// Reads the record of the preloaded library. An operation that was cut off by the end of the process is left out.
pub(super) fn read(record: &[u8]) -> Result<Vec<Deed>> {
    let (mut deeds, mut names, mut at) = (vec![], BTreeMap::new(), 0);
    while at < record.len() {
        let kind = record[at];
        let Some((deed, next)) = read_one(record, at + 1, kind, &mut names)? else { break };
        deeds.extend(deed);
        at = next;
    }
    Ok(deeds)
}

fn read_one(
    record: &[u8],
    at: usize,
    kind: u8,
    names: &mut BTreeMap<usize, String>,
) -> Result<Option<(Option<Deed>, usize)>> {
    let number = |at: usize| {
        let bytes = record.get(at..at + 8).and_then(|bytes| bytes.try_into().ok());
        bytes.and_then(|bytes| usize::try_from(i64::from_ne_bytes(bytes)).ok())
    };
    let Some(file) = number(at) else { return Ok(None) };
    if matches!(kind, b'O' | b'U') {
        let Some(name) = number(at + 8).and_then(|length| record.get(at + 16..at + 16 + length)) else {
            return Ok(None);
        };
        let (next, name) = (at + 16 + name.len(), String::from_utf8_lossy(name).into_owned());
        if kind == b'U' {
            return Ok(Some((Some(Deed::Remove { file: name }), next)));
        }
        names.insert(file, name);
        return Ok(Some((None, next)));
    }
    let file = names.get(&file).context("an operation on a file that was never opened")?.clone();
    Ok(match kind {
        b'W' => {
            let Some((offset, length)) = number(at + 8).zip(number(at + 16)) else { return Ok(None) };
            let Some(bytes) = record.get(at + 24..at + 24 + length) else { return Ok(None) };
            Some((Some(Deed::Write { file, offset, bytes: bytes.to_vec() }), at + 24 + length))
        }
        b'T' => number(at + 8).map(|size| (Some(Deed::Truncate { file, size }), at + 16)),
        b'S' => Some((Some(Deed::Sync { file }), at + 8)),
        b'F' => Some((Some(Deed::FailedSync { file }), at + 8)),
        other => bail!("unknown operation {other}"),
    })
}

/// One file: what programs see, what the disk holds, and what is not written back yet.
#[derive(Clone, Debug, Default)]
struct File {
    seen: Vec<u8>,
    kept: Vec<u8>,
    dirty: BTreeSet<usize>,
}

impl File {
    fn write(&mut self, offset: usize, bytes: &[u8]) {
        let end = offset + bytes.len();
        if self.seen.len() < end {
            self.seen.resize(end, 0);
        }
        self.seen[offset..end].copy_from_slice(bytes);
        self.dirty.extend(offset / PAGE..end.div_ceil(PAGE));
    }

    fn keep(&mut self, page: usize) {
        let (from, to) = (page * PAGE, ((page + 1) * PAGE).min(self.seen.len()));
        if from < to {
            self.kept.resize(self.seen.len().max(self.kept.len()), 0);
            self.kept[from..to].copy_from_slice(&self.seen[from..to]);
        }
    }
}

/// All files of a process.
#[derive(Clone, Debug, Default)]
pub(super) struct Disk(BTreeMap<String, File>);

impl Disk {
    pub(super) fn apply(&mut self, deed: &Deed) {
        match deed {
            Deed::Write { file, offset, bytes } => {
                self.0.entry(file.clone()).or_default().write(*offset, bytes);
            }
            // Sizes are in the file system's journal, which has them at once.
            Deed::Truncate { file, size } => {
                let file = self.0.entry(file.clone()).or_default();
                file.seen.resize(*size, 0);
                file.kept.resize(*size, 0);
                file.dirty.retain(|page| page * PAGE < *size);
            }
            Deed::Remove { file } => {
                self.0.remove(file);
            }
            Deed::Sync { file } => {
                let file = self.0.entry(file.clone()).or_default();
                for page in std::mem::take(&mut file.dirty) {
                    file.keep(page);
                }
            }
            Deed::FailedSync { file } => {
                self.0.entry(file.clone()).or_default().dirty.clear();
            }
        }
    }

    /// What programs see of a file.
    pub(super) fn seen(&self, file: &str) -> &[u8] {
        self.0.get(file).map_or(&[], |file| &file.seen)
    }

    /// What is left after a power cut: each page that was not written back yet is there or not, at random.
    pub(super) fn after_power_cut(&self, random: &mut StdRng) -> Vec<(&str, Vec<u8>)> {
        let chance = [0.0, 0.5, 1.0][random.random_range(0..3)];
        let cut = |(name, file): (&'_ String, &File)| {
            let mut file = file.clone();
            for page in std::mem::take(&mut file.dirty) {
                if random.random_bool(chance) {
                    file.keep(page);
                }
            }
            (name.clone(), file.kept)
        };
        let kept: Vec<(String, Vec<u8>)> = self.0.iter().map(cut).collect();
        self.0.keys().map(String::as_str).zip(kept.into_iter().map(|(_, bytes)| bytes)).collect()
    }
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;

    use super::*;

    fn write(offset: usize, byte: u8) -> Deed {
        Deed::Write { file: "f".into(), offset, bytes: vec![byte; PAGE] }
    }

    fn sync() -> Deed {
        Deed::Sync { file: "f".into() }
    }

    fn failed() -> Deed {
        Deed::FailedSync { file: "f".into() }
    }

    /// The first byte of each page after a power cut that dropped everything not written back.
    fn pages(deeds: &[Deed]) -> Vec<u8> {
        let mut disk = Disk::default();
        deeds.iter().for_each(|deed| disk.apply(deed));
        let file = &disk.0["f"];
        file.kept.chunks(PAGE).map(|page| page[0]).collect()
    }

    #[test]
    fn a_sync_keeps_what_was_written_and_nothing_else_does() {
        assert_eq!(pages(&[write(0, 1), sync(), write(PAGE, 2)]), [1]);
        assert_eq!(pages(&[write(0, 1), write(PAGE, 2), sync()]), [1, 2]);
    }

    #[test]
    fn what_a_failed_sync_dropped_no_later_one_writes() {
        assert_eq!(pages(&[write(0, 1), failed(), write(PAGE, 2), sync()]), [0, 2]);
        assert_eq!(pages(&[write(0, 1), failed(), write(0, 3), sync()]), [3], "unless it is written again");
    }

    #[test]
    fn a_power_cut_keeps_synced_pages_whatever_happens_to_the_rest() {
        let mut disk = Disk::default();
        [write(0, 1), sync(), write(PAGE, 2)].iter().for_each(|deed| disk.apply(deed));
        for seed in 0..20 {
            let files = disk.after_power_cut(&mut StdRng::seed_from_u64(seed));
            assert_eq!(files[0].1[0], 1);
        }
    }

    #[test]
    fn a_record_is_read_and_a_cut_end_left_out() {
        let number = |n: i64| n.to_ne_bytes().to_vec();
        let mut record = [vec![b'O'], number(3), number(1), b"f".to_vec()].concat();
        record.extend([vec![b'W'], number(3), number(8), number(2), b"xy".to_vec()].concat());
        record.extend(
            [vec![b'S'], number(3), vec![b'F'], number(3), vec![b'T'], number(3), number(5)].concat(),
        );
        record.extend([vec![b'U'], number(0), number(1), b"f".to_vec()].concat());
        record.extend([vec![b'W'], number(3), number(8), number(2), b"x".to_vec()].concat());
        let file = || "f".to_owned();
        assert_eq!(
            read(&record).unwrap(),
            [
                Deed::Write { file: file(), offset: 8, bytes: b"xy".to_vec() },
                Deed::Sync { file: file() },
                Deed::FailedSync { file: file() },
                Deed::Truncate { file: file(), size: 5 },
                Deed::Remove { file: file() },
            ]
        );
    }
}
