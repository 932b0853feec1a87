//! What a command does when the reader of its pipe ends.

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
        // This drops its copies of the pipe: the child's are the only ones left.
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
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(stderr.contains("everything was published, but printing it failed"), "{stderr}");
    assert_eq!(place.one(&["topic", "show", "orders"])["head"], LINES);
}

fn with_bytes(place: &Place, args: &[&str], input: &[u8]) -> std::process::Output {
    let piped = |command: &mut std::process::Command| {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let mut child = piped(&mut place.command(args));
    child.stdin.take().unwrap().write_all(input).unwrap();
    child.wait_with_output().unwrap()
}

/// A line is a payload, and a payload may have any bytes.
#[test]
fn lines_of_any_bytes_are_published_and_a_bad_json_line_is_named() {
    let place = Place::sqlite();
    let published = with_bytes(&place, &["publish", "orders"], b"one\n\xff\x00\xfe\r\n\nlast");
    assert_eq!(published.status.code(), Some(0), "{published:?}");
    let got = place.run(&["consume", "orders", "--group", "default", "--create", "--wait", "0s"]);
    assert_eq!(got.stdout, b"one\n\xff\x00\xfe\n\nlast\n");

    let input = b"{\"payload\":1}\n{\"payload\":\"\xff\"}\n{\"payload\":3}\n";
    let refused = with_bytes(&place, &["publish", "orders", "--json-lines"], input);
    assert_eq!(refused.status.code(), Some(1));
    let stderr = String::from_utf8(refused.stderr).unwrap();
    assert!(stderr.contains("line 2 of stdin"), "{stderr}");
    assert_eq!(
        place.run(&["consume", "orders", "--group", "default", "--create", "--wait", "0s"]).stdout,
        b"1\n",
        "the line before it was published"
    );
}
