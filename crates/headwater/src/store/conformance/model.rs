//! A small in-memory model of one topic: what a store may answer, and what it must have delivered in the end.
//!
//! It tracks every offset's state per group and leaves open what engines may decide: how large a range is, and which
//! due range comes first.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use jiff::Timestamp;
use uuid::Uuid;

use crate::lease::{Lease, LeaseToken, OffsetRange, attempts_after_expiry};
use crate::message::{Message, NewMessage, Published};
use crate::settle::{Outcome, Parts, Settlement};
use crate::topic::TopicSettings;

/// A group's state of one offset that it was handed. An offset without a state is new to the group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// Handed out.
    Leased(Holding),
    /// Released, retried or expired.
    Waiting { due: Timestamp, attempts: u32, suspect: bool },
    /// Done.
    Acked,
    /// A dead letter, with a part of its error.
    Buried { attempts: u32, error: String },
}

/// One offset's part of a lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Holding {
    token: LeaseToken,
    owner: String,
    deadline: Option<Timestamp>,
    attempts: u32,
    suspect: bool,
}

impl Holding {
    fn lives(&self, now: Timestamp) -> bool {
        self.deadline.is_none_or(|deadline| deadline > now)
    }
}

/// A published message.
#[derive(Clone, Debug)]
struct Known {
    payload: Vec<u8>,
    offset: Option<i64>,
    not_before: Option<Timestamp>,
}

/// One group.
#[derive(Clone, Debug)]
pub(super) struct Group {
    /// The first offset the group is to get.
    start: i64,
    states: BTreeMap<i64, State>,
}

/// The model of a topic.
#[derive(Debug)]
pub(super) struct Model {
    settings: TopicSettings,
    messages: HashMap<Uuid, Known>,
    offsets: BTreeMap<i64, Uuid>,
    dedup: HashMap<String, (Uuid, Timestamp)>,
    /// The groups, in the order they subscribed.
    pub(super) groups: Vec<Group>,
    token_last: LeaseToken,
}

impl Model {
    pub(super) fn new(settings: TopicSettings) -> Self {
        Model {
            settings,
            messages: HashMap::new(),
            offsets: BTreeMap::new(),
            dedup: HashMap::new(),
            groups: Vec::new(),
            token_last: LeaseToken(i64::MIN),
        }
    }

    /// A group subscribed; `next` is the cursor the store shows.
    pub(super) fn subscribed(&mut self, next: i64, expected: Option<i64>) {
        if let Some(expected) = expected {
            assert_eq!(next, expected, "a group starts at the requested offset");
        } else {
            let known = self.offsets.keys().next_back().copied().unwrap_or_default();
            assert!(next > known, "now is after everything committed: {next} and {known}");
        }
        self.groups.push(Group { start: next, states: BTreeMap::new() });
    }

    /// A batch was published: checks the answers, and records them.
    pub(super) fn published(&mut self, batch: &[NewMessage], answers: &[Published], now: Timestamp) {
        assert_eq!(batch.len(), answers.len(), "one answer per message");
        for (message, answer) in batch.iter().zip(answers) {
            let first = message.dedup_key.as_ref().and_then(|key| self.dedup.get(key)).copied();
            // At the very end of the window either answer is right.
            let duplicate = match first {
                Some((_, expires)) if expires == now => answer.duplicate,
                Some((_, expires)) => expires > now,
                None => false,
            };
            assert_eq!(answer.duplicate, duplicate, "dedup key {:?}", message.dedup_key);
            if duplicate {
                let id = first.expect("a duplicate has a first").0;
                assert_eq!(answer.message_id, id, "a duplicate is answered with the first");
                let known = self.messages[&id].offset;
                assert!(answer.offset.is_none() || known.is_none() || answer.offset.map(|o| o.0) == known);
                continue;
            }
            let delayed = message.deliver_at.is_some_and(|at| at > now);
            assert_eq!(answer.offset.is_none(), delayed, "only a delayed message has no offset yet");
            self.messages.insert(
                answer.message_id,
                Known { payload: message.payload.to_vec(), offset: None, not_before: message.deliver_at },
            );
            if let Some(offset) = answer.offset {
                self.place(answer.message_id, offset.0);
            }
            if let Some(key) = &message.dedup_key {
                let expires = now + self.settings.dedup_window;
                self.dedup.insert(key.clone(), (answer.message_id, expires));
            }
        }
    }

    /// A message appeared at an offset: for the first time, or at the same one as before.
    fn place(&mut self, id: Uuid, offset: i64) {
        let known = self.messages.get_mut(&id).expect("only published messages are seen");
        if known.offset == Some(offset) {
            return;
        }
        assert_eq!(known.offset, None, "message {id} is at two offsets, {offset} among them");
        known.offset = Some(offset);
        assert_eq!(self.offsets.insert(offset, id), None, "offset {offset} is used twice");
        for group in &self.groups {
            let seen = group.states.contains_key(&offset);
            assert!(!seen, "offset {offset} appeared after it had been handed out");
        }
    }

    /// The messages of a range that a group was handed: checks each, and learns the offsets of delayed ones.
    pub(super) fn fetched(&mut self, range: OffsetRange, messages: &[Message], now: Timestamp) {
        let there: BTreeSet<_> = messages.iter().map(|message| message.offset.0).collect();
        for message in messages {
            assert!(range.contains(message.offset), "{} is outside {range}", message.offset);
            let known = self.messages.get(&message.message_id);
            let known = known.unwrap_or_else(|| panic!("{} was never published", message.message_id));
            assert_eq!(message.payload, known.payload, "the payload of {}", message.offset);
            assert!(known.not_before.is_none_or(|at| at <= now), "{} is too early", message.offset);
            self.place(message.message_id, message.offset.0);
        }
        for (offset, _) in self.offsets.range(range.first.0..=range.last.0) {
            assert!(there.contains(offset), "fetch left out {offset}");
        }
    }

    /// Expires a group's leases whose deadline has passed.
    fn expire(&mut self, group: usize, now: Timestamp) {
        let group = &mut self.groups[group];
        let expired = |state: &State| matches!(state, State::Leased(holding) if !holding.lives(now));
        let offsets: Vec<_> =
            group.states.iter().filter(|(_, state)| expired(state)).map(|(offset, _)| *offset).collect();
        let token_of = |offset: i64| match group.states.get(&offset) {
            Some(State::Leased(holding)) => Some(holding.token),
            _ => None,
        };
        let mut rows: Vec<(i64, i64)> = Vec::new();
        for offset in offsets {
            match rows.last_mut() {
                Some((_, last)) if *last + 1 == offset && token_of(*last) == token_of(offset) => {
                    *last = offset;
                }
                _ => rows.push((offset, offset)),
            }
        }
        for (first, last) in rows {
            let Some(State::Leased(holding)) = group.states.get(&first).cloned() else { unreachable!() };
            let max = self.settings.max_attempts;
            let span = u64::try_from(last - first + 1).expect("a range runs upwards");
            let attempts = attempts_after_expiry(span, holding.attempts, max);
            for offset in first..=last {
                let buried = span == 1 && attempts >= max;
                let state = if buried && self.offsets.contains_key(&offset) {
                    State::Buried { attempts, error: "expired".into() }
                } else if buried {
                    State::Acked
                } else {
                    State::Waiting { due: now, attempts, suspect: true }
                };
                group.states.insert(offset, state);
            }
        }
    }

    /// A claim was answered: checks that everything in it may be handed out now.
    pub(super) fn claimed(
        &mut self,
        group: usize,
        owner: &str,
        count: u32,
        leases: &[Lease],
        now: Timestamp,
    ) {
        self.expire(group, now);
        let spanned: u64 = leases.iter().map(|lease| lease.range.span()).sum();
        assert!(spanned <= u64::from(count), "{spanned} offsets for {count} wanted");
        let held: Vec<_> = self.held_by(group, owner, now);
        if held.iter().any(|holding| holding.suspect) {
            assert!(leases.is_empty(), "{owner} holds a suspect and got more: {leases:?}");
        }
        for lease in leases {
            if lease.suspect {
                assert!(leases.len() == 1 && held.is_empty(), "a suspect is handed out alone: {leases:?}");
            }
            assert!(lease.token > self.token_last, "tokens rise: {:?} {lease:?}", self.token_last);
            let expected = (self.settings.lease > Duration::ZERO).then(|| now + self.settings.lease);
            assert_eq!(lease.deadline, expected);
            self.handed_out(group, owner, lease, now);
        }
        self.token_last = leases.iter().map(|lease| lease.token).max().unwrap_or(self.token_last);
    }

    fn held_by(&self, group: usize, owner: &str, now: Timestamp) -> Vec<Holding> {
        let states = self.groups[group].states.values();
        let holdings = states.filter_map(|state| match state {
            State::Leased(holding) if holding.owner == owner && holding.lives(now) => Some(holding.clone()),
            _ => None,
        });
        holdings.collect()
    }

    fn handed_out(&mut self, group: usize, owner: &str, lease: &Lease, now: Timestamp) {
        let group = &mut self.groups[group];
        for offset in lease.range.first.0..=lease.range.last.0 {
            assert!(offset >= group.start, "{offset} is before the group's start {}", group.start);
            let (attempts, suspect) = match group.states.get(&offset) {
                None => {
                    let mut older = self.offsets.range(group.start..lease.range.first.0);
                    let skipped = older.find(|(older, _)| !group.states.contains_key(older));
                    assert_eq!(skipped, None, "an older message was skipped for {offset}");
                    (0, false)
                }
                Some(State::Waiting { due, attempts, suspect }) => {
                    assert!(*due <= now, "{offset} was handed out before its time");
                    (*attempts, *suspect)
                }
                Some(other) => panic!("{offset} was handed out and is {other:?}"),
            };
            assert_eq!((lease.attempt, lease.suspect), (attempts + 1, suspect), "{offset} of {lease:?}");
        }
        let holding = Holding {
            token: lease.token,
            owner: owner.to_owned(),
            deadline: lease.deadline,
            attempts: lease.attempt - 1,
            suspect: lease.suspect,
        };
        for offset in lease.range.first.0..=lease.range.last.0 {
            group.states.insert(offset, State::Leased(holding.clone()));
        }
    }

    /// The offsets of a group still held under a token; none once the lease is lost.
    pub(super) fn held_under(&self, group: usize, token: LeaseToken, now: Timestamp) -> BTreeSet<i64> {
        let states = self.groups[group].states.iter();
        let held = states.filter(|(_, state)| {
            matches!(state, State::Leased(holding) if holding.token == token && holding.lives(now))
        });
        held.map(|(offset, _)| *offset).collect()
    }

    /// Applies a settlement; returns whether the store must accept it.
    pub(super) fn settle(&mut self, group: usize, settlement: &Settlement, now: Timestamp) -> bool {
        let held = self.held_under(group, settlement.lease.token, now);
        let whole = held.iter().map(|offset| (super::case::range(*offset, *offset), Outcome::Ack)).collect();
        let parts = match &settlement.parts {
            Parts::AckAll => whole,
            Parts::Each(parts) => parts.clone(),
        };
        let offsets = |range: OffsetRange| range.first.0..=range.last.0;
        let inside = parts.iter().all(|(range, _)| offsets(*range).all(|offset| held.contains(&offset)));
        if held.is_empty() || !inside {
            return false;
        }
        for (range, outcome) in parts {
            for offset in offsets(range) {
                self.settle_one(group, offset, &outcome, now);
            }
        }
        true
    }

    fn settle_one(&mut self, group: usize, offset: i64, outcome: &Outcome, now: Timestamp) {
        let group = &mut self.groups[group];
        let Some(State::Leased(holding)) = group.states.get(&offset).cloned() else { unreachable!() };
        let (attempts, suspect) = (holding.attempts, holding.suspect);
        let state = match outcome {
            Outcome::Ack => State::Acked,
            Outcome::Retry { after, .. } => {
                State::Waiting { due: now + *after, attempts: attempts + 1, suspect: false }
            }
            Outcome::Bury { error } if self.offsets.contains_key(&offset) => {
                State::Buried { attempts: attempts + 1, error: error.clone() }
            }
            Outcome::Bury { .. } => State::Acked,
            Outcome::Release => State::Waiting { due: now, attempts, suspect },
            Outcome::Park { .. } => unreachable!("nothing is parked without lanes"),
        };
        group.states.insert(offset, state);
    }

    /// Applies an extension; returns whether the store must accept it.
    pub(super) fn extend(&mut self, group: usize, token: LeaseToken, by: Duration, now: Timestamp) -> bool {
        let held = self.held_under(group, token, now);
        for offset in &held {
            if let Some(State::Leased(holding)) = self.groups[group].states.get_mut(offset) {
                holding.deadline = (by > Duration::ZERO).then(|| now + by);
            }
        }
        !held.is_empty()
    }

    /// How many offsets a group has not finished, as far as the model can tell. Offsets without a message count while
    /// they are outstanding, because a member released them.
    pub(super) fn unfinished(&self, group: usize) -> usize {
        let group = &self.groups[group];
        let done = |state: &State| matches!(state, State::Acked | State::Buried { .. });
        let nowhere = self.messages.values().filter(|known| known.offset.is_none()).count();
        let fresh =
            self.offsets.range(group.start..).filter(|(offset, _)| !group.states.contains_key(offset));
        nowhere + fresh.count() + group.states.values().filter(|state| !done(state)).count()
    }

    /// The expected dead letters of a group: offset, attempts and a part of the error.
    pub(super) fn buried(&self, group: usize) -> Vec<(i64, u32, String)> {
        let states = self.groups[group].states.iter();
        let buried = states.filter_map(|(offset, state)| match state {
            State::Buried { attempts, error } => Some((*offset, *attempts, error.clone())),
            _ => None,
        });
        buried.collect()
    }
}
