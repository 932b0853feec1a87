//! A pause that a group asks for itself, because what it handles fails.
//!
//! From the moment it is asked for, nothing more is handed to handlers here, and nothing more is claimed. Then it is
//! stored, which stops the group in every process. From then on the group claims again, as every paused group does:
//! that is how it learns that it was resumed. Only a claim that started after the pause was stored can report that; the
//! answer of an earlier one shows the group as active, and is ignored.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::group::Group;
use crate::error::{ErrorKind, no_panic};
use crate::limits::REASON_BYTES_MAX;

/// The first pause before storing it is repeated, and the longest one.
const AGAIN: Duration = Duration::from_millis(100);
const AGAIN_MAX: Duration = Duration::from_secs(30);

/// How far a group's own pause is.
#[derive(Debug, Default)]
pub(crate) struct OwnPause {
    stage: Mutex<Stage>,
    /// Whether there is one, and whether it is to be stored: copies, because they are read for every message.
    is_on: AtomicBool,
    is_due: AtomicBool,
}

#[derive(Debug, Default)]
enum Stage {
    #[default]
    None,
    /// To be stored, with this reason.
    Due(String),
    /// Being stored.
    Storing(String),
    /// Stored at this time.
    Stored(Instant, String),
}

impl OwnPause {
    /// Asks for a pause, unless there is one.
    pub(crate) fn ask(&self, mut reason: String) {
        let mut stage = self.stage();
        if matches!(*stage, Stage::None) {
            reason = reason.replace('\0', "\u{FFFD}");
            reason.truncate(reason.floor_char_boundary(REASON_BYTES_MAX));
            *stage = Stage::Due(reason);
            self.is_on.store(true, Ordering::SeqCst);
            self.is_due.store(true, Ordering::SeqCst);
        }
    }

    /// Whether it was asked for, and the group was not resumed since.
    pub(crate) fn is_on(&self) -> bool {
        self.is_on.load(Ordering::SeqCst)
    }

    /// Whether it was asked for and is not stored yet.
    pub(super) fn is_pending(&self) -> bool {
        self.is_on() && matches!(*self.stage(), Stage::Due(_) | Stage::Storing(_))
    }

    /// Its reason.
    pub(super) fn reason(&self) -> Option<String> {
        match &*self.stage() {
            Stage::None => None,
            Stage::Due(reason) | Stage::Storing(reason) | Stage::Stored(_, reason) => Some(reason.clone()),
        }
    }

    /// The reason of one that is to be stored: returned once, to the caller that stores it.
    fn take_due(&self) -> Option<String> {
        if !self.is_due.swap(false, Ordering::SeqCst) {
            return None;
        }
        let mut stage = self.stage();
        let Stage::Due(reason) = std::mem::take(&mut *stage) else { unreachable!("only `ask` makes it due") };
        *stage = Stage::Storing(reason.clone());
        Some(reason)
    }

    fn stored(&self, reason: String) {
        *self.stage() = Stage::Stored(Instant::now(), reason);
    }

    /// A claim that started at `asked_at` found the group active. False if that is older than the pause; otherwise the
    /// pause is over.
    pub(super) fn may_end(&self, asked_at: Instant) -> bool {
        if !self.is_on() {
            return true;
        }
        let mut stage = self.stage();
        match *stage {
            Stage::Stored(at, _) if asked_at >= at => {
                *stage = Stage::None;
                self.is_on.store(false, Ordering::SeqCst);
                true
            }
            _ => false,
        }
    }

    fn stage(&self) -> MutexGuard<'_, Stage> {
        self.stage.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Group {
    /// Starts storing its own pause, if it asked for one.
    pub(crate) fn pause_if_due(self: &Arc<Self>) {
        if let Some(reason) = self.serve_state.own_pause.take_due() {
            self.release_unstarted();
            self.spawn(Arc::clone(self).pause_itself(reason));
        }
    }

    /// Stores its own pause, and repeats that until it is done or the consumer stops: meanwhile nothing is handed out.
    async fn pause_itself(self: Arc<Self>, reason: String) {
        let (topic, group) = (&self.subscription.topic.name, &self.subscription.group);
        let mut again = AGAIN;
        loop {
            let store = self.settler.store();
            match no_panic("pausing the group", store.pause(topic, group, Some(&reason))).await {
                Ok(()) => {
                    tracing::warn!(
                        %topic, %group, reason,
                        "group paused itself: correct the cause, then run `headwater group resume` and `headwater \
                         dead-letter redrive`"
                    );
                    break;
                }
                // Paused by another process, or changed by an operator: the next claim returns its state.
                Err(error) if error.kind() == ErrorKind::InvalidTransition => break,
                Err(error) if error.kind() == ErrorKind::Closed || self.serve_state.is_stopping() => {
                    tracing::warn!(%topic, %group, %error, reason, "own pause of the group not stored");
                    break;
                }
                Err(error) => {
                    self.metrics.errors.record_error(&error, "pausing the group");
                    tracing::warn!(%topic, %group, %error, reason, "own pause of the group not stored, retrying");
                }
            }
            tokio::time::sleep(again).await;
            again = (again * 2).min(AGAIN_MAX);
        }
        self.serve_state.set_paused(true);
        self.serve_state.own_pause.stored(reason);
        self.leases.settled.notify_waiters();
        self.leases.wake();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn only_a_claim_after_the_pause_was_stored_ends_it() {
        let pause = OwnPause::default();
        let before = Instant::now();
        assert!(pause.may_end(before), "there is none");
        pause.ask("the first reason".into());
        pause.ask("another reason".into());
        assert!(pause.is_on() && pause.is_pending() && !pause.may_end(Instant::now()));
        assert_eq!(pause.take_due().as_deref(), Some("the first reason"));
        assert_eq!(pause.take_due(), None, "one caller stores it");
        assert!(pause.is_pending() && !pause.may_end(Instant::now()));
        tokio::time::advance(Duration::from_secs(1)).await;
        pause.stored("the first reason".into());
        assert!(pause.is_on() && !pause.is_pending());
        assert!(!pause.may_end(before), "that claim is older");
        assert!(pause.may_end(Instant::now()));
        assert!(!pause.is_on());
        pause.ask("again".into());
        assert_eq!(pause.take_due().as_deref(), Some("again"));
    }

    #[test]
    fn a_long_reason_is_cut_to_what_the_store_takes() {
        let pause = OwnPause::default();
        pause.ask("ü\0".repeat(5_000));
        let reason = pause.take_due().unwrap();
        assert!(reason.len() <= REASON_BYTES_MAX && !reason.contains('\0'));
    }
}
