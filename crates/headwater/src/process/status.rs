//! The status of a process, and how it may change.

use std::fmt;
use std::str::FromStr;

use crate::error::{Error, Result};

/// The status of a process.
///
/// ```
/// use headwater::process::ProcessStatus::{Compensated, Compensating, New, Paused, Running, Succeeded};
///
/// assert!(New.may_become(Running, None) && Running.may_become(Compensating, None));
/// assert!(!New.may_become(Succeeded, None) && !Succeeded.may_become(Running, None));
/// // A pause ends where it began.
/// assert!(Paused.may_become(Compensating, Some(Compensating)));
/// assert!(!Paused.may_become(Compensated, Some(Compensating)));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ProcessStatus {
    /// Inserted, and no step has started.
    New,
    /// Steps are under way.
    Running,
    /// An end: every step is completed.
    Succeeded,
    /// An end: it failed, and completed steps were not undone, or not all of them.
    Failed,
    /// A step failed, and completed steps are being undone.
    Compensating,
    /// An end: it failed, and completed steps were undone.
    Compensated,
    /// Stopped by a person, until it is resumed.
    Paused,
}

impl ProcessStatus {
    /// Every status.
    pub const ALL: [ProcessStatus; 7] = [
        ProcessStatus::New,
        ProcessStatus::Running,
        ProcessStatus::Succeeded,
        ProcessStatus::Failed,
        ProcessStatus::Compensating,
        ProcessStatus::Compensated,
        ProcessStatus::Paused,
    ];

    /// The name that the stores and the CLI use.
    pub fn as_str(self) -> &'static str {
        match self {
            ProcessStatus::New => "NEW",
            ProcessStatus::Running => "RUNNING",
            ProcessStatus::Succeeded => "SUCCEEDED",
            ProcessStatus::Failed => "FAILED",
            ProcessStatus::Compensating => "COMPENSATING",
            ProcessStatus::Compensated => "COMPENSATED",
            ProcessStatus::Paused => "PAUSED",
        }
    }

    /// Whether it is final: a process in this status never changes again.
    pub fn is_end(self) -> bool {
        matches!(self, ProcessStatus::Succeeded | ProcessStatus::Failed | ProcessStatus::Compensated)
    }

    /// Whether an update may lead from this status to another. An update that keeps the status is possible until the
    /// end. `paused_in` is the status that a pause interrupted: the pause ends in it, and in RUNNING if it was NEW.
    ///
    /// PostgreSQL has the same rule in `schema/functions/process.sql` and SQLite in `schema/process.sql`, for programs in
    /// plain SQL; a test compares all three for every pair.
    pub fn may_become(self, next: ProcessStatus, paused_in: Option<ProcessStatus>) -> bool {
        use ProcessStatus::{Compensated, Compensating, Failed, New, Paused, Running, Succeeded};
        match (self, next) {
            (Succeeded | Failed | Compensated, _) => false,
            (now, next) if now == next => true,
            (New, Running | Paused) => true,
            (Running, Succeeded | Failed | Compensating | Paused) => true,
            (Compensating, Compensated | Failed | Paused) => true,
            (Paused, next) => paused_in.map(ProcessStatus::resumed) == Some(next),
            _ => false,
        }
    }

    /// The status after a pause in this one.
    pub(crate) fn resumed(self) -> Self {
        if self == ProcessStatus::New { ProcessStatus::Running } else { self }
    }
}

impl fmt::Display for ProcessStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for ProcessStatus {
    type Err = Error;

    /// The name, in upper or lower case.
    fn from_str(text: &str) -> Result<Self> {
        let found = ProcessStatus::ALL.into_iter().find(|status| status.as_str().eq_ignore_ascii_case(text));
        found.ok_or_else(|| {
            let names = ProcessStatus::ALL.map(ProcessStatus::as_str).join(", ");
            Error::invalid("status", format!("{text} is not one of {names}"))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_legal_transitions_are_those_of_the_table() {
        let table = [
            ("NEW", "NEW RUNNING PAUSED"),
            ("RUNNING", "RUNNING SUCCEEDED FAILED COMPENSATING PAUSED"),
            ("COMPENSATING", "FAILED COMPENSATING COMPENSATED PAUSED"),
            ("SUCCEEDED", ""),
            ("FAILED", ""),
            ("COMPENSATED", ""),
        ];
        for (from, to) in table {
            let from: ProcessStatus = from.parse().unwrap();
            let may = ProcessStatus::ALL.into_iter().filter(|next| from.may_become(*next, None));
            assert_eq!(may.map(ProcessStatus::as_str).collect::<Vec<_>>().join(" "), to, "{from}");
        }
    }

    #[test]
    fn a_pause_ends_in_the_status_it_interrupted() {
        use ProcessStatus::{Compensating, New, Paused, Running};
        for (interrupted, resumed) in [(New, Running), (Running, Running), (Compensating, Compensating)] {
            for next in ProcessStatus::ALL {
                let expected = next == resumed || next == Paused;
                assert_eq!(Paused.may_become(next, Some(interrupted)), expected, "{interrupted}: {next}");
            }
        }
    }

    #[test]
    fn names_round_trip_and_others_are_refused() {
        for status in ProcessStatus::ALL {
            assert_eq!(status.to_string().parse::<ProcessStatus>().unwrap(), status);
            assert_eq!(status.as_str().to_lowercase().parse::<ProcessStatus>().unwrap(), status);
        }
        let error = "RESUMED".parse::<ProcessStatus>().unwrap_err();
        assert!(error.to_string().contains("RESUMED is not one of NEW, RUNNING"), "{error}");
    }
}
