-- The log, and how far it is final.
--
-- Message rows are written once and never updated; publishing and consuming never delete them. Each batch changes only one small
-- row in "cursor" and one in "outstanding"; both tables have space in their pages for new versions and are vacuumed early.

-- Small topics share one partition, so that adding a topic creates no table.
CREATE TABLE {schema}.message (
    message_offset bigint NOT NULL,
    created_at     timestamptz NOT NULL,
    topic_id       integer NOT NULL,
    message_id     uuid NOT NULL,
    key            text,
    message_type   text,
    payload        bytea NOT NULL,
    content_type   text,
    headers        jsonb,
    correlation_id text,
    PRIMARY KEY (topic_id, message_offset),
    -- The range of clients: a time outside of it could be stored, and no consumer would get past the message.
    CONSTRAINT message_created_at_readable
        CHECK (created_at >= '0001-01-01 00:00:00Z' AND created_at < '9999-12-30 00:00:00Z')
) PARTITION BY LIST (topic_id);

-- Deleted messages are vacuumed long before they are a fifth of the table.
CREATE TABLE {schema}.message_shared PARTITION OF {schema}.message (
    CONSTRAINT message_shared_numbers CHECK (topic_id < 1000000000)
) DEFAULT WITH (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 10000,
                autovacuum_vacuum_insert_scale_factor = 0.1);

-- Dedicated storage: the tables of a topic, by the offsets they take.
CREATE TABLE {schema}.partition (
    topic_id     integer NOT NULL REFERENCES {schema}.topic ON DELETE CASCADE,
    first_offset bigint NOT NULL,
    last_offset  bigint NOT NULL,
    table_name   text NOT NULL,
    created_at   timestamptz NOT NULL,
    PRIMARY KEY (topic_id, first_offset)
);

-- "head" and "cursor" have one row for each topic and lane, of which claims make thousands of versions. While an old snapshot or
-- an open transaction keeps all of them, a search by the key alone visits every one. So "era" is part of the key: it falls by one
-- every 64 versions, and the entries of the newest version come first in the index. Frequent statements filter by era <= (SELECT
-- era ... ORDER BY era LIMIT 1): the search stops at the first visible version, and the bound leaves only the entries of that
-- era, and of later ones if the row is changed meanwhile. Between two eras updates are heap-only. The key without the era is
-- unique because only create_topic and begin_subscription insert, once each.

-- Every offset at or below "head" is final: visible, known to stay unused, or recorded in "gap".
CREATE TABLE {schema}.head (
    topic_id        integer NOT NULL REFERENCES {schema}.topic ON DELETE CASCADE,
    head            bigint NOT NULL DEFAULT 0,
    -- The first missing offset, at which the head waits; since when; the last offset taken then; and a bound: every transaction
    -- that may own these offsets has an xid below it.
    stuck_at        bigint,
    stuck_since     timestamptz,
    stuck_top       bigint,
    stuck_bound     xid8,
    -- The highest offset in any recorded gap, 0 without gaps: claims above it need not search.
    gaps_until      bigint NOT NULL DEFAULT 0,
    gaps_checked_at timestamptz,
    -- The snapshot as of which every row in a gap has been handed out, and the highest bound of any gap; null if a gap has none.
    gaps_seen       pg_snapshot,
    gaps_bound      xid8,
    -- Ranges above the head in which no row was visible as of a snapshot: their last offsets, and the bounds of their owners. Both
    -- arrays rise. See functions/head.sql.
    empty_until     bigint[] NOT NULL DEFAULT '{}',
    empty_bound     xid8[] NOT NULL DEFAULT '{}',
    empty_seen      pg_snapshot,
    -- When pg_locks was last read to find the transactions that may still fill them: that is not cheap.
    horizon_at      timestamptz,
    -- The highest offset in table "hole", 0 if there is none.
    holes_until     bigint NOT NULL DEFAULT 0,
    moves           bigint NOT NULL DEFAULT 0,
    era             bigint NOT NULL DEFAULT 0,
    PRIMARY KEY (topic_id, era)
) WITH (fillfactor = 30, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000);

-- Offsets the head stepped over although their owner may still commit.
CREATE TABLE {schema}.gap (
    topic_id     integer NOT NULL,
    first_offset bigint NOT NULL,
    last_offset  bigint NOT NULL,
    bound        xid8,
    noted_at     timestamptz NOT NULL,
    PRIMARY KEY (topic_id, first_offset),
    CHECK (first_offset <= last_offset)
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000);

-- Wide ranges of offsets that stay unused, so that claims skip them in one step: after a failover offsets continue well above the
-- last one known.
CREATE TABLE {schema}.hole (
    topic_id     integer NOT NULL,
    first_offset bigint NOT NULL,
    last_offset  bigint NOT NULL,
    PRIMARY KEY (topic_id, first_offset),
    CHECK (first_offset <= last_offset)
);
