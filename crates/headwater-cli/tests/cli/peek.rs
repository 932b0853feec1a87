//! `headwater peek`: reads without a group, and changes nothing.

use serde_json::{Value, json};

use super::*;

fn peeking(place: &Place) {
    let unknown = refusal(&place.run(&["peek", "orders"]), 1);
    let known = if place.store.is_some() { "no headwater schema" } else { "no store at" };
    assert!(unknown.contains(known), "{unknown}");
    for n in 1..=5 {
        let key = if n % 2 == 0 { "even" } else { "odd" };
        place.out(&["publish", "orders", &n.to_string(), "--key", key, "--type", "number"]);
    }
    let offsets = |args: &[&str]| -> Vec<Value> {
        let printed = place.json(&[&["peek", "orders"], args].concat());
        printed.iter().map(|message| message["offset"].clone()).collect()
    };
    assert_eq!(offsets(&[]), [1, 2, 3, 4, 5]);
    assert_eq!(offsets(&["--from", "offset:4"]), [4, 5]);
    assert_eq!(offsets(&["--from", "bounded:2"]), [4, 5]);
    assert_eq!(offsets(&["--from", "now"]), Vec::<Value>::new());
    assert_eq!(offsets(&["--max", "2"]), [1, 2]);
    assert_eq!(offsets(&["--key", "even"]), [2, 4]);
    assert_eq!(offsets(&["--key", "odd", "--max", "2", "--from", "offset:2"]), [3, 5]);
    let third = place.json(&["peek", "orders", "--from", "offset:3", "--max", "1"]).remove(0);
    let time = format!("time:{}", third["created_at"].as_str().unwrap());
    assert_eq!(offsets(&["--from", &time]), [3, 4, 5]);
    assert_eq!(json!([third["payload"], third["key"], third["type"]]), json!([3, "odd", "number"]));

    let table = place.out(&["peek", "orders", "--max", "1"]);
    assert!(table.starts_with("       1  ") && table.ends_with("  odd  number  1\n"), "{table}");

    // It left nothing behind, and what it prints can be published.
    assert_eq!(place.json(&["group", "list", "orders"]).len(), 0);
    let lines = place.out(&["peek", "orders", "--key", "even", "--output", "json"]);
    text(place.with_input(&["publish", "copied", "--json-lines"], &lines));
    assert_eq!(place.json(&["peek", "copied"]).len(), 2);
}

/// What other processes publish is printed as it comes.
fn following(place: &Place) {
    place.out(&["publish", "events", "before"]);
    let mut peek = place.command(&["peek", "events", "--follow", "--max", "3", "--output", "json"]);
    let mut peek = peek.stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(peek.stdout.take().unwrap()).lines();
    let mut next =
        || serde_json::from_str::<Value>(&lines.next().unwrap().unwrap()).unwrap()["payload"].clone();
    assert_eq!(next(), "before");
    for payload in ["first", "second"] {
        place.out(&["publish", "events", payload]);
        assert_eq!(next(), payload);
    }
    assert_eq!(peek.wait().unwrap().code(), Some(0), "--max is exact");
}

#[test]
fn peeking_on_sqlite() {
    let place = Place::sqlite();
    peeking(&place);
    following(&place);
}

#[test]
fn peeking_on_postgres() {
    if let Some(place) = Place::postgres("peek") {
        peeking(&place);
        following(&place);
    }
}

/// `peek --follow | head -1` ends with its reader, although no further message comes.
#[test]
fn following_ends_with_its_reader() {
    let place = Place::sqlite();
    place.out(&["publish", "orders", "1"]);
    let mut peek = place.command(&["peek", "orders", "--follow"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(peek.stdout.take().unwrap()).lines();
    assert!(lines.next().unwrap().unwrap().ends_with("  1"));
    drop(lines);
    assert_eq!(peek.wait().unwrap().code(), Some(0));
}
