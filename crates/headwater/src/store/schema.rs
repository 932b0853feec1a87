//! What both engines need to keep the code of their schema (functions, views, triggers) current.
//!
//! Code is re-created as a whole when its hash differs from the stored one, but never over the code of a newer program:
//! with two versions running during a rolling deploy, the older one would otherwise restore its code each time it opens
//! the store.

use xxhash_rust::xxh3::Xxh3;

use crate::topic::TopicSettings;

/// The texts of code with the default settings of topics, for plain SQL that creates some: `{queue_settings}` and
/// `{pub_sub_settings}`, JSON inside a literal. The hash is of these texts, so that other defaults replace the code.
pub(crate) fn with_settings(texts: &[&str]) -> Vec<String> {
    let json = |settings: TopicSettings| serde_json::to_string(&settings).expect("settings are JSON");
    let (queue, pub_sub) = (json(TopicSettings::default()), json(TopicSettings::pub_sub()));
    let with = |text: &&str| text.replace("{queue_settings}", &queue).replace("{pub_sub_settings}", &pub_sub);
    texts.iter().map(with).collect()
}

/// A hash of these texts, in order: the same in every build and on every machine. It detects stale code and resists no
/// attack.
pub(crate) fn hash<T: AsRef<str>>(texts: &[T]) -> String {
    let mut hasher = Xxh3::new();
    for text in texts.iter().map(AsRef::as_ref) {
        // The length first: moving a line from one text to the next changes the hash.
        hasher.update(&u64::try_from(text.len()).unwrap_or(u64::MAX).to_le_bytes());
        hasher.update(text.as_bytes());
    }
    format!("{:032x}", hasher.digest128())
}

/// A hash of what table files define. Comments, layout and the order of statements and files do not count: a reworded comment or a
/// table in another file is the same schema.
///
/// Stored beside the version of the tables: equal versions with other tables are builds of which at least one was never released, and
/// neither can work with the tables of the other.
pub(crate) fn definition(texts: &[&str]) -> String {
    let code: Vec<&str> =
        texts.iter().flat_map(|text| text.lines()).filter_map(|line| line.split("--").next()).collect();
    let code = code.join(" ").split_whitespace().collect::<Vec<_>>().join(" ");
    let mut statements: Vec<&str> =
        code.split(';').map(str::trim).filter(|statement| !statement.is_empty()).collect();
    statements.sort_unstable();
    hash(&statements)
}

/// Whether the stored program version is newer than the program's own; a text that is not a version is not newer.
pub(crate) fn newer(stored: &str, own: &str) -> bool {
    match (numbers(stored), numbers(own)) {
        (Some(stored), Some(own)) => stored > own,
        _ => false,
    }
}

/// The three numbers of a version; a suffix (`-rc.1`, `+build`) does not count.
fn numbers(version: &str) -> Option<[u64; 3]> {
    let mut parts = version.split(['-', '+']).next()?.split('.').map(|part| part.parse().ok());
    let numbers = [parts.next()??, parts.next()??, parts.next()??];
    parts.next().is_none().then_some(numbers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_is_fixed_and_depends_on_every_text_and_their_borders() {
        assert_eq!(hash(&["a", "b"]), "4e8071d3974d16754bcb794c7d699bd6");
        for other in [&["ab"][..], &["ab", ""], &["b", "a"], &["a"], &[]] {
            assert_ne!(hash(&["a", "b"]), hash(other), "{other:?}");
        }
    }

    #[test]
    fn code_has_the_default_settings_in_literals() {
        let code = with_settings(&["'{queue_settings}' '{pub_sub_settings}'", "{schema}"]);
        let json = |settings| serde_json::to_string::<TopicSettings>(&settings).unwrap();
        let (queue, pub_sub) = (json(TopicSettings::default()), json(TopicSettings::pub_sub()));
        assert_eq!(code, [format!("'{queue}' '{pub_sub}'"), "{schema}".to_owned()]);
        assert!(!format!("{queue}{pub_sub}").contains('\''), "a quote would end the literal");
    }

    #[test]
    fn only_another_table_is_another_definition() {
        let table = "-- A table.\nCREATE TABLE a (\n    b text -- b\n);\n";
        assert_eq!(definition(&[table]), definition(&["CREATE TABLE a (\n\n  b   text\n);"]));
        assert_eq!(definition(&[table, "SELECT 1;"]), definition(&["SELECT 1; CREATE TABLE a ( b\ntext );"]));
        assert_ne!(definition(&[table]), definition(&[&table.replace("text", "integer")]));
    }

    #[test]
    fn versions_are_compared_by_their_numbers() {
        for (stored, own) in
            [("0.2.0", "0.1.9"), ("0.10.0", "0.9.0"), ("1.0.0", "0.99.99"), ("0.1.1", "0.1.0-rc.1")]
        {
            assert!(newer(stored, own), "{stored} {own}");
            assert!(!newer(own, stored), "{own} {stored}");
        }
        assert!(!newer("0.1.0", "0.1.0"));
        for other in ["", "9", "9.9", "9.9.9.9", "x.y.z"] {
            assert!(!newer(other, "0.1.0"), "{other}");
        }
    }
}
