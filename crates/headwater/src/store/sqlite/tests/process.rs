//! Processes in plain SQL: text that is not UTF-8.

use super::*;
use crate::Headwater;
use crate::process::{ProcessInstance, ProcessStatus};

const INVALID: &str = "invalid text: must be UTF-8";

fn insert(connection: &Connection, columns: &str, values: &str) -> rusqlite::Result<usize> {
    let sql = format!("INSERT OR IGNORE INTO headwater_process_insert ({columns}) VALUES ({values})");
    connection.execute(&sql, [])
}

#[tokio::test]
async fn text_of_a_process_that_is_not_utf8_is_refused() {
    let place = Place::new();
    let headwater = Headwater::open(&format!("sqlite:{}", place.path().display())).await.unwrap();
    let own = place.connect();
    // A byte that is in no character, half a character, more than a character, a surrogate, and too high.
    for bytes in ["ff", "c3", "c3a980", "eda080", "f4908080"] {
        let (name, object) = (format!("CAST(x'41{bytes}' AS TEXT)"), format!("x'7b2261223a22{bytes}227d'"));
        let object = format!("CAST({object} AS TEXT)");
        for (columns, values) in [
            ("process_id, process_type", format!("randomblob(16), {name}")),
            ("process_id, process_type, business_key", format!("randomblob(16), 'order', {name}")),
            ("process_id, process_type, current_step", format!("randomblob(16), 'order', {name}")),
            ("process_id, process_type, data", format!("randomblob(16), 'order', {object}")),
        ] {
            let error = insert(&own, columns, &values).unwrap_err().to_string();
            assert!(error.contains(INVALID), "{columns}: {values}: {error}");
        }
    }
    insert(&own, "process_id, process_type", "x'000102030405060708090a0b0c0d0e0f', 'order'").unwrap();
    let update = |step: &str, data: &str, event_type: &str, event: &str| {
        let sql = format!(
            "INSERT OR IGNORE INTO headwater_process_update (process_id, version, status, current_step, data, event_type, event)
             VALUES (x'000102030405060708090a0b0c0d0e0f', 1, 'RUNNING', {step}, {data}, {event_type}, {event})"
        );
        own.execute(&sql, [])
    };
    let (name, object) = ("CAST(x'41ff' AS TEXT)", "CAST(x'7b2261223a22ff227d' AS TEXT)");
    for refused in [
        update(name, "NULL", "'Painted'", "'{}'"),
        update("NULL", object, "'Painted'", "'{}'"),
        update("NULL", "NULL", name, "'{}'"),
        update("NULL", "NULL", "'Painted'", object),
    ] {
        let error = refused.unwrap_err().to_string();
        assert!(error.contains(INVALID), "{error}");
    }
    let behind = update("NULL", "'{}' || char(0) || CAST(x'ff' AS TEXT)", "'Painted'", "'{}'").unwrap_err();
    assert!(behind.to_string().contains("invalid data"), "{behind}");
    // Longer than one piece of the check, with characters across the ends of pieces.
    let long = "größe €😀\u{fffe}".repeat(400);
    update("'größe'", &format!("'{{\"a\":\"{long}\"}}'"), "'Gemäß'", "'{\"ü\":1}'").unwrap();
    let found = headwater.processes().find_by_status(ProcessStatus::Running, 10).await.unwrap();
    assert_eq!((found.len(), found[0].current_step()), (1, Some("größe")));
    assert!(found[0].data().unwrap().as_str().contains(&long));
    assert_eq!(headwater.processes().find_by_status(ProcessStatus::New, 10).await.unwrap(), []);
    headwater.close().await.unwrap();
}

/// Rows from before the views refused such text: each is listed, with question marks.
#[tokio::test]
async fn a_process_with_text_that_is_not_utf8_costs_no_other_its_place_in_lists() {
    let place = Place::new();
    let headwater = Headwater::open(&format!("sqlite:{}", place.path().display())).await.unwrap();
    let processes = headwater.processes();
    for n in 0..3 {
        let new = ProcessInstance::create("order", Some(&format!("o-{n}")), None);
        processes.insert(&new, &new.started()).await.unwrap();
    }
    let own = place.connect();
    let damage = "UPDATE headwater_process SET process_type = CAST(x'ff41' AS TEXT), data = CAST(x'7b2261223a22ff227d' AS TEXT)
                  WHERE business_key = 'o-1'";
    assert_eq!(own.execute(damage, []).unwrap(), 1);
    let found = processes.find_by_status(ProcessStatus::New, 10).await.unwrap();
    assert_eq!(found.len(), 3);
    let damaged = found.iter().find(|process| process.business_key() == Some("o-1")).unwrap();
    assert_eq!((damaged.process_type(), damaged.data().unwrap().as_str()), ("?A", r#"{"a":"?"}"#));
    assert_eq!(processes.find_by_id(damaged.id()).await.unwrap().as_ref(), Some(damaged));
    headwater.close().await.unwrap();
}
