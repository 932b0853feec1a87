//! `cargo xtask test`: the tree's rules, every test on both engines, the doc tests; one summary at the end.

use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use headwater_servers::find_program;

use crate::brokers::Brokers;
use crate::interrupt::Interrupt;
use crate::languages::{self, LANGUAGES_VARIABLE};
use crate::packages::{self, Need};
use crate::process::{self, cargo, say};
use crate::services::{self, Durability, POSTGRES_VARIABLE};
use crate::{browser, clients, is_ci, report, schemathesis, tidy};

/// The environment variable that makes a missing service a failure of tests, not a reason to skip them.
const REQUIRE_ALL_VARIABLE: &str = "HEADWATER_TEST_REQUIRE_ALL";

/// Tests of a started server that can be run by themselves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Clients,
    Browser,
    Api,
}

/// The options of `test`.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Options {
    sqlite_only: bool,
    tests_only: bool,
    only: Option<Part>,
    /// How long requests are made from the OpenAPI document.
    api_seconds: Option<u32>,
    /// Everything after `--`, for the test runner.
    runner_arguments: Vec<String>,
}

impl Options {
    pub(crate) fn parse(arguments: &[String]) -> Result<Self> {
        let mut options = Self::default();
        let mut rest = arguments.iter();
        while let Some(argument) = rest.next() {
            match argument.as_str() {
                "--sqlite-only" => options.sqlite_only = true,
                "--tests-only" => options.tests_only = true,
                "--only" => match rest.next().map(String::as_str) {
                    Some("clients") => options.only = Some(Part::Clients),
                    Some("browser") => options.only = Some(Part::Browser),
                    Some("api") => options.only = Some(Part::Api),
                    _ => bail!("test: --only takes `clients`, `browser` or `api`"),
                },
                "--api-seconds" => match rest.next().and_then(|seconds| seconds.parse().ok()) {
                    Some(seconds) if seconds > 0 => options.api_seconds = Some(seconds),
                    _ => bail!("test: --api-seconds takes a number above 0"),
                },
                "--" => {
                    options.runner_arguments = rest.cloned().collect();
                    break;
                }
                other => bail!("test: unknown option {other}; filters for the test runner follow `--`"),
            }
        }
        Ok(options)
    }

    /// CI runs everything, whatever the options.
    fn check(&self, ci: bool) -> Result<()> {
        if ci && (self.sqlite_only || self.tests_only || self.only.is_some()) {
            bail!("with CI=true nothing may be left out");
        }
        Ok(())
    }
}

/// The steps so far: name, duration and result of each.
struct Steps<'a> {
    interrupt: &'a Interrupt,
    lines: Vec<String>,
    failed: bool,
    begun: Instant,
}

impl Steps<'_> {
    /// Later steps run even after a failed one: one run shows all failures.
    fn take(&mut self, name: &str, step: impl FnOnce() -> Result<bool>) -> Result<()> {
        self.interrupt.check()?;
        say(&format!("==> {name}"));
        let begun = Instant::now();
        let outcome = step();
        self.interrupt.check()?;
        let passed = outcome.unwrap_or_else(|error| {
            say(&format!("error: {name}: {error:#}"));
            false
        });
        self.failed |= !passed;
        self.lines.push(line(if passed { "ok" } else { "FAILED" }, begun.elapsed(), name));
        Ok(())
    }

    fn leave_out(&mut self, what: &str) {
        say(&format!("LEFT OUT: {what}"));
        self.lines.push(format!("{:<10} {what}", "LEFT OUT"));
    }

    fn finish(&self) -> ExitCode {
        say("\nSteps:");
        self.lines.iter().for_each(|line| say(&format!("  {line}")));
        let (word, code) =
            if self.failed { ("FAILED", ExitCode::FAILURE) } else { ("ok", ExitCode::SUCCESS) };
        say(&format!("  {}", line(word, self.begun.elapsed(), "in all")));
        code
    }
}

pub(crate) fn run(root: &Path, interrupt: &Interrupt, options: &Options) -> Result<ExitCode> {
    options.check(is_ci())?;
    match run_steps(root, interrupt, options) {
        // The server is stopped by now: it lived inside that call.
        Err(error) if interrupt.signal().is_some() => {
            say(&format!("error: {error:#}"));
            Ok(interrupt.exit_code().unwrap_or(ExitCode::FAILURE))
        }
        outcome => outcome,
    }
}

fn run_steps(root: &Path, interrupt: &Interrupt, options: &Options) -> Result<ExitCode> {
    let mut steps = Steps { interrupt, lines: Vec::new(), failed: false, begun: Instant::now() };
    if let Some(only) = options.only {
        steps.leave_out(&format!("everything but {only:?} (--only)"));
    } else if options.tests_only {
        steps.leave_out("tidy and doc tests (--tests-only)");
    } else {
        steps.take("tidy", || tidy::check(root, interrupt))?;
    }
    let given = std::env::var(POSTGRES_VARIABLE).ok().filter(|url| !url.is_empty());
    let mut server = None;
    let mut url = None;
    if options.sqlite_only {
        steps.leave_out("everything that needs PostgreSQL (--sqlite-only): one engine is NOT tested");
    } else if let Some(given) = given {
        say(&format!("using the server of {POSTGRES_VARIABLE}"));
        url = Some(given);
    }
    let must_start = !options.sqlite_only && url.is_none();
    steps.take("services", || {
        packages::ensure(&needs(options.sqlite_only, must_start))?;
        if must_start {
            let started = services::start(root, Durability::Fast, interrupt)?;
            url = Some(started.url("postgres"));
            server = Some(started);
        }
        Ok(true)
    })?;
    if must_start && server.is_none() {
        say("without PostgreSQL, `cargo xtask test --sqlite-only` tests only the embedded engine");
        return Ok(steps.finish());
    }
    if options.only.is_some() {
        test_server(root, &mut steps, options, url.as_deref())?;
        return Ok(steps.finish());
    }
    let mut brokers = start_brokers(root, &mut steps)?;
    let mut drivers = None;
    if !options.sqlite_only {
        steps.take("drivers of other languages", || {
            drivers = Some(languages::ensure(root)?);
            Ok(true)
        })?;
    }
    if find_program(NEXTEST).is_none() {
        // Tests run them. For targets selected by kind, `cargo test` builds tests instead of programs.
        let examples = cargo(root, &["build", "--workspace", "--all-features", "--examples"]);
        steps.take("examples", || succeeds(examples, None, interrupt))?;
    }
    wait_for_brokers(&mut brokers, &mut steps)?;
    let mut tests = runner(root, options)?;
    tests.envs(brokers.environment());
    if let Some(drivers) = drivers {
        tests.env(LANGUAGES_VARIABLE, drivers);
    }
    with_services(&mut tests, url.as_deref());
    steps.take("tests", || report::run(&mut tests, interrupt))?;
    if !options.tests_only {
        let doc_tests = cargo(root, &["test", "--workspace", "--all-features", "--doc"]);
        steps.take("doc tests", || succeeds(doc_tests, url.as_deref(), interrupt))?;
    }
    if options.runner_arguments.is_empty() || is_ci() {
        test_server(root, &mut steps, options, url.as_deref())?;
    } else {
        steps.leave_out("clients, browser and API (arguments for the test runner are given)");
    }
    steps.take("stop services", || {
        drop(brokers);
        drop(server.take());
        Ok(true)
    })?;
    Ok(steps.finish())
}

/// The tests that start servers of the program itself: those of clients, those of the dashboard in a browser, and those of the API.
fn test_server(root: &Path, steps: &mut Steps<'_>, options: &Options, url: Option<&str>) -> Result<()> {
    let interrupt = steps.interrupt;
    let mut binary = None;
    steps.take("program for the tests of clients", || {
        binary = Some(clients::server(root, interrupt, options.only.is_none())?);
        Ok(true)
    })?;
    let Some(binary) = binary else { return Ok(()) };
    let run = |tests| succeeds(clients::with_server(tests, &binary), url, interrupt);
    let is_wanted = |part| options.only.is_none_or(|only| only == part);
    if is_wanted(Part::Clients) {
        steps.take("Python client", || clients::python(root, interrupt, run))?;
        steps.take("TypeScript client", || clients::typescript(root, interrupt, run))?;
    }
    if is_wanted(Part::Browser) {
        steps.take("dashboard in a browser", || run(browser::tests(root)?))?;
    }
    if is_wanted(Part::Api) {
        let seconds = options.api_seconds.unwrap_or(schemathesis::SECONDS);
        steps.take("API against its document", || schemathesis::run(root, interrupt, &binary, seconds))?;
    }
    Ok(())
}

/// They become ready while tests are compiled. With CI=true a missing one fails the run; else its tests are left out.
fn start_brokers(root: &Path, steps: &mut Steps<'_>) -> Result<Brokers> {
    let mut brokers = Brokers::default();
    steps.take("brokers", || {
        brokers = Brokers::start(root)?;
        Ok(true)
    })?;
    Ok(brokers)
}

fn wait_for_brokers(brokers: &mut Brokers, steps: &mut Steps<'_>) -> Result<()> {
    let interrupt = steps.interrupt;
    steps.take("wait for brokers", || {
        brokers.wait(interrupt)?;
        let reasons = brokers.missing.iter();
        reasons.for_each(|reason| say(&format!("cannot be started: {reason}")));
        Ok(brokers.missing.is_empty() || !is_ci())
    })?;
    for reason in &brokers.missing {
        let name = reason.split(':').next().unwrap_or_default();
        steps.leave_out(&format!("tests that need {name}, which cannot be started: NOT tested"));
    }
    Ok(())
}

fn needs(sqlite_only: bool, must_start: bool) -> Vec<Need> {
    let mut needs = vec![Need::Sqlite, Need::Promtool, Need::Python, Need::Node, Need::Npm];
    if !sqlite_only {
        needs.push(Need::PostgresClient);
    }
    if must_start {
        needs.push(Need::PostgresServer);
    }
    needs
}

/// How many tests `cargo test` runs at once.
const THREADS_VARIABLE: &str = "RUST_TEST_THREADS";
const NEXTEST: &str = "cargo-nextest";

/// cargo-nextest, or where that is not installed `cargo test`, which runs the same tests.
fn runner(root: &Path, options: &Options) -> Result<Command> {
    let mut command = if find_program(NEXTEST).is_some() {
        let mut command = cargo(root, &["nextest", "run", "--workspace", "--all-features"]);
        // A profile in ARGS overrides it.
        if !options.runner_arguments.iter().any(|argument| argument.starts_with("--profile")) {
            command.args(["--profile", if is_ci() { "ci" } else { "default" }]);
        }
        command
    } else {
        say("cargo-nextest is not installed: running the same tests with `cargo test`");
        let arguments = ["test", "--workspace", "--all-features", "--no-fail-fast"];
        let mut command = cargo(root, &arguments);
        // As nextest does; doc tests are a step of their own.
        command.args(["--lib", "--bins", "--tests"]);
        if std::env::var_os(THREADS_VARIABLE).is_none() {
            // One more than there are cores: a test waits for a disk, a server or a deadline half of its time.
            let threads = std::thread::available_parallelism()?.get() + 1;
            command.env(THREADS_VARIABLE, threads.to_string());
        }
        command
    };
    command.args(&options.runner_arguments);
    Ok(command)
}

fn with_services(command: &mut Command, postgres_url: Option<&str>) {
    match postgres_url {
        Some(url) => command.env(POSTGRES_VARIABLE, url),
        None => command.env_remove(POSTGRES_VARIABLE),
    };
    if is_ci() {
        command.env(REQUIRE_ALL_VARIABLE, "1");
    }
}

fn succeeds(mut command: Command, postgres_url: Option<&str>, interrupt: &Interrupt) -> Result<bool> {
    with_services(&mut command, postgres_url);
    Ok(process::run(&mut command, interrupt)?.success())
}

fn line(word: &str, time: Duration, name: &str) -> String {
    format!("{word:<10} {:>7.1} s  {name}", time.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(words: &[&str]) -> Result<Options> {
        Options::parse(&words.iter().map(ToString::to_string).collect::<Vec<_>>())
    }

    #[test]
    fn arguments_after_the_dashes_are_the_runners() {
        let options = parse(&["--tests-only", "--", "--sqlite-only", "claim"]).unwrap();
        assert!(options.tests_only && !options.sqlite_only);
        assert_eq!(options.runner_arguments, ["--sqlite-only", "claim"]);
        assert!(parse(&["claim"]).is_err());
    }

    #[test]
    fn one_part_can_be_tested_alone() {
        assert_eq!(parse(&["--only", "browser"]).unwrap().only, Some(Part::Browser));
        assert_eq!(parse(&["--only", "clients"]).unwrap().only, Some(Part::Clients));
        let api = parse(&["--only", "api", "--api-seconds", "600"]).unwrap();
        assert_eq!((api.only, api.api_seconds), (Some(Part::Api), Some(600)));
        assert!(parse(&["--api-seconds", "0"]).is_err() && parse(&["--api-seconds"]).is_err());
        assert!(parse(&["--only"]).is_err() && parse(&["--only", "claim"]).is_err());
    }

    #[test]
    fn ci_leaves_nothing_out() {
        assert!(parse(&["--sqlite-only"]).unwrap().check(true).is_err());
        assert!(parse(&["--tests-only"]).unwrap().check(true).is_err());
        assert!(parse(&["--only", "browser"]).unwrap().check(true).is_err());
        assert!(parse(&["--sqlite-only"]).unwrap().check(false).is_ok());
        assert!(parse(&[]).unwrap().check(true).is_ok());
    }

    #[test]
    fn one_failed_step_fails_the_run_but_not_the_later_steps() {
        let interrupt = Interrupt::never();
        let mut steps =
            Steps { interrupt: &interrupt, lines: Vec::new(), failed: false, begun: Instant::now() };
        let mut ran = 0;
        steps.take("a", || bail!("broken")).unwrap();
        steps.take("b", || Ok(true)).unwrap();
        steps
            .take("c", || {
                ran += 1;
                Ok(true)
            })
            .unwrap();
        assert_eq!(ran, 1);
        assert!(steps.failed);
        assert!(
            steps.lines[0].starts_with("FAILED") && steps.lines[1].starts_with("ok"),
            "{:?}",
            steps.lines
        );
    }

    #[test]
    fn given_server_needs_no_server_package() {
        assert!(!needs(false, false).contains(&Need::PostgresServer));
        assert!(!needs(true, false).contains(&Need::PostgresClient));
        assert!(needs(false, true).contains(&Need::PostgresServer));
    }
}
