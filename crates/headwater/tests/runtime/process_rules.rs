//! Rules of the repository of processes beyond its scenarios: transactions, replay, retention, plain SQL.

use std::time::Duration;

use headwater::limits::PROCESS_RETENTION;
use headwater::maintenance::Job;
use headwater::process::{ProcessData, ProcessEvent, ProcessInstance, ProcessStatus, Processes};
use headwater::transaction::Transaction;
use headwater::{ErrorKind, Headwater};
use uuid::Uuid;

use crate::each::{Place, eventually, on_each};
use crate::process_repository::{data, inserted, open, step_started, tags};

on_each!(
    a_transaction_holds_processes_messages_and_rows_together,
    a_conflict_inside_a_transaction_leaves_it_usable,
    a_transaction_of_another_store_is_refused,
    a_replay_equals_what_is_stored_whatever_happened,
    wrong_input_is_named_and_writes_nothing,
    large_data_are_kept,
    ended_processes_are_removed_with_their_logs_after_their_time,
    both_databases_have_the_rule_of_the_library,
    plain_sql_writes_what_the_library_reads,
    plain_sql_keeps_the_rules,
    an_unknown_event_is_shown_raw,
);

fn is_postgres(headwater: &Headwater) -> bool {
    headwater.store().engine() == "postgres"
}

/// A statement beside the library, in the SQL of the engine; `{schema}` is the namespace. Returns how many rows it changed.
async fn sql(headwater: &Headwater, sqlite: &str, postgres: &str, id: Uuid) -> headwater::Result<u64> {
    let namespace = headwater.namespace().map(ToString::to_string);
    let (sql, id) = match namespace {
        Some(name) => (postgres.replace("{schema}", &name), id.to_string().into()),
        None => (sqlite.to_owned(), headwater::transaction::Value::Bytes(id.as_bytes().to_vec())),
    };
    headwater.transaction(move |tx: Transaction| async move { tx.execute(&sql, (id,)).await }).await
}

async fn a_transaction_holds_processes_messages_and_rows_together(place: Place) {
    let (headwater, _, processes) = open(&place).await;
    headwater.topic("orders").create().await.unwrap();
    for fails in [true, false] {
        let new = ProcessInstance::create("order", Some("o-1"), None);
        let (repository, copy) = (processes.clone(), new.clone());
        let done: anyhow::Result<ProcessInstance> = headwater
            .transaction(move |tx: Transaction| async move {
                let inside = repository.within(&tx);
                let stored = inside.insert(&copy, &copy.started()).await?;
                tx.publish("orders", &1).await?;
                // Reads see what the transaction wrote.
                anyhow::ensure!(inside.find_by_id(copy.id()).await?.as_ref() == Some(&stored));
                anyhow::ensure!(inside.find_by_business_key("order", "o-1").await?.is_some());
                let running = stored.with_status(ProcessStatus::Running);
                let running = inside.update(&running, &step_started("s")).await?;
                anyhow::ensure!(inside.replay(copy.id()).await?.as_ref() == Some(&running));
                anyhow::ensure!(!fails, "rolled back");
                Ok(running)
            })
            .await;
        let found = processes.find_by_id(new.id()).await.unwrap();
        assert_eq!(done.is_err(), fails, "{done:?}");
        assert_eq!(found, done.ok());
        let entries = processes.log(new.id(), None).await.unwrap().len();
        assert_eq!(entries, if fails { 0 } else { 2 });
    }
    // On PostgreSQL the head first steps over the offset that was rolled back.
    eventually("one message", async || headwater.published("orders").await.unwrap().len() == 1).await;
    place.leave(&headwater).await;
}

async fn a_conflict_inside_a_transaction_leaves_it_usable(place: Place) {
    let (headwater, _, processes) = open(&place).await;
    let new = inserted(&processes, "order", "o-1").await;
    let running =
        processes.update(&new.with_status(ProcessStatus::Running), &step_started("a")).await.unwrap();
    let repository = processes.clone();
    let stored: headwater::Result<ProcessInstance> = headwater
        .transaction(move |tx: Transaction| async move {
            let inside = repository.within(&tx);
            for wrong in [&new.with_retries(1), &running.with_id(Uuid::now_v7())] {
                let error = inside.update(wrong, &step_started("b")).await.unwrap_err();
                assert!(matches!(error.kind(), ErrorKind::Conflict | ErrorKind::NoSuchProcess), "{error}");
            }
            let error = inside.insert(&new.with_id(new.id()), &new.started()).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Conflict);
            let current = inside.find_by_id(new.id()).await?.expect("it exists");
            inside.update(&current.with_retries(2), &step_started("c")).await
        })
        .await;
    let stored = stored.unwrap();
    assert_eq!((stored.retries(), stored.version()), (2, 3));
    let log = processes.log(stored.id(), None).await.unwrap();
    assert_eq!(log.iter().filter_map(|entry| entry.event.step()).collect::<Vec<_>>(), ["c", "a"]);
    place.leave(&headwater).await;
}

async fn a_transaction_of_another_store_is_refused(place: Place) {
    let (headwater, _, processes) = open(&place).await;
    let elsewhere = place.another();
    let other = elsewhere.open().await;
    let refused: headwater::Result<ProcessInstance> = other
        .transaction(move |tx: Transaction| async move {
            let new = ProcessInstance::create("order", None, None);
            processes.within(&tx).insert(&new, &new.started()).await
        })
        .await;
    let refused = refused.unwrap_err();
    assert!(refused.to_string().contains("invalid transaction"), "{refused}");
    elsewhere.leave(&other).await;
    place.leave(&headwater).await;
}

/// A small generator: the same numbers for a seed.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

fn random_data(numbers: &mut Numbers) -> Option<ProcessData> {
    let n = numbers.below(1_000_000);
    match numbers.below(5) {
        0 => None,
        1 => data("{}"),
        2 => data(&format!("{{\"n\":{n}}}")),
        3 => data(&format!("{{\"nested\":[{{\"z\":{n}.50,\"a\":\"\\u0000{n}\"}}],\"n\" : {n}e3}}")),
        _ => data(&format!("{{\"text\":\"{}\"}}", "日本\\\" ".repeat(usize::try_from(n % 40).unwrap()))),
    }
}

async fn a_replay_equals_what_is_stored_whatever_happened(place: Place) {
    let (headwater, clock, processes) = open(&place).await;
    let seed = std::env::var("HEADWATER_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = seed.unwrap_or_else(|| u64::from(std::process::id()) * 7_919);
    println!("HEADWATER_SEED={seed}");
    let mut numbers = Numbers(seed);
    for _ in 0..12 {
        let new = ProcessInstance::create("order", None, random_data(&mut numbers));
        let mut stored = processes.insert(&new, &new.started()).await.unwrap();
        let mut versions = vec![stored.clone()];
        for _ in 0..numbers.below(25) {
            clock.advance(Duration::from_millis(numbers.below(3)));
            let index = usize::try_from(numbers.below(7)).unwrap();
            let step = ["a", "b", "größe"].get(usize::try_from(numbers.below(4)).unwrap()).copied();
            let retries = u32::try_from(numbers.below(3)).unwrap();
            // Now and then from an older copy.
            let stale = numbers.below(6) == 0;
            let from = if stale { &versions[0] } else { &stored };
            let next = from.update(ProcessStatus::ALL[index], step, random_data(&mut numbers), retries);
            let legal = from.status().may_become(next.status(), from.paused_in());
            match processes.update(&next, &step_started("s")).await {
                Ok(updated) => {
                    assert!(legal && from.version() == stored.version(), "{from:?} {next:?}");
                    stored = updated;
                    versions.push(stored.clone());
                }
                Err(error) if !legal => assert_eq!(error.kind(), ErrorKind::InvalidTransition, "{error}"),
                Err(error) => assert_eq!((error.kind(), stale), (ErrorKind::Conflict, true), "{error}"),
            }
        }
        assert_eq!(processes.find_by_id(new.id()).await.unwrap().as_ref(), Some(&stored));
        assert_eq!(processes.replay(new.id()).await.unwrap(), Some(stored));
        // Each part of the log leads to the version that was stored then.
        let mut log = processes.log(new.id(), None).await.unwrap();
        log.reverse();
        for (version, expected) in (1..).zip(&versions) {
            assert_eq!(&ProcessInstance::replay(&log[..version]).unwrap(), expected);
        }
    }
    place.leave(&headwater).await;
}

async fn wrong_input_is_named_and_writes_nothing(place: Place) {
    let (headwater, _, processes) = open(&place).await;
    let long = "x".repeat(256);
    for (process_type, key, says) in [
        ("", None, "invalid process_type: must not be empty"),
        (long.as_str(), None, "invalid process_type: 256 bytes"),
        ("order", Some("a\nb"), "invalid business_key: control character U+000A"),
    ] {
        let new = ProcessInstance::create(process_type, key, None);
        let error = processes.insert(&new, &new.started()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        assert!(error.to_string().contains(says), "{error}");
        assert_eq!(processes.find_by_id(new.id()).await.unwrap(), None);
    }
    let stored = inserted(&processes, "order", "o-1").await;
    let running = stored.with_status(ProcessStatus::Running);
    let paused = |by: &str| ProcessEvent::ProcessPaused { reason: String::new(), paused_by: by.into() };
    let wrong = [
        (running.with_current_step(""), step_started("s"), "current_step"),
        (running.clone(), step_started(""), "step"),
        (running.clone(), paused(""), "by"),
        (running.clone(), running.started(), "ProcessStarted is the event of an insert"),
    ];
    for (instance, event, says) in wrong {
        let error = processes.update(&instance, &event).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        assert!(error.to_string().contains(says), "{error}");
    }
    let none = processes.insert(&ProcessInstance::create("order", None, None), &step_started("s")).await;
    assert_eq!(none.unwrap_err().kind(), ErrorKind::InvalidInput);
    assert_eq!(processes.find_by_id(stored.id()).await.unwrap(), Some(stored));
    place.leave(&headwater).await;
}

async fn large_data_are_kept(place: Place) {
    let (headwater, _, processes) = open(&place).await;
    let text = format!("{{\"a\":\"{}\"}}", "0123456789abcdef".repeat(200_000));
    let new = ProcessInstance::create("order", None, data(&text));
    processes.insert(&new, &new.started()).await.unwrap();
    let read = processes.find_by_id(new.id()).await.unwrap().unwrap();
    assert!(read.data().unwrap().as_str() == text, "3 MB come back as they were");
    assert!(processes.replay(new.id()).await.unwrap() == Some(read));
    place.leave(&headwater).await;
}

async fn at_end(processes: &Processes, key: &str, way: &[ProcessStatus]) -> ProcessInstance {
    let mut at = inserted(processes, "order", key).await;
    for status in way {
        at = processes.update(&at.with_status(*status), &step_started("s")).await.unwrap();
    }
    at
}

async fn ended_processes_are_removed_with_their_logs_after_their_time(place: Place) {
    use ProcessStatus::{Compensated, Compensating, Failed, Paused, Running, Succeeded};
    let (headwater, clock, processes) = open(&place).await;
    let mut ended = Vec::new();
    for way in [&[Running, Succeeded][..], &[Running, Failed], &[Running, Compensating, Compensated]] {
        ended.push(at_end(&processes, "ended", way).await);
    }
    let mut open = Vec::new();
    for way in [&[][..], &[Running], &[Running, Compensating], &[Paused]] {
        open.push(at_end(&processes, "open", way).await);
    }
    // More than one step removes.
    for n in 0..600 {
        at_end(&processes, &n.to_string(), &[Running, Succeeded]).await;
    }
    clock.advance(PROCESS_RETENTION - Duration::from_millis(1));
    let young = at_end(&processes, "young", &[Running, Succeeded]).await;
    assert_eq!(headwater.store().clean_processes(PROCESS_RETENTION).await.unwrap(), 0);
    clock.advance(Duration::from_millis(1));
    let run = headwater.maintenance().run_once(&[Job::SubscriptionCleanup]).await.unwrap().remove(0);
    assert_eq!((run.rows, run.error), (603, None));
    for gone in ended {
        assert_eq!(processes.find_by_id(gone.id()).await.unwrap(), None);
        assert_eq!(processes.log(gone.id(), None).await.unwrap(), [], "its log went with it");
    }
    for kept in open.into_iter().chain([young]) {
        assert_eq!(processes.replay(kept.id()).await.unwrap().as_ref(), Some(&kept));
        assert_eq!(processes.find_by_id(kept.id()).await.unwrap(), Some(kept));
    }
    place.leave(&headwater).await;
}

/// Whether the database accepts an update from one status to another.
async fn database_accepts(
    headwater: &Headwater,
    status: ProcessStatus,
    paused_in: Option<ProcessStatus>,
    next: ProcessStatus,
) -> bool {
    let values = |status: ProcessStatus, interrupted: Option<ProcessStatus>, now: &str| {
        let quoted = |status: ProcessStatus| format!("'{status}'");
        let paused_in = interrupted.filter(|_| status == ProcessStatus::Paused).map_or("NULL".into(), quoted);
        let ended = if status.is_end() { now } else { "NULL" };
        (quoted(status), paused_in, ended.to_owned())
    };
    if let Some(name) = headwater.namespace() {
        let (from, paused, _) = values(status, paused_in, "now()");
        let sql = format!("SELECT {name}.process_may_become({from}, {paused}, '{next}') AS may");
        let rows: headwater::Result<Vec<headwater::transaction::Row>> =
            headwater.transaction(move |tx: Transaction| async move { tx.query(&sql, ()).await }).await;
        return rows.unwrap()[0].get("may").unwrap();
    }
    let (from, paused, ended) = values(status, paused_in, "1");
    let insert = format!(
        "INSERT INTO headwater_process (process_id, process_type, status, paused_in, created_at_ms, updated_at_ms, ended_at_ms)
         VALUES ($1, 'x', {from}, {paused}, 1, 1, {ended})"
    );
    let interrupted = if status == ProcessStatus::Paused { paused_in } else { Some(status) };
    let (to, paused, ended) = values(next, interrupted, "1");
    // What the status does not allow is refused before the other columns are checked.
    let update = format!(
        "UPDATE headwater_process SET status = {to}, paused_in = {paused}, ended_at_ms = {ended} WHERE process_id = $1"
    );
    let accepted: headwater::Result<()> = headwater
        .transaction(move |tx: Transaction| async move {
            let id = headwater::transaction::Value::Bytes(Uuid::now_v7().as_bytes().to_vec());
            tx.execute(&insert, (id.clone(),)).await?;
            tx.execute(&update, (id.clone(),)).await?;
            tx.execute("DELETE FROM headwater_process WHERE process_id = $1", (id,)).await?;
            Ok(())
        })
        .await;
    match accepted {
        Ok(()) => true,
        Err(error) => {
            assert!(error.to_string().contains("invalid transition"), "{status} {next}: {error}");
            false
        }
    }
}

async fn both_databases_have_the_rule_of_the_library(place: Place) {
    let (headwater, _, _) = open(&place).await;
    for status in ProcessStatus::ALL {
        let interrupted: &[Option<ProcessStatus>] = match status {
            ProcessStatus::Paused => {
                &[Some(ProcessStatus::New), Some(ProcessStatus::Running), Some(ProcessStatus::Compensating)]
            }
            _ => &[None],
        };
        for paused_in in interrupted {
            for next in ProcessStatus::ALL {
                let accepted = database_accepts(&headwater, status, *paused_in, next).await;
                assert_eq!(
                    accepted,
                    status.may_become(next, *paused_in),
                    "{status} ({paused_in:?}) to {next}"
                );
            }
        }
    }
    place.leave(&headwater).await;
}

async fn plain_sql_writes_what_the_library_reads(place: Place) {
    let (headwater, _, processes) = open(&place).await;
    let id = Uuid::now_v7();
    sql(
        &headwater,
        "INSERT INTO headwater_process_insert (process_id, process_type, business_key, data) VALUES ($1, 'order', 'o-1', '{\"total\": 1.50}')",
        "SELECT {schema}.process_insert($1, 'order', 'o-1', '{\"total\": 1.50}')",
        id,
    )
    .await
    .unwrap();
    let updates = [
        (
            "1, 'RUNNING', 'a', '{\"total\": 1.50}', 2",
            "1, 'RUNNING', 'StepStarted', '{\"step\":\"a\",\"command_id\":\"c\"}', 'a', '{\"total\": 1.50}', 2",
        ),
        (
            "2, 'PAUSED', 'a', '{\"b\":2}', 2",
            "2, 'PAUSED', 'StepStarted', '{\"step\":\"a\",\"command_id\":\"c\"}', 'a', '{\"b\":2}', 2",
        ),
        (
            "3, 'RUNNING', NULL, NULL, 0",
            "3, 'RUNNING', 'StepStarted', '{\"step\":\"a\",\"command_id\":\"c\"}'",
        ),
    ];
    for (sqlite, postgres) in updates {
        let sqlite = format!(
            "INSERT INTO headwater_process_update (process_id, version, status, current_step, data, retries, event_type, event)
             VALUES ($1, {sqlite}, 'StepStarted', '{{\"step\":\"a\",\"command_id\":\"c\"}}')"
        );
        let postgres = format!("SELECT {{schema}}.process_update($1, {postgres})");
        sql(&headwater, &sqlite, &postgres, id).await.unwrap();
        let stored = processes.find_by_id(id).await.unwrap();
        assert_eq!(processes.replay(id).await.unwrap(), stored, "the log has what changed");
    }
    let stored = processes.find_by_business_key("order", "o-1").await.unwrap().unwrap();
    assert_eq!((stored.status(), stored.version(), stored.retries()), (ProcessStatus::Running, 4, 0));
    assert_eq!((stored.current_step(), stored.data()), (None, None));
    let mut log = processes.log(id, None).await.unwrap();
    assert_eq!(tags(&log), ["StepStarted", "StepStarted", "StepStarted", "ProcessStarted"]);
    let first = log.pop().unwrap();
    let begun = ProcessInstance::create("order", Some("o-1"), data("{\"total\":1.50}")).started();
    match (first.event, begun) {
        (
            ProcessEvent::ProcessStarted { business_key, initial_data: Some(first), .. },
            ProcessEvent::ProcessStarted { business_key: expected, initial_data: Some(second), .. },
        ) => {
            assert_eq!(business_key, expected);
            assert_eq!(first.as_str().replace(' ', ""), second.as_str());
        }
        other => panic!("{other:?}"),
    }
    // And the library continues with it.
    processes.update(&stored.with_status(ProcessStatus::Succeeded), &step_started("a")).await.unwrap();
    place.leave(&headwater).await;
}

async fn plain_sql_keeps_the_rules(place: Place) {
    let (headwater, _, processes) = open(&place).await;
    let stored = inserted(&processes, "order", "o-1").await;
    let event = "'StepStarted', '{\"step\":\"a\",\"command_id\":\"c\"}'";
    let update = |values: &str| {
        let columns = "process_id, version, status, event_type, event, current_step, data";
        let sqlite = format!("INSERT INTO headwater_process_update ({columns}) VALUES ({values})");
        (sqlite, format!("SELECT {{schema}}.process_update({values})"))
    };
    let insert = |values: &str| {
        let columns = "process_id, process_type, business_key, data";
        let sqlite = format!("INSERT OR IGNORE INTO headwater_process_insert ({columns}) VALUES ({values})");
        (sqlite, format!("SELECT {{schema}}.process_insert({values})"))
    };
    let (known, unknown) = (stored.id(), Uuid::now_v7());
    for (id, (sqlite, postgres), says) in [
        (known, insert("$1, 'order', 'o-1', NULL"), "exists already"),
        (unknown, insert("$1, '', NULL, NULL"), "invalid process_type"),
        (unknown, insert("$1, NULL, NULL, NULL"), "invalid process_type"),
        (unknown, insert("$1, 'order', '', NULL"), "invalid business_key"),
        (unknown, insert("$1, 'order', NULL, '[1]'"), "invalid data"),
        (unknown, insert("$1, 'order', NULL, 'x'"), "invalid data"),
        (known, update(&format!("$1, 7, 'RUNNING', {event}, NULL, NULL")), "stale"),
        (unknown, update(&format!("$1, 1, 'RUNNING', {event}, NULL, NULL")), "no such process"),
        (known, update(&format!("$1, 1, 'SUCCEEDED', {event}, NULL, NULL")), ""),
        (known, update(&format!("$1, 1, 'LOST', {event}, NULL, NULL")), ""),
        (known, update(&format!("$1, 1, 'RUNNING', {event}, '', NULL")), "invalid current_step"),
        (known, update(&format!("$1, 1, 'RUNNING', {event}, NULL, '7'")), "invalid data"),
        (known, update("$1, 1, 'RUNNING', 'StepStarted', 'x', NULL, NULL"), "invalid event"),
        (known, update("$1, 1, 'RUNNING', 'ProcessStarted', '{}', NULL, NULL"), "invalid"),
    ] {
        let refused = sql(&headwater, &sqlite, &postgres, id).await.unwrap_err();
        assert!(refused.to_string().contains(says), "{sqlite}: {refused}");
        if is_postgres(&headwater) && says == "stale" {
            assert_eq!(refused.kind(), ErrorKind::Conflict);
        }
    }
    assert_eq!(processes.find_by_id(unknown).await.unwrap(), None);
    assert_eq!(processes.find_by_id(known).await.unwrap().as_ref(), Some(&stored));
    assert_eq!(processes.replay(known).await.unwrap(), Some(stored), "nothing was written");
    place.leave(&headwater).await;
}

async fn an_unknown_event_is_shown_raw(place: Place) {
    let (headwater, _, processes) = open(&place).await;
    let stored = inserted(&processes, "order", "o-1").await;
    let fields = r#"{"colour": "blue", "n": 1.0}"#;
    let postgres = format!(
        "SELECT {{schema}}.process_update($1, 1, 'RUNNING', 'StepPainted', '{fields}', data => '{{\"total\": 250}}')"
    );
    let sqlite = format!(
        "INSERT INTO headwater_process_update (process_id, version, status, data, event_type, event)
         VALUES ($1, 1, 'RUNNING', '{{\"total\": 250}}', 'StepPainted', '{fields}')"
    );
    sql(&headwater, &sqlite, &postgres, stored.id()).await.unwrap();
    let log = processes.log(stored.id(), None).await.unwrap();
    assert_eq!(tags(&log), ["StepPainted", "ProcessStarted"]);
    assert!(matches!(&log[0].event, ProcessEvent::Unknown { tag, .. } if tag == "StepPainted"));
    assert_eq!(log[0].event.fields().as_str(), fields);
    let running = processes.replay(stored.id()).await.unwrap().unwrap();
    assert_eq!(running.status(), ProcessStatus::Running, "what it changed is known");
    let refused = processes.update(&running, &log[0].event).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidInput, "an unknown event is not written");
    place.leave(&headwater).await;
}
