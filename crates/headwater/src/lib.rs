//! Durable messaging that lives in the database you already have.
//!
//! A topic is an append-only log, and a group remembers only which ranges of it are not done yet: queues, fan-out, exact
//! acks, retries, dead letters and strict order per key, on one SQLite file or on PostgreSQL. The same program runs on
//! both; the URL decides.
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
//!                 handled.send(order.id).await?; // any error: tried again, by the topic's policy
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
//! A [`Producer`] returns once a message is durable. Sends that come while another is under way share the next statement.
//! What can be sent is in [`IntoMessage`]: a reference to anything serializable is JSON.
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
//! // Later: it has no place in the log before its time.
//! let tomorrow = jiff::Timestamp::now() + Duration::from_secs(24 * 3_600);
//! assert_eq!(orders.send(&"remind me").deliver_at(tomorrow).await?.offset, None);
//! // Once: a repeat within the topic's window is answered with the first one.
//! let first = orders.send(&"pay").dedup_key("payment-9").await?;
//! let again = orders.send(&"pay").dedup_key("payment-9").await?;
//! assert!(again.duplicate && again.offset == first.offset);
//! # headwater.close().await }
//! ```
//!
//! In your own transaction, so that a rollback takes the message with it: [`store::postgres::publish`] with tokio-postgres,
//! `store::postgres::sqlx::publish` with sqlx (feature `sqlx`), [`store::sqlite::publish`] with rusqlite, or plain SQL from
//! any language: `SELECT headwater.publish('orders', '{"n":1}')`. On a schedule: [`Headwater::cron`].
//!
//! # Consuming
//! A consumer serves a group on a topic with one or more members. What a member does is a [`Handling`]:
//!
//! ```
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
//! let once = Handling::in_sqlite(|connection, Json(n): Json<i64>, _: &Context| {
//!     connection.execute("INSERT INTO ledger (n) VALUES (?1)", [n])?;
//!     Ok(())
//! });
//! # let _ = (one, many, once);
//! ```
//!
//! [`ConsumerBuilder::member`] is short for the first. [`Handling::in_postgres`] is the last one on PostgreSQL. Programs
//! that drive themselves take batches from [`ConsumerBuilder::open`].
//!
//! # Outcomes
//! | a handler returns | and the message |
//! |---|---|
//! | `Ok(())` | is done |
//! | any error, by `?` | is tried again after the topic's back-off, and buried at `max_attempts` |
//! | [`Retry::after`] | is tried again after that long; counts as an attempt |
//! | [`Bury`] | goes to the dead letters now, with the reason |
//! | [`Skip`] | is done, and counted apart |
//!
//! A panic and a `timeout` are errors like any other. A payload that cannot be decoded is buried: it would fail each time.
//! A process that dies loses nothing: its messages come again, within seconds. See [`Failure`] for an example, and
//! [`Headwater::dead_letters`] for what to do with the buried.
//!
//! # Members and filters
//! Members of a group share its messages: the stable hash of the key (else of the id) picks one among those that want the
//! message. What nobody wants is done unseen. Members may [join](Running::join) and [leave](Running::leave) while it runs;
//! the last one stays.
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
//! # Groups that come and go
//! A group is there from its first subscription until it is cancelled, whether anybody serves it or not. Running consumers
//! say for it that it lives; one that is silent for longer than its topic's `heartbeat_timeout` is dead: messages are not
//! kept for it any more, its place stays, and it is back with its next heartbeat or subscription. A pause, in contrast,
//! loses nothing. [`Headwater::groups`] is for whoever looks after them:
//!
//! ```
//! # #[tokio::main] async fn main() -> headwater::Result<()> {
//! # use std::time::Duration;
//! use headwater::{Context, EndReason, Headwater, Json, Preset, SubscriptionState};
//! use headwater::health::HealthState;
//!
//! let headwater = Headwater::in_memory().await?;
//! headwater.topic("orders").preset(Preset::Standard).create().await?; // kept for a day after all are done
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
//!     println!("{}: {} behind, {:?}", group.status.group, group.status.lag, group.ailments);
//! }
//!
//! groups.cancel("email").await?; // for good: subscribing again makes a new one
//! assert_eq!(running.until_ended().await, EndReason::Cancelled);
//! assert_eq!(running.health().state, HealthState::Stopped);
//! # headwater.close().await }
//! ```
//!
//! Heartbeats that fail ten times in a row hold a process back until one succeeds: cut off from the database it does not
//! go on with what others have by then. Graceful shutdown cancels nothing.
//!
//! Messages go by the topic's retention ([`TopicSettings`]), groups long dead or cancelled by themselves. That and the rest
//! of the upkeep is done by one elected process among those that run consumers; see [`Headwater::maintenance`] for doing it
//! elsewhere or by hand, and [`OpenOptions::maintenance`] for switching it off.
//!
//! # Order
//! With [`TopicBuilder::ordered_by_key`] messages of one key are handled strictly in order, in all processes together: those
//! behind a failed one wait for it, other keys go on. Without it offsets rise within a hand-out, and hand-outs run side by side.
//!
//! # Shutdown
//! [`Running::shutdown`] claims nothing more, gives back what was not started, lets handlers finish for the time it is given
//! and returns once the database knows; others have the rest at once. Dropping a [`Running`] stops it without waiting.
//!
//! # Observing
//! [`Running::health`], [`Producer::health`] and [`CronJob::health`] tell rates, percentiles, totals and the last errors
//! without any exporter; the `metrics` facade has the same per topic and group. `tracing` spans follow W3C trace context from
//! publisher to handler ([`trace`]); with the feature `otel` those of tracing-opentelemetry do. [`Headwater::groups`] says how far each group is, [`Headwater::doctor`] what is off.
//!
//! # Testing
//! A store in memory, a clock that is moved by hand and a consumer that moves when told to: no test sleeps.
//!
//! ```
//! # #[tokio::main] async fn main() -> headwater::Result<()> {
//! # use std::time::Duration;
//! use headwater::{Clock, Context, Headwater, Json, ManualClock, OpenOptions, Retry};
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
//!                 return Err(Retry::after(Duration::from_secs(60)).because("the mail server rests").into());
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
//! The root has what programs name. What operators read and engines exchange is in [`store`], figures are in [`health`].
//! Programs to copy from are in `examples/`, and `docs/life-of-a-message.md` follows one message through the code.

mod backfill;
mod clock;
mod codec;
mod consumer;
#[cfg(feature = "cron")]
mod cron;
mod dead_letter;
mod error;
mod groups;
mod handler;
mod headwater;
mod lease;
mod lease_thread;
pub mod limits;
mod maintain;
mod message;
mod name;
mod namespace;
mod observe;
mod publish;
pub mod settle;
pub mod store;
mod subscription;
mod topic;
mod topics;

pub use clock::{Clock, ManualClock};
#[cfg(feature = "protobuf")]
pub use codec::Protobuf;
pub use codec::{Decode, DecodeError, IntoMessage, Json};
pub use consumer::{Batch, Consumer, ConsumerBuilder, EndReason, Running, Stepper, Stopped};
#[cfg(feature = "cron")]
pub use cron::{CronBuilder, CronJob, Missed};
pub use dead_letter::DeadLetters;
pub use error::{Error, ErrorKind, Result};
pub use groups::Groups;
pub use handler::{Bury, Context, Failure, HandlerResult, Handling, Messages, Retry, Skip, Verdicts};
pub use headwater::{Headwater, TopicBuilder};
pub use lease::{GroupLimits, RateLimit};
pub use maintain::{Job, Maintaining, Maintenance, MaintenancePreset};
pub use message::{Headers, Message, NewMessage, Offset, Published};
pub use name::{GroupName, Owner, TopicName};
pub use observe::{health, trace};
pub use publish::{Producer, Sends};
/// The driver whose connections handlers in SQLite transactions get: use it from here, and versions always match.
#[cfg(feature = "sqlite")]
pub use rusqlite;
pub use store::OpenOptions;
pub use subscription::{DeliveryPolicy, Start, SubscriptionState};
/// The driver whose transactions handlers and publishers use on PostgreSQL.
#[cfg(feature = "postgres")]
pub use tokio_postgres;

pub use topic::{Ordering, Partition, Preset, Semantics, Storage, TopicSettings, Tracking};
pub use topics::Topics;

/// The README's programs compile.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;
