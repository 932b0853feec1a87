//! Work that must not hold up the single writer: its cost does not grow with what is stored.

use std::sync::atomic::{AtomicU64, Ordering};

use super::*;

const COUNTED: &str = "tracking = 'reference_counting'";
const ROWS: usize = 3_000;

/// The work of the writer in steps of SQLite's virtual machine: the same operations take about the same number.
struct Steps(Arc<AtomicU64>);

impl Steps {
    async fn of(scene: &Scene) -> Self {
        let counted = Arc::new(AtomicU64::new(0));
        let steps = Steps(Arc::clone(&counted));
        let watched = scene.store.write(Kind::Define, move |work| {
            let counted = Arc::clone(&counted);
            let count = move || {
                counted.fetch_add(1, Ordering::Relaxed);
                false
            };
            Ok(work.connection.progress_handler(1, Some(count))?)
        });
        watched.await.unwrap();
        steps
    }

    async fn during<T>(&self, act: impl Future<Output = T>) -> (u64, T) {
        let before = self.0.load(Ordering::Relaxed);
        let done = act.await;
        (self.0.load(Ordering::Relaxed) - before, done)
    }
}

/// About as many steps as without the rows; reading the rows would take some steps each.
fn assert_no_more(before: u64, after: u64) {
    assert!(after < before + ROWS as u64 / 2, "{before} steps, then {after}");
}

/// Gives a group many waiting ranges.
fn hold(scene: &Scene, group: &Subscription) {
    scene.sql(&format!(
        "INSERT INTO headwater_outstanding
         WITH RECURSIVE n (n) AS (VALUES (1) UNION ALL SELECT n + 1 FROM n WHERE n < {ROWS})
         SELECT 1000 + n, n, n, {}, NULL, NULL, 0, 1, 0, 0, NULL, NULL FROM n",
        group.subscription_id.0
    ));
}

#[tokio::test]
async fn a_death_does_not_read_what_others_hold() {
    let scene = Scene::new("").await;
    let many = scene.group("many", Start::Beginning).await;
    let (first, second) = (scene.group("x", Start::Now).await, scene.group("y", Start::Now).await);
    let steps = Steps::of(&scene).await;
    let (before, ()) = steps.during(scene.set_state(&first, "dead")).await;
    hold(&scene, &many);
    let (after, ()) = steps.during(scene.set_state(&second, "dead")).await;
    assert_no_more(before, after);
    assert_eq!(scene.number("SELECT zero_until FROM headwater_topic"), Some(0), "one still counts");
    scene.set_state(&many, "dead").await;
    assert_eq!(scene.number("SELECT zero_until FROM headwater_topic"), None);
}

#[tokio::test]
async fn a_new_group_does_not_read_the_records() {
    let scene = Scene::new(COUNTED).await;
    scene.group("a", Start::Beginning).await;
    let steps = Steps::of(&scene).await;
    let (before, _) = steps.during(scene.group("x", Start::Now)).await;
    scene.publish(ROWS).await;
    scene.track().await;
    let (after, _) = steps.during(scene.group("y", Start::Now)).await;
    assert_no_more(before, after);
    scene.assert_sound().await;
}

#[tokio::test]
async fn one_read_of_the_records_covers_all_bits() {
    let scene = Scene::new(COUNTED).await;
    scene.group("a", Start::Beginning).await;
    scene.publish(ROWS).await;
    scene.track().await;
    scene.sql("UPDATE headwater_topic SET bits_used = -1");
    let steps = Steps::of(&scene).await;
    let (searching, _) = steps.during(scene.group("b", Start::Now)).await;
    assert!(searching > ROWS as u64, "a file of an earlier version does not have it: {searching} steps");
    assert_eq!(scene.number("SELECT bits_used FROM headwater_topic"), Some(0b11));
    let (knowing, _) = steps.during(scene.group("c", Start::Now)).await;
    assert!(knowing < ROWS as u64, "{knowing} steps");
    assert_eq!(scene.number("SELECT bit FROM headwater_subscription WHERE group_name = 'c'"), Some(2));
    scene.assert_sound().await;
}

#[tokio::test]
async fn a_cancelled_group_with_a_dead_letter_frees_its_bit_once_no_record_names_it() {
    let scene =
        Scene::new(&format!("{COUNTED}, message_retention_ms = 0, zero_subscription_retention_ms = 0")).await;
    let kept = scene.group("kept", Start::Beginning).await;
    scene.publish(1).await;
    let lease = scene.store.claim(&request(&kept, 1)).await.unwrap().leases.remove(0);
    let bury = (lease.range, Outcome::Bury { error: "no".into() });
    scene.store.settle(&[Settlement::each(&lease, vec![bury])]).await.unwrap().remove(0).unwrap();
    scene.track().await;
    scene.store.cancel(&topic("orders"), &group("kept")).await.unwrap();
    scene.track().await;
    for n in 1..64 {
        scene.group(&format!("g{n}"), Start::Now).await;
    }
    let (orders, name) = (topic("orders"), group("one-more"));
    let one_more = || scene.store.subscribe(&orders, &name, Start::Now);
    let error = one_more().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput, "a stored message names it");
    assert_eq!(scene.clean().await, 1);
    one_more().await.unwrap();
    let bits =
        "SELECT group_concat(bit) FROM headwater_subscription WHERE group_name IN ('kept', 'one-more')";
    let bits: String = scene.place.connect().query_row(bits, [], |row| row.get(0)).unwrap();
    assert_eq!(bits, "0");
    let dead_letters = DeadLetterSelection::all(kept.subscription_id);
    assert_eq!(scene.store.dead_letters(&dead_letters, 9).await.unwrap().len(), 1, "still readable");
    scene.assert_sound().await;
}

#[tokio::test]
async fn lines_of_the_ack_log_go_a_step_at_a_time() {
    let scene =
        Scene::new("message_retention_ms = 0, zero_subscription_retention_ms = 0, ack_log = json('true')")
            .await;
    let a = scene.group("a", Start::Beginning).await;
    scene.publish(100).await;
    for _ in 0..100 {
        scene.consume(&a, 1).await;
    }
    assert_eq!(scene.store.clean(scene.topic, 100).await.unwrap().removed, 100);
    scene.sql(
        "INSERT INTO headwater_ack_log (topic_id, first_offset, last_offset, lanes, group_name, owner, acked_at_ms)
         WITH RECURSIVE n (n) AS (VALUES (1) UNION ALL SELECT n + 1 FROM n WHERE n < 100)
         SELECT (SELECT topic_id FROM headwater_topic), n, n, 0, 'a', 'me', 0 FROM n",
    );
    let step = scene.store.clean(scene.topic, 30).await.unwrap();
    assert!(step.more);
    assert_eq!(scene.number("SELECT count(*) FROM headwater_ack_log"), Some(70));
    scene.clean().await;
    assert_eq!(scene.number("SELECT count(*) FROM headwater_ack_log"), Some(0));
}

#[tokio::test]
async fn a_seek_does_not_count_while_it_moves() {
    let scene = Scene::new("").await;
    scene.group("a", Start::Beginning).await;
    let (orders, a) = (topic("orders"), group("a"));
    let steps = Steps::of(&scene).await;
    let (before, _) = steps.during(scene.store.seek(&orders, &a, Start::Beginning, false)).await;
    scene.publish(ROWS).await;
    let (after, skipped) = steps.during(scene.store.seek(&orders, &a, Start::Now, false)).await;
    assert_eq!(skipped.unwrap().skipped, ROWS as u64);
    assert_no_more(before, after);
    let (after, again) = steps.during(scene.store.seek(&orders, &a, Start::Beginning, false)).await;
    assert_eq!(again.unwrap().replayed, ROWS as u64);
    assert_no_more(before, after);
}

#[tokio::test]
async fn giving_up_does_not_count_while_it_moves_and_is_exact_all_the_same() {
    let scene = Scene::new("").await;
    let alive = scene.group("alive", Start::Beginning).await;
    let dead = scene.group("dead", Start::Beginning).await;
    scene.set_state(&dead, "dead").await;
    let orders = topic("orders");
    let steps = Steps::of(&scene).await;
    let (before, _) = steps.during(scene.store.force_complete(&orders, HOUR, false)).await;
    scene.publish(ROWS).await;
    scene.consume(&alive, u32::try_from(ROWS).unwrap()).await;
    scene.clock.advance(HOUR * 2);
    let (now_ms, name) = (scene.clock.now().as_millisecond(), orders.clone());
    let planned =
        scene.store.read(move |connection| stuck::read_plan(connection, &name, HOUR, now_ms)).await.unwrap();
    let (after, done) = steps.during(scene.store.force_complete(&orders, HOUR, false)).await;
    assert_eq!(done.unwrap()[0].messages, ROWS as u64);
    assert_no_more(before, after);
    // Messages that another process gave up meanwhile are not counted twice.
    let late = scene
        .store
        .write(Kind::Define, move |work| stuck::force_complete(work, &orders, HOUR, &planned, "tester"));
    assert_eq!(late.await.unwrap(), []);
    assert_eq!(scene.number("SELECT sum(missed) FROM headwater_subscription"), Some(ROWS as i64));
    scene.assert_sound().await;
}
