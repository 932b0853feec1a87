-- Reference counting: its records, how far each subscription is in them, and the backfill of records that are missing.

-- For each message (row_key as in headwater_message) the groups it is for and those that are done, one bit each
-- (headwater_subscription.bit).
CREATE TABLE headwater_record (
    row_key INTEGER PRIMARY KEY,
    required INTEGER NOT NULL,
    completed INTEGER NOT NULL,
    completed_at_ms INTEGER
) STRICT;
CREATE INDEX headwater_record_pending ON headwater_record (row_key) WHERE completed_at_ms IS NULL;

-- The offsets of a subscription whose completion is set in the records, as ranges.
CREATE TABLE headwater_applied (
    subscription_id INTEGER NOT NULL,
    first_offset INTEGER NOT NULL,
    last_offset INTEGER NOT NULL,
    PRIMARY KEY (subscription_id, first_offset)
) STRICT, WITHOUT ROWID;

-- Offsets at or below applied_until that may be done, or not done any more, since tracking last met them.
-- A lease that tracking met (token above 0) is due once its row is gone; what waited or waits is due at once (token 0).
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
    created_at_ms INTEGER NOT NULL,
    progressed_at_ms INTEGER,
    -- Time spent on it, for the rate: it may have been cancelled and resumed.
    ran_ms INTEGER NOT NULL DEFAULT 0,
    error TEXT,
    -- The worker that has it, and until when.
    worker TEXT,
    worker_until_ms INTEGER
) STRICT;
