-- Maintenance jobs, audit entries, and the log of acks.

CREATE TABLE {schema}.job (
    job         text PRIMARY KEY,
    runs        bigint NOT NULL DEFAULT 0,
    failures    bigint NOT NULL DEFAULT 0,
    rows        bigint NOT NULL DEFAULT 0,
    backlog     bigint NOT NULL DEFAULT 0,
    last_run_at timestamptz NOT NULL,
    duration_us bigint NOT NULL DEFAULT 0,
    last_error  text
);

-- The elected worker; at most one row.
CREATE TABLE {schema}.election (
    one    boolean PRIMARY KEY DEFAULT true CHECK (one),
    worker text NOT NULL,
    until  timestamptz NOT NULL
);

CREATE TABLE {schema}.audit (
    audit_id   bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    acted_at   timestamptz NOT NULL,
    actor      text NOT NULL,
    act        text NOT NULL,
    topic      text,
    group_name text,
    detail     jsonb NOT NULL DEFAULT '{}'
);

CREATE TABLE {schema}.ack_log (
    topic_id     integer NOT NULL,
    first_offset bigint NOT NULL,
    last_offset  bigint NOT NULL,
    group_name   text NOT NULL,
    owner        text NOT NULL,
    acked_at     timestamptz NOT NULL,
    -- Set for an ordered subscription: the ranges of its lanes overlap, and the entry acks only the messages of its lane.
    lane         integer,
    lanes        integer NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 10000);

CREATE INDEX ack_log_offsets ON {schema}.ack_log (topic_id, last_offset);
