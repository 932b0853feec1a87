//! `headwater outbox` and `headwater parked`: what is to be sent, what failed, and sending it again.

use headwater::outbox::NewEntry;
use headwater::store::ParkedCommand;

use super::*;

/// Four entries: published, failed, parked and new; and a parked command.
fn prepare(place: &Place) {
    place.out(&["migrate"]);
    place.program(async |headwater| {
        let outbox = headwater.outbox();
        for n in 1..=4 {
            let event =
                NewEntry::kafka_event("orders", format!("o-{n}"), "OrderCreated", format!("{{\"n\":{n}}}"));
            outbox.insert_returning_id(&event.header("a", "b")).await.unwrap();
        }
        outbox.sweep_batch(3, "relay").await.unwrap();
        outbox.mark_published(1, "relay").await.unwrap();
        outbox.mark_failed(2, "relay", "broker away", Duration::from_secs(3_600)).await.unwrap();
        outbox.clone().max_attempts(1).mark_failed(3, "relay", "refused", Duration::ZERO).await.unwrap();
        let command =
            ParkedCommand::new("c-1", "Pay", "{}", "worker").business_key("k").error("Declined", "no funds");
        headwater.dead_letters().park(&command).await.unwrap();
    });
}

fn listed(place: &Place, args: &[&str]) -> Vec<String> {
    let entries = place.json(&[&["outbox", "list"], args].concat());
    entries.iter().map(|entry| format!("{} {}", entry["id"], entry["status"].as_str().unwrap())).collect()
}

fn requeued_and_recovered(place: &Place) {
    prepare(place);
    assert_eq!(listed(place, &[]), ["2 FAILED", "3 PARKED", "4 NEW"], "without those that are published");
    assert_eq!(listed(place, &["--status", "published"]), ["1 PUBLISHED"], "in any case");
    assert_eq!(listed(place, &["--topic", "orders", "--key", "o-4"]), ["4 NEW"]);
    assert_eq!(listed(place, &["--category", "reply"]), [] as [&str; 0]);
    assert_eq!(listed(place, &["--max", "1", "--after", "2"]), ["3 PARKED"]);
    assert!(place.out(&["outbox", "list"]).contains("broker away"));
    let shown = place.one(&["outbox", "show", "3"]);
    assert_eq!((&shown["last_error"], &shown["headers"]["a"]), (&json!("refused"), &json!("b")));
    assert!(place.out(&["outbox", "show", "3"]).ends_with("payload         {\"n\":3}\n"));
    assert!(refusal(&place.run(&["outbox", "show", "99"]), 1).contains("no such outbox entry: 99"));

    assert_eq!(place.one(&["outbox", "requeue", "--parked", "--topic", "other"])["requeued"], 0);
    assert_eq!(place.one(&["outbox", "requeue", "2", "4"])["requeued"], 1);
    assert!(refusal(&place.run(&["outbox", "requeue", "4"]), 1).contains("nothing was requeued"));
    assert_eq!(place.one(&["outbox", "requeue", "--parked"])["requeued"], 1);
    assert_eq!(listed(place, &[]), ["2 NEW", "3 NEW", "4 NEW"]);
    refusal(&place.run(&["outbox", "requeue"]), 2);
    place.program(async |headwater| {
        headwater.outbox().sweep_batch(10, "gone").await.unwrap();
    });
    assert_eq!(place.one(&["outbox", "recover", "--older-than", "1h"])["recovered"], 0);
    assert_eq!(place.one(&["outbox", "recover", "--older-than", "0s"])["recovered"], 3);
    assert_eq!(place.json(&["audit"])[0]["act"], "requeue");
}

fn redriven_and_deleted(place: &Place) {
    prepare(place);
    let parked = place.json(&["parked", "list"]);
    let sources: Vec<_> = parked.iter().map(|one| one["source"].as_str().unwrap()).collect();
    assert_eq!(sources, ["outbox", "command"]);
    assert_eq!((&parked[0]["outbox_id"], &parked[0]["name"]), (&json!(3), &json!("OrderCreated")));
    assert_eq!(
        place.json(&["parked", "list", "--source", "command", "--key", "k", "--name", "Pay"]).len(),
        1
    );
    assert_eq!(place.json(&["parked", "list", "--error-contains", "nothing like it"]).len(), 0);
    let id = |at: usize| parked[at]["id"].as_str().unwrap();
    assert_eq!(place.one(&["parked", "show", id(1)])["error_class"], "Declined");
    assert!(place.out(&["parked", "show", id(1)]).contains("no funds"));
    assert_eq!(place.one(&["parked", "redrive", id(0)])["redriven"], 1);
    assert_eq!(listed(place, &["--key", "o-3"]), ["3 NEW"]);
    let refused = refusal(&place.run(&["parked", "redrive", id(1)]), 2);
    assert!(refused.contains("without a topic") && refused.contains("delete the dead letter"), "{refused}");
    refusal(&place.run(&["parked", "delete", id(1)]), 2);
    assert_eq!(place.one(&["parked", "delete", id(1), "--dry-run"])["deleted"], 1);
    assert_eq!(place.one(&["parked", "delete", id(1), "--yes"])["deleted"], 1);
    assert_eq!(place.json(&["parked", "list"]).len(), 0);
    assert!(refusal(&place.run(&["parked", "show", id(1)]), 1).contains("no such dead letter"));
}

#[test]
fn outbox_entries_are_listed_requeued_and_recovered() {
    requeued_and_recovered(&Place::sqlite());
}

#[test]
fn outbox_entries_are_listed_requeued_and_recovered_on_postgres() {
    let Some(place) = Place::postgres("outbox") else { return };
    requeued_and_recovered(&place);
}

#[test]
fn dead_letters_of_no_group_are_redriven_and_deleted() {
    redriven_and_deleted(&Place::sqlite());
}

#[test]
fn dead_letters_of_no_group_are_redriven_and_deleted_on_postgres() {
    let Some(place) = Place::postgres("parked") else { return };
    redriven_and_deleted(&place);
}
