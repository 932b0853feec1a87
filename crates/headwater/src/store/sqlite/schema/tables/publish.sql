-- Publishing: scheduled messages, dedup keys and the ticks of cron jobs; and the inbox of handlers.

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

-- Each tick is fired once, by the first process. last_tick_ms is the last tick fired, or the time from which ticks count.
CREATE TABLE headwater_cron (
    job TEXT PRIMARY KEY NOT NULL,
    last_tick_ms INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- Inbox entries: which handler has handled which message, written in the same transaction as the handler's own effects and
-- the ack. message_id is chosen by the publisher, so a second publish of the same id is recognized as well.
CREATE TABLE headwater_inbox (
    handler TEXT NOT NULL,
    message_id BLOB NOT NULL,
    handled_at_ms INTEGER NOT NULL,
    PRIMARY KEY (handler, message_id)
) STRICT, WITHOUT ROWID;
CREATE INDEX headwater_inbox_handled ON headwater_inbox (handled_at_ms);
