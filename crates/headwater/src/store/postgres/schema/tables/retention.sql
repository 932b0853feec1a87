-- The first stored offset of each topic's log, its progress in maintenance, and its age.

-- One row per topic: its row lock (FOR UPDATE) is the lock of maintenance. See functions/locks.sql.
CREATE TABLE {schema}.topic_range (
    topic_id      integer PRIMARY KEY REFERENCES {schema}.topic ON DELETE CASCADE,
    -- Everything below was removed.
    first_offset  bigint NOT NULL DEFAULT 1,
    -- Everything at or below was published while no subscription counted, or before that; null while none counts.
    zero_until    bigint,
    -- While none counts (zero_until is null): the first offset published since then.
    zero_from     bigint NOT NULL DEFAULT 1,
    -- Reference counting: everything at or below has its completion record, except in recorded gaps.
    tracked_until bigint NOT NULL DEFAULT 0,
    -- Up to where tracking has to work after a change of mode; null if no change is in progress.
    change_until  bigint,
    removed       bigint NOT NULL DEFAULT 0,
    -- No completion record below is pending.
    pending_from  bigint NOT NULL DEFAULT 1,
    -- The bits assigned to any group since records are kept: unused ones are assigned first, without a search of the records.
    bits_used     bigint NOT NULL DEFAULT 0,
    -- Where the next step of cleanup begins, if the messages below were checked in this run and stay; 0 for the first offset.
    clean_from    bigint NOT NULL DEFAULT 0,
    -- The last offset taken at some recent time, that time, and the offsets per second as last measured.
    rate_offset   bigint,
    rate_at       timestamptz,
    rate          double precision
) WITH (fillfactor = 30, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);

-- The watermark history: message retention is measured from when messages were done.
CREATE TABLE {schema}.watermark_history (
    topic_id  integer NOT NULL REFERENCES {schema}.topic ON DELETE CASCADE,
    noted_at timestamptz NOT NULL,
    watermark bigint NOT NULL,
    PRIMARY KEY (topic_id, noted_at)
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);

-- Elapsed time as observed by maintenance; at most one row. Unread messages are removed by this time only, never by one reading
-- of the clock: see functions/clean.sql.
CREATE TABLE {schema}.elapsed (
    one        boolean PRIMARY KEY DEFAULT true CHECK (one),
    read_at    timestamptz NOT NULL,
    elapsed_ms bigint NOT NULL
) WITH (fillfactor = 20, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);

-- The history of the head: everything at or below was published by that elapsed time.
CREATE TABLE {schema}.age (
    topic_id   integer NOT NULL REFERENCES {schema}.topic ON DELETE CASCADE,
    elapsed_ms bigint NOT NULL,
    head       bigint NOT NULL,
    PRIMARY KEY (topic_id, elapsed_ms)
);
