//! One process per source: a file that the kernel locks for as long as the process lives.
//!
//! Two processes that continue the same run from the same checkpoint would publish it twice and replace each other's checkpoints. A process
//! that was killed holds nothing: its lock ends with it.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Read as _, Write as _};
use std::path::Path;

use crate::config::{Config, ServiceOptions};
use crate::error::{Error, ErrorCode, Result};

/// The locks of the sources of this process. Released with it.
pub(super) struct SourceLocks(#[allow(dead_code, reason = "open as long as they are locked")] Vec<File>);

impl SourceLocks {
    /// Locks the directory of each source that is configured; refused if another process has it.
    pub(super) fn acquire(config: &Config) -> Result<Self> {
        let mut locks = Vec::new();
        for service in &config.services {
            if let ServiceOptions::Tidepool(options) = &service.options {
                locks.push(acquire(&options.checkpoint_directory, &service.name)?);
            }
        }
        Ok(SourceLocks(locks))
    }
}

fn acquire(directory: &Path, service: &str) -> Result<File> {
    let path = directory.join(format!("{service}.lock"));
    let failed = |error: std::io::Error| {
        Error::transient(ErrorCode::WriteFailed, format!("file {}: {error}", path.display()))
    };
    std::fs::create_dir_all(directory).map_err(failed)?;
    let open = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path);
    let mut file = open.map_err(failed)?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            // Its owner writes who it is after it has locked it, so this may be empty or of a former one.
            let mut process = String::new();
            let _ = file.read_to_string(&mut process);
            let process = process.trim().parse::<u32>().map_or(String::new(), |id| format!(" ({id})"));
            return Err(Error::invalid(format_args!(
                "directory {} is in use: another process{process} runs service {service} there; stop it first, or choose another directory",
                directory.display()
            )));
        }
        Err(TryLockError::Error(error)) => return Err(failed(error)),
    }
    file.set_len(0).and_then(|()| write!(file, "{}", std::process::id())).map_err(failed)?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn second_lock_is_refused_until_the_first_ends() {
        let directory = tempfile::tempdir().unwrap();
        let place = directory.path().join("new");
        let first = acquire(&place, "source").unwrap();
        acquire(&place, "other").unwrap();
        let refused = acquire(&place, "source").unwrap_err();
        assert!(!refused.is_transient());
        let said = format!("another process ({}) runs service source there", std::process::id());
        assert!(refused.to_string().contains(&said), "{refused}");
        drop(first);
        acquire(&place, "source").unwrap();
    }
}
