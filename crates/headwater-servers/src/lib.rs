//! A private PostgreSQL server: created in a fresh folder, run by an unprivileged user, stopped and removed when dropped.
//!
//! [`brokers`] has Kafka, RabbitMQ and NATS in the same way.
//!
//! Only [`Server::wait`] waits for a server to become ready: with [`Server::poll`] callers can wait in their own way,
//! interruptible or asynchronous.

pub mod brokers;
mod files;
mod programs;

use std::fs::File;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

pub use files::{User, check_parent};
pub use programs::{Programs, find_program, output_of};

use files::Folder;

const START_DEADLINE: Duration = Duration::from_secs(60);
const STOP_DEADLINE: Duration = Duration::from_secs(15);
const PORT_ATTEMPTS_MAX: u32 = 5;
const LOG_TAIL_LINES: usize = 20;
const POLL: Duration = Duration::from_millis(25);
/// The port in a socket's name; each socket folder is private, so it is never taken.
const SOCKET_PORT: u16 = 54_390;

/// How clients reach a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Listen {
    /// On 127.0.0.1, at a free port.
    Loopback,
    /// Only in a private folder: no port can be taken, and no other user of the machine can connect.
    Socket,
}

/// How a server ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// Sessions are ended and everything is written, to standbys too.
    Fast,
    /// Every process exits at once, without a checkpoint.
    Immediate,
    /// SIGKILL of the postmaster; its children notice and exit.
    Kill,
}

/// A server. Dropping it stops it and removes its files, also while a panic unwinds.
#[derive(Debug)]
pub struct Server {
    // Dropped in this order: the process first, its files after.
    process: Option<Postmaster>,
    folder: Folder,
    /// In the folder for temporary files: the path of a socket is limited to 107 bytes. A standby shares that of its primary.
    sockets: Arc<Folder>,
    listen: Listen,
    port: u16,
    settings: Vec<String>,
    programs: Programs,
    user: User,
}

/// A server process that is starting, or accepts connections.
#[derive(Debug)]
struct Postmaster {
    child: Child,
    begun: Instant,
    /// Where the log of this process begins.
    log_from: usize,
    attempts: u32,
}

impl Server {
    /// Creates a cluster below `parent`, with these settings, and starts the server.
    ///
    /// Where `setpriv` is installed, the server ends when the calling thread does: not even SIGKILL of this process leaves a
    /// server behind. So call it from a thread that lives as long as the server is needed.
    pub fn start(parent: &Path, listen: Listen, settings: &[(&str, &str)]) -> Result<Self> {
        let user = User::choose()?;
        let sockets = Arc::new(Folder::create(&std::env::temp_dir(), "pg", &user)?);
        let settings = settings.iter().map(|(name, value)| format!("{name}={value}")).collect();
        let mut server = Self {
            process: None,
            folder: Folder::create(parent, "pg", &user)?,
            sockets,
            listen,
            port: SOCKET_PORT,
            settings,
            programs: Programs::find()?,
            user,
        };
        let mut initdb = server.command("initdb");
        initdb.args(["--username=postgres", "--encoding=UTF8", "--locale=C", "--no-sync"]);
        // Trust is limited to this machine: initdb lists the socket and loopback only.
        initdb.args(["--auth-local=trust", "--auth-host=trust"]);
        server.run(initdb.arg("-D").arg(server.data()))?;
        server.serve()?;
        Ok(server)
    }

    /// A standby of this server, which must be running: a copy of its files, at another port of the same socket folder.
    pub fn standby(&self, port: u16) -> Result<Self> {
        let mut standby = Self {
            process: None,
            folder: Folder::create(self.folder.parent(), "pg", &self.user)?,
            sockets: Arc::clone(&self.sockets),
            listen: Listen::Socket,
            port,
            settings: self.settings.clone(),
            programs: self.programs.clone(),
            user: self.user.clone(),
        };
        let mut copy = standby.command("pg_basebackup");
        copy.args(["--checkpoint=fast", "--wal-method=stream", "--write-recovery-conf", "--no-sync"]);
        standby.run(copy.arg("-d").arg(self.conninfo()).arg("-D").arg(standby.data()))?;
        standby.serve()?;
        Ok(standby)
    }

    /// Makes a stopped server a standby of another, which has everything that this one wrote.
    pub fn follow(&self, primary: &Self) -> Result<()> {
        ensure!(self.process.is_none(), "a running server cannot become a standby");
        let path = self.data().join("postgresql.auto.conf");
        let before = std::fs::read_to_string(&path)?;
        let conninfo = primary.conninfo();
        let text = format!("{before}primary_conninfo = '{conninfo}'\nsynchronous_standby_names = ''\n");
        std::fs::write(&path, text)?;
        let signal = self.data().join("standby.signal");
        std::fs::write(&signal, "")?;
        self.user.own(&signal)
    }

    /// Starts the server again, after [`Self::stop`]: at the same socket, or at another free port.
    pub fn serve(&mut self) -> Result<()> {
        ensure!(self.process.is_none(), "the server is up already");
        self.process = Some(self.spawn(Instant::now(), 1)?);
        Ok(())
    }

    /// Whether connections are accepted. An error if the server ended, or takes too long.
    pub fn poll(&mut self) -> Result<bool> {
        let data = self.data();
        let process = self.process.as_mut().context("the server is down")?;
        let (begun, attempts, log_from) = (process.begun, process.attempts, process.log_from);
        if let Some(status) = process.child.try_wait()? {
            let log = self.log_since(log_from);
            // The children of a killed server exit by themselves; until the last one has, a new server is refused.
            let is_early = log.contains("shared memory block") && begun.elapsed() < START_DEADLINE;
            let is_taken =
                log.contains("could not create any TCP/IP sockets") && attempts < PORT_ATTEMPTS_MAX;
            ensure!(is_early || is_taken, "the server ended ({status}):\n{}", tail(&log));
            self.process = Some(self.spawn(begun, attempts + u32::from(is_taken))?);
            return Ok(false);
        }
        if is_ready(&data, process.child.id()) {
            return Ok(true);
        }
        ensure!(
            begun.elapsed() < START_DEADLINE,
            "the server was not ready after {START_DEADLINE:?}:\n{}",
            tail(&self.log_since(log_from))
        );
        Ok(false)
    }

    /// Waits until connections are accepted. The function called in between can end the wait with an error.
    pub fn wait(&mut self, mut between: impl FnMut() -> Result<()>) -> Result<()> {
        while !self.poll()? {
            between()?;
            std::thread::sleep(POLL);
        }
        Ok(())
    }

    /// Stops it; its files stay, for [`Self::serve`].
    pub fn stop(&mut self, how: Stop) -> Result<()> {
        let mut process = self.process.take().context("the server is down already")?;
        let mode = match how {
            Stop::Fast => "fast",
            Stop::Immediate => "immediate",
            Stop::Kill => return process.end(),
        };
        let mut command = self.command("pg_ctl");
        command.args(["stop", "--silent", "--no-wait", "--mode", mode]).arg("-D").arg(self.data());
        let asked = output_of(&mut command);
        let deadline = Instant::now() + STOP_DEADLINE;
        while process.child.try_wait()?.is_none() {
            if asked.is_err() || Instant::now() > deadline {
                process.end()?;
                asked?;
                bail!("the server did not end within {STOP_DEADLINE:?}, and was killed");
            }
            std::thread::sleep(POLL);
        }
        Ok(())
    }

    /// Whether it was stopped.
    pub fn is_stopped(&self) -> bool {
        self.process.is_none()
    }

    /// The URL of a database, as a superuser.
    pub fn url(&self, database: &str) -> String {
        let host = match self.listen {
            Listen::Loopback => "127.0.0.1".to_owned(),
            // The folder of the socket, percent-encoded as in libpq's URLs.
            Listen::Socket => self.sockets.path().display().to_string().replace('/', "%2F"),
        };
        format!("postgres://postgres@{host}:{}/{database}", self.port)
    }

    /// The connection string for a standby of this server.
    pub fn conninfo(&self) -> String {
        format!("host={} port={} user=postgres", self.sockets.path().display(), self.port)
    }

    /// The port, or the number in the name of its socket.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Sets its port; it must be stopped.
    pub fn move_to(&mut self, port: u16) {
        assert!(self.is_stopped(), "a running server cannot be moved");
        self.port = port;
    }

    /// The server's log file.
    pub fn log_file(&self) -> PathBuf {
        self.folder.path().join("server.log")
    }

    /// The last lines of the log.
    pub fn log_tail(&self) -> String {
        tail(&self.log_since(0))
    }

    fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    fn log_since(&self, from: usize) -> String {
        let log = std::fs::read(self.log_file()).unwrap_or_default();
        String::from_utf8_lossy(log.get(from..).unwrap_or_default()).into_owned()
    }

    fn command(&self, program: &str) -> Command {
        self.user.command(&self.programs.path(program))
    }

    /// Runs a program of PostgreSQL to its end.
    fn run(&self, command: &mut Command) -> Result<()> {
        let log = File::options().append(true).create(true).open(self.log_file())?;
        let status = command.stdout(log.try_clone()?).stderr(log).status()?;
        let name = command.get_program().display();
        ensure!(status.success(), "{name} failed ({status}):\n{}", self.log_tail());
        Ok(())
    }

    fn spawn(&mut self, begun: Instant, attempts: u32) -> Result<Postmaster> {
        let port = if self.listen == Listen::Loopback { free_port()? } else { self.port };
        self.spawn_at(port, begun, attempts)
    }

    fn spawn_at(&mut self, port: u16, begun: Instant, attempts: u32) -> Result<Postmaster> {
        self.port = port;
        let addresses = match self.listen {
            Listen::Loopback => "listen_addresses=127.0.0.1",
            Listen::Socket => "listen_addresses=",
        };
        let mut command = self.user.command_that_dies_with_us(&self.programs.path("postgres"));
        command.arg("-D").arg(self.data()).args(["-p", &self.port.to_string()]);
        command.arg("-k").arg(self.sockets.path()).args(["-c", addresses]);
        for setting in &self.settings {
            command.args(["-c", setting]);
        }
        let log = File::options().append(true).create(true).open(self.log_file())?;
        let log_from = usize::try_from(log.metadata()?.len())?;
        let child = command.stdout(log.try_clone()?).stderr(log).spawn().context("cannot start postgres")?;
        Ok(Postmaster { child, begun, log_from, attempts })
    }
}

impl Postmaster {
    fn end(&mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Without a checkpoint: the files are removed right after.
        // Whatever it returns, the process has ended.
        let _ = self.stop(Stop::Immediate);
    }
}

/// The server writes its process id into the first line of its pid file and its state into the eighth. Connecting instead
/// could reach another server; the process id is compared because the file may be that of a killed server.
fn is_ready(data: &Path, pid: u32) -> bool {
    let file = std::fs::read_to_string(data.join("postmaster.pid")).unwrap_or_default();
    let lines: Vec<&str> = file.lines().map(str::trim).collect();
    lines.first() == Some(&pid.to_string().as_str()) && matches!(lines.get(7), Some(&"ready" | &"standby"))
}

fn free_port() -> Result<u16> {
    let listener = TcpListener::bind("127.0.0.1:0").context("cannot listen on loopback")?;
    Ok(listener.local_addr()?.port())
}

fn tail(log: &str) -> String {
    let lines: Vec<&str> = log.lines().collect();
    lines[lines.len().saturating_sub(LOG_TAIL_LINES)..].join("\n")
}

#[cfg(test)]
mod tests;
