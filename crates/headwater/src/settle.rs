//! Outcomes of handled messages: the pure rule from a handler's verdict to the store's outcome, and settlements.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use crate::error::{Error, Result};
use crate::lease::{Lease, LeaseId, OffsetRange};
use crate::limits::{DELAY_MAX, ERROR_TEXT_BYTES_MAX};
use crate::message::{Message, Offset};
use crate::name::check_name;
use crate::topic::TopicSettings;

/// A handler's verdict on one message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Handled.
    Done,
    /// Failed: retry by the topic's policy.
    Failed(String),
    /// Failed: retry after this delay.
    RetryAfter(Duration, String),
    /// Cannot be handled: becomes a dead letter at once.
    Bury(String),
    /// Not wanted: done without being handled.
    Skip,
    /// Not started: released, not counted as an attempt.
    Release,
}

impl Verdict {
    /// Whether the message is done, so that its effects are kept.
    pub(crate) fn is_done(&self) -> bool {
        match self {
            Verdict::Done | Verdict::Skip => true,
            Verdict::Failed(_) | Verdict::RetryAfter(..) | Verdict::Bury(_) | Verdict::Release => false,
        }
    }

    /// Whether the handler failed, with a reason.
    #[cfg(feature = "postgres")]
    pub(crate) fn is_failure(&self) -> bool {
        match self {
            Verdict::Failed(_) | Verdict::RetryAfter(..) | Verdict::Bury(_) => true,
            Verdict::Done | Verdict::Skip | Verdict::Release => false,
        }
    }
}

/// The outcome of one range of a lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Done.
    Ack,
    /// Hand out again after the delay; counts as an attempt.
    Retry {
        /// The delay.
        after: Duration,
        /// The reason, for people.
        error: String,
        /// In an ordered subscription, the message's key: later messages of the key wait for this one.
        key: Option<String>,
    },
    /// Becomes a dead letter with this reason, and is done.
    Bury {
        /// The reason, for people.
        error: String,
    },
    /// Released unhandled: due at once, not counted as an attempt.
    Release,
    /// In an ordered subscription: waits until no older message of this key is outstanding.
    Park {
        /// The blocked key.
        key: String,
    },
}

/// How one lease is settled, in whole or in part. Offsets not named stay leased under the same token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settlement {
    /// The lease.
    pub lease: LeaseId,
    /// The outcomes of its ranges.
    pub parts: Parts,
}

/// The whole lease acked, or ranges with an outcome each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Parts {
    /// Everything still leased under the token is done: one DELETE.
    AckAll,
    /// Disjoint ranges, each with its outcome.
    Each(Vec<(OffsetRange, Outcome)>),
}

impl Settlement {
    /// Acks all of a lease.
    pub fn ack_all(lease: impl Into<LeaseId>) -> Self {
        Settlement { lease: lease.into(), parts: Parts::AckAll }
    }

    /// Settles ranges of a lease.
    pub fn each(lease: impl Into<LeaseId>, parts: Vec<(OffsetRange, Outcome)>) -> Self {
        Settlement { lease: lease.into(), parts: Parts::Each(parts) }
    }

    /// Sorts the ranges by offset, cuts texts to their limit, and checks the rest.
    pub fn normalized(mut self) -> Result<Self> {
        if let Parts::Each(parts) = &mut self.parts {
            parts.sort_by_key(|(range, _)| *range);
            for (_, outcome) in parts {
                outcome.bound_text();
            }
        }
        self.check()?;
        Ok(self)
    }

    /// Checks that an engine can accept it: ranges sorted and disjoint; delays, texts and keys within their limits.
    pub(crate) fn check(&self) -> Result<()> {
        let Parts::Each(parts) = &self.parts else { return Ok(()) };
        if parts.is_empty() {
            return Err(Error::invalid("settlement", "names no offsets; leave it out, or ack all"));
        }
        for pair in parts.windows(2) {
            if pair[1].0.first <= pair[0].0.last {
                let (a, b) = (pair[0].0, pair[1].0);
                return Err(Error::invalid("settlement", format!("ranges {a} and {b} overlap")));
            }
        }
        parts.iter().try_for_each(|(_, outcome)| outcome.check())
    }
}

/// The rules of an outcome. Every match names all variants: a new one has to answer each question.
impl Outcome {
    /// Its name in SQL.
    #[cfg(feature = "postgres")]
    pub(crate) fn word(&self) -> &'static str {
        match self {
            Outcome::Ack => "ack",
            Outcome::Retry { .. } => "retry",
            Outcome::Bury { .. } => "bury",
            Outcome::Release => "release",
            Outcome::Park { .. } => "park",
        }
    }

    /// The delay before it is handed out again; `None` for at once.
    pub(crate) fn delay(&self) -> Option<Duration> {
        match self {
            Outcome::Retry { after, .. } => Some(*after),
            Outcome::Ack | Outcome::Bury { .. } | Outcome::Release | Outcome::Park { .. } => None,
        }
    }

    /// The reason, for people.
    pub(crate) fn error(&self) -> Option<&str> {
        match self {
            Outcome::Retry { error, .. } | Outcome::Bury { error } => Some(error),
            Outcome::Ack | Outcome::Release | Outcome::Park { .. } => None,
        }
    }

    /// The key whose later messages wait for it.
    pub(crate) fn key(&self) -> Option<&str> {
        match self {
            Outcome::Retry { key, .. } => key.as_deref(),
            Outcome::Park { key } => Some(key),
            Outcome::Ack | Outcome::Bury { .. } | Outcome::Release => None,
        }
    }

    /// Whether it counts as an attempt that failed.
    #[cfg(feature = "sqlite")]
    pub(crate) fn counts_attempt(&self) -> bool {
        match self {
            Outcome::Retry { .. } | Outcome::Bury { .. } => true,
            Outcome::Ack | Outcome::Release | Outcome::Park { .. } => false,
        }
    }

    /// Whether it is handed out again, so that waiters are woken and later messages of its key wait.
    pub(crate) fn comes_again(&self) -> bool {
        match self {
            Outcome::Ack | Outcome::Bury { .. } => false,
            Outcome::Retry { .. } | Outcome::Release | Outcome::Park { .. } => true,
        }
    }

    /// In a lane: later messages of the key wait for this one if it is handed out again.
    pub(crate) fn hold_key(&mut self, own: &str) {
        match self {
            Outcome::Retry { key, .. } => *key = Some(own.to_owned()),
            // Parked behind no message: due at once, and later messages of the key wait for it.
            Outcome::Release => *self = Outcome::Park { key: own.to_owned() },
            Outcome::Ack | Outcome::Bury { .. } | Outcome::Park { .. } => {}
        }
    }

    /// Cuts the reason to its limit.
    fn bound_text(&mut self) {
        match self {
            Outcome::Retry { error, .. } | Outcome::Bury { error } => bound_error_text(error),
            Outcome::Ack | Outcome::Release | Outcome::Park { .. } => {}
        }
    }

    /// Checks that an engine can accept it: the delay, the text and the key within their limits.
    fn check(&self) -> Result<()> {
        if self.delay().is_some_and(|delay| delay > DELAY_MAX) {
            return Err(Error::invalid("retry delay", "longer than 366 days"));
        }
        if self.error().is_some_and(|error| !is_bounded(error)) {
            return Err(Error::invalid("error", "longer than its limit, or with NUL"));
        }
        self.key().map_or(Ok(()), |key| check_name("key", key))
    }
}

fn is_bounded(error: &str) -> bool {
    error.len() <= ERROR_TEXT_BYTES_MAX && !error.contains('\0')
}

/// Cuts an error's text to its limit, marks the cut, and replaces NUL (PostgreSQL's text cannot hold it).
pub(crate) fn bound_error_text(error: &mut String) {
    if error.contains('\0') {
        *error = error.replace('\0', "\u{FFFD}");
    }
    if error.len() > ERROR_TEXT_BYTES_MAX {
        let mark = " … (cut)";
        let mut end = ERROR_TEXT_BYTES_MAX - mark.len();
        while !error.is_char_boundary(end) {
            end -= 1;
        }
        error.truncate(end);
        error.push_str(mark);
    }
}

/// How often and how fast a message is retried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetryPolicy {
    /// How often a message is handed out before it becomes a dead letter.
    pub max_attempts: u32,
    /// The first delay; it doubles with each attempt.
    pub backoff_initial: Duration,
    /// The longest delay.
    pub backoff_max: Duration,
}

impl From<&TopicSettings> for RetryPolicy {
    fn from(settings: &TopicSettings) -> Self {
        RetryPolicy {
            max_attempts: settings.max_attempts,
            backoff_initial: settings.backoff_initial,
            backoff_max: settings.backoff_max,
        }
    }
}

/// Turns a verdict on attempt number `attempt` (from 1) into the outcome that the store records.
///
/// `jitter` in `0.0..=1.0` spreads the retries of messages that failed together; the delay is between half and all of
/// the exponential back-off.
pub fn decide(verdict: Verdict, attempt: u32, policy: &RetryPolicy, jitter: f64) -> Outcome {
    match verdict {
        Verdict::Done | Verdict::Skip => Outcome::Ack,
        Verdict::Release => Outcome::Release,
        Verdict::Bury(error) => Outcome::Bury { error },
        Verdict::Failed(error) | Verdict::RetryAfter(_, error) if attempt >= policy.max_attempts => {
            Outcome::Bury { error }
        }
        // Bounded here: the store would refuse the whole settlement, including other messages.
        Verdict::RetryAfter(after, error) => Outcome::Retry { after: after.min(DELAY_MAX), error, key: None },
        Verdict::Failed(error) => {
            Outcome::Retry { after: backoff(attempt, policy, jitter), error, key: None }
        }
    }
}

/// The waiting keys of a lane: a message that is handed out again holds back later ones of its key; a dead letter does
/// not.
///
/// For handlers that rule is implemented only here. [`HandlerRun`](crate::handler::HandlerRun) checks [`WaitingKeys::hold`]
/// before a message is handled and reports the verdict afterwards, so that a message held back by its key is never counted
/// as done by [`outcomes_of`]. Where messages are settled without their lease at hand it is implemented again: by ticket
/// (`keep_order` in `consumer/claims/settle.rs`) and in plain SQL (`retry` in `schema/functions/settle_read.sql`).
#[derive(Clone, Debug, Default)]
pub(crate) struct WaitingKeys {
    /// The attempt and the retry policy; `None` without lanes, where no key waits.
    lane: Option<(u32, RetryPolicy)>,
    keys: HashSet<String>,
}

impl WaitingKeys {
    pub(crate) fn of(lease: &Lease, policy: &RetryPolicy) -> Self {
        WaitingKeys { lane: lease.lane.map(|_| (lease.attempt, *policy)), keys: HashSet::new() }
    }

    /// Whether messages of one key are handled in order.
    pub(crate) fn is_ordered(&self) -> bool {
        self.lane.is_some()
    }

    /// Whether the message must not be handled because an older one of its key waits.
    pub(crate) fn hold(&self, message: &Message) -> bool {
        message.key.as_ref().is_some_and(|key| self.keys.contains(key))
    }

    /// Records a handler's verdict on a message. A failure at the last attempt becomes a dead letter and holds nothing
    /// back.
    pub(crate) fn said(&mut self, message: &Message, verdict: &Verdict) {
        if let Some((attempt, policy)) = self.lane {
            self.became(message, &decide(verdict.clone(), attempt, &policy, 0.0));
        }
    }

    fn became(&mut self, message: &Message, outcome: &Outcome) {
        if self.lane.is_some() && outcome.comes_again() {
            self.keys.extend(message.key.clone());
        }
    }
}

/// For verdicts of a handler that gets a batch of a lane and leaves out later messages of a key that failed: those are
/// released, also when the failure was the last attempt and its message becomes a dead letter. No message is done that
/// was not handled.
pub(crate) fn with_followers_held(
    is_ordered: bool,
    messages: &[Message],
    mut verdicts: Vec<(Offset, Verdict)>,
) -> Vec<(Offset, Verdict)> {
    if !is_ordered {
        return verdicts;
    }
    let named: HashMap<Offset, bool> = verdicts
        .iter()
        .map(|(offset, verdict)| {
            let handled = verdict.is_done() || matches!(verdict, Verdict::Bury(_));
            (*offset, handled)
        })
        .collect();
    let mut failed_keys: HashSet<&str> = HashSet::new();
    for message in messages {
        let Some(key) = message.key.as_deref() else { continue };
        match named.get(&message.offset) {
            Some(true) => {}
            Some(false) => drop(failed_keys.insert(key)),
            None if failed_keys.contains(key) => verdicts.push((message.offset, Verdict::Release)),
            None => {}
        }
    }
    verdicts
}

/// The outcomes of the messages of a lease, given a handler's verdicts on some of them; acked messages are left out. In
/// a lane, later messages of a waiting key are parked behind it.
pub(crate) fn outcomes_of(
    lease: &Lease,
    messages: &[Message],
    verdicts: Vec<(Offset, Verdict)>,
    policy: &RetryPolicy,
) -> Vec<(Offset, Outcome)> {
    if verdicts.is_empty() {
        return Vec::new();
    }
    let mut others = Vec::new();
    let mut waiting = WaitingKeys::of(lease, policy);
    let mut named: HashMap<Offset, Verdict> = verdicts.into_iter().collect();
    for message in messages {
        let key = message.key.as_deref().filter(|_| lease.lane.is_some());
        let verdict = named.remove(&message.offset).unwrap_or(Verdict::Done);
        if let Some(key) = key.filter(|_| waiting.hold(message)) {
            others.push((message.offset, Outcome::Park { key: key.to_owned() }));
            continue;
        }
        let mut outcome = decide(verdict, lease.attempt, policy, jitter_of(message));
        if outcome == Outcome::Ack {
            continue;
        }
        if let Some(key) = key {
            outcome.hold_key(key);
        }
        waiting.became(message, &outcome);
        others.push((message.offset, outcome));
    }
    others
}

/// Spreads retries of messages that failed together. Deterministic per message, so that a rerun gives the same times.
pub(crate) fn jitter_of(message: &Message) -> f64 {
    (message.key_hash() % 1_000) as f64 / 1_000.0
}

/// The messages of a lease in a lane, and those among them that must be parked because their key is blocked. The range
/// spans all lanes; messages of other lanes belong to other leases.
pub(crate) fn own_messages(
    lease: &Lease,
    lanes: u16,
    mut messages: Vec<Message>,
) -> (Vec<Message>, Vec<(Offset, String)>) {
    let mut parked = Vec::new();
    if let Some(lane) = lease.lane {
        messages.retain(|message| message.lane(lanes) == lane);
        messages.retain(|message| match &message.key {
            Some(key) if lease.blocked_keys.contains(key) => {
                parked.push((message.offset, key.clone()));
                false
            }
            _ => true,
        });
    }
    (messages, parked)
}

fn backoff(attempt: u32, policy: &RetryPolicy, jitter: f64) -> Duration {
    let doublings = attempt.saturating_sub(1).min(31);
    let full = policy.backoff_initial.saturating_mul(1 << doublings).min(policy.backoff_max);
    full.mul_f64(0.5 + 0.5 * jitter.clamp(0.0, 1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    const POLICY: RetryPolicy = RetryPolicy {
        max_attempts: 3,
        backoff_initial: Duration::from_secs(1),
        backoff_max: Duration::from_secs(3),
    };

    #[test]
    fn failures_back_off_and_are_buried_at_max_attempts() {
        let after = |attempt, jitter| match decide(Verdict::Failed("x".into()), attempt, &POLICY, jitter) {
            Outcome::Retry { after, .. } => after,
            other => panic!("{other:?}"),
        };
        assert_eq!(after(1, 1.0), Duration::from_secs(1));
        assert_eq!(after(1, 0.0), Duration::from_millis(500));
        assert_eq!(after(2, 1.0), Duration::from_secs(2));
        assert_eq!(decide(Verdict::Failed("x".into()), 3, &POLICY, 1.0), Outcome::Bury { error: "x".into() });
        let late = decide(Verdict::RetryAfter(Duration::ZERO, "y".into()), 3, &POLICY, 1.0);
        assert_eq!(late, Outcome::Bury { error: "y".into() });
    }

    #[test]
    fn a_retry_beyond_what_the_store_takes_is_bounded_and_refuses_no_neighbour() {
        let forever = Verdict::RetryAfter(Duration::MAX, "never".into());
        let Outcome::Retry { after, .. } = decide(forever, 1, &POLICY, 1.0) else { panic!("not retried") };
        assert_eq!(after, DELAY_MAX);
    }

    #[test]
    fn backoff_never_exceeds_its_maximum_or_overflows() {
        let policy = RetryPolicy { max_attempts: u32::MAX, ..POLICY };
        for attempt in [3, 40, 1_000_000] {
            assert_eq!(backoff(attempt, &policy, 1.0), Duration::from_secs(3));
        }
    }
}
