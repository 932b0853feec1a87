//! How decisions are recorded: as events with what each changes, and as messages to be sent with them.

use uuid::Uuid;

use super::{Batch, Outgoing, TimerKind, Turn};
use crate::error::{Error, ErrorKind, Result};
use crate::process::definition::Step;
use crate::process::event::ProcessEvent;
use crate::process::execution::Direction;
use crate::process::instance::{ProcessChange, ProcessInstance};
use crate::process::plan::Block;
use crate::process::status::ProcessStatus;

impl Turn<'_> {
    pub(super) fn start_block(&mut self, block: &Block, wanted: impl Fn(&Step) -> bool) -> Result<()> {
        let steps: Vec<&Step> = block.steps.iter().filter(|step| wanted(step)).collect();
        let refused = steps.iter().find_map(|step| Some((step, step.refuses(self.at.data())?)));
        if let Some((step, error)) = refused {
            return self.give_up(&step.name, &error);
        }
        steps.into_iter().for_each(|step| self.start_step(step, Some(&block.name), None));
        Ok(())
    }

    /// Sends the command of a step: a new one, or the same once more.
    pub(super) fn start_step(&mut self, step: &Step, block: Option<&str>, again: Option<String>) {
        if let Some(error) = step.refuses(self.at.data()) {
            return self.mark_given_up(&step.name, &error);
        }
        let command_id = again.unwrap_or_else(|| Uuid::now_v7().to_string());
        let status =
            if self.at.status() == ProcessStatus::New { ProcessStatus::Running } else { self.at.status() };
        let mut next = self.at.with_status(status);
        if let Some(block) = block {
            next = next.with_current_step(block);
        }
        let event = ProcessEvent::StepStarted { step: step.name.clone(), command_id: command_id.clone() };
        self.log(next, event);
        self.outgoing.push(Outgoing::Command {
            step: step.name.clone(),
            topic: step.topic.clone(),
            command: step.command.clone(),
            command_id,
            undoes: None,
        });
        self.arm(Direction::Forward, step, TimerKind::Timeout);
    }

    /// Sends the command that undoes a step: a new one, or the same once more.
    pub(super) fn start_undo(&mut self, name: &str, again: Option<String>) -> Result<()> {
        let step = self.plan.step(name).ok_or_else(|| self.unknown(name))?;
        let undoes = self.execution.steps.iter().find(|attempt| attempt.step == name);
        let (Some(command), Some(undoes)) = (&step.compensation, undoes) else {
            return Err(self.unknown(&format!("{name} with a compensation")));
        };
        let (command, undoes) = (command.clone(), Some(undoes.command_id.clone()));
        let command_id = again.unwrap_or_else(|| Uuid::now_v7().to_string());
        let next = self.at.with_status(ProcessStatus::Compensating).with_current_step(name);
        let event =
            ProcessEvent::CompensationStarted { step: name.to_owned(), command_id: command_id.clone() };
        self.log(next, event);
        if let Some(error) = step.refuses(self.at.data()) {
            let step = name.to_owned();
            self.log(self.at.clone(), ProcessEvent::CompensationFailed { step, command_id, error });
            return Ok(());
        }
        let (step_name, topic) = (name.to_owned(), step.topic.clone());
        self.outgoing.push(Outgoing::Command { step: step_name, topic, command, command_id, undoes });
        self.arm(Direction::Undo, step, TimerKind::Timeout);
        Ok(())
    }

    pub(super) fn set_timer(&mut self, direction: Direction, name: &str, kind: TimerKind) -> Result<()> {
        let step = self.plan.step(name).ok_or_else(|| self.unknown(name))?;
        self.arm(direction, step, kind);
        Ok(())
    }

    /// Sets a timer for the last attempt of a step, if it has one of this kind.
    fn arm(&mut self, direction: Direction, step: &Step, kind: TimerKind) {
        let attempts = match direction {
            Direction::Forward => &self.execution.steps,
            Direction::Undo => &self.execution.undone,
        };
        let Some(attempt) = attempts.iter().find(|attempt| attempt.step == step.name) else { return };
        let delay = match kind {
            TimerKind::Timeout => step.timeout,
            TimerKind::Retry => Some(step.backoff_after(attempt.attempts)),
        };
        let Some(delay) = delay else { return };
        let (id, command_id, since) =
            (attempt.timer_id(kind.as_str()), attempt.command_id.clone(), attempt.since);
        self.outgoing.push(Outgoing::Timer { id, command_id, kind, since, delay });
    }

    /// No way leads further: what is completed is undone.
    pub(super) fn give_up(&mut self, step: &str, error: &str) -> Result<()> {
        self.mark_given_up(step, error);
        self.undo_next()
    }

    /// A failure with a command of its own, which no attempt has: [`Execution::given_up`].
    pub(super) fn mark_given_up(&mut self, step: &str, error: &str) {
        let command_id = Uuid::now_v7().to_string();
        let event = ProcessEvent::StepFailed {
            step: step.to_owned(),
            command_id,
            error: error.to_owned(),
            retryable: false,
        };
        let status =
            if self.at.status() == ProcessStatus::New { ProcessStatus::Running } else { self.at.status() };
        self.log(self.at.with_status(status), event);
    }

    /// Adds an event, and what it changes.
    pub(super) fn log(&mut self, next: ProcessInstance, event: ProcessEvent) {
        let changes_status = |change: &ProcessChange| change.status.is_some();
        let mut change = next.state().change_since(self.at.state());
        let mut next = next;
        if changes_status(&change) && self.entries.iter().any(|(change, _)| changes_status(change)) {
            // One write changes the status once.
            self.flush();
            next = self.at.update(next.status(), next.current_step(), next.data().cloned(), next.retries());
            change = next.state().change_since(self.at.state());
        }
        self.execution.apply(self.execution.sequence + 1, &event);
        self.entries.push((change, event));
        self.at = next;
    }

    /// Ends a write. What follows is a change of what it stores.
    pub(super) fn flush(&mut self) {
        if self.entries.is_empty() {
            return;
        }
        let entries = std::mem::take(&mut self.entries);
        let version = self.at.version() + entries.len() as u64;
        let (created_at, updated_at) =
            (self.at.created_at().unwrap_or_default(), self.at.updated_at().unwrap_or_default());
        let stored = self.at.stored_as(version, created_at, updated_at);
        self.batches.push(Batch { instance: std::mem::replace(&mut self.at, stored), entries });
    }

    pub(super) fn unknown(&self, step: &str) -> Error {
        let text = format!(
            "process {}: type {} has no step {step}; declare it, as long as processes are at it",
            self.at.id(),
            self.plan.name
        );
        Error::new(ErrorKind::InvalidInput, text)
    }
}
