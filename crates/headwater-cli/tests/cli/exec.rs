//! `headwater consume --exec`: the exit code of a command decides what becomes of a message, and no kill loses one.

use std::collections::BTreeSet;
use std::os::unix::process::CommandExt;
use std::process::Child;
use std::time::Instant;

use serde_json::json;

use super::*;

/// How long a test waits for something that has to happen.
const SOON: Duration = Duration::from_secs(60);

fn create(place: &Place) {
    let retries = ["--backoff-initial", "10ms", "--backoff-max", "20ms", "--max-attempts", "50"];
    place.out(&[&["topic", "create", "orders"], &retries[..]].concat());
    place.out(&["group", "subscribe", "orders", "mail"]);
}

fn publish(place: &Place, lines: &str) {
    text(place.with_input(&["publish", "orders"], lines));
}

fn exec(place: &Place, command: &str, rest: &[&str]) -> Command {
    place.command(&[&["consume", "orders", "--group", "mail", "--exec", command], rest].concat())
}

fn read(place: &Place, file: &str) -> String {
    std::fs::read_to_string(place.folder.path().join(file)).unwrap_or_default()
}

fn group(place: &Place) -> serde_json::Value {
    place.one(&["group", "show", "orders", "mail"])
}

/// Waits for something that other processes do.
fn until(what: &str, mut happened: impl FnMut() -> bool) {
    let deadline = Instant::now() + SOON;
    while !happened() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::yield_now();
    }
}

fn signal(child: &Child, signal: &str) {
    assert!(Command::new("kill").args([signal, &child.id().to_string()]).status().unwrap().success());
}

fn exit_codes_decide(place: &Place) {
    create(place);
    publish(place, "0\n65\n75\n1\n");
    let command =
        "code=$(cat); echo $code $HEADWATER_ATTEMPT >> log; [ $HEADWATER_ATTEMPT -gt 1 ] || exit $code";
    let done = exec(place, command, &["--max", "6"]).output().unwrap();
    let printed = refusal(&done, 0);
    assert!(printed.contains("message buried") && printed.contains("command exited with 65"), "{printed}");
    assert!(printed.ends_with("3 acked, 2 failed, 1 buried\n"), "{printed}");
    let mut log: Vec<String> = read(place, "log").lines().map(str::to_owned).collect();
    log.sort_unstable();
    assert_eq!(log, ["0 1", "1 1", "1 2", "65 1", "75 1", "75 2"]);
    let status = group(place);
    assert_eq!(json!(fields(&status, ["lag", "dead_letters"])), json!([0, 1]));
    let buried = place.one(&["dead-letter", "list", "orders", "--group", "mail"]);
    assert_eq!(json!([buried["payload"], buried["error"]]), json!([65, "command exited with 65"]));
}

fn a_command_gets_the_whole_message(place: &Place) {
    place.out(&["topic", "create", "events", "--pub-sub"]);
    let message = ["--key", "k 1", "--type", "paid", "--header", "trace-id=a=b", "--correlation-id", "c"];
    place.out(&[&["publish", "events", "ünï\ncode"], &message[..]].concat());
    let command = "cat > payload; env | grep ^HEADWATER_ | sort > env";
    let consume = ["consume", "events", "--group", "mail", "--create", "--max", "1", "--exec", command];
    // Variables of another message, as inside such a command.
    let outer = [("HEADWATER_HEADER_OTHER", "x"), ("HEADWATER_KEY", "other")];
    assert!(place.command(&consume).envs(outer).output().unwrap().status.success());
    assert_eq!(read(place, "payload"), "ünï\ncode");
    let env = read(place, "env");
    for expected in [
        "HEADWATER_ATTEMPT=1",
        "HEADWATER_CONTENT_TYPE=text/plain",
        "HEADWATER_CORRELATION_ID=c",
        "HEADWATER_GROUP=mail",
        "HEADWATER_HEADER_TRACE_ID=a=b",
        "HEADWATER_KEY=k 1",
        "HEADWATER_OFFSET=1",
        "HEADWATER_PAYLOAD_BYTES=10",
        "HEADWATER_TOPIC=events",
        "HEADWATER_TYPE=paid",
    ] {
        assert!(env.lines().any(|line| line == expected), "{expected}: {env}");
    }
    assert!(env.contains("HEADWATER_MESSAGE_ID=") && env.contains("HEADWATER_CREATED_AT="), "{env}");
    assert!(!env.contains("OTHER"), "{env}");
    // What a message does not have is not in the environment.
    place.out(&["publish", "events", "2"]);
    assert!(place.command(&consume).envs(outer).output().unwrap().status.success());
    assert!(!read(place, "env").contains("HEADWATER_KEY"), "{}", read(place, "env"));
}

#[test]
fn commands_on_sqlite() {
    let place = Place::sqlite();
    exit_codes_decide(&place);
    a_command_gets_the_whole_message(&place);
}

#[test]
fn commands_on_postgres() {
    if let Some(place) = Place::postgres("exec") {
        exit_codes_decide(&place);
        a_command_gets_the_whole_message(&place);
    }
}

/// The payload is larger than a pipe.
#[test]
fn a_command_need_not_read_its_stdin() {
    let place = Place::sqlite();
    create(&place);
    publish(&place, &format!("{}\n", "x".repeat(1_000_000)));
    let done = exec(&place, "true", &["--max", "1"]).output().unwrap();
    assert_eq!(refusal(&done, 0), "1 acked, 0 failed, 0 buried\n");
    assert_eq!(group(&place)["lag"], 0);
}

/// A command that does not exist would fail for every message of the backlog.
#[test]
fn a_command_that_cannot_be_run_ends_it_and_fails_no_message() {
    let place = Place::sqlite();
    create(&place);
    publish(&place, "1\n2\n");
    let refused = exec(&place, "/nowhere/send-mail", &["--wait", "0s"]).output().unwrap();
    let refused = refusal(&refused, 1);
    assert!(refused.contains("the shell cannot run the command: exit code 127"), "{refused}");
    let status = group(&place);
    assert_eq!(json!(fields(&status, ["lag", "dead_letters", "retrying"])), json!([2, 0, 0]));
    let attempts = exec(&place, "echo $HEADWATER_ATTEMPT", &["--max", "2"]).output().unwrap();
    assert_eq!(text(attempts), "1\n1\n");
}

#[test]
fn usage_of_commands() {
    let place = Place::sqlite();
    let usage = |args: &str| refusal(&place.run(&args.split(' ').collect::<Vec<_>>()), 2);
    assert!(usage("consume orders --group mail --concurrency 2").contains("--exec"));
    assert!(usage("consume orders --group mail --timeout 2s").contains("--exec"));
    assert!(usage("consume orders --group mail --exec true --batch 2").contains("cannot be used with"));
    assert!(usage("consume orders --group mail --exec true --concurrency 0").contains("1..=1000"));
}

/// Each command waits for the others.
#[test]
fn commands_run_at_the_same_time() {
    let place = Place::sqlite();
    create(&place);
    publish(&place, "1\n2\n3\n4\n5\n");
    let command = "touch begun.$HEADWATER_OFFSET; for _ in $(seq 1000); do
        [ $(ls begun.* | wc -l) -ge 4 ] && exit 0; sleep 0.05; done; exit 1";
    let done = exec(&place, command, &["--max", "4", "--concurrency", "4"]).output().unwrap();
    assert_eq!(refusal(&done, 0), "4 acked, 0 failed, 0 buried\n");
    assert_eq!(group(&place)["lag"], 1, "--max is exact");
}

#[test]
fn a_command_that_takes_too_long_is_killed_and_fails() {
    let place = Place::sqlite();
    create(&place);
    publish(&place, "1\n");
    let rest = ["--max", "1", "--timeout", "100ms"];
    let done = exec(&place, "echo $$ > pid; sleep 1000; echo late > late", &rest).output().unwrap();
    assert!(done.status.success(), "{done:?}");
    assert_eq!(group(&place)["retrying"], 1);
    gone(&place);
    assert_eq!(read(&place, "late"), "");
}

/// The command whose id is in the file has ended, and what it started too: nothing runs in its process group.
fn gone(place: &Place) {
    let group = read(place, "pid").trim().to_owned();
    until("the command still runs", || {
        let all = Command::new("ps").args(["-eo", "pgid=,stat="]).output().unwrap().stdout;
        let all = String::from_utf8(all).unwrap();
        // A zombie does not run: its parent has not read its exit code yet.
        let mut of_group =
            all.lines().map(str::split_whitespace).filter(|words| words.clone().next() == Some(&group));
        !of_group.any(|mut words| words.nth(1).is_some_and(|stat| !stat.starts_with('Z')))
    });
}

/// A command that has begun and waits for the file `go`.
const WAITS: &str = "echo $$ > pid; mv pid begun; cp begun pid; until [ -e go ]; do sleep 0.05; done";

fn begin(place: &Place, rest: &[&str]) -> Child {
    let child = exec(place, WAITS, rest).stderr(Stdio::piped()).spawn().unwrap();
    until("the command has not begun", || !read(place, "begun").is_empty());
    child
}

#[test]
fn a_signal_waits_for_commands_and_a_second_one_kills_them() {
    let place = Place::sqlite();
    create(&place);
    publish(&place, "1\n2\n3\n");
    let child = begin(&place, &[]);
    signal(&child, "-INT");
    std::fs::write(place.folder.path().join("go"), "").unwrap();
    let ended = child.wait_with_output().unwrap();
    let stderr = refusal(&ended, 0);
    assert!(stderr.starts_with("stopping after the commands that run"), "{stderr}");
    assert!(stderr.ends_with("1 acked, 0 failed, 0 buried\n"), "{stderr}");
    assert_eq!(group(&place)["lag"], 2);

    for file in ["go", "begun"] {
        std::fs::remove_file(place.folder.path().join(file)).unwrap();
    }
    let mut child = begin(&place, &[]);
    let mut stderr = BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    for _ in 0..2 {
        signal(&child, "-TERM");
        stderr.read_line(&mut line).unwrap();
    }
    assert!(line.ends_with("killing the commands; again to stop at once\n"), "{line}");
    assert_eq!(child.wait().unwrap().code(), Some(1));
    gone(&place);
    let rest = exec(&place, "echo $HEADWATER_OFFSET $HEADWATER_ATTEMPT", &["--wait", "0s"]).output();
    let mut rest: Vec<String> = text(rest.unwrap()).lines().map(str::to_owned).collect();
    rest.sort_unstable();
    assert_eq!(rest, ["2 1", "3 1"], "released at once, and no attempt is counted");
}

/// The lease is shorter than the command: it is extended, and no other process gets the message. It is extended after a third, so it
/// ends only if the machine stalls for six seconds.
fn a_lease_lasts_as_long_as_its_command(place: &Place) {
    create(place);
    publish(place, "1\n");
    let child = begin(place, &["--max", "1", "--lease", "9s"]);
    let due = || {
        let shown = group(place);
        assert_eq!(shown["outstanding"][0]["state"], "leased", "{shown}");
        shown["outstanding"][0]["due_at"].as_str().unwrap().parse::<jiff::Timestamp>().unwrap()
    };
    let first = due();
    // Then the first lease would have ended.
    let later = first + jiff::SignedDuration::from_secs(9);
    until("the lease is not extended", || due() > later);
    let other = exec(place, "true", &["--wait", "0s", "--fail-if-empty"]).output().unwrap();
    refusal(&other, 3);
    std::fs::write(place.folder.path().join("go"), "").unwrap();
    assert_eq!(refusal(&child.wait_with_output().unwrap(), 0), "1 acked, 0 failed, 0 buried\n");
    assert_eq!(json!(fields(&group(place), ["lag", "reassigned"])), json!([0, 0]));
}

#[test]
fn a_lease_lasts_as_long_as_its_command_on_sqlite() {
    a_lease_lasts_as_long_as_its_command(&Place::sqlite());
}

#[test]
fn a_lease_lasts_as_long_as_its_command_on_postgres() {
    if let Some(place) = Place::postgres("exec_lease") {
        a_lease_lasts_as_long_as_its_command(&place);
    }
}

/// Every third command that begins is killed, or the consumer that started it, in turn; commands wait until that is
/// decided. In the end each message was handled to its end at least once, and is acked. A killed consumer leaves
/// orphans: they handle a message that another one gets too.
fn kills_lose_nothing(place: &Place, kills: usize) {
    create(place);
    let messages = kills * 3;
    publish(place, &(1..=messages).map(|n| format!("message {n}\n")).collect::<String>());
    let command = "echo $$; got=$(cat); [ ${#got} = $HEADWATER_PAYLOAD_BYTES ] || exit 75
        for _ in $(seq 1000); do rm go.$$ && break; sleep 0.05; done; echo $HEADWATER_OFFSET >> done";
    let rest = ["--concurrency", "2", "--lease", "3s", "--wait", "9s"];
    let (mut killed, mut begun) = (0, 0);
    loop {
        let consumer = &mut exec(place, command, &rest);
        // Its own group: the orphans of a killed consumer are in others.
        let mut consumer =
            consumer.stdout(Stdio::piped()).stderr(Stdio::null()).process_group(0).spawn().unwrap();
        let mut lines = BufReader::new(consumer.stdout.take().unwrap()).lines();
        let mut alive = true;
        while let Some(Ok(id)) = lines.next() {
            begun += usize::from(alive);
            if alive && begun % 3 == 0 && killed < kills {
                killed += 1;
                alive = killed % 2 != 0;
                if alive {
                    // It may have ended already, if its lease was lost.
                    Command::new("kill").args(["-KILL", &id]).stderr(Stdio::null()).status().unwrap();
                    continue;
                }
                consumer.kill().unwrap();
            }
            std::fs::write(place.folder.path().join(format!("go.{id}")), "").unwrap();
        }
        let status = consumer.wait().unwrap();
        if alive {
            assert!(status.success(), "{status}");
            break;
        }
    }
    let done = read(place, "done");
    let offsets: BTreeSet<usize> = done.lines().map(|line| line.parse().unwrap()).collect();
    println!(
        "{messages} messages, {killed} kills, {} handled twice or more",
        done.lines().count() - offsets.len()
    );
    assert_eq!(killed, kills);
    assert!(offsets.iter().copied().eq(1..=messages), "lost: {offsets:?}");
    assert_eq!(json!(fields(&group(place), ["lag", "dead_letters"])), json!([0, 0]));
    place.assert_sound();
}

#[test]
fn kills_lose_nothing_on_sqlite() {
    kills_lose_nothing(&Place::sqlite(), 8);
}

#[test]
fn kills_lose_nothing_on_postgres() {
    if let Some(place) = Place::postgres("exec_kills") {
        kills_lose_nothing(&place, 8);
    }
}

/// Minutes: `cargo test -p headwater-cli --test cli -- --ignored --nocapture a_hundred_kills`.
#[test]
#[ignore = "takes minutes"]
fn a_hundred_kills_lose_nothing() {
    kills_lose_nothing(&Place::sqlite(), 100);
    if let Some(place) = Place::postgres("hundred_kills") {
        kills_lose_nothing(&place, 100);
    }
}
