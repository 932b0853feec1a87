-- Subscriptions: a group and its state in a topic, its cursors, outstanding ranges and rate. One process writes at a time: what a command reads
-- does not change until it commits.

-- A cancelled subscription stays until it is removed and does not block a new one of the same name.
CREATE TABLE headwater_subscription (
    subscription_id INTEGER PRIMARY KEY AUTOINCREMENT,
    topic_id INTEGER NOT NULL,
    group_name TEXT NOT NULL,
    lanes INTEGER NOT NULL,
    -- The offset at which the group started.
    start_offset INTEGER NOT NULL,
    reassigned INTEGER NOT NULL DEFAULT 0,
    created_at_ms INTEGER NOT NULL,
    state TEXT NOT NULL DEFAULT 'active' CHECK (state IN ('active', 'paused', 'dead', 'cancelled')),
    state_at_ms INTEGER NOT NULL,
    -- Why it is paused, if a reason was given; NULL in every other state.
    state_reason TEXT,
    -- The elapsed time (headwater_elapsed) when it died last.
    died_elapsed_ms INTEGER NOT NULL DEFAULT 0,
    -- Its own delivery policy; NULL means the topic's setting.
    lease_ms INTEGER,
    max_attempts INTEGER,
    backoff_initial_ms INTEGER,
    backoff_max_ms INTEGER,
    heartbeat_interval_ms INTEGER CHECK (heartbeat_interval_ms > 0),
    heartbeat_timeout_ms INTEGER CHECK (heartbeat_timeout_ms > 0),
    -- When it was resumed or resurrected, which counts as a heartbeat. headwater_heard includes heartbeats of its owners.
    heartbeat_at_ms INTEGER,
    -- Set if it was past its timeout when the detector ran for the first time after an interruption of detection.
    suspected_at_ms INTEGER,
    -- Registrations since a time, and the floor at that time.
    restarts INTEGER NOT NULL DEFAULT 0,
    restarts_since_ms INTEGER,
    restarts_floor INTEGER,
    missed INTEGER NOT NULL DEFAULT 0,
    missed_first INTEGER,
    missed_last INTEGER,
    -- Reference counting: its bit in the completion records; NULL in the mode offset watermark.
    bit INTEGER CHECK (bit BETWEEN 0 AND 63),
    -- New completion records require this subscription from this offset on.
    required_from INTEGER NOT NULL DEFAULT 1,
    -- It no longer counts: pending records up to this offset do not require it any more. NULL if there is nothing to release.
    released_until INTEGER,
    -- Everything at or below is in headwater_applied exactly if it is done, except offsets in headwater_touched.
    applied_until INTEGER NOT NULL DEFAULT 0,
    -- Outstanding ranges that wait, the offsets in them, and the offsets in those that are retried: maintained by triggers.
    waiting INTEGER NOT NULL DEFAULT 0,
    waiting_offsets INTEGER NOT NULL DEFAULT 0,
    retrying_offsets INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE UNIQUE INDEX headwater_subscription_group ON headwater_subscription (topic_id, group_name)
WHERE state <> 'cancelled';
CREATE INDEX headwater_subscription_cancelled ON headwater_subscription (topic_id, group_name)
WHERE state = 'cancelled';

-- Cursors: one row per subscription, or one per lane of an ordered one; turn is the count of the last hand-out.
-- Row (0, 0) counts hand-outs, in next_offset: every claim writes this page anyway.
CREATE TABLE headwater_cursor (
    subscription_id INTEGER NOT NULL,
    lane INTEGER NOT NULL,
    next_offset INTEGER NOT NULL,
    turn INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (subscription_id, lane)
) STRICT, WITHOUT ROWID;
INSERT INTO headwater_cursor (subscription_id, lane, next_offset) VALUES (0, 0, 0);

-- Outstanding ranges: leased (owner is set; due_at_ms is the deadline) or waiting (due_at_ms is when the range may be claimed).
-- 0 means due at once, 9223372036854775807 never. A lease is all rows of one token.
CREATE TABLE headwater_outstanding (
    token INTEGER NOT NULL,
    first_offset INTEGER NOT NULL,
    last_offset INTEGER NOT NULL,
    subscription_id INTEGER NOT NULL,
    lane INTEGER,
    owner TEXT,
    due_at_ms INTEGER NOT NULL,
    attempts INTEGER NOT NULL,
    suspect INTEGER NOT NULL,
    parked INTEGER NOT NULL,
    key TEXT,
    last_error TEXT,
    PRIMARY KEY (token, first_offset)
) STRICT, WITHOUT ROWID;
-- Every row is in exactly one of the first two indexes: a plain lease costs one index entry.
CREATE INDEX headwater_outstanding_leased ON headwater_outstanding (subscription_id, due_at_ms, owner) WHERE owner IS NOT NULL;
CREATE INDEX headwater_outstanding_waiting ON headwater_outstanding (subscription_id, due_at_ms, first_offset) WHERE owner IS NULL;
-- By offset: finds waiting ranges that overlap some offsets, and the lowest one, however many there are.
CREATE INDEX headwater_outstanding_place ON headwater_outstanding (subscription_id, first_offset, last_offset) WHERE owner IS NULL;
CREATE INDEX headwater_outstanding_suspect ON headwater_outstanding (subscription_id, first_offset) WHERE suspect = 1;
CREATE INDEX headwater_outstanding_lane ON headwater_outstanding (subscription_id, lane, first_offset) WHERE lane IS NOT NULL;

-- Token buckets of groups whose claims have a rate limit, from their first use on.
CREATE TABLE headwater_group_rate (
    subscription_id INTEGER PRIMARY KEY,
    tokens REAL NOT NULL,
    filled_at_ms INTEGER NOT NULL
) STRICT;
