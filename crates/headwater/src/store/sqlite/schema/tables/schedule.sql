-- Scheduled messages and the ticks of cron jobs.

-- Scheduled messages, promoted into the log in the order of (deliver_at_ms, schedule_id).
CREATE TABLE headwater_schedule (
    schedule_id INTEGER PRIMARY KEY,
    topic_id INTEGER NOT NULL,
    deliver_at_ms INTEGER NOT NULL,
    message_id BLOB NOT NULL,
    key TEXT,
    type TEXT,
    content_type TEXT,
    headers TEXT,
    correlation_id TEXT,
    dedup_key TEXT,
    payload BLOB NOT NULL
) STRICT;
CREATE INDEX headwater_schedule_due ON headwater_schedule (topic_id, deliver_at_ms);

-- Each tick is fired once, by the first process. last_tick_ms is the last tick fired, or the time from which ticks count.
CREATE TABLE headwater_cron (
    job TEXT PRIMARY KEY NOT NULL,
    last_tick_ms INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
