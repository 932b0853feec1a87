//! The declaration of a process type: its steps, in which order, and what undoes them.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::data::ProcessData;
use super::plan::Plan;
use crate::error::{Error, Result};
use crate::limits::{DELAY_MAX, NAME_BYTES_MAX, PROCESS_ATTEMPTS_MAX};
use crate::name::{TopicName, check_name};

/// What a name of a process's own topic begins with.
pub(crate) const TOPIC_PREFIX: &str = "process.";

/// A step of a process: a command to a topic, which a consumer of that topic carries out and answers.
///
/// ```
/// use std::time::Duration;
/// use headwater::process::Step;
///
/// let charge = Step::new("charge", "payments", "Charge")
///     .timeout(Duration::from_secs(30))
///     .attempts(5)
///     .backoff(Duration::from_secs(1), Duration::from_secs(60))
///     .compensation("Refund");
/// # let _ = charge;
/// ```
#[derive(Clone)]
pub struct Step {
    pub(crate) name: String,
    pub(crate) topic: String,
    pub(crate) command: String,
    pub(crate) compensation: Option<String>,
    pub(crate) timeout: Option<Duration>,
    pub(crate) attempts: u32,
    backoff_initial: Duration,
    backoff_max: Duration,
    /// What its topic allows, once the manager has read it.
    pub(crate) payload_bytes_max: usize,
}

impl Step {
    /// A step with a name of its own in the process: it sends this command to this topic. Without further settings it waits
    /// for a reply for as long as it takes, has three attempts, and is not undone.
    pub fn new(name: &str, topic: &str, command: &str) -> Self {
        Step {
            name: name.to_owned(),
            topic: topic.to_owned(),
            command: command.to_owned(),
            compensation: None,
            timeout: None,
            attempts: 3,
            backoff_initial: Duration::from_secs(1),
            backoff_max: Duration::from_secs(60),
            payload_bytes_max: usize::MAX,
        }
    }

    /// How long a reply is waited for. After that the same command is sent again; after the last attempt the step has failed,
    /// and is undone like a completed one: its command may have had its effect.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// How often it is tried at most, its compensation too.
    #[must_use]
    pub fn attempts(mut self, attempts: u32) -> Self {
        self.attempts = attempts;
        self
    }

    /// How long to wait after the first failed attempt, and at most; the wait doubles with each.
    #[must_use]
    pub fn backoff(mut self, initial: Duration, longest: Duration) -> Self {
        (self.backoff_initial, self.backoff_max) = (initial, longest);
        self
    }

    /// The command that undoes it, sent to the same topic. It is sent for completed steps in reverse order if a later one
    /// fails, and has to do nothing if there is nothing to undo.
    #[must_use]
    pub fn compensation(mut self, command: &str) -> Self {
        self.compensation = Some(command.to_owned());
        self
    }

    /// How long to wait after this many failed attempts.
    pub(crate) fn backoff_after(&self, failed: u32) -> Duration {
        let doublings = failed.saturating_sub(1).min(31);
        self.backoff_initial.saturating_mul(1 << doublings).min(self.backoff_max)
    }

    /// Why the data of a process do not fit into its command, if they do not.
    pub(crate) fn refuses(&self, data: Option<&ProcessData>) -> Option<String> {
        let (bytes, most) = (data.map_or(0, |data| data.as_str().len()), self.payload_bytes_max);
        (bytes > most).then(|| format!("its data have {bytes} bytes, and topic {} allows {most}", self.topic))
    }

    pub(super) fn check(&self) -> Result<()> {
        check_name("step", &self.name)?;
        TopicName::new(&self.topic)?;
        check_name("command", &self.command)?;
        self.compensation.as_deref().map_or(Ok(()), |command| check_name("compensation", command))?;
        let of = |field: &str| format!("{field} of step {}", self.name);
        if !(1..=PROCESS_ATTEMPTS_MAX).contains(&self.attempts) {
            return Err(Error::invalid(&of("attempts"), format!("must be from 1 to {PROCESS_ATTEMPTS_MAX}")));
        }
        if self.timeout.is_some_and(|timeout| timeout.is_zero() || timeout > DELAY_MAX) {
            return Err(Error::invalid(&of("timeout"), "must be above zero and at most 366 days"));
        }
        if self.backoff_initial > self.backoff_max || self.backoff_max > DELAY_MAX {
            return Err(Error::invalid(
                &of("backoff"),
                "the first must not exceed the longest, nor that 366 days",
            ));
        }
        Ok(())
    }
}

impl fmt::Debug for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Step({}: {} to {})", self.name, self.command, self.topic)
    }
}

/// Steps one after the other: the whole of a process, or an arm of a branch.
///
/// ```
/// use headwater::process::{Path, Step};
///
/// let express = Path::new()
///     .parallel("prepare", [Step::new("pack", "warehouse", "Pack"), Step::new("label", "carrier", "Label")])
///     .step(Step::new("fly", "carrier", "Fly"));
/// # let _ = express;
/// ```
#[derive(Clone, Debug, Default)]
pub struct Path(pub(super) Vec<Node>);

#[derive(Clone, Debug)]
pub(super) enum Node {
    Steps(String, Vec<Step>),
    Branch(String, Choose, Vec<(String, Path)>),
}

/// Decides which arm of a branch is taken.
#[derive(Clone)]
pub(super) struct Choose(pub(super) Arc<Chooser>);

type Chooser = dyn Fn(&ProcessData) -> Result<&'static str> + Send + Sync;

impl fmt::Debug for Choose {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("…")
    }
}

impl Path {
    /// No step.
    pub fn new() -> Self {
        Path::default()
    }

    /// A step after those before.
    #[must_use]
    pub fn step(mut self, step: Step) -> Self {
        self.0.push(Node::Steps(step.name.clone(), vec![step]));
        self
    }

    /// Steps that run at the same time; what follows waits for all of them. If one fails, the others are waited for before
    /// anything is undone.
    #[must_use]
    pub fn parallel(mut self, name: &str, steps: impl IntoIterator<Item = Step>) -> Self {
        self.0.push(Node::Steps(name.to_owned(), steps.into_iter().collect()));
        self
    }

    /// One of several paths, chosen by the data of the process when it gets there; what follows is for all of them. The
    /// choice must depend on the data alone. An error, a panic or an unknown arm fails the process.
    #[must_use]
    pub fn branch<'n>(
        mut self,
        name: &str,
        choose: impl Fn(&ProcessData) -> Result<&'static str> + Send + Sync + 'static,
        arms: impl IntoIterator<Item = (&'n str, Path)>,
    ) -> Self {
        let arms = arms.into_iter().map(|(arm, path)| (arm.to_owned(), path)).collect();
        self.0.push(Node::Branch(name.to_owned(), Choose(Arc::new(choose)), arms));
        self
    }
}

/// A type of process: a name and its steps.
///
/// Names of steps are stored with running processes. A later version of the program may add steps and branches anywhere, and
/// has to keep the steps that processes may be at.
///
/// ```
/// use headwater::process::{Path, ProcessType, Step};
///
/// let order = ProcessType::new("order")
///     .step(Step::new("reserve", "stock", "Reserve").compensation("Release"))
///     .step(Step::new("charge", "payments", "Charge").compensation("Refund"))
///     .branch(
///         "how",
///         |data| Ok(if data.get::<bool>("express")? == Some(true) { "express" } else { "standard" }),
///         [
///             ("express", Path::new().step(Step::new("fly", "carrier", "Fly"))),
///             ("standard", Path::new().step(Step::new("ship", "carrier", "Ship"))),
///         ],
///     );
/// # let _ = order;
/// ```
#[derive(Clone, Debug)]
pub struct ProcessType {
    name: String,
    path: Path,
}

impl ProcessType {
    /// A type of this name, without steps yet.
    pub fn new(name: &str) -> Self {
        ProcessType { name: name.to_owned(), path: Path::new() }
    }

    /// See [`Path::step`].
    #[must_use]
    pub fn step(self, step: Step) -> Self {
        ProcessType { path: self.path.step(step), ..self }
    }

    /// See [`Path::parallel`].
    #[must_use]
    pub fn parallel(self, name: &str, steps: impl IntoIterator<Item = Step>) -> Self {
        ProcessType { path: self.path.parallel(name, steps), ..self }
    }

    /// See [`Path::branch`].
    #[must_use]
    pub fn branch<'n>(
        self,
        name: &str,
        choose: impl Fn(&ProcessData) -> Result<&'static str> + Send + Sync + 'static,
        arms: impl IntoIterator<Item = (&'n str, Path)>,
    ) -> Self {
        ProcessType { path: self.path.branch(name, choose, arms), ..self }
    }

    /// Checks everything, and what follows what.
    pub(crate) fn plan(&self) -> Result<Plan> {
        topic_of(&self.name)?;
        Plan::new(&self.name, &self.path)
    }
}

/// The topic in which the manager of a type gets its messages.
pub(crate) fn topic_of(process_type: &str) -> Result<String> {
    check_name("process_type", process_type)?;
    let topic = format!("{TOPIC_PREFIX}{process_type}");
    if topic.len() > NAME_BYTES_MAX {
        let most = NAME_BYTES_MAX - TOPIC_PREFIX.len();
        let rule = format!("{} bytes, at most {most} are allowed: its topic is {topic}", process_type.len());
        return Err(Error::invalid("process_type", rule));
    }
    Ok(topic)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_back_off_doubles_up_to_its_limit() {
        let second = Duration::from_secs(1);
        let step = Step::new("a", "work", "Do").backoff(second, second * 5);
        let waits = [1, 2, 3, 4, 99].map(|failed| step.backoff_after(failed));
        assert_eq!(waits, [second, second * 2, second * 4, second * 5, second * 5]);
    }
}
