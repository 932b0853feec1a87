//! What the manager decides when a message about a process comes: pure, from the declaration, the process, its log and the
//! message. What it decides is written in one transaction.
//!
//! Every input first records what happened as an event, and then [`Turn::settle`] computes what has to be under way now, from
//! the status and the log alone. So it does not matter which message comes when, nor whether a pause or a new program came
//! in between: whatever the log leads to is what is started next. A message that the log has passed (a second reply, a timer
//! of an earlier attempt, a command of an earlier one) changes nothing.
//!
//! **Why no command has its effect twice.** A command is published in the transaction that logs its start, once. A step that
//! is tried again after it *reported* a failure gets a new command: the old one is over, its handler's transaction wrote its
//! inbox entry and no effect. A step that is tried again after a *time-out* gets the same command, with the same message id:
//! if the first one had its effect, or will have it, its inbox entry refuses the second. And a step that is undone although
//! its reply never came is fenced: the handler of the compensation enters the inbox entry of the undone command first. If
//! that succeeds the command never ran and never will; if not it ran, and is undone. See [`Commands`](super::Commands).

use std::time::Duration;

use uuid::Uuid;

use super::data::ProcessData;
use super::definition::Step;
use super::event::ProcessEvent;
use super::execution::{Attempt, AttemptState, Direction, Execution};
use super::instance::{ProcessChange, ProcessInstance};
use super::plan::{NoWay, Plan};
use super::status::ProcessStatus;
use crate::error::Result;

mod record;
#[cfg(test)]
mod tests;

/// What comes to the manager about a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Input {
    /// It was inserted.
    Start,
    /// A command was carried out, or not.
    Reply { command_id: String, reply: Reply },
    /// A time passed that was set for an attempt.
    Timer { command_id: String, kind: TimerKind, since: u64 },
    /// It was resumed after a pause.
    Continue,
    /// A person wants what failed to be tried again, now.
    Retry,
}

/// The answer to a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Reply {
    Completed(Option<ProcessData>),
    Failed { error: String, retryable: bool },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TimerKind {
    /// The reply did not come in time.
    Timeout,
    /// The back-off is over.
    Retry,
}

impl TimerKind {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            TimerKind::Timeout => "timeout",
            TimerKind::Retry => "retry",
        }
    }
}

/// What is sent, or taken back, with a change.
#[derive(Clone, Debug)]
pub(crate) enum Outgoing {
    /// A command, with the command that it undoes if it does.
    Command { step: String, topic: String, command: String, command_id: String, undoes: Option<String> },
    /// A message to the manager itself, later.
    Timer { id: Uuid, command_id: String, kind: TimerKind, since: u64, delay: Duration },
    /// A timer that is not needed any more.
    Cancel { id: Uuid },
}

/// A changed process, and the events that changed it: one write of the repository.
#[derive(Clone, Debug)]
pub(crate) struct Batch {
    pub(crate) instance: ProcessInstance,
    pub(crate) entries: Vec<(ProcessChange, ProcessEvent)>,
}

/// One message being decided.
pub(crate) struct Turn<'p> {
    plan: &'p Plan,
    at: ProcessInstance,
    execution: Execution,
    entries: Vec<(ProcessChange, ProcessEvent)>,
    batches: Vec<Batch>,
    outgoing: Vec<Outgoing>,
}

impl<'p> Turn<'p> {
    pub(crate) fn new(plan: &'p Plan, instance: ProcessInstance, events: &[(u64, ProcessEvent)]) -> Self {
        Turn {
            plan,
            at: instance,
            execution: Execution::of(events),
            entries: Vec::new(),
            batches: Vec::new(),
            outgoing: Vec::new(),
        }
    }

    /// Decides what follows from an input.
    pub(crate) fn take(&mut self, input: Input) -> Result<()> {
        if self.at.status().is_end() {
            return Ok(());
        }
        let is_news = match input {
            Input::Start => true,
            Input::Reply { command_id, reply } => self.reply(&command_id, reply)?,
            Input::Timer { command_id, kind, since } => self.timer(&command_id, kind, since)?,
            Input::Continue => self.resume()?,
            Input::Retry => self.retry()?,
        };
        if is_news { self.settle() } else { Ok(()) }
    }

    /// What is to be written, in this order, and what is to be sent with it. The process as it is afterwards.
    pub(crate) fn finish(mut self) -> (Vec<Batch>, Vec<Outgoing>, ProcessInstance) {
        self.flush();
        (self.batches, self.outgoing, self.at)
    }

    /// Starts what has to be under way now. Decided from the status and the log alone, so it may be called at any time.
    fn settle(&mut self) -> Result<()> {
        match self.at.status() {
            ProcessStatus::New => self.begin(),
            ProcessStatus::Running if self.execution.steps.is_empty() => self.begin(),
            ProcessStatus::Running => self.advance(),
            ProcessStatus::Compensating => self.undo_next(),
            _ => Ok(()),
        }
    }

    fn begin(&mut self) -> Result<()> {
        match self.plan.first(self.at.data()) {
            Ok(Some(block)) => self.start_block(block, |_| true),
            Ok(None) => Err(self.unknown("a beginning")),
            Err(no_way) => self.give_up(&no_way.branch, &no_way.error),
        }
    }

    /// The next steps, once all that were started are completed; the way back, once one failed and no other is under way.
    fn advance(&mut self) -> Result<()> {
        let is_pending = |attempt: &Attempt| attempt.state == AttemptState::Pending;
        if self.has_failed()? {
            let waits = self.execution.steps.iter().any(is_pending);
            return if waits { Ok(()) } else { self.undo_next() };
        }
        if self.execution.steps.iter().any(|attempt| attempt.state != AttemptState::Completed) {
            return Ok(());
        }
        let Some(last) = self.execution.steps.last() else { return Ok(()) };
        let Some(block) = self.plan.block_of(&last.step) else { return Err(self.unknown(&last.step)) };
        let started = |step: &Step| self.execution.steps.iter().any(|attempt| attempt.step == step.name);
        if !block.steps.iter().all(started) {
            // A newer declaration has more of them.
            let known: Vec<String> =
                self.execution.steps.iter().map(|attempt| attempt.step.clone()).collect();
            return self.start_block(block, |step| !known.contains(&step.name));
        }
        match self.plan.after(block, self.at.data()) {
            Ok(Some(next)) => self.start_block(next, |_| true),
            Ok(None) => {
                let end = self.at.with_status(ProcessStatus::Succeeded).with_current_step(None::<&str>);
                self.log(end, ProcessEvent::ProcessCompleted { reason: "all steps are completed".into() });
                Ok(())
            }
            Err(NoWay { branch, error }) => self.give_up(&branch, &error),
        }
    }

    /// Undoes the completed steps, the last one first, one at a time. A step that timed out may have had its effect, and is
    /// undone as well. At the end the process has failed.
    fn undo_next(&mut self) -> Result<()> {
        let is_under_way = |attempt: &Attempt| attempt.state == AttemptState::Pending;
        let is_undone = |attempt: &Attempt| attempt.state == AttemptState::Completed;
        let Execution { steps, undone, .. } = &self.execution;
        if steps.iter().any(is_under_way) || !undone.iter().all(is_undone) {
            return Ok(());
        }
        let mut last: Option<&Attempt> = None;
        for attempt in steps {
            let had_effect = matches!(attempt.state, AttemptState::Completed | AttemptState::TimedOut);
            if !had_effect || undone.iter().any(|other| other.step == attempt.step) {
                continue;
            }
            let step = self.plan.step(&attempt.step).ok_or_else(|| self.unknown(&attempt.step))?;
            if step.compensation.is_some() && last.is_none_or(|last| last.since < attempt.since) {
                last = Some(attempt);
            }
        }
        if let Some(step) = last.map(|attempt| attempt.step.clone()) {
            return self.start_undo(&step, None);
        }
        let status = if undone.is_empty() { ProcessStatus::Failed } else { ProcessStatus::Compensated };
        let reason = self.execution.reason();
        self.log(self.at.with_status(status), ProcessEvent::ProcessFailed { reason });
        Ok(())
    }

    /// Records a reply; false if the log has passed its command.
    fn reply(&mut self, command_id: &str, reply: Reply) -> Result<bool> {
        let Some((direction, attempt)) = self.execution.attempt(command_id) else { return Ok(false) };
        let (attempt, being_undone) = (attempt.clone(), self.is_being_undone(&attempt.step));
        let waits = match (direction, attempt.state) {
            (_, AttemptState::Pending) => true,
            // Late, and in time for the way back.
            (Direction::Forward, AttemptState::TimedOut) => !being_undone,
            (Direction::Undo, AttemptState::Parked) => attempt.timed_out,
            _ => false,
        };
        if !waits {
            return Ok(false);
        }
        let has_timeout = self.plan.step(&attempt.step).is_some_and(|step| step.timeout.is_some());
        if attempt.state == AttemptState::Pending && has_timeout {
            self.outgoing.push(Outgoing::Cancel { id: attempt.timer_id(TimerKind::Timeout.as_str()) });
        }
        match (direction, reply) {
            (Direction::Forward, Reply::Completed(result)) => self.completed(&attempt, result),
            (Direction::Forward, Reply::Failed { error, retryable }) => {
                let event = failed(&attempt, error, retryable);
                self.log(self.at.with_retries(self.at.retries().saturating_add(1)), event);
                self.retry_later(&attempt)?;
            }
            (Direction::Undo, Reply::Completed(_)) => {
                let Attempt { step, command_id, .. } = attempt;
                self.log(self.at.clone(), ProcessEvent::CompensationCompleted { step, command_id });
            }
            (Direction::Undo, Reply::Failed { error, retryable }) => {
                self.undo_failed(&attempt, error, retryable)?;
            }
        }
        Ok(true)
    }

    fn completed(&mut self, attempt: &Attempt, result: Option<ProcessData>) {
        let merged = match (self.at.data(), &result) {
            (Some(data), Some(result)) => data.merged(result).map(Some),
            (None, Some(result)) => Ok(Some(result.clone())),
            (data, None) => Ok(data.cloned()),
        };
        let (step, command_id) = (attempt.step.clone(), attempt.command_id.clone());
        match merged {
            Ok(data) => {
                let event = ProcessEvent::StepCompleted { step, command_id, result_data: result };
                self.log(self.at.with_data(data), event);
            }
            // It had its effect, and the process cannot continue without what it returned.
            Err(error) => {
                self.log(
                    self.at.clone(),
                    ProcessEvent::StepCompleted { step, command_id, result_data: None },
                );
                self.mark_given_up(&attempt.step, &format!("its result cannot be kept: {error}"));
            }
        }
    }

    /// Sets the time of another attempt after a failure, if there is one. A paused process sets it when it is resumed.
    fn retry_later(&mut self, attempt: &Attempt) -> Result<()> {
        if self.at.status() != ProcessStatus::Running || self.has_failed()? {
            return Ok(());
        }
        self.set_timer(Direction::Forward, &attempt.step, TimerKind::Retry)
    }

    fn undo_failed(&mut self, attempt: &Attempt, error: String, retryable: bool) -> Result<()> {
        let step = self.plan.step(&attempt.step).ok_or_else(|| self.unknown(&attempt.step))?;
        let next = self.at.with_retries(self.at.retries().saturating_add(1));
        if retryable && attempt.attempts < step.attempts && attempt.state == AttemptState::Pending {
            self.log(next, failed(attempt, error, true));
            if self.at.status() == ProcessStatus::Compensating {
                self.set_timer(Direction::Undo, &attempt.step, TimerKind::Retry)?;
            }
        } else {
            if attempt.timed_out {
                // It is known now that its command is over.
                self.log(next.clone(), failed(attempt, error.clone(), retryable));
            }
            let (step, command_id) = (attempt.step.clone(), attempt.command_id.clone());
            self.log(next, ProcessEvent::CompensationFailed { step, command_id, error });
        }
        Ok(())
    }

    /// A time that was set has passed; false if it does not matter any more. In a pause no time passes: resuming sets all
    /// of them anew.
    fn timer(&mut self, command_id: &str, kind: TimerKind, since: u64) -> Result<bool> {
        let found = self.execution.attempt(command_id).filter(|(_, attempt)| attempt.since == since);
        let Some((direction, attempt)) = found else { return Ok(false) };
        let attempt = attempt.clone();
        if self.at.status() == ProcessStatus::Paused {
            return Ok(false);
        }
        match (kind, attempt.state) {
            (TimerKind::Timeout, AttemptState::Pending) => self.timed_out(direction, &attempt)?,
            (TimerKind::Retry, AttemptState::Failed { .. }) => self.try_again(direction, &attempt)?,
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn timed_out(&mut self, direction: Direction, attempt: &Attempt) -> Result<()> {
        let step = self.plan.step(&attempt.step).ok_or_else(|| self.unknown(&attempt.step))?;
        let within = step.timeout.unwrap_or_default();
        let error = format!("no reply within {within:?}, attempt {}", attempt.attempts);
        let (name, command_id) = (attempt.step.clone(), attempt.command_id.clone());
        let event = ProcessEvent::StepTimedOut {
            step: name.clone(),
            command_id: command_id.clone(),
            error: error.clone(),
        };
        // Asked before it is logged: an attempt that timed out counts as failed.
        let has_failed = direction == Direction::Forward && self.has_failed()?;
        self.log(self.at.with_retries(self.at.retries().saturating_add(1)), event);
        let again = attempt.attempts < step.attempts && !has_failed;
        match (direction, again) {
            (Direction::Forward, true) => self.start_step(step, None, Some(command_id)),
            (Direction::Undo, true) => self.start_undo(&name, Some(command_id))?,
            (Direction::Forward, false) => {}
            (Direction::Undo, false) => {
                let step = name;
                self.log(self.at.clone(), ProcessEvent::CompensationFailed { step, command_id, error });
            }
        }
        Ok(())
    }

    /// Starts what failed once more, if it may.
    fn try_again(&mut self, direction: Direction, attempt: &Attempt) -> Result<()> {
        match direction {
            Direction::Forward if self.at.status() == ProcessStatus::Running && !self.has_failed()? => {
                let step = self.plan.step(&attempt.step).ok_or_else(|| self.unknown(&attempt.step))?;
                self.start_step(step, None, None);
                Ok(())
            }
            Direction::Forward => Ok(()),
            Direction::Undo => self.start_undo(&attempt.step, None),
        }
    }

    /// After a pause: sets the times of what is under way, and tries what failed meanwhile.
    fn resume(&mut self) -> Result<bool> {
        if self.at.status() == ProcessStatus::Paused {
            return Ok(false);
        }
        for (direction, attempt) in self.attempts() {
            match attempt.state {
                AttemptState::Pending => self.set_timer(direction, &attempt.step, TimerKind::Timeout)?,
                AttemptState::Failed { .. } => self.try_again(direction, &attempt)?,
                _ => {}
            }
        }
        Ok(true)
    }

    /// By a person: what waits for its back-off or was given up is tried now. A command that timed out is sent again, any
    /// other is a new one.
    fn retry(&mut self) -> Result<bool> {
        if self.at.status() == ProcessStatus::Paused {
            return Ok(false);
        }
        for (direction, attempt) in self.attempts() {
            match (direction, attempt.state) {
                (_, AttemptState::Failed { .. }) => self.try_again(direction, &attempt)?,
                (Direction::Undo, AttemptState::Parked) => {
                    let again = attempt.timed_out.then_some(attempt.command_id);
                    self.start_undo(&attempt.step, again)?;
                }
                _ => {}
            }
        }
        Ok(true)
    }

    fn attempts(&self) -> Vec<(Direction, Attempt)> {
        let steps = self.execution.steps.iter().map(|attempt| (Direction::Forward, attempt.clone()));
        steps.chain(self.execution.undone.iter().map(|attempt| (Direction::Undo, attempt.clone()))).collect()
    }

    /// Whether a step failed for good, so that the way is back.
    fn has_failed(&self) -> Result<bool> {
        if self.execution.given_up {
            return Ok(true);
        }
        for attempt in &self.execution.steps {
            let is_over = match attempt.state {
                AttemptState::TimedOut => true,
                AttemptState::Failed { retryable: false } => true,
                AttemptState::Failed { retryable: true } => {
                    let step = self.plan.step(&attempt.step).ok_or_else(|| self.unknown(&attempt.step))?;
                    attempt.attempts >= step.attempts
                }
                _ => false,
            };
            if is_over {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn is_being_undone(&self, step: &str) -> bool {
        self.execution.undone.iter().any(|attempt| attempt.step == step)
    }
}

fn failed(attempt: &Attempt, error: String, retryable: bool) -> ProcessEvent {
    let (step, command_id) = (attempt.step.clone(), attempt.command_id.clone());
    ProcessEvent::StepFailed { step, command_id, error, retryable }
}
