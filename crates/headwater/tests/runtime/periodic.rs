//! Cron on a real store: once per tick over two processes, and a group's limits over two processes.

use std::time::Duration;

use headwater::cron::Missed;
use headwater::testing::ManualClock;
use headwater::{Json, NewMessage};
use jiff::Timestamp;

use crate::each::{Place, Seen, noting, on_each, publish_numbers};

on_each!(
    each_tick_is_published_once_by_two_processes,
    a_group_keeps_its_rate_over_two_processes,
    a_group_keeps_its_limit_in_flight_over_two_processes,
    dead_letters_are_redriven_to_their_group,
);

fn clock() -> ManualClock {
    ManualClock::at("2026-03-28T23:59:30Z".parse::<Timestamp>().unwrap())
}

async fn each_tick_is_published_once_by_two_processes(place: Place) {
    let clock = clock();
    let (first, second) = (place.open_at(&clock).await, place.open_at(&clock).await);
    first.topic("reports").create().await.unwrap();
    let job = |headwater: &headwater::Headwater| {
        headwater
            .cron("nightly", "30 2 * * *")
            .time_zone("Europe/Berlin")
            .topic("reports")
            .message(NewMessage::new("report"))
            .missed(Missed::FireOnce)
            .start()
    };
    let jobs = [job(&first).await.unwrap(), job(&second).await.unwrap()];
    // Three days, across the night in which 02:30 does not exist in Berlin.
    for _ in 0..3 * 24 {
        clock.advance(Duration::from_secs(3_600));
        for job in &jobs {
            job.step().await.unwrap();
        }
    }
    let ticks: Vec<String> = first
        .published("reports")
        .await
        .unwrap()
        .iter()
        .map(|message| message.headers["headwater-cron-tick"].clone())
        .collect();
    // The first instant after the gap, then the usual time in summer.
    assert_eq!(ticks, ["2026-03-29T01:00:00Z", "2026-03-30T00:30:00Z", "2026-03-31T00:30:00Z"]);
    for job in jobs {
        job.stop().await;
    }
    second.close().await.unwrap();
    place.leave(&first).await;
}

async fn a_group_keeps_its_rate_over_two_processes(place: Place) {
    let clock = clock();
    let (first, second) = (place.open_at(&clock).await, place.open_at(&clock).await);
    publish_numbers(&first, "orders", 200).await;
    let seen = Seen::default();
    let mut steppers = Vec::new();
    for headwater in [&first, &second] {
        let consumer =
            headwater.consumer("orders", "email").rate_limit(10.0, 5).handling("one", noting(&seen));
        steppers.push(consumer.stepwise().await.unwrap());
    }
    for second in 0..5 {
        for stepper in &mut steppers {
            stepper.drain().await.unwrap();
        }
        assert_eq!(seen.len(), if second == 0 { 5 } else { 5 + 5 * second }, "after {second} half seconds");
        clock.advance(Duration::from_millis(500));
    }
    drop(steppers);
    second.close().await.unwrap();
    place.leave(&first).await;
}

async fn a_group_keeps_its_limit_in_flight_over_two_processes(place: Place) {
    let (first, second) = (place.open().await, place.open().await);
    publish_numbers(&first, "orders", 300).await;
    let (busy, most) = (std::sync::Arc::new(std::sync::atomic::AtomicI64::new(0)), Seen::default());
    let mut running = Vec::new();
    for headwater in [&first, &second] {
        let (busy, most) = (busy.clone(), most.clone());
        let consumer = headwater.consumer("orders", "email").max_in_flight(4).concurrency(16).member(
            "one",
            move |_: Json<u64>, _| {
                let (busy, most) = (busy.clone(), most.clone());
                async move {
                    most.add(busy.fetch_add(1, std::sync::atomic::Ordering::SeqCst) + 1);
                    tokio::task::yield_now().await;
                    busy.fetch_sub(1, std::sync::atomic::Ordering::SeqCst);
                    Ok(())
                }
            },
        );
        running.push(consumer.run().await.unwrap());
    }
    let counts = most.reach(300).await;
    assert!(counts.iter().all(|count| *count <= 4), "{:?}", counts.iter().max());
    for running in running {
        running.shutdown(Duration::from_secs(5)).await.unwrap();
    }
    second.close().await.unwrap();
    place.leave(&first).await;
}

async fn dead_letters_are_redriven_to_their_group(place: Place) {
    let clock = clock();
    let headwater = place.open_at(&clock).await;
    headwater.topic("orders").pub_sub().create().await.unwrap();
    publish_numbers(&headwater, "orders", 3).await;
    let (fixed, seen) = (Seen::default(), Seen::default());
    let mut steppers = Vec::new();
    for group in ["email", "audit"] {
        let (fixed, seen) = (fixed.clone(), seen.clone());
        let consumer = headwater.consumer("orders", group).member("one", move |Json(n): Json<u64>, _| {
            let broken = group == "email" && n == 1 && fixed.len() == 0;
            seen.add((group, n, broken));
            async move { if broken { Err(headwater::Bury("broken").into()) } else { Ok(()) } }
        });
        steppers.push(consumer.stepwise().await.unwrap());
    }
    for stepper in &mut steppers {
        stepper.drain().await.unwrap();
    }
    assert_eq!(seen.len(), 6);
    fixed.add(());
    let dead_letters = headwater.dead_letters().of("orders", "email");
    let redriven = dead_letters.redrive(|all| all).await.unwrap();
    assert_eq!((redriven.redriven, redriven.gone), (1, 0));
    assert_eq!(dead_letters.redrive(|all| all).await.unwrap().redriven, 0, "the second redrive finds none");
    for stepper in &mut steppers {
        stepper.drain().await.unwrap();
    }
    assert_eq!(seen.all()[6..], [("email", 1, false)]);
    drop(steppers);
    place.leave(&headwater).await;
}
