//! `headwater consume`: a group is created on purpose, and what keeps it waiting is reported.

use super::*;

fn notes(output: &Output) -> String {
    refusal(output, 0)
}

fn a_group_is_created_on_purpose(place: &Place) {
    place.out(&["topic", "create", "orders", "--pub-sub"]);
    text(place.with_input(&["publish", "orders"], "1\n2\n"));
    assert!(refusal(&place.run(&["consume", "orders"]), 2).contains("--group"));
    let consume = |group: &str, rest: &[&str]| {
        place.run(&[&["consume", "orders", "--wait", "0s", "--group", group], rest].concat())
    };
    let none = refusal(&consume("email", &[]), 1);
    assert!(none.contains("no group email on topic orders, which has none yet; --create"), "{none}");
    let first = consume("email", &["--create", "--max", "1"]);
    assert_eq!(notes(&first), "subscribed new group email at the beginning\n");
    assert_eq!(text(first), "1\n");
    assert_eq!(notes(&consume("email", &["--create", "--max", "1"])), "", "it exists");

    let slip = refusal(&consume("emial", &[]), 1);
    assert!(slip.contains("did you mean email? its groups: email"), "{slip}");
    assert_eq!(place.json(&["group", "list", "orders"]).len(), 1, "no group was created");

    let ignored = consume("email", &["--from", "beginning"]);
    assert!(notes(&ignored).contains("--from is ignored: group email exists and continues at offset 3"));
    assert_eq!(text(ignored), "");
    let late = consume("late", &["--create", "--from", "offset:2"]);
    assert_eq!(notes(&late), "subscribed new group late at offset 2\n");
    assert_eq!(text(late), "2\n");

    // A cancelled group is none: its name can be subscribed again.
    place.out(&["group", "cancel", "orders", "late", "--yes"]);
    assert!(refusal(&consume("late", &[]), 1).contains("its groups: email;"));
    assert_eq!(text(consume("late", &["--create"])), "1\n2\n");
}

fn a_wait_for_nothing_is_reported(place: &Place) {
    let consume = ["consume", "events", "--wait", "0s", "--group", "email"];
    place.out(&["publish", "events", "1"]);
    place.out(&["group", "subscribe", "events", "email"]);
    place.out(&["group", "pause", "events", "email"]);
    let paused = place.run(&consume);
    assert_eq!(notes(&paused), "group email is paused; `headwater group resume events email` resumes it\n");
    let empty = [&consume[..], &["--fail-if-empty"]].concat();
    assert!(refusal(&place.run(&empty), 3).contains("is paused"));
    place.out(&["group", "resume", "events", "email"]);
    let some = place.run(&empty);
    assert_eq!((notes(&some), text(some)), (String::new(), "1\n".into()));
    assert_eq!(refusal(&place.run(&empty), 3), "");
    assert_eq!(place.run(&consume).status.code(), Some(0), "without the option it is no failure");
}

#[test]
fn groups_and_waits_on_sqlite() {
    let place = Place::sqlite();
    a_group_is_created_on_purpose(&place);
    a_wait_for_nothing_is_reported(&place);
}

#[test]
fn groups_and_waits_on_postgres() {
    if let Some(place) = Place::postgres("consuming_groups") {
        a_group_is_created_on_purpose(&place);
        a_wait_for_nothing_is_reported(&place);
    }
}

fn a_topic_is_not_made_by_consuming(place: &Place) {
    place.out(&["publish", "orders", "1"]);
    let refused =
        refusal(&place.run(&["consume", "order", "--group", "mail", "--create", "--wait", "0s"]), 1);
    assert!(
        refused.contains("no such topic order; create it with `headwater topic create order`"),
        "{refused}"
    );
    assert_eq!(place.json(&["topic", "list"]).len(), 1);
    assert_eq!(place.out(&["consume", "orders", "--group", "mail", "--create", "--wait", "0s"]), "1\n");
}

#[test]
fn a_topic_is_not_made_by_consuming_on_sqlite() {
    a_topic_is_not_made_by_consuming(&Place::sqlite());
}

#[test]
fn a_topic_is_not_made_by_consuming_on_postgres() {
    if let Some(place) = Place::postgres("consuming") {
        a_topic_is_not_made_by_consuming(&place);
    }
}
