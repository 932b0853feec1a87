//! The last errors of a component, for its health: bounded in number and in length.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::fmt;
use std::sync::{Mutex, PoisonError};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::error::Error;

/// How many errors a component keeps.
pub(crate) const ERRORS_KEPT: usize = 100;
/// Longest text kept per field: a payload quoted in an error must not fill the memory a hundred times.
const TEXT_BYTES_MAX: usize = 2 * 1024;

/// An error of a component.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordedError {
    /// For programs: the name of an [`ErrorKind`](crate::ErrorKind), or a code of the component's own.
    pub code: Cow<'static, str>,
    /// The error's text.
    pub message: String,
    /// What was being done, with names.
    pub context: String,
    /// When, by this machine's clock.
    pub at: Timestamp,
}

impl fmt::Display for RecordedError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // To the second: people read it beside other errors.
        let at = self.at.round(jiff::Unit::Second).unwrap_or(self.at);
        write!(f, "{at} {}: {} ({})", self.code, self.message, self.context)
    }
}

/// The last [`ERRORS_KEPT`] errors of a component; O(1) per record.
#[derive(Debug, Default)]
pub(crate) struct RecentErrors {
    kept: Mutex<VecDeque<RecordedError>>,
}

impl RecentErrors {
    /// Records an error of Headwater under its kind.
    pub(crate) fn record_error(&self, error: &Error, context: impl AsRef<str>) {
        self.record(format!("{:?}", error.kind()), error.to_string(), context);
    }

    /// Records an error under a code of the component's own.
    pub(crate) fn record(
        &self,
        code: impl Into<Cow<'static, str>>,
        message: impl AsRef<str>,
        context: impl AsRef<str>,
    ) {
        let recorded = RecordedError {
            code: code.into(),
            message: shortened(message.as_ref()),
            context: shortened(context.as_ref()),
            at: Timestamp::now(),
        };
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.len() == ERRORS_KEPT {
            kept.pop_front();
        }
        kept.push_back(recorded);
    }

    /// The recorded errors, newest first.
    pub(crate) fn newest_first(&self) -> Vec<RecordedError> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner).iter().rev().cloned().collect()
    }
}

/// The beginning of a text, no longer than what is kept: logs show no more of an error either.
pub(crate) fn excerpt(text: &str) -> &str {
    &text[..text.floor_char_boundary(TEXT_BYTES_MAX)]
}

fn shortened(text: &str) -> String {
    let kept = excerpt(text);
    let mark = if kept.len() < text.len() { " …" } else { "" };
    [kept, mark].concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    #[test]
    fn last_hundred_are_kept_newest_first() {
        let errors = RecentErrors::default();
        for number in 0..250 {
            errors.record("handler", format!("error {number}"), "offset 1");
        }
        let kept = errors.newest_first();
        assert_eq!(kept.len(), ERRORS_KEPT);
        assert_eq!(kept[0].message, "error 249");
        assert_eq!(kept[99].message, "error 150");
    }

    #[test]
    fn error_is_kept_under_its_kind_with_context() {
        let errors = RecentErrors::default();
        errors.record_error(&Error::new(ErrorKind::Busy, "locked"), "claim of topic orders");
        let kept = &errors.newest_first()[0];
        assert_eq!((kept.code.as_ref(), kept.message.as_str()), ("Busy", "locked"));
        assert!(kept.to_string().ends_with("Busy: locked (claim of topic orders)"), "{kept}");
    }

    #[test]
    fn long_texts_are_cut_at_a_character() {
        let errors = RecentErrors::default();
        errors.record("handler", "ü".repeat(5_000), "");
        let message = &errors.newest_first()[0].message;
        assert!(message.len() <= TEXT_BYTES_MAX + 4 && message.ends_with("ü …"));
    }
}
