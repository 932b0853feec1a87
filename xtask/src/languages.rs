//! Programs of other languages: for tests of docs/sql.md psycopg in a virtual environment of Python and pg for Node, and for those of object
//! stores moto, a server that speaks the protocol of S3. All below `target/`, and installed once for each version.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use headwater_servers::output_of;

use crate::process::say;

/// The environment variable with the folder of the drivers.
pub(crate) const LANGUAGES_VARIABLE: &str = "HEADWATER_TEST_LANGUAGES";

const PSYCOPG: &str = "psycopg[binary]==3.2.9";
const NODE_PG: &str = "pg@8.16.3";
const MOTO: &str = "moto[server]==5.2.5";

/// Installs what is missing, and returns the folder.
pub(crate) fn ensure(root: &Path) -> Result<PathBuf> {
    let folder = folder(root);
    install(&folder.join("python"), PSYCOPG, |home| python(home, &[PSYCOPG]))?;
    install(&folder.join("moto"), MOTO, |home| python(home, &[MOTO]))?;
    install(&folder.join("node"), NODE_PG, |home| node(home, NODE_PG))?;
    Ok(folder)
}

/// Where Cargo has what it builds.
pub(crate) fn target(root: &Path) -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), |dir| root.join(dir))
}

/// Where programs of other languages are installed.
pub(crate) fn folder(root: &Path) -> PathBuf {
    target(root).join("languages")
}

/// A virtual environment with these packages.
pub(crate) fn python(home: &Path, packages: &[&str]) -> Result<String> {
    output_of(Command::new("python3").args(["-m", "venv", "--clear"]).arg(home))
        .context("python3 -m venv")?;
    let mut pip = Command::new(home.join("bin/python"));
    pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]).args(packages);
    output_of(&mut pip).context("pip install")
}

/// A folder in which Node finds this package.
pub(crate) fn node(home: &Path, package: &str) -> Result<String> {
    std::fs::create_dir_all(home)?;
    // With a manifest of its own: otherwise npm searches the folders above for one.
    std::fs::write(home.join("package.json"), "{}")?;
    let mut npm = Command::new("npm");
    npm.args(["install", "--silent", "--no-audit", "--no-fund", package]).current_dir(home);
    output_of(&mut npm).context("npm install")
}

/// Runs an installation unless the folder has this version. The file that records it is written last: an interrupted installation is repeated.
pub(crate) fn install(home: &Path, version: &str, run: impl FnOnce(&Path) -> Result<String>) -> Result<()> {
    let done = home.join("installed");
    if std::fs::read_to_string(&done).is_ok_and(|installed| installed == version) {
        return Ok(());
    }
    say(&format!("installing {version}"));
    run(home)?;
    std::fs::write(done, version)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_installation_runs_once_per_version_and_again_after_a_failure() {
        let folder = std::env::temp_dir().join(format!("headwater-languages-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let mut runs = 0;
        for (version, fails) in [("1", true), ("1", false), ("1", false), ("2", false)] {
            let result = install(&folder, version, |_| {
                runs += 1;
                if fails { anyhow::bail!("no network") } else { Ok(String::new()) }
            });
            assert_eq!(result.is_err(), fails);
        }
        assert_eq!(runs, 3);
        std::fs::remove_dir_all(folder).unwrap();
    }
}
