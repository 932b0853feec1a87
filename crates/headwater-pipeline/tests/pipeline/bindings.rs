//! Topics of a run as bindings use them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use headwater::maintenance::Job;
use headwater::testing::ManualClock;
use headwater::{Clock, NewMessage, SubscriptionState};
use headwater_pipeline::bindings::UsageState;
use headwater_pipeline::contracts::BatchInfo;
use headwater_pipeline::resource::{TopicWriter, Verdict};
use headwater_pipeline::runs::Runs;
use tokio::sync::Semaphore;

use crate::scene::{DEADLINE, Place, Scene, batch, eventually, on_both};

const TYPE: &str = "type.googleapis.com/headwater.pipeline.v1.BatchInfo";

on_both! {
    message_round_trips
    groups_receive_independently
    three_readers_share_ten_messages_once
    concurrent_writers
    waiting_reader_woken_without_polling
    type_resolved_from_type_url
    unknown_type_url
    undecodable_payload
    survives_reopen
    new_group_reads_history_of_three
    stuck_reassigned_after_2_s
    timeout_0_never_reassigns
    fifo
    stays_after_ack
    second_ack_harmless
    two_topics_apart
    two_runs_apart
    given_back_costs_no_attempt_and_retry_does
    metrics_of_binding_and_sum
}

async fn message_round_trips(place: Place) {
    let scene = Scene::new(place).await;
    let mut reader = scene.read("batch-topic", "a").await;
    scene.send("batch-topic", 7).await;
    let (received, delivery) = reader.next().await;
    assert_eq!(received, batch(7));
    assert_eq!((delivery.offset, delivery.attempt), (1, 1));
    reader.until_done().await;
    assert_eq!(reader.reading.settled_up_to().await.unwrap(), 1);
    reader.stop().await;
    scene.end().await;
}

async fn groups_receive_independently(place: Place) {
    let scene = Scene::new(place).await;
    scene.send("batch-topic", 7).await;
    let mut a = scene.read("batch-topic", "a").await;
    assert_eq!(a.ticks(1).await, [7]);
    a.until_done().await;
    let mut b = scene.read("batch-topic", "b").await;
    assert_eq!(b.ticks(1).await, [7], "B still has it");
    b.until_done().await;
    assert_eq!((a.rest(), b.rest()), (vec![], vec![]), "then both are empty");
    a.stop().await;
    b.stop().await;
    scene.end().await;
}

async fn three_readers_share_ten_messages_once(place: Place) {
    let scene = Scene::new(place).await;
    let mut readers = Vec::new();
    for _ in 0..3 {
        readers.push(scene.read("batch-topic", "shared").await);
    }
    for tick in 0..10 {
        scene.send("batch-topic", tick).await;
    }
    readers[0].until_done().await;
    let mut ticks: Vec<i64> = readers.iter_mut().flat_map(crate::scene::Reader::rest).collect();
    ticks.sort_unstable();
    assert_eq!(ticks, (0..10).collect::<Vec<_>>());
    for reader in readers {
        reader.stop().await;
    }
    scene.end().await;
}

async fn concurrent_writers(place: Place) {
    let scene = Scene::new(place).await;
    let writers: Vec<Arc<dyn TopicWriter<BatchInfo>>> =
        (0..5).map(|_| scene.open.writer(&scene.binding("topic-write:batch-topic"))).collect();
    let mut sending = tokio::task::JoinSet::new();
    for (at, writer) in writers.into_iter().enumerate() {
        sending.spawn(async move {
            for n in 0..20 {
                let tick = at as i64 * 20 + n;
                writer.send(&batch(tick), &tick.to_string()).await.unwrap();
            }
        });
    }
    let mut reader = scene.read("batch-topic", "a").await;
    sending.join_all().await;
    let mut ticks = reader.ticks(100).await;
    ticks.sort_unstable();
    assert_eq!(ticks, (0..100).collect::<Vec<_>>());
    reader.stop().await;
    scene.end().await;
}

async fn waiting_reader_woken_without_polling(place: Place) {
    let scene = Scene::new(place).await;
    let mut reader = scene.read("batch-topic", "a").await;
    scene.send("batch-topic", 1).await;
    reader.ticks(1).await;
    // From now on it has nothing to do; it would poll again after 15 s.
    eventually("waiting", async || reader.binding.state() == UsageState::Waiting).await;
    let sent = Instant::now();
    scene.send("batch-topic", 2).await;
    assert_eq!(reader.ticks(1).await, [2]);
    assert!(sent.elapsed() < Duration::from_secs(10), "{:?}", sent.elapsed());
    reader.stop().await;
    scene.end().await;
}

async fn type_resolved_from_type_url(place: Place) {
    let scene = Scene::new(place).await;
    scene.send("batch-topic", 1).await;
    let published = scene.open.headwater().published("batch-topic").await.unwrap();
    assert_eq!(published[0].message_type.as_deref(), Some(TYPE));
    // Where a type is described does not matter.
    let elsewhere = NewMessage::new(published[0].payload.clone())
        .content_type("application/protobuf")
        .message_type("example.com/types/headwater.pipeline.v1.BatchInfo");
    scene.open.headwater().producer("batch-topic").send(elsewhere).await.unwrap();
    let mut reader = scene.read("batch-topic", "a").await;
    assert_eq!(reader.ticks(2).await, [1, 1]);
    reader.stop().await;
    scene.end().await;
}

/// A message that is not understood becomes a dead letter with the code, and the next one is read.
async fn buried(place: Place, message: NewMessage, code: &str) {
    let scene = Scene::new(place).await;
    scene.open.headwater().producer("batch-topic").send(message).await.unwrap();
    scene.send("batch-topic", 2).await;
    let mut reader = scene.read("batch-topic", "a").await;
    assert_eq!(reader.ticks(1).await, [2]);
    reader.until_done().await;
    let dead = scene.open.headwater().dead_letters().of("batch-topic", "a").list(10).await.unwrap();
    assert_eq!(dead.len(), 1);
    assert!(dead[0].error.starts_with(code), "{}", dead[0].error);
    let health = reader.binding.health().snapshot();
    assert_eq!((health.counts.messages_undecodable, health.error_count), (1, 1));
    assert_eq!(health.last_errors[0].code, code);
    reader.stop().await;
    scene.end().await;
}

async fn unknown_type_url(place: Place) {
    let other =
        NewMessage::new("x").content_type("application/protobuf").message_type("type.googleapis.com/a.B");
    buried(place, other, "UNKNOWN_TYPE").await;
}

async fn undecodable_payload(place: Place) {
    let broken = NewMessage::new(vec![0xFF; 3]).content_type("application/protobuf").message_type(TYPE);
    buried(place, broken, "DECODE_FAILED").await;
}

async fn survives_reopen(place: Place) {
    let scene = Scene::new(place).await;
    scene.send("batch-topic", 7).await;
    let Scene { place, config, runs, run, open, bindings, .. } = scene;
    open.close().await.unwrap();
    runs.close().await.unwrap();

    let runs = Runs::open(&config.store).await.unwrap();
    assert_eq!(runs.get(&run.run_id).await.unwrap(), run);
    let open = runs.open_run(&run).await.unwrap();
    assert_eq!(open.headwater().published("batch-topic").await.unwrap().len(), 1);
    open.close().await.unwrap();
    runs.close().await.unwrap();
    drop(bindings);
    place.remove(&[&run.run_id]).await;
}

async fn new_group_reads_history_of_three(place: Place) {
    let scene = Scene::new(place).await;
    for tick in 1..=3 {
        scene.send("batch-topic", tick).await;
    }
    let mut early = scene.read("batch-topic", "early").await;
    early.ticks(3).await;
    early.until_done().await;
    let mut late = scene.read_with("batch-topic", "late", 1, |_, _| Verdict::Done).await;
    assert_eq!(late.ticks(3).await, [1, 2, 3]);
    early.stop().await;
    late.stop().await;
    scene.end().await;
}

fn clock() -> ManualClock {
    ManualClock::at("2026-03-02T09:00:00Z".parse().unwrap())
}

/// A process that claims a message and never settles it, while time passes; then a reader and one more message.
async fn stuck(place: Place, lease: &str, passes: Duration) -> (Scene, crate::scene::Reader) {
    let clock = clock();
    let lease = ("[resources.batch-topic]", &*format!("[resources.batch-topic]\nlease_s = {lease}"));
    let scene = Scene::with(place, &[lease], Clock::Manual(clock.clone())).await;
    scene.send("batch-topic", 1).await;
    let process = scene.other_process(Clock::Manual(clock.clone())).await;
    let mut consumer = process.consumer("batch-topic", "a").open().await.unwrap();
    let held = consumer.next(DEADLINE).await.unwrap().expect("one message");
    clock.advance(passes);
    let reader = scene.read_with("batch-topic", "a", 1, |_, _| Verdict::Done).await;
    scene.send("batch-topic", 2).await;
    std::mem::forget(held);
    process.close().await.unwrap();
    (scene, reader)
}

async fn stuck_reassigned_after_2_s(place: Place) {
    let (scene, mut reader) = stuck(place, "2", Duration::from_secs(2)).await;
    let mut received =
        [reader.next().await, reader.next().await].map(|(batch, at)| (batch.first_tick, at.attempt));
    received.sort_unstable();
    assert_eq!(received, [(1, 2), (2, 1)]);
    let reassigned = || scene.bindings.resources()[0].health.counts.stuck_reassigned;
    eventually("accounted", async || reassigned() == 1).await;
    let errors = reader.binding.health().snapshot().last_errors;
    assert!(errors.iter().any(|error| error.code == "STUCK_REASSIGNED"), "{errors:?}");
    reader.stop().await;
    scene.end().await;
}

async fn timeout_0_never_reassigns(place: Place) {
    let (scene, mut reader) = stuck(place, "0", Duration::from_secs(10 * 366 * 86_400)).await;
    assert_eq!(reader.ticks(1).await, [2], "the first message stays with its owner");
    eventually("only the stuck one is left", async || reader.reading.lag().await.unwrap() == 1).await;
    assert_eq!(reader.rest(), [0_i64; 0]);
    assert_eq!(scene.open.headwater().groups("batch-topic").get("a").await.unwrap().status.reassigned, 0);
    assert_eq!(scene.bindings.resources()[0].health.counts.stuck_reassigned, 0);
    reader.stop().await;
    scene.end().await;
}

async fn fifo(place: Place) {
    let scene = Scene::new(place).await;
    for tick in 0..30 {
        scene.send("batch-topic", tick).await;
    }
    let mut reader = scene.read_with("batch-topic", "a", 1, |_, _| Verdict::Done).await;
    assert_eq!(reader.ticks(30).await, (0..30).collect::<Vec<_>>());
    reader.stop().await;
    scene.end().await;
}

async fn stays_after_ack(place: Place) {
    let scene = Scene::new(place).await;
    scene.send("batch-topic", 7).await;
    let mut reader = scene.read("batch-topic", "a").await;
    reader.ticks(1).await;
    reader.until_done().await;
    scene.open.headwater().maintenance().run_once(&[Job::MessageCleanup]).await.unwrap();
    assert_eq!(scene.open.headwater().published("batch-topic").await.unwrap().len(), 1);
    reader.stop().await;
    scene.end().await;
}

async fn second_ack_harmless(place: Place) {
    let scene = Scene::new(place).await;
    scene.send("batch-topic", 7).await;
    let gate = Arc::new(Semaphore::new(0));
    let blocks = Arc::clone(&gate);
    // The first delivery waits for the test; the test ends its lease, and the second one is done first.
    let handler = move |_: &BatchInfo, delivery: headwater_pipeline::resource::Delivery| {
        if delivery.attempt == 1 && blocks.available_permits() == 0 {
            let blocks = Arc::clone(&blocks);
            tokio::task::block_in_place(|| {
                tokio::runtime::Handle::current()
                    .block_on(async { blocks.acquire().await.unwrap().forget() });
            });
        }
        Verdict::Done
    };
    let first = scene.read_with("batch-topic", "a", 1, handler).await;
    let groups = scene.open.headwater().groups("batch-topic");
    let mut token = None;
    eventually("leased", async || {
        token = groups.outstanding("a", 10).await.unwrap().first().and_then(|range| range.token);
        token.is_some()
    })
    .await;
    scene.open.headwater().release_lease(token.unwrap()).await.unwrap();
    let mut second = scene.read("batch-topic", "a").await;
    second.ticks(1).await;
    second.until_done().await;
    gate.add_permits(1);
    let lost = || scene.bindings.resources()[0].health.counts.leases_lost;
    eventually("reported", async || lost() == 1).await;
    let status = groups.get("a").await.unwrap().status;
    assert_eq!((status.lag, status.dead_letters, status.state), (0, 0, SubscriptionState::Active));
    first.stop().await;
    second.stop().await;
    scene.end().await;
}

async fn two_topics_apart(place: Place) {
    let scene = Scene::new(place).await;
    let mut one = scene.read("batch-topic", "a").await;
    let mut two = scene.read("metadata-topic", "a").await;
    scene.send("batch-topic", 1).await;
    scene.send("metadata-topic", 2).await;
    assert_eq!((one.ticks(1).await, two.ticks(1).await), (vec![1], vec![2]));
    one.until_done().await;
    two.until_done().await;
    assert_eq!((one.rest(), two.rest()), (vec![], vec![]));
    one.stop().await;
    two.stop().await;
    scene.end().await;
}

async fn two_runs_apart(place: Place) {
    let scene = Scene::new(place).await;
    let other = crate::scene::run_info("RUNNING");
    scene.runs.register(&other).await.unwrap();
    let open = scene.runs.open_run(&other).await.unwrap();
    scene.create(&open).await;
    scene.send("batch-topic", 1).await;
    let binding = scene.config.binding("topic-write:batch-topic").unwrap();
    let binding = scene.bindings.bind("other", "port", &binding, &other.run_id).unwrap();
    open.writer(&binding).send(&batch(2), "2").await.unwrap();
    assert_eq!(open.headwater().published("batch-topic").await.unwrap().len(), 1);
    let mut reader = scene.read("batch-topic", "a").await;
    assert_eq!(reader.ticks(1).await, [1]);
    reader.until_done().await;
    assert_eq!(reader.rest(), [0_i64; 0]);
    reader.stop().await;
    open.close().await.unwrap();
    let run = scene.run.run_id.clone();
    scene.open.close().await.unwrap();
    scene.runs.close().await.unwrap();
    scene.place.remove(&[&run, &other.run_id]).await;
}

async fn given_back_costs_no_attempt_and_retry_does(place: Place) {
    let scene = Scene::with(
        place,
        &[("[resources.batch-topic]", "[resources.batch-topic]\nbackoff_max_s = 1")],
        Clock::default(),
    )
    .await;
    scene.send("batch-topic", 1).await;
    let calls = std::sync::atomic::AtomicU32::new(0);
    let verdict = move |_: &BatchInfo, _| match calls.fetch_add(1, std::sync::atomic::Ordering::Relaxed) {
        0 | 1 => Verdict::GiveBack,
        2 => Verdict::Retry("not now".into()),
        _ => Verdict::Bury("never".into()),
    };
    let mut reader = scene.read_with("batch-topic", "a", 1, verdict).await;
    let mut attempts = Vec::new();
    for _ in 0..4 {
        attempts.push(reader.next().await.1.attempt);
    }
    assert_eq!(attempts, [1, 1, 1, 2]);
    reader.until_done().await;
    let dead = scene.open.headwater().dead_letters().of("batch-topic", "a").list(10).await.unwrap();
    assert_eq!(dead[0].error, "never");
    reader.stop().await;
    scene.end().await;
}

async fn metrics_of_binding_and_sum(place: Place) {
    let scene = Scene::new(place).await;
    let mut a = scene.read("batch-topic", "a").await;
    let mut b = scene
        .read_with("batch-topic", "b", 1, |batch, _| match batch.first_tick {
            2 => Verdict::Bury("two".into()),
            _ => Verdict::Done,
        })
        .await;
    for tick in 1..=3 {
        scene.send("batch-topic", tick).await;
    }
    a.ticks(3).await;
    b.ticks(3).await;
    a.until_done().await;
    b.until_done().await;
    let counts = |binding: &headwater_pipeline::bindings::BindingHandle| {
        let counts = binding.health().snapshot().counts;
        (counts.messages_received, counts.messages_done)
    };
    assert_eq!((counts(&a.binding), counts(&b.binding)), ((3, 3), (3, 2)));
    let resource = scene.bindings.resources().remove(0);
    assert_eq!(resource.resource, "batch-topic");
    assert_eq!(resource.bindings.len(), 5, "two readers and three writers");
    let sum = resource.health.counts;
    assert_eq!((sum.messages_sent, sum.messages_received, sum.messages_done), (3, 6, 5));
    let states: Vec<_> = resource.bindings.iter().map(|binding| binding.state).collect();
    assert!(states.iter().all(|state| *state == UsageState::Waiting), "{states:?}");
    a.stop().await;
    b.stop().await;
    scene.end().await;
}

#[tokio::test]
async fn run_set_twice_or_blank_refused() {
    let scene = Scene::new(Place::sqlite()).await;
    let binding = scene.binding("topic-write:batch-topic");
    let refused = binding.serve("run_other").unwrap_err().to_string();
    assert!(refused.contains(&format!("serves run {}", scene.run.run_id)), "{refused}");
    assert!(refused.contains("run run_other is refused"), "{refused}");
    let config = scene.config.binding("topic-write:batch-topic").unwrap();
    let refused = scene.bindings.bind("x", "port", &config, " ").unwrap_err().to_string();
    assert!(refused.contains("the run id is blank"), "{refused}");
    let blank = headwater_pipeline::contracts::RunInfo::default();
    assert!(scene.runs.open_run(&blank).await.err().unwrap().to_string().contains("blank"));
    assert!(scene.runs.register(&blank).await.unwrap_err().to_string().contains("blank"));
    scene.end().await;
}
