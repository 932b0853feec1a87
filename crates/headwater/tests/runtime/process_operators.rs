//! What programs and operators do with whole processes: start once, pause, resume, retry, fail.

use std::time::Duration;

use headwater::process::{ProcessInstance, ProcessStatus, Started};
use headwater::testing::ManualClock;
use headwater::transaction::Transaction;
use headwater::{ErrorKind, Headwater, OpenOptions};
use serde_json::json;

use crate::each::{Place, eventually, on_each};
use crate::process_scene::{Reaction, Scene, order, step};

on_each!(
    a_process_starts_once_per_business_key_however_many_start_it,
    a_start_inside_a_transaction_begins_when_it_commits_or_never,
    a_process_without_a_manager_begins_when_one_runs,
    a_paused_process_records_replies_and_sends_nothing,
    a_pause_stops_time_and_a_resume_sets_it_anew,
    a_process_can_be_paused_before_it_begins_and_between_attempts,
    what_failed_in_a_pause_is_undone_after_it,
    a_failed_compensation_stays_visible_until_a_person_retries_it,
    a_compensation_that_timed_out_is_retried_with_the_same_command,
    a_person_ends_a_process_and_late_replies_change_nothing,
    every_role_does_its_part,
);

const SECOND: Duration = Duration::from_secs(1);

async fn a_process_starts_once_per_business_key_however_many_start_it(place: Place) {
    let mut scene = Scene::new(&place, &order()).await;
    let other = place.open_at(&scene.clock).await;
    let mut tasks = Vec::new();
    for n in 0..10 {
        let processes = if n % 2 == 0 { scene.processes.clone() } else { other.processes() };
        tasks.push(tokio::spawn(async move {
            processes.start("order").business_key("o-17").data(&json!({ "n": 1 })).once().await.unwrap()
        }));
    }
    let mut started = Vec::new();
    for task in tasks {
        started.push(task.await.unwrap());
    }
    assert_eq!(started.iter().filter(|started| started.is_new).count(), 1);
    let id = started[0].process.id();
    assert!(started.iter().all(|started| started.process.id() == id));
    scene.drain().await;
    assert_eq!(scene.effects(id).await, ["reserve", "charge", "ship"]);
    // Also after it has ended; another key is another process, and without `once` so is the same.
    let again = scene.processes.start("order").business_key("o-17").once().await.unwrap();
    assert_eq!((again.is_new, again.process.status()), (false, ProcessStatus::Succeeded));
    assert!(scene.processes.start("order").business_key("o-18").once().await.unwrap().is_new);
    let twice = scene.processes.start("order").business_key("o-17").await.unwrap();
    assert!(twice.is_new && twice.process.id() != id);
    let keyless = scene.processes.start("order").once().await.unwrap_err();
    assert!(keyless.to_string().contains("business_key"), "{keyless}");
    other.close().await.unwrap();
    scene.drain().await;
    scene.leave(place).await;
}

async fn a_start_inside_a_transaction_begins_when_it_commits_or_never(place: Place) {
    let mut scene = Scene::new(&place, &order()).await;
    let mut ids = Vec::new();
    for fails in [true, false] {
        let processes = scene.processes.clone();
        let id = std::sync::Arc::new(std::sync::Mutex::new(None));
        let seen = std::sync::Arc::clone(&id);
        let started: anyhow::Result<Started> = scene
            .headwater
            .transaction(move |tx: Transaction| async move {
                let started = processes.within(&tx).start("order").business_key("o-1").once().await?;
                *seen.lock().unwrap() = Some(started.process.id());
                anyhow::ensure!(!fails, "rolled back");
                Ok(started)
            })
            .await;
        assert_eq!(started.is_err(), fails);
        ids.push(id.lock().unwrap().take().unwrap());
        scene.drain().await;
    }
    assert_eq!(ids[0], ids[1], "its id is made of its type and key");
    // PostgreSQL passes the offset that was rolled back a moment later.
    eventually("the process has ended", async || {
        scene.drain().await;
        scene.status(ids[0]).await == ProcessStatus::Succeeded
    })
    .await;
    assert_eq!(scene.effects(ids[0]).await, ["reserve", "charge", "ship"], "once");
    scene.leave(place).await;
}

async fn a_process_without_a_manager_begins_when_one_runs(place: Place) {
    let clock = ManualClock::at("2026-03-02T09:00:00Z".parse().unwrap());
    let headwater = place.open_at(&clock).await;
    let id = headwater.processes().start("order").await.unwrap().process.id();
    assert_eq!(headwater.processes().find_by_id(id).await.unwrap().unwrap().status(), ProcessStatus::New);
    headwater.close().await.unwrap();
    let mut scene = Scene::new(&place, &order()).await;
    scene.drain().await;
    assert_eq!(scene.status(id).await, ProcessStatus::Succeeded);
    scene.leave(place).await;
}

async fn a_paused_process_records_replies_and_sends_nothing(place: Place) {
    let mut scene = Scene::new(&place, &order()).await;
    let id = scene.start().await;
    scene.manage().await;
    let paused = scene.processes.pause(id, "stock is counted").await.unwrap();
    assert_eq!((paused.status(), paused.paused_in()), (ProcessStatus::Paused, Some(ProcessStatus::Running)));
    scene.drain().await;
    assert_eq!(scene.effects(id).await, ["reserve"], "what was sent is carried out");
    let process = scene.process(id).await;
    assert_eq!(process.status(), ProcessStatus::Paused);
    assert_eq!(process.data().unwrap().get::<String>("reserve").unwrap().as_deref(), Some("reserve"));
    assert_eq!(scene.events(id).await.last().map(String::as_str), Some("StepCompleted reserve"));
    scene.processes.resume(id, "counted").await.unwrap();
    scene.drain().await;
    assert_eq!(scene.status(id).await, ProcessStatus::Succeeded);
    assert_eq!(scene.effects(id).await, ["reserve", "charge", "ship"]);
    scene.leave(place).await;
}

async fn a_pause_stops_time_and_a_resume_sets_it_anew(place: Place) {
    let mut scene = Scene::new(&place, &order()).await;
    let id = scene.start().await;
    scene.manage().await;
    scene.clock.advance(SECOND * 20);
    scene.processes.pause(id, "").await.unwrap();
    scene.clock.advance(SECOND * 3_600);
    scene.manage().await;
    assert_eq!(scene.status(id).await, ProcessStatus::Paused);
    scene.processes.resume(id, "").await.unwrap();
    scene.manage().await;
    scene.clock.advance(SECOND * 29);
    scene.manage().await;
    assert_eq!(scene.process(id).await.retries(), 0, "a full time-out from the resumption on");
    scene.clock.advance(SECOND);
    scene.manage().await;
    assert_eq!(scene.process(id).await.retries(), 1);
    scene.drain().await;
    assert_eq!(scene.status(id).await, ProcessStatus::Succeeded);
    assert_eq!(scene.effects(id).await, ["reserve", "charge", "ship"]);
    scene.leave(place).await;
}

async fn a_process_can_be_paused_before_it_begins_and_between_attempts(place: Place) {
    let mut scene = Scene::new(&place, &order()).await;
    let id = scene.start().await;
    let paused = scene.processes.pause(id, "").await.unwrap();
    assert_eq!(paused.paused_in(), Some(ProcessStatus::New));
    scene.drain().await;
    assert_eq!(scene.effects(id).await, [""; 0]);
    scene.react("reserve", &[Reaction::Retry]);
    assert_eq!(scene.processes.resume(id, "").await.unwrap().status(), ProcessStatus::Running);
    scene.drain().await;
    // It waits for its second attempt.
    scene.processes.pause(id, "").await.unwrap();
    scene.pass(SECOND * 60).await;
    assert_eq!(scene.status(id).await, ProcessStatus::Paused);
    scene.processes.resume(id, "").await.unwrap();
    scene.drain().await;
    assert_eq!(scene.status(id).await, ProcessStatus::Succeeded, "what waited is tried at once");
    // A resume of what is not paused changes nothing.
    let ended = scene.processes.resume(id, "").await.unwrap_err();
    assert_eq!(ended.kind(), ErrorKind::InvalidTransition, "{ended}");
    scene.leave(place).await;
}

async fn what_failed_in_a_pause_is_undone_after_it(place: Place) {
    let mut scene = Scene::new(&place, &order()).await;
    scene.react("charge", &[Reaction::Fail]);
    let id = scene.start().await;
    scene.manage().await;
    scene.worker.drain().await.unwrap();
    scene.manage().await;
    scene.processes.pause(id, "").await.unwrap();
    scene.drain().await;
    assert_eq!(scene.events(id).await.last().map(String::as_str), Some("StepFailed charge"));
    assert_eq!(scene.effects(id).await, ["reserve"]);
    scene.processes.resume(id, "").await.unwrap();
    scene.drain().await;
    assert_eq!(scene.status(id).await, ProcessStatus::Compensated);
    assert_eq!(scene.effects(id).await, ["reserve", "undo reserve"]);
    scene.leave(place).await;
}

async fn a_failed_compensation_stays_visible_until_a_person_retries_it(place: Place) {
    let mut scene = Scene::new(&place, &order()).await;
    scene.react("ship", &[Reaction::Fail]);
    scene.react("undo charge", &[Reaction::Retry, Reaction::Retry, Reaction::Fail]);
    let id = scene.start().await;
    scene.drain().await;
    assert_eq!(scene.processes.parked(9).await.unwrap(), [], "it is tried again by itself first");
    scene.pass(SECOND * 10).await;
    let parked = scene.processes.parked(9).await.unwrap();
    assert_eq!(parked.iter().map(ProcessInstance::id).collect::<Vec<_>>(), [id]);
    assert_eq!((parked[0].status(), parked[0].current_step()), (ProcessStatus::Compensating, Some("charge")));
    let findings = scene.headwater.attention().await.unwrap();
    let finding = findings.iter().find(|finding| finding.check == "compensation_failed").unwrap();
    assert!(
        finding.problem.contains(&id.to_string()) && finding.remedy.contains("process retry"),
        "{finding:?}"
    );
    let dead = scene.headwater.dead_letters().list(9, |all| all).await.unwrap();
    assert_eq!(dead.len(), 1, "{dead:?}");
    assert_eq!(
        (dead[0].name.as_deref(), dead[0].error_class.as_deref()),
        (Some("undo charge"), Some("CompensationFailed"))
    );
    assert!(dead[0].error_message.as_ref().unwrap().contains(&id.to_string()), "{dead:?}");
    // It stays, whatever time passes, and the steps before it are not undone before it is.
    scene.pass(SECOND * 100_000).await;
    assert_eq!(scene.effects(id).await, ["reserve", "charge"]);
    for (attempt, left) in [(1, 1), (2, 0)] {
        assert_eq!(scene.processes.retry(id).await.unwrap().status(), ProcessStatus::Compensating);
        scene.drain().await;
        assert_eq!(scene.processes.parked(9).await.unwrap().len(), left, "retry {attempt} by a person");
    }
    assert_eq!(scene.status(id).await, ProcessStatus::Compensated);
    assert_eq!(scene.effects(id).await, ["reserve", "charge", "undo charge", "undo reserve"]);
    let nothing = scene.processes.retry(id).await.unwrap_err();
    assert_eq!(nothing.kind(), ErrorKind::InvalidTransition, "{nothing}");
    scene.leave(place).await;
}

async fn a_compensation_that_timed_out_is_retried_with_the_same_command(place: Place) {
    let one = headwater::process::ProcessType::new("order")
        .step(step("reserve").compensation("undo reserve"))
        .step(headwater::process::Step::new("charge", "elsewhere", "charge").attempts(1).timeout(SECOND));
    let mut scene = Scene::new(&place, &one).await;
    let id = scene.start().await;
    scene.drain().await;
    scene.clock.advance(SECOND);
    for _ in 0..3 {
        // The worker is away: the compensation times out, and is given up.
        scene.manage().await;
        scene.clock.advance(SECOND * 30);
    }
    scene.manage().await;
    assert_eq!(scene.processes.parked(9).await.unwrap().len(), 1, "{:?}", scene.events(id).await);
    scene.processes.retry(id).await.unwrap();
    scene.manage().await;
    let sent = scene.headwater.published("work").await.unwrap();
    let undo: Vec<_> =
        sent.iter().filter(|message| message.message_type.as_deref() == Some("undo reserve")).collect();
    assert_eq!(undo.len(), 3, "two attempts, and one by a person");
    assert!(undo.iter().all(|message| message.message_id == undo[0].message_id), "one command");
    scene.drain().await;
    assert_eq!(scene.status(id).await, ProcessStatus::Compensated);
    assert_eq!(scene.effects(id).await, ["reserve", "undo reserve"]);
    scene.leave(place).await;
}

async fn a_person_ends_a_process_and_late_replies_change_nothing(place: Place) {
    let mut scene = Scene::new(&place, &order()).await;
    let (new, running, paused) = (scene.start().await, scene.start().await, scene.start().await);
    scene.processes.pause(paused, "").await.unwrap();
    assert_eq!(scene.processes.fail(new, "").await.unwrap().status(), ProcessStatus::Failed);
    scene.manage().await;
    assert_eq!(scene.processes.fail(running, "by hand").await.unwrap().status(), ProcessStatus::Failed);
    assert_eq!(scene.processes.fail(paused, "").await.unwrap().status(), ProcessStatus::Failed);
    let versions = [new, running, paused];
    scene.drain().await;
    scene.pass(SECOND * 1_000).await;
    for id in versions {
        assert_eq!(scene.status(id).await, ProcessStatus::Failed);
        assert_eq!(scene.events(id).await.last().map(String::as_str), Some("ProcessFailed"));
        assert_eq!(scene.processes.fail(id, "").await.unwrap_err().kind(), ErrorKind::InvalidTransition);
    }
    let last = scene.processes.log(running, 1).await.unwrap().remove(0).event;
    assert!(last.reason().is_some_and(|reason| reason.starts_with("by hand (ended by ")), "{last:?}");
    assert_eq!(scene.effects(running).await, ["reserve"], "what was sent is carried out");
    let unknown = scene.processes.fail(uuid::Uuid::now_v7(), "").await.unwrap_err();
    assert_eq!(unknown.kind(), ErrorKind::NoSuchProcess);
    scene.leave(place).await;
}

/// On PostgreSQL: a producer starts, a consumer manages, an operator pauses and resumes, a reader reads.
async fn every_role_does_its_part(place: Place) {
    let mut scene = Scene::new(&place, &order()).await;
    if scene.headwater.store().engine() == "sqlite" {
        return scene.leave(place).await;
    }
    let namespace = place.namespace().to_owned();
    let separator = if place.server().contains('?') { '&' } else { '?' };
    let open = async |kind: &str| -> Headwater {
        let url = format!("{}{separator}options=-c%20role%3D{namespace}_{kind}", place.server());
        Headwater::open_with(&url, OpenOptions::default().namespace(&namespace)).await.unwrap()
    };
    let (producer, operator, reader) = (open("producer").await, open("operator").await, open("reader").await);
    let id = producer.processes().start("order").business_key("o-1").once().await.unwrap().process.id();
    operator.processes().pause(id, "").await.unwrap();
    scene.drain().await;
    assert_eq!(operator.processes().resume(id, "").await.unwrap().status(), ProcessStatus::Running);
    scene.drain().await;
    let ended = reader.processes().find_by_id(id).await.unwrap().unwrap();
    assert_eq!(ended.status(), ProcessStatus::Succeeded);
    assert_eq!(reader.processes().replay(id).await.unwrap(), Some(ended.clone()));
    assert_eq!(reader.processes().list(None, None, 9).await.unwrap(), [ended]);
    for (role, refused) in [
        ("reader", reader.processes().pause(id, "").await.unwrap_err()),
        ("producer", producer.processes().pause(id, "").await.unwrap_err()),
        ("operator", operator.processes().start("order").await.unwrap_err()),
    ] {
        assert_eq!(refused.kind(), ErrorKind::PermissionDenied, "{role}: {refused}");
    }
    // The same manager, as a consumer that may publish.
    let grant = format!("GRANT {namespace}_producer TO {namespace}_consumer");
    let granted: headwater::Result<u64> =
        scene.headwater.transaction(move |tx: Transaction| async move { tx.execute(&grant, ()).await }).await;
    granted.unwrap();
    let consumer = open("consumer").await;
    let mut manager = consumer.processes().manager(&order()).await.unwrap().stepwise().await.unwrap();
    let id = producer.processes().start("order").await.unwrap().process.id();
    for _ in 0..4 {
        manager.drain().await.unwrap();
        scene.worker.drain().await.unwrap();
    }
    assert_eq!(scene.status(id).await, ProcessStatus::Succeeded);
    for headwater in [producer, operator, reader, consumer] {
        headwater.close().await.unwrap();
    }
    scene.leave(place).await;
}
