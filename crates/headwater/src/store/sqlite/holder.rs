//! Which process holds a lock on the file: needed by a process that waits for it, and by an operator.
//!
//! The locks of the write-ahead log are bytes of `-shm`: 120 is held by the writer, 124 to 127 by readers of the log.
//! `F_GETLK` would name a holder too, but takes a descriptor of that file, and closing any descriptor of a file drops
//! all locks that this process holds on it, including those of its own connections. Reading `/proc/locks` takes none.
//! It lists only processes that are visible to this one, and exists only on Linux; on other systems the holder is
//! unknown.

use std::collections::BTreeSet;
use std::fmt;
use std::path::Path;

/// The byte of the write lock.
const WRITE_BYTE: u64 = 120;
/// The bytes held by readers of the log, which keep it from restarting. 123 is held by readers that need none of it.
const READ_BYTES: std::ops::RangeInclusive<u64> = 124..=127;
/// How often the kernel's list is read to find the holder.
const READS_MAX: u32 = 5;

/// A process that holds a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Holder {
    pub(super) pid: u32,
    /// The program it runs; `None` if that is not visible.
    program: Option<String>,
    /// The process is stopped: by a signal or a debugger.
    pub(super) stopped: bool,
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.pid == std::process::id() {
            return f.write_str("another connection of this process");
        }
        write!(f, "process {}", self.pid)?;
        match (&self.program, self.stopped) {
            (Some(program), true) => write!(f, " ({program}, stopped)"),
            (Some(program), false) => write!(f, " ({program})"),
            (None, true) => f.write_str(" (stopped)"),
            (None, false) => Ok(()),
        }
    }
}

/// The process that holds the write lock, as far as that can be found out. The kernel lists its locks in pieces and
/// may leave one out if others change meanwhile: so a list without the holder is read again.
pub(super) fn of_write_lock(database: &Path) -> Option<Holder> {
    (0..READS_MAX).find_map(|_| {
        let pid = Locks::of(database)?.holders("WRITE", WRITE_BYTE, WRITE_BYTE).into_iter().next()?;
        Some(describe(pid))
    })
}

/// The processes that read from the log now.
pub(super) fn of_read_locks(database: &Path) -> Vec<Holder> {
    let pids = Locks::of(database).map(|locks| locks.holders("READ", *READ_BYTES.start(), *READ_BYTES.end()));
    pids.unwrap_or_default().into_iter().map(describe).collect()
}

/// The system's list of locks, and the file that is searched for in it.
struct Locks {
    lines: String,
    device: String,
    inode: u64,
}

impl Locks {
    #[cfg(target_os = "linux")]
    fn of(database: &Path) -> Option<Self> {
        use std::os::unix::fs::MetadataExt;
        // `-shm` is beside the target of a symbolic link.
        let database = std::fs::canonicalize(database).ok()?;
        let metadata = std::fs::metadata(super::trust::beside(&database, "-shm")).ok()?;
        let (major, minor) = (rustix::fs::major(metadata.dev()), rustix::fs::minor(metadata.dev()));
        let lines = std::fs::read_to_string("/proc/locks").ok()?;
        Some(Locks { lines, device: format!("{major:02x}:{minor:02x}"), inode: metadata.ino() })
    }

    #[cfg(not(target_os = "linux"))]
    fn of(_: &Path) -> Option<Self> {
        None
    }

    /// The processes that hold a lock of a kind on any byte of a range. A line reads
    /// `1: POSIX  ADVISORY  WRITE 4711 fe:01:131077 120 120`; a line with `->` is of a process that waits.
    fn holders(&self, kind: &str, first: u64, last: u64) -> BTreeSet<u32> {
        let found = self.lines.lines().filter_map(|line| {
            let fields: Vec<&str> = line.split_whitespace().collect();
            let [_, "POSIX", _, of, pid, file, from, to] = fields[..] else { return None };
            let (device, inode) = file.rsplit_once(':')?;
            let to: u64 = if to == "EOF" { u64::MAX } else { to.parse().ok()? };
            let same = inode.parse::<u64>() == Ok(self.inode) && device == self.device;
            let covers = from.parse::<u64>().ok()? <= last && to >= first;
            (of == kind && same && covers).then(|| pid.parse().ok())?
        });
        found.collect()
    }
}

fn describe(pid: u32) -> Holder {
    let read = |file: &str| std::fs::read_to_string(format!("/proc/{pid}/{file}")).ok();
    let program = read("comm").map(|program| program.trim_end().to_owned());
    let stopped = read("stat").is_some_and(|stat| is_stopped(&stat));
    Holder { pid, program, stopped }
}

/// The state follows the program's name, which is in parentheses and may contain parentheses itself.
fn is_stopped(stat: &str) -> bool {
    stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with(['T', 't']))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holders_are_found_by_file_byte_and_kind() {
        let lines = "\
            1: POSIX  ADVISORY  WRITE 11 fe:01:77 120 120\n\
            1: -> POSIX  ADVISORY  WRITE 12 fe:01:77 120 120\n\
            2: POSIX  ADVISORY  READ 13 fe:01:77 124 124\n\
            3: POSIX  ADVISORY  READ 14 fe:01:77 123 123\n\
            4: POSIX  ADVISORY  WRITE 15 fe:01:78 120 120\n\
            5: POSIX  ADVISORY  WRITE 16 fe:02:77 120 120\n\
            6: FLOCK  ADVISORY  WRITE 17 fe:01:77 0 EOF\n\
            7: POSIX  ADVISORY  READ 18 fe:01:77 127 EOF\n";
        let locks = Locks { lines: lines.into(), device: "fe:01".into(), inode: 77 };
        assert_eq!(locks.holders("WRITE", WRITE_BYTE, WRITE_BYTE), BTreeSet::from([11]));
        assert_eq!(locks.holders("READ", *READ_BYTES.start(), *READ_BYTES.end()), BTreeSet::from([13, 18]));
    }

    #[test]
    fn a_stopped_process_is_distinguished_from_a_running_one() {
        assert!(is_stopped("4711 (a) T (b) T 1 2 3"));
        assert!(!is_stopped("4711 (a) T (b) S 1 2 3"));
        let stopped = Holder { pid: 1, program: Some("python3".into()), stopped: true };
        assert_eq!(stopped.to_string(), "process 1 (python3, stopped)");
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_process_that_is_stopped_is_described_so() {
        let mut child = std::process::Command::new("sh").args(["-c", "kill -STOP $$"]).spawn().unwrap();
        let until = std::time::Instant::now() + std::time::Duration::from_secs(60);
        while !describe(child.id()).stopped && std::time::Instant::now() < until {
            std::thread::yield_now();
        }
        let holder = describe(child.id());
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(holder.to_string(), format!("process {} (sh, stopped)", child.id()));
        assert!(!describe(std::process::id()).stopped);
    }
}
