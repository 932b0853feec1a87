//! Limits of a whole group: how much is in flight and how fast it is handed out, over all members and processes.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering::SeqCst};
use std::time::{Duration, Instant};

use super::case::{Case, DEADLINE, Scene, failed, owner, pause, retry, spanned};
use super::lane_consumer::{Handled, LaneConsumer};
use crate::error::ErrorKind;
use crate::lease::{ClaimRequest, Claimed, GroupLimits, Lease, RateLimit, Want};
use crate::message::NewMessage;
use crate::settle::Outcome;
use crate::topic::{Ordering, TopicSettings};

fn in_flight(most: u32) -> GroupLimits {
    GroupLimits { in_flight_max: Some(most), rate: None }
}

fn rate(per_second: f64, burst: u32) -> GroupLimits {
    GroupLimits { in_flight_max: None, rate: Some(RateLimit { per_second, burst }) }
}

fn ordered(lanes: u16) -> TopicSettings {
    TopicSettings { ordering: Ordering::Key, lanes, ..TopicSettings::default() }
}

/// Leases without a deadline, for cases in which much time passes.
fn for_ever() -> TopicSettings {
    TopicSettings { lease: Duration::ZERO, ..TopicSettings::default() }
}

fn offsets(claimed: &Claimed) -> Vec<i64> {
    spanned(&claimed.leases)
}

/// The claim returns nothing because of a limit, and returns when to claim again.
async fn held_back(scene: &Scene, owner_name: &str, limits: GroupLimits) -> Duration {
    let claimed = scene.claimed_within(owner_name, 100, limits).await;
    assert_eq!(claimed.leases, [], "held back");
    claimed.recheck_after.expect("a claim that is held back returns when to claim again")
}

async fn ack_all(scene: &Scene, leases: &[Lease]) {
    for lease in leases {
        scene.ack(lease).await;
    }
}

/// The limit holds over two owners and several leases; every settled message makes space for one.
pub async fn no_more_than_the_limit_is_in_flight(case: &Case) {
    let scene = case.queue().await;
    let other = scene.through(&case.open().await);
    scene.publish(20).await;
    let limits = in_flight(5);
    let first = scene.claimed_within("a", 2, limits).await;
    assert_eq!(offsets(&first), [1, 2]);
    let second = other.claimed_within("b", 100, limits).await;
    assert_eq!(offsets(&second), [3, 4, 5], "as many as fit");
    assert!(second.recheck_after.is_some_and(|after| after <= Duration::from_millis(50)), "{second:?}");
    for name in ["a", "b", "c"] {
        let after = held_back(&scene, name, limits).await;
        assert!(after <= Duration::from_millis(50), "space may appear without a publish: {after:?}");
    }
    scene.settle_each(&second.leases[0], vec![((4, 4), Outcome::Ack)]).await.unwrap();
    assert_eq!(offsets(&scene.claimed_within("c", 100, limits).await), [6], "one was done in part");
    scene.ack(&first.leases[0]).await;
    assert_eq!(offsets(&other.claimed_within("c", 1, limits).await), [7]);
    assert_eq!(offsets(&scene.claimed_within("c", 100, limits).await), [8]);
    held_back(&other, "a", limits).await;
    assert_eq!(offsets(&scene.claimed("unlimited", 2).await), [9, 10], "unlimited without limits");
}

/// A redelivered message counts too; a message that waits for its retry does not.
pub async fn what_is_in_flight_counts_redeliveries(case: &Case) {
    let settings = TopicSettings { lease: Duration::from_secs(10), ..TopicSettings::default() };
    let scene = case.scene(settings).await;
    scene.publish(10).await;
    let limits = in_flight(2);
    let failing = scene.claimed_within("a", 2, limits).await.leases.remove(0);
    scene.settle_each(&failing, vec![((1, 2), retry(1_000, "not yet"))]).await.unwrap();
    let working = scene.claimed_within("a", 10, limits).await;
    assert_eq!(offsets(&working), [3, 4]);
    case.advance_ms(1_000);
    held_back(&scene, "b", limits).await;
    scene.settle_each(&working.leases[0], vec![((3, 3), Outcome::Ack)]).await.unwrap();
    let again = scene.claimed_within("b", 10, limits).await;
    assert_eq!((offsets(&again), again.leases[0].attempt), (vec![1], 2), "due messages come first");
    held_back(&scene, "b", limits).await;
    scene.settle_each(&again.leases[0], vec![((1, 1), Outcome::Release)]).await.unwrap();
    assert_eq!(scene.claimed_within("b", 10, limits).await.leases.len(), 1, "a release makes space");
    held_back(&scene, "c", limits).await;
    // A lease past its deadline no longer counts.
    case.advance_ms(10_000);
    assert_eq!(scene.claimed_within("c", 1, limits).await.leases.len(), 1);
}

/// A swept lease makes space at once.
pub async fn what_a_dead_owner_held_is_not_in_flight(case: &Case) {
    let scene = case.queue().await;
    scene.publish(3).await;
    let limits = in_flight(1);
    scene.heartbeat_judging("dies", 1_000).await;
    assert_eq!(offsets(&scene.claimed_within("dies", 10, limits).await), [1]);
    case.advance_ms(1_001);
    held_back(&scene, "lives", limits).await;
    assert_eq!(scene.heartbeat_judging("lives", 1_000).await, 1);
    assert_eq!(offsets(&scene.claimed_within("lives", 10, limits).await), [1]);
    held_back(&scene, "other", limits).await;
}

/// Members of two processes race: they never hold more than the limit, and everything is done in the end.
pub async fn in_flight_holds_among_competing_members(case: &Case) {
    const MESSAGES: i64 = 200;
    const MOST: i64 = 5;
    let scene = case.queue().await;
    let stores = [scene.clone(), scene.through(&case.open().await)];
    scene.publish(usize::try_from(MESSAGES).unwrap()).await;
    let (held, done) = (Arc::new(AtomicI64::new(0)), Arc::new(AtomicI64::new(0)));
    let members = (0..6).map(|n| {
        let (scene, held, done) = (stores[n % 2].clone(), Arc::clone(&held), Arc::clone(&done));
        tokio::spawn(async move {
            let until = Instant::now() + DEADLINE;
            while done.load(SeqCst) < MESSAGES {
                assert!(Instant::now() < until, "only {} were delivered", done.load(SeqCst));
                let claimed = scene.claimed_within(&format!("member-{n}"), 3, in_flight(5)).await;
                if claimed.leases.is_empty() {
                    pause().await;
                }
                for lease in claimed.leases {
                    let span = lease.range.span().cast_signed();
                    let now = held.fetch_add(span, SeqCst) + span;
                    assert!(now <= MOST, "{now} in flight");
                    tokio::task::yield_now().await;
                    // Counted down before the ack: the count is never higher than what is leased.
                    held.fetch_sub(span, SeqCst);
                    scene.ack(&lease).await;
                    done.fetch_add(span, SeqCst);
                }
            }
        })
    });
    for member in members.collect::<Vec<_>>() {
        member.await.expect("no member held too much");
    }
    assert_eq!((done.load(SeqCst), scene.status().await.floor.0), (MESSAGES, MESSAGES));
}

/// With nothing left to hand out no early recheck is requested: an idle group costs nothing.
pub async fn a_group_at_its_limit_and_done_is_not_polled(case: &Case) {
    let scene = case.queue().await;
    scene.publish(2).await;
    let lease = Duration::from_secs(300);
    for limits in [in_flight(2), rate(1.0, 2)] {
        let claimed = scene.claimed_within("a", 10, limits).await;
        assert_eq!(claimed.leases.len(), 1);
        assert!(claimed.recheck_after.is_none_or(|after| after >= lease), "{claimed:?}");
        let nothing = scene.claimed_within("b", 10, limits).await;
        assert_eq!(nothing.leases, vec![]);
        // An engine need not search for a time that far away.
        assert!(nothing.recheck_after.is_none_or(|after| after == lease), "{:?}", nothing.recheck_after);
        ack_all(&scene, &claimed.leases).await;
        scene.publish(2).await;
    }
}

/// A lease of an ordered subscription counts the share of its lane: its span divided by the lanes, rounded up.
pub async fn in_flight_counts_a_lanes_share(case: &Case) {
    let scene = case.scene(ordered(4)).await;
    let messages: Vec<_> = (0..40).map(|n| NewMessage::new(n.to_string()).key(format!("k{n}"))).collect();
    scene.publish_all(&messages).await;
    let limits = in_flight(5);
    let first = scene.claimed_within("a", 3, limits).await.leases.remove(0);
    assert_eq!(first.range.span(), 12);
    let second = scene.claimed_within("b", 100, limits).await.leases.remove(0);
    assert_eq!((second.range.span(), second.lane == first.lane), (8, false), "space for two is left");
    held_back(&scene, "c", limits).await;
    // Nine offsets left of twelve are still three messages; eight are two.
    scene.settle_each(&first, vec![((1, 3), Outcome::Ack)]).await.unwrap();
    held_back(&scene, "c", limits).await;
    scene.settle_each(&first, vec![((6, 6), Outcome::Ack)]).await.unwrap();
    let third = scene.claimed_within("c", 100, limits).await.leases.remove(0);
    assert_eq!(third.range.span(), 4);
    held_back(&scene, "d", limits).await;
    scene.ack(&second).await;
    assert_eq!(scene.claimed_within("d", 1, limits).await.leases[0].range.span(), 4);
}

/// A message that is redelivered alone counts as one, however many lanes there are.
pub async fn in_flight_counts_each_key_of_a_lane(case: &Case) {
    let scene = case.scene(ordered(2)).await;
    let messages: Vec<_> = (0..40).map(|n| NewMessage::new(n.to_string()).key(format!("k{n}"))).collect();
    scene.publish_all(&messages).await;
    let mut consumer = LaneConsumer::new("fails");
    while consumer.claim(&scene, 100).await {
        while consumer.handle_next(2, |_, _| Handled::Failed(1_000)) {}
        assert!(consumer.settle(&scene).await);
    }
    assert_eq!(scene.status().await.waiting, 40);
    case.advance_ms(1_000);
    let limits = in_flight(3);
    let claimed = scene.claimed_within("a", 100, limits).await;
    assert_eq!(offsets(&claimed).len(), 3, "{claimed:?}");
    held_back(&scene, "b", limits).await;
    ack_all(&scene, &claimed.leases[..2]).await;
    let claimed = scene.claimed_within("b", 100, limits).await;
    assert_eq!(offsets(&claimed).len(), 2, "the other lane continues: {claimed:?}");
}

/// The burst is handed out at once, and then one message per interval, to the millisecond.
pub async fn a_burst_is_handed_out_then_the_rate_applies(case: &Case) {
    let scene = case.scene(for_ever()).await;
    scene.publish(100).await;
    let limits = rate(10.0, 5);
    let burst = scene.claimed_within("a", 100, limits).await;
    assert_eq!(offsets(&burst), [1, 2, 3, 4, 5]);
    assert_eq!(burst.recheck_after, Some(Duration::from_millis(100)), "when the next message is allowed");
    assert_eq!(held_back(&scene, "a", limits).await, Duration::from_millis(100));
    case.advance_ms(99);
    assert_eq!(held_back(&scene, "b", limits).await, Duration::from_millis(1));
    case.advance_ms(1);
    assert_eq!(offsets(&scene.claimed_within("b", 100, limits).await), [6]);
    case.advance_ms(250);
    assert_eq!(offsets(&scene.claimed_within("a", 100, limits).await), [7, 8]);
    assert_eq!(held_back(&scene, "a", limits).await, Duration::from_millis(50), "the fraction is kept");
    // A hundred uneven steps allow what the time allows, no more and no less.
    let mut got = 0;
    for step in 1..=100 {
        case.advance_ms(37 + step % 5);
        got += offsets(&scene.claimed_within("a", 100, limits).await).len();
    }
    assert_eq!(got, (50 + 3_900) / 100);
    case.advance(Duration::from_secs(3_600));
    assert_eq!(scene.claimed_within("a", 2, limits).await.leases[0].range.span(), 2);
    let rest = scene.claimed_within("a", 100, limits).await;
    assert_eq!(offsets(&rest).len(), 3, "a pause saves up one burst at most");
}

/// A redelivery is a hand-out and uses up the rate.
pub async fn redeliveries_use_up_the_rate(case: &Case) {
    let scene = case.queue().await;
    scene.publish(10).await;
    let limits = rate(1.0, 3);
    let first = scene.claimed_within("a", 2, limits).await.leases.remove(0);
    scene.settle_each(&first, vec![((1, 2), Outcome::Release)]).await.unwrap();
    assert_eq!(offsets(&scene.claimed_within("a", 10, limits).await), [1], "the third of three");
    assert_eq!(held_back(&scene, "b", limits).await, Duration::from_secs(1));
    case.advance_ms(2_000);
    assert_eq!(offsets(&scene.claimed_within("b", 10, limits).await), [2, 3]);
}

/// Members of two processes share one bucket.
pub async fn the_rate_holds_among_competing_members(case: &Case) {
    let scene = case.scene(for_ever()).await;
    let stores = [scene.clone(), scene.through(&case.open().await)];
    scene.publish(500).await;
    for (passed_ms, expected) in [(0, 20), (1_500, 15), (60_000, 20)] {
        case.advance_ms(passed_ms);
        let members = (0..6).map(|n| {
            let scene = stores[n % 2].clone();
            tokio::spawn(async move {
                let mut got = 0;
                for _ in 0..15 {
                    let name = format!("member-{n}");
                    got += offsets(&scene.claimed_within(&name, 3, rate(10.0, 20)).await).len();
                }
                got
            })
        });
        let mut got = 0;
        for member in members.collect::<Vec<_>>() {
            got += member.await.expect("the member claims");
        }
        assert_eq!(got, expected, "after {passed_ms} ms");
    }
}

/// The bucket is stored in the database.
pub async fn the_rate_survives_a_restart(case: &Case) {
    let scene = case.queue().await;
    scene.publish(10).await;
    let limits = rate(1.0, 3);
    scene.claimed_within("a", 10, limits).await;
    scene.store.close().await.unwrap();
    let scene = scene.through(&case.open().await);
    assert_eq!(held_back(&scene, "a", limits).await, Duration::from_secs(1));
}

/// Database clocks do jump.
pub async fn a_clock_that_jumps_back_neither_floods_nor_stops_the_rate(case: &Case) {
    let scene = case.scene(for_ever()).await;
    scene.publish(100).await;
    let limits = rate(10.0, 3);
    assert_eq!(offsets(&scene.claimed_within("a", 10, limits).await).len(), 3);
    case.turn_back(Duration::from_secs(3_600));
    assert_eq!(held_back(&scene, "a", limits).await, Duration::from_millis(100), "counted from the new time");
    case.advance_ms(100);
    assert_eq!(offsets(&scene.claimed_within("a", 10, limits).await).len(), 1);
    held_back(&scene, "a", limits).await;
    case.advance(Duration::from_secs(3_600));
    assert_eq!(offsets(&scene.claimed_within("a", 10, limits).await).len(), 3, "no more than a burst");
}

/// As in flight: the span divided by the lanes, rounded up.
pub async fn the_rate_counts_a_lanes_share(case: &Case) {
    let scene = case.scene(ordered(4)).await;
    let messages: Vec<_> = (0..80).map(|n| NewMessage::new(n.to_string()).key(format!("k{n}"))).collect();
    scene.publish_all(&messages).await;
    let limits = rate(1.0, 5);
    let first = scene.claimed_within("a", 100, limits).await.leases.remove(0);
    assert_eq!(first.range.span(), 20);
    assert_eq!(held_back(&scene, "b", limits).await, Duration::from_secs(1));
    case.advance_ms(2_000);
    let second = scene.claimed_within("b", 100, limits).await.leases.remove(0);
    assert_eq!(second.range.span(), 8);
}

/// The tighter limit decides. A claim that both hold back is to be repeated when both allow it.
pub async fn both_limits_hold_together(case: &Case) {
    let scene = case.queue().await;
    scene.publish(20).await;
    let limits = GroupLimits { in_flight_max: Some(3), ..rate(2.0, 4) };
    let first = scene.claimed_within("a", 10, limits).await;
    assert_eq!(offsets(&first), [1, 2, 3]);
    ack_all(&scene, &first.leases).await;
    let second = scene.claimed_within("a", 10, limits).await;
    assert_eq!(offsets(&second), [4], "the last of the burst");
    assert_eq!(
        held_back(&scene, "b", limits).await,
        Duration::from_millis(500),
        "there is space, but no token"
    );
    case.advance_ms(1_500);
    let third = scene.claimed_within("b", 10, limits).await;
    assert_eq!(offsets(&third), [5, 6]);
    assert!(held_back(&scene, "b", limits).await <= Duration::from_millis(50), "a token, but no space");
}

/// Another group of the topic, or another topic in the same claim, has its own limits.
pub async fn limits_are_a_groups_own(case: &Case) {
    let scene = case.pub_sub().await;
    let other = scene.subscribe("other", crate::Start::Beginning).await;
    scene.publish(10).await;
    let limits = GroupLimits { in_flight_max: Some(4), ..rate(1.0, 4) };
    let wants = vec![
        Want { limits, ..scene.want(10) },
        Want { limits: in_flight(2), ..other.want(10) },
        Want { limits, ..scene.want(10) },
    ];
    let claimed = scene.store.claim(&ClaimRequest { owner: owner("a"), wants }).await.unwrap();
    let of = |scene: &Scene| {
        let id = scene.subscription.subscription_id;
        let leases: Vec<_> =
            claimed.leases.iter().filter(|lease| lease.subscription_id == id).cloned().collect();
        spanned(&leases)
    };
    assert_eq!((of(&scene), of(&other)), (vec![1, 2, 3, 4], vec![1, 2]));
    assert!(claimed.recheck_after.is_some_and(|after| after <= Duration::from_secs(1)), "{claimed:?}");
    let third = scene.subscribe("third", crate::Start::Beginning).await;
    assert_eq!(offsets(&third.claimed_within("a", 10, limits).await), [1, 2, 3, 4]);
    assert_eq!(offsets(&other.claimed("a", 3).await), [3, 4, 5]);
}

/// A refusal names the field and its rule; the widest limits work.
pub async fn limits_outside_their_rules_are_refused(case: &Case) {
    let scene = case.scene(for_ever()).await;
    scene.publish(3).await;
    for (limits, field, rule) in [
        (in_flight(0), "in_flight_max", "at least 1"),
        (rate(0.0, 1), "per_second", "above zero"),
        (rate(-1.0, 1), "per_second", "above zero"),
        (rate(f64::NAN, 1), "per_second", "finite"),
        (rate(f64::INFINITY, 1), "per_second", "finite"),
        (rate(1.0, 0), "burst", "at least 1"),
    ] {
        let wants = vec![Want { limits, ..scene.want(1) }];
        let answer = scene.store.claim(&ClaimRequest { owner: owner("a"), wants }).await;
        let error = failed(answer, ErrorKind::InvalidInput);
        assert!(error.to_string().contains(field) && error.to_string().contains(rule), "{error}");
    }
    let widest = GroupLimits { in_flight_max: Some(u32::MAX), ..rate(f64::MAX, 1) };
    assert_eq!(offsets(&scene.claimed_within("a", 10, widest).await), [1]);
    let slowest = rate(f64::MIN_POSITIVE, u32::MAX);
    case.advance(Duration::from_secs(3_600));
    assert!(held_back(&scene, "a", slowest).await > Duration::from_secs(3_600));
    assert_eq!(offsets(&scene.claimed_within("a", 10, rate(f64::MAX, u32::MAX)).await), [2, 3]);
}
