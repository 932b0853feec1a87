//! Judging without a store: what samples, ledgers and records of handling show.

use std::collections::{BTreeMap, HashMap};

/// What a ledger of effects shows about the messages `0..messages`.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Effects {
    /// Messages without a row.
    pub(crate) missing: u64,
    /// Rows beyond the first of a message.
    pub(crate) doubled: u64,
    /// Rows of messages that were never published.
    pub(crate) strangers: u64,
    /// Rows written on a second or later attempt: proof that kills hit messages in flight.
    pub(crate) later_attempts: u64,
}

/// Counts the rows `(message, attempt)` of a ledger.
pub(crate) fn effects(rows: &[(i64, i64)], messages: u64) -> Effects {
    let mut effects = Effects::default();
    let mut counts = vec![0u64; usize::try_from(messages).unwrap_or_default()];
    for (message, attempt) in rows {
        match usize::try_from(*message).ok().and_then(|at| counts.get_mut(at)) {
            Some(count) => *count += 1,
            None => effects.strangers += 1,
        }
        effects.later_attempts += u64::from(*attempt > 1);
    }
    effects.missing = counts.iter().filter(|count| **count == 0).count() as u64;
    effects.doubled = counts.iter().map(|count| count.saturating_sub(1)).sum();
    effects
}

/// One run of a handler for a message in a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Handled {
    pub(crate) process: usize,
    pub(crate) started_us: u64,
    pub(crate) ended_us: Option<u64>,
}

/// The handler runs of all processes of a check, by message.
#[derive(Debug, Default)]
pub(crate) struct Record {
    handled: BTreeMap<u64, Vec<Handled>>,
    /// Lines that could not be understood.
    pub(crate) garbled: u64,
}

impl Record {
    /// Records a line of a process: `+ n us` when a handler starts, `- n us` when it ends.
    pub(crate) fn note(&mut self, process: usize, line: &str) {
        let mut fields = line.split(' ');
        let sign = fields.next();
        let mut number = || fields.next().and_then(|field| field.parse::<u64>().ok());
        let (Some(message), Some(at_us)) = (number(), number()) else {
            self.garbled += 1;
            return;
        };
        let handled = self.handled.entry(message).or_default();
        match sign {
            Some("+") => handled.push(Handled { process, started_us: at_us, ended_us: None }),
            Some("-") => {
                let open = |one: &&mut Handled| one.process == process && one.ended_us.is_none();
                match handled.iter_mut().find(open) {
                    Some(one) => one.ended_us = Some(at_us),
                    None => self.garbled += 1,
                }
            }
            _ => self.garbled += 1,
        }
    }

    /// How many messages have a handler run that ended.
    pub(crate) fn finished(&self) -> u64 {
        self.handled.values().filter(|handled| first_end(handled).is_some()).count() as u64
    }

    /// How many messages have a handler run that started.
    pub(crate) fn begun(&self) -> u64 {
        self.handled.len() as u64
    }

    /// Whether a message has a handler run that ended.
    pub(crate) fn is_finished(&self, message: u64) -> bool {
        self.handled.get(&message).is_some_and(|handled| first_end(handled).is_some())
    }

    /// Messages that two living processes, or one twice, had in handlers at the same time.
    pub(crate) fn overlapping(&self, killed: &[usize]) -> u64 {
        let at_once = |handled: &Vec<Handled>| {
            let mut living: Vec<&Handled> =
                handled.iter().filter(|one| !killed.contains(&one.process)).collect();
            living.sort_by_key(|one| one.started_us);
            living
                .windows(2)
                .any(|pair| pair[0].ended_us.is_none_or(|ended_us| pair[1].started_us < ended_us))
        };
        self.handled.values().filter(|handled| at_once(handled)).count() as u64
    }

    /// When the last of the messages was handled for the first time.
    pub(crate) fn finished_at_us(&self) -> Option<u64> {
        self.handled.values().filter_map(|handled| first_end(handled)).max()
    }

    /// Messages that were started more than once.
    pub(crate) fn doubled(&self) -> u64 {
        self.handled.values().filter(|handled| handled.len() > 1).count() as u64
    }

    /// How many messages each process was the first to start.
    pub(crate) fn shares(&self) -> HashMap<usize, u64> {
        let mut shares = HashMap::new();
        for first in self.handled.values().filter_map(|handled| handled.first()) {
            *shares.entry(first.process).or_default() += 1;
        }
        shares
    }

    /// How many messages a process has started.
    pub(crate) fn started_by(&self, process: usize) -> u64 {
        self.handled.values().filter(|all| all.iter().any(|one| one.process == process)).count() as u64
    }

    /// How many messages have a handler run that ended in a process.
    pub(crate) fn ended_by(&self, process: usize) -> u64 {
        let ended = |one: &Handled| one.process == process && one.ended_us.is_some();
        self.handled.values().filter(|all| all.iter().any(ended)).count() as u64
    }

    /// Messages handled more than once that no kill explains. A kill explains a repeat if the message was in flight in the
    /// killed process: it started it, and ended it no more than `unsettled_us` before it died.
    pub(crate) fn doubled_without_excuse(&self, kills: &[Kill], unsettled_us: u64) -> u64 {
        let excused = |one: &Handled| {
            kills.iter().any(|kill| {
                kill.process == one.process
                    && one.ended_us.is_none_or(|ended_us| ended_us + unsettled_us >= kill.at_us)
            })
        };
        // The last run needs no explanation.
        let repeats = |handled: &[Handled]| {
            let mut in_time = handled.to_vec();
            in_time.sort_by_key(|one| one.started_us);
            in_time.pop();
            !in_time.iter().all(&excused)
        };
        self.handled.values().filter(|handled| repeats(handled)).count() as u64
    }
}

/// A process that was killed, and when.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kill {
    pub(crate) process: usize,
    pub(crate) at_us: u64,
}

fn first_end(handled: &[Handled]) -> Option<u64> {
    handled.iter().filter_map(|one| one.ended_us).min()
}

/// Tracks handlers of messages numbered per key, `0, 1, 2, …`.
#[derive(Debug, Default)]
pub(crate) struct OrderBook {
    keys: HashMap<u64, KeyState>,
    /// Messages handled successfully, each once.
    pub(crate) done: u64,
    /// A message reached a handler before an older one of its key was done.
    pub(crate) inversions: u64,
    /// Two messages of one key were in handlers at the same time.
    pub(crate) overlaps: u64,
    /// A message reached a handler although it was done.
    pub(crate) repeats: u64,
}

#[derive(Debug, Default)]
struct KeyState {
    next: u64,
    busy: bool,
}

impl OrderBook {
    /// A handler starts.
    pub(crate) fn begin(&mut self, key: u64, number: u64) {
        let state = self.keys.entry(key).or_default();
        self.overlaps += u64::from(state.busy);
        self.inversions += u64::from(number > state.next);
        self.repeats += u64::from(number < state.next);
        state.busy = true;
    }

    /// A handler ends, successfully or not.
    pub(crate) fn end(&mut self, key: u64, number: u64, well: bool) {
        let state = self.keys.entry(key).or_default();
        state.busy = false;
        // A message that came too early counts as one inversion, not as one for each message after it.
        if well && number >= state.next {
            state.next = number + 1;
            self.done += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ledger_shows_missing_doubled_and_strange_rows() {
        let rows = [(0, 1), (1, 2), (1, 1), (1, 3), (7, 1), (-1, 1)];
        let found = effects(&rows, 4);
        assert_eq!(found, Effects { missing: 2, doubled: 2, strangers: 2, later_attempts: 2 });
        assert_eq!(effects(&[(1, 1), (0, 1)], 2), Effects::default());
    }

    fn record(lines: &[(usize, &str)]) -> Record {
        let mut record = Record::default();
        for (process, line) in lines {
            record.note(*process, line);
        }
        record
    }

    #[test]
    fn a_record_knows_what_was_handled_and_when_it_was_over() {
        let record =
            record(&[(0, "+ 1 100"), (0, "- 1 110"), (1, "+ 2 120"), (1, "- 2 150"), (0, "+ 3 160")]);
        assert_eq!((record.finished(), record.doubled(), record.garbled), (2, 0, 0));
        assert_eq!(record.finished_at_us(), Some(150));
        assert_eq!(record.shares(), HashMap::from([(0, 2), (1, 1)]));
        assert_eq!((record.started_by(0), record.ended_by(0), record.ended_by(2)), (2, 1, 0));
    }

    #[test]
    fn a_message_in_two_hands_at_once_is_found_unless_one_is_dead() {
        let lines = [(0, "+ 1 100"), (1, "+ 1 105"), (0, "- 1 110"), (1, "- 1 115")];
        assert_eq!((record(&lines).overlapping(&[]), record(&lines).overlapping(&[0])), (1, 0));
        let one_by_one = [(0, "+ 1 100"), (0, "- 1 104"), (1, "+ 1 105"), (1, "- 1 115")];
        let record = record(&one_by_one);
        assert_eq!((record.overlapping(&[]), record.begun(), record.is_finished(1)), (0, 1, true));
    }

    #[test]
    fn what_makes_no_sense_is_counted_and_not_taken_for_handling() {
        let record = record(&[(0, "- 1 100"), (0, "+ x 100"), (0, "nonsense"), (0, "+ 2")]);
        assert_eq!((record.finished(), record.garbled), (0, 4));
    }

    #[test]
    fn only_the_hand_of_a_killed_process_excuses_a_repeat() {
        let kills = [Kill { process: 0, at_us: 10_000 }];
        let without_excuse = |lines: &[(usize, &str)]| record(lines).doubled_without_excuse(&kills, 1_000);
        // In the handler when killed, and ended so shortly before that the ack may not have been sent.
        assert_eq!(without_excuse(&[(0, "+ 1 9990"), (1, "+ 1 20000"), (1, "- 1 20001")]), 0);
        assert_eq!(
            without_excuse(&[(0, "+ 1 9000"), (0, "- 1 9001"), (1, "+ 1 20000"), (1, "- 1 20001")]),
            0
        );
        // Ended long before the kill, or by a process that was not killed.
        assert_eq!(
            without_excuse(&[(0, "+ 1 8000"), (0, "- 1 8001"), (1, "+ 1 20000"), (1, "- 1 20001")]),
            1
        );
        assert_eq!(
            without_excuse(&[(1, "+ 1 9000"), (1, "- 1 9001"), (1, "+ 1 20000"), (1, "- 1 20001")]),
            1
        );
        // Three times is once too often for one kill.
        let lines = [(0, "+ 1 9990"), (1, "+ 1 20000"), (1, "- 1 20001"), (1, "+ 1 30000")];
        assert_eq!(without_excuse(&lines), 1);
    }

    #[test]
    fn the_order_book_distinguishes_inversions_overlaps_and_repeats() {
        let mut book = OrderBook::default();
        for (key, number) in [(1, 0), (2, 0), (1, 1)] {
            book.begin(key, number);
            book.end(key, number, true);
        }
        // A failed attempt and its retry are in order.
        book.begin(1, 2);
        book.end(1, 2, false);
        book.begin(1, 2);
        book.end(1, 2, true);
        assert_eq!((book.done, book.inversions, book.overlaps, book.repeats), (4, 0, 0, 0));
        book.begin(2, 2);
        book.begin(2, 1);
        book.end(2, 2, true);
        book.end(2, 1, true);
        assert_eq!((book.inversions, book.overlaps, book.repeats), (1, 1, 0));
        book.begin(1, 0);
        book.end(1, 0, true);
        assert_eq!((book.done, book.repeats), (5, 1));
    }
}
