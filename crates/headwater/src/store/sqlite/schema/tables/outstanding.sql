-- Outstanding ranges: leased (owner is set; due_at_ms is the deadline) or waiting (due_at_ms is when the range may be claimed).
-- 0 means due at once, 9223372036854775807 never. A lease is all rows of one token.
CREATE TABLE headwater_range (
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
CREATE INDEX headwater_range_leased ON headwater_range (subscription_id, due_at_ms, owner) WHERE owner IS NOT NULL;
CREATE INDEX headwater_range_waiting ON headwater_range (subscription_id, due_at_ms, first_offset) WHERE owner IS NULL;
-- By offset: finds waiting ranges that overlap some offsets, and the lowest one, however many there are.
CREATE INDEX headwater_range_place ON headwater_range (subscription_id, first_offset, last_offset) WHERE owner IS NULL;
CREATE INDEX headwater_range_suspect ON headwater_range (subscription_id, first_offset) WHERE suspect = 1;
CREATE INDEX headwater_range_lane ON headwater_range (subscription_id, lane, first_offset) WHERE lane IS NOT NULL;
