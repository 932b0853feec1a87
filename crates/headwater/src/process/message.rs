//! Messages of the manager: commands to steps, their replies, timers, and what operators ask for.
//!
//! | message | topic | key | says |
//! |---|---|---|---|
//! | command | of the step | business key, or process id | the payload is the process's data; headers name process and step |
//! | reply | `process.<type>`, from the command's header `reply-to` | process id | `headwater-process-outcome`: `completed` without it, `failed`, `retry` |
//! | start, timer, control | `process.<type>` | process id | |
//!
//! A handler in any language replies by publishing to the topic in `reply-to` with the command's correlation id.

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::data::ProcessData;
use super::instance::ProcessInstance;
use super::turn::{Input, Reply, TimerKind};
use crate::error::{Error, Result};
use crate::message::{Message, NewMessage};
use crate::publish::replies::REPLY_TO;

/// Types of the messages in the topic of a process type.
const START: &str = "headwater.process.start";
const REPLY: &str = "headwater.process.reply";
/// The statement that removes timers names it, too: `process_cancel_timer`, `process_cancel_timers` and `sqlite/sql/process.sql`.
const TIMER: &str = "headwater.process.timer";
/// `process_signal` publishes it, too.
const CONTROL: &str = "headwater.process.control";

/// Headers of commands and replies.
const PROCESS_ID: &str = "headwater-process-id";
const PROCESS_TYPE: &str = "headwater-process-type";
const STEP: &str = "headwater-process-step";
const BUSINESS_KEY: &str = "headwater-business-key";
/// The command that a compensation undoes.
const UNDOES: &str = "headwater-process-undoes";
const OUTCOME: &str = "headwater-process-outcome";

/// The error of a reply is kept in a header: at most this much of it.
const ERROR: &str = "headwater-process-error";
const ERROR_BYTES_MAX: usize = 8 * 1024;

#[derive(Debug, Serialize, Deserialize)]
struct Timer {
    command_id: String,
    kind: String,
    since: u64,
}

/// What an operator asks of the manager.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Control {
    Continue,
    Retry,
}

#[derive(Debug, Serialize, Deserialize)]
struct Asked {
    act: Control,
}

/// The message that begins a process.
pub(crate) fn start(id: Uuid) -> NewMessage {
    NewMessage::new("{}").content_type("application/json").key(id).message_type(START)
}

/// A timer.
pub(crate) fn timer(process: Uuid, command_id: &str, kind: TimerKind, since: u64) -> Result<NewMessage> {
    let timer = Timer { command_id: command_id.to_owned(), kind: kind.as_str().to_owned(), since };
    Ok(NewMessage::json(&timer)?.key(process).message_type(TIMER))
}

/// What an operator asks for.
pub(crate) fn control(process: Uuid, act: Control) -> Result<NewMessage> {
    Ok(NewMessage::json(&Asked { act })?.key(process).message_type(CONTROL))
}

/// What a command is sent for.
pub(crate) struct Sent<'s> {
    pub(crate) step: &'s str,
    pub(crate) command: &'s str,
    pub(crate) command_id: &'s str,
    pub(crate) undoes: Option<&'s str>,
}

/// A command of a process; replies go to `reply_to`.
pub(crate) fn command(process: &ProcessInstance, reply_to: &str, sent: &Sent<'_>) -> Result<NewMessage> {
    let id = process.id();
    let payload = process.data().map_or("{}", ProcessData::as_str).to_owned();
    let key = process.business_key().map_or_else(|| id.to_string(), str::to_owned);
    let mut message = NewMessage::new(payload)
        .content_type("application/json")
        .message_id(parsed(sent.command_id)?)
        .key(key)
        .message_type(sent.command)
        .correlation_id(format!("{id}/{}", sent.command_id))
        .header(REPLY_TO, reply_to)
        .header(PROCESS_ID, id.to_string())
        .header(PROCESS_TYPE, process.process_type())
        .header(STEP, sent.step);
    if let Some(key) = process.business_key() {
        message = message.header(BUSINESS_KEY, key);
    }
    if let Some(undoes) = sent.undoes {
        message = message.header(UNDOES, undoes);
    }
    Ok(message)
}

fn parsed(id: &str) -> Result<Uuid> {
    id.parse().map_err(|error| Error::invalid("command_id", format!("{id} is no UUID: {error}")))
}

/// A command as its handler gets it.
///
/// ```
/// use headwater::process::{Command, Commands, StepError};
/// use headwater::transaction::Transaction;
///
/// let commands = Commands::new().on("Charge", |tx: Transaction, command: Command| async move {
///     let cents: i64 = command.data().get("cents")?.ok_or_else(|| StepError::failed("no amount"))?;
///     tx.execute("INSERT INTO charge (id, cents) VALUES ($1, $2)", (command.id().to_string(), cents)).await?;
///     Ok(())
/// });
/// # let _ = commands;
/// ```
#[derive(Clone, Debug)]
pub struct Command {
    id: Uuid,
    name: String,
    process_id: Uuid,
    process_type: String,
    step: String,
    business_key: Option<String>,
    undoes: Option<Uuid>,
    data: ProcessData,
}

impl Command {
    /// Its id: the same if it is sent again, so it can be passed on as an idempotency key.
    pub fn id(&self) -> Uuid {
        self.id
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The process that sent it.
    pub fn process_id(&self) -> Uuid {
        self.process_id
    }

    /// The type of the process.
    pub fn process_type(&self) -> &str {
        &self.process_type
    }

    /// The step it is for.
    pub fn step(&self) -> &str {
        &self.step
    }

    /// What the process is about, if it has a key.
    pub fn business_key(&self) -> Option<&str> {
        self.business_key.as_deref()
    }

    /// The command that this one undoes, if it is a compensation.
    pub fn undoes(&self) -> Option<Uuid> {
        self.undoes
    }

    /// The data of the process when it was sent.
    pub fn data(&self) -> &ProcessData {
        &self.data
    }

    /// Reads a message; the error says why it is not a command.
    pub(crate) fn read(message: &Message) -> Result<Self, String> {
        let header = |name: &str| message.headers.get(name);
        let needed = |name: &str| header(name).ok_or_else(|| format!("it has no header {name}"));
        let uuid =
            |text: &String| text.parse::<Uuid>().map_err(|error| format!("{text} is no UUID: {error}"));
        let text = String::from_utf8(message.payload.to_vec()).map_err(|error| error.to_string())?;
        Ok(Command {
            id: message.message_id,
            name: message.message_type.clone().ok_or("it has no type")?,
            process_id: uuid(needed(PROCESS_ID)?)?,
            process_type: needed(PROCESS_TYPE)?.clone(),
            step: needed(STEP)?.clone(),
            business_key: header(BUSINESS_KEY).cloned(),
            undoes: header(UNDOES).map(uuid).transpose()?,
            data: ProcessData::from_json(text).map_err(|error| error.to_string())?,
        })
    }
}

/// The id of the command that a message undoes, if it is a compensation.
pub(crate) fn undone_by(message: &Message) -> Option<Uuid> {
    message.headers.get(UNDOES)?.parse().ok()
}

/// The answer to a command, and the topic that awaits it.
pub(crate) fn reply(to: &Message, process: Uuid, reply: &Reply) -> Result<(String, NewMessage)> {
    let (Some(topic), Some(correlation_id)) = (to.headers.get(REPLY_TO), &to.correlation_id) else {
        let rule = format!("command {} has no header {REPLY_TO} or no correlation id", to.message_id);
        return Err(Error::invalid("reply", rule));
    };
    let message = match reply {
        Reply::Completed(result) => {
            let result = result.as_ref().map_or("null", ProcessData::as_str);
            NewMessage::new(result.to_owned()).content_type("application/json")
        }
        Reply::Failed { error, retryable } => {
            let kept = error.replace('\0', "\u{FFFD}");
            let kept = &kept[..kept.floor_char_boundary(ERROR_BYTES_MAX)];
            let outcome = if *retryable { "retry" } else { "failed" };
            let message = NewMessage::new("null").content_type("application/json");
            message.header(OUTCOME, outcome).header(ERROR, kept)
        }
    };
    let message = message.key(process).message_type(REPLY).correlation_id(correlation_id);
    Ok((topic.clone(), message))
}

/// What a message means for which process; the error says why it means nothing.
pub(crate) fn input_of(message: &Message) -> Result<(Uuid, Input), String> {
    let by_key = || {
        let key = message.key.as_deref().ok_or("it has no key")?;
        key.parse::<Uuid>().map_err(|error| format!("its key {key} is no process: {error}"))
    };
    let wrong = |error: serde_json::Error| format!("its payload cannot be read: {error}");
    match message.message_type.as_deref() {
        Some(START) => Ok((by_key()?, Input::Start)),
        Some(TIMER) => {
            let timer: Timer = serde_json::from_slice(&message.payload).map_err(wrong)?;
            let kind = match timer.kind.as_str() {
                "timeout" => TimerKind::Timeout,
                "retry" => TimerKind::Retry,
                other => return Err(format!("{other} is no kind of timer")),
            };
            Ok((by_key()?, Input::Timer { command_id: timer.command_id, kind, since: timer.since }))
        }
        Some(CONTROL) => {
            let asked: Asked = serde_json::from_slice(&message.payload).map_err(wrong)?;
            let input = match asked.act {
                Control::Continue => Input::Continue,
                Control::Retry => Input::Retry,
            };
            Ok((by_key()?, input))
        }
        // Also of a handler that knows nothing of processes and replies by `context.reply`.
        _ => reply_of(message),
    }
}

fn reply_of(message: &Message) -> Result<(Uuid, Input), String> {
    let id = message.correlation_id.as_deref().ok_or("it has no correlation id")?;
    let wrong = || format!("its correlation id {id} is not that of a command");
    let (process, command_id) = id.split_once('/').ok_or_else(wrong)?;
    let process: Uuid = process.parse().map_err(|_| wrong())?;
    let reply = match message.headers.get(OUTCOME).map_or("completed", String::as_str) {
        "completed" => Reply::Completed(result_of(message)?),
        outcome @ ("failed" | "retry") => {
            let payload = || String::from_utf8_lossy(&message.payload).into_owned();
            let error = message.headers.get(ERROR).cloned().unwrap_or_else(payload);
            Reply::Failed { error, retryable: outcome == "retry" }
        }
        other => return Err(format!("{other} is no outcome; use completed, failed or retry")),
    };
    Ok((process, Input::Reply { command_id: command_id.to_owned(), reply }))
}

/// The data that a reply brings: a JSON object; nothing and null bring none.
fn result_of(message: &Message) -> Result<Option<ProcessData>, String> {
    let text = std::str::from_utf8(&message.payload).map_err(|error| error.to_string())?;
    match text.trim() {
        "" | "null" => Ok(None),
        _ => ProcessData::from_json(text).map(Some).map_err(|error| format!("its result is wrong: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As a consumer gets it.
    fn delivered(message: NewMessage) -> Message {
        Message {
            offset: crate::Offset(1),
            message_id: message.message_id.unwrap_or_else(Uuid::now_v7),
            key: message.key,
            message_type: message.message_type,
            payload: message.payload,
            content_type: message.content_type,
            headers: message.headers,
            correlation_id: message.correlation_id,
            created_at: jiff::Timestamp::UNIX_EPOCH,
        }
    }

    #[test]
    fn what_the_manager_sends_itself_is_read_back() {
        let id = Uuid::now_v7();
        let command_id = Uuid::now_v7().to_string();
        let timer_of = |kind| timer(id, &command_id, kind, 7).unwrap();
        let input = |kind| Input::Timer { command_id: command_id.clone(), kind, since: 7 };
        for (message, expected) in [
            (start(id), Input::Start),
            (timer_of(TimerKind::Timeout), input(TimerKind::Timeout)),
            (timer_of(TimerKind::Retry), input(TimerKind::Retry)),
            (control(id, Control::Continue).unwrap(), Input::Continue),
            (control(id, Control::Retry).unwrap(), Input::Retry),
        ] {
            message.validate().unwrap();
            assert_eq!(input_of(&delivered(message)), Ok((id, expected)));
        }
        for wrong in [NewMessage::new("x"), start(id).key("k"), NewMessage::new("1").correlation_id("a/b")] {
            input_of(&delivered(wrong)).unwrap_err();
        }
    }

    #[test]
    fn a_command_and_its_reply_find_each_other() {
        let data = ProcessData::from_json(r#"{"cents": 500}"#).unwrap();
        let process = ProcessInstance::create("order", Some("o-17"), Some(data.clone()));
        let (command_id, undone) = (Uuid::now_v7(), Uuid::now_v7());
        let sent = Sent {
            step: "charge",
            command: "Refund",
            command_id: &command_id.to_string(),
            undoes: Some(&undone.to_string()),
        };
        let message = command(&process, "process.order", &sent).unwrap();
        message.validate().unwrap();
        let message = delivered(message);
        let read = Command::read(&message).unwrap();
        assert_eq!((read.id(), read.name(), read.step()), (command_id, "Refund", "charge"));
        assert_eq!((read.process_id(), read.process_type()), (process.id(), "order"));
        assert_eq!((read.business_key(), read.undoes(), read.data()), (Some("o-17"), Some(undone), &data));
        let replies = [
            Reply::Completed(None),
            Reply::Completed(Some(data)),
            Reply::Failed { error: "card \"declined\" ü".into(), retryable: false },
            Reply::Failed { error: "x".repeat(ERROR_BYTES_MAX), retryable: true },
        ];
        for sent in replies {
            let (topic, answer) = reply(&message, process.id(), &sent).unwrap();
            answer.validate().unwrap();
            assert_eq!(
                (topic.as_str(), answer.key.clone()),
                ("process.order", Some(process.id().to_string()))
            );
            let expected = Input::Reply { command_id: command_id.to_string(), reply: sent };
            assert_eq!(input_of(&delivered(answer)), Ok((process.id(), expected)));
        }
    }
}
