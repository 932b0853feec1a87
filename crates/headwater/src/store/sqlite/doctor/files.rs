//! Effects of other processes on the files of a store: a lock that is held for long, a log that cannot be truncated.

use std::path::Path;
use std::time::Duration;

use rusqlite::Connection;

use crate::store::Finding;
use crate::store::sqlite::checkpoint::{LARGE_BYTES, readers};
use crate::store::sqlite::{holder, trust};

/// In how many samples, and at which interval, the same process must hold the write lock.
const HELD_SAMPLES: u32 = 10;
const HELD_PAUSE: Duration = Duration::from_millis(50);

pub(super) fn check(connection: &Connection) -> Vec<Finding> {
    let Some(path) = connection.path().filter(|path| !path.is_empty()) else { return Vec::new() };
    let path = Path::new(path);
    held_lock(path).into_iter().chain(large_log(path, LARGE_BYTES)).collect()
}

/// A process that holds the lock in every sample, or is stopped while it holds the lock.
fn held_lock(path: &Path) -> Option<Finding> {
    let holder = holder::of_write_lock(path)?;
    if !holder.stopped {
        for _ in 1..HELD_SAMPLES {
            std::thread::sleep(HELD_PAUSE);
            if holder::of_write_lock(path)?.pid != holder.pid {
                return None;
            }
        }
    }
    let remedy = match holder.stopped {
        true => "continue it (SIGCONT) or end it; its open transaction is then rolled back",
        false => "end its transaction, or end it; the transaction is then rolled back",
    };
    Some(Finding {
        check: "write_lock",
        problem: format!("{holder} holds the write lock: nothing is published, claimed or settled meanwhile"),
        remedy: remedy.into(),
    })
}

/// A log that is larger than it ever gets without a reader that keeps it.
fn large_log(path: &Path, large_bytes: u64) -> Option<Finding> {
    let bytes = std::fs::metadata(trust::beside(path, "-wal")).ok()?.len();
    (bytes >= large_bytes).then(|| Finding {
        check: "large_log",
        problem: format!(
            "the write-ahead log has {} MB and cannot be truncated while older parts of it are read; readers: {}",
            bytes >> 20,
            readers(path)
        ),
        remedy: "end the read transaction that is open for long; the next commit restarts the log".into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_large_log_is_shown_with_its_size() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("store.db");
        std::fs::write(trust::beside(&path, "-wal"), vec![0; 3 << 20]).unwrap();
        assert_eq!(large_log(&path, 4 << 20), None);
        let problem = large_log(&path, 2 << 20).unwrap().problem;
        assert!(problem.contains("3 MB"), "{problem}");
    }
}
