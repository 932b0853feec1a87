-- Dedup keys of publishers, inbox entries of handlers.

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

-- Inbox entries: which handler has handled which message, written in the same transaction as the handler's own effects and
-- the ack. message_id is chosen by the publisher, so a second publish of the same id is recognized as well.
CREATE TABLE headwater_inbox (
    handler TEXT NOT NULL,
    message_id BLOB NOT NULL,
    handled_at_ms INTEGER NOT NULL,
    PRIMARY KEY (handler, message_id)
) STRICT, WITHOUT ROWID;
CREATE INDEX headwater_inbox_handled ON headwater_inbox (handled_at_ms);
