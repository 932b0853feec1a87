//! The combinations with other crates that the README documents: cargo finds versions for all of them, or for none, as it says.
//!
//! Only one crate of a program may link SQLite, so a second one of another version is a conflict that cargo reports before it
//! compiles anything: `cargo generate-lockfile` is enough to show it.

use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

const DEFAULT: &str = "";
const POSTGRES: &str = r#", default-features = false, features = ["postgres"]"#;
const WITH_SQLX: &str = r#", features = ["sqlx"]"#;

/// The crate beside Headwater as in the README's table, Headwater's features, and whether they fit together.
const BESIDE: [(&str, &str, &str, bool); 11] = [
    (r#"rusqlite 0.39"#, r#"rusqlite = "0.39""#, DEFAULT, true),
    (r#"rusqlite 0.40"#, r#"rusqlite = "0.40""#, DEFAULT, true),
    (r#"rusqlite 0.38"#, r#"rusqlite = "0.38""#, DEFAULT, false),
    (r#"rusqlite 0.38"#, r#"rusqlite = { version = "0.38", features = ["bundled"] }"#, POSTGRES, true),
    (r#"sqlx 0.9"#, r#"sqlx = { version = "0.9", features = ["sqlite", "postgres"] }"#, WITH_SQLX, true),
    (r#"sqlx 0.8"#, r#"sqlx = { version = "0.8", features = ["sqlite", "postgres"] }"#, DEFAULT, false),
    (r#"sqlx 0.8"#, r#"sqlx = { version = "0.8", features = ["sqlite", "postgres"] }"#, POSTGRES, true),
    (
        r#"sea-orm 1"#,
        r#"sea-orm = { version = "1", default-features = false, features = ["sqlx-postgres", "runtime-tokio-rustls"] }"#,
        DEFAULT,
        true,
    ),
    (r#"sea-orm 1"#, r#"sea-orm = { version = "1", features = ["sqlx-postgres"] }"#, POSTGRES, true),
    (r#"diesel 2"#, r#"diesel = { version = "2", features = ["sqlite"] }"#, DEFAULT, true),
    (r#"diesel 2"#, r#"diesel = { version = "2", features = ["postgres"] }"#, DEFAULT, true),
];

#[test]
fn the_documented_combinations_resolve_and_the_others_do_not() {
    let readme = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../README.md")).unwrap();
    let mut wrong = String::new();
    for (name, dependency, features, fits) in BESIDE {
        assert!(readme.contains(name), "{name} is in the README's table");
        let resolved = resolve(dependency, features);
        if resolved.is_ok() != fits {
            let _ = writeln!(wrong, "{dependency} beside headwater{features}: {resolved:?}");
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}

/// Lets cargo choose versions for a program with these dependencies.
fn resolve(dependency: &str, features: &str) -> Result<(), String> {
    let program = tempfile::tempdir().unwrap();
    let headwater = Path::new(env!("CARGO_MANIFEST_DIR")).display();
    let manifest = format!(
        "[package]\nname = \"program\"\nversion = \"0.0.0\"\nedition = \"2024\"\n[workspace]\n[dependencies]\n\
         headwater = {{ path = \"{headwater}\"{features} }}\n{dependency}\n"
    );
    std::fs::create_dir(program.path().join("src")).unwrap();
    std::fs::write(program.path().join("src/main.rs"), "fn main() {}\n").unwrap();
    std::fs::write(program.path().join("Cargo.toml"), manifest).unwrap();
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    let ran = cargo.args(["generate-lockfile", "--quiet"]).current_dir(program.path()).output().unwrap();
    let said = String::from_utf8_lossy(&ran.stderr).into_owned();
    if ran.status.success() {
        return Ok(());
    }
    // Anything else, such as a registry that cannot be reached, shows nothing about the combination.
    assert!(said.contains("libsqlite3-sys"), "{dependency}: {said}");
    Err(said)
}
