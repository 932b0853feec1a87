//! The log of a process, and how it makes the process again.
//!
//! Why a replay equals what is stored. One statement stores the new state and one the entries, in one transaction, and
//! both are made from the same difference: [`ProcessInstance::change`] is what leads from the stored state to the new one,
//! and the stored state is what the version says it is, because an update of any other version is refused. So the
//! differences of entries 1 to n, applied in order to nothing, are the state under version n. Type and business key never
//! change and are in the first event; the times of the first and the last entry are those of the row.

use jiff::Timestamp;
use uuid::Uuid;

use super::event::ProcessEvent;
use super::instance::{ProcessChange, ProcessInstance, State, StoredProcess};
use super::status::ProcessStatus;
use crate::error::{Error, ErrorKind, Result};

/// An entry in the log of a process: an event, and what changed with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcessLogEntry {
    /// The process.
    pub process_id: Uuid,
    /// Its number in the log of the process, from 1. It is the version that the process had after it.
    pub sequence: u64,
    /// When, by the database's clock.
    pub at: Timestamp,
    /// What happened.
    pub event: ProcessEvent,
    /// What changed.
    pub change: ProcessChange,
}

impl ProcessInstance {
    /// The process that these entries lead to, in the order of their sequence from 1. A log with a hole or an illegal
    /// change is an error: it was damaged.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> headwater::Result<()> {
    /// # let headwater = headwater::Headwater::in_memory().await?;
    /// use headwater::process::ProcessInstance;
    ///
    /// let order = ProcessInstance::create("order", Some("o-17"), None);
    /// let order = headwater.processes().insert(&order, &order.started()).await?;
    /// let mut entries = headwater.processes().log(order.id(), None).await?;
    /// entries.reverse(); // the log is newest first
    /// assert_eq!(ProcessInstance::replay(&entries)?, order);
    /// # headwater.close().await }
    /// ```
    pub fn replay(entries: &[ProcessLogEntry]) -> Result<Self> {
        let Some(first) = entries.first() else {
            return Err(damaged("a process", "its log is empty"));
        };
        let name = format!("process {}", first.process_id);
        let ProcessEvent::ProcessStarted { process_type, business_key, .. } = &first.event else {
            return Err(damaged(&name, "its log does not begin with ProcessStarted"));
        };
        let nothing =
            State { status: ProcessStatus::New, paused_in: None, current_step: None, data: None, retries: 0 };
        let mut state = nothing.changed(&first.change);
        for (entry, sequence) in entries.iter().zip(1..) {
            if entry.sequence != sequence || entry.process_id != first.process_id {
                return Err(damaged(&name, &format!("its log has no entry {sequence}")));
            }
            if sequence > 1 {
                let status = entry.change.status.unwrap_or(state.status);
                if !state.status.may_become(status, state.paused_in) {
                    let what = format!("entry {sequence} leads from {} to {status}", state.status);
                    return Err(damaged(&name, &what));
                }
                state = state.changed(&entry.change);
            }
        }
        let last = entries.last().unwrap_or(first);
        Ok(ProcessInstance::from_stored(StoredProcess {
            id: first.process_id,
            process_type: process_type.clone(),
            business_key: business_key.clone(),
            state,
            created_at: first.at,
            updated_at: last.at,
            version: last.sequence,
        }))
    }
}

fn damaged(process: &str, what: &str) -> Error {
    Error::new(ErrorKind::Database, format!("{process} cannot be replayed: {what}; run `headwater doctor`"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::process::data::ProcessData;

    /// An update: what it asks for.
    #[derive(Clone, Debug)]
    struct Asked {
        status: ProcessStatus,
        step: Option<String>,
        data: Option<ProcessData>,
        retries: u32,
    }

    fn asked() -> impl Strategy<Value = Asked> {
        let step = proptest::option::of("[a-z]{1,3}");
        let data = proptest::option::of((any::<String>(), any::<i64>()).prop_map(|(name, n)| {
            ProcessData::new(&std::collections::BTreeMap::from([(name, n)])).expect("an object")
        }));
        (0..7_usize, step, data, 0..4_u32).prop_map(|(at, step, data, retries)| Asked {
            status: ProcessStatus::ALL[at],
            step,
            data,
            retries,
        })
    }

    fn event() -> ProcessEvent {
        ProcessEvent::StepStarted { step: "s".into(), command_id: "c".into() }
    }

    proptest! {
        /// The repository without a database: updates that are allowed are logged, and the log leads to the last one.
        #[test]
        fn a_replay_equals_the_instance(updates in proptest::collection::vec(asked(), 0..20)) {
            let at = Timestamp::UNIX_EPOCH;
            let new = ProcessInstance::create("order", Some("o-1"), None);
            let entry = |instance: &ProcessInstance, sequence, event, change| {
                ProcessLogEntry { process_id: instance.id(), sequence, at, event, change }
            };
            let mut stored = new.stored_as(1, at, at);
            let mut log = vec![entry(&stored, 1, new.started(), ProcessChange::default())];
            for Asked { status, step, data, retries } in updates {
                let next = stored.update(status, step.as_deref(), data, retries);
                if next.check_update(&event()).is_ok() {
                    let version = stored.version() + 1;
                    log.push(entry(&next, version, event(), next.change()));
                    stored = next.stored_as(version, at, at);
                }
                prop_assert_eq!(&ProcessInstance::replay(&log).unwrap(), &stored);
            }
        }
    }

    #[test]
    fn a_damaged_log_is_refused() {
        let new = ProcessInstance::create("order", None, None);
        let entry = |sequence, event, status| ProcessLogEntry {
            process_id: new.id(),
            sequence,
            at: Timestamp::UNIX_EPOCH,
            event,
            change: ProcessChange { status, ..ProcessChange::default() },
        };
        let first = entry(1, new.started(), None);
        for (log, says) in [
            (vec![], "empty"),
            (vec![entry(1, event(), None)], "does not begin with ProcessStarted"),
            (vec![first.clone(), entry(3, event(), None)], "no entry 2"),
            (
                vec![first.clone(), entry(2, event(), Some(ProcessStatus::Succeeded))],
                "entry 2 leads from NEW to SUCCEEDED",
            ),
        ] {
            let error = ProcessInstance::replay(&log).unwrap_err().to_string();
            assert!(error.contains(says), "{error}");
        }
        ProcessInstance::replay(&[first]).unwrap();
    }
}
