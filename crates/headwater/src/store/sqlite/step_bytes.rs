//! How many bytes of payloads one transaction may promote or remove: a number of rows is no bound, because a payload may
//! have any size, and every other writer waits.
//!
//! A copy writes each page of a payload, and a removal reads each to put it on the list of free pages. The statements
//! here read only lengths, which are in a row's first page.

use rusqlite::{CachedStatement, Params};

use super::decode;
use super::fault::Attempt;
use crate::limits::STEP_BYTES_MAX;

/// The payloads that a step has taken so far.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct StepBytes(u64);

impl StepBytes {
    /// Takes a payload if it fits. The first always does: one that is larger than the limit is taken alone.
    pub(super) fn take(&mut self, bytes: u64) -> bool {
        let fits = self.0 == 0 || self.0.saturating_add(bytes) <= STEP_BYTES_MAX;
        if fits {
            self.0 = self.0.saturating_add(bytes);
        }
        fits
    }

    /// Whether it has taken a payload that is not empty.
    pub(super) fn is_used(self) -> bool {
        self.0 > 0
    }
}

/// The rows that one step takes.
#[derive(Debug, Default)]
pub(super) struct Page {
    pub(super) keys: Vec<i64>,
    /// Whether the page ended because the next payload did not fit.
    pub(super) is_cut: bool,
}

impl Page {
    /// Reads a page with a statement that returns the keys of rows and the lengths of their payloads.
    pub(super) fn load(mut statement: CachedStatement<'_>, parameters: impl Params) -> Attempt<Self> {
        let (mut page, mut bytes) = (Page::default(), StepBytes::default());
        let mut rows = statement.query(parameters)?;
        while let Some(row) = rows.next()? {
            if !bytes.take(decode::count(row, 1)?) {
                page.is_cut = true;
                break;
            }
            page.keys.push(row.get(0)?);
        }
        Ok(page)
    }

    /// Removes the rows, with a statement that removes one by its key. Returns how many there were.
    pub(super) fn remove(&self, mut statement: CachedStatement<'_>) -> Attempt<u64> {
        let mut removed = 0;
        for key in &self.keys {
            removed += statement.execute([key])? as u64;
        }
        Ok(removed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_takes_what_fits_and_at_least_one() {
        let mut bytes = StepBytes::default();
        assert!(bytes.take(STEP_BYTES_MAX - 1) && bytes.take(1) && bytes.take(0));
        assert!(!bytes.take(1));
        let mut bytes = StepBytes::default();
        assert!(bytes.take(0) && bytes.take(STEP_BYTES_MAX + 1), "nothing is taken yet");
        assert!(!bytes.take(1));
    }
}
