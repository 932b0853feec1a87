//! What a command does when the program behind its pipe leaves.

use std::io::Write;
use std::process::Stdio;

use super::Place;

const LINES: usize = 5_000;

#[test]
fn publishing_continues_when_nothing_reads_the_answers() {
    let place = Place::sqlite();
    for (topic, with_stderr) in [("stdout", false), ("both", true)] {
        let (reader, writer) = std::io::pipe().unwrap();
        let mut command = place.command(&["publish", topic]);
        command.stdin(Stdio::piped()).stdout(writer.try_clone().unwrap());
        command.stderr(if with_stderr { writer.into() } else { Stdio::inherit() });
        let mut child = command.spawn().unwrap();
        // Its copies of the pipe go with it: the child's are the only ones left.
        drop(command);
        drop(reader);
        let lines: String = (0..LINES).map(|n| format!("{n}\n")).collect();
        child.stdin.take().unwrap().write_all(lines.as_bytes()).unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(0), "everything was published");
        assert_eq!(place.one(&["topic", "show", topic])["head"], LINES);
    }
}

#[test]
fn answers_that_cannot_be_written_are_a_failure_after_everything_is_published() {
    let Ok(full) = std::fs::OpenOptions::new().write(true).open("/dev/full") else { return };
    let place = Place::sqlite();
    let mut child = place
        .command(&["publish", "orders"])
        .stdin(Stdio::piped())
        .stdout(full)
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(&b"x\n".repeat(LINES)).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("everything was published, but printing it failed"), "{said}");
    assert_eq!(place.one(&["topic", "show", "orders"])["head"], LINES);
}
