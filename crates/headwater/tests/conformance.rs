//! The conformance suite on both engines: one line per engine, in its module, beside its harness.

#[cfg(feature = "sqlite")]
#[path = "conformance/faulty.rs"]
mod faulty;
#[cfg(feature = "postgres")]
#[path = "conformance/postgres.rs"]
mod postgres;
#[cfg(feature = "sqlite")]
#[path = "conformance/sqlite.rs"]
mod sqlite;

#[cfg(any(feature = "sqlite", feature = "postgres"))]
use std::process::Command;

/// The body of the child processes that some cases start.
#[test]
#[ignore = "cases start it in separate processes"]
fn worker() {
    headwater::store::conformance::processes::work();
}

/// This test program, started to run [`worker`] and nothing else.
#[cfg(any(feature = "sqlite", feature = "postgres"))]
fn worker_command() -> Command {
    let program = std::env::current_exe().expect("the test program has a path");
    let mut command = Command::new(program);
    command.args(["worker", "--exact", "--ignored", "--nocapture", "--test-threads=1"]);
    command
}
