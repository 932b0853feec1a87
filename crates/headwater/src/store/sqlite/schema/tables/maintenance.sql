-- Maintenance jobs and the worker that runs them; audit entries; the log of acks.

CREATE TABLE headwater_job (
    job TEXT PRIMARY KEY NOT NULL,
    runs INTEGER NOT NULL DEFAULT 0,
    failures INTEGER NOT NULL DEFAULT 0,
    rows INTEGER NOT NULL DEFAULT 0,
    backlog INTEGER NOT NULL DEFAULT 0,
    last_run_at_ms INTEGER NOT NULL,
    duration_us INTEGER NOT NULL DEFAULT 0,
    last_error TEXT
) STRICT, WITHOUT ROWID;

-- The elected worker; at most one row.
CREATE TABLE headwater_election (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    worker TEXT NOT NULL,
    until_ms INTEGER NOT NULL
) STRICT;

-- Audit entries, append-only: triggers refuse every other change.
CREATE TABLE headwater_audit (
    audit_key INTEGER PRIMARY KEY AUTOINCREMENT,
    acted_at_ms INTEGER NOT NULL,
    actor TEXT NOT NULL,
    act TEXT NOT NULL,
    topic TEXT,
    group_name TEXT,
    detail TEXT NOT NULL DEFAULT '{}'
) STRICT;

-- The log of acks, for topics that keep one.
CREATE TABLE headwater_ack_log (
    ack_key INTEGER PRIMARY KEY,
    topic_id INTEGER NOT NULL,
    first_offset INTEGER NOT NULL,
    last_offset INTEGER NOT NULL,
    -- Set for an ordered subscription: the entry acks only the messages of its lane, out of "lanes".
    lane INTEGER,
    lanes INTEGER NOT NULL,
    group_name TEXT NOT NULL,
    owner TEXT NOT NULL,
    acked_at_ms INTEGER NOT NULL
) STRICT;
CREATE INDEX headwater_ack_log_offsets ON headwater_ack_log (topic_id, last_offset);
