//! Every limit of the engine in one place, units last.

use std::time::Duration;

/// Longest topic, group, key, header name, owner, message type or dedup key.
pub const NAME_BYTES_MAX: usize = 255;
/// Longest namespace: PostgreSQL's identifier limit is 63 bytes, and the role names append to it.
pub const NAMESPACE_BYTES_MAX: usize = 48;
/// Largest payload a topic may allow.
pub const PAYLOAD_BYTES_MAX: usize = 64 * 1024 * 1024;
/// Largest payload a topic allows by default.
pub const PAYLOAD_BYTES_DEFAULT: usize = 1024 * 1024;
/// Most headers on one message.
pub const HEADERS_MAX: usize = 128;
/// Longest header value.
pub const HEADER_VALUE_BYTES_MAX: usize = 16 * 1024;
/// Most messages in one publish call.
pub const PUBLISH_MESSAGES_MAX: usize = 10_000;
/// Most payload bytes in one publish call: one statement must fit the wire protocols.
pub const PUBLISH_BYTES_MAX: usize = 256 * 1024 * 1024;
/// Most messages one claim may request, per subscription.
pub const CLAIM_MESSAGES_MAX: u32 = 100_000;
/// Most subscriptions one claim may serve.
pub const CLAIM_SUBSCRIPTIONS_MAX: usize = 1_000;
/// Most lanes of an ordered subscription.
pub const LANES_MAX: u16 = 256;
/// Most messages parked behind blocked keys in one lane; at that number the lane claims nothing new.
pub const PARKED_PER_LANE_MAX: i64 = 1_000;
/// Most gaps recorded per topic; with more the head waits until some close (PostgreSQL).
pub const GAPS_NOTED_MAX: i64 = 10_000;
/// Most rows one head advance reads (PostgreSQL).
pub const ADVANCE_ROWS_MAX: i32 = 20_000;
/// Most scheduled messages moved into the log in one step.
pub const PROMOTE_MESSAGES_MAX: i32 = 1_000;
/// Longest lease, and longest retry or delivery delay.
pub const DELAY_MAX: Duration = Duration::from_secs(366 * 24 * 3600);
/// Longest error text kept with a retry or a dead letter; longer ones end in a marker.
pub const ERROR_TEXT_BYTES_MAX: usize = 64 * 1024;
/// Most ids in one selection of dead letters.
pub const DEAD_LETTER_IDS_MAX: usize = 10_000;
/// Most dead letters redriven, purged or (PostgreSQL) removed with their group in one transaction; the total is not
/// limited.
pub const DEAD_LETTERS_PER_STEP: i32 = 500;
/// How often a process renews its proof of life, and checks those of others.
pub(crate) const WATCH_EVERY: Duration = Duration::from_millis(500);
/// How many owners each owner checks for their proof of life: those that follow it by name.
pub(crate) const WATCHED_OWNERS_MAX: i32 = 16;
/// How long an inbox entry is kept.
pub const INBOX_RETENTION: Duration = Duration::from_secs(7 * 24 * 3600);
/// Most inbox entries deleted in one round of maintenance.
pub const INBOX_FORGET_MAX: i32 = 10_000;
/// How often a waiting consumer polls although no wake-up arrived.
pub const SAFETY_POLL: Duration = Duration::from_secs(15);
/// Most missed ticks a cron job fires late.
pub const CRON_CATCH_UP_MAX: u32 = 1_000;
/// Longest retention: a timestamp plus the retention must stay in range.
pub const RETENTION_MAX: Duration = Duration::from_secs(100 * 366 * 24 * 3600);
/// Shortest heartbeat interval of a topic.
pub const HEARTBEAT_INTERVAL_MIN: Duration = Duration::from_millis(100);
/// Smallest partition by rows.
pub const PARTITION_ROWS_MIN: u64 = 1_000;
/// Most groups of a topic in reference counting: one bit each.
pub const TRACKED_GROUPS_MAX: u32 = 64;
/// Most messages one step of cleanup, tracking or backfill changes in one transaction.
pub const MAINTENANCE_MESSAGES_MAX: u32 = 10_000;
/// How long a cancelled or dead subscription is kept before it is deleted.
pub const SUBSCRIPTION_RETENTION: Duration = Duration::from_secs(30 * 24 * 3600);
/// How many heartbeats in a row may fail before a process stops handing out the messages it holds.
pub const HEARTBEAT_FAILURES_MAX: u32 = 10;
/// A group is flapping when it registers this often within [`FLAPPING_WINDOW`], beyond its running processes, and makes
/// no progress.
pub const FLAPPING_RESTARTS: u32 = 5;
/// How far back restarts are counted.
pub const FLAPPING_WINDOW: Duration = Duration::from_secs(600);

/// How far a fired tick may lie in the future. A tick further ahead was fired by a clock that was ahead, and no longer
/// blocks its job. Machines whose clocks differ by less than this fire no tick twice.
#[cfg(any(feature = "sqlite", feature = "cron"))]
pub(crate) const TICK_AHEAD_MAX: Duration = Duration::from_secs(300);
