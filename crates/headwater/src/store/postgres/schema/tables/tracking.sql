-- Reference counting: completion records, and backfills of groups that subscribed later.

-- Completion records: for each message the groups that must do it and those that have done it, one bit each (subscription.bit).
-- Apart from the log: changing a bit must not copy the payload, and the log stays append-only.
--
-- No index but the key, and space in the page for a second version of every row: every change of a record, completed_at
-- included, is then a heap-only update that the next visitor of the page prunes. With a partial index on pending records
-- each completion would write the key's index too; instead topic_range.pending_from is where a search begins.
CREATE TABLE {schema}.completion_record (
    topic_id       integer NOT NULL,
    message_offset bigint NOT NULL,
    required       bigint NOT NULL,
    completed      bigint NOT NULL,
    completed_at   timestamptz,
    PRIMARY KEY (topic_id, message_offset)
) WITH (fillfactor = 45, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 5000);

CREATE TABLE {schema}.backfill (
    subscription_id integer PRIMARY KEY REFERENCES {schema}.subscription ON DELETE CASCADE,
    state           text NOT NULL CHECK (state IN ('not_started', 'in_progress', 'completed', 'cancelled', 'failed')),
    first_offset    bigint NOT NULL,
    last_offset     bigint NOT NULL,
    checkpoint      bigint NOT NULL,
    rate_max        integer NOT NULL CHECK (rate_max > 0),
    -- Messages below first_offset that its limit left out.
    left_out        bigint NOT NULL DEFAULT 0,
    -- Limits of its own; null leaves them to the pace of maintenance.
    batch_max         integer CHECK (batch_max > 0),
    target_latency_ms bigint CHECK (target_latency_ms > 0),
    created_at      timestamptz NOT NULL,
    progressed_at   timestamptz,
    -- The time spent in steps, for the rate: it may have been cancelled and resumed.
    ran_ms          bigint NOT NULL DEFAULT 0,
    error           text,
    -- The worker that holds it, and until when.
    worker          text,
    worker_until    timestamptz
);
