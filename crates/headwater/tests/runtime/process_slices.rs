//! Messages of processes that are delivered together are decided and carried out in one transaction: what becomes of the
//! processes is what would have become of them one by one.

use std::sync::Arc;

use headwater::process::{ProcessStatus, ProcessType};
use headwater::{Message, NewMessage};
use serde_json::json;
use uuid::Uuid;

use crate::each::{Place, on_each};
use crate::process_scene::{NAMES, Scene, commands, order, step};

on_each!(
    several_messages_of_one_process_are_decided_one_after_the_other,
    a_failure_in_the_middle_concerns_its_own_process_only,
    a_message_that_cannot_be_read_concerns_no_other,
    a_timer_that_is_set_and_not_needed_in_one_slice_is_gone,
    an_undone_command_behind_its_compensation_never_runs,
    processes_with_large_data_move_as_well,
);

async fn several_messages_of_one_process_are_decided_one_after_the_other(place: Place) {
    let parallel = ProcessType::new("order")
        .parallel("prepare", [step("pack"), step("label"), step("reserve")])
        .step(step("ship"));
    let mut scene = Scene::new(&place, &parallel).await;
    let ids = [scene.start().await, scene.start().await, scene.start().await];
    scene.manage().await;
    scene.worker.drain().await.unwrap();
    // Nine replies, three for each process: the last one of each leads to the join.
    scene.manage().await;
    let sent = scene.sent().await;
    assert_eq!(sent.iter().filter(|(name, _)| name == "ship").count(), 3, "each joins once: {sent:?}");
    scene.drain().await;
    for id in ids {
        let process = scene.process(id).await;
        assert_eq!(process.status(), ProcessStatus::Succeeded);
        let data = process.data().unwrap();
        for name in ["pack", "label", "reserve", "ship"] {
            assert_eq!(data.get::<String>(name).unwrap().as_deref(), Some(name), "no result is lost");
        }
        let mut effects = scene.effects(id).await;
        effects.sort_unstable();
        assert_eq!(effects, ["label", "pack", "reserve", "ship"]);
        let log = scene.processes.log(id, None).await.unwrap();
        let sequences: Vec<u64> = log.iter().rev().map(|entry| entry.sequence).collect();
        assert_eq!(sequences, (1..=10).collect::<Vec<_>>(), "numbered without a gap");
    }
    let timers = scene.headwater.scheduled("process.order").list(10).await.unwrap();
    assert_eq!(timers.len(), 0, "no timer is left");
    scene.leave(place).await;
}

async fn a_failure_in_the_middle_concerns_its_own_process_only(place: Place) {
    for (data, ends_as, effects) in [
        (json!({ "fails": "charge" }), ProcessStatus::Compensated, &["reserve", "undo reserve"][..]),
        (json!({ "is_busy": "charge" }), ProcessStatus::Running, &["reserve"]),
    ] {
        let place = place.another();
        let mut scene = Scene::new(&place, &order()).await;
        let mut ids = Vec::new();
        for n in 0..7 {
            let data = if n == 4 { data.clone() } else { json!({}) };
            ids.push(scene.processes.start("order").data(&data).await.unwrap().process.id());
        }
        scene.drain().await;
        for (n, id) in ids.into_iter().enumerate() {
            let expected = if n == 4 { ends_as } else { ProcessStatus::Succeeded };
            assert_eq!(scene.status(id).await, expected, "process {n}");
            let expected = if n == 4 { effects } else { &["reserve", "charge", "ship"] };
            assert_eq!(scene.effects(id).await, expected, "process {n}");
        }
        let health = scene.worker.running().health();
        assert_eq!((health.totals.retried, health.totals.buried), (0, 0), "no message failed: a step did");
        scene.leave(place).await;
    }
}

async fn a_message_that_cannot_be_read_concerns_no_other(place: Place) {
    let mut scene = Scene::new(&place, &order()).await;
    let first = scene.start().await;
    scene.headwater.producer("process.order").send(NewMessage::new("what?").key("k")).await.unwrap();
    let last = scene.start().await;
    scene.drain().await;
    for id in [first, last] {
        assert_eq!(scene.status(id).await, ProcessStatus::Succeeded);
        assert_eq!(scene.effects(id).await, ["reserve", "charge", "ship"]);
    }
    let dead = scene.headwater.dead_letters().of("process.order", "manager").list(10).await.unwrap();
    assert_eq!(dead.len(), 1);
    scene.leave(place).await;
}

async fn a_timer_that_is_set_and_not_needed_in_one_slice_is_gone(place: Place) {
    let mut scene = Scene::new(&place, &order()).await;
    let id = scene.start().await;
    scene.manage().await;
    scene.processes.pause(id, "a check").await.unwrap();
    scene.processes.resume(id, "").await.unwrap();
    scene.worker.drain().await.unwrap();
    // The resumption, which sets the time-out anew, and then the reply.
    scene.manage().await;
    let events = scene.events(id).await;
    assert_eq!(events[3..], ["ProcessResumed", "StepCompleted reserve", "StepStarted charge"]);
    scene.drain().await;
    assert_eq!(scene.status(id).await, ProcessStatus::Succeeded);
    let timers = scene.headwater.scheduled("process.order").list(10).await.unwrap();
    assert_eq!(timers.len(), 1, "the one of before the pause, which does nothing");
    scene.leave(place).await;
}

/// The same message, for another topic.
fn copy_of(message: &Message) -> NewMessage {
    let copy = NewMessage::new(message.payload.clone()).message_id(message.message_id);
    let copy = copy.key(message.key.clone().unwrap()).message_type(message.message_type.clone().unwrap());
    let copy = copy.correlation_id(message.correlation_id.clone().unwrap());
    message.headers.iter().fold(copy, |copy, (name, value)| copy.header(name, value))
}

async fn an_undone_command_behind_its_compensation_never_runs(place: Place) {
    let mut scene = Scene::new(&place, &order()).await;
    let id = scene.start().await;
    scene.manage().await;
    for _ in 0..2 {
        scene.clock.advance(crate::process_scene::SECOND * 30);
        scene.manage().await;
    }
    let sent = scene.headwater.published("work").await.unwrap();
    let named =
        |name: &str| sent.iter().find(|message| message.message_type.as_deref() == Some(name)).unwrap();
    // In one slice of another group, in an order that redelivery can lead to.
    let messages = [copy_of(named("undo reserve")), copy_of(named("reserve"))];
    scene.headwater.topic("again").create().await.unwrap();
    scene.headwater.producer("again").send_batch(&messages).await.unwrap();
    let again = scene.headwater.consumer("again", "worker");
    let again = again.handling("one", commands(&NAMES, &scene.table, &Arc::clone(&scene.script)).handling());
    let mut again = again.stepwise().await.unwrap();
    assert_eq!(again.drain().await.unwrap(), 1, "one slice");
    assert_eq!(again.running().health().totals.acked, 2);
    assert_eq!(scene.effects(id).await, [] as [String; 0], "there was nothing to undo, and never will be");
    scene.leave(place).await;
}

async fn processes_with_large_data_move_as_well(place: Place) {
    let mut scene = Scene::new(&place, &order()).await;
    let large = json!({ "text": "x".repeat(700_000) });
    let mut ids: Vec<Uuid> = Vec::new();
    for _ in 0..14 {
        ids.push(scene.processes.start("order").data(&large).await.unwrap().process.id());
    }
    scene.drain().await;
    for id in ids {
        assert_eq!(scene.status(id).await, ProcessStatus::Succeeded);
        assert_eq!(scene.effects(id).await, ["reserve", "charge", "ship"]);
    }
    scene.leave(place).await;
}
