//! Dead groups: how they are shown and resurrected, and how messages are given up for them.

use std::time::Instant;

use headwater::store::Served;
use headwater::{GroupName, TopicName};
use serde_json::{Value, json};

use super::*;

/// A process of the group sends one heartbeat, and never again.
fn speak_once(place: &Place, topic: &str, group: &str) {
    place.program(async |headwater| {
        let (topic, group) = (TopicName::new(topic).unwrap(), GroupName::new(group).unwrap());
        let groups = headwater.store().subscriptions(&topic).await.unwrap();
        let own = groups.iter().find(|status| status.group == group).unwrap();
        let served = [Served::new(own.subscription_id)];
        headwater.store().heartbeat(&Owner::new("worker-1").unwrap(), None, &served).await.unwrap();
    });
}

fn group(place: &Place, topic: &str, name: &str) -> Value {
    let listed = place.json(&["group", "list", topic]);
    listed.into_iter().find(|group| group["group"] == name).unwrap()
}

/// Runs dead detection until the group is dead: the first run after a pause of maintenance only suspects.
fn die(place: &Place, topic: &str, name: &str) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while group(place, topic, name)["state"] != "dead" {
        assert!(Instant::now() < deadline, "not declared dead: {}", group(place, topic, name));
        place.out(&["maintain", "--only", "dead_detection"]);
    }
}

fn deaths(place: &Place) {
    let heartbeats = ["--heartbeat-interval", "100ms", "--heartbeat-timeout", "200ms"];
    place.out(&[&["topic", "create", "orders", "--pub-sub"], &heartbeats[..]].concat());
    for name in ["mail", "audit", "quiet"] {
        place.out(&["group", "subscribe", "orders", name]);
    }
    text(place.with_input(&["publish", "orders"], "1\n2\n3\n4\n"));
    place.out(&["consume", "orders", "--group", "audit", "--max", "4"]);
    place.out(&["consume", "orders", "--group", "mail", "--max", "1"]);
    speak_once(place, "orders", "mail");
    die(place, "orders", "mail");
    let dead = group(place, "orders", "mail");
    assert_eq!(json!(fields(&dead, ["healthy", "health_issues", "lag"])), json!([false, ["dead"], 3]));
    assert_eq!(
        group(place, "orders", "quiet")["state"],
        "active",
        "a group without any heartbeat is never dead"
    );
    place.out(&["group", "cancel", "orders", "quiet", "--yes"]);
    die(place, "orders", "audit");
    assert!(place.out(&["group", "list", "orders"]).contains("dead"));
    assert!(refusal(&place.run(&["group", "resume", "orders", "mail"]), 1).contains("is dead"));

    let back = place.one(&["group", "resurrect", "orders", "mail"]);
    assert_eq!(
        json!(fields(&back, ["resurrected", "next", "missed", "missed_first"])),
        json!([true, 2, 0, null])
    );
    let again = place.run(&["group", "resurrect", "orders", "mail", "--output", "json"]);
    assert!(refusal(&again, 0).contains("active already"));
    assert!(refusal(&place.run(&["group", "resurrect", "orders", "x"]), 1).contains("no such subscription"));

    speak_once(place, "orders", "mail");
    die(place, "orders", "mail");
    let back = place.one(&["group", "resurrect", "orders", "mail", "--behind-max", "1", "--backfill"]);
    assert_eq!(json!(fields(&back, ["resurrected", "next"])), json!([true, 4]));
    give_up(place);
    place.assert_sound();
}

/// Messages that only dead groups have not done.
fn give_up(place: &Place) {
    place.out(&["group", "seek", "orders", "mail", "--to", "offset:2", "--yes"]);
    speak_once(place, "orders", "mail");
    die(place, "orders", "mail");
    let force =
        |rest: &[&'static str]| [&["group", "force-complete", "orders", "--older-than"], rest].concat();
    assert_eq!(place.json(&force(&["1h", "--dry-run"])).len(), 0, "none is an hour old");
    let names = ["group", "dry_run", "messages", "until"];
    let would = place.one(&force(&["0s", "--dry-run"]));
    assert_eq!(json!(fields(&would, names)), json!(["mail", true, 3, 4]));
    assert_eq!(group(place, "orders", "mail")["lag"], 3, "a dry run changes nothing");
    assert!(refusal(&place.run(&force(&["0s"])), 2).contains("--yes"));
    assert!(refusal(&place.run(&["group", "force-complete", "orders", "--yes"]), 2).contains("--older-than"));
    let done = place.one(&force(&["0s", "--yes"]));
    assert_eq!(json!(fields(&done, names)), json!(["mail", false, 3, 4]));
    let given_up = group(place, "orders", "mail");
    let missed = ["floor", "missed", "missed_first", "missed_last"];
    assert_eq!(json!(fields(&given_up, missed)), json!([4, 3, 2, 4]));
    let acts = place.json(&["audit"]);
    let counted = |act: &str| acts.iter().filter(|entry| entry["act"] == act).count();
    assert_eq!((counted("force_complete"), counted("resurrect")), (1, 2), "{acts:?}");
}

#[test]
fn deaths_on_sqlite() {
    deaths(&Place::sqlite());
}

#[test]
fn deaths_on_postgres() {
    if let Some(place) = Place::postgres("deaths") {
        deaths(&place);
    }
}
