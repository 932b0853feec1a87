//! The end of a handle: everything that runs on it ends in order, and what was left is reported.

use std::sync::Arc;
use std::time::Duration;

use headwater::cron::CronJob;
use headwater::health::HealthState;
use headwater::{ErrorKind, Headwater, Json, Message, Running};
use tokio::sync::Semaphore;

use crate::each::{DEADLINE, Place, Seen, eventually, gated, noting, on_each, publish_numbers};
use crate::logs::{capture, lines_of};

on_each!(
    a_consumer_that_is_dropped_is_noticed,
    a_handle_ends_cron_jobs_then_consumers_then_producers,
    consumers_end_at_the_same_time_and_not_one_after_the_other,
    what_outlasts_the_grace_time_is_reported_and_released,
    an_opened_consumer_ends_with_its_handle,
    nothing_claims_to_run_on_a_closed_handle,
);

async fn run(headwater: &Headwater, topic: &str, seen: &Seen<u64>) -> Running {
    headwater.consumer(topic, "email").handling("mailer", noting(seen)).run().await.unwrap()
}

/// A job whose next tick is months away.
async fn job(headwater: &Headwater) -> CronJob {
    headwater.cron("yearly", "0 0 1 1 *").topic("reports").message(&1).start().await.unwrap()
}

async fn a_consumer_that_is_dropped_is_noticed(place: Place) {
    capture();
    let headwater = place.open().await;
    let engine = headwater.store().engine();
    let [dropped, ended, stepped] = ["dropped", "ended", "stepped"].map(|case| format!("{case}-{engine}"));
    let seen = Seen::default();
    drop(run(&headwater, &dropped, &seen).await);
    let lines = lines_of(&dropped);
    let warned = |line: &&String| line.contains("WARN") && line.contains("dropped without shutdown");
    assert_eq!(lines.iter().filter(warned).count(), 1, "{lines:#?}");
    run(&headwater, &ended, &seen).await.shutdown(DEADLINE).await.unwrap();
    let stepper = headwater.consumer(&stepped, "email").handling("mailer", noting(&seen)).stepwise().await;
    drop(stepper.unwrap());
    for topic in [&ended, &stepped] {
        assert_eq!(lines_of(topic).iter().filter(warned).count(), 0, "{:#?}", lines_of(topic));
    }
    place.leave(&headwater).await;
}

async fn a_handle_ends_cron_jobs_then_consumers_then_producers(place: Place) {
    let headwater = place.open().await;
    let (started, gate) = (Seen::default(), Arc::new(Semaphore::new(0)));
    let (note, wait, out) = (started.clone(), Arc::clone(&gate), headwater.producer("out"));
    let running = headwater
        .consumer("orders", "email")
        .member("mailer", move |Json(n): Json<u64>, _| {
            note.add(n);
            let (wait, out) = (Arc::clone(&wait), out.clone());
            async move {
                wait.acquire().await.unwrap().forget();
                out.send(&n).await?;
                Ok(())
            }
        })
        .run()
        .await
        .unwrap();
    let job = job(&headwater).await;
    publish_numbers(&headwater, "orders", 1).await;
    started.reach(1).await;
    let ends = tokio::spawn({
        let headwater = headwater.clone();
        async move { headwater.shutdown(DEADLINE).await }
    });
    eventually("consumers stop", async || running.health().state == HealthState::Stopping).await;
    assert_eq!(job.health().state, HealthState::Stopped, "cron jobs end first");
    assert!(!ends.is_finished(), "the handler has time to finish");
    // Its publish still works: producers end after consumers.
    gate.add_permits(1);
    let left = ends.await.unwrap().unwrap();
    assert!(left.is_clean() && left.given_back == 0, "{left:?}");
    let error = headwater.producer("out").send(&2).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Closed, "{error}");
    let again = place.open().await;
    assert_eq!(again.published("out").await.unwrap().len(), 1);
    let status = again.groups("orders").get("email").await.unwrap().status;
    assert_eq!((status.lag, status.in_flight, status.processes), (0, 0, 0), "acked, and departed");
    place.leave(&again).await;
}

async fn consumers_end_at_the_same_time_and_not_one_after_the_other(place: Place) {
    let headwater = place.open().await;
    let barrier = Arc::new(tokio::sync::Barrier::new(3));
    let (started, mut kept) = (Seen::default(), Vec::new());
    for topic in ["a", "b", "c"] {
        let (note, barrier) = (started.clone(), Arc::clone(&barrier));
        let hold = Arc::new(tokio::sync::Notify::new());
        let (held, wait) = (Arc::clone(&hold), Arc::clone(&barrier));
        let member = move |_: Message, context: headwater::Context| {
            note.add(context.topic().to_owned());
            let (held, wait) = (Arc::clone(&held), Arc::clone(&wait));
            async move {
                held.notified().await;
                wait.wait().await;
                Ok(())
            }
        };
        let running = headwater.consumer(topic, "email").member("mailer", member).run().await.unwrap();
        publish_numbers(&headwater, topic, 1).await;
        kept.push((running, hold));
    }
    started.reach(3).await;
    let ends = tokio::spawn({
        let headwater = headwater.clone();
        async move { headwater.shutdown(DEADLINE).await }
    });
    // All stop claiming although no handler has finished; the handlers finish only together.
    for (running, hold) in &kept {
        eventually("it stops", async || running.health().state == HealthState::Stopping).await;
        hold.notify_one();
    }
    assert!(ends.await.unwrap().unwrap().is_clean());
    place.leave(&place.open().await).await;
}

async fn what_outlasts_the_grace_time_is_reported_and_released(place: Place) {
    let headwater = place.open().await;
    let (seen, gate) = (Seen::default(), Arc::new(Semaphore::new(0)));
    let started = Seen::default();
    let note = started.clone();
    let stuck = move |Json(n): Json<u64>, _| {
        note.add(n);
        std::future::pending()
    };
    let _stuck = headwater.consumer("stuck", "email").member("mailer", stuck).run().await.unwrap();
    let _idle =
        headwater.consumer("idle", "email").handling("mailer", gated(&seen, &gate)).run().await.unwrap();
    publish_numbers(&headwater, "stuck", 1).await;
    started.reach(1).await;
    let left = headwater.shutdown(Duration::ZERO).await.unwrap();
    let names: Vec<_> = left.groups.iter().map(|(topic, group)| (topic.as_str(), group.as_str())).collect();
    assert_eq!(names, [("stuck", "email")]);
    assert_eq!(left.given_back, 1);
    assert!(!left.is_clean());
    let again = place.open().await;
    let running = run(&again, "stuck", &seen).await;
    seen.reach(1).await;
    running.shutdown(DEADLINE).await.unwrap();
    place.leave(&again).await;
}

async fn an_opened_consumer_ends_with_its_handle(place: Place) {
    let headwater = place.open().await;
    publish_numbers(&headwater, "orders", 2).await;
    let mut consumer = headwater.consumer("orders", "email").batch(1).open().await.unwrap();
    let done = consumer.next(DEADLINE).await.unwrap().unwrap();
    let kept = consumer.next(DEADLINE).await.unwrap().unwrap();
    done.ack().await.unwrap();
    let waiting = tokio::spawn(async move { consumer.next(DEADLINE).await.map(drop) });
    // Long enough for the claim that is under way: until it is answered, the waiting call counts too.
    let left = headwater.shutdown(Duration::from_secs(6)).await.unwrap();
    assert_eq!((left.batches, left.is_clean()), (1, false), "one is not settled: {left:?}");
    assert_eq!(waiting.await.unwrap().unwrap_err().kind(), ErrorKind::Closed);
    assert_eq!(kept.ack().await.unwrap_err().kind(), ErrorKind::Closed);
    place.leave(&place.open().await).await;
}

async fn nothing_claims_to_run_on_a_closed_handle(place: Place) {
    let headwater = place.open().await;
    let seen = Seen::default();
    let (running, job, producer) =
        (run(&headwater, "orders", &seen).await, job(&headwater).await, headwater.producer("orders"));
    producer.send(&1u64).await.unwrap();
    seen.reach(1).await;
    let states = || [running.health().state, job.health().state, producer.health().unwrap().state];
    assert_eq!(states(), [HealthState::Running; 3]);
    headwater.close().await.unwrap();
    assert_eq!(states(), [HealthState::Stopped; 3]);
    assert_eq!(producer.health().unwrap().totals.published, 1, "the figures stay");
    place.leave(&place.open().await).await;
}
