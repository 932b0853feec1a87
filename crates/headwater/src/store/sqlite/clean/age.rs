//! The age of messages, in time that maintenance measured.
//!
//! A clock that is wrong for a moment or permanently must not make unread messages old. So their age is not taken
//! from one reading of the clock. `headwater_elapsed` adds up the time between two readings: nothing if the clock
//! went back, and [`STEP_MAX`] at most. `headwater_age` records the head of each topic at which elapsed time. So a
//! step of the clock, or a pause of maintenance (the two cannot be distinguished), ages messages by [`STEP_MAX`] at
//! most, and a pause only delays removal.

use std::time::Duration;

use rusqlite::{Connection, OptionalExtension, params};

use crate::store::sqlite::fault::Attempt;
use crate::store::sqlite::progress::TopicRange;
use crate::store::sqlite::work::Work;
use crate::store::sqlite::{decode, millis};

/// The most that the time between two readings of the clock counts. Dead detection reads the clock every minute.
const STEP_MAX: Duration = Duration::from_secs(300);
/// An entry of age `a` is the only one in a slot of about `a / SLOTS`: entries are few, and removal is late by no
/// more than a slot.
const SLOTS: i64 = 256;

/// Reads the clock, adds to the elapsed time and returns it.
pub(in crate::store::sqlite) fn elapse(work: &Work<'_>) -> Attempt<i64> {
    let mut statement = work.connection.prepare_cached(sql!(clean.clock))?;
    Ok(statement.query_row(params![work.now_ms(), millis(STEP_MAX)], |row| row.get(0))?)
}

/// The ages of a topic's messages at an elapsed time.
pub(super) struct Ages<'a> {
    pub(super) connection: &'a Connection,
    pub(super) topic_range: &'a TopicRange,
    pub(super) elapsed_ms: i64,
}

impl Ages<'_> {
    /// Everything at or below the returned offset is at least this old.
    pub(super) fn reached(&self, age_ms: i64) -> Attempt<i64> {
        let by_ms = self.elapsed_ms.saturating_sub(age_ms);
        let mut statement = self.connection.prepare_cached(sql!(clean.age_by))?;
        let found =
            statement.query_row(params![self.topic_range.topic.0, by_ms], |row| row.get(0)).optional()?;
        Ok(found.unwrap_or(0))
    }

    /// Records the topic's head, if it has moved, and removes entries that are no longer useful.
    pub(super) fn note(&self) -> Attempt<()> {
        let has_moved = self.topic_range.head > self.reached(0)?.max(self.topic_range.first - 1);
        if has_moved && self.longest_ms().is_some() {
            self.connection.prepare_cached(sql!(clean.age))?.execute(params![
                self.topic_range.topic.0,
                self.elapsed_ms,
                self.topic_range.head
            ])?;
            let noted: Vec<i64> = {
                let mut statement = self.connection.prepare_cached(sql!(clean.age_list))?;
                decode::all(&mut statement, [self.topic_range.topic.0], |row| row.get(0))?
            };
            let mut forget = self.connection.prepare_cached(sql!(clean.age_forget))?;
            for elapsed_ms in crowded(&noted, self.elapsed_ms) {
                forget.execute(params![self.topic_range.topic.0, elapsed_ms])?;
            }
        }
        self.prune().map(drop)
    }

    /// Removes entries that no retention needs any more. Returns how many.
    pub(super) fn prune(&self) -> Attempt<u64> {
        let until_ms = self.longest_ms().map(|longest_ms| self.elapsed_ms.saturating_sub(longest_ms));
        let mut statement = self.connection.prepare_cached(sql!(clean.age_prune))?;
        Ok(statement.execute(params![self.topic_range.topic.0, until_ms, self.topic_range.first])? as u64)
    }

    /// The longest retention that is based on age; `None` where nothing is ever removed.
    fn longest_ms(&self) -> Option<i64> {
        let TopicRange { message_retention_ms, max_retention_ms, zero_subscription_retention_ms, .. } =
            self.topic_range;
        let unread = message_retention_ms.map(|ms| ms.max(*zero_subscription_retention_ms));
        unread.max(*max_retention_ms)
    }
}

/// The entries that share their slot with an earlier one. The width of slots is a power of two and grows with age, so
/// the first entry of a wide slot is also the first of a narrow one: an entry that was kept once stays, unless its
/// whole slot has an earlier one.
fn crowded(noted: &[i64], elapsed_ms: i64) -> Vec<i64> {
    let shares = |pair: &[i64]| {
        let width = (elapsed_ms.saturating_sub(pair[1]) / SLOTS).max(1).cast_unsigned().next_power_of_two();
        let slot = |at: i64| at.cast_unsigned() / width;
        slot(pair[0]) == slot(pair[1])
    };
    noted.windows(2).filter(|pair| shares(pair)).map(|pair| pair[1]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_are_few_and_near_every_age() {
        const MINUTE: i64 = 60_000;
        let mut noted: Vec<i64> = Vec::new();
        for n in 0..20_000 {
            let now = n * 5 * MINUTE;
            noted.push(now);
            let gone = crowded(&noted, now);
            noted.retain(|at| !gone.contains(at));
            assert!(noted.len() <= 2_000, "{} after {n}", noted.len());
        }
        let now = 19_999 * 5 * MINUTE;
        for age in [10 * MINUTE, 60 * MINUTE, 1_440 * MINUTE, 43_200 * MINUTE, 90_000 * MINUTE] {
            let newest = noted.iter().rev().find(|at| now - **at >= age).expect("an old entry exists");
            let late = now - newest - age;
            assert!(late <= 5 * MINUTE + age / 64, "age {age}: late by {late}");
        }
    }
}
