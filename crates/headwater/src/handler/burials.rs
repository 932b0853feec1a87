//! Too many burials in a row, and payloads that cannot be decoded: when a group pauses itself.
//!
//! A wrong deploy fails for every message alike. Without a limit it would empty a backlog into the dead letters as fast
//! as messages are read. So a group whose burials in a row reach a limit pauses itself, and what is not buried by then
//! stays where it is: verdicts that would bury one more message release it instead.
//!
//! Each process counts its own burials of a group, from its last message that was done; filters and retries count
//! neither way. So one process buries at most the limit in a row. Of several processes each may: the first that reaches
//! its limit pauses the group for all, and another has started at most what its handlers hold by then. A process that
//! starts again counts from zero, but a paused group gets nothing. A message whose burial is not stored, because its
//! lease was lost, was counted: then fewer are buried.

use std::sync::atomic::{AtomicU32, Ordering};

use super::report::Call;
use super::run::HandlerGuard;
use crate::observe::errors::excerpt;
use crate::settle::{Outcome, RetryPolicy, Verdict, decide};

/// What happens to a message whose payload cannot be decoded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Undecodable {
    /// It becomes a dead letter at once: it would fail each time.
    #[default]
    Bury,
    /// It is retried by policy, as after any error: for a time in which another version of the program, which can decode
    /// it, may get it.
    Retry,
    /// The group pauses itself, with the reason, and the message stays in its place.
    Pause,
}

/// Counts burials in a row.
#[derive(Debug, Default)]
pub(crate) struct Burials {
    /// How many pause the group; `None` for no limit.
    pub(crate) max: Option<u32>,
    in_a_row: AtomicU32,
}

impl Burials {
    pub(crate) fn new(max: Option<u32>) -> Self {
        Burials { max, in_a_row: AtomicU32::new(0) }
    }

    /// A message was done, or the group was resumed.
    pub(crate) fn reset(&self) {
        // Read first: all workers share it, and most messages are done.
        if self.in_a_row.load(Ordering::Relaxed) > 0 {
            self.in_a_row.store(0, Ordering::Relaxed);
        }
    }
}

impl HandlerGuard {
    /// The verdict that counts. Burials in a row are counted here; one that exceeds the limit, or comes while the group
    /// pauses itself, becomes a release.
    pub(crate) fn judged(&self, call: Call<'_>, verdict: Verdict, policy: &RetryPolicy) -> Verdict {
        let outcome = decide(verdict.clone(), call.attempt, policy, 0.0);
        if outcome == Outcome::Ack {
            self.burials.reset();
        }
        let Outcome::Bury { error } = outcome else { return verdict };
        if self.serve_state.own_pause.is_on() {
            return Verdict::Release;
        }
        let Some(max) = self.burials.max else { return verdict };
        let count = self.burials.in_a_row.fetch_add(1, Ordering::Relaxed) + 1;
        if count == max {
            let offset = call.messages[0].offset;
            self.serve_state.own_pause.ask(format!(
                "{max} messages in a row became dead letters, the last at offset {offset}: {}",
                excerpt(&error)
            ));
        }
        if count > max { Verdict::Release } else { verdict }
    }

    /// The verdict on messages whose payload cannot be decoded.
    pub(super) fn undecodable(&self, call: Call<'_>, error: String) -> Verdict {
        self.metrics.decode_failed.add(call.messages.len() as u64);
        match self.undecodable {
            Undecodable::Bury => Verdict::Bury(error),
            Undecodable::Retry => Verdict::Failed(error),
            Undecodable::Pause => {
                self.serve_state.own_pause.ask(error);
                Verdict::Release
            }
        }
    }
}
