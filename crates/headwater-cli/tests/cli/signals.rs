//! `headwater consume` on a signal: what it printed is acked, and the rest is available to others at once.

use std::process::Child;

use super::*;

const MESSAGES: usize = 400;

fn send(child: &Child, signal: &str) {
    assert!(Command::new("kill").args([signal, &child.id().to_string()]).status().unwrap().success());
}

/// The number at the start of each line.
fn numbers(printed: &str) -> Vec<usize> {
    printed.lines().map(|line| line[..4].parse().unwrap()).collect()
}

/// Afterwards each message is an outstanding range with its own lease, and a claim returns many of them.
fn retry_each(place: &Place, topic: &str) {
    place.program(async |headwater| {
        let mut consumer = headwater.consumer(topic, "default").batch(1_000).open().await.unwrap();
        let all = consumer.next(Duration::ZERO).await.unwrap().unwrap();
        assert_eq!(all.messages().len(), MESSAGES);
        all.handle(|_, _| async { Verdict::RetryAfter(Duration::ZERO, "again".into()) }).await.unwrap();
    });
}

/// The output is not read, so the child is in the middle of a batch when the signal arrives: a batch, or a few small ones,
/// are more than a pipe holds. The child acks what it printed, and none of its messages stay leased after it ended.
fn ends_in_order(place: &Place, signal: &str, one_by_one: bool) {
    let topic = if one_by_one { "single" } else { "batches" };
    let lines: String = (0..MESSAGES).map(|n| format!("{n:04}{}\n", "x".repeat(4_000))).collect();
    text(place.with_input(&["publish", topic], &lines));
    if one_by_one {
        retry_each(place, topic);
    }
    place.out(&["group", "subscribe", topic, "default"]);
    let consume = &mut place.command(&["consume", topic, "--group", "default", "--batch", "100"]);
    let mut child = consume.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    let mut printed = String::new();
    out.read_line(&mut printed).unwrap();
    send(&child, signal);
    let mut notice = String::new();
    BufReader::new(child.stderr.take().unwrap()).read_line(&mut notice).unwrap();
    assert!(notice.contains("stopping after the current batch"), "{notice}");
    out.read_to_string(&mut printed).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0));
    let mut got = numbers(&printed);
    assert!(if one_by_one { got.len() < 100 } else { got.len() == 100 }, "{} were printed", got.len());

    got.extend(numbers(
        &place.out(&["consume", topic, "--group", "default", "--batch", "100", "--wait", "0s"]),
    ));
    got.sort_unstable();
    assert!(got.iter().copied().eq(0..MESSAGES), "lost or doubled: {got:?}");
    assert_eq!(place.run(&["doctor"]).status.code(), Some(0));
}

#[test]
fn a_terminated_consumer_releases_the_rest_on_sqlite() {
    let place = Place::sqlite();
    ends_in_order(&place, "-TERM", false);
    ends_in_order(&place, "-INT", true);
}

#[test]
fn a_terminated_consumer_releases_the_rest_on_postgres() {
    if let Some(place) = Place::postgres("signals") {
        ends_in_order(&place, "-TERM", true);
        ends_in_order(&place, "-INT", false);
    }
}

/// Its output is not read, so it can neither finish its batch nor shut down gracefully: a second signal ends it.
#[test]
fn a_second_signal_ends_at_once() {
    let place = Place::sqlite();
    let lines: String = (0..100).map(|n| format!("{n:04}{}\n", "x".repeat(4_000))).collect();
    text(place.with_input(&["publish", "orders"], &lines));
    place.out(&["group", "subscribe", "orders", "default"]);
    let consume = &mut place.command(&["consume", "orders", "--group", "default", "--batch", "100"]);
    let mut child = consume.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    out.read_line(&mut String::new()).unwrap();
    send(&child, "-TERM");
    BufReader::new(child.stderr.take().unwrap()).read_line(&mut String::new()).unwrap();
    send(&child, "-TERM");
    assert_eq!(child.wait().unwrap().code(), Some(1));
}
