//! What must not be committed: places of one machine, package mirrors, tests switched off without a reason, a CLI that
//! calls the store.

use super::Complaint;
use super::tree::Tree;

/// Folders at the root of a developer's machine. Spelled without slashes, so that this file passes its own rule.
const MACHINE_FOLDERS: [&str; 3] = ["work", "root", "home"];
/// A licence is kept word for word.
const AS_IS: &str = "LICENSE";
const CRATES_IO: &str = "registry+https://github.com/rust-lang/crates.io-index";

const CLI: &str = "crates/headwater-cli/src/";

pub(super) fn check(tree: &Tree) -> Vec<Complaint> {
    let mut complaints = Vec::new();
    for (path, content) in tree.files().filter(|(path, _)| *path != AS_IS) {
        for (index, line) in content.lines().enumerate() {
            complaints.extend(check_line(path, index + 1, line));
        }
    }
    complaints
}

fn check_line(path: &str, number: usize, line: &str) -> Option<Complaint> {
    let complain = |rule, advice: &str| Some(Complaint::new(path, number, rule, advice));
    if MACHINE_FOLDERS.iter().any(|folder| has_absolute(line, folder)) {
        return complain("machine-path", "name the place relative to the repository, or by a variable");
    }
    if names_registry(path, line) {
        return complain("registry-host", "packages come from crates.io; keep mirrors in your own settings");
    }
    if path.ends_with(".rs") && is_ignored_without_reason(line) {
        return complain("ignore-reason", "say why: `#[ignore = \"…\"]`, or let the test run");
    }
    // What the CLI does by itself every other operator's program would have to do again.
    if path.starts_with(CLI) && line.contains(".store()") {
        return complain(
            "operator-api",
            "the CLI uses the operator API of the library: add what is missing there",
        );
    }
    None
}

/// `/folder/` at the start of a path. After a letter, digit or dot it is the middle of one, or of a URL.
fn has_absolute(line: &str, folder: &str) -> bool {
    let needle = format!("/{folder}/");
    line.match_indices(&needle).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        !before.is_some_and(|c| c.is_alphanumeric() || "._-~}*)>".contains(c))
    })
}

fn names_registry(path: &str, line: &str) -> bool {
    let line = line.trim_start();
    if path.ends_with("Cargo.lock") {
        return line.starts_with("source = ") && line.contains("registry") && !line.contains(CRATES_IO);
    }
    let settings = [["[source", "."].concat(), ["[regi", "stries"].concat(), ["replace", "-with"].concat()];
    let hosts =
        [["sparse", "+http"].concat(), ["index.", "crates.io"].concat(), ["static.", "crates.io"].concat()];
    let in_settings = path.ends_with(".toml") && settings.iter().any(|word| line.starts_with(word.as_str()));
    in_settings || hosts.iter().any(|word| line.contains(word.as_str()))
}

fn is_ignored_without_reason(line: &str) -> bool {
    let code = line.trim();
    let conditional = code.starts_with("#[cfg_attr(") && code.ends_with(", ignore)]");
    conditional || code.starts_with("#[ignore]") || code.starts_with("#[test] #[ignore]")
}

#[cfg(test)]
mod tests {
    use super::super::tests::fired;
    use super::*;

    #[test]
    fn places_of_one_machine_are_found() {
        for folder in MACHINE_FOLDERS {
            let text = format!("fine\nsee /{folder}/me/notes\n");
            assert_eq!(fired("docs/a.md", &text), [("docs/a.md".to_owned(), 2, "machine-path")]);
            assert_eq!(fired("LICENSE", &text), []);
            for inside in ["crates/a", "https://host.example", "~", "${base}", "../.."] {
                assert_eq!(fired("docs/a.md", &format!("see {inside}/{folder}/notes\n")), [], "{inside}");
            }
        }
    }

    #[test]
    fn mirrors_of_packages_are_found() {
        let lock = "source = \"registry+https://mirror.example/index\"\n";
        assert_eq!(fired("Cargo.lock", lock), [("Cargo.lock".to_owned(), 1, "registry-host")]);
        let settings = format!("[source{}crates-io]\n{}-with = \"mirror\"\n", '.', "replace");
        let rule = |line| (".cargo/config.toml".to_owned(), line, "registry-host");
        assert_eq!(fired(".cargo/config.toml", &settings), [rule(1), rule(2)]);
        let script = format!("curl https://static.{}/crates\n", "crates.io");
        assert_eq!(fired("fetch.sh", &script), [("fetch.sh".to_owned(), 1, "registry-host")]);
    }

    #[test]
    fn tests_are_not_switched_off_in_silence() {
        let found = [("src/a.rs".to_owned(), 2, "ignore-reason")];
        assert_eq!(fired("src/a.rs", "//! A.\n#[ignore]\nfn a() {}\n"), found);
        assert_eq!(fired("src/a.rs", "//! A.\n#[cfg_attr(miri, ignore)]\nfn a() {}\n"), found);
        assert_eq!(fired("src/a.rs", "//! A.\n#[ignore = \"needs a broker\"]\nfn a() {}\n"), []);
    }

    #[test]
    fn the_cli_calls_no_store() {
        let path = "crates/headwater-cli/src/a.rs";
        let text = "//! A.\nfn a() { headwater.store() }\n";
        assert_eq!(fired(path, text), [(path.to_owned(), 2, "operator-api")]);
        assert_eq!(fired("crates/headwater-cli/tests/a.rs", text), []);
    }
}
