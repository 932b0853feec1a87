//! `cargo xtask house`: how large the house is, as markdown tables. The same tree gives the same text.

pub(crate) mod rust;

use std::path::Path;
use std::process::ExitCode;

use anyhow::Result;

use crate::tidy::tree::Tree;

use self::rust::{Source, lines_of};

/// The traits that an engine implements.
const BOUNDARY: [&str; 4] = ["Delivery", "Admin", "Maintenance", "Tracking"];
const LIBRARY: &str = "crates/headwater/";
const MAP: &str = "ARCHITECTURE.md";
/// Written by Cargo.
const GENERATED: &str = "Cargo.lock";
/// Areas in the order of the table.
const AREAS: [&str; 11] = [
    "library, non-test Rust",
    "SQL",
    "conformance",
    "other library tests",
    "command",
    "its tests",
    "relays and bridges",
    "pipeline",
    "lab",
    "servers and xtask",
    "documents, examples, rest",
];

/// Prints all tables.
pub(crate) fn run(root: &Path) -> Result<ExitCode> {
    println!("{}", House::measure(&Tree::load(root)?).tables());
    Ok(ExitCode::SUCCESS)
}

/// The figures.
#[derive(Debug, Default)]
struct House {
    exports: usize,
    /// By trait.
    methods: Vec<(&'static str, usize)>,
    sql_files: usize,
    migrations: usize,
    glossary: usize,
    /// Files and lines, by area.
    areas: [(usize, usize); AREAS.len()],
    library: Sizes,
    all: Sizes,
}

/// Lines of files and functions.
#[derive(Debug, Default)]
struct Sizes {
    files: Vec<usize>,
    functions: Vec<usize>,
}

impl House {
    fn measure(tree: &Tree) -> Self {
        let mut house = House {
            methods: BOUNDARY.map(|name| (name, 0)).to_vec(),
            glossary: tree.get(MAP).map_or(0, glossary_nouns),
            ..House::default()
        };
        for (path, text) in tree.files().filter(|(path, _)| *path != GENERATED) {
            let area = area_of(path);
            house.areas[area].0 += 1;
            house.areas[area].1 += text.lines().count();
            match Path::new(path).extension().and_then(|extension| extension.to_str()) {
                Some("rs") => house.add_rust(path, text, area),
                Some("sql") => {
                    house.sql_files += 1;
                    house.migrations += usize::from(path.contains("/migrations/"));
                }
                _ => {}
            }
        }
        house
    }

    fn add_rust(&mut self, path: &str, text: &str, area: usize) {
        let source = Source::read(text);
        let lines = text.lines().count();
        let tests = source.test_modules();
        let is_library = area == 0;
        if is_library {
            // Test modules within a file of the library count as tests.
            let test_lines = tests.iter().map(|range| lines_of(text.as_bytes(), range)).sum::<usize>();
            self.areas[0].1 -= test_lines;
            self.areas[3].1 += test_lines;
            self.library.files.push(lines);
            for (name, count) in &mut self.methods {
                *count += source.methods(name).unwrap_or_default();
            }
        }
        self.all.files.push(lines);
        for function in source.functions() {
            let lines = lines_of(text.as_bytes(), &function);
            self.all.functions.push(lines);
            if is_library && !tests.iter().any(|range| range.contains(&function.start)) {
                self.library.functions.push(lines);
            }
        }
        if path == "crates/headwater/src/lib.rs" {
            self.exports = source.exports();
        }
    }

    fn tables(&self) -> String {
        let methods: usize = self.methods.iter().map(|(_, count)| count).sum();
        let by_trait: Vec<String> =
            self.methods.iter().map(|(name, count)| format!("{name} {count}")).collect();
        let (files, lines) = self.areas.iter().fold((0, 0), |sum, area| (sum.0 + area.0, sum.1 + area.1));
        let mut text = String::from("| the house | now | aim |\n|---|---|---|\n");
        let figures = [
            ("names re-exported from `lib.rs`", self.exports.to_string(), "about 45"),
            (
                "methods of the store boundary",
                format!("{methods}: {}", by_trait.join(", ")),
                "traits by caller",
            ),
            ("SQL files", self.sql_files.to_string(), "about 90"),
            ("migrations among them", self.migrations.to_string(), "0"),
            ("nouns of the glossary", self.glossary.to_string(), "at most 45"),
            ("lines, tests included", lines.to_string(), "fewer than 74000"),
        ];
        figures.iter().for_each(|(what, now, aim)| text += &format!("| {what} | {now} | {aim} |\n"));
        text += "\n| area | files | lines |\n|---|---|---|\n";
        for (name, (files, lines)) in AREAS.iter().zip(self.areas) {
            text += &format!("| {name} | {files} | {lines} |\n");
        }
        text += &format!("| **all** | {files} | {lines} |\n");
        text += "\n| median / p90 / max lines | files | functions |\n|---|---|---|\n";
        for (name, sizes) in [("library", &self.library), ("all Rust", &self.all)] {
            text += &format!("| {name} | {} | {} |\n", spread(&sizes.files), spread(&sizes.functions));
        }
        text
    }
}

/// Which of [`AREAS`] a file is in.
fn area_of(path: &str) -> usize {
    let is_rust = path.ends_with(".rs");
    let is_test = path.split('/').any(|part| part == "tests" || part == "tests.rs");
    match path.strip_prefix(LIBRARY) {
        Some(_) if path.ends_with(".sql") => 1,
        Some(inner) if inner.starts_with("src/store/conformance") => 2,
        Some(_) if is_rust && is_test => 3,
        Some(inner) if is_rust && inner.starts_with("src/") => 0,
        None if path.starts_with("crates/headwater-cli/") => 4 + usize::from(is_test),
        None if path.starts_with("crates/headwater-relay/") => 6,
        None if path.starts_with("crates/headwater-pipeline/") => 7,
        None if path.starts_with("crates/headwater-lab/") => 8,
        None if path.starts_with("crates/headwater-servers/") || path.starts_with("xtask/") => 9,
        _ => 10,
    }
}

/// Nouns in bold below a heading "Glossary", until the next heading: a line may explain two.
fn glossary_nouns(map: &str) -> usize {
    let is_heading = |line: &&str| line.starts_with('#');
    let below = map.lines().skip_while(|line| !(is_heading(line) && line.contains("Glossary"))).skip(1);
    below.take_while(|line| !is_heading(line)).map(|line| line.matches("**").count() / 2).sum()
}

/// Median, ninth decile and maximum.
fn spread(sizes: &[usize]) -> String {
    let mut sorted = sizes.to_vec();
    sorted.sort_unstable();
    let at =
        |share: usize| sorted.get(sorted.len().saturating_sub(1) * share / 100).copied().unwrap_or_default();
    format!("{} / {} / {}", at(50), at(90), at(100))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_has_one_area() {
        let area = |path| AREAS[area_of(path)];
        assert_eq!(area("crates/headwater/src/lib.rs"), "library, non-test Rust");
        assert_eq!(area("crates/headwater/src/store/sqlite/tests/a.rs"), "other library tests");
        assert_eq!(area("crates/headwater/src/a/tests.rs"), "other library tests");
        assert_eq!(area("crates/headwater/tests/a.rs"), "other library tests");
        assert_eq!(area("crates/headwater/src/store/conformance/a.rs"), "conformance");
        assert_eq!(area("crates/headwater/src/store/sqlite/sql/a.sql"), "SQL");
        assert_eq!(area("crates/headwater/examples/a.rs"), "documents, examples, rest");
        assert_eq!(area("crates/headwater-cli/tests/cli/a.rs"), "its tests");
        assert_eq!(area("crates/headwater-relay/src/relay.rs"), "relays and bridges");
        assert_eq!(area("crates/headwater-pipeline/tests/pipeline.rs"), "pipeline");
        assert_eq!(area("crates/headwater-lab/src/soak/check/tests.rs"), "lab");
        assert_eq!(area("xtask/src/main.rs"), "servers and xtask");
        assert_eq!(area("README.md"), "documents, examples, rest");
    }

    #[test]
    fn nouns_in_bold_below_the_glossarys_heading_are_counted() {
        assert_eq!(glossary_nouns("# Map\n- **key**: k\n"), 0);
        let map =
            "## Glossary\n- **key**: k\n- **head**: h; a **gap** is in it\n  more of it\n## Next\n- **no**\n";
        assert_eq!(glossary_nouns(map), 3);
    }

    #[test]
    fn spread_is_the_middle_the_ninth_decile_and_the_largest() {
        assert_eq!(spread(&[]), "0 / 0 / 0");
        assert_eq!(spread(&(1..=101).rev().collect::<Vec<_>>()), "51 / 91 / 101");
    }

    #[test]
    fn tests_within_a_file_are_no_part_of_the_library() {
        let lib =
            "//! A.\npub use a::{B, C};\nfn a() {}\n#[cfg(test)]\nmod tests {\n    fn b() {\n    }\n}\n";
        let tree = Tree::of(&[
            ("crates/headwater/src/lib.rs", lib),
            ("crates/headwater/src/store/delivery.rs", "pub trait Delivery {\n    fn claim(&self);\n}\n"),
            ("crates/headwater/src/store/sqlite/migrations/0001_a.sql", "-- A.\n"),
            ("README.md", "A.\n"),
            ("Cargo.lock", "[[package]]\n"),
        ]);
        let house = House::measure(&tree);
        assert_eq!((house.areas[0], house.areas[3]), ((2, 6), (0, 5)));
        assert_eq!((house.exports, house.sql_files, house.migrations), (2, 1, 1));
        assert_eq!(house.methods[0], ("Delivery", 1));
        assert_eq!((house.library.functions.len(), house.all.functions.len()), (1, 2));
        let text = house.tables();
        assert!(text.contains("| **all** | 4 | 13 |"), "{text}");
    }
}
