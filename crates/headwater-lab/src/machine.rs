//! Facts about the machine, and the clocks that measure processor time.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde::Serialize;

use crate::check::percentile_ms;

/// Facts that figures depend on besides the code.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Machine {
    pub(crate) cores: usize,
    pub(crate) kernel: String,
    pub(crate) processor: String,
    pub(crate) memory_gib: u64,
    pub(crate) filesystem: String,
}

impl Machine {
    /// Reads the facts; `work` is the directory whose file system holds the data.
    pub(crate) fn read(work: &Path) -> Self {
        let line = |file: &str, prefix: &str| {
            let text = fs::read_to_string(file).unwrap_or_default();
            let found = text.lines().find(|line| line.starts_with(prefix)).unwrap_or_default();
            found.split_once(':').map(|(_, value)| value.trim().to_owned()).unwrap_or_default()
        };
        let memory_kib: u64 =
            line("/proc/meminfo", "MemTotal").trim_end_matches(" kB").parse().unwrap_or_default();
        Machine {
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            kernel: fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim().to_owned(),
            processor: line("/proc/cpuinfo", "model name"),
            memory_gib: memory_kib.div_ceil(1024 * 1024),
            filesystem: filesystem_of(work),
        }
    }
}

impl std::fmt::Display for Machine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Machine { cores, kernel, processor, memory_gib, filesystem } = self;
        write!(f, "{cores} cores ({processor}), {memory_gib} GiB, Linux {kernel}, {filesystem}")
    }
}

/// The type of the file system of a path: that of the longest mount point above it.
fn filesystem_of(path: &Path) -> String {
    let Ok(path) = path.canonicalize() else { return "unknown".into() };
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let found = mounts
        .lines()
        .filter_map(|line| {
            let mut fields = line.split(' ').skip(1);
            Some((fields.next()?, fields.next()?))
        })
        .filter(|(point, _)| path.starts_with(point))
        .max_by_key(|(point, _)| point.len());
    found.map_or_else(|| "unknown".into(), |(_, kind)| kind.to_owned())
}

/// Raises the limit of open files of this process, and of those that it starts, as far as it may: a connection is one.
pub(crate) fn raise_open_files() -> Result<u64> {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum })?;
    Ok(maximum.unwrap_or(u64::MAX))
}

/// How busy all cores are with something else right now, in percent; measured for a second before anything starts.
pub(crate) async fn busy_percent() -> f64 {
    fn ticks() -> Option<(u64, u64)> {
        let text = fs::read_to_string("/proc/stat").ok()?;
        let fields: Vec<u64> =
            text.lines().next()?.split_whitespace().filter_map(|field| field.parse().ok()).collect();
        // user, nice, system, idle, iowait, ...; the first eight make up all time.
        Some((fields.get(3)? + fields.get(4)?, fields.iter().take(8).sum()))
    }
    let before = ticks();
    tokio::time::sleep(Duration::from_secs(1)).await;
    match (before, ticks()) {
        (Some((idle, all)), Some((idle_after, all_after))) if all_after > all => {
            100.0 - (idle_after - idle) as f64 / (all_after - all) as f64 * 100.0
        }
        _ => 0.0,
    }
}

/// Processor time used so far by this process and by others named by their ids.
pub(crate) fn cpu_time(and_of: &[u32]) -> Result<Duration> {
    Ok(of_process(std::process::id())? + cpu_time_of(and_of))
}

/// Processor time used so far by these processes.
pub(crate) fn cpu_time_of(pids: &[u32]) -> Duration {
    // A process that ended in between has nothing more to add.
    pids.iter().map(|pid| of_process(*pid).unwrap_or_default()).sum()
}

/// Processor time used so far by threads of this process that have this name.
pub(crate) fn cpu_time_of_thread(name: &str) -> Duration {
    let mut nanoseconds = 0;
    for task in fs::read_dir("/proc/self/task").into_iter().flatten().flatten() {
        let read = |file: &str| fs::read_to_string(task.path().join(file)).unwrap_or_default();
        if read("comm").trim_end() == name {
            nanoseconds += first_number(&read("schedstat"));
        }
    }
    Duration::from_nanos(nanoseconds)
}

/// Memory of this process that is in use right now.
pub(crate) fn resident_bytes() -> Result<u64> {
    memory_of("self", "VmRSS:")
}

/// Memory of another process that is in use right now.
pub(crate) fn resident_bytes_of(pid: u32) -> Result<u64> {
    memory_of(&pid.to_string(), "VmRSS:")
}

/// The most memory that a process had in use at any time.
pub(crate) fn peak_bytes_of(pid: u32) -> Result<u64> {
    memory_of(&pid.to_string(), "VmHWM:")
}

fn memory_of(pid: &str, field: &str) -> Result<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).context("reading the memory in use")?;
    let line = text.lines().find_map(|line| line.strip_prefix(field));
    let line = line.with_context(|| format!("no {field} in it"))?;
    let kib: u64 = line.trim().trim_end_matches(" kB").parse().context("memory is not a number")?;
    Ok(kib * 1024)
}

/// The scheduler's nanoseconds, summed over threads: `/proc/pid/stat` counts in ticks of 10 ms, too coarse here.
fn of_process(pid: u32) -> Result<Duration> {
    let mut nanoseconds = 0;
    for task in fs::read_dir(format!("/proc/{pid}/task")).context("reading processor time")? {
        let Ok(text) = fs::read_to_string(task?.path().join("schedstat")) else { continue };
        nanoseconds += first_number(&text);
    }
    Ok(Duration::from_nanos(nanoseconds))
}

fn first_number(text: &str) -> u64 {
    text.split(' ').next().and_then(|first| first.parse().ok()).unwrap_or_default()
}

/// How often per second 4 KiB can be appended and synced to disk: the limit of everything durable.
pub(crate) fn fdatasync_per_second(directory: &Path, during: Duration) -> Result<f64> {
    use std::io::Write;
    fs::create_dir_all(directory)?;
    let path = directory.join("fdatasync.probe");
    let mut file = fs::File::create(&path)?;
    let (start, mut count) = (Instant::now(), 0u32);
    while start.elapsed() < during {
        file.write_all(&[b'x'; 4096])?;
        file.sync_data()?;
        count += 1;
    }
    let rate = f64::from(count) / start.elapsed().as_secs_f64();
    fs::remove_file(&path)?;
    Ok(rate)
}

/// How many bytes per second the disk takes, in large synced writes.
pub(crate) fn disk_bytes_per_second(directory: &Path) -> Result<f64> {
    use std::io::Write;
    const PIECE: usize = 1 << 20;
    const PIECES: u32 = 256;
    let path = directory.join("capacity.probe");
    let mut file = fs::File::create(&path)?;
    let piece = vec![b'x'; PIECE];
    let start = Instant::now();
    for _ in 0..PIECES {
        file.write_all(&piece)?;
    }
    file.sync_data()?;
    let rate = f64::from(PIECES) * PIECE as f64 / start.elapsed().as_secs_f64();
    fs::remove_file(&path)?;
    Ok(rate)
}

/// How long one append + fdatasync takes on a disk that had nothing to do before: the median, in milliseconds.
pub(crate) fn fdatasync_idle_ms(directory: &Path, samples: usize) -> Result<f64> {
    use std::io::Write;
    let path = directory.join("fdatasync.probe");
    let mut file = fs::File::create(&path)?;
    let mut taken = Vec::with_capacity(samples);
    for _ in 0..samples {
        std::thread::sleep(Duration::from_millis(7));
        let start = Instant::now();
        file.write_all(&[b'x'; 4096])?;
        file.sync_data()?;
        taken.push(start.elapsed());
    }
    fs::remove_file(&path)?;
    Ok(percentile_ms(&taken, 0.5))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spinning_shows_as_processor_time() {
        let before = cpu_time(&[]).unwrap();
        let start = Instant::now();
        while start.elapsed() < Duration::from_millis(30) {
            std::hint::spin_loop();
        }
        assert!(cpu_time(&[]).unwrap() > before);
    }

    #[test]
    fn time_of_a_named_thread_is_found() {
        let spin = || {
            let start = Instant::now();
            while start.elapsed() < Duration::from_millis(30) {
                std::hint::spin_loop();
            }
            (cpu_time_of_thread("spinner"), cpu_time_of_thread("no such one"))
        };
        let thread = std::thread::Builder::new().name("spinner".into()).spawn(spin).unwrap();
        let (own, none) = thread.join().unwrap();
        assert!(own > Duration::ZERO && none == Duration::ZERO);
    }

    #[test]
    fn memory_in_use_is_known() {
        let now = resident_bytes().unwrap();
        let pid = std::process::id();
        assert!(now > 100_000 && peak_bytes_of(pid).unwrap() >= now);
        assert!(resident_bytes_of(pid).unwrap() > 100_000);
    }

    #[test]
    fn the_machine_is_known() {
        let machine = Machine::read(Path::new("."));
        assert!(machine.cores > 0 && !machine.kernel.is_empty() && machine.filesystem != "unknown");
    }
}
