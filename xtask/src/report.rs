//! The output of the tests.

use std::io::Write;
use std::process::Command;

use anyhow::Result;

use crate::interrupt::Interrupt;
use crate::process;

/// Runs the tests and prints their report; whether all passed.
pub(crate) fn run(tests: &mut Command, interrupt: &Interrupt) -> Result<bool> {
    let mut report = Report::default();
    let print = move |line| {
        for line in report.line(line) {
            let _ = writeln!(std::io::stdout(), "{line}");
        }
    };
    Ok(process::run_with_lines(tests, interrupt, print)?.success())
}

/// The output of `cargo test`, with the output of failed tests before the names of those that passed: `cargo test` prints it
/// at the end of each test program, up to a thousand lines after the test's name. A program that crashes prints no result: what
/// passed in it is printed before the next program begins.
#[derive(Default)]
struct Report {
    passed: Vec<String>,
}

impl Report {
    /// What to print after a line, or after the last one (`None`).
    fn line(&mut self, line: Option<String>) -> Vec<String> {
        let Some(line) = line else { return std::mem::take(&mut self.passed) };
        if line.starts_with("test ") && (line.ends_with(" ... ok") || line.contains(" ... ignored")) {
            self.passed.push(line);
            return Vec::new();
        }
        if !line.starts_with("test result: ") && !line.starts_with("running ") {
            return vec![line];
        }
        let mut lines = std::mem::take(&mut self.passed);
        lines.push(line);
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn printed(lines: &str) -> String {
        let mut report = Report::default();
        let lines = lines.lines().map(|line| Some(line.to_owned())).chain([None]);
        lines.flat_map(|line| report.line(line)).collect::<Vec<String>>().join("\n")
    }

    #[test]
    fn failures_are_printed_before_the_tests_that_passed() {
        assert_eq!(
            printed(
                "running 4 tests\ntest a ... ok\ntest b ... FAILED\ntest c ... ignored, large\ntest d ... ok\n\nfailures:\nassertion\n\
                 test result: FAILED\nrunning 1 test\ntest e ... ok\ntest result: ok"
            ),
            "running 4 tests\ntest b ... FAILED\n\nfailures:\nassertion\ntest a ... ok\ntest c ... ignored, large\ntest d ... ok\n\
             test result: FAILED\nrunning 1 test\ntest e ... ok\ntest result: ok"
        );
    }

    #[test]
    fn what_passed_before_a_crash_is_printed_before_the_next_program() {
        assert_eq!(
            printed("running 2 tests\ntest a ... ok\nrunning 2 tests\ntest b ... ok\ntest result: ok"),
            "running 2 tests\ntest a ... ok\nrunning 2 tests\ntest b ... ok\ntest result: ok"
        );
        let last = "running 2 tests\ntest a ... ok";
        assert_eq!(printed(last), last, "also of the last program");
    }
}
