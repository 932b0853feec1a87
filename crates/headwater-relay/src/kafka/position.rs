//! How far a topic is in Kafka, as the metadata of an offset: a cursor, and the offsets above it that are done.

use std::collections::BTreeSet;
use std::fmt::Write;

/// Brokers take 4,096 bytes unless they are configured otherwise.
pub(super) const POSITION_BYTES_MAX: usize = 4_000;
const VERSION: &str = "1";
/// For numbers in the text.
const DIGITS: &[u8; 36] = b"0123456789abcdefghijklmnopqrstuvwxyz";

/// What is in Kafka.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Position {
    /// At or below it the database had done everything, when its cursor was below `guard`.
    pub(super) cursor: i64,
    /// A cursor that the database's group has passed since: one below it shows that the database's position was moved back.
    pub(super) guard: i64,
    /// The highest offset sent, and a digest of its message's id: the same offset of another database has another.
    pub(super) last: Option<(i64, u32)>,
    /// Offsets above the cursor that are in Kafka: closed ranges, rising, neither touching nor overlapping.
    done: Vec<(i64, i64)>,
    /// Late messages that are in Kafka: they committed in a gap at or below the cursor.
    late: BTreeSet<i64>,
}

impl Position {
    /// A position before the first message: the database has done everything up to `cursor`, and never handed out anything.
    pub(super) fn new(cursor: i64) -> Self {
        Position { cursor, ..Position::default() }
    }

    /// Whether the offset is known to be in Kafka. One at or below the cursor that is not known is either late, or was done before.
    pub(super) fn contains(&self, offset: i64) -> bool {
        if offset <= self.cursor {
            return self.late.contains(&offset);
        }
        let at = self.done.partition_point(|(_, last)| *last < offset);
        self.done.get(at).is_some_and(|(first, _)| *first <= offset)
    }

    /// Adds a message that is sent.
    pub(super) fn add(&mut self, offset: i64, digest: u32) {
        if self.last.is_none_or(|(last, _)| last < offset) {
            self.last = Some((offset, digest));
        }
        if offset <= self.cursor {
            self.late.insert(offset);
            return;
        }
        if self.contains(offset) {
            return;
        }
        let at = self.done.partition_point(|(_, last)| *last < offset);
        let joins_before = at > 0 && self.done[at - 1].1 + 1 == offset;
        let joins_after = self.done.get(at).is_some_and(|(first, _)| offset + 1 == *first);
        match (joins_before, joins_after) {
            (true, true) => {
                self.done[at - 1].1 = self.done[at].1;
                self.done.remove(at);
            }
            (true, false) => self.done[at - 1].1 = offset,
            (false, true) => self.done[at].0 = offset,
            (false, false) => self.done.insert(at, (offset, offset)),
        }
    }

    /// Raises the cursor, and drops what is at or below it.
    pub(super) fn raise(&mut self, cursor: i64, guard: i64) {
        if cursor <= self.cursor {
            return;
        }
        (self.cursor, self.guard) = (cursor, guard);
        self.done.retain(|(_, last)| *last > cursor);
        if let Some(first) = self.done.first_mut() {
            first.0 = first.0.max(cursor + 1);
        }
    }

    /// The late messages.
    pub(super) fn late(&self) -> &BTreeSet<i64> {
        &self.late
    }

    /// Drops late messages that the database has done.
    pub(super) fn forget_late(&mut self, done: &BTreeSet<i64>) {
        self.late.retain(|offset| !done.contains(offset));
    }

    /// The text for Kafka.
    pub(super) fn encode(&self) -> String {
        let mut text = format!("{VERSION} {} {}", self.cursor, self.guard);
        match self.last {
            Some((offset, digest)) => write!(text, " {offset} {digest:x} ").expect("a string takes all"),
            None => text.push_str(" - - "),
        }
        let mut before = self.cursor;
        for (at, (first, last)) in self.done.iter().enumerate() {
            if at > 0 {
                text.push(',');
            }
            // How many offsets are left out, and how many follow; one is the usual number of both.
            let (left_out, length) = (first - before - 1, last - first + 1);
            push_number(&mut text, left_out);
            if length > 1 {
                text.push(':');
                push_number(&mut text, length);
            }
            before = *last;
        }
        text.push(' ');
        let late: Vec<String> = self.late.iter().map(i64::to_string).collect();
        text.push_str(&late.join(","));
        text
    }

    /// `None` if the text is none of [`Self::encode`].
    pub(super) fn decode(text: &str) -> Option<Self> {
        let mut parts = text.split(' ');
        if parts.next()? != VERSION {
            return None;
        }
        let (cursor, guard): (i64, i64) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
        let last = match (parts.next()?, parts.next()?) {
            ("-", "-") => None,
            (offset, digest) => Some((offset.parse().ok()?, u32::from_str_radix(digest, 16).ok()?)),
        };
        let (ranges, mut before, mut done) = (parts.next()?, cursor, Vec::new());
        for range in ranges.split(',').filter(|range| !range.is_empty()) {
            let (left_out, length) = range.split_once(':').unwrap_or((range, "1"));
            let left_out = i64::from_str_radix(left_out, 36).ok().filter(|count| *count >= 0)?;
            let length = i64::from_str_radix(length, 36).ok().filter(|count| *count > 0)?;
            // Between two ranges at least one offset is left out.
            if left_out == 0 && !done.is_empty() {
                return None;
            }
            let first = before.checked_add(left_out)?.checked_add(1)?;
            before = first.checked_add(length)? - 1;
            done.push((first, before));
        }
        let late = parts.next()?.split(',').filter(|offset| !offset.is_empty());
        let late = late.map(|offset| offset.parse().ok()).collect::<Option<BTreeSet<i64>>>()?;
        (parts.next().is_none()).then_some(Position { cursor, guard, last, done, late })
    }
}

fn push_number(text: &mut String, number: i64) {
    let mut rest = usize::try_from(number).expect("counts are not negative");
    let mut digits = Vec::with_capacity(13);
    loop {
        digits.push(char::from(DIGITS[rest % 36]));
        rest /= 36;
        if rest == 0 {
            break;
        }
    }
    text.extend(digits.into_iter().rev());
}

#[cfg(test)]
mod tests {
    use rand::rngs::StdRng;
    use rand::{RngExt, SeedableRng};

    use super::*;

    #[test]
    fn position_is_the_set_of_what_was_added_and_survives_its_text() {
        for seed in 0..200 {
            let mut random = StdRng::seed_from_u64(seed);
            let start = random.random_range(0..50);
            let mut position = Position::new(start);
            let (mut model, mut late) = (BTreeSet::new(), BTreeSet::new());
            let mut cursor = start;
            for _ in 0..300 {
                let offset = random.random_range(1..400);
                position.add(offset, 7);
                if offset > cursor {
                    model.insert(offset);
                } else {
                    late.insert(offset);
                }
                if random.random_range(0..40) == 0 {
                    cursor = cursor.max(random.random_range(0..400));
                    position.raise(cursor, cursor + 1);
                    model.retain(|offset| *offset > cursor);
                    position.forget_late(&late);
                    late.clear();
                }
            }
            let again = Position::decode(&position.encode()).expect("its own text");
            assert_eq!(again, position, "seed {seed}");
            for offset in 0..410 {
                let expected = model.contains(&offset) || late.contains(&offset);
                assert_eq!(again.contains(offset), expected, "seed {seed}, offset {offset}");
            }
        }
    }

    #[test]
    fn a_million_messages_with_hundreds_of_gaps_fit() {
        let mut position = Position::new(1_000_000_000);
        for offset in 1_000_000_001..1_001_000_001 {
            if offset % 2_000 != 0 {
                position.add(offset, 0);
            }
        }
        let text = position.encode();
        assert!(text.len() < POSITION_BYTES_MAX, "{}", text.len());
        position.raise(1_000_900_000, 1_000_900_002);
        assert!(position.encode().len() < text.len() / 5);
    }

    #[test]
    fn other_texts_are_refused() {
        for text in [
            "",
            "1",
            "1 0 0 - - ",
            "2 0 0 - -  ",
            "1 0 0 - - x: ",
            "1 0 0 - - 0,0 ",
            "1 0 0 - - 0 9 9",
            "1 0 0 5 z  ",
            "1 0 0 - - 0:0 ",
            "1 0 0 - - 0 x",
        ] {
            assert_eq!(Position::decode(text), None, "{text:?}");
        }
        assert_eq!(Position::decode("1 7 9 - -  "), Some(Position { guard: 9, ..Position::new(7) }));
        let full = Position::decode("1 7 0 12 ff 0:2,1 3,5").unwrap();
        assert_eq!((full.done, full.late), (vec![(8, 9), (11, 11)], BTreeSet::from([3, 5])));
    }
}
