//! The clients of other languages: built as they are published, and tested against servers of the real program, on both stores.
//!
//! Everything that is installed or built is below `target/languages/`: the sources stay as they are in the repository.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use headwater_servers::output_of;

use crate::interrupt::Interrupt;
use crate::languages::{self, install};
use crate::process::{self, cargo, say};

/// The environment variable with the path of the program `headwater`.
const BINARY_VARIABLE: &str = "HEADWATER_TEST_BINARY";

/// What builds, checks and tests the Python client, and its one dependency.
const PYTHON_PACKAGES: [&str; 5] =
    ["build==1.3.0", "hatchling==1.33.0", "httpx==0.28.1", "mypy==2.4.1", "pytest==9.2.0"];

/// The program that the tests start, built if it is not up to date: after all other tests with their features, so that nothing is compiled
/// twice.
pub(crate) fn server(root: &Path, interrupt: &Interrupt, is_after_tests: bool) -> Result<PathBuf> {
    let as_tests: &[&str] = &["test", "--workspace", "--all-features", "--no-run", "--quiet"];
    let alone: &[&str] = &["build", "--package", "headwater-cli"];
    let mut build = cargo(root, if is_after_tests { as_tests } else { alone });
    ensure!(process::run(&mut build, interrupt)?.success(), "the server does not build");
    let binary = languages::target(root).join("debug").join("headwater");
    ensure!(binary.is_file(), "{} is missing after a build", binary.display());
    Ok(binary)
}

/// Builds the wheel, installs it, and runs its checks, and by `run` its tests.
pub(crate) fn python(
    root: &Path,
    interrupt: &Interrupt,
    run: impl FnOnce(Command) -> Result<bool>,
) -> Result<bool> {
    let sources = root.join("clients").join("python");
    let home = languages::folder(root).join("client-python");
    install(&home, &PYTHON_PACKAGES.join(" "), |home| languages::python(home, &PYTHON_PACKAGES))?;
    let wheels = home.join("wheels");
    if wheels.exists() {
        std::fs::remove_dir_all(&wheels)?;
    }
    let python = || {
        let mut command = Command::new(home.join("bin/python"));
        command.current_dir(&sources).env("PYTHONDONTWRITEBYTECODE", "1");
        command
    };
    let mut build = python();
    build.args(["-m", "build", "--wheel", "--no-isolation", "--outdir"]).arg(&wheels);
    output_of(&mut build).context("the wheel does not build")?;
    let built = std::fs::read_dir(&wheels)?.next().context("no wheel was built")??.path();
    say(&format!("built {}", built.display()));
    let mut pip = python();
    pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]);
    output_of(pip.args(["--no-deps", "--force-reinstall"]).arg(&built))
        .context("the wheel cannot be installed")?;
    let mut types = python();
    types.args(["-m", "mypy", "src", "tests", "--cache-dir"]).arg(home.join("mypy"));
    let typed = process::run(&mut types, interrupt)?.success();
    let mut pytest = python();
    pytest.args(["-m", "pytest", "-q", "-p", "no:cacheprovider"]);
    Ok(run(pytest)? && typed)
}

/// Builds and packs the npm package, and runs its tests by `run`.
pub(crate) fn typescript(
    root: &Path,
    interrupt: &Interrupt,
    run: impl FnOnce(Command) -> Result<bool>,
) -> Result<bool> {
    let sources = root.join("clients").join("typescript");
    let home = languages::folder(root).join("client-typescript");
    std::fs::create_dir_all(&home)?;
    for folder in ["src", "test", "dist"] {
        if home.join(folder).exists() {
            std::fs::remove_dir_all(home.join(folder))?;
        }
    }
    for name in ["package.json", "tsconfig.json", "README.md", "src", "test"] {
        copy(&sources.join(name), &home.join(name))?;
    }
    let npm = |arguments: &[&str]| {
        let mut command = Command::new("npm");
        command.args(arguments).current_dir(&home);
        command
    };
    let mut manifest = DefaultHasher::new();
    std::fs::read(home.join("package.json"))?.hash(&mut manifest);
    let version = format!("packages of clients/typescript/package.json, {:x}", manifest.finish());
    install(&home, &version, |_| {
        output_of(&mut npm(&["install", "--silent", "--no-audit", "--no-fund", "--no-package-lock"]))
    })?;
    if !process::run(&mut npm(&["run", "--silent", "build"]), interrupt)?.success() {
        return Ok(false);
    }
    output_of(&mut npm(&["pack", "--silent"])).context("npm pack")?;
    let mut node = Command::new("node");
    node.args(["--test", "--test-reporter=spec", "dist/test/"]).current_dir(&home);
    run(node)
}

/// The environment of tests that start servers.
pub(crate) fn with_server(mut command: Command, binary: &Path) -> Command {
    command.env(BINARY_VARIABLE, binary);
    command
}

/// Copies a file, or a folder with everything in it.
fn copy(from: &Path, to: &Path) -> Result<()> {
    let at = || format!("cannot copy {} to {}", from.display(), to.display());
    if !from.is_dir() {
        std::fs::copy(from, to).with_context(at)?;
        return Ok(());
    }
    std::fs::create_dir_all(to).with_context(at)?;
    for entry in std::fs::read_dir(from).with_context(at)? {
        let entry = entry?;
        copy(&entry.path(), &to.join(entry.file_name()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_copied_with_everything_in_it() {
        let root = std::env::temp_dir().join(format!("headwater-clients-{}", std::process::id()));
        std::fs::create_dir_all(root.join("from/inner")).unwrap();
        std::fs::write(root.join("from/inner/a.ts"), "a").unwrap();
        copy(&root.join("from"), &root.join("to")).unwrap();
        assert_eq!(std::fs::read_to_string(root.join("to/inner/a.ts")).unwrap(), "a");
        assert!(copy(&root.join("missing"), &root.join("to")).is_err());
        std::fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn versions_are_pinned() {
        assert!(PYTHON_PACKAGES.iter().all(|package| package.contains("==")));
    }
}
