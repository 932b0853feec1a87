//! The process of one message: the payload on stdin, everything else in the environment.

use std::io;
use std::process::{ExitStatus, Stdio};

use headwater::Message;
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::io::AsyncWriteExt;
use tokio::process::{ChildStdin, Command};

/// The prefix of a header's variable.
const HEADER: &str = "HEADWATER_HEADER_";

/// How the process ended.
pub(super) enum Ended {
    Exited(ExitStatus),
    /// Killed here.
    Killed,
}

/// Runs the command to its end, or until `kill` completes. Dropping this kills it too.
pub(super) async fn run(
    mut command: Command,
    payload: &[u8],
    kill: impl Future<Output = ()>,
) -> io::Result<Ended> {
    let mut child = command.spawn()?;
    let mut group = Group(child.id().and_then(|id| Pid::from_raw(id.cast_signed())));
    let stdin = child.stdin.take();
    let exited = tokio::select! {
        status = child.wait() => Some(status?),
        () = feed(stdin, payload) => unreachable!("it does not end"),
        () = kill => None,
    };
    match exited {
        Some(status) => {
            group.0 = None;
            Ok(Ended::Exited(status))
        }
        None => {
            drop(group);
            child.wait().await?;
            Ok(Ended::Killed)
        }
    }
}

/// Writes the payload. A command may end without reading it: its exit code decides, so this fails never, and never ends.
async fn feed(stdin: Option<ChildStdin>, payload: &[u8]) {
    if let Some(mut stdin) = stdin {
        let _ = stdin.write_all(payload).await;
    }
    std::future::pending::<()>().await;
}

/// The process group of a command, killed on drop: what a shell has started ends with it.
struct Group(Option<Pid>);

impl Drop for Group {
    fn drop(&mut self) {
        if let Some(group) = self.0 {
            let _ = kill_process_group(group, Signal::KILL);
        }
    }
}

/// A shell with the command. It has a process group of its own: Ctrl-C reaches `headwater` alone, which lets it finish.
pub(super) fn command(line: &str, topic: &str, group: &str, message: &Message, attempt: u32) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", line]).stdin(Stdio::piped()).process_group(0).kill_on_drop(true);
    // Variables of another message, where this runs inside such a command.
    for (name, _) in std::env::vars_os().filter(|(name, _)| is_of_header(name)) {
        command.env_remove(name);
    }
    for (name, value) in variables(topic, group, message, attempt) {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    for (name, value) in &message.headers {
        command.env(variable_of(name), value);
    }
    command
}

fn is_of_header(name: &std::ffi::OsStr) -> bool {
    name.as_encoded_bytes().starts_with(HEADER.as_bytes())
}

fn variables(
    topic: &str,
    group: &str,
    message: &Message,
    attempt: u32,
) -> [(&'static str, Option<String>); 11] {
    [
        ("HEADWATER_TOPIC", Some(topic.to_owned())),
        ("HEADWATER_GROUP", Some(group.to_owned())),
        ("HEADWATER_OFFSET", Some(message.offset.to_string())),
        ("HEADWATER_MESSAGE_ID", Some(message.message_id.to_string())),
        ("HEADWATER_ATTEMPT", Some(attempt.to_string())),
        ("HEADWATER_CREATED_AT", Some(message.created_at.to_string())),
        ("HEADWATER_PAYLOAD_BYTES", Some(message.payload.len().to_string())),
        ("HEADWATER_KEY", message.key.clone()),
        ("HEADWATER_TYPE", message.message_type.clone()),
        ("HEADWATER_CONTENT_TYPE", message.content_type.clone()),
        ("HEADWATER_CORRELATION_ID", message.correlation_id.clone()),
    ]
}

/// `trace-id` is HEADWATER_HEADER_TRACE_ID: a shell can name no other characters.
fn variable_of(header: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_uppercase() } else { '_' };
    header.chars().map(plain).fold(HEADER.to_owned(), |mut name, c| {
        name.push(c);
        name
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_has_a_name_that_a_shell_knows() {
        assert_eq!(variable_of("trace-id"), "HEADWATER_HEADER_TRACE_ID");
        assert_eq!(variable_of("größe.2"), "HEADWATER_HEADER_GR__E_2");
    }
}
