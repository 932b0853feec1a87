//! Where PostgreSQL's server programs are: distributions keep them off PATH, several versions side by side.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

/// The oldest PostgreSQL that Headwater works with.
const MAJOR_VERSION_MIN: u32 = 15;
const DEBIAN_ROOT: &str = "/usr/lib/postgresql";

/// A folder that holds `postgres`, `initdb` and `pg_ctl`.
#[derive(Clone, Debug)]
pub struct Programs(PathBuf);

impl Programs {
    /// The first complete and recent enough installation: by `pg_config`, by PATH, then Debian's newest.
    pub fn find() -> Result<Self> {
        let mut too_old = Vec::new();
        for folder in candidates() {
            let names = ["postgres", "initdb", "pg_ctl"];
            if !names.iter().all(|name| is_executable(&folder.join(name))) {
                continue;
            }
            let text = output_of(Command::new(folder.join("postgres")).arg("--version").current_dir("/"))?;
            match major_version(&text) {
                Some(version) if version >= MAJOR_VERSION_MIN => return Ok(Self(folder)),
                _ => too_old.push(format!("{} is {text}", folder.display())),
            }
        }
        if too_old.is_empty() {
            bail!("no PostgreSQL server programs found by pg_config, on PATH or in {DEBIAN_ROOT}");
        }
        bail!("PostgreSQL {MAJOR_VERSION_MIN} or newer is needed, but {}", too_old.join(", "));
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

fn candidates() -> Vec<PathBuf> {
    let by_config = output_of(Command::new("pg_config").arg("--bindir")).ok().map(PathBuf::from);
    let by_path = find_program("postgres").and_then(|file| file.canonicalize().ok());
    let by_path = by_path.and_then(|file| file.parent().map(Path::to_path_buf));
    let mut debian: Vec<(u32, PathBuf)> = std::fs::read_dir(DEBIAN_ROOT)
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| Some((entry.file_name().to_str()?.parse().ok()?, entry.path().join("bin"))))
        .collect();
    debian.sort_by_key(|(version, _)| std::cmp::Reverse(*version));
    by_config.into_iter().chain(by_path).chain(debian.into_iter().map(|(_, folder)| folder)).collect()
}

/// `postgres (PostgreSQL) 15.18 (Debian 15.18-0+deb12u1)` is 15.
fn major_version(text: &str) -> Option<u32> {
    let after = text.split_once("(PostgreSQL)")?.1.trim_start();
    let digits: String = after.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().ok()
}

/// The path of the program `name`, by PATH.
pub fn find_program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    // An unprivileged PATH on Debian lacks these, although every user may run their programs.
    let system = ["/usr/sbin", "/sbin"].map(PathBuf::from);
    std::env::split_paths(&path).chain(system).map(|dir| dir.join(name)).find(|file| is_executable(file))
}

fn is_executable(file: &Path) -> bool {
    file.metadata().is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
}

/// The trimmed output of a command that is expected to succeed.
pub fn output_of(command: &mut Command) -> Result<String> {
    let program = command.get_program().to_os_string();
    let output = command.stdin(Stdio::null()).output();
    let output = output.with_context(|| format!("cannot run {}", program.display()))?;
    if !output.status.success() {
        let errors = String::from_utf8_lossy(&output.stderr);
        bail!("{} failed ({}): {}", program.display(), output.status, errors.trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn major_version_is_read_from_every_kind_of_release() {
        assert_eq!(major_version("postgres (PostgreSQL) 15.18 (Debian 15.18-0+deb12u1)"), Some(15));
        assert_eq!(major_version("postgres (PostgreSQL) 9.6.24"), Some(9));
        assert_eq!(major_version("postgres (PostgreSQL) 18beta1"), Some(18));
        assert_eq!(major_version("something else"), None);
    }
    #[test]
    fn failing_command_shows_its_output() {
        let error = output_of(Command::new("sh").args(["-c", "echo no such thing >&2; exit 3"])).unwrap_err();
        assert!(error.to_string().contains("no such thing"), "{error}");
    }

    #[test]
    fn programs_are_found_on_the_path() {
        assert!(find_program("sh").is_some());
        assert!(find_program("no-program-has-this-name").is_none());
    }
}
