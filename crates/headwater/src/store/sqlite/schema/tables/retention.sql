-- Retention: the age of messages.

-- The watermark history: message retention is measured from when messages were done.
CREATE TABLE headwater_watermark_history (
    topic_id INTEGER NOT NULL,
    noted_at_ms INTEGER NOT NULL,
    watermark INTEGER NOT NULL,
    PRIMARY KEY (topic_id, noted_at_ms)
) STRICT, WITHOUT ROWID;

-- Elapsed time as observed by maintenance; at most one row. Unread messages are removed by this time only, never by one reading
-- of the clock: a step of the clock counts at most as the longest expected interval between two readings.
CREATE TABLE headwater_elapsed (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    read_at_ms INTEGER NOT NULL,
    elapsed_ms INTEGER NOT NULL
) STRICT;

-- The history of the last offset: everything at or below last_offset was published by that elapsed time.
CREATE TABLE headwater_age (
    topic_id INTEGER NOT NULL,
    elapsed_ms INTEGER NOT NULL,
    last_offset INTEGER NOT NULL,
    PRIMARY KEY (topic_id, elapsed_ms)
) STRICT, WITHOUT ROWID;
