//! `headwater scheduled`: what is not due yet, cancelled or moved by hand.

use super::*;

fn cancelled_and_moved(place: &Place) {
    place.out(&["publish", "reminders", "first", "--key", "o-1", "--delay", "2h"]);
    place.out(&["publish", "reminders", "second", "--key", "o-2", "--delay", "1h"]);
    let listed = place.json(&["scheduled", "list", "reminders"]);
    let keys: Vec<_> = listed.iter().map(|message| message["key"].as_str().unwrap()).collect();
    assert_eq!(keys, ["o-2", "o-1"], "by their time");
    assert_eq!(listed[0]["payload_bytes"], 6);
    let id = |at: usize| listed[at]["message_id"].as_str().unwrap();
    assert!(place.out(&["scheduled", "list", "reminders", "--max", "1"]).contains("o-2"));

    assert_eq!(place.one(&["scheduled", "cancel", "reminders", id(0)])["cancelled"], id(0));
    let gone = refusal(&place.run(&["scheduled", "cancel", "reminders", id(0)]), 1);
    assert!(gone.contains("not scheduled in topic reminders"), "{gone}");
    assert_eq!(place.one(&["scheduled", "move", "reminders", id(1), "--delay", "3h"])["moved"], id(1));
    let later = place.one(&["scheduled", "list", "reminders"]);
    assert!(later["deliver_at"].as_str().unwrap() > listed[1]["deliver_at"].as_str().unwrap(), "{later}");
    place.out(&["scheduled", "move", "reminders", id(1), "--deliver-at", "2020-01-31T12:00:00Z"]);
    assert_eq!(place.out(&["consume", "reminders", "--group", "g", "--create", "--max", "1"]), "first\n");
    refusal(&place.run(&["scheduled", "move", "reminders", id(1), "--delay", "3h"]), 1);

    let acts: Vec<_> = place.json(&["audit"]).iter().map(|entry| entry["act"].clone()).collect();
    assert_eq!(acts, ["reschedule", "reschedule", "cancel_scheduled"], "newest first");
    // A delay reaches the store as one, which counts from the database's clock and has its own limit.
    let refused = refusal(&place.run(&["publish", "reminders", "late", "--delay", "400d"]), 2);
    assert!(refused.contains("invalid delay: longer than 366 days"), "{refused}");
    let lines =
        "{\"payload\":\"by delay\"}\n{\"payload\":\"at once\",\"deliver_at\":\"2020-01-31T12:00:00Z\"}\n";
    text(place.with_input(&["publish", "reminders", "--json-lines", "--delay", "1h"], lines));
    assert_eq!(place.json(&["scheduled", "list", "reminders"]).len(), 1);
    assert_eq!(place.out(&["consume", "reminders", "--group", "g", "--max", "1"]), "at once\n");
    // Wrong usage: no time, two times, no such topic.
    refusal(&place.run(&["scheduled", "move", "reminders", id(1)]), 2);
    let two = ["--delay", "1h", "--deliver-at", "2020-01-31T12:00:00Z"];
    refusal(&place.run(&[&["scheduled", "move", "reminders", id(1)], &two[..]].concat()), 2);
    assert!(refusal(&place.run(&["scheduled", "list", "nowhere"]), 1).contains("no such topic: nowhere"));
}

#[test]
fn scheduled_messages_are_listed_cancelled_and_moved() {
    cancelled_and_moved(&Place::sqlite());
}

#[test]
fn scheduled_messages_are_listed_cancelled_and_moved_on_postgres() {
    let Some(place) = Place::postgres("scheduled") else { return };
    cancelled_and_moved(&place);
}
