-- Publishing: scheduled messages, dedup keys and the ticks of cron jobs.

-- Scheduled messages, promoted into the log by (deliver_at_ms, schedule_id).
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
CREATE INDEX headwater_schedule_message ON headwater_schedule (topic_id, message_id);

-- Dedup keys within their window. message_offset is NULL while the message is scheduled.
CREATE TABLE headwater_dedup (
    topic_id INTEGER NOT NULL,
    dedup_key TEXT NOT NULL,
    message_id BLOB NOT NULL,
    message_offset INTEGER,
    expires_at_ms INTEGER NOT NULL,
    PRIMARY KEY (topic_id, dedup_key)
) STRICT, WITHOUT ROWID;
CREATE INDEX headwater_dedup_expiry ON headwater_dedup (expires_at_ms);

-- The last message that plain SQL published: the view headwater_published shows it. One row, which is only updated: the caller's own
-- INSERT OR IGNORE would apply to an insert too.
CREATE TABLE headwater_last_published (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    topic TEXT,
    message_offset INTEGER,
    message_id BLOB,
    duplicate INTEGER NOT NULL DEFAULT 0
) STRICT;
INSERT INTO headwater_last_published (one) VALUES (1);

-- Each tick is fired once, by the first process. last_tick_ms is the last tick fired, or the time from which ticks count.
CREATE TABLE headwater_cron (
    job TEXT PRIMARY KEY NOT NULL,
    last_tick_ms INTEGER NOT NULL,
    -- For operators: what the process that started it last gave, and when that was; NULL if none did.
    expression TEXT,
    time_zone TEXT,
    topic TEXT,
    started_at_ms INTEGER
) STRICT, WITHOUT ROWID;
