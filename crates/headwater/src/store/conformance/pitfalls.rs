//! Known failure modes of groups that join, die and return in other designs, by name: nine pitfalls and seven concerns
//! about load, each as the promise this design makes about it.

use std::time::Duration;

use super::case::{Case, Scene, failed, group, offsets_of, owner};
use super::life::{HOUR, INTERVAL, MOMENT, TIMEOUT, counted, groups_of, lively};
use crate::error::ErrorKind;
use crate::settle::Settlement;
use crate::store::{Signal, TrackStep};
use crate::subscription::{MissedMessages, Start, SubscriptionState};
use crate::topic::TopicSettings;

/// A message that is published while the detector runs never waits for the group that dies in that moment.
pub async fn pitfall_1_a_message_published_during_dead_detection_never_waits_for_a_dead_group(case: &Case) {
    let scene = case.scene(counted()).await;
    let dies = scene.subscribe("dies", Start::Beginning).await;
    for round in 0..5 {
        dies.heartbeat("a").await;
        scene.detect().await;
        case.advance(TIMEOUT + MOMENT);
        let publishers: Vec<_> = (0..3)
            .map(|_| {
                let scene = scene.clone();
                tokio::spawn(async move {
                    for _ in 0..5 {
                        scene.publish(2).await;
                        scene.track(100).await;
                    }
                })
            })
            .collect();
        assert_eq!(scene.detect().await.died.len(), 1, "round {round}");
        for publisher in publishers {
            publisher.await.unwrap();
        }
        scene.track_all().await;
        for record in scene.records().await.iter().filter(|record| record.completed_at.is_none()) {
            assert_eq!(groups_of(record).0, ["workers"], "round {round}: {record:?}");
        }
        scene.drain_until("reader", 30).await;
        scene.track_all().await;
        let waiting = scene.records().await.into_iter().filter(|record| record.completed_at.is_none());
        assert_eq!(waiting.count(), 0, "round {round}");
        assert!(matches!(dies.heartbeat("a").await, Signal::Resurrected(_)));
        assert_eq!(dies.drain_until("reader", 30).await.len(), 30, "the group gets them after it is back");
    }
}

/// A group that restarts every half minute sends heartbeats often enough never to die, and does no work: it is flagged.
pub async fn pitfall_2_a_flapping_group_is_flagged_though_it_never_dies(case: &Case) {
    let scene = case.pub_sub().await;
    scene.publish(10).await;
    for pod in 0..20 {
        let restarted = scene.subscribe("workers", Start::Beginning).await;
        assert_eq!(restarted.heartbeat(&format!("pod-{pod}")).await, Signal::Active);
        restarted.claim(&format!("pod-{pod}"), 1).await;
        assert_eq!(scene.detect().await.died, [], "its timeout never sees it");
        if pod < 19 {
            case.advance(Duration::from_secs(30));
        }
    }
    let status = scene.status().await;
    assert!(status.is_flapping(), "{status:?}");
    assert_eq!(status.state, SubscriptionState::Active);
}

/// A process that is disconnected for longer than its timeout is declared dead and comes back with its next heartbeat.
/// What it settles under leases that are still valid counts.
pub async fn pitfall_3_a_partitioned_process_resumes_at_its_cursor(case: &Case) {
    let scene = case.scene(lively()).await;
    let other = scene.subscribe("other", Start::Beginning).await;
    scene.publish(6).await;
    let done_meanwhile = scene.claim_one("cut off", 3).await;
    scene.let_die(case).await;
    other.ack_next(6).await;
    let before = scene.status().await.next;
    assert_eq!(scene.heartbeat("cut off").await, Signal::Resurrected(MissedMessages::default()));
    scene.ack(&done_meanwhile).await;
    assert_eq!(scene.status().await.next, before);
    assert_eq!(scene.reads().await, [4, 5, 6], "no message is redelivered and none is left out");
    assert_eq!(scene.clean_all().await.removed, 6);
    assert_eq!(scene.status().await.missed, MissedMessages::default());
}

/// Only the database's clock is read: five minutes off in either direction, no group that sends heartbeats dies.
pub async fn pitfall_4_clock_skew_kills_no_group(case: &Case) {
    let scene = case.pub_sub().await;
    let minute = Duration::from_secs(60);
    let minutes_pass = async |count: u32| {
        for _ in 0..count {
            assert_eq!(scene.detect().await.died, []);
            assert_eq!(scene.heartbeat("a").await, Signal::Active);
            case.advance(minute);
        }
    };
    minutes_pass(3).await;
    case.turn_back(minute * 5);
    minutes_pass(12).await;
    case.advance(minute * 5);
    minutes_pass(12).await;
    assert_eq!(scene.state().await, SubscriptionState::Active);
}

/// A job that is killed while it releases a dead group leaves nothing stuck: the next job continues, and nothing is
/// released twice.
pub async fn pitfall_5_a_cleanup_that_crashes_half_way_is_finished_by_the_next(case: &Case) {
    let scene = case.scene(counted()).await;
    let dies = scene.subscribe("dies", Start::Beginning).await;
    scene.publish(40).await;
    scene.track_all().await;
    assert_eq!(scene.reads().await.len(), 40);
    scene.track_all().await;
    dies.let_die(case).await;
    let mut scene = scene;
    let (mut completed, mut rounds) = (0, 0);
    loop {
        let step = scene.track(7).await;
        completed += step.completed;
        if !step.more {
            break;
        }
        rounds += 1;
        assert!(rounds < 100, "the release never ends");
        // The worker ends after every step; the detector runs again.
        scene.store.close().await.unwrap();
        scene = scene.through(&case.open().await);
        assert_eq!(scene.detect().await.died, []);
    }
    assert_eq!(completed, 40, "each message was completed once");
    assert!(rounds >= 5, "seven at a time: {rounds}");
    assert!(scene.records().await.iter().all(|record| record.completed_at.is_some()));
    assert_eq!(scene.track(100).await, TrackStep::default());
}

/// The leased messages of a group that dies are neither stuck nor done twice: a message that is acked in time is done,
/// any other is redelivered, to this group alone.
pub async fn pitfall_6_messages_in_flight_when_a_group_dies_are_done_once(case: &Case) {
    let scene = case.scene(counted()).await;
    let other = scene.subscribe("other", Start::Beginning).await;
    scene.publish(6).await;
    scene.track_all().await;
    let finished = scene.claim_one("a", 3).await;
    let crashed = scene.claim_one("b", 3).await;
    scene.let_die(case).await;
    assert_eq!(other.reads().await, [1, 2, 3, 4, 5, 6]);
    scene.track_all().await;
    let completed = scene.records().await;
    assert!(completed.iter().all(|record| record.completed_at.is_some()), "no record waits for the group");
    scene.ack(&finished).await;
    scene.track_all().await;
    assert_eq!(scene.records().await, completed, "a late ack changes no completed record");
    scene.heartbeat("c").await;
    case.advance(HOUR / 2);
    scene.heartbeat("c").await;
    let mut again = scene.reads().await;
    again.sort_unstable();
    assert_eq!(again, [4, 5, 6], "only what was not settled is redelivered");
    failed(scene.settle(Settlement::ack_all(&crashed)).await, ErrorKind::LeaseLost);
    assert_eq!(other.reads().await, [] as [i64; 0]);
}

/// Ten instances come back in the same moment and all register, send heartbeats and claim: there is one resurrection
/// and one backfill, and each message is delivered once.
pub async fn pitfall_7_a_thundering_herd_is_one_resurrection(case: &Case) {
    let scene = case.scene(counted()).await;
    let other = scene.subscribe("other", Start::Beginning).await;
    scene.publish(60).await;
    scene.track_all().await;
    scene.let_die(case).await;
    scene.track_all().await;
    let stores = [scene.clone(), scene.through(&case.open().await)];
    let instances: Vec<_> = (0..10)
        .map(|n| {
            let scene = stores[n % 2].clone();
            tokio::spawn(async move {
                let name = format!("instance-{n}");
                let signal = scene.heartbeat(&name).await;
                scene.subscribe("workers", Start::Beginning).await;
                let mut got = Vec::new();
                for lease in scene.claim(&name, 6).await {
                    got.extend(offsets_of(&scene.fetch(&lease).await));
                    scene.ack(&lease).await;
                }
                (matches!(signal, Signal::Resurrected(_)), got)
            })
        })
        .collect();
    let (mut resurrections, mut got) = (0, Vec::new());
    for instance in instances {
        let (resurrected, mine) = instance.await.unwrap();
        resurrections += u32::from(resurrected);
        got.extend(mine);
    }
    assert_eq!(resurrections, 1);
    got.extend(scene.reads().await);
    got.sort_unstable();
    assert!(got.iter().copied().eq(1..=60), "{got:?}");
    let (processed, _) = scene.backfill_all().await;
    assert!(processed <= 60, "one backfill: {processed}");
    let of_group = scene.store.backfills().await.unwrap();
    assert_eq!(of_group.iter().filter(|one| one.group == group("workers")).count(), 1);
    other.reads().await;
    scene.track_all().await;
    assert!(scene.records().await.iter().all(|record| record.completed_at.is_some()));
}

/// A group that is cancelled and deleted while its consumers run leaves nothing behind: heartbeats report it to the
/// consumers, their leases are lost, and no message waits for the group.
pub async fn pitfall_8_a_group_deleted_in_flight_stops_its_consumers(case: &Case) {
    let scene = case.scene(counted()).await;
    let other = scene.subscribe("other", Start::Beginning).await;
    scene.publish(5).await;
    scene.track_all().await;
    let lease = scene.claim_one("running", 2).await;
    scene.cancel().await;
    assert_eq!(scene.heartbeat("running").await, Signal::Cancelled);
    failed(scene.settle(Settlement::ack_all(&lease)).await, ErrorKind::LeaseLost);
    scene.track_all().await;
    scene.store.remove(&scene.topic, &group("workers")).await.unwrap();
    assert_eq!(scene.heartbeat("running").await, Signal::Gone);
    failed(scene.settle(Settlement::ack_all(&lease)).await, ErrorKind::LeaseLost);
    let request = crate::store::ClaimRequest { owner: owner("running"), wants: vec![scene.want(5)] };
    failed(scene.store.claim(&request).await, ErrorKind::NoSuchSubscription);
    assert_eq!(other.reads().await, [1, 2, 3, 4, 5]);
    other.track_all().await;
    assert!(other.records().await.iter().all(|record| record.completed_at.is_some()), "no message waits");
    case.advance(HOUR);
    assert_eq!(other.clean_all().await.removed, 5);
}

/// With many processes and few connections every heartbeat is answered, and no process is taken for dead.
pub async fn pitfall_9_heartbeats_do_not_exhaust_the_connections(case: &Case) {
    let store = case.open_with(case.options().connections_max(2)).await.unwrap();
    let scene = Scene::new(store, "orders", lively()).await;
    scene.publish(20).await;
    for _ in 0..3 {
        let heartbeats: Vec<_> = (0..200)
            .map(|n| {
                let scene = scene.clone();
                tokio::spawn(async move { scene.heartbeat(&format!("process-{n}")).await })
            })
            .collect();
        for heartbeat in heartbeats {
            assert_eq!(heartbeat.await.unwrap(), Signal::Active);
        }
        assert_eq!(scene.detect().await.died, []);
        case.advance(INTERVAL);
    }
    assert_eq!(scene.status().await.processes, 200);
    assert_eq!(scene.reads().await.len(), 20);
}

/// Hundreds of heartbeats of one group in a moment do not write the group's row: each owner has rows of its own, and
/// the newest counts.
pub async fn concern_1_heartbeats_of_one_group_do_not_queue_on_its_row(case: &Case) {
    let scene = case.scene(lively()).await;
    scene.heartbeat("first").await;
    case.advance(INTERVAL / 4 - MOMENT);
    let heartbeats: Vec<_> = (0..100)
        .map(|n| {
            let scene = scene.clone();
            tokio::spawn(async move { scene.heartbeat(&format!("process-{n}")).await })
        })
        .collect();
    for heartbeat in heartbeats {
        assert_eq!(heartbeat.await.unwrap(), Signal::Active);
    }
    let status = scene.status().await;
    assert_eq!((status.heartbeat_at, status.processes), (Some(case.now()), 101));
    assert_eq!(case.harness().number(STAMPED.0, STAMPED.1).await, 0, "not written");
}

const STAMPED: (&str, &str) = (
    "SELECT count(*) FROM headwater_subscription WHERE heartbeat_at_ms IS NOT NULL",
    "SELECT count(*) FROM {schema}.subscription WHERE heartbeat_at IS NOT NULL",
);

const RECORDS: (&str, &str) =
    ("SELECT count(*) FROM headwater_completion_record", "SELECT count(*) FROM {schema}.completion_record");
const RANGES: (&str, &str) =
    ("SELECT count(*) FROM headwater_outstanding", "SELECT count(*) FROM {schema}.outstanding");

/// Publishing counts and writes nothing per group, however many groups there are: completion records are made later.
pub async fn concern_2_publishing_costs_the_same_with_many_groups(case: &Case) {
    let scene = case.scene(counted()).await;
    for n in 0..30 {
        scene.subscribe(&format!("group-{n}"), Start::Beginning).await;
    }
    scene.publish(50).await;
    assert_eq!(case.harness().number(RECORDS.0, RECORDS.1).await, 0, "only messages were written");
    assert_eq!(scene.track_all().await.recorded, 50);
    assert_eq!(
        case.harness().number(RECORDS.0, RECORDS.1).await,
        50,
        "one record per message, not per group"
    );
}

/// A claim reads cursors and outstanding ranges, not what was done: completed messages leave no rows.
pub async fn concern_3_completed_messages_do_not_slow_claims(case: &Case) {
    let scene = case.scene(lively()).await;
    let mut groups = vec![scene.clone()];
    for n in 0..20 {
        groups.push(scene.subscribe(&format!("group-{n}"), Start::Beginning).await);
    }
    for _ in 0..3 {
        scene.publish(100).await;
        for one in &groups {
            assert_eq!(one.reads().await.len(), 100);
        }
        assert_eq!(case.harness().number(RANGES.0, RANGES.1).await, 0, "no row per message and group");
    }
    scene.publish(1).await;
    let wants = groups.iter().map(|one| one.want(10)).collect();
    let claimed = scene.store.claim(&crate::store::ClaimRequest { owner: owner("a"), wants }).await.unwrap();
    assert_eq!(claimed.leases.len(), groups.len(), "one claim serves all groups");
    assert_eq!(case.harness().number(RANGES.0, RANGES.1).await, groups.len() as i64);
}

/// Ten groups finish a hundred messages: each completion record is written a few times, not once per group.
pub async fn concern_4_completing_writes_a_record_once_for_all_groups(case: &Case) {
    let scene = case.scene(counted()).await;
    let mut groups = vec![scene.clone()];
    for n in 0..9 {
        groups.push(scene.subscribe(&format!("group-{n}"), Start::Beginning).await);
    }
    scene.publish(100).await;
    scene.track_all().await;
    for one in &groups {
        assert_eq!(one.reads().await.len(), 100);
    }
    let step = scene.track_all().await;
    assert_eq!((step.recorded, step.changed, step.completed), (0, 100, 100), "not ten times as many");
}

/// However much there is to remove, a step removes no more than its limit and begins where the last step ended.
pub async fn concern_5_a_large_cleanup_runs_in_even_steps(case: &Case) {
    let scene = case.scene(lively()).await;
    let slow = scene.subscribe("slow", Start::Beginning).await;
    scene.publish(3_000).await;
    for one in [&scene, &slow] {
        one.ack_next(2_500).await;
    }
    for step in 1..=25_i64 {
        let cleaned = scene.clean(100).await;
        assert_eq!((cleaned.removed, cleaned.missed), (100, vec![]), "step {step}");
        let status = scene.topic_status().await;
        assert_eq!(status.first.0, step * 100 + 1);
    }
    let last = scene.clean(100).await;
    assert_eq!((last.removed, last.more), (0, false), "unread messages are not scanned again");
    assert_eq!(scene.stored().await.len(), 500);
}

/// A topic with all the traffic, a dead group and a running cleanup does not affect other topics.
pub async fn concern_6_a_hot_topic_leaves_others_alone(case: &Case) {
    let hot = case.scene(TopicSettings { max_retention: Some(HOUR), ..lively() }).await;
    let quiet = hot.beside("quiet", TopicSettings { message_retention: None, ..lively() }).await;
    let hot_elsewhere = hot.through(&case.open().await);
    let traffic = tokio::spawn(async move {
        for round in 0..15 {
            hot_elsewhere.publish(200).await;
            if round % 3 == 0 {
                hot_elsewhere.reads().await;
            }
            hot_elsewhere.clean(100).await;
        }
        hot_elsewhere
    });
    for n in 1..=15 {
        assert_eq!(quiet.publish(1).await, [n]);
        assert_eq!(quiet.drain_until("reader", 1).await.len(), 1);
        quiet.clean(10).await;
    }
    let hot = traffic.await.unwrap();
    case.pass(HOUR * 2).await;
    hot.clean_all().await;
    assert_eq!(quiet.stored().await.len(), 15, "another topic's retention is its own");
    assert_eq!(quiet.status().await.missed, MissedMessages::default());
    assert_eq!(hot.stored().await, [] as [i64; 0]);
    let lost = hot.status().await.missed;
    let done = lost.range.map_or(3_000, |(first, _)| first.0 - 1);
    assert_eq!(i64::try_from(lost.count).unwrap(), 3_000 - done, "{lost:?}: all after the last message read");
}

/// Completion records and ack logs are removed with their messages: after any number of rounds none is left.
pub async fn concern_7_what_is_recorded_does_not_grow(case: &Case) {
    let settings = TopicSettings { message_retention: Some(Duration::ZERO), ack_log: true, ..counted() };
    let scene = case.scene(settings).await;
    let second = scene.subscribe("second", Start::Beginning).await;
    for round in 0..12 {
        scene.publish(20).await;
        scene.track_all().await;
        // Acked in pieces, so that the completed offsets are not one range.
        for one in [&scene, &second] {
            let lease = one.claim_one("a", 20).await;
            let odd = (lease.range.first.0..=lease.range.last.0).step_by(2);
            let parts = odd.map(|offset| ((offset, offset), crate::store::Outcome::Ack)).collect();
            one.settle_each(&lease, parts).await.unwrap();
            one.track_all().await;
            one.ack(&lease).await;
        }
        case.advance_ms(1_000);
        assert_eq!(scene.clean_all().await.removed, 20, "round {round}");
        assert_eq!(case.harness().number(RECORDS.0, RECORDS.1).await, 0, "round {round}");
    }
    let acks = ("SELECT count(*) FROM headwater_ack_log", "SELECT count(*) FROM {schema}.ack_log");
    assert_eq!(case.harness().number(acks.0, acks.1).await, 0);
    let applied = (
        "SELECT count(*) FROM headwater_applied",
        "SELECT coalesce(sum((SELECT count(*) FROM unnest(applied))), 0)::bigint FROM {schema}.subscription",
    );
    let ranges = case.harness().number(applied.0, applied.1).await;
    assert!(ranges <= 2, "a range per group at most: {ranges}");
}
