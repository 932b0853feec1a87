-- The log. row_key is (topic_id << 43) | offset: with one integer key the table is a true B+tree, clustered by topic and
-- offset, where large payloads are in overflow pages and never widen the inner nodes.
CREATE TABLE headwater_message (
    row_key INTEGER PRIMARY KEY,
    created_at_ms INTEGER NOT NULL,
    message_id BLOB NOT NULL,
    key TEXT,
    type TEXT,
    content_type TEXT,
    headers TEXT,
    correlation_id TEXT,
    payload BLOB NOT NULL
) STRICT;
