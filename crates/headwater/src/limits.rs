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
/// Most bytes of payloads promoted or removed in one transaction of SQLite, unless one payload alone is larger: other writers wait.
/// On both engines it also bounds a transaction that deletes dead letters by id, or redrives those of no group.
pub const STEP_BYTES_MAX: u64 = 16 * 1024 * 1024;
/// Longest lease, and longest retry or delivery delay.
pub const DELAY_MAX: Duration = Duration::from_secs(366 * 24 * 3600);
/// Longest error text kept with a retry or a dead letter; longer ones end in a marker.
pub const ERROR_TEXT_BYTES_MAX: usize = 64 * 1024;
/// Longest reason of a pause, in bytes.
pub const REASON_BYTES_MAX: usize = 2 * 1024;
/// Most ids in one selection of dead letters.
pub const DEAD_LETTER_IDS_MAX: usize = 10_000;
/// Most dead letters redriven, purged or (PostgreSQL) removed with their group in one transaction; the total is not
/// limited.
pub const DEAD_LETTERS_PER_STEP: i32 = 500;
/// Groups that the survey of maintenance reads and exports at most.
pub const SURVEYED_GROUPS_MAX: u32 = 1_000;
/// Dead letters of a group that a survey counts at most.
pub const DEAD_LETTERS_COUNTED_MAX: i64 = 100_000;
/// How often a process renews its proof of life, and checks those of others.
pub(crate) const WATCH_EVERY: Duration = Duration::from_millis(500);
/// How many owners each owner checks for their proof of life: those that follow it by name.
pub(crate) const WATCHED_OWNERS_MAX: i32 = 16;
/// How long an inbox entry is kept by default: longer than any redelivery.
pub const INBOX_RETENTION: Duration = Duration::from_secs(30 * 24 * 3600);
/// How long a published entry of the outbox is kept by default.
pub const OUTBOX_RETENTION: Duration = Duration::from_secs(7 * 24 * 3600);
/// Most entries of the inbox, and of the outbox, deleted in one step of maintenance; also activities and dedup keys.
pub const ENTRIES_FORGET_MAX: i32 = 10_000;
/// Most entries of the outbox that one sweep claims, or one call marks.
pub const OUTBOX_ENTRIES_MAX: u32 = 10_000;
/// Most bytes of error texts in one call that marks entries as failed.
pub const OUTBOX_ERRORS_BYTES_MAX: usize = 16 * 1024 * 1024;
/// How long a claim of an entry of the outbox lasts by default before a sweep takes it for timed out.
pub const OUTBOX_CLAIM_TIMEOUT: Duration = Duration::from_secs(300);
/// How often sending an entry of the outbox may fail by default before it becomes a dead letter.
pub const OUTBOX_ATTEMPTS_MAX: u32 = 10;
/// Longest name of what a bridge reads: a cluster, a topic and a partition.
pub const BRIDGE_SOURCE_BYTES_MAX: usize = 512;
/// Longest word for how a parked command failed.
pub const FAILED_STATUS_BYTES_MAX: usize = 50;
/// Longest name of what parked a command.
pub const PARKED_BY_BYTES_MAX: usize = 100;
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
/// Largest data of a process.
pub const PROCESS_DATA_BYTES_MAX: usize = 16 * 1024 * 1024;
/// How deep data of a process may be nested.
pub const PROCESS_DATA_DEPTH_MAX: usize = 128;
/// Most attempts of a step of a process.
pub const PROCESS_ATTEMPTS_MAX: u32 = 1_000;
/// Most processes that one search returns.
pub const PROCESSES_LISTED_MAX: u32 = 10_000;
/// How long a process that ended is kept with its log.
pub const PROCESS_RETENTION: Duration = Duration::from_secs(90 * 24 * 3600);
/// Most processes removed in one transaction.
pub(crate) const PROCESSES_FORGET_MAX: u32 = 500;
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
