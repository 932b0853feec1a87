//! A PostgreSQL server of one's own: made in a fresh folder, reached over loopback, gone when its value is dropped.

mod folder;
mod programs;
mod user;

use std::fs::File;
use std::net::TcpListener;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::interrupt::Interrupt;
use crate::process::{self, say};

use self::folder::RunFolder;
use self::programs::Programs;
pub(crate) use self::programs::find as find_programs;
use self::user::ServerUser;

const START_DEADLINE: Duration = Duration::from_secs(60);
const STOP_DEADLINE: Duration = Duration::from_secs(15);
const PORT_ATTEMPTS_MAX: u32 = 5;
const LOG_TAIL_LINES: usize = 20;

/// A running server. Dropping it stops it and removes its folder, also on the way out of a panic.
pub(crate) struct Server {
    // Dropped in this order: the process first, its files after.
    process: Postmaster,
    folder: RunFolder,
    port: u16,
}

/// What the server promises to those who crash it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Durability {
    /// No fsync: a test's data need not survive the machine.
    Fast,
    /// As in production.
    Durable,
}

struct Postmaster {
    child: Child,
    data: std::path::PathBuf,
    programs: Programs,
    user: ServerUser,
}

impl Server {
    /// Makes a cluster and starts it on a free port. Must be called from the main thread: the server ends when the
    /// thread that started it does (see [`ServerUser::command_that_dies_with_us`]).
    pub(crate) fn start(root: &Path, durability: Durability, interrupt: &Interrupt) -> Result<Self> {
        let programs = programs::find()?;
        let user = ServerUser::choose()?;
        let folder = RunFolder::create(root, &user)?;
        initialise(&programs, &user, &folder, durability, interrupt)?;
        for _ in 0..PORT_ATTEMPTS_MAX {
            interrupt.check()?;
            let port = free_port()?;
            let mut process = Postmaster::spawn(&programs, &user, &folder, port, durability)?;
            if process.wait_until_ready(&folder, interrupt)? {
                return Ok(Self { process, folder, port });
            }
            say(&format!("port {port} was taken meanwhile, trying another"));
        }
        bail!("no free port after {PORT_ATTEMPTS_MAX} attempts:\n{}", folder.log_tail(LOG_TAIL_LINES));
    }

    /// For the tests: over TCP, as a superuser.
    pub(crate) fn url(&self) -> String {
        format!("postgres://postgres@127.0.0.1:{}/postgres", self.port)
    }

    pub(crate) fn log_file(&self) -> std::path::PathBuf {
        self.folder.log()
    }

    /// An error if the server has ended by itself.
    pub(crate) fn check(&mut self) -> Result<()> {
        match self.process.child.try_wait()? {
            Some(status) => bail!("the server ended ({status}):\n{}", self.folder.log_tail(LOG_TAIL_LINES)),
            None => Ok(()),
        }
    }
}

impl Postmaster {
    fn spawn(
        programs: &Programs,
        user: &ServerUser,
        folder: &RunFolder,
        port: u16,
        durability: Durability,
    ) -> Result<Self> {
        let data = folder.data();
        let mut command = user.command_that_dies_with_us(&programs.postgres())?;
        command.arg("-D").arg(&data).args(["-p", &port.to_string()]).arg("-k").arg(folder.sockets());
        for setting in settings(durability) {
            command.args(["-c", setting]);
        }
        let log = File::options().append(true).create(true).open(folder.log())?;
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        // Its own group: a Ctrl-C on the terminal is for us, and we stop it after the tests have ended.
        let child = command.current_dir("/").process_group(0).spawn().context("cannot start postgres")?;
        Ok(Self { child, data, programs: programs.clone(), user: user.clone() })
    }

    /// True once connections are accepted, false if the port belongs to somebody else.
    fn wait_until_ready(&mut self, folder: &RunFolder, interrupt: &Interrupt) -> Result<bool> {
        let begun = Instant::now();
        while begun.elapsed() < START_DEADLINE {
            interrupt.check()?;
            if let Some(status) = self.child.try_wait()? {
                let log = folder.log_tail(LOG_TAIL_LINES);
                if log.contains("could not create any TCP/IP sockets") {
                    return Ok(false);
                }
                bail!("the server did not start ({status}):\n{log}");
            }
            if is_ready(&self.data) {
                return Ok(true);
            }
            std::thread::sleep(Duration::from_millis(25));
        }
        bail!("the server was not ready after {START_DEADLINE:?}:\n{}", folder.log_tail(LOG_TAIL_LINES))
    }

    fn stop(&mut self) -> Result<()> {
        for mode in ["fast", "immediate"] {
            if self.child.try_wait()?.is_some() {
                return Ok(());
            }
            let mut command = self.user.command(&self.programs.pg_ctl())?;
            command.args(["stop", "--silent", "--no-wait", "--mode", mode]).arg("-D").arg(&self.data);
            // Out of the terminal's reach: a second Ctrl-C must not stop the stopping.
            let _ = process::read(command.current_dir("/").process_group(0));
            if self.wait(STOP_DEADLINE)?.is_some() {
                return Ok(());
            }
        }
        say("the server did not stop when asked to, ending its process");
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    fn wait(&mut self, deadline: Duration) -> Result<Option<ExitStatus>> {
        let begun = Instant::now();
        while begun.elapsed() < deadline {
            if let Some(status) = self.child.try_wait()? {
                return Ok(Some(status));
            }
            std::thread::sleep(Duration::from_millis(25));
        }
        Ok(None)
    }
}

impl Drop for Postmaster {
    fn drop(&mut self) {
        if let Err(error) = self.stop() {
            say(&format!("cannot stop the server of {}: {error:#}", self.data.display()));
        }
    }
}

fn initialise(
    programs: &Programs,
    user: &ServerUser,
    folder: &RunFolder,
    durability: Durability,
    interrupt: &Interrupt,
) -> Result<()> {
    let mut command = user.command(&programs.initdb())?;
    command.arg("-D").arg(folder.data()).args(["--username=postgres", "--encoding=UTF8", "--locale=C"]);
    // Trust reaches no further than this machine: initdb lists the socket and loopback only.
    command.args(["--auth-local=trust", "--auth-host=trust"]);
    if durability == Durability::Fast {
        command.arg("--no-sync");
    }
    let log = File::create(folder.log())?;
    command.stdout(log.try_clone()?).stderr(log).current_dir("/");
    let status = process::run(&mut command, interrupt)?;
    interrupt.check()?;
    if !status.success() {
        bail!("initdb failed ({status}):\n{}", folder.log_tail(LOG_TAIL_LINES));
    }
    Ok(())
}

fn settings(durability: Durability) -> Vec<&'static str> {
    let mut settings =
        vec!["listen_addresses=127.0.0.1", "max_connections=200", "max_prepared_transactions=50"];
    if durability == Durability::Fast {
        settings.extend(["fsync=off", "full_page_writes=off"]);
    }
    settings
}

/// The server writes its state into the eighth line of its pid file; asking the port could reach another server.
fn is_ready(data: &Path) -> bool {
    let file = std::fs::read_to_string(data.join("postmaster.pid")).unwrap_or_default();
    file.lines().nth(7).is_some_and(|state| state.trim() == "ready")
}

fn free_port() -> Result<u16> {
    let listener = TcpListener::bind("127.0.0.1:0").context("cannot listen on loopback")?;
    Ok(listener.local_addr()?.port())
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    /// Whether tests that start a server can run here; on CI they must.
    fn has_server() -> bool {
        let found = programs::find();
        assert!(found.is_ok() || !crate::is_ci(), "{found:?}");
        found.is_ok()
    }

    fn root() -> std::path::PathBuf {
        crate::workspace_root().unwrap()
    }

    #[test]
    fn panic_leaves_no_server_behind() {
        if !has_server() {
            return;
        }
        let (sender, receiver) = mpsc::channel();
        let run = std::thread::spawn(move || {
            let server = Server::start(&root(), Durability::Fast, &Interrupt::never()).unwrap();
            let log = server.log_file();
            let reached = std::net::TcpStream::connect(("127.0.0.1", server.port)).is_ok();
            sender.send((reached, server.port, log)).unwrap();
            panic!("expected by this test");
        });
        assert!(run.join().is_err());
        let (reached, port, log) = receiver.recv().unwrap();
        assert!(reached);
        assert!(std::net::TcpStream::connect(("127.0.0.1", port)).is_err());
        assert!(!log.exists() && !log.parent().unwrap().exists());
    }

    #[test]
    fn taken_port_is_told_from_other_failures() {
        if !has_server() {
            return;
        }
        let (interrupt, fast) = (Interrupt::never(), Durability::Fast);
        let programs = programs::find().unwrap();
        let user = ServerUser::choose().unwrap();
        let folder = RunFolder::create(&root(), &user).unwrap();
        let spawn = |port| Postmaster::spawn(&programs, &user, &folder, port, fast).unwrap();
        let error = spawn(free_port().unwrap()).wait_until_ready(&folder, &interrupt).unwrap_err();
        assert!(error.to_string().contains("did not start"), "{error}");
        initialise(&programs, &user, &folder, fast, &interrupt).unwrap();
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = taken.local_addr().unwrap().port();
        assert!(!spawn(port).wait_until_ready(&folder, &interrupt).unwrap());
        drop(taken);
        assert!(spawn(port).wait_until_ready(&folder, &interrupt).unwrap());
    }

    #[test]
    fn durable_server_keeps_fsync_on() {
        assert!(settings(Durability::Fast).contains(&"fsync=off"));
        assert!(!settings(Durability::Durable).iter().any(|setting| setting.contains("=off")));
    }

    #[test]
    fn server_without_a_ready_pid_file_is_not_ready() {
        let data = std::env::temp_dir().join(format!("headwater-xtask-pid-{}", std::process::id()));
        std::fs::create_dir(&data).unwrap();
        assert!(!is_ready(&data));
        let file = |state: &str| format!("1\n{}\n3\n4\n5\n6\n7\n{state}\n", data.display());
        std::fs::write(data.join("postmaster.pid"), file("starting")).unwrap();
        assert!(!is_ready(&data));
        std::fs::write(data.join("postmaster.pid"), file("ready   ")).unwrap();
        assert!(is_ready(&data));
        std::fs::remove_dir_all(&data).unwrap();
    }
}
