//! `headwater consume` into a pipe: nothing is acked that the reader did not take.

use std::collections::BTreeMap;
use std::process::Child;

use super::*;

const SIGPIPES: usize = 50;

fn publish(place: &Place, messages: usize) {
    place.out(&["topic", "create", "orders"]);
    place.out(&["group", "subscribe", "orders", "mail"]);
    let lines: String = (1..=messages).map(|n| format!("{n}\n")).collect();
    text(place.with_input(&["publish", "orders"], &lines));
}

/// `headwater consume orders --group mail ARGS | head ARGS`.
fn with_head(place: &Place, args: &[&str], head: &[&str]) -> (Child, Child) {
    let consume = &mut place.command(&[&["consume", "orders", "--group", "mail"], args].concat());
    let mut consumer = consume.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let pipe = consumer.stdout.take().unwrap();
    let head = Command::new("head").args(head).stdin(pipe).stdout(Stdio::piped()).spawn().unwrap();
    (consumer, head)
}

fn lag(place: &Place) -> serde_json::Value {
    place.one(&["group", "show", "orders", "mail"])["lag"].clone()
}

/// One `head -1` after the other, as many as there are messages: each prints one, and together they print all. Some
/// consumers get a SIGPIPE while they run, which changes nothing.
fn every_head_gets_a_message(place: &Place, rounds: usize, sigpipes: usize) {
    publish(place, rounds);
    let mut printed: BTreeMap<usize, usize> = BTreeMap::new();
    let mut runs = 0;
    while printed.len() < rounds {
        runs += 1;
        assert!(runs <= 2 * rounds, "no progress: {} of {rounds} after {runs} runs", printed.len());
        let (mut consumer, head) = with_head(place, &[], &["-1"]);
        let signalled = runs % (rounds / sigpipes) == 0;
        let kill = || {
            let id = consumer.id().to_string();
            assert!(Command::new("kill").args(["-PIPE", &id]).status().unwrap().success());
        };
        // Every other one right at its start, where it may still end by it, the others around the end of the reader.
        let early = signalled && runs % 2 == 0;
        if early {
            kill();
        }
        let line = text(head.wait_with_output().unwrap());
        if signalled && !early {
            kill();
        }
        let status = consumer.wait().unwrap();
        if early && line.is_empty() {
            assert_eq!(status.code(), None, "a head without a message");
            continue;
        }
        *printed.entry(line.trim().parse().unwrap()).or_default() += 1;
        assert_eq!(status.code(), Some(0), "a reader that has gone is no failure");
    }
    let twice = printed.values().filter(|times| **times > 1).count();
    println!("{rounds} messages, {runs} runs, 0 lost, {twice} printed more than once");
    assert!(printed.keys().copied().eq(1..=rounds), "lost: {printed:?}");
    assert_eq!(lag(place), 0, "all of them are acked");
    place.assert_sound();
}

#[test]
fn a_pipe_that_closes_loses_nothing_on_sqlite() {
    every_head_gets_a_message(&Place::sqlite(), 20, 5);
}

#[test]
fn a_pipe_that_closes_loses_nothing_on_postgres() {
    if let Some(place) = Place::postgres("taken") {
        every_head_gets_a_message(&place, 20, 5);
    }
}

/// Minutes: `cargo test -p headwater-cli --test cli -- --ignored --nocapture a_thousand_heads`.
#[test]
#[ignore = "takes minutes"]
fn a_thousand_heads_lose_nothing() {
    every_head_gets_a_message(&Place::sqlite(), 1_000, SIGPIPES);
    if let Some(place) = Place::postgres("thousand") {
        every_head_gets_a_message(&place, 1_000, SIGPIPES);
    }
}

/// A batch is claimed together, and still only what the reader has taken of it is acked.
#[test]
fn of_a_batch_what_was_taken_is_acked() {
    let place = Place::sqlite();
    publish(&place, 10);
    let (mut consumer, head) = with_head(&place, &["--batch", "10"], &["-3"]);
    assert_eq!(text(head.wait_with_output().unwrap()), "1\n2\n3\n");
    assert!(consumer.wait().unwrap().success());
    assert_eq!(lag(&place), 7);
    let rest = ["consume", "orders", "--group", "mail", "--max", "5", "--batch", "4"];
    assert_eq!(place.out(&rest), "4\n5\n6\n7\n8\n", "--max is exact");
    assert_eq!(lag(&place), 2);
}

/// A message that is larger than the pipe, and whose reader ends in the middle of it.
#[test]
fn a_message_that_was_taken_in_part_is_not_acked() {
    let place = Place::sqlite();
    publish(&place, 0);
    text(place.with_input(&["publish", "orders"], &format!("{}\n", "x".repeat(300_000))));
    let (mut consumer, head) = with_head(&place, &[], &["-c", "1000"]);
    assert_eq!(text(head.wait_with_output().unwrap()).len(), 1_000);
    assert!(consumer.wait().unwrap().success());
    assert_eq!(lag(&place), 1);
    assert_eq!(place.out(&["consume", "orders", "--group", "mail", "--max", "1"]).len(), 300_001);
}

/// A reader that takes nothing and ends: the message is in the pipe and in no program.
#[test]
fn a_message_that_is_left_in_the_pipe_is_not_acked() {
    let place = Place::sqlite();
    publish(&place, 1);
    let consume = &mut place.command(&["consume", "orders", "--group", "mail"]);
    let mut consumer = consume.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let pipe = consumer.stdout.take().unwrap();
    while rustix::io::ioctl_fionread(&pipe).unwrap() == 0 {
        assert!(consumer.try_wait().unwrap().is_none(), "it ended without a message");
        std::thread::yield_now();
    }
    drop(pipe);
    assert!(consumer.wait().unwrap().success());
    assert_eq!(lag(&place), 1);
}

/// The lease is shorter than a slow reader takes: it is extended, and no other process gets the message. It is extended after a third,
/// so it ends only if the machine stalls for six seconds.
#[test]
fn a_lease_lasts_until_a_slow_reader_has_taken_its_message() {
    let place = Place::sqlite();
    publish(&place, 1);
    let consume =
        &mut place.command(&["consume", "orders", "--group", "mail", "--lease", "9s", "--max", "1"]);
    let mut consumer = consume.stdout(Stdio::piped()).spawn().unwrap();
    let due = || {
        let shown = place.one(&["group", "show", "orders", "mail"]);
        let due = shown["outstanding"][0]["due_at"].as_str();
        due.map(|due| due.parse::<jiff::Timestamp>().unwrap())
    };
    let deadline = std::time::Instant::now() + Duration::from_secs(60);
    let mut first = None;
    loop {
        let now = due();
        first = first.or(now);
        // Then the first lease would have ended.
        if let (Some(first), Some(now)) = (first, now)
            && now > first + jiff::SignedDuration::from_secs(9)
        {
            break;
        }
        assert!(std::time::Instant::now() < deadline, "the lease is not extended");
    }
    assert_eq!(place.out(&["consume", "orders", "--group", "mail", "--wait", "0s"]), "");
    let mut printed = String::new();
    consumer.stdout.take().unwrap().read_to_string(&mut printed).unwrap();
    assert_eq!((printed.as_str(), consumer.wait().unwrap().code()), ("1\n", Some(0)));
    assert_eq!(lag(&place), 0);
}

/// The consumer of an idle topic ends with its reader: it does not wait for a message that it could not print.
#[test]
fn an_idle_consumer_ends_with_its_reader() {
    let place = Place::sqlite();
    publish(&place, 1);
    let (mut consumer, head) = with_head(&place, &[], &["-1"]);
    assert_eq!(text(head.wait_with_output().unwrap()), "1\n");
    assert!(consumer.wait().unwrap().success());
}

/// A file takes all that is written.
#[test]
fn a_file_takes_whole_batches() {
    let place = Place::sqlite();
    publish(&place, 250);
    place.out(&["topic", "alter", "orders", "--ack-log"]);
    let file = std::fs::File::create(place.folder.path().join("out")).unwrap();
    let consume = &mut place.command(&["consume", "orders", "--group", "mail", "--max", "220"]);
    assert!(consume.stdout(file).status().unwrap().success());
    let printed = std::fs::read_to_string(place.folder.path().join("out")).unwrap();
    assert_eq!(printed, (1..=220).map(|n| format!("{n}\n")).collect::<String>());
    assert_eq!(lag(&place), 30, "--max is exact");
    let ack = &place.json(&["group", "acks", "orders", "1"])[0];
    assert_eq!((&ack["first"], &ack["last"]), (&1.into(), &100.into()));
}
