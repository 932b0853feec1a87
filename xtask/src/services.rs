//! `cargo xtask services`: a PostgreSQL server, and brokers if asked for, for a developer's own runs.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use headwater_servers::{Listen, Server, check_parent};

use crate::brokers::Brokers;
use crate::interrupt::Interrupt;
use crate::packages::{self, Need};
use crate::process::{self, say};

/// The environment variable with the URL of the server that tests use.
pub(crate) const POSTGRES_VARIABLE: &str = "HEADWATER_TEST_POSTGRES";

/// What survives a crash of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Durability {
    /// No fsync: a test's data need not survive the machine.
    Fast,
    /// As in production.
    Durable,
}

/// The options of `services`.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Options {
    durability: Durability,
    /// Kafka, RabbitMQ and NATS too.
    brokers: bool,
    /// A command and its arguments; without one, the server runs until it is interrupted.
    exec: Vec<String>,
}

impl Options {
    pub(crate) fn parse(arguments: &[String]) -> Result<Self> {
        let mut options = Self { durability: Durability::Fast, brokers: false, exec: Vec::new() };
        let mut rest = arguments.iter();
        while let Some(argument) = rest.next() {
            match argument.as_str() {
                "--durable" => options.durability = Durability::Durable,
                "--brokers" => options.brokers = true,
                "--exec" => {
                    options.exec = rest.cloned().collect();
                    if options.exec.is_empty() {
                        bail!("--exec needs a command");
                    }
                    break;
                }
                other => {
                    bail!("services: unknown option {other}; use --durable, --brokers or --exec CMD ARGS...")
                }
            }
        }
        Ok(options)
    }
}

pub(crate) fn run(root: &Path, interrupt: &Interrupt, options: &Options) -> Result<ExitCode> {
    packages::ensure(&[Need::PostgresServer])?;
    let mut brokers = if options.brokers { Brokers::start(root)? } else { Brokers::default() };
    let mut server = start(root, options.durability, interrupt)?;
    brokers.wait(interrupt)?;
    if let Some(missing) = brokers.missing.first() {
        bail!("{missing}");
    }
    let environment = if options.brokers { brokers.environment() } else { Vec::new() };
    let Some((program, arguments)) = options.exec.split_first() else {
        say(&format!("{POSTGRES_VARIABLE}={}", server.url("postgres")));
        environment.iter().for_each(|(name, value)| say(&format!("{name}={value}")));
        say(&format!("log: {}\nCtrl-C stops the server and removes it", server.log_file().display()));
        while interrupt.signal().is_none() {
            server.poll()?;
            brokers.poll()?;
            std::thread::sleep(Duration::from_millis(100));
        }
        return Ok(ExitCode::SUCCESS);
    };
    let mut command = Command::new(program);
    command.args(arguments).env(POSTGRES_VARIABLE, server.url("postgres")).envs(environment);
    let status = process::run_interactive(&mut command, interrupt)?;
    Ok(interrupt.exit_code().unwrap_or_else(|| ExitCode::from(process::code_of(status))))
}

/// A server that accepts connections. Must be called from the main thread: the server ends with the thread that started it.
pub(crate) fn start(root: &Path, durability: Durability, interrupt: &Interrupt) -> Result<Server> {
    let mut server = Server::start(&parent(root)?, Listen::Loopback, &settings(durability))?;
    server.wait(|| interrupt.check())?;
    Ok(server)
}

/// Where servers have their files: below `target/` where their user can reach that, else below the temporary files.
pub(crate) fn parent(root: &Path) -> Result<PathBuf> {
    let target =
        std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), |dir| root.join(dir));
    let parent = target.join("services");
    std::fs::create_dir_all(&parent).with_context(|| format!("cannot create {}", parent.display()))?;
    if let Err(reason) = check_parent(&parent) {
        let temporary = std::env::temp_dir();
        say(&format!("not in {} ({reason:#}): using {}", parent.display(), temporary.display()));
        return Ok(temporary);
    }
    Ok(parent)
}

fn settings(durability: Durability) -> Vec<(&'static str, &'static str)> {
    let mut settings = vec![("max_connections", "200"), ("max_prepared_transactions", "50")];
    if durability == Durability::Fast {
        settings.extend([("fsync", "off"), ("full_page_writes", "off")]);
    }
    settings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(words: &[&str]) -> Result<Options> {
        Options::parse(&words.iter().map(ToString::to_string).collect::<Vec<_>>())
    }

    #[test]
    fn everything_after_exec_is_the_command() {
        let options = parse(&["--durable", "--exec", "psql", "--brokers", "--exec"]).unwrap();
        assert_eq!(options.durability, Durability::Durable);
        assert!(!options.brokers && parse(&["--brokers"]).unwrap().brokers);
        assert_eq!(options.exec, ["psql", "--brokers", "--exec"]);
    }

    #[test]
    fn durable_server_keeps_fsync_on() {
        assert!(settings(Durability::Fast).contains(&("fsync", "off")));
        assert!(!settings(Durability::Durable).iter().any(|(_, value)| *value == "off"));
    }

    #[test]
    fn unknown_options_are_refused() {
        assert_eq!(
            parse(&[]).unwrap(),
            Options { durability: Durability::Fast, brokers: false, exec: vec![] }
        );
        assert!(parse(&["--exec"]).is_err());
        assert!(parse(&["--port", "5432"]).is_err());
    }
}
