//! Running other programs: watched for interruption, and ended with everything they started.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::interrupt::Interrupt;

const POLL: Duration = Duration::from_millis(50);
/// The test runner gives its tests ten seconds to end, so the second signal is sent only after that.
const ASK_AGAIN_AFTER: Duration = Duration::from_secs(12);
const KILL_AFTER: Duration = Duration::from_secs(20);
const OUTPUT_ENDS_WITHIN: Duration = Duration::from_secs(5);

/// Prints a line for the developer. Errors are dropped: a closed pipe must not keep a server from being stopped.
pub(crate) fn say(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// A cargo command as a developer's own shell would run it.
pub(crate) fn cargo(root: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new("cargo");
    command.args(arguments).current_dir(root);
    // `cargo run` describes xtask in these variables. Build scripts that watch them (ring's does) would run again
    // each time a developer switches between `cargo xtask` and plain `cargo`.
    for (name, _) in std::env::vars_os() {
        let described = ["CARGO_PKG_", "CARGO_MANIFEST_", "CARGO_BIN_", "CARGO_CRATE_", "CARGO_PRIMARY_"];
        if name.to_str().is_some_and(|name| described.iter().any(|prefix| name.starts_with(prefix))) {
            command.env_remove(&name);
        }
    }
    command
}

/// Runs a command to its end in a process group of its own, without input.
///
/// On interruption the whole group is asked to end, then killed, so nothing it started outlives this call.
pub(crate) fn run(command: &mut Command, interrupt: &Interrupt) -> Result<ExitStatus> {
    command.stdin(Stdio::null()).process_group(0);
    let child = spawn(command)?;
    let group = format!("-{}", child.id());
    watch(child, &group, interrupt)
}

/// As [`run`], with each line of the standard output passed to a function, and `None` at its end.
pub(crate) fn run_with_lines(
    command: &mut Command,
    interrupt: &Interrupt,
    mut each: impl FnMut(Option<String>) + Send + 'static,
) -> Result<ExitStatus> {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).process_group(0);
    let mut child = spawn(command)?;
    let output = child.stdout.take().context("the output is piped")?;
    let reader = std::thread::spawn(move || {
        read_lines(output, &mut each);
        each(None);
    });
    let group = format!("-{}", child.id());
    let status = watch(child, &group, interrupt)?;
    // A process that outlives the command may keep the output open.
    let ended = Instant::now();
    while !reader.is_finished() && ended.elapsed() < OUTPUT_ENDS_WITHIN {
        std::thread::sleep(POLL);
    }
    Ok(status)
}

/// Each line, to the end of the output, whatever its bytes: a reader that stopped early would close the pipe, and what the program
/// writes after that would fail.
fn read_lines(output: impl Read, each: &mut impl FnMut(Option<String>)) {
    let (mut output, mut line) = (BufReader::new(output), Vec::new());
    while output.read_until(b'\n', &mut line).is_ok_and(|bytes| bytes > 0) {
        let text = String::from_utf8_lossy(&line);
        each(Some(text.strip_suffix('\n').unwrap_or(&text).to_owned()));
        line.clear();
    }
}

/// Runs an interactive command: it keeps the terminal, if there is one.
pub(crate) fn run_interactive(command: &mut Command, interrupt: &Interrupt) -> Result<ExitStatus> {
    use std::io::IsTerminal;
    let on_terminal = std::io::stdin().is_terminal();
    if !on_terminal {
        command.process_group(0);
    }
    let child = spawn(command)?;
    // On a terminal the child shares our group (only the foreground group may read), so the signal is sent only to it.
    let target = if on_terminal { child.id().to_string() } else { format!("-{}", child.id()) };
    watch(child, &target, interrupt)
}

/// The exit code a shell would show.
pub(crate) fn code_of(status: ExitStatus) -> u8 {
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal));
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1)
}

/// Sends a signal by the system's own `kill`: this workspace forbids unsafe code.
fn signal(name: &str, target: &str) {
    let mut command = Command::new("kill");
    command.args([OsStr::new("-s"), OsStr::new(name), OsStr::new("--"), OsStr::new(target)]);
    let _ = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status();
}

fn spawn(command: &mut Command) -> Result<Child> {
    let program = command.get_program().to_os_string();
    command.spawn().with_context(|| format!("cannot run {}", program.display()))
}

fn watch(mut child: Child, target: &str, interrupt: &Interrupt) -> Result<ExitStatus> {
    let mut asked: Option<Instant> = None;
    let mut asked_again = false;
    loop {
        if let Some(status) = child.try_wait().context("cannot wait for a child process")? {
            if asked.is_some() && target.starts_with('-') {
                // Its children may still be ending, or may have ignored the signal.
                signal("KILL", target);
            }
            return Ok(status);
        }
        match asked {
            None if interrupt.signal().is_some() => {
                signal("TERM", target);
                asked = Some(Instant::now());
            }
            Some(since) if since.elapsed() > KILL_AFTER => {
                signal("KILL", target);
                let _ = child.kill();
            }
            Some(since) if since.elapsed() > ASK_AGAIN_AFTER && !asked_again => {
                signal("TERM", target);
                asked_again = true;
            }
            _ => {}
        }
        std::thread::sleep(POLL);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exit_codes_are_those_of_a_shell() {
        let interrupt = Interrupt::never();
        let status = |script: &str| run(Command::new("sh").args(["-c", script]), &interrupt).unwrap();
        assert_eq!(code_of(status("exit 0")), 0);
        assert_eq!(code_of(status("exit 7")), 7);
        assert_eq!(code_of(status("kill -TERM $$")), 128 + 15);
    }

    #[test]
    fn output_that_is_not_utf8_is_read_to_its_end() {
        let (sender, lines) = std::sync::mpsc::channel();
        // The second line is more than a pipe holds: it is written only while it is read.
        let script = "printf 'a\\377b\\n' && head -c 1000000 /dev/zero | tr '\\0' x && printf '\\nlast'";
        let status =
            run_with_lines(Command::new("sh").args(["-c", script]), &Interrupt::never(), move |line| {
                sender.send(line).unwrap();
            });
        assert_eq!(code_of(status.unwrap()), 0);
        let lines: Vec<Option<String>> = lines.iter().collect();
        let long = "x".repeat(1_000_000);
        assert_eq!(
            lines,
            ["a\u{fffd}b", &long, "last"]
                .map(|line| Some(line.to_owned()))
                .into_iter()
                .chain([None])
                .collect::<Vec<_>>()
        );
    }
}
