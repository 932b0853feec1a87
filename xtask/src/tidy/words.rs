//! Words: comments, logs, errors, SQL and documents are plain technical English, in which an operator can search.

use std::path::Path;

use super::Complaint;
use super::tree::Tree;
use crate::house::rust::Source;

/// What to avoid, and what to write instead.
const AVOID: [(&str, &str); 28] = [
    ("whoever", "name the component"),
    ("somebody", "name the component"),
    ("nobody", "name the component"),
    ("anybody", "name the component"),
    ("everybody", "name the component"),
    ("told", "reported, returned"),
    ("look", "read, check, search"),
    ("looks", "reads, checks, searches"),
    ("looked", "read, checked, searched"),
    ("looking", "reading, checking, searching"),
    ("hungry", "has capacity"),
    ("worn", "needs vacuum"),
    ("letters", "dead letters"),
    ("goes on", "continues"),
    ("go on", "continue"),
    ("went on", "continued"),
    ("going on", "under way"),
    ("upkeep", "maintenance"),
    ("chores", "maintenance jobs"),
    ("ailment", "health issue"),
    ("ailments", "health issues"),
    ("beat", "heartbeat"),
    ("pulse", "heartbeat"),
    ("stir", "wake"),
    ("stirred", "woken"),
    ("bell", "wake-up"),
    ("freshen", "vacuum"),
    ("tellings", "reports"),
];

/// Where a word is a name: a user of every Unix.
const NAMES: [(&str, &str); 1] = [("crates/headwater-servers/src/files.rs", "nobody")];

pub(super) fn check(tree: &Tree) -> Vec<Complaint> {
    let mut complaints = Vec::new();
    for (path, content) in tree.files() {
        let prose = match Path::new(path).extension().and_then(|extension| extension.to_str()) {
            // Here the words are data.
            _ if path.starts_with("xtask/src/tidy") => continue,
            Some("rs") => Source::read(content).prose,
            Some("sql" | "md" | "yml" | "yaml" | "css" | "js" | "mjs" | "ts" | "py" | "html") => {
                content.to_owned()
            }
            _ => continue,
        };
        let prose = prose.to_lowercase();
        for (word, instead) in AVOID.into_iter().filter(|(word, _)| !NAMES.contains(&(path, word))) {
            for at in occurrences(&prose, word) {
                let line = prose[..at].matches('\n').count() + 1;
                let advice = format!("`{word}`: write {instead}, or otherwise plainly");
                complaints.push(Complaint::new(path, line, "plain-words", advice));
            }
        }
    }
    complaints
}

/// Where a word stands as a whole; dead letters are no letters.
fn occurrences<'a>(text: &'a str, word: &'a str) -> impl Iterator<Item = usize> + 'a {
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    text.match_indices(word).map(|(at, _)| at).filter(move |at| {
        let (before, after) = (&text[..*at], &text[at + word.len()..]);
        let is_dead_letter = word == "letters" && before.trim_end_matches(|c| !is_part(c)).ends_with("dead");
        !before.ends_with(is_part) && !after.starts_with(is_part) && !is_dead_letter
    })
}

#[cfg(test)]
mod tests {
    use super::super::tests::fired;
    use super::*;

    #[test]
    fn words_to_avoid_are_found_in_prose_and_not_in_code() {
        let found = |path: &str, line| [(path.to_owned(), line, "plain-words")];
        assert_eq!(fired("docs/a.md", "# A\nNobody waits.\n"), found("docs/a.md", 2));
        assert_eq!(fired("docs/a.yml", "meaning: Nobody reads.\n"), found("docs/a.yml", 1));
        assert_eq!(fired("bench/a.sql", "-- Whoever waits.\nSELECT 1;\n"), found("bench/a.sql", 1));
        let log = "//! A.\nfn a() {\n    tracing::warn!(\"upkeep stopped\");\n}\n";
        assert_eq!(fired("crates/a/src/a.rs", log), found("crates/a/src/a.rs", 3));
        assert_eq!(fired("crates/a/src/a.rs", "//! A.\nfn look() {}\n"), []);
    }

    #[test]
    fn whole_words_count_and_dead_letters_are_allowed() {
        let at = |text, word| occurrences(text, word).collect::<Vec<_>>();
        assert_eq!(at("look, overlook, looks; look", "look"), [0, 23]);
        assert_eq!(at("letters, dead letters, dead_letters and dead\n/// letters", "letters"), [0]);
        assert_eq!(at("it goes on and on", "goes on"), [3]);
    }
}
