//! Durable messaging that lives in the database you already have.
//!
//! An append-only log per topic, and per subscription only the ranges that are not done yet: queues, fan-out,
//! exact acks, retries and dead letters, on one SQLite file or on PostgreSQL.

mod clock;
mod codec;
mod consumer;
mod cron;
mod dead_letter;
mod error;
mod handle;
mod handler;
mod headwater;
mod lease;
pub mod limits;
mod message;
mod name;
mod namespace;
mod observe;
mod publish;
pub mod settle;
pub mod store;
mod subscription;
mod topic;

pub use clock::{Clock, ManualClock};
#[cfg(feature = "protobuf")]
pub use codec::Protobuf;
pub use codec::{Decode, DecodeError, IntoMessage, Json};
pub use consumer::{Consumer, ConsumerBuilder, Handling, Running, Stepper, Stopped};
pub use cron::{CronBuilder, CronJob, Missed};
pub use dead_letter::{DeadLetter, DeadLetterSelection, DeadLetters, Redriven};
pub use error::{Error, ErrorKind, Result};
pub use handle::Batch;
pub use handler::{Bury, Context, Failure, HandlerResult, Messages, Retry, Skip, Verdicts};
pub use headwater::{Headwater, TopicBuilder};
pub use lease::{
    ClaimRequest, Claimed, GroupLimits, HandOut, Lease, LeaseToken, OffsetRange, Outcome, Parts, RateLimit,
    Settlement, Want, attempts_after_expiry, hand_out_again,
};
pub use message::{Headers, Message, NewMessage, Offset, Published};
pub use name::{GroupName, Owner, TopicName};
pub use namespace::{Namespace, SqlitePath, StoreUrl};
pub use observe::errors::RecordedError;
pub use observe::health::{Health, HealthState, Percentiles, Rates, Times, Totals};
pub use observe::trace;
pub use publish::{Producer, Sends};
pub use store::{Finding, Maintained, OpenOptions, Store, Wake};
pub use subscription::{Start, Subscription, SubscriptionId, SubscriptionStatus};
pub use topic::{Ordering, Semantics, Topic, TopicId, TopicSettings, TopicStatus};
