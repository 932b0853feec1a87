//! Group states and retention while transactions are open, and a topic's own storage: PostgreSQL only.

use std::time::{Duration, Instant};

use super::case::{Case, DEADLINE, Scene, group, offsets_of, owner, pause};
use super::life::{HOUR, INTERVAL, TIMEOUT, groups_of, lively};
use super::sessions::{Session, gaps_close, nothing_comes, numbers, numbers_until};
use crate::store::Signal;
use crate::subscription::{MissedMessages, Start};
use crate::topic::{Partition, Storage, TopicSettings, Tracking};

const PATIENCE: Duration = Duration::from_millis(50);
/// Extra time for a stalling test machine; what waits for a lock that stays held waits for longer, until the statement's time-out.
const MARGIN: Duration = Duration::from_secs(20);

/// A topic in real time that keeps nothing longer than it must.
async fn scene_of(case: &Case, tracking: Tracking) -> Scene {
    let store = case.open_with(case.real_time_options()).await.expect("the store opens");
    let settings = TopicSettings { tracking, gap_patience: PATIENCE, ..lively() };
    Scene::new(store, "orders", settings).await
}

/// Cleans repeatedly while a publisher holds its transaction open below what was already read: its messages are never
/// taken for removed ones, and are delivered when it commits.
async fn late_rows_survive(case: &Case, tracking: Tracking) {
    let scene = scene_of(case, tracking).await;
    let second = scene.subscribe("second", Start::Beginning).await;
    let (open, other) = (Session::open(case).await, Session::open(case).await);
    open.begin().await;
    let late = open.publish(1).await;
    for number in 2..=5 {
        other.publish(number).await;
    }
    for one in [&scene, &second] {
        assert_eq!(numbers_until(one, 4).await.0, [2, 3, 4, 5]);
    }
    assert_eq!(scene.topic_status().await.gaps, 1);
    scene.clean_in_steps_of(2).await;
    assert!(scene.topic_status().await.first.0 <= late, "never past a gap that is open");
    scene.store.detect_dead().await.unwrap();
    open.publish(6).await;
    open.commit().await;
    scene.clean_in_steps_of(2).await;
    for one in [&scene, &second] {
        let (mut got, _) = numbers_until(one, 2).await;
        got.sort_unstable();
        assert_eq!(got, [1, 6], "{tracking:?}");
        assert_eq!(one.status().await.missed, MissedMessages::default());
    }
    gaps_close(&scene).await;
    scene.clean_all().await;
    assert_eq!(scene.stored().await, [] as [i64; 0]);
}

/// In offset watermark.
pub async fn a_late_message_survives_cleanup(case: &Case) {
    late_rows_survive(case, Tracking::OffsetWatermark).await;
}

/// In reference counting, where completed messages are removed from the middle; a late message gets its record too.
pub async fn a_late_message_survives_cleanup_in_reference_counting(case: &Case) {
    late_rows_survive(case, Tracking::ReferenceCounting).await;
}

/// A counted topic whose first message is in an open transaction, with its offset, and whose second is committed.
async fn counted_beside_open(case: &Case) -> (Scene, Session, i64) {
    let store = case.open_with(case.real_time_options()).await.expect("the store opens");
    let settings = TopicSettings {
        tracking: Tracking::ReferenceCounting,
        gap_patience: PATIENCE,
        message_retention: Some(HOUR),
        ..lively()
    };
    let scene = Scene::new(store, "orders", settings).await;
    let (open, other) = (Session::open(case).await, Session::open(case).await);
    open.begin().await;
    let late = open.publish(1).await;
    other.publish(2).await;
    (scene, open, late)
}

/// A message that commits after tracking has passed its offset gets a record, for the groups that count then.
pub async fn a_late_message_gets_its_record(case: &Case) {
    let (scene, open, late) = counted_beside_open(case).await;
    assert_eq!(numbers_until(&scene, 1).await.0, [2]);
    scene.track_all().await;
    assert_eq!(scene.records().await.len(), 1, "no message exists at the gap yet");
    open.commit().await;
    assert_eq!(numbers_until(&scene, 1).await.0, [1]);
    gaps_close(&scene).await;
    scene.track_all().await;
    let record = scene.record(late).await;
    assert_eq!(groups_of(&record), (vec!["workers"], vec!["workers"], true));
}

/// A group that starts at now gets a late message below its start, and has done it before tracking reaches its record.
pub async fn a_late_message_below_the_start_is_completed(case: &Case) {
    let (scene, open, late) = counted_beside_open(case).await;
    let new = scene.subscribe("new", Start::Now).await;
    open.commit().await;
    assert_eq!(numbers_until(&new, 1).await.0, [1]);
    assert_eq!(scene.records().await.len(), 2);
    scene.track_all().await;
    let both = ["new", "workers"];
    assert_eq!(groups_of(&scene.record(late).await), (both.to_vec(), vec!["new"], false));
    assert_eq!(numbers_until(&scene, 2).await.0.len(), 2);
    scene.track_all().await;
    assert_eq!(groups_of(&scene.record(late).await), (both.to_vec(), both.to_vec(), true));
}

/// A group dies, is cancelled or comes back while publishers hold transactions open: what commits later is for the
/// groups that count, and a group that came back gets it too.
pub async fn a_group_that_dies_under_open_transactions_misses_nothing(case: &Case) {
    for tracking in [Tracking::OffsetWatermark, Tracking::ReferenceCounting] {
        let scene = Scene::new(
            case.open().await,
            tracking.as_str(),
            TopicSettings { tracking, message_retention: None, gap_patience: Duration::ZERO, ..lively() },
        )
        .await;
        let dies = scene.subscribe("dies", Start::Beginning).await;
        let name = scene.topic.as_str();
        let (open, other) = (Session::open(case).await, Session::open(case).await);
        open.begin().await;
        open.publish_number(name, 1).await;
        other.publish_number(name, 2).await;
        scene.drain_until("reader", 1).await;
        dies.let_die(case).await;
        scene.track_all().await;
        open.publish_number(name, 3).await;
        open.commit().await;
        scene.drain_until("reader", 2).await;
        assert!(matches!(dies.heartbeat("a").await, Signal::Resurrected(_)));
        let mut got = numbers(&dies.drain_until("reader", 3).await);
        got.sort_unstable();
        assert_eq!(got, [1, 2, 3], "{tracking:?}");
        gaps_close(&scene).await;
        dies.cancel().await;
    }
}

/// A group subscribes at now while transactions are open and cleanup runs: what commits afterwards is delivered,
/// once.
pub async fn now_is_exact_among_cleanups_and_open_transactions(case: &Case) {
    let scene = scene_of(case, Tracking::OffsetWatermark).await;
    for round in 0..8_i64 {
        let (open, other) = (Session::open(case).await, Session::open(case).await);
        other.publish(round * 10).await;
        open.begin().await;
        open.publish(round * 10 + 1).await;
        other.publish(round * 10 + 2).await;
        if round % 2 == 0 {
            scene.drain_until("reader", 2).await;
        }
        let name = format!("now-{round}");
        let (now, _) = tokio::join!(scene.subscribe(&name, Start::Now), scene.clean_in_steps_of(1));
        open.publish(round * 10 + 3).await;
        open.commit().await;
        scene.clean_in_steps_of(1).await;
        let (mut got, _) = numbers_until(&now, 2).await;
        got.sort_unstable();
        assert_eq!(got, [round * 10 + 1, round * 10 + 3], "round {round}");
        nothing_comes(&now, PATIENCE).await;
        now.cancel().await;
        scene.reads().await;
        gaps_close(&scene).await;
    }
}

/// While another transaction holds the lock of the group's row, a heartbeat is answered at once.
pub async fn a_heartbeat_does_not_wait_for_a_locked_row(case: &Case) {
    let scene = case.scene(lively()).await;
    assert_eq!(scene.heartbeat("a").await, Signal::Active);
    case.advance(INTERVAL);
    let session = Session::open(case).await;
    session.begin().await;
    session.run("SELECT FROM {schema}.subscription FOR NO KEY UPDATE").await;
    let started = Instant::now();
    for n in 0..20 {
        assert_eq!(scene.heartbeat(&format!("process-{n}")).await, Signal::Active);
    }
    assert!(started.elapsed() < MARGIN, "the heartbeats waited {:?}", started.elapsed());
    session.rollback().await;
}

/// Calls that wait for a lock use up the work pool: heartbeats have separate connections.
pub async fn heartbeats_have_connections_of_their_own(case: &Case) {
    let store = case.open_with(case.options().connections_max(2)).await.unwrap();
    let scene = Scene::new(store, "orders", lively()).await;
    let lock = case.harness().lock().await.expect("PostgreSQL can be locked");
    let blocked: Vec<_> = (0..6)
        .map(|_| {
            let scene = scene.clone();
            tokio::spawn(async move { scene.publish(1).await })
        })
        .collect();
    let waiting =
        "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = '{schema}.message'::regclass";
    let until = Instant::now() + Duration::from_secs(3);
    while case.harness().number("", waiting).await < 2 && Instant::now() < until {
        pause().await;
    }
    let heartbeat = tokio::time::timeout(MARGIN, scene.heartbeat("a")).await;
    assert_eq!(heartbeat.expect("the heartbeat does not wait for the blocked calls"), Signal::Active);
    drop(lock);
    for one in blocked {
        one.await.unwrap();
    }
}

/// A topic with its own tables, partitioned like this.
async fn dedicated(case: &Case, partition: Partition) -> Scene {
    let settings = TopicSettings { storage: Storage::Dedicated(partition), ..lively() };
    case.scene(settings).await
}

async fn keep(scene: &Scene) -> crate::store::PartitionStep {
    let step = scene.store.keep_partitions(scene.subscription.topic.topic_id).await.unwrap();
    assert!(!step.locked, "the table is not locked: {step:?}");
    step
}

/// A topic in its own tables behaves as in the shared one: published, delivered, fetched and claimed across
/// partitions.
pub async fn dedicated_storage_delivers_across_partitions(case: &Case) {
    for partition in
        [Partition::None, Partition::Rows(1_000), Partition::Hour, Partition::Day, Partition::Month]
    {
        let settings = TopicSettings { storage: Storage::Dedicated(partition), ..lively() };
        let name = format!("{partition:?}").replace(['(', ')'], "-");
        let scene = Scene::new(case.open().await, &name, settings).await;
        keep(&scene).await;
        let offsets = scene.publish(2_500).await;
        assert!(offsets.iter().copied().eq(1..=2_500), "{partition:?}");
        let lease = scene.claim_one("a", 2_500).await;
        assert_eq!(offsets_of(&scene.fetch(&lease).await), offsets, "{partition:?}");
        scene.ack(&lease).await;
        assert_eq!(offsets_of(&scene.fetch_range(990, 1_010).await).len(), 21, "{partition:?}");
        keep(&scene).await;
        let more = scene.publish(10).await;
        assert_eq!(scene.reads().await, more, "{partition:?}");
        let session = Session::open(case).await;
        session.publish_number(&name, 7).await;
        assert_eq!(numbers(&scene.drain_until("reader", 1).await), [7], "{partition:?}");
    }
}

/// There are never fewer than two partitions ahead of the last offset taken, however often and from wherever this
/// runs.
pub async fn partitions_are_created_ahead(case: &Case) {
    let scene = dedicated(case, Partition::Rows(1_000)).await;
    keep(&scene).await;
    assert!(keep(&scene).await.ahead >= 2);
    assert_eq!(keep(&scene).await.created, 0, "nothing to do twice");
    for round in 0..6 {
        scene.publish(700).await;
        keep(&scene).await;
        let step = keep(&scene).await;
        assert!(step.ahead >= 2, "round {round}: {step:?}");
        assert_eq!(step.created, 0);
    }
    let elsewhere = scene.through(&case.open().await);
    scene.publish(3_000).await;
    let id = scene.subscription.topic.topic_id;
    let (here, there) = tokio::join!(scene.store.keep_partitions(id), elsewhere.store.keep_partitions(id));
    here.unwrap();
    there.unwrap();
    assert!(keep(&scene).await.ahead >= 2);
    assert_eq!(scene.reads().await.len(), 7_200);
}

/// Publishing outpaces the creation of partitions and never fails; what lies beyond them is delivered and removed as
/// usual.
pub async fn a_burst_past_the_partitions_never_fails(case: &Case) {
    let scene = dedicated(case, Partition::Rows(1_000)).await;
    keep(&scene).await;
    for _ in 0..11 {
        scene.publish(2_000).await;
    }
    let step = keep(&scene).await;
    assert!(step.ahead >= 2, "{step:?}");
    scene.publish(2_000).await;
    let got = scene.reads().await;
    assert!(got.iter().copied().eq(1..=24_000), "{} were delivered", got.len());
    remove_everything(&scene, 24_000).await;
    let next = scene.publish(1).await;
    assert!(next[0] > 24_000, "offsets are never reused: {next:?}");
    assert_eq!(scene.reads().await, next);
    // New partitions begin well beyond the last offset taken, so that one message may still lie past them.
    scene.clean_all().await;
}

/// Cleans rows and drops partitions until everything is removed; only the partition that is being filled may remain.
async fn remove_everything(scene: &Scene, count: u64) {
    let until = Instant::now() + DEADLINE;
    let mut removed = 0;
    while removed < count {
        assert!(Instant::now() < until, "{removed} of {count} were removed");
        removed += scene.clean_all().await.removed;
        removed += keep(scene).await.removed;
        if scene.stored().await.is_empty() {
            break;
        }
        // The last partition is dropped once the topic has moved past it.
        let more = scene.publish(500).await;
        assert_eq!(scene.reads().await, more);
    }
}

/// A partition is dropped once everything in it may be removed: not a message earlier, and unread messages are
/// counted.
pub async fn partitions_are_dropped_behind(case: &Case) {
    let scene = dedicated(case, Partition::Rows(1_000)).await;
    let slow = scene.subscribe("slow", Start::Beginning).await;
    for _ in 0..7 {
        keep(&scene).await;
        scene.publish(500).await;
    }
    assert_eq!(scene.reads().await.len(), 3_500);
    slow.ack_next(1_999).await;
    scene.clean_all().await;
    keep(&scene).await;
    let kept = scene.stored().await;
    assert!(!kept.contains(&1) && !kept.contains(&999), "the first table is gone");
    assert!((2_000..=3_500).all(|offset| kept.contains(&offset)), "unread messages are kept");
    slow.ack_next(1).await;
    scene.clean_all().await;
    keep(&scene).await;
    let kept = scene.stored().await;
    assert!(!kept.contains(&1_500) && kept.contains(&2_001), "the second is dropped with its last message");
    assert_eq!(slow.status().await.missed, MissedMessages::default());
    assert!(scene.topic_status().await.first.0 <= 2_001);
    assert_eq!(slow.reads().await.len(), 1_500);
}

/// `max_retention` drops whole partitions unread: their messages count as missed, and the group continues after them.
pub async fn a_dropped_partition_counts_what_was_missed(case: &Case) {
    let settings = TopicSettings {
        storage: Storage::Dedicated(Partition::Rows(1_000)),
        max_retention: Some(HOUR),
        message_retention: None,
        ..lively()
    };
    let scene = case.scene(settings).await;
    keep(&scene).await;
    scene.publish(2_100).await;
    scene.ack_next(100).await;
    keep(&scene).await;
    case.pass(HOUR).await;
    scene.publish(10).await;
    scene.clean_all().await;
    keep(&scene).await;
    let missed = scene.status().await.missed;
    assert!(missed.count >= 1_900, "two whole tables, but for what was read: {missed:?}");
    let stored = scene.stored().await;
    let gone = u64::try_from((101..=2_110_i64).filter(|offset| !stored.contains(offset)).count()).unwrap();
    assert_eq!(missed.count, gone, "exactly what was removed unread");
    assert_eq!(missed.range.map(|(first, _)| first.0), Some(101));
    assert_eq!(scene.reads().await, stored);
}

/// A reader in a long transaction locks the table: the partition job waits a moment, reports it, and succeeds later.
pub async fn a_locked_table_is_left_for_later(case: &Case) {
    let scene = dedicated(case, Partition::Rows(1_000)).await;
    keep(&scene).await;
    let before = keep(&scene).await;
    scene.publish(2_500).await;
    let reader = Session::open(case).await;
    reader.begin().await;
    reader.run("LOCK TABLE {schema}.message IN ACCESS SHARE MODE").await;
    let started = Instant::now();
    let id = scene.subscription.topic.topic_id;
    let step = scene.store.keep_partitions(id).await.expect("a lock is no error");
    assert!(started.elapsed() < MARGIN, "it waited {:?}", started.elapsed());
    assert!(step.locked || step.ahead >= 2, "{step:?} after {before:?}");
    // Publishing continues meanwhile.
    scene.publish(10).await;
    reader.rollback().await;
    keep(&scene).await;
    assert!(keep(&scene).await.ahead >= 2);
    assert_eq!(scene.reads().await.len(), 2_510);
}

/// A detector that is killed while it waits for the maintenance lock leaves nothing behind; the next one finds dead
/// groups.
pub async fn a_detector_that_waits_and_is_killed_leaves_nothing(case: &Case) {
    let scene = case.scene(lively()).await;
    scene.heartbeat("a").await;
    scene.detect().await;
    case.advance(TIMEOUT + Duration::from_millis(1));
    let session = Session::open(case).await;
    session.begin().await;
    session.run("SELECT FROM {schema}.topic_range FOR UPDATE").await;
    let detector = {
        let scene = scene.clone();
        tokio::spawn(async move { scene.store.detect_dead().await })
    };
    pause().await;
    // Publishing, claiming and settling never wait for it.
    let started = Instant::now();
    scene.publish(3).await;
    let claimed = scene.claimed("b", 3).await;
    for lease in &claimed.leases {
        scene.ack(lease).await;
    }
    assert!(started.elapsed() < MARGIN, "delivery waited for maintenance: {:?}", started.elapsed());
    detector.abort();
    session.rollback().await;
    let until = Instant::now() + DEADLINE;
    let name = (scene.topic.clone(), group("workers"));
    loop {
        let found = scene.detect().await;
        if found.died.contains(&name) || scene.state().await == crate::SubscriptionState::Dead {
            break;
        }
        assert!(Instant::now() < until, "it never died: {found:?}");
        pause().await;
    }
    assert!(matches!(scene.heartbeat("a").await, Signal::Resurrected(_)));
    assert!(scene.store.elect(&owner("a"), TIMEOUT).await.unwrap());
}

/// A transaction that was prepared and not ended is reported after five minutes, with its name.
pub async fn a_prepared_transaction_left_behind_is_reported(case: &Case) {
    let scene = case.queue().await;
    let left = Session::open(case).await;
    left.begin().await;
    left.publish(1).await;
    left.prepare_transaction().await;
    let reported = async || {
        let postgres = scene.store.as_postgres().expect("the engine is PostgreSQL");
        let found = postgres.attention().await.expect("transactions are examined");
        // Other cases prepare transactions of their own in this database.
        found
            .iter()
            .any(|finding| finding.check == "prepared_transaction" && finding.problem.contains(left.gid()))
    };
    assert!(!reported().await, "it may be ended yet");
    // The server's clock says when it was prepared, and that may be long after the case took its own time.
    case.advance(Duration::from_secs(900));
    assert!(reported().await);
    left.rollback_prepared().await;
    assert!(!reported().await);
}
