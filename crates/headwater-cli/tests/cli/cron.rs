//! `headwater cron`.

use serde_json::{Value, json};

use super::*;

fn jobs(place: &Place) {
    place.out(&["topic", "create", "reports"]);
    place.program(async |headwater| {
        let job = headwater
            .cron("nightly", "0 2 * * *")
            .time_zone("Europe/Berlin")
            .topic("reports")
            .message(&json!({ "kind": "nightly" }))
            .start()
            .await
            .unwrap();
        job.stop().await;
    });
    let listed = place.one(&["cron", "list"]);
    let names = ["job", "expression", "time_zone", "topic"];
    assert_eq!(json!(fields(&listed, names)), json!(["nightly", "0 2 * * *", "Europe/Berlin", "reports"]));
    assert!(listed["started_at"].is_string() && listed["last_tick"].is_string(), "{listed}");
    let time = |name: &str| listed[name].as_str().unwrap().parse::<jiff::Timestamp>().unwrap();
    assert!(time("next_tick") > time("last_tick"), "{listed}");
    let table = place.out(&["cron", "list"]);
    assert!(table.contains("nightly") && table.contains("0 2 * * *"), "{table}");
    // A deletion of its topic names the job.
    let deleted = place.run(&["topic", "delete", "reports", "--yes"]);
    let said = refusal(&deleted, 0);
    assert!(said.contains("cron job nightly"), "{said}");
    assert_eq!(place.one(&["cron", "list"])["topic"], Value::from("reports"), "the job stays");
}

#[test]
fn jobs_on_sqlite() {
    jobs(&Place::sqlite());
}

#[test]
fn jobs_on_postgres() {
    if let Some(place) = Place::postgres("cron_jobs") {
        jobs(&place);
    }
}
