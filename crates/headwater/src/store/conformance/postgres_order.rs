//! Commits that land out of offset order: nothing is skipped, nothing delivered twice, no reader waits for long.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::case::{Case, DEADLINE, Scene, pause};
use super::lane_consumer::{Handled, LaneConsumer};
use super::rng::{Rng, seeds};
use super::sessions::{Session, gaps_close, nothing_comes, numbers, numbers_until, scene_with_patience};
use crate::limits::SAFETY_POLL;
use crate::subscription::Start;
use crate::topic::{Ordering, TopicSettings};

const PATIENCE: Duration = Duration::from_millis(50);
/// What a stalling test machine may add to the patience.
const MARGIN: Duration = Duration::from_secs(10);
/// A patience that no case waits out.
const LONG: Duration = Duration::from_secs(600);

/// Seeds that once found a bug.
const REGRESSIONS: &[u64] = &[];

/// While one transaction stays open, messages of others are delivered; its own are delivered once when it commits.
pub async fn an_open_transaction_does_not_stall_others(case: &Case) {
    let scene = scene_with_patience(case, PATIENCE).await;
    let (open, other) = (Session::open(case).await, Session::open(case).await);
    open.begin().await;
    let missing = open.publish(1).await;
    assert!(other.publish(2).await > missing);
    other.publish(3).await;
    let (got, took) = numbers_until(&scene, 2).await;
    assert_eq!(got, [2, 3]);
    assert!(took < PATIENCE + MARGIN, "others waited {took:?}");
    assert_eq!(scene.topic_status().await.gaps, 1);
    open.publish(4).await;
    nothing_comes(&scene, 2 * PATIENCE).await;
    open.commit().await;
    assert_eq!(numbers_until(&scene, 2).await.0, [1, 4]);
    nothing_comes(&scene, 2 * PATIENCE).await;
    gaps_close(&scene).await;
    let status = scene.status().await;
    assert_eq!((status.leased, status.waiting, status.floor.0), (0, 0, 4));
}

/// The head waits for a commit in progress, so that messages are delivered in the order of their offsets.
pub async fn within_patience_the_order_is_kept(case: &Case) {
    let scene = scene_with_patience(case, LONG).await;
    let (open, other) = (Session::open(case).await, Session::open(case).await);
    open.begin().await;
    open.publish(1).await;
    other.publish(2).await;
    let claimed = scene.claimed("reader", 10).await;
    assert_eq!(claimed.leases, []);
    assert!(claimed.recheck_after.is_some(), "a commit is in progress: claim again soon");
    nothing_comes(&scene, 2 * PATIENCE).await;
    open.commit().await;
    assert_eq!(numbers_until(&scene, 2).await.0, [1, 2]);
    assert_eq!(scene.topic_status().await.gaps, 0);
}

/// A transaction that rolled back leaves offsets that no reader waits for, whatever the patience.
pub async fn a_rolled_back_transaction_leaves_no_gap(case: &Case) {
    let scene = scene_with_patience(case, LONG).await;
    let (aborted, other) = (Session::open(case).await, Session::open(case).await);
    aborted.begin().await;
    aborted.publish(1).await;
    aborted.publish(2).await;
    other.publish(3).await;
    aborted.rollback().await;
    assert_eq!(numbers_until(&scene, 1).await.0, [3]);
    aborted.begin().await;
    aborted.publish(4).await;
    aborted.rollback().await;
    other.publish(5).await;
    assert_eq!(numbers_until(&scene, 1).await.0, [5]);
    gaps_close(&scene).await;

    // The same when the head had already stepped over it.
    let other_topic = scene_of(&scene, "stepped", PATIENCE).await;
    publish_to(&aborted, "stepped", "BEGIN").await;
    publish_to(&other, "stepped", "").await;
    assert_eq!(other_topic.drain_until("reader", 1).await.len(), 1);
    assert_eq!(other_topic.topic_status().await.gaps, 1);
    aborted.rollback().await;
    gaps_close(&other_topic).await;
    assert_eq!(other_topic.drain("reader").await, []);
}

async fn scene_of(scene: &Scene, name: &str, patience: Duration) -> Scene {
    let settings = TopicSettings { gap_patience: patience, ..TopicSettings::pub_sub() };
    Scene::new(scene.store.clone(), name, settings).await
}

/// Publishes a message to a topic other than `orders`, after another statement.
async fn publish_to(session: &Session, topic: &str, first: &str) {
    if !first.is_empty() {
        session.run(first).await;
    }
    session.publish_named(topic).await;
}

/// A savepoint that rolled back rolls back only its own messages.
pub async fn a_rolled_back_savepoint_leaves_no_gap(case: &Case) {
    let scene = scene_with_patience(case, LONG).await;
    let session = Session::open(case).await;
    session.begin().await;
    session.publish(1).await;
    session.run("SAVEPOINT a").await;
    session.publish(2).await;
    session.run("SAVEPOINT b").await;
    session.publish(3).await;
    session.run("ROLLBACK TO b").await;
    session.publish(4).await;
    session.run("RELEASE a").await;
    session.run("SAVEPOINT c").await;
    session.publish(5).await;
    session.run("ROLLBACK TO c").await;
    session.commit().await;
    session.publish(6).await;
    assert_eq!(numbers_until(&scene, 4).await.0, [1, 2, 4, 6]);
    nothing_comes(&scene, PATIENCE).await;
    gaps_close(&scene).await;
}

/// A savepoint is rolled back, then a message is published while others overtake: the lock that marks a publisher
/// must hold.
pub async fn a_savepoint_does_not_hide_an_open_publisher(case: &Case) {
    let scene = scene_with_patience(case, PATIENCE).await;
    let (open, other) = (Session::open(case).await, Session::open(case).await);
    open.begin().await;
    open.publish(1).await;
    open.run("SAVEPOINT a").await;
    open.publish(2).await;
    open.run("ROLLBACK TO a").await;
    other.publish(3).await;
    assert_eq!(numbers_until(&scene, 1).await.0, [3]);
    scene.store.advance_heads().await.unwrap();
    nothing_comes(&scene, 2 * PATIENCE).await;
    open.publish(4).await;
    open.commit().await;
    assert_eq!(numbers_until(&scene, 2).await.0, [1, 4]);
    gaps_close(&scene).await;
}

/// A prepared transaction holds no session, and still its messages are delivered when it commits.
pub async fn a_prepared_transaction_is_delivered_when_it_commits(case: &Case) {
    let scene = scene_with_patience(case, PATIENCE).await;
    let (prepared, other) = (Session::open(case).await, Session::open(case).await);
    prepared.begin().await;
    prepared.publish(1).await;
    prepared.publish(2).await;
    prepared.prepare_transaction().await;
    other.publish(3).await;
    let (got, took) = numbers_until(&scene, 1).await;
    assert_eq!(got, [3]);
    assert!(took < PATIENCE + MARGIN, "others waited {took:?}");
    let late_group = scene.subscribe("late", Start::Beginning).await;
    assert_eq!(numbers_until(&late_group, 1).await.0, [3]);
    nothing_comes(&scene, 2 * PATIENCE).await;
    prepared.commit_prepared().await;
    for group in [&scene, &late_group] {
        assert_eq!(numbers_until(group, 2).await.0, [1, 2]);
        nothing_comes(group, PATIENCE).await;
    }
    gaps_close(&scene).await;
}

/// A prepared transaction that rolls back is never seen.
pub async fn a_prepared_transaction_that_rolls_back_is_never_seen(case: &Case) {
    let scene = scene_with_patience(case, PATIENCE).await;
    let (prepared, other) = (Session::open(case).await, Session::open(case).await);
    prepared.begin().await;
    prepared.publish(1).await;
    prepared.prepare_transaction().await;
    other.publish(2).await;
    assert_eq!(numbers_until(&scene, 1).await.0, [2]);
    assert_eq!(scene.topic_status().await.gaps, 1);
    prepared.rollback_prepared().await;
    gaps_close(&scene).await;
    nothing_comes(&scene, PATIENCE).await;
}

/// H takes its id, then G its id and offset g, then H publishes h above g and commits: h's row is from an older
/// transaction than the one that owns the missing g, and g must still be delivered.
pub async fn an_early_transaction_id_with_a_late_publish_skips_nothing(case: &Case) {
    for patience in [Duration::ZERO, PATIENCE, LONG] {
        let name = format!("early-{}", patience.as_millis());
        let store = case.open_with(case.real_time_options()).await.expect("the store opens");
        let settings = TopicSettings { gap_patience: patience, ..TopicSettings::pub_sub() };
        let scene = Scene::new(store, &name, settings).await;
        let (h, g) = (Session::open(case).await, Session::open(case).await);
        h.begin().await;
        h.take_xid().await;
        g.begin().await;
        g.take_xid().await;
        let g_offset = g.publish_named(&name).await;
        let h_offset = h.publish_named(&name).await;
        assert!(h_offset > g_offset);
        h.commit().await;
        let mut got = Vec::new();
        if patience != LONG {
            got.extend(super::case::offsets_of(&scene.drain_until("reader", 1).await));
            assert_eq!(got, [h_offset]);
        }
        // Neither does maintenance close the gap while its transaction is open.
        let until = Instant::now() + 4 * PATIENCE;
        while Instant::now() < until {
            scene.store.advance_heads().await.unwrap();
            nothing_comes(&scene, PATIENCE / 5).await;
        }
        g.commit().await;
        let rest = scene.drain_until("reader", 2 - got.len()).await;
        got.extend(super::case::offsets_of(&rest));
        got.sort_unstable();
        assert_eq!(got, [g_offset, h_offset], "with a patience of {patience:?}");
        gaps_close(&scene).await;
    }
}

/// A long transaction of another program that writes elsewhere stalls no reader, not even at a gap.
pub async fn a_foreign_long_transaction_does_not_stall(case: &Case) {
    let scene = scene_with_patience(case, PATIENCE).await;
    let (foreign, aborted, other) =
        (Session::open(case).await, Session::open(case).await, Session::open(case).await);
    foreign.run("CREATE TEMP TABLE elsewhere (n int)").await;
    foreign.begin().await;
    foreign.run("INSERT INTO elsewhere VALUES (1)").await;
    for round in 0..5 {
        aborted.begin().await;
        aborted.publish(1_000 + round).await;
        aborted.rollback().await;
        other.publish(round).await;
        let (got, took) = numbers_until(&scene, 1).await;
        assert_eq!(got, [round]);
        assert!(took < PATIENCE + MARGIN, "stalled for {took:?}");
    }
    gaps_close(&scene).await;
    foreign.commit().await;
}

/// Three groups at different cursors, and one that only reads afterwards: each gets a late message once.
pub async fn a_late_message_reaches_every_group_once(case: &Case) {
    let ahead = scene_with_patience(case, PATIENCE).await;
    let also_ahead = ahead.subscribe("also-ahead", Start::Beginning).await;
    let behind = ahead.subscribe("behind", Start::Beginning).await;
    let (open, other) = (Session::open(case).await, Session::open(case).await);
    open.begin().await;
    let missing = open.publish(1).await;
    for number in 2..=6 {
        other.publish(number).await;
    }
    assert_eq!(numbers_until(&ahead, 5).await.0, [2, 3, 4, 5, 6]);
    assert_eq!(numbers_until(&also_ahead, 5).await.0, [2, 3, 4, 5, 6]);
    open.commit().await;
    other.publish(7).await;
    let (mut got, _) = numbers_until(&behind, 7).await;
    got.sort_unstable();
    assert_eq!(got, [1, 2, 3, 4, 5, 6, 7]);
    for group in [&ahead, &also_ahead] {
        let until = Instant::now() + DEADLINE;
        let mut leases = Vec::new();
        while leases.iter().map(|lease: &crate::store::Lease| lease.range.span()).sum::<u64>() < 2 {
            assert!(Instant::now() < until, "the late message was never delivered: {leases:?}");
            leases.extend(group.claim("reader", 10).await);
        }
        assert!(leases.iter().all(|lease| lease.attempt == 1 && !lease.suspect), "{leases:?}");
        assert!(leases.iter().any(|lease| lease.range.first.0 == missing), "{leases:?}");
        for lease in &leases {
            group.ack(lease).await;
        }
    }
    for group in [&ahead, &also_ahead, &behind] {
        nothing_comes(group, PATIENCE).await;
        assert_eq!(group.status().await.floor.0, 7);
    }
    gaps_close(&ahead).await;
}

/// A late message of an ordered subscription is delivered in its lane, once.
pub async fn a_late_message_reaches_an_ordered_group(case: &Case) {
    let store = case.open_with(case.real_time_options()).await.expect("the store opens");
    let settings = TopicSettings {
        ordering: Ordering::Key,
        lanes: 3,
        gap_patience: PATIENCE,
        ..TopicSettings::default()
    };
    let scene = Scene::new(store, "orders", settings).await;
    let (open, other) = (Session::open(case).await, Session::open(case).await);
    open.begin().await;
    open.publish(1).await;
    other.publish(2).await;
    let (mut handled, mut committed) = (Vec::new(), false);
    let until = Instant::now() + DEADLINE;
    while handled.len() < 3 {
        assert!(Instant::now() < until, "only {handled:?} were delivered");
        let mut consumer = LaneConsumer::new("reader");
        if !consumer.claim(&scene, 10).await {
            pause().await;
            continue;
        }
        while consumer.handle_next(3, |message, _| {
            handled.extend(numbers(std::slice::from_ref(message)));
            Handled::Done
        }) {}
        assert!(consumer.settle(&scene).await);
        if handled == [2] && !committed {
            committed = true;
            open.publish(3).await;
            open.commit().await;
        }
    }
    assert_eq!(handled, [2, 1, 3]);
    let mut consumer = LaneConsumer::new("reader");
    while consumer.claim(&scene, 10).await {
        assert!(!consumer.handle_next(3, |message, _| panic!("{} was delivered twice", message.offset)));
        consumer.settle(&scene).await;
    }
}

/// A reader that waits as the contract requires gets a late message soon, without polling.
pub async fn a_late_message_is_found_by_a_waiter(case: &Case) {
    let scene = scene_with_patience(case, PATIENCE).await;
    let (open, other) = (Session::open(case).await, Session::open(case).await);
    open.begin().await;
    open.publish(1).await;
    other.publish(2).await;
    assert_eq!(numbers_until(&scene, 1).await.0, [2]);
    let waiter = scene.clone();
    let waiting = tokio::spawn(async move {
        loop {
            let wake = waiter.store.arm(&[waiter.subscription.topic.topic_id]).await.unwrap();
            let claimed = waiter.claimed("reader", 10).await;
            if let Some(lease) = claimed.leases.first() {
                return numbers(&waiter.fetch(lease).await);
            }
            wake.wait(claimed.recheck_after.unwrap_or(SAFETY_POLL).min(SAFETY_POLL)).await;
        }
    });
    tokio::time::sleep(2 * PATIENCE).await;
    let started = Instant::now();
    open.commit().await;
    assert_eq!(waiting.await.unwrap(), [1]);
    assert!(started.elapsed() < MARGIN, "it took {:?}", started.elapsed());
}

/// Random sessions commit, abort, prepare and roll back to savepoints in any order while groups read: every group
/// gets exactly what committed, once.
pub async fn out_of_order_commits_never_skip_nor_double(case: &Case) {
    for seed in seeds(REGRESSIONS, 6) {
        println!("out_of_order seed {seed} (HEADWATER_SEED={seed} runs it alone)");
        let mut rng = Rng::new(seed);
        let patience = Duration::from_millis(rng.between(0, 30));
        let store = case.open_with(case.real_time_options()).await.expect("the store opens");
        let settings = TopicSettings { gap_patience: patience, ..TopicSettings::pub_sub() };
        let scene = Scene::new(store, &format!("soak-{seed}"), settings).await;
        let groups = [
            scene.clone(),
            scene.subscribe("second", Start::Beginning).await,
            scene.subscribe("third", Start::Beginning).await,
        ];
        let mut sessions = Vec::new();
        for _ in 0..6 {
            sessions.push(Writer { session: Session::open(case).await, open: None });
        }
        let mut committed = Vec::new();
        let mut read = vec![BTreeMap::new(); groups.len()];
        for _ in 0..250 {
            let which = rng.index(sessions.len());
            sessions[which].step(scene.topic.as_str(), &mut rng, &mut committed).await;
            if rng.percent(40) {
                let reader = rng.index(groups.len());
                read_some(&groups[reader], &mut read[reader]).await;
            }
        }
        for writer in &mut sessions {
            writer.finish(&mut committed).await;
        }
        committed.sort_unstable();
        for (group, read) in groups.iter().zip(&mut read) {
            let until = Instant::now() + DEADLINE;
            while read.len() < committed.len() {
                let missing: Vec<_> = committed.iter().filter(|offset| !read.contains_key(offset)).collect();
                assert!(Instant::now() < until, "seed {seed}: {missing:?} were never delivered");
                read_some(group, read).await;
                pause().await;
            }
            read_some(group, read).await;
            let twice: Vec<_> = read.iter().filter(|(_, times)| **times != 1).collect();
            assert!(twice.is_empty(), "seed {seed}: delivered more than once: {twice:?}");
            assert!(read.keys().eq(committed.iter()), "seed {seed}: exactly what committed was delivered");
        }
        gaps_close(&scene).await;
    }
}

async fn read_some(group: &Scene, read: &mut BTreeMap<i64, u32>) {
    for message in group.drain("reader").await {
        *read.entry(message.offset.0).or_default() += 1;
    }
}

/// A session that may have a transaction open.
struct Writer {
    session: Session,
    /// The offsets of the open transaction that still count, those after the savepoint, and whether it is prepared.
    open: Option<(Vec<i64>, Option<Vec<i64>>, bool)>,
}

impl Writer {
    async fn step(&mut self, topic: &str, rng: &mut Rng, committed: &mut Vec<i64>) {
        let Some((kept, savepoint, prepared)) = &mut self.open else {
            self.session.begin().await;
            if rng.percent(30) {
                self.session.take_xid().await;
            }
            self.open = Some((Vec::new(), None, false));
            return;
        };
        if *prepared {
            return self.finish_as(rng.percent(60), committed).await;
        }
        match rng.below(10) {
            0..5 => {
                let offset = self.session.publish_named(topic).await;
                savepoint.as_mut().unwrap_or(kept).push(offset);
            }
            5 if savepoint.is_none() => {
                self.session.run("SAVEPOINT s").await;
                *savepoint = Some(Vec::new());
            }
            6 if savepoint.is_some() => {
                self.session.run("ROLLBACK TO s; RELEASE s").await;
                *savepoint = None;
            }
            7 => {
                self.session.prepare_transaction().await;
                *prepared = true;
            }
            _ => self.finish_as(rng.percent(75), committed).await,
        }
    }

    async fn finish_as(&mut self, commit: bool, committed: &mut Vec<i64>) {
        let Some((kept, savepoint, prepared)) = self.open.take() else { return };
        match (commit, prepared) {
            (true, false) => self.session.commit().await,
            (true, true) => self.session.commit_prepared().await,
            (false, false) => self.session.rollback().await,
            (false, true) => self.session.rollback_prepared().await,
        }
        if commit {
            committed.extend(kept.into_iter().chain(savepoint.into_iter().flatten()));
        }
    }

    async fn finish(&mut self, committed: &mut Vec<i64>) {
        self.finish_as(true, committed).await;
    }
}
