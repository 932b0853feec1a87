//! How an error becomes the outcome of a message.
//!
//! `Retry`, `Bury`, `Skip` and `Release` are errors: they travel through `?`, also inside an `anyhow::Error` or another error that
//! keeps its source, and are found in the chain of causes by a mark that each of them ends with.

use std::error::Error;
use std::fmt;
use std::time::Duration;

use crate::settle::Verdict;

/// Ends the chain of causes of an error that chooses an outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mark {
    Bury,
    Skip,
    Release,
    RetryAfter(Duration),
}

impl fmt::Display for Mark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Mark::Bury => "bury the message",
            Mark::Skip => "skip the message",
            Mark::Release => "release the message",
            Mark::RetryAfter(_) => "retry the message later",
        })
    }
}

impl Error for Mark {}

/// The verdict that an error stands for: the one it chooses, or a failed attempt.
pub(super) fn verdict_of(error: &(dyn Error + 'static)) -> Verdict {
    let (text, mark) = with_causes(error);
    match mark {
        None => Verdict::Failed(text),
        Some(Mark::Bury) => Verdict::Bury(text),
        Some(Mark::Skip) => Verdict::Skip,
        Some(Mark::Release) => Verdict::Release,
        Some(Mark::RetryAfter(delay)) => Verdict::RetryAfter(delay, text),
    }
}

/// An error with all its causes: the text is stored with the dead letter, and read long after the logs are deleted.
fn with_causes(error: &(dyn Error + 'static)) -> (String, Option<Mark>) {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        if let Some(mark) = inner.downcast_ref::<Mark>() {
            return (text, Some(*mark));
        }
        let said = inner.to_string();
        if !text.contains(&said) {
            text.push_str(": ");
            text.push_str(&said);
        }
        cause = inner.source();
    }
    (text, None)
}
