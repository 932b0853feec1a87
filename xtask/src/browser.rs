//! Tests of the dashboard in a real browser: Debian's Chromium, driven by playwright-core. The tests are a program of Node in
//! `crates/headwater-server/tests/browser`.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};
use headwater_servers::find_program;

use crate::languages::{self, install};
use crate::packages::{self, Need};

/// Without a browser of its own.
const PLAYWRIGHT: &str = "playwright-core@1.65.1";

/// The command that runs the tests.
pub(crate) fn tests(root: &Path) -> Result<Command> {
    packages::ensure(&[Need::Node, Need::Npm, Need::Chromium])?;
    let home = languages::folder(root).join("browser");
    install(&home, PLAYWRIGHT, |home| languages::node(home, PLAYWRIGHT))?;
    let mut node = Command::new("node");
    node.arg("crates/headwater-server/tests/browser/run.mjs").current_dir(root);
    // A program of Node finds packages beside itself, and nothing is installed into the repository.
    node.env("HEADWATER_TEST_PLAYWRIGHT", home.join("node_modules").join("playwright-core"));
    node.env("HEADWATER_TEST_CHROMIUM", find_program("chromium").context("chromium is not installed")?);
    node.env("HEADWATER_TEST_SCREENSHOTS", languages::target(root).join("screenshots"));
    Ok(node)
}
