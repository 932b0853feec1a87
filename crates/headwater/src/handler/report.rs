//! What became of handled messages: each outcome is counted, each failure is logged and kept for `health()`.
//!
//! A burial is a WARN, a retry a DEBUG, or an INFO at the last but one attempt: after the next failure the message is a
//! dead letter. A panic and a timeout are WARNs of their own, because they point to the handler and not to its message.
//! Every line has the identity of the message. Where a level is off, its line costs one comparison.
//!
//! An outcome is reported when it is decided, right before it is stored. A settlement that fails is logged as well: its
//! messages are delivered again, and reported again.

use tracing::Level;
use uuid::Uuid;

use super::run::HandlerGuard;
use crate::lease::UsedUp;
use crate::message::{Message, Offset};
use crate::observe::errors::excerpt;
use crate::settle::{Outcome, RetryPolicy, Verdict, decide, jitter_of};

/// Messages that a handler gets in one call, and the identity that logs and spans show.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Call<'a> {
    /// At least one.
    pub(crate) messages: &'a [Message],
    pub(crate) attempt: u32,
    /// The member; `None` where a program handles its batches itself, or a filter failed before any member was chosen.
    pub(crate) member: Option<&'a str>,
}

/// What identifies a message in the log and in `health()`: of a batch, its first message and how many there are.
#[derive(Clone, Copy, Debug)]
struct Reported<'a> {
    offset: Offset,
    /// `None` for a message that is settled by ticket: a ticket has only the offset.
    message_id: Option<Uuid>,
    messages: usize,
    attempt: u32,
    member: Option<&'a str>,
}

impl<'a> From<Call<'a>> for Reported<'a> {
    fn from(Call { messages, attempt, member }: Call<'a>) -> Self {
        let Message { offset, message_id, .. } = messages[0];
        Reported { offset, message_id: Some(message_id), messages: messages.len(), attempt, member }
    }
}

/// One line of the log, with the identity of a message or batch.
macro_rules! log_line {
    ($level:expr, $guard:expr, $of:expr, $error:expr, $($rest:tt)+) => {{
        let (subscription, of) = (&$guard.subscription, $of);
        tracing::event!(
            $level,
            topic = subscription.topic.name.as_str(),
            group = subscription.group.as_str(),
            member = of.member,
            offset = of.offset.0,
            message_id = of.message_id.map(tracing::field::display),
            messages = (of.messages > 1).then_some(of.messages),
            attempt = of.attempt,
            error = excerpt($error),
            $($rest)+
        )
    }};
}

impl HandlerGuard {
    /// Counts and reports the outcomes of messages of one lease: all are acked except those named, in offset order.
    /// `call_of` returns the call of one message, by index.
    pub(crate) fn count<'a>(
        &self,
        messages: &'a [Message],
        skipped: u64,
        outcomes: &[(Offset, Outcome)],
        policy: &RetryPolicy,
        call_of: impl Fn(usize) -> Call<'a>,
    ) {
        self.metrics.skipped.add(skipped);
        self.metrics.acked.add((messages.len() - outcomes.len()) as u64);
        let mut at = 0;
        for (offset, outcome) in outcomes {
            at += messages[at..].partition_point(|message| message.offset < *offset);
            self.count_one(call_of(at).into(), outcome, policy);
        }
    }

    /// Decides the outcome of one message that is settled alone, counts and reports it.
    pub(crate) fn decide_one(&self, call: Call<'_>, verdict: Verdict, policy: &RetryPolicy) -> Outcome {
        self.metrics.skipped.add(u64::from(verdict == Verdict::Skip));
        let outcome = decide(verdict, call.attempt, policy, jitter_of(&call.messages[0]));
        self.count_one(call.into(), &outcome, policy);
        outcome
    }

    /// Counts and reports the outcome of one message that was claimed by ticket. Its id and its member are unknown here.
    pub(crate) fn settled_by_ticket(
        &self,
        offset: Offset,
        attempt: u32,
        outcome: &Outcome,
        policy: &RetryPolicy,
    ) {
        let of = Reported { offset, message_id: None, messages: 1, attempt, member: None };
        self.count_one(of, outcome, policy);
    }

    /// Counts and reports the outcome of one message.
    fn count_one(&self, of: Reported<'_>, outcome: &Outcome, policy: &RetryPolicy) {
        self.count_outcome(outcome);
        match outcome {
            Outcome::Retry { after, error, .. } => {
                self.keep(of, "retried", error);
                if of.attempt + 1 == policy.max_attempts {
                    log_line!(Level::INFO, self, of, error, ?after, "message failed, one attempt is left");
                } else {
                    log_line!(Level::DEBUG, self, of, error, ?after, "message failed, will be retried");
                }
            }
            Outcome::Bury { error } => {
                self.keep(of, "buried", error);
                log_line!(Level::WARN, self, of, error, "message buried");
            }
            Outcome::Ack | Outcome::Release | Outcome::Park { .. } => {}
        }
    }

    /// Counts one outcome.
    fn count_outcome(&self, outcome: &Outcome) {
        match outcome {
            Outcome::Ack => self.metrics.acked.add(1),
            Outcome::Retry { .. } => self.metrics.retried.add(1),
            Outcome::Bury { .. } => self.metrics.buried.add(1),
            Outcome::Release | Outcome::Park { .. } => {}
        }
    }

    /// Counts and reports a handler's panic.
    pub(super) fn panicked(&self, call: Call<'_>, error: &str) {
        self.metrics.panicked.add(1);
        log_line!(Level::WARN, self, Reported::from(call), error, "handler panicked");
    }

    /// Counts and reports a handler's timeout.
    pub(super) fn timed_out(&self, call: Call<'_>, error: &str) {
        self.metrics.timed_out.add(1);
        log_line!(Level::WARN, self, Reported::from(call), error, "handler timed out");
    }

    /// Counts and reports a message that the store buried in a claim.
    pub(crate) fn used_up(&self, used_up: &UsedUp) {
        let UsedUp { offset, attempts, error, .. } = used_up;
        let (topic, group) = (&self.subscription.topic.name, &self.subscription.group);
        self.metrics.buried.add(1);
        let context = format!("topic {topic}, group {group}, offset {offset}, attempt {attempts}");
        self.metrics.errors.record("buried", error, context);
        tracing::warn!(
            %topic, %group, offset = offset.0, attempt = attempts, error = excerpt(error),
            "message buried, every attempt ended with a lost lease"
        );
    }

    /// Keeps a failure for `health()`.
    fn keep(&self, of: Reported<'_>, code: &'static str, error: &str) {
        let (topic, group) = (&self.subscription.topic.name, &self.subscription.group);
        let (offset, attempt) = (of.offset, of.attempt);
        let member = of.member.map(|member| format!(", member {member}")).unwrap_or_default();
        let id = of.message_id.map(|id| format!(", message {id}")).unwrap_or_default();
        let context = format!("topic {topic}, group {group}{member}, offset {offset}{id}, attempt {attempt}");
        self.metrics.errors.record(code, error, context);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::consumer::tests::still::Still;

    #[test]
    fn what_is_settled_by_ticket_is_kept_for_health() {
        let store = Still::default();
        let guard = HandlerGuard::apart(&store.subscription());
        let policy = RetryPolicy { max_attempts: 2, ..RetryPolicy::from(&*store.settings.lock().unwrap()) };
        let retry = Outcome::Retry { after: Duration::ZERO, error: "no".into(), key: None };
        guard.settled_by_ticket(Offset(7), 1, &retry, &policy);
        guard.settled_by_ticket(Offset(7), 2, &Outcome::Bury { error: "never".into() }, &policy);
        guard.settled_by_ticket(Offset(8), 1, &Outcome::Ack, &policy);
        let kept = guard.metrics.errors.newest_first();
        let kept: Vec<_> = kept.iter().map(|one| (&*one.code, one.message.as_str())).collect();
        assert_eq!(kept, [("buried", "never"), ("retried", "no")]);
        assert!(guard.metrics.errors.newest_first()[0].context.ends_with("offset 7, attempt 2"));
    }
}
