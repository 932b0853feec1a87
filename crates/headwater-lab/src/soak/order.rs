//! What histories show about order per key, and about tokens: rules over several members at once. Pure; its tests prove
//! that it finds violations.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::check::MemberHistory;
use super::history::MemberEvent;
use super::publish::key_of;

/// The first time a message was begun, and the first time a handler of it ended.
#[derive(Clone, Copy, Debug)]
struct First {
    began_us: u64,
    ended_us: Option<u64>,
}

/// How many messages of an ordered group were begun before an older one of their key had been handled once, with a few
/// examples. A redelivered message, with all that followed it, does not count: only the first time does.
pub(crate) fn inversions(members: &[MemberHistory]) -> (usize, Vec<String>) {
    let mut firsts: HashMap<&str, First> = HashMap::new();
    for event in members.iter().flat_map(|history| &history.events) {
        match event {
            MemberEvent::Began { id, at_us, .. } => {
                let first = firsts.entry(id).or_insert(First { began_us: *at_us, ended_us: None });
                first.began_us = first.began_us.min(*at_us);
            }
            MemberEvent::Ended { id, at_us, .. } => {
                let first = firsts.entry(id).or_insert(First { began_us: *at_us, ended_us: None });
                first.ended_us = Some(first.ended_us.map_or(*at_us, |us| us.min(*at_us)));
            }
            _ => {}
        }
    }
    let mut keys: HashMap<String, BTreeMap<u64, (&str, First)>> = HashMap::new();
    for (id, first) in firsts {
        if let Some((key, number)) = key_of(id) {
            keys.entry(key).or_default().insert(number, (id, first));
        }
    }
    let (mut count, mut examples) = (0, vec![]);
    for in_order in keys.values() {
        let mut before: Option<(&str, u64)> = None;
        for (id, first) in in_order.values() {
            if let Some((older, ended_us)) = before.filter(|(_, ended_us)| first.began_us < *ended_us) {
                count += 1;
                if examples.len() < 5 {
                    let early = ended_us.saturating_sub(first.began_us);
                    examples.push(format!("{id} was begun before {older} was handled ({early} µs early)"));
                }
            }
            // The latest of all before it: a message that came too early does not hide those after it.
            let ended_us = first.ended_us.unwrap_or(u64::MAX);
            if before.is_none_or(|(_, latest)| latest < ended_us) {
                before = Some((id, ended_us));
            }
        }
    }
    (count, examples)
}

/// Tokens under which two members got a delivery.
pub(crate) fn tokens_issued_twice<'h>(groups: impl IntoIterator<Item = &'h [MemberHistory]>) -> usize {
    let mut holders: HashMap<i64, &str> = HashMap::new();
    let mut twice = HashSet::new();
    for history in groups.into_iter().flatten() {
        for event in &history.events {
            let MemberEvent::Delivered { token, .. } = event else { continue };
            if *holders.entry(*token).or_insert(&history.member) != history.member {
                twice.insert(*token);
            }
        }
    }
    twice.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Handled as `(message, from, to)`.
    fn member(name: &str, handled: &[(&str, u64, u64)]) -> MemberHistory {
        let events = handled.iter().flat_map(|(id, from, to)| {
            let id = (*id).to_owned();
            [
                MemberEvent::Began { offset: 1, id: id.clone(), at_us: *from },
                MemberEvent::Ended { id, transaction: 0, at_us: *to },
            ]
        });
        MemberHistory { member: name.into(), killed_us: None, events: events.collect() }
    }

    #[test]
    fn messages_of_a_key_one_after_the_other_are_in_order() {
        let other_key = ("p1-1", 1, 99);
        let members =
            [member("a", &[("p1-0", 1, 2), other_key]), member("b", &[("p1-8", 3, 4), ("p1-16", 4, 5)])];
        assert_eq!(inversions(&members).0, 0);
    }

    #[test]
    fn a_redelivered_prefix_is_in_order() {
        let again = member("b", &[("p1-0", 10, 11), ("p1-8", 12, 13), ("p1-16", 14, 15)]);
        assert_eq!(inversions(&[member("a", &[("p1-0", 1, 2), ("p1-8", 3, 4)]), again]).0, 0);
    }

    #[test]
    fn a_reordered_message_fails() {
        assert_eq!(inversions(&[member("a", &[("p1-8", 1, 2), ("p1-0", 3, 4), ("p1-16", 5, 6)])]).0, 1);
    }

    #[test]
    fn two_of_a_key_at_once_fail() {
        assert_eq!(inversions(&[member("a", &[("p1-0", 1, 5)]), member("b", &[("p1-8", 4, 6)])]).0, 1);
    }

    #[test]
    fn one_begun_before_an_older_one_that_was_never_handled_fails() {
        let mut cut = member("a", &[("p1-0", 1, 2)]);
        cut.events.pop();
        assert_eq!(inversions(&[cut, member("b", &[("p1-8", 4, 6)])]).0, 1);
    }

    #[test]
    fn a_token_in_two_hands_is_found() {
        let with = |name: &str, token| {
            let event = MemberEvent::Delivered { token, offset: 1, id: "p1-0".into(), at_us: 1 };
            MemberHistory { member: name.into(), killed_us: None, events: vec![event.clone(), event] }
        };
        assert_eq!(tokens_issued_twice([&[with("a", 1), with("b", 2)][..], &[with("c", 3)]]), 0);
        assert_eq!(tokens_issued_twice([&[with("a", 1), with("b", 2)][..], &[with("c", 1)]]), 1);
    }
}
