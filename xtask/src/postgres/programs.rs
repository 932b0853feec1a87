//! Where PostgreSQL's server programs are: distributions keep them off PATH, several versions side by side.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, bail};

use crate::process::{find_program, is_executable, read};

/// The oldest PostgreSQL that Headwater works with.
const MAJOR_VERSION_MIN: u32 = 15;
const DEBIAN_ROOT: &str = "/usr/lib/postgresql";

/// A folder that holds `postgres`, `initdb` and `pg_ctl`.
#[derive(Clone, Debug)]
pub(crate) struct Programs(PathBuf);

impl Programs {
    pub(super) fn postgres(&self) -> PathBuf {
        self.0.join("postgres")
    }

    pub(super) fn initdb(&self) -> PathBuf {
        self.0.join("initdb")
    }

    pub(super) fn pg_ctl(&self) -> PathBuf {
        self.0.join("pg_ctl")
    }
}

/// The first complete and recent enough installation: by `pg_config`, by PATH, then Debian's newest.
pub(crate) fn find() -> Result<Programs> {
    let mut too_old = Vec::new();
    for folder in candidates() {
        let complete = ["postgres", "initdb", "pg_ctl"].iter().all(|name| is_executable(&folder.join(name)));
        if !complete {
            continue;
        }
        let text = read(Command::new(folder.join("postgres")).arg("--version").current_dir("/"))?;
        match major_version(&text) {
            Some(version) if version >= MAJOR_VERSION_MIN => return Ok(Programs(folder)),
            _ => too_old.push(format!("{} is {text}", folder.display())),
        }
    }
    if too_old.is_empty() {
        bail!("no PostgreSQL server programs found by pg_config, on PATH or in {DEBIAN_ROOT}");
    }
    bail!("PostgreSQL {MAJOR_VERSION_MIN} or newer is needed, but {}", too_old.join(", "));
}

fn candidates() -> Vec<PathBuf> {
    let by_config = read(Command::new("pg_config").arg("--bindir")).ok().map(PathBuf::from);
    let by_path = find_program("postgres").and_then(|file| file.parent().map(Path::to_path_buf));
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
}
