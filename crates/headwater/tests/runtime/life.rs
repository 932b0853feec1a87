//! Groups that change while programs run: pauses, cancellations, deaths, failing heartbeats, and which process runs
//! maintenance.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use headwater::health::HealthState;
use headwater::maintenance::Job;
use headwater::store::{Owner, SubscriptionStatus};
use headwater::testing::ManualClock;
use headwater::topic::Removal;
use headwater::{
    DeliveryPolicy, EndReason, ErrorKind, Headwater, Message, OpenOptions, SubscriptionState, TopicSettings,
};
use tokio::sync::Semaphore;

use crate::each::{DEADLINE, Place, Seen, eventually, gated, noting, on_each, publish_numbers, settled};

on_each!(
    a_pause_stops_handling_at_once_and_resuming_loses_nothing,
    a_cancelled_group_ends_with_its_reason_and_others_continue,
    a_consumer_of_a_deleted_topic_ends,
    heartbeats_that_fail_suspend_and_one_that_succeeds_resumes,
    a_dead_group_comes_back_by_its_heartbeat,
    maintenance_is_taken_over_when_its_worker_is_killed,
    a_process_with_consumers_runs_maintenance,
    maintenance_can_be_switched_off,
    the_last_member_cannot_leave,
    removing_waits_for_running_handlers,
    pulling_waits_while_paused_and_fails_after_a_cancel,
    pulling_sends_heartbeats_and_reports_activity,
    what_a_group_did_is_counted_once_over_all_its_runs,
    what_operators_alter_reaches_consumers_that_run,
);

async fn status(headwater: &Headwater, group: &str) -> SubscriptionStatus {
    headwater.groups("orders").get(group).await.unwrap().status
}

fn candidate() -> Owner {
    Owner::new("candidate").unwrap()
}

async fn a_pause_stops_handling_at_once_and_resuming_loses_nothing(place: Place) {
    let headwater = place.open().await;
    publish_numbers(&headwater, "orders", 50).await;
    let (seen, gate) = (Seen::default(), Arc::new(Semaphore::new(0)));
    let consumer = headwater.consumer("orders", "email").handling("one", gated(&seen, &gate)).concurrency(2);
    let running = consumer.run().await.unwrap();
    eventually("two are being handled", async || running.health().in_flight == 2).await;
    // Another process pauses the group.
    let other = place.open().await;
    other.groups("orders").pause("email").await.unwrap();
    eventually("the consumer is paused", async || running.health().state == HealthState::Paused).await;
    eventually("the rest is released", async || status(&other, "email").await.in_flight == 2).await;
    publish_numbers(&headwater, "orders", 10).await;
    gate.add_permits(1_000);
    eventually("nothing is leased", async || status(&other, "email").await.in_flight == 0).await;
    assert_eq!(seen.len(), 2, "started handlers finished, and no other started");
    other.groups("orders").resume("email").await.unwrap();
    seen.reach(60).await;
    settled(&headwater, "orders", "email").await;
    assert_eq!(seen.len(), 60, "everything once");
    assert_eq!(running.health().state, HealthState::Running);
    running.shutdown(Duration::from_secs(5)).await.unwrap();
    other.close().await.unwrap();
    place.leave(&headwater).await;
}

async fn a_cancelled_group_ends_with_its_reason_and_others_continue(place: Place) {
    let headwater = place.open().await;
    headwater.topic("orders").pub_sub().create().await.unwrap();
    let (email, audit) = (Seen::default(), Seen::default());
    let ends = headwater.consumer("orders", "email").handling("one", noting(&email)).run().await.unwrap();
    let stays = headwater.consumer("orders", "audit").handling("one", noting(&audit)).run().await.unwrap();
    publish_numbers(&headwater, "orders", 10).await;
    email.reach(10).await;
    assert_eq!(ends.ended(), None);
    headwater.groups("orders").cancel("email").await.unwrap();
    let reason = tokio::time::timeout(DEADLINE, ends.until_ended()).await.expect("the consumer ends");
    assert_eq!((reason, ends.ended()), (EndReason::Cancelled, Some(EndReason::Cancelled)));
    let health = ends.health();
    assert_eq!(health.state, HealthState::Stopped);
    assert!(health.reason.as_ref().is_some_and(|reason| reason.contains("cancelled")), "{health}");
    publish_numbers(&headwater, "orders", 10).await;
    audit.reach(20).await;
    settled(&headwater, "orders", "audit").await;
    assert_eq!(email.len(), 10);
    // Subscribing again creates a new subscription, from the beginning.
    let again = headwater.consumer("orders", "email").handling("one", noting(&email)).run().await.unwrap();
    email.reach(30).await;
    assert_eq!(again.ended(), None);
    for running in [ends, stays, again] {
        running.shutdown(Duration::from_secs(5)).await.unwrap();
    }
    place.leave(&headwater).await;
}

/// Renames the table that heartbeats write to, or renames it back: heartbeats fail, and nothing else does.
async fn disturb_heartbeats(place: &Place, headwater: &Headwater, from: &str, to: &str) {
    if headwater.store().engine() == "postgres" {
        let (client, connection) =
            tokio_postgres::connect(place.server(), tokio_postgres::NoTls).await.unwrap();
        tokio::spawn(connection);
        let rename = format!("ALTER TABLE \"{}\".{from} RENAME TO {to}", place.namespace());
        client.batch_execute(&rename).await.unwrap();
    } else {
        let path = place.url().trim_start_matches("sqlite:").to_owned();
        let rename = format!("ALTER TABLE headwater_{from} RENAME TO headwater_{to}");
        tokio::task::spawn_blocking(move || {
            let connection = rusqlite::Connection::open(path).unwrap();
            connection.busy_timeout(Duration::from_secs(10)).unwrap();
            connection.execute_batch(&rename).unwrap();
        })
        .await
        .unwrap();
    }
}

/// Its group is gone, and the consumer ends with that reason. A topic of the same name is another one.
async fn a_consumer_of_a_deleted_topic_ends(place: Place) {
    let headwater = place.open().await;
    let seen = Seen::default();
    publish_numbers(&headwater, "orders", 5).await;
    let running = headwater.consumer("orders", "email").handling("one", noting(&seen)).run().await.unwrap();
    seen.reach(5).await;
    let served =
        async || !headwater.topics().delete("orders", Removal::DryRun).await.unwrap().served.is_empty();
    eventually("the heartbeat shows that the topic is served", served).await;
    let refused = headwater.topics().delete("orders", Removal::Unserved).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidTransition, "{refused}");
    headwater.topics().delete("orders", Removal::Forced).await.unwrap();
    let reason = tokio::time::timeout(DEADLINE, running.until_ended()).await.expect("the consumer ends");
    assert_eq!(reason, EndReason::Gone);
    running.shutdown(Duration::from_secs(5)).await.unwrap();
    publish_numbers(&headwater, "orders", 3).await;
    let again = headwater.consumer("orders", "email").handling("one", noting(&seen)).run().await.unwrap();
    seen.reach(8).await;
    again.shutdown(Duration::from_secs(5)).await.unwrap();
    place.leave(&headwater).await;
}

async fn heartbeats_that_fail_suspend_and_one_that_succeeds_resumes(place: Place) {
    // Without maintenance, which needs the table too.
    let options = OpenOptions::default().auto_create(true).maintenance(false);
    let headwater = Headwater::open_with(place.url(), options).await.unwrap();
    let (second, hour) = (Duration::from_secs(1), Duration::from_secs(3_600));
    headwater.topic("orders").heartbeats(second, hour).create().await.unwrap();
    let seen = Seen::default();
    let running = headwater.consumer("orders", "email").handling("one", noting(&seen)).run().await.unwrap();
    publish_numbers(&headwater, "orders", 10).await;
    seen.reach(10).await;
    settled(&headwater, "orders", "email").await;
    disturb_heartbeats(&place, &headwater, "activity", "hidden").await;
    eventually("the consumer is suspended", async || running.health().state == HealthState::Failing).await;
    let health = running.health();
    assert!(health.reason.as_ref().is_some_and(|reason| reason.contains("heartbeats fail")), "{health}");
    publish_numbers(&headwater, "orders", 10).await;
    // The suspended consumer claims nothing, so another one gets all of them.
    let mut other = headwater.consumer("orders", "email").open().await.unwrap();
    let mut batches = Vec::new();
    while batches.iter().map(|batch: &headwater::Batch| batch.messages().len()).sum::<usize>() < 10 {
        batches.push(other.next(DEADLINE).await.unwrap().expect("ten wait"));
    }
    assert_eq!(seen.len(), 10);
    for batch in batches {
        batch.release().await.unwrap();
    }
    other.close().await.unwrap();
    disturb_heartbeats(&place, &headwater, "hidden", "activity").await;
    seen.reach(20).await;
    assert_eq!(running.health().state, HealthState::Running);
    settled(&headwater, "orders", "email").await;
    running.shutdown(Duration::from_secs(5)).await.unwrap();
    place.leave(&headwater).await;
}

async fn a_dead_group_comes_back_by_its_heartbeat(place: Place) {
    let clock = ManualClock::at("2026-03-02T09:00:00Z".parse().unwrap());
    let headwater = place.open_at(&clock).await;
    let (interval, timeout) = (Duration::from_secs(1), Duration::from_secs(10));
    headwater.topic("orders").heartbeats(interval, timeout).create().await.unwrap();
    let seen = Seen::default();
    let running = headwater.consumer("orders", "email").handling("one", noting(&seen)).run().await.unwrap();
    let store = headwater.store();
    eventually("heartbeat stored", async || status(&headwater, "email").await.heartbeat_at.is_some()).await;
    store.detect_dead().await.unwrap();
    // The consumer sends three heartbeats a second: now and then the detection runs before one.
    eventually("the group is declared dead", async || {
        clock.advance(timeout + interval);
        !store.detect_dead().await.unwrap().died.is_empty()
    })
    .await;
    publish_numbers(&headwater, "orders", 10).await;
    seen.reach(10).await;
    eventually("it is active", async || status(&headwater, "email").await.state == SubscriptionState::Active)
        .await;
    assert_eq!(running.ended(), None);
    running.shutdown(Duration::from_secs(5)).await.unwrap();
    place.leave(&headwater).await;
}

async fn heads_ran(headwater: &Headwater) -> bool {
    let jobs = headwater.store().jobs().await.unwrap();
    jobs.iter().any(|status| status.job == Job::Heads && status.runs > 0)
}

async fn maintenance_is_taken_over_when_its_worker_is_killed(place: Place) {
    let clock = ManualClock::at("2026-03-02T09:00:00Z".parse().unwrap());
    let headwater = place.open_at(&clock).await;
    let store = headwater.store();
    let term = Duration::from_secs(10);
    // Elected, and killed before it could resign.
    assert!(store.elect(&Owner::new("killed").unwrap(), term).await.unwrap());
    let maintaining = headwater.maintenance().start();
    clock.advance(term - Duration::from_millis(1));
    assert!(!store.elect(&candidate(), term).await.unwrap(), "the term is not over");
    assert!(!heads_ran(&headwater).await);
    clock.advance(Duration::from_millis(1));
    eventually("another process runs maintenance", async || heads_ran(&headwater).await).await;
    assert!(!store.elect(&candidate(), term).await.unwrap(), "another process is elected");
    // An orderly stop resigns, so that another can be elected at once.
    maintaining.stop().await;
    assert!(store.elect(&candidate(), term).await.unwrap());
    place.leave(&headwater).await;
}

async fn a_process_with_consumers_runs_maintenance(place: Place) {
    let headwater = place.open().await;
    let seen = Seen::default();
    let first = headwater.consumer("orders", "email").handling("one", noting(&seen)).run().await.unwrap();
    let second = headwater.consumer("orders", "email").handling("one", noting(&seen)).run().await.unwrap();
    eventually("it runs maintenance", async || heads_ran(&headwater).await).await;
    let term = Duration::from_secs(10);
    first.shutdown(Duration::from_secs(5)).await.unwrap();
    assert!(!headwater.store().elect(&candidate(), term).await.unwrap(), "another consumer still runs");
    second.shutdown(Duration::from_secs(5)).await.unwrap();
    assert!(headwater.store().elect(&candidate(), term).await.unwrap(), "resigned with the last consumer");
    place.leave(&headwater).await;
}

async fn maintenance_can_be_switched_off(place: Place) {
    let options = OpenOptions::default().auto_create(true).maintenance(false);
    let headwater = Headwater::open_with(place.url(), options).await.unwrap();
    let seen = Seen::default();
    let running = headwater.consumer("orders", "email").handling("one", noting(&seen)).run().await.unwrap();
    publish_numbers(&headwater, "orders", 10).await;
    seen.reach(10).await;
    assert!(headwater.store().elect(&candidate(), Duration::from_secs(10)).await.unwrap());
    assert!(!heads_ran(&headwater).await);
    // By hand it can still be run.
    let runs = headwater.maintenance().run_once(&Job::ALL).await.unwrap();
    assert!(runs.iter().all(|run| run.error.is_none()), "{runs:?}");
    assert!(heads_ran(&headwater).await);
    running.shutdown(Duration::from_secs(5)).await.unwrap();
    place.leave(&headwater).await;
}

async fn the_last_member_cannot_leave(place: Place) {
    let headwater = place.open().await;
    let seen = Seen::default();
    let running = headwater.consumer("orders", "email").handling("one", noting(&seen)).run().await.unwrap();
    let error = running.leave("one").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    assert!(error.to_string().contains("one is the last one"), "{error}");
    publish_numbers(&headwater, "orders", 10).await;
    seen.reach(10).await;
    running.shutdown(Duration::from_secs(5)).await.unwrap();
    place.leave(&headwater).await;
}

async fn removing_waits_for_running_handlers(place: Place) {
    let headwater = place.open().await;
    publish_numbers(&headwater, "orders", 20).await;
    let (seen, gate) = (Seen::default(), Arc::new(Semaphore::new(0)));
    let consumer = headwater.consumer("orders", "email").handling("one", gated(&seen, &gate)).concurrency(3);
    let running = consumer.run().await.unwrap();
    eventually("three are being handled", async || running.health().in_flight == 3).await;
    let groups = headwater.groups("orders");
    let removing = tokio::spawn(async move { groups.remove("email", DEADLINE).await.unwrap() });
    eventually("the rest is released", async || status(&headwater, "email").await.in_flight == 3).await;
    gate.add_permits(1_000);
    assert_eq!(removing.await.unwrap().in_flight, 0, "all three were finished");
    let done: HashSet<u64> = seen.all().into_iter().collect();
    assert_eq!((done.len(), seen.len()), (3, 3));
    tokio::time::timeout(DEADLINE, running.until_ended()).await.expect("the consumer ends");
    assert!(headwater.groups("orders").list().await.unwrap().is_empty());
    let error = headwater.groups("orders").get("email").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoSuchSubscription);
    running.shutdown(Duration::from_secs(5)).await.unwrap();
    place.leave(&headwater).await;
}

async fn pulling_waits_while_paused_and_fails_after_a_cancel(place: Place) {
    let headwater = place.open().await;
    publish_numbers(&headwater, "orders", 5).await;
    let mut consumer = headwater.consumer("orders", "email").open().await.unwrap();
    let groups = headwater.groups("orders");
    groups.pause("email").await.unwrap();
    assert!(consumer.next(Duration::ZERO).await.unwrap().is_none());
    // Woken by the resume, not by a timeout.
    let waiting = tokio::spawn(async move {
        let batch = consumer.next(DEADLINE).await.unwrap().expect("five wait");
        (consumer, batch)
    });
    groups.resume("email").await.unwrap();
    let (mut consumer, batch) = waiting.await.unwrap();
    assert_eq!(batch.messages().len(), 5);
    groups.cancel("email").await.unwrap();
    assert_eq!(batch.ack().await.unwrap_err().kind(), ErrorKind::LeaseLost);
    let error = consumer.next(DEADLINE).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidTransition);
    assert!(error.to_string().contains("was cancelled"), "{error}");
    groups.remove("email", Duration::ZERO).await.unwrap();
    assert_eq!(consumer.next(DEADLINE).await.unwrap_err().kind(), ErrorKind::NoSuchSubscription);
    place.leave(&headwater).await;
}

async fn pulling_sends_heartbeats_and_reports_activity(place: Place) {
    let clock = ManualClock::at("2026-03-02T09:00:00Z".parse().unwrap());
    let headwater = place.open_at(&clock).await;
    let (interval, timeout) = (Duration::from_secs(1), Duration::from_secs(10));
    headwater.topic("orders").heartbeats(interval, timeout).create().await.unwrap();
    publish_numbers(&headwater, "orders", 5).await;
    let mut consumer = headwater.consumer("orders", "email").open().await.unwrap();
    eventually("heartbeat stored", async || status(&headwater, "email").await.heartbeat_at.is_some()).await;
    let batch = consumer.next(DEADLINE).await.unwrap().expect("five wait");
    headwater.store().detect_dead().await.unwrap();
    clock.advance(timeout + interval);
    // No further batch is requested while one is handled: heartbeats continue.
    let fresh = async || status(&headwater, "email").await.heartbeat_age.is_some_and(|age| age < timeout);
    eventually("another heartbeat is stored", fresh).await;
    assert_eq!(headwater.store().detect_dead().await.unwrap().died, []);
    batch.ack().await.unwrap();
    consumer.close().await.unwrap();
    let status = status(&headwater, "email").await;
    assert_eq!((status.activity.processed, status.state), (5, SubscriptionState::Active));
    place.leave(&headwater).await;
}

async fn what_a_group_did_is_counted_once_over_all_its_runs(place: Place) {
    let headwater = place.open().await;
    let seen = Seen::default();
    for run in 1..=3 {
        let consumer = headwater.consumer("orders", "email").handling("one", noting(&seen));
        let running = consumer.run().await.unwrap();
        publish_numbers(&headwater, "orders", 10).await;
        seen.reach(run * 10).await;
        settled(&headwater, "orders", "email").await;
        running.shutdown(Duration::from_secs(5)).await.unwrap();
        assert_eq!(status(&headwater, "email").await.activity.processed, run as u64 * 10);
    }
    place.leave(&headwater).await;
}

async fn what_operators_alter_reaches_consumers_that_run(place: Place) {
    let headwater = place.open().await;
    let (second, hour) = (Duration::from_secs(1), Duration::from_secs(3_600));
    let topic =
        headwater.topic("orders").heartbeats(second, hour).backoff(hour, hour).create().await.unwrap();
    let failing =
        headwater.consumer("orders", "email").member("one", |_: Message, _| async { Err("no".into()) });
    let running = failing.run().await.unwrap();
    publish_numbers(&headwater, "orders", 1).await;
    let buried = async || status(&headwater, "email").await.dead_letters;
    eventually("the retry waits an hour", async || status(&headwater, "email").await.retrying == 1).await;
    let once = DeliveryPolicy { max_attempts: Some(1), ..DeliveryPolicy::default() };
    headwater.groups("orders").set_policy("email", &once).await.unwrap();
    // Until the consumer has read the new policy, failed messages wait an hour too.
    eventually("the policy applies", async || {
        publish_numbers(&headwater, "orders", 1).await;
        buried().await > 0
    })
    .await;
    headwater.groups("orders").set_policy("email", &DeliveryPolicy::default()).await.unwrap();
    let at_once = Duration::from_millis(1);
    let altered = TopicSettings { backoff_initial: at_once, backoff_max: at_once, ..topic.settings };
    headwater.topics().alter("orders", &altered).await.unwrap();
    let attempts = async || {
        let dead_letters = headwater.dead_letters().of("orders", "email").list(1_000).await.unwrap();
        dead_letters.iter().map(|one| one.attempts).max()
    };
    eventually("so do the topic's settings", async || {
        publish_numbers(&headwater, "orders", 1).await;
        attempts().await == Some(10)
    })
    .await;
    running.shutdown(Duration::from_secs(5)).await.unwrap();
    place.leave(&headwater).await;
}
