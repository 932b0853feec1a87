//! Sizes and headers: a file fits in a reader's head and begins by saying what it is.

use super::Complaint;
use super::tree::Tree;

const FILE_LINES_MAX: usize = 500;
const MAP_LINES_MAX: usize = 150;
const MAP: &str = "ARCHITECTURE.md";

pub(super) fn check(tree: &Tree) -> Vec<Complaint> {
    let mut complaints = Vec::new();
    for (extension, opening) in [("rs", "//!"), ("sql", "--")] {
        for (path, content) in tree.with_extension(extension) {
            complaints.extend(check_size(path, content, FILE_LINES_MAX));
            if !content.starts_with(opening) {
                let advice = format!("open with `{opening}`: what lives here and why");
                complaints.push(Complaint::new(path, 1, "file-header", advice));
            }
        }
    }
    complaints.extend(tree.get(MAP).and_then(|content| check_size(MAP, content, MAP_LINES_MAX)));
    complaints
}

fn check_size(path: &str, content: &str, lines_max: usize) -> Option<Complaint> {
    let lines = content.lines().count();
    let advice = || format!("{lines} lines; split it by topic, {lines_max} is the most");
    (lines > lines_max).then(|| Complaint::new(path, lines_max + 1, "file-size", advice()))
}

#[cfg(test)]
mod tests {
    use super::super::tests::fired;

    #[test]
    fn long_files_are_to_be_split() {
        let rust = |lines: usize| "//! Long.\n".to_owned() + &"\n".repeat(lines - 1);
        assert_eq!(fired("xtask/src/a.rs", &rust(500)), []);
        assert_eq!(fired("xtask/src/a.rs", &rust(501)), [("xtask/src/a.rs".to_owned(), 501, "file-size")]);
        let sql = "-- Long.\n".to_owned() + &"\n".repeat(500);
        assert_eq!(fired("bench/a.sql", &sql), [("bench/a.sql".to_owned(), 501, "file-size")]);
    }

    #[test]
    fn files_open_with_what_lives_there() {
        assert_eq!(fired("src/a.rs", "use std::io;\n"), [("src/a.rs".to_owned(), 1, "file-header")]);
        assert_eq!(fired("src/a.rs", ""), [("src/a.rs".to_owned(), 1, "file-header")]);
        assert_eq!(fired("bench/a.sql", "SELECT 1;\n"), [("bench/a.sql".to_owned(), 1, "file-header")]);
    }

    #[test]
    fn map_stays_short() {
        assert_eq!(fired("ARCHITECTURE.md", &"a\n".repeat(150)), []);
        let expected = [("ARCHITECTURE.md".to_owned(), 151, "file-size")];
        assert_eq!(fired("ARCHITECTURE.md", &"a\n".repeat(151)), expected);
    }
}
