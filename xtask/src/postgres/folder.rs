//! The folder of one run: below `target/` where the server can use it, else a fresh temporary one.

use std::fs::{self, DirBuilder};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail};

use crate::process::say;

use super::user::ServerUser;

/// `sun_path` holds 108 bytes, the last of them NUL.
const SOCKET_PATH_BYTES_MAX: usize = 107;
/// The longest name a server gives its socket.
const SOCKET_NAME: &str = ".s.PGSQL.65535.lock";

/// Removed, with all that is in it, when dropped.
pub(crate) struct RunFolder(PathBuf);

impl RunFolder {
    pub(super) fn create(root: &Path, user: &ServerUser) -> Result<Self> {
        let target =
            std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), |dir| root.join(dir));
        let preferred = target.join("services");
        fs::create_dir_all(&preferred).with_context(|| format!("cannot create {}", preferred.display()))?;
        let reason = match Self::create_in(&preferred, user) {
            Ok(folder) => return Ok(folder),
            Err(reason) => reason,
        };
        let temporary = std::env::temp_dir();
        say(&format!("not in {} ({reason:#}): using {}", preferred.display(), temporary.display()));
        Self::create_in(&temporary, user)
    }

    fn create_in(parent: &Path, user: &ServerUser) -> Result<Self> {
        // Made by nobody else: the process is part of the name, and an existing folder is an error.
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH)?;
        let name = format!("pg-{}-{:x}", std::process::id(), since_epoch.as_micros());
        let path = parent.join(name);
        check_socket_path(&path)?;
        DirBuilder::new()
            .mode(0o700)
            .create(&path)
            .with_context(|| format!("cannot create {}", path.display()))?;
        let folder = Self(path);
        user.own(&folder.0)?;
        if !user.can_write(&folder.0) {
            bail!("the server's user cannot reach {}", folder.0.display());
        }
        Ok(folder)
    }

    pub(super) fn data(&self) -> PathBuf {
        self.0.join("data")
    }

    /// Sockets lie beside the data: the folder is this run's alone.
    pub(super) fn sockets(&self) -> &Path {
        &self.0
    }

    pub(super) fn log(&self) -> PathBuf {
        self.0.join("server.log")
    }

    pub(super) fn log_tail(&self, lines: usize) -> String {
        let log = fs::read_to_string(self.log()).unwrap_or_default();
        let all: Vec<&str> = log.lines().collect();
        all[all.len().saturating_sub(lines)..].join("\n")
    }
}

impl Drop for RunFolder {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.0) {
            say(&format!("cannot remove {}: {error}", self.0.display()));
        }
    }
}

fn check_socket_path(folder: &Path) -> Result<()> {
    let bytes = folder.join(SOCKET_NAME).as_os_str().len();
    if bytes > SOCKET_PATH_BYTES_MAX {
        bail!("a socket's path would have {bytes} bytes, and {SOCKET_PATH_BYTES_MAX} is the most");
    }
    // The server takes a list here, and cuts it at commas.
    if folder.as_os_str().as_encoded_bytes().contains(&b',') {
        bail!("the server takes no socket folder with a comma in its name");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overlong_socket_paths_are_refused() {
        let longest = "/".to_owned() + &"x".repeat(SOCKET_PATH_BYTES_MAX - SOCKET_NAME.len() - 2);
        assert!(check_socket_path(Path::new(&longest)).is_ok());
        assert!(check_socket_path(Path::new(&(longest + "x"))).is_err());
        assert!(check_socket_path(Path::new("/tmp/a,b")).is_err());
    }

    #[test]
    fn folders_of_two_runs_differ_and_vanish() {
        let parent = std::env::temp_dir();
        let first = RunFolder::create_in(&parent, &ServerUser::Current).unwrap();
        std::thread::sleep(std::time::Duration::from_millis(1));
        let second = RunFolder::create_in(&parent, &ServerUser::Current).unwrap();
        assert_ne!(first.0, second.0);
        let path = first.0.clone();
        drop(first);
        assert!(!path.exists());
        assert!(second.0.exists());
    }

    #[test]
    fn log_tail_is_its_last_lines() {
        let folder = RunFolder::create_in(&std::env::temp_dir(), &ServerUser::Current).unwrap();
        assert_eq!(folder.log_tail(2), "");
        fs::write(folder.log(), "a\nb\nc\n").unwrap();
        assert_eq!(folder.log_tail(2), "b\nc");
    }
}
