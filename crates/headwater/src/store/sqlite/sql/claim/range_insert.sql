-- Purpose:    Stores an outstanding range.
-- Parameters: ?1 token, ?2 first_offset, ?3 last_offset, ?4 subscription_id, ?5 lane, ?6 owner, ?7 due_at_ms, ?8 attempts,
--             ?9 suspect, ?10 parked, ?11 key, ?12 last_error
-- Index:      the primary key; the partial indexes it falls under
INSERT INTO headwater_range (
    token, first_offset, last_offset, subscription_id, lane, owner, due_at_ms, attempts, suspect, parked, key,
    last_error
)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12)
