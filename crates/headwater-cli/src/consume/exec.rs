//! `consume --exec`: a command handles each message, and its exit code decides what becomes of the message.
//!
//! Why no message is lost. A message is acked only after its command has ended with 0, and its lease is extended while the
//! command runs. If the command is killed, it has no exit code: a failed attempt. If this process is killed, the lease
//! expires and the message is handed out again, at worst while the orphaned command still works on it. If the lease is
//! lost, because this process was stopped or disconnected for too long, the command is killed: another process may have the message.

mod child;

use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::sync::{Arc, Mutex, MutexGuard};

use anyhow::{Error, Result, anyhow, bail};
use headwater::settle::Verdict;
use headwater::{Batch, ErrorKind, Message};
use tokio::task::JoinSet;

use self::child::Ended;
use super::batches::Batches;
use crate::output::note;
use crate::stop::Stop;

/// The exit code that buries a message: EX_DATAERR of sysexits.h.
const BURY: i32 = 65;
/// The exit codes of a shell that cannot run its command.
const NOT_RUN: [i32; 2] = [126, 127];

/// What the notices of signals announce.
pub(super) const STOPPING: [&str; 2] = [
    "stopping after the commands that run; again to kill them",
    "killing the commands; again to stop at once",
];

/// What the tasks of one `consume --exec` share.
struct Exec {
    command: String,
    topic: String,
    group: String,
    stop: Stop,
    tally: Mutex<Tally>,
}

/// What became of the messages.
#[derive(Debug, Default)]
struct Tally {
    acked: u64,
    failed: u64,
    buried: u64,
    /// Why it ends early: the first reason.
    error: Option<Error>,
}

/// Handles messages until the end, at most `concurrency` at once; returns how many commands ran.
pub(super) async fn drain(batches: &mut Batches<'_>, command: &str, concurrency: usize) -> Result<u64> {
    let exec = Arc::new(Exec {
        command: command.to_owned(),
        topic: batches.args.topic.clone(),
        group: batches.args.group.clone(),
        stop: batches.stop.clone(),
        tally: Mutex::default(),
    });
    let mut left = batches.args.max.unwrap_or(u64::MAX);
    let mut running: JoinSet<u64> = JoinSet::new();
    loop {
        // Messages that were reserved for a task and released by it count again.
        while running.len() >= concurrency || (left == 0 && !running.is_empty()) {
            left += running.join_next().await.expect("not empty")?;
        }
        if left == 0 {
            break;
        }
        let batch = match batches.next().await {
            Ok(Some(batch)) => batch,
            Ok(None) => break,
            Err(error) => {
                exec.fail(error);
                break;
            }
        };
        let reserved = left.min(batch.messages().len() as u64);
        left -= reserved;
        running.spawn(handle(Arc::clone(&exec), batch, reserved));
    }
    while let Some(ended) = running.join_next().await {
        ended?;
    }
    exec.finish()
}

/// Runs the command for the first messages of a batch, one after the other, and settles them; the rest is released.
/// Returns how many of them were not started.
async fn handle(exec: Arc<Exec>, batch: Batch, reserved: u64) -> u64 {
    let mut unused = reserved;
    let handled = batch.handle(|message, attempt| {
        let start = unused > 0 && !exec.stop.is_asked();
        unused -= u64::from(start);
        let exec = Arc::clone(&exec);
        async move { if start { exec.verdict_on(&message, attempt).await } else { Verdict::Release } }
    });
    match handled.await {
        Ok(()) => {}
        Err(error) if error.kind() == ErrorKind::LeaseLost => {
            note(format_args!("{error}; its command was killed, and the message is handed out again"));
        }
        Err(error) => exec.fail(error.into()),
    }
    unused
}

impl Exec {
    async fn verdict_on(&self, message: &Message, attempt: u32) -> Verdict {
        let mut stop = self.stop.clone();
        let command = child::command(&self.command, &self.topic, &self.group, message, attempt);
        let verdict = match child::run(command, &message.payload, stop.asked_times(2)).await {
            Ok(Ended::Exited(status)) => verdict_of(status),
            Ok(Ended::Killed) => Err(anyhow!("commands were killed; their messages are released")),
            Err(error) if error.kind() == std::io::ErrorKind::ArgumentListTooLong => {
                Ok(Verdict::Failed("the headers are too large for the environment of a command".into()))
            }
            Err(error) => Err(anyhow!("cannot start sh: {error}; the message is released")),
        };
        let mut tally = self.tally();
        match &verdict {
            Ok(Verdict::Done) => tally.acked += 1,
            Ok(Verdict::Bury(_)) => tally.buried += 1,
            Ok(_) => tally.failed += 1,
            Err(_) => {}
        }
        drop(tally);
        verdict.unwrap_or_else(|error| {
            self.fail(error);
            Verdict::Release
        })
    }

    /// Ends the whole run. Nothing more is claimed, and commands that run are waited for.
    fn fail(&self, error: Error) {
        self.tally().error.get_or_insert(error);
        self.stop.ask();
    }

    fn finish(&self) -> Result<u64> {
        let Tally { acked, failed, buried, error } = std::mem::take(&mut *self.tally());
        note(format_args!("{acked} acked, {failed} failed, {buried} buried"));
        error.map_or(Ok(acked + failed + buried), Err)
    }

    fn tally(&self) -> MutexGuard<'_, Tally> {
        self.tally.lock().expect("no panic while held")
    }
}

/// The verdict of an exit code. An error if the shell could not run the command: then every message would fail.
fn verdict_of(status: ExitStatus) -> Result<Verdict> {
    match status.code() {
        Some(0) => Ok(Verdict::Done),
        Some(BURY) => Ok(Verdict::Bury(format!("command exited with {BURY}"))),
        Some(code) if NOT_RUN.contains(&code) => {
            bail!("the shell cannot run the command: exit code {code}; the message is released")
        }
        Some(code) => Ok(Verdict::Failed(format!("command exited with {code}"))),
        None => {
            let signal = status.signal().unwrap_or_default();
            Ok(Verdict::Failed(format!("command was killed by signal {signal}")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_exit_code_decides() {
        let exited = |code: i32| verdict_of(ExitStatus::from_raw(code << 8));
        assert_eq!(exited(0).unwrap(), Verdict::Done);
        assert!(matches!(exited(65).unwrap(), Verdict::Bury(_)));
        for code in [1, 2, 64, 66, 75, 125, 128, 255] {
            assert_eq!(exited(code).unwrap(), Verdict::Failed(format!("command exited with {code}")));
        }
        assert!(exited(126).is_err() && exited(127).is_err());
        let killed = verdict_of(ExitStatus::from_raw(9)).unwrap();
        assert_eq!(killed, Verdict::Failed("command was killed by signal 9".into()));
    }
}
