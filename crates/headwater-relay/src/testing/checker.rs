//! Judges what a reader found at a broker against what was published: each message once, and the messages of a key in their order.
//!
//! ```
//! use headwater_relay::testing::checker::{Found, Published, at_least_once, exactly_once};
//!
//! let published = ["1", "2"].map(|id| Published { id: id.into(), key: "a".into() });
//! let found = |id: &str| Found { id: id.into(), key: "a".into(), partition: 0 };
//! assert!(exactly_once(&published, &[found("1"), found("2")]).is_empty());
//! let twice = [found("1"), found("1"), found("2")];
//! assert_eq!(exactly_once(&published, &twice), ["duplicate: 1 of key a"]);
//! assert!(at_least_once(&published, &twice).is_empty());
//! assert_eq!(at_least_once(&published, &[found("1")]), ["missing: 2 of key a"]);
//! ```

use std::collections::{HashMap, HashSet};

/// A message that was published, in the order of publication within its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Published {
    /// The message's id.
    pub id: String,
    /// Its key.
    pub key: String,
}

/// A record that a reader found, in the order of its partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// The id that travelled with the record.
    pub id: String,
    /// Its key.
    pub key: String,
    /// The partition it was in; any one number where a broker has none.
    pub partition: i32,
}

/// What is wrong; empty if each message was found once and in order.
pub fn exactly_once(published: &[Published], found: &[Found]) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut seen = HashSet::new();
    for record in found {
        if !seen.insert(record.id.as_str()) {
            wrong.push(format!("duplicate: {} of key {}", record.id, record.key));
        }
    }
    wrong.extend(at_least_once(published, found));
    wrong
}

/// The same with duplicates allowed: the first occurrences count.
pub fn at_least_once(published: &[Published], found: &[Found]) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut partitions: HashMap<&str, i32> = HashMap::new();
    let (mut seen, mut by_key): (HashSet<&str>, HashMap<&str, Vec<&str>>) = Default::default();
    for record in found {
        if *partitions.entry(&record.key).or_insert(record.partition) != record.partition {
            wrong.push(format!("key {} is in two partitions", record.key));
        }
        if seen.insert(&record.id) {
            by_key.entry(&record.key).or_default().push(&record.id);
        }
    }
    let mut expected: HashMap<&str, Vec<&str>> = HashMap::new();
    for message in published {
        if !seen.remove(message.id.as_str()) {
            wrong.push(format!("missing: {} of key {}", message.id, message.key));
        } else {
            expected.entry(&message.key).or_default().push(&message.id);
        }
    }
    wrong.extend(seen.iter().map(|id| format!("never published: {id}")));
    for (key, ids) in &expected {
        let found = by_key.get(key).map(Vec::as_slice).unwrap_or_default();
        if let Some(at) = (0..ids.len()).find(|at| found.get(*at) != Some(&ids[*at])) {
            wrong.push(format!("order of key {key}: {} expected, {:?} found", ids[at], found.get(at)));
        }
    }
    wrong
}

#[cfg(test)]
mod tests {
    use super::*;

    fn history() -> (Vec<Published>, Vec<Found>) {
        let published: Vec<Published> =
            (0..30).map(|n| Published { id: format!("m{n}"), key: format!("k{}", n % 3) }).collect();
        let found = published.iter().map(|message| Found {
            id: message.id.clone(),
            key: message.key.clone(),
            partition: i32::from(message.key == "k1"),
        });
        let found = found.collect();
        (published, found)
    }

    #[test]
    fn sound_history_passes() {
        let (published, found) = history();
        assert_eq!(exactly_once(&published, &found), Vec::<String>::new());
        // Order between keys is not promised.
        let mut found = found;
        found.sort_by_key(|record| record.partition);
        assert_eq!(exactly_once(&published, &found), Vec::<String>::new());
    }

    #[test]
    fn missing_message_is_found() {
        let (published, mut found) = history();
        found.remove(7);
        let wrong = exactly_once(&published, &found);
        assert_eq!(wrong, ["missing: m7 of key k1"]);
    }

    #[test]
    fn duplicate_is_found() {
        let (published, mut found) = history();
        found.push(found[4].clone());
        assert_eq!(exactly_once(&published, &found), ["duplicate: m4 of key k1"]);
        assert_eq!(at_least_once(&published, &found), Vec::<String>::new());
    }

    #[test]
    fn swapped_pair_of_a_key_is_found() {
        let (published, mut found) = history();
        found.swap(5, 8);
        let wrong = exactly_once(&published, &found);
        assert!(wrong.len() == 1 && wrong[0].starts_with("order of key k2: m5 expected"), "{wrong:?}");
    }

    #[test]
    fn foreign_record_and_split_key_are_found() {
        let (published, mut found) = history();
        found.push(Found { id: "x".into(), key: "k0".into(), partition: 9 });
        let wrong = exactly_once(&published, &found);
        assert_eq!(wrong, ["key k0 is in two partitions", "never published: x"]);
    }
}
