//! What is said about entries after they were sent, and what became of it.

use std::collections::BTreeSet;
use std::time::Duration;

use jiff::Timestamp;

use super::OutboxEntry;
use crate::error::{Error, Result};
use crate::limits::{DELAY_MAX, OUTBOX_ENTRIES_MAX, OUTBOX_ERRORS_BYTES_MAX};
use crate::settle::bound_error_text;

/// One entry or many: an id, ids, or entries.
pub trait EntryIds {
    /// Their ids.
    fn into_ids(self) -> Vec<i64>;
}

impl EntryIds for i64 {
    fn into_ids(self) -> Vec<i64> {
        vec![self]
    }
}

impl EntryIds for Vec<i64> {
    fn into_ids(self) -> Vec<i64> {
        self
    }
}

impl EntryIds for &[i64] {
    fn into_ids(self) -> Vec<i64> {
        self.to_vec()
    }
}

impl EntryIds for &Vec<i64> {
    fn into_ids(self) -> Vec<i64> {
        self.clone()
    }
}

impl<const N: usize> EntryIds for [i64; N] {
    fn into_ids(self) -> Vec<i64> {
        self.into()
    }
}

impl EntryIds for &OutboxEntry {
    fn into_ids(self) -> Vec<i64> {
        vec![self.id]
    }
}

impl EntryIds for &[OutboxEntry] {
    fn into_ids(self) -> Vec<i64> {
        self.iter().map(|entry| entry.id).collect()
    }
}

impl EntryIds for &Vec<OutboxEntry> {
    fn into_ids(self) -> Vec<i64> {
        self.as_slice().into_ids()
    }
}

/// The ids in order and once each, no more than one statement takes.
pub(super) fn distinct(ids: Vec<i64>) -> Result<BTreeSet<i64>> {
    let ids: BTreeSet<i64> = ids.into_iter().collect();
    if ids.len() > OUTBOX_ENTRIES_MAX as usize {
        let count = ids.len();
        let rule = format!("{count} in one call, at most {OUTBOX_ENTRIES_MAX} are allowed; split the call");
        return Err(Error::invalid("ids", rule));
    }
    Ok(ids)
}

pub(super) fn json_of(ids: &BTreeSet<i64>) -> String {
    serde_json::to_string(ids).expect("numbers are always JSON")
}

/// When a failed entry is due again: after a duration, by the database's clock, or at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NextAttempt {
    /// After this much time, by the database's clock.
    After(Duration),
    /// At this time; one that has passed means at once.
    At(Timestamp),
}

impl From<Duration> for NextAttempt {
    fn from(after: Duration) -> Self {
        NextAttempt::After(after)
    }
}

impl From<Timestamp> for NextAttempt {
    fn from(at: Timestamp) -> Self {
        NextAttempt::At(at)
    }
}

/// An entry that could not be sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailedEntry {
    /// Which one.
    pub id: i64,
    /// Why; kept to 64 KiB with a marker.
    pub error: String,
    /// When it is due again.
    pub next: NextAttempt,
}

impl FailedEntry {
    /// An entry that failed, and when it is due again.
    pub fn new(id: i64, error: impl Into<String>, next: impl Into<NextAttempt>) -> Self {
        FailedEntry { id, error: error.into(), next: next.into() }
    }
}

/// The failures of one call as JSON. Of several about one entry the last counts.
pub(super) fn failures_json(failures: &[FailedEntry]) -> Result<(BTreeSet<i64>, String)> {
    let ids = distinct(failures.iter().map(|failure| failure.id).collect())?;
    let mut rows = Vec::with_capacity(ids.len());
    let mut seen = BTreeSet::new();
    let mut bytes = 0;
    for failure in failures.iter().rev().filter(|failure| seen.insert(failure.id)) {
        let error = bounded(&failure.error);
        bytes += error.len();
        let (delay_ms, next_at_ms) = match failure.next {
            NextAttempt::After(after) => (Some(delay_ms("next", after)?), None),
            NextAttempt::At(at) => (None, Some(at.as_millisecond().max(0))),
        };
        rows.push(serde_json::json!({
            "id": failure.id, "error": error, "delay_ms": delay_ms, "next_at_ms": next_at_ms
        }));
    }
    if bytes > OUTBOX_ERRORS_BYTES_MAX {
        let rule = format!(
            "{bytes} bytes in one call, at most {OUTBOX_ERRORS_BYTES_MAX} are allowed; split the call"
        );
        return Err(Error::invalid("errors", rule));
    }
    Ok((ids, serde_json::Value::Array(rows).to_string()))
}

/// A delay in whole milliseconds, rounded up.
pub(super) fn delay_ms(field: &str, delay: Duration) -> Result<i64> {
    if delay > DELAY_MAX {
        return Err(Error::invalid(field, "longer than 366 days"));
    }
    Ok(i64::try_from(delay.as_nanos().div_ceil(1_000_000)).expect("at most 366 days"))
}

/// An error's text within its limit.
pub(super) fn bounded(error: &str) -> String {
    let mut error = error.to_owned();
    bound_error_text(&mut error);
    error
}

/// What became of the entries of a call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Marked {
    /// Marked as asked.
    pub marked: Vec<i64>,
    /// No attempt was left: each became a dead letter.
    pub parked: Vec<i64>,
    /// Left alone: another claimer has it since, or it is published or parked already.
    pub lost: Vec<i64>,
    /// No such entry.
    pub unknown: Vec<i64>,
}

impl Marked {
    pub(super) fn add(&mut self, id: i64, outcome: &str) {
        match outcome {
            "parked" => self.parked.push(id),
            "lost" => self.lost.push(id),
            "unknown" => self.unknown.push(id),
            _ => self.marked.push(id),
        }
    }

    /// Logs what an operator may have to know: nothing of it is an error of the caller.
    pub(super) fn log(&self, claimer: &str) {
        /// Ids in one line of the log.
        const SHOWN: usize = 10;
        let shown = |ids: &[i64]| ids.iter().take(SHOWN).copied().collect::<Vec<_>>();
        if !self.parked.is_empty() {
            tracing::warn!(claimer, count = self.parked.len(), ids = ?shown(&self.parked), "outbox entries parked");
        }
        if !self.lost.is_empty() {
            tracing::warn!(claimer, count = self.lost.len(), ids = ?shown(&self.lost), "outbox entries not held any more");
        }
        if !self.unknown.is_empty() {
            tracing::warn!(claimer, count = self.unknown.len(), ids = ?shown(&self.unknown), "outbox entries unknown");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorKind;

    #[test]
    fn of_several_failures_of_an_entry_the_last_counts() {
        let second = Duration::from_secs(1);
        let failures = [FailedEntry::new(7, "first", second), FailedEntry::new(7, "a\0b", second * 2)];
        let (ids, json) = failures_json(&failures).unwrap();
        assert_eq!(ids.into_iter().collect::<Vec<_>>(), [7]);
        let rows: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert_eq!(rows.as_array().unwrap().len(), 1);
        let row =
            serde_json::json!({ "id": 7, "error": "a\u{FFFD}b", "delay_ms": 2_000, "next_at_ms": null });
        assert_eq!(rows[0], row);
    }

    #[test]
    fn calls_have_limits() {
        let many: Vec<i64> = (0..=i64::from(OUTBOX_ENTRIES_MAX)).collect();
        assert_eq!(distinct(many).unwrap_err().kind(), ErrorKind::InvalidInput);
        assert_eq!(distinct(vec![1; 20_000]).unwrap().len(), 1);
        assert!(delay_ms("next", DELAY_MAX + Duration::from_nanos(1)).is_err());
        assert_eq!(delay_ms("next", Duration::from_nanos(1)).unwrap(), 1, "not sooner than asked for");
        let long = "x".repeat(60_000);
        let failures: Vec<_> = (0..1_000).map(|id| FailedEntry::new(id, &*long, Duration::ZERO)).collect();
        assert_eq!(failures_json(&failures).unwrap_err().kind(), ErrorKind::InvalidInput);
    }
}
