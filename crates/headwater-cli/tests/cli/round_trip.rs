//! JSON out is JSON in: what `consume --output json` prints, `publish --json-lines` publishes.

use super::*;

fn all(place: &Place, topic: &str) -> Vec<headwater::Message> {
    let mut all = Vec::new();
    place.program(async |headwater| all = headwater.published(topic).await.unwrap());
    all
}

fn a_copy_is_the_same(place: &Place) {
    let message = ["--key", "k", "--type", "paid", "--header", "h=v", "--correlation-id", "c"];
    place.out(
        &[&["publish", "orders", r#"{"b": 1.50, "a": 12345678901234567890123}"#], &message[..]].concat(),
    );
    for payload in ["\"a string\"", "text", "", "{\n  \"a\": 1\n}"] {
        place.out(&["publish", "orders", payload]);
    }
    place.out(&["publish", "orders", "{not json", "--content-type", "application/json"]);
    let mut bytes = place.command(&["publish", "orders", "--whole"]).stdin(Stdio::piped()).spawn().unwrap();
    bytes.stdin.take().unwrap().write_all(b"\xff\x00\n\xfe").unwrap();
    assert!(bytes.wait().unwrap().success());

    let consume = ["consume", "orders", "--group", "copy", "--create", "--wait", "0s", "--output", "json"];
    let lines = place.out(&consume);
    assert_eq!(lines.lines().count(), 7);
    text(place.with_input(&["publish", "copied", "--json-lines"], &lines));

    let (sent, got) = (all(place, "orders"), all(place, "copied"));
    assert_eq!((sent.len(), got.len()), (7, 7));
    for (sent, mut got) in sent.into_iter().zip(got) {
        if sent.payload.starts_with(b"{\n") {
            assert_eq!(got.payload, "{   \"a\": 1 }", "a line has no line breaks");
            got.payload = sent.payload.clone();
        }
        got.created_at = sent.created_at;
        assert_eq!(got, sent);
    }
}

fn a_bad_line_says_what_was_published(place: &Place) {
    place.out(&["topic", "create", "bad"]);
    let publish = |lines: &str| place.with_input(&["publish", "bad", "--json-lines"], lines);
    let refused = refusal(&publish("{\"payload\":1}\n{\"payload\":2,\"oops\":1}\n{\"payload\":3}\n"), 1);
    assert!(refused.contains("published 1 message before line 2; nothing after it"), "{refused}");
    assert!(refused.contains("error: line 2 of stdin: unknown field `oops`, expected one of"), "{refused}");
    assert!(refused.contains("(column 19)") && !refused.contains("line 1"), "{refused}");
    assert_eq!(all(place, "bad").len(), 1);

    let refused = refusal(&publish("{\"payload_hex\":\"xx\"}\n"), 1);
    assert!(refused.contains("published 0 messages before line 1"), "{refused}");
    let refused = refusal(&publish("{\"payload\":1}\n{\"payload\":2,\"key\":\"\"}\n"), 2);
    assert!(refused.contains("line 2 of stdin: invalid key"), "{refused}");
    assert_eq!(all(place, "bad").len(), 2);
}

#[test]
fn round_trips_on_sqlite() {
    let place = Place::sqlite();
    a_copy_is_the_same(&place);
    a_bad_line_says_what_was_published(&place);
}

#[test]
fn round_trips_on_postgres() {
    if let Some(place) = Place::postgres("round_trip") {
        a_copy_is_the_same(&place);
        a_bad_line_says_what_was_published(&place);
    }
}
