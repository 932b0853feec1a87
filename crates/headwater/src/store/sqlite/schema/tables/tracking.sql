-- Reference counting: completion records, what each subscription has applied to them, and backfills.

-- Completion records: for each message (row_key as in headwater_message) the groups that must do it and those that have done
-- it, one bit each (headwater_subscription.bit).
CREATE TABLE headwater_completion_record (
    row_key INTEGER PRIMARY KEY,
    required INTEGER NOT NULL,
    completed INTEGER NOT NULL,
    completed_at_ms INTEGER
) STRICT;
CREATE INDEX headwater_completion_record_pending ON headwater_completion_record (row_key) WHERE completed_at_ms IS NULL;

-- The offsets for which the records have the completion bit of a subscription, as ranges.
CREATE TABLE headwater_applied (
    subscription_id INTEGER NOT NULL,
    first_offset INTEGER NOT NULL,
    last_offset INTEGER NOT NULL,
    PRIMARY KEY (subscription_id, first_offset)
) STRICT, WITHOUT ROWID;

-- Offsets at or below applied_until that may have become done, or not done any more, since tracking last processed them.
-- A lease that tracking found (token above 0) is processed again once its row is gone; a range that waited or waits (token 0) at once.
CREATE TABLE headwater_touched (
    subscription_id INTEGER NOT NULL,
    first_offset INTEGER NOT NULL,
    token INTEGER NOT NULL,
    last_offset INTEGER NOT NULL,
    PRIMARY KEY (subscription_id, first_offset, token)
) STRICT, WITHOUT ROWID;

CREATE TABLE headwater_backfill (
    subscription_id INTEGER PRIMARY KEY,
    state TEXT NOT NULL CHECK (state IN ('not_started', 'in_progress', 'completed', 'cancelled', 'failed')),
    first_offset INTEGER NOT NULL,
    last_offset INTEGER NOT NULL,
    checkpoint INTEGER NOT NULL,
    rate_max INTEGER NOT NULL,
    -- Messages below first_offset that its limit left out.
    left_out INTEGER NOT NULL DEFAULT 0,
    -- Limits of its own; NULL leaves them to the pace of maintenance.
    batch_max INTEGER CHECK (batch_max > 0),
    target_latency_ms INTEGER CHECK (target_latency_ms > 0),
    created_at_ms INTEGER NOT NULL,
    progressed_at_ms INTEGER,
    -- The time spent in steps, for the rate: it may have been cancelled and resumed.
    ran_ms INTEGER NOT NULL DEFAULT 0,
    error TEXT,
    -- The worker that holds it, and until when.
    worker TEXT,
    worker_until_ms INTEGER
) STRICT;
