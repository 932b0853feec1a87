-- How far each topic's log reaches, and how old it is.

-- One row per topic: its lock (FOR UPDATE) is the lock of maintenance. See functions/locks.sql.
CREATE TABLE {schema}.extent (
    topic_id      integer PRIMARY KEY REFERENCES {schema}.topic ON DELETE CASCADE,
    -- Everything below was removed.
    first_offset  bigint NOT NULL DEFAULT 1,
    -- Everything at or below was published while no subscription counted, or before that; null while none counts.
    zero_until    bigint,
    -- While none counts (zero_until is null): everything from it on was published since.
    zero_from     bigint NOT NULL DEFAULT 1,
    -- Reference counting: everything at or below has its record, noted gaps apart.
    tracked_until bigint NOT NULL DEFAULT 0,
    -- Where tracking has to get to after a change of mode; null when no change is under way.
    change_until  bigint,
    removed       bigint NOT NULL DEFAULT 0,
    -- No record below is pending.
    pending_from  bigint NOT NULL DEFAULT 1,
    -- The bits ever given to a group since records are kept: those never used are given first, without a search of the records.
    bits_used     bigint NOT NULL DEFAULT 0,
    -- Where the next step of cleanup begins, if what lies below was checked in this run and stays; 0 for the first offset.
    clean_from    bigint NOT NULL DEFAULT 0,
    -- How many offsets were taken at some recent time, and the offsets a second as last measured.
    rate_offset   bigint,
    rate_at       timestamptz,
    rate          double precision
) WITH (fillfactor = 30, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);

-- The watermark as it was: message retention is reckoned from when messages were done.
CREATE TABLE {schema}.mark (
    topic_id  integer NOT NULL REFERENCES {schema}.topic ON DELETE CASCADE,
    marked_at timestamptz NOT NULL,
    watermark bigint NOT NULL,
    PRIMARY KEY (topic_id, marked_at)
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);

-- Elapsed time as maintenance saw it pass; at most one row. Unread messages are removed by it alone, never by one reading of
-- the clock: see functions/clean.sql.
CREATE TABLE {schema}.elapsed (
    one        boolean PRIMARY KEY DEFAULT true CHECK (one),
    read_at    timestamptz NOT NULL,
    elapsed_ms bigint NOT NULL
) WITH (fillfactor = 20, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);

-- The head as it was: everything at or below was published by that elapsed time.
CREATE TABLE {schema}.age (
    topic_id   integer NOT NULL REFERENCES {schema}.topic ON DELETE CASCADE,
    elapsed_ms bigint NOT NULL,
    head       bigint NOT NULL,
    PRIMARY KEY (topic_id, elapsed_ms)
);
