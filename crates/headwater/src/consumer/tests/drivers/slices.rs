//! Slices that are handled together: what commits is what message by message would have committed, and whatever is refused
//! is handled message by message, each message once.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use uuid::Uuid;

use super::{Driver, Seen, Stage, act, act_now, attempts, note, unkeyed};
use crate::clock::ManualClock;
use crate::consumer::group::Group;
use crate::error::{Error, ErrorKind, Result};
use crate::handler::{Context, HandleSlice, HandlerResult, Handling, Messages, OpenSlice};
use crate::message::{Message, NewMessage};
use crate::settle::Verdict;
use crate::topic::TopicSettings;
use crate::transaction::{Row, Transaction};

/// A handler in both forms: each adds a row to a table, and then acts on the payload.
struct Handlers {
    driver: Driver,
    seen: Seen,
    group: Arc<std::sync::OnceLock<Arc<Group>>>,
    clock: ManualClock,
    /// The table of effects, if the case has one.
    table: Option<String>,
    /// What became of slices: how many messages each had to handle, and whether it was finished.
    slices: Mutex<Vec<(usize, bool)>>,
}

/// A slice. What it noted counts once it is finished: a slice that is refused has never happened.
struct Open {
    handlers: Arc<Handlers>,
    seen: Seen,
    fails_at_the_end: bool,
}

pub(super) fn handling(stage: &Stage) -> Handling {
    handling_of(&Arc::new(Handlers::new(stage, None)))
}

fn handling_of(handlers: &Arc<Handlers>) -> Handling {
    let (one, whole) = (Arc::clone(handlers), Arc::clone(handlers));
    let handling = Handling::transactional(move |tx: Transaction, message: Message, context: Context| {
        let handlers = Arc::clone(&one);
        async move {
            note(&handlers.seen, &message, context.attempt());
            handlers.add(&tx, &message).await?;
            handlers.act(message, context.attempt()).await
        }
    });
    handling.slices(whole)
}

impl Handlers {
    fn new(stage: &Stage, table: Option<String>) -> Self {
        Handlers {
            driver: stage.driver,
            seen: Arc::clone(&stage.seen),
            group: Arc::clone(&stage.group),
            clock: stage.clock.clone(),
            table,
            slices: Mutex::default(),
        }
    }

    async fn add(&self, tx: &Transaction, message: &Message) -> Result<()> {
        let Some(table) = &self.table else { return Ok(()) };
        let insert = format!("INSERT INTO {table} (message_offset) VALUES ($1)");
        tx.execute(&insert, (message.offset.0,)).await.map(drop)
    }

    async fn act(&self, message: Message, attempt: u32) -> HandlerResult {
        // On SQLite a handler in a transaction waits for nothing else.
        if self.driver == Driver::Together {
            return act_now(&message.payload, &self.group, attempt);
        }
        act(message.payload, Arc::clone(&self.group), attempt).await
    }
}

impl HandleSlice for Handlers {
    fn begin(
        self: Arc<Self>,
        _: Transaction,
        messages: Messages,
        fresh: Vec<usize>,
    ) -> BoxFuture<'static, Result<Arc<dyn OpenSlice>>> {
        self.slices.lock().unwrap().push((fresh.len(), false));
        let is = |payload: &[u8]| messages.iter().any(|message| message.payload == payload);
        let fails_at_the_end = is(b"fails at the end");
        assert!(!is(b"panics at the beginning"), "on purpose");
        let open: Arc<dyn OpenSlice> =
            Arc::new(Open { handlers: self, seen: Seen::default(), fails_at_the_end });
        std::future::ready(Ok(open)).boxed()
    }
}

impl OpenSlice for Open {
    fn handle(self: Arc<Self>, tx: Transaction, context: Context) -> BoxFuture<'static, Verdict> {
        async move {
            let message = context.message().clone();
            note(&self.seen, &message, context.attempt());
            self.handlers.add(&tx, &message).await.unwrap();
            match &message.payload[..] {
                b"commits" => drop(tx.execute("/* why */ commit", ()).await),
                b"outlives its lease" => self.handlers.clock.advance(Duration::from_secs(24 * 3_600)),
                _ => {}
            }
            let acted = self.handlers.act(message, context.attempt()).await;
            acted.map_or_else(crate::Failure::into_verdict, |()| Verdict::Done)
        }
        .boxed()
    }

    fn finish(self: Arc<Self>, _: Transaction) -> BoxFuture<'static, Result<()>> {
        if self.fails_at_the_end {
            let error = Error::new(ErrorKind::Database, "refused");
            return std::future::ready(Err(error)).boxed();
        }
        self.handlers.seen.lock().unwrap().append(&mut self.seen.lock().unwrap());
        self.handlers.slices.lock().unwrap().last_mut().unwrap().1 = true;
        std::future::ready(Ok(())).boxed()
    }
}

/// A stage whose handlers leave effects in a table.
struct Scene {
    stage: Stage,
    handlers: Arc<Handlers>,
}

impl Scene {
    async fn new(driver: Driver, settings: TopicSettings, payloads: &[&str]) -> Option<Self> {
        let stage = Stage::new(driver, settings, &unkeyed(payloads)).await?;
        let table = format!("effect_{}", Uuid::now_v7().simple());
        let scene = Scene { handlers: Arc::new(Handlers::new(&stage, Some(table.clone()))), stage };
        scene.run(format!("CREATE TABLE {table} (message_offset bigint)")).await;
        Some(scene)
    }

    async fn run(&self, sql: String) -> Vec<Row> {
        let run = move |tx: Transaction| async move { tx.query(&sql, ()).await };
        let rows: Result<Vec<Row>> = self.stage.headwater.transaction(run).await;
        rows.unwrap()
    }

    /// Hands out what is due, once. Returns what became of slices meanwhile.
    async fn step(&self) -> Vec<(usize, bool)> {
        let before = self.handlers.slices.lock().unwrap().len();
        let consumer = self.stage.headwater.consumer("orders", "email").batch(10).concurrency(1);
        let consumer = consumer.timeout(self.stage.limit);
        let mut stepper = consumer.handling("one", handling_of(&self.handlers)).stepwise().await.unwrap();
        let group = Arc::clone(&stepper.running().group);
        self.stage.group.get_or_init(|| Arc::clone(&group));
        while stepper.step().await.unwrap() > 0 && !group.serve_state.is_held_back() {}
        self.handlers.slices.lock().unwrap()[before..].to_vec()
    }

    /// The offsets of all effects.
    async fn effects(&self) -> Vec<i64> {
        let table = self.handlers.table.as_ref().unwrap();
        let rows = self.run(format!("SELECT message_offset FROM {table} ORDER BY message_offset")).await;
        rows.iter().map(|row| row.get("message_offset").unwrap()).collect()
    }

    async fn end(self) {
        let table = self.handlers.table.as_ref().unwrap();
        self.run(format!("DROP TABLE {table}")).await;
        self.stage.end().await;
    }
}

/// Runs each named case on both databases.
macro_rules! on_each_database {
    ($($case:ident),* $(,)?) => {
        mod sqlite {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() {
                super::$case(super::Driver::Together).await;
            })*
        }
        #[cfg(feature = "postgres")]
        mod postgres {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() {
                super::$case(super::Driver::TogetherPostgres).await;
            })*
        }
    };
}

on_each_database!(
    a_slice_is_handled_together,
    a_message_that_fails_in_the_middle_leaves_every_other_one_handled_once,
    a_slice_that_fails_at_its_end_or_beginning_is_handled_message_by_message,
    of_two_messages_with_one_id_the_first_is_handled,
    a_message_that_was_handled_before_is_not_handled_again,
    a_handler_that_ends_the_transaction_is_stopped,
    a_slice_that_outlives_its_lease_has_no_effect,
    a_pause_in_the_middle_releases_all_of_the_slice,
);

async fn a_slice_is_handled_together(driver: Driver) {
    let Some(scene) = Scene::new(driver, attempts(3), &["ok"; 5]).await else { return };
    assert_eq!(scene.step().await, [(5, true)]);
    assert_eq!(scene.effects().await, [1, 2, 3, 4, 5]);
    let totals = scene.stage.totals();
    assert_eq!((totals.delivered, totals.acked, totals.retried), (5, 5, 0));
    assert_eq!(scene.step().await, [], "all of it is acked");
    scene.end().await;
}

async fn a_message_that_fails_in_the_middle_leaves_every_other_one_handled_once(driver: Driver) {
    let payloads = ["ok", "ok", "ok", "ok", "fail once", "ok", "ok"];
    let Some(scene) = Scene::new(driver, attempts(3), &payloads).await else { return };
    assert_eq!(scene.step().await, [(7, false)]);
    assert_eq!(scene.effects().await, [1, 2, 3, 4, 6, 7], "what the slice had written was rolled back");
    scene.stage.clock.advance(Duration::from_secs(3_600));
    assert_eq!(scene.step().await, [], "one message is no slice");
    assert_eq!(scene.effects().await, [1, 2, 3, 4, 5, 6, 7]);
    let attempts: Vec<_> = scene.stage.seen.lock().unwrap().iter().map(|seen| (seen.0, seen.1)).collect();
    assert_eq!(attempts, [(1, 1), (2, 1), (3, 1), (4, 1), (5, 1), (6, 1), (7, 1), (5, 2)]);
    let totals = scene.stage.totals();
    assert_eq!((totals.delivered, totals.acked, totals.retried, totals.buried), (8, 7, 1, 0));
    scene.end().await;
}

async fn a_slice_that_fails_at_its_end_or_beginning_is_handled_message_by_message(driver: Driver) {
    for payload in ["fails at the end", "panics at the beginning"] {
        let Some(scene) = Scene::new(driver, attempts(3), &["ok", payload, "ok"]).await else { return };
        assert_eq!(scene.step().await, [(3, false)], "{payload}");
        assert_eq!(scene.effects().await, [1, 2, 3], "{payload}");
        assert_eq!(scene.stage.totals().panicked, 0, "no handler of a message did");
        scene.end().await;
    }
}

async fn of_two_messages_with_one_id_the_first_is_handled(driver: Driver) {
    let Some(scene) = Scene::new(driver, attempts(3), &[]).await else { return };
    let (twice, other) = (Uuid::now_v7(), Uuid::now_v7());
    let messages = [twice, other, twice].map(|id| NewMessage::new("ok").message_id(id));
    scene.stage.headwater.producer("orders").send_batch(&messages).await.unwrap();
    assert_eq!(scene.step().await, [(2, true)]);
    assert_eq!(scene.effects().await, [1, 2]);
    assert_eq!(scene.stage.totals().acked, 3);
    scene.end().await;
}

async fn a_message_that_was_handled_before_is_not_handled_again(driver: Driver) {
    let Some(scene) = Scene::new(driver, attempts(3), &[]).await else { return };
    let ids = [(); 4].map(|()| Uuid::now_v7());
    let messages = ids.map(|id| NewMessage::new("ok").message_id(id));
    let producer = scene.stage.headwater.producer("orders");
    producer.send_batch(&messages[..2]).await.unwrap();
    assert_eq!(scene.step().await, [(2, true)]);
    // The first two come again, as after an answer that was lost.
    producer.send_batch(&[&messages[2..3], &messages[..2], &messages[3..]].concat()).await.unwrap();
    assert_eq!(scene.step().await, [(2, true)]);
    assert_eq!(scene.effects().await, [1, 2, 3, 6]);
    scene.end().await;
}

async fn a_handler_that_ends_the_transaction_is_stopped(driver: Driver) {
    let Some(scene) = Scene::new(driver, attempts(3), &["ok", "commits", "ok"]).await else { return };
    assert_eq!(scene.step().await.len(), 1);
    // Had it committed, the third message would have an inbox entry and no effect.
    assert_eq!(scene.effects().await, [1, 2, 3]);
    assert_eq!(scene.stage.totals().acked, 3);
    scene.end().await;
}

async fn a_slice_that_outlives_its_lease_has_no_effect(driver: Driver) {
    let Some(scene) = Scene::new(driver, attempts(3), &["ok", "outlives its lease"]).await else { return };
    assert_eq!(scene.step().await[0], (2, true), "finished, and then refused by its settlement");
    let effects = scene.effects().await;
    assert!(effects.is_empty() || effects == [1, 2], "all or nothing: {effects:?}");
    while scene.effects().await.len() < 2 {
        scene.stage.clock.advance(Duration::from_secs(60));
        scene.step().await;
    }
    assert_eq!(scene.effects().await, [1, 2]);
    scene.end().await;
}

async fn a_pause_in_the_middle_releases_all_of_the_slice(driver: Driver) {
    let Some(scene) = Scene::new(driver, attempts(1), &["ok", "pause", "ok"]).await else { return };
    assert_eq!(scene.step().await, [(3, false)]);
    assert_eq!(scene.effects().await, [] as [i64; 0]);
    assert_eq!(scene.stage.totals().acked, 0);
    scene.end().await;
}
