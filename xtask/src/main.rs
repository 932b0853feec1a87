//! Developer commands, run as `cargo xtask <command>`: one match shows all of them.

mod brokers;
mod browser;
mod clients;
mod house;
mod interrupt;
mod languages;
mod packages;
mod process;
mod report;
mod schemathesis;
mod services;
mod test;
mod tidy;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};

use crate::interrupt::Interrupt;
use crate::process::say;

const USAGE: &str = "\
Usage: cargo xtask <command>

  test [--sqlite-only] [--tests-only] [--only PART] [--api-seconds N] [-- ARGS]
      Check the tree and run every test against an own PostgreSQL server, and Kafka, RabbitMQ and NATS; the clients
      of other languages; the dashboard in a browser; the HTTP API against its OpenAPI document. ARGS go to
      cargo-nextest, and leave out what needs a started server.
      --sqlite-only   leave out what needs PostgreSQL (refused when CI=true)
      --tests-only    leave out tidy and the doc tests (refused when CI=true)
      --only PART     only the tests of `clients`, `browser` or `api` (refused when CI=true)
      --api-seconds N how long requests are made from the OpenAPI document; 120 by default
      HEADWATER_TEST_POSTGRES=URL uses that server and starts none; so do HEADWATER_TEST_KAFKA=HOST:PORT,
      HEADWATER_TEST_RABBITMQ=URL and HEADWATER_TEST_NATS=URL.

  tidy
      Formatting, lints, sizes, headers, mirrored SQL, licences.

  house
      Print the size of the repository: names, methods, files, lines and sizes; as markdown.

  services [--durable] [--brokers] [--exec CMD ARGS...]
      Start a PostgreSQL server and keep it until Ctrl-C, or for as long as CMD runs.
      --durable       with fsync on, for measurements
      --brokers       Kafka, RabbitMQ and NATS too
";

fn main() -> ExitCode {
    match run() {
        Ok(code) => code,
        Err(error) => {
            say(&format!("error: {error:#}"));
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<ExitCode> {
    let interrupt = Interrupt::install()?;
    let root = workspace_root()?;
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (command, rest) = arguments.split_first().map_or(("help", &[][..]), |(c, r)| (c.as_str(), r));
    match command {
        "test" => test::run(&root, &interrupt, &test::Options::parse(rest)?),
        "tidy" if rest.is_empty() => tidy::run(&root, &interrupt),
        "house" if rest.is_empty() => house::run(&root),
        "services" => services::run(&root, &interrupt, &services::Options::parse(rest)?),
        "help" | "--help" | "-h" => {
            say(USAGE);
            Ok(ExitCode::SUCCESS)
        }
        _ => bail!("unknown command: {}\n\n{USAGE}", arguments.join(" ")),
    }
}

/// The repository's root: the parent folder of this crate.
fn workspace_root() -> Result<PathBuf> {
    // Read at run time first: a moved checkout must not refer to the folder it was built in.
    let here = std::env::var_os("CARGO_MANIFEST_DIR").map(PathBuf::from);
    let here = here.unwrap_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")));
    here.parent().map(Path::to_path_buf).context("xtask is outside a workspace")
}

/// `CI=true`: nothing may be skipped.
fn is_ci() -> bool {
    std::env::var("CI").is_ok_and(|value| value == "true" || value == "1")
}
