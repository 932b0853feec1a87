//! `headwater process`: what people see of processes, and what they do with them.

use headwater::process::{ProcessData, ProcessEvent, ProcessInstance, ProcessStatus};

use super::*;

/// A process whose compensation failed, as its manager leaves it, and a new one beside it.
pub(crate) async fn parked(headwater: &Headwater) -> ProcessInstance {
    let processes = headwater.processes();
    processes.start("order").business_key("o-18").await.unwrap();
    let data = ProcessData::from_json(r#"{"total": 250.50}"#).unwrap();
    let new = ProcessInstance::create("order", Some("o-17"), Some(data));
    let mut at = processes.insert(&new, &new.started()).await.unwrap();
    let (step, command_id) = (|| "charge".to_owned(), || "c-1".to_owned());
    let ways = [
        (ProcessStatus::Running, ProcessEvent::StepStarted { step: step(), command_id: command_id() }),
        (
            ProcessStatus::Running,
            ProcessEvent::StepCompleted { step: step(), command_id: command_id(), result_data: None },
        ),
        (
            ProcessStatus::Compensating,
            ProcessEvent::CompensationStarted { step: step(), command_id: "c-2".into() },
        ),
        (
            ProcessStatus::Compensating,
            ProcessEvent::CompensationFailed {
                step: step(),
                command_id: "c-2".into(),
                error: "bank is closed".into(),
            },
        ),
    ];
    for (status, event) in ways {
        at = processes.update(&at.with_status(status).with_current_step("charge"), &event).await.unwrap();
    }
    at
}

fn shown_and_operated(place: &Place) {
    place.out(&["topic", "create", "process.other"]);
    assert_eq!(place.json(&["process", "list"]).len(), 0);
    place.program(async |headwater| drop(parked(headwater).await));
    let listed = place.json(&["process", "list"]);
    assert_eq!(listed.len(), 2);
    let one = place.one(&["process", "list", "--parked"]);
    let id = one["id"].as_str().unwrap();
    let names = ["type", "key", "status", "step", "version", "paused_in"];
    assert_eq!(json!(fields(&one, names)), json!(["order", "o-17", "COMPENSATING", "charge", 5, null]));
    assert_eq!(one["data"]["total"], 250.5);
    for args in [&["--status", "compensating"][..], &["--type", "order", "--status", "COMPENSATING"]] {
        assert_eq!(place.one(&[&["process", "list"], args].concat())["id"], id);
    }
    assert_eq!(place.json(&["process", "list", "--type", "refund"]).len(), 0);
    assert_eq!(place.json(&["process", "list", "--max", "1"]).len(), 1);

    let shown = place.out(&["process", "show", id]);
    assert!(shown.contains("status      COMPENSATING") && shown.contains(r#"{"total": 250.50}"#), "{shown}");
    assert!(shown.contains("CompensationFailed charge: bank is closed at "), "{shown}");
    assert_eq!(place.one(&["process", "show", "--type", "order", "--key", "o-17"])["id"], id);
    let log = place.json(&["process", "log", id]);
    let tags: Vec<_> = log.iter().map(|entry| entry["event"].as_str().unwrap()).collect();
    let expected =
        ["CompensationFailed", "CompensationStarted", "StepCompleted", "StepStarted", "ProcessStarted"];
    assert_eq!((tags, &log[0]["fields"]["error"]), (expected.to_vec(), &json!("bank is closed")));
    assert!(place.out(&["process", "log", id, "--max", "1"]).contains("charge: bank is closed"));

    // What needs a person is found.
    let found = place.run(&["doctor"]);
    assert_eq!(found.status.code(), Some(3), "{found:?}");
    let said = String::from_utf8_lossy(&found.stdout).into_owned();
    assert!(said.contains("compensation_failed") && said.contains(id), "{said}");

    let on = |verb: &str, rest: &[&str]| place.one(&[&["process", verb, id], rest].concat());
    assert_eq!(on("pause", &["--reason", "bank holiday"])["status"], "PAUSED");
    assert_eq!(on("pause", &[])["status"], "PAUSED", "as it is already");
    let paused = place.json(&["process", "log", id, "--max", "1"]).remove(0);
    assert_eq!(
        json!([paused["event"], paused["fields"]["reason"]]),
        json!(["ProcessPaused", "bank holiday"])
    );
    assert!(paused["fields"]["paused_by"].as_str().unwrap().starts_with("cli "), "{paused}");
    let refused = refusal(&place.run(&["process", "retry", id]), 1);
    assert!(refused.contains("is PAUSED, and nothing of it waits for a retry"), "{refused}");
    assert_eq!(on("resume", &[])["status"], "COMPENSATING");
    assert_eq!(on("retry", &[])["status"], "COMPENSATING");

    assert!(refusal(&place.run(&["process", "fail", id]), 2).contains("--yes"));
    assert_eq!(on("fail", &["--dry-run"])["status"], "COMPENSATING");
    assert_eq!(on("fail", &["--reason", "refunded by hand", "--yes"])["status"], "FAILED");
    let last = place.json(&["process", "log", id, "--max", "1"]).remove(0);
    assert!(
        last["fields"]["reason"].as_str().unwrap().starts_with("refunded by hand (ended by cli "),
        "{last}"
    );
    for verb in ["pause", "resume", "retry"] {
        refusal(&place.run(&["process", verb, id]), 1);
    }
    let missing = "00000000-0000-0000-0000-000000000000";
    for args in [&["show", missing][..], &["log", missing], &["pause", missing], &["fail", missing, "--yes"]]
    {
        let unknown = refusal(&place.run(&[&["process"], args].concat()), 1);
        assert!(unknown.contains(&format!("no such process: {missing}")), "{unknown}");
    }
    refusal(&place.run(&["process", "show"]), 2);
    refusal(&place.run(&["process", "list", "--status", "lost"]), 2);
    place.assert_sound();
}

#[test]
fn processes_are_shown_and_operated() {
    shown_and_operated(&Place::sqlite());
}

#[test]
fn processes_are_shown_and_operated_on_postgres() {
    let Some(place) = Place::postgres("processes") else { return };
    shown_and_operated(&place);
}
