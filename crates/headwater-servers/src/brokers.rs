//! Private message brokers: each in a folder of its own, on free ports of 127.0.0.1, stopped and removed when dropped.
//!
//! ```no_run
//! use headwater_servers::{Stop, brokers::Nats};
//!
//! let mut nats = Nats::start(&std::env::temp_dir())?;
//! nats.wait(|| Ok(()))?;
//! println!("{}", nats.url());
//! nats.stop(Stop::Kill)?;
//! nats.serve()?; // The same port and data.
//! nats.wait(|| Ok(()))?;
//! # anyhow::Ok(())
//! ```

mod kafka;
mod nats;
mod rabbitmq;

use std::fs::File;
use std::marker::PhantomData;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

pub use kafka::{KafkaKind, LIBRARIES_VARIABLE, libraries};
pub use nats::NatsKind;
pub use rabbitmq::RabbitMqKind;

use crate::files::{Folder, User};
use crate::programs::output_of;
use crate::{POLL, Stop, tail};

const START_DEADLINE: Duration = Duration::from_secs(90);
const STOP_DEADLINE: Duration = Duration::from_secs(30);
const PORT_ATTEMPTS_MAX: u32 = 5;
/// Below the range from which the system takes the ports of outgoing connections: a client that tries again and again while a broker is
/// down could otherwise be given that port, and connect to itself.
const PORTS: std::ops::Range<u16> = 20_000..30_000;

/// Apache Kafka: one node, broker and controller. Its URL is `host:port`.
pub type Kafka = Broker<KafkaKind>;
/// RabbitMQ, with a port mapper of its own. Its URL is `amqp://…`, as the user `guest`.
pub type RabbitMq = Broker<RabbitMqKind>;
/// NATS with JetStream. Its URL is `nats://…`.
pub type Nats = Broker<NatsKind>;

/// What differs between brokers.
pub trait Kind {
    /// For messages and the names of folders.
    const NAME: &'static str;
    /// Part of the line that its log has once it accepts connections.
    const READY: &'static str;
    /// Parts of lines that its log has if a port is taken.
    const TAKEN: &'static [&'static str];
    /// How many ports it listens on.
    const PORTS: usize;

    /// An error if its programs are missing.
    fn find() -> Result<()>;

    /// Writes the configuration; called before every start.
    fn configure(place: &Place) -> Result<()>;

    /// Commands that run to their end before the first start.
    fn prepare(_place: &Place) -> Result<Vec<Command>> {
        Ok(Vec::new())
    }

    /// The processes, the broker last.
    fn processes(place: &Place) -> Result<Vec<Command>>;

    /// The address for clients.
    fn url(place: &Place) -> String;
}

/// Where a broker has its files and listens.
#[derive(Debug)]
pub struct Place {
    folder: Folder,
    ports: Vec<u16>,
    user: User,
}

impl Place {
    fn path(&self) -> &Path {
        self.folder.path()
    }

    /// A command that runs to its end.
    fn command(&self, program: &Path) -> Command {
        self.private(self.user.command(program))
    }

    /// A command that the kernel kills when the thread that started it ends.
    fn tied_command(&self, program: &Path) -> Command {
        self.private(self.user.command_ended_with_us(program, "KILL"))
    }

    /// Without settings that belong to the developer's own brokers, and with a home of its own.
    fn private(&self, mut command: Command) -> Command {
        for (name, _) in std::env::vars_os() {
            let foreign = ["RABBITMQ_", "ERL_", "KAFKA_", "NATS_"];
            if name.to_str().is_some_and(|name| foreign.iter().any(|prefix| name.starts_with(prefix))) {
                command.env_remove(&name);
            }
        }
        command.env("HOME", self.path());
        command
    }
}

/// A broker. Dropping it stops it and removes its files, also while a panic unwinds.
#[derive(Debug)]
pub struct Broker<K: Kind> {
    // Dropped in this order: the processes first, their files after.
    running: Option<Running>,
    place: Place,
    is_prepared: bool,
    kind: PhantomData<K>,
}

/// Processes that are starting, or accept connections.
#[derive(Debug)]
struct Running {
    /// The broker last.
    children: Vec<Child>,
    begun: Instant,
    /// Where the log of these processes begins.
    log_from: usize,
    attempts: u32,
    /// The ports may be replaced: no client knows them.
    is_first: bool,
}

impl<K: Kind> Broker<K> {
    /// An error that says what is missing, if this broker cannot be started.
    pub fn find() -> Result<()> {
        K::find()
    }

    /// Starts a broker with files in a new folder below `parent`; [`Self::wait`] waits until it accepts connections.
    ///
    /// Where `setpriv` is installed, it ends when the calling thread does, as [`Server::start`](crate::Server::start) says.
    pub fn start(parent: &Path) -> Result<Self> {
        K::find()?;
        let user = User::current();
        let folder = Folder::create(parent, K::NAME, &user)?;
        let place = Place { folder, ports: free_ports(K::PORTS)?, user };
        let mut broker = Self { running: None, place, is_prepared: false, kind: PhantomData };
        broker.running = Some(broker.spawn(Instant::now(), 1, true)?);
        Ok(broker)
    }

    /// Starts it again after [`Self::stop`]: on the same port, with the same data.
    pub fn serve(&mut self) -> Result<()> {
        ensure!(self.running.is_none(), "{} is up already", K::NAME);
        self.running = Some(self.spawn(Instant::now(), 1, false)?);
        Ok(())
    }

    /// Whether connections are accepted. An error if it ended, or takes too long.
    pub fn poll(&mut self) -> Result<bool> {
        let running = self.running.as_mut().with_context(|| format!("{} is down", K::NAME))?;
        let (begun, attempts, log_from) = (running.begun, running.attempts, running.log_from);
        let is_first = running.is_first;
        let broker = running.children.last_mut().expect("a broker has a process");
        let ended = broker.try_wait()?;
        let log = self.log_since(log_from);
        if let Some(status) = ended {
            let is_taken = K::TAKEN.iter().any(|text| log.contains(text)) && attempts < PORT_ATTEMPTS_MAX;
            ensure!(is_taken, "{} ended ({status}):\n{}", K::NAME, tail(&log));
            self.end();
            if is_first {
                self.place.ports = free_ports(K::PORTS)?;
            } else {
                // Connections of the process before may still be closing.
                std::thread::sleep(Duration::from_millis(500));
            }
            self.running = Some(self.spawn(begun, attempts + 1, is_first)?);
            return Ok(false);
        }
        if log.contains(K::READY) {
            return Ok(true);
        }
        ensure!(
            begun.elapsed() < START_DEADLINE,
            "{} was not ready after {START_DEADLINE:?}:\n{}",
            K::NAME,
            tail(&log)
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

    /// Stops it; its files stay, for [`Self::serve`]. [`Stop::Fast`] asks it to end; the others kill it.
    pub fn stop(&mut self, how: Stop) -> Result<()> {
        let running = self.running.as_mut().with_context(|| format!("{} is down already", K::NAME))?;
        let broker = running.children.last_mut().expect("a broker has a process");
        if how != Stop::Fast {
            self.end();
            return Ok(());
        }
        let asked = output_of(Command::new("kill").args(["-s", "TERM", "--", &broker.id().to_string()]));
        let deadline = Instant::now() + STOP_DEADLINE;
        while broker.try_wait()?.is_none() {
            if asked.is_err() || Instant::now() > deadline {
                self.end();
                asked?;
                bail!("{} did not end within {STOP_DEADLINE:?}, and was killed", K::NAME);
            }
            std::thread::sleep(POLL);
        }
        self.end();
        Ok(())
    }

    /// Whether it was stopped.
    pub fn is_stopped(&self) -> bool {
        self.running.is_none()
    }

    /// The address for clients.
    pub fn url(&self) -> String {
        K::url(&self.place)
    }

    /// The port for clients.
    pub fn port(&self) -> u16 {
        self.place.ports[0]
    }

    /// The log file.
    pub fn log_file(&self) -> PathBuf {
        self.place.path().join("broker.log")
    }

    /// The last lines of the log.
    pub fn log_tail(&self) -> String {
        tail(&self.log_since(0))
    }

    fn log_since(&self, from: usize) -> String {
        let log = std::fs::read(self.log_file()).unwrap_or_default();
        String::from_utf8_lossy(log.get(from..).unwrap_or_default()).into_owned()
    }

    fn spawn(&mut self, begun: Instant, attempts: u32, is_first: bool) -> Result<Running> {
        K::configure(&self.place)?;
        let log = File::options().append(true).create(true).open(self.log_file())?;
        if !self.is_prepared {
            for mut command in K::prepare(&self.place)? {
                let status = command.stdout(log.try_clone()?).stderr(log.try_clone()?).status();
                let status = status.with_context(|| format!("cannot prepare {}", K::NAME))?;
                ensure!(status.success(), "preparing {} failed ({status}):\n{}", K::NAME, self.log_tail());
            }
            self.is_prepared = true;
        }
        let log_from = usize::try_from(log.metadata()?.len())?;
        let mut running = Running { children: Vec::new(), begun, log_from, attempts, is_first };
        for mut command in K::processes(&self.place)? {
            command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log.try_clone()?);
            match command.spawn() {
                Ok(child) => running.children.push(child),
                Err(error) => {
                    running.end();
                    return Err(error).with_context(|| format!("cannot start {}", K::NAME));
                }
            }
        }
        Ok(running)
    }

    fn end(&mut self) {
        if let Some(mut running) = self.running.take() {
            running.end();
        }
    }
}

impl Running {
    /// Kills by process id: nothing that this broker did not start.
    fn end(&mut self) {
        for child in self.children.iter_mut().rev() {
            // An error means that it has ended.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl<K: Kind> Drop for Broker<K> {
    fn drop(&mut self) {
        // Without an orderly end: the files are removed right after.
        self.end();
    }
}

/// Ports that no process listens on. Several processes search at once, so each begins elsewhere; one that is taken in between
/// shows when the broker starts.
fn free_ports(count: usize) -> Result<Vec<u16>> {
    static TRIED: AtomicU16 = AtomicU16::new(0);
    let span = PORTS.end - PORTS.start;
    let begin = u16::try_from(std::process::id().wrapping_mul(97) % u32::from(span))?;
    let mut ports = Vec::with_capacity(count);
    for _ in 0..span {
        if ports.len() == count {
            return Ok(ports);
        }
        let step = TRIED.fetch_add(1, Ordering::Relaxed) % span;
        let port = PORTS.start + (begin + step) % span;
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            ports.push(port);
        }
    }
    bail!("no free port on 127.0.0.1 from {} to {}", PORTS.start, PORTS.end - 1)
}

#[cfg(test)]
mod tests;
