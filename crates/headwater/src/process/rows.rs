//! The repository inside a transaction: each operation once, over statements that each engine has in its own SQL, with the
//! same parameters and columns.

use std::collections::{BTreeSet, HashMap};

use jiff::Timestamp;
use serde::Serialize;
use uuid::Uuid;

use super::data::ProcessData;
use super::event::ProcessEvent;
use super::instance::{ProcessChange, ProcessInstance, State, StoredProcess};
use super::log::ProcessLogEntry;
use super::status::ProcessStatus;
use super::turn::Batch;
use crate::error::{Error, ErrorKind, Result};
use crate::store::repository::Verb;
use crate::transaction::{Row, Transaction, Value};

/// A log entry as a statement takes it, all texts: the databases read no number and no nesting in them.
#[derive(Serialize)]
struct NewEntry<'e> {
    event_type: &'e str,
    event: &'e str,
    status: Option<&'e str>,
    /// Empty for no step.
    current_step: Option<&'e str>,
    /// The JSON null for no data.
    data: Option<&'e str>,
    retries: Option<u32>,
}

/// A change of a process as a statement for several takes it.
#[derive(Serialize)]
struct NewChange<'e> {
    process_id: Uuid,
    version: u64,
    status: &'e str,
    current_step: Option<&'e str>,
    has_data: bool,
    data: Option<&'e str>,
    retries: u32,
    entries: Vec<NewEntry<'e>>,
}

/// What a column says when a step or data were taken away.
const NO_STEP: &str = "";
const NO_DATA: &str = "null";

/// How large the data of processes are together that are read at once: they are in memory together, with their logs.
const TOGETHER_BYTES_MAX: i64 = 8 * 1024 * 1024;

/// Inserts a process with its first event; `Conflict` if the id is known.
pub(crate) async fn insert(
    tx: &Transaction,
    now: Value,
    instance: &ProcessInstance,
    event: &ProcessEvent,
) -> Result<ProcessInstance> {
    match insert_if_absent(tx, now, instance, event).await? {
        Some(inserted) => Ok(inserted),
        None => {
            let id = instance.id();
            let text =
                format!("process {id} exists already; nothing was written: update it, or choose another id");
            Err(Error::new(ErrorKind::Conflict, text))
        }
    }
}

/// The same; `None` if the id is known. A second transaction that inserts the id waits for the end of the first.
pub(crate) async fn insert_if_absent(
    tx: &Transaction,
    now: Value,
    instance: &ProcessInstance,
    event: &ProcessEvent,
) -> Result<Option<ProcessInstance>> {
    let state = instance.state();
    let params = vec![
        tx.id_value(instance.id()),
        instance.process_type().into(),
        instance.business_key().into(),
        state.current_step.as_ref().into(),
        state.data.as_ref().map(ProcessData::as_str).into(),
        state.retries.into(),
        event.fields().as_str().into(),
        now,
    ];
    let rows = tx.rows_of(Verb::ProcessInsert, params.clone()).await?;
    let Some(row) = rows.first() else { return Ok(None) };
    tx.rows_of(Verb::ProcessInsertEvent, params).await?;
    let created_at = time(row, "created_at_us")?;
    Ok(Some(instance.stored_as(1, created_at, created_at)))
}

/// Stores a changed process with its events and what each changed. At most one of them may change the status: the
/// databases check the transition from the stored status to the new one.
pub(crate) async fn change(
    tx: &Transaction,
    now: Value,
    instance: &ProcessInstance,
    entries: &[(ProcessChange, ProcessEvent)],
) -> Result<ProcessInstance> {
    let (state, changed) = (instance.state(), instance.change());
    let version = i64::try_from(instance.version()).unwrap_or(i64::MAX);
    let entries = as_json(entries);
    let params = vec![
        tx.id_value(instance.id()),
        version.into(),
        state.status.as_str().into(),
        state.current_step.as_ref().into(),
        changed.data.is_some().into(),
        changed.data.flatten().as_ref().map(ProcessData::as_str).into(),
        state.retries.into(),
        entries.as_str().into(),
        now.clone(),
    ];
    let rows = tx.rows_of(Verb::ProcessChange, params).await?;
    let Some(row) = rows.first() else { return Err(refused(tx, instance).await?) };
    let appended = vec![tx.id_value(instance.id()), version.into(), entries.into(), now];
    tx.rows_of(Verb::ProcessChangeEvents, appended).await?;
    let version: u64 = row.get("version")?;
    Ok(instance.stored_as(version, time(row, "created_at_us")?, time(row, "updated_at_us")?))
}

/// Stores several changed processes, no two of them the same, each as [`change`] does. They are locked: if one is refused
/// nevertheless, nothing of the transaction is to be kept.
pub(crate) async fn change_all(tx: &Transaction, now: Value, batches: &[Batch]) -> Result<()> {
    if tx.text_of(Verb::ProcessChangeAll).is_none() {
        for Batch { instance, entries } in batches {
            change(tx, now.clone(), instance, entries).await?;
        }
        return Ok(());
    }
    let fields: Vec<Vec<ProcessData>> = batches.iter().map(|batch| fields_of(&batch.entries)).collect();
    let data: Vec<_> = batches.iter().map(|batch| batch.instance.change().data).collect();
    let changes = batches.iter().zip(&fields).zip(&data).map(|((batch, fields), data)| NewChange {
        process_id: batch.instance.id(),
        version: batch.instance.version(),
        status: batch.instance.status().as_str(),
        current_step: batch.instance.current_step(),
        has_data: data.is_some(),
        data: data.as_ref().and_then(Option::as_ref).map(ProcessData::as_str),
        retries: batch.instance.retries(),
        entries: new_entries(&batch.entries, fields),
    });
    let params = vec![json_of(&changes.collect::<Vec<_>>()).into(), now];
    let rows = tx.rows_of(Verb::ProcessChangeAll, params).await?;
    let changed: u64 = rows.first().map_or(Ok(0), |row| row.get("changed"))?;
    if changed == batches.len() as u64 {
        return Ok(());
    }
    let text = format!("{changed} of {} processes were changed", batches.len());
    Err(Error::new(ErrorKind::Conflict, text))
}

/// Why a process was not changed.
async fn refused(tx: &Transaction, instance: &ProcessInstance) -> Result<Error> {
    let (id, version) = (instance.id(), instance.version());
    let rows = tx.rows_of(Verb::ProcessFindById, vec![tx.id_value(id)]).await?;
    let Some(stored) = rows.first().map(process_of).transpose()? else { return Ok(no_such_process(id)) };
    if stored.version() == version {
        return Ok(instance.illegal(stored.status()));
    }
    let text = format!(
        "process {id} was changed meanwhile: version {version} is stale, {} is stored; nothing was written: read it again",
        stored.version()
    );
    Ok(Error::new(ErrorKind::Conflict, text))
}

pub(crate) fn no_such_process(id: Uuid) -> Error {
    let text = format!("no such process: {id}; see `headwater process list`");
    Error::new(ErrorKind::NoSuchProcess, text)
}

fn as_json(entries: &[(ProcessChange, ProcessEvent)]) -> String {
    json_of(&new_entries(entries, &fields_of(entries)))
}

fn fields_of(entries: &[(ProcessChange, ProcessEvent)]) -> Vec<ProcessData> {
    entries.iter().map(|(_, event)| event.fields()).collect()
}

fn new_entries<'e>(
    entries: &'e [(ProcessChange, ProcessEvent)],
    fields: &'e [ProcessData],
) -> Vec<NewEntry<'e>> {
    let entries = entries.iter().zip(fields).map(|((change, event), fields)| NewEntry {
        event_type: event.tag(),
        event: fields.as_str(),
        status: change.status.map(ProcessStatus::as_str),
        current_step: change.current_step.as_ref().map(|step| step.as_deref().unwrap_or(NO_STEP)),
        data: change.data.as_ref().map(|data| data.as_ref().map_or(NO_DATA, ProcessData::as_str)),
        retries: change.retries,
    });
    entries.collect()
}

fn json_of(value: &impl Serialize) -> String {
    serde_json::to_string(value).expect("strings and numbers are always JSON")
}

/// A process and the events of its log, oldest first, each with its number.
pub(crate) type Loaded = (ProcessInstance, Vec<(u64, ProcessEvent)>);

/// A process with the events of its log, oldest first. Locked until the transaction ends: no other changes it meanwhile.
pub(crate) async fn load(tx: &Transaction, id: Uuid) -> Result<Option<Loaded>> {
    let rows = tx.rows_of(Verb::ProcessLoad, vec![tx.id_value(id)]).await?;
    rows.first().map(loaded).transpose()
}

/// The same for several processes. None of them is found if their data are larger than a limit: load them one by one then.
pub(crate) async fn load_all(tx: &Transaction, ids: &BTreeSet<Uuid>) -> Result<HashMap<Uuid, Loaded>> {
    let params = vec![json_of(ids).into(), TOGETHER_BYTES_MAX.into()];
    let rows = tx.rows_of(Verb::ProcessLoadAll, params).await?;
    rows.iter().map(|row| loaded(row).map(|found| (found.0.id(), found))).collect()
}

/// Removes timers of a topic that are not due yet.
pub(crate) async fn cancel_timers(tx: &Transaction, topic: &str, ids: &[Uuid]) -> Result<()> {
    if ids.is_empty() {
        return Ok(());
    }
    tx.rows_of(Verb::ProcessCancelTimers, vec![topic.into(), json_of(&ids).into()]).await.map(drop)
}

fn loaded(row: &Row) -> Result<Loaded> {
    let process = process_of(row)?;
    let (text, id): (String, Uuid) = (row.get("events")?, process.id());
    let mut events: Vec<(u64, String, String)> = serde_json::from_str(&text).map_err(|error| {
        Error::with_source(
            ErrorKind::Database,
            format!("the log of process {id} cannot be read: {error}"),
            error,
        )
    })?;
    events.sort_unstable_by_key(|(sequence, ..)| *sequence);
    let events = events.iter().map(|(at, tag, fields)| (*at, ProcessEvent::from_stored(tag, fields)));
    Ok((process, events.collect()))
}

/// An id as a parameter: a UUID on PostgreSQL, 16 bytes on SQLite.
pub(crate) fn id_value(id: Uuid, is_sqlite: bool) -> Value {
    if is_sqlite { Value::Bytes(id.as_bytes().to_vec()) } else { id.into() }
}

fn id_of(row: &Row, column: &str) -> Result<Uuid> {
    match row.get::<Value>(column)? {
        Value::Bytes(bytes) => Uuid::from_slice(&bytes).map_err(|error| unreadable(column, &error)),
        _ => row.get(column),
    }
}

fn time(row: &Row, column: &str) -> Result<Timestamp> {
    Timestamp::from_microsecond(row.get(column)?).map_err(|error| unreadable(column, &error))
}

fn unreadable(column: &str, error: &dyn std::fmt::Display) -> Error {
    let text = format!("a stored value cannot be read: {column}: {error}; run `headwater doctor`");
    Error::new(ErrorKind::Database, text)
}

/// A row of a process.
pub(crate) fn process_of(row: &Row) -> Result<ProcessInstance> {
    let status = |column: &str| -> Result<Option<ProcessStatus>> {
        row.get::<Option<String>>(column)?.map(|text| text.parse()).transpose()
    };
    let missing = || unreadable("status", &"it is NULL");
    let state = State {
        status: status("status")?.ok_or_else(missing)?,
        paused_in: status("paused_in")?,
        current_step: row.get("current_step")?,
        data: row.get::<Option<String>>("data")?.map(ProcessData::stored),
        retries: row.get("retries")?,
    };
    Ok(ProcessInstance::from_stored(StoredProcess {
        id: id_of(row, "process_id")?,
        process_type: row.get("process_type")?,
        business_key: row.get("business_key")?,
        state,
        created_at: time(row, "created_at_us")?,
        updated_at: time(row, "updated_at_us")?,
        version: row.get("version")?,
    }))
}

/// A row of a log.
pub(crate) fn entry_of(row: &Row) -> Result<ProcessLogEntry> {
    let (tag, fields): (String, String) = (row.get("event_type")?, row.get("event")?);
    let text = |column: &str| row.get::<Option<String>>(column);
    let data = text("data")?.map(|data| (data != NO_DATA).then(|| ProcessData::stored(data)));
    Ok(ProcessLogEntry {
        process_id: id_of(row, "process_id")?,
        sequence: row.get("sequence")?,
        at: time(row, "at_us")?,
        event: ProcessEvent::from_stored(&tag, &fields),
        change: ProcessChange {
            status: text("status")?.map(|status| status.parse()).transpose()?,
            current_step: text("current_step")?.map(|step| (step != NO_STEP).then_some(step)),
            data,
            retries: row.get("retries")?,
        },
    })
}
