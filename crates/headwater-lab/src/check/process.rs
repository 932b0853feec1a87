//! The processes of a check as their parent sees them: started from this same program, read, signalled, ended.

use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, Command};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::{Job, READY, STORE_VARIABLE};

/// Longer than a process needs to start and to subscribe a hundred groups on a busy machine.
const START_MAX: Duration = Duration::from_secs(60);

/// A process of a check. Killed with its value.
#[derive(Debug)]
pub(crate) struct Process {
    child: Child,
    pid: u32,
    ready: watch::Receiver<bool>,
    listening: JoinHandle<()>,
}

impl Process {
    /// Starts a process for a job; every line it prints, except `ready`, is passed to `on_line`.
    pub(crate) fn start(url: &str, job: &Job, on_line: impl FnMut(&str) + Send + 'static) -> Result<Self> {
        Process::start_with(url, job, &[], on_line)
    }

    /// The same with environment variables.
    pub(crate) fn start_with(
        url: &str,
        job: &Job,
        env: &[(String, String)],
        on_line: impl FnMut(&str) + Send + 'static,
    ) -> Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command
            .args(["runtime-child", "--job", &serde_json::to_string(job)?])
            .env(STORE_VARIABLE, url)
            .envs(env.iter().map(|(name, value)| (name, value)));
        Process::spawn(command, on_line)
    }

    /// Starts the command `headwater` on a store. It never prints `ready`.
    pub(crate) fn command(
        url: &str,
        args: &[&str],
        on_line: impl FnMut(&str) + Send + 'static,
    ) -> Result<Self> {
        let program = std::env::current_exe()?.with_file_name("headwater");
        ensure!(
            program.exists(),
            "{} is missing: build it with the same profile, `cargo build -p headwater-cli`",
            program.display()
        );
        let mut command = Command::new(program);
        command.args(args).env("HEADWATER_STORE", url);
        Process::spawn(command, on_line)
    }

    fn spawn(mut command: Command, mut on_line: impl FnMut(&str) + Send + 'static) -> Result<Self> {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .context("starting a process")?;
        let pid = child.id().context("a process that just started has an id")?;
        let mut lines = BufReader::new(child.stdout.take().context("its output is piped")?).lines();
        let (is_ready, ready) = watch::channel(false);
        let listening = tokio::spawn(async move {
            while let Ok(Some(line)) = lines.next_line().await {
                if line == READY {
                    let _ = is_ready.send(true);
                } else {
                    on_line(&line);
                }
            }
        });
        Ok(Process { child, pid, ready, listening })
    }

    pub(crate) fn pid(&self) -> u32 {
        self.pid
    }

    /// Waits until it is ready.
    pub(crate) async fn ready(&mut self) -> Result<()> {
        let ready = tokio::time::timeout(START_MAX, self.ready.wait_for(|ready| *ready)).await;
        let ready = ready.context("a process was not ready in time")?;
        ready.map(drop).context("a process ended before it was ready")
    }

    /// Whether it is ready.
    pub(crate) fn is_ready(&self) -> bool {
        *self.ready.borrow()
    }

    /// Its exit status, if it has ended.
    pub(crate) fn status(&mut self) -> Result<Option<ExitStatus>> {
        Ok(self.child.try_wait()?)
    }

    /// Fails if it has ended.
    pub(crate) fn ensure_alive(&mut self) -> Result<()> {
        match self.status()? {
            None => Ok(()),
            Some(status) => anyhow::bail!("process {} ended by itself: {status}", self.pid),
        }
    }

    /// Asks it to end as an operator would.
    pub(crate) fn terminate(&self) -> Result<()> {
        self.signal(Signal::TERM)
    }

    pub(crate) fn signal(&self, signal: Signal) -> Result<()> {
        let pid = self.child.id().context("the process has ended")?;
        let pid = Pid::from_raw(i32::try_from(pid)?).context("no process has id 0")?;
        Ok(kill_process(pid, signal)?)
    }

    /// Sends it a line.
    pub(crate) async fn send_line(&mut self, line: &str) -> Result<()> {
        let input = self.child.stdin.as_mut().context("the input of the process is closed")?;
        input.write_all(format!("{line}\n").as_bytes()).await?;
        Ok(input.flush().await?)
    }

    /// Asks it to shut down gracefully: its input ends, as it would if this process died.
    pub(crate) fn close_input(&mut self) {
        drop(self.child.stdin.take());
    }

    /// Kills it and reads its last lines.
    pub(crate) async fn kill(mut self) -> Result<()> {
        self.child.kill().await?;
        self.heard().await
    }

    /// Waits for its end and reads its last lines.
    pub(crate) async fn ended(mut self, at_most: Duration) -> Result<ExitStatus> {
        // Waiting would close its input, which asks it to end.
        let _open = self.child.stdin.take();
        let ended = tokio::time::timeout(at_most, self.child.wait()).await;
        let status = ended.with_context(|| format!("process {} did not end in {at_most:?}", self.pid))??;
        self.heard().await?;
        Ok(status)
    }

    /// Shuts it down gracefully.
    pub(crate) async fn stop(mut self) -> Result<()> {
        self.close_input();
        let status = self.ended(Duration::from_secs(30)).await?;
        ensure!(status.success(), "a process failed: {status}");
        Ok(())
    }

    async fn heard(&mut self) -> Result<()> {
        Ok((&mut self.listening).await?)
    }
}
