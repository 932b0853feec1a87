//! Heartbeats of groups: which groups are alive, which come back, and what each process reports about itself.

use std::collections::BTreeSet;
use std::time::Duration;

use uuid::Uuid;

use super::case::{Case, Scene, group, owner};
use super::life::{INTERVAL, MOMENT, TIMEOUT, lively, missed};
use super::log_capture;
use crate::limits::{FLAPPING_RESTARTS, FLAPPING_WINDOW};
use crate::store::{Served, Signal};
use crate::subscription::{Activity, MissedMessages, Start, SubscriptionId, SubscriptionState};

/// The timestamp is the database's time, and its age is computed from the same clock.
pub async fn a_heartbeat_is_stamped_by_the_databases_clock(case: &Case) {
    let scene = case.scene(lively()).await;
    let status = scene.status().await;
    assert_eq!((status.heartbeat_at, status.heartbeat_age), (None, None), "no heartbeat yet");
    assert_eq!(status.heartbeat_timeout, TIMEOUT);
    assert_eq!(scene.heartbeat("a").await, Signal::Active);
    let stamped_at = case.now();
    case.advance(INTERVAL);
    let status = scene.status().await;
    assert_eq!((status.heartbeat_at, status.heartbeat_age), (Some(stamped_at), Some(INTERVAL)));
    let elsewhere = scene.through(&case.open().await);
    assert_eq!(elsewhere.heartbeat("b").await, Signal::Active);
    assert_eq!(scene.status().await.heartbeat_at, Some(case.now()));
}

/// Whichever process sent the last heartbeat, its time is shown exactly.
pub async fn every_heartbeat_is_shown_at_once(case: &Case) {
    let scene = case.scene(lively()).await;
    for step in 0..40_u32 {
        scene.heartbeat(&format!("owner-{}", step % 7)).await;
        let age = scene.status().await.heartbeat_age.expect("the group has a heartbeat");
        assert_eq!(age, Duration::ZERO, "after a heartbeat");
        case.advance_ms(u64::from(step) * 97);
    }
}

/// A clock that is turned back, or jumps forward between two heartbeats, causes no group that sends heartbeats to die.
pub async fn a_clock_jump_kills_no_group_with_heartbeats(case: &Case) {
    let scene = case.scene(lively()).await;
    assert_eq!(scene.heartbeat("a").await, Signal::Active);
    scene.detect().await;
    case.turn_back(Duration::from_secs(3_600));
    for _ in 0..8 {
        assert_eq!(scene.detect().await.died, []);
        assert_eq!(scene.heartbeat("a").await, Signal::Active);
        case.advance(INTERVAL);
    }
    // Forward, by far more than any timeout and without detection in between: groups become suspected, not dead.
    case.advance(Duration::from_secs(24 * 3_600));
    assert_eq!(scene.detect().await.died, []);
    assert_eq!(scene.heartbeat("a").await, Signal::Active);
    for _ in 0..8 {
        case.advance(INTERVAL);
        assert_eq!(scene.heartbeat("a").await, Signal::Active);
        let found = scene.detect().await;
        assert_eq!((found.died, found.suspected), (vec![], vec![]));
    }
}

/// The group resumes at its cursor and is informed of the messages that retention removed meanwhile.
pub async fn a_heartbeat_resurrects_a_dead_group(case: &Case) {
    let scene = case.scene(lively()).await;
    let other = scene.subscribe("other", Start::Beginning).await;
    scene.publish(6).await;
    scene.ack_next(2).await;
    scene.let_die(case).await;
    other.ack_next(4).await;
    assert_eq!(scene.clean_all().await.removed, 4);
    assert_eq!(scene.heartbeat("a").await, Signal::Resurrected(missed(2, 3, 4)));
    let status = scene.status().await;
    assert_eq!((status.state, status.state_since), (SubscriptionState::Active, case.now()));
    assert_eq!((status.heartbeat_at, status.missed), (Some(case.now()), missed(2, 3, 4)));
    assert_eq!(scene.heartbeat("a").await, Signal::Active, "once");
    assert_eq!(scene.reads().await, [5, 6]);
}

/// A process subscribes at its start, before its first heartbeat: that is a sign of life, whatever `Start` it passes. It is logged.
pub async fn subscribing_resurrects_a_dead_group(case: &Case) {
    let name = format!("back-{}", Uuid::now_v7());
    let scene = case.scene(lively()).await.subscribe(&name, Start::Beginning).await;
    scene.publish(4).await;
    scene.ack_next(1).await;
    for (times, start) in [(1, Start::Now), (2, Start::Beginning)] {
        scene.let_die(case).await;
        let back = scene.subscribe(&name, start).await;
        assert_eq!(back.subscription.resurrected, Some(0), "it has missed nothing");
        assert_eq!(scene.subscribe(&name, start).await.subscription.resurrected, None, "it is active");
        let lines = log_capture::all_with(&name);
        let back_again = lines.iter().filter(|line| line.contains("dead subscription resurrected"));
        assert_eq!(back_again.count(), times, "{lines:?}");
        assert_eq!(back.subscription.subscription_id, scene.subscription.subscription_id);
        assert_eq!(back.state().await, SubscriptionState::Active);
    }
    assert_eq!(scene.reads().await, [2, 3, 4], "at its own cursor");
    case.advance(MOMENT);
    assert_eq!(scene.detect().await.died, [], "it does not die again at once");
}

/// Many instances come back at once: one of them resurrects the group, the others find it active.
pub async fn ten_at_once_are_one_resurrection(case: &Case) {
    let scene = case.scene(lively()).await;
    let stores = [scene.clone(), scene.through(&case.open().await)];
    scene.publish(5).await;
    for round in 0..3 {
        scene.let_die(case).await;
        let heartbeats: Vec<_> = (0..10)
            .map(|n| {
                let scene = stores[n % 2].clone();
                tokio::spawn(async move { scene.heartbeat(&format!("instance-{n}")).await })
            })
            .collect();
        let mut came_back = 0;
        for heartbeat in heartbeats {
            match heartbeat.await.unwrap() {
                Signal::Resurrected(missed) => {
                    assert_eq!(missed, MissedMessages::default());
                    came_back += 1;
                }
                other => assert_eq!(other, Signal::Active),
            }
        }
        assert_eq!(came_back, 1, "in round {round}");
        scene.let_die(case).await;
        let calls: Vec<_> = (0..10)
            .map(|n| {
                let scene = stores[n % 2].clone();
                let call = async move { scene.store.resurrect(&scene.topic, &group("workers"), None).await };
                tokio::spawn(call)
            })
            .collect();
        let mut came_back = 0;
        for call in calls {
            came_back += u32::from(call.await.unwrap().expect("an active group is no error").resurrected);
        }
        assert_eq!(came_back, 1, "by hand, in round {round}");
    }
    assert_eq!(scene.reads().await, [1, 2, 3, 4, 5]);
}

/// One call covers all groups of a process and is answered in their order. It reports cancelled and removed groups, and
/// changes neither.
pub async fn heartbeats_report_cancelled_and_removed_groups(case: &Case) {
    let scene = case.scene(lively()).await;
    let cancelled = scene.subscribe("cancelled", Start::Beginning).await;
    let paused = scene.subscribe("paused", Start::Beginning).await;
    let removed = scene.subscribe("removed", Start::Beginning).await;
    let dead = scene.subscribe("dead", Start::Beginning).await;
    dead.let_die(case).await;
    paused.pause().await;
    for one in [&cancelled, &removed] {
        one.cancel().await;
    }
    scene.track_all().await;
    scene.store.remove(&scene.topic, &group("removed")).await.unwrap();
    let before = cancelled.status().await;
    let ids = [&cancelled, &removed, &scene, &paused, &dead].map(|one| one.subscription.subscription_id);
    let ids = ids.into_iter().chain([SubscriptionId(999_999)]);
    let served: Vec<_> = ids.map(Served::new).collect();
    let answer = scene.store.heartbeat(&owner("a"), None, &served).await.unwrap();
    assert_eq!(
        answer.signals,
        [
            Signal::Cancelled,
            Signal::Gone,
            Signal::Active,
            Signal::Paused,
            Signal::Resurrected(MissedMessages::default()),
            Signal::Gone
        ]
    );
    assert_eq!(cancelled.status().await, before, "a cancelled group is left alone");
    assert_eq!(scene.store.heartbeat(&owner("a"), None, &[]).await.unwrap().signals, []);
}

/// A heartbeat names all groups that its owner serves and counts for each of them. For a group that is no longer named,
/// the last heartbeat that named it counts.
pub async fn a_group_lives_while_an_owner_that_serves_it_does(case: &Case) {
    let scene = case.scene(lively()).await;
    let left = scene.subscribe("left", Start::Beginning).await;
    let ids = [&scene, &left].map(|one| Served::new(one.subscription.subscription_id));
    let heartbeat = async |served: &[Served]| {
        let answer = scene.store.heartbeat(&owner("a"), Some(TIMEOUT * 10), served).await.unwrap();
        assert_eq!(answer.signals, vec![Signal::Active; served.len()]);
    };
    heartbeat(&ids).await;
    case.advance(INTERVAL);
    heartbeat(&ids).await;
    let left_at = case.now();
    scene.detect().await;
    while case.now() <= left_at + TIMEOUT {
        assert_eq!(left.state().await, SubscriptionState::Active);
        assert_eq!(left.status().await.heartbeat_at, Some(left_at));
        case.advance(INTERVAL.min(TIMEOUT / 4));
        heartbeat(&ids[..1]).await;
        assert_eq!(scene.status().await.heartbeat_at, Some(case.now()));
        scene.detect().await;
    }
    assert_eq!(
        (scene.state().await, left.state().await),
        (SubscriptionState::Active, SubscriptionState::Dead)
    );
    let counts = [scene.status().await, left.status().await].map(|status| status.processes);
    assert_eq!(counts, [1, 0]);
    // A heartbeat that names the group again resurrects it.
    let answer = scene.store.heartbeat(&owner("a"), None, &ids).await.unwrap();
    assert_eq!(answer.signals, [Signal::Active, Signal::Resurrected(MissedMessages::default())]);
}

/// However an owner ends, its last heartbeat counts for the groups it served: they die one timeout after it.
pub async fn the_last_heartbeat_of_an_owner_that_ended_counts(case: &Case) {
    let scene = case.scene(lively()).await;
    let served = [Served::new(scene.subscription.subscription_id)];
    for departs in [true, false] {
        let answer = scene.store.heartbeat(&owner("ends"), Some(MOMENT), &served).await.unwrap();
        assert_eq!(answer.signals.len(), 1);
        scene.detect().await;
        let seen = case.now();
        case.advance(INTERVAL);
        if departs {
            scene.store.depart(&owner("ends")).await.unwrap();
        } else {
            scene.store.heartbeat(&owner("sweeps"), Some(MOMENT), &[]).await.unwrap();
        }
        assert_eq!(scene.status().await.heartbeat_at, Some(seen), "departs: {departs}");
        case.advance(TIMEOUT - INTERVAL);
        assert_eq!(scene.detect().await.died, []);
        case.advance(MOMENT);
        assert_eq!(scene.detect().await.died.len(), 1, "departs: {departs}");
    }
}

/// An owner whose heartbeat carries no silence limit keeps plain leases, until a later heartbeat carries one.
pub async fn an_owner_without_a_silence_limit_keeps_its_leases(case: &Case) {
    let (scene, silent_ms) = (case.queue().await, 15_000);
    scene.publish(2).await;
    let served = [Served::new(scene.subscription.subscription_id)];
    scene.store.heartbeat(&owner("pulls"), None, &served).await.unwrap();
    let lease = scene.claim_one("pulls", 1).await;
    for _ in 0..3 {
        case.advance_ms(silent_ms + 1);
        assert_eq!(scene.heartbeat_judging("lives", silent_ms).await, 0);
    }
    scene.ack(&lease).await;
    scene.store.heartbeat(&owner("pulls"), Some(Duration::from_millis(silent_ms)), &served).await.unwrap();
    scene.claim_one("pulls", 1).await;
    case.advance_ms(silent_ms + 1);
    // An owner without a silence limit ends no leases of others either.
    assert_eq!(scene.store.heartbeat(&owner("idle"), None, &[]).await.unwrap().ended, 0);
    assert_eq!(scene.heartbeat_judging("lives", silent_ms).await, 1);
}

/// An operator decides about a pause: a heartbeat does not undo it, and a paused group that is silent does not die.
pub async fn a_paused_group_stays_paused_and_is_stamped(case: &Case) {
    let scene = case.scene(lively()).await;
    scene.pause().await;
    assert_eq!(scene.heartbeat("a").await, Signal::Paused);
    let status = scene.status().await;
    assert_eq!((status.state, status.heartbeat_at), (SubscriptionState::Paused, Some(case.now())));
    scene.detect().await;
    for _ in 0..5 {
        case.advance(TIMEOUT + MOMENT);
        let found = scene.detect().await;
        assert_eq!((found.died, found.suspected), (vec![], vec![]));
    }
    assert_eq!(scene.state().await, SubscriptionState::Paused);
    assert_eq!(scene.subscribe("workers", Start::Now).await.state().await, SubscriptionState::Paused);
}

fn activity(processed: u64, rate: f64, mean_ms: u64, p95_ms: u64) -> Activity {
    Activity {
        processed,
        failed: processed / 10,
        filtered: processed / 100,
        rate,
        handling_mean: Duration::from_millis(mean_ms),
        handling_p95: Duration::from_millis(p95_ms),
    }
}

/// Counts are summed, the mean is weighted by the rates, the highest percentile is kept. A later report of a process
/// replaces its earlier one, and the counts of a process that leaves are kept.
pub async fn the_activity_of_processes_is_added_up(case: &Case) {
    let scene = case.scene(lively()).await;
    let other = scene.subscribe("other", Start::Beginning).await;
    scene.heartbeat_with("a", activity(500, 9.0, 90, 900)).await;
    scene.heartbeat_with("a", activity(1_000, 1.0, 10, 40)).await;
    scene.heartbeat_with("b", activity(2_000, 3.0, 30, 35)).await;
    other.heartbeat_with("a", activity(7, 1.0, 1, 1)).await;
    let status = scene.status().await;
    assert_eq!(status.processes, 2);
    let sum = status.activity;
    assert_eq!((sum.processed, sum.failed, sum.filtered), (3_000, 300, 30));
    assert!((sum.rate - 4.0).abs() < 1e-9, "{sum:?}");
    let off = sum.handling_mean.abs_diff(Duration::from_millis(25));
    assert!(off < Duration::from_micros(2), "(10 x 1 + 30 x 3) / 4 is 25 ms: {sum:?}");
    assert_eq!(sum.handling_p95, Duration::from_millis(40));
    assert_eq!(other.status().await.activity.processed, 7);
    scene.store.depart(&owner("b")).await.unwrap();
    assert_eq!(scene.status().await.activity.processed, 3_000, "the counts of b are kept");
    // One process becomes silent: it no longer counts as alive.
    scene.heartbeat_with("c", activity(100, 1.0, 1, 1)).await;
    case.advance(TIMEOUT + MOMENT);
    scene.heartbeat_with("c", activity(200, 1.0, 1, 1)).await;
    let status = scene.status().await;
    assert_eq!((status.processes, status.activity.processed), (1, 3_200));
}

/// Processes that ended long ago are removed, and their counts are kept. A live process reports totals: none is counted
/// twice, not even for a group that it stopped serving long ago and serves again.
pub async fn the_activity_of_a_process_counts_once_however_long_it_runs(case: &Case) {
    const DAY: Duration = Duration::from_secs(24 * 3_600);
    let scene = case.scene(lively()).await;
    let left = scene.subscribe("left", Start::Beginning).await;
    let both = [&scene, &left].map(|one| Served {
        subscription_id: one.subscription.subscription_id,
        activity: activity(100, 1.0, 1, 1),
    });
    left.heartbeat_with("vanishes", activity(10, 1.0, 1, 1)).await;
    scene.store.heartbeat(&owner("lives"), None, &both).await.unwrap();
    for _ in 0..3 {
        case.advance(DAY / 2 + MOMENT);
        scene.store.heartbeat(&owner("lives"), None, &both[..1]).await.unwrap();
        scene.store.clean_subscriptions(DAY * 30).await.unwrap();
    }
    scene.store.heartbeat(&owner("lives"), None, &both).await.unwrap();
    for (one, done) in [(&scene, 100), (&left, 110)] {
        let status = one.status().await;
        assert_eq!((status.activity.processed, status.processes), (done, 1));
    }
}

/// Many processes of one group send heartbeats at the same moment, through two stores: all are answered and counted.
pub async fn many_processes_of_one_group_send_heartbeats_at_once(case: &Case) {
    const PROCESSES: usize = 50;
    let scene = case.scene(lively()).await;
    let stores = [scene.clone(), scene.through(&case.open().await)];
    for round in 0..3_u64 {
        let heartbeats: Vec<_> = (0..PROCESSES)
            .map(|n| {
                let scene = stores[n % 2].clone();
                let reported = activity(100 * (round + 1), 1.0, 1, 1);
                tokio::spawn(async move { scene.heartbeat_with(&format!("process-{n}"), reported).await })
            })
            .collect();
        for heartbeat in heartbeats {
            assert_eq!(heartbeat.await.unwrap(), Signal::Active);
        }
        let status = scene.status().await;
        assert_eq!(status.processes as usize, PROCESSES);
        assert_eq!(status.activity.processed, 100 * (round + 1) * PROCESSES as u64, "round {round}");
        assert_eq!(status.heartbeat_at, Some(case.now()));
        case.advance(INTERVAL);
    }
}

/// From four fifths of its timeout on, and not earlier, a group is listed as near its timeout.
pub async fn four_fifths_of_the_timeout_is_near(case: &Case) {
    let scene = case.scene(lively()).await;
    let never = scene.subscribe("no heartbeat", Start::Beginning).await;
    scene.heartbeat("a").await;
    scene.detect().await;
    case.advance(TIMEOUT * 4 / 5 - MOMENT);
    assert_eq!(scene.detect().await.near_timeout, []);
    assert!(!scene.status().await.is_near_timeout());
    case.advance(MOMENT);
    let name = (scene.topic.clone(), scene.subscription.group.clone());
    assert_eq!(scene.detect().await.near_timeout, [name]);
    assert!(scene.status().await.is_near_timeout());
    assert!(!never.status().await.is_near_timeout());
    scene.heartbeat("a").await;
    assert_eq!(scene.detect().await.near_timeout, []);
}

async fn registers(scene: &Scene, process: &str) {
    scene.subscribe("workers", Start::Beginning).await;
    assert_eq!(scene.heartbeat(process).await, Signal::Active);
}

/// Each restart sends a heartbeat, so the timeout never passes: a group that registers repeatedly and makes no
/// progress is flapping, until it makes progress or the window is over.
pub async fn a_group_that_only_restarts_is_flapping(case: &Case) {
    let scene = case.scene(lively()).await;
    scene.publish(3).await;
    scene.store.advance_heads().await.unwrap();
    let rounds = FLAPPING_RESTARTS + 4;
    let apart = TIMEOUT + MOMENT;
    assert!(apart * rounds < FLAPPING_WINDOW, "all restarts are in one window");
    for _ in 0..rounds {
        case.advance(apart);
        registers(&scene, "pod").await;
    }
    let status = scene.status().await;
    assert!(status.restarts >= rounds - 1, "{status:?}");
    assert!(status.is_flapping(), "{status:?}");
    assert!(status.health_issues(case.now()).contains(&crate::store::HealthIssue::Flapping));
    // The group makes progress.
    scene.ack_next(1).await;
    assert!(!scene.status().await.is_flapping(), "{:?}", scene.status().await);
    // Further restarts are noticed again; one window after the last restart the group is not flapping any more.
    for _ in 0..rounds {
        case.advance(apart);
        registers(&scene, "pod").await;
    }
    assert!(scene.status().await.is_flapping());
    case.advance(FLAPPING_WINDOW + MOMENT);
    assert!(!scene.status().await.is_flapping());
}

/// A group that registers now and then and has nothing to do is healthy, also when a message arrives at last.
pub async fn restarts_with_nothing_to_do_are_no_flapping(case: &Case) {
    let scene = case.scene(lively()).await;
    scene.publish(1).await;
    assert_eq!(scene.reads().await, [1]);
    for _ in 0..FLAPPING_RESTARTS + 4 {
        case.advance(MOMENT);
        registers(&scene, "pod").await;
    }
    scene.publish(1).await;
    scene.store.advance_heads().await.unwrap();
    let status = scene.status().await;
    assert_eq!((status.lag, status.restarts), (1, 0));
    registers(&scene, "pod").await;
    let status = scene.status().await;
    assert_eq!((status.restarts, status.is_flapping()), (1, false), "from now on they count");
}

/// A deployment of fifty processes that register at the same moment is no restart loop.
pub async fn fifty_processes_starting_at_once_are_not_flapping(case: &Case) {
    let scene = case.scene(lively()).await;
    scene.publish(3).await;
    scene.store.advance_heads().await.unwrap();
    let stores = [scene.clone(), scene.through(&case.open().await)];
    let tasks: Vec<_> = (0..50)
        .map(|n| {
            let scene = stores[n % 2].clone();
            tokio::spawn(async move { registers(&scene, &format!("process-{n}")).await })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    let status = scene.status().await;
    assert_eq!(status.processes, 50);
    assert!(!status.is_flapping(), "{status:?}");
    assert_eq!(status.lag, 3, "flapping requires that there is a lag");
    let ids: BTreeSet<_> = scene
        .store
        .subscriptions(&scene.topic)
        .await
        .unwrap()
        .iter()
        .map(|one| one.subscription_id)
        .collect();
    assert_eq!(ids.len(), 1);
}
