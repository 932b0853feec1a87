//! What happens to a process: the events of its log.

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::data::ProcessData;
use crate::error::{Error, Result};
use crate::limits::REASON_BYTES_MAX;
use crate::name::check_name;
use crate::settle::bound_error_text;

/// An event in the log of a process. Each update of a process has one.
///
/// ```
/// use headwater::process::ProcessEvent;
///
/// let event = ProcessEvent::StepStarted { step: "charge".into(), command_id: "c-1".into() };
/// assert_eq!(event.tag(), "StepStarted");
/// assert_eq!(event.step(), Some("charge"));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ProcessEvent {
    /// The process was inserted.
    ProcessStarted {
        /// Its type.
        process_type: String,
        /// Its business key, if it has one.
        business_key: Option<String>,
        /// The data it began with.
        initial_data: Option<ProcessData>,
    },
    /// The command of a step was sent.
    StepStarted {
        /// The step.
        step: String,
        /// The command.
        command_id: String,
    },
    /// A step is done.
    StepCompleted {
        /// The step.
        step: String,
        /// The command.
        command_id: String,
        /// What it returned.
        result_data: Option<ProcessData>,
    },
    /// A step failed.
    StepFailed {
        /// The step.
        step: String,
        /// The command.
        command_id: String,
        /// Why.
        error: String,
        /// Whether another attempt may succeed.
        retryable: bool,
    },
    /// A step did not reply in time: whether its command had an effect is not known.
    StepTimedOut {
        /// The step.
        step: String,
        /// The command.
        command_id: String,
        /// How long was waited for it.
        error: String,
    },
    /// The command that undoes a step was sent.
    CompensationStarted {
        /// The step that is undone.
        step: String,
        /// The command.
        command_id: String,
    },
    /// A step is undone.
    CompensationCompleted {
        /// The step.
        step: String,
        /// The command.
        command_id: String,
    },
    /// A step could not be undone: a person has to decide.
    CompensationFailed {
        /// The step.
        step: String,
        /// The command.
        command_id: String,
        /// Why.
        error: String,
    },
    /// The process reached its end.
    ProcessCompleted {
        /// Why.
        reason: String,
    },
    /// The process failed.
    ProcessFailed {
        /// Why.
        reason: String,
    },
    /// A person paused it.
    ProcessPaused {
        /// Why.
        reason: String,
        /// Who.
        paused_by: String,
    },
    /// A person resumed it.
    ProcessResumed {
        /// Why.
        reason: String,
        /// Who.
        resumed_by: String,
    },
    /// An event of a later version of Headwater, as it is stored. It cannot be written.
    Unknown {
        /// Its tag.
        tag: String,
        /// Its fields.
        fields: ProcessData,
    },
}

/// The fields of every kind of event; those that a kind does not have are absent.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct Fields {
    #[serde(skip_serializing_if = "Option::is_none")]
    process_type: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    business_key: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    initial_data: Option<Box<RawValue>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    step: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    command_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    result_data: Option<Box<RawValue>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    retryable: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    paused_by: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    resumed_by: Option<String>,
}

/// The tag of the first event of every process.
pub(crate) const PROCESS_STARTED: &str = "ProcessStarted";

impl ProcessEvent {
    /// The tag under which it is stored: the name of the variant, or that of an unknown event.
    pub fn tag(&self) -> &str {
        match self {
            ProcessEvent::ProcessStarted { .. } => PROCESS_STARTED,
            ProcessEvent::StepStarted { .. } => "StepStarted",
            ProcessEvent::StepCompleted { .. } => "StepCompleted",
            ProcessEvent::StepFailed { .. } => "StepFailed",
            ProcessEvent::StepTimedOut { .. } => "StepTimedOut",
            ProcessEvent::CompensationStarted { .. } => "CompensationStarted",
            ProcessEvent::CompensationCompleted { .. } => "CompensationCompleted",
            ProcessEvent::CompensationFailed { .. } => "CompensationFailed",
            ProcessEvent::ProcessCompleted { .. } => "ProcessCompleted",
            ProcessEvent::ProcessFailed { .. } => "ProcessFailed",
            ProcessEvent::ProcessPaused { .. } => "ProcessPaused",
            ProcessEvent::ProcessResumed { .. } => "ProcessResumed",
            ProcessEvent::Unknown { tag, .. } => tag,
        }
    }

    /// The step it is about, if it is about one.
    pub fn step(&self) -> Option<&str> {
        self.of_step().map(|(step, _)| step)
    }

    /// The command it is about, if it is about one.
    pub fn command_id(&self) -> Option<&str> {
        self.of_step().map(|(_, command_id)| command_id)
    }

    fn of_step(&self) -> Option<(&str, &str)> {
        match self {
            ProcessEvent::StepStarted { step, command_id }
            | ProcessEvent::StepCompleted { step, command_id, .. }
            | ProcessEvent::StepFailed { step, command_id, .. }
            | ProcessEvent::StepTimedOut { step, command_id, .. }
            | ProcessEvent::CompensationStarted { step, command_id }
            | ProcessEvent::CompensationCompleted { step, command_id }
            | ProcessEvent::CompensationFailed { step, command_id, .. } => Some((step, command_id)),
            _ => None,
        }
    }

    /// The error it reports, or the reason it gives.
    pub fn reason(&self) -> Option<&str> {
        match self {
            ProcessEvent::StepFailed { error, .. }
            | ProcessEvent::StepTimedOut { error, .. }
            | ProcessEvent::CompensationFailed { error, .. } => Some(error),
            ProcessEvent::ProcessCompleted { reason }
            | ProcessEvent::ProcessFailed { reason }
            | ProcessEvent::ProcessPaused { reason, .. }
            | ProcessEvent::ProcessResumed { reason, .. } => Some(reason),
            _ => None,
        }
    }

    /// The fields as a JSON object, as they are stored.
    pub fn fields(&self) -> ProcessData {
        if let ProcessEvent::Unknown { fields, .. } = self {
            return fields.clone();
        }
        let text =
            serde_json::to_string(&self.as_fields()).expect("strings and checked JSON are always JSON");
        ProcessData::stored(text)
    }

    fn as_fields(&self) -> Fields {
        let mut fields = Fields::default();
        if let Some((step, command_id)) = self.of_step() {
            fields.step = Some(step.to_owned());
            fields.command_id = Some(command_id.to_owned());
        }
        match self {
            ProcessEvent::ProcessStarted { process_type, business_key, initial_data } => {
                fields.process_type = Some(process_type.clone());
                fields.business_key.clone_from(business_key);
                fields.initial_data = initial_data.as_ref().map(ProcessData::raw);
            }
            ProcessEvent::StepCompleted { result_data, .. } => {
                fields.result_data = result_data.as_ref().map(ProcessData::raw);
            }
            ProcessEvent::StepFailed { error, retryable, .. } => {
                fields.error = Some(bounded(error));
                fields.retryable = Some(*retryable);
            }
            ProcessEvent::StepTimedOut { error, .. } | ProcessEvent::CompensationFailed { error, .. } => {
                fields.error = Some(bounded(error));
            }
            ProcessEvent::ProcessCompleted { reason } | ProcessEvent::ProcessFailed { reason } => {
                fields.reason = Some(bounded(reason));
            }
            ProcessEvent::ProcessPaused { reason, paused_by } => {
                fields.reason = Some(reason.clone());
                fields.paused_by = Some(paused_by.clone());
            }
            ProcessEvent::ProcessResumed { reason, resumed_by } => {
                fields.reason = Some(reason.clone());
                fields.resumed_by = Some(resumed_by.clone());
            }
            _ => {}
        }
        fields
    }

    /// What a store holds. An unknown tag, and a known one without its fields, is shown as it is.
    pub(crate) fn from_stored(tag: &str, fields: &str) -> Self {
        let known = serde_json::from_str(fields).ok().and_then(|fields| Self::known(tag, fields));
        known.unwrap_or_else(|| ProcessEvent::Unknown {
            tag: tag.to_owned(),
            fields: ProcessData::stored(fields.to_owned()),
        })
    }

    fn known(tag: &str, fields: Fields) -> Option<Self> {
        let data = |raw: Option<Box<RawValue>>| raw.map(|raw| ProcessData::stored(raw.get().to_owned()));
        let Fields { error, reason, .. } = fields;
        let of_step = || Some((fields.step.clone()?, fields.command_id.clone()?));
        Some(match tag {
            PROCESS_STARTED => ProcessEvent::ProcessStarted {
                process_type: fields.process_type?,
                business_key: fields.business_key,
                initial_data: data(fields.initial_data),
            },
            "StepStarted" => of_step().map(|(step, command_id)| Self::StepStarted { step, command_id })?,
            "StepCompleted" => {
                let (step, command_id) = of_step()?;
                ProcessEvent::StepCompleted { step, command_id, result_data: data(fields.result_data) }
            }
            "StepFailed" => {
                let (step, command_id) = of_step()?;
                ProcessEvent::StepFailed { step, command_id, error: error?, retryable: fields.retryable? }
            }
            "StepTimedOut" => {
                let (step, command_id) = of_step()?;
                ProcessEvent::StepTimedOut { step, command_id, error: error? }
            }
            "CompensationStarted" => {
                let (step, command_id) = of_step()?;
                ProcessEvent::CompensationStarted { step, command_id }
            }
            "CompensationCompleted" => {
                let (step, command_id) = of_step()?;
                ProcessEvent::CompensationCompleted { step, command_id }
            }
            "CompensationFailed" => {
                let (step, command_id) = of_step()?;
                ProcessEvent::CompensationFailed { step, command_id, error: error? }
            }
            "ProcessCompleted" => ProcessEvent::ProcessCompleted { reason: reason? },
            "ProcessFailed" => ProcessEvent::ProcessFailed { reason: reason? },
            "ProcessPaused" => ProcessEvent::ProcessPaused { reason: reason?, paused_by: fields.paused_by? },
            "ProcessResumed" => {
                ProcessEvent::ProcessResumed { reason: reason?, resumed_by: fields.resumed_by? }
            }
            _ => return None,
        })
    }

    /// Checks every field that has a rule; texts of errors are cut instead.
    pub(crate) fn check(&self) -> Result<()> {
        if let Some((step, command_id)) = self.of_step() {
            check_name("step", step)?;
            check_name("command_id", command_id)?;
        }
        match self {
            ProcessEvent::ProcessPaused { reason, paused_by: by }
            | ProcessEvent::ProcessResumed { reason, resumed_by: by } => {
                check_name("by", by)?;
                check_reason(reason)
            }
            ProcessEvent::Unknown { tag, .. } => {
                let rule = format!("{tag} is not an event that this version writes; upgrade the program");
                Err(Error::invalid("event", rule))
            }
            _ => Ok(()),
        }
    }
}

/// The text of an error within its limit, with a marker where it was cut.
fn bounded(error: &str) -> String {
    let mut text = error.to_owned();
    bound_error_text(&mut text);
    text
}

/// A reason that a person gives is short; it may be empty.
pub(crate) fn check_reason(reason: &str) -> Result<()> {
    if reason.len() > REASON_BYTES_MAX {
        let rule = format!("{} bytes, at most {REASON_BYTES_MAX} are allowed; shorten it", reason.len());
        return Err(Error::invalid("reason", rule));
    }
    Ok(())
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::limits::ERROR_TEXT_BYTES_MAX;

    /// One event of each of the twelve kinds.
    pub(crate) fn one_of_each() -> [ProcessEvent; 12] {
        let data =
            ProcessData::from_json(r#"{"b": [1.50, {"\u0000": "ü"}], "a": 12345678901234567890}"#).unwrap();
        let (step, command_id) = ("charge".to_owned(), "c-1".to_owned());
        let (error, reason) = ("card \"declined\"".to_owned(), "done".to_owned());
        [
            ProcessEvent::ProcessStarted {
                process_type: "order".into(),
                business_key: Some("o-17".into()),
                initial_data: Some(data.clone()),
            },
            ProcessEvent::StepStarted { step: step.clone(), command_id: command_id.clone() },
            ProcessEvent::StepCompleted {
                step: step.clone(),
                command_id: command_id.clone(),
                result_data: Some(data),
            },
            ProcessEvent::StepFailed {
                step: step.clone(),
                command_id: command_id.clone(),
                error: error.clone(),
                retryable: true,
            },
            ProcessEvent::StepTimedOut {
                step: step.clone(),
                command_id: command_id.clone(),
                error: error.clone(),
            },
            ProcessEvent::CompensationStarted { step: step.clone(), command_id: command_id.clone() },
            ProcessEvent::CompensationCompleted { step: step.clone(), command_id: command_id.clone() },
            ProcessEvent::CompensationFailed { step, command_id, error },
            ProcessEvent::ProcessCompleted { reason: reason.clone() },
            ProcessEvent::ProcessFailed { reason: reason.clone() },
            ProcessEvent::ProcessPaused { reason: reason.clone(), paused_by: "ann".into() },
            ProcessEvent::ProcessResumed { reason, resumed_by: "ann".into() },
        ]
    }

    #[test]
    fn every_event_is_read_as_it_was_written() {
        for event in one_of_each() {
            event.check().unwrap();
            assert_eq!(ProcessEvent::from_stored(event.tag(), event.fields().as_str()), event);
        }
    }

    #[test]
    fn what_is_not_known_is_shown_raw_and_not_written() {
        let fields = r#"{"colour": "blue", "n": 1.0}"#;
        for (tag, fields) in [("StepPainted", fields), ("StepStarted", fields), ("StepStarted", "no JSON")] {
            let event = ProcessEvent::from_stored(tag, fields);
            assert_eq!((event.tag(), event.fields().as_str()), (tag, fields));
            assert!(matches!(event, ProcessEvent::Unknown { .. }));
            assert!(event.check().unwrap_err().to_string().contains("upgrade the program"));
        }
    }

    #[test]
    fn long_errors_are_cut_with_a_marker_and_wrong_names_refused() {
        let error = "e".repeat(ERROR_TEXT_BYTES_MAX + 1);
        let event = ProcessEvent::StepTimedOut { step: "s".into(), command_id: "c".into(), error };
        let stored = ProcessEvent::from_stored(event.tag(), event.fields().as_str());
        let kept = stored.reason().unwrap();
        assert!(kept.len() <= ERROR_TEXT_BYTES_MAX && kept.ends_with("(cut)"), "{}", kept.len());
        for (step, command_id) in [("", "c"), ("s", ""), ("a\nb", "c")] {
            let event = ProcessEvent::StepStarted { step: step.into(), command_id: command_id.into() };
            assert_eq!(event.check().unwrap_err().kind(), crate::ErrorKind::InvalidInput);
        }
        let long = "x".repeat(REASON_BYTES_MAX + 1);
        ProcessEvent::ProcessPaused { reason: long, paused_by: "ann".into() }.check().unwrap_err();
    }
}
