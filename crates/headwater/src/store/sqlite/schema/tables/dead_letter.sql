-- Dead letters: copies of messages, which stay when the message is removed from the log.
CREATE TABLE headwater_dead_letter (
    dead_letter_key INTEGER PRIMARY KEY AUTOINCREMENT,
    dead_letter_id BLOB NOT NULL UNIQUE,
    subscription_id INTEGER NOT NULL,
    message_offset INTEGER NOT NULL,
    message_id BLOB NOT NULL,
    key TEXT,
    type TEXT,
    content_type TEXT,
    headers TEXT,
    correlation_id TEXT,
    created_at_ms INTEGER NOT NULL,
    error TEXT NOT NULL,
    attempts INTEGER NOT NULL,
    buried_at_ms INTEGER NOT NULL,
    payload BLOB NOT NULL
) STRICT;
CREATE INDEX headwater_dead_letter_of ON headwater_dead_letter (subscription_id, dead_letter_key);
