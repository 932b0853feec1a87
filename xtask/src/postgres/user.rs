//! Whose processes the server's are: PostgreSQL refuses to run as root.

use std::os::unix::fs::chown;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::packages::is_root;
use crate::process::{find_program, read};

/// Tried in this order: the first is made by Debian's package, the second exists everywhere.
const UNPRIVILEGED_USERS: [&str; 2] = ["postgres", "nobody"];

/// The user that the server runs as.
#[derive(Clone, Debug)]
pub(crate) enum ServerUser {
    /// The one who runs this.
    Current,
    /// Another, because this is run by root.
    Other { name: String, user_id: u32, group_id: u32 },
}

impl ServerUser {
    pub(super) fn choose() -> Result<Self> {
        if !is_root()? {
            return Ok(Self::Current);
        }
        for name in UNPRIVILEGED_USERS {
            let Ok(user_id) = read(Command::new("id").args(["-u", name])) else { continue };
            let group_id = read(Command::new("id").args(["-g", name]))?;
            return Ok(Self::Other {
                name: name.to_owned(),
                user_id: user_id.parse().context("id -u prints a number")?,
                group_id: group_id.parse().context("id -g prints a number")?,
            });
        }
        bail!("run by root, and there is no user {} to run a server as", UNPRIVILEGED_USERS.join(" or "))
    }

    /// A command run by this user, without the caller's PostgreSQL settings.
    pub(super) fn command(&self, program: &Path) -> Result<Command> {
        self.build(program, false)
    }

    /// Like [`Self::command`], and the kernel stops the server (SIGINT: a fast shutdown) when the thread that started it
    /// ends: not even killing this process without a warning leaves one behind. Only where `setpriv` exists.
    pub(super) fn command_that_dies_with_us(&self, program: &Path) -> Result<Command> {
        self.build(program, true)
    }

    /// Hands a file or folder over to this user.
    pub(super) fn own(&self, path: &Path) -> Result<()> {
        match self {
            Self::Current => Ok(()),
            Self::Other { user_id, group_id, .. } => chown(path, Some(*user_id), Some(*group_id))
                .with_context(|| format!("chown {}", path.display())),
        }
    }

    /// Asks the system rather than mode bits: ancestors, access lists and mounts all have a say.
    pub(super) fn can_write(&self, folder: &Path) -> bool {
        let Ok(mut command) = self.command(Path::new("test")) else { return false };
        command.arg("-w").arg(folder).arg("-a").arg("-x").arg(folder);
        read(command.current_dir("/")).is_ok()
    }

    fn build(&self, program: &Path, dies_with_us: bool) -> Result<Command> {
        let setpriv = find_program("setpriv");
        let mut command = match (self, setpriv) {
            (Self::Current, Some(setpriv)) if dies_with_us => Command::new(setpriv),
            (Self::Current, _) => {
                let mut command = Command::new(program);
                without_client_settings(&mut command);
                return Ok(command);
            }
            (Self::Other { user_id, group_id, .. }, Some(setpriv)) => {
                let mut command = Command::new(setpriv);
                command
                    .args([format!("--reuid={user_id}"), format!("--regid={group_id}")])
                    .arg("--init-groups");
                command
            }
            (Self::Other { name, .. }, None) => {
                let runuser = find_program("runuser").context("neither setpriv nor runuser is installed")?;
                let mut command = Command::new(runuser);
                command.args(["-u", name, "--"]).arg(program);
                without_client_settings(&mut command);
                return Ok(command);
            }
        };
        if dies_with_us {
            command.args(["--pdeathsig", "INT"]);
        }
        command.arg("--").arg(program);
        without_client_settings(&mut command);
        Ok(command)
    }
}

/// PGDATA, PGPORT and the like belong to the developer's own server.
fn without_client_settings(command: &mut Command) {
    for (name, _) in std::env::vars_os() {
        if name.to_str().is_some_and(|name| name.starts_with("PG")) {
            command.env_remove(&name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_never_runs_the_server() {
        let user = ServerUser::choose().unwrap();
        let name = read(user.command(Path::new("id")).unwrap().arg("-u")).unwrap();
        assert_ne!(name, "0");
    }

    #[test]
    fn missing_folder_is_not_writable() {
        let user = ServerUser::choose().unwrap();
        assert!(!user.can_write(Path::new("/no-such-folder")));
    }
}
