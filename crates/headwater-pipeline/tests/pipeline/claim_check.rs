//! Claim checks through real topics, on both engines: what is sent comes back, and files go after their messages and not before.

use std::time::Duration;

use headwater::topic::Removal;
use headwater::{Context, Headwater, Json, NewMessage, Offset, OpenOptions, Start};
use headwater_pipeline::ErrorCode;
use headwater_pipeline::claim_check::{
    CLAIM_CHECK_TYPE, ClaimCheckSettings, ClaimChecks, ClaimProducer, Sweeper, Swept,
};
use headwater_pipeline::contracts::TickData;
use headwater_pipeline::service::Stop;
use headwater_pipeline::storage::{FileStorage, StorageSettings};
use jiff::Timestamp;
use tokio::sync::mpsc;

const HOUR: Duration = Duration::from_secs(3_600);

/// A store of one case, and files of its own.
struct Place {
    headwater: Headwater,
    directory: tempfile::TempDir,
    checks: ClaimChecks,
}

impl Place {
    async fn new(url: &str) -> Self {
        let options = OpenOptions::default().auto_create(true);
        let headwater = Headwater::open_with(url, options).await.expect("opened");
        let directory = tempfile::tempdir().expect("a directory");
        let location = directory.path().to_str().expect("text");
        let storage = FileStorage::open(location, StorageSettings::default()).await.expect("opened");
        let settings = ClaimCheckSettings { claim_check_bytes: 1_000, grace: HOUR };
        let checks = ClaimChecks::new(storage, "run_1", settings).expect("sound");
        Place { headwater, directory, checks }
    }

    async fn sqlite() -> Option<Self> {
        Some(Place::new("sqlite::memory:").await)
    }

    async fn postgres() -> Option<Self> {
        let Ok(server) = std::env::var("HEADWATER_TEST_POSTGRES") else {
            let required =
                ["HEADWATER_TEST_REQUIRE_ALL", "CI"].iter().any(|name| std::env::var_os(name).is_some());
            assert!(!required, "HEADWATER_TEST_POSTGRES is not set, and nothing may be skipped");
            println!("skipped: HEADWATER_TEST_POSTGRES is not set");
            return None;
        };
        let separator = if server.contains('?') { '&' } else { '?' };
        let name = format!("claims_{}", uuid::Uuid::now_v7().simple());
        Some(Place::new(&format!("{server}{separator}namespace={name}")).await)
    }

    async fn leave(self) {
        self.headwater.store().drop_namespace().await.expect("removed");
    }

    fn producer(&self, topic: &str) -> ClaimProducer {
        ClaimProducer::new(self.headwater.producer(topic), self.checks.clone())
    }

    /// The files by name.
    fn files(&self) -> Vec<String> {
        let Ok(entries) = std::fs::read_dir(self.directory.path().join("run_1/claims")) else {
            return Vec::new();
        };
        let mut names: Vec<String> =
            entries.map(|entry| entry.expect("read").file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }

    async fn sweep_in(&self, sweeper: &mut Sweeper, later: Duration) -> (u64, u64, u64) {
        let Swept { young, held, removed } = sweeper.sweep(Timestamp::now() + later).await.expect("swept");
        (young, held, removed)
    }

    /// Sweeps as a new process would, after the grace time.
    async fn sweep(&self) -> (u64, u64, u64) {
        let mut sweeper = Sweeper::new(self.headwater.clone(), self.checks.clone());
        self.sweep_in(&mut sweeper, 2 * HOUR).await
    }
}

/// Runs a case on both engines.
macro_rules! on_both_engines {
    ($($case:ident),+ $(,)?) => {
        mod sqlite { $(#[tokio::test] async fn $case() { if let Some(place) = super::Place::sqlite().await { super::$case(place).await } })+ }
        mod postgres { $(#[tokio::test] async fn $case() { if let Some(place) = super::Place::postgres().await { super::$case(place).await } })+ }
    };
}

on_both_engines!(
    large_payloads_come_back_through_any_handler,
    a_file_that_is_gone_or_damaged_is_a_clear_error,
    a_file_without_a_message_is_removed_after_the_grace_time,
    a_file_stays_with_the_log_then_with_the_dead_letters,
    a_file_stays_with_a_scheduled_message,
    a_file_stays_with_an_edited_copy,
    a_duplicate_leaves_no_file,
    a_batch_is_sent_as_a_whole,
    a_running_sweeper_removes_and_stops,
);

async fn large_payloads_come_back_through_any_handler(place: Place) {
    let texts = ["small".to_owned(), "large".repeat(1_000)];
    for text in &texts {
        place.producer("texts").send(Json(text.clone())).await.unwrap();
    }
    let published = place.headwater.published("texts").await.unwrap();
    assert_eq!(published[0].content_type.as_deref(), Some("application/json"));
    assert_eq!(published[1].message_type.as_deref(), Some(CLAIM_CHECK_TYPE));
    assert!(published[1].payload.len() < 200);
    assert_eq!(place.files(), [published[1].message_id.to_string()]);

    let (handled, mut received) = mpsc::channel(8);
    let handling = place.checks.handling(move |Json(text): Json<String>, _: Context| {
        let handled = handled.clone();
        async move { Ok(handled.send(text).await?) }
    });
    let mut consumer =
        place.headwater.consumer("texts", "group").handling("member", handling).stepwise().await.unwrap();
    consumer.drain().await.unwrap();
    let mut came = [received.try_recv().unwrap(), received.try_recv().unwrap()];
    came.sort_by_key(String::len);
    assert_eq!(came, texts);
    drop(consumer);

    // A type with fields of its own, decoded without a consumer.
    let tick = TickData { tick_number: 7, cells: vec![1; 5_000].into(), ..TickData::default() };
    let message = place.producer("ticks").send(headwater::Protobuf(tick.clone())).await;
    assert!(!message.unwrap().duplicate);
    let stored = place.headwater.published("ticks").await.unwrap().remove(0);
    let headwater::Protobuf(decoded) = place.checks.decode(&stored).await.unwrap();
    assert_eq!(tick, decoded);
    let error = place.checks.decode::<Json<String>>(&stored).await.unwrap_err();
    assert_eq!(error.code(), ErrorCode::DecodeFailed);
    place.leave().await;
}

async fn a_file_that_is_gone_or_damaged_is_a_clear_error(place: Place) {
    let id = place.producer("texts").send(NewMessage::new(vec![7; 2_000])).await.unwrap().message_id;
    let message = place.headwater.published("texts").await.unwrap().remove(0);
    let path = place.directory.path().join(format!("run_1/claims/{id}"));
    let refused = async || {
        let error = place.checks.resolve(message.clone()).await.expect_err("refused");
        assert!(!error.is_transient());
        let text = error.to_string();
        assert!(text.contains(&id.to_string()) && text.contains("offset 1"), "{text}");
        (error.code(), text)
    };
    std::fs::write(&path, [8; 2_000]).unwrap();
    let (code, text) = refused().await;
    assert!(code == ErrorCode::DamagedFile && text.contains("checksum"), "{text}");
    std::fs::write(&path, [7; 5]).unwrap();
    let (code, text) = refused().await;
    assert!(code == ErrorCode::DamagedFile && text.contains("length 5, the message says 2000"), "{text}");
    std::fs::remove_file(&path).unwrap();
    let (code, text) = refused().await;
    assert!(code == ErrorCode::ReadFailed && text.contains("is not in"), "{text}");
    place.leave().await;
}

async fn a_file_without_a_message_is_removed_after_the_grace_time(place: Place) {
    // The process is killed between the file and the message.
    place.checks.store(NewMessage::new(vec![7; 2_000])).await.unwrap();
    assert_eq!(place.files().len(), 1);
    let mut sweeper = Sweeper::new(place.headwater.clone(), place.checks.clone());
    assert_eq!(place.sweep_in(&mut sweeper, Duration::ZERO).await, (1, 0, 0), "a publish may be under way");
    assert_eq!(place.sweep_in(&mut sweeper, HOUR / 2).await, (1, 0, 0));
    assert_eq!(place.sweep_in(&mut sweeper, 2 * HOUR).await, (0, 0, 1));
    assert_eq!(place.files(), [""; 0]);
    assert_eq!(place.sweep_in(&mut sweeper, 2 * HOUR).await, (0, 0, 0));
    place.leave().await;
}

async fn a_file_stays_with_the_log_then_with_the_dead_letters(place: Place) {
    let headwater = &place.headwater;
    for topic in ["texts", "others"] {
        headwater.producer(topic).send("in front").await.unwrap();
        place.producer(topic).send(NewMessage::new(vec![7; 2_000])).await.unwrap();
    }
    // One that keeps what it has found, as a process does, beside new ones.
    let mut kept = Sweeper::new(headwater.clone(), place.checks.clone());
    for _ in 0..2 {
        assert_eq!(place.sweep_in(&mut kept, 2 * HOUR).await, (0, 2, 0), "in the log");
        assert_eq!(place.sweep().await, (0, 2, 0), "in the log");
    }
    let groups = headwater.groups("texts");
    groups.subscribe("group", Start::Beginning).await.unwrap();
    groups.bury("group", Offset(2), "broken", false).await.unwrap();
    headwater.topics().purge("texts", Removal::Forced).await.unwrap();
    assert_eq!(headwater.published("texts").await.unwrap(), [], "in the dead letters alone");
    assert_eq!(place.sweep_in(&mut kept, 2 * HOUR).await, (0, 2, 0));
    assert_eq!(place.sweep().await, (0, 2, 0));
    // A dead letter is resolved as any message.
    let dead_letters = headwater.dead_letters().of("texts", "group");
    assert_eq!(dead_letters.list(10).await.unwrap()[0].message_type.as_deref(), Some(CLAIM_CHECK_TYPE));

    dead_letters.purge(|all| all).await.unwrap();
    assert_eq!(place.sweep_in(&mut kept, 2 * HOUR).await, (0, 1, 1));
    headwater.topics().delete("others", Removal::Forced).await.unwrap();
    assert_eq!(place.sweep_in(&mut kept, 2 * HOUR).await, (0, 0, 1));
    assert_eq!(place.files(), [""; 0]);
    place.leave().await;
}

async fn a_file_stays_with_a_scheduled_message(place: Place) {
    let message = NewMessage::new(vec![7; 2_000]).delay(24 * HOUR);
    let id = place.producer("texts").send(message).await.unwrap().message_id;
    assert_eq!(place.sweep().await, (0, 1, 0));
    assert!(place.headwater.scheduled("texts").cancel(id).await.unwrap());
    assert_eq!(place.sweep().await, (0, 0, 1));
    place.leave().await;
}

async fn a_file_stays_with_an_edited_copy(place: Place) {
    let headwater = &place.headwater;
    place.producer("texts").send(NewMessage::new(vec![7; 2_000])).await.unwrap();
    let groups = headwater.groups("texts");
    groups.subscribe("group", Start::Beginning).await.unwrap();
    groups.bury("group", Offset(1), "broken", false).await.unwrap();
    headwater.topics().purge("texts", Removal::Forced).await.unwrap();
    let dead_letters = headwater.dead_letters().of("texts", "group");
    let dead = dead_letters.list(1).await.unwrap().remove(0);
    dead_letters.replace(dead.dead_letter_id, dead.to_message().key("k"), false).await.unwrap();
    assert_eq!(place.sweep().await, (0, 1, 0));
    let copy = headwater.published("texts").await.unwrap().remove(0);
    assert_ne!(copy.message_id, dead.message_id);
    assert_eq!(place.checks.resolve(copy).await.unwrap().payload, [7; 2_000][..]);
    place.leave().await;
}

async fn a_duplicate_leaves_no_file(place: Place) {
    let message = NewMessage::new(vec![7; 2_000]).dedup_key("once");
    let first = place.producer("texts").send(message.clone()).await.unwrap();
    let second = place.producer("texts").send(message.clone()).await.unwrap();
    assert!(second.duplicate && second.message_id == first.message_id);
    assert_eq!(place.files(), [first.message_id.to_string()]);
    // The very same message again: its file stays.
    let again = place.producer("texts").send(message.message_id(first.message_id)).await.unwrap();
    assert!(again.duplicate);
    assert_eq!(place.files(), [first.message_id.to_string()]);
    place.leave().await;
}

async fn a_batch_is_sent_as_a_whole(place: Place) {
    let messages =
        vec![NewMessage::new(vec![1; 2_000]), NewMessage::new("small"), NewMessage::new(vec![2; 3_000])];
    let published = place.producer("texts").send_batch(messages.clone()).await.unwrap();
    assert_eq!(published.len(), 3);
    let mut payloads = Vec::new();
    for message in place.headwater.published("texts").await.unwrap() {
        payloads.push(place.checks.resolve(message).await.unwrap().payload);
    }
    let expected: Vec<_> = messages.into_iter().map(|message| message.payload).collect();
    assert_eq!(payloads, expected);
    assert_eq!((place.files().len(), place.sweep().await), (2, (0, 2, 0)));
    place.leave().await;
}

async fn a_running_sweeper_removes_and_stops(place: Place) {
    let settings = ClaimCheckSettings { claim_check_bytes: 1_000, grace: Duration::from_millis(1) };
    let location = place.directory.path().to_str().unwrap();
    let storage = FileStorage::open(location, StorageSettings::default()).await.unwrap();
    let checks = ClaimChecks::new(storage, "run_1", settings).unwrap();
    place.checks.store(NewMessage::new(vec![7; 2_000])).await.unwrap();
    let (stopper, stop) = Stop::new();
    let sweeper = Sweeper::new(place.headwater.clone(), checks);
    let running = tokio::spawn(sweeper.run(Duration::from_millis(5), stop));
    let deadline = std::time::Instant::now() + Duration::from_secs(30);
    while !place.files().is_empty() {
        assert!(std::time::Instant::now() < deadline, "not removed");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    stopper.stop();
    running.await.unwrap();
    place.leave().await;
}
