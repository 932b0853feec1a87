//! The user that owns the files and processes of a server, and their folder: PostgreSQL refuses to run as root.

use std::fs::{self, DirBuilder};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail};

use crate::programs::{find_program, output_of};

/// Tried in this order: Debian's package creates the first, the second exists everywhere.
const UNPRIVILEGED_USERS: [&str; 2] = ["postgres", "nobody"];

/// The user that servers run as.
#[derive(Clone, Debug)]
pub struct User(
    /// A different user, because the current one is root: user and group.
    Option<(u32, u32)>,
);

impl User {
    /// Whether this process runs as root.
    pub fn is_root() -> Result<bool> {
        Ok(output_of(Command::new("id").arg("-u"))? == "0")
    }

    pub(crate) fn choose() -> Result<Self> {
        if !Self::is_root()? {
            return Ok(Self(None));
        }
        for name in UNPRIVILEGED_USERS {
            let Ok(user) = output_of(Command::new("id").args(["-u", name])) else { continue };
            let group = output_of(Command::new("id").args(["-g", name]))?;
            return Ok(Self(Some((user.parse()?, group.parse()?))));
        }
        bail!("running as root, and there is no user {} to run a server as", UNPRIVILEGED_USERS.join(" or "))
    }

    /// The user of this process: for servers that may run as root.
    pub(crate) fn current() -> Self {
        Self(None)
    }

    /// A command run as this user, without input and without the caller's PostgreSQL settings.
    pub(crate) fn command(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        // A process group of its own: an interrupt from the terminal reaches only the caller, which then stops the server.
        command.stdin(Stdio::null()).current_dir("/").process_group(0).env("LC_ALL", "C");
        if let Some((user, group)) = self.0 {
            command.uid(user).gid(group);
        }
        // PGDATA, PGPORT and the like belong to the developer's own server.
        for (name, _) in std::env::vars_os() {
            if name.to_str().is_some_and(|name| name.starts_with("PG")) {
                command.env_remove(&name);
            }
        }
        command
    }

    /// Like [`Self::command`], and the kernel stops the server (SIGINT: a fast shutdown) when the thread that started it
    /// ends. Only where `setpriv` exists; it becomes the program, so the process id is the server's.
    pub(crate) fn command_that_dies_with_us(&self, program: &Path) -> Command {
        self.command_ended_with_us(program, "INT")
    }

    /// The same with another signal.
    pub(crate) fn command_ended_with_us(&self, program: &Path, signal: &str) -> Command {
        let Some(setpriv) = find_program("setpriv") else { return self.command(program) };
        let mut command = self.command(&setpriv);
        command.args(["--pdeathsig", signal, "--"]).arg(program);
        command
    }

    /// Makes this user the owner of a file or folder.
    pub(crate) fn own(&self, path: &Path) -> Result<()> {
        let Some((user, group)) = self.0 else { return Ok(()) };
        chown(path, Some(user), Some(group)).with_context(|| format!("chown {}", path.display()))
    }
}

/// An error if a server cannot have its files below this folder.
pub fn check_parent(parent: &Path) -> Result<()> {
    // Tests it instead of reading mode bits: ancestors, access lists and mounts all matter.
    let mut test = User::choose()?.command(Path::new("test"));
    output_of(test.arg("-x").arg(parent)).map(drop).context("the server's user cannot reach it")
}

/// Removed with all its content when dropped.
#[derive(Debug)]
pub(crate) struct Folder(PathBuf);

impl Folder {
    pub(crate) fn create(parent: &Path, kind: &str, user: &User) -> Result<Self> {
        static CREATED: AtomicU32 = AtomicU32::new(0);
        let parent = parent.canonicalize().with_context(|| format!("{} does not exist", parent.display()))?;
        // No other process creates it: the process id is part of the name, and an existing folder is an error.
        let (process, count) = (std::process::id(), CREATED.fetch_add(1, Ordering::Relaxed));
        let time = SystemTime::now().duration_since(UNIX_EPOCH)?.as_micros();
        let path = parent.join(format!("headwater-{kind}-{process}-{count}-{time:x}"));
        let created = DirBuilder::new().mode(0o700).create(&path);
        created.with_context(|| format!("cannot create {}", path.display()))?;
        let folder = Self(path);
        user.own(&folder.0)?;
        Ok(folder)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    pub(crate) fn parent(&self) -> &Path {
        self.0.parent().expect("it was created in one")
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.0)
            && error.kind() != ErrorKind::NotFound
        {
            // Errors are dropped: a closed pipe must not keep the rest from being removed.
            let _ = writeln!(std::io::stderr(), "cannot remove {}: {error}", self.0.display());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_never_runs_the_server() {
        let user = User::choose().unwrap();
        assert_ne!(output_of(user.command(Path::new("id")).arg("-u")).unwrap(), "0");
    }

    #[test]
    fn unreachable_parent_is_refused() {
        assert!(check_parent(Path::new("/no-such-folder")).is_err());
        assert!(check_parent(&std::env::temp_dir()).is_ok());
    }

    #[test]
    fn folders_of_two_servers_differ_and_vanish() {
        let parent = std::env::temp_dir();
        let first = Folder::create(&parent, "test", &User(None)).unwrap();
        let second = Folder::create(&parent, "test", &User(None)).unwrap();
        assert_ne!(first.0, second.0);
        let path = first.0.clone();
        drop(first);
        assert!(!path.exists() && second.0.exists());
    }
}
