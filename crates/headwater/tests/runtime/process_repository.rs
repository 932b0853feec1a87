//! The repository of processes: each scenario on both databases.

use std::time::Duration;

use headwater::process::{
    ProcessChange, ProcessData, ProcessEvent, ProcessInstance, ProcessLogEntry, ProcessStatus, Processes,
};
use headwater::testing::ManualClock;
use headwater::{ErrorKind, Headwater};
use uuid::Uuid;

use crate::each::{Place, on_each};

on_each!(
    insert_new,
    find_by_id,
    find_by_status,
    find_by_type_and_status,
    find_page_by_page,
    update_status,
    update_step,
    update_data,
    log_of_several_updates,
    log_limit,
    find_by_business_key,
    transitions,
    concurrent_updates,
    json,
    all_12_event_types,
);

pub(crate) async fn open(place: &Place) -> (Headwater, ManualClock, Processes) {
    let clock = ManualClock::at("2026-03-02T09:00:00Z".parse().unwrap());
    let headwater = place.open_at(&clock).await;
    let processes = headwater.processes();
    (headwater, clock, processes)
}

pub(crate) fn data(text: &str) -> Option<ProcessData> {
    Some(ProcessData::from_json(text).unwrap())
}

/// A process of this type and key, inserted.
pub(crate) async fn inserted(processes: &Processes, process_type: &str, key: &str) -> ProcessInstance {
    let new = ProcessInstance::create(process_type, Some(key), data(r#"{"total": 250}"#));
    processes.insert(&new, &new.started()).await.unwrap()
}

pub(crate) fn step_started(step: &str) -> ProcessEvent {
    ProcessEvent::StepStarted { step: step.into(), command_id: format!("c-{step}") }
}

/// The same process once it has this status, on the shortest legal way.
async fn moved(processes: &Processes, instance: ProcessInstance, to: &[ProcessStatus]) -> ProcessInstance {
    let mut at = instance;
    for status in to {
        at = processes.update(&at.with_status(*status), &step_started("s")).await.unwrap();
    }
    at
}

pub(crate) fn tags(log: &[ProcessLogEntry]) -> Vec<&str> {
    log.iter().map(|entry| entry.event.tag()).collect()
}

async fn insert_new(place: Place) {
    let (headwater, clock, processes) = open(&place).await;
    let new = ProcessInstance::create("order", Some("o-17"), data(r#"{"total": 250}"#));
    let new = new.with_current_step("waiting").with_retries(3);
    let stored = processes.insert(&new, &new.started()).await.unwrap();
    assert_eq!((stored.id(), stored.process_type()), (new.id(), "order"));
    assert_eq!((stored.business_key(), stored.status()), (Some("o-17"), ProcessStatus::New));
    assert_eq!((stored.current_step(), stored.retries()), (Some("waiting"), 3));
    assert_eq!(stored.data().unwrap().as_str(), r#"{"total": 250}"#);
    assert_eq!((stored.created_at(), stored.updated_at()), (Some(clock.now()), Some(clock.now())));
    assert_eq!((stored.version(), stored.paused_in()), (1, None));
    assert_eq!(processes.find_by_id(new.id()).await.unwrap(), Some(stored));
    let log = processes.log(new.id(), None).await.unwrap();
    assert_eq!((log.len(), log[0].sequence, log[0].process_id), (1, 1, new.id()));
    assert_eq!((log[0].at, &log[0].event), (clock.now(), &new.started()));
    assert_eq!(log[0].change.status, Some(ProcessStatus::New));
    // A known id.
    let error = processes.insert(&new, &new.started()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Conflict);
    assert!(error.to_string().contains(&new.id().to_string()), "{error}");
    assert_eq!(processes.log(new.id(), None).await.unwrap(), log, "nothing was written");
    place.leave(&headwater).await;
}

async fn find_by_id(place: Place) {
    let (headwater, _, processes) = open(&place).await;
    let stored = inserted(&processes, "order", "o-1").await;
    inserted(&processes, "order", "o-2").await;
    assert_eq!(processes.find_by_id(stored.id()).await.unwrap().as_ref(), Some(&stored));
    assert_eq!(stored.data().unwrap().get::<u64>("total").unwrap(), Some(250));
    // Without key, step and data.
    let bare = ProcessInstance::create("order", None, None);
    let bare = processes.insert(&bare, &bare.started()).await.unwrap();
    assert_eq!((bare.business_key(), bare.current_step(), bare.data()), (None, None, None));
    assert_eq!(processes.find_by_id(bare.id()).await.unwrap(), Some(bare));
    assert_eq!(processes.find_by_id(Uuid::now_v7()).await.unwrap(), None);
    assert_eq!(processes.log(Uuid::now_v7(), None).await.unwrap(), []);
    assert_eq!(processes.replay(Uuid::now_v7()).await.unwrap(), None);
    place.leave(&headwater).await;
}

async fn find_by_status(place: Place) {
    let (headwater, clock, processes) = open(&place).await;
    use ProcessStatus::{Failed, Running, Succeeded};
    let mut running = Vec::new();
    for (n, to) in [&[Running][..], &[], &[Running, Succeeded], &[Running], &[Running, Failed], &[Running]]
        .into_iter()
        .enumerate()
    {
        let new = inserted(&processes, "order", &format!("o-{n}")).await;
        let stored = moved(&processes, new, to).await;
        if stored.status() == Running {
            running.insert(0, stored);
        }
        clock.advance(Duration::from_millis(1));
    }
    // Two of one moment: the later id first.
    let pair = [inserted(&processes, "order", "a").await, inserted(&processes, "order", "b").await];
    let mut pair = pair.map(|new| new.id());
    pair.sort_unstable_by(|one, other| other.cmp(one));
    let new = processes.find_by_status(ProcessStatus::New, 2).await.unwrap();
    assert_eq!(new.iter().map(ProcessInstance::id).collect::<Vec<_>>(), pair);
    assert_eq!(processes.find_by_status(Running, 2).await.unwrap(), running[..2], "newest first");
    assert_eq!(processes.find_by_status(Running, 100).await.unwrap(), running);
    assert_eq!(processes.find_by_status(ProcessStatus::Compensating, 9).await.unwrap(), []);
    for limit in [0, 10_001] {
        let error = processes.find_by_status(Running, limit).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
    }
    place.leave(&headwater).await;
}

async fn find_page_by_page(place: Place) {
    let (headwater, clock, processes) = open(&place).await;
    for (process_type, key) in [("order", "Kettle-1"), ("order", "kettle-2"), ("payment", "kettle-1")] {
        let new = inserted(&processes, process_type, key).await;
        moved(&processes, new, &[ProcessStatus::Running]).await;
        // The last two are of one moment.
        if key != "kettle-2" {
            clock.advance(Duration::from_millis(1));
        }
    }
    inserted(&processes, "order", "cup").await;
    let mut found: Vec<ProcessInstance> = Vec::new();
    loop {
        let before = found.last().and_then(ProcessInstance::place);
        let page = processes.find(1, |all| {
            let all = all.contains("KETTLE").without_data();
            before.map_or(all.clone(), |place| all.before(place))
        });
        let page = page.await.unwrap();
        if page.is_empty() {
            break;
        }
        found.extend(page);
    }
    let keys: Vec<_> = found.iter().filter_map(ProcessInstance::business_key).collect();
    assert_eq!((keys.len(), keys[2]), (3, "Kettle-1"), "{keys:?}");
    assert!(found.iter().all(|process| process.data().is_none()));
    let orders = processes.find(10, |all| all.process_type("order").status(ProcessStatus::Running)).await;
    assert_eq!(orders.unwrap().len(), 2);
    assert_eq!(processes.find(10, |all| all.contains("PAY")).await.unwrap().len(), 1);
    let error = processes.find(10, |all| all.contains("")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
    place.leave(&headwater).await;
}

async fn find_by_type_and_status(place: Place) {
    let (headwater, clock, processes) = open(&place).await;
    let mut expected = Vec::new();
    for n in 0..9 {
        let (process_type, to) = match n % 3 {
            0 => ("order", &[ProcessStatus::Running][..]),
            1 => ("order", &[][..]),
            _ => ("payment", &[ProcessStatus::Running][..]),
        };
        let new = inserted(&processes, process_type, &format!("k-{n}")).await;
        let stored = moved(&processes, new, to).await;
        if n % 3 == 0 {
            expected.insert(0, stored);
        }
        clock.advance(Duration::from_millis(1));
    }
    let find = async |process_type, status, limit| {
        processes.find_by_type_and_status(process_type, status, limit).await.unwrap()
    };
    assert_eq!(find("order", ProcessStatus::Running, 10).await, expected);
    assert_eq!(find("order", ProcessStatus::Running, 2).await, expected[..2]);
    assert_eq!(find("payment", ProcessStatus::Running, 10).await.len(), 3);
    assert_eq!(find("payment", ProcessStatus::New, 10).await, []);
    assert_eq!(find("ORDER", ProcessStatus::Running, 10).await, [], "exactly this type");
    place.leave(&headwater).await;
}

async fn update_status(place: Place) {
    let (headwater, clock, processes) = open(&place).await;
    let new = inserted(&processes, "order", "o-1").await;
    let created_at = clock.now();
    clock.advance(Duration::from_secs(5));
    let running = new.with_status(ProcessStatus::Running).with_current_step("reserve");
    let running = processes.update(&running, &step_started("reserve")).await.unwrap();
    assert_eq!((running.status(), running.version()), (ProcessStatus::Running, 2));
    assert_eq!((running.created_at(), running.updated_at()), (Some(created_at), Some(clock.now())));
    assert_eq!(processes.find_by_id(new.id()).await.unwrap(), Some(running.clone()));
    let log = processes.log(new.id(), None).await.unwrap();
    assert_eq!(tags(&log), ["StepStarted", "ProcessStarted"]);
    assert_eq!((log[0].sequence, log[0].at), (2, clock.now()));
    let changed = ProcessChange {
        status: Some(ProcessStatus::Running),
        current_step: Some(Some("reserve".into())),
        ..ProcessChange::default()
    };
    assert_eq!(log[0].change, changed, "what the update changed, and nothing else");
    // A stale version, an unknown process.
    let stale =
        processes.update(&new.with_status(ProcessStatus::Paused), &step_started("x")).await.unwrap_err();
    assert_eq!(stale.kind(), ErrorKind::Conflict);
    assert!(stale.to_string().contains("version 1 is stale, 2 is stored"), "{stale}");
    let unknown = running.with_id(Uuid::now_v7()).with_status(ProcessStatus::Running);
    let unknown = processes.update(&unknown, &step_started("x")).await.unwrap_err();
    assert_eq!(unknown.kind(), ErrorKind::NoSuchProcess, "{unknown}");
    assert_eq!(processes.find_by_id(new.id()).await.unwrap(), Some(running));
    assert_eq!(processes.log(new.id(), None).await.unwrap(), log, "nothing was written");
    place.leave(&headwater).await;
}

async fn update_step(place: Place) {
    let (headwater, _, processes) = open(&place).await;
    let new = inserted(&processes, "order", "o-1").await;
    let one = new.with_status(ProcessStatus::Running).with_current_step("step1").with_retries(2);
    let one = processes.update(&one, &step_started("step1")).await.unwrap();
    let completed = ProcessEvent::StepCompleted {
        step: "step1".into(),
        command_id: "c-step1".into(),
        result_data: data(r#"{"shelf": 4}"#),
    };
    let two = processes.update(&one.with_current_step("step2"), &completed).await.unwrap();
    assert_eq!((two.current_step(), two.retries()), (Some("step2"), 0));
    let log = processes.log(new.id(), 1).await.unwrap();
    assert_eq!(log[0].event, completed);
    assert_eq!(log[0].change.current_step, Some(Some("step2".into())));
    assert_eq!(
        (log[0].change.retries, log[0].change.status, log[0].change.data.as_ref()),
        (Some(0), None, None)
    );
    // No step any more.
    let none = processes.update(&two.with_current_step(None::<&str>), &completed).await.unwrap();
    assert_eq!(none.current_step(), None);
    assert_eq!(processes.log(new.id(), 1).await.unwrap()[0].change.current_step, Some(None));
    assert_eq!(processes.replay(new.id()).await.unwrap(), Some(none));
    place.leave(&headwater).await;
}

async fn update_data(place: Place) {
    let (headwater, _, processes) = open(&place).await;
    let new = inserted(&processes, "order", "o-1").await;
    let more = new.data().unwrap().merged(&data(r#"{"shelf": 4, "paid": true}"#).unwrap()).unwrap();
    let event = step_started("reserve");
    let updated = processes.update(&new.with_data(more), &event).await.unwrap();
    let read = processes.find_by_id(new.id()).await.unwrap().unwrap();
    assert_eq!(read.data().unwrap().as_str(), r#"{"total":250,"shelf":4,"paid":true}"#);
    assert_eq!(read, updated);
    // An update of something else leaves it, and none at all is possible.
    let kept = processes.update(&read.with_retries(1), &event).await.unwrap();
    assert_eq!(kept.data(), read.data());
    assert_eq!(processes.log(new.id(), 1).await.unwrap()[0].change.data, None);
    let none = processes.update(&kept.with_data(None), &event).await.unwrap();
    assert_eq!(processes.find_by_id(new.id()).await.unwrap().unwrap().data(), None);
    assert_eq!(processes.log(new.id(), 1).await.unwrap()[0].change.data, Some(None));
    assert_eq!(processes.replay(new.id()).await.unwrap(), Some(none));
    place.leave(&headwater).await;
}

async fn log_of_several_updates(place: Place) {
    let (headwater, clock, processes) = open(&place).await;
    let mut at = inserted(&processes, "order", "o-1").await.with_status(ProcessStatus::Running);
    inserted(&processes, "order", "o-2").await;
    for step in ["a", "b", "c"] {
        clock.advance(Duration::from_secs(1));
        at = processes.update(&at.with_current_step(step), &step_started(step)).await.unwrap();
    }
    let log = processes.log(at.id(), None).await.unwrap();
    assert_eq!(log.iter().map(|entry| entry.sequence).collect::<Vec<_>>(), [4, 3, 2, 1]);
    assert_eq!(tags(&log), ["StepStarted", "StepStarted", "StepStarted", "ProcessStarted"]);
    assert_eq!(log.iter().filter_map(|entry| entry.event.step()).collect::<Vec<_>>(), ["c", "b", "a"]);
    assert!(log.windows(2).all(|pair| pair[0].at > pair[1].at));
    assert!(log.iter().all(|entry| entry.process_id == at.id()), "of this process alone");
    place.leave(&headwater).await;
}

async fn log_limit(place: Place) {
    let (headwater, _, processes) = open(&place).await;
    let mut at = inserted(&processes, "order", "o-1").await.with_status(ProcessStatus::Running);
    for n in 1..10 {
        at = processes.update(&at, &step_started(&n.to_string())).await.unwrap();
    }
    let newest = processes.log(at.id(), 3).await.unwrap();
    assert_eq!(newest.iter().map(|entry| entry.sequence).collect::<Vec<_>>(), [10, 9, 8]);
    assert_eq!(processes.log(at.id(), None).await.unwrap().len(), 10);
    assert_eq!(processes.log(at.id(), 0).await.unwrap(), []);
    place.leave(&headwater).await;
}

async fn find_by_business_key(place: Place) {
    let (headwater, clock, processes) = open(&place).await;
    let strange = "o'1\" %_ \\ ü 日本";
    for key in ["o-1", "o-2", strange, "O-1", "o-1 "] {
        inserted(&processes, "order", key).await;
    }
    inserted(&processes, "payment", "o-1").await;
    for key in ["o-1", strange] {
        let found = processes.find_by_business_key("order", key).await.unwrap().unwrap();
        assert_eq!((found.process_type(), found.business_key()), ("order", Some(key)), "exactly this key");
    }
    clock.advance(Duration::from_millis(1));
    let newest = inserted(&processes, "order", "o-1").await;
    let found = processes.find_by_business_key("order", "o-1").await.unwrap();
    assert_eq!(found, Some(newest), "the newest if there are several");
    for (process_type, key) in [("order", "o-9"), ("refund", "o-1"), ("order", "o-")] {
        assert_eq!(processes.find_by_business_key(process_type, key).await.unwrap(), None);
    }
    let empty = processes.find_by_business_key("order", "").await.unwrap_err();
    assert_eq!(empty.kind(), ErrorKind::InvalidInput);
    place.leave(&headwater).await;
}

async fn transitions(place: Place) {
    let (headwater, _, processes) = open(&place).await;
    use ProcessStatus::{Compensated, Compensating, Failed, New, Paused, Running, Succeeded};
    let ways = [
        &[Running, Succeeded][..],
        &[Running, Failed],
        &[Running, Compensating, Compensated],
        &[Running, Compensating, Failed],
        &[Paused, Running, Paused, Running, Compensating, Paused, Compensating, Compensated],
    ];
    for way in ways {
        let new = inserted(&processes, "order", "o-1").await;
        let (mut at, mut before) = (new, New);
        for status in way {
            at = processes.update(&at.with_status(*status), &step_started("s")).await.unwrap();
            assert_eq!(at.paused_in(), (*status == Paused).then_some(before), "kept while it is paused");
            let logged = processes.log(at.id(), 1).await.unwrap().remove(0);
            assert_eq!((logged.change.status, logged.sequence), (Some(*status), at.version()));
            assert_eq!(processes.replay(at.id()).await.unwrap().as_ref(), Some(&at));
            before = *status;
        }
        // The end is the end.
        for next in ProcessStatus::ALL {
            let error = processes.update(&at.with_status(next), &step_started("s")).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidTransition, "{next}: {error}");
        }
        assert_eq!(processes.find_by_id(at.id()).await.unwrap(), Some(at));
    }
    let new = inserted(&processes, "order", "o-1").await;
    for next in [Succeeded, Failed, Compensating, Compensated] {
        let error = processes.update(&new.with_status(next), &step_started("s")).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidTransition);
        assert!(error.to_string().contains("nothing was written"), "{error}");
    }
    let running = new.with_status(Running);
    let begins = ProcessInstance::create("order", None, None).with_status(Running);
    let error = processes.insert(&begins, &begins.started()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidTransition);
    processes.update(&running, &step_started("s")).await.unwrap();
    place.leave(&headwater).await;
}

async fn concurrent_updates(place: Place) {
    let (headwater, clock, processes) = open(&place).await;
    let other = place.open_at(&clock).await;
    let running = inserted(&processes, "order", "o-1").await.with_status(ProcessStatus::Running);
    let running = processes.update(&running, &step_started("s")).await.unwrap();
    let mut accepted = Vec::new();
    for round in 0..5 {
        let at = processes.find_by_id(running.id()).await.unwrap().unwrap();
        let mut tasks = Vec::new();
        for n in 0..8 {
            let repository = if n % 2 == 0 { processes.clone() } else { other.processes() };
            let (copy, step) = (at.with_retries(n), format!("{round}-{n}"));
            tasks.push(tokio::spawn(async move {
                let updated = repository.update(&copy, &step_started(&step)).await;
                updated.map(|_| step)
            }));
        }
        for task in tasks {
            match task.await.unwrap() {
                Ok(step) => accepted.push(step),
                Err(error) => assert_eq!(error.kind(), ErrorKind::Conflict, "{error}"),
            }
        }
        assert_eq!(accepted.len(), round + 1, "one of the concurrent updates is accepted");
    }
    let mut log = processes.log(running.id(), None).await.unwrap();
    log.reverse();
    let logged: Vec<&str> = log[2..].iter().filter_map(|entry| entry.event.step()).collect();
    assert_eq!(logged, accepted, "the log holds every accepted one");
    assert_eq!(
        processes.replay(running.id()).await.unwrap(),
        processes.find_by_id(running.id()).await.unwrap()
    );
    other.close().await.unwrap();
    place.leave(&headwater).await;
}

async fn json(place: Place) {
    let (headwater, _, processes) = open(&place).await;
    let texts = [
        r#"{}"#,
        r#"{"order":{"lines":[{"sku":"a","n":1},{"sku":"b","n":2}],"address":{"street":{"name":"x","no":7}}}}"#,
        r#"{"z": 1, "a": 2, "m": {"y": [], "b": {}}}"#,
        r#"{"large":123456789012345678901234567890,"small":-0.000000000000000000012345,"exact":1.10,"power":1E+400}"#,
        r#"{"quotes":"it's \"here\"","back":"\\ \/","lines":"\n\t\r","nul":"\u0000","escape":"\u00e9\ud83d\ude00"}"#,
        "{\"plain\":\"ünïcode 日本語 😀 \u{2028}\u{feff}\",\"sql\":\"'; DROP TABLE process; --\"}",
        r#"{"same":1,"same":2}"#,
        " {\n  \"spaces\" :\t[ 1 , 2 ]\r\n} ",
        r#"{"true":true,"false":false,"null":null,"":"empty name"}"#,
    ];
    for text in texts {
        let new = ProcessInstance::create("order", None, data(text));
        let stored = processes.insert(&new, &new.started()).await.unwrap();
        let event =
            ProcessEvent::StepCompleted { step: "s".into(), command_id: "c".into(), result_data: data(text) };
        let updated = stored.with_status(ProcessStatus::Running).with_data(data(r#"{"other":1}"#));
        let updated = processes.update(&updated, &event).await.unwrap();
        let updated = processes.update(&updated.with_data(data(text)), &event).await.unwrap();
        let read = processes.find_by_id(new.id()).await.unwrap().unwrap();
        assert_eq!(read.data().unwrap().as_str(), text.trim(), "byte for byte");
        assert_eq!(read, updated);
        let log = processes.log(new.id(), None).await.unwrap();
        assert_eq!((&log[0].event, &log[2].event), (&event, &new.started()));
        assert_eq!(log[0].change.data, Some(data(text)));
        assert_eq!(processes.replay(new.id()).await.unwrap(), Some(read));
    }
    place.leave(&headwater).await;
}

async fn all_12_event_types(place: Place) {
    let (headwater, _, processes) = open(&place).await;
    let (step, command_id) = (|| "charge".to_owned(), || Uuid::now_v7().to_string());
    let (error, reason) = (|| "declined: \"no\" 'funds' ü".to_owned(), || "as planned".to_owned());
    let by = || "ann".to_owned();
    let events = [
        step_started("charge"),
        ProcessEvent::StepCompleted {
            step: step(),
            command_id: command_id(),
            result_data: data(r#"{"a":[1]}"#),
        },
        ProcessEvent::StepCompleted { step: step(), command_id: command_id(), result_data: None },
        ProcessEvent::StepFailed { step: step(), command_id: command_id(), error: error(), retryable: true },
        ProcessEvent::StepFailed { step: step(), command_id: command_id(), error: error(), retryable: false },
        ProcessEvent::StepTimedOut { step: step(), command_id: command_id(), error: error() },
        ProcessEvent::CompensationStarted { step: step(), command_id: command_id() },
        ProcessEvent::CompensationCompleted { step: step(), command_id: command_id() },
        ProcessEvent::CompensationFailed { step: step(), command_id: command_id(), error: error() },
        ProcessEvent::ProcessCompleted { reason: reason() },
        ProcessEvent::ProcessFailed { reason: reason() },
        ProcessEvent::ProcessPaused { reason: reason(), paused_by: by() },
        ProcessEvent::ProcessResumed { reason: String::new(), resumed_by: by() },
    ];
    let mut at = inserted(&processes, "order", "o-1").await.with_status(ProcessStatus::Running);
    let mut expected = vec![at.started()];
    for event in events {
        at = processes.update(&at, &event).await.unwrap();
        expected.push(event);
    }
    let mut logged: Vec<ProcessEvent> =
        processes.log(at.id(), None).await.unwrap().into_iter().map(|entry| entry.event).collect();
    logged.reverse();
    assert_eq!(logged, expected);
    let kinds: std::collections::BTreeSet<&str> = expected.iter().map(ProcessEvent::tag).collect();
    assert_eq!(kinds.len(), 12);
    assert_eq!(processes.replay(at.id()).await.unwrap(), Some(at));
    place.leave(&headwater).await;
}
