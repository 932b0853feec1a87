//! The process manager: steps, failures, time-outs, branches and joins, each on both databases.

use headwater::process::{Path, ProcessStatus, ProcessType, Step};
use headwater::{Context, Json};
use serde_json::json;
use uuid::Uuid;

use crate::each::{Place, on_each};
use crate::process_scene::{Reaction, SECOND, Scene, order, step};

on_each!(
    every_step_runs_once_and_its_result_is_kept,
    a_failed_step_undoes_the_completed_ones_in_reverse,
    a_step_is_tried_again_after_its_back_off_and_given_up_after_its_attempts,
    a_command_that_is_late_is_sent_again_and_has_its_effect_once,
    time_outs_fire_after_a_restart,
    a_command_that_comes_after_its_step_was_undone_has_no_effect,
    branches_and_joins_lead_where_the_data_say,
    a_failed_parallel_step_waits_for_the_others_before_the_way_back,
    a_handler_that_knows_nothing_of_processes_may_reply,
    what_no_handler_knows_fails_its_step,
    an_error_of_a_handler_is_retried_by_its_group_and_leaves_nothing,
    a_branch_without_an_arm_fails_the_process,
);

async fn every_step_runs_once_and_its_result_is_kept(place: Place) {
    let mut scene = Scene::new(&place, &order()).await;
    let ids = [scene.start().await, scene.start().await];
    scene.drain().await;
    for id in ids {
        let process = scene.process(id).await;
        assert_eq!((process.status(), process.current_step()), (ProcessStatus::Succeeded, None));
        let data = r#"{"n":1,"reserve":"reserve","charge":"charge","ship":"ship"}"#;
        assert_eq!(process.data().unwrap().as_str(), data);
        assert_eq!(scene.effects(id).await, ["reserve", "charge", "ship"]);
        let events = [
            "ProcessStarted",
            "StepStarted reserve",
            "StepCompleted reserve",
            "StepStarted charge",
            "StepCompleted charge",
            "StepStarted ship",
            "StepCompleted ship",
            "ProcessCompleted",
        ];
        assert_eq!(scene.events(id).await, events);
    }
    assert_eq!(
        scene.headwater.scheduled("process.order").list(10).await.unwrap().len(),
        0,
        "no timer is left"
    );
    scene.leave(place).await;
}

async fn a_failed_step_undoes_the_completed_ones_in_reverse(place: Place) {
    let mut scene = Scene::new(&place, &order()).await;
    for (fails, status, effects) in [
        ("reserve", ProcessStatus::Failed, &[][..]),
        ("charge", ProcessStatus::Compensated, &["reserve", "undo reserve"]),
        ("ship", ProcessStatus::Compensated, &["reserve", "charge", "undo charge", "undo reserve"]),
    ] {
        scene.react(fails, &[Reaction::Fail]);
        let id = scene.start().await;
        scene.drain().await;
        assert_eq!(scene.status(id).await, status, "{fails}");
        assert_eq!(scene.effects(id).await, effects, "{fails}: what a failed handler wrote is not kept");
        let last = scene.processes.log(id, 1).await.unwrap().remove(0).event;
        assert_eq!(last.reason(), Some(format!("step {fails} failed: no {fails}").as_str()));
    }
    scene.leave(place).await;
}

async fn a_step_is_tried_again_after_its_back_off_and_given_up_after_its_attempts(place: Place) {
    let mut scene = Scene::new(&place, &order()).await;
    scene.react("charge", &[Reaction::Retry]);
    let id = scene.start().await;
    scene.drain().await;
    let waiting = scene.process(id).await;
    assert_eq!(
        (waiting.status(), waiting.current_step(), waiting.retries()),
        (ProcessStatus::Running, Some("charge"), 1)
    );
    scene.pass(SECOND * 9).await;
    assert_eq!(scene.status(id).await, ProcessStatus::Running, "not before its back-off is over");
    scene.pass(SECOND).await;
    assert_eq!(scene.status(id).await, ProcessStatus::Succeeded);
    assert_eq!(scene.effects(id).await, ["reserve", "charge", "ship"]);
    // A failure that was reported is over: the next attempt has a command of its own.
    let charges: Vec<Uuid> =
        scene.sent().await.into_iter().filter(|(name, _)| name == "charge").map(|(_, id)| id).collect();
    assert!(charges.len() == 2 && charges[0] != charges[1]);

    scene.react("charge", &[Reaction::Retry, Reaction::Retry]);
    let id = scene.start().await;
    scene.drain().await;
    scene.pass(SECOND * 10).await;
    assert_eq!(scene.status(id).await, ProcessStatus::Compensated, "two attempts, as declared");
    assert_eq!(scene.effects(id).await, ["reserve", "undo reserve"]);
    scene.leave(place).await;
}

async fn a_command_that_is_late_is_sent_again_and_has_its_effect_once(place: Place) {
    let mut scene = Scene::new(&place, &order()).await;
    let id = scene.start().await;
    scene.manage().await;
    scene.clock.advance(SECOND * 29);
    scene.manage().await;
    assert_eq!(scene.sent().await.len(), 1);
    scene.clock.advance(SECOND);
    scene.manage().await;
    let sent = scene.sent().await;
    assert!(sent.len() == 2 && sent[0] == sent[1], "the same command: {sent:?}");
    assert_eq!(scene.process(id).await.retries(), 1);
    scene.drain().await;
    assert_eq!(scene.status(id).await, ProcessStatus::Succeeded);
    assert_eq!(scene.effects(id).await, ["reserve", "charge", "ship"], "once, although it came twice");
    let events = scene.events(id).await;
    assert_eq!(events[1..4], ["StepStarted reserve", "StepTimedOut reserve", "StepStarted reserve"]);
    scene.leave(place).await;
}

async fn time_outs_fire_after_a_restart(place: Place) {
    let mut scene = Scene::new(&place, &order()).await;
    let id = scene.start().await;
    scene.manage().await;
    let mut scene = scene.restarted(&place, &order()).await;
    for _ in 0..2 {
        scene.clock.advance(SECOND * 30);
        scene.manage().await;
        scene = scene.restarted(&place, &order()).await;
    }
    // Whether it reserved is not known, so it is undone; and it never will.
    scene.drain().await;
    assert_eq!(scene.status(id).await, ProcessStatus::Compensated);
    let events = scene.events(id).await;
    assert_eq!(events.iter().filter(|event| event.starts_with("StepTimedOut")).count(), 2, "{events:?}");
    assert_eq!(events.last().map(String::as_str), Some("ProcessFailed"));
    scene.leave(place).await;
}

async fn a_command_that_comes_after_its_step_was_undone_has_no_effect(place: Place) {
    let mut scene = Scene::new(&place, &order()).await;
    let id = scene.start().await;
    scene.manage().await;
    for _ in 0..2 {
        scene.clock.advance(SECOND * 30);
        scene.manage().await;
    }
    let sent = scene.sent().await;
    let names: Vec<&str> = sent.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["reserve", "reserve", "undo reserve"]);
    // The worker begins with the compensation, as one of several may.
    let undo = scene.headwater.published("work").await.unwrap().remove(2);
    let groups = scene.headwater.groups("work");
    groups.seek("worker", headwater::Start::Offset(undo.offset), false).await.unwrap();
    scene.drain().await;
    assert_eq!(scene.status(id).await, ProcessStatus::Compensated);
    assert_eq!(scene.effects(id).await, [""; 0], "there was nothing to undo");
    groups.seek("worker", headwater::Start::Beginning, false).await.unwrap();
    scene.drain().await;
    assert_eq!(scene.effects(id).await, [""; 0], "the late commands do nothing");
    assert_eq!(scene.status(id).await, ProcessStatus::Compensated);
    scene.leave(place).await;
}

fn branching() -> ProcessType {
    let choose = |data: &headwater::process::ProcessData| -> headwater::Result<&'static str> {
        Ok(match data.get::<u64>("n")? {
            Some(1) => "both",
            Some(2) => "none",
            _ => "nowhere",
        })
    };
    ProcessType::new("order")
        .step(step("reserve").compensation("undo reserve"))
        .branch(
            "how",
            choose,
            [
                (
                    "both",
                    Path::new().parallel("prepare", [step("pack").compensation("undo pack"), step("label")]),
                ),
                ("none", Path::new()),
            ],
        )
        .step(step("ship"))
}

async fn branches_and_joins_lead_where_the_data_say(place: Place) {
    let mut scene = Scene::new(&place, &branching()).await;
    let both = scene.start().await;
    let none = scene.processes.start("order").data(&json!({ "n": 2 })).await.unwrap().process.id();
    scene.drain().await;
    assert_eq!(scene.effects(none).await, ["reserve", "ship"]);
    let mut effects = scene.effects(both).await;
    assert_eq!(effects.last().map(String::as_str), Some("ship"), "after both");
    effects.sort();
    assert_eq!(effects, ["label", "pack", "reserve", "ship"]);
    for id in [both, none] {
        assert_eq!(scene.status(id).await, ProcessStatus::Succeeded);
    }
    let events = scene.events(both).await;
    let at = |event: &str| events.iter().position(|other| other == event).unwrap();
    assert_eq!(at("StepStarted label"), at("StepStarted pack") + 1, "both start together");
    assert!(at("StepStarted ship") > at("StepCompleted label").max(at("StepCompleted pack")));
    scene.leave(place).await;
}

async fn a_failed_parallel_step_waits_for_the_others_before_the_way_back(place: Place) {
    let mut scene = Scene::new(&place, &branching()).await;
    scene.react("label", &[Reaction::Fail]);
    // It is delivered together with label: it runs once for both of them, and then alone.
    scene.react("pack", &[Reaction::Break, Reaction::Break]);
    let id = scene.start().await;
    scene.drain().await;
    let events = scene.events(id).await;
    assert_eq!(events.last().map(String::as_str), Some("StepFailed label"), "pack is still under way");
    assert_eq!(scene.status(id).await, ProcessStatus::Running);
    scene.pass(SECOND).await;
    assert_eq!(scene.status(id).await, ProcessStatus::Compensated);
    assert_eq!(scene.effects(id).await, ["reserve", "pack", "undo pack", "undo reserve"]);
    scene.leave(place).await;
}

async fn a_handler_that_knows_nothing_of_processes_may_reply(place: Place) {
    let plain = ProcessType::new("order").step(Step::new("quote", "quotes", "Quote"));
    let mut scene = Scene::new(&place, &plain).await;
    let handler = |Json(data): Json<serde_json::Value>, context: Context| async move {
        context.reply(&json!({ "price": data["n"].as_u64().unwrap_or_default() * 10 })).await?;
        Ok(())
    };
    let quotes = scene.headwater.consumer("quotes", "quoter").member("one", handler);
    let mut quotes = quotes.stepwise().await.unwrap();
    let id = scene.start().await;
    scene.manage().await;
    quotes.drain().await.unwrap();
    scene.drain().await;
    let process = scene.process(id).await;
    assert_eq!(process.status(), ProcessStatus::Succeeded);
    assert_eq!(process.data().unwrap().as_str(), r#"{"n":1,"price":10}"#);
    scene.leave(place).await;
}

async fn what_no_handler_knows_fails_its_step(place: Place) {
    let unknown =
        ProcessType::new("order").step(step("reserve").compensation("undo reserve")).step(step("fly"));
    let mut scene = Scene::new(&place, &unknown).await;
    let id = scene.start().await;
    scene.headwater.producer("work").send("not a command").await.unwrap();
    scene.headwater.producer("process.order").send("no reply").await.unwrap();
    scene.drain().await;
    assert_eq!(scene.status(id).await, ProcessStatus::Compensated);
    let log = scene.processes.log(id, None).await.unwrap();
    let failed = log.iter().find(|entry| entry.event.tag() == "StepFailed").unwrap();
    assert_eq!(failed.event.reason(), Some("group worker has no handler of command fly"));
    for (topic, group, says) in [
        ("work", "worker", "not a command of a process"),
        ("process.order", "manager", "not a message for the manager"),
    ] {
        let dead = scene.headwater.dead_letters().of(topic, group).list(9).await.unwrap();
        assert!(dead.len() == 1 && dead[0].error.contains(says), "{dead:?}");
    }
    scene.leave(place).await;
}

async fn an_error_of_a_handler_is_retried_by_its_group_and_leaves_nothing(place: Place) {
    let mut scene = Scene::new(&place, &order()).await;
    scene.react("charge", &[Reaction::Break, Reaction::Break]);
    let id = scene.start().await;
    scene.drain().await;
    assert_eq!(scene.effects(id).await, ["reserve"]);
    for _ in 0..2 {
        assert_eq!(scene.process(id).await.retries(), 0, "the process knows nothing of it");
        scene.pass(SECOND).await;
    }
    assert_eq!(scene.status(id).await, ProcessStatus::Succeeded);
    assert_eq!(scene.effects(id).await, ["reserve", "charge", "ship"]);
    scene.leave(place).await;
}

async fn a_branch_without_an_arm_fails_the_process(place: Place) {
    let mut scene = Scene::new(&place, &branching()).await;
    let lost = scene.processes.start("order").data(&json!({ "n": 3 })).await.unwrap().process.id();
    let wrong = scene.processes.start("order").data(&json!({ "n": "x" })).await.unwrap().process.id();
    scene.drain().await;
    for (id, says) in [(lost, "it has no arm nowhere"), (wrong, "invalid data member n")] {
        assert_eq!(scene.status(id).await, ProcessStatus::Compensated);
        assert_eq!(scene.effects(id).await, ["reserve", "undo reserve"]);
        let last = scene.processes.log(id, 1).await.unwrap().remove(0).event;
        assert!(last.reason().is_some_and(|reason| reason.contains(says)), "{last:?}");
    }
    scene.leave(place).await;
}
