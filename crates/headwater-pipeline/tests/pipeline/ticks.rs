//! The tick queue: gathered, acked exactly, given back, and full.

use std::sync::Arc;
use std::time::Duration;

use headwater::{Clock, NewMessage};
use headwater_pipeline::claim_check::{ClaimCheckSettings, ClaimChecks};
use headwater_pipeline::contracts::TickData;
use headwater_pipeline::resource::{TickClaims, TickQueueReader};
use headwater_pipeline::storage::FileStorage;

use crate::scene::{DEADLINE, Place, Scene, eventually, on_both};

on_both! {
    ticks_are_gathered_across_sends_and_acked_exactly
    dropped_ticks_come_again_at_no_attempt
    repeated_ticks_are_sent_once
    full_queue_holds_the_source
    broken_tick_becomes_a_dead_letter
}

fn tick(run_id: &str, tick_number: i64) -> TickData {
    TickData {
        run_id: run_id.into(),
        tick_number,
        cells: vec![7; 100].into(),
        cell_count: 3,
        ..TickData::default()
    }
}

fn ticks(run_id: &str, numbers: std::ops::Range<i64>) -> Vec<TickData> {
    numbers.map(|number| tick(run_id, number)).collect()
}

fn numbers(claims: &TickClaims) -> Vec<i64> {
    let mut numbers: Vec<i64> = claims.ticks.iter().map(|tick| tick.tick_number).collect();
    numbers.sort_unstable();
    numbers
}

async fn reader(scene: &Scene, ticks_max: usize) -> Box<dyn TickQueueReader> {
    scene.open.tick_reader(&scene.binding("queue-in:tick-queue"), ticks_max, None).await.unwrap()
}

async fn next(reader: &mut dyn TickQueueReader, max: usize, at_most: Duration) -> TickClaims {
    let next = async {
        loop {
            if let Some(claims) = reader.next(max, at_most).await.unwrap() {
                return claims;
            }
        }
    };
    tokio::time::timeout(DEADLINE, next).await.expect("ticks in time")
}

async fn ticks_are_gathered_across_sends_and_acked_exactly(place: Place) {
    let scene = Scene::new(place).await;
    let run = &scene.run.run_id;
    let writer = scene.open.tick_writer(&scene.binding("queue-out:tick-queue"), None);
    let mut reader = reader(&scene, 20).await;
    assert!(reader.next(5, Duration::from_millis(1)).await.unwrap().is_none());
    for start in [0, 3, 6] {
        writer.send_ticks(&ticks(run, start..start + 3)).await.unwrap();
    }
    let first = next(&mut *reader, 5, DEADLINE).await;
    assert_eq!(first.ticks.len(), 5);
    // The deadline ends the others: each has as many as came in time.
    let (mut all, mut rest) = (numbers(&first), Vec::new());
    while all.len() < 9 {
        let claims = next(&mut *reader, 5, Duration::from_millis(50)).await;
        all.extend(numbers(&claims));
        rest.push(claims);
    }
    all.sort_unstable();
    assert_eq!(all, (0..9).collect::<Vec<_>>());
    assert!(!first.is_redelivered());
    first.claim.ack().await.unwrap();
    eventually("5 are acked", async || reader.lag().await.unwrap() == 4).await;
    for claims in rest {
        claims.claim.ack().await.unwrap();
    }
    eventually("all are acked", async || reader.lag().await.unwrap() == 0).await;
    reader.close().await.unwrap();
    scene.end().await;
}

async fn dropped_ticks_come_again_at_no_attempt(place: Place) {
    let scene = Scene::new(place).await;
    let run = &scene.run.run_id;
    let writer = scene.open.tick_writer(&scene.binding("queue-out:tick-queue"), None);
    writer.send_ticks(&ticks(run, 0..4)).await.unwrap();
    let mut first = reader(&scene, 10).await;
    let claims = next(&mut *first, 4, DEADLINE).await;
    assert_eq!(numbers(&claims), [0, 1, 2, 3]);
    drop(claims);
    let claims = next(&mut *first, 4, DEADLINE).await;
    assert_eq!((numbers(&claims), claims.is_redelivered()), (vec![0, 1, 2, 3], false));
    drop(claims);
    // What was gathered and not taken is given back by the end too.
    first.close().await.unwrap();
    let mut second = reader(&scene, 10).await;
    let claims = next(&mut *second, 4, DEADLINE).await;
    assert_eq!((numbers(&claims), claims.is_redelivered()), (vec![0, 1, 2, 3], false));
    claims.claim.ack().await.unwrap();
    second.close().await.unwrap();
    let status = scene.open.headwater().groups("tick-queue").get("persistence").await.unwrap().status;
    assert_eq!(status.lag, 0, "the end waits for the acks");
    scene.end().await;
}

async fn repeated_ticks_are_sent_once(place: Place) {
    let scene = Scene::new(place).await;
    let run = &scene.run.run_id;
    let writer = scene.open.tick_writer(&scene.binding("queue-out:tick-queue"), None);
    writer.send_ticks(&ticks(run, 0..5)).await.unwrap();
    writer.send_ticks(&ticks(run, 3..8)).await.unwrap();
    assert_eq!(scene.open.headwater().published("tick-queue").await.unwrap().len(), 8);
    scene.end().await;
}

async fn full_queue_holds_the_source(place: Place) {
    let scene = Scene::new(place).await;
    let run = scene.run.run_id.clone();
    let binding = scene.binding("queue-out:tick-queue?pending_max=10");
    let writer = scene.open.tick_writer(&binding, None);
    // The limit is reached with the second call, which is let in: the third one waits.
    writer.send_ticks(&ticks(&run, 0..10)).await.unwrap();
    writer.send_ticks(&ticks(&run, 10..15)).await.unwrap();
    let (held, of) = (Arc::clone(&writer), run.clone());
    let sending = tokio::spawn(async move { held.send_ticks(&ticks(&of, 15..16)).await });
    eventually("held", async || binding.state() == headwater_pipeline::bindings::UsageState::Waiting).await;
    assert!(!sending.is_finished());
    assert_eq!(scene.open.headwater().published("tick-queue").await.unwrap().len(), 15);
    let mut reader = reader(&scene, 20).await;
    let claims = next(&mut *reader, 8, DEADLINE).await;
    claims.claim.ack().await.unwrap();
    tokio::time::timeout(DEADLINE, sending).await.expect("let in").unwrap().unwrap();
    reader.close().await.unwrap();
    scene.end().await;
}

async fn broken_tick_becomes_a_dead_letter(place: Place) {
    let scene = Scene::new(place).await;
    let run = &scene.run.run_id;
    let broken =
        NewMessage::new(vec![0xFF; 4]).message_type("type.googleapis.com/headwater.pipeline.v1.TickData");
    scene.open.headwater().producer("tick-queue").send(broken).await.unwrap();
    scene
        .open
        .tick_writer(&scene.binding("queue-out:tick-queue"), None)
        .send_ticks(&ticks(run, 1..2))
        .await
        .unwrap();
    let mut reader = reader(&scene, 10).await;
    let claims = next(&mut *reader, 1, DEADLINE).await;
    assert_eq!(numbers(&claims), [1]);
    claims.claim.ack().await.unwrap();
    eventually("buried", async || reader.lag().await.unwrap() == 0).await;
    let dead = scene.open.headwater().dead_letters().of("tick-queue", "persistence").list(10).await.unwrap();
    assert!(dead[0].error.starts_with("DECODE_FAILED"), "{}", dead[0].error);
    reader.close().await.unwrap();
    scene.end().await;
}

#[tokio::test]
async fn ticks_of_a_killed_process_are_returned_at_once() {
    let scene = Scene::new(Place::sqlite()).await;
    let run = &scene.run.run_id;
    scene
        .open
        .tick_writer(&scene.binding("queue-out:tick-queue"), None)
        .send_ticks(&ticks(run, 0..3))
        .await
        .unwrap();
    // Its lease is over soon, as after a kill. A shorter one would be over before the ticks are read.
    let process = scene.other_process(Clock::default()).await;
    let consumer = process.consumer("tick-queue", "persistence").lease(Duration::from_millis(900));
    let mut killed = consumer.open().await.unwrap();
    std::mem::forget(killed.next(DEADLINE).await.unwrap().expect("three ticks"));
    process.close().await.unwrap();
    let mut reader = reader(&scene, 100).await;
    // A file could have 100 ticks and wait for a minute: those that come again are not kept waiting.
    let mut seen = Vec::new();
    while seen.len() < 3 {
        let claims = next(&mut *reader, 100, Duration::from_secs(60)).await;
        assert!(claims.is_redelivered());
        seen.extend(numbers(&claims));
        claims.claim.ack().await.unwrap();
    }
    seen.sort_unstable();
    assert_eq!(seen, [0, 1, 2]);
    reader.close().await.unwrap();
    scene.end().await;
}

#[tokio::test]
async fn ticks_too_large_for_a_message_are_files() {
    let scene = Scene::new(Place::sqlite()).await;
    let run = scene.run.run_id.clone();
    let settings = ClaimCheckSettings { claim_check_bytes: 200, ..ClaimCheckSettings::default() };
    let checks = ClaimChecks::new(FileStorage::in_memory(), &run, settings).unwrap();
    let writer = scene.open.tick_writer(&scene.binding("queue-out:tick-queue"), Some(checks.clone()));
    let large = TickData { cells: vec![9; 10_000].into(), ..tick(&run, 2) };
    writer.send_ticks(&[tick(&run, 1), large.clone()]).await.unwrap();
    let published = scene.open.headwater().published("tick-queue").await.unwrap();
    assert!(published.iter().all(|message| message.payload.len() < 400));
    let binding = scene.binding("queue-in:tick-queue");
    let mut reader = scene.open.tick_reader(&binding, 10, Some(checks)).await.unwrap();
    let claims = next(&mut *reader, 2, DEADLINE).await;
    assert!(claims.ticks.contains(&large) && claims.ticks.contains(&tick(&run, 1)));
    claims.claim.ack().await.unwrap();
    reader.close().await.unwrap();
    scene.end().await;
}
