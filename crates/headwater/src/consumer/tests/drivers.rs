//! Handlers run by the same rules whatever drives them: workers with single messages and with batches, transactions of
//! both engines, and batches that a program takes. Each case runs once for each driver.

use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;

use crate::clock::ManualClock;
use crate::consumer::group::Group;
use crate::handler::{Bury, Context, HandlerResult, Handling, Messages, Skip, Verdicts};
use crate::message::{Message, NewMessage};
use crate::observe::health::{HealthState, Totals};
use crate::observe::trace;
use crate::settle::Verdict;
use crate::subscription::SubscriptionState;
use crate::topic::{Ordering, TopicSettings};
use crate::{Clock, Headwater, Json, OpenOptions};

mod slices;

/// How long a handler may take in the case about that; in the others a machine that stalls fails no handler.
const LIMIT: Duration = Duration::from_secs(1);
/// After how many burials in a row a group pauses itself here.
const BURIALS: u32 = 3;
const TRACE: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Driver {
    Single,
    Batch,
    Sqlite,
    #[cfg(feature = "postgres")]
    Postgres,
    Pulled,
    /// Whole slices in a transaction of the store.
    Together,
    #[cfg(feature = "postgres")]
    TogetherPostgres,
}

impl Driver {
    fn is_together(self) -> bool {
        #[cfg(feature = "postgres")]
        if self == Driver::TogetherPostgres {
            return true;
        }
        self == Driver::Together
    }
}

/// What handlers saw of a message: its offset, the attempt, its span and its trace.
type Seen = Arc<Mutex<Vec<(i64, u32, Option<&'static str>, Option<String>)>>>;

/// One topic with one group, whose handlers act on payloads.
struct Stage {
    driver: Driver,
    headwater: Headwater,
    clock: ManualClock,
    seen: Seen,
    /// The group, once it is served.
    group: Arc<OnceLock<Arc<Group>>>,
    /// How long a handler may take.
    limit: Duration,
}

/// Acts on a payload. "late" exceeds the limit: an async handler never ends, a synchronous one ends after it.
async fn act(payload: Bytes, group: Arc<OnceLock<Arc<Group>>>, attempt: u32) -> HandlerResult {
    if &payload[..] == b"late" {
        std::future::pending::<()>().await;
    }
    act_now(&payload, &group, attempt)
}

fn act_now(payload: &Bytes, group: &OnceLock<Arc<Group>>, attempt: u32) -> HandlerResult {
    match &payload[..] {
        b"late" => std::thread::sleep(LIMIT + Duration::from_millis(20)),
        b"panic" => panic!("on purpose"),
        b"fail" => return Err("no stock".into()),
        b"fail once" if attempt == 1 => return Err("not yet".into()),
        b"skip" => return Err(Skip.into()),
        b"bury" => return Err(Bury("never").into()),
        b"pause" => {
            group.get().expect("it is served").note_state(SubscriptionState::Paused, Instant::now());
        }
        _ => {}
    }
    Ok(())
}

fn note(seen: &Seen, message: &Message, attempt: u32) {
    let span = tracing::Span::current().metadata().map(tracing::Metadata::name);
    let trace = trace::current().map(|context| context.trace_id());
    seen.lock().unwrap().push((message.offset.0, attempt, span, trace));
}

impl Stage {
    /// `None` where the driver's database is not available.
    async fn new(driver: Driver, settings: TopicSettings, payloads: &[(&str, Option<&str>)]) -> Option<Self> {
        let clock = ManualClock::at("2026-03-02T09:00:00Z".parse().unwrap());
        let options = OpenOptions::default().auto_create(true).clock(Clock::Manual(clock.clone()));
        let headwater = Headwater::open_with(&url_of(driver)?, options).await.unwrap();
        headwater.topic("orders").settings(settings).create().await.unwrap();
        let message = |(payload, key): &(&str, Option<&str>)| {
            let message = NewMessage::new((*payload).to_owned()).header("traceparent", TRACE);
            key.iter().fold(message, |message, key| message.key(*key))
        };
        let messages: Vec<_> = payloads.iter().map(message).collect();
        headwater.producer("orders").send_batch(&messages).await.unwrap();
        let limit = Duration::from_secs(60);
        Some(Stage { driver, headwater, clock, seen: Seen::default(), group: Arc::default(), limit })
    }

    fn handling(&self) -> Handling {
        let (seen, group) = (Arc::clone(&self.seen), Arc::clone(&self.group));
        match self.driver {
            Driver::Single | Driver::Pulled => Handling::one(move |message: Message, context: Context| {
                let (seen, group) = (Arc::clone(&seen), Arc::clone(&group));
                async move {
                    note(&seen, &message, context.attempt());
                    act(message.payload, group, context.attempt()).await
                }
            }),
            Driver::Batch => Handling::batch(move |messages: Messages, context: Context| {
                let (seen, group) = (Arc::clone(&seen), Arc::clone(&group));
                async move {
                    let (mut verdicts, mut failed) = (Verdicts::new(), Vec::new());
                    for message in &messages {
                        // The handler's own responsibility: skip messages behind a failure of the same key.
                        if message.key.is_some() && failed.contains(&message.key) {
                            continue;
                        }
                        note(&seen, message, context.attempt());
                        let acted = act(message.payload.clone(), Arc::clone(&group), context.attempt()).await;
                        if let Err(failure) = acted {
                            failed.push(message.key.clone());
                            verdicts.failed(message.offset, failure);
                        }
                    }
                    Ok(verdicts)
                }
            }),
            Driver::Sqlite => Handling::in_sqlite(move |_, message: Message, context: &Context| {
                note(&seen, &message, context.attempt());
                act_now(&message.payload, &group, context.attempt())
            }),
            #[cfg(feature = "postgres")]
            Driver::Postgres => Handling::in_postgres(move |_, message: Message, context: Context| {
                let (seen, group) = (Arc::clone(&seen), Arc::clone(&group));
                async move {
                    note(&seen, &message, context.attempt());
                    act(message.payload, group, context.attempt()).await
                }
            }),
            Driver::Together => slices::handling(self),
            #[cfg(feature = "postgres")]
            Driver::TogetherPostgres => slices::handling(self),
        }
    }

    /// Hands out once what is due, up to `batch` messages together. Returns the offsets that handlers got.
    async fn step(&self, batch: u32) -> Vec<i64> {
        let batch = if self.driver.is_together() { 10 } else { batch };
        let before = self.seen.lock().unwrap().len();
        let consumer = self.headwater.consumer("orders", "email").batch(batch).concurrency(1);
        let consumer = consumer.timeout(self.limit).pause_after_burials(BURIALS);
        if self.driver == Driver::Pulled {
            let mut consumer = consumer.open().await.unwrap();
            let group = Arc::clone(&consumer.group);
            self.group.get_or_init(|| Arc::clone(&group));
            while let Some(batch) = consumer.next(Duration::ZERO).await.unwrap() {
                let handler = |message: Message, attempt| {
                    let (seen, group) = (&self.seen, Arc::clone(&self.group));
                    async move {
                        note(seen, &message, attempt);
                        let acted = act(message.payload, group, attempt).await;
                        acted.map_or_else(crate::Failure::into_verdict, |()| Verdict::Done)
                    }
                };
                batch.handle(handler).await.unwrap();
                if group.serve_state.is_held_back() {
                    break;
                }
            }
            drop(consumer);
        } else {
            let mut stepper = consumer.handling("one", self.handling()).stepwise().await.unwrap();
            let group = Arc::clone(&stepper.running().group);
            self.group.get_or_init(|| Arc::clone(&group));
            while stepper.step().await.unwrap() > 0 && !group.serve_state.is_held_back() {}
        }
        self.seen.lock().unwrap()[before..].iter().map(|(offset, ..)| *offset).collect()
    }

    fn totals(&self) -> Totals {
        self.group.get().unwrap().metrics.health("consumer", HealthState::Running).totals
    }

    /// The errors of the dead letters.
    async fn errors(&self) -> Vec<String> {
        let dead = self.headwater.dead_letters().of("orders", "email").list(10).await.unwrap();
        dead.into_iter().map(|dead_letter| dead_letter.error).collect()
    }

    async fn end(self) {
        assert_eq!(self.headwater.store().doctor().await.unwrap(), []);
        self.headwater.store().drop_namespace().await.unwrap();
    }
}

fn url_of(driver: Driver) -> Option<String> {
    match driver {
        #[cfg(feature = "postgres")]
        Driver::Postgres | Driver::TogetherPostgres => {
            let Ok(server) = std::env::var("HEADWATER_TEST_POSTGRES") else {
                assert!(std::env::var_os("HEADWATER_TEST_REQUIRE_ALL").is_none(), "no test server is set");
                println!("skipped: HEADWATER_TEST_POSTGRES is not set");
                return None;
            };
            let separator = if server.contains('?') { '&' } else { '?' };
            Some(format!("{server}{separator}namespace=drivers_{}", uuid::Uuid::now_v7().simple()))
        }
        _ => Some("sqlite::memory:".to_owned()),
    }
}

fn attempts(max_attempts: u32) -> TopicSettings {
    TopicSettings { max_attempts, ..TopicSettings::default() }
}

fn unkeyed<'a>(payloads: &[&'a str]) -> Vec<(&'a str, Option<&'a str>)> {
    payloads.iter().map(|payload| (*payload, None)).collect()
}

/// Runs each named case for each driver.
macro_rules! for_each_driver {
    ($($case:ident),* $(,)?) => {
        for_each_driver!(@ single Single $($case)*);
        for_each_driver!(@ batch Batch $($case)*);
        for_each_driver!(@ sqlite_transaction Sqlite $($case)*);
        #[cfg(feature = "postgres")]
        for_each_driver!(@ postgres_transaction Postgres $($case)*);
        for_each_driver!(@ pulled Pulled $($case)*);
        for_each_driver!(@ together Together $($case)*);
        #[cfg(feature = "postgres")]
        for_each_driver!(@ together_postgres TogetherPostgres $($case)*);
    };
    (@ $name:ident $driver:ident $($case:ident)*) => {
        mod $name {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() {
                super::$case(super::Driver::$driver).await;
            })*
        }
    };
}

for_each_driver!(
    a_failed_key_holds_back_its_later_messages_and_no_others,
    a_panic_is_a_failed_attempt,
    a_handler_that_takes_too_long_has_failed,
    each_end_is_counted_once,
    a_call_has_the_span_and_the_trace_of_its_message,
    nothing_is_begun_once_the_group_is_held_back,
    too_many_burials_in_a_row_pause_the_group,
    a_failure_at_the_last_attempt_counts_as_a_burial,
);

async fn a_failed_key_holds_back_its_later_messages_and_no_others(driver: Driver) {
    let settings = TopicSettings { ordering: Ordering::Key, lanes: 1, ..attempts(3) };
    let (a, b) = (Some("a"), Some("b"));
    let payloads = [("fail once", a), ("ok", a), ("ok", b), ("ok", a)];
    let Some(stage) = Stage::new(driver, settings, &payloads).await else { return };
    assert_eq!(stage.step(10).await, [1, 3]);
    stage.clock.advance(Duration::from_secs(3_600));
    assert_eq!(stage.step(10).await, [1, 2, 4]);
    stage.end().await;
}

async fn a_panic_is_a_failed_attempt(driver: Driver) {
    let payloads = unkeyed(&["panic", "ok"]);
    let Some(stage) = Stage::new(driver, attempts(1), &payloads).await else { return };
    assert_eq!(stage.step(1).await, [1, 2]);
    assert_eq!(stage.errors().await, ["the handler panicked: on purpose"]);
    stage.end().await;
}

async fn a_handler_that_takes_too_long_has_failed(driver: Driver) {
    let payloads = unkeyed(&["late", "ok"]);
    // Two attempts each: a machine that stalls may make the other handler late too, but not twice.
    let Some(mut stage) = Stage::new(driver, attempts(2), &payloads).await else { return };
    stage.limit = LIMIT;
    assert_eq!(stage.step(1).await, [1, 2]);
    stage.clock.advance(Duration::from_secs(3_600));
    stage.step(1).await;
    let errors = stage.errors().await;
    assert!(errors.len() == 1 && errors[0].contains("longer than its timeout of 1s"), "{errors:?}");
    stage.end().await;
}

async fn each_end_is_counted_once(driver: Driver) {
    let payloads = unkeyed(&["ok", "skip", "fail", "bury", "panic"]);
    let Some(stage) = Stage::new(driver, attempts(2), &payloads).await else { return };
    assert_eq!(stage.step(1).await, [1, 2, 3, 4, 5]);
    let (totals, group) = (stage.totals(), stage.group.get().unwrap());
    assert_eq!((totals.delivered, totals.acked, totals.skipped), (5, 2, 1));
    assert_eq!((totals.retried, totals.buried, totals.panicked), (2, 1, 1));
    let health = group.metrics.health("consumer", HealthState::Running);
    assert_eq!((health.times.handle.map(|times| times.count), health.in_flight), (Some(5), 0));
    stage.end().await;
}

async fn a_call_has_the_span_and_the_trace_of_its_message(driver: Driver) {
    // Spans exist only where a subscriber wants them.
    let _ = tracing::subscriber::set_global_default(tracing_subscriber::registry());
    let Some(stage) = Stage::new(driver, attempts(1), &unkeyed(&["ok", "ok"])).await else { return };
    stage.step(2).await;
    // Messages of a batch may belong to many traces, so it belongs to none.
    let trace = (driver != Driver::Batch).then(|| TRACE[3..35].to_owned());
    let seen = |offset| (offset, 1, Some("handle"), trace.clone());
    assert_eq!(*stage.seen.lock().unwrap(), [seen(1), seen(2)]);
    stage.end().await;
}

async fn nothing_is_begun_once_the_group_is_held_back(driver: Driver) {
    if driver.is_together() {
        // All of a slice is released: a case of its own.
        return;
    }
    let settings = TopicSettings { ordering: Ordering::Key, lanes: 1, ..attempts(3) };
    let key = Some("a");
    let Some(stage) = Stage::new(driver, settings, &[("ok", key), ("pause", key), ("ok", key)]).await else {
        return;
    };
    // A batch handler has all of its batch already.
    let batch = if driver == Driver::Batch { 2 } else { 10 };
    assert_eq!(stage.step(batch).await, [1, 2]);
    // A claim reports that it is not paused.
    assert_eq!(stage.step(batch).await, [3]);
    let seen = stage.seen.lock().unwrap().clone();
    assert!(seen.iter().all(|(_, attempt, ..)| *attempt == 1), "released, which is no attempt: {seen:?}");
    stage.end().await;
}

impl Stage {
    /// The state of the group once it has stored its own pause, and the offsets of its dead letters.
    async fn paused(&self) -> (SubscriptionState, Option<String>, Vec<i64>) {
        let pause = &self.group.get().unwrap().serve_state.own_pause;
        while pause.is_pending() {
            tokio::task::yield_now().await;
        }
        let status = self.headwater.groups("orders").get("email").await.unwrap().status;
        let dead = self.headwater.dead_letters().of("orders", "email").list(100).await.unwrap();
        (status.state, status.state_reason, dead.iter().map(|dead_letter| dead_letter.offset.0).collect())
    }
}

async fn too_many_burials_in_a_row_pause_the_group(driver: Driver) {
    let settings = TopicSettings { ordering: Ordering::Key, lanes: 1, ..attempts(3) };
    let payloads = unkeyed(&["bury", "bury", "skip", "bury", "bury", "bury", "bury", "ok"]);
    let Some(stage) = Stage::new(driver, settings, &payloads).await else { return };
    // A batch handler has all of its batch already: what it would bury beyond the limit is released.
    let handled = if driver == Driver::Batch { 8 } else { 6 };
    assert_eq!(stage.step(10).await.len(), handled);
    let (state, reason, dead) = stage.paused().await;
    assert_eq!((state, dead), (SubscriptionState::Paused, vec![1, 2, 4, 5, 6]));
    assert_eq!(
        reason.as_deref(),
        Some("3 messages in a row became dead letters, the last at offset 6: never")
    );
    assert_eq!(stage.totals().buried, 5);
    assert_eq!(stage.step(10).await, [] as [i64; 0], "it is paused");
    stage.headwater.groups("orders").resume("email").await.unwrap();
    let rest: &[i64] = if driver == Driver::Batch { &[7] } else { &[7, 8] };
    assert_eq!(stage.step(10).await, rest, "nothing was lost, and the count begins again");
    assert!(
        stage.seen.lock().unwrap().iter().all(|(_, attempt, ..)| *attempt == 1),
        "a release is no attempt"
    );
    stage.end().await;
}

async fn a_failure_at_the_last_attempt_counts_as_a_burial(driver: Driver) {
    let payloads = unkeyed(&["fail", "panic", "fail", "fail", "fail"]);
    let Some(stage) = Stage::new(driver, attempts(1), &payloads).await else { return };
    stage.step(1).await;
    let (state, _, dead) = stage.paused().await;
    assert_eq!((state, dead), (SubscriptionState::Paused, vec![1, 2, 3]));
    stage.end().await;
}

/// Only drivers that decode payloads can fail to.
async fn a_payload_that_cannot_be_decoded_is_buried_and_counted(driver: Driver, handling: Handling) {
    let Some(stage) = Stage::new(driver, attempts(3), &unkeyed(&["{broken", "7"])).await else { return };
    let consumer = stage.headwater.consumer("orders", "email").handling("one", handling);
    let mut stepper = consumer.stepwise().await.unwrap();
    stepper.drain().await.unwrap();
    let totals = stepper.running().health().totals;
    assert_eq!((totals.acked, totals.buried, totals.decode_failed), (1, 1, 1));
    assert!(stage.errors().await[0].contains("line 1 column"));
    stage.end().await;
}

#[tokio::test]
async fn a_single_payload_that_cannot_be_decoded_is_buried_and_counted() {
    let handling = Handling::one(|_: Json<u64>, _| async { Ok(()) });
    a_payload_that_cannot_be_decoded_is_buried_and_counted(Driver::Single, handling).await;
}

#[tokio::test]
async fn a_payload_that_cannot_be_decoded_is_buried_and_counted_in_a_sqlite_transaction() {
    let handling = Handling::in_sqlite(|_, _: Json<u64>, _| Ok(()));
    a_payload_that_cannot_be_decoded_is_buried_and_counted(Driver::Sqlite, handling).await;
}

#[cfg(feature = "postgres")]
#[tokio::test]
async fn a_payload_that_cannot_be_decoded_is_buried_and_counted_in_a_postgres_transaction() {
    let handling = Handling::in_postgres(|_, _: Json<u64>, _| async { Ok(()) });
    a_payload_that_cannot_be_decoded_is_buried_and_counted(Driver::Postgres, handling).await;
}
