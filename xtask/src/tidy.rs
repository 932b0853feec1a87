//! `cargo xtask tidy`: what the compiler's tools check, and the house rules they do not know.

mod hygiene;
mod layout;
mod sql;
pub(crate) mod tree;
mod words;

use std::path::Path;
use std::process::ExitCode;

use anyhow::Result;
use headwater_servers::find_program;

use crate::interrupt::Interrupt;
use crate::process::{self, cargo, say};
use crate::{is_ci, packages};

use self::tree::Tree;

/// Something to change, in a form that editors can jump to.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Complaint {
    path: String,
    line: usize,
    rule: &'static str,
    advice: String,
}

impl Complaint {
    fn new(path: &str, line: usize, rule: &'static str, advice: impl Into<String>) -> Self {
        Self { path: path.to_owned(), line, rule, advice: advice.into() }
    }
}

impl std::fmt::Display for Complaint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}: {}: {}", self.path, self.line, self.rule, self.advice)
    }
}

pub(crate) fn run(root: &Path, interrupt: &Interrupt) -> Result<ExitCode> {
    let tidy = check(root, interrupt)?;
    if let Some(code) = interrupt.exit_code() {
        return Ok(code);
    }
    Ok(if tidy { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// True if nothing is to be changed. Everything is checked even after a failure: one run shows all there is to do.
pub(crate) fn check(root: &Path, interrupt: &Interrupt) -> Result<bool> {
    packages::ensure_rust_components(root)?;
    let complaints = complaints(&Tree::load(root)?);
    complaints.iter().for_each(|complaint| say(&complaint.to_string()));
    let mut tidy = complaints.is_empty();
    for arguments in cargo_checks() {
        interrupt.check()?;
        say(&format!("cargo {}", arguments.join(" ")));
        tidy &= process::run(&mut cargo(root, &arguments), interrupt)?.success();
    }
    if find_program("cargo-deny").is_some() {
        interrupt.check()?;
        tidy &= process::run(&mut cargo(root, &["deny", "--all-features", "check"]), interrupt)?.success();
    } else {
        say("cargo-deny is not installed: licences and advisories are not checked");
    }
    interrupt.check()?;
    Ok(tidy)
}

fn cargo_checks() -> Vec<Vec<&'static str>> {
    // Clippy does what `cargo check` does and more. Its flags reach the workspace's crates alone, where RUSTFLAGS would
    // rebuild every dependency.
    let deny_warnings = ["--", "-D", "warnings"];
    // In CI a lock file that does not fit is a mistake: nothing there commits the new one.
    let locked: &[&str] = if is_ci() { &["--locked"] } else { &[] };
    let clippy = |scope: &[&'static str]| [&["clippy", "--quiet"], locked, scope, &deny_warnings].concat();
    let mut checks = vec![vec!["fmt", "--all", "--check"]];
    checks.push(clippy(&["--workspace", "--all-targets", "--all-features"]));
    for feature in ["sqlite", "postgres", "sqlite,otel"] {
        checks.push(clippy(&[
            "--package",
            "headwater",
            "--lib",
            "--no-default-features",
            "--features",
            feature,
        ]));
    }
    checks
}

fn complaints(tree: &Tree) -> Vec<Complaint> {
    let mut complaints =
        [layout::check(tree), sql::check(tree), hygiene::check(tree), words::check(tree)].concat();
    complaints.sort();
    complaints
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A tree that keeps every rule: each rule's own tests change one thing in it.
    pub(super) fn clean_tree() -> Tree {
        Tree::of(&[
            ("LICENSE", "Apache\n"),
            ("README.md", "# Headwater\n"),
            ("ARCHITECTURE.md", "# The map\n"),
            ("Cargo.lock", "source = \"registry+https://github.com/rust-lang/crates.io-index\"\n"),
            (
                "crates/headwater/src/lib.rs",
                "//! The engine.\n\n#[ignore = \"needs a broker\"]\nfn slow() {}\n",
            ),
            ("crates/headwater/src/store/sqlite/sql/claim.sql", "-- name: claim\nSELECT ';' AS a;\n"),
            (
                "crates/headwater/src/store/sqlite/claim.rs",
                "//! Claims.\nconst A: [&str; 2] = [sql!(claim), sql!(publish)];\n",
            ),
            ("crates/headwater/src/store/sqlite/sql/publish.sql", "-- name: publish\nSELECT 1\n"),
            (
                "crates/headwater/src/store/sqlite/schema/tables/topic.sql",
                "-- Topics.\nSELECT 1;\nSELECT 2;\n",
            ),
            ("crates/headwater/src/store/sqlite/schema/migrations/0002_more.sql", "-- More.\nSELECT 1;\n"),
            (
                "crates/headwater/src/store/postgres/sql/claim.sql",
                "-- name: due\nSELECT $$a;b$$;\n\n-- name: next\nSELECT 2;\n",
            ),
            (
                "crates/headwater/src/store/postgres/statements.rs",
                "//! Statements.\nstatements! { publish: publish, due: claim.due, next: claim.next, }\n",
            ),
            ("crates/headwater/src/store/postgres/sql/publish.sql", "-- name: publish\nSELECT 1;\n"),
        ])
    }

    /// The rules that fire, and where, once `path` has this content.
    pub(super) fn fired(path: &str, content: &str) -> Vec<(String, usize, &'static str)> {
        let mut tree = clean_tree();
        tree.insert(path, content);
        complaints(&tree).into_iter().map(|c| (c.path, c.line, c.rule)).collect()
    }

    #[test]
    fn clean_tree_has_no_complaints() {
        assert_eq!(complaints(&clean_tree()), []);
    }

    #[test]
    fn complaint_is_one_line_an_editor_can_jump_to() {
        let complaint = Complaint::new("src/a.rs", 7, "file-header", "say what lives here");
        assert_eq!(complaint.to_string(), "src/a.rs:7: file-header: say what lives here");
    }

    #[test]
    fn every_feature_is_checked_alone() {
        let checks = cargo_checks();
        for feature in ["sqlite", "postgres", "sqlite,otel"] {
            let alone =
                |check: &&Vec<&str>| check.contains(&"--no-default-features") && check.contains(&feature);
            assert_eq!(checks.iter().filter(alone).count(), 1, "{feature}");
        }
    }
}
