-- Purpose:    A backfill begins, in place of an earlier one.
-- Parameters: ?1 subscription_id, ?2 state, ?3 first_offset, ?4 last_offset, ?5 rate_max, ?6 now_ms
-- Index:      the primary key
INSERT OR REPLACE INTO headwater_backfill (
    subscription_id, state, first_offset, last_offset, checkpoint, rate_max, created_at_ms
)
VALUES (?1, ?2, ?3, ?4, ?3 - 1, ?5, ?6)
