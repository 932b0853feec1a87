//! SQL: the same verbs in both engines, one statement per file, migrations of tables numbered without holes.

use std::collections::{BTreeMap, BTreeSet};

use super::Complaint;
use super::tree::Tree;

const STORE: &str = "crates/headwater/src/store";
const ENGINES: [&str; 2] = ["sqlite", "postgres"];

pub(super) fn check(tree: &Tree) -> Vec<Complaint> {
    let mut complaints = check_mirror(tree);
    for (path, content) in tree.with_extension("sql") {
        // Only below a folder `sql`: the files of a schema are scripts.
        if path.split('/').rev().skip(1).any(|folder| folder == "sql") {
            complaints.extend(check_statements(path, content));
        }
    }
    complaints.extend(check_migrations(tree));
    complaints
}

/// An entry is `verb.sql`, or a folder `verb` with the statements one engine needs for it.
fn check_mirror(tree: &Tree) -> Vec<Complaint> {
    let entries = ENGINES.map(|engine| entries(tree, &format!("{STORE}/{engine}/sql")));
    let mut complaints = Vec::new();
    for (here, there) in [(0, 1), (1, 0)] {
        for (stem, path) in &entries[here] {
            if !entries[there].contains_key(stem) {
                let other = format!("{STORE}/{}/sql", ENGINES[there]);
                let advice = format!("add `{stem}.sql` or `{stem}/` to {other}, or give both the same name");
                complaints.push(Complaint::new(path, 1, "sql-mirror", advice));
            }
        }
    }
    complaints
}

/// Stem to the first file that has it.
fn entries(tree: &Tree, folder: &str) -> BTreeMap<String, String> {
    let mut entries = BTreeMap::new();
    for (inside, _) in tree.below(folder).filter(|(inside, _)| inside.ends_with(".sql")) {
        let first = inside.split('/').next().unwrap_or(inside);
        let stem = first.strip_suffix(".sql").unwrap_or(first);
        entries.entry(stem.to_owned()).or_insert_with(|| format!("{folder}/{inside}"));
    }
    entries
}

fn check_statements(path: &str, content: &str) -> Option<Complaint> {
    let starts = statement_lines(content);
    match starts.as_slice() {
        [_] => None,
        [] => Some(Complaint::new(path, 1, "one-statement", "write the statement, or remove the file")),
        [_, second, ..] => {
            let advice = "move this second statement into a file of its own, beside this one";
            Some(Complaint::new(path, *second, "one-statement", advice))
        }
    }
}

/// Migration folders each count 2, 3, … by their files' leading digits (`0002_colour.sql`): version 1 is the first `tables/`.
fn check_migrations(tree: &Tree) -> Vec<Complaint> {
    let mut folders: BTreeMap<&str, Vec<(Option<u32>, &str)>> = BTreeMap::new();
    for (path, _) in tree.with_extension("sql") {
        let Some((folder, name)) = path.rsplit_once('/') else { continue };
        if folder.rsplit('/').next() == Some("migrations") {
            folders.entry(folder).or_default().push((number_of(name), path));
        }
    }
    folders.into_values().flat_map(check_numbers).collect()
}

fn check_numbers(mut files: Vec<(Option<u32>, &str)>) -> Vec<Complaint> {
    files.sort_unstable();
    let complain = |path, advice: String| Complaint::new(path, 1, "migration-number", advice);
    let mut complaints = Vec::new();
    let mut taken = BTreeSet::new();
    for (number, path) in files {
        let Some(number) = number else {
            complaints.push(complain(path, "begin the name with the migration's number".to_owned()));
            continue;
        };
        let expected = taken.last().map_or(2, |last: &u32| last + 1);
        if !taken.insert(number) {
            complaints.push(complain(path, format!("number {number} is taken; take the next free one")));
        } else if number != expected {
            complaints.push(complain(path, format!("number {expected} is missing before {number}")));
        }
    }
    complaints
}

fn number_of(name: &str) -> Option<u32> {
    let name = name.strip_prefix(['V', 'v']).unwrap_or(name);
    let digits = name.len() - name.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    name[..digits].parse().ok()
}

/// The line on which each statement begins. Comments are not statements; semicolons in quotes end none.
fn statement_lines(text: &str) -> Vec<usize> {
    let mut starts = Vec::new();
    let mut inside = false;
    let mut rest = text;
    while let Some(next) = rest.chars().next() {
        let length = token_length(rest);
        let is_blank = next.is_whitespace() || rest.starts_with("--") || rest.starts_with("/*");
        if next == ';' {
            inside = false;
        } else if !inside && !is_blank {
            inside = true;
            starts.push(text[..text.len() - rest.len()].matches('\n').count() + 1);
        }
        rest = &rest[length..];
    }
    starts
}

/// How many bytes the comment, quotation or single character at the start takes.
fn token_length(text: &str) -> usize {
    let up_to = |opening: usize, end: &str| match text[opening..].find(end) {
        Some(at) => opening + at + end.len(),
        None => text.len(),
    };
    if text.starts_with("--") {
        return up_to(2, "\n");
    }
    if text.starts_with("/*") {
        return up_to(2, "*/");
    }
    match text.chars().next() {
        // A doubled quote inside ends one quotation and begins the next: the same in the end.
        Some('\'') => up_to(1, "'"),
        Some('"') => up_to(1, "\""),
        Some('$') => match dollar_tag(text) {
            Some(tag) => up_to(tag.len(), tag),
            None => 1,
        },
        Some(other) => other.len_utf8(),
        None => 0,
    }
}

/// `$$` or `$name$`, but not a parameter such as `$1`.
fn dollar_tag(text: &str) -> Option<&str> {
    let name = text[1..].split('$').next()?;
    let is_name = name.chars().all(|c| c.is_alphanumeric() || c == '_');
    let is_closed = text[1 + name.len()..].starts_with('$');
    (is_name && is_closed && !name.starts_with(|c: char| c.is_ascii_digit())).then(|| &text[..name.len() + 2])
}

#[cfg(test)]
mod tests {
    use super::super::complaints;
    use super::super::tests::{clean_tree, fired};
    use super::*;

    fn path(rest: &str) -> String {
        format!("{STORE}/{rest}")
    }

    #[test]
    fn verb_of_one_engine_must_be_the_others_too() {
        let settle = path("sqlite/sql/settle.sql");
        assert_eq!(fired(&settle, "-- Settle.\nSELECT 1;\n"), [(settle.clone(), 1, "sql-mirror")]);
        let extend = path("postgres/sql/extend/lease.sql");
        assert_eq!(fired(&extend, "-- Extend.\nSELECT 1;\n"), [(extend.clone(), 1, "sql-mirror")]);
        let mut tree = clean_tree();
        tree.insert(&settle, "-- Settle.\nSELECT 1;\n");
        tree.insert(&path("postgres/sql/settle/ack.sql"), "-- Ack.\nSELECT 1;\n");
        assert_eq!(complaints(&tree), []);
    }

    #[test]
    fn second_statement_belongs_in_a_second_file() {
        let claim = path("sqlite/sql/claim.sql");
        let two = "-- Claim; and more.\nSELECT 1; -- one\n\nSELECT 2;\n";
        assert_eq!(fired(&claim, two), [(claim.clone(), 4, "one-statement")]);
        assert_eq!(fired(&claim, "-- Nothing.\n"), [(claim.clone(), 1, "one-statement")]);
    }

    #[test]
    fn semicolons_inside_quotes_and_comments_end_nothing() {
        let one = [
            "-- a;\nSELECT 1; -- b;\n/* c; */\n",
            "SELECT 'it''s; fine', \"a;b\" FROM t;",
            "DO $body$ BEGIN; $1; $$ ; $$ END $body$;",
            "SELECT $1, $2 /* ; */",
            "SELECT 'ä;ö';",
        ];
        for text in one {
            assert_eq!(statement_lines(text).len(), 1, "{text}");
        }
        assert_eq!(statement_lines("SELECT $1;\nSELECT $2;"), [1, 2]);
        assert_eq!(statement_lines("SELECT 'unclosed;"), [1]);
    }

    #[test]
    fn migrations_count_without_holes() {
        let text = "-- More.\nSELECT 1;\n";
        let rule = |path: &str| (path.to_owned(), 1, "migration-number");
        assert_eq!(fired(&path("sqlite/schema/migrations/0003_c.sql"), text), []);
        let hole = path("sqlite/schema/migrations/0004_d.sql");
        assert_eq!(fired(&hole, text), [rule(&hole)]);
        let taken = path("sqlite/schema/migrations/0002_zebra.sql");
        assert_eq!(fired(&taken, text), [rule(&taken)]);
        let unnumbered = path("sqlite/schema/migrations/more.sql");
        assert_eq!(fired(&unnumbered, text), [rule(&unnumbered)]);
        let first = path("postgres/schema/migrations/0001_base.sql");
        assert_eq!(fired(&first, text), [rule(&first)]);
    }
}
