//! Durable messaging in the database you already have.
//!
//! A topic is an append-only log. For each group the store keeps only the ranges of the log that are not done yet. From
//! that come queues, fan-out, exact acks, retries, dead letters and strict order per key, on one SQLite file or on
//! PostgreSQL. The same program runs on both; the URL selects the engine.
//!
//! # A first program
//! ```
//! use std::time::Duration;
//! use headwater::{Context, Headwater, Json};
//! use tokio::sync::mpsc;
//!
//! #[derive(serde::Serialize, serde::Deserialize)]
//! struct Order {
//!     id: u64,
//! }
//!
//! #[tokio::main]
//! async fn main() -> headwater::Result<()> {
//!     let headwater = Headwater::in_memory().await?; // or open("sqlite:shop.db"), or open("postgres://…")
//!
//!     let (handled, mut orders) = mpsc::channel(8);
//!     let running = headwater
//!         .consumer("orders", "email")
//!         .member("mailer", move |Json(order): Json<Order>, context: Context| {
//!             let handled = handled.clone();
//!             async move {
//!                 println!("order {}, attempt {}", order.id, context.attempt());
//!                 handled.send(order.id).await?; // any error: retried, by the topic's policy
//!                 Ok(())
//!             }
//!         })
//!         .run()
//!         .await?;
//!
//!     headwater.producer("orders").send(&Order { id: 7 }).key("customer-1").await?;
//!     assert_eq!(orders.recv().await, Some(7));
//!
//!     running.shutdown(Duration::from_secs(10)).await?;
//!     headwater.close().await
//! }
//! ```
//!
//! # Publishing
//! A [`Producer`] returns once a message is durable. Sends that arrive while another is in flight share the next
//! statement. What can be sent is in [`codec::IntoMessage`]: a reference to anything serializable is JSON.
//!
//! ```
//! # #[tokio::main] async fn main() -> headwater::Result<()> {
//! # use std::time::Duration;
//! # let headwater = headwater::Headwater::in_memory().await?;
//! use headwater::NewMessage;
//!
//! let orders = headwater.producer("orders");
//! orders.send(&"a kettle").key("customer-1").header("source", "web").await?;
//! // A batch: all of it or nothing, in one statement.
//! orders.send_batch(&[NewMessage::json(&"a cup")?, NewMessage::json(&"a pot")?]).await?;
//! // Scheduled: it gets its offset when it is due. Until then `headwater.scheduled` lists, moves and cancels it.
//! let reminder = orders.send(&"remind me").delay(Duration::from_secs(24 * 3_600)).await?;
//! assert_eq!(reminder.offset, None);
//! assert!(headwater.scheduled("orders").cancel(reminder.message_id).await?);
//! // With a time to live: skipped and counted if no handler gets it in time.
//! orders.send(&"price?").expires_in(Duration::from_secs(5)).await?;
//! // Deduplicated: a repeat within the topic's window returns the first message's offset.
//! let first = orders.send(&"pay").dedup_key("payment-9").await?;
//! let again = orders.send(&"pay").dedup_key("payment-9").await?;
//! assert!(again.duplicate && again.offset == first.offset);
//! # headwater.close().await }
//! ```
//!
//! To wait for an answer: [`Producer::request`] and [`Context::reply`].
//!
//! To publish in your own transaction, so that a rollback also discards the message, pass it to
//! [`within`](publish::Sends::within): `orders.send(&order).within(&mut transaction).await?` with tokio-postgres or sqlx
//! (feature `sqlx`), `orders.send(&order).within(&transaction)?` with rusqlite; or plain SQL from any language: `SELECT
//! headwater.publish('orders', '{"n":1}')`. On a schedule: [`Headwater::cron`].
//!
//! # Other systems
//! What must reach an external broker with a status of its own goes to the [`outbox`], in the transaction of the change it is about; a
//! message that comes from elsewhere is processed once with the [`inbox`]; and what only a person can decide is parked in the dead letters
//! ([`Headwater::dead_letters`]). Each has `within(&transaction)` for [`Headwater::transaction`] and [`Handling::transactional`].
//!
//! # Consuming
//! A consumer serves a group on a topic with one or more members. A [`Handling`] describes how a member handles
//! messages:
//!
//! ```
//! use headwater::transaction::Transaction;
//! use headwater::{Context, Handling, Json, Messages};
//!
//! // One message at a time, several at once as the consumer's `concurrency` allows.
//! let one = Handling::one(|Json(n): Json<i64>, context: Context| async move {
//!     println!("{n} at offset {}", context.message().offset);
//!     Ok(())
//! });
//! // Up to the consumer's `batch` at a time. `Verdicts` instead of `()` settles some of them differently.
//! let many = Handling::batch(|messages: Messages, _: Context| async move {
//!     println!("{} messages", messages.len());
//!     Ok(())
//! });
//! // In the store's own transaction: the write, the inbox entry and the ack commit together. Exactly once.
//! let once = Handling::transactional(|tx: Transaction, Json(n): Json<i64>| async move {
//!     tx.execute("INSERT INTO ledger (n) VALUES ($1)", (n,)).await?;
//!     Ok(())
//! });
//! # let _ = (one, many, once);
//! ```
//!
//! [`ConsumerBuilder::member`](consumer::ConsumerBuilder::member) is short for the first. [`Handling::in_sqlite`] and [`Handling::in_postgres`] are the last
//! one with the database's own driver. Handlers share what the consumer was given by
//! [`state`](consumer::ConsumerBuilder::state), and [`layer`](consumer::ConsumerBuilder::layer) runs code of yours around each call. Programs
//! with their own loop take batches from [`ConsumerBuilder::open`](consumer::ConsumerBuilder::open).
//!
//! # Outcomes
//! | a handler returns | and the message |
//! |---|---|
//! | `Ok(())` | is done |
//! | any error, by `?` | is retried after the group's back-off; after `max_attempts` it becomes a dead letter |
//! | [`Retry::after`] | is retried after that time; counts as an attempt |
//! | [`Bury`] | becomes a dead letter at once, with the reason |
//! | [`Skip`] | is done, and counted separately |
//! | [`Release`] | is due again at once, and counts no attempt |
//!
//! A panic and a `timeout` are errors like any other. A payload that cannot be decoded becomes a dead letter at once:
//! it would fail each time ([`ConsumerBuilder::undecodable`](consumer::ConsumerBuilder::undecodable) chooses otherwise). After 100 burials in a row a
//! group pauses itself ([`ConsumerBuilder::pause_after_burials`](consumer::ConsumerBuilder::pause_after_burials)): a wrong deploy does not empty a
//! backlog into the dead letters. A process that crashes loses nothing: its messages are redelivered within seconds. See
//! [`Failure`] for an example, and [`Headwater::dead_letters`] for listing and redriving dead letters.
//!
//! # Members and filters
//! The members of a group share its messages: the stable hash of the key (or of the id, without a key) selects one of
//! the members whose filter accepts the message. A message that no member accepts is done without being handled.
//! Members may [join](Running::join) and [leave](Running::leave) while the consumer runs; the last one cannot leave.
//!
//! ```
//! # #[tokio::main] async fn main() -> headwater::Result<()> {
//! # let headwater = headwater::Headwater::in_memory().await?;
//! use headwater::{Context, Handling, Message};
//!
//! let large = |message: &Message| message.headers.get("size").is_some_and(|size| size == "large");
//! let ship = |_: Message, context: Context| async move {
//!     assert_eq!(context.member() == "lorry", context.message().headers["size"] == "large");
//!     Ok(())
//! };
//! let mut consumer = headwater
//!     .consumer("orders", "shipping")
//!     .handling("lorry", Handling::one(ship).when(large))
//!     .handling("van", Handling::one(ship).when(move |message| !large(message)))
//!     .filter(|message| message.message_type.as_deref() == Some("order"))
//!     .stepwise()
//!     .await?;
//! for size in ["large", "small"] {
//!     headwater.producer("orders").send(&1).message_type("order").header("size", size).await?;
//!     headwater.producer("orders").send(&1).message_type("quote").header("size", size).await?;
//! }
//! consumer.drain().await?;
//! let totals = consumer.running().health().totals;
//! assert_eq!((totals.acked, totals.filtered), (2, 2));
//! # headwater.close().await }
//! ```
//!
//! Every group of a [`pub_sub`](TopicBuilder::pub_sub) topic gets every message; a queue, the default, has one group.
//!
//! # Lifecycle of a group
//! A group exists from its first subscription until it is cancelled, whether or not a process serves it. Running
//! consumers send heartbeats for it. A group without a heartbeat for longer than its `heartbeat_timeout` is
//! dead: a pub/sub topic no longer keeps messages for it, its position is kept, and its next heartbeat or subscription
//! makes it active again. A paused group, in contrast, loses nothing. [`Headwater::groups`] shows and manages groups:
//!
//! ```
//! # #[tokio::main] async fn main() -> headwater::Result<()> {
//! # use std::time::Duration;
//! use headwater::{Context, EndReason, Headwater, Json, Preset, SubscriptionState};
//! use headwater::health::HealthState;
//!
//! let headwater = Headwater::in_memory().await?;
//! headwater.topic("orders").preset(Preset::Standard).create_if_missing().await?; // kept for a day after every group is done
//! let running = headwater
//!     .consumer("orders", "email")
//!     .member("mailer", |Json(_): Json<u64>, _: Context| async { Ok(()) })
//!     .run()
//!     .await?;
//!
//! let groups = headwater.groups("orders");
//! groups.pause("email").await?; // in every process, at once
//! assert_eq!(groups.get("email").await?.status.state, SubscriptionState::Paused);
//! groups.resume("email").await?;
//! for group in groups.list().await? {
//!     println!("{}: {} behind, {:?}", group.status.group, group.status.lag, group.health_issues);
//! }
//!
//! groups.cancel("email").await?; // permanent: subscribing again creates a new subscription
//! assert_eq!(running.until_ended().await, EndReason::Cancelled);
//! assert_eq!(running.health().state, HealthState::Stopped);
//! # headwater.close().await }
//! ```
//!
//! After ten failed heartbeats in a row a process hands out no more messages until one succeeds: without the database
//! it must not continue with messages that other processes hold by then. Graceful shutdown cancels no subscription.
//!
//! Messages are removed by the topic's retention ([`TopicSettings`]); groups that have been dead or cancelled for a
//! long time are removed automatically. One elected process among those that run consumers does this and all other
//! maintenance. See [`Headwater::maintenance`] for running it elsewhere or by hand, and [`OpenOptions::maintenance`]
//! for switching it off.
//!
//! # Processes
//! A [`process`] (saga) has several steps, each a command to a topic with a time-out, attempts and a compensation.
//! [`Headwater::processes`] starts, finds and manages them: killed anywhere, a process continues where it was, and a command has
//! its effect once.
//!
//! # Order
//! With [`ConsumerBuilder::ordered_by_key`](consumer::ConsumerBuilder::ordered_by_key) a group handles messages of one key strictly in order across
//! all processes: those behind a failed one wait for it, other keys continue. [`TopicBuilder::ordered_by_key`] is the
//! default of a topic's groups. Without either, offsets rise within a lease, and leases are handled concurrently.
//! Attempts, back-off and heartbeats are a group's own in the same way.
//!
//! # Shutdown
//! [`Running::shutdown`] claims nothing more, releases the messages that no handler has started, waits for running
//! handlers up to the given time and returns once their outcomes are stored; other processes can claim the released
//! messages at once. Dropping a [`Running`] stops it without waiting, and logs a WARN. [`Headwater::shutdown`] does all of it for a handle: it
//! ends cron jobs, then all consumers at once, then producers, closes the store, and returns what was left unfinished.
//!
//! # Observing
//! [`Running::health`], [`Producer::health`] and [`cron::CronJob::health`] return rates, percentiles, totals and the last errors
//! without any exporter; the `metrics` facade has the same per topic and group. `tracing` spans follow W3C trace context from
//! publisher to handler ([`trace`]); with the feature `otel` so do those of tracing-opentelemetry. Failures are logged with topic, group,
//! member, offset, message id, attempt and error: a burial, a panic and a timeout as WARN, a retry as DEBUG, and as INFO if one attempt is
//! left. [`Headwater::groups`] shows the progress of each group, [`Headwater::doctor`] what is wrong.
//!
//! # Testing
//! A store in memory, a clock that the test moves and a consumer that runs step by step: no test sleeps.
//!
//! ```
//! # #[tokio::main] async fn main() -> headwater::Result<()> {
//! # use std::time::Duration;
//! use headwater::{Clock, Context, Headwater, Json, OpenOptions, Retry};
//! use headwater::testing::ManualClock;
//!
//! let clock = ManualClock::at("2026-03-02T09:00:00Z".parse().expect("a time"));
//! let options = OpenOptions::default().clock(Clock::Manual(clock.clone()));
//! let headwater = Headwater::open_with("sqlite::memory:", options).await?;
//! let confirmations = headwater.producer("confirmations");
//! let mut consumer = headwater
//!     .consumer("orders", "email")
//!     .member("mailer", move |Json(id): Json<u64>, context: Context| {
//!         let confirmations = confirmations.clone();
//!         async move {
//!             if context.attempt() == 1 {
//!                 return Err(Retry::after(Duration::from_secs(60)).because("mail server unavailable").into());
//!             }
//!             confirmations.send(&id).await?;
//!             Ok(())
//!         }
//!     })
//!     .stepwise()
//!     .await?;
//!
//! headwater.producer("orders").send(&7).await?;
//! consumer.drain().await?;
//! assert_eq!(consumer.step().await?, 0, "nothing is due for a minute");
//! clock.advance(Duration::from_secs(60));
//! consumer.drain().await?;
//! assert_eq!(headwater.published("confirmations").await?[0].payload, "7");
//! # headwater.close().await }
//! ```
//!
//! The crate root has the types that most programs use. The rest is in modules: settings of topics in [`topic`], builders and limits of consumers in
//! [`consumer`], layers in [`handler`], the store's transaction in [`transaction`], codecs in [`codec`], [`outbox`], [`inbox`] and positions of bridges in [`bridge`], cron jobs in [`cron`], maintenance in [`maintenance`], what tests use in [`testing`], figures in
//! [`health`], and the types for operators and engines in [`store`].
//! `examples/` has programs to copy from, and `docs/life-of-a-message.md` follows one message through the code.

mod backfill;
pub mod bridge;
mod clock;
pub mod codec;
pub mod consumer;
#[cfg(feature = "cron")]
pub mod cron;
mod dead_letter;
mod error;
mod gate;
mod groups;
pub mod handler;
mod headwater;
pub mod inbox;
mod lease;
mod lease_thread;
pub mod limits;
pub mod maintenance;
mod message;
mod name;
mod namespace;
mod observe;
pub mod outbox;
pub mod process;
pub mod publish;
pub mod relays;
mod repository;
pub mod scheduled;
pub mod settle;
pub mod store;
mod subscription;
pub mod tail;
pub mod testing;
pub mod tokens;
pub mod topic;
mod topics;
pub mod transaction;

pub use clock::Clock;
#[doc(inline)]
pub use codec::Json;
#[cfg(feature = "protobuf")]
#[doc(inline)]
pub use codec::Protobuf;
#[doc(inline)]
pub use consumer::{Batch, Consumer, EndReason, Running};
pub use dead_letter::DeadLetters;
pub use error::{Error, ErrorKind, Result};
pub use groups::Groups;
#[doc(inline)]
pub use handler::{
    Bury, Context, Failure, HandlerResult, Handling, Messages, Release, Retry, Skip, Verdicts,
};
pub use headwater::{Headwater, TopicBuilder};
pub use message::{Headers, Message, NewMessage, Offset, Published};
pub use name::{GroupName, TopicName};
pub use observe::{health, trace};
#[doc(inline)]
pub use publish::Producer;
#[doc(inline)]
pub use store::OpenOptions;
pub use subscription::{DeliveryPolicy, Start, SubscriptionState};

#[doc(inline)]
pub use topic::{Preset, TopicSettings};
pub use topics::Topics;

// The crates whose types are part of this API: programs that use these re-exports always have the version that fits.
/// Payloads are [`bytes::Bytes`].
pub use bytes;
/// Times are [`jiff::Timestamp`].
pub use jiff;
/// Types in [`Protobuf`] implement `prost::Name`.
#[cfg(feature = "protobuf")]
pub use prost;
/// The driver of transactions and connections on SQLite: of handlers, and for [`publish::Sends::within`].
#[cfg(feature = "sqlite")]
pub use rusqlite;
/// A driver of transactions on PostgreSQL, for [`publish::Sends::within`].
#[cfg(feature = "sqlx")]
pub use sqlx;
/// The driver of transactions on PostgreSQL: of handlers, and for [`publish::Sends::within`].
#[cfg(feature = "postgres")]
pub use tokio_postgres;
/// Ids of messages are [`uuid::Uuid`].
pub use uuid;

/// The README's programs compile.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;
