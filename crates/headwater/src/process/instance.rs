//! A process as a value: changed by copies, and stored by the repository.

use jiff::Timestamp;
use uuid::Uuid;

use super::data::ProcessData;
use super::event::ProcessEvent;
use super::status::ProcessStatus;
use crate::error::{Error, ErrorKind, Result};
use crate::name::check_name;

/// A process: its type, its status, where it is and what it knows. A value: `with_…` return copies, and
/// [`Processes::update`](super::Processes::update) stores one.
///
/// ```
/// use headwater::process::{ProcessData, ProcessInstance, ProcessStatus};
///
/// let data = ProcessData::from_json(r#"{"total": 250}"#)?;
/// let order = ProcessInstance::create("order", Some("o-17"), Some(data));
/// let running = order.with_status(ProcessStatus::Running).with_current_step("reserve");
/// assert_eq!((order.status(), running.status()), (ProcessStatus::New, ProcessStatus::Running));
/// assert_eq!((running.current_step(), running.retries()), (Some("reserve"), 0));
/// # Ok::<(), headwater::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct ProcessInstance {
    id: Uuid,
    process_type: String,
    business_key: Option<String>,
    state: State,
    /// The state that is stored under `version`: what an update changes is the difference. Only the repository sets it, so
    /// with the right version it is what the store holds.
    stored: State,
    created_at: Option<Timestamp>,
    updated_at: Option<Timestamp>,
    version: u64,
}

/// What an update may change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct State {
    pub(crate) status: ProcessStatus,
    pub(crate) paused_in: Option<ProcessStatus>,
    pub(crate) current_step: Option<String>,
    pub(crate) data: Option<ProcessData>,
    pub(crate) retries: u32,
}

/// What one update changed, as its log entry holds it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProcessChange {
    /// The new status.
    pub status: Option<ProcessStatus>,
    /// The new current step; the inner `None` means that it has none any more.
    pub current_step: Option<Option<String>>,
    /// The new data; the inner `None` means that it has none any more.
    pub data: Option<Option<ProcessData>>,
    /// The new number of failed attempts.
    pub retries: Option<u32>,
}

impl State {
    /// The state after a change. A pause keeps the status that it interrupts.
    pub(crate) fn changed(&self, change: &ProcessChange) -> Self {
        let mut next = self.clone();
        if let Some(status) = change.status {
            next.set_status(status, self);
        }
        if let Some(step) = &change.current_step {
            next.current_step.clone_from(step);
        }
        if let Some(data) = &change.data {
            next.data.clone_from(data);
        }
        if let Some(retries) = change.retries {
            next.retries = retries;
        }
        next
    }

    /// What leads from another state to this one.
    pub(crate) fn change_since(&self, before: &State) -> ProcessChange {
        ProcessChange {
            status: (self.status != before.status).then_some(self.status),
            current_step: (self.current_step != before.current_step).then(|| self.current_step.clone()),
            data: (self.data != before.data).then(|| self.data.clone()),
            retries: (self.retries != before.retries).then_some(self.retries),
        }
    }

    fn set_status(&mut self, status: ProcessStatus, before: &State) {
        self.status = status;
        self.paused_in = match (status, before.status) {
            (ProcessStatus::Paused, ProcessStatus::Paused) => before.paused_in,
            (ProcessStatus::Paused, interrupted) => Some(interrupted),
            _ => None,
        };
    }
}

impl ProcessInstance {
    /// A new process with an id of its own, to be [inserted](super::Processes::insert).
    pub fn create(process_type: &str, business_key: Option<&str>, data: Option<ProcessData>) -> Self {
        let state =
            State { status: ProcessStatus::New, paused_in: None, current_step: None, data, retries: 0 };
        ProcessInstance {
            id: Uuid::now_v7(),
            process_type: process_type.to_owned(),
            business_key: business_key.map(str::to_owned),
            stored: state.clone(),
            state,
            created_at: None,
            updated_at: None,
            version: 0,
        }
    }

    /// A new process like this one with another id, to be inserted.
    #[must_use]
    pub fn with_id(&self, id: Uuid) -> Self {
        let created = Self::create(&self.process_type, self.business_key.as_deref(), self.state.data.clone());
        ProcessInstance { id, ..created }
    }

    /// A copy with another status. Whether it may become that is checked when it is stored: see
    /// [`ProcessStatus::may_become`].
    #[must_use]
    pub fn with_status(&self, status: ProcessStatus) -> Self {
        let mut copy = self.clone();
        copy.state.set_status(status, &self.stored);
        copy
    }

    /// A copy at another step, of which no attempt has failed; `None` for no step.
    #[must_use]
    pub fn with_current_step<'s>(&self, step: impl Into<Option<&'s str>>) -> Self {
        let (mut copy, step) = (self.clone(), step.into());
        if copy.state.current_step.as_deref() != step {
            copy.state.current_step = step.map(str::to_owned);
            copy.state.retries = 0;
        }
        copy
    }

    /// A copy with other data; `None` for none.
    #[must_use]
    pub fn with_data(&self, data: impl Into<Option<ProcessData>>) -> Self {
        let mut copy = self.clone();
        copy.state.data = data.into();
        copy
    }

    /// A copy with another number of failed attempts of the current step.
    #[must_use]
    pub fn with_retries(&self, retries: u32) -> Self {
        let mut copy = self.clone();
        copy.state.retries = retries;
        copy
    }

    /// A copy with all of it changed.
    #[must_use]
    pub fn update(
        &self,
        status: ProcessStatus,
        current_step: Option<&str>,
        data: Option<ProcessData>,
        retries: u32,
    ) -> Self {
        self.with_status(status).with_current_step(current_step).with_data(data).with_retries(retries)
    }

    /// Its id.
    pub fn id(&self) -> Uuid {
        self.id
    }

    /// Its type.
    pub fn process_type(&self) -> &str {
        &self.process_type
    }

    /// What it is about, if it has a key.
    pub fn business_key(&self) -> Option<&str> {
        self.business_key.as_deref()
    }

    /// Its status.
    pub fn status(&self) -> ProcessStatus {
        self.state.status
    }

    /// The status that a pause interrupted; `None` unless it is paused.
    pub fn paused_in(&self) -> Option<ProcessStatus> {
        self.state.paused_in
    }

    /// The step it is at, if there is one.
    pub fn current_step(&self) -> Option<&str> {
        self.state.current_step.as_deref()
    }

    /// What it knows, if it has data.
    pub fn data(&self) -> Option<&ProcessData> {
        self.state.data.as_ref()
    }

    /// How many attempts of the current step failed.
    pub fn retries(&self) -> u32 {
        self.state.retries
    }

    /// When it was inserted, by the database's clock; `None` before.
    pub fn created_at(&self) -> Option<Timestamp> {
        self.created_at
    }

    /// When it was last updated, by the database's clock; `None` before it is inserted.
    pub fn updated_at(&self) -> Option<Timestamp> {
        self.updated_at
    }

    /// How often it was stored: 0 before it is inserted, then 1, and one more with each update. An update of any other
    /// version than the stored one is a `Conflict`.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// The event with which it is inserted.
    pub fn started(&self) -> ProcessEvent {
        ProcessEvent::ProcessStarted {
            process_type: self.process_type.clone(),
            business_key: self.business_key.clone(),
            initial_data: self.state.data.clone(),
        }
    }
}

impl PartialEq for ProcessInstance {
    /// Whether all that can be read of it is the same.
    fn eq(&self, other: &Self) -> bool {
        (self.id, &self.process_type, &self.business_key, &self.state)
            == (other.id, &other.process_type, &other.business_key, &other.state)
            && (self.created_at, self.updated_at, self.version)
                == (other.created_at, other.updated_at, other.version)
    }
}

impl Eq for ProcessInstance {}

impl ProcessInstance {
    /// What the repository read.
    pub(crate) fn from_stored(stored: StoredProcess) -> Self {
        let StoredProcess { id, process_type, business_key, state, created_at, updated_at, version } = stored;
        ProcessInstance {
            id,
            process_type,
            business_key,
            stored: state.clone(),
            state,
            created_at: Some(created_at),
            updated_at: Some(updated_at),
            version,
        }
    }

    /// This instance once it is stored under a version.
    pub(crate) fn stored_as(&self, version: u64, created_at: Timestamp, updated_at: Timestamp) -> Self {
        ProcessInstance {
            stored: self.state.clone(),
            created_at: Some(created_at),
            updated_at: Some(updated_at),
            version,
            ..self.clone()
        }
    }

    pub(crate) fn state(&self) -> &State {
        &self.state
    }

    /// What an update of it changes.
    pub(crate) fn change(&self) -> ProcessChange {
        self.state.change_since(&self.stored)
    }

    /// Checks what is to be inserted: every field against its rule, and that a process begins as NEW.
    pub(crate) fn check_new(&self, event: &ProcessEvent) -> Result<()> {
        self.check_fields()?;
        let ProcessEvent::ProcessStarted { process_type, business_key, .. } = event else {
            let rule = format!("a process begins with ProcessStarted, not with {}", event.tag());
            return Err(Error::invalid("event", rule));
        };
        if *process_type != self.process_type || *business_key != self.business_key {
            return Err(Error::invalid("event", "its type and business key must be those of the process"));
        }
        if self.state.status != ProcessStatus::New {
            let text = format!("process {}: a process begins as NEW, not as {}", self.id, self.state.status);
            return Err(Error::new(ErrorKind::InvalidTransition, format!("{text}; nothing was written")));
        }
        Ok(())
    }

    /// Checks what is to be updated: every field against its rule, and that its status may change like this.
    pub(crate) fn check_update(&self, event: &ProcessEvent) -> Result<()> {
        self.check_fields()?;
        event.check()?;
        if matches!(event, ProcessEvent::ProcessStarted { .. }) {
            return Err(Error::invalid("event", "ProcessStarted is the event of an insert"));
        }
        let State { status, paused_in, .. } = &self.stored;
        if status.may_become(self.state.status, *paused_in) {
            return Ok(());
        }
        Err(self.illegal(*status))
    }

    /// The error of a transition that is not possible.
    pub(crate) fn illegal(&self, from: ProcessStatus) -> Error {
        let (id, to) = (self.id, self.state.status);
        let why = match self.stored.paused_in.map(ProcessStatus::resumed) {
            _ if from.is_end() => format!("{from} is an end"),
            Some(resumed) => format!("a process that was paused continues as {resumed}"),
            None => format!("{from} does not become {to}"),
        };
        Error::new(ErrorKind::InvalidTransition, format!("process {id}: {why}; nothing was written"))
    }

    fn check_fields(&self) -> Result<()> {
        check_name("process_type", &self.process_type)?;
        self.business_key.as_deref().map_or(Ok(()), |key| check_name("business_key", key))?;
        self.state.current_step.as_deref().map_or(Ok(()), |step| check_name("current_step", step))
    }
}

/// A row of the table of processes.
#[derive(Debug)]
pub(crate) struct StoredProcess {
    pub(crate) id: Uuid,
    pub(crate) process_type: String,
    pub(crate) business_key: Option<String>,
    pub(crate) state: State,
    pub(crate) created_at: Timestamp,
    pub(crate) updated_at: Timestamp,
    pub(crate) version: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_change_and_the_original_does_not() {
        let data = |text: &str| Some(ProcessData::from_json(text).unwrap());
        let new = ProcessInstance::create("order", Some("o-1"), data("{}"));
        assert_eq!((new.status(), new.version(), new.created_at()), (ProcessStatus::New, 0, None));
        let changed = new.update(ProcessStatus::Running, Some("charge"), data(r#"{"a":1}"#), 2);
        assert_eq!((changed.current_step(), changed.retries()), (Some("charge"), 2));
        assert_eq!((new.status(), new.current_step(), new.retries()), (ProcessStatus::New, None, 0));
        assert_eq!(changed.with_current_step("charge").retries(), 2, "the same step");
        assert_eq!(changed.with_current_step("ship").retries(), 0, "retries are of the current step");
        assert_eq!(changed.with_current_step(None::<&str>).current_step(), None);
        let change = changed.change();
        assert_eq!((change.status, change.retries), (Some(ProcessStatus::Running), Some(2)));
        assert_eq!(new.change(), ProcessChange::default());
        assert_ne!(new.with_id(Uuid::now_v7()), new);
    }

    #[test]
    fn a_pause_remembers_what_it_interrupted() {
        let new = ProcessInstance::create("order", None, None);
        let at = Timestamp::UNIX_EPOCH;
        let running = new.with_status(ProcessStatus::Running).stored_as(2, at, at);
        let paused = running.with_status(ProcessStatus::Paused);
        assert_eq!(paused.paused_in(), Some(ProcessStatus::Running));
        let paused = paused.stored_as(3, at, at);
        assert_eq!(paused.with_retries(1).with_status(ProcessStatus::Paused).paused_in(), paused.paused_in());
        assert_eq!(paused.with_status(ProcessStatus::Running).paused_in(), None);
        let event = ProcessEvent::ProcessResumed { reason: String::new(), resumed_by: "ann".into() };
        paused.with_status(ProcessStatus::Running).check_update(&event).unwrap();
        let refused = paused.with_status(ProcessStatus::Failed).check_update(&event).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::InvalidTransition);
        assert!(refused.to_string().contains("continues as RUNNING"), "{refused}");
        assert_eq!(running.state().changed(&paused.state().change_since(running.state())), *paused.state());
    }

    #[test]
    fn what_is_not_a_beginning_is_not_inserted() {
        let new = ProcessInstance::create("order", Some("o-1"), None);
        new.check_new(&new.started()).unwrap();
        let resumed = ProcessEvent::ProcessResumed { reason: String::new(), resumed_by: "ann".into() };
        assert_eq!(new.check_new(&resumed).unwrap_err().kind(), ErrorKind::InvalidInput);
        let other = ProcessInstance::create("order", Some("o-2"), None).started();
        assert_eq!(new.check_new(&other).unwrap_err().kind(), ErrorKind::InvalidInput);
        let running = new.with_status(ProcessStatus::Running);
        assert_eq!(running.check_new(&new.started()).unwrap_err().kind(), ErrorKind::InvalidTransition);
        for (process_type, key) in [("", None), ("a\0b", None), ("order", Some(""))] {
            let wrong = ProcessInstance::create(process_type, key, None);
            assert_eq!(wrong.check_new(&wrong.started()).unwrap_err().kind(), ErrorKind::InvalidInput);
        }
    }
}
