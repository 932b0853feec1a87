//! Sagas in trouble: each step fails, is busy and is late; a thousand run at once; and what is wrong is refused by name.

use std::collections::BTreeMap;
use std::time::Duration;

use headwater::process::{ProcessData, ProcessInstance, ProcessStatus, ProcessType, Processes, Step};
use headwater::transaction::{Row, Transaction};
use headwater::{ErrorKind, GroupName, Headwater, NewMessage, TopicName};
use serde_json::json;
use uuid::Uuid;

use crate::each::{DEADLINE, Place, on_each};
use crate::process_scene::{NAMES, SECOND, Scene, Script, commands, effects_table, legal, order, step};

on_each!(
    each_step_fails_is_busy_and_is_late,
    a_thousand_processes_run_at_once,
    a_reply_that_cannot_be_read_is_set_aside_and_changes_nothing,
    a_step_that_is_not_declared_stops_its_process_until_it_is,
    unknown_processes_and_stale_versions_are_refused_by_name,
    data_that_are_no_object_are_refused_before_anything_is_written,
);

const STEPS: [&str; 3] = ["reserve", "charge", "ship"];

/// Moves a new process until the command of a step is sent.
async fn up_to(scene: &mut Scene, at: usize, data: &serde_json::Value) -> Uuid {
    let id = scene.processes.start("order").data(data).await.unwrap().process.id();
    for _ in 0..at {
        scene.manage().await;
        scene.worker.drain().await.unwrap();
    }
    scene.manage().await;
    assert_eq!(scene.process(id).await.current_step(), Some(STEPS[at]));
    id
}

async fn each_step_fails_is_busy_and_is_late(place: Place) {
    let mut scene = Scene::new(&place, &order()).await;
    for (at, name) in STEPS.into_iter().enumerate() {
        let undone = if at == 0 { ProcessStatus::Failed } else { ProcessStatus::Compensated };
        for (member, status) in [("fails", undone), ("is_busy", undone)] {
            let id = up_to(&mut scene, at, &json!({ (member): name })).await;
            scene.drain().await;
            scene.pass(SECOND * 10).await;
            assert_eq!(scene.status(id).await, status, "{name} {member}");
            let effects = scene.effects(id).await;
            assert_eq!(effects.len(), at * 2, "{name} {member}: {effects:?}");
            legal(status, &effects);
        }
        let late = up_to(&mut scene, at, &json!({})).await;
        scene.clock.advance(SECOND * 30);
        scene.drain().await;
        assert_eq!(scene.status(late).await, ProcessStatus::Succeeded, "{name}, late once");
        legal(ProcessStatus::Succeeded, &scene.effects(late).await);

        let lost = up_to(&mut scene, at, &json!({})).await;
        for _ in 0..2 {
            scene.clock.advance(SECOND * 30);
            scene.manage().await;
        }
        // Its command comes at last, when it is given up: what can be undone is.
        scene.drain().await;
        let effects = scene.effects(lost).await;
        let undone: Vec<String> = STEPS[..=at]
            .iter()
            .filter(|step| **step != "ship")
            .rev()
            .map(|step| format!("undo {step}"))
            .collect();
        assert_eq!(effects, [STEPS[..=at].iter().map(|step| (*step).to_owned()).collect(), undone].concat());
        assert_eq!(scene.status(lost).await, ProcessStatus::Compensated, "{name}, late for good");
    }
    scene.leave(place).await;
}

const PROCESSES: usize = 1_000;

/// What happens to the nth process, and how it has to end.
fn fate(n: usize) -> (serde_json::Value, ProcessStatus) {
    let name = STEPS[n % 3];
    let undone = if name == "reserve" { ProcessStatus::Failed } else { ProcessStatus::Compensated };
    match n % 10 {
        0 => (json!({ "n": n, "fails": name }), undone),
        1 => (json!({ "n": n, "is_busy": name }), undone),
        _ => (json!({ "n": n }), ProcessStatus::Succeeded),
    }
}

async fn start_all(headwater: &Headwater) -> Vec<Uuid> {
    let mut ids = Vec::new();
    for first in (0..PROCESSES).step_by(100) {
        let processes = headwater.processes();
        let started: headwater::Result<Vec<Uuid>> = headwater
            .transaction(move |tx: Transaction| async move {
                let inside = processes.within(&tx);
                let mut ids = Vec::new();
                for n in first..first + 100 {
                    let start = inside.start("order").business_key(&format!("o-{n}")).data(&fate(n).0);
                    ids.push(start.once().await?.process.id());
                }
                Ok(ids)
            })
            .await;
        ids.extend(started.unwrap());
    }
    ids
}

pub(crate) async fn all_ended(processes: &Processes) -> bool {
    for status in [ProcessStatus::New, ProcessStatus::Running, ProcessStatus::Compensating] {
        if !processes.find_by_status(status, 1).await.unwrap().is_empty() {
            return false;
        }
    }
    true
}

async fn a_thousand_processes_run_at_once(place: Place) {
    let quick = |name: &str| Step::new(name, "work", name).attempts(2).backoff(SECOND / 50, SECOND / 10);
    let order = ProcessType::new("order")
        .step(quick("reserve").compensation("undo reserve"))
        .step(quick("charge").compensation("undo charge"))
        .step(quick("ship"));
    let (headwater, other) = (place.open().await, place.open().await);
    let table = effects_table(&headwater).await;
    headwater.processes().manager(&order).await.unwrap();
    let ids = start_all(&headwater).await;
    // Two programs share the work.
    let mut running = Vec::new();
    for program in [&headwater, &other] {
        running.push(program.processes().manager(&order).await.unwrap().run().await.unwrap());
        let worker = commands(&NAMES, &table, &Script::default()).handling();
        running.push(program.consumer("work", "worker").handling("one", worker).run().await.unwrap());
    }
    let processes = headwater.processes();
    let until = tokio::time::Instant::now() + 4 * DEADLINE;
    while !all_ended(&processes).await {
        assert!(tokio::time::Instant::now() < until, "every process ends");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    for one in running {
        one.shutdown(Duration::from_secs(10)).await.unwrap();
    }
    let sql = format!("SELECT process_id, name FROM {table} ORDER BY n");
    let rows: headwater::Result<Vec<Row>> =
        headwater.transaction(move |tx: Transaction| async move { tx.query(&sql, ()).await }).await;
    let mut effects: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for row in rows.unwrap() {
        effects.entry(row.get("process_id").unwrap()).or_default().push(row.get("name").unwrap());
    }
    for (n, id) in ids.into_iter().enumerate() {
        let process = processes.find_by_id(id).await.unwrap().unwrap();
        let effects = effects.remove(&id.to_string()).unwrap_or_default();
        assert_eq!(process.status(), fate(n).1, "{n}: {effects:?}");
        legal(process.status(), &effects);
        assert_eq!(processes.replay(id).await.unwrap(), Some(process));
    }
    assert!(effects.is_empty(), "{effects:?}");
    let drop_table = format!("DROP TABLE {table}");
    let dropped: headwater::Result<u64> =
        headwater.transaction(move |tx: Transaction| async move { tx.execute(&drop_table, ()).await }).await;
    dropped.unwrap();
    other.close().await.unwrap();
    place.leave(&headwater).await;
}

async fn a_reply_that_cannot_be_read_is_set_aside_and_changes_nothing(place: Place) {
    let mut scene = Scene::new(&place, &order()).await;
    let id = scene.start().await;
    scene.manage().await;
    let before = scene.process(id).await;
    let command = scene.headwater.published("work").await.unwrap().remove(0);
    let reply = |payload: &str, process: Uuid, command: Uuid| {
        NewMessage::new(payload.to_owned()).key(process).correlation_id(format!("{process}/{command}"))
    };
    let replies = scene.headwater.producer("process.order");
    for payload in ["{\"a\":", "[1]", "7"] {
        replies.send(reply(payload, id, command.message_id)).await.unwrap();
    }
    replies
        .send(reply("{}", id, command.message_id).header("headwater-process-outcome", "perhaps"))
        .await
        .unwrap();
    // Not an error: a process may have ended and been removed, and its command come late.
    replies.send(reply("{}", Uuid::now_v7(), command.message_id)).await.unwrap();
    replies.send(reply("{}", id, Uuid::now_v7())).await.unwrap();
    assert_eq!(scene.manage().await.min(1), 1);
    scene.clock.advance(SECOND);
    assert_eq!(scene.manage().await, 0, "nothing is retried");
    assert_eq!(scene.process(id).await, before, "nothing was written");
    let dead = scene.headwater.dead_letters().of("process.order", "manager").list(9).await.unwrap();
    let errors: Vec<&str> = dead.iter().map(|letter| letter.error.as_str()).collect();
    assert_eq!(errors.len(), 4, "{errors:?}");
    assert_eq!(errors.iter().filter(|error| error.contains("its result is wrong")).count(), 3, "{errors:?}");
    assert!(errors.iter().any(|error| error.contains("perhaps is no outcome")), "{errors:?}");
    assert!(errors.iter().all(|error| error.contains("headwater dead-letter redrive")), "{errors:?}");
    scene.drain().await;
    assert_eq!(scene.status(id).await, ProcessStatus::Succeeded);
    scene.leave(place).await;
}

async fn a_step_that_is_not_declared_stops_its_process_until_it_is(place: Place) {
    let mut scene = Scene::new(&place, &order()).await;
    let id = scene.start().await;
    scene.manage().await;
    scene.worker.drain().await.unwrap();
    let before = scene.process(id).await;
    let lacking = ProcessType::new("order").step(step("charge")).step(step("ship"));
    let Scene { headwater, clock, table, script, .. } = scene;
    headwater.close().await.unwrap();
    let headwater = place.open_at(&clock).await;
    let (topic, group) = (TopicName::new("process.order").unwrap(), GroupName::new("manager").unwrap());
    let mut policy = headwater.store().policy(&topic, &group).await.unwrap();
    policy.max_attempts = Some(3);
    headwater.store().set_policy(&topic, &group, &policy).await.unwrap();
    let manager = headwater.processes().manager(&lacking).await.unwrap();
    let mut manager = manager.stepwise().await.unwrap();
    for _ in 0..9 {
        manager.drain().await.unwrap();
        clock.advance(SECOND);
    }
    let letters = headwater.dead_letters().of("process.order", "manager");
    let dead = letters.list(9).await.unwrap();
    assert!(dead.len() == 1 && dead[0].attempts == 3, "{dead:?}");
    let says =
        format!("process {id}: type order has no step reserve; declare it, as long as processes are at it");
    assert!(dead[0].error.contains(&says), "{dead:?}");
    assert_eq!(headwater.processes().find_by_id(id).await.unwrap(), Some(before), "nothing was written");
    letters.redrive(|all| all).await.unwrap();
    headwater.close().await.unwrap();
    let headwater = place.open_at(&clock).await;
    let mut scene = Scene::on(headwater, clock, &order(), table, script).await;
    scene.drain().await;
    assert_eq!(scene.status(id).await, ProcessStatus::Succeeded);
    legal(ProcessStatus::Succeeded, &scene.effects(id).await);
    scene.leave(place).await;
}

async fn unknown_processes_and_stale_versions_are_refused_by_name(place: Place) {
    let mut scene = Scene::new(&place, &order()).await;
    let (processes, id) = (scene.processes.clone(), Uuid::now_v7());
    for refused in [
        processes.pause(id, "why").await,
        processes.resume(id, "why").await,
        processes.retry(id).await,
        processes.fail(id, "why").await,
    ] {
        let error = refused.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NoSuchProcess);
        assert_eq!(error.to_string(), format!("no such process: {id}; see `headwater process list`"));
    }
    let id = scene.start().await;
    let stale = scene.process(id).await;
    scene.drain().await;
    let ended = scene.process(id).await;
    let error = processes
        .update(&stale.with_status(ProcessStatus::Running), &crate::process_repository::step_started("s"))
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Conflict);
    let says =
        format!("version 1 is stale, {} is stored; nothing was written: read it again", ended.version());
    assert!(error.to_string().ends_with(&says), "{error}");
    assert_eq!(scene.process(id).await, ended);
    scene.leave(place).await;
}

async fn data_that_are_no_object_are_refused_before_anything_is_written(place: Place) {
    let scene = Scene::new(&place, &order()).await;
    for text in ["", "{", "{\"a\":1}}", "[1]", "null", "{'a':1}"] {
        let error = ProcessData::from_json(text).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        assert!(error.to_string().contains("data"), "{text}: {error}");
    }
    for wrong in [json!([1]), json!("text"), json!(7)] {
        let error = scene.processes.start("order").data(&wrong).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
    }
    assert_eq!(
        scene.processes.find_by_status(ProcessStatus::New, 9).await.unwrap(),
        [] as [ProcessInstance; 0]
    );
    assert_eq!(scene.headwater.published("process.order").await.unwrap().len(), 0);
    scene.leave(place).await;
}
