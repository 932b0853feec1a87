//! Statements, compiled in from `sql/<verb>.sql` of each engine: sections that begin with `-- name: …`, comments that
//! describe the statement, and one statement.

const NAME: &[u8] = b"-- name: ";

/// The statement of a section of an engine's file.
macro_rules! from_file {
    ($engine:literal, $verb:ident, $name:ident) => {
        const {
            const FILE: &str = include_str!(concat!(
                env!("CARGO_MANIFEST_DIR"),
                "/src/store/",
                $engine,
                "/sql/",
                stringify!($verb),
                ".sql"
            ));
            $crate::store::sql::section(FILE, stringify!($name))
        }
    };
}
pub(crate) use from_file;

/// The statement of a section. Evaluated by the compiler: a name that the file does not have is a compile error.
pub(crate) const fn section(file: &'static str, name: &str) -> &'static str {
    let (text, name) = (file.as_bytes(), name.as_bytes());
    let mut at = 0;
    while at < text.len() {
        let end = line_end(text, at);
        if starts_with(text, at, NAME)
            && end - at == NAME.len() + name.len()
            && starts_with(text, at + NAME.len(), name)
        {
            return body(file, end + 1);
        }
        at = end + 1;
    }
    panic!("the file has no section of this name")
}

/// From the first line that is not a comment to the next section.
const fn body(file: &'static str, from: usize) -> &'static str {
    let text = file.as_bytes();
    let mut first = from;
    while first < text.len() && starts_with(text, first, b"--") {
        first = line_end(text, first) + 1;
    }
    let (mut at, mut last) = (first, first);
    while at < text.len() && !starts_with(text, at, NAME) {
        let end = line_end(text, at);
        if end > at {
            last = end;
        }
        at = end + 1;
    }
    assert!(last > first, "the section has no statement");
    file.split_at(last).0.split_at(first).1
}

/// The end of the line that contains this position.
const fn line_end(text: &[u8], mut at: usize) -> usize {
    while at < text.len() && text[at] != b'\n' {
        at += 1;
    }
    at
}

const fn starts_with(text: &[u8], at: usize, with: &[u8]) -> bool {
    let mut n = 0;
    while n < with.len() {
        if at + n >= text.len() || text[at + n] != with[n] {
            return false;
        }
        n += 1;
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "-- name: one\n-- Purpose: a.\nSELECT 1\nFROM t\n\n-- name: one_more\n-- Purpose: b.\n-- Index: c.\nSELECT 2 -- two\n";

    #[test]
    fn a_section_is_its_statement_without_what_stands_around_it() {
        assert_eq!(section(FILE, "one"), "SELECT 1\nFROM t");
        assert_eq!(section(FILE, "one_more"), "SELECT 2 -- two");
    }

    #[test]
    #[should_panic = "no section of this name"]
    fn a_name_is_matched_whole() {
        section(FILE, "one_mor");
    }
}
