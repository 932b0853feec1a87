//! Where a group starts while others publish, and after messages were removed.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::case::{Case, Scene, offsets_of};
use super::life::{MODES, lively};
use super::rng::{Rng, seeds};
use crate::message::{NewMessage, Offset};
use crate::subscription::Start;
use crate::topic::TopicSettings;

/// Seeds that once found a bug.
const REGRESSIONS: &[u64] = &[];
const SEEDS: u64 = 20;

/// When something began and ended, on a clock that all tasks of a run share.
#[derive(Clone, Copy, Debug)]
struct Span {
    began: u64,
    ended: u64,
}

/// A batch that a publisher got acknowledged, and when.
#[derive(Debug)]
struct Batch {
    offsets: Vec<i64>,
    span: Span,
}

/// Publishers race a group that subscribes at now: what was acknowledged before the call is not delivered, what began
/// after its return is, each batch whole or not at all, and each message once.
pub async fn now_is_exact_whatever_races(case: &Case) {
    for seed in seeds(REGRESSIONS, SEEDS) {
        println!("now_is_exact seed {seed} (HEADWATER_SEED={seed} runs it alone)");
        race(case, seed).await;
    }
}

async fn race(case: &Case, seed: u64) {
    let mut rng = Rng::new(seed);
    let tracking = MODES[rng.index(2)];
    let settings = TopicSettings { tracking, ..lively() };
    let scene = Scene::new(case.open().await, &format!("race-{seed}"), settings).await;
    let elsewhere = scene.through(&case.open().await);
    let clock = Arc::new(AtomicU64::new(0));
    let early = scene.publish(rng.index(4)).await.len();
    let publishers: Vec<_> = (0..rng.between(1, 4))
        .map(|n| {
            let scene = if n % 2 == 0 { scene.clone() } else { elsewhere.clone() };
            let (clock, rng) = (Arc::clone(&clock), Rng::new(rng.number()));
            tokio::spawn(publish_some(scene, clock, rng))
        })
        .collect();
    for _ in 0..rng.below(40) {
        tokio::task::yield_now().await;
    }
    if rng.percent(50) {
        tokio::time::sleep(Duration::from_micros(rng.below(3_000))).await;
    }
    let began = clock.fetch_add(1, Ordering::SeqCst);
    let group = scene.subscribe("now", Start::Now).await;
    let call = Span { began, ended: clock.fetch_add(1, Ordering::SeqCst) };
    let mut batches = Vec::new();
    for publisher in publishers {
        batches.extend(publisher.await.unwrap());
    }
    let total = batches.iter().map(|batch| batch.offsets.len()).sum::<usize>();
    scene.drain_until("all", early + total).await;
    let got = offsets_of(&group.drain("now").await);
    let delivered: BTreeSet<_> = got.iter().copied().collect();
    assert_eq!(delivered.len(), got.len(), "seed {seed}: delivered twice: {got:?}");
    for batch in &batches {
        let inside = batch.offsets.iter().filter(|offset| delivered.contains(offset)).count();
        let whole = inside == batch.offsets.len();
        assert!(inside == 0 || whole, "seed {seed}: {batch:?} was delivered in part: {got:?}");
        assert!(batch.span.ended > call.began || inside == 0, "seed {seed}: {batch:?} was before {call:?}");
        assert!(batch.span.began < call.ended || whole, "seed {seed}: {batch:?} was after {call:?}");
    }
    scene.store.close().await.expect("closes");
    elsewhere.store.close().await.expect("closes");
}

async fn publish_some(scene: Scene, clock: Arc<AtomicU64>, mut rng: Rng) -> Vec<Batch> {
    let mut batches = Vec::new();
    for _ in 0..rng.between(3, 15) {
        let count = rng.index(4) + 1;
        let began = clock.fetch_add(1, Ordering::SeqCst);
        let offsets = scene.publish(count).await;
        let ended = clock.fetch_add(1, Ordering::SeqCst);
        batches.push(Batch { offsets, span: Span { began, ended } });
        if rng.percent(30) {
            tokio::task::yield_now().await;
        }
    }
    batches
}

/// A transaction of the caller that commits after the call returned is delivered, whatever offset it had taken.
pub async fn now_is_exact_for_the_callers_transactions(case: &Case) {
    let scene = case.scene(lively()).await;
    for round in 0..6 {
        let message = [NewMessage::new(round.to_string())];
        case.harness().publish_in_transaction(&scene.topic, &message, true).await.unwrap();
        let group = scene.subscribe(&format!("now-{round}"), Start::Now).await;
        group.claim_nothing("a", 10).await;
        case.harness().publish_in_transaction(&scene.topic, &message, false).await.unwrap();
        case.harness().publish_in_transaction(&scene.topic, &message, true).await.unwrap();
        assert_eq!(group.drain_until("a", 1).await.len(), 1, "round {round}");
        group.claim_nothing("a", 10).await;
    }
}

/// Every start works on a topic whose first messages were removed, and on one without any message left.
pub async fn every_start_works_after_a_cleanup(case: &Case) {
    for tracking in MODES {
        let began = case.now();
        let settings = TopicSettings { tracking, ..lively() };
        let scene = Scene::new(case.open().await, tracking.as_str(), settings).await;
        for n in 1..=8 {
            scene.publish_all(&[NewMessage::new(n.to_string())]).await;
            case.advance_ms(1_000);
        }
        scene.ack_next(4).await;
        assert_eq!(scene.clean_all().await.removed, 4);
        let at = |ms| Start::Timestamp(began + Duration::from_millis(ms));
        let starts = [
            ("beginning", Start::Beginning, vec![5, 6, 7, 8]),
            ("now", Start::Now, vec![]),
            ("below", Start::Offset(Offset(2)), vec![5, 6, 7, 8]),
            ("offset", Start::Offset(Offset(7)), vec![7, 8]),
            ("next", Start::Offset(Offset(9)), vec![]),
            ("time", at(5_500), vec![7, 8]),
            ("time removed", at(1_000), vec![5, 6, 7, 8]),
            ("time to come", at(60_000), vec![]),
            ("bounded", Start::BeginningBounded(3), vec![6, 7, 8]),
            ("bounded wide", Start::BeginningBounded(7), vec![5, 6, 7, 8]),
            ("bounded to nothing", Start::BeginningBounded(0), vec![]),
        ];
        for (name, start, expected) in &starts {
            let reader = scene.subscribe(name, *start).await;
            assert_eq!(&reader.reads().await, expected, "{name}, {tracking:?}");
            assert_eq!(reader.status().await.missed.count, 0, "{name}");
        }
        scene.reads().await;
        assert_eq!(scene.clean_all().await.removed, 4);
        for (name, start, _) in &starts {
            let reader = scene.subscribe(&format!("{name} again"), *start).await;
            assert_eq!(reader.reads().await, [] as [i64; 0], "{name} on an empty topic");
        }
        assert_eq!(scene.publish(1).await, [9]);
        for (name, _, _) in starts {
            let reader = scene.subscribe(name, Start::Beginning).await;
            assert_eq!(reader.reads().await, [9], "{name} continues");
        }
    }
}
