//! How far a process is: what its log says of each step and of what undoes it. Pure: the events in order lead to it, and
//! nothing else is stored of it.

use uuid::Uuid;

use super::event::ProcessEvent;

/// What the log says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Execution {
    /// The steps that were started, in this order.
    pub(crate) steps: Vec<Attempt>,
    /// What undoes them, as far as it was started.
    pub(crate) undone: Vec<Attempt>,
    /// The last failure of a step: the step, and why.
    pub(crate) failure: Option<(String, String)>,
    /// Whether it failed for another reason than a step: no way leads further.
    pub(crate) given_up: bool,
    /// The number of the newest event.
    pub(crate) sequence: u64,
}

/// The last attempt of a step, or of what undoes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Attempt {
    pub(crate) step: String,
    pub(crate) command_id: String,
    /// How often it was started.
    pub(crate) attempts: u32,
    pub(crate) state: AttemptState,
    /// The event that led to the state; of a pending one also the resumption after a pause. Timers name it: one that was set
    /// before is stale.
    pub(crate) since: u64,
    /// Whether the last command timed out: it may still have its effect, so another attempt sends the same one.
    pub(crate) timed_out: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AttemptState {
    /// Its command was sent.
    Pending,
    Completed,
    /// It replied that it failed, and had no effect.
    Failed {
        retryable: bool,
    },
    /// It did not reply.
    TimedOut,
    /// Undoing it was given up: a person decides.
    Parked,
}

/// Which of the two an attempt is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    Forward,
    Undo,
}

impl Execution {
    /// What these events lead to, oldest first.
    pub(crate) fn of<'e>(events: impl IntoIterator<Item = &'e (u64, ProcessEvent)>) -> Self {
        let mut execution = Execution::default();
        for (sequence, event) in events {
            execution.apply(*sequence, event);
        }
        execution
    }

    /// One more event.
    pub(crate) fn apply(&mut self, sequence: u64, event: &ProcessEvent) {
        self.sequence = sequence;
        match event {
            ProcessEvent::StepStarted { step, command_id } => {
                start(&mut self.steps, sequence, step, command_id);
            }
            ProcessEvent::CompensationStarted { step, command_id } => {
                start(&mut self.undone, sequence, step, command_id);
            }
            ProcessEvent::StepCompleted { command_id, .. }
            | ProcessEvent::CompensationCompleted { command_id, .. } => {
                self.set(sequence, command_id, AttemptState::Completed);
            }
            ProcessEvent::StepFailed { step, command_id, error, retryable } => {
                self.fail(step, command_id, error);
                self.given_up |= self.attempt(command_id).is_none();
                self.set(sequence, command_id, AttemptState::Failed { retryable: *retryable });
            }
            ProcessEvent::StepTimedOut { step, command_id, error } => {
                self.fail(step, command_id, error);
                self.set(sequence, command_id, AttemptState::TimedOut);
            }
            ProcessEvent::CompensationFailed { command_id, .. } => {
                self.set(sequence, command_id, AttemptState::Parked);
            }
            ProcessEvent::ProcessResumed { .. } => {
                let both = self.steps.iter_mut().chain(&mut self.undone);
                let pending = both.filter(|attempt| attempt.state == AttemptState::Pending);
                pending.for_each(|attempt| attempt.since = sequence);
            }
            _ => {}
        }
    }

    /// The attempt of a command, if it is the last one of its step.
    pub(crate) fn attempt(&self, command_id: &str) -> Option<(Direction, &Attempt)> {
        let of = |attempts: &[Attempt]| attempts.iter().position(|one| one.command_id == command_id);
        match (of(&self.steps), of(&self.undone)) {
            (Some(at), _) => Some((Direction::Forward, &self.steps[at])),
            (None, Some(at)) => Some((Direction::Undo, &self.undone[at])),
            (None, None) => None,
        }
    }

    /// Why it failed, in words.
    pub(crate) fn reason(&self) -> String {
        match &self.failure {
            Some((step, error)) => format!("step {step} failed: {error}"),
            None => "it failed".to_owned(),
        }
    }

    fn set(&mut self, sequence: u64, command_id: &str, state: AttemptState) {
        let mut both = self.steps.iter_mut().chain(&mut self.undone);
        if let Some(attempt) = both.find(|attempt| attempt.command_id == command_id) {
            // Giving up says nothing of the command.
            attempt.timed_out = match state {
                AttemptState::TimedOut => true,
                AttemptState::Parked => attempt.timed_out,
                _ => false,
            };
            (attempt.state, attempt.since) = (state, sequence);
        }
    }

    /// Remembers why a step failed; that undoing one failed is not why the process did.
    fn fail(&mut self, step: &str, command_id: &str, error: &str) {
        if !self.undone.iter().any(|attempt| attempt.command_id == command_id) {
            self.failure = Some((step.to_owned(), error.to_owned()));
        }
    }
}

fn start(attempts: &mut Vec<Attempt>, sequence: u64, step: &str, command_id: &str) {
    let at = attempts.iter().position(|attempt| attempt.step == step).unwrap_or_else(|| {
        attempts.push(Attempt {
            step: step.to_owned(),
            command_id: String::new(),
            attempts: 0,
            state: AttemptState::Pending,
            since: sequence,
            timed_out: false,
        });
        attempts.len() - 1
    });
    let attempt = &mut attempts[at];
    command_id.clone_into(&mut attempt.command_id);
    attempt.attempts += 1;
    (attempt.state, attempt.since, attempt.timed_out) = (AttemptState::Pending, sequence, false);
}

impl Attempt {
    /// The id of a message that is sent for this attempt: the same whenever it is computed, and another for each kind, each
    /// attempt and each resumption. An inbox takes a message of an id once.
    pub(crate) fn timer_id(&self, kind: &str) -> Uuid {
        derived_id(&[kind.as_bytes(), self.command_id.as_bytes(), &self.since.to_be_bytes()])
    }
}

/// A UUID made of these parts alone.
pub(crate) fn derived_id(parts: &[&[u8]]) -> Uuid {
    use sha2::{Digest, Sha256};
    let mut hash = Sha256::new();
    for part in parts {
        // The length first: moving a byte from one part to the next makes another id.
        hash.update((part.len() as u64).to_be_bytes());
        hash.update(part);
    }
    let digest = hash.finalize();
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&digest[..16]);
    uuid::Builder::from_custom_bytes(bytes).into_uuid()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(step: &str, command_id: &str) -> (String, String) {
        (step.to_owned(), command_id.to_owned())
    }

    fn started(step: &str, command: &str) -> ProcessEvent {
        let (step, command_id) = names(step, command);
        ProcessEvent::StepStarted { step, command_id }
    }

    fn failed(step: &str, command: &str, retryable: bool) -> ProcessEvent {
        let (step, command_id) = names(step, command);
        ProcessEvent::StepFailed { step, command_id, error: "no".into(), retryable }
    }

    fn timed_out(step: &str, command: &str) -> ProcessEvent {
        let (step, command_id) = names(step, command);
        ProcessEvent::StepTimedOut { step, command_id, error: "late".into() }
    }

    fn of(events: Vec<ProcessEvent>) -> Execution {
        Execution::of(&(1..).zip(events).collect::<Vec<_>>())
    }

    #[test]
    fn attempts_are_counted_and_their_last_state_is_known() {
        let (step, command_id) = names("a", "c2");
        let completed = ProcessEvent::StepCompleted { step, command_id, result_data: None };
        let log = vec![
            started("a", "c1"),
            failed("a", "c1", true),
            started("a", "c2"),
            started("b", "d1"),
            completed,
        ];
        let execution = of(log);
        let (direction, a) = execution.attempt("c2").unwrap();
        assert_eq!(
            (direction, a.attempts, a.state, a.since),
            (Direction::Forward, 2, AttemptState::Completed, 5)
        );
        assert_eq!(execution.attempt("c1"), None, "an earlier attempt is over");
        assert_eq!(execution.attempt("d1").unwrap().1.state, AttemptState::Pending);
        assert_eq!(execution.reason(), "step a failed: no");
    }

    #[test]
    fn what_undoes_a_step_is_apart_and_says_whether_its_command_may_still_work() {
        let (step, command_id) = names("a", "u1");
        let undo = ProcessEvent::CompensationStarted { step: step.clone(), command_id: command_id.clone() };
        let parked = ProcessEvent::CompensationFailed { step, command_id, error: "stuck".into() };
        let execution =
            of(vec![started("a", "c1"), timed_out("a", "c1"), undo, timed_out("a", "u1"), parked]);
        let (direction, undo) = execution.attempt("u1").unwrap();
        assert_eq!((direction, undo.state, undo.timed_out), (Direction::Undo, AttemptState::Parked, true));
        assert_eq!(execution.attempt("c1").unwrap().1.state, AttemptState::TimedOut);
        assert_eq!(execution.reason(), "step a failed: late", "not that undoing it did");
    }

    #[test]
    fn a_resumption_makes_timers_of_before_stale() {
        let resumed = ProcessEvent::ProcessResumed { reason: String::new(), resumed_by: "ann".into() };
        let before = of(vec![started("a", "c1")]);
        let after = of(vec![started("a", "c1"), resumed]);
        let id = |execution: &Execution| execution.attempt("c1").unwrap().1.timer_id("timeout");
        assert_ne!(id(&before), id(&after));
        assert_eq!(id(&before), id(&of(vec![started("a", "c1")])));
        assert_ne!(derived_id(&[b"ab", b"c"]), derived_id(&[b"a", b"bc"]));
    }
}
